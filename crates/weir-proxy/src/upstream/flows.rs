//! Servers for connections of `tcp`: which one has the next, and what their connects say of it (stages schedule and health).
//!
//! A connection of `tcp` has nothing of what a request has: no queue, no trust, no connection of the pool, no repetition once a byte has
//! passed. Of the servers' side it needs who takes new work ([`ServerState`](super::server_state::ServerState)), whose turn it is
//! ([`Balance`]), who can be reached, and the counters; so it asks for those alone, and keeps its sockets itself
//! ([`Flows`](crate::tcp::Flows)). Called by that; calls nobody back. Bound: `tcp-connections` of a server, over all workers; they are given
//! back when a worker loses everything, too. docs/tcp.md.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Upstreams;
use super::connect::tell_unreachable;
use super::groups::Groups;
use super::pool::Pool;
use super::private::AWAY_US;
use crate::base::keys::{Key, ServerIndex};
use crate::context::Context;
use crate::ending::UpstreamEnd;
use crate::observe::server_event::What;
use crate::observe::server_stats::ServerStats;
use crate::placement::balance::{Balance, hash_key};
use crate::plan::{Location, ProxyProtocol, Way};

/// A server that a connection is made to.
#[derive(Debug)]
pub(crate) struct FlowServer {
    /// Which one.
    pub(crate) server: ServerIndex,
    /// Where it is.
    pub(crate) address: Location,
    /// With what the connection begins, if with anything.
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    /// From where, and how.
    pub(crate) way: Option<Box<Way>>,
    /// How long the connect may take, microseconds.
    pub(crate) timeout_us: u64,
}

/// Servers that a connection has been to in vain: by their index in the upstream, those 32 places apart together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tried(u32);

impl Tried {
    fn bit(index: usize) -> u32 {
        1 << (index as u32 % u32::BITS)
    }

    fn add(&mut self, index: usize) {
        self.0 |= Tried::bit(index);
    }

    fn has(self, index: usize) -> bool {
        self.0 & Tried::bit(index) != 0
    }

    /// How many.
    pub(crate) fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// How good a server is for a connection. The better one is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    is_suspended: bool,
    /// A connect has just failed.
    is_away: bool,
    is_backup: bool,
}

/// A server for a connection of `tcp` that has been to those in vain; it is counted there from now on, until
/// [`flow_ended`] or what comes instead of that. None: none can take it.
pub(crate) fn begin_flow(
    all: &mut Upstreams,
    upstream: u16,
    client: SocketAddr,
    tried: &mut Tried,
    cx: &mut Context,
) -> Option<FlowServer> {
    let plan = Arc::clone(&cx.plan);
    let plan = &plan.upstreams[usize::from(upstream)];
    let key = hash_of(client.ip());
    // Another worker may take the last place between the look and the choice; each turn excludes a server.
    loop {
        let index = choose(&mut all.groups, upstream, key, *tried, &all.pool, cx)?;
        tried.add(index);
        let server = all.groups[usize::from(upstream)].server(index as u16);
        if !all.pool.hints.begin_flow(server, plan.servers[index].tcp_connections_max) {
            continue;
        }
        let machine = &mut all.pool.servers[server];
        machine.flows += 1;
        machine.stats.requests.add(1);
        machine.stats.connects.add(1);
        cx.counters.upstream_connects.add(1);
        return Some(flow_server(all, server, client, cx));
    }
}

/// How a connection of this client is made to the server that it is counted at.
pub(crate) fn flow_server(all: &Upstreams, server: ServerIndex, client: SocketAddr, cx: &Context) -> FlowServer {
    let machine = &all.pool.servers[server];
    let plan = &cx.plan.upstreams[usize::from(machine.upstream)];
    FlowServer {
        server,
        address: plan.servers[usize::from(machine.index)].address.clone(),
        proxy_protocol: plan.dial.proxy_protocol,
        way: plan.dial.way(Some(client)),
        timeout_us: plan.connect_timeout_us,
    }
}

/// What a client is hashed by.
fn hash_of(client: IpAddr) -> u64 {
    match client {
        IpAddr::V4(address) => hash_key(&address.octets()),
        IpAddr::V6(address) => hash_key(&address.octets()),
    }
}

/// Whether an upstream leads to where clients have connected to.
pub(crate) fn is_destination(upstream: u16, cx: &Context) -> bool {
    let servers = &cx.plan.upstreams[usize::from(upstream)].servers;
    servers.iter().any(|server| server.address == Location::Destination && !server.retired)
}

/// Whether the configuration says when the kernel asks servers of an upstream whether they are still there: it does so from the start then.
pub(crate) fn has_keepalive(upstream: u16, cx: &Context) -> bool {
    let tuning = cx.plan.upstreams[usize::from(upstream)].dial.tuning.as_deref();
    tuning.is_some_and(|tuning| tuning.keepalive.is_some())
}

/// The connect to a server has succeeded.
pub(crate) fn flow_connected(all: &mut Upstreams, server: ServerIndex, cx: &Context) {
    let machine = &mut all.pool.servers[server];
    machine.contact.on_private_connected();
    if machine.contact.take_told() {
        all.pool.events.note(server, What::Reachable, cx);
    }
}

/// It could not be begun, which says nothing of the server: the connection has left.
pub(crate) fn flow_unstarted(all: &mut Upstreams, server: ServerIndex, cx: &Context) {
    flow_left(all, server);
    cx.counters.upstream_connect_failures.add(1);
    let stats = &all.pool.servers[server].stats;
    stats.connect_failures.add(1);
    stats.closes.count(UpstreamEnd::ConnectFailed);
}

/// It has failed: the connection has left, and others go elsewhere for a while, if they can.
pub(crate) fn flow_unconnected(all: &mut Upstreams, server: ServerIndex, cx: &mut Context) {
    flow_unstarted(all, server, cx);
    let machine = &mut all.pool.servers[server];
    let plan = &cx.plan.upstreams[usize::from(machine.upstream)].servers[usize::from(machine.index)];
    if plan.address == Location::Destination {
        // What is true of one says nothing of others.
        return;
    }
    machine.contact.failures = machine.contact.failures.saturating_add(1);
    machine.contact.away_until_us = cx.now_us + AWAY_US;
    machine.contact.unreachable = true;
    tell_unreachable(server, None, &mut all.pool, &all.groups, cx);
}

/// A connection that was made has ended, for this reason.
pub(crate) fn flow_ended(all: &mut Upstreams, server: ServerIndex, why: UpstreamEnd, cx: &Context) {
    flow_left(all, server);
    all.pool.servers[server].stats.closes.count(why);
    cx.counters.upstream_closes.count(why);
}

/// A server has one connection of `tcp` less.
fn flow_left(all: &mut Upstreams, server: ServerIndex) {
    all.pool.servers[server].flows -= 1;
    all.pool.hints.end_flows(server, 1);
}

/// What is counted of a server.
pub(crate) fn stats_of(all: &Upstreams, server: ServerIndex) -> &ServerStats {
    &all.pool.servers[server].stats
}

/// The server of an upstream that is to have a connection: its index there.
fn choose(groups: &mut Groups, upstream: u16, key: u64, tried: Tried, pool: &Pool, cx: &Context) -> Option<usize> {
    let upstream = usize::from(upstream);
    let Groups { groups, balances, order, .. } = groups;
    let view = pool.view(groups, cx);
    let plan = &cx.plan.upstreams[upstream].servers;
    order.clear();
    let mut best: Option<Standing> = None;
    for (index, server) in groups[upstream].servers.iter().enumerate() {
        let machine = &pool.servers[server];
        let takes = machine.standing.takes_new();
        let max = plan[index].tcp_connections_max;
        if tried.has(index) || !takes && !view.is_last_resort(server) || !pool.hints.has_flow_room(server, max) {
            continue;
        }
        let standing = Standing {
            is_suspended: !takes,
            is_away: cx.now_us < machine.contact.away_until_us,
            is_backup: plan[index].backup,
        };
        if best.is_none_or(|best| standing < best) {
            order.clear();
            best = Some(standing);
        }
        if best == Some(standing) {
            order.push(index);
        }
    }
    let Some(balance) = balances[upstream].as_deref_mut() else { return order.first().copied() };
    view.prepare(balance, upstream);
    let chosen = Balance::choose(balance, Some(key), order)?;
    balance.took(Some(key), order, chosen);
    Some(chosen)
}

/// Looks whether connections of `tcp` are counted where they are: `flows` by server.
///
/// # Errors
/// They are not, in words.
pub(crate) fn audit(pool: &Pool, flows: &[u32]) -> Result<(), String> {
    let wrong = pool.servers.keys().iter().find(|server| pool.servers[*server].flows != flows[server.index()]);
    wrong.map_or(Ok(()), |server| Err(format!("server {server} has other connections of tcp than are there")))
}

impl Drop for Pool {
    /// Also when a worker has lost everything.
    fn drop(&mut self) {
        for server in self.servers.keys().iter().filter(|server| self.servers[*server].flows > 0) {
            self.hints.end_flows(server, self.servers[server].flows);
        }
    }
}
