//! One request on an upstream connection, and the state of those that wait there. Pure.
//!
//! Called by the engine. docs/pipelining.md#what-may-follow-what

use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::connection::UpstreamConn;

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
    /// Others were unanswered on the connection then.
    pub behind: bool,
    /// Others of another client connection were: a response may be meant for them.
    pub behind_strangers: bool,
    /// Those were a moment before: a late response may be meant for them.
    pub soon: bool,
    /// The response is not wanted any more.
    pub cancelled: bool,
    /// Its client has cancelled it, and the client's side counts it until it hears that no server
    /// has it any more.
    pub given_up: bool,
    /// It was sent once more, here or elsewhere.
    pub doubled: bool,
    /// It has a place elsewhere, and only its response here is awaited, to be discarded.
    pub moved: bool,
    /// It is the copy that was sent once more here: its response is never wanted.
    pub is_copy: bool,
}

/// The state of the wait for the next response of a connection, while its server may have
/// overlooked the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Silence {
    /// It has not lasted for long.
    #[default]
    Short,
    /// It has outlasted the patience with the server.
    Long,
    /// Something was sent for that reason, at this time.
    Nudged(u64),
    /// It says nothing: input was not read for a while.
    Unread,
}

impl Entry {
    /// Whether a client waits for its response.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.cancelled && !self.given_up
    }

    /// Whether it can be taken back as long as nothing of it was given to the driver: nothing else
    /// counts on it.
    pub(crate) fn is_retractable(&self) -> bool {
        let kept = [RequestFlags::STREAMING, RequestFlags::TRIAL, RequestFlags::QUARANTINED];
        let has_place_elsewhere = self.doubled || self.moved || self.is_copy;
        !has_place_elsewhere && !kept.iter().any(|kept| self.ask.traits.has(*kept))
    }

    /// Whether it may be sent again on another connection while its present connection still has
    /// it.
    pub(crate) fn is_movable(&self) -> bool {
        let traits = self.ask.traits;
        let sent_once = self.is_wanted() && !self.doubled;
        traits.has(RequestFlags::PIPELINABLE) && traits.has(RequestFlags::RETRIABLE) && sent_once
    }
}

impl UpstreamConn {
    /// Returns since when the next request to be answered may have been overlooked by its server:
    /// it was sent behind another, and nothing of its response has come, nor an interim one. None:
    /// it can't have been.
    pub(crate) fn silent_since_us(&self) -> Option<u64> {
        let read = self.is_ready() && !self.reading.paused && self.wait.silence != Silence::Unread;
        let silent = read
            && self.owner.is_none()
            && !self.reply.begun
            && self.interims() == 0
            && !self.has_stash();
        let front = self.entries.front().filter(|front| silent && front.behind)?;
        let sent = self.unsent() == 0 && front.start < self.log.flushed();
        sent.then(|| self.next_since_us())
    }

    /// Removes the requests behind the oldest that can be sent again elsewhere while this
    /// connection has them: an unsafe one must not be processed here after its copy was answered
    /// there. Their responses here are discarded. Returns them with their bytes, oldest first.
    pub(crate) fn take_behind(
        &mut self,
        mut may: impl FnMut(&PendingRequest) -> bool,
    ) -> Vec<(PendingRequest, Vec<u8>)> {
        let mut taken = Vec::new();
        for entry in self.entries.iter_mut().skip(1) {
            if entry.is_movable() && may(&entry.ask) {
                (entry.cancelled, entry.doubled, entry.moved) = (true, true, true);
                let traits = entry.ask.traits.with(RequestFlags::TWICE, true);
                let ask = PendingRequest { traits, ..entry.ask };
                taken.push((ask, self.log.copy(entry.start, entry.len as usize)));
            }
        }
        taken
    }
}
