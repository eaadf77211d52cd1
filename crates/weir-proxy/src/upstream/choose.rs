//! Which server a request goes to: what the balancing method needs to know, and in which order servers come into question
//! (stage schedule).
//!
//! Servers that can take it now come first, among them those whose queues have no request behind which nothing may be sent;
//! backups come after all others. The method chooses among equals. docs/semantics.md §3, §5.

use bytes::Bytes;

use super::groups::Groups;
use super::pool::Pool;
use super::view::View;
use crate::base::keys::ServerIndex;
use crate::base::table::Members;
use crate::context::Context;
use crate::placement::balance::{Balance, Finding, Statistic};
use crate::request::pending_request::{NOBODY, PendingRequest, RequestFlags};

impl Groups {
    /// The server for this request, as an index in its upstream; None when none comes into question.
    pub(super) fn choose(&mut self, ask: &PendingRequest, pool: &mut Pool, cx: &Context) -> Option<u16> {
        let upstream = usize::from(ask.upstream);
        if ask.bound != NOBODY {
            let is_usable = self.view(pool, cx).is_bound_usable(ask);
            if is_usable || ask.traits.has(RequestFlags::BOUND) {
                return is_usable.then_some(ask.bound);
            }
        }
        if self.balances[upstream].is_none() {
            let only = self[upstream].servers.first();
            return self.view(pool, cx).is_only_usable(only).then_some(0);
        }
        let (balance, view) = self.choice(upstream, pool, cx)?;
        view.choose_by(balance, ask, key_of(ask)).map(|index| index as u16)
    }

    /// Where a request may go again, as indexes in its upstream, the best first, backups last. True: the order matters more than
    /// which worker has the connections.
    ///
    /// With a key, what it needs is at the next server in the order of that key; and still at its own, if nothing speaks against
    /// that one.
    pub(super) fn order_again(
        &mut self,
        ask: &PendingRequest,
        order: &mut Vec<usize>,
        pool: &mut Pool,
        cx: &Context,
    ) -> bool {
        let (upstream, old) = (usize::from(ask.upstream), usize::from(ask.server));
        order.clear();
        if let Some(key) = key_of(ask)
            && self.balances[upstream].as_ref().is_some_and(|balance| !balance.may_roam())
            && let Some((balance, view)) = self.choice(upstream, pool, cx)
        {
            let servers = &view.groups[upstream].servers;
            let failed = ask.tries > 0 || ask.traits.has(RequestFlags::MOVED);
            balance.order_behind(key, failed.then_some(old), |at| view.is_up(servers.at(at)), order);
            return true;
        }
        let servers = &cx.plan.upstreams[upstream].servers;
        order.extend((1..servers.len()).map(|step| (old + step) % servers.len()));
        order.sort_by_key(|index| servers[*index].backup);
        false
    }

    /// The method of an upstream of several servers, which knows all that it needs to, and what it chooses from.
    fn choice<'a>(
        &'a mut self,
        upstream: usize,
        pool: &'a mut Pool,
        cx: &'a Context,
    ) -> Option<(&'a mut Balance, View<'a>)> {
        if self.balances[upstream].as_ref()?.is_due(cx.now_us) {
            let servers = self[upstream].servers.clone();
            servers.iter().for_each(|server| pool.publish_response(server, cx));
        }
        let (balance, view) = self.view_and_balance(upstream, pool, cx)?;
        view.prepare(balance, upstream);
        Some((balance, view))
    }
}

impl View<'_> {
    /// Whether the only server of an upstream can have a request.
    #[inline]
    fn is_only_usable(&self, server: ServerIndex) -> bool {
        self.servers[server].standing.takes_new()
            || self.is_last_resort(server) && (self.is_reachable(server) || self.may_be_awaited(server))
    }

    /// Those that can take it now, then backups that can; those that will be able at once; suspended ones, where the
    /// configuration wants them tried; those that may come up, here or at the worker that owns them.
    fn choose_by(&self, balance: &mut Balance, ask: &PendingRequest, key: Option<u64>) -> Option<usize> {
        let group = &self.groups[usize::from(ask.upstream)];
        let (members, suspended) = (&group.servers, group.suspended > 0);
        let last_resort = |server| suspended && self.is_last_resort(server);
        let chosen = self.choose_now(balance, false, members, ask, key);
        if chosen.is_some() {
            return chosen;
        }
        if balance.has_backups() {
            let chosen = balance.pick(false, key, |at| {
                self.servers[members.at(at)].standing.takes_new() && self.is_coming(members.at(at))
            });
            let chosen = chosen.or_else(|| self.choose_now(balance, true, members, ask, key));
            if chosen.is_some() {
                return chosen;
            }
        }
        pick_either(balance, key, |at| {
            self.servers[members.at(at)].contact.failures == 0 && self.may_await(members.at(at))
        })
        .or_else(|| pick_either(balance, key, |at| last_resort(members.at(at)) && self.is_reachable(members.at(at))))
        .or_else(|| pick_either(balance, key, |at| self.may_await(members.at(at))))
        .or_else(|| pick_either(balance, key, |at| last_resort(members.at(at)) && self.may_be_awaited(members.at(at))))
        .or_else(|| pick_either(balance, key, |at| self.owner_may_await(members.at(at))))
    }

    /// Among those that can take it now.
    fn choose_now(
        &self,
        balance: &mut Balance,
        backup: bool,
        members: &Members<ServerIndex>,
        ask: &PendingRequest,
        key: Option<u64>,
    ) -> Option<usize> {
        if !balance.may_roam() {
            return balance.pick(backup, key, |at| self.is_up(members.at(at)));
        }
        let idle = |at: usize| self.servers[members.at(at)].positions.has_empty() && self.is_up(members.at(at));
        let alone = !ask.traits.has(RequestFlags::PIPELINABLE);
        let found = if alone { balance.pick(backup, key, idle) } else { None };
        found
            .or_else(|| {
                balance.pick(backup, key, |at| !self.servers[members.at(at)].is_held() && self.is_up(members.at(at)))
            })
            .or_else(|| balance.pick(backup, key, |at| self.is_up(members.at(at))))
    }

    /// Gives the method what it needs to know.
    fn prepare(&self, balance: &mut Balance, upstream: usize) {
        let (servers, cx) = (&self.groups[upstream].servers, self.cx);
        let worker = usize::from(cx.worker);
        if balance.is_due(cx.now_us) {
            let by = cx.plan.upstreams[upstream].balance.statistic();
            balance.reweigh(cx.now_us, |at| self.finding(servers.at(at), by));
        }
        let turn = cx.counters.turns.get();
        if balance.wants_loads(turn) {
            balance.begin(turn, |at| {
                let server = servers.at(at);
                self.servers[server].load() + self.hints.shared().load_of_others(server, worker)
            });
        }
    }

    fn finding(&self, server: ServerIndex, by: Option<Statistic>) -> Finding {
        let response_us = by.and_then(|by| self.hints.shared().response_us(server, by, self.cx.now_us));
        let elsewhere_us = self.hints.shared().recovered_us(server);
        Finding { recovered_us: self.servers[server].recovered_us.max(elsewhere_us), response_us }
    }

    /// The cookie that binds the session of a request to the server that answers it, unless it is bound to that already.
    #[inline]
    pub(super) fn binding(&self, ask: &PendingRequest, server: ServerIndex) -> Option<Bytes> {
        let sticky = self.cx.plan.upstreams[usize::from(ask.upstream)].sticky.as_ref()?;
        let answers = self.servers[server].index;
        if ask.bound == answers { None } else { sticky.cookie(answers).cloned() }
    }
}

fn key_of(ask: &PendingRequest) -> Option<u64> {
    (ask.key != 0).then_some(ask.key)
}

/// Among all that are usable, backups last.
fn pick_either(balance: &mut Balance, key: Option<u64>, usable: impl Fn(usize) -> bool) -> Option<usize> {
    balance.pick(false, key, &usable).or_else(|| balance.pick(true, key, &usable))
}

impl Pool {
    /// Lets all workers know how long a server takes for this one's requests.
    #[inline]
    pub(super) fn publish_response(&mut self, server: ServerIndex, cx: &Context) {
        let now_us = cx.now_us;
        let machine = &mut self.servers[server];
        let Some(measure) = machine.learned.measure.as_deref_mut().filter(|measure| measure.is_due(now_us)) else {
            return;
        };
        let conns = &self.conns;
        let waiting = machine.conns.iter().filter_map(|conn| {
            let entries = &conns.at(*conn).entries;
            let (oldest, newest) = (entries.front()?, entries.back()?);
            let age_us = |sent_us: u64| now_us.saturating_sub(sent_us);
            Some(((age_us(oldest.sent_us) + age_us(newest.sent_us)) / 2, entries.len() as u32))
        });
        let (response_us, samples) = measure.read(now_us, waiting);
        self.hints.shared().set_response(server, usize::from(cx.worker), response_us, samples, now_us);
    }

    /// A server takes requests again after it had been away: its slow start begins, on all workers.
    pub(super) fn server_recovered(&mut self, server: ServerIndex, cx: &Context) {
        self.servers[server].recovered(cx.now_us);
        self.hints.shared().set_recovered(server, cx.now_us);
    }
}
