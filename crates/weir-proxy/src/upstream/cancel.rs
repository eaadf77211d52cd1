//! Requests whose response is not wanted any more: clients that leave, time-outs, uploads that
//! fail; and connections that end for that.
//!
//! Called by mail, from a client of this worker or of another one. Thousands of requests may be
//! cancelled in one turn, so no search is made for each: a waiting request is found by its name
//! ([`crate::upstream::queue`]), and one on a connection that its client's side does not know is
//! looked for at the end of the turn, all of them in one pass over the connections
//! ([`Cancelled::has`] knows it before). [`Cancelled`] owns both lists; the owner of all
//! connections ends them ([`Upstreams::end_cancelled`]), because this is called from the middle of
//! other changes. Bounds: a name for each request that is cancelled in a turn, two for each
//! connection. [`super::left`] handles connections whose next response is not wanted.

use super::Upstreams;
use super::agenda::{Agenda, Ending};
use super::crowded::leaves_its_place;
use super::isolation::Isolation;
use super::left::{forget_given_up, retract_unwanted, watch_left};
use super::pool::Pool;
use super::private_pool::PrivatePools;
use super::ran_empty::RanEmpty;
use crate::base::keys::ConnKey;
use crate::context::Context;
use crate::cross::mail::{Cancellation, Mail};
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{ClientName, ConnId, ExchangeId, PendingRequest};
use crate::upstream::connection::{ConnState, UpstreamConn};
use crate::upstream::entry::Entry;
use crate::upstream::queue::{ByRequest, Queue};

/// Time between two searches for connections that wait for an unwanted response.
const SWEEP_US: u64 = 5_000_000;

/// How a request is cancelled. Of two ways the greater one holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum How {
    /// Its client's side counts it, and is notified when no server has it any more.
    Counted,
    /// It is not wanted any more.
    Soft,
    /// The same, and a connection that carries it has to end.
    Hard,
}

impl How {
    fn of(what: Cancellation) -> How {
        match what {
            Cancellation::Counted { .. } => How::Counted,
            Cancellation::Any { hard: false, .. } => How::Soft,
            Cancellation::Any { hard: true, .. } => How::Hard,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Cancelled {
    /// Requests that were cancelled in this turn and that some connection may carry.
    requests: ByRequest<How>,
    /// Connections that have to end, and their generations.
    doomed: Vec<(ConnKey, u32)>,
    /// When the last search was made for connections that wait for an unwanted response.
    swept_us: u64,
}

impl Cancelled {
    /// Returns an empty one.
    pub(super) fn new(now_us: u64) -> Cancelled {
        Cancelled { swept_us: now_us, ..Cancelled::default() }
    }

    /// Every [`SWEEP_US`]: ends connections whose server takes as long as forward-timeout for a
    /// response that is not wanted any more: the time-out of that request went with its client.
    /// Needs no timer, because only a further request would suffer, and that brings a turn. Whether
    /// it was time.
    #[inline]
    pub(super) fn sweep(&mut self, pool: &Pool, cx: &Context) -> bool {
        let is_due = cx.now_us >= self.swept_us + SWEEP_US;
        if is_due {
            self.swept_us = cx.now_us;
            self.doom_hanging(pool, cx);
        }
        is_due
    }

    #[cold]
    fn doom_hanging(&mut self, pool: &Pool, cx: &Context) {
        let hangs = |index: &ConnKey| {
            let conn = pool.conns.at(*index);
            let upstream = usize::from(pool.servers[conn.server].upstream);
            let patience_us = cx.plan.upstreams[upstream].forward_timeout_us;
            conn.entries.front().is_some_and(|front| {
                front.cancelled
                    && !conn.wait.rehearses
                    && cx.now_us
                        >= front.sent_us.max(conn.history.answered_us).saturating_add(patience_us)
            })
        };
        for index in pool.conns.keys().filter(hangs) {
            self.doom(index, pool);
        }
    }

    /// Whether nothing was cancelled, and no connection has to end.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.doomed.is_empty()
    }

    /// Whether a request was cancelled in this turn and not looked for yet.
    #[inline]
    pub(super) fn has(&self, ask: &PendingRequest) -> bool {
        self.requests.contains_key(&ask.id)
    }

    /// Whether the response to a request on a connection is not wanted any more, though requests
    /// cancelled in this turn were not looked for yet.
    #[inline]
    pub(super) fn is_unwanted(&self, entry: &Entry) -> bool {
        !entry.is_wanted() || self.has(&entry.ask)
    }

    /// Whether the client's side of a request, which has lost its connection, waits to hear that no
    /// server has it any more.
    pub(super) fn is_withdrawn(&self, entry: &Entry) -> bool {
        let is_counted = |how: &How| *how == How::Counted;
        !entry.cancelled && self.requests.get(&entry.ask.id).map_or(entry.given_up, is_counted)
    }

    /// Looks for a request when the turn ends.
    fn look_for(&mut self, id: ExchangeId, how: How) {
        self.requests.entry(id).and_modify(|known| *known = how.max(*known)).or_insert(how);
    }

    /// A connection has to end, but not now.
    pub(super) fn doom(&mut self, index: ConnKey, pool: &Pool) {
        self.doomed.push((index, pool.conns.generation(index)));
    }

    /// The next connection that has to end and is still there. First all that was cancelled must
    /// have been found.
    #[inline]
    pub(super) fn next_doomed(&mut self, pool: &Pool) -> Option<ConnKey> {
        while let Some((index, generation)) = self.doomed.pop() {
            if pool.conns.holds(index, generation) {
                return Some(index);
            }
        }
        None
    }

    /// Finds the requests cancelled in this turn among those that wait and those on connections.
    /// False: there were none.
    #[inline]
    fn find_all(
        &mut self,
        pool: &mut Pool,
        isolation: &mut Isolation,
        after: &mut After<'_>,
        cx: &mut Context,
    ) -> bool {
        let any = !self.requests.is_empty();
        if any {
            self.find(pool, isolation, after, cx);
        }
        any
    }

    fn find(
        &mut self,
        pool: &mut Pool,
        isolation: &mut Isolation,
        after: &mut After<'_>,
        cx: &mut Context,
    ) {
        let mut all = std::mem::take(&mut self.requests);
        // Its connection may have ended meanwhile.
        all.retain(|id, how| !take_back(*id, *how, pool, isolation, cx));
        if all.is_empty() {
            return;
        }
        cx.counters.searches.add(1);
        let mut hard = Vec::new();
        for index in pool.conns.keys().collect::<Vec<_>>() {
            let conn = pool.conns.at_mut(index);
            let of_tunnel =
                conn.tunnel.peer.into_iter().filter_map(|id| Some((id, *all.get(&id)?)));
            hard.extend(of_tunnel.map(|(id, how)| (index, id, how)));
            let mut found = false;
            for entry in conn.entries.iter_mut().filter(|entry| !entry.cancelled) {
                found |= all.contains_key(&entry.ask.id);
                match all.get(&entry.ask.id) {
                    Some(How::Hard) => hard.push((index, entry.ask.id, How::Hard)),
                    Some(How::Soft) => entry.cancelled = true,
                    Some(How::Counted) => entry.given_up = true,
                    None => {}
                }
            }
            if found {
                leave(index, pool, after, cx);
            }
        }
        for (index, id, how) in hard {
            self.cancel_on(index, id, how, pool, after, cx);
        }
    }

    /// The same for a request on this connection.
    fn cancel_on(
        &mut self,
        index: ConnKey,
        id: ExchangeId,
        how: How,
        pool: &mut Pool,
        after: &mut After<'_>,
        cx: &mut Context,
    ) {
        let conn = pool.conns.at_mut(index);
        if conn.state() == ConnState::Tunnel {
            self.leave_tunnel(index, pool, cx);
            return;
        }
        if let Some(entry) =
            conn.entries.iter_mut().find(|entry| entry.ask.id == id && !entry.cancelled)
        {
            (entry.cancelled, entry.given_up) = (how != How::Counted, how == How::Counted);
        }
        // Requests in front are answered first: their clients have nothing to do with this request.
        let mut in_front = conn.entries.iter().take_while(|entry| entry.ask.id != id);
        if how == How::Hard && !in_front.any(Entry::is_wanted) {
            self.doom(index, pool);
        } else {
            leave(index, pool, after, cx);
        }
    }

    /// The client of a tunnel is gone. When both sides had ended in order, its last data are still
    /// sent.
    pub(super) fn leave_tunnel(&mut self, index: ConnKey, pool: &mut Pool, cx: &mut Context) {
        let patience_us = cx.plan.client.send_timeout_us;
        let tunnel = &mut pool.conns.at_mut(index).tunnel;
        if tunnel.ended && tunnel.wants_finish() {
            tunnel.peer = None;
            tunnel.give_up_us = cx.now_us + patience_us;
            pool.arm_conn(index, cx.now_us + patience_us, cx);
        } else {
            self.doom(index, pool);
        }
    }
}

impl Upstreams {
    /// The response of this exchange is not wanted any more.
    pub(crate) fn cancel_here(&mut self, id: ExchangeId, what: Cancellation, cx: &mut Context) {
        let Upstreams {
            pool,
            groups,
            health,
            private,
            isolation,
            cancelled,
            agenda,
            ran_empty,
            ..
        } = self;
        let how = How::of(what);
        // `is_over`: the answer has ended meanwhile if no connection carries it, or its client's
        // side hears which one does.
        let (client, conn, is_over) = match what {
            Cancellation::Counted { client, conn, told } => (client, conn, told),
            Cancellation::Any { client, conn, begun, .. } => (client, conn, begun),
        };
        if private.attempt_for(id, client, cx).is_some() {
            let attempt = private.take_attempt(client.slot(), None, pool, cx);
            attempt
                .iter()
                .for_each(|attempt| health.end_trial(&attempt.waiting.ask, pool, groups, cx));
            tell_withdrawn(id, how, cx);
        } else if !take_back(id, how, pool, isolation, cx) {
            match known_carrier(id, client, conn, pool, private, cx) {
                Some(index) => {
                    cancelled.cancel_on(index, id, how, pool, &mut After { agenda, ran_empty }, cx)
                }
                None if is_over => {}
                None => cancelled.look_for(id, how),
            }
            self.work_off(cx);
        }
    }

    /// Finds the cancelled requests, and ends the connections that have to. False: nothing was
    /// cancelled.
    #[inline]
    pub(crate) fn end_cancelled(&mut self, cx: &mut Context) -> bool {
        let any = !self.cancelled.is_empty();
        let Upstreams { pool, isolation, cancelled, agenda, ran_empty, .. } = self;
        if any && cancelled.find_all(pool, isolation, &mut After { agenda, ran_empty }, cx) {
            self.work_off(cx);
        } else if any {
            while let Some(index) = self.cancelled.next_doomed(&self.pool) {
                self.end(index, Ending::ours(UpstreamEnd::Cancelled), cx);
            }
        }
        any
    }
}

/// The connection that carries a request, where that is known: to its client's side, or because it
/// is the client's own.
fn known_carrier(
    id: ExchangeId,
    client: ClientName,
    conn: Option<ConnId>,
    pool: &Pool,
    private: &PrivatePools,
    cx: &Context,
) -> Option<ConnKey> {
    let named =
        conn.filter(|conn| pool.conns.holds(conn.index, conn.generation)).map(|conn| conn.index);
    let own = if id.worker == cx.worker { private.conns_of(client.slot()) } else { &[] };
    let mut all = named.into_iter().chain(own.iter().map(|conn| conn.index));
    all.find(|index| carries(pool.conns.at(*index), id))
}

/// Some request of a connection is not wanted any more: it is taken back if nothing of it was sent,
/// and the connection is looked at again.
fn leave(index: ConnKey, pool: &mut Pool, after: &mut After<'_>, cx: &mut Context) {
    if retract_unwanted(index, pool, cx) {
        let conn = pool.conns.at(index);
        after.agenda.serve(pool.servers[conn.server].upstream);
        if conn.entries.is_empty() && conn.rest.syncing {
            after.ran_empty(index, pool, cx);
        }
    }
    if pool.conns.at(index).wait.late {
        forget_given_up(index, pool, cx);
    }
    watch_left(index, pool, cx);
}

/// What follows for connections of which requests were taken back.
struct After<'a> {
    agenda: &'a mut Agenda,
    ran_empty: &'a mut RanEmpty,
}

impl After<'_> {
    /// A connection that was to run empty is empty again: no response comes that would show it.
    fn ran_empty(&mut self, index: ConnKey, pool: &mut Pool, cx: &Context) {
        let ending = leaves_its_place(index, pool, cx)
            .or_else(|| self.ran_empty.note_synced(index, pool, cx));
        if let Some(ending) = ending {
            self.agenda.end(index, ending, pool);
        }
    }
}

/// Removes a request that waits for a connection, and notifies its client's side if that counts it.
/// False: none has this name.
fn take_back(
    id: ExchangeId,
    how: How,
    pool: &mut Pool,
    isolation: &mut Isolation,
    cx: &mut Context,
) -> bool {
    let is_taken = cancel_waiting(id, pool, isolation, cx);
    if is_taken {
        tell_withdrawn(id, how, cx);
    }
    is_taken
}

/// No server has a request that its client's side may count.
fn tell_withdrawn(id: ExchangeId, how: How, cx: &mut Context) {
    if how == How::Counted {
        cx.post(id.worker, Mail::Withdrawn { id });
    }
}

/// Removes a request that waits for a connection. False: none has this name.
fn cancel_waiting(
    id: ExchangeId,
    pool: &mut Pool,
    isolation: &mut Isolation,
    cx: &Context,
) -> bool {
    let found = queues(pool, isolation).find_map(|queue| queue.cancel(id)).is_some();
    cx.counters.queue_waiting.sub(found.into());
    found
}

/// All lines in which requests wait.
pub(super) fn queues<'a>(
    pool: &'a mut Pool,
    isolation: &'a mut Isolation,
) -> impl Iterator<Item = &'a mut Queue> {
    pool.servers.iter_mut().flat_map(|server| server.waiting.queues()).chain(isolation.queues())
}

/// Whether a request is on this connection, or its tunnel is. One that was set aside may have it
/// too, cancelled when it moved.
fn carries(conn: &UpstreamConn, id: ExchangeId) -> bool {
    conn.tunnel.peer == Some(id)
        || conn.entries.iter().any(|entry| entry.ask.id == id && !entry.cancelled)
}
