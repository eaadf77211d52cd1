//! Chooses the server and the connection for a request (stages schedule and forward).

use super::Upstreams;
use super::crowded::watch_first;
use super::load::{await_limit, settle_permits, share_permits};
use super::placing::{Place, Placing};
use super::pool::Pool;
use super::private_pool::Tried;
use super::queue_timeout::watch_wait;
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::asked::{Asked, Private};
use crate::cross::mail::{Fate, Mail};
use crate::observe::access::Placed;
use crate::request::pending_request::{ExchangeId, PendingRequest, RequestFlags};
use crate::upstream::queue::Waiting;

impl Upstreams {
    /// A request of a client of this worker, for which a server is chosen. `isolated`: servers have
    /// died of such requests. `private`: its client has private connections.
    pub(crate) fn ask(
        &mut self,
        ask: &mut PendingRequest,
        isolated: bool,
        private: Option<Private>,
        write: impl FnOnce(&mut Vec<u8>),
        cx: &mut Context,
    ) -> Asked {
        self.private.begin(ask.client, private);
        let place = if isolated { self.placing().place_suspect(ask) } else { self.place(ask, cx) };
        let asked = self.placing().put(place, *ask, write, cx);
        self.work_off(cx);
        asked
    }

    /// The same for one that wants a tunnel.
    pub(crate) fn ask_tunnel(
        &mut self,
        ask: PendingRequest,
        private: Option<Private>,
        cx: &mut Context,
    ) -> Asked {
        self.private.begin(ask.client, private);
        let server = self.groups.server_of(&ask);
        if !self.pool.servers[server].standing.takes_new() {
            return Asked::Refused(Cause::NoHealthyServer);
        }
        self.private.approach(
            server,
            Waiting { ask, bytes: Vec::new() },
            Tried::default(),
            &mut self.pool,
            cx,
        );
        Asked::Here(None)
    }

    /// A request that came by mail: it remains with this worker's connections.
    pub(crate) fn accept_mailed(
        &mut self,
        mut ask: PendingRequest,
        bytes: &[u8],
        cx: &mut Context,
    ) {
        ask.traits = ask.traits.with(RequestFlags::MAILED, true);
        let server = self.groups.server_of(&ask);
        if ask.traits.has(RequestFlags::TRIAL) {
            let has_connection = self.placing().pick(server, &ask, cx).is_some();
            self.work_off(cx);
            // Another time: a request that must not be noticed doesn't wait for a connection to a
            // server in doubt.
            ask.traits =
                if has_connection { ask.traits } else { ask.traits.without(RequestFlags::TRIAL) };
        }
        let view = self.groups.view(&self.pool, cx);
        let machine = &self.pool.servers[server];
        let unwanted = !machine.standing.keeps_waiting() && !ask.traits.has(RequestFlags::TRIAL);
        let gone = machine.ready == 0
            && !machine.is_full()
            && !view.may_come_up_for(server, ask.received_us);
        let returns = gone && !ask.traits.has(RequestFlags::RETURNED);
        if returns || unwanted && view.has_other(server) {
            // Its sender did not know yet.
            ask.traits = ask.traits.with(RequestFlags::RETURNED, gone);
            if ask.traits.has(RequestFlags::QUARANTINED) {
                self.isolation.send_home(ask, Fate::Unserved, bytes, cx);
            } else {
                self.placing().place_again(ask, bytes.to_vec(), cx);
            }
            return self.work_off(cx);
        }
        self.pool.publish_response(server, cx);
        let mut place = self.placing().place_mailed(server, &mut ask, cx);
        if self.agenda.has_ends() && place == Place::Queue(server) {
            self.work_off(cx);
            place = self.placing().place_in_line(server, &ask, cx);
        }
        match self.placing().put(place, ask, |out| out.extend_from_slice(bytes), cx) {
            Asked::Here(Some(conn)) => cx.assigned(&ask, conn),
            Asked::Refused(cause) => cx.answer_fails(ask.id, cause),
            Asked::Here(None) | Asked::Elsewhere { .. } => {}
        }
        // One that was taken for a trial may not be needed.
        settle_permits(server, &self.pool, cx);
        self.work_off(cx);
    }

    /// Returns the parts that place a request.
    #[inline]
    pub(super) fn placing(&mut self) -> Placing<'_> {
        let Upstreams { pool, groups, private, isolation, outbox, agenda, .. } = self;
        Placing { pool, groups, private, isolation, outbox, agenda }
    }

    /// Chooses the server, then what happens there. Each further round follows the end of a
    /// connection.
    #[inline]
    fn place(&mut self, ask: &mut PendingRequest, cx: &mut Context) -> Place {
        loop {
            let place = self.placing().place(ask, cx);
            if !self.agenda.is_due() {
                return place.unwrap_or(Place::Refused(Cause::NoServer));
            }
            self.work_off(cx);
            match place {
                Some(Place::Queue(server)) => return self.placing().place_in_line(server, ask, cx),
                Some(place) => return place,
                None => {}
            }
        }
    }

    /// Gives waiting requests to connections as far as there is room, and has more made for the
    /// others.
    #[inline]
    pub(super) fn dispatch(&mut self, server: ServerIndex, cx: &mut Context) {
        self.placing().dispatch(server, cx);
        self.placing().relieve_others(server, cx);
        self.work_off(cx);
    }
}

/// There may be a permit of a server for which requests wait.
pub(crate) fn on_permit(all: &mut Upstreams, server: ServerIndex, cx: &mut Context) {
    all.placing().give_out(server, cx);
    all.work_off(cx);
}

impl Placing<'_> {
    /// Serialises a request to its place.
    pub(super) fn put(
        &mut self,
        place: Place,
        ask: PendingRequest,
        write: impl FnOnce(&mut Vec<u8>),
        cx: &mut Context,
    ) -> Asked {
        match place {
            Place::Conn(conn) => {
                let log = &mut self.pool.conns.at_mut(conn).log;
                let start = log.end();
                write(log.pending());
                self.push_to_conn(conn, ask, start, cx);
                return Asked::Here(Some(self.pool.conn_id(conn, cx)));
            }
            Place::Queue(server) => {
                self.pool.servers[server]
                    .waiting
                    .push_back(Waiting { ask, bytes: serialised(write) });
                cx.counters.queue_waiting.add(1);
                watch_wait(server, &ask, self.pool, cx);
                self.dispatch(server, cx);
                self.pool.servers[server].note_waiting(&ask, cx.now_us);
            }
            Place::Private(server) => {
                let waiting = Waiting { ask, bytes: serialised(write) };
                self.private.approach(server, waiting, Tried::default(), self.pool, cx);
            }
            Place::Mail(worker) => {
                let post = &mut cx.posts[usize::from(worker)];
                let start = post.bytes.len();
                write(&mut post.bytes);
                let bytes = start..post.bytes.len();
                cx.post(worker, Mail::Ask { ask, bytes: bytes.clone() });
                return Asked::Elsewhere { worker, bytes };
            }
            Place::Quarantine => self.isolation.enter(ask, serialised(write), cx),
            Place::Refused(cause) => return Asked::Refused(cause),
        }
        Asked::Here(None)
    }

    /// Notes a request on a connection with its bytes already in the log from `start` on, and has
    /// them sent.
    #[inline]
    fn push_to_conn(&mut self, index: ConnKey, ask: PendingRequest, start: u64, cx: &mut Context) {
        self.pool.push(index, ask, start, cx);
        let conn = self.pool.conns.at_mut(index);
        self.private.charge(conn);
        self.outbox.mark(index, conn);
        let server = conn.server;
        let (len, pooled) = (conn.entries.len(), conn.owner.is_none());
        let first = conn.history.answers == 0 && pooled;
        let machine = &self.pool.servers[server];
        if machine.fresh.is_some() && !pooled {
            machine.stats.fresh_requests.add(1);
        }
        if len == 2 || machine.watched && pooled {
            self.pool.watch_late(index, cx);
        }
        if first && len == 1 {
            watch_first(index, self.pool, self.groups, cx);
        }
        self.groups[usize::from(ask.upstream)].budget.on_sent(ask.tries == 0);
        self.pool.note_placed(ask.id, index, cx);
    }

    /// Gives waiting requests to connections as far as there is room, and has more made for the
    /// others; or notes which connection is not good any more. The waiting requests are given out
    /// again when that has ended.
    pub(super) fn dispatch(&mut self, server: ServerIndex, cx: &mut Context) {
        share_permits(server, self.pool, cx);
        self.give_out(server, cx);
    }

    /// The same, and this worker uses what it was handed by others.
    fn give_out(&mut self, server: ServerIndex, cx: &mut Context) {
        if self.pool.servers[server].kept.is_some() {
            self.pool.end_keeping(server, cx);
        }
        self.pool.servers[server].unpark();
        // The one that has waited for longer has the first choice.
        while let Some(alone) = self.pool.servers[server].waiting.oldest() {
            if !self.dispatch_one(server, alone, cx) && !self.dispatch_one(server, !alone, cx) {
                break;
            }
        }
        self.pool.grow(server, cx);
        settle_permits(server, self.pool, cx);
        if self.pool.servers[server].is_at_limit() {
            await_limit(server, self.pool, cx);
        }
    }

    /// Gives the next request of a line to a connection, or away. False: it has to wait. Only a
    /// request in quarantine may wait while others of its line continue.
    fn dispatch_one(&mut self, server: ServerIndex, alone: bool, cx: &mut Context) -> bool {
        let mut at = 0;
        // A connection found now may be the one that has to end.
        while !self.agenda.has_ends() {
            let waiting = self.pool.servers[server].waiting.line(alone);
            at = waiting.next(at).unwrap_or(at);
            let Some(next) = waiting.get(at) else { return false };
            let ask = next.ask;
            if self.isolation.wants(&ask, &next.bytes, cx) {
                let Some(waiting) = self.pool.take_waiting(server, alone, at, cx) else {
                    return false;
                };
                self.isolation.enter(ask, waiting.bytes, cx);
                return true;
            }
            if self.pool.servers[server].must_park(&ask) {
                let lines = &mut self.pool.servers[server].waiting;
                let Some(waiting) = lines.line_mut(alone).remove(at) else { return false };
                lines.park(waiting);
                return true;
            }
            let quarantined = ask.traits.has(RequestFlags::QUARANTINED);
            let position = match self.pick_waiting(server, &ask, alone, at, cx) {
                Some(position) => position,
                None if quarantined => {
                    at += 1;
                    continue;
                }
                None => return false,
            };
            let conn = self.pool.servers[server].conns[position];
            let Some(waiting) = self.pool.take_waiting(server, alone, at, cx) else { return false };
            self.send_waiting(conn, waiting, cx);
            return true;
        }
        false
    }

    /// Puts a request that has waited on its connection.
    pub(super) fn send_waiting(&mut self, index: ConnKey, waiting: Waiting, cx: &mut Context) {
        let Waiting { ask, bytes } = waiting;
        let log = &mut self.pool.conns.at_mut(index).log;
        let start = log.end();
        log.pending().extend_from_slice(&bytes);
        self.push_to_conn(index, ask, start, cx);
        cx.assigned(&ask, self.pool.conn_id(index, cx));
    }
}

/// Returns the bytes of a single request.
fn serialised(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

impl Pool {
    /// Takes a request from its place in a line.
    #[inline]
    pub(super) fn take_waiting(
        &mut self,
        server: ServerIndex,
        alone: bool,
        at: usize,
        cx: &Context,
    ) -> Option<Waiting> {
        let waiting = self.servers[server].waiting.line_mut(alone).remove(at)?;
        cx.counters.queue_waiting.sub(1);
        Some(waiting)
    }

    /// A request was put on a connection of this worker.
    #[inline]
    pub(super) fn note_placed(&self, id: ExchangeId, index: ConnKey, cx: &mut Context) {
        if !cx.logs {
            return;
        }
        let conn = self.conns.at(index);
        let placed = Placed {
            conn: self.conn_id(index, cx),
            server: conn.server.number(),
            sent_us: cx.now_us,
            connected_us: conn.contact.connected_us,
            address: conn.address,
            // A tunnel has no request on its connection.
            before: (conn.history.answers + conn.entries.len() as u64).saturating_sub(1),
        };
        cx.post(id.worker, Mail::Placed { id, placed });
    }
}
