//! The machines of the servers' side as they begin, and what goes on at the ends of turns.

use std::sync::Arc;

use weir_http::Fields;

use super::isolation::Isolation;
use super::judge::Health;
use super::pool::Pool;
use super::queue::ByRequest;
use super::server::{Limits, Reach, Server};
use super::server_state::ServerState;
use super::slow_answer::SlowDetector;
use super::{Group, Upstreams};
use crate::action::Action;
use crate::base::keys::{ConnKey, Key};
use crate::base::side_table::SideTable;
use crate::base::table::Run;
use crate::context::Context;
use crate::cross::hints::Hints;
use crate::observe::server_event::Event;
use crate::observe::server_stats::ServerStats;
use crate::placement::balance::{Balance, Measure};
use crate::retry::budget::Budget;

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
            groups: Vec::new(),
            balances: Vec::new(),
            private: SideTable::default(),
            parked: 0,
            fields: Fields::default(),
            order: Vec::new(),
            dirty_links: Vec::new(),
            doomed: Vec::new(),
            cancelled: ByRequest::default(),
            to_acknowledge: Vec::new(),
            synced: Vec::new(),
            synced_before: Vec::new(),
            emptied: Vec::new(),
            emptied_before: Vec::new(),
            isolation,
            health,
            swept_us: cx.now_us,
            shares_loads: false,
        };
        let mut stats = stats.into_iter();
        for index in 0..plan.upstreams.len() {
            all.add_group(index, &mut stats, cx);
        }
        all.begin_probing(cx);
        all.shares_loads = all.must_share_loads(cx);
        all
    }

    /// The servers of an upstream, each of which counts into the next one of `stats`.
    fn add_group(&mut self, index: usize, stats: &mut impl Iterator<Item = Arc<ServerStats>>, cx: &mut Context) {
        let plan = Arc::clone(&cx.plan);
        let upstream = &plan.upstreams[index];
        let first = self.pool.servers.next();
        for position in 0..upstream.servers.len() {
            self.add_server(index, position, stats.next().unwrap_or_default(), cx);
        }
        let several = upstream.servers.len() > 1;
        let balance = several.then(|| Box::new(Balance::new(upstream, cx.worker, self.pool.seed)));
        let budget = Budget::new(upstream.retry_budget_percent, cx.now_us);
        let servers = Run::new(first, upstream.servers.len());
        self.groups.push(Group { servers, suspended: 0, budget });
        self.isolation.add_upstream(first);
        self.balances.push(balance);
    }

    /// A server with the connections that are kept to it.
    fn add_server(&mut self, upstream: usize, index: usize, stats: Arc<ServerStats>, cx: &mut Context) {
        let plan = &cx.plan.upstreams[upstream];
        let server = self.pool.servers.next();
        let (limits, total) = match plan.pool.is_private() {
            true => (Limits::default(), 0),
            false => {
                let server_plan = &plan.servers[index];
                (Limits::of(server_plan, server, cx.worker, cx.workers), server_plan.connections)
            }
        };
        let mut machine = Server::new(plan, upstream as u16, index as u16, stats, limits, total);
        machine.standing = ServerState::new(self.pool.hints.order(server));
        machine.mode.anywhere = cx.is_anywhere(upstream as u16);
        machine.learned.usual = SlowDetector::new(plan.escape);
        machine.learned.lasting = self.pool.hints.lasting[server.index()].clone();
        machine.notable_from = plan.notable_from();
        self.health.add_server(plan);
        if plan.servers.len() > 1 {
            machine.learned.measure = plan.balance.statistic().map(|by| Box::new(Measure::new(by)));
        }
        if plan.servers[index].connections_min == 0 {
            // Nobody finds out before a request needs it.
            machine.contact.reach = Reach::Proven;
        }
        self.pool.servers.push(machine);
        for _ in 0..limits.min {
            let link = self.pool.add_position(server, cx);
            // One that is disabled parks its connections when they come to be made.
            self.pool.arm_link(link, cx.now_us, cx);
        }
        self.pool.publish(server, cx);
    }

    /// What is worth a line in the log, oldest first. Call until None after each turn.
    pub(crate) fn take_event(&mut self) -> Option<Event> {
        self.pool.events.take()
    }

    /// What was put off to the end of the turn.
    pub(crate) fn settle(&mut self, cx: &mut Context) {
        self.sweep(cx);
        self.reopen_synced(cx);
        self.look_at_emptied(cx);
        self.run_quarantine(cx);
        self.publish_loads(cx);
    }

    /// When this side wants to be called again at the latest, timers aside.
    pub(crate) fn next_deadline(&self, cx: &Context) -> Option<u64> {
        if !self.synced.is_empty() || self.awaits_look() {
            return Some(cx.now_us);
        }
        let holds = |link: &&(ConnKey, u32)| self.pool.links.holds(link.0, link.1);
        let syncing = self.synced_before.iter().filter(holds).map(|link| self.pool.links.at(link.0).rest.until_us);
        let others = [self.isolation.due_us()].into_iter().filter(|due_us| *due_us < u64::MAX);
        syncing.chain(others).min()
    }

    /// Whether requests were cancelled, or connections have to end for that.
    #[inline]
    pub(crate) fn has_cancelled(&self) -> bool {
        !self.cancelled.is_empty() || !self.doomed.is_empty()
    }

    /// Finds what was cancelled, and ends the connections that have to. False: there is nothing.
    #[inline]
    pub(crate) fn end_cancelled(&mut self, cx: &mut Context) -> bool {
        let any = self.has_cancelled();
        if !self.cancelled.is_empty() {
            self.find_cancelled(cx);
        } else if any {
            self.end_doomed(cx);
        }
        any
    }

    /// The next send, or what else is to be done for what was received.
    #[inline]
    pub(crate) fn poll_send(&mut self, cx: &mut Context) -> Option<Action> {
        while let Some(index) = self.dirty_links.pop() {
            let action = self.flush_link(index, cx);
            if action.is_some() {
                return action;
            }
        }
        while let Some(received) = self.to_acknowledge.pop() {
            let action = self.pool.acknowledge(received);
            if action.is_some() {
                return action;
            }
        }
        None
    }
}
