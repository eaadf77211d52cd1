//! Proves: requests are sent to their client's original destination, whatever they say. They use
//! connections that belong to that client only, from its address, and the first from its port. A
//! client that means weir itself is refused, and an unreachable destination is named. How: a world
//! whose servers are destinations on 127.0.0.1, and the source of each connection.
//! docs/transparent.md.

use std::net::{IpAddr, SocketAddr};

use weir_check::upstreams::check_honest;
use weir_proxy::plan::{Network, Plan, Pool, ServerPlan, Source, UpstreamPlan};

use crate::world::{Do, Door, PORT, World, access_log, plan};

const SECOND_US: u64 = 1_000_000;
const LINE: &str = "$status $upstream_addr $reason";

/// Requests are sent to the original destination, with room for this many in the world.
pub fn through(pool: Pool, destinations: usize) -> Plan {
    let mut plan = plan(destinations, 1);
    let upstream = &mut plan.upstreams[0];
    (upstream.pool, upstream.dial.source) = (pool, Source::Client);
    upstream.servers = vec![ServerPlan::read("original-destination").expect("a place")];
    // Nothing leads there: it makes room for the others.
    let rest = (1..destinations)
        .map(|n| ServerPlan { connections_min: 0, ..ServerPlan::new(&format!("none-{n}"), at(n)) });
    plan.upstreams.push(UpstreamPlan {
        name: "none".to_owned(),
        servers: rest.collect(),
        pool: Pool::Pinned,
        ..UpstreamPlan::default()
    });
    plan.access_log = Some(access_log(LINE));
    plan
}

/// Returns the address of a destination.
pub fn at(server: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], PORT + server as u16))
}

/// Returns a new client that has connected to this destination.
fn client_to(world: &mut World, server: usize) -> usize {
    world.destination = Some(at(server));
    world.client()
}

fn ask(world: &mut World, client: usize, nonce: &str) {
    world.get(client, nonce);
    world.run_for(1000);
    let reply = world.clients[client].replies.last().expect("an answer");
    check_honest(nonce, reply).unwrap();
}

/// Returns the source of each connect.
fn from(world: &World) -> Vec<Option<SocketAddr>> {
    world
        .ways
        .iter()
        .map(|way| way.as_ref().and_then(|way| way.from.filter(|_| way.is_client)))
        .collect()
}

/// Returns the address of a client, with its port or with any.
fn of(world: &World, client: usize, has_port: bool) -> Option<SocketAddr> {
    let port = if has_port { world.clients[client].port } else { 0 };
    Some(SocketAddr::new(world.peer, port))
}

#[test]
fn requests_go_where_their_client_has_connected_to_whatever_they_say() {
    let mut world = World::started(through(Pool::Pinned, 2), 2, 1);
    let clients: Vec<usize> = (0..4).map(|n| client_to(&mut world, n % 2)).collect();
    for round in 0..3 {
        for client in &clients {
            ask(&mut world, *client, &format!("{client:04}{round:04}"));
        }
    }
    // A host elsewhere, as a name, as an address and in the target.
    for (n, (target, host)) in [
        ("/v", "victim.example"),
        ("/v", "127.0.0.1:9001"),
        ("http://127.0.0.1:9001/v", "victim.example"),
    ]
    .iter()
    .enumerate()
    {
        world.expect(clients[0], "GET", false, false);
        let head = format!(
            "GET {target}?n=0000100{n} HTTP/1.1\r\nHost: {host}\r\n\
                X-Forwarded-For: 192.0.2.7\r\n\r\n"
        );
        world.send(clients[0], head.as_bytes());
        world.run_for(1000);
    }
    assert_eq!(world.clients[clients[0]].statuses(), [200; 6]);
    assert_eq!(
        world.connects,
        [at(0), at(1), at(0), at(1)],
        "a connection for each client, to where it was going"
    );
    let own: Vec<_> = clients.iter().map(|client| of(&world, *client, true)).collect();
    assert_eq!(from(&world), own);
    for (conn, client) in world.conns.iter().zip(&clients) {
        assert_eq!(conn.server, client % 2);
        assert!(
            conn.requests
                .iter()
                .take(3)
                .all(|request| request.nonce()[..4] == format!("{client:04}"))
        );
    }
    let told: Vec<_> = world.conns[0].requests[3..].iter().map(|request| &request.fields).collect();
    let hosts: Vec<_> =
        told.iter().map(|fields| fields.first("host").unwrap_or_default()).collect();
    assert_eq!(hosts, ["victim.example", "127.0.0.1:9001", "127.0.0.1:9001"]);
    // weir adds nothing about the client, and the client's own statements are kept.
    assert!(
        told.iter().all(|fields| fields.first("x-forwarded-for") == Some("192.0.2.7")
            && !fields.has("forwarded"))
    );
    let fields = &world.conns[0].requests[0].fields;
    assert!(fields.first("x-forwarded-for").is_none());
    assert!(
        fields.has("via") && !fields.has("cdn-loop"),
        "servers that are strangers get Via alone"
    );
    world.reset(clients[1]);
    world.run_for(1000);
    assert!(world.conns[1].closed && !world.conns[3].closed);
    world.finish();
}

#[test]
fn only_the_first_connection_of_a_client_has_its_port() {
    for pool in [Pool::Pinned, Pool::PerRequest] {
        let mut world = World::started(through(pool, 1), 1, 1);
        let client = client_to(&mut world, 0);
        for n in 0..3 {
            ask(&mut world, client, &format!("{n:08}"));
            world.say(n, Do::Fin);
            world.run_for(1000);
        }
        let [first, other] = [true, false].map(|has_port| of(&world, client, has_port));
        assert_eq!(from(&world), [first, other, other]);
        assert_eq!(
            world.count(|counters| counters.tcp_ports_changed.get()),
            0,
            "nothing was in the way"
        );
        world.finish();
    }
}

#[test]
fn another_port_serves_where_that_of_the_client_is_taken() {
    for late in [false, true] {
        let mut world = World::started(through(Pool::Pinned, 1), 1, 1);
        let client = client_to(&mut world, 0);
        let [first, other] = [true, false].map(|has_port| of(&world, client, has_port));
        world.taken = first.map(|first| (first, late));
        ask(&mut world, client, "00000001");
        assert_eq!(from(&world), [first, other]);
        assert_eq!(world.count(|counters| counters.tcp_ports_changed.get()), 1);
        assert_eq!(world.count(|counters| counters.upstream_connects.get()), 1, "one connection");
        assert_eq!(world.open_conns().len(), 1);
        // No port at all: it cannot be reached.
        let second = client_to(&mut world, 0);
        world.taken = Some((SocketAddr::new(world.peer, 0), late));
        world.say(world.conns.len() - 1, Do::Fin);
        world.run_for(1000);
        world.get(client, "00000002");
        world.run_for(1000);
        assert_eq!(world.clients[client].statuses(), [200, 502]);
        ask(&mut world, second, "00000003");
        assert_eq!(world.count(|counters| counters.tcp_ports_changed.get()), 1);
        world.finish();
    }
}

#[test]
fn who_has_connected_to_weir_itself_is_refused() {
    let mut world = World::started(through(Pool::Pinned, 1), 1, 1);
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(1000);
    world.post(client, "00000002", b"body");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [421, 421]);
    assert!(world.clients[client].replies[0].body.text().contains("own-destination"));
    assert!(world.connects.is_empty());
    assert!(world.lines.iter().all(|line| line == "421 - own-destination"), "{:?}", world.lines);
    world.finish();
}

#[test]
fn a_destination_that_is_not_there_is_named_and_costs_nobody_else() {
    let mut world = World::started(through(Pool::Pinned, 3), 1, 1);
    world.servers[0].door = Door::Refuses;
    world.servers[1].door = Door::Mute;
    for (server, status, reason) in [(0, 502, "connect-failed"), (1, 504, "connect-timeout")] {
        for _ in 0..20 {
            let client = client_to(&mut world, server);
            world.get(client, "00000001");
            world.run_for(6 * SECOND_US);
            assert_eq!(world.clients[client].statuses(), [status]);
            assert_eq!(world.lines.last(), Some(&format!("{status} {} {reason}", at(server))));
        }
    }
    let client = client_to(&mut world, 2);
    ask(&mut world, client, "00000002");
    assert_eq!(world.lines.last(), Some(&format!("200 {} -", at(2))));
    // It is up again: nothing is remembered.
    world.servers[0].door = Door::Open;
    let client = client_to(&mut world, 0);
    ask(&mut world, client, "00000003");
    world.finish();
}

#[test]
fn a_request_without_a_host_means_where_its_client_has_connected_to() {
    let mut world = World::started(through(Pool::Pinned, 1), 1, 1);
    let client = client_to(&mut world, 0);
    world.expect(client, "GET", true, false);
    world.send(client, b"GET /v?n=00000001 HTTP/1.0\r\n\r\n");
    world.run_for(1000);
    assert_eq!(world.conns[0].requests[0].fields.first("host"), Some(&*at(0).to_string()));
    world.finish();
}

#[test]
fn servers_of_the_configuration_see_the_address_of_the_client_too() {
    let mut plan = plan(2, 1);
    (plan.upstreams[0].pool, plan.upstreams[0].dial.source) = (Pool::Pinned, Source::Client);
    plan.client.trusted_proxies =
        vec![Network { address: IpAddr::from([192, 0, 2, 0]), prefix_bits: 24 }];
    for destination in [None, Some(SocketAddr::from(([203, 0, 113, 9], 80)))] {
        let mut world = World::started(plan.clone(), 2, 1);
        world.destination = destination;
        let clients = [world.client_of(0), world.client_of(1), world.client_of(0)];
        for round in 0..2 {
            for client in clients {
                ask(&mut world, client, &format!("{client:04}{round:04}"));
            }
        }
        assert!(world.connects.iter().all(|to| [at(0), at(1)].contains(to)));
        assert_eq!(from(&world), clients.map(|client| of(&world, client, true)));
        for conn in &world.conns {
            assert!(
                conn.requests.iter().all(|one| one.nonce()[..4] == conn.requests[0].nonce()[..4])
            );
        }
        // A proxy for another client is trusted, and that client has its own connection.
        world.ask(clients[0], "GET", "/v?n=00000009", "X-Forwarded-For: 198.51.100.77\r\n");
        world.run_for(1000);
        let other = SocketAddr::from(([198, 51, 100, 77], 0));
        assert_eq!((from(&world).len(), from(&world).last()), (4, Some(&Some(other))));
        world.finish();
    }
}

/// A client whose address cannot be the source of a connection to the server gets none, as often as
/// it tries, and no other client is affected.
#[test]
fn who_is_of_another_family_keeps_nobody_from_a_server() {
    let mut plan = plan(1, 1);
    (plan.upstreams[0].pool, plan.upstreams[0].dial.source) = (Pool::Pinned, Source::Client);
    let mut spare = ServerPlan::new("spare", at(1));
    (spare.backup, spare.connections_min) = (true, 0);
    plan.upstreams[0].servers.push(spare);
    let mut world = World::started(plan, 1, 2);
    for round in 0..3 {
        world.peer = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7]);
        let client = world.client();
        world.get(client, "00000001");
        world.run_for(1000);
        assert_eq!(world.clients[client].statuses(), [502]);
        world.peer = IpAddr::from([192, 0, 2, 7]);
        let client = world.client();
        ask(&mut world, client, "00000002");
        assert_eq!(world.conns.last().map(|conn| conn.server), Some(0), "round {round}");
    }
    world.finish();
}

/// Another configuration leads to its own servers, or to no particular ones: those are two
/// upstreams, and requests in progress continue.
#[test]
fn a_reload_makes_another_upstream_of_it() {
    let named = || {
        let mut plan = through(Pool::Pinned, 2);
        plan.upstreams[0].servers = vec![ServerPlan::new("origin.test:9001", at(1))];
        plan
    };
    let mut world = World::started(through(Pool::Pinned, 2), 1, 1);
    let client = client_to(&mut world, 0);
    world.serve(|seen| {
        seen.complete
            .then(|| vec![Do::Delay(5_000), Do::Answer(crate::world::answer(seen.request))])
    });
    world.get(client, "00000001");
    world.run_for(1000);
    world.reload(named());
    world.run_for(10_000);
    ask_late(&mut world, client, "00000002");
    assert_eq!(world.conns.iter().map(|conn| conn.server).collect::<Vec<_>>(), [0, 1]);
    world.reload(through(Pool::Pinned, 2));
    ask_late(&mut world, client, "00000003");
    // The one that it had there before is still its own.
    assert_eq!(world.conns.iter().map(|conn| conn.requests.len()).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(world.clients[client].statuses(), [200; 3]);
    world.finish();
}

fn ask_late(world: &mut World, client: usize, nonce: &str) {
    world.get(client, nonce);
    world.run_for(10_000);
    check_honest(nonce, world.clients[client].replies.last().expect("an answer")).unwrap();
}
