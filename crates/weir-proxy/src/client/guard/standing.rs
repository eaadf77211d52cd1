//! What a connection has in the accounts while it goes from one worker to another.

use std::sync::Arc;

use super::Guard;
use super::door::Visit;
use crate::base::keys::ClientKey;

/// See the module. Where it counts as open is given back when this is dropped.
#[derive(Debug, Default)]
pub(in crate::client) struct Standing {
    visit: Option<Visit>,
    refusals: u16,
}

impl Guard {
    /// Whether what comes on a connection has time.
    pub(in crate::client) fn is_deferred(&self, index: ClientKey) -> bool {
        self.conns.get(index).is_some_and(|known| known.deferred)
    }

    /// A connection goes to another worker.
    pub(in crate::client) fn part(&mut self, index: ClientKey) -> Standing {
        let Some(known) = self.conns.take(index) else { return Standing::default() };
        let visit = known.open.map(|place| Visit::of(Arc::clone(&self.seed), place));
        Standing { visit, refusals: known.refusals }
    }

    /// One comes from another worker, or comes back. With other accounts than these it counts nowhere, like those that were here when the
    /// accounts changed.
    pub(in crate::client) fn settle(&mut self, index: ClientKey, standing: Standing) {
        let open = standing.visit.and_then(|visit| visit.hand_over(Some(self)));
        if open.is_some() || standing.refusals > 0 {
            let known = self.conns.get_or_default(index);
            (known.open, known.refusals) = (open, standing.refusals);
        }
    }
}
