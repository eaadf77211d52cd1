//! The machines of the servers' side as they begin, and what goes on at the ends of turns.

use std::sync::Arc;

use weir_http::Fields;

use super::Upstreams;
use super::agenda::Agenda;
use super::cancel::Cancelled;
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
use crate::base::keys::Key;
use crate::context::Context;
use crate::cross::hints::Hints;
use crate::observe::server_stats::ServerStats;
use crate::placement::balance::Measure;

impl Upstreams {
    /// All servers of the plan, each of which counts into the next one of `stats`, with the connections that are kept to them due to be made.
    pub(crate) fn new(hints: Arc<Hints>, stats: Vec<Arc<ServerStats>>, seed: u64, cx: &mut Context) -> Upstreams {
        let plan = Arc::clone(&cx.plan);
        let servers = plan.upstreams.iter().map(|upstream| upstream.servers.len()).sum();
        let isolation = Isolation::new(servers, Arc::clone(&hints));
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
        let mut stats = stats.into_iter();
        for (index, upstream) in plan.upstreams.iter().enumerate() {
            let first = all.pool.servers.next();
            for position in 0..upstream.servers.len() {
                all.pool.add_server(index, position, stats.next().unwrap_or_default(), cx);
                all.health.add_server(upstream);
            }
            all.groups.add(upstream, first, all.pool.seed, cx);
            all.isolation.add_upstream(first);
        }
        all.health.begin(&all.pool, cx);
        all
    }

    /// What was put off to the end of the turn.
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

    /// When this side wants to be called again at the latest, timers aside.
    pub(crate) fn next_deadline(&self, cx: &Context) -> Option<u64> {
        let isolation_us = Some(self.isolation.due_us()).filter(|due_us| *due_us < u64::MAX);
        self.ran_empty.due_us(&self.pool, cx).into_iter().chain(isolation_us).min()
    }
}

impl Pool {
    /// A server with the connections that are kept to it.
    fn add_server(&mut self, upstream: usize, index: usize, stats: Arc<ServerStats>, cx: &mut Context) {
        let plan = &cx.plan.upstreams[upstream];
        let server = self.servers.next();
        let (limits, total) = match plan.pool.is_private() {
            true => (Limits::default(), 0),
            false => {
                let server_plan = &plan.servers[index];
                (Limits::of(server_plan, server, cx.worker, cx.workers), server_plan.connections)
            }
        };
        let mut machine = Server::new(plan, upstream as u16, index as u16, stats, limits, total);
        machine.standing = ServerState::new(self.hints.order(server));
        machine.mode.anywhere = cx.is_anywhere(upstream as u16);
        machine.learned.usual = SlowDetector::new(plan.escape);
        machine.learned.lasting = self.hints.lasting[server.index()].clone();
        machine.notable_from = plan.notable_from();
        if plan.servers.len() > 1 {
            machine.learned.measure = plan.balance.statistic().map(|by| Box::new(Measure::new(by)));
        }
        if plan.servers[index].connections_min == 0 {
            // Nobody finds out before a request needs it.
            machine.contact.reach = Reach::Proven;
        }
        self.servers.push(machine);
        for _ in 0..limits.min {
            let conn = self.add_position(server, cx);
            // One that is disabled parks its connections when they come to be made.
            self.arm_conn(conn, cx.now_us, cx);
        }
        self.publish(server, cx);
    }
}
