//! The record of one exchange for its line in the access log, gathered while it happens.
//!
//! Filled by `client/account.rs`, read by the renderer. Bound: [`LINE_BYTES_MAX`] of the request
//! line, [`VALUE_BYTES_MAX`] of each field that the format names.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use weir_cache::Served;
use weir_http::{Fields, RequestHead, Version};

use crate::base::encoder::Coding;
use crate::request::identity::Identity;
use crate::request::pending_request::ConnId;

/// Bytes of a request line that are kept: the default of `line-limit`, so usually all of it.
pub const LINE_BYTES_MAX: usize = 8 * 1024;
/// Bytes of a request field or host that are kept.
pub const VALUE_BYTES_MAX: usize = 1024;
/// Marks the end of a truncated value.
const CUT: &[u8] = b"...";

/// The party that ended an exchange before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Party {
    /// None: it is complete.
    #[default]
    None,
    /// The client left, or did not send the announced bytes.
    Client,
    /// The server could not be reached, or gave no usable response.
    Server,
    /// weir: a refusal, a limit or a time-out.
    Weir,
}

impl Party {
    /// Returns the word in the log.
    pub fn word(self) -> &'static str {
        match self {
            Party::None => "none",
            Party::Client => "client",
            Party::Server => "server",
            Party::Weir => "weir",
        }
    }
}

/// Why an exchange is not complete; with [`Party::None`] it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Blame {
    /// The reason in the log.
    pub word: &'static str,
    /// The responsible party.
    pub party: Party,
}

/// The stage of an exchange when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// The request's head.
    Head,
    /// The request's body.
    Body,
    /// Waiting for its turn on a connection.
    Queue,
    /// Waiting for a connection to be established.
    Connect,
    /// Sent, without a response.
    Wait,
    /// In the middle of the response.
    Answer,
    /// The response was complete here, but not at the client.
    Deliver,
    /// The connections were joined.
    Tunnel,
    /// Complete.
    #[default]
    Done,
}

impl Stage {
    /// Returns the word in the log.
    pub fn word(self) -> &'static str {
        match self {
            Stage::Head => "head",
            Stage::Body => "body",
            Stage::Queue => "queue",
            Stage::Connect => "connect",
            Stage::Wait => "wait",
            Stage::Answer => "answer",
            Stage::Deliver => "deliver",
            Stage::Tunnel => "tunnel",
            Stage::Done => "done",
        }
    }
}

/// A request was put on an upstream connection, as the connection's worker reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The connection.
    pub conn: ConnId,
    /// Index of its server in every engine.
    pub server: u32,
    /// When the request was put on it.
    pub sent_us: u64,
    /// When the connection was established.
    pub connected_us: u64,
    /// Requests that the connection had been given before.
    pub before: u64,
    /// The other end of the connection, if the configuration does not name it (the forward proxy).
    pub address: Option<SocketAddr>,
}

/// Fields of a request and its host, as ranges of its text.
#[derive(Debug, Default)]
struct Kept {
    /// The number of the template that names the fields.
    template: u32,
    /// In the order of the template; empty when absent.
    values: Vec<Range<u32>>,
    host: Range<u32>,
}

/// The client of a request, its destination, and the names of the request, as ranges of its text.
#[derive(Debug, Default)]
struct Who {
    /// The client, if a trusted proxy has named another one than the peer of the connection.
    client: Option<IpAddr>,
    /// Whether it uses TLS, if a trusted proxy has named another scheme than that of the
    /// connection.
    sealed: Option<bool>,
    /// The original destination of the client, if the request is sent there.
    destination: Option<SocketAddr>,
    user: Range<u32>,
    id: Range<u32>,
    trace: Range<u32>,
}

/// The source of a response's content, and its compression.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Content {
    /// None: unchanged.
    pub(crate) compressed: Option<Compressed>,
    /// The result in the cache for a route with `cache`; None: its route has none.
    pub(crate) served: Option<Served>,
}

impl Content {
    /// Returns the word of its coding; empty: it was not compressed.
    pub(crate) fn coding(&self) -> &'static [u8] {
        self.compressed.map_or(b"", |compressed| compressed.coding.word().as_bytes())
    }

    /// Returns the word of the result in the cache; empty: none.
    pub(crate) fn got(&self) -> &'static [u8] {
        self.served.map_or(b"", |served| served.word().as_bytes())
    }
}

/// A response was compressed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compressed {
    /// The coding.
    pub coding: Coding,
    /// Bytes of its body before.
    pub taken: u64,
    /// Bytes after.
    pub given: u64,
}

/// One exchange. All times are microseconds; None has not happened.
#[derive(Debug, Default)]
pub struct Record {
    /// Request line without version (or the first line of a refused request), host and fields, one
    /// behind the other.
    text: Vec<u8>,
    line_bytes: u32,
    /// Length of the method; None when the line was not understood.
    pub(super) method_bytes: Option<u32>,
    pub(super) version: Option<Version>,
    who: Who,
    fields: Kept,
    pub(crate) received_us: u64,
    /// A body was announced.
    pub(crate) has_body: bool,
    pub(crate) body_us: Option<u64>,
    pub(crate) forwarded_us: Option<u64>,
    pub(crate) first_sent_us: Option<u64>,
    pub(crate) first_connected_us: Option<u64>,
    pub(crate) begun_us: Option<u64>,
    pub(crate) ended_us: Option<u64>,
    pub(crate) request_bytes: u64,
    /// 0: none.
    pub(crate) status: u16,
    /// Bytes of interim responses and of the response's head.
    pub(crate) head_bytes: u64,
    pub(crate) bytes_sent: u64,
    /// The end of its response within everything that the client was sent.
    pub(crate) end_at: u64,
    /// Index in the plan.
    pub(crate) upstream: Option<u16>,
    pub(crate) placed: Option<Placed>,
    pub(crate) tries: u32,
    pub(crate) content: Content,
    /// Those of the client's connection at the end of this exchange.
    pub(crate) glitches: u32,
    /// The exchange is complete, and the connection ends behind it for this reason, unless it
    /// continues or ends as usual.
    pub(crate) last_because: Blame,
    pub(crate) party: Party,
    pub(crate) stage: Stage,
    /// Empty: none.
    pub(crate) reason: &'static str,
}

impl Record {
    /// Returns the number of the template of its line.
    pub(super) fn template(&self) -> u32 {
        self.fields.template
    }

    /// Resets a used record for a line with the template of this number; it keeps its memory.
    pub(super) fn reset(&mut self, received_us: u64, template: u32) {
        let (mut text, mut fields) =
            (std::mem::take(&mut self.text), std::mem::take(&mut self.fields));
        text.clear();
        fields.values.clear();
        (fields.template, fields.host) = (template, 0..0);
        *self = Record { text, fields, received_us, ..Record::default() };
    }

    /// Keeps the values of a request for its line. `names` are the fields that the format names.
    pub(crate) fn keep_request(
        &mut self,
        bytes: &[u8],
        head: &RequestHead,
        fields: &Fields,
        names: &[String],
    ) {
        let (method, target) = (head.method_span, head.target);
        let line = &bytes[method.start as usize..target.end as usize];
        self.line_bytes = self.keep(line, LINE_BYTES_MAX).end;
        self.method_bytes = Some((method.len() as u32).min(self.line_bytes));
        self.version = Some(head.version);
        self.fields.host = self.keep(without_port(head.authority.of(bytes)), VALUE_BYTES_MAX);
        let host = self.fields.host.start as usize..self.fields.host.end as usize;
        self.text[host].make_ascii_lowercase();
        for name in names {
            let value = fields.get(bytes, name.as_bytes()).unwrap_or_default();
            let kept = self.keep(value, VALUE_BYTES_MAX);
            self.fields.values.push(kept);
        }
        self.request_bytes = head.bytes as u64;
    }

    /// Keeps the first line of bytes that are no request.
    pub(crate) fn keep_refused(&mut self, bytes: &[u8]) {
        let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let start = bytes.iter().position(|byte| !is_end(byte)).unwrap_or(bytes.len());
        let line = &bytes[start..];
        let line = &line[..line.iter().position(is_end).unwrap_or(line.len())];
        self.line_bytes = self.keep(line, LINE_BYTES_MAX).end;
        self.request_bytes = bytes.len() as u64;
    }

    fn keep(&mut self, value: &[u8], bytes_max: usize) -> Range<u32> {
        let start = self.text.len() as u32;
        if value.len() > bytes_max {
            self.text.extend_from_slice(&value[..bytes_max]);
            self.text.extend_from_slice(CUT);
        } else {
            self.text.extend_from_slice(value);
        }
        start..self.text.len() as u32
    }

    fn kept(&self, range: &Range<u32>) -> &[u8] {
        &self.text[range.start as usize..range.end as usize]
    }

    /// Notes the client that a trusted proxy has named.
    pub(crate) fn keep_client(&mut self, client: IpAddr) {
        self.who.client = Some(client);
    }

    /// Returns the client that a trusted proxy has named, if any.
    pub(super) fn client(&self) -> Option<IpAddr> {
        self.who.client
    }

    /// Notes the scheme that a trusted proxy has named: whether it uses TLS.
    pub(crate) fn keep_scheme(&mut self, sealed: bool) {
        self.who.sealed = Some(sealed);
    }

    /// Whether its client uses TLS, if a trusted proxy has named another scheme than that of the
    /// connection.
    pub(super) fn sealed(&self) -> Option<bool> {
        self.who.sealed
    }

    /// Returns the capacity of its text.
    pub(super) fn text_capacity(&self) -> usize {
        self.text.capacity()
    }

    /// Returns the request line without its version.
    pub(super) fn line(&self) -> &[u8] {
        &self.text[..self.line_bytes as usize]
    }

    /// Returns the host; empty when absent.
    pub(super) fn host(&self) -> &[u8] {
        self.kept(&self.fields.host)
    }

    /// Notes the original destination of the client, if the request is sent there.
    pub(crate) fn keep_destination(&mut self, to: Option<SocketAddr>) {
        self.who.destination = to;
    }

    /// Returns that destination, if any.
    pub(super) fn destination(&self) -> Option<SocketAddr> {
        self.who.destination
    }

    /// Notes the user, as verified.
    pub(crate) fn keep_user(&mut self, name: &[u8]) {
        self.who.user = self.keep(name, VALUE_BYTES_MAX);
    }

    /// Returns the user; empty without authentication.
    pub(super) fn user(&self) -> &[u8] {
        self.kept(&self.who.user)
    }

    /// Notes the identifiers of the request.
    pub(crate) fn keep_identity(&mut self, identity: &Identity) {
        self.who.id = self.keep(identity.id(), VALUE_BYTES_MAX);
        self.who.trace = self.keep(identity.trace(), VALUE_BYTES_MAX);
    }

    /// Returns its identifier; empty when absent.
    pub(super) fn id(&self) -> &[u8] {
        self.kept(&self.who.id)
    }

    /// Returns its trace; empty when absent.
    pub(super) fn trace(&self) -> &[u8] {
        self.kept(&self.who.trace)
    }

    /// Returns a field of the request; empty when absent.
    pub(super) fn field(&self, place: u16) -> &[u8] {
        self.fields.values.get(usize::from(place)).map_or(&[], |range| self.kept(range))
    }

    /// Notes why it ends before its time; the first reason counts.
    pub(crate) fn blame(&mut self, blame: Blame, stage: Stage) {
        if self.reason.is_empty() && blame.party != Party::None {
            (self.reason, self.stage, self.party) = (blame.word, stage, blame.party);
        }
    }
}

/// Returns an authority without its port.
fn without_port(authority: &[u8]) -> &[u8] {
    let digits = authority.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let colon = authority.len() - digits;
    if colon > 0 && authority[colon - 1] == b':' { &authority[..colon - 1] } else { authority }
}

#[cfg(test)]
mod tests {
    //! Proves: which values of requests are kept, and that long ones are truncated with a mark.
    //! How: examples.

    use super::*;
    use crate::cause::Cause;
    use crate::ending::ClientEnd;

    fn kept(bytes: &[u8], names: &[&str]) -> Record {
        let mut fields = Fields::default();
        let head = weir_http::parse_request(bytes, &weir_http::Limits::default(), &mut fields)
            .unwrap()
            .unwrap();
        let mut record = Record::default();
        record.reset(7, 0);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        record.keep_request(bytes, &head, &fields, &names);
        record
    }

    #[test]
    fn requests() {
        let record = kept(
            b"GET /a?b HTTP/1.1\r\nHost: Www.Example.ORG:8080\r\nX-A:\t1 2 \r\n\r\n",
            &["x-b", "x-a"],
        );
        assert_eq!((record.line(), record.method_bytes), (&b"GET /a?b"[..], Some(3)));
        assert_eq!(record.host(), b"www.example.org");
        assert_eq!(
            (record.field(0), record.field(1), record.field(2)),
            (&b""[..], &b"1 2"[..], &b""[..])
        );
        assert_eq!(kept(b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", &[]).host(), b"[::1]");
        assert_eq!(kept(b"GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n", &[]).host(), b"[::1]");
    }

    #[test]
    fn long_values_are_cut_with_a_mark() {
        let text = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX-A: {}\r\nX-B: {}\r\n\r\n",
            "x".repeat(1024),
            "y".repeat(1025)
        );
        let record = kept(text.as_bytes(), &["x-a", "x-b"]);
        assert_eq!(record.field(0).len(), 1024);
        assert_eq!((record.field(1).len(), &record.field(1)[1020..]), (1027, &b"yyyy..."[..]));
    }

    #[test]
    fn refused_bytes_leave_their_first_line() {
        for (bytes, line) in [
            (&b"\r\nGET /x y HTTP/1.1\r\nHost: a"[..], &b"GET /x y HTTP/1.1"[..]),
            (b"\x16\x03\x01", b"\x16\x03\x01"),
            (b"", b""),
        ] {
            let mut record = Record::default();
            record.keep_refused(bytes);
            assert_eq!((record.line(), record.method_bytes), (line, None));
            assert_eq!(record.request_bytes, bytes.len() as u64);
        }
    }

    #[test]
    fn the_first_reason_counts() {
        let mut record = Record::default();
        record.blame(ClientEnd::Done.into(), Stage::Answer);
        assert_eq!(record.stage, Stage::Done);
        record.blame(ClientEnd::ClientReset.into(), Stage::Answer);
        record.blame(Cause::Truncated.into(), Stage::Wait);
        assert_eq!(
            (record.party, record.stage, record.reason),
            (Party::Client, Stage::Answer, "client-reset")
        );
    }
}
