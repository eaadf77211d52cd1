//! The response that is being read on an upstream connection: how far it is, and what it says about
//! further requests. Pure.
//!
//! [`super::UpstreamConn::step`] drives it; [`ReplyReader`] handles the framing. RFC 9112 §6, §9.3,
//! §9.6.

use weir_http::{ReplyBody, ReplyError, ReplyHead, ReplyReader};

use super::Step;
use crate::cross::doubt::Doubt;
use crate::request::pending_request::RequestFlags;
use crate::upstream::misframing::Print;

/// Bytes of line ends in front of a response that are ignored (docs/hostile.md E3).
const BLANKS_MAX: u8 = 4;
/// Interim responses to one request after which the server is doubted.
const INTERIM_MAX: u8 = 32;

/// The response to the oldest request. `unwanted_bytes` <= `body_bytes`.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The status of the last final response whose head was read; 0: none was.
    pub status: u16,
    /// Its head was delivered.
    pub begun: bool,
    /// When it was; meaningless before.
    pub begun_us: u64,
    /// It is large: nothing is queued behind it.
    pub large: bool,
    /// It is HTTP/1.0: nothing may have been sent behind its request.
    pub old: bool,
    /// The doubt that makes the connection unusable once the response is complete.
    pub poison: Option<Doubt>,
    /// Bytes of its body.
    pub body_bytes: u64,
    /// Those of them that came when it was not wanted any more, and when the first of them did.
    pub unwanted_bytes: u64,
    /// See above; meaningless while there are none.
    pub unwanted_us: u64,
    /// It lets the connection live.
    pub persist: bool,
    /// The server said with it that the connection ends, so that it processed nothing behind (RFC
    /// 9112 §9.6).
    pub announced: bool,
    /// Bytes read since a response was last complete.
    pub received_bytes: u64,
    /// Its properties, and when its head came; noted when its body is not complete with that.
    pub print: Option<(Print, u64)>,
    pub(super) reader: ReplyReader,
    pub(super) interims: u8,
    pub(super) blanks: u8,
    /// The last response had no body.
    pub(super) bodyless: bool,
    /// The last response had a body of declared length.
    pub(super) measured: bool,
}

impl Default for Reply {
    fn default() -> Reply {
        Reply {
            status: 0,
            begun: false,
            begun_us: 0,
            large: false,
            old: false,
            poison: None,
            body_bytes: 0,
            unwanted_bytes: 0,
            unwanted_us: 0,
            persist: true,
            announced: false,
            received_bytes: 0,
            print: None,
            reader: ReplyReader::default(),
            interims: 0,
            blanks: 0,
            bodyless: false,
            measured: false,
        }
    }
}

impl Reply {
    /// Its head is delivered.
    pub(crate) fn begin(&mut self, now_us: u64) {
        (self.begun, self.begun_us) = (true, now_us);
    }

    /// It is complete: the next one follows. Its statements about the connection still hold.
    pub(super) fn end(&mut self) {
        self.reader.begin_reply();
        self.interims = 0;
        self.blanks = 0;
        self.poison = None;
        self.body_bytes = 0;
        self.unwanted_bytes = 0;
        self.begun = false;
        self.print = None;
    }

    /// Bytes of its body came that are not wanted.
    pub(crate) fn note_unwanted(&mut self, bytes: usize, now_us: u64) {
        if self.unwanted_bytes == 0 {
            self.unwanted_us = now_us;
        }
        self.unwanted_bytes += bytes as u64;
    }

    /// A line end in front of it. Some servers end a body with one that they did not count.
    pub(super) fn on_blank(&mut self) -> Step {
        self.blanks += 1;
        if self.blanks > BLANKS_MAX { Step::Doubt(Doubt::Garbage) } else { Step::Skip }
    }

    /// A head was read, for a request with these flags.
    pub(super) fn on_head(&mut self, head: ReplyHead, asked: RequestFlags) -> Step {
        if head.status < 200 {
            if head.status == 101 {
                if !asked.has(RequestFlags::UPGRADE) || head.upgrade.is_none() {
                    return Step::Doubt(Doubt::UnaskedUpgrade);
                }
                // Whether it becomes a tunnel is the engine's decision.
                return Step::Head(head);
            }
            self.interims += 1;
            if self.interims > INTERIM_MAX {
                return Step::Doubt(Doubt::InterimFlood);
            }
            return Step::Head(head);
        }
        self.status = head.status;
        self.bodyless = matches!(head.body, ReplyBody::None);
        self.measured = matches!(head.body, ReplyBody::Length(1..));
        self.persist = head.persist;
        self.announced = !head.persist;
        Step::Head(head)
    }

    /// Returns the doubt for a head that can't be read. `measured`: it is right behind a response
    /// that declared its length.
    pub(super) fn blame(&self, error: ReplyError, measured: bool) -> Doubt {
        match error.kind() {
            weir_http::ReplyDoubt::BothFramings => Doubt::BothFramings,
            weir_http::ReplyDoubt::InvalidLength => Doubt::InvalidLength,
            weir_http::ReplyDoubt::UnknownCoding => Doubt::UnknownCoding,
            weir_http::ReplyDoubt::NotAnAnswer if self.bodyless => Doubt::ForbiddenBody,
            // A status line with a bad field begins where the next response is to begin.
            weir_http::ReplyDoubt::NotAnAnswer if measured && !error.has_status_line() => {
                Doubt::Misframing
            }
            weir_http::ReplyDoubt::NotAnAnswer => Doubt::Garbage,
        }
    }
}

/// The end of a body so far that may become the head of another response: not delivered yet, but
/// for its first bytes. `given` <= its length.
#[derive(Debug)]
pub(crate) struct Withheld {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// How many of its first bytes were delivered.
    pub given: usize,
    /// When a timer checks whether it is still not known; `u64::MAX`: none does.
    pub due_us: u64,
    /// The body is complete and so delivered, whatever may come behind it.
    pub over: bool,
}

impl Default for Withheld {
    fn default() -> Withheld {
        Withheld { bytes: Vec::new(), given: 0, due_us: u64::MAX, over: false }
    }
}

impl Withheld {
    /// Takes what is held back, and how much of it was delivered.
    pub(crate) fn take(&mut self) -> (Vec<u8>, usize) {
        self.due_us = u64::MAX;
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.given))
    }

    /// Holds this back behind the bytes that are held already. Of them all `given` were delivered.
    pub(crate) fn hold(&mut self, end: &[u8], given: usize) {
        self.bytes.extend_from_slice(end);
        self.given = given;
    }
}
