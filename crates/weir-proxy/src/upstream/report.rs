//! Servers and the connections to them describe themselves for status and metrics.

use super::Upstreams;
use super::connection::{ConnState, UpstreamConn};
use super::entry::Entry;
use super::fresh::Fresh;
use super::orders::NEVER_US;
use super::pool::Pool;
use super::server::Server;
use super::server_state::State;
use super::trust::TrustState;
use super::view::View;
use crate::base::keys::{Key, ServerIndex};
use crate::context::Context;
use crate::observe::accounting::Account;
use crate::observe::report::{ConnectionReport, ConnectionState, ServerReport};

impl Upstreams {
    /// All servers, in the order of the plan. `relays`: connections by server whose bytes the
    /// driver moves, or will. Visits every connection once.
    pub(crate) fn report(&self, relays: Vec<u32>, cx: &Context) -> Vec<ServerReport> {
        let mut tunnels = relays;
        let mut used: Vec<bool> =
            self.pool.servers.keys().iter().map(|at| self.health.is_probing(at)).collect();
        for index in self.pool.conns.keys() {
            let conn = self.pool.conns.at(index);
            tunnels[conn.server.index()] += u32::from(conn.state() == ConnState::Tunnel);
            used[conn.server.index()] |= !matches!(conn.state(), ConnState::Down { .. });
        }
        let mut waiting: Vec<u32> =
            self.pool.servers.iter().map(|server| server.waiting.len() as u32).collect();
        self.private.attempts().for_each(|approach| waiting[approach.server.index()] += 1);
        let view = self.groups.view(&self.pool, cx);
        let servers =
            self.pool.servers.keys().iter().zip(tunnels.into_iter().zip(waiting).zip(used));
        servers
            .map(|(at, ((tunnels, waiting), used))| {
                let vacant = !used && tunnels == 0 && waiting == 0;
                ServerReport { tunnels, waiting, vacant, ..view.report_server(at) }
            })
            .collect()
    }
}

impl Pool {
    /// How many servers there are.
    pub(crate) fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Returns the accounts that connections are charged to.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = Account> {
        self.conns.keys().map(|index| self.conns.at(index).account)
    }
}

fn connection_state(conn: &UpstreamConn, enabled: bool) -> ConnectionState {
    match conn.state() {
        ConnState::Down { retry_us: NEVER_US } if enabled => ConnectionState::Spare,
        ConnState::Down { retry_us: NEVER_US } => ConnectionState::Parked,
        ConnState::Down { .. } => ConnectionState::Down,
        ConnState::Connecting { .. } => ConnectionState::Connecting,
        _ if !conn.reply.persist => ConnectionState::Ending,
        _ if conn.reading.paused => ConnectionState::Paused,
        _ if conn.reply.large => ConnectionState::Exclusive,
        _ if conn.wait.late => ConnectionState::Late,
        _ if conn.rest.syncing => ConnectionState::Syncing,
        _ if conn.gate.probation => ConnectionState::Probation,
        _ if conn.gate.hold => ConnectionState::Held,
        _ if conn.gate.full => ConnectionState::Full,
        _ if !conn.entries.is_empty() => ConnectionState::Busy,
        _ => ConnectionState::Idle,
    }
}

impl View<'_> {
    fn report_server(&self, at: ServerIndex) -> ServerReport {
        let server = &self.servers[at];
        let trust = server.learned.trust.state(self.cx.now_us);
        let penalty_us = match trust {
            TrustState::Penalty { until_us } => until_us.saturating_sub(self.cx.now_us),
            _ => 0,
        };
        let standing = server.standing.state();
        let suspended_us = match standing {
            State::Suspended(suspension) => self.cx.now_us.saturating_sub(suspension.since_us),
            _ => 0,
        };
        let pipelined = !server.mode.pipeline_off && trust == TrustState::Trusted;
        let conns = server.conns.iter().map(|index| self.conns.at(*index));
        ServerReport {
            standing,
            suspended_us,
            ready: server.ready,
            reachable: server.ready > 0
                || !server.contact.unreachable && (server.mode.private || server.is_hopeful()),
            waiting: server.waiting.len() as u32,
            unanswered: server.inflight,
            capacity: server.capacity,
            aside: server.positions.stalled(),
            tunnels: 0,
            vacant: false,
            failures: server.contact.failures,
            trust,
            penalty_us,
            penalty_for: server.learned.trust.penalty_for(self.cx.now_us),
            depth: if pipelined { server.learned.depth() } else { 1 },
            fresh: server.fresh.as_deref().map(Fresh::report),
            limit: server.learned_limit(self.cx.now_us),
            places: server.learned_places(),
            classes: server.learned.classes.report(),
            connections: conns.map(|conn| self.report_connection(at, server, conn)).collect(),
        }
    }

    fn report_connection(
        &self,
        at: ServerIndex,
        server: &Server,
        conn: &UpstreamConn,
    ) -> ConnectionReport {
        let given = conn.entries.partition_point(|entry: &Entry| entry.start < conn.log.flushed());
        let retry_us = match conn.state() {
            ConnState::Down { retry_us } if retry_us != NEVER_US => {
                retry_us.saturating_sub(self.cx.now_us)
            }
            _ => 0,
        };
        ConnectionReport {
            number: self.connection_number(at, conn.position),
            state: connection_state(conn, server.standing.keeps_connections()),
            since_us: self.cx.now_us.saturating_sub(conn.contact.since_us),
            retry_us,
            in_flight: given as u32,
            queued: (conn.entries.len() - given) as u32,
            answers: conn.history.answers,
            closes: conn.contact.closes,
            closed_why: conn.contact.closed_why,
            glitches: conn.history.glitches,
            near: server.positions.is_near(conn.position),
        }
    }

    /// The number of this worker's connection at `position`: the inverse of how connections are
    /// dealt to workers.
    fn connection_number(&self, server: ServerIndex, position: u32) -> u32 {
        let workers = u32::from(self.cx.workers);
        let first = (u32::from(self.cx.worker) + workers - server.number() % workers) % workers;
        first + position * workers
    }
}
