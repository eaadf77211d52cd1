//! Invariants of servers and of the connections to them between any two turns
//! ([`Engine::audit`](crate::engine::Engine::audit)).

use super::Upstreams;
use super::connection::{ConnState, UpstreamConn};
use super::entry::Entry;
use super::isolation::Isolation;
use super::pool::Pool;
use super::private_pool::PrivatePools;
use super::queue::Waiting;
use super::server::{STALLED_MAX, Server};
use crate::base::check::{at_most, equal};
use crate::base::output::HIGH_BYTES;
use crate::context::Context;
use crate::request::pending_request::ExchangeId;

/// How much one receive of a client may add to the bytes of a server, after the client's reading
/// was stopped.
const RECEIVE_BYTES_MAX: usize = 64 * 1024;

impl Upstreams {
    /// Looks for impossible states. Returns all requests that are here and whose responses are
    /// still wanted, as often as they occur.
    ///
    /// # Errors
    ///
    /// The first promise that is broken, in words.
    pub(crate) fn audit(&self, cx: &Context) -> Result<Vec<ExchangeId>, String> {
        if self.agenda.is_due() {
            return Err("something that was to be done was not".to_owned());
        }
        self.pool.audit_servers()?;
        for index in self.pool.conns.keys() {
            let conn = self.pool.conns.at(index);
            audit_conn(conn, &self.pool.servers[conn.server], cx)
                .map_err(|text| format!("upstream connection {index}: {text}"))?;
        }
        audit_private(&self.private, &self.pool)?;
        audit_fresh(&self.private, &self.pool)?;
        audit_gauges(&self.pool, &self.private, &self.isolation, cx)?;
        Ok(carried(&self.pool, &self.private, &self.isolation))
    }
}

/// Returns all requests that are here and whose responses are still wanted, as often as they occur.
fn carried(pool: &Pool, private: &PrivatePools, isolation: &Isolation) -> Vec<ExchangeId> {
    let mut all = Vec::new();
    for conn in pool.conns.keys().map(|index| pool.conns.at(index)) {
        all.extend(conn.entries.iter().filter(|entry| !entry.cancelled).map(|entry| entry.ask.id));
        all.extend(conn.tunnel.peer);
    }
    let waiting = pool.servers.iter().flat_map(|server| server.waiting.all());
    all.extend(waiting.chain(isolation.waiting()).map(|waiting| waiting.ask.id));
    all.extend(private.attempts().map(|approach| approach.waiting.ask.id));
    all
}

/// Connections of clients are known to their clients, and only to those.
fn audit_private(private: &PrivatePools, pool: &Pool) -> Result<(), String> {
    for index in pool.conns.keys() {
        let (conn, name) = (pool.conns.at(index), (index, pool.conns.generation(index)));
        let Some(owner) = conn.owner.filter(|_| conn.state() != ConnState::Tunnel) else {
            continue;
        };
        if !private.knows(owner.client, name) {
            return Err(format!("upstream connection {index} is unknown to its client"));
        }
    }
    let parked = private.attempts().filter(|approach| approach.retry_us != u64::MAX).count();
    equal("requests that wait for another round of connects", private.parked() as usize, parked)
}

/// Checks the counts of connections for one request beside a pool.
fn audit_fresh(private: &PrivatePools, pool: &Pool) -> Result<(), String> {
    for index in pool.servers.keys().iter() {
        let Some(fresh) = pool.servers[index].fresh.as_deref() else { continue };
        let mine = || {
            let conns = pool.conns.keys().map(|conn| pool.conns.at(conn));
            conns.filter(|conn| {
                conn.server == index && conn.owner.is_some() && conn.state() != ConnState::Tunnel
            })
        };
        equal("connections for one request", fresh.open as usize, mine().count())?;
        let ready = mine().filter(|conn| conn.is_ready()).count();
        equal("connections for one request that are up", fresh.ready as usize, ready)?;
        let coming = private.attempts().filter(|approach| approach.server == index).count();
        equal("requests for which one is being made", fresh.coming as usize, coming)?;
        at_most(
            "connections for one request",
            fresh.open as usize,
            pool.servers[index].limits.all as usize,
        )?;
    }
    Ok(())
}

fn audit_gauges(
    pool: &Pool,
    private: &PrivatePools,
    isolation: &Isolation,
    cx: &Context,
) -> Result<(), String> {
    let waiting = isolation.waiting().count()
        + private.attempts().count()
        + pool.servers.iter().map(|server| server.waiting.len()).sum::<usize>();
    let asked: usize = pool.servers.iter().map(|server| server.inflight as usize).sum();
    let fresh = |server: &Server| server.fresh.as_deref().map_or(0, |fresh| fresh.ready);
    let ready: usize =
        pool.servers.iter().map(|server| (server.ready + fresh(server)) as usize).sum();
    equal("queue_waiting", cx.counters.queue_waiting.get() as usize, waiting)?;
    equal("in_flight", cx.counters.in_flight.get() as usize, asked)?;
    equal("upstream_connections", cx.counters.upstream_connections.get() as usize, ready)
}

impl Pool {
    /// Looks for queues that hold more bytes than docs/buffers.md allows.
    ///
    /// # Errors
    /// The first bound that is passed, in words.
    pub(crate) fn audit_bytes(&self) -> Result<(), String> {
        for conn in self.conns.keys().map(|index| self.conns.at(index)) {
            at_most(
                "bytes of a body for a server",
                conn.out.body.len(),
                HIGH_BYTES + 4 * RECEIVE_BYTES_MAX,
            )?;
        }
        Ok(())
    }

    fn audit_servers(&self) -> Result<(), String> {
        for index in self.servers.keys().iter() {
            let server = &self.servers[index];
            let mine = || {
                self.conns
                    .keys()
                    .map(|conn| self.conns.at(conn))
                    .filter(|conn| conn.server == index)
            };
            let ready = mine()
                .filter(|conn| conn.is_ready() && (conn.owner.is_none() || server.fresh.is_none()))
                .count();
            let asked: usize = mine().map(|conn| conn.entries.len()).sum();
            equal("connections that are up", ready, server.ready as usize)?;
            equal("requests on connections", asked, server.inflight as usize)?;
            let pooled =
                || mine().filter(|conn| conn.owner.is_none() && conn.state() != ConnState::Tunnel);
            equal("connections of the pool", pooled().count(), server.conns.len())?;
            let made = pooled().filter(|conn| conn.is_ready() || conn.is_coming()).count() as u32;
            at_most("connections", made as usize, (server.limits.all + STALLED_MAX) as usize)?;
            let moved: usize =
                mine().map(|conn| conn.entries.iter().filter(|entry| entry.moved).count()).sum();
            equal("requests that have moved on", moved, server.moved as usize)?;
            if let Some(permits) = &server.learned.load.permits {
                at_most("permits", permits.held() as usize, permits.most() as usize)?;
            }
            at_most("requests at a server", server.load() as usize, server.capacity as usize)?;
            let may_go_on =
                |waiting: &&Waiting| server.holders.room(waiting.ask.carrier) != Some(0);
            if !server.is_full() {
                equal(
                    "parked requests that may go on",
                    server.waiting.parked().filter(may_go_on).count(),
                    0,
                )?;
            }
            let placed = |conn: &&UpstreamConn| {
                server.positions.is_near(conn.position).is_some() && !conn.is_ready()
            };
            equal("places of connections that are not up", pooled().filter(placed).count(), 0)?;
            let gone = server.conns.iter().find(|conn| !self.conns.is_occupied(**conn));
            gone.map_or(Ok(()), |conn| {
                Err(format!("server {index} has lost its connection {conn}"))
            })?;
        }
        Ok(())
    }
}

fn audit_conn(conn: &UpstreamConn, server: &Server, cx: &Context) -> Result<(), String> {
    let plan = &cx.plan.upstreams[usize::from(server.upstream)];
    at_most("unanswered requests", conn.entries.len(), plan.queue_size as usize)?;
    if conn.state() == ConnState::Tunnel {
        return Ok(());
    }
    let unfollowed = |entry: &Entry| entry.ask.traits.is_unfollowed();
    if let Some(at) = conn.entries.iter().position(unfollowed)
        && (at + 1 < conn.entries.len() && !conn.wait.nudged || !conn.gate.hold)
    {
        return Err(format!("request {at} of {} must not be followed", conn.entries.len()));
    }
    let alone = |entry: &Entry| entry.ask.traits.rides_apart();
    if let Some(at) = conn.entries.iter().position(alone)
        && conn.entries.len() > 1
    {
        return Err(format!("request {at} of {} must go alone", conn.entries.len()));
    }
    let mut end = 0;
    for entry in &conn.entries {
        if entry.start < end {
            return Err("two requests share bytes of the log".to_owned());
        }
        end = entry.start + u64::from(entry.len);
    }
    at_most("bytes of the last request", end as usize, conn.log.end() as usize)?;
    if conn.entries.is_empty() && conn.is_ready() && !conn.log.is_empty() {
        return Err(format!("{} bytes kept of requests that are answered", conn.log.len()));
    }
    Ok(())
}
