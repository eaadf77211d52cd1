//! Tells operators that clients wait because descriptors are scarce. Called by the main thread at each of its looks.

use std::time::{Duration, Instant};

use weir_worker::Running;

use crate::terminal::warn;

/// How often it is told at most.
const EVERY: Duration = Duration::from_secs(60);

/// Tells that clients can't be accepted for want of descriptors.
pub(crate) struct Scarcity {
    before: u64,
    /// When it may be told again.
    next: Instant,
}

impl Scarcity {
    /// Nothing was told yet.
    pub(crate) fn new() -> Scarcity {
        Scarcity { before: 0, next: Instant::now() }
    }

    /// Looks whether accepting was held back since the last time that it was told.
    pub(crate) fn look(&mut self, running: &Running) {
        let held_back: u64 = running.views().iter().map(|view| view.counters.accept_failures.get()).sum();
        if held_back == self.before || Instant::now() < self.next {
            return;
        }
        let times = held_back - std::mem::replace(&mut self.before, held_back);
        self.next = Instant::now() + EVERY;
        warn(format_args!(
            "descriptors are scarce: clients wait to be accepted, and idle ones are closed; raise the limit (ulimit -n, LimitNOFILE=) or set `connections` held_back={times}"
        ));
    }
}
