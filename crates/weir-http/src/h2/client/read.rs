//! Bytes of a server to events: frames put together, their rules enforced, windows given back
//! (RFC 9113 §4 to §6).
//!
//! DATA is reported as it comes; of every other frame the whole payload is gathered when it is not
//! in one piece of the input. A cut-off input gives the same results as the whole one, up to the
//! cut, except for the pieces of bodies. Bounds: a payload of
//! [`FRAME_BYTES_MAX`](crate::h2::frame::FRAME_BYTES_MAX), a header block of [`BLOCK_BYTES_MAX`]
//! whose list has [`LIST_BYTES_MAX`], and [`CONTROL_BYTES_MAX`] of responses to control frames.

use super::{Client, Event, Stream};
use crate::h2::error::{Code, Failure};
use crate::h2::frame::{
    self, ACK, END_HEADERS, END_STREAM, FrameHead, HEAD_BYTES, Kind, PADDED, Setting,
};
use crate::h2::mux::WINDOW_MAX;

/// Most bytes of a header block.
const BLOCK_BYTES_MAX: usize = 65_536;
/// Most bytes of a header list, with 32 a field (RFC 9113 §6.5.2).
const LIST_BYTES_MAX: usize = 131_072;
/// Most bytes that may wait to be sent when a control frame comes that needs a response.
const CONTROL_BYTES_MAX: usize = 1 << 20;

/// Where a connection is in what it receives.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The first bytes of a frame, `have` of them.
    head: [u8; HEAD_BYTES],
    have: usize,
    /// The frame whose payload is read.
    frame: Option<FrameHead>,
    /// Bytes of its payload that have not come.
    left: u32,
    /// DATA: bytes of padding at its end. None: it is padded, and their number has not come.
    padding: Option<u32>,
    /// A payload that came in several pieces, as far as it has come.
    gathered: Vec<u8>,
    /// A header block whose end has not come: its stream, whether that ends with it, its bytes.
    block: Option<(u32, bool, Vec<u8>)>,
    scratch: Vec<u8>,
    greeted: bool,
}

impl Reader {
    pub(super) fn is_greeted(&self) -> bool {
        self.greeted
    }
}

/// The meaning of a part of the input.
enum Part<'a> {
    /// Nothing: more input is needed.
    Nothing,
    /// Something that the caller need not know.
    Progress,
    Event(Event<'a>),
}

/// The relevant parts of a head.
struct Head {
    status: Option<u16>,
    length: Option<u64>,
    is_malformed: bool,
}

const fn fault<T>(code: Code, why: &'static str) -> Result<T, Failure> {
    Err(Failure { code, why })
}

impl Client {
    /// Reads on from `at`, which moves, to the next event. None: the input is used up. Call it
    /// until it returns None.
    ///
    /// # Errors
    /// The server is at fault and the connection over; the output includes GOAWAY. Every later call
    /// returns the same.
    pub fn read<'a>(
        &mut self,
        input: &'a [u8],
        at: &mut usize,
    ) -> Result<Option<Event<'a>>, Failure> {
        loop {
            if let Some(failure) = self.failure {
                return Err(failure);
            }
            let part = match self.reader.frame {
                None => self.read_head(input, at),
                Some(frame) if frame.kind == Kind::Data => self.read_data(frame, input, at),
                Some(frame) => self.read_payload(frame, input, at),
            };
            match part {
                Ok(Part::Nothing) => return Ok(None),
                Ok(Part::Progress) => {}
                Ok(Part::Event(event)) => return Ok(Some(event)),
                Err(failure) => {
                    frame::put_goaway(&mut self.out, 0, failure.code);
                    self.failure = Some(failure);
                }
            }
        }
    }

    // ---- frames ----

    fn read_head(&mut self, input: &[u8], at: &mut usize) -> Result<Part<'static>, Failure> {
        let reader = &mut self.reader;
        let taken = (input.len() - *at).min(HEAD_BYTES - reader.have);
        reader.head[reader.have..reader.have + taken].copy_from_slice(&input[*at..*at + taken]);
        *at += taken;
        reader.have += taken;
        if reader.have < HEAD_BYTES {
            return Ok(Part::Nothing);
        }
        let frame = FrameHead::parse(&reader.head);
        frame.check()?;
        // RFC 9113 §3.4
        if !reader.greeted && (frame.kind != Kind::Settings || frame.has(ACK)) {
            return fault(Code::ProtocolError, "the first frame is not SETTINGS");
        }
        // RFC 9113 §4.3, §6.10
        let goes_on = reader.block.as_ref().map(|(stream, ..)| *stream);
        if (goes_on.is_some() || frame.kind == Kind::Continuation)
            && (frame.kind != Kind::Continuation || goes_on != Some(frame.stream))
        {
            return fault(
                Code::ProtocolError,
                "a header block was interrupted, or goes on without a beginning",
            );
        }
        // RFC 9113 §5.1, §5.1.1: only we open streams.
        let is_idle =
            frame.stream != 0 && (frame.stream >= self.next || frame.stream.is_multiple_of(2));
        if is_idle && !matches!(frame.kind, Kind::Priority | Kind::Unknown(_)) {
            return fault(Code::ProtocolError, "a frame on a stream that is idle");
        }
        (reader.have, reader.greeted) = (0, true);
        (reader.frame, reader.left) = (Some(frame), frame.length);
        if frame.kind == Kind::Data {
            reader.padding = None;
            self.charge(&frame)?;
            if !frame.has(PADDED) {
                return Ok(self.begin_body(&frame, 0));
            }
        }
        Ok(Part::Progress)
    }

    /// Reads any frame but DATA: its payload is needed as a whole.
    fn read_payload(
        &mut self,
        frame: FrameHead,
        input: &[u8],
        at: &mut usize,
    ) -> Result<Part<'static>, Failure> {
        let taken = (input.len() - *at).min(self.reader.left as usize);
        let piece = &input[*at..*at + taken];
        *at += taken;
        self.reader.left -= taken as u32;
        if self.reader.left > 0 || !self.reader.gathered.is_empty() {
            self.reader.gathered.extend_from_slice(piece);
        }
        if self.reader.left > 0 {
            return Ok(Part::Nothing);
        }
        self.reader.frame = None;
        let gathered = std::mem::take(&mut self.reader.gathered);
        let payload = if gathered.is_empty() { piece } else { &gathered };
        let event = match frame.kind {
            Kind::Headers | Kind::Continuation => self.take_fragment(&frame, payload)?,
            _ => self.take_control(&frame, payload)?,
        };
        Ok(event.map_or(Part::Progress, Part::Event))
    }

    fn take_control(
        &mut self,
        frame: &FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event<'static>>, Failure> {
        let number = |at: usize| {
            payload.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u32::from_be_bytes(*it))
        };
        match frame.kind {
            Kind::Settings if !frame.has(ACK) => self.take_settings(payload)?,
            Kind::Ping if !frame.has(ACK) => {
                self.answer(|out| {
                    payload.first_chunk().into_iter().for_each(|it| frame::put_pong(out, it))
                })?;
            }
            Kind::WindowUpdate => {
                return self.take_window_update(frame.stream, number(0) & 0x7fff_ffff);
            }
            Kind::RstStream => {
                let (stream, code) = (frame.stream, Code::of(number(0)));
                let known = self.forget(stream).is_some();
                return Ok(known.then_some(Event::Reset { stream, code, by_server: true }));
            }
            Kind::Goaway => {
                let last = number(0) & 0x7fff_ffff;
                self.left = Some(self.left.map_or(last, |before| before.min(last)));
                while let Some(stream) =
                    self.streams.back().map(|stream| stream.id).filter(|id| *id > last)
                {
                    self.forget(stream);
                }
                return Ok(Some(Event::Leaving { last, code: Code::of(number(4)) }));
            }
            // Priorities are for servers; unknown frames are ignored (RFC 9113 §5.5).
            _ => {}
        }
        Ok(None)
    }

    /// RFC 9113 §6.5.
    fn take_settings(&mut self, payload: &[u8]) -> Result<(), Failure> {
        let mut initial = None;
        for (setting, value) in frame::settings(payload) {
            setting.check(value)?;
            match setting {
                // RFC 9113 §6.5.2: a server that enables push is at fault.
                Setting::EnablePush if value != 0 => {
                    return fault(Code::ProtocolError, "a server wants to be pushed to");
                }
                Setting::MaxConcurrentStreams => self.streams_max = value,
                Setting::HeaderTableSize => {
                    self.table_changed |= value != self.table_bytes;
                    self.table_bytes = value;
                }
                Setting::InitialWindowSize => initial = Some(i64::from(value)),
                _ => {}
            }
        }
        if let Some(initial) = initial {
            let overflows = |stream: &Stream| initial + stream.credit > WINDOW_MAX;
            if self.streams.iter().any(overflows) {
                return fault(Code::FlowControlError, "SETTINGS make a window too large");
            }
            self.room_initial = initial;
        }
        self.answer(frame::put_settings_ack)?;
        self.write_content();
        Ok(())
    }

    /// RFC 9113 §6.9.
    fn take_window_update(
        &mut self,
        id: u32,
        increment: u32,
    ) -> Result<Option<Event<'static>>, Failure> {
        let (initial, increment) = (self.room_initial, i64::from(increment));
        if id == 0 {
            self.room += increment;
            if self.room > WINDOW_MAX {
                return fault(Code::FlowControlError, "the connection's window is too large");
            }
            if increment == 0 {
                return fault(Code::ProtocolError, "a window update of 0");
            }
        } else if let Some(stream) = self.find(id) {
            stream.credit += increment;
            match (increment, initial + stream.credit > WINDOW_MAX) {
                (0, _) => return Ok(Some(self.stream_error(id, Code::ProtocolError))),
                (_, true) => return Ok(Some(self.stream_error(id, Code::FlowControlError))),
                _ => {}
            }
        }
        self.write_content();
        Ok(None)
    }

    /// Writes a response to a control frame.
    fn answer(&mut self, put: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        if self.out.len() > CONTROL_BYTES_MAX {
            return fault(
                Code::EnhanceYourCalm,
                "more frames that want an answer than answers can leave",
            );
        }
        put(&mut self.out);
        Ok(())
    }

    /// Ends a stream because of what the server has sent on it.
    fn stream_error(&mut self, stream: u32, code: Code) -> Event<'static> {
        self.forget(stream);
        frame::put_reset(&mut self.out, stream, code);
        Event::Reset { stream, code, by_server: false }
    }

    // ---- heads ----

    /// A HEADERS or CONTINUATION frame is complete.
    fn take_fragment(
        &mut self,
        frame: &FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event<'static>>, Failure> {
        if frame.kind == Kind::Headers {
            let (fragment, _) = frame::fragment(frame, payload)?;
            if frame.has(END_HEADERS) {
                return self.take_block(frame.stream, frame.has(END_STREAM), fragment);
            }
            self.reader.block = Some((frame.stream, frame.has(END_STREAM), fragment.to_vec()));
            return Ok(None);
        }
        let Some((stream, end, mut block)) = self.reader.block.take() else { return Ok(None) };
        block.extend_from_slice(payload);
        if block.len() > BLOCK_BYTES_MAX {
            return fault(Code::EnhanceYourCalm, "a header block is too large");
        }
        if frame.has(END_HEADERS) {
            return self.take_block(stream, end, &block);
        }
        self.reader.block = Some((stream, end, block));
        Ok(None)
    }

    /// A header block is complete. It is decoded whatever happens to its stream: later blocks
    /// depend on it.
    fn take_block(
        &mut self,
        id: u32,
        end: bool,
        block: &[u8],
    ) -> Result<Option<Event<'static>>, Failure> {
        let head = self.decode(block)?;
        let Some(stream) = self.find(id) else { return Ok(None) };
        if stream.has_head {
            // Trailers (RFC 9113 §8.1): they end the response and have no status.
            let is_short = stream.length_left.is_some_and(|left| left > 0);
            if head.is_malformed || head.status.is_some() || !end || is_short {
                return Ok(Some(self.stream_error(id, Code::ProtocolError)));
            }
            self.end(id);
            return Ok(Some(Event::Data { stream: id, bytes: &[], end: true }));
        }
        // RFC 9113 §8.6: HTTP/2 has no switch of protocols.
        let is_status =
            |status: &u16| !head.is_malformed && *status != 101 && (!end || *status >= 200);
        let Some(status) = head.status.filter(is_status) else {
            return Ok(Some(self.stream_error(id, Code::ProtocolError)));
        };
        if status >= 200 {
            stream.has_head = true;
            // RFC 9110 §6.4.1, §8.6: these have no content, and a length in them is that of another
            // response.
            let has_body = !stream.is_head && !matches!(status, 204 | 304);
            stream.length_left = if has_body { head.length } else { Some(0) };
            if end && stream.length_left.is_some_and(|left| left > 0) {
                return Ok(Some(self.stream_error(id, Code::ProtocolError)));
            }
        }
        if end {
            self.end(id);
        }
        Ok(Some(Event::Head { stream: id, status, end }))
    }

    /// RFC 9113 §8.2, §8.3.2.
    fn decode(&mut self, block: &[u8]) -> Result<Head, Failure> {
        let mut head = Head { status: None, length: None, is_malformed: false };
        let (mut list_bytes, mut fields) = (0, false);
        let take = |name: &[u8], value: &[u8]| {
            list_bytes += name.len() + value.len() + 32;
            match name {
                b":status" => {
                    let status = parse_status(value).filter(|_| head.status.is_none() && !fields);
                    head.is_malformed |= status.is_none();
                    head.status = status;
                }
                b"content-length" => {
                    let length = parse_decimal(value);
                    head.is_malformed |=
                        length.is_none() || head.length.is_some_and(|other| Some(other) != length);
                    head.length = length;
                }
                b"connection" | b"transfer-encoding" | b"keep-alive" | b"upgrade"
                | b"proxy-connection" => {
                    head.is_malformed = true;
                }
                _ => {
                    head.is_malformed |=
                        name.first().is_none_or(|it| *it == b':') || has_upper_case(name)
                }
            }
            fields |= !name.starts_with(b":");
            list_bytes <= LIST_BYTES_MAX
        };
        match self.decoder.decode(block, &mut self.reader.scratch, take) {
            Ok(()) => Ok(head),
            Err(error) => fault(Code::CompressionError, error.word()),
        }
    }

    // ---- bodies ----

    /// The head of a DATA frame has come: both windows are charged for all of it, and get back what
    /// is due (RFC 9113 §6.9.1).
    fn charge(&mut self, frame: &FrameHead) -> Result<(), Failure> {
        let (bytes, windows) = (frame.length, self.windows);
        self.window -= i64::from(bytes);
        self.owed += bytes;
        let mut too_much = self.window < 0;
        if windows.gives_back && self.owed > windows.connection / 2 {
            frame::put_window_update(&mut self.out, 0, self.owed);
            self.window += i64::from(std::mem::take(&mut self.owed));
        }
        if let Some(place) = self.place(frame.stream) {
            let stream = &mut self.streams[place];
            stream.window -= i64::from(bytes);
            stream.owed += bytes;
            too_much |= stream.window < 0;
            if windows.gives_back && stream.owed > windows.stream / 2 && !frame.has(END_STREAM) {
                frame::put_window_update(&mut self.out, frame.stream, stream.owed);
                stream.window += i64::from(std::mem::take(&mut stream.owed));
            }
        }
        if too_much {
            fault(Code::FlowControlError, "more DATA than a window allows")
        } else {
            Ok(())
        }
    }

    /// The padding of a DATA frame is known, and so how much of a body it has, which must fit the
    /// announced length (RFC 9113 §8.1.1).
    fn begin_body(&mut self, frame: &FrameHead, padding: u32) -> Part<'static> {
        self.reader.padding = Some(padding);
        let bytes = u64::from(self.reader.left - padding);
        let Some(stream) = self.find(frame.stream) else { return Part::Progress };
        let mut fits = stream.has_head;
        if let Some(left) = &mut stream.length_left {
            fits &= frame::fits_length(left, bytes, frame.has(END_STREAM));
        }
        if fits {
            Part::Progress
        } else {
            Part::Event(self.stream_error(frame.stream, Code::ProtocolError))
        }
    }

    fn read_data<'a>(
        &mut self,
        frame: FrameHead,
        input: &'a [u8],
        at: &mut usize,
    ) -> Result<Part<'a>, Failure> {
        let Some(padding) = self.reader.padding else {
            return self.read_padding(&frame, input, at);
        };
        let available = (input.len() - *at).min(self.reader.left as usize);
        let bytes = &input[*at..*at + available.min((self.reader.left - padding) as usize)];
        *at += available;
        self.reader.left -= available as u32;
        self.reader.padding = Some(padding.min(self.reader.left));
        let is_over = self.reader.left == 0;
        if is_over {
            self.reader.frame = None;
        }
        let nothing = if is_over { Part::Progress } else { Part::Nothing };
        let (id, ends) = (frame.stream, is_over && frame.has(END_STREAM));
        if self.place(id).is_none() {
            return Ok(nothing);
        }
        if ends {
            self.end(id);
        } else if bytes.is_empty() {
            return Ok(nothing);
        }
        Ok(Part::Event(Event::Data { stream: id, bytes, end: ends }))
    }

    /// The number of bytes of padding (RFC 9113 §6.1).
    fn read_padding(
        &mut self,
        frame: &FrameHead,
        input: &[u8],
        at: &mut usize,
    ) -> Result<Part<'static>, Failure> {
        let Some(left) = self.reader.left.checked_sub(1) else {
            return fault(Code::FrameSizeError, "a padded frame without the length of its padding");
        };
        let Some(&padding) = input.get(*at) else { return Ok(Part::Nothing) };
        if u32::from(padding) > left {
            return fault(Code::ProtocolError, "more padding than there is frame");
        }
        *at += 1;
        self.reader.left = left;
        Ok(self.begin_body(frame, u32::from(padding)))
    }
}

/// Three digits, 100 to 999.
fn parse_status(value: &[u8]) -> Option<u16> {
    let digits: &[u8; 3] = value.try_into().ok()?;
    let is_number = digits.iter().all(u8::is_ascii_digit) && digits[0] != b'0';
    is_number.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0')))
}

/// Digits and nothing else (RFC 9110 §8.6); None also for a number that is too large.
fn parse_decimal(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| is_number)?.parse().ok()
}

fn has_upper_case(name: &[u8]) -> bool {
    name.iter().any(u8::is_ascii_uppercase)
}
