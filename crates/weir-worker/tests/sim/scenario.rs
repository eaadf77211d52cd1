//! Draws a run from its seed: configuration, network, servers, clients, and the outcomes to expect.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_check::upstreams::{Closing, Ending, closings};
use weir_io::sim::{Faults, Rng, Settings};
use weir_proxy::placement::balance::Method;
use weir_proxy::plan::{
    AllDown, ListenerPlan, PipelineMode, Plan, Protocols, ServerPlan, Share, UpstreamPlan,
};
use weir_proxy::request::route::{Route, RouteTable};
use weir_worker::Prepared;

use super::client::{ALL, Manners, SAFE};
use super::dials::{self, Ordered};
use super::outage::outages;
use super::server::{ECHO_FIELD, Style};

/// The time in which servers go down and come back, microseconds.
const OUTAGES_US: u64 = 20_000_000;

/// The faults of a run, which decide what its clients may expect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Honest servers and a network that only delays and cuts: every request is answered.
    Calm,
    /// Servers that close their connections on purpose: requests that may be repeated are answered.
    Closing,
    /// Servers that break their connections in the middle of anything.
    Breaking,
    /// Everything: resets, refusals, aborts, half-closes, dead servers. No response is wrong.
    Rough,
    /// A server of the catalogue; the test judges the outcomes.
    Hostile,
    /// weir itself panics.
    Panicking,
    /// Servers are killed, frozen and replaced, but never all at a time: requests that may be
    /// repeated are answered.
    Outages,
}

/// Everything about a run.
pub struct Scenario {
    /// For messages.
    pub name: &'static str,
    pub seed: u64,
    pub kind: Kind,
    pub workers: u16,
    /// How many posts a mailbox between two workers holds.
    pub posts_max: usize,
    pub settings: Settings,
    pub plan: Arc<Plan>,
    pub styles: Vec<Style>,
    pub clients: usize,
    /// Thousandths of clients that speak HTTP/2.
    pub http2: u32,
    /// Thousandths of turns before which a worker gives idle connections to another worker.
    pub moves: u32,
    pub manners: Manners,
    /// Orders that an operator gives meanwhile.
    pub orders: Vec<Ordered>,
    pub sealed: Sealed,
    /// Thousandths of sealed connections that go wrong on purpose.
    pub mischief: u32,
    /// Clients connect to servers, and are redirected to weir on their way.
    pub is_between: bool,
    /// Where connections to servers wait that a reader of first packets begins before clients are
    /// accepted.
    pub prepared: Option<Arc<Prepared>>,
}

/// Which sides speak TLS with weir.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sealed {
    pub clients: bool,
    pub servers: bool,
}

pub fn listen_address() -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 1], 80))
}

pub fn server_address(index: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, index as u8 + 1], 9090))
}

/// Where clients find the relay that speaks TLS for them.
pub fn relay_address(http2: bool) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, if http2 { 3 } else { 2 }], 80))
}

/// Where weir finds the relay that speaks TLS for a server.
pub fn server_relay_address(index: usize) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, index as u8 + 1], 9090))
}

/// Limits a server to this many connections, while nothing holds any.
pub fn set_connections(server: &mut ServerPlan, connections: u32) {
    server.connections = connections;
    server.connections_min = server.connections_min.min(connections);
    server.connections_max = server.connections_max.max(connections);
}

/// The position in the plan of the server with this address.
pub fn server_index(address: SocketAddr) -> usize {
    match address.ip() {
        IpAddr::V4(address) => usize::from(address.octets()[3]) - 1,
        IpAddr::V6(_) => 0,
    }
}

/// How long hostile servers may be silent within a response.
const ANSWER_TIMEOUT_US: u64 = 60_000_000;

impl Scenario {
    pub fn new(seed: u64, workers: u16) -> Scenario {
        let kind = [Kind::Calm, Kind::Closing, Kind::Breaking, Kind::Rough][(seed % 4) as usize];
        Scenario::of(kind, seed, workers)
    }

    /// A scenario of this kind.
    pub fn of(kind: Kind, seed: u64, workers: u16) -> Scenario {
        let rng = &mut Rng::new(seed ^ 0x5ce7);
        let faults = match kind {
            Kind::Rough => Faults::random(seed),
            _ if rng.chance(200) => Faults::none(),
            _ => Faults::harmless(seed),
        };
        let mut settings = Settings::random(seed, faults);
        settings.window_bytes = 1 << rng.between(12, 18);
        let servers = if kind == Kind::Outages { 2 + rng.index(3) } else { 1 + rng.index(3) };
        let mut styles: Vec<Style> = (0..servers).map(|_| style(kind, rng)).collect();
        if settings.faults.half_close > 0 {
            // A response that ends by close looks complete even if it was cut.
            styles.iter_mut().for_each(|style| style.until_close = 0);
        }
        if kind == Kind::Outages {
            let outages = outages(servers, OUTAGES_US, rng);
            styles.iter_mut().zip(outages).for_each(|(style, outages)| style.outages = outages);
        }
        let echo = rng.chance(250);
        styles.iter_mut().for_each(|style| style.echo = echo);
        let mut scenario = Scenario {
            name: "random",
            seed,
            kind,
            workers,
            posts_max: *rng.pick(&[1, 4, 256]),
            settings,
            plan: Arc::new(plan(servers, echo, rng)),
            styles,
            clients: 1 + rng.index(16),
            http2: 0,
            moves: if workers > 1 { *Rng::new(seed ^ 0x40fe).pick(&[0, 30, 300]) } else { 0 },
            manners: manners(kind, rng),
            orders: Vec::new(),
            sealed: Sealed::default(),
            mischief: 0,
            is_between: false,
            prepared: None,
        };
        // A client that ends its direction gets its responses; in half of the rough runs only those
        // that come in time, where no client counts on the others.
        let is_patient = kind != Kind::Rough || Rng::new(seed ^ 0x4a1f).chance(500);
        scenario.plan_mut().client.serves_half_closed = is_patient;
        if kind == Kind::Hostile {
            // The default of an hour is longer than a world lasts: a server that swaps responses
            // may leave one without an end.
            scenario.plan_mut().upstreams[0].answer_timeout_us = ANSWER_TIMEOUT_US;
        } else {
            scenario.turn_dials(&mut Rng::new(seed ^ 0xd1a1));
        }
        scenario
    }

    /// The same with clients of both versions at one listener, which detects the version by their
    /// first bytes.
    pub fn with_http2(mut self) -> Scenario {
        self.http2 = 600;
        self.plan_mut().listeners[0].protocols = Protocols { http1: true, http2: true };
        self
    }

    /// The same with TLS on these sides.
    pub fn with_tls(mut self, sealed: Sealed) -> Scenario {
        (self.name, self.sealed) = ("sealed", sealed);
        if sealed.servers {
            for (index, server) in self.plan_mut().upstreams[0].servers.iter_mut().enumerate() {
                server.address = server_relay_address(index).into();
            }
            if self.kind == Kind::Rough {
                // Here a cut response differs from a complete one.
                self.styles
                    .iter_mut()
                    .for_each(|style| style.until_close = style.until_close.max(100));
            }
        }
        self
    }

    /// Where clients connect.
    pub fn door(&self, http2: bool) -> SocketAddr {
        if self.sealed.clients { relay_address(http2) } else { listen_address() }
    }

    /// Where this client connects, which speaks HTTP/1.
    pub fn door_of(&self, client: usize) -> SocketAddr {
        if self.is_between {
            self.server_address(client % self.styles.len())
        } else {
            self.door(false)
        }
    }

    /// Where this server is. Clients that connect to servers themselves need addresses that don't
    /// belong to the machine of the tests, because weir would know those: these belong to no
    /// machine (RFC 1112 §4).
    pub fn server_address(&self, index: usize) -> SocketAddr {
        let address = server_address(index);
        match (self.is_between, address) {
            (true, SocketAddr::V4(v4)) => {
                SocketAddr::from(([240, 0, 0, v4.ip().octets()[3]], v4.port()))
            }
            _ => address,
        }
    }

    /// Gives access to the plan to change it before the run.
    pub fn plan_mut(&mut self) -> &mut Plan {
        Arc::get_mut(&mut self.plan).expect("nobody shares it yet")
    }

    fn turn_dials(&mut self, rng: &mut Rng) {
        let pool = &mut Rng::new(self.seed ^ 0xb007);
        let upstream = &mut self.plan_mut().upstreams[0];
        dials::turn(upstream, rng);
        dials::turn_pool(upstream, pool);
        let concurrency = dials::concurrency(&mut Rng::new(self.seed ^ 0xc0c));
        let upstream = &mut self.plan_mut().upstreams[0];
        upstream.servers.iter_mut().for_each(|server| server.concurrency = concurrency);
        let upstream = &self.plan.upstreams[0];
        self.manners.cookies = upstream.sticky.is_some();
        self.manners.keys = upstream.balance != Method::default();
        let judges = upstream.health.is_some() || !upstream.failover.is_empty();
        let servers = self.styles.len();
        if judges {
            self.styles.iter_mut().for_each(|style| style.outages.extend(dials::illnesses(rng)));
        }
        // In `Outages` one server always remains; an order might concern that server.
        if self.kind != Kind::Outages && rng.chance(250) {
            self.orders = dials::orders(servers, self.kind, rng);
        }
        if (judges || !self.orders.is_empty()) && self.kind != Kind::Outages {
            self.manners.pause_us = *rng.pick(&[0, dials::PAUSE_US]);
        }
    }

    /// Whether servers may be suspended, or out by order.
    pub fn has_judges(&self) -> bool {
        let upstream = &self.plan.upstreams[0];
        upstream.health.is_some() || !upstream.failover.is_empty() || !self.orders.is_empty()
    }

    /// Whether requests of sessions whose server is out are refused.
    pub fn is_tied(&self) -> bool {
        self.plan.upstreams[0].sticky.as_ref().is_some_and(|sticky| !sticky.allow_failover)
    }

    /// Whether servers are never suspended, ordered out, or without a connection once they had one.
    pub fn is_always_up(&self) -> bool {
        self.kind == Kind::Calm
            && !self.has_judges()
            && self.styles.iter().all(|style| style.until_close == 0)
    }

    /// Whether suspended servers get requests when all are out.
    pub fn tries_all(&self) -> bool {
        self.plan.upstreams[0].all_down == AllDown::TryAll
    }
}

fn style(kind: Kind, rng: &mut Rng) -> Style {
    let delays = [0, 1_000, 20_000, 200_000];
    let mut style = Style {
        delay_us_max: *rng.pick(&delays),
        pieces: *rng.pick(&[0, 200, 700]),
        interim: *rng.pick(&[0, 0, 100]),
        until_close: *rng.pick(&[0, 0, 50]),
        slow: *rng.pick(&[0, 0, 50]),
        ..Style::honest()
    };
    let ending = |wanted: &[Ending], rng: &mut Rng| -> Option<Closing> {
        let all: Vec<Closing> =
            closings().into_iter().filter(|closing| wanted.contains(&closing.how)).collect();
        let mut closing = *rng.pick(&all);
        closing.answers = 1 + rng.index(20);
        Some(closing)
    };
    match kind {
        Kind::Calm | Kind::Hostile | Kind::Panicking => {}
        // A normal end must not look like a loss.
        Kind::Outages => style.until_close = 0,
        Kind::Closing => style.closing = ending(&[Ending::Fin, Ending::Announced], rng),
        Kind::Breaking => {
            style.closing = ending(&[Ending::Rst, Ending::HalfAnswer, Ending::Unread], rng)
        }
        Kind::Rough => {
            let all =
                [Ending::Fin, Ending::Announced, Ending::Rst, Ending::HalfAnswer, Ending::Unread];
            style.closing = if rng.chance(500) { ending(&all, rng) } else { None };
            style.silent = rng.chance(100);
        }
    }
    style
}

fn manners(kind: Kind, rng: &mut Rng) -> Manners {
    let (rough, outages) = (kind == Kind::Rough, kind == Kind::Outages);
    Manners {
        requests: 1 + rng.index(30),
        methods: if rng.chance(333) { SAFE } else { ALL },
        burst: *rng.pick(&[1, 2, 8, 100]),
        abort: if rough { *rng.pick(&[0, 200]) } else { 0 },
        half_close: *rng.pick(&[0, 300]),
        slow: *rng.pick(&[0, 0, 30]),
        decorations: rng.chance(500),
        // A body that is not held can't be repeated.
        body_bytes_max: if outages { 30_000 } else { *rng.pick(&[0, 1_000, 100_000, 400_000]) },
        old: *rng.pick(&[0, 0, 200]),
        pause_us: if outages { 2 * OUTAGES_US / 30 } else { 0 },
        cookies: false,
        keys: false,
        destinations: 0,
    }
}

fn plan(servers: usize, echo: bool, rng: &mut Rng) -> Plan {
    let server = |index: usize, rng: &mut Rng| {
        let connections = *rng.pick(&[1, 1, 2, 3, 8]);
        // Made when needed, as by default; or an exact number in advance.
        let (connections_min, connections_max) = *rng.pick(&[
            (1, 1024),
            (0, connections + 2),
            (connections, connections),
            (connections, connections),
        ]);
        ServerPlan {
            connections_min,
            connections,
            connections_max,
            weight: *rng.pick(&[50, 50, 10]),
            ..ServerPlan::new(&format!("server-{index}"), server_address(index))
        }
    };
    let upstream = UpstreamPlan {
        name: "app".to_owned(),
        servers: (0..servers).map(|index| server(index, rng)).collect(),
        pipeline: match rng.below(4) {
            0 => PipelineMode::Off,
            1 => PipelineMode::Adaptive,
            _ => PipelineMode::Depth(rng.between(1, 20) as u32),
        },
        echo: echo.then(|| ECHO_FIELD.to_owned()),
        share: if rng.chance(200) { Share::Client } else { Share::All },
        ..UpstreamPlan::default()
    };
    let route = Route::default();
    Plan {
        listeners: vec![ListenerPlan::new(listen_address())],
        upstreams: vec![upstream],
        routes: RouteTable::new(vec![route]),
        ..Plan::default()
    }
}
