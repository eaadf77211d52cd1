//! Connections that ran empty: until everything that had arrived by then was read, and for a while
//! where more may come, they take nothing, or other connections are preferred.
//!
//! An answer too many shows now, while no request can be given it (docs/pipelining.md).
//! [`RanEmpty`] owns the lists of them, by the turn in which they ran empty; it asks the pool for
//! their state, opens them again, and returns the server for which something can be given out.
//! Called when responses were read, and at the end of the turn. Bound: each connection is listed
//! once a turn, and those of turns before as long as they remain empty.

use super::agenda::Ending;
use super::pool::Pool;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::ending::UpstreamEnd;

/// A connection that ran empty: its generation, and the number of its responses by then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Emptied {
    index: ConnKey,
    generation: u32,
    answers: u64,
}

impl Emptied {
    /// This connection, now.
    #[inline]
    fn of(index: ConnKey, pool: &Pool) -> Emptied {
        Emptied {
            index,
            generation: pool.conns.generation(index),
            answers: pool.conns.at(index).history.answers,
        }
    }

    #[inline]
    fn is_there(&self, pool: &Pool) -> bool {
        pool.conns.holds(self.index, self.generation)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RanEmpty {
    /// At a sync point, in this turn.
    synced: Vec<Emptied>,
    /// In turns before.
    synced_before: Vec<Emptied>,
    /// Elsewhere, in this turn.
    emptied: Vec<Emptied>,
    /// In turns before, as long as others are preferred to them.
    emptied_before: Vec<Emptied>,
}

impl RanEmpty {
    /// A connection ran empty at a sync point. Returns how it ends, if it has to.
    pub(super) fn note_synced(
        &mut self,
        index: ConnKey,
        pool: &mut Pool,
        cx: &Context,
    ) -> Option<Ending> {
        if pool.pair(index).is_worn(cx) {
            return Some(Ending::ours(UpstreamEnd::Glitches));
        }
        self.synced.push(Emptied::of(index, pool));
        None
    }

    /// A connection ran empty otherwise, and is to be checked.
    #[inline]
    pub(super) fn note(&mut self, index: ConnKey, pool: &Pool) {
        self.emptied.push(Emptied::of(index, pool));
    }

    /// The turn ends: those at a sync point of the turns before, each of which is for
    /// [`RanEmpty::reopen`].
    #[inline]
    pub(super) fn begin_synced(&mut self) -> Vec<Emptied> {
        std::mem::replace(&mut self.synced_before, std::mem::take(&mut self.synced))
    }

    /// The same for the others, for [`RanEmpty::look`].
    #[inline]
    pub(super) fn begin_emptied(&mut self) -> Vec<Emptied> {
        std::mem::replace(&mut self.emptied_before, std::mem::take(&mut self.emptied))
    }

    /// One that ran empty at a sync point takes requests again, once everything that had arrived by
    /// then was read. Returns for which server there is room now.
    #[inline]
    pub(super) fn reopen(
        &mut self,
        ran: Emptied,
        pool: &mut Pool,
        cx: &Context,
    ) -> Option<ServerIndex> {
        if !ran.is_there(pool) {
            return None;
        }
        let conn = pool.conns.at_mut(ran.index);
        if cx.now_us < conn.rest.until_us {
            self.synced_before.push(ran);
            return None;
        }
        conn.rest.reopen();
        let server = conn.server;
        pool.servers[server].refresh(conn, cx.now_us);
        Some(server)
    }

    /// One that ran empty before this turn: everything that had arrived by then was read, so that
    /// it takes requests again; it remains listed while others are preferred to it. Returns for
    /// which server there is room now.
    #[inline]
    pub(super) fn look(
        &mut self,
        ran: Emptied,
        pool: &mut Pool,
        cx: &Context,
    ) -> Option<ServerIndex> {
        if !ran.is_there(pool) {
            return None;
        }
        let conn = pool.conns.at_mut(ran.index);
        if conn.history.answers != ran.answers || !conn.entries.is_empty() {
            // In use again, and listed again if it has run empty since.
            return None;
        }
        let news = std::mem::take(&mut conn.rest.unseen);
        if conn.rest.is_wary(cx.now_us) {
            self.emptied_before.push(ran);
        } else {
            conn.rest.wary = false;
        }
        if !news && conn.rest.wary {
            return None;
        }
        let server = conn.server;
        pool.servers[server].refresh(conn, cx.now_us);
        Some(server)
    }

    /// Returns when it has to be checked at the latest, as far as a request may wait for that.
    #[inline]
    pub(super) fn due_us(&self, pool: &Pool, cx: &Context) -> Option<u64> {
        if !self.synced.is_empty() || self.is_awaited(pool) {
            return Some(cx.now_us);
        }
        let there = self.synced_before.iter().filter(|ran| ran.is_there(pool));
        there.map(|ran| pool.conns.at(ran.index).rest.until_us).min()
    }

    /// Whether a request waits for a connection of which it is only not known yet whether
    /// everything was read.
    fn is_awaited(&self, pool: &Pool) -> bool {
        let awaited = |ran: &Emptied| {
            ran.is_there(pool) && {
                let conn = pool.conns.at(ran.index);
                conn.rest.unseen && !pool.servers[conn.server].waiting.is_calm()
            }
        };
        self.emptied_before.iter().any(awaited)
    }
}
