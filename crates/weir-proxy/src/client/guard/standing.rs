//! What a connection has in the accounts while it moves from one worker to another.

use std::sync::Arc;

use super::Guard;
use super::door::Visit;
use crate::base::keys::ClientKey;

/// See the module. The place where it counts as open is given back when this is dropped.
#[derive(Debug, Default)]
pub(in crate::client) struct Standing {
    visit: Option<Visit>,
    refusals: u16,
}

impl Guard {
    /// Whether the input of a connection is deferred.
    pub(in crate::client) fn is_deferred(&self, index: ClientKey) -> bool {
        self.conns.get(index).is_some_and(|known| known.deferred)
    }

    /// A connection moves to another worker.
    pub(in crate::client) fn part(&mut self, index: ClientKey) -> Standing {
        let Some(known) = self.conns.take(index) else { return Standing::default() };
        let visit = known.open.map(|place| Visit::of(Arc::clone(&self.seed), place));
        Standing { visit, refusals: known.refusals }
    }

    /// A connection comes from another worker, or comes back. If the accounts differ it counts
    /// nowhere, like the connections that were here when the accounts changed.
    pub(in crate::client) fn settle(&mut self, index: ClientKey, standing: Standing) {
        let open = standing.visit.and_then(|visit| visit.hand_over(Some(self)));
        if open.is_some() || standing.refusals > 0 {
            let known = self.conns.get_or_default(index);
            (known.open, known.refusals) = (open, standing.refusals);
        }
    }
}
