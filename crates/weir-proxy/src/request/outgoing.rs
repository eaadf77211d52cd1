//! A request on its way to a server: its request line and Host, how it may be handled, and its
//! bytes.
//!
//! Made by `Asks::forward` (`client/ask.rs`) from the client's request and the configuration; knows
//! no machine. Its bytes are written once, to the place that they are sent from. Bound: the head
//! limit, which has been applied already. RFC 9112 §3.2.

use std::net::IpAddr;

use weir_http::{Fields, Forwarded, Framing, Method, RequestBody, RequestEdits, RequestHead};

use crate::base::stamp::Stamp;
use crate::observe::secured::Shown;
use crate::plan::{ClientPlan, PipelineMode, Pool, UpstreamPlan};
use crate::request::line_end::carries_line_end;
use crate::request::pending_request::RequestFlags;
use crate::request::rules::Ruled;
use crate::upstream::class::ClassName;

/// A longer head, as its server gets it, is sent alone. The limits of strict servers begin at 8
/// KiB, and some count more than the bytes that they get.
const LONG_HEAD_BYTES: usize = 4096;
/// More than weir adds to a head, besides what [`Outgoing::most_bytes`] counts.
const ADDED_BYTES_MAX: usize = 512;

/// The client of a request.
#[derive(Clone, Copy)]
pub(crate) struct From<'a> {
    pub(crate) peer: IpAddr,
    /// It speaks TLS.
    pub(crate) sealed: bool,
    /// Its certificate, if servers get it.
    pub(crate) shown: Option<&'a Shown>,
}

/// How the body of a request leaves, and how much of it is here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upload {
    /// Its framing as in the head.
    pub(crate) framing: Framing,
    /// More of it follows.
    pub(crate) streaming: bool,
    /// None of it is here, because its client waits until the server wants it (RFC 9110 §10.1.1).
    pub(crate) expects: bool,
}

impl Upload {
    /// All of it is here.
    pub(crate) fn whole(framing: Framing) -> Upload {
        Upload { framing, streaming: false, expects: false }
    }
}

/// Returns the host that a client has requested; without a Host (HTTP/1.0) that of the destination:
/// anywhere, or the first server.
#[inline]
fn asked_host<'a>(
    upstream: &'a UpstreamPlan,
    anywhere: Option<&'a str>,
    head: &RequestHead,
    bytes: &'a [u8],
) -> &'a [u8] {
    let authority = head.authority.of(bytes);
    let unsaid = || anywhere.unwrap_or_else(|| upstream.servers[0].authority()).as_bytes();
    if authority.is_empty() { unsaid() } else { authority }
}

/// A request of a client and how it is forwarded.
pub(crate) struct Outgoing<'a> {
    client: &'a ClientPlan,
    upstream: &'a UpstreamPlan,
    /// For a destination that is not a server of the configuration: its name, used if the client
    /// sends none.
    anywhere: Option<&'a str>,
    head: &'a RequestHead,
    fields: &'a Fields,
    /// The bytes that the spans of `head` and `fields` point into.
    bytes: &'a [u8],
    /// The part of its body that is here.
    body: &'a [u8],
    upload: Upload,
    /// The result of its route's rules.
    ruled: Option<&'a Ruled>,
    /// The target, origin-form or `*`.
    pub(crate) path: &'a [u8],
    /// The value of Host.
    pub(crate) host: &'a [u8],
}

impl<'a> Outgoing<'a> {
    /// `upload`: how its body leaves, if not as in its head.
    #[inline]
    pub(crate) fn new(
        client: &'a ClientPlan,
        upstream: &'a UpstreamPlan,
        anywhere: Option<&'a str>,
        head: &'a RequestHead,
        fields: &'a Fields,
        bytes: &'a [u8],
        body: &'a [u8],
        upload: Option<Upload>,
        ruled: Option<&'a Ruled>,
    ) -> Outgoing<'a> {
        let upload = upload.unwrap_or(Upload::whole(match head.body {
            RequestBody::Length(0) => Framing::Length(0),
            _ => Framing::None,
        }));
        let target = ruled.and_then(Ruled::path).unwrap_or_else(|| head.path.of(bytes));
        let path: &[u8] = match target.is_empty() {
            // RFC 9112 §3.2.4.
            true if head.method == Method::Options && anywhere.is_some() => b"*",
            true => b"/",
            false => target,
        };
        let host = ruled
            .and_then(Ruled::host)
            .unwrap_or_else(|| asked_host(upstream, anywhere, head, bytes));
        Outgoing {
            client,
            upstream,
            anywhere,
            head,
            fields,
            bytes,
            body,
            upload,
            ruled,
            path,
            host,
        }
    }

    /// Its method, its target and the value of Host.
    pub(crate) fn lines(&self) -> (&[u8], &[u8], &[u8]) {
        (self.head.method_span.of(self.bytes), self.path, self.host)
    }

    /// How it may be handled.
    #[inline]
    pub(crate) fn traits(&self) -> RequestFlags {
        let (head, upstream) = (self.head, self.upstream);
        let method = head.method_span.of(self.bytes);
        let plain = !upstream.nonidempotent.matches(method, self.path);
        // Servers that overlook the body of a GET would take it for the next request: nothing may
        // follow it.
        let bodyless = matches!(self.upload.framing, Framing::None | Framing::Length(0));
        let is_head = head.method == Method::Head;
        let conditional = self.ruled.and_then(Ruled::is_conditional).unwrap_or(head.conditional);
        let broken = || {
            carries_line_end(&self.bytes[..head.bytes.min(self.bytes.len())])
                || self.ruled.is_some_and(Ruled::carries_line_end)
        };
        let repeatable = plain && head.method.is_idempotent() || upstream.retry.nonidempotent;
        let authority =
            self.ruled.and_then(Ruled::host).unwrap_or_else(|| head.authority.of(self.bytes));
        let like_probe =
            upstream.health.as_ref().is_some_and(|plan| plan.is_like(method, self.path, authority));
        RequestFlags::default()
            .with(RequestFlags::HEAD, is_head)
            .with(RequestFlags::LAST, conditional || is_head || broken())
            .with(
                RequestFlags::PIPELINABLE,
                plain && head.method.is_safe() && head.upgrade.is_none() && bodyless,
            )
            .with(RequestFlags::RETRIABLE, repeatable)
            .with(RequestFlags::LIKE_PROBE, like_probe)
            .with(RequestFlags::UPGRADE, head.upgrade.is_some())
            .with(RequestFlags::STREAMING, self.upload.streaming)
            .with(RequestFlags::BODY, !bodyless || self.upload.streaming)
            .with(RequestFlags::EXPECTS, self.upload.expects)
            .with(RequestFlags::PIECEMEAL, self.upload.streaming || self.upload.expects)
    }

    /// Whether a strict server may refuse it: its head is long, or its target has bytes that a URI
    /// may not have (RFC 3986 §2). Some servers (node, bun, cowboy, aiohttp, Undertow) send a
    /// refusal at once, before the responses to earlier requests, and close.
    #[inline]
    pub(crate) fn may_be_refused(&self, from: From<'_>, stamp: &Stamp) -> bool {
        self.path.iter().any(|byte| is_strange(*byte))
            || self.most_bytes(from) > LONG_HEAD_BYTES && self.is_long(from, stamp)
    }

    /// Whether its head is long. Exact, so most requests never need it.
    #[cold]
    fn is_long(&self, from: From<'_>, stamp: &Stamp) -> bool {
        let mut out = Vec::new();
        self.write_head(&mut out, from, stamp);
        out.len() > LONG_HEAD_BYTES
    }

    /// An upper bound for the bytes of its head.
    #[inline]
    fn most_bytes(&self, from: From<'_>) -> usize {
        let ruled = self.ruled.map_or(0, |ruled| ruled.added_bytes(self.client));
        let told = from.shown.map_or(0, |shown| shown.value().len())
            + self.host.len()
            + self.head.authority.len();
        let echo = self.upstream.echo.as_ref().map_or(0, |name| name.len());
        self.head.bytes + self.path.len() + told + ruled + echo + ADDED_BYTES_MAX
    }

    /// Its class, where that decides which requests share a connection.
    #[inline]
    pub(crate) fn class(&self) -> ClassName {
        match self.upstream.pipeline {
            PipelineMode::Adaptive if self.head.method.is_safe() => {
                ClassName::of(self.head.method_span.of(self.bytes), self.path)
            }
            _ => ClassName::default(),
        }
    }

    /// Writes it as its server gets it. `stamp` is the identifier that the response has to repeat,
    /// where one is configured.
    pub(crate) fn write(&self, out: &mut Vec<u8>, from: From<'_>, stamp: &Stamp) {
        self.write_head(out, from, stamp);
        self.write_body(out);
    }

    fn write_head(&self, out: &mut Vec<u8>, from: From<'_>, stamp: &Stamp) {
        let From { peer, sealed, shown } = from;
        let hops = self.head.max_forwards.map(|n| n.saturating_sub(1).to_string());
        let mut extra: [(&[u8], &[u8]); 3] = [(b"", b""); 3];
        let mut extras = 0;
        if let Some(name) = &self.upstream.echo {
            extra[extras] = (name.as_bytes(), stamp);
            extras += 1;
        }
        if let Some(hops) = &hops {
            extra[extras] = (b"Max-Forwards", hops.as_bytes());
            extras += 1;
        }
        if let Some(shown) = shown.filter(|_| self.anywhere.is_none()) {
            extra[extras] = (b"Client-Cert", shown.value());
            extras += 1;
        }
        let (via, cdn_loop) =
            self.client.loop_marks(self.anywhere.is_some() || self.upstream.is_destination());
        let ruled = self.ruled.map(|ruled| ruled.request_fields(self.client));
        let (removed, added) = ruled.unwrap_or_default();
        let edits = RequestEdits {
            path: self.path,
            host: self.host,
            framing: self.upload.framing,
            close: self.upstream.pool == Pool::PerRequest,
            expect: self.upload.expects,
            upgrade: self.head.upgrade.map(|span| span.of(self.bytes)),
            te_trailers: self.head.te_trailers,
            via,
            cdn_loop,
            underscores: self.client.underscores,
            judges_clients: self.client.judged,
            // Servers that are strangers learn nothing about the clients.
            forwarded: self.anywhere.is_none().then(|| Forwarded {
                client: peer,
                proto: if sealed { b"https" } else { b"http" },
                host: asked_host(self.upstream, None, self.head, self.bytes),
                trusted: self.client.trusts(peer),
            }),
            // As on the path that its client intended.
            keeps_forwarding: self.upstream.is_destination(),
            extra: &extra[..extras],
            removed: &removed,
            added: &added,
        };
        weir_http::encode_request(out, self.bytes, self.head, self.fields, &edits);
    }

    /// Writes the part of its body that is here.
    #[inline]
    fn write_body(&self, out: &mut Vec<u8>) {
        if self.upload.streaming && self.upload.framing == Framing::Chunked && !self.body.is_empty()
        {
            weir_http::encode_chunk_head(out, self.body.len());
            out.extend_from_slice(self.body);
            out.extend_from_slice(weir_http::CHUNK_TAIL);
        } else {
            out.extend_from_slice(self.body);
        }
    }
}

/// Whether strict servers refuse a target with this byte: not allowed in a URI (RFC 3986 §2), as
/// far as weir forwards it.
#[inline]
fn is_strange(byte: u8) -> bool {
    !byte.is_ascii()
        || matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}')
}

#[cfg(test)]
mod tests {
    //! Proves: whether a strict server may refuse a request is predicted exactly, by the bytes that
    //! are really sent. How: generated heads around the limit, with and without the bytes that weir
    //! adds.

    use std::net::Ipv4Addr;

    use proptest::prelude::*;
    use weir_http::Limits;

    use super::*;

    /// Whether a request of this text may be refused; the length of the sent bytes, and the upper
    /// bound.
    fn sent(text: &str, upstream: &UpstreamPlan, peer: IpAddr) -> (bool, usize, usize) {
        let (client, mut fields) = (ClientPlan::default(), Fields::default());
        let head = weir_http::parse_request(text.as_bytes(), &Limits::default(), &mut fields)
            .unwrap()
            .unwrap();
        let request = Outgoing::new(
            &client,
            upstream,
            None,
            &head,
            &fields,
            text.as_bytes(),
            b"",
            None,
            None,
        );
        let from = From { peer, sealed: true, shown: None };
        let (mut out, stamp) = (Vec::new(), Stamp::default());
        request.write(&mut out, from, &stamp);
        (request.may_be_refused(from, &stamp), out.len(), request.most_bytes(from))
    }

    #[test]
    fn targets_that_are_no_uri_may_be_refused() {
        let (upstream, peer) = (UpstreamPlan::default(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let asked = |target: &str| {
            sent(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"), &upstream, peer).0
        };
        for byte in 0x21..=0x7e {
            let target = format!("/a{}b", char::from(byte));
            if byte != b'#' {
                assert_eq!(asked(&target), b"\"<>\\^`{|}".contains(&byte), "{target}");
            }
        }
        assert!(asked("/a?b={c}"), "in the query");
        assert!(!asked("/a%7C?x=[1]&y=*('z')"));
    }

    proptest! {
        #[test]
        fn long_heads_are_told_by_what_is_sent(
            value in 2_800usize..4_500,
            lines in 0usize..60,
            echo in any::<bool>(),
            long_host in any::<bool>(),
            v6 in any::<bool>(),
        ) {
            let upstream = UpstreamPlan {
                echo: echo.then(|| "x-request-id".into()),
                ..UpstreamPlan::default()
            };
            let peer =
                if v6 { IpAddr::V6([0xff; 16].into()) } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
            let host = if long_host { "h".repeat(200) } else { "h".to_owned() };
            let lines = "a:b\r\n".repeat(lines);
            let text = format!(
                "GET / HTTP/1.1\r\nHost: {host}\r\nCookie: {}\r\n\
                {lines}\r\n",
                "z".repeat(value)
            );
            let (refused, len, most) = sent(&text, &upstream, peer);
            prop_assert_eq!(refused, len > LONG_HEAD_BYTES, "{} bytes", len);
            prop_assert!(len <= most, "{} bytes where {} were taken for the most", len, most);
        }
    }
}
