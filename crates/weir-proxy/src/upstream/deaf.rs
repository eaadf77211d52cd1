//! Connections that fall silent: the server never answers what is sent on them, and on its others
//! it does. Some servers stop reading a connection that has had several requests at once
//! (reactor-netty); nothing on the wire shows it, and each costs a client its time-out.
//!
//! The engine keeps one [`DeafDetector`] for each server and worker. When weir ends a connection
//! because its next answer is not wanted any more, the connection counts if it has ever had several
//! requests at a time, and if a safe request has had no byte of an answer for [`SILENT_FACTOR`]
//! times as long as the slowest thousandth of its server's answers take. The request's class must
//! be as quick as the others, so that long polls do not count, and the server must have answered on
//! another connection meanwhile, so that a server that hangs does not. [`SILENT_MAX`] of them are a
//! doubt ([`FallsSilent`](crate::cross::doubt::Doubt::FallsSilent)). Bound: two numbers.
//! docs/pipelining-trust.md#trust

use super::lost::Loss;
use super::pool::Pool;
use crate::base::keys::ConnKey;
use crate::context::Context;
use crate::request::pending_request::RequestFlags;
use crate::upstream::connection::UpstreamConn;

/// Silence counts after this many times the time of the slowest thousandth of answers...
const SILENT_FACTOR: u64 = 16;
/// ...and not before this time.
const SILENT_US_MIN: u64 = 2_000_000;
/// Silent connections that make a doubt.
const SILENT_MAX: u8 = 3;
/// Silent connections within this time count once, because they may have one cause, such as a lock.
const APART_US: u64 = 1_000_000;
/// The count ends after this time without a silent connection.
const MEMORY_US: u64 = 600_000_000;

/// Counts the connections that fell silent recently.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeafDetector {
    count: u8,
    counted_us: u64,
}

impl DeafDetector {
    /// A connection has fallen silent. True: that was too many, and the count starts over.
    fn on_silent(&mut self, now_us: u64) -> bool {
        let elapsed_us = now_us.saturating_sub(self.counted_us);
        if self.count > 0 && elapsed_us < APART_US {
            return false;
        }
        if elapsed_us > MEMORY_US {
            self.count = 0;
        }
        (self.count, self.counted_us) = (self.count + 1, now_us);
        let is_too_many = self.count >= SILENT_MAX;
        if is_too_many {
            self.count = 0;
        }
        is_too_many
    }
}

impl UpstreamConn {
    /// The start of the silence, if the connection has ever had several requests at a time and a
    /// safe one is next. None: part of the answer has arrived, or the silence proves nothing.
    fn deaf_since_us(&self) -> Option<u64> {
        let is_read =
            self.is_ready() && !self.reading.paused && self.owner.is_none() && !self.wait.rehearses;
        let is_silent = is_read && !self.reply.begun && self.interims() == 0 && !self.has_stash();
        let front = self.entries.front().filter(|_| is_silent && self.history.pipelined)?;
        let traits = front.ask.traits;
        let is_safe = traits.has(RequestFlags::PIPELINABLE) && traits.has(RequestFlags::RETRIABLE);
        let is_sent = front.start < self.log.flushed() && !self.out.sending;
        (is_safe && is_sent).then(|| self.next_since_us())
    }
}

/// Weir ends a connection. True: too many of its server have fallen silent.
#[cold]
pub(super) fn on_end(index: ConnKey, loss: Loss, pool: &mut Pool, cx: &Context) -> bool {
    let conn = pool.conns.at(index);
    let Some(since_us) = conn.deaf_since_us().filter(|_| loss == Loss::Ours) else { return false };
    let machine = &pool.servers[conn.server];
    let class = conn.entries.front().map(|front| front.ask.class).unwrap_or_default();
    let slow_us = machine.learned.usual.slowest_us();
    let due_us = since_us.saturating_add(slow_us.saturating_mul(SILENT_FACTOR).max(SILENT_US_MIN));
    let answers =
        |other: &ConnKey| *other != index && pool.conns.at(*other).history.answered_us > since_us;
    let counts = cx.now_us >= due_us
        && machine.learned.classes.is_alike(class)
        && machine.conns.iter().any(answers);
    let server = conn.server;
    counts && pool.servers[server].learned.deaf.on_silent(cx.now_us)
}

#[cfg(test)]
mod tests {
    //! Proves: three connections that fall silent within ten minutes are too many, those of one
    //! moment count once. How: step by step.

    use super::*;

    fn found(apart_us: u64) -> Vec<u64> {
        let mut detector = DeafDetector::default();
        (1..=9).filter(|n| detector.on_silent(n * apart_us)).collect()
    }

    #[test]
    fn the_third_is_too_many() {
        assert_eq!(found(APART_US), [3, 6, 9]);
        assert_eq!(found(MEMORY_US), [3, 6, 9]);
        assert_eq!(found(MEMORY_US + 1), [0; 0], "once in ten minutes");
        assert_eq!(found(1_000), [0; 0], "all at once");
    }
}
