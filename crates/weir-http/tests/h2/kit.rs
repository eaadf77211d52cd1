//! A client that writes frames byte by byte, and a connection whose events and frames become words.

use weir_http::h2::frame::{END_HEADERS, FrameHead, HEAD_BYTES, Kind, settings};
use weir_http::h2::hpack::{Decoder, encode};
use weir_http::h2::{
    Additions, Code, Event, Glitch, Glitches, Heads, Limits, Mux, Outgoing, PREFACE, Turn,
};
use weir_http::{Pseudonym, ReplyParts, Trailers};

pub(crate) use weir_http::fuzzing::h2::literal;

/// A frame as it is sent.
pub(crate) fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = FrameHead { length: payload.len() as u32, kind, flags, stream };
    [&head.bytes(), payload].concat()
}

/// A header block of literals.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}

pub(crate) const GET: &[(&str, &str)] =
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
pub(crate) const POST: &[(&str, &str)] =
    &[(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];

/// HEADERS in one frame.
pub(crate) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(Kind::Headers, flags | END_HEADERS, stream, &block(fields))
}

pub(crate) fn data(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    frame(Kind::Data, flags, stream, bytes)
}

pub(crate) fn reset(stream: u32, code: Code) -> Vec<u8> {
    frame(Kind::RstStream, 0, stream, &code.number().to_be_bytes())
}

pub(crate) fn window(stream: u32, increment: u32) -> Vec<u8> {
    frame(Kind::WindowUpdate, 0, stream, &increment.to_be_bytes())
}

pub(crate) fn setting(number: u16, value: u32) -> Vec<u8> {
    frame(Kind::Settings, 0, 0, &[&number.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

/// A connection, its kept state, and everything that it reported.
pub(crate) struct Server {
    pub mux: Mux,
    pub heads: Heads,
    pub limits: Limits,
    pub now_us: u64,
    /// Input that was not read because reading is blocked.
    pub rest: Vec<u8>,
    /// All glitches so far.
    pub glitches: Vec<Glitches>,
    /// Bodies are consumed as they come.
    pub consumes: bool,
    decoder: Decoder,
}

/// Frames, with bodies as dots.
#[derive(Default)]
struct Wire {
    bytes: Vec<u8>,
    ended: Vec<u32>,
}

impl Outgoing for Wire {
    fn frames(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn body(&mut self, _stream: u32, _tag: u64, bytes: usize) {
        assert!(bytes > 0);
        self.bytes.resize(self.bytes.len() + bytes, b'.');
    }

    fn ended(&mut self, stream: u32, _tag: u64) {
        self.ended.push(stream);
    }
}

impl Server {
    /// Before the first byte.
    pub(crate) fn silent(limits: Limits) -> Server {
        Server {
            mux: Mux::new(&limits),
            heads: Heads::default(),
            limits,
            now_us: 1_000_000,
            rest: Vec::new(),
            glitches: Vec::new(),
            consumes: true,
            decoder: Decoder::default(),
        }
    }

    /// After preface and settings both ways.
    pub(crate) fn with(limits: Limits) -> Server {
        let mut server = Server::silent(limits);
        let greeting =
            [&PREFACE[..], &frame(Kind::Settings, 0, 0, &[]), &frame(Kind::Settings, 1, 0, &[])]
                .concat();
        assert_eq!(server.feed(&greeting), [""; 0]);
        server.sent();
        server
    }

    pub(crate) fn new() -> Server {
        Server::with(Limits::default())
    }

    /// Feeds input and returns the events; unread input is kept.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(input);
        let input = std::mem::take(&mut self.rest);
        let (limits, mut words) = (self.limits.clone(), Vec::new());
        let mut turn = Turn::new(&input, self.now_us, &limits);
        loop {
            match self.mux.read(&mut turn, &mut self.heads) {
                Ok(Some(event)) => {
                    if let Event::Data { stream, bytes, .. } = &event
                        && self.consumes
                    {
                        self.mux.consumed(*stream, bytes.len());
                    }
                    words.push(said(&event));
                }
                Ok(None) => break,
                Err(failure) => {
                    assert_eq!(
                        self.mux.read(&mut turn, &mut self.heads).err(),
                        Some(failure),
                        "it says so again"
                    );
                    words.push(format!("failed {}", failure.code.word()));
                    break;
                }
            }
        }
        let consumed = turn.consumed();
        if self.mux.failure().is_none() {
            assert!(consumed == input.len() || self.mux.blocked().is_some());
            self.rest = input[consumed..].to_vec();
        }
        self.glitches.push(self.mux.take_glitches());
        words
    }

    /// The frames that leave now, `bytes_max` bytes or a frame more.
    pub(crate) fn sent_max(&mut self, bytes_max: usize) -> Vec<String> {
        let mut wire = Wire::default();
        let written = self.mux.write_out(bytes_max, &mut wire);
        assert_eq!(written, wire.bytes.len());
        let mut words = self.frames(&wire.bytes);
        words.extend(wire.ended.iter().map(|stream| format!("ended {stream}")));
        words
    }

    /// All frames that may leave now.
    pub(crate) fn sent(&mut self) -> Vec<String> {
        let words = self.sent_max(usize::MAX);
        assert!(!self.mux.wants_write());
        words
    }

    fn frames(&mut self, mut bytes: &[u8]) -> Vec<String> {
        let (mut words, mut gathered) = (Vec::new(), Vec::new());
        while let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() {
            let head = FrameHead::parse(head);
            head.check().expect("a frame that may be sent");
            let (payload, rest) = rest.split_at(head.length as usize);
            bytes = rest;
            if matches!(head.kind, Kind::Headers | Kind::Continuation) {
                gathered.extend_from_slice(payload);
                if head.has(END_HEADERS) {
                    words.push(self.head_words(&head, &std::mem::take(&mut gathered)));
                } else {
                    words.push(format!("part of headers {}", head.stream));
                }
                continue;
            }
            words.push(frame_words(&head, payload));
        }
        assert!(bytes.is_empty(), "whole frames");
        words
    }

    fn head_words(&mut self, head: &FrameHead, block: &[u8]) -> String {
        let mut words = format!("headers {}", head.stream);
        let take = |name: &[u8], value: &[u8]| {
            words.push_str(&format!(" {}={}", name.escape_ascii(), value.escape_ascii()));
            true
        };
        self.decoder.decode(block, &mut Vec::new(), take).expect("a block that can be read");
        words + if head.has(1) { " end" } else { "" }
    }

    /// Returns how often something strange has happened so far.
    pub(crate) fn count(&self, kind: Glitch) -> u32 {
        self.glitches.iter().map(|glitches| u32::from(glitches.count(kind))).sum()
    }

    /// Responds with 200 and a body of this many bytes.
    pub(crate) fn answer(&mut self, stream: u32, bytes: usize) {
        let parts = ReplyParts::made(200, &[]);
        self.mux.reply_head(stream, &parts, &Additions::default(), bytes == 0);
        if bytes > 0 {
            self.mux.reply_data(stream, bytes);
            self.mux.end(stream, Trailers::default());
        }
    }
}

/// An event in words.
pub(crate) fn said(event: &Event<'_>) -> String {
    let last = |end: bool| if end { " end" } else { "" };
    match event {
        Event::Request { stream, request, end } => {
            let line = request.text.split(|&byte| byte == b'\r').next().unwrap_or_default();
            format!("request {stream} {}{}", line.escape_ascii(), last(*end))
        }
        Event::Refused { stream, error, .. } => format!("refused {stream} {}", error.word()),
        Event::Broken { stream, error, .. } => format!("broken {stream} {}", error.word()),
        Event::Data { stream, bytes, end, .. } => {
            format!("data {stream} {}{}", bytes.len(), last(*end))
        }
        Event::Reset { stream, code, by_client: true, .. } => {
            format!("reset {stream} {} by client", code.word())
        }
        Event::Reset { stream, code, by_client: false, .. } => {
            format!("reset {stream} {}", code.word())
        }
        Event::Leaving { code } => format!("leaving {}", code.word()),
    }
}

fn frame_words(head: &FrameHead, payload: &[u8]) -> String {
    let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
    let (stream, last) = (head.stream, if head.has(1) { " end" } else { "" });
    match head.kind {
        Kind::Data => format!("data {stream} {}{last}", payload.len()),
        Kind::RstStream => format!("rst {stream} {}", Code::of(number(0)).word()),
        Kind::Settings if head.has(1) => "settings ack".to_owned(),
        Kind::Settings => {
            settings(payload).fold("settings".to_owned(), |all, (k, v)| format!("{all} {k:?}={v}"))
        }
        Kind::Ping if head.has(1) => format!("pong {}", payload.escape_ascii()),
        Kind::Goaway => format!("goaway {} {}", number(0), Code::of(number(4)).word()),
        Kind::WindowUpdate => format!("window {stream} {}", number(0)),
        other => panic!("nobody sends {other:?}"),
    }
}

/// The name in Via.
pub(crate) fn us() -> Option<Pseudonym> {
    Pseudonym::new("weir")
}

/// Returns a block by the encoder, where it has to be short.
pub(crate) fn coded(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    fields
        .iter()
        .for_each(|(name, value)| encode::put_field(&mut block, name.as_bytes(), value.as_bytes()));
    block
}
