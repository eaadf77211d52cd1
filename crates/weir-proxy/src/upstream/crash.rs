//! Crashes of a server: its connections end without notice, and then it refuses new ones.
//!
//! Some programs cannot bear several requests on one connection and exit, such as a node server
//! that uses `res.socket`, which is null while a pipelined response waits its turn. The engine
//! keeps one [`CrashDetector`] for each server and worker, and reports to it each connection of the
//! pool that the server ends without announcing it, and each connect that fails. If requests shared
//! a connection that ended, the crash is a doubt
//! ([`DiesShared`](crate::cross::doubt::Doubt::DiesShared)). If requests were unanswered and none
//! shared a connection, the server also crashes without pipelining, which is what
//! [`Trust`](crate::upstream::trust::Trust) is told. A server that closes connections and accepts
//! new ones has not crashed: many close after a number of responses. Bound: three words.
//! docs/pipelining-trust.md#trust

use super::pool::Pool;
use crate::base::keys::ServerIndex;
use crate::context::Context;
use crate::retry::poison::CRASH_US;

/// A server that refuses a connection within this time after it ended others has crashed.
const REFUSED_US: u64 = 1_000_000;

/// What a crash says about pipelining.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crash {
    /// Requests shared a connection.
    Shared,
    /// Requests were unanswered, each alone on its connection.
    Alone,
}

/// The connections of a server that ended at about the same time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CrashDetector {
    /// The first of them.
    since_us: u64,
    /// The most unanswered requests on one of them.
    unanswered: usize,
    /// A refusal has followed.
    reported: bool,
}

impl CrashDetector {
    /// The server has ended a connection without announcing it. `unanswered`: requests that were
    /// sent on it.
    fn on_end(&mut self, now_us: u64, unanswered: usize) {
        if now_us.saturating_sub(self.since_us) >= CRASH_US {
            *self = CrashDetector { since_us: now_us, ..CrashDetector::default() };
        }
        self.unanswered = self.unanswered.max(unanswered);
    }

    /// The server refuses a connection, and none is open. Returns what the crash says, once, if it
    /// is one.
    fn on_refused(&mut self, now_us: u64) -> Option<Crash> {
        let crash = match self.unanswered {
            _ if now_us.saturating_sub(self.since_us) >= REFUSED_US => None,
            0 => None,
            1 => Some(Crash::Alone),
            _ => Some(Crash::Shared),
        };
        crash.filter(|_| !std::mem::replace(&mut self.reported, true))
    }
}

/// A server has ended a connection without announcing it. `unanswered`: requests that were sent on
/// it.
#[cold]
pub(super) fn on_end(server: ServerIndex, unanswered: usize, pool: &mut Pool, cx: &Context) {
    pool.servers[server].learned.crash.on_end(cx.now_us, unanswered);
}

/// A connection to a server could not be made. True: it crashed, and requests shared a connection.
#[cold]
pub(super) fn on_refused(server: ServerIndex, pool: &mut Pool, cx: &Context) -> bool {
    let machine = &mut pool.servers[server];
    let crash = if machine.ready == 0 { machine.learned.crash.on_refused(cx.now_us) } else { None };
    if crash == Some(Crash::Alone) {
        machine.learned.trust.on_crash_alone();
    }
    crash == Some(Crash::Shared)
}

#[cfg(test)]
mod tests {
    //! Proves: a crash is the end of connections before a refusal, and is reported once. How: step
    //! by step.

    use super::*;

    /// Returns the report after connections with these numbers of unanswered requests ended at
    /// these times, and a connect failed at `refused_us`.
    fn reported(ends: &[(u64, usize)], refused_us: u64) -> Option<Crash> {
        let mut detector = CrashDetector::default();
        ends.iter()
            .for_each(|(now_us, unanswered)| detector.on_end(CRASH_US + now_us, *unanswered));
        let crash = detector.on_refused(CRASH_US + refused_us);
        assert_eq!(detector.on_refused(CRASH_US + refused_us), None, "once");
        crash
    }

    #[test]
    fn the_connection_with_most_requests_decides() {
        assert_eq!(reported(&[(0, 2), (1, 0)], 2), Some(Crash::Shared));
        assert_eq!(reported(&[(0, 0), (1, 1), (2, 32)], 2), Some(Crash::Shared));
        assert_eq!(reported(&[(0, 1), (1, 1)], 2), Some(Crash::Alone));
        assert_eq!(reported(&[(0, 0), (1, 0)], 2), None);
        assert_eq!(reported(&[], 2), None);
    }

    #[test]
    fn only_what_is_close_together_belongs_together() {
        assert_eq!(reported(&[(0, 2)], REFUSED_US - 1), Some(Crash::Shared));
        assert_eq!(reported(&[(0, 2)], REFUSED_US), None);
        assert_eq!(reported(&[(0, 2), (CRASH_US - 1, 1)], CRASH_US), Some(Crash::Shared));
        assert_eq!(reported(&[(0, 2), (CRASH_US, 1)], CRASH_US), Some(Crash::Alone));
    }
}
