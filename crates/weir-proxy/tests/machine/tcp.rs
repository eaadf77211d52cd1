//! Proves: a connection of `tcp` gets a server at once, whichever side speaks first; another one
//! when a connect fails, each once; ends and aborts are passed on as what they are; times, limits
//! and counts hold, also over a reload, a drain and a restarted worker (docs/tcp.md). How: the
//! driver's part is played by hand.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_proxy::cross::standing::Order;
use weir_proxy::ending::Farewell;
use weir_proxy::engine::{Over, Unwanted, stop_flows};
use weir_proxy::placement::balance::{Key, Method};
use weir_proxy::plan::{
    ClientPlan, Congestion, Entrance, HealthPlan, Keepalive, LimitPlan, Location, Plan, Pool,
    ProxyProtocol, Serves, ShieldPlan, Side, Source, TcpPlan, Terms, Tuning, UpstreamPlan, Whose,
};
use weir_proxy::shield::bans::{BanSet, Block};
use weir_proxy::upstream::server_state::State;

use crate::world::{Door, PORT, World, access_log, plan};

const SECOND_US: u64 = 1_000_000;
const LINE: &str = "$server_protocol $status $request_length $bytes_sent $ended_by $phase $reason \
    $tries $upstream_addr";

fn tcp(servers: usize) -> Plan {
    let mut plan = plan(servers, 1);
    plan.upstreams[0].pool = Pool::Tcp;
    plan.tcp = vec![Arc::new(TcpPlan::new(0))];
    plan.access_log = Some(access_log(LINE));
    plan
}

fn world_of(plan: Plan, workers: u16) -> World {
    let mut world = World::started(plan, workers, 1);
    world.serves = Serves::Tcp(0);
    world.raw = true;
    world
}

/// Returns a new client, and the connection that it is joined with.
fn joined(world: &mut World, node: usize) -> (usize, usize) {
    let client = world.client_of(node);
    world.settle();
    let of_client = world.relays.iter().find(|(of, _)| *of == client).expect("it is joined");
    *of_client
}

fn server_of(world: &World, conn: usize) -> usize {
    world.conns[conn].server
}

/// All clients leave in order, and nothing is left.
fn finish(mut world: World) {
    for (client, _) in std::mem::take(&mut world.relays) {
        if !world.clients[client].closed {
            world.moved = (0, 0);
            world.end_flow(client, Over::Complete);
        }
    }
    world.finish();
}

#[test]
fn a_server_is_there_before_the_first_byte_and_both_ends_are_passed_on() {
    let mut world = world_of(tcp(1), 1);
    assert!(world.conns.is_empty(), "no connection is made in advance");
    let (client, conn) = joined(&mut world, 0);
    assert_eq!(world.count(|counters| counters.tunnels.get()), 1);
    assert_eq!(world.nodes[0].engine.report().servers[0].tunnels, 1);
    assert_eq!(world.nodes[0].engine.report().clients, 1);
    world.moved = (7, 1000);
    world.end_flow(client, Over::Complete);
    world.settle();
    assert!(world.clients[client].closed && !world.clients[client].was_reset);
    assert!(world.conns[conn].closed && !world.conns[conn].was_reset);
    assert_eq!(world.lines, ["TCP - 7 1000 none done - 1 127.0.0.1:9000"]);
    let counted = world.count(|counters| {
        counters.client_bytes_in.get() * 10_000 + counters.upstream_bytes_in.get()
    });
    assert_eq!(counted, 71_000);
    assert_eq!(world.count(|counters| counters.tcp_closes.get("done")), 1);
    finish(world);
}

#[test]
fn an_abort_stays_an_abort() {
    for (over, word) in
        [(Over::Client, "client client-reset"), (Over::Server, "server server-reset")]
    {
        let mut world = world_of(tcp(1), 1);
        let (client, conn) = joined(&mut world, 0);
        let [by, why] = [0, 1].map(|at| word.split(' ').nth(at).expect("two words"));
        world.end_flow(client, over);
        world.settle();
        assert!(world.clients[client].was_reset && world.conns[conn].was_reset, "{over:?}");
        assert_eq!(world.lines, [format!("TCP - 0 0 {by} tunnel {why} 1 127.0.0.1:9000")]);
        finish(world);
    }
}

#[test]
fn a_connect_that_fails_goes_to_another_server_and_each_is_tried_once() {
    let mut world = world_of(tcp(3), 1);
    world.servers[0].door = Door::Refuses;
    world.servers[1].door = Door::Refuses;
    let (_, conn) = joined(&mut world, 0);
    assert_eq!(server_of(&world, conn), 2);
    // A server that has refused is not tried for a second.
    let before = world.connects.len();
    for _ in 0..5 {
        assert_eq!(joined(&mut world, 0).1, world.conns.len() - 1);
    }
    assert_eq!(world.connects.len(), before + 5);
    world.servers[2].door = Door::Refuses;
    let client = world.client();
    world.settle();
    assert!(world.clients[client].closed && world.clients[client].was_reset);
    assert_eq!(world.connects.len(), before + 5 + 3, "each once");
    assert!(
        world
            .lines
            .last()
            .expect("a line")
            .starts_with("TCP - 0 0 server connect connect-failed 3 -")
    );
    // If all have failed, the last ones may be tried all the same.
    world.servers[0].door = Door::Open;
    let (_, conn) = joined(&mut world, 0);
    assert_eq!(server_of(&world, conn), 0);
    finish(world);
}

#[test]
fn a_silent_server_costs_the_time_of_a_connect() {
    let mut world = world_of(tcp(2), 1);
    world.servers[0].door = Door::Mute;
    world.servers[1].door = Door::Mute;
    let client = world.client();
    world.run_for(4 * SECOND_US);
    assert_eq!(world.connects.len(), 1);
    let second = 1 - server_of(&world, 0);
    world.servers[second].door = Door::Open;
    world.run_for(2 * SECOND_US);
    assert!(world.conns[0].closed && !world.clients[client].closed);
    assert_eq!(world.relays, [(client, 1)]);
    world.servers[second].door = Door::Mute;
    let other = world.client();
    world.run_for(11 * SECOND_US);
    assert!(world.clients[other].was_reset);
    assert!(
        world
            .lines
            .last()
            .expect("a line")
            .starts_with("TCP - 0 0 server connect connect-timeout 2")
    );
    finish(world);
}

fn from_clients(servers: usize) -> Plan {
    let mut plan = tcp(servers);
    plan.upstreams[0].dial.source = Source::Client;
    plan
}

#[test]
fn servers_see_the_address_of_the_client_and_another_port_where_that_is_taken() {
    for late in [false, true] {
        let mut world = world_of(from_clients(2), 1);
        let (client, _) = joined(&mut world, 0);
        let own = SocketAddr::new(world.peer, world.clients[client].port);
        let from =
            |world: &World| world.ways.last().expect("a connect").as_ref().and_then(|way| way.from);
        assert_eq!(from(&world), Some(own));
        world.taken = Some((SocketAddr::new(world.peer, own.port() + 1), late));
        let (_, conn) = joined(&mut world, 0);
        assert_eq!(from(&world), Some(SocketAddr::new(world.peer, 0)));
        assert_eq!(world.connects[1], world.connects[2], "the same server");
        assert!(!world.conns[conn].closed);
        assert_eq!(world.count(|counters| counters.tcp_ports_changed.get()), 1);
        // No port at all: that server cannot be reached, and another one is tried.
        let before = world.connects.len();
        world.taken = Some((SocketAddr::new(world.peer, 0), late));
        let client = world.client();
        let mine = SocketAddr::new(world.peer, world.clients[client].port);
        world.settle();
        assert_eq!(from(&world), Some(mine), "only what is taken is asked for otherwise");
        assert_eq!(world.connects.len(), before + 1);
        finish(world);
    }
}

#[test]
fn a_port_that_no_server_can_be_reached_from_ends_in_a_reset() {
    // The taken address has no port already: the address itself cannot be used.
    let mut plan = tcp(2);
    plan.upstreams[0].dial.source = Source::Address(IpAddr::from([10, 9, 8, 7]));
    let mut world = world_of(plan, 1);
    world.taken = Some((SocketAddr::from(([10, 9, 8, 7], 0)), false));
    let client = world.client();
    world.settle();
    assert!(world.clients[client].was_reset);
    assert_eq!(world.connects.len(), 2, "each server once");
    assert!(world.lines.last().expect("a line").contains("connect-failed"));
    finish(world);
}

#[test]
fn who_has_connected_elsewhere_is_led_there() {
    let mut plan = from_clients(2);
    // The world has as many servers as the plan.
    let other = plan.upstreams[0].servers.split_off(1);
    plan.upstreams.push(UpstreamPlan {
        name: "other".to_owned(),
        servers: other,
        ..plan.upstreams[0].clone()
    });
    plan.upstreams[0].servers[0].address = Location::Destination;
    let mut world = world_of(plan, 1);
    for port in [PORT, PORT + 1] {
        world.destination = Some(SocketAddr::from(([127, 0, 0, 1], port)));
        let (client, _) = joined(&mut world, 0);
        assert_eq!(world.connects.last(), world.destination.as_ref());
        world.end_flow(client, Over::Complete);
        world.settle();
        assert_eq!(
            world.lines.pop().expect("a line"),
            format!("TCP - 0 0 none done - 1 127.0.0.1:{port}")
        );
    }
    // A server that cannot be reached proves nothing about others.
    world.servers[0].door = Door::Refuses;
    world.destination = Some(SocketAddr::from(([127, 0, 0, 1], PORT)));
    let client = world.client();
    world.settle();
    assert!(world.clients[client].was_reset);
    assert_eq!(
        world.lines.pop().expect("a line"),
        "TCP - 0 0 server connect connect-failed 1 127.0.0.1:9000"
    );
    world.destination = Some(SocketAddr::from(([127, 0, 0, 1], PORT + 1)));
    joined(&mut world, 0);
    // A client that has connected to weir itself would be led in a circle.
    world.destination = None;
    let before = world.connects.len();
    let client = world.client();
    world.settle();
    assert!(world.clients[client].was_reset);
    assert_eq!(
        (world.connects.len(), world.count(|counters| counters.tcp_closes.get("own-destination"))),
        (before, 1)
    );
    finish(world);
}

#[test]
fn what_is_idle_ends_and_sooner_when_it_is_half_closed() {
    let mut plan = tcp(1);
    let times = TcpPlan {
        idle_timeout_us: 80 * SECOND_US,
        half_close_timeout_us: 8 * SECOND_US,
        ..TcpPlan::new(0)
    };
    plan.tcp = vec![Arc::new(times)];
    let mut world = world_of(plan, 1);
    let (client, conn) = joined(&mut world, 0);
    world.run_for(60 * SECOND_US);
    world.moved = (1, 0);
    world.run_for(79 * SECOND_US);
    assert!(!world.clients[client].closed, "it has moved a byte");
    world.run_for(5 * SECOND_US);
    assert!(world.clients[client].was_reset && world.conns[conn].was_reset);
    assert_eq!(world.lines, ["TCP - 1 0 weir tunnel idle-timeout 1 127.0.0.1:9000"]);
    // Long idle, then half closed: the time starts with that.
    world.moved = (0, 0);
    let (client, _) = joined(&mut world, 0);
    world.run_for(70 * SECOND_US);
    world.half_closed = true;
    world.run_for(7 * SECOND_US);
    assert!(!world.clients[client].closed);
    // Traffic keeps it.
    for bytes in 1..10 {
        world.moved = (0, bytes);
        world.run_for(6 * SECOND_US);
        assert!(!world.clients[client].closed, "{bytes}");
    }
    world.run_for(11 * SECOND_US);
    assert!(world.clients[client].was_reset);
    assert_eq!(world.count(|counters| counters.tcp_closes.get("half-close-timeout")), 1);
    finish(world);
}

#[test]
fn what_is_relayed_is_looked_at_once_at_a_time() {
    // The time for the connect, which succeeds at once, is over when the first look is due.
    let mut plan = tcp(1);
    let look_us = plan.upstreams[0].connect_timeout_us;
    plan.tcp = vec![Arc::new(TcpPlan { half_close_timeout_us: 4 * look_us, ..TcpPlan::new(0) })];
    let mut world = world_of(plan, 1);
    joined(&mut world, 0);
    world.run_for(10 * look_us + look_us / 2);
    assert_eq!(world.looks, 10);
    finish(world);
}

#[test]
fn whether_a_server_is_there_is_asked_of_flows_that_last() {
    let mut world = world_of(tcp(1), 1);
    let (client, short) = joined(&mut world, 0);
    let (_, long) = joined(&mut world, 0);
    world.run_for(8 * SECOND_US);
    world.end_flow(client, Over::Complete);
    world.run_for(SECOND_US);
    assert!(world.kept_alive.is_empty());
    world.run_for(2 * SECOND_US);
    assert_ne!(short, long);
    assert_eq!(world.kept_alive, [long]);
    world.run_for(1000 * SECOND_US);
    assert_eq!(world.kept_alive, [long], "once");
    finish(world);
}

#[test]
fn where_the_configuration_says_when_servers_are_asked_they_are_from_the_start() {
    let ask = Keepalive::Ask { idle_s: 300, interval_s: 10, probes: 6 };
    for keepalive in [Keepalive::Off, ask] {
        let mut plan = tcp(1);
        let mut tuning = Tuning::by(None);
        tuning.keepalive = Some(keepalive);
        plan.upstreams[0].dial.tuning = Some(Arc::new(tuning.clone()));
        let mut world = world_of(plan, 1);
        joined(&mut world, 0);
        world.run_for(1000 * SECOND_US);
        assert!(world.kept_alive.is_empty());
        let way = world.ways[0].as_ref().expect("not as usual");
        assert_eq!(way.tuning.as_deref(), Some(&tuning));
        finish(world);
    }
}

#[test]
fn a_server_has_no_more_connections_than_it_may_over_all_workers() {
    let mut plan = tcp(2);
    plan.upstreams[0].servers.iter_mut().for_each(|server| server.tcp_connections_max = Some(2));
    let mut world = world_of(plan, 2);
    let all: Vec<_> = (0..4).map(|number| joined(&mut world, number % 2)).collect();
    for server in 0..2 {
        assert_eq!(all.iter().filter(|(_, conn)| server_of(&world, *conn) == server).count(), 2);
    }
    let refused = world.client_of(1);
    world.settle();
    assert!(world.clients[refused].was_reset);
    assert_eq!(world.count(|counters| counters.tcp_closes.get("no-server")), 1);
    world.end_flow(all[1].0, Over::Complete);
    world.settle();
    let (_, conn) = joined(&mut world, 0);
    assert_eq!(server_of(&world, conn), server_of(&world, all[1].1));
    // The counts of a lost worker are given back.
    world.begin_anew(0);
    world.settle();
    let again: Vec<_> = (0..3).map(|_| joined(&mut world, 1)).collect();
    assert_eq!(again.len(), 3);
    let refused = world.client_of(0);
    world.settle();
    assert!(world.clients[refused].was_reset);
    for (client, _) in all.into_iter().chain(again) {
        if !world.clients[client].closed {
            world.end_flow(client, Over::Complete);
        }
    }
    assert_eq!(world.count(|counters| counters.client_connections.get()), 0);
}

#[test]
fn connections_are_balanced() {
    // By weight.
    let mut plan = tcp(2);
    plan.upstreams[0].servers[0].weight = 75;
    plan.upstreams[0].servers[1].weight = 25;
    let mut world = world_of(plan, 1);
    let at_first = (0..40)
        .filter(|_| {
            let (_, conn) = joined(&mut world, 0);
            server_of(&world, conn) == 0
        })
        .count();
    assert_eq!(at_first, 30);
    finish(world);
    // By their connections: those that have ended no longer count for a server.
    let mut plan = tcp(2);
    plan.upstreams[0].balance = Method::Least;
    let mut world = world_of(plan, 2);
    let all: Vec<_> = (0..20).map(|number| joined(&mut world, number % 2)).collect();
    let (gone, left): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(_, conn)| server_of(&world, *conn) == 0);
    assert_eq!((gone.len(), left.len()), (10, 10));
    gone.iter().for_each(|(client, _)| world.end_flow(*client, Over::Complete));
    world.settle();
    for number in 0..10 {
        let (_, conn) = joined(&mut world, number % 2);
        assert_eq!(server_of(&world, conn), 0);
    }
    finish(world);
    // By the client's address: the same server each time, and another only when that is down.
    let mut plan = tcp(5);
    plan.upstreams[0].balance = Method::Hash(Key::ClientIp);
    plan.upstreams[0]
        .servers
        .iter_mut()
        .enumerate()
        .for_each(|(at, server)| server.name = format!("server-{at}"));
    let mut world = world_of(plan, 1);
    let mut homes = Vec::new();
    for number in 0..20u8 {
        world.peer = IpAddr::from([192, 0, 2, number]);
        let servers: Vec<_> = (0..2)
            .map(|_| {
                let (client, conn) = joined(&mut world, 0);
                // No server has far more than its share, for any key: none has any.
                world.end_flow(client, Over::Complete);
                server_of(&world, conn)
            })
            .collect();
        assert_eq!(servers[0], servers[1]);
        homes.push(servers[0]);
    }
    homes.sort_unstable();
    homes.dedup();
    assert!(homes.len() > 2, "{homes:?}");
    finish(world);
}

#[test]
fn backups_stand_in_for_servers_that_refuse() {
    let mut plan = tcp(2);
    plan.upstreams[0].servers[1].backup = true;
    let mut world = world_of(plan, 1);
    let (_, conn) = joined(&mut world, 0);
    assert_eq!(server_of(&world, conn), 0);
    world.servers[0].door = Door::Refuses;
    let (_, conn) = joined(&mut world, 0);
    assert_eq!(server_of(&world, conn), 1);
    world.servers[0].door = Door::Open;
    world.run_for(2 * SECOND_US);
    let (_, conn) = joined(&mut world, 0);
    assert_eq!(server_of(&world, conn), 0);
    finish(world);
}

#[test]
fn orders_and_reloads_leave_what_is_under_way() {
    let mut plan = tcp(2);
    plan.upstreams[0]
        .servers
        .iter_mut()
        .enumerate()
        .for_each(|(at, server)| server.name = format!("server-{at}"));
    let mut world = world_of(plan.clone(), 2);
    let (first, conn) = joined(&mut world, 0);
    let server = server_of(&world, conn);
    world.order(server as u32, Order::Disable);
    for node in 0..2 {
        let (_, conn) = joined(&mut world, node);
        assert_eq!(server_of(&world, conn), 1 - server);
    }
    assert!(!world.clients[first].closed, "what is under way goes on");
    world.order(server as u32, Order::Enable);
    // An upstream inserted in front, and the server is removed.
    let mut next = plan.clone();
    next.upstreams[0].servers.remove(server);
    let mut other = plan.upstreams[0].clone();
    "other".clone_into(&mut other.name);
    next.upstreams.insert(0, other);
    next.tcp = vec![Arc::new(TcpPlan::new(1))];
    world.reload(next);
    world.settle();
    assert!(!world.clients[first].closed);
    let report = world.nodes[0].engine.report();
    assert_eq!(
        (report.servers[server].standing, report.servers[server].vacant),
        (State::Leaving, false)
    );
    for node in 0..2 {
        let (_, conn) = joined(&mut world, node);
        assert_eq!(server_of(&world, conn), 1 - server);
    }
    world.end_flow(first, Over::Complete);
    world.settle();
    assert!(world.nodes[0].engine.report().servers[server].vacant);
    finish(world);
}

#[test]
fn weir_waits_for_connections_when_it_ends() {
    let mut world = world_of(tcp(1), 1);
    let (client, _) = joined(&mut world, 0);
    for who in [Farewell::Listener(0), Farewell::Successor, Farewell::All, Farewell::AllButTunnels]
    {
        world.nodes[0].engine.drain(who);
    }
    world.run_for(60 * SECOND_US);
    assert!(!world.clients[client].closed && !world.nodes[0].engine.is_drained());
    world.end_flow(client, Over::Complete);
    assert!(world.nodes[0].engine.is_drained());
    finish(world);
}

#[test]
fn what_is_left_when_weir_ends_is_reset() {
    let mut world = world_of(tcp(2), 1);
    let joined = joined(&mut world, 0);
    world.servers.iter_mut().for_each(|server| server.door = Door::Mute);
    let waits = world.client();
    world.nodes[0].engine.begin_turn(world.now_us);
    stop_flows(&mut world.nodes[0].engine);
    world.run_for(1);
    assert!(world.clients[joined.0].was_reset && world.clients[waits].was_reset);
    assert!(world.conns.iter().all(|conn| conn.was_reset));
    assert_eq!(world.count(|counters| counters.tcp_closes.get("stopped")), 2);
    assert!(world.lines[0].starts_with("TCP - 0 0 weir tunnel stopped 1 "), "{:?}", world.lines);
    assert!(world.lines[1].starts_with("TCP - 0 0 weir connect stopped 1 "), "{:?}", world.lines);
    world.finish();
}

#[test]
fn a_probe_is_a_connect() {
    let mut plan = tcp(2);
    plan.upstreams[0].health = Some(HealthPlan { interval_us: SECOND_US, ..HealthPlan::default() });
    let mut world = world_of(plan, 2);
    world.run_for(5 * SECOND_US);
    let probes = world.conns.len();
    assert!(probes >= 4 && world.conns.iter().all(|conn| conn.closed && conn.tunnel.is_empty()));
    assert_eq!(world.count(|counters| counters.probe_failures.get()), 0);
    world.servers[0].door = Door::Mute;
    world.run_for(30 * SECOND_US);
    let standing = |world: &World| world.nodes[1].engine.report().servers[0].standing;
    assert!(matches!(standing(&world), State::Suspended(_)), "{:?}", standing(&world));
    for node in 0..2 {
        let (_, conn) = joined(&mut world, node);
        assert_eq!(server_of(&world, conn), 1);
    }
    world.servers[0].door = Door::Open;
    world.run_for(10 * SECOND_US);
    assert_eq!(standing(&world), State::Active);
    // All suspended: servers that are tried all the same, and those that are not.
    world.servers.iter_mut().for_each(|server| server.door = Door::Refuses);
    world.run_for(10 * SECOND_US);
    world.servers.iter_mut().for_each(|server| server.door = Door::Open);
    let (_, conn) = joined(&mut world, 0);
    assert!(world.conns[conn].is_open());
    finish(world);
}

#[test]
fn who_is_gone_is_not_probed_and_who_is_back_is() {
    for pool in [Pool::Tcp, Pool::PerRequest] {
        let mut plan = tcp(1);
        plan.upstreams[0].pool = pool;
        if pool != Pool::Tcp {
            plan.tcp.clear();
        }
        plan.upstreams[0].health =
            Some(HealthPlan { interval_us: SECOND_US, ..HealthPlan::default() });
        let mut world = World::started(plan.clone(), 1, 1);
        let probes = |world: &mut World| {
            world.run_for(2 * SECOND_US);
            let before = world.count(|counters| counters.probes.get());
            world.run_for(10 * SECOND_US);
            world.count(|counters| counters.probes.get()) - before
        };
        assert!(probes(&mut world) > 5, "{pool:?}");
        let gone = Plan { access_log: plan.access_log.clone(), ..Plan::default() };
        world.reload(gone.clone());
        assert_eq!(probes(&mut world), 0, "{pool:?}: it is gone");
        world.reload(plan.clone());
        assert!(probes(&mut world) > 5, "{pool:?}: it is back");
        world.reload(gone);
        world.begin_anew(0);
        assert_eq!(probes(&mut world), 0, "{pool:?}: it is gone since before the worker");
        world.reload(plan);
        assert!(probes(&mut world) > 5, "{pool:?}: it is back on a new worker");
    }
}

#[test]
fn clients_are_limited_and_banned_as_others() {
    let mut plan = tcp(1);
    plan.shield = Some(ShieldPlan::new(vec![LimitPlan::new("open", Terms::Open(2))], 1024));
    let mut world = world_of(plan, 1);
    let open = |world: &World| {
        let shield = world.nodes[0].parts.plan.shield.as_ref().expect("limits");
        shield.seed.table().open_sum()
    };
    let all: Vec<_> = (0..2).map(|_| joined(&mut world, 0)).collect();
    assert_eq!(open(&world), 2);
    let refused = |world: &mut World| {
        let peer = std::net::SocketAddr::new(world.peer, 1);
        world.nodes[0].engine.begin_turn(world.now_us);
        world.nodes[0]
            .engine
            .accepted(77, peer, Entrance { serves: world.serves, ..Entrance::default() })
            .err()
    };
    assert!(refused(&mut world).is_some());
    world.end_flow(all[0].0, Over::Client);
    world.settle();
    assert_eq!(open(&world), 1);
    joined(&mut world, 0);
    let block = Block::read("192.0.2.1", 32, 64).expect("a block");
    let bans = BanSet::new(vec![(block, world.now_us + SECOND_US)].into_iter().collect());
    world.ban(bans);
    world.settle();
    assert_eq!(open(&world), 0);
    assert!(world.clients.iter().all(|client| client.was_reset));
    assert_eq!(refused(&mut world), Some(Unwanted::Reset));
    assert_eq!(world.count(|counters| counters.tcp_closes.get("banned")), 2);
    world.run_for(2 * SECOND_US);
    joined(&mut world, 0);
    // The counts of a lost worker are given back.
    assert_eq!(open(&world), 1);
    world.begin_anew(0);
    assert_eq!(open(&world), 0);
}

#[test]
fn there_are_no_more_connections_than_one_worker_may_have() {
    let mut plan = tcp(1);
    plan.client = ClientPlan { connections_max: Some(2), ..ClientPlan::default() };
    let mut world = world_of(plan, 1);
    joined(&mut world, 0);
    world.serves = Serves::Reverse;
    world.client();
    let entrance = |serves| Entrance { serves, ..Entrance::default() };
    for serves in [Serves::Reverse, Serves::Tcp(0)] {
        let peer = std::net::SocketAddr::new(world.peer, 1);
        world.nodes[0].engine.begin_turn(world.now_us);
        assert_eq!(
            world.nodes[0].engine.accepted(77, peer, entrance(serves)),
            Err(Unwanted::Close),
            "{serves:?}"
        );
    }
    assert_eq!(world.count(|counters| counters.connections_refused.get()), 2);
    finish(world);
}

#[test]
fn servers_are_told_whose_connection_it_is() {
    let mut plan = tcp(1);
    plan.upstreams[0].dial.proxy_protocol = Some(ProxyProtocol::V2);
    plan.upstreams[0].health = Some(HealthPlan::default());
    let mut world = world_of(plan, 1);
    world.run_for(SECOND_US);
    let told =
        |world: &World, conn: usize| world.conns[conn].announcement.expect("it is told").whose;
    assert_eq!(told(&world, 0), Whose::Own, "a probe");
    let (_, conn) = joined(&mut world, 0);
    assert!(
        matches!(told(&world, conn), Whose::Client { address, .. } if address.ip() == world.peer)
    );
    finish(world);
}

#[test]
fn where_descriptors_run_out_half_of_those_that_wait_are_served() {
    let mut world = world_of(tcp(1), 1);
    world.descriptors = Some(0);
    let clients: Vec<usize> = (0..10).map(|_| world.client()).collect();
    for _ in 0..40 {
        // Each reset one has freed a descriptor.
        let is_reset = |client: &&usize| world.clients[**client].was_reset;
        let free = clients.iter().filter(is_reset).count() - world.relays.len();
        world.descriptors = Some(free);
        world.run_for(10_000);
    }
    assert_eq!(world.relays.len(), 5);
    assert_eq!(world.count(|counters| counters.tcp_closes.get("no-descriptors")), 5);
    // It proves nothing about the server.
    world.descriptors = None;
    joined(&mut world, 0);
    finish(world);
}

#[test]
fn a_server_whose_addresses_are_not_to_be_had_is_one_that_fails() {
    let mut world = world_of(tcp(2), 1);
    world.servers[0].door = Door::Absent;
    for _ in 0..10 {
        let (_, conn) = joined(&mut world, 0);
        assert_eq!(server_of(&world, conn), 1);
    }
    world.servers[1].door = Door::Absent;
    let client = world.client();
    world.settle();
    assert!(world.clients[client].was_reset);
    assert!(
        world.lines[0].starts_with("TCP - 0 0 server connect connect-failed 2 "),
        "{:?}",
        world.lines
    );
    assert_eq!(world.count(|counters| counters.tcp_closes.get("no-descriptors")), 0);
    finish(world);
}

#[test]
fn thousands_at_a_time() {
    let mut world = world_of(tcp(3), 2);
    for number in 0..5_000 {
        world.client_of(number % 2);
    }
    world.settle();
    assert_eq!(world.relays.len(), 5_000);
    assert_eq!(world.count(|counters| counters.tunnels.get()), 5_000);
    world.run_for(1_000 * SECOND_US);
    finish(world);
}

#[test]
fn congestion_controls_are_compared_where_there_are_several() {
    let mut plan = tcp(1);
    plan.upstreams[0].dial.congestion = Congestion::new(["bbr", "cubic"].into_iter());
    let mut world = world_of(plan, 1);
    let (kept, _) = joined(&mut world, 0);
    world.divide(kept, "reno");
    for _ in 0..60 {
        let (client, _) = joined(&mut world, 0);
        world.run_for(1000);
        world.end_flow(client, Over::Complete);
    }
    world.servers[0].door = Door::Refuses;
    world.client();
    world.settle();
    let told = |world: &World| -> Vec<(Side, String, u64, u64)> {
        let arms = world.nodes[0].engine.report().arms;
        arms.iter().map(|arm| (arm.side, arm.name.to_string(), arm.flows, arm.sent)).collect()
    };
    let ended = told(&world);
    assert!(
        ended.iter().all(|(side, _, flows, sent)| *side == Side::Server && *sent == flows * 100),
        "{ended:?}"
    );
    assert_eq!(
        (ended.len(), ended.iter().map(|arm| arm.2).sum::<u64>()),
        (2, 60),
        "only who had a server: {ended:?}"
    );
    world.end_flow(kept, Over::Server);
    let all = told(&world);
    assert!(all.contains(&(Side::Client, "reno".to_owned(), 1, 100)), "{all:?}");
    assert_eq!(all.iter().map(|arm| arm.2).sum::<u64>(), 62);
    finish(world);
}

#[test]
fn cores_of_some_are_compared() {
    let mut world = world_of(tcp(1), 1);
    let all: Vec<_> = (0..130).map(|_| joined(&mut world, 0)).collect();
    assert_eq!(world.compared, [all[0], all[64], all[128]]);
    let none = world.nodes[0].engine.report().arms;
    assert!(none.is_empty(), "nobody pays for what is not compared: {none:?}");
    finish(world);
}
