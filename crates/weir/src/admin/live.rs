//! The data of the live page, as JSON: docs/status-metrics.md#the-live-page. Called by `routes`;
//! pure.
//!
//! Every client of the metrics listener can read it. So it has states, counts and names of the
//! configuration, and nothing that clients sent. Bounds: [`SERVERS_MAX`] servers, sick ones first,
//! and [`PIPES_MAX`] connections, [`PIPES_OF_SERVER_MAX`] of each.

use serde::Serialize;

use weir_proxy::observe::report::{ConnectionReport, ConnectionState};

use super::document::{Connections, Server, Status, VERSION, Worker};
use super::history::Sample;
use super::reading::{Reading, ServerReading};
use crate::status::overview;

/// Servers in the data.
const SERVERS_MAX: usize = 200;
/// Connections in the data in total ...
const PIPES_MAX: usize = 1000;
/// ... and of each server.
const PIPES_OF_SERVER_MAX: usize = 64;

/// `GET /live.json`.
#[derive(Debug, Serialize)]
pub(crate) struct Live {
    version: u32,
    weir: String,
    uptime_seconds: f64,
    state: String,
    ready: bool,
    driver: String,
    /// What needs attention, in sentences.
    notices: Vec<String>,
    /// Connections of clients.
    clients: u64,
    /// Requests since the start.
    requests: u64,
    workers: Vec<Worker>,
    /// Sick ones first.
    servers: Vec<LiveServer>,
    /// Number of all servers.
    servers_all: usize,
    /// Number of servers that take requests.
    servers_usable: usize,
    samples: Vec<Sample>,
}

/// A server, with its connections.
#[derive(Debug, Serialize)]
struct LiveServer {
    upstream: String,
    name: String,
    state: String,
    /// It gets requests only while no other server of its upstream can.
    backup: bool,
    /// It has a problem.
    sick: bool,
    /// What the operator should know of it.
    remark: Option<String>,
    requests_per_second: f64,
    in_flight: u64,
    waiting: u64,
    p50_us: Option<u64>,
    p99_us: Option<u64>,
    failures: u64,
    retries: u64,
    trust: String,
    /// Unanswered requests that a connection may have.
    depth: u32,
    connections: Connections,
    pipes: Vec<Pipe>,
    /// Further connections, left out above.
    pipes_more: usize,
}

/// A connection to a server that exists, or should: number, worker, state, in flight, in line
/// behind those, responses.
type Pipe = (u32, usize, &'static str, u32, u32, u64);

/// Makes the data of one reading; `status` is of the same reading.
pub(crate) fn live(mut status: Status, reading: &Reading, samples: Vec<Sample>) -> Live {
    // An error in the configuration may quote it.
    status.reload.error = status.reload.error.map(|_| "`weir status` shows the reason".to_owned());
    let notices = overview::notices(&status).into_iter().map(|cell| cell.text).collect();
    let servers = status
        .upstreams
        .iter()
        .flat_map(|upstream| upstream.servers.iter().map(|of| (&upstream.name, of)));
    // The same order: of upstreams, and of servers in them.
    let mut read: Vec<&ServerReading> = reading.servers.iter().collect();
    read.sort_by_key(|server| (server.upstream, server.index));
    let mut servers: Vec<_> = servers.zip(read).collect();
    servers.sort_by_key(|((_, server), _)| std::cmp::Reverse(server.sickness()));
    let (servers_all, servers_usable) =
        (servers.len(), servers.iter().filter(|((_, of), _)| of.usable).count());
    let mut places = PIPES_MAX;
    let mut server = |((upstream, server), reading): ((&String, &Server), &ServerReading)| {
        let shown = live_server(upstream, server, reading, places.min(PIPES_OF_SERVER_MAX));
        places -= shown.pipes.len();
        shown
    };
    let servers = servers.into_iter().take(SERVERS_MAX).map(&mut server).collect();
    Live {
        version: VERSION,
        weir: status.weir,
        uptime_seconds: status.uptime_seconds,
        state: status.state,
        ready: status.ready,
        driver: status.io.driver,
        notices,
        clients: status.clients.connections,
        requests: status.clients.requests,
        workers: status.workers,
        servers,
        servers_all,
        servers_usable,
        samples,
    }
}

fn live_server(
    upstream: &str,
    server: &Server,
    reading: &ServerReading,
    pipes_max: usize,
) -> LiveServer {
    let is_shown = |connection: &ConnectionReport| {
        !matches!(connection.state, ConnectionState::Spare | ConnectionState::Parked)
    };
    let all = reading.connections.iter().filter(|(_, connection)| is_shown(connection));
    let pipes: Vec<Pipe> =
        all.clone().take(pipes_max).map(|(worker, connection)| pipe(*worker, connection)).collect();
    let window = &server.window;
    LiveServer {
        upstream: upstream.to_owned(),
        name: server.name.clone(),
        state: server.state.clone(),
        backup: server.backup,
        sick: server.sickness() > 0,
        remark: overview::remark(server).map(|cell| cell.text),
        requests_per_second: window.requests_per_second_now,
        in_flight: server.in_flight,
        waiting: server.waiting,
        p50_us: window.latency.p50_us,
        p99_us: window.latency.p99_us,
        failures: window.answers.c5xx,
        retries: window.retries,
        trust: server.trust.clone(),
        depth: server.depth,
        connections: server.connections,
        pipes_more: all.count() - pipes.len(),
        pipes,
    }
}

fn pipe(worker: usize, connection: &ConnectionReport) -> Pipe {
    let ConnectionReport { number, state, in_flight, queued, answers, .. } = connection;
    (*number, worker, state.word(), *in_flight, *queued, *answers)
}
