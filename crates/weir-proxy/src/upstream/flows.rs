//! Servers for connections of `tcp`: which one gets the next, and what their connects show about it
//! (stages schedule and health).
//!
//! A connection of `tcp` has no state of a request: no queue, no trust, no connection of the pool,
//! no repetition once a byte has passed. From the servers' side it needs only which servers take
//! new work ([`ServerState`](super::server_state::ServerState)), the turn among them ([`Balance`]),
//! which can be reached, and the counters. [`Flows`](crate::tcp::Flows) keeps its sockets, and
//! calls this module, which calls nothing back. Bound: `tcp-connections` of a server, over all
//! workers; they are also given back when a worker loses all its state. docs/tcp.md.

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
    /// How the connection begins, if in a special way.
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    /// From where, and how.
    pub(crate) way: Option<Box<Way>>,
    /// How long the connect may take, microseconds.
    pub(crate) timeout_us: u64,
}

/// Servers that a connection has tried without success: by their index in the upstream; indexes
/// that differ by a multiple of 32 share a bit.
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

/// Chooses a server for a connection of `tcp` that has tried those in `tried` without success. It
/// is counted there from now on, until [`flow_ended`] or one of its alternatives. None: none can
/// take it.
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
    // Another worker may take the last place between the look and the choice; each turn excludes a
    // server.
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

/// Returns how a connection of this client is made to the server that it is counted at.
pub(crate) fn flow_server(
    all: &Upstreams,
    server: ServerIndex,
    client: SocketAddr,
    cx: &Context,
) -> FlowServer {
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

/// Returns the hash key of a client.
fn hash_of(client: IpAddr) -> u64 {
    match client {
        IpAddr::V4(address) => hash_key(&address.octets()),
        IpAddr::V6(address) => hash_key(&address.octets()),
    }
}

/// Whether an upstream leads to the destinations that clients have connected to.
pub(crate) fn is_destination(upstream: u16, cx: &Context) -> bool {
    let servers = &cx.plan.upstreams[usize::from(upstream)].servers;
    servers.iter().any(|server| server.address == Location::Destination && !server.retired)
}

/// Whether the configuration sets when the kernel probes servers of an upstream with keep-alives:
/// it does so from the start then.
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

/// It could not be begun, which says nothing about the server: the connection has left.
pub(crate) fn flow_unstarted(all: &mut Upstreams, server: ServerIndex, cx: &Context) {
    flow_left(all, server);
    cx.counters.upstream_connect_failures.add(1);
    let stats = &all.pool.servers[server].stats;
    stats.connect_failures.add(1);
    stats.closes.count(UpstreamEnd::ConnectFailed);
}

/// It has failed: the connection has left, and others use other servers for a while, if they can.
pub(crate) fn flow_unconnected(all: &mut Upstreams, server: ServerIndex, cx: &mut Context) {
    flow_unstarted(all, server, cx);
    let machine = &mut all.pool.servers[server];
    let plan =
        &cx.plan.upstreams[usize::from(machine.upstream)].servers[usize::from(machine.index)];
    if plan.address == Location::Destination {
        // The failure of one says nothing about others.
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

/// Returns the counters of a server.
pub(crate) fn stats_of(all: &Upstreams, server: ServerIndex) -> &ServerStats {
    &all.pool.servers[server].stats
}

/// Chooses the server of an upstream for a connection: returns its index there.
fn choose(
    groups: &mut Groups,
    upstream: u16,
    key: u64,
    tried: Tried,
    pool: &Pool,
    cx: &Context,
) -> Option<usize> {
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
        if tried.has(index)
            || !takes && !view.is_last_resort(server)
            || !pool.hints.has_flow_room(server, max)
        {
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

/// Checks that connections of `tcp` are counted at their servers: `flows` by server.
///
/// # Errors
///
/// They are not, in words.
pub(crate) fn audit(pool: &Pool, flows: &[u32]) -> Result<(), String> {
    let wrong = pool
        .servers
        .keys()
        .iter()
        .find(|server| pool.servers[*server].flows != flows[server.index()]);
    wrong.map_or(Ok(()), |server| {
        Err(format!("server {server} has other connections of tcp than are there"))
    })
}

impl Drop for Pool {
    /// Also when a worker has lost everything.
    fn drop(&mut self) {
        for server in self.servers.keys().iter().filter(|server| self.servers[*server].flows > 0) {
            self.hints.end_flows(server, self.servers[server].flows);
        }
    }
}
