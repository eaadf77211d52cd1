//! How many connections of a server a worker may have: its part of the configured number, and of
//! the learned one. Pure.

use crate::base::keys::{Key, ServerIndex};
use crate::cross::limit::Bounds;
use crate::plan::ServerPlan;

/// How many connections one worker may have to a server: its part of the configured number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Kept without traffic.
    pub min: u32,
    /// The most that take requests which share.
    pub shared: u32,
    /// The most when some are held by requests that do not share.
    pub all: u32,
    /// The whole that these are parts of.
    pub whole: Whole,
}

/// The numbers over all workers, and how they are dealt out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Whole {
    /// The bounds of a [limit](crate::cross::limit).
    bounds: Bounds,
    /// The number of workers that have connections, and the index of this worker among them.
    owners: u32,
    first: u32,
}

impl Whole {
    /// This worker's part.
    #[inline]
    fn part_of(self, total: u32) -> u32 {
        let owners = self.owners.max(1);
        (total + owners - 1).saturating_sub(self.first) / owners
    }
}

impl Limits {
    /// Returns this worker's part: connection `n` of server `s` belongs to worker `(n + s) mod
    /// workers`, so that no more than configured are made in total. With fewer `connections` than
    /// workers only that number of workers have any.
    pub(crate) fn of(plan: &ServerPlan, server: ServerIndex, worker: u16, workers: u16) -> Limits {
        let (worker, workers) = (u32::from(worker), u32::from(workers));
        let first = (worker + workers - server.number() % workers) % workers;
        let owners = workers.min(plan.connections).max(1);
        if first >= owners {
            return Limits::default();
        }
        let bounds = Bounds { floor: plan.connections, most: plan.connections_max };
        let whole = Whole { bounds, owners, first };
        let mine = |total: u32| whole.part_of(total);
        let (min, shared, all) =
            (mine(plan.connections_min), mine(plan.connections), mine(plan.connections_max));
        Limits { min, shared, all, whole }
    }

    /// Returns how many requests may wait or be in flight, with `queue_size` for each connection
    /// that takes requests which share: one more for each that may be held.
    pub(super) fn capacity(self, queue_size: u32) -> u32 {
        queue_size.saturating_mul(self.shared).saturating_add(self.all.saturating_sub(self.shared))
    }

    /// Returns how many of `all` connections requests that must be sent alone leave to the others:
    /// as many as share, if that many exist beyond those.
    pub(super) fn reserve(self, all: u32) -> u32 {
        self.shared.min(all.saturating_sub(self.shared))
    }

    /// Returns the bounds of a limit, over all workers.
    #[inline]
    pub(crate) fn bounds(self) -> Bounds {
        self.whole.bounds
    }

    /// This worker's part of a number.
    #[inline]
    pub(crate) fn part_of(self, total: u32) -> u32 {
        self.whole.part_of(total)
    }

    /// Exactly this number is kept, whatever happens to them.
    pub(crate) fn is_exact(self) -> bool {
        self.min == self.shared
    }
}
