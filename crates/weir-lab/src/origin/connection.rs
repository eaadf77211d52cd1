//! One client connection of the origin as a machine: bytes in, replies out, in order. Knows no sockets.
//!
//! Called by `server.rs`: [`Connection::handle_input`] with what arrived, [`Connection::handle_time`] when a delay is
//! over, then [`Connection::poll_payload`] while nothing is being sent. Bounds: [`OUT_BYTES_MAX`] of replies not yet sent
//! plus one small reply, [`INPUT_BYTES_MAX`] of requests not yet read (then [`Connection::wants_input`] says no),
//! [`ECHO_BYTES_MAX`] of a body to send back. RFC 9112 §2.2, §7.1, §9.3 (persistence, pipelining).

use bytes::Bytes;
use weir_http::{
    Chunk, ChunkedDecoder, FieldName, Fields, HeadScan, Limits, Method, RequestBody, RequestHead, Version,
};
use weir_io::Payload;

use super::reply::{Answer, Body, Stream};
use super::stats::OriginStats;
use super::wanted::Wanted;

/// Replies that may wait behind a send; more pipelined requests wait unread.
const OUT_BYTES_MAX: usize = 256 * 1024;
/// Received bytes that may wait behind a delay, a stream, or a full output.
const INPUT_BYTES_MAX: usize = 128 * 1024;
/// Largest body that `/echo` sends back; over it: 413.
const ECHO_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What all connections of a thread share; lent for each call.
pub(super) struct Scene<'a> {
    pub(super) limits: &'a Limits,
    pub(super) fields: &'a mut Fields,
    /// `Date: ...` with CRLF.
    pub(super) date_line: &'a [u8],
    pub(super) now_us: u64,
    pub(super) counts: &'a mut OriginStats,
    /// Totals over all threads, for `/__stats`.
    pub(super) totals: &'a dyn Fn() -> OriginStats,
}

/// What to do when the request's body is complete.
#[derive(Debug)]
enum Plan {
    Reply(Answer),
    /// Send this back: the head as it came, then the body.
    Echo(Answer),
    /// `/sum`: length and checksum of the body.
    Sum(Answer, Checksum),
}

/// Where the connection is in the current request.
#[derive(Debug)]
enum Stage {
    /// Between requests or inside a head.
    Head,
    /// Inside a body with this many bytes to come.
    Sized(Plan, u64),
    /// Inside a chunked body.
    Chunked(Plan, ChunkedDecoder),
    /// The reply is due at this time.
    Delayed(Answer, u64),
    /// The reply's body is being sent.
    Streaming(Stream),
    /// Nothing more is read; the connection closes when everything is sent.
    Closing,
}

/// The machine.
#[derive(Debug)]
pub(super) struct Connection {
    stage: Stage,
    /// Received and not yet consumed: part of a head, or what waits behind a delay or stream.
    input: Vec<u8>,
    /// Looks for the end of a head that came in pieces.
    scan: Option<HeadScan>,
    out: Vec<u8>,
    /// The client sends nothing more.
    ended: bool,
}

/// Length and FNV-1a of a body.
#[derive(Debug)]
struct Checksum {
    length: u64,
    hash: u64,
}

impl Connection {
    /// A connection without a byte; `out` is an empty buffer to reuse.
    pub(super) fn new(out: Vec<u8>) -> Connection {
        Connection { stage: Stage::Head, input: Vec::new(), scan: None, out, ended: false }
    }

    /// Takes what was received. Replies that are ready wait for [`Connection::poll_payload`].
    pub(super) fn handle_input(&mut self, scene: &mut Scene<'_>, bytes: &[u8]) {
        if self.input.is_empty() {
            let consumed = self.advance(scene, bytes);
            self.input.extend_from_slice(&bytes[consumed..]);
        } else {
            self.input.extend_from_slice(bytes);
            self.resume(scene);
        }
    }

    /// The client sends nothing more: what it asked for is still answered.
    pub(super) fn handle_end(&mut self) {
        self.ended = true;
        if matches!(self.stage, Stage::Sized(..) | Stage::Chunked(..)) {
            self.stage = Stage::Closing;
        }
    }

    /// Time has come for a delayed reply, or not yet.
    pub(super) fn handle_time(&mut self, scene: &mut Scene<'_>) {
        if self.due_us().is_some_and(|due_us| due_us <= scene.now_us) {
            if let Stage::Delayed(answer, _) = std::mem::replace(&mut self.stage, Stage::Head) {
                self.write(&answer, scene);
            }
            self.resume(scene);
        }
    }

    /// The previous payload is sent: pipelined requests that waited for room are answered.
    pub(super) fn handle_sent(&mut self, scene: &mut Scene<'_>) {
        if !self.input.is_empty() {
            self.resume(scene);
        }
    }

    /// When the current reply is due.
    pub(super) fn due_us(&self) -> Option<u64> {
        match self.stage {
            Stage::Delayed(_, due_us) => Some(due_us),
            _ => None,
        }
    }

    /// Whether more may be received now.
    pub(super) fn wants_input(&self) -> bool {
        !self.ended && self.input.len() < INPUT_BYTES_MAX
    }

    /// Whether the client has ended its direction.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether everything is answered and the connection has to end. Ask when nothing is left to send.
    pub(super) fn is_over(&self) -> bool {
        match self.stage {
            Stage::Closing => true,
            Stage::Head => self.ended,
            _ => false,
        }
    }

    /// The next bytes to send, all that are ready.
    pub(super) fn poll_payload(&mut self, spare: &mut Vec<Vec<u8>>) -> Option<Payload> {
        if let Stage::Streaming(stream) = &mut self.stage {
            let mut slices = Vec::new();
            if !self.out.is_empty() {
                slices.push(Bytes::from(std::mem::take(&mut self.out)));
            }
            stream.take(&mut slices);
            if stream.is_done() {
                self.stage = if stream.closes { Stage::Closing } else { Stage::Head };
            }
            return Some(Payload::Vectored(slices));
        }
        if self.out.is_empty() {
            return None;
        }
        Some(Payload::Owned(std::mem::replace(&mut self.out, spare.pop().unwrap_or_default())))
    }

    /// Goes on with the bytes that waited.
    fn resume(&mut self, scene: &mut Scene<'_>) {
        let input = std::mem::take(&mut self.input);
        let consumed = self.advance(scene, &input);
        self.input = input;
        self.input.drain(..consumed);
    }

    /// Consumes as many requests as may be answered now; returns how many bytes.
    fn advance(&mut self, scene: &mut Scene<'_>, input: &[u8]) -> usize {
        let mut at = 0;
        while at < input.len() {
            let rest = &input[at..];
            let step = match std::mem::replace(&mut self.stage, Stage::Head) {
                Stage::Head if self.out.len() >= OUT_BYTES_MAX => 0,
                Stage::Head => self.read_head(scene, rest),
                Stage::Sized(plan, left) => self.read_sized(scene, rest, plan, left),
                Stage::Chunked(plan, decoder) => self.read_chunked(scene, rest, plan, decoder),
                waiting @ (Stage::Delayed(..) | Stage::Streaming(_)) => {
                    self.stage = waiting;
                    0
                }
                Stage::Closing => {
                    self.stage = Stage::Closing;
                    rest.len()
                }
            };
            at += step;
            if step == 0 {
                break;
            }
        }
        at
    }

    /// Returns 0 when the head isn't complete.
    fn read_head(&mut self, scene: &mut Scene<'_>, rest: &[u8]) -> usize {
        // The scan makes input that comes byte by byte cost linear work; heads that come whole skip it.
        let found = self.scan.as_mut().map_or(Ok(Some(0)), |scan| scan.find(rest, scene.limits));
        let parsed = match found {
            Ok(Some(_)) => weir_http::parse_request(rest, scene.limits, scene.fields),
            Ok(None) => return 0,
            Err(error) => Err(error),
        };
        match parsed {
            Ok(None) => {
                self.scan.get_or_insert_default();
                0
            }
            Ok(Some(head)) => {
                self.scan = None;
                scene.counts.requests += 1;
                self.begin(scene, rest, &head);
                head.bytes
            }
            Err(error) => {
                scene.counts.requests += 1;
                self.refuse(error.status(), error.word());
                rest.len()
            }
        }
    }

    fn begin(&mut self, scene: &mut Scene<'_>, input: &[u8], head: &RequestHead) {
        let Some(plan) = self.plan(scene, input, head) else {
            return self.refuse(400, "unknown-query");
        };
        if head.expect_continue && !matches!(head.body, RequestBody::None | RequestBody::Length(0)) {
            self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        match head.body {
            RequestBody::None | RequestBody::Length(0) => self.finish(scene, plan),
            RequestBody::Length(length) => self.stage = Stage::Sized(plan, length),
            RequestBody::Chunked => self.stage = Stage::Chunked(plan, ChunkedDecoder::new(false)),
        }
    }

    /// Which page this is. None: the query can't be meant.
    fn plan(&mut self, scene: &mut Scene<'_>, input: &[u8], head: &RequestHead) -> Option<Plan> {
        let target = head.path.of(input);
        let split = memchr::memchr(b'?', target).unwrap_or(target.len());
        let (path, query) = (&target[..split], target.get(split + 1..));
        let mut answer = Answer {
            wanted: query.map_or(Some(Wanted::default()), Wanted::from_query)?,
            body: Body::Ok,
            head_only: head.method == Method::Head,
            http10: head.version == Version::Http10,
            persist: head.persist,
        };
        match path {
            b"/echo" => {
                answer.body = Body::Text(input[..head.bytes].to_vec(), "text/plain");
                return Some(Plan::Echo(answer));
            }
            b"/sum" => return Some(Plan::Sum(answer, Checksum::default())),
            b"/__stats" => {
                let text = serde_json::to_vec(&(scene.totals)()).unwrap_or_default();
                answer.body = Body::Text(text, "application/json");
            }
            b"/page" => answer.body = page(),
            b"/" if query.is_none() && wants_html(scene.fields, input) => answer.body = page(),
            _ => {
                if let Some(size) = answer.wanted.size {
                    answer.body = Body::Pattern(size);
                }
            }
        }
        Some(Plan::Reply(answer))
    }

    fn read_sized(&mut self, scene: &mut Scene<'_>, rest: &[u8], mut plan: Plan, left: u64) -> usize {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        if !plan.take_body(&rest[..length]) {
            self.refuse(413, "echo-body-too-large");
            return rest.len();
        }
        match left - length as u64 {
            0 => self.finish(scene, plan),
            left => self.stage = Stage::Sized(plan, left),
        }
        length
    }

    fn read_chunked(
        &mut self,
        scene: &mut Scene<'_>,
        rest: &[u8],
        mut plan: Plan,
        mut decoder: ChunkedDecoder,
    ) -> usize {
        match decoder.decode(rest) {
            Ok(Chunk::More) => {
                self.stage = Stage::Chunked(plan, decoder);
                rest.len()
            }
            Ok(Chunk::Data { start, end }) => {
                if !plan.take_body(&rest[start..end]) {
                    self.refuse(413, "echo-body-too-large");
                    return rest.len();
                }
                self.stage = Stage::Chunked(plan, decoder);
                end
            }
            Ok(Chunk::End { consumed }) => {
                self.finish(scene, plan);
                consumed
            }
            Err(_) => {
                self.refuse(400, "bad-chunk");
                rest.len()
            }
        }
    }

    /// The request is complete: its reply is written now, or later if it has a delay.
    fn finish(&mut self, scene: &mut Scene<'_>, plan: Plan) {
        let answer = plan.into_answer();
        let delay_us = answer.wanted.delay_us_of(scene.counts.requests);
        if delay_us > 0 {
            let due_us = scene.now_us + delay_us;
            self.stage = Stage::Delayed(answer, due_us);
        } else {
            self.write(&answer, scene);
        }
    }

    fn write(&mut self, answer: &Answer, scene: &mut Scene<'_>) {
        self.stage = match answer.write(&mut self.out, scene.date_line) {
            Some(stream) => Stage::Streaming(stream),
            None if answer.closes() => Stage::Closing,
            None => Stage::Head,
        };
    }

    /// A short error reply and the end of the connection.
    fn refuse(&mut self, status: u16, word: &str) {
        weir_http::encode_error_reply(&mut self.out, status, word, true, false, None);
        self.stage = Stage::Closing;
    }
}

impl Plan {
    /// Part of the request's body. False: more than is kept.
    fn take_body(&mut self, bytes: &[u8]) -> bool {
        match self {
            Plan::Reply(_) => true,
            Plan::Sum(_, checksum) => {
                checksum.add(bytes);
                true
            }
            Plan::Echo(answer) => {
                if let Body::Text(text, _) = &mut answer.body {
                    text.extend_from_slice(bytes);
                    return text.len() <= ECHO_BYTES_MAX;
                }
                true
            }
        }
    }

    fn into_answer(self) -> Answer {
        match self {
            Plan::Reply(answer) | Plan::Echo(answer) => answer,
            Plan::Sum(mut answer, checksum) => {
                let text = format!("bytes={} fnv1a={:016x}\n", checksum.length, checksum.hash);
                answer.body = Body::Text(text.into_bytes(), "text/plain");
                answer
            }
        }
    }
}

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum { length: 0, hash: 0xcbf2_9ce4_8422_2325 }
    }
}

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// The demo's page.
fn page() -> Body {
    Body::Text(include_bytes!("page.html").to_vec(), "text/html; charset=utf-8")
}

/// Whether a browser asks.
fn wants_html(fields: &Fields, input: &[u8]) -> bool {
    fields
        .as_slice()
        .iter()
        .filter(|field| field.known == FieldName::Other && field.name.of(input).eq_ignore_ascii_case(b"accept"))
        .any(|field| memchr::memmem::find(field.value.of(input), b"text/html").is_some())
}
