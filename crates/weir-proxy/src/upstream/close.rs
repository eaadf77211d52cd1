//! Ends of upstream connections: closes, resets, cancellations, and what follows from them for the
//! requests on them and for what waits.
//!
//! What an end means for a request is decided in [`super::lost`], what is doubtful in
//! [`super::doubts`]. One loop ends what has to ([`Upstreams::work_off`]); RFC 9112 §9.3.1-2;
//! docs/connections.md#trust-in-a-server, docs/retries.md.

use super::Upstreams;
use super::agenda::Ending;
use super::aside::{flow, set_aside};
use super::crash;
use super::deaf;
use super::doubts::doubt_everywhere;
use super::fresh::note_failure;
use super::lost::{Loss, Lost};
use super::pool::Event;
use super::receive::answer_closed;
use super::rehearsal;
use super::suspend::Worse;
use super::tunnels;
use crate::base::keys::ConnKey;
use crate::context::Context;
use crate::cross::doubt::Doubt;
use crate::cross::mail::Flow;
use crate::cross::router::Replies;
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{ClientName, ConnId};
use crate::upstream::connection::ConnState;

impl Upstreams {
    /// A server closed its sending direction. `is_cut`: only the network says so.
    pub(crate) fn upstream_ended(
        &mut self,
        token: u64,
        is_cut: bool,
        to: &mut Replies<'_>,
        cx: &mut Context,
    ) {
        let Some(index) = self.pool.conn_of(token) else {
            let broken = is_cut.then_some(UpstreamEnd::Cut);
            let worse =
                self.health.probe_ended(token, broken, &mut self.pool, &mut self.groups, cx);
            return self.act(worse, cx);
        };
        self.end_wait(index, to, cx);
        let Some(index) = self.pool.conn_of(token) else { return };
        let conn = self.pool.conns.at(index);
        let ending = if conn.state() == ConnState::Tunnel {
            return tunnels::server_ended(index, &mut self.pool, to, cx);
        } else if conn.ends_by_close() && is_cut {
            // Many servers never send it: it is no sign that the server has died.
            Ending { loss: Loss::Orderly, why: UpstreamEnd::Cut }
        } else if conn.ends_by_close() {
            let Upstreams { pool, groups, isolation, cancelled, .. } = self;
            answer_closed(index, pool, groups, isolation, cancelled, to, cx)
        } else {
            let between = !conn.reply.begun && !conn.has_stash() && conn.history.answers > 0;
            Ending {
                loss: if between { Loss::Closed } else { Loss::Died },
                why: UpstreamEnd::ServerClosed,
            }
        };
        self.end(index, ending, cx);
    }

    /// A server's connection broke.
    pub(crate) fn upstream_failed(
        &mut self,
        token: u64,
        why: UpstreamEnd,
        to: &mut Replies<'_>,
        cx: &mut Context,
    ) {
        let Some(index) = self.pool.conn_of(token) else {
            let worse =
                self.health.probe_ended(token, Some(why), &mut self.pool, &mut self.groups, cx);
            return self.act(worse, cx);
        };
        self.end_wait(index, to, cx);
        let Some(index) = self.pool.conn_of(token) else { return };
        let conn = self.pool.conns.at(index);
        let (server, under_way) = (conn.server, conn.reply.begun || conn.has_stash());
        if under_way && conn.is_ready() && conn.entries.len() > 1 {
            doubt_everywhere(server, Some(Doubt::ResetWithin), &mut self.pool, cx);
        }
        self.end(index, Ending { loss: Loss::Died, why }, cx);
    }

    /// Ends a connection: unanswered requests are sent again elsewhere if they may be, and the
    /// connection is replaced.
    pub(super) fn end(&mut self, index: ConnKey, ending: Ending, cx: &mut Context) {
        self.agenda.end(index, ending, &self.pool);
        self.work_off(cx);
    }

    /// Does what was noted, and what follows from it: connections end first, then what waits is
    /// given out. To be called at the end of whatever notes something.
    #[inline]
    pub(super) fn work_off(&mut self, cx: &mut Context) {
        if self.agenda.is_due() {
            self.work(cx);
        }
    }

    #[cold]
    fn work(&mut self, cx: &mut Context) {
        while self.agenda.is_due() {
            if let Some((index, ending)) = self.agenda.next_end(&self.pool) {
                self.lose(index, ending, cx);
            } else if let Some(server) = self.agenda.next_server(&self.groups) {
                self.placing().dispatch(server, cx);
            }
        }
    }

    /// A connection ends. Notes the consequences for others.
    fn lose(&mut self, index: ConnKey, ending: Ending, cx: &mut Context) {
        let Upstreams { pool, groups, private, isolation, health, cancelled, agenda, .. } = self;
        let conn = pool.conns.at_mut(index);
        if conn.state() == ConnState::Tunnel {
            return tunnels::end(index, pool, cx);
        }
        let server = conn.server;
        if conn.is_fruitless() && ending.loss != Loss::Ours {
            note_failure(server, pool, cx);
        }
        let conn = pool.conns.at_mut(index);
        if conn.is_ready() && conn.has_served() {
            pool.hints.set_seen(server, cx.now_us);
        }
        let is_deaf = deaf::on_end(index, ending.loss, pool, cx);
        let conn = pool.conns.at_mut(index);
        let mut lost = Lost::take(conn, &mut pool.servers[server], ending, cx);
        cx.counters.upstream_closes.count(ending.why);
        pool.servers[server].stats.closes.count(ending.why);
        pool.transition(index, Event::Ended, cx);
        if let Some(unanswered) = lost.sudden_end() {
            crash::on_end(server, unanswered, pool, cx);
        }
        lost.replace(index, pool, groups, private, agenda, cx);
        for _ in 0..lost.end_trials() {
            health.trial_ended(server, false, pool, groups, cx);
        }
        let again = lost.reclaim_all(pool, groups, isolation, cancelled, cx);
        if lost.is_rehearsal() {
            rehearsal::broke_off(server, ending, pool, cx);
        }
        let machine = &mut pool.servers[server];
        if machine.ready == 0 && lost.may_be_replaced() {
            machine.learned.trust.rehearse_again();
            machine.learned.usual.overlook.suspect();
        }
        let worse = if lost.is_death() { health.on_loss(server, pool, groups, cx) } else { None };
        let mut placing = self.placing();
        if let Some(Worse(server)) = worse {
            placing.stand_down(server, cx);
        }
        // The oldest is put to the front last, so that it is first.
        for (ask, bytes) in again.into_iter().rev() {
            placing.place_again(ask, bytes, cx);
        }
        let Upstreams { pool, .. } = self;
        if let Some(piped) = lost.piped_answers()
            && pool.servers[server].learned.early_close.on_end(cx.now_us, piped)
        {
            doubt_everywhere(server, Some(Doubt::CutsShort), pool, cx);
        }
        if is_deaf {
            doubt_everywhere(server, Some(Doubt::FallsSilent), pool, cx);
        }
        if pool.servers[server].ready == 0
            && lost.is_failure()
            && self.groups.view(pool, cx).should_evacuate(server)
        {
            self.placing().evacuate(server, cx);
        }
        self.agenda.serve(self.pool.servers[server].upstream);
    }

    /// Stops or resumes the reading of a connection of this worker, or serves others without it.
    pub(crate) fn flow_here(
        &mut self,
        to: ConnId,
        client: ClientName,
        how: Flow,
        cx: &mut Context,
    ) {
        if how == Flow::Aside {
            if self.pool.conns.holds(to.index, to.generation)
                && self.pool.conns.at(to.index).is_paused_for(client)
            {
                let then = set_aside(to.index, &mut self.pool, cx);
                self.act(then, cx);
            }
        } else if let Some(server) = flow(to, client, how == Flow::Stop, &mut self.pool, cx) {
            self.dispatch(server, cx);
        }
    }
}
