//! Proves: the use by clients that choose their own destination, those of the forward proxy and
//! those that are passed on to their original destination, is charged to the right destination and
//! user, and all of it is reported. The end of every test of this binary checks that all bytes are
//! charged to some destination.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_proxy::engine::Over;
use weir_proxy::forward::lookup::User;
use weir_proxy::observe::accounting::Use;
use weir_proxy::observe::report::{UsedReport, UsedRow};
use weir_proxy::plan::{AllDown, Plan, Pool, ServerPlan, Serves, TcpPlan, UpstreamPlan};

use crate::forward::{ANN, forward, get, resolved, send, verify, with_users, world};
use crate::transparent::{at, through};
use crate::world::{Do, Door, World};

const SECOND_US: u64 = 1_000_000;

/// Destinations and users.
fn told(world: &World) -> (UsedReport, UsedReport) {
    let usage = world.nodes[0].engine.report().usage.expect("a forward proxy");
    (usage.destinations, usage.users)
}

fn row<'a>(report: &'a UsedReport, name: &str) -> &'a UsedRow {
    report
        .rows
        .iter()
        .find(|row| *row.name == *name)
        .unwrap_or_else(|| panic!("no {name} in {report:?}"))
}

/// Connections, requests, tunnels and refusals.
fn figures(row: &UsedRow) -> (u32, u64, u64, Vec<(&str, u64)>) {
    (row.connections, row.used.requests, row.used.tunnels, row.used.refusals.clone())
}

/// Requests, a tunnel, refusals of all kinds: each counts for its destination and for its user.
#[test]
fn who_did_what() {
    let mut world = world(with_users());
    world.servers[2].door = Door::Refuses;
    let (client, ann) = (world.client(), Arc::new(User::new("ann")));
    get(&mut world, client, "127.0.0.1:9000", "00000001");
    world.run_for(1000);
    send(&mut world, client, "GET", "http://A.example:9000/v?n=00000002", ANN);
    world.run_for(1000);
    verify(&mut world, Some(&ann));
    world.errands.clear();
    resolved(&mut world, "a.example", &[[127, 0, 0, 1]], 60_000_000);
    for (n, target) in
        ["http://a.example:9000/v?n=", "http://127.0.0.1:9001/v?n=", "http://10.0.0.1/"]
            .iter()
            .enumerate()
    {
        send(&mut world, client, "GET", &format!("{target}{:08}", n + 3), ANN);
        world.run_for(1000);
    }
    send(&mut world, client, "GET", "http://127.0.0.1:9002/", ANN);
    world.run_for(1000);
    send(&mut world, client, "GET", "/", "");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [407, 200, 200, 200, 403, 502, 400]);
    let (destinations, users) = told(&world);
    assert_eq!(figures(row(&destinations, "a.example:9000")), (1, 2, 0, vec![]));
    assert_eq!(figures(row(&destinations, "127.0.0.1:9001")), (1, 1, 0, vec![]));
    assert_eq!(
        figures(row(&destinations, "10.0.0.1:80")),
        (0, 0, 0, vec![("address-not-public", 1)])
    );
    assert_eq!(
        figures(row(&destinations, "127.0.0.1:9002")),
        (0, 1, 0, vec![("connect-failed", 1)])
    );
    assert_eq!((destinations.rows.len(), &destinations.others), (4, &Use::default()));
    let refused = vec![("address-not-public", 1), ("connect-failed", 1)];
    assert_eq!((figures(row(&users, "ann")), users.rows.len()), ((1, 4, 0, refused), 1));
    let sum = |of: fn(&Use) -> u64| destinations.rows.iter().map(|row| of(&row.used)).sum::<u64>();
    let of_ann = &row(&users, "ann").used;
    assert_eq!(
        (of_ann.bytes_in, of_ann.bytes_out),
        (sum(|used| used.bytes_in), sum(|used| used.bytes_out))
    );
    assert!(of_ann.bytes_in > 0 && of_ann.bytes_out > 0);
    world.finish();
}

/// A tunnel is a connection of its destination, and its bytes count whichever side moves them.
#[test]
fn tunnels_are_charged() {
    for relayed in [false, true] {
        // The bytes that the driver reports as moved never reach the client, which lines of the log
        // are compared with.
        let mut world = world(Plan { access_log: None, ..forward() });
        if relayed {
            world.let_relay();
        }
        world.raw = true;
        let client = world.client();
        send(&mut world, client, "CONNECT", "127.0.0.1:9000", "");
        world.run_for(1000);
        assert_eq!(figures(row(&told(&world).0, "127.0.0.1:9000")), (1, 0, 1, vec![]));
        assert_eq!(world.relays.len(), usize::from(relayed));
        if relayed {
            world.moved = (1000, 50_000);
            world.end_relay(client, false);
        } else {
            world.send(client, &[b'x'; 1000]);
            world.say(0, Do::Bytes(vec![b'y'; 50_000]));
            world.run_for(1000);
            world.reset(client);
        }
        world.run_for(1000);
        let destinations = told(&world).0;
        let tunnel = row(&destinations, "127.0.0.1:9000");
        assert_eq!(
            (tunnel.connections, tunnel.used.bytes_out, tunnel.used.bytes_in),
            (0, 1000, 50_000)
        );
        world.finish();
    }
}

/// A worker without a forward proxy reports nothing of the kind.
#[test]
fn a_reverse_proxy_has_no_destinations() {
    assert_eq!(World::simple(1).nodes[0].engine.report().usage, None);
}

/// A world whose clients of `tcp` are passed on to their original destination, one of this many.
fn flows_anywhere(destinations: usize) -> World {
    let mut plan = through(Pool::Tcp, destinations);
    plan.upstreams[1].pool = Pool::Tcp;
    plan.tcp = [0, 1].map(|upstream| Arc::new(TcpPlan::new(upstream))).into();
    plan.access_log = None;
    let mut world = World::started(plan, 1, 1);
    (world.serves, world.raw) = (Serves::Tcp(0), true);
    world
}

/// Returns a new client for this destination, after this time.
fn client_to(world: &mut World, destination: SocketAddr, later_us: u64) -> usize {
    world.destination = Some(destination);
    let client = world.client();
    world.run_for(later_us);
    client
}

fn bytes(row: &UsedRow) -> (u64, u64) {
    (row.used.bytes_out, row.used.bytes_in)
}

/// Connections of `tcp` count at their target, while they last and at their end; a client without a
/// server counts by the reason.
#[test]
fn connections_are_charged_to_where_they_go() {
    let mut world = flows_anywhere(4);
    let name = |server: usize| at(server).to_string();
    let both = [0, 0].map(|server| client_to(&mut world, at(server), 1000));
    world.moved = (10, 2000);
    // The first look at each.
    world.run_for(20 * SECOND_US);
    let destinations = told(&world).0;
    let first = row(&destinations, &name(0));
    assert_eq!((figures(first), bytes(first)), ((2, 0, 2, vec![]), (20, 4000)));
    world.moved = (11, 3000);
    world.end_flow(both[0], Over::Complete);
    world.moved = (10, 2000);
    world.end_flow(both[1], Over::Server);
    world.servers[1].door = Door::Refuses;
    world.servers[2].door = Door::Mute;
    (0..3).for_each(|_| _ = client_to(&mut world, at(1), 1000));
    client_to(&mut world, at(2), 10 * SECOND_US);
    // A client that leaves before is no refusal.
    let left = client_to(&mut world, at(2), 1000);
    assert_eq!(figures(row(&told(&world).0, &name(2))).0, 1, "it is being connected");
    world.reset(left);
    let own = SocketAddr::from(([198, 18, 1, 1], 80));
    world.is_own = true;
    client_to(&mut world, own, 1000);
    world.is_own = false;
    // A client that is sent to a server of the configuration, which is its destination as well.
    world.serves = Serves::Tcp(1);
    let named = client_to(&mut world, at(3), 1000);
    world.moved = (5, 5);
    world.end_flow(named, Over::Complete);
    let destinations = told(&world).0;
    let first = row(&destinations, &name(0));
    assert_eq!((figures(first), bytes(first)), ((0, 0, 2, vec![]), (21, 5000)));
    assert_eq!(figures(row(&destinations, &name(1))), (0, 0, 3, vec![("connect-failed", 3)]));
    assert_eq!(figures(row(&destinations, &name(2))), (0, 0, 2, vec![("connect-timeout", 1)]));
    assert_eq!(
        figures(row(&destinations, &own.to_string())),
        (0, 0, 0, vec![("own-destination", 1)])
    );
    assert_eq!((destinations.rows.len(), &destinations.others), (4, &Use::default()));
    assert_eq!(told(&world).1, UsedReport::default(), "nobody says who he is");
    world.finish();
}

/// A client without room never sets out, and is counted as such.
#[test]
fn who_finds_no_room_is_refused_by_where_he_wanted_to() {
    let mut world = flows_anywhere(2);
    let mut plan = Plan::clone(&world.nodes[0].parts.plan);
    plan.upstreams[0].servers[0].tcp_connections_max = Some(1);
    world.reload(plan);
    let first = client_to(&mut world, at(0), 1000);
    client_to(&mut world, at(0), 1000);
    assert_eq!(
        figures(row(&told(&world).0, &at(0).to_string())),
        (1, 0, 1, vec![("no-server", 1)])
    );
    world.moved = (0, 0);
    world.end_flow(first, Over::Complete);
    world.finish();
}

/// Requests count at their client's original destination, whatever they say; errors by reason, for
/// those that were meant for there.
#[test]
fn requests_are_charged_to_where_their_client_went() {
    let mut world = World::started(through(Pool::Pinned, 3), 1, 1);
    let name = |server: usize| at(server).to_string();
    for n in 0..2 {
        let client = client_to(&mut world, at(0), 0);
        for round in 0..2 {
            world.ask(
                client,
                "GET",
                &format!("/v?n=0000{n}00{round}"),
                "X-Other: 127.0.0.1:9001\r\n",
            );
            world.run_for(1000);
        }
        assert_eq!(world.clients[client].statuses(), [200; 2]);
    }
    world.servers[1].door = Door::Refuses;
    let refused = client_to(&mut world, at(1), 0);
    world.get(refused, "00000001");
    world.run_for(1000);
    world.is_own = true;
    let own = client_to(&mut world, at(2), 0);
    world.is_own = false;
    (0..2).for_each(|n| world.get(own, &format!("{n:08}")));
    world.run_for(1000);
    assert_eq!(
        (world.clients[refused].statuses(), world.clients[own].statuses()),
        (vec![502], vec![421; 2])
    );
    // The original destination is unknown.
    world.destination = None;
    let unknown = world.client();
    world.get(unknown, "00000002");
    world.run_for(1000);
    let destinations = told(&world).0;
    let first = row(&destinations, &name(0));
    assert_eq!(figures(first), (2, 4, 0, vec![]));
    assert!(first.used.bytes_in > 0 && first.used.bytes_out > 0);
    assert_eq!(figures(row(&destinations, &name(1))), (0, 1, 0, vec![("connect-failed", 1)]));
    assert_eq!(figures(row(&destinations, &name(2))), (0, 0, 0, vec![("own-destination", 2)]));
    assert_eq!((destinations.rows.len(), &destinations.others), (3, &Use::default()));
    world.finish();
}

/// With a fallback, the fate of a request there is not the destination's.
#[test]
fn who_stands_in_is_no_destination() {
    let mut plan = through(Pool::Pinned, 2);
    plan.upstreams[0].all_down = AllDown::Fallback(1);
    let spare = ServerPlan { connections_min: 0, ..ServerPlan::new("spare", at(1)) };
    plan.upstreams[1] =
        UpstreamPlan { name: "spare".to_owned(), servers: vec![spare], ..UpstreamPlan::default() };
    let mut world = World::started(plan, 1, 1);
    world.servers[0].door = Door::Refuses;
    let client = client_to(&mut world, at(0), 0);
    world.get(client, "00000001");
    world.run_for(SECOND_US);
    world.servers[1].door = Door::Refuses;
    for conn in world.open_conns() {
        world.cut(conn, Do::Rst);
    }
    world.get(client, "00000002");
    world.run_for(10 * SECOND_US);
    assert_eq!(world.clients[client].statuses()[0], 200);
    assert!(world.clients[client].statuses()[1] >= 500);
    let destinations = told(&world).0;
    let only = row(&destinations, &at(0).to_string());
    assert_eq!((figures(only), bytes(only)), ((0, 2, 0, vec![]), (0, 0)));
    assert_eq!(destinations.rows.len(), 1);
    world.finish();
}

/// A connection that moves to another worker is counted there from then on.
#[test]
fn who_moves_is_counted_where_he_is() {
    let mut world = World::started(through(Pool::Pinned, 1), 2, 1);
    world.is_own = true;
    let client = client_to(&mut world, at(0), 0);
    world.get(client, "00000001");
    world.run_for(1000);
    assert_eq!(world.move_clients(0, 1, 8), [client]);
    world.get(client, "00000002");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [421; 2]);
    for node in 0..2 {
        let usage = world.nodes[node].engine.report().usage.expect("destinations");
        assert_eq!(
            figures(row(&usage.destinations, &at(0).to_string())).3,
            [("own-destination", 1)]
        );
    }
    world.finish();
}
