//! One request on an upstream connection, and what can be said of the oldest one while nothing comes: whether its server may have
//! overlooked it, and what may leave. Pure.
//!
//! Called by the engine. docs/pipelining.md#what-may-follow-what

use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::connection::UpstreamConn;
use crate::upstream::early_close::{OUTRUN_US, OVERLOOKED_US};

/// One request on a connection.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The request.
    pub ask: PendingRequest,
    /// Offset of its first byte in the log.
    pub start: u64,
    /// Its bytes in the log.
    pub len: u32,
    /// When it was put on this connection.
    pub sent_us: u64,
    /// Others were unanswered on the connection then: what comes may be meant for them.
    pub behind: bool,
    /// Others were, a moment before: what comes late may be meant for them.
    pub soon: bool,
    /// Nobody wants the answer any more.
    pub cancelled: bool,
    /// Its copy, because of which nobody does.
    pub copy: EntryCopy,
    /// It was the oldest one, sent behind another, when it was late: the server seems to have overlooked it.
    pub overlooked: bool,
}

/// Whether a request on a connection was sent on another one as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryCopy {
    /// It is here only.
    None,
    /// It was.
    Sent,
    /// It was, and the same server has begun to answer there, at this time.
    Answered(u64),
}

impl Entry {
    /// Whether it may be sent again on another connection while this one still has it.
    pub(crate) fn is_movable(&self) -> bool {
        let traits = self.ask.traits;
        traits.has(RequestFlags::PIPELINABLE) && traits.has(RequestFlags::RETRIABLE) && !self.cancelled
    }
}

impl UpstreamConn {
    /// The next request to be answered, if its server may have overlooked it: it was sent behind another one, and
    /// nothing of its answer has come, nor an interim one.
    fn unnoticed(&self) -> Option<&Entry> {
        let silent = !self.begun && self.interims() == 0 && self.owner.is_none();
        self.entries.front().filter(|front| silent && front.behind)
    }

    /// For how long its server has let it rest although a request is unanswered that was sent behind another one. None: not for long
    /// enough to say anything.
    pub(crate) fn silence_us(&self, now_us: u64) -> Option<u64> {
        self.unnoticed().filter(|front| front.start < self.log.flushed())?;
        Some(now_us.saturating_sub(self.next_since_us())).filter(|us| *us >= OVERLOOKED_US)
    }

    /// When it is certain that the next request was answered on another connection, and nothing has come here for long. None: it was not.
    pub(crate) fn outrun_us(&self) -> Option<u64> {
        match self.unnoticed()?.copy {
            EntryCopy::Answered(us) => Some((us + OUTRUN_US).max(self.next_since_us() + OVERLOOKED_US)),
            EntryCopy::None | EntryCopy::Sent => None,
        }
    }

    /// Whether its server has overlooked the next request.
    pub(crate) fn overlooks(&self, now_us: u64) -> bool {
        self.outrun_us().is_some_and(|us| us <= now_us)
    }

    /// Whether its server may have overlooked the next request to be answered, which can be sent again elsewhere.
    pub(crate) fn may_overlook(&self) -> bool {
        self.unnoticed().is_some_and(Entry::is_movable)
    }

    /// Whether all that is wanted of it may be sent again although it may have reached the server.
    pub(crate) fn lasts(&self) -> bool {
        self.entries.iter().all(|entry| entry.cancelled || entry.ask.traits.has(RequestFlags::RETRIABLE))
    }

    /// Takes those requests away from behind the oldest that can be sent again elsewhere while this connection has them: what is not
    /// safe must not be processed here after its copy was answered there. Their answers here are thrown away. With their bytes,
    /// oldest first. The oldest as well, where its server seems to have overlooked it.
    pub(crate) fn take_behind(
        &mut self,
        overlooked: bool,
        mut may: impl FnMut(&PendingRequest) -> bool,
    ) -> Vec<(PendingRequest, Vec<u8>)> {
        let mut taken = Vec::new();
        for entry in self.entries.iter_mut().skip(usize::from(!overlooked)) {
            if entry.is_movable() && may(&entry.ask) {
                entry.cancelled = true;
                entry.copy = EntryCopy::Sent;
                taken.push((entry.ask, self.log.copy(entry.start, entry.len as usize)));
            }
        }
        taken
    }
}
