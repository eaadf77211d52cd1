//! Which requests may be behind which on an upstream connection, and the fate of those behind: the
//! engine alone, driven by hand.
//!
//! One server with one connection that has earned its depth; each test inspects the bytes that are
//! sent to it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use weir_proxy::engine::{Action, Engine, Hints, Input, Parts};
use weir_proxy::observe::counters::Counters;
use weir_proxy::observe::histogram::Histogram;
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::{Entrance, PipelineMode, Plan, ServerPlan, Share, UpstreamPlan};
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::upstream::trust::CLEAN_ANSWERS_MIN;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

struct Bench {
    engine: Engine,
    now_us: u64,
    sockets: u64,
    /// Token by socket.
    tokens: HashMap<u64, u64>,
    /// The newest connection to the server.
    conn: u64,
    /// The bytes that the server got on it since the last call.
    at_server: String,
    /// The bytes that each client got.
    at_client: HashMap<u64, String>,
    /// A client that takes nothing for now.
    slow: Option<u64>,
}

impl Bench {
    fn new(share: Share) -> Bench {
        let mut server = ServerPlan::new("server", SocketAddr::from(([192, 0, 2, 1], 80)));
        (server.connections, server.connections_max) = (1, 1);
        let pipeline = PipelineMode::Depth(8);
        let upstream =
            UpstreamPlan { servers: vec![server], share, pipeline, ..UpstreamPlan::default() };
        let route = Route::default();
        let routes = RouteTable::new(vec![route]);
        let plan = Plan { upstreams: vec![upstream], routes, ..Plan::default() };
        let parts = Parts {
            servers: ServerStats::for_plan(&plan),
            relays: false,
            plan: Arc::new(plan),
            worker: 0,
            workers: 1,
            seed: 1,
            secret: [1, 2],
            hints: Arc::new(Hints::new(1, 1)),
            counters: Arc::new(Counters::default()),
            latency: Arc::new(Histogram::default()),
            hits: Arc::default(),
        };
        let mut bench = Bench {
            engine: Engine::new(parts, 0),
            now_us: 0,
            sockets: 0,
            tokens: HashMap::new(),
            conn: 0,
            at_server: String::new(),
            at_client: HashMap::new(),
            slow: None,
        };
        bench.turn();
        let client = bench.client();
        for _ in 0..CLEAN_ANSWERS_MIN {
            bench.ask(client, "GET /warm HTTP/1.1\r\nHost: a\r\n\r\n");
            bench.answer(OK);
        }
        // The connection becomes idle.
        (0..4).for_each(|_| bench.turn());
        bench.at_server.clear();
        bench
    }

    fn turn(&mut self) {
        for _ in 0..4 {
            self.now_us += 10_000;
            self.engine.begin_turn(self.now_us);
            self.engine.settle();
            while let Some(action) = self.engine.poll_action() {
                self.perform(action);
            }
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Connect { token, .. } => {
                self.sockets += 1;
                self.conn = self.sockets;
                self.tokens.insert(self.conn, token);
                assert!(self.engine.upstream_started(token, self.conn));
                self.engine.upstream_connected(token, true);
            }
            Action::SendUpstream { socket, out } => {
                self.at_server.push_str(&String::from_utf8(out.to_vec()).unwrap());
                self.engine.upstream_sent(self.tokens[&socket], true);
            }
            Action::SendClient { socket, out } => {
                self.at_client
                    .entry(socket)
                    .or_default()
                    .push_str(&String::from_utf8(out.to_vec()).unwrap());
                if self.slow != Some(socket) {
                    self.engine.client_sent(self.tokens[&socket], None, true);
                }
            }
            _ => {}
        }
    }

    fn client(&mut self) -> u64 {
        self.sockets += 1;
        let token = self
            .engine
            .accepted(self.sockets, SocketAddr::from(([198, 51, 100, 7], 999)), Entrance::default())
            .unwrap();
        self.tokens.insert(self.sockets, token);
        self.sockets
    }

    fn ask(&mut self, client: u64, text: &str) {
        self.engine.client_received(self.tokens[&client], &Input::borrowed(text.as_bytes()));
        self.turn();
    }

    fn answer(&mut self, bytes: &[u8]) {
        self.answer_on(self.conn, bytes);
    }

    fn answer_on(&mut self, conn: u64, bytes: &[u8]) {
        self.engine.upstream_received(self.tokens[&conn], &Input::borrowed(bytes));
        self.turn();
    }

    fn arrived(&self, target: &str) -> usize {
        self.at_server.matches(&format!(" {target} ")).count()
    }
}

#[test]
fn clients_follow_each_other_when_all_share() {
    let mut bench = Bench::new(Share::All);
    let (first, second) = (bench.client(), bench.client());
    bench.ask(first, "GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    bench.ask(second, "GET /second HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((bench.arrived("/first"), bench.arrived("/second")), (1, 1));
}

#[test]
fn a_client_follows_itself_and_nobody_else() {
    let mut bench = Bench::new(Share::Client);
    let (first, second) = (bench.client(), bench.client());
    bench.ask(first, "GET /one HTTP/1.1\r\nHost: a\r\n\r\nGET /two HTTP/1.1\r\nHost: a\r\n\r\n");
    bench.ask(second, "GET /other HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((bench.arrived("/one"), bench.arrived("/two"), bench.arrived("/other")), (1, 1, 0));
    bench.answer(&[OK, OK].concat());
    assert_eq!(bench.arrived("/other"), 1);
}

/// The requests of a client that has left are still on the connection; the next client has its
/// place in the table, not its requests.
#[test]
fn a_client_does_not_follow_one_that_left() {
    let mut bench = Bench::new(Share::Client);
    let first = bench.client();
    bench.ask(first, "GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    let before = bench.conn;
    bench.engine.client_failed(bench.tokens[&first]);
    bench.turn();
    let second = bench.client();
    bench.ask(second, "GET /second HTTP/1.1\r\nHost: a\r\n\r\n");
    // The old connection ended, and the request was sent once, on another one.
    assert_ne!(bench.conn, before);
    assert_eq!((bench.arrived("/first"), bench.arrived("/second")), (1, 1));
    bench.answer(OK);
    assert!(bench.at_client[&second].ends_with("ok"));
}

/// NTLM makes a connection private, so weir ends it. A request that cannot be repeated is never
/// behind such a response.
#[test]
fn a_post_does_not_meet_an_answer_that_binds_its_connection() {
    let mut bench = Bench::new(Share::All);
    let (first, second) = (bench.client(), bench.client());
    bench.ask(first, "GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    bench.ask(second, "POST /pay HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!(bench.arrived("/pay"), 0, "it goes alone");
    bench.answer(b"HTTP/1.1 401 No\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n");
    bench.turn();
    assert_eq!(bench.arrived("/pay"), 1);
    bench.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npaid");
    assert!(bench.at_client[&second].ends_with("\r\n\r\npaid"), "{:?}", bench.at_client);
}

/// A safe request behind a slow response moves elsewhere; the later bytes for it on its old
/// connection, even an end by close, do not affect its client.
#[test]
fn an_answer_on_a_connection_set_aside_does_not_end_the_one_elsewhere() {
    let mut bench = Bench::new(Share::All);
    let (slow, mover) = (bench.client(), bench.client());
    bench.ask(slow, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    bench.ask(mover, "GET /moved HTTP/1.1\r\nHost: a\r\n\r\n");
    let old = bench.conn;
    bench.slow = Some(slow);
    bench.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    // Too much to be taken in for those behind it.
    bench.answer(format!("60000\r\n{}\r\n", "y".repeat(0x60000)).as_bytes());
    while bench.conn == old {
        bench.turn();
    }
    assert_eq!(bench.arrived("/moved"), 2);
    bench.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab");
    bench.slow = None;
    bench.engine.client_sent(bench.tokens[&slow], None, true);
    bench.turn();
    bench.answer_on(old, b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\nmoved");
    bench.engine.upstream_ended(bench.tokens[&old]);
    bench.turn();
    bench.answer(b"cd");
    assert!(bench.at_client[&mover].ends_with("\r\n\r\nabcd"), "{:?}", bench.at_client[&mover]);
}
