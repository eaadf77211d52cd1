//! How many connections of a server a worker may have: its part of what is configured, and of what was learned. Pure.

use crate::base::keys::{Key, ServerIndex};
use crate::cross::limit::Bounds;
use crate::plan::ServerPlan;

/// How many connections one worker may have to a server: its part of what is configured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Kept without traffic.
    pub min: u32,
    /// Up to so many that take requests which share.
    pub shared: u32,
    /// Up to so many when some are held by what does not share.
    pub all: u32,
    /// What these are parts of.
    pub whole: Whole,
}

/// The numbers over all workers, and how they are dealt out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Whole {
    /// Between which a [limit](crate::cross::limit) moves.
    bounds: Bounds,
    /// Workers that have connections, and which of them this one is.
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
    /// This worker's part: connection `n` of server `s` belongs to worker `(n + s) mod workers`, so that no more than
    /// configured are made in total. With fewer `connections` than workers only so many of them have any.
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
        let (min, shared, all) = (mine(plan.connections_min), mine(plan.connections), mine(plan.connections_max));
        Limits { min, shared, all, whole }
    }

    /// Requests that may wait or be in flight, with so many for each connection that takes requests which share: one more for each
    /// that may be held.
    pub(super) fn capacity(self, queue_size: u32) -> u32 {
        queue_size.saturating_mul(self.shared).saturating_add(self.all.saturating_sub(self.shared))
    }

    /// Connections that requests which go alone leave to the others, of so many: as many as share, if there are so many beyond those.
    pub(super) fn reserve(self, all: u32) -> u32 {
        self.shared.min(all.saturating_sub(self.shared))
    }

    /// Between which a limit moves, over all workers.
    #[inline]
    pub(crate) fn bounds(self) -> Bounds {
        self.whole.bounds
    }

    /// This worker's part of a number.
    #[inline]
    pub(crate) fn part_of(self, total: u32) -> u32 {
        self.whole.part_of(total)
    }

    /// Exactly so many are kept, whatever happens to them.
    pub(crate) fn is_exact(self) -> bool {
        self.min == self.shared
    }
}
