//! Writes a parsed request for the upstream: first line, Host, the fields that pass on, one framing
//! field, and the fields that weir adds (RFC 9110 §7.6, RFC 9112 §3, §6).
//!
//! Called once for each request that is sent, straight into the request log. Adjacent field lines
//! that all pass are copied as one run. Never fails; the parser has decided what may leave.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::field::{Field, FieldName, Fields};
use crate::framing::members;
use crate::pseudonym::Pseudonym;
use crate::request::RequestHead;
use crate::request_line::Version;

/// The one framing field of a message that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// No framing field.
    None,
    /// `Content-Length`.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// What a request looks like when it leaves, beyond its own method and fields.
#[derive(Clone, Copy, Debug)]
pub struct RequestEdits<'a> {
    /// Target to send, origin-form or `*`. Empty is sent as `/`.
    pub path: &'a [u8],
    /// Value of Host.
    pub host: &'a [u8],
    /// How the body is sent.
    pub framing: Framing,
    /// Announce that the connection ends after the response: `Connection: close`.
    pub close: bool,
    /// Ask whether the body is wanted before it is sent: `Expect: 100-continue` (RFC 9110 §10.1.1).
    pub expect: bool,
    /// Ask for this upgrade: `Connection: upgrade` and the value of Upgrade.
    pub upgrade: Option<&'a [u8]>,
    /// Announce that trailers are welcome: `TE: trailers` and `Connection: TE`.
    pub te_trailers: bool,
    /// Add a Via line with this name.
    pub via: Option<Pseudonym>,
    /// Add a CDN-Loop line with this name (RFC 8586): it shows where the request was as Via does,
    /// but no server disables compression of its response because of it.
    pub cdn_loop: Option<Pseudonym>,
    /// Keep fields whose name contains `_`, except those that name a field which weir writes or
    /// removes if `_` is read as `-`.
    pub underscores: bool,
    /// The client of the request. None: nothing is added, and the client's own fields about
    /// forwarding are dropped as well.
    pub forwarded: Option<Forwarded<'a>>,
    /// The client's fields about forwarding pass unchanged, and weir adds nothing, for any client.
    pub keeps_forwarding: bool,
    /// Client-Cert and Client-Cert-Chain (RFC 9440) come from the program that terminates TLS,
    /// which is weir: those of the client are dropped.
    pub judges_clients: bool,
    /// Fields to add; fields of the same name from the client are removed. The caller is
    /// responsible for their grammar.
    pub extra: &'a [(&'a [u8], &'a [u8])],
    /// Names of further fields of the client that are removed.
    pub removed: &'a [&'a [u8]],
    /// Fields to add after those of the client, of the same name or not. The caller is responsible
    /// for their grammar.
    pub added: &'a [(&'a [u8], &'a [u8])],
}

/// The client as the connection knows it.
#[derive(Clone, Copy, Debug)]
pub struct Forwarded<'a> {
    /// Address of the connection; an IPv4 address mapped into IPv6 is written as IPv4, and the
    /// unspecified one (`::`) as `unknown`: there is none (RFC 7239 §6.2).
    pub client: IpAddr,
    /// `http` or `https`.
    pub proto: &'a [u8],
    /// Host that the client requested.
    pub host: &'a [u8],
    /// The client may speak for others: X-Forwarded-*, Forwarded and X-Real-IP are kept, -For gets
    /// its address appended. Otherwise all of them are dropped and rewritten.
    pub trusted: bool,
}

/// Never passed on: hop-by-hop, rewritten by weir, or dangerous for programs behind the server.
const REMOVED: u64 = FieldName::HOP_BY_HOP | FieldName::set(&[FieldName::Host, FieldName::Expect]);

/// Fields that identify a client by its certificate (RFC 9440).
const CERTIFIED: u64 = FieldName::set(&[FieldName::ClientCert, FieldName::ClientCertChain]);

/// Room for the fields that weir adds, without values of variable length.
const ADDED_BYTES: usize = 256;

/// Appends the complete head of a request, always HTTP/1.1. `input` and `fields` are those that
/// `head` was parsed from.
pub fn encode_request(
    out: &mut Vec<u8>,
    input: &[u8],
    head: &RequestHead,
    fields: &Fields,
    edits: &RequestEdits<'_>,
) {
    out.reserve(head.bytes + ADDED_BYTES + added_bytes(edits));
    out.extend_from_slice(head.method_span.of(input));
    out.push(b' ');
    out.extend_from_slice(if edits.path.is_empty() { b"/" } else { edits.path });
    out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
    out.extend_from_slice(edits.host);
    out.extend_from_slice(b"\r\n");
    copy_kept(out, input, head, fields, edits);
    put_framing(out, edits.framing);
    if edits.expect {
        out.extend_from_slice(b"Expect: 100-continue\r\n");
    }
    put_connection(out, edits);
    if let Some(us) = edits.via {
        put_via(out, head.version, us);
    }
    if let Some(us) = edits.cdn_loop {
        out.extend_from_slice(b"CDN-Loop: ");
        out.extend_from_slice(us.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if let Some(forwarded) = edits.forwarded.as_ref().filter(|_| !edits.keeps_forwarding) {
        put_forwarded(out, input, fields, forwarded);
    }
    for (name, value) in edits.extra.iter().chain(edits.added) {
        put_field(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

fn added_bytes(edits: &RequestEdits<'_>) -> usize {
    let extra: usize = edits
        .extra
        .iter()
        .chain(edits.added)
        .map(|(name, value)| name.len() + value.len() + 4)
        .sum();
    let forwarded =
        edits.forwarded.map_or(0, |forwarded| forwarded.host.len() + forwarded.proto.len());
    edits.path.len() + edits.host.len() + edits.upgrade.map_or(0, <[u8]>::len) + forwarded + extra
}

/// The client's lines that pass on, in runs.
fn copy_kept(
    out: &mut Vec<u8>,
    input: &[u8],
    head: &RequestHead,
    fields: &Fields,
    edits: &RequestEdits<'_>,
) {
    let trusted = edits.forwarded.is_some_and(|forwarded| forwarded.trusted);
    // The values of X-Forwarded-For are merged into the line that we write.
    let forwarding = match edits.keeps_forwarding {
        true => 0,
        false if trusted => FieldName::set(&[FieldName::XForwardedFor]),
        false => FieldName::FORWARDING,
    };
    // An unreadable hop count is not passed on.
    let unreadable =
        if head.max_forwards.is_none() { FieldName::set(&[FieldName::MaxForwards]) } else { 0 };
    let certified = if edits.judges_clients { CERTIFIED } else { 0 };
    let removed = REMOVED | forwarding | unreadable | certified;
    let has_names = !(edits.extra.is_empty() && edits.removed.is_empty());
    let mut run = Run::default();
    for field in fields.as_slice() {
        let goes = field.known.is_in(removed) | field.listed;
        if goes
            || field.underscore && !passes(input, field, edits)
            || has_names && is_named(input, field, edits)
        {
            run.flush(out, input);
        } else {
            run.add(field);
        }
    }
    run.flush(out, input);
}

/// Whether a field whose name contains `_` may pass. It may only where that is wanted, and only if
/// a server that reads `_` as `-` does not take it for a field that only weir may set; which client
/// sends it does not matter.
#[cold]
fn passes(input: &[u8], field: &Field, edits: &RequestEdits<'_>) -> bool {
    let read: Vec<u8> =
        field.name.of(input).iter().map(|&byte| if byte == b'_' { b'-' } else { byte }).collect();
    let said_here = names(edits).any(|name| read.eq_ignore_ascii_case(name));
    edits.underscores
        && !FieldName::of(&read).is_in(REMOVED | FieldName::FORWARDING | CERTIFIED)
        && !said_here
}

/// Whether the edits name a field.
#[inline]
fn is_named(input: &[u8], field: &Field, edits: &RequestEdits<'_>) -> bool {
    names(edits).any(|name| {
        name.len() == field.name.len() && field.name.of(input).eq_ignore_ascii_case(name)
    })
}

/// Returns the names of fields that are removed from the client's.
#[inline]
fn names<'a>(edits: &RequestEdits<'a>) -> impl Iterator<Item = &'a [u8]> {
    edits.extra.iter().map(|(name, _)| *name).chain(edits.removed.iter().copied())
}

/// Adjacent lines of the input that leave together.
#[derive(Default)]
pub(crate) struct Run {
    start: usize,
    end: usize,
}

impl Run {
    /// Adds a line that comes after all others.
    #[inline]
    pub(crate) fn add(&mut self, field: &Field) {
        if self.start == self.end {
            self.start = field.line.start as usize;
        }
        self.end = field.line.end as usize;
    }

    /// Whether a line, which comes after all others, directly follows the gathered ones, or there
    /// are none.
    #[inline]
    pub(crate) fn is_followed_by(&self, field: &Field) -> bool {
        self.start == self.end || self.end == field.line.start as usize
    }

    /// Bytes gathered.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Writes the gathered lines.
    #[inline]
    pub(crate) fn flush(&mut self, out: &mut Vec<u8>, input: &[u8]) {
        if self.start != self.end {
            out.extend_from_slice(&input[self.start..self.end]);
            self.start = self.end;
        }
    }
}

pub(crate) fn put_framing(out: &mut Vec<u8>, framing: Framing) {
    match framing {
        Framing::None => {}
        Framing::Length(length) => {
            out.extend_from_slice(b"Content-Length: ");
            put_decimal(out, length);
            out.extend_from_slice(b"\r\n");
        }
        Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
}

fn put_connection(out: &mut Vec<u8>, edits: &RequestEdits<'_>) {
    // An upgrade implies that the connection remains open.
    match (edits.upgrade, edits.te_trailers) {
        (None, false) if edits.close => return out.extend_from_slice(b"Connection: close\r\n"),
        (None, false) => return,
        (None, true) if edits.close => out.extend_from_slice(b"Connection: close, TE\r\n"),
        (None, true) => out.extend_from_slice(b"Connection: TE\r\n"),
        (Some(_), false) => out.extend_from_slice(b"Connection: upgrade\r\n"),
        (Some(_), true) => out.extend_from_slice(b"Connection: upgrade, TE\r\n"),
    }
    if let Some(protocols) = edits.upgrade {
        put_field(out, b"Upgrade", protocols);
    }
    if edits.te_trailers {
        out.extend_from_slice(b"TE: trailers\r\n");
    }
}

/// Writes Via for a received message of this version. Existing lines remain: a new line after them
/// is the same as appending to the last (RFC 9110 §5.3).
pub(crate) fn put_via(out: &mut Vec<u8>, version: Version, us: Pseudonym) {
    // Texts of known length are copied without a call; `Version::number` has any length.
    match version {
        Version::Http10 => out.extend_from_slice(b"Via: 1.0 "),
        Version::Http11 => out.extend_from_slice(b"Via: 1.1 "),
        Version::Http2 => out.extend_from_slice(b"Via: 2 "),
    }
    out.extend_from_slice(us.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn put_forwarded(out: &mut Vec<u8>, input: &[u8], fields: &Fields, forwarded: &Forwarded<'_>) {
    let kept = |name: FieldName| forwarded.trusted && fields.find(name).is_some();
    out.extend_from_slice(b"X-Forwarded-For: ");
    if forwarded.trusted {
        let addresses = fields.all(FieldName::XForwardedFor);
        for address in addresses.flat_map(|field| members(field.value.of(input))) {
            out.extend_from_slice(address);
            out.extend_from_slice(b", ");
        }
    }
    put_address(out, forwarded.client);
    out.extend_from_slice(b"\r\n");
    if !kept(FieldName::XForwardedProto) {
        put_field(out, b"X-Forwarded-Proto", forwarded.proto);
    }
    if !kept(FieldName::XForwardedHost) {
        put_field(out, b"X-Forwarded-Host", forwarded.host);
    }
}

pub(crate) fn put_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Avoids `std::fmt`, whose machinery costs several times as much as the digits.
pub(crate) fn put_decimal(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    match address.to_canonical() {
        IpAddr::V4(address) => put_ipv4(out, address),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => out.extend_from_slice(b"unknown"),
        IpAddr::V6(address) => {
            // Writing to a vector can't fail.
            let _ = write!(out, "{address}");
        }
    }
}

fn put_ipv4(out: &mut Vec<u8>, address: Ipv4Addr) {
    for (i, octet) in address.octets().into_iter().enumerate() {
        if i > 0 {
            out.push(b'.');
        }
        put_decimal(out, u64::from(octet));
    }
}
