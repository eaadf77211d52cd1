//! Which server a request goes to: what the balancing method needs to know, and in which order servers come into question
//! (stage schedule).
//!
//! Servers that can take it now come first, among them those whose queues have no request behind which nothing may be sent;
//! backups come after all others. The method chooses among equals. docs/semantics.md §3, §5.

use bytes::Bytes;

use super::Upstreams;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::cause::Cause;
use crate::context::Context;
use crate::placement::balance::{Balance, Finding, Statistic};
use crate::request::pending_request::{NOBODY, PendingRequest, RequestFlags};
use crate::upstream::connection::LinkState;

/// A connect under way for less than this is waited for rather than using a backup.
const COMING_US: u64 = 50_000;

impl Upstreams {
    /// The server for this request, as an index in its upstream; None when none comes into question.
    pub(super) fn choose(&mut self, ask: &PendingRequest, cx: &Context) -> Option<u16> {
        let upstream = usize::from(ask.upstream);
        if ask.bound != NOBODY {
            let is_usable = self.is_bound_usable(ask, cx);
            if is_usable || ask.traits.has(RequestFlags::BOUND) {
                return is_usable.then_some(ask.bound);
            }
        }
        // Taken out for the time of the choice, because the choice looks at everything else.
        let Some(mut balance) = self.groups[upstream].balance.take() else {
            let only = self.groups[upstream].servers.first();
            let usable = self.servers[only].standing.takes_new()
                || self.is_last_resort(only, cx) && (self.is_reachable(only, cx) || self.may_be_awaited(only, cx));
            return usable.then_some(0);
        };
        self.prepare(&mut balance, upstream, cx);
        let chosen = self.choose_by(&mut balance, ask, key_of(ask), cx);
        self.groups[upstream].balance = Some(balance);
        chosen.map(|index| index as u16)
    }

    /// Those that can take it now, then backups that can; those that will be able at once; suspended ones, where the
    /// configuration wants them tried; those that may come up, here or at the worker that owns them.
    fn choose_by(&self, balance: &mut Balance, ask: &PendingRequest, key: Option<u64>, cx: &Context) -> Option<usize> {
        let group = &self.groups[usize::from(ask.upstream)];
        let (first, suspended) = (group.servers.first(), group.suspended > 0);
        let last_resort = |server| suspended && self.is_last_resort(server, cx);
        let chosen = self.choose_now(balance, false, first, ask, key, cx);
        if chosen.is_some() {
            return chosen;
        }
        if balance.has_backups() {
            let chosen = balance
                .pick(false, key, |at| self.servers[first + at].standing.takes_new() && self.is_coming(first + at, cx));
            let chosen = chosen.or_else(|| self.choose_now(balance, true, first, ask, key, cx));
            if chosen.is_some() {
                return chosen;
            }
        }
        pick_either(balance, key, |at| self.servers[first + at].failures == 0 && self.may_await(first + at, cx))
            .or_else(|| pick_either(balance, key, |at| last_resort(first + at) && self.is_reachable(first + at, cx)))
            .or_else(|| pick_either(balance, key, |at| self.may_await(first + at, cx)))
            .or_else(|| pick_either(balance, key, |at| last_resort(first + at) && self.may_be_awaited(first + at, cx)))
            .or_else(|| pick_either(balance, key, |at| self.owner_may_await(first + at, cx)))
    }

    /// Whether the server to which a session is bound can have its request. Where it may have no other, it may wait.
    pub(super) fn is_bound_usable(&self, ask: &PendingRequest, cx: &Context) -> bool {
        let server = self.groups[usize::from(ask.upstream)].servers.first() + usize::from(ask.bound);
        self.servers[server].standing.accepts_bound()
            && (self.is_reachable(server, cx)
                || self.is_coming(server, cx)
                || ask.traits.has(RequestFlags::BOUND) && self.may_be_awaited(server, cx))
    }

    /// Whether a request may wait for this server's next connect, here or at the worker that owns its connections.
    fn may_be_awaited(&self, server: ServerIndex, cx: &Context) -> bool {
        self.may_come_up(server, cx) || self.owner_elsewhere(server, cx).is_some()
    }

    /// Whether a request that goes again stays with the server to which it is bound. One that lost two connections there is
    /// better asked elsewhere, if it may be.
    pub(super) fn stays_bound(&self, ask: &PendingRequest, cx: &Context) -> bool {
        let tied = ask.traits.has(RequestFlags::BOUND)
            || ask.tries < 2 && ask.bound != NOBODY && self.is_bound_usable(ask, cx);
        tied && ask.bound == ask.server
    }

    /// Why no server takes a request.
    pub(super) fn refusal(&self, ask: &PendingRequest, cx: &Context) -> Cause {
        if !ask.traits.has(RequestFlags::BOUND) {
            return self.why_not(ask.upstream, cx);
        }
        let server = self.groups[usize::from(ask.upstream)].servers.first() + usize::from(ask.bound);
        let up = self.servers[server].ready > 0 || self.able_elsewhere(server, cx).is_some();
        match self.servers[server].standing.accepts_bound() {
            false => Cause::NoHealthyServer,
            true if up => Cause::QueueFull,
            true => Cause::NoServer,
        }
    }

    /// The line that binds the session of a request to the server that answers it, unless it is bound to that already.
    pub(super) fn binding(&self, ask: &PendingRequest, server: ServerIndex, cx: &Context) -> Option<Bytes> {
        let sticky = cx.plan.upstreams[usize::from(ask.upstream)].sticky.as_ref()?;
        let answers = self.servers[server].index;
        if ask.bound == answers { None } else { sticky.line(answers).cloned() }
    }

    /// Among those that can take it now.
    fn choose_now(
        &self,
        balance: &mut Balance,
        backup: bool,
        first: ServerIndex,
        ask: &PendingRequest,
        key: Option<u64>,
        cx: &Context,
    ) -> Option<usize> {
        if !balance.may_roam() {
            return balance.pick(backup, key, |at| self.is_up(first + at, cx));
        }
        let idle = |at: usize| self.servers[first + at].has_empty() && self.is_up(first + at, cx);
        let alone = !ask.traits.has(RequestFlags::PIPELINABLE);
        let found = if alone { balance.pick(backup, key, idle) } else { None };
        found
            .or_else(|| {
                balance.pick(backup, key, |at| !self.servers[first + at].is_held() && self.is_up(first + at, cx))
            })
            .or_else(|| balance.pick(backup, key, |at| self.is_up(first + at, cx)))
    }

    /// Where a request may go again, as indexes in its upstream, the best first, backups last. True: the order matters more than
    /// which worker has the connections.
    ///
    /// With a key, what it needs is at the next server in the order of that key; and still at its own, if nothing speaks against
    /// that one.
    pub(super) fn order_again(&mut self, ask: &PendingRequest, order: &mut Vec<usize>, cx: &Context) -> bool {
        let (upstream, old) = (usize::from(ask.upstream), usize::from(ask.server));
        order.clear();
        let balance = &mut self.groups[upstream].balance;
        if let Some(key) = key_of(ask)
            && let Some(mut balance) = balance.take_if(|balance| !balance.may_roam())
        {
            self.prepare(&mut balance, upstream, cx);
            let first = self.groups[upstream].servers.first();
            let failed = ask.tries > 0 || ask.traits.has(RequestFlags::MOVED);
            balance.order_behind(key, failed.then_some(old), |at| self.is_up(first + at, cx), order);
            self.groups[upstream].balance = Some(balance);
            return true;
        }
        let servers = &cx.plan.upstreams[upstream].servers;
        order.extend((1..servers.len()).map(|step| (old + step) % servers.len()));
        order.sort_by_key(|index| servers[*index].backup);
        false
    }

    /// Whether a server that has not failed is being connected to and can be expected at once.
    fn is_coming(&self, server: ServerIndex, cx: &Context) -> bool {
        let machine = &self.servers[server];
        let patience_us = cx.plan.upstreams[usize::from(machine.upstream)].connect_timeout_us;
        let young = |link: &ConnKey| match self.links.at(*link).state {
            LinkState::Connecting { deadline_us } => cx.now_us + patience_us < deadline_us + COMING_US,
            LinkState::Down { retry_us } => retry_us <= cx.now_us,
            _ => false,
        };
        machine.failures == 0 && !machine.is_full() && machine.links.iter().any(young)
    }

    /// Whether a connection to a server can be made where none is up, as far as is known: no connect is overdue.
    pub(super) fn is_hopeful(&self, server: ServerIndex, cx: &Context) -> bool {
        let machine = &self.servers[server];
        let is_overdue = |link: &ConnKey| {
            let link = self.links.at(*link);
            matches!(link.state, LinkState::Connecting { .. }) && cx.now_us >= link.since_us + COMING_US
        };
        machine.is_hopeful() && !machine.links.iter().any(is_overdue)
    }

    /// Gives the method what it needs to know.
    fn prepare(&mut self, balance: &mut Balance, upstream: usize, cx: &Context) {
        let servers = self.groups[upstream].servers;
        let worker = usize::from(cx.worker);
        if balance.is_due(cx.now_us) {
            servers.iter().for_each(|server| self.publish_response(server, cx));
            let by = cx.plan.upstreams[upstream].balance.statistic();
            balance.reweigh(cx.now_us, |at| self.finding(servers.first() + at, by, cx));
        }
        let turn = cx.counters.turns.get();
        if balance.wants_loads(turn) {
            balance.begin(turn, |at| {
                let server = servers.first() + at;
                self.servers[server].load() + self.hints.shared().load_of_others(server, worker)
            });
        }
    }

    fn finding(&self, server: ServerIndex, by: Option<Statistic>, cx: &Context) -> Finding {
        let response_us = by.and_then(|by| self.hints.shared().response_us(server, by, cx.now_us));
        let elsewhere_us = self.hints.shared().recovered_us(server);
        Finding { recovered_us: self.servers[server].recovered_us.max(elsewhere_us), response_us }
    }

    /// Lets all workers know how long a server takes for this one's requests.
    pub(super) fn publish_response(&mut self, server: ServerIndex, cx: &Context) {
        let now_us = cx.now_us;
        let machine = &mut self.servers[server];
        let Some(measure) = machine.measure.as_deref_mut().filter(|measure| measure.is_due(now_us)) else { return };
        let links = &self.links;
        let waiting = machine.links.iter().filter_map(|link| {
            let entries = &links.at(*link).entries;
            let (oldest, newest) = (entries.front()?, entries.back()?);
            let age_us = |sent_us: u64| now_us.saturating_sub(sent_us);
            Some(((age_us(oldest.sent_us) + age_us(newest.sent_us)) / 2, entries.len() as u32))
        });
        let (response_us, samples) = measure.read(now_us, waiting);
        self.hints.shared().set_response(server, usize::from(cx.worker), response_us, samples, now_us);
    }

    /// Lets the other workers know how much this one has at each server.
    pub(super) fn publish_loads(&self, cx: &Context) {
        if !self.shares_loads {
            return;
        }
        for server in self.servers.keys().iter() {
            self.hints.shared().set_load(server, usize::from(cx.worker), self.servers[server].load());
        }
    }

    /// A server takes requests again after it had been away: its slow start begins, on all workers.
    pub(super) fn server_recovered(&mut self, server: ServerIndex, cx: &Context) {
        self.servers[server].recovered(cx.now_us);
        self.hints.shared().set_recovered(server, cx.now_us);
    }

    /// Whether any upstream is balanced by what workers tell each other of their loads.
    pub(super) fn must_share_loads(&self, cx: &Context) -> bool {
        let by_load = |group: &super::Group| group.balance.as_ref().is_some_and(|balance| balance.uses_loads());
        cx.workers > 1 && self.groups.iter().any(by_load)
    }
}

fn key_of(ask: &PendingRequest) -> Option<u64> {
    (ask.key != 0).then_some(ask.key)
}

/// Among all that are usable, backups last.
fn pick_either(balance: &mut Balance, key: Option<u64>, usable: impl Fn(usize) -> bool) -> Option<usize> {
    balance.pick(false, key, &usable).or_else(|| balance.pick(true, key, &usable))
}
