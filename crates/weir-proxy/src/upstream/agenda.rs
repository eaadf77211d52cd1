//! The next tasks of the servers' side: connections that have to end, and upstreams at whose
//! servers waiting requests may find room now.
//!
//! Code that finds out that a connection has to end is often in the middle of another change: a
//! request looks for a place, a server is disabled, another connection is lost. So the end is noted
//! here, and carried out by one loop when that code has returned
//! ([`Upstreams::work_off`](super::Upstreams::work_off)). The consequences of an end are noted in
//! turn, and nothing calls itself. Empty whenever the servers' side is not at work. Bounds: each
//! upstream once; connections as often as they were found before they ended.

use std::collections::VecDeque;

use super::groups::Groups;
use super::lost::Loss;
use super::pool::Pool;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::ending::UpstreamEnd;

/// How a connection ends.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ending {
    /// What that says about the requests on it.
    pub loss: Loss,
    /// The reported reason.
    pub why: UpstreamEnd,
}

impl Ending {
    /// By weir's own decision.
    pub(super) fn ours(why: UpstreamEnd) -> Ending {
        Ending { loss: Loss::Ours, why }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// Connections that have to end, and their generations.
    ends: VecDeque<(ConnKey, u32, Ending)>,
    /// Upstreams whose servers are to be checked.
    upstreams: Vec<u16>,
    /// The one that is being checked, and the next of its servers.
    present: Option<(u16, usize)>,
    /// Something was noted since all was done.
    is_due: bool,
}

impl Agenda {
    /// Whether something may have to be done.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Whether some connection has to end.
    #[inline]
    pub(super) fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }

    /// A connection has to end.
    pub(super) fn end(&mut self, index: ConnKey, ending: Ending, pool: &Pool) {
        self.ends.push_back((index, pool.conns.generation(index), ending));
        self.is_due = true;
    }

    /// Requests that wait at the servers of an upstream may find room now.
    pub(super) fn serve(&mut self, upstream: u16) {
        if !self.upstreams.contains(&upstream) {
            self.upstreams.push(upstream);
        }
        self.is_due = true;
    }

    /// The next connection that has to end and is still there.
    pub(super) fn next_end(&mut self, pool: &Pool) -> Option<(ConnKey, Ending)> {
        while let Some((index, generation, ending)) = self.ends.pop_front() {
            if pool.conns.holds(index, generation) {
                return Some((index, ending));
            }
        }
        None
    }

    /// Returns the next server at which a waiting request may find room. None: all was done.
    pub(super) fn next_server(&mut self, groups: &Groups) -> Option<ServerIndex> {
        loop {
            self.is_due = self.present.is_some() || !self.upstreams.is_empty();
            let (upstream, at) =
                self.present.take().or_else(|| Some((self.upstreams.pop()?, 0)))?;
            if let Some(server) = groups[usize::from(upstream)].servers.iter().nth(at) {
                self.present = Some((upstream, at + 1));
                return Some(server);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each note comes out once, unless it is noted again meanwhile, and ended connections
    //! do not. How: step by step.

    use std::sync::Arc;

    use super::*;
    use crate::base::keys::Key;
    use crate::cross::hints::Hints;
    use crate::upstream::connection::UpstreamConn;

    const IDLE: Ending = Ending { loss: Loss::Ours, why: UpstreamEnd::Idle };

    #[test]
    fn a_connection_ends_once() {
        let mut pool = Pool::new(Arc::new(Hints::new(1, 1)), 0);
        let mut add = || pool.conns.insert(UpstreamConn::new(ServerIndex::new(0), 0, 0)).0;
        let (first, second) = (add(), add());
        let mut agenda = Agenda::default();
        for index in [first, second, first] {
            agenda.end(index, IDLE, &pool);
        }
        assert_eq!(agenda.next_end(&pool), Some((first, IDLE)));
        pool.conns.renew(first);
        assert_eq!(agenda.next_end(&pool), Some((second, IDLE)));
        pool.conns.remove(second);
        assert_eq!((agenda.next_end(&pool), agenda.has_ends()), (None, false));
    }
}
