//! Frames: the nine bytes in front of each, the checks that need only these, and frames that weir
//! writes (RFC 9113 §4.1, §6).
//!
//! Called by `read.rs` for each frame, and by every writer of frames. Nothing is allocated; a
//! payload never exceeds [`FRAME_BYTES_MAX`], which is the smallest limit that a peer may have, so
//! it needs no negotiation.

use super::error::{Code, Failure};

/// Bytes in front of each payload.
pub const HEAD_BYTES: usize = 9;
/// Most bytes of a payload: the default of SETTINGS_MAX_FRAME_SIZE, which weir never changes and
/// never exceeds (RFC 9113 §4.2).
pub const FRAME_BYTES_MAX: u32 = 16_384;
/// Default of SETTINGS_HEADER_TABLE_SIZE.
pub const TABLE_BYTES_INITIAL: u32 = 4096;

/// Flag of DATA and HEADERS: nothing follows on this stream.
pub const END_STREAM: u8 = 0x1;
/// Flag of SETTINGS and PING.
pub const ACK: u8 = 0x1;
/// Flag of HEADERS and CONTINUATION: the header block is complete.
pub const END_HEADERS: u8 = 0x4;
/// Flag of DATA and HEADERS: the payload begins with the length of the padding at its end.
pub const PADDED: u8 = 0x8;
/// Flag of HEADERS: five bytes of RFC 7540's priority precede the block.
pub const PRIORITY: u8 = 0x20;

/// The type of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // each variant is the frame of that name
pub enum Kind {
    Data,
    Headers,
    Priority,
    RstStream,
    Settings,
    PushPromise,
    Ping,
    Goaway,
    WindowUpdate,
    Continuation,
    /// RFC 9218 §7.1.
    PriorityUpdate,
    /// A frame of unknown type: to be ignored (RFC 9113 §5.5).
    Unknown(u8),
}

impl Kind {
    fn of(number: u8) -> Kind {
        match number {
            0 => Kind::Data,
            1 => Kind::Headers,
            2 => Kind::Priority,
            3 => Kind::RstStream,
            4 => Kind::Settings,
            5 => Kind::PushPromise,
            6 => Kind::Ping,
            7 => Kind::Goaway,
            8 => Kind::WindowUpdate,
            9 => Kind::Continuation,
            0x10 => Kind::PriorityUpdate,
            other => Kind::Unknown(other),
        }
    }

    /// Its number.
    pub fn number(self) -> u8 {
        match self {
            Kind::Data => 0,
            Kind::Headers => 1,
            Kind::Priority => 2,
            Kind::RstStream => 3,
            Kind::Settings => 4,
            Kind::PushPromise => 5,
            Kind::Ping => 6,
            Kind::Goaway => 7,
            Kind::WindowUpdate => 8,
            Kind::Continuation => 9,
            Kind::PriorityUpdate => 0x10,
            Kind::Unknown(number) => number,
        }
    }
}

/// The nine bytes in front of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// Bytes of the payload: up to 2^24-1 as parsed, up to [`FRAME_BYTES_MAX`] when checked.
    pub length: u32,
    /// What it is.
    pub kind: Kind,
    /// As they came: flags that a kind doesn't have are ignored.
    pub flags: u8,
    /// The stream, without the reserved bit; 0: the connection.
    pub stream: u32,
}

impl FrameHead {
    /// From its bytes.
    pub fn parse(bytes: &[u8; HEAD_BYTES]) -> FrameHead {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = *bytes;
        FrameHead {
            length: u32::from_be_bytes([0, l0, l1, l2]),
            kind: Kind::of(kind),
            flags,
            stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]),
        }
    }

    /// As bytes.
    pub fn bytes(&self) -> [u8; HEAD_BYTES] {
        let ([_, l0, l1, l2], [s0, s1, s2, s3]) =
            (self.length.to_be_bytes(), self.stream.to_be_bytes());
        [l0, l1, l2, self.kind.number(), self.flags, s0, s1, s2, s3]
    }

    /// Whether it has this flag.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Checks what can be known before the payload: its length, and whether the frame belongs to a
    /// stream or to the connection. That PRIORITY has five bytes is checked elsewhere: only its
    /// length is an error of the stream alone (RFC 9113 §6.3).
    ///
    /// # Errors
    /// The sender is at fault; the connection ends (RFC 9113 §4.2, §6.1 to §6.10).
    pub fn check(&self) -> Result<(), Failure> {
        let (protocol, size) = (Code::ProtocolError, Code::FrameSizeError);
        let fault = |code, why| Err(Failure { code, why });
        if self.length > FRAME_BYTES_MAX {
            return fault(size, "a frame is too large");
        }
        let on_stream = self.stream != 0;
        let (belongs, size_is_right) = match self.kind {
            Kind::Data | Kind::Continuation => (on_stream, true),
            Kind::Headers => (on_stream, true),
            Kind::Priority => (on_stream, true),
            Kind::RstStream => (on_stream, self.length == 4),
            Kind::Settings if self.has(ACK) => (!on_stream, self.length == 0),
            Kind::Settings => (!on_stream, self.length.is_multiple_of(6)),
            Kind::PushPromise => {
                return fault(protocol, "a push, which clients can't and servers may not");
            }
            Kind::Ping => (!on_stream, self.length == 8),
            Kind::Goaway => (!on_stream, self.length >= 8),
            Kind::WindowUpdate => (true, self.length == 4),
            Kind::PriorityUpdate => (!on_stream, self.length >= 4),
            Kind::Unknown(_) => (true, true),
        };
        if !belongs {
            return fault(protocol, "a frame on the wrong stream");
        }
        if size_is_right { Ok(()) } else { fault(size, "a frame has the wrong length") }
    }
}

/// The SETTINGS parameters that weir sends or heeds (RFC 9113 §6.5.2, RFC 9218 §2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // each variant is the setting of that name
pub enum Setting {
    HeaderTableSize,
    EnablePush,
    MaxConcurrentStreams,
    InitialWindowSize,
    MaxFrameSize,
    MaxHeaderListSize,
    NoRfc7540Priorities,
    /// To be ignored.
    Unknown(u16),
}

impl Setting {
    fn of(number: u16) -> Setting {
        match number {
            1 => Setting::HeaderTableSize,
            2 => Setting::EnablePush,
            3 => Setting::MaxConcurrentStreams,
            4 => Setting::InitialWindowSize,
            5 => Setting::MaxFrameSize,
            6 => Setting::MaxHeaderListSize,
            9 => Setting::NoRfc7540Priorities,
            other => Setting::Unknown(other),
        }
    }

    /// Checks that it may have this value, whichever side sends it.
    ///
    /// # Errors
    /// The sender is at fault and the connection over (RFC 9113 §6.5.2, RFC 9218 §2.1).
    pub(super) fn check(self, value: u32) -> Result<(), Failure> {
        let fault = |code, why| Err(Failure { code, why });
        match self {
            Setting::EnablePush | Setting::NoRfc7540Priorities if value > 1 => {
                fault(Code::ProtocolError, "a setting is neither 0 nor 1")
            }
            Setting::MaxFrameSize if !(16_384..=16_777_215).contains(&value) => {
                fault(Code::ProtocolError, "SETTINGS_MAX_FRAME_SIZE is out of range")
            }
            Setting::InitialWindowSize if value > 0x7fff_ffff => {
                fault(Code::FlowControlError, "SETTINGS make a window too large")
            }
            _ => Ok(()),
        }
    }

    fn number(self) -> u16 {
        match self {
            Setting::HeaderTableSize => 1,
            Setting::EnablePush => 2,
            Setting::MaxConcurrentStreams => 3,
            Setting::InitialWindowSize => 4,
            Setting::MaxFrameSize => 5,
            Setting::MaxHeaderListSize => 6,
            Setting::NoRfc7540Priorities => 9,
            Setting::Unknown(number) => number,
        }
    }
}

/// Returns the part of a header block in the payload of HEADERS, and whether the stream depends on
/// itself in the priority of RFC 7540 that may precede it (RFC 9113 §6.2).
pub(super) fn fragment<'a>(
    frame: &FrameHead,
    payload: &'a [u8],
) -> Result<(&'a [u8], bool), Failure> {
    let (mut rest, mut padding, mut odd) = (payload, 0, false);
    let short = Failure { code: Code::FrameSizeError, why: "HEADERS are too short" };
    if frame.has(PADDED) {
        let (&length, behind) = rest.split_first().ok_or(short)?;
        (rest, padding) = (behind, usize::from(length));
    }
    if frame.has(PRIORITY) {
        let (parent, behind) = rest.split_first_chunk().ok_or(short)?;
        odd = number31(*parent) == frame.stream;
        rest = behind.get(1..).ok_or(short)?;
    }
    let length = rest.len().checked_sub(padding);
    let length = length
        .ok_or(Failure { code: Code::ProtocolError, why: "more padding than there is frame" })?;
    Ok((&rest[..length], odd))
}

/// Whether `bytes` of a body, the last ones if `end`, fit the `left` bytes of its Content-Length,
/// which are reduced by them (RFC 9113 §8.1.1).
pub(super) fn fits_length(left: &mut u64, bytes: u64, end: bool) -> bool {
    let fits = bytes <= *left && (!end || bytes == *left);
    *left = left.saturating_sub(bytes);
    fits
}

/// The settings of a payload in order. Its length is a multiple of six.
pub fn settings(payload: &[u8]) -> impl Iterator<Item = (Setting, u32)> {
    payload.as_chunks::<6>().0.iter().map(|&[n0, n1, v0, v1, v2, v3]| {
        (Setting::of(u16::from_be_bytes([n0, n1])), u32::from_be_bytes([v0, v1, v2, v3]))
    })
}

/// Returns four bytes of a payload as a number, without the highest bit, which is always reserved.
pub fn number31(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & 0x7fff_ffff
}

/// Appends the head of a frame.
pub fn put_head(out: &mut Vec<u8>, kind: Kind, flags: u8, stream: u32, length: usize) {
    debug_assert!(length <= FRAME_BYTES_MAX as usize);
    out.extend_from_slice(&FrameHead { length: length as u32, kind, flags, stream }.bytes());
}

/// Appends SETTINGS.
pub fn put_settings(out: &mut Vec<u8>, settings: &[(Setting, u32)]) {
    put_head(out, Kind::Settings, 0, 0, settings.len() * 6);
    for (setting, value) in settings {
        out.extend_from_slice(&setting.number().to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of SETTINGS.
pub fn put_settings_ack(out: &mut Vec<u8>) {
    put_head(out, Kind::Settings, ACK, 0, 0);
}

/// Appends the response to PING.
pub fn put_pong(out: &mut Vec<u8>, payload: &[u8; 8]) {
    put_head(out, Kind::Ping, ACK, 0, 8);
    out.extend_from_slice(payload);
}

/// Appends WINDOW_UPDATE; stream 0 is the connection. An increment of 0, which would be an error,
/// is left out.
pub fn put_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    if increment > 0 {
        put_head(out, Kind::WindowUpdate, 0, stream, 4);
        out.extend_from_slice(&increment.to_be_bytes());
    }
}

/// Appends RST_STREAM.
pub fn put_reset(out: &mut Vec<u8>, stream: u32, code: Code) {
    put_head(out, Kind::RstStream, 0, stream, 4);
    out.extend_from_slice(&code.number().to_be_bytes());
}

/// Appends GOAWAY without a text.
pub fn put_goaway(out: &mut Vec<u8>, last: u32, code: Code) {
    put_head(out, Kind::Goaway, 0, 0, 8);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.number().to_be_bytes());
}

#[cfg(test)]
mod tests {
    //! Proves: heads read back as written, and each rule on length and stream holds at its edges.
    //! How: tables, with the section.

    use super::*;

    #[test]
    fn heads_read_back() {
        for kind in 0..=255u8 {
            let head = FrameHead {
                length: 0x01_02_03,
                kind: Kind::of(kind),
                flags: 0xa5,
                stream: 0x7a0b_0c0d,
            };
            assert_eq!(head.kind.number(), kind);
            assert_eq!(FrameHead::parse(&head.bytes()), head);
        }
        // RFC 9113 §4.1: the reserved bit is ignored.
        assert_eq!(FrameHead::parse(&[0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]).stream, 0x7fff_ffff);
    }

    #[test]
    fn lengths_and_streams() {
        let (ok, protocol, size) = (None, Some(Code::ProtocolError), Some(Code::FrameSizeError));
        let rows = [
            ("4.2", Kind::Data, 0, 1, 16_384, ok),
            ("4.2", Kind::Data, 0, 1, 16_385, size),
            ("4.2", Kind::Unknown(77), 0, 0, 16_385, size),
            ("5.5", Kind::Unknown(77), 0xff, 9, 16_384, ok),
            ("6.1", Kind::Data, 0, 0, 1, protocol),
            ("6.2", Kind::Headers, 0, 0, 1, protocol),
            ("6.3", Kind::Priority, 0, 0, 5, protocol),
            ("6.3", Kind::Priority, 0, 1, 4, ok),
            ("6.4", Kind::RstStream, 0, 0, 4, protocol),
            ("6.4", Kind::RstStream, 0, 1, 3, size),
            ("6.4", Kind::RstStream, 0, 1, 4, ok),
            ("6.5", Kind::Settings, 0, 1, 6, protocol),
            ("6.5", Kind::Settings, 0, 0, 7, size),
            ("6.5", Kind::Settings, 0, 0, 0, ok),
            ("6.5", Kind::Settings, ACK, 0, 6, size),
            ("6.5", Kind::Settings, ACK, 0, 0, ok),
            ("6.6", Kind::PushPromise, 0, 1, 4, protocol),
            ("6.7", Kind::Ping, 0, 1, 8, protocol),
            ("6.7", Kind::Ping, 0, 0, 7, size),
            ("6.8", Kind::Goaway, 0, 1, 8, protocol),
            ("6.8", Kind::Goaway, 0, 0, 7, size),
            ("6.8", Kind::Goaway, 0, 0, 99, ok),
            ("6.9", Kind::WindowUpdate, 0, 0, 4, ok),
            ("6.9", Kind::WindowUpdate, 0, 3, 5, size),
            ("6.10", Kind::Continuation, 0, 0, 1, protocol),
            ("RFC 9218 7.1", Kind::PriorityUpdate, 0, 1, 4, protocol),
            ("RFC 9218 7.1", Kind::PriorityUpdate, 0, 0, 3, size),
        ];
        for (section, kind, flags, stream, length, expected) in rows {
            let found =
                FrameHead { length, kind, flags, stream }.check().err().map(|failure| failure.code);
            assert_eq!(found, expected, "{section}: {kind:?} of {length} on {stream}");
        }
    }

    #[test]
    fn what_we_write() {
        let mut out = Vec::new();
        put_settings(
            &mut out,
            &[(Setting::InitialWindowSize, 65_536), (Setting::NoRfc7540Priorities, 1)],
        );
        assert_eq!(out, [0, 0, 12, 4, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1]);
        let read: Vec<_> = settings(&out[9..]).collect();
        assert_eq!(read, [(Setting::InitialWindowSize, 65_536), (Setting::NoRfc7540Priorities, 1)]);
        out.clear();
        put_window_update(&mut out, 1, 0);
        put_settings_ack(&mut out);
        put_pong(&mut out, b"abcdefgh");
        put_window_update(&mut out, 3, 256);
        put_reset(&mut out, 5, Code::Cancel);
        put_goaway(&mut out, 7, Code::EnhanceYourCalm);
        let expected: &[u8] =
            b"\0\0\0\x04\x01\0\0\0\0\0\0\x08\x06\x01\0\0\0\0abcdefgh\0\0\x04\x08\0\0\0\0\x03\0\0\
            \x01\0\0\0\x04\x03\0\0\0\0\x05\0\0\0\x08\0\0\x08\x07\0\0\0\0\0\0\0\0\x07\0\0\0\x0b";
        assert_eq!(out, expected);
    }
}
