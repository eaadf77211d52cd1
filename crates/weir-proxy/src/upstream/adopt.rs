//! Replaces the plan in force by another, between two turns (`weir reload`, docs/reload.md).
//!
//! The caller has put the successor into the context ([`Plan::merged`](crate::plan::Plan::merged)):
//! every server and upstream that was there keeps its place. New ones get their machines here, and
//! those that are different or gone are informed; no others are touched. A server that is gone is
//! treated like one that is disabled: requests in flight are finished, waiting ones move elsewhere,
//! its connections are closed. When no worker has anything left of it, its slot may be given to
//! another, which is new in every respect. An upstream that is gone continues to serve the requests
//! that were routed to it, repetitions included, and leaves its connections idle until they are
//! closed: no route leads to it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Upstreams;
use super::agenda::Ending;
use super::connection::ConnState;
use super::server::Limits;
use super::start::machine as machine_of;
use super::timers::Then;
use crate::base::keys::{Key, ServerIndex};
use crate::context::Context;
use crate::ending::UpstreamEnd;
use crate::observe::server_stats::ServerStats;
use crate::plan::{Plan, UpstreamPlan};

impl Upstreams {
    /// The plan of the context has replaced `old`. Each new server counts into the entry of `stats`
    /// at its slot.
    pub(crate) fn adopt(&mut self, old: &Plan, stats: &[Arc<ServerStats>], cx: &mut Context) {
        let plan = Arc::clone(&cx.plan);
        let known = self.pool.servers.len();
        add_servers(self, &plan, stats, cx);
        for (upstream, (before, now)) in old.upstreams.iter().zip(&plan.upstreams).enumerate() {
            self.groups.adopt(upstream, before, now, self.pool.seed, cx);
        }
        let (places, mut present) = (plan.places(), Present::new());
        for (slot, (upstream, index)) in places.iter().enumerate().skip(known) {
            let [upstream, index] = [upstream, index].map(|at| usize::from(*at));
            let now = &plan.upstreams[upstream];
            if old
                .upstreams
                .get(upstream)
                .is_some_and(|before| joins(before, now, index, &mut present))
            {
                self.pool.server_recovered(ServerIndex::new(slot as u32), cx);
            }
        }
        for (slot, (upstream, index)) in places.iter().enumerate().take(old.servers()) {
            let (upstream, index) = (usize::from(*upstream), usize::from(*index));
            let Some(before) = old.upstreams.get(upstream) else { continue };
            let now = &plan.upstreams[upstream];
            if old.is_given_away(slot, &plan) {
                replace_server(
                    self,
                    ServerIndex::new(slot as u32),
                    stats.get(slot).cloned().unwrap_or_default(),
                    cx,
                );
            }
            let is_joining = joins(before, now, index, &mut present);
            adopt_server(
                self,
                ServerIndex::new(slot as u32),
                [before, now],
                (index, is_joining),
                cx,
            );
        }
    }
}

/// By upstream: the names of the servers that it had, collected when the first of them is looked
/// for.
type Present<'a> = BTreeMap<*const UpstreamPlan, BTreeSet<&'a str>>;

/// Creates machines for all servers of the plan that have none.
pub(super) fn add_servers(
    all: &mut Upstreams,
    plan: &Plan,
    stats: &[Arc<ServerStats>],
    cx: &mut Context,
) {
    let known = all.pool.servers.len();
    let before = plan.predecessors();
    for (slot, (upstream, index)) in plan.places().into_iter().enumerate().skip(known) {
        let (upstream, index) = (usize::from(upstream), usize::from(index));
        let server = all.pool.servers.next();
        if let Some(before) = before[slot] {
            // An order for the name applies to any server that has it.
            let order = all.pool.hints.order(ServerIndex::new(before as u32));
            all.pool.hints.set_order(server, order);
            all.pool
                .hints
                .set_verdict(server, all.pool.hints.verdict(ServerIndex::new(before as u32)));
        }
        all.pool.add_server(upstream, index, stats.get(slot).cloned().unwrap_or_default(), cx);
        all.health.add_server(&plan.upstreams[upstream]);
        if upstream == all.groups.len() {
            all.groups.add(&plan.upstreams[upstream], server, all.pool.seed, cx);
            all.isolation.add_upstream(server);
        } else {
            all.groups.add_server(upstream, server);
        }
        all.health.begin(server, &all.pool, cx);
    }
}

/// Another server takes the slot of one that is gone. It is not there before the next step.
fn replace_server(
    all: &mut Upstreams,
    server: ServerIndex,
    stats: Arc<ServerStats>,
    cx: &mut Context,
) {
    for position in 0..all.pool.servers[server].conns.len() {
        let conn = all.pool.servers[server].conns[position];
        // No worker has reported any that is up.
        if !matches!(all.pool.conns.at(conn).state(), ConnState::Down { .. }) {
            all.agenda.end(conn, Ending::ours(UpstreamEnd::Disabled), &all.pool);
        }
    }
    all.work_off(cx);
    let machine = &all.pool.servers[server];
    if machine.standing.suspension().is_some() {
        all.groups[usize::from(machine.upstream)].suspended -= 1;
    }
    all.pool.hints.forget(server);
    all.isolation.forget_server(server);
    let place = [machine.upstream, machine.index].map(usize::from);
    for conn in std::mem::take(&mut all.pool.servers[server].conns) {
        all.pool.conns.remove(conn);
    }
    all.pool.servers[server] = machine_of(server, place, stats, &all.pool.hints, cx);
    all.pool.publish(server, cx);
    all.health.renew(server, &all.pool, cx);
}

/// A server was there before: applies the differences of it and its upstream.
fn adopt_server(
    all: &mut Upstreams,
    server: ServerIndex,
    [before, now]: [&UpstreamPlan; 2],
    (index, is_joining): (usize, bool),
    cx: &mut Context,
) {
    let machine = &mut all.pool.servers[server];
    machine.mode.several |= now.servers.len() > 1;
    machine.measure_by(now.balance.statistic().filter(|_| now.servers.len() > 1));
    let gone = now.servers[index].retired;
    // It is no longer probed, whatever its connections are for; a worker restarted meanwhile has
    // this from the start.
    machine.contact.retired = now.is_retired();
    if !machine.mode.private && before.is_retired() != now.is_retired() {
        let usual = Limits::of(&now.servers[index], server, cx.worker, cx.workers);
        machine.limits.min = if now.is_retired() { 0 } else { usual.min };
    }
    let machine = &mut all.pool.servers[server];
    let is_new = before.servers[index].retired && !gone || before.is_retired() && !now.is_retired();
    if machine.standing.retire(gone) && gone {
        all.act(Then::StandDown(server), cx);
    }
    if is_joining {
        all.pool.server_recovered(server, cx);
    }
    if is_new {
        all.pool.connect_at_once(server, cx);
    }
}

/// Whether a server joins an upstream that serves already and had none of its name: its share grows
/// (`slow-start`).
fn joins<'a>(
    before: &'a UpstreamPlan,
    now: &UpstreamPlan,
    index: usize,
    present: &mut Present<'a>,
) -> bool {
    let server = &now.servers[index];
    if server.retired || before.is_retired() {
        return false;
    }
    let stays =
        before.servers.get(index).is_some_and(|one| !one.retired && one.name == server.name);
    let names = || before.present().map(|one| one.name.as_str()).collect();
    !stays
        && !present
            .entry(std::ptr::from_ref(before))
            .or_insert_with(names)
            .contains(server.name.as_str())
}
