//! How the machines handle servers with TLS: a connect that fails in its handshake has a reason and
//! has carried nothing, a response that ends with its connection is whole only when TLS says so,
//! tunnels are not passed to the driver. The engine alone, driven by hand.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use weir_proxy::ending::ServerTlsFailure;
use weir_proxy::engine::{Action, Engine, Hints, Input, Parts};
use weir_proxy::observe::counters::Counters;
use weir_proxy::observe::histogram::Histogram;
use weir_proxy::observe::server_event::{Event, What};
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::{
    Entrance, Plan, RetryPlan, ServerPlan, ServerTlsPlan, TrustPlan, UpstreamPlan,
};
use weir_proxy::request::route::{Route, RouteTable};

struct Bench {
    engine: Engine,
    counters: Arc<Counters>,
    servers: Vec<Arc<ServerStats>>,
    now_us: u64,
    /// Token by socket.
    tokens: HashMap<u64, u64>,
    /// How connects to each server end.
    outcomes: [Result<(), ServerTlsFailure>; 2],
    /// The connection of the last request.
    conn: u64,
    /// The bytes that each server got.
    at_server: [String; 2],
    server_of: HashMap<u64, usize>,
    at_client: String,
    closed: Option<bool>,
    relays: usize,
}

impl Bench {
    /// TLS with the first server may fail; the second is a backup.
    fn new(outcomes: [Result<(), ServerTlsFailure>; 2]) -> Bench {
        let tls = ServerTlsPlan { trust: TrustPlan::System, name: None, certificate: None };
        Bench::of(outcomes, Some(tls))
    }

    fn of(outcomes: [Result<(), ServerTlsFailure>; 2], tls: Option<ServerTlsPlan>) -> Bench {
        let server = |host: u8| {
            ServerPlan::new(&format!("s{host}"), SocketAddr::from(([192, 0, 2, host], 443)))
        };
        let servers = vec![server(0), ServerPlan { backup: true, ..server(1) }];
        let upstream = UpstreamPlan {
            servers,
            tls,
            retry: RetryPlan { connect_retries: 1, ..RetryPlan::default() },
            ..UpstreamPlan::default()
        };
        let route = Route::default();
        let plan = Plan {
            upstreams: vec![upstream],
            routes: RouteTable::new(vec![route]),
            ..Plan::default()
        };
        let (servers, counters) = (ServerStats::for_plan(&plan), Arc::new(Counters::default()));
        let parts = Parts {
            servers: servers.clone(),
            relays: true,
            plan: Arc::new(plan),
            worker: 0,
            workers: 1,
            seed: 1,
            secret: [1, 2],
            hints: Arc::new(Hints::new(2, 1)),
            counters: Arc::clone(&counters),
            latency: Arc::new(Histogram::default()),
            hits: Arc::default(),
        };
        let engine = Engine::new(parts, 0);
        let (tokens, server_of) = (HashMap::new(), HashMap::new());
        let mut bench = Bench {
            engine,
            counters,
            servers,
            now_us: 0,
            tokens,
            outcomes,
            conn: 0,
            at_server: Default::default(),
            server_of,
            at_client: String::new(),
            closed: None,
            relays: 0,
        };
        bench.turn();
        let token = bench
            .engine
            .accepted(1, SocketAddr::from(([198, 51, 100, 7], 999)), Entrance::default())
            .unwrap();
        bench.tokens.insert(1, token);
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
            Action::Connect { token, server, .. } => {
                let conn = 100 + self.tokens.len() as u64;
                self.tokens.insert(conn, token);
                self.server_of.insert(conn, server as usize);
                assert!(self.engine.upstream_started(token, conn));
                match self.outcomes[server as usize] {
                    Ok(()) => self.engine.upstream_connected(token, true),
                    Err(why) => self.engine.upstream_tls_refused(token, why),
                }
            }
            Action::SendUpstream { socket, out } => {
                let text = String::from_utf8(out.to_vec()).unwrap();
                self.at_server[self.server_of[&socket]].push_str(&text);
                self.conn = socket;
                self.engine.upstream_sent(self.tokens[&socket], true);
            }
            Action::SendClient { socket, out } => {
                self.at_client.push_str(&String::from_utf8(out.to_vec()).unwrap());
                self.engine.client_sent(self.tokens[&socket], None, true);
            }
            Action::CloseClient { reset, .. } => self.closed = Some(reset),
            Action::Relay { .. } => self.relays += 1,
            _ => {}
        }
    }

    fn ask(&mut self, text: &str) {
        self.engine.client_received(self.tokens[&1], &Input::borrowed(text.as_bytes()));
        self.turn();
    }

    fn answer(&mut self, bytes: &[u8]) {
        self.engine.upstream_received(self.tokens[&self.conn], &Input::borrowed(bytes));
        self.turn();
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.take_event()).collect()
    }
}

const POST: &str = "POST /pay HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
const UPGRADE: &str =
    "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCH: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_handshake_that_fails_has_carried_nothing_and_tells_why() {
    let why = ServerTlsFailure::Expired;
    let mut bench = Bench::new([Err(why), Ok(())]);
    bench.ask(POST);
    (0..20).for_each(|_| bench.turn());
    assert_eq!(bench.at_server[0], "");
    assert!(bench.at_server[1].starts_with("POST /pay "), "what can't be repeated goes elsewhere");
    let told = Event { server: 0, what: What::Unreachable(Some(why)) };
    assert!(bench.events().contains(&told));
    assert!(bench.servers[0].closes.get("tls-expired") > 0);
    assert_eq!(bench.servers[0].closes.get("connect-failed"), 0);
    assert_eq!(bench.servers[0].connect_failures.get(), bench.servers[0].closes.get("tls-expired"));
    let report = bench.engine.report();
    let words: Vec<_> = report.servers[0]
        .connections
        .iter()
        .filter_map(|connection| connection.closed_why)
        .map(|end| end.word())
        .collect();
    assert!(words.contains(&"tls-expired") && !report.servers[0].reachable, "{words:?}");
    // It is repaired.
    bench.outcomes[0] = Ok(());
    (0..1000).for_each(|_| bench.turn());
    assert!(bench.events().contains(&Event { server: 0, what: What::Reachable }));
}

#[test]
fn an_answer_that_ends_with_its_connection_is_whole_only_when_tls_says_so() {
    for is_cut in [false, true] {
        let mut bench = Bench::new([Ok(()), Ok(())]);
        bench.ask(GET);
        bench.answer(b"HTTP/1.1 200 OK\r\n\r\nsome of it");
        let token = bench.tokens[&bench.conn];
        if is_cut {
            bench.engine.upstream_cut(token);
        } else {
            bench.engine.upstream_ended(token);
        }
        bench.turn();
        assert_eq!(bench.at_client.ends_with("0\r\n\r\n"), !is_cut, "{}", bench.at_client);
        assert_eq!(bench.closed.is_some(), is_cut);
        let ends = |word| bench.servers[0].closes.get(word);
        assert_eq!(
            (ends("cut"), ends("answer-ended-by-close")),
            (u64::from(is_cut), u64::from(!is_cut))
        );
        // Servers that never announce it have not died of their requests.
        assert!(bench.engine.report().suspects.is_empty());
    }
    // A response with a length needs no such end, and an idle connection may end in any way.
    let mut bench = Bench::new([Ok(()), Ok(())]);
    bench.ask(GET);
    bench.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let token = bench.tokens[&bench.conn];
    bench.engine.upstream_cut(token);
    bench.turn();
    assert!(bench.at_client.ends_with("\r\n\r\nok"));
    assert_eq!(
        (bench.servers[0].closes.get("cut"), bench.servers[0].closes.get("server-closed")),
        (0, 1)
    );
}

#[test]
fn a_connection_that_breaks_in_tls_says_so() {
    let mut bench = Bench::new([Ok(()), Ok(())]);
    bench.ask(GET);
    let token = bench.tokens[&bench.conn];
    bench.engine.upstream_tls_failed(token, ServerTlsFailure::Alert);
    bench.turn();
    assert_eq!(bench.servers[0].closes.get("tls-alert"), 1);
    assert_eq!(bench.counters.upstream_closes.get("tls-alert"), 1);
}

#[test]
fn the_bytes_of_a_tunnel_are_not_the_driver_s() {
    let mut bench = Bench::new([Ok(()), Ok(())]);
    bench.ask(UPGRADE);
    bench.answer(SWITCH);
    bench.answer(b"hello");
    bench.answer(b" again");
    bench.ask("and back");
    assert!(bench.at_client.ends_with("\r\n\r\nhello again"), "{}", bench.at_client);
    assert!(bench.at_server[0].ends_with("\r\n\r\nand back"), "{}", bench.at_server[0]);
    assert_eq!(bench.relays, 0);
    // Without TLS the driver moves the bytes of tunnels.
    let mut bench = Bench::of([Ok(()), Ok(())], None);
    bench.ask(UPGRADE);
    bench.answer(SWITCH);
    assert_eq!(bench.relays, 1);
}
