//! Another worker has lost all its state, and restarts
//! ([`Engine::reborn`](crate::engine::Engine::reborn)): its clients are gone, and requests that
//! this worker's clients had there are sent again.

use super::Upstreams;
use super::left::watch_left;
use crate::base::keys::ConnKey;
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::mail::{Cancellation, Flow};
use crate::cross::retry_copy::RetryCopy;
use crate::request::pending_request::{
    ClientName, ConnId, ExchangeId, PendingRequest, RequestFlags,
};
use crate::upstream::connection::ConnState;

impl Upstreams {
    /// Requests of the clients of `worker` are not wanted here any more.
    pub(crate) fn forget_clients(&mut self, worker: u16, cx: &mut Context) {
        for server in self.pool.servers.iter_mut() {
            let before = server.waiting.len();
            server.waiting.retain(|waiting| waiting.ask.id.worker != worker);
            cx.counters.queue_waiting.sub((before - server.waiting.len()) as u64);
        }
        self.isolation.forget_clients(worker, cx);
        let conns: Vec<ConnKey> = self.pool.conns.keys().collect();
        let mut unfinished: Vec<(ExchangeId, ClientName)> = Vec::new();
        for index in conns {
            let name =
                ConnId { worker: cx.worker, index, generation: self.pool.conns.generation(index) };
            let conn = self.pool.conns.at_mut(index);
            if conn.state() == ConnState::Tunnel {
                if conn.tunnel.peer.is_some_and(|peer| peer.worker == worker) {
                    conn.tunnel.peer = None;
                    self.cancelled.leave_tunnel(index, &mut self.pool, cx);
                }
                continue;
            }
            conn.out.body_paused = conn.out.body_paused.filter(|id| id.worker != worker);
            for entry in conn
                .entries
                .iter_mut()
                .filter(|entry| entry.ask.id.worker == worker && !entry.cancelled)
            {
                if entry.ask.traits.has(RequestFlags::STREAMING) {
                    unfinished.push((entry.ask.id, entry.ask.client));
                } else {
                    entry.cancelled = true;
                }
            }
            let (paused, by) = (conn.reading.paused, conn.reading.paused_by);
            watch_left(index, &mut self.pool, cx);
            if paused && by.worker() == worker {
                self.flow_here(name, by, Flow::Go, cx);
            }
        }
        for (id, client) in unfinished {
            self.cancel_here(
                id,
                Cancellation::Any { hard: true, client, conn: None, begun: false },
                cx,
            );
        }
    }

    /// Requests of clients here that the other worker never read are sent again. Such moves are not
    /// limited.
    pub(crate) fn count_moves(&mut self, moved: &mut [(PendingRequest, Vec<u8>)], cx: &Context) {
        for (ask, _) in moved {
            let _ = self.groups.count_repetition(ask, false, true, false, &self.pool, cx);
        }
    }

    /// Decides on a request of a client here that was there: it is sent again, or it gets no
    /// response.
    pub(crate) fn judge_lost(
        &mut self,
        kept: RetryCopy,
        cx: &mut Context,
    ) -> Result<(PendingRequest, Vec<u8>), Cause> {
        let RetryCopy { mut ask, bytes } = kept;
        self.isolation.leave(&ask, cx);
        if ask.traits.has(RequestFlags::WRECKED) {
            return Err(Cause::Lost);
        }
        ask.traits = ask.traits.without(RequestFlags::TRIAL).with(RequestFlags::WRECKED, true);
        self.groups.count_repetition(&mut ask, true, false, true, &self.pool, cx)?;
        Ok((ask, bytes))
    }

    /// Places them, so that the oldest is first in line.
    pub(crate) fn ask_again(
        &mut self,
        mut again: Vec<(PendingRequest, Vec<u8>)>,
        cx: &mut Context,
    ) {
        again.sort_by_key(|(ask, _)| ask.serial);
        for (ask, bytes) in again.into_iter().rev() {
            self.placing().place_again(ask, bytes, cx);
        }
        // Requests of clients that are gone have made room as well.
        (0..self.groups.len() as u16).for_each(|upstream| self.agenda.serve(upstream));
        self.work_off(cx);
    }
}
