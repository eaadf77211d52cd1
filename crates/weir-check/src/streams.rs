//! The judge of weir's output to a client of HTTP/2. Every frame is allowed for a server at that
//! moment, within the windows that the client gave. Every stream is exactly one valid response to
//! the request on it.
//!
//! RFC 9113 §3.4, §4, §5.1, §5.2, §6, §8; RFC 9110 §8.6, §15.2. Heads are decoded by a library (RFC
//! 7541), so that this shares nothing with weir.

use std::collections::{BTreeMap, VecDeque};

use loona_hpack::Decoder;

use crate::body::Body;
use crate::grammar::{Violation, content_length, is_token, is_value_byte, latin1};
use crate::message::{Fields, Reply};

/// Types of frames (RFC 9113 §6).
pub mod kind {
    #![allow(missing_docs)]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
    /// RFC 9218 §7.1.
    pub const PRIORITY_UPDATE: u8 = 16;
}

/// DATA and HEADERS: nothing follows on the stream.
pub const END_STREAM: u8 = 0x1;
/// SETTINGS and PING: the response to one.
pub const ACK: u8 = 0x1;
/// HEADERS and CONTINUATION: the block is complete.
pub const END_HEADERS: u8 = 0x4;
/// DATA and HEADERS: with padding (RFC 9113 §6.1).
pub const PADDED: u8 = 0x8;
/// The first bytes of a client (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The windows of a new connection (RFC 9113 §6.9.2).
const WINDOW_BYTES: i64 = 65_535;
/// The largest window (RFC 9113 §6.9.1).
const WINDOW_BYTES_MAX: i64 = 0x7fff_ffff;
/// The largest frame without a setting for it (RFC 9113 §6.5.2).
const FRAME_BYTES_MAX: usize = 16_384;

/// One frame, as it is sent.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// A header list as literals that are not indexed and not compressed (RFC 7541 §5.2, §6.2.2).
pub fn header_block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    let put = |out: &mut Vec<u8>, text: &str| {
        let mut rest = text.len();
        if rest < 127 {
            out.push(rest as u8);
        } else {
            out.push(127);
            rest -= 127;
            while rest >= 128 {
                out.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            out.push(rest as u8);
        }
        out.extend(text.as_bytes());
    };
    for (name, value) in fields {
        out.push(0);
        put(&mut out, name);
        put(&mut out, value);
    }
    out
}

/// Something that weir sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// A stream has its whole response.
    Reply(u32, Reply),
    /// This many bytes of the windows of this stream and of the connection were used.
    Data(u32, u32),
    /// A stream was reset, with this code.
    Reset(u32, u32),
    /// No stream above this number is served; the code.
    Goaway(u32, u32),
    /// Numbers and values; they need an acknowledgement.
    Settings(Vec<(u16, u32)>),
    /// It needs a response.
    Ping([u8; 8]),
    /// This many more bytes may be sent on this stream; 0: on the connection.
    Credit(u32, u32),
}

/// The received part of a stream.
#[derive(Debug, Default)]
struct Stream {
    is_head: bool,
    interim: Vec<u16>,
    reply: Option<Reply>,
    /// The value of Content-Length, where a body follows.
    declared: Option<u64>,
    window: i64,
    has_ended: bool,
    /// By weir.
    was_reset: bool,
    /// By the client: frames that still come on it are not wrong.
    was_given_up: bool,
}

/// A header block of which more frames must follow at once.
#[derive(Debug)]
struct Block {
    stream: u32,
    bytes: Vec<u8>,
    ends: bool,
}

/// Reads one client connection from its first byte on.
///
/// Announce the client's output before it is sent, feed all that arrives, and take events with
/// [`StrictStreams::poll`].
pub struct StrictStreams {
    decoder: Decoder<'static>,
    pending: Vec<u8>,
    offset: u64,
    streams: BTreeMap<u32, Stream>,
    block: Option<Block>,
    ready: VecDeque<Seen>,
    /// Of the connection.
    window: i64,
    /// Window of a new stream, as acknowledged; and its values by SETTINGS that are not
    /// acknowledged yet.
    initial: i64,
    settings: VecDeque<i64>,
    pings: u32,
    had_settings: bool,
    goaway: Option<u32>,
}

impl Default for StrictStreams {
    fn default() -> StrictStreams {
        StrictStreams {
            decoder: Decoder::new(),
            pending: Vec::new(),
            offset: 0,
            streams: BTreeMap::new(),
            block: None,
            ready: VecDeque::new(),
            window: WINDOW_BYTES,
            initial: WINDOW_BYTES,
            settings: VecDeque::new(),
            pings: 0,
            had_settings: false,
            goaway: None,
        }
    }
}

type Judged<T> = Result<T, String>;

fn ensure(holds: bool, rule: &str) -> Judged<()> {
    if holds { Ok(()) } else { Err(rule.to_owned()) }
}

/// Up to four bytes as a number (RFC 9113 §4.1).
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

impl StrictStreams {
    /// A checker for a new connection.
    pub fn new() -> StrictStreams {
        StrictStreams::default()
    }

    /// Announces a request that begins on this stream.
    pub fn ask(&mut self, stream: u32, method: &str) {
        let opened =
            Stream { is_head: method == "HEAD", window: self.usable(), ..Stream::default() };
        self.streams.insert(stream, opened);
    }

    /// The client resets this stream.
    pub fn give_up(&mut self, stream: u32) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.was_given_up = true;
        }
    }

    /// The client sends SETTINGS with this initial window; None: without one.
    pub fn set(&mut self, initial_window: Option<u32>) {
        let last = self.settings.back().copied().unwrap_or(self.initial);
        self.change_settings(|judge| {
            judge.settings.push_back(initial_window.map_or(last, i64::from))
        });
    }

    /// The client gives credit to this stream; 0: to the connection.
    pub fn credit(&mut self, stream: u32, bytes: u32) {
        match stream {
            0 => self.window += i64::from(bytes),
            _ => {
                if let Some(stream) = self.streams.get_mut(&stream) {
                    stream.window += i64::from(bytes);
                }
            }
        }
    }

    /// The client sends a PING.
    pub fn ping(&mut self) {
        self.pings += 1;
    }

    /// Takes the next bytes of the connection.
    ///
    /// # Errors
    /// weir sent something that must not leave. The checker is not usable afterwards.
    pub fn feed(&mut self, input: &[u8]) -> Result<(), Violation> {
        self.pending.extend_from_slice(input);
        while let Some(length) = self.next_length() {
            let frame: Vec<u8> = self.pending.drain(..9 + length).collect();
            self.frame(&frame).map_err(|rule| Violation::new(self.offset, rule, &frame))?;
            self.offset += frame.len() as u64;
        }
        match self.pending.get(..3) {
            Some(length) if word(length) as usize > FRAME_BYTES_MAX => Err(Violation::new(
                self.offset,
                "a frame larger than the client allows",
                &self.pending,
            )),
            _ => Ok(()),
        }
    }

    /// Returns the next event.
    pub fn poll(&mut self) -> Option<Seen> {
        self.ready.pop_front()
    }

    /// Whether the head of the response has come on this stream.
    pub fn has_begun(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.has_ended || stream.reply.is_some())
    }

    /// Returns the response on this stream, as far as it has come.
    pub fn current(&self, stream: u32) -> Option<&Reply> {
        self.streams.get(&stream)?.reply.as_ref()
    }

    /// Returns the interim responses that came on this stream.
    pub fn interim(&self, stream: u32) -> &[u16] {
        self.streams.get(&stream).map_or(&[], |stream| &stream.interim)
    }

    /// Whether the last frame and the last header block are complete.
    pub fn is_between_frames(&self) -> bool {
        self.pending.is_empty() && self.block.is_none()
    }

    /// Returns the window of a new stream that weir may use: until SETTINGS are acknowledged the
    /// larger one.
    fn usable(&self) -> i64 {
        self.settings.iter().copied().fold(self.initial, i64::max)
    }

    /// A change of the initial window changes those of open streams (RFC 9113 §6.9.2).
    fn change_settings(&mut self, change: impl FnOnce(&mut StrictStreams)) {
        let before = self.usable();
        change(self);
        let change = self.usable() - before;
        self.streams.values_mut().for_each(|stream| stream.window += change);
    }

    /// Returns the length of the payload of a frame that is complete.
    fn next_length(&self) -> Option<usize> {
        let length = word(self.pending.get(..3)?) as usize;
        (length <= FRAME_BYTES_MAX && self.pending.len() >= 9 + length).then_some(length)
    }

    fn frame(&mut self, frame: &[u8]) -> Judged<()> {
        let (head, payload) = frame.split_at(9);
        let (kind, flags, stream) = (head[3], head[4], word(&head[5..]));
        ensure(stream >> 31 == 0, "the reserved bit is set")?;
        ensure(
            self.had_settings || kind == kind::SETTINGS && flags & ACK == 0,
            "no SETTINGS first",
        )?;
        ensure(
            self.block.is_none() || kind == kind::CONTINUATION,
            "a frame between those of a header block",
        )?;
        match kind {
            kind::DATA | kind::HEADERS | kind::RST_STREAM | kind::CONTINUATION => {
                ensure(
                    self.streams.contains_key(&stream),
                    "a frame on a stream that nobody opened",
                )?;
            }
            kind::SETTINGS | kind::PING | kind::GOAWAY => {
                ensure(stream == 0, "a stream where none belongs")?
            }
            _ => {}
        }
        match kind {
            kind::DATA => self.data(flags, stream, payload),
            kind::HEADERS => self.headers(flags, stream, payload),
            kind::CONTINUATION => self.continuation(flags, stream, payload),
            kind::RST_STREAM => self.rst_stream(stream, payload),
            kind::SETTINGS => self.settings(flags, payload),
            kind::PING => self.pinged(flags, payload),
            kind::GOAWAY => self.goaway(payload),
            kind::WINDOW_UPDATE => self.window_update(stream, payload),
            _ => Err(format!("a frame of type {kind}, which weir has no reason to send")),
        }
    }

    fn data(&mut self, flags: u8, stream: u32, payload: &[u8]) -> Judged<()> {
        self.window -= payload.len() as i64;
        ensure(
            self.window >= 0 || payload.is_empty(),
            "more DATA than the window of the connection",
        )?;
        let bytes = unpadded(flags, payload)?;
        let id = stream;
        let stream = self.streams.get_mut(&stream).ok_or("no stream")?;
        stream.window -= payload.len() as i64;
        ensure(
            stream.window >= 0 || payload.is_empty(),
            "more DATA than the window of the stream",
        )?;
        ensure(!stream.has_ended, "DATA behind the end of the stream")?;
        ensure(!stream.was_reset, "DATA behind RST_STREAM")?;
        ensure(!payload.is_empty() || flags & END_STREAM != 0, "an empty DATA that ends nothing")?;
        let reply = stream.reply.as_mut().ok_or("DATA before the head")?;
        reply.body.push(bytes);
        self.ready.push_back(Seen::Data(id, payload.len() as u32));
        if flags & END_STREAM != 0 { self.ended(id) } else { Ok(()) }
    }

    fn headers(&mut self, flags: u8, stream: u32, payload: &[u8]) -> Judged<()> {
        ensure(flags & 0x20 == 0, "HEADERS with a priority of RFC 7540")?;
        let bytes = unpadded(flags, payload)?.to_vec();
        let block = Block { stream, bytes, ends: flags & END_STREAM != 0 };
        self.block_part(flags, block)
    }

    fn continuation(&mut self, flags: u8, stream: u32, payload: &[u8]) -> Judged<()> {
        let mut block = self.block.take().ok_or("CONTINUATION of nothing")?;
        ensure(block.stream == stream, "CONTINUATION of another stream")?;
        block.bytes.extend_from_slice(payload);
        self.block_part(flags, block)
    }

    fn block_part(&mut self, flags: u8, block: Block) -> Judged<()> {
        if flags & END_HEADERS == 0 {
            self.block = Some(block);
            return Ok(());
        }
        let list = self
            .decoder
            .decode(&block.bytes)
            .map_err(|error| format!("a header block: {error:?}"))?;
        self.head(block.stream, block.ends, &list)
    }

    fn head(&mut self, id: u32, ends: bool, list: &[(Vec<u8>, Vec<u8>)]) -> Judged<()> {
        let stream = self.streams.get_mut(&id).ok_or("no stream")?;
        ensure(!stream.has_ended, "a head behind the end of the stream")?;
        ensure(!stream.was_reset, "a head behind RST_STREAM")?;
        let (status, fields) = header_list(list)?;
        match (status, &mut stream.reply) {
            (Some(status @ 100..=199), None) => {
                ensure(status != 101, "101, which HTTP/2 does not have")?;
                ensure(!ends, "an interim answer that ends the stream")?;
                stream.interim.push(status);
                Ok(())
            }
            (Some(status), None) => {
                let lengths = fields.all("content-length");
                ensure(lengths.len() < 2, "several Content-Length fields")?;
                let length = lengths.first().map(|value| content_length(value)).transpose()?;
                ensure(status != 204 || length.is_none(), "Content-Length in a 204")?;
                stream.declared = length.filter(|_| !stream.is_head && status != 304);
                let interim = stream.interim.clone();
                let (body, trailers) = (Body::default(), Fields::default());
                stream.reply = Some(Reply {
                    offset: self.offset,
                    status,
                    interim,
                    fields,
                    body,
                    trailers,
                    closes: false,
                });
                if ends { self.ended(id) } else { Ok(()) }
            }
            (None, Some(reply)) => {
                ensure(ends, "trailers that do not end the stream")?;
                ensure(!fields.has("content-length"), "Content-Length in trailers")?;
                reply.trailers = fields;
                self.ended(id)
            }
            (Some(_), Some(_)) => Err("a second head".to_owned()),
            (None, None) => Err("a head without a status".to_owned()),
        }
    }

    /// The whole response is there.
    fn ended(&mut self, id: u32) -> Judged<()> {
        let stream = self.streams.get_mut(&id).ok_or("no stream")?;
        let reply = stream.reply.take().ok_or("an end before the head")?;
        stream.has_ended = true;
        let has_content = !(stream.is_head || matches!(reply.status, 204 | 304));
        ensure(has_content || reply.body.length == 0, "a body where none may be")?;
        ensure(
            stream.declared.is_none_or(|length| length == reply.body.length),
            "not as long as Content-Length says",
        )?;
        if !stream.was_given_up {
            self.ready.push_back(Seen::Reply(id, reply));
        }
        Ok(())
    }

    fn rst_stream(&mut self, id: u32, payload: &[u8]) -> Judged<()> {
        ensure(payload.len() == 4, "a RST_STREAM that has not four bytes")?;
        let stream = self.streams.get_mut(&id).ok_or("no stream")?;
        ensure(!stream.was_reset, "a second RST_STREAM")?;
        stream.was_reset = true;
        self.ready.push_back(Seen::Reset(id, word(payload)));
        Ok(())
    }

    fn settings(&mut self, flags: u8, payload: &[u8]) -> Judged<()> {
        self.had_settings = true;
        if flags & ACK != 0 {
            ensure(payload.is_empty(), "an acknowledgement with settings")?;
            ensure(!self.settings.is_empty(), "an acknowledgement of no SETTINGS")?;
            self.change_settings(|judge| {
                judge.initial = judge.settings.pop_front().unwrap_or_default()
            });
            return Ok(());
        }
        ensure(payload.len().is_multiple_of(6), "SETTINGS of a wrong length")?;
        let pairs = payload
            .chunks_exact(6)
            .map(|pair| (u16::from_be_bytes([pair[0], pair[1]]), word(&pair[2..])));
        let pairs: Vec<(u16, u32)> = pairs.collect();
        for (number, value) in &pairs {
            let is_fine = match number {
                2 => *value == 0,
                4 => i64::from(*value) <= WINDOW_BYTES_MAX,
                5 => (16_384..=0xff_ffff).contains(value),
                _ => true,
            };
            ensure(is_fine, "a setting with a value that it may not have")?;
        }
        self.ready.push_back(Seen::Settings(pairs));
        Ok(())
    }

    fn pinged(&mut self, flags: u8, payload: &[u8]) -> Judged<()> {
        let bytes: [u8; 8] = payload.try_into().map_err(|_| "a PING that has not eight bytes")?;
        if flags & ACK == 0 {
            self.ready.push_back(Seen::Ping(bytes));
            return Ok(());
        }
        ensure(self.pings > 0, "the answer to no PING")?;
        self.pings -= 1;
        Ok(())
    }

    fn goaway(&mut self, payload: &[u8]) -> Judged<()> {
        ensure(payload.len() >= 8, "a GOAWAY that has not eight bytes")?;
        let (last, code) = (word(payload), word(&payload[4..]));
        ensure(
            self.goaway.is_none_or(|before| last <= before),
            "a GOAWAY that takes back another",
        )?;
        self.goaway = Some(last);
        self.ready.push_back(Seen::Goaway(last, code));
        Ok(())
    }

    fn window_update(&mut self, stream: u32, payload: &[u8]) -> Judged<()> {
        ensure(payload.len() == 4, "a WINDOW_UPDATE that has not four bytes")?;
        let bytes = word(payload);
        ensure(bytes > 0 && i64::from(bytes) <= WINDOW_BYTES_MAX, "a WINDOW_UPDATE of nothing")?;
        ensure(
            stream == 0 || self.streams.contains_key(&stream),
            "credit for a stream that nobody opened",
        )?;
        self.ready.push_back(Seen::Credit(stream, bytes));
        Ok(())
    }
}

/// Returns the payload without its padding (RFC 9113 §6.1).
fn unpadded(flags: u8, payload: &[u8]) -> Judged<&[u8]> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (length, rest) = payload.split_first().ok_or("padding without a length")?;
    let kept = rest.len().checked_sub(usize::from(*length)).ok_or("more padding than payload")?;
    Ok(&rest[..kept])
}

/// Returns the status, if there is any, and the fields (RFC 9113 §8.2, §8.3).
fn header_list(list: &[(Vec<u8>, Vec<u8>)]) -> Judged<(Option<u16>, Fields)> {
    let mut fields = Fields::default();
    let mut status = None;
    for (index, (name, value)) in list.iter().enumerate() {
        if name.first() == Some(&b':') {
            ensure(
                name == b":status" && index == 0,
                "a pseudo field that is not :status, in front",
            )?;
            let digits = value.len() == 3 && value.iter().all(u8::is_ascii_digit);
            ensure(digits && (b'1'..=b'5').contains(&value[0]), "a status that is none")?;
            status = latin1(value).parse().ok();
            continue;
        }
        ensure(
            is_token(name) && !name.iter().any(u8::is_ascii_uppercase),
            "a field name that is none",
        )?;
        ensure(value.iter().copied().all(is_value_byte), "a field value with a control byte")?;
        let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        ensure(
            !is_blank(value.first()) && !is_blank(value.last()),
            "a field value with blanks around it",
        )?;
        let of_connection: [&[u8]; 5] =
            [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];
        ensure(!of_connection.contains(&name.as_slice()), "a field of the connection")?;
        fields.0.push((latin1(name), latin1(value)));
    }
    Ok((status, fields))
}

#[cfg(test)]
mod tests;
