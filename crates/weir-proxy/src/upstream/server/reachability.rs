//! Whether a server can be connected to, as far as this worker knows. Pure.
//!
//! Invariants: `unreachable` implies that no connection is up; `told` implies that the log was told.

use crate::upstream::backoff::Pacer;

/// Whether a server can be connected to, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Nobody has tried.
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
    /// Connects that succeeded, of all its connections.
    pub connects: u64,
    /// No connection is up, and a connect has failed since the last one was.
    pub unreachable: bool,
    /// Was without connections for longer than a reconnect takes, and has not answered since.
    pub was_down: bool,
    /// The log says that it can't be reached.
    pub told: bool,
    /// Its upstream is no more in the configuration: nobody finds out when it can be reached again.
    pub retired: bool,
    /// Until when one with private connections is not chosen while another server can be: a connect has failed.
    pub away_until_us: u64,
}

impl Default for Reachability {
    fn default() -> Reachability {
        Reachability {
            reach: Reach::Unknown,
            pacer: Pacer::default(),
            failures: 0,
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
    /// A connection that others may share is established.
    pub(crate) fn on_connected(&mut self) {
        self.failures = 0;
        self.connects += 1;
        self.unreachable = false;
        self.reach = Reach::Proven;
    }

    /// A connect has failed, for the `failures`-th time in a row. `ready`: connections that are up.
    pub(crate) fn on_failed(&mut self, failures: u32, ready: u32) {
        self.failures = self.failures.max(failures);
        self.unreachable = ready == 0;
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
