//! Requests through weir-proxy's engine, without sockets: parse, route, schedule, log, match the
//! reply, order, respond.
//!
//! Each turn every client sends one request; then every upstream connection with requests answers
//! all of them.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_proxy::base::output::Out;
use weir_proxy::engine::{Action, Engine, Hints, Input, Parts};
use weir_proxy::plan::Entrance;

use crate::messages;

/// Connections to all servers together.
const CONNECTIONS: usize = 32;
/// Time between two turns, microseconds.
const TURN_US: u64 = 50;

struct Harness {
    engine: Engine,
    now_us: u64,
    /// Tokens of clients by socket; sockets of upstream connections are their tokens.
    clients: Vec<u64>,
    /// Upstream connections with requests in this turn, and how many bytes they were sent.
    asked: Vec<(u64, usize)>,
    answered: u64,
    connected: usize,
}

/// Sends `count` requests from `clients` clients to `servers` servers, with an access log of this
/// format, or `off`.
pub(crate) fn run(clients: usize, servers: usize, request: &[u8], log: &str, count: u64) {
    let mut harness = Harness::new(clients, servers, log);
    // A forwarded request is longer than the received one; a first request shows its exact length.
    let forwarded = harness.forwarded_bytes(request);
    let reply = messages::reply();
    while harness.answered < count {
        harness.turn(request, forwarded, &reply);
    }
}

impl Harness {
    fn new(clients: usize, servers: usize, log: &str) -> Harness {
        let parts = Parts {
            plan: Arc::new(messages::plan(servers, CONNECTIONS, log)),
            worker: 0,
            workers: 1,
            seed: 1,
            secret: [1, 2],
            hints: Arc::new(Hints::new(servers, 1)),
            counters: Arc::default(),
            latency: Arc::default(),
            hits: Arc::default(),
            servers: Vec::new(),
            relays: false,
        };
        let now_us = 1_000_000;
        let engine = Engine::new(parts, now_us);
        let mut harness = Harness {
            engine,
            now_us,
            clients: Vec::new(),
            asked: Vec::new(),
            answered: 0,
            connected: 0,
        };
        // Connects are spread over time.
        while harness.connected < CONNECTIONS {
            let due_us = harness.engine.next_deadline().expect("connects are due");
            harness.now_us = harness.now_us.max(due_us);
            harness.step();
        }
        let peer: SocketAddr = ([10, 0, 0, 3], 4000).into();
        for socket in 0..clients as u64 {
            harness.clients.push(
                harness.engine.accepted(socket, peer, Entrance::default()).expect("there is room"),
            );
        }
        harness.step();
        harness
    }

    /// Begins and ends a turn without input.
    fn step(&mut self) {
        self.begin();
        self.end();
    }

    fn begin(&mut self) {
        self.now_us += TURN_US;
        self.engine.begin_turn(self.now_us);
    }

    fn end(&mut self) {
        self.engine.settle();
        while let Some(action) = self.engine.poll_action() {
            self.perform(action);
        }
        self.engine.take_lines(|lines, _| {
            std::hint::black_box(lines);
        });
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Connect { token, .. } => {
                assert!(self.engine.upstream_started(token, token));
                self.engine.upstream_connected(token, true);
                self.connected += 1;
            }
            Action::SendUpstream { socket, out } => {
                self.asked.push((socket, out.len()));
                self.engine.upstream_sent(socket, true);
            }
            Action::SendClient { socket, out } => {
                self.answered += 1;
                let token = self.clients[socket as usize];
                let spare = if let Out::Owned(bytes) = out { Some(bytes) } else { None };
                self.engine.client_sent(token, spare, true);
            }
            Action::ReceiveClient { .. }
            | Action::SeeClient { .. }
            | Action::DeferClient { .. }
            | Action::LookClient { .. }
            | Action::ReceiveUpstream { .. }
            | Action::LocateUpstream { .. }
            | Action::ExamineUpstream { .. }
            | Action::Measure { .. }
            | Action::CompareCores { .. }
            | Action::AcknowledgeUpstream { .. } => {}
            closing => panic!("nothing should close: {closing:?}"),
        }
    }

    /// Returns the length of one request as the server sees it.
    fn forwarded_bytes(&mut self, request: &[u8]) -> usize {
        self.begin();
        self.engine.client_received(self.clients[0], &Input::borrowed(request));
        self.end();
        let (conn, bytes) = self.asked.pop().expect("the request was forwarded");
        self.begin();
        self.engine.upstream_received(conn, &Input::borrowed(&messages::reply()));
        self.end();
        bytes
    }

    /// Sends one request from every client, and answers all.
    fn turn(&mut self, request: &[u8], forwarded: usize, reply: &[u8]) {
        let goal = self.answered + self.clients.len() as u64;
        self.begin();
        for index in 0..self.clients.len() {
            self.engine.client_received(self.clients[index], &Input::borrowed(request));
        }
        self.end();
        // Requests beyond the depth of the connections are sent when responses make room.
        while self.answered < goal {
            self.begin();
            for (conn, bytes) in std::mem::take(&mut self.asked) {
                let replies = reply.repeat(bytes / forwarded);
                self.engine.upstream_received(conn, &Input::borrowed(&replies));
            }
            self.end();
        }
    }
}
