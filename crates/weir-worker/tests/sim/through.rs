//! docs/transparent.md: clients that connect to servers and are redirected to weir on their way,
//! with HTTP and without. Their requests arrive at their destination, whatever their content, from
//! their own address, and share a connection with no other client's. Everything else is as
//! elsewhere.
//!
//! The same clients, servers, faults and checks as everywhere, and one more check of each request
//! that arrives, by [`Journeys`].

use std::collections::BTreeMap;
use std::net::SocketAddr;

use weir_io::sim::{Faults, Rng};
use weir_proxy::plan::{Dial, Pool, ServerPlan, Serves, Source};

use super::book::{Entry, Outcome};
use super::run::Run;
use super::scenario::{Kind, Scenario, server_index};
use super::server::Style;
use super::{each_seed, seeds, tcp};

/// Digits of a nonce that name its client.
const CLIENT: usize = 4;

/// The destinations and addresses of clients.
#[derive(Debug)]
pub struct Journeys {
    /// Servers see the ports of the clients.
    keeps_ports: bool,
    /// By client: the server, and the client's own end.
    begun: BTreeMap<String, (usize, SocketAddr)>,
}

impl Journeys {
    pub fn new(keeps_ports: bool) -> Journeys {
        Journeys { keeps_ports, begun: BTreeMap::new() }
    }

    /// Records that the client with this nonce has connected.
    pub fn begin(&mut self, nonce: &str, to: SocketAddr, from: Option<SocketAddr>) {
        if let Some(from) = from {
            self.begun.insert(nonce[..CLIENT].to_owned(), (server_index(to), from));
        }
    }

    /// Checks a request that has come to a server on a connection from `peer`. No two clients have
    /// one address.
    pub fn arrived(&self, nonce: &str, (server, peer): (usize, SocketAddr)) -> Result<(), String> {
        let begun = nonce.get(..CLIENT).and_then(|client| self.begun.get(client));
        let Some((destination, client)) = begun else {
            return Err(format!("{nonce} is of nobody who has connected"));
        };
        if *destination != server {
            return Err(format!("{nonce} was for server {destination} and came to {server}"));
        }
        let is_his =
            client.ip() == peer.ip() && (!self.keeps_ports || client.port() == peer.port());
        if is_his { Ok(()) } else { Err(format!("{nonce} of {client} came from {peer}")) }
    }
}

/// Redirects the clients of a world to weir on their way to its servers.
pub fn lead(mut scenario: Scenario, pool: Pool) -> Scenario {
    (scenario.name, scenario.is_between) = ("through", true);
    let upstream = &mut scenario.plan_mut().upstreams[0];
    upstream.servers = vec![ServerPlan::read("original-destination").expect("a place")];
    upstream.dial = Dial { source: Source::Client, ..Dial::default() };
    upstream.pool = pool;
    scenario.plan_mut().listeners[0].transparent = true;
    scenario
}

/// A world in which weir reads requests.
fn scenario(kind: Kind, seed: u64) -> Scenario {
    let mut scenario = Scenario::of(kind, seed, 1 + (seed % 3) as u16);
    let rng = &mut Rng::new(seed ^ 0x7423);
    scenario.orders.clear();
    for style in &mut scenario.styles {
        *style = Style { echo: false, outages: Vec::new(), ..style.clone() };
    }
    (scenario.manners.cookies, scenario.manners.keys) = (false, false);
    scenario.settings.faults.port_taken = *rng.pick(&[0, 300, 1000]);
    let plan = scenario.plan_mut();
    plan.upstreams[0] =
        weir_proxy::plan::UpstreamPlan { name: "through".to_owned(), ..Default::default() };
    lead(scenario, *rng.pick(&[Pool::Pinned, Pool::Pinned, Pool::PerRequest]))
}

/// Honest servers, and servers that close and break their connections.
#[test]
fn requests_arrive_where_their_clients_were_going() {
    each_seed(seeds(), |seed| {
        let kind = [Kind::Calm, Kind::Closing, Kind::Breaking, Kind::Rough][(seed % 4) as usize];
        Run::new(scenario(kind, seed)).finish();
    });
}

/// A bug in weir costs the clients of one worker.
#[test]
fn k3_a_panic_between_clients_and_servers_costs_one_worker() {
    each_seed(seeds(), |seed| {
        let run = Run::new(scenario(Kind::Panicking, seed));
        run.panic(1 + (seed % 6) as u32, 300);
        run.finish();
    });
}

/// The same for connections that pass through unchanged: also from the client's port, unless that
/// is taken.
#[test]
fn connections_arrive_where_their_clients_were_going() {
    each_seed(seeds(), |seed| {
        let (kind, faults) = match seed % 2 {
            0 => (Kind::Hostile, Faults::harmless(seed)),
            _ => (Kind::Rough, Faults::random(seed)),
        };
        let mut scenario = tcp::scenario(seed, kind, faults);
        scenario.settings.faults.port_taken = if seed % 3 == 0 { 500 } else { 0 };
        let scenario = lead(scenario, Pool::Tcp);
        assert!(matches!(scenario.plan.listeners[0].serves, Serves::Tcp(0)));
        Run::new(scenario).finish_with(|book| {
            let is_lost =
                |entry: &&Entry| kind == Kind::Hostile && entry.outcome != Outcome::Answered;
            let lost = book.entries.values().find(is_lost);
            lost.map_or(Ok(()), |entry| {
                Err(format!("a request was not answered: {:?}", entry.outcome))
            })
        });
    });
}
