//! The upstreams: which servers belong together, how one of them is chosen, and how often their
//! requests may be sent again.
//!
//! [`Groups`] owns the balancing methods and the retry budgets, by upstream. It reads the pool and
//! the hints of other workers ([`View`]) and changes nothing there, except that measurements of
//! servers are published before a method reads them ([`super::balancing`]). [`super::choose`]
//! decides which server gets a request. Invariants: servers of an upstream have the order that they
//! have in the plan; `suspended` <= their number; an upstream of a single server has no method.

use std::ops::{Index, IndexMut};

use super::cancel::Cancelled;
use super::pool::Pool;
use super::view::View;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::base::table::Members;
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::mail::{Fate, Repetition};
use crate::placement::balance::Balance;
use crate::plan::UpstreamPlan;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::retry::budget::Budget;
use crate::upstream::entry::Entry;

/// The servers of one upstream.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) servers: Members<ServerIndex>,
    /// How many of them health has suspended.
    pub(super) suspended: u32,
    pub(super) budget: Budget,
}

impl Group {
    /// The server with this index in the upstream.
    #[inline]
    pub(super) fn server(&self, index: u16) -> ServerIndex {
        self.servers.at(usize::from(index))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) groups: Vec<Group>,
    /// Which server is next; None for a single one. Separate, because a choice looks at everything
    /// else.
    pub(super) balances: Vec<Option<Box<Balance>>>,
    /// Scratch space for the servers among which one request chooses; kept for its memory.
    pub(super) order: Vec<usize>,
    /// Some upstream is balanced by the load that all workers have at its servers.
    shares_loads: bool,
}

impl Index<usize> for Groups {
    type Output = Group;

    #[inline]
    fn index(&self, upstream: usize) -> &Group {
        &self.groups[upstream]
    }
}

impl IndexMut<usize> for Groups {
    #[inline]
    fn index_mut(&mut self, upstream: usize) -> &mut Group {
        &mut self.groups[upstream]
    }
}

impl Groups {
    /// One more upstream, with this first server; the others follow by [`Groups::add_server`].
    pub(super) fn add(&mut self, plan: &UpstreamPlan, first: ServerIndex, seed: u64, cx: &Context) {
        let several = plan.servers.len() > 1;
        let balance = several.then(|| Box::new(Balance::new(plan, cx.worker, seed)));
        self.shares_loads |=
            cx.workers > 1 && balance.as_ref().is_some_and(|balance| balance.uses_loads());
        let budget = Budget::new(plan.retry.budget_percent, cx.now_us);
        self.groups.push(Group { servers: Members::new(first), suspended: 0, budget });
        self.balances.push(balance);
    }

    /// One more server of an upstream.
    pub(super) fn add_server(&mut self, upstream: usize, server: ServerIndex) {
        self.groups[upstream].servers.push(server);
    }

    /// An upstream has other options, or other servers: its balancing method is built again if it
    /// depends on those.
    pub(super) fn adopt(
        &mut self,
        upstream: usize,
        before: &UpstreamPlan,
        now: &UpstreamPlan,
        seed: u64,
        cx: &Context,
    ) {
        let same = before.balance == now.balance
            && before.slow_start_us == now.slow_start_us
            && before.servers.len() == now.servers.len()
            && before.servers.iter().zip(&now.servers).all(|(old, new)| Balance::is_same(old, new));
        if !same && now.servers.len() > 1 {
            let balance = Balance::new(now, cx.worker, seed);
            self.shares_loads |= cx.workers > 1 && balance.uses_loads();
            self.balances[upstream] = Some(Box::new(balance));
        }
        if before.retry.budget_percent != now.retry.budget_percent {
            self.groups[upstream].budget = Budget::new(now.retry.budget_percent, cx.now_us);
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Returns the server that a request is for.
    #[inline]
    pub(super) fn server_of(&self, ask: &PendingRequest) -> ServerIndex {
        self.groups[usize::from(ask.upstream)].server(ask.server)
    }

    /// Returns how many servers of the upstream of a request take new ones.
    pub(super) fn usable(&self, ask: &PendingRequest, pool: &Pool) -> usize {
        let servers = self.groups[usize::from(ask.upstream)].servers.iter();
        servers.filter(|server| pool.servers[*server].standing.takes_new()).count()
    }

    /// Returns the state to choose from.
    #[inline]
    pub(super) fn view<'a>(&'a self, pool: &'a Pool, cx: &'a Context) -> View<'a> {
        pool.view(&self.groups, cx)
    }

    /// Publishes to the other workers how much this worker has at each server.
    #[inline]
    pub(super) fn publish_loads(&self, pool: &Pool, cx: &Context) {
        if !self.shares_loads {
            return;
        }
        for server in pool.servers.keys().iter() {
            pool.hints.shared().set_load(
                server,
                usize::from(cx.worker),
                pool.servers[server].load(),
            );
        }
    }

    /// Time passes: budgets fill up.
    pub(super) fn refill(&mut self, now_us: u64) {
        self.groups.iter_mut().for_each(|group| group.budget.refill(now_us));
    }

    /// Whether the requests behind the oldest one of a connection may be sent again for the sake of
    /// a client that has left: only within the budget of the upstream.
    pub(super) fn may_send_again(
        &mut self,
        index: ConnKey,
        pool: &Pool,
        cancelled: &Cancelled,
        cx: &Context,
    ) -> bool {
        let conn = pool.conns.at(index);
        let upstream = usize::from(pool.servers[conn.server].upstream);
        let sent =
            |entry: &&Entry| entry.start < conn.log.flushed() && !cancelled.is_unwanted(entry);
        let behind = conn.entries.iter().skip(1).filter(sent).count() as u64;
        behind == 0 || self.groups[upstream].budget.has(cx.now_us, behind)
    }

    /// Counts that a request is sent again, unless that is once too often: for the request, or for
    /// all together. `oldest`: the server may have worked on it, as it does on one request of a
    /// connection after another.
    pub(super) fn count_repetition(
        &mut self,
        ask: &mut PendingRequest,
        counts: bool,
        unsent: bool,
        oldest: bool,
        pool: &Pool,
        cx: &Context,
    ) -> Result<(), Cause> {
        if counts {
            ask.tries = ask.tries.saturating_add(1);
            ask.traits = ask.traits.with(RequestFlags::ALONE, true);
            ask.traits = ask
                .traits
                .with(RequestFlags::QUARANTINED, ask.tries > 1 && !cx.is_private(ask.upstream));
            if u32::from(ask.tries)
                > cx.plan.upstreams[usize::from(ask.upstream)].retry.per_request_max
            {
                return Err(Cause::RetriesExceeded);
            }
            if oldest && !self.groups[usize::from(ask.upstream)].budget.spend(cx.now_us) {
                return Err(Cause::RetryBudget);
            }
        }
        let (counters, stats) = (&cx.counters, &pool.servers[self.server_of(ask)].stats);
        let (total, of_server) = match (unsent, counts) {
            (true, _) => (&counters.moves, &stats.moves),
            (false, true) => (&counters.retries, &stats.retries),
            (false, false) => (&counters.resends, &stats.resends),
        };
        total.add(1);
        of_server.add(1);
        Ok(())
    }

    /// Whether a request could be sent again now, although a server may have worked on it: by its
    /// nature, and by the limits on repetitions.
    pub(super) fn may_repeat(&mut self, ask: &PendingRequest, cx: &Context) -> bool {
        let most = cx.plan.upstreams[usize::from(ask.upstream)].retry.per_request_max;
        ask.traits.has(RequestFlags::RETRIABLE)
            && u32::from(ask.tries) < most
            && self.groups[usize::from(ask.upstream)].budget.has(cx.now_us, 1)
    }

    /// Counts that a request with this fate is sent again, if it may be.
    pub(super) fn count_fate(
        &mut self,
        ask: &mut PendingRequest,
        fate: Fate,
        pool: &Pool,
        cx: &Context,
    ) -> Result<(), Cause> {
        let Repetition { counts, unsent, oldest, ours } = match fate {
            Fate::Unserved => return Ok(()),
            Fate::Lost(repetition) => repetition,
            Fate::Hopeless(cause) => return Err(cause),
        };
        if ours && !counts && !unsent {
            self.groups[usize::from(ask.upstream)].budget.charge(cx.now_us);
        }
        self.count_repetition(ask, counts, unsent, oldest, pool, cx)
    }
}
