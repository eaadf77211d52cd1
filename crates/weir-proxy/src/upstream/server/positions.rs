//! Which connections of a server may take which requests, by position: one bit a connection and
//! kind. Pure.
//!
//! Written by [`super::Server::refresh`] alone, after anything about a connection changed, and by
//! the answers to which core receives its packets. Invariants: `idle`, `resting` and `unseen` have
//! no position in common, nor have `near` and `far`, nor `coming` and `delayed`; each set has at
//! most one bit for each connection of the server.

use crate::base::bitset::Bits;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    /// Connections that may take a request which others may follow.
    pub(super) open: Bits,
    /// Connections with nothing unanswered.
    pub(super) idle: Bits,
    /// The same, but they ran empty so recently that their last request may still bring more: used
    /// when no others are empty.
    pub(super) resting: Bits,
    /// Connections that ran empty in this turn or the last one, and take requests when everything
    /// that had arrived by then was read.
    pub(super) unseen: Bits,
    /// Connections behind which nothing is put for now: a request that nothing may follow is
    /// unanswered, or the response under way is large, late, or read slowly.
    pub(super) held: Bits,
    /// Connections with a request that rides apart, as far as they are not held.
    pub(super) apart: Bits,
    /// Connections whose packets this worker's core receives.
    near: Bits,
    /// Connections whose packets another core receives.
    far: Bits,
    /// Connections that are being made, or are due to be soon.
    pub(super) coming: Bits,
    /// Connections that are due to be made later.
    pub(super) delayed: Bits,
    /// Connections whose clients do not read, and that hold up no request that waits here as far as
    /// is known.
    pub(super) paused: Bits,
    /// Connections with a response under way that may turn out to be late.
    pub(super) pending: Bits,
    /// Connections whose clients have not read for a while, and for which others wait.
    pub(super) stalled: Bits,
    /// Connections with requests that share them.
    pub(super) sharing: Bits,
}

impl Positions {
    /// The number of connections is `count` now.
    pub(super) fn grow(&mut self, count: usize) {
        let taking = [
            &mut self.open,
            &mut self.idle,
            &mut self.resting,
            &mut self.unseen,
            &mut self.sharing,
        ];
        let others = [
            &mut self.held,
            &mut self.apart,
            &mut self.paused,
            &mut self.pending,
            &mut self.stalled,
        ];
        let coming = [&mut self.coming, &mut self.delayed];
        let placed = [&mut self.near, &mut self.far];
        taking
            .into_iter()
            .chain(others)
            .chain(coming)
            .chain(placed)
            .for_each(|bits| bits.grow(count));
    }

    /// Connections that are on their way, or to be made after a while.
    #[inline]
    pub(super) fn due(&self) -> u32 {
        self.coming.count() + self.delayed.count()
    }

    /// Connections with a request that has one for itself, or behind which nothing is put.
    pub(crate) fn taken(&self) -> u32 {
        self.held.count() + self.apart.count()
    }

    /// Whether any connection is on its way, or takes requests in the next turn.
    pub(crate) fn coming_any(&self) -> bool {
        !(self.coming.is_empty() && self.unseen.is_empty())
    }

    /// Whether any connection is on its way.
    pub(crate) fn is_coming(&self) -> bool {
        !self.coming.is_empty()
    }

    /// Connections whose clients have not read for a while, and for which others wait.
    pub(crate) fn stalled(&self) -> u32 {
        self.stalled.count()
    }

    /// Whether one takes a request that others may follow.
    pub(super) fn has_room(&self) -> bool {
        !(self.open.is_empty() && self.resting.is_empty())
    }

    /// Whether nothing is unanswered on some connection.
    pub(crate) fn has_empty(&self) -> bool {
        [&self.idle, &self.resting, &self.unseen].iter().any(|among| !among.is_empty())
    }

    /// Whether nothing is unanswered on this connection, and it has been idle for a while.
    pub(crate) fn is_idle(&self, position: usize) -> bool {
        self.idle.has(position)
    }

    /// Whether nothing is unanswered on this connection, and it takes a request.
    pub(crate) fn is_empty_at(&self, position: usize) -> bool {
        self.idle.has(position) || self.resting.has(position)
    }

    /// Whether a connection ran empty so recently that others are preferred.
    pub(crate) fn is_resting(&self, position: usize) -> bool {
        self.resting.has(position)
    }

    /// Positions of all such.
    pub(crate) fn resting(&self) -> impl Iterator<Item = usize> {
        self.resting.members()
    }

    /// Returns a connection with nothing unanswered, one that has been idle for a while if
    /// possible.
    pub(super) fn empty(&self) -> Option<usize> {
        self.preferred(&self.idle).or_else(|| self.preferred(&self.resting))
    }

    /// Returns a connection for a request that others may follow: being near counts for more than
    /// having been idle, unless connections are used by one at a time (`single`).
    pub(super) fn nearest_open(&self, single: bool) -> Option<usize> {
        let near = |among: &Bits| among.first_in(&self.near);
        let not_far = |among: &Bits| among.first_outside(&self.far);
        let (open, resting) = (&self.open, &self.resting);
        if single {
            return self.preferred(open).or_else(|| self.preferred(resting));
        }
        let either = |of: &dyn Fn(&Bits) -> Option<usize>| of(open).or_else(|| of(resting));
        either(&near).or_else(|| either(&not_far)).or_else(|| either(&|among| among.first()))
    }

    /// Fills near connections first, far ones last.
    fn preferred(&self, among: &Bits) -> Option<usize> {
        among
            .first_in(&self.near)
            .or_else(|| among.first_outside(&self.far))
            .or_else(|| among.first())
    }

    /// Connections whose packets another core receives.
    pub(super) fn far(&self) -> u32 {
        self.far.count()
    }

    /// Whether a connection's packets are received by this worker's core (true) or another; None:
    /// not known yet.
    pub(crate) fn is_near(&self, position: u32) -> Option<bool> {
        let position = position as usize;
        (self.near.has(position) || self.far.has(position)).then(|| self.near.has(position))
    }

    /// Learns which core receives the packets of a connection: this worker's (near) or another;
    /// None: not known yet.
    pub(crate) fn locate(&mut self, position: u32, near: Option<bool>) {
        self.near.set(position as usize, near == Some(true));
        self.far.set(position as usize, near == Some(false));
    }
}
