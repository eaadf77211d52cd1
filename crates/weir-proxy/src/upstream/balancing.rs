//! The input of the balancing methods: how long servers take, how much they have to do, which turn
//! it was (stage schedule).
//!
//! [`super::choose`] decides which server gets a request and changes nothing; here the choice is
//! carried out. docs/failover.md#how-weir-chooses-a-server.

use bytes::Bytes;

use super::choose::{Placement, Purpose, key_of};
use super::groups::{Group, Groups};
use super::pool::Pool;
use super::view::View;
use crate::base::keys::ServerIndex;
use crate::cause::Cause;
use crate::context::Context;
use crate::placement::balance::{Balance, Finding, Statistic};
use crate::request::pending_request::PendingRequest;

impl Groups {
    /// Chooses a server for this request, which is going to get it.
    ///
    /// # Errors
    ///
    /// The reason why none may have it.
    #[inline]
    pub(super) fn choose(
        &mut self,
        ask: &PendingRequest,
        purpose: Purpose,
        pool: &mut Pool,
        cx: &Context,
    ) -> Result<Placement, Cause> {
        let upstream = usize::from(ask.upstream);
        let Groups { groups, balances, order, .. } = self;
        let Some(balance) = balances[upstream].as_deref_mut() else {
            return pool.view(groups, cx).choose(ask, purpose, None, order);
        };
        if purpose == Purpose::New || ask.key != 0 {
            if balance.is_due(cx.now_us) {
                groups[upstream]
                    .servers
                    .iter()
                    .for_each(|server| pool.publish_response(server, cx));
            }
            pool.view(groups, cx).prepare(balance, upstream);
        }
        let place = pool.view(groups, cx).choose(ask, purpose, Some(balance), order)?;
        let server = usize::from(place.server);
        match purpose {
            _ if place.is_only() => {}
            Purpose::New => balance.took(key_of(ask), order, server),
            Purpose::Again | Purpose::Trial { .. } => balance.note(server),
        }
        Ok(place)
    }
}

impl View<'_> {
    /// Gives the method the data that it needs.
    pub(super) fn prepare(&self, balance: &mut Balance, upstream: usize) {
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
        let response_us =
            by.and_then(|by| self.hints.shared().response_us(server, by, self.cx.now_us));
        let elsewhere_us = self.hints.shared().recovered_us(server);
        Finding { recovered_us: self.servers[server].recovered_us.max(elsewhere_us), response_us }
    }

    /// Returns the cookie that binds the session of a request to the server that answers it, unless
    /// it is bound to that already.
    #[inline]
    pub(super) fn binding(&self, ask: &PendingRequest, server: ServerIndex) -> Option<Bytes> {
        let sticky = self.cx.plan.upstreams[usize::from(ask.upstream)].sticky.as_ref()?;
        let answers = self.servers[server].index;
        if ask.bound == answers { None } else { sticky.cookie(answers).cloned() }
    }
}

impl Pool {
    /// Returns the state to choose from.
    #[inline]
    pub(super) fn view<'a>(&'a self, groups: &'a [Group], cx: &'a Context) -> View<'a> {
        View { conns: &self.conns, servers: &self.servers, groups, hints: &self.hints, cx }
    }

    /// Publishes to all workers how long a server takes for this worker's requests.
    #[inline]
    pub(super) fn publish_response(&mut self, server: ServerIndex, cx: &Context) {
        let now_us = cx.now_us;
        let machine = &mut self.servers[server];
        let Some(measure) =
            machine.learned.measure.as_deref_mut().filter(|measure| measure.is_due(now_us))
        else {
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
        self.hints.shared().set_response(
            server,
            usize::from(cx.worker),
            response_us,
            samples,
            now_us,
        );
    }

    /// A server takes requests again after it had been away: its slow start begins, on all workers.
    pub(super) fn server_recovered(&mut self, server: ServerIndex, cx: &Context) {
        self.servers[server].recovered(cx.now_us);
        self.hints.shared().set_recovered(server, cx.now_us);
    }
}
