//! The initial machines of the servers' side, and the work at the ends of turns.

use std::sync::Arc;

use weir_http::Fields;

use super::Upstreams;
use super::adopt::add_servers;
use super::agenda::Agenda;
use super::cancel::Cancelled;
use super::fresh::Fresh;
use super::groups::Groups;
use super::isolation::Isolation;
use super::judge::Health;
use super::pool::Pool;
use super::private_pool::PrivatePools;
use super::ran_empty::RanEmpty;
use super::send::Outbox;
use super::server::{Limits, Reach, Server};
use super::server_state::ServerState;
use super::slow_answer::SlowDetector;
use crate::base::keys::{Key, ServerIndex};
use crate::context::Context;
use crate::cross::hints::Hints;
use crate::cross::permits::MyPermits;
use crate::observe::server_stats::ServerStats;
use crate::plan;

impl Upstreams {
    /// Returns all servers of the plan, with the connections that are kept to them due to be made.
    /// Each counts into the entry of `stats` at its slot.
    pub(crate) fn new(
        hints: Arc<Hints>,
        stats: &[Arc<ServerStats>],
        seed: u64,
        cx: &mut Context,
    ) -> Upstreams {
        let plan = Arc::clone(&cx.plan);
        let isolation = Isolation::new(hints.servers(), Arc::clone(&hints));
        let health = Health::new(Arc::clone(&hints), seed);
        let pool = Pool::new(hints, seed);
        let mut all = Upstreams {
            pool,
            groups: Groups::default(),
            private: PrivatePools::default(),
            fields: Fields::default(),
            outbox: Outbox::default(),
            cancelled: Cancelled::new(cx.now_us),
            agenda: Agenda::default(),
            ran_empty: RanEmpty::default(),
            isolation,
            health,
        };
        add_servers(&mut all, &plan, stats, cx);
        all
    }

    /// Does the work that was put off to the end of the turn.
    pub(crate) fn settle(&mut self, cx: &mut Context) {
        if self.cancelled.sweep(&self.pool, cx) {
            self.isolation.sweep(cx);
            self.groups.refill(cx.now_us);
        }
        for ran in self.ran_empty.begin_synced() {
            if let Some(server) = self.ran_empty.reopen(ran, &mut self.pool, cx) {
                self.dispatch(server, cx);
            }
        }
        for ran in self.ran_empty.begin_emptied() {
            if let Some(server) = self.ran_empty.look(ran, &mut self.pool, cx) {
                self.dispatch(server, cx);
            }
        }
        if self.isolation.begin(cx) {
            self.placing().run_quarantine(cx);
            self.work_off(cx);
        }
        self.groups.publish_loads(&self.pool, cx);
    }

    /// Returns when this side wants to be called again at the latest, timers aside.
    pub(crate) fn next_deadline(&self, cx: &Context) -> Option<u64> {
        let isolation_us = Some(self.isolation.due_us()).filter(|due_us| *due_us < u64::MAX);
        self.ran_empty.due_us(&self.pool, cx).into_iter().chain(isolation_us).min()
    }
}

impl Pool {
    /// Adds a server with the connections that are kept to it.
    pub(super) fn add_server(
        &mut self,
        upstream: usize,
        index: usize,
        stats: Arc<ServerStats>,
        cx: &mut Context,
    ) {
        let server = self.servers.next();
        let machine = machine(server, [upstream, index], stats, &self.hints, cx);
        let kept = if machine.standing.keeps_connections() { machine.limits.min } else { 0 };
        self.servers.push(machine);
        for _ in 0..kept {
            let conn = self.add_position(server, cx);
            self.arm_conn(conn, cx.now_us, cx);
        }
        self.publish(server, cx);
    }
}

/// Returns a server as the plan describes it, without connections.
pub(super) fn machine(
    server: ServerIndex,
    [upstream, index]: [usize; 2],
    stats: Arc<ServerStats>,
    hints: &Hints,
    cx: &Context,
) -> Server {
    let plan = &cx.plan.upstreams[upstream];
    let (limits, total) = match plan.pool.is_private() {
        true => (Limits::default(), 0),
        false => {
            let server_plan = &plan.servers[index];
            (Limits::of(server_plan, server, cx.worker, cx.workers), server_plan.connections)
        }
    };
    let mut machine = Server::new(plan, upstream as u16, index as u16, stats, limits, total);
    machine.standing = ServerState::new(hints.order(server));
    hints.verdict(server).map(|verdict| machine.learned.trust.restore(verdict));
    machine.mode.anywhere = cx.is_anywhere(upstream as u16);
    machine.fresh = (plan.pool == plan::Pool::Fresh).then(|| Box::new(Fresh::new(cx.now_us)));
    machine.learned.usual = SlowDetector::new(plan.escapes());
    machine.learned.lasting = hints.lasting[server.index()].clone();
    machine.learned.load.limit = hints.limits[server.index()].clone();
    machine.learned.load.places = hints.places(server).clone();
    let concurrency = plan.servers[index].concurrency.filter(|_| !plan.pool.is_private());
    machine.learned.load.permits = concurrency
        .map(|most| MyPermits::new(hints.permits(server).clone(), (cx.worker, cx.workers), most));
    machine.notable_from = plan.notable_from();
    machine.measure_by(plan.balance.statistic().filter(|_| plan.servers.len() > 1));
    machine.standing.retire(plan.servers[index].retired);
    if plan.is_retired() {
        machine.limits.min = 0;
        machine.contact.retired = true;
    }
    if plan.servers[index].connections_min == 0 {
        // It is not tested before a request needs it.
        machine.contact.reach = Reach::Proven;
    }
    machine
}
