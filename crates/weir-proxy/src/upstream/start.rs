//! The machines of the servers' side as they begin, and what goes on at the ends of turns.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_http::Fields;

use super::health::Window;
use super::queue::ByRequest;
use super::server::{Limits, Reach, Server};
use super::server_state::ServerState;
use super::slow_answer::SlowDetector;
use super::{Group, Upstreams};
use crate::action::Action;
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::base::side_table::SideTable;
use crate::base::slab::Slab;
use crate::base::table::{Run, Table};
use crate::context::Context;
use crate::cross::hints::Hints;
use crate::observe::server_event::{EVENTS_MAX, Event, What};
use crate::observe::server_stats::ServerStats;
use crate::placement::balance::{Balance, Measure};
use crate::retry::budget::Budget;
use crate::retry::poison::Suspects;

impl Upstreams {
    /// All servers of the plan, each of which counts into the next one of `stats`, with the connections that are kept to them due to be made.
    pub(crate) fn new(hints: Arc<Hints>, stats: Vec<Arc<ServerStats>>, seed: u64, cx: &mut Context) -> Upstreams {
        let plan = Arc::clone(&cx.plan);
        let mut all = Upstreams {
            links: Slab::default(),
            servers: Table::default(),
            groups: Vec::new(),
            hints,
            probers: Table::default(),
            private: SideTable::default(),
            parked: 0,
            fields: Fields::default(),
            order: Vec::new(),
            events: VecDeque::new(),
            dirty_links: Vec::new(),
            doomed: Vec::new(),
            cancelled: ByRequest::default(),
            to_acknowledge: Vec::new(),
            synced: Vec::new(),
            synced_before: Vec::new(),
            emptied: Vec::new(),
            emptied_before: Vec::new(),
            suspects: Suspects::new(plan.upstreams.iter().map(|upstream| upstream.servers.len()).sum()),
            quarantine_due_us: u64::MAX,
            quarantined_away: false,
            swept_us: cx.now_us,
            seed,
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
        let first = self.servers.next();
        for position in 0..upstream.servers.len() {
            self.add_server(index, position, stats.next().unwrap_or_default(), cx);
        }
        let several = upstream.servers.len() > 1;
        let balance = several.then(|| Box::new(Balance::new(upstream, cx.worker, self.seed)));
        let budget = Budget::new(upstream.retry_budget_percent, cx.now_us);
        let quarantine = super::quarantine::Quarantine::default();
        let servers = Run::new(first, upstream.servers.len());
        self.groups.push(Group { servers, suspended: 0, balance, budget, quarantine });
    }

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
        machine.anywhere = cx.is_anywhere(upstream as u16);
        machine.usual = SlowDetector::new(plan.escape);
        machine.lasting = self.hints.lasting[server.index()].clone();
        machine.notable_from = plan.notable_from();
        machine.windows = plan.failover.iter().map(|rule| Window::new(rule.limit, rule.window_us)).collect();
        if plan.servers.len() > 1 {
            machine.measure = plan.balance.statistic().map(|by| Box::new(Measure::new(by)));
        }
        if plan.servers[index].connections_min == 0 {
            // Nobody finds out before a request needs it.
            machine.reach = Reach::Proven;
        }
        self.servers.push(machine);
        for _ in 0..limits.min {
            let link = self.add_position(server, cx);
            // One that is disabled parks its connections when they come to be made.
            self.arm_link(link, cx.now_us, cx);
        }
        self.publish_ready(server, cx);
    }

    /// What is worth a line in the log, oldest first. Call until None after each turn.
    pub(crate) fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(super) fn note_event(&mut self, server: ServerIndex, what: What, cx: &Context) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(Event { server: server.number(), what });
        } else {
            cx.counters.events_lost.add(1);
        }
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
        let holds = |link: &&(ConnKey, u32)| self.links.holds(link.0, link.1);
        let syncing = self.synced_before.iter().filter(holds).map(|link| self.links.at(link.0).rest_until_us);
        let quarantine = (self.quarantine_due_us < u64::MAX).then_some(self.quarantine_due_us);
        syncing.chain(quarantine).min()
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
            let action = self.acknowledge(received);
            if action.is_some() {
                return action;
            }
        }
        None
    }
}
