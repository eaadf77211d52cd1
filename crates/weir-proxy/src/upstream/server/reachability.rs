//! Whether a server can be connected to, as far as this worker knows. Pure.
//!
//! Invariants: `unreachable` implies that no connection is up; `told` implies that the log says so.

use crate::upstream::backoff::Pacer;

/// A connect that takes this long to fail is not refused, but unanswered.
const SLOW_US: u64 = 250_000;

/// Whether a server can be connected to, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// No connect was tried yet.
    Unknown,
    /// The last connect was answered, and no connection has broken since.
    Proven,
    /// The last connect failed, or the last connection broke.
    Doubtful,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Reachability {
    /// Whether another connection can be made.
    pub reach: Reach,
    /// Lets connects begin one after another when many are due.
    pub pacer: Pacer,
    /// Failed connects in a row, over all connections.
    pub failures: u32,
    /// When the last connect failed; 0: none has.
    pub failed_us: u64,
    /// When that had begun.
    begun_us: u64,
    /// It took long to fail, so no request waits for the next one.
    pub slow: bool,
    /// Connects that succeeded, of all its connections.
    pub connects: u64,
    /// No connection is up, and a connect has failed since the last one was.
    pub unreachable: bool,
    /// It was without connections for longer than a reconnect takes, and has not answered since.
    pub was_down: bool,
    /// The log says that it can't be reached.
    pub told: bool,
    /// Its upstream is no longer in the configuration: it is not probed to see when it can be
    /// reached again.
    pub retired: bool,
    /// Until when a server with private connections is not chosen while another server can be: a
    /// connect has failed.
    pub away_until_us: u64,
}

impl Default for Reachability {
    fn default() -> Reachability {
        Reachability {
            reach: Reach::Unknown,
            pacer: Pacer::default(),
            failures: 0,
            failed_us: 0,
            begun_us: 0,
            slow: false,
            connects: 0,
            unreachable: false,
            was_down: false,
            told: false,
            retired: false,
            away_until_us: 0,
        }
    }
}

impl Reachability {
    /// A shareable connection is established.
    pub(crate) fn on_connected(&mut self) {
        self.failures = 0;
        self.connects += 1;
        self.unreachable = false;
        self.reach = Reach::Proven;
    }

    /// A connect has failed now, for the `failures`-th time in a row, which had begun at
    /// `begun_us`. `ready`: connections that are up.
    pub(crate) fn on_failed(&mut self, failures: u32, ready: u32, begun_us: u64, now_us: u64) {
        self.failures = self.failures.max(failures).max(1);
        self.unreachable = ready == 0;
        self.slow = now_us.saturating_sub(begun_us) >= SLOW_US;
        (self.begun_us, self.failed_us) = (begun_us, now_us);
    }

    /// Whether requests go on waiting for it, though it can't be reached: until then it may be
    /// restarting, and fewer than `failures_max` connects have failed. Those that began in time
    /// count.
    pub(crate) fn is_awaited(&self, until_us: u64, failures_max: u32) -> bool {
        self.failures < failures_max && self.begun_us < until_us
    }

    /// Whether a request that was received then has reason to wait for a connect, because none that
    /// might have served it has failed since.
    pub(crate) fn is_untried(&self, received_us: u64) -> bool {
        !self.slow && self.failed_us < received_us
    }

    /// A connection of one client is established. True: connects had failed before.
    pub(crate) fn on_private_connected(&mut self) -> bool {
        let revived = std::mem::take(&mut self.failures) > 0;
        (self.unreachable, self.away_until_us) = (false, 0);
        revived
    }

    /// It can be reached. True: the log says the contrary.
    pub(crate) fn take_told(&mut self) -> bool {
        std::mem::take(&mut self.told)
    }
}
