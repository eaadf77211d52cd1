//! The forward proxy: clients that request several destinations over one connection, and tunnels
//! through CONNECT.
//!
//! The same clients, servers, faults and checks as everywhere; only the plan differs, and requests
//! are in absolute-form.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_io::sim::{Faults, Rng, Settings};
use weir_proxy::forward::policy::{Policy, Rule};
use weir_proxy::plan::{
    ForwardPlan, ListenerPlan, Network, Plan, Pool, ServerPlan, Serves, UpstreamPlan,
};

use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, server_address};
use super::server::Style;
use super::tunnel::add_tunnels;
use super::{each_seed, seeds};

/// A world of this kind whose servers are destinations.
fn scenario(kind: Kind, seed: u64) -> Scenario {
    let mut scenario = Scenario::of(kind, seed, 1 + (seed % 3) as u16);
    let rng = &mut Rng::new(seed ^ 0xf0e);
    scenario.name = "forward";
    scenario.orders.clear();
    for style in &mut scenario.styles {
        *style = Style { echo: false, outages: Vec::new(), ..style.clone() };
    }
    scenario.manners.destinations = scenario.styles.len();
    (scenario.manners.cookies, scenario.manners.keys) = (false, false);
    let serves_half_closed = scenario.plan.client.serves_half_closed;
    scenario.plan = Arc::new(plan(rng));
    scenario.plan_mut().client.serves_half_closed = serves_half_closed;
    scenario
}

fn plan(rng: &mut Rng) -> Plan {
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let upstream = UpstreamPlan {
        name: "forward".to_owned(),
        servers: vec![ServerPlan { connections: 0, ..ServerPlan::new("any", nowhere) }],
        pool: *rng.pick(&[Pool::Pinned, Pool::Pinned, Pool::PerRequest]),
        ..UpstreamPlan::default()
    };
    // The servers' addresses are for documentation (RFC 5737), which are not public.
    let servers = Network { address: IpAddr::from([192, 0, 2, 0]), prefix_bits: 24 };
    let port = server_address(0).port();
    let rule =
        Rule { allow: true, addresses: vec![servers], ports: vec![port..=port], ..Rule::default() };
    Plan {
        listeners: vec![ListenerPlan {
            serves: Serves::Forward,
            ..ListenerPlan::new(listen_address())
        }],
        upstreams: vec![upstream],
        forward: Some(ForwardPlan {
            upstream: 0,
            policy: Policy::new(vec![rule], vec![listen_address()]),
            users: None,
            realm: "weir".to_owned(),
            destinations_max: *rng.pick(&[1, 2, 16]),
            user_connections_max: None,
            user_rate_max: None,
            resolvers: Vec::new(),
            pac: None,
        }),
        ..Plan::default()
    }
}

/// Honest destinations, and destinations that close and break their connections: each client gets
/// its responses in order.
#[test]
fn the_forward_proxy_keeps_its_promises() {
    each_seed(seeds(), |seed| {
        let kind = [Kind::Calm, Kind::Closing, Kind::Breaking, Kind::Rough][(seed % 4) as usize];
        Run::new(scenario(kind, seed)).finish();
    });
}

/// A bug in weir costs the clients of one worker.
#[test]
fn k3_a_panic_of_a_forward_proxy_costs_one_worker() {
    each_seed(seeds(), |seed| {
        let run = Run::new(scenario(Kind::Panicking, seed));
        run.panic(1 + (seed % 6) as u32, 300);
        run.finish();
    });
}

/// CONNECT carries every byte both ways, beside requests in absolute-form.
#[test]
fn connect_carries_every_byte() {
    each_seed(seeds(), |seed| tunnels(seed, true));
}

/// Whatever breaks: all bytes that came through are right, and nothing is left behind.
#[test]
fn broken_connects_leave_nothing_behind() {
    each_seed(seeds(), |seed| tunnels(seed, false));
}

fn tunnels(seed: u64, strict: bool) {
    let rng = &mut Rng::new(seed ^ 0x7e);
    let mut scenario = scenario(if strict { Kind::Calm } else { Kind::Rough }, seed);
    let faults = if strict { Faults::harmless(seed) } else { Faults::random(seed) };
    scenario.settings = Settings::random(seed, faults);
    scenario.settings.window_bytes = 1 << rng.between(12, 18);
    scenario.styles.iter_mut().for_each(|style| *style = Style::honest());
    scenario.manners.abort = 0;
    scenario.clients = rng.index(4);
    let plan = Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet");
    plan.upstreams[0].forward_timeout_us = 600_000_000;
    plan.client.tunnel_timeout_us = 30_000_000;
    let destinations = scenario.styles.len();
    let run = Run::new(scenario);
    add_tunnels(&run, rng, strict, |rng| Some(server_address(rng.index(destinations))));
    run.finish();
}
