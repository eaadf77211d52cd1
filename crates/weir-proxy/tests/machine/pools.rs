//! Proves: which clients' requests each upstream connection carries in each pool mode, how many
//! connections exist, and what happens to them and their requests when either side ends.
//! docs/pools.md.

use weir_check::upstreams::check_honest;
use weir_proxy::plan::{Plan, Pool, ServerPlan};

use crate::world::{Do, Door, World, answer, honest, plan};

fn pool(mode: Pool, servers: usize, connections: u32) -> Plan {
    let mut plan = plan(servers, connections);
    plan.upstreams[0].pool = mode;
    plan
}

/// This many clients send this many requests each, one after the other; each gets its responses.
fn converse(world: &mut World, clients: usize, requests: usize) -> Vec<usize> {
    let nodes = world.nodes.len();
    let clients: Vec<usize> = (0..clients).map(|n| world.client_of(n % nodes)).collect();
    for round in 0..requests {
        for client in &clients {
            world.get(*client, &format!("{client:04}{round:04}"));
        }
        world.run_for(10_000);
        for client in &clients {
            check_honest(&format!("{client:04}{round:04}"), &world.clients[*client].replies[round])
                .unwrap();
        }
    }
    clients
}

fn closed_conns(world: &World) -> usize {
    world.conns.iter().filter(|conn| conn.closed).count()
}

/// Each client has one connection for all its requests, no other client's use it, and both end
/// together.
#[test]
fn pinned_connections_are_their_clients() {
    for workers in [1, 3] {
        let mut world = World::started(pool(Pool::Pinned, 1, 8), workers, 1);
        assert_eq!(world.conns.len(), 0, "none before a request needs it");
        let clients = converse(&mut world, 10, 7);
        assert_eq!(world.conns.len(), 10);
        assert_eq!(world.count(|counters| counters.upstream_connects.get()), 10);
        for conn in &world.conns {
            let owners: Vec<&str> =
                conn.requests.iter().map(|request| &request.nonce()[..4]).collect();
            assert_eq!(owners, [owners[0]; 7], "requests of one client");
            assert_eq!(conn.depth, 1);
        }
        world.reset(clients[3]);
        world.run_for(1000);
        assert_eq!(closed_conns(&world), 1);
        world.finish();
    }
}

/// A client's pipelined requests are sent one after the other on its connection.
#[test]
fn a_pinned_connection_has_one_request_at_a_time() {
    let mut world = World::started(pool(Pool::Pinned, 1, 8), 1, 1);
    world.serve(|seen| {
        seen.complete.then(|| vec![Do::Delay(500), Do::Answer(answer(seen.request))])
    });
    let client = world.client();
    for n in 0..20 {
        world.get(client, &format!("{n:08}"));
    }
    world.run_for(50_000);
    assert_eq!(world.clients[client].replies.len(), 20);
    for n in 0..20 {
        check_honest(&format!("{n:08}"), &world.clients[client].replies[n]).unwrap();
    }
    assert_eq!((world.conns.len(), world.conns[0].depth), (1, 1));
    world.finish();
}

/// Each request has its own connection, which announces that it ends.
#[test]
fn per_request() {
    let mut world = World::started(pool(Pool::PerRequest, 1, 8), 2, 1);
    converse(&mut world, 5, 4);
    assert_eq!((world.conns.len(), closed_conns(&world)), (20, 20));
    for conn in &world.conns {
        assert_eq!(conn.requests.len(), 1);
        assert_eq!(conn.requests[0].fields.first("connection"), Some("close"));
    }
    world.finish();
}

/// A pool of connections, each with one request at a time, of any client.
#[test]
fn shared() {
    let mut world = World::started(pool(Pool::Shared, 1, 3), 1, 1);
    world.serve(|seen| {
        seen.complete.then(|| vec![Do::Delay(500), Do::Answer(answer(seen.request))])
    });
    converse(&mut world, 12, 30);
    assert_eq!(world.conns.len(), 3);
    assert!(world.conns.iter().all(|conn| conn.depth == 1 && conn.requests.len() > 60));
    world.finish();
}

/// The server ends a pinned connection between two requests: the next request opens another one,
/// whatever its method.
#[test]
fn a_pinned_connection_lost_between_requests() {
    for end in [Do::Fin, Do::Rst] {
        let mut world = World::started(pool(Pool::Pinned, 1, 8), 1, 1);
        let client = world.client();
        world.get(client, "00000001");
        world.run_for(1000);
        world.say(0, end);
        world.run_for(1000);
        assert!(world.conns[0].closed && !world.clients[client].closed);
        world.post(client, "00000002", b"x");
        world.run_for(1000);
        assert_eq!(world.clients[client].statuses(), [200, 200]);
        assert_eq!(world.conns.len(), 2);
        world.finish();
    }
}

/// It ends one with a request in flight: a repeatable request is sent again on another connection,
/// any other gets 502 and was sent once.
#[test]
fn a_pinned_connection_lost_with_a_request() {
    for mode in [Pool::Pinned, Pool::PerRequest] {
        for (method, status) in [("GET", 200), ("POST", 502)] {
            let mut world = World::started(pool(mode, 1, 8), 1, 1);
            let mut first = true;
            world.serve(move |seen| {
                if std::mem::take(&mut first) { Some(vec![Do::Rst]) } else { honest(seen) }
            });
            let client = world.client();
            match method {
                "GET" => world.get(client, "00000001"),
                _ => world.post(client, "00000001", b"x"),
            }
            world.run_for(10_000);
            assert_eq!(world.clients[client].statuses(), [status]);
            assert_eq!(world.times_served("00000001"), if status == 200 { 2 } else { 1 });
            world.finish();
        }
    }
}

/// A server that refuses connects: another one gets the request, and for a while it is not tried
/// first.
#[test]
fn a_refused_connect_goes_elsewhere() {
    let mut world = World::started(pool(Pool::PerRequest, 2, 8), 1, 1);
    world.servers[0].door = Door::Refuses;
    let client = world.client();
    for n in 0..20 {
        world.post(client, &format!("{n:08}"), b"x");
        world.run_for(1000);
    }
    assert_eq!(world.clients[client].statuses(), [200; 20]);
    assert_eq!(world.count(|counters| counters.upstream_connect_failures.get()), 1);
    world.servers[0].door = Door::Open;
    world.run_for(2_000_000);
    for n in 20..40 {
        world.get(client, &format!("{n:08}"));
        world.run_for(1000);
    }
    assert!(
        world
            .conns
            .iter()
            .filter(|conn| conn.server == 0 && conn.is_open() || !conn.requests.is_empty())
            .count()
            > 25
    );
    assert!(world.conns.iter().any(|conn| conn.server == 0 && !conn.requests.is_empty()));
    world.finish();
}

/// No server accepts: 502 after a round, also if connects are not answered at all. It works as soon
/// as one does.
#[test]
fn nobody_accepts() {
    for (door, wait_us) in [(Door::Refuses, 1_000), (Door::Mute, 11_000_000)] {
        let mut world = World::started(pool(Pool::Pinned, 2, 8), 1, 1);
        world.servers.iter_mut().for_each(|server| server.door = door);
        let client = world.client();
        world.get(client, "00000001");
        world.run_for(wait_us);
        assert_eq!(world.clients[client].statuses(), [502]);
        let connects = world.count(|counters| counters.upstream_connects.get());
        if door == Door::Refuses {
            assert_eq!(connects, 2, "each of the two once");
            world.get(client, "00000002");
            world.run_for(1000);
            assert_eq!(world.clients[client].statuses(), [502, 502]);
        }
        world.servers.iter_mut().for_each(|server| server.door = Door::Open);
        world.get(client, "00000003");
        world.run_for(1000);
        assert_eq!(world.clients[client].statuses().last(), Some(&200));
        world.finish();
    }
}

/// A server that is being replaced: requests meanwhile wait for it, if they may be sent again.
#[test]
fn a_server_is_back_soon() {
    for mode in [Pool::Pinned, Pool::PerRequest] {
        let mut plan = pool(mode, 1, 8);
        plan.upstreams[0].retry.per_request_max = 0;
        let mut world = World::started(plan, 1, 1);
        let first = world.client();
        world.get(first, "10000000");
        world.settle();
        world.reset(first);
        world.settle();
        world.servers[0].door = Door::Refuses;
        let clients: Vec<usize> = (0..20).map(|_| world.client()).collect();
        for (at, client) in clients.iter().enumerate() {
            world.post(*client, &format!("{at:08}"), b"x");
        }
        world.run_for(300_000);
        assert!(clients.iter().all(|client| world.clients[*client].replies.is_empty()));
        assert_eq!(world.count(|counters| counters.queue_waiting.get()), 20);
        world.servers[0].door = Door::Open;
        world.run_for(300_000);
        assert!(clients.iter().all(|client| world.clients[*client].statuses() == [200]));
        assert_eq!(world.count(|counters| counters.retries.get()), 0);
        world.finish();
    }
}

/// A server that has long been dead does not shorten the wait for the other server.
#[test]
fn the_other_server_is_back_soon() {
    for dead in [0, 1] {
        let mut world = World::started(pool(Pool::PerRequest, 2, 8), 1, 1);
        world.servers.iter_mut().for_each(|server| server.door = Door::Refuses);
        let client = world.client();
        world.get(client, "00000001");
        world.run_for(10_000_000);
        // Both are known to be dead now; then only one is.
        world.servers[1 - dead].door = Door::Open;
        for n in 0..4 {
            world.get(client, &format!("1000000{n}"));
            world.run_for(1_000);
        }
        world.servers[1 - dead].door = Door::Refuses;
        world.get(client, "20000000");
        world.run_for(100_000);
        world.servers[1 - dead].door = Door::Open;
        world.run_for(1_000_000);
        assert_eq!(
            world.clients[client].statuses(),
            [502, 200, 200, 200, 200, 200],
            "server {dead} is dead"
        );
        world.finish();
    }
}

/// A request that waits behind one that is never answered was not slow itself.
#[test]
fn a_request_behind_one_that_times_out() {
    let mut world = World::started(pool(Pool::Pinned, 1, 8), 1, 1);
    let client = world.client();
    world.serve(|_| None);
    world.get(client, "00000001");
    // In two pieces, so that the head's timer has started.
    world.expect(client, "GET", false, false);
    world.send(client, b"GE");
    world.run_for(1_000_000);
    world.send(client, b"T /v?n=00000002 HTTP/1.1\r\nHost: a\r\n\r\n");
    world.run_for(30_000_000);
    world.serve(honest);
    world.run_for(31_000_000);
    assert_eq!(world.clients[client].statuses(), [504, 200]);
    world.finish();
}

/// A client that leaves while its connection is being made takes the connect with it.
#[test]
fn a_client_leaves_during_the_connect() {
    let mut world = World::started(pool(Pool::Pinned, 1, 8), 1, 1);
    world.servers[0].door = Door::Mute;
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(1000);
    assert_eq!(world.count(|counters| counters.queue_waiting.get()), 1);
    world.reset(client);
    world.run_for(1000);
    assert!(world.conns[0].closed);
    world.finish();
}

/// An upgrade makes a tunnel of the client's own connection; a body that streams follows its
/// request through a connect.
#[test]
fn tunnels_and_large_bodies() {
    for mode in [Pool::Pinned, Pool::PerRequest] {
        let mut world = World::started(pool(mode, 1, 8), 1, 1);
        let client = world.client();
        world.post(client, "00000001", &vec![b'x'; 300_000]);
        world.run_for(10_000);
        assert_eq!(world.clients[client].statuses(), [200]);
        world.serve(|seen| {
            let text = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\
                \r\nhello";
            seen.complete.then(|| vec![Do::Switch(text.as_bytes().to_vec())])
        });
        world.ask(client, "GET", "/v?n=00000002", "Connection: upgrade\r\nUpgrade: x\r\n");
        world.run_for(1000);
        assert_eq!(world.clients[client].statuses(), [200, 101]);
        assert_eq!(world.clients[client].tunnel, b"hello");
        world.finish();
    }
}

/// Two upstreams: a client has a connection to each.
#[test]
fn a_connection_for_each_upstream() {
    use weir_proxy::request::route::{Route, RouteTable, Target};
    let mut plan = pool(Pool::Pinned, 1, 8);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 9001));
    let second = weir_proxy::plan::UpstreamPlan {
        name: "other".to_owned(),
        servers: vec![ServerPlan::new("other.test:9001", address)],
        pool: Pool::Pinned,
        ..weir_proxy::plan::UpstreamPlan::default()
    };
    plan.upstreams.push(second);
    let route = |path: &str, target| Route {
        path: path.to_owned(),
        target: Target::Upstream(target),
        ..Route::default()
    };
    plan.routes = RouteTable::new(vec![route("/v", 0), route("/p", 1)]);
    let mut world = World::started(plan, 1, 1);
    let client = world.client();
    for n in 0..4 {
        world.get(client, &format!("{n:08}"));
        world.post(client, &format!("{:08}", n + 100), b"x");
        world.run_for(1000);
    }
    assert_eq!(world.clients[client].statuses(), [200; 8]);
    assert_eq!(world.conns.iter().map(|conn| conn.server).collect::<Vec<_>>(), [0, 1]);
    world.finish();
}

/// However many requests wait for a server that cannot be reached, they wait in the timers' ticks:
/// not each of them causes a turn.
#[test]
fn many_that_wait_for_a_server_cost_few_turns() {
    let mut plan = pool(Pool::Pinned, 2, 8);
    plan.upstreams[0].retry.connect_retries = 5;
    let mut world = World::started(plan, 1, 1);
    world.servers.iter_mut().for_each(|server| server.door = Door::Refuses);
    for n in 0..500 {
        let client = world.client();
        world.get(client, &format!("{n:08}"));
    }
    let before = world.count(|counters| counters.turns.get());
    world.run_for(50_000);
    let turns = world.count(|counters| counters.turns.get()) - before;
    assert!(turns < 200, "{turns} turns");
}
