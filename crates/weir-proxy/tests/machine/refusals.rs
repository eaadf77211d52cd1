//! Proves: if each server refuses, or accepts and closes, a request fails after one round of
//! connects, and finds out at once when one has recovered; a server that was in use a moment ago is
//! waited for (docs/retries.md). How: servers with doors, and a clock that only moves on
//! request.

use weir_proxy::plan::{Plan, Pool, UpstreamPlan};

use crate::world::{Do, Door, World, plan};

const SECOND_US: u64 = 1_000_000;
/// Less than any back-off that a request would wait for.
const SOON_US: u64 = 15_000;

fn pool(pool: Pool, servers: usize) -> Plan {
    let mut plan = plan(servers, 8);
    let upstream = &mut plan.upstreams[0];
    upstream.servers.iter_mut().for_each(|server| server.connections_min = 0);
    plan.upstreams[0] = UpstreamPlan { pool, ..std::mem::take(upstream) };
    plan
}

const POOLS: [Pool; 4] = [Pool::Pipelined, Pool::Shared, Pool::Pinned, Pool::PerRequest];

fn set(world: &mut World, door: Door) {
    world.servers.iter_mut().for_each(|server| server.door = door);
}

#[test]
fn where_everything_refuses_a_request_fails_at_once() {
    for mode in POOLS {
        for servers in [1, 3] {
            let mut world = World::new(pool(mode, servers), 1, 1);
            set(&mut world, Door::Refuses);
            for (at, method) in ["GET", "POST"].into_iter().enumerate() {
                let client = world.client();
                let before = world.count(|counters| counters.upstream_connects.get());
                world.ask(client, method, "/v?n=00000001", "");
                world.run_for(3 * SOON_US);
                assert_eq!(world.clients[client].statuses(), [502], "{mode:?} {servers} {method}");
                let connects = world.count(|counters| counters.upstream_connects.get()) - before;
                assert!(
                    connects <= servers as u64 + 1,
                    "{connects} connects of {mode:?}, request {at}"
                );
                world.run_for(5 * SECOND_US);
            }
            // The next request finds out that one has recovered.
            world.servers[servers - 1].door = Door::Open;
            let client = world.client();
            world.get(client, "00000002");
            world.run_for(3 * SOON_US);
            assert_eq!(world.clients[client].statuses(), [200], "{mode:?} {servers}");
            world.finish();
        }
    }
}

/// Kept connections are made at the start, and again: a request between two tries makes another.
#[test]
fn a_server_with_kept_connections_fails_as_soon() {
    for workers in [1, 2] {
        let mut world = World::new(plan(1, 2), workers, 1);
        world.servers[0].door = Door::Refuses;
        for round in 0..10 {
            let client = world.client_of(round % usize::from(workers));
            world.get(client, &format!("{round:08}"));
            world.run_for(3 * SOON_US);
            assert_eq!(world.clients[client].statuses(), [502], "round {round}");
            world.run_for(300_000);
        }
        world.servers[0].door = Door::Open;
        let client = world.client();
        world.get(client, "00000100");
        world.run_for(3 * SOON_US);
        assert_eq!(world.clients[client].statuses(), [200]);
        world.finish();
    }
}

/// A server that only accepts and closes counts as down: a request is sent to it twice, or to each
/// server once and to one of them twice.
#[test]
fn what_accepts_and_closes_is_asked_twice() {
    for (door, script) in
        [(Door::Slams, None), (Door::Open, Some(Do::Fin)), (Door::Open, Some(Do::Rst))]
    {
        for mode in POOLS {
            for servers in [1, 2] {
                let mut world = World::new(pool(mode, servers), 1, 1);
                set(&mut world, door);
                for server in &mut world.servers {
                    let ending = script.clone().unwrap_or(Do::Silence);
                    server.serve = Box::new(move |_| Some(vec![ending.clone()]));
                }
                let client = world.client();
                world.get(client, "00000001");
                world.run_for(SECOND_US / 2);
                assert_eq!(
                    world.clients[client].statuses(),
                    [502],
                    "{door:?} {script:?} {mode:?} {servers}"
                );
                let connects = world.count(|counters| counters.upstream_connects.get());
                assert!(
                    connects <= servers as u64 + 1,
                    "{connects} connects: {door:?} {script:?} {mode:?} {servers}"
                );
                world.finish();
            }
        }
    }
}

/// A working server is found behind others that accept and close.
#[test]
fn the_server_that_works_is_found() {
    let mut world = World::new(pool(Pool::Pipelined, 3), 1, 1);
    world.servers[0].door = Door::Slams;
    world.servers[1].door = Door::Slams;
    for n in 0..6 {
        let client = world.client();
        world.get(client, &format!("{n:08}"));
        world.run_for(SECOND_US);
        assert_eq!(world.clients[client].statuses(), [200], "request {n}");
    }
    world.finish();
}

/// A server that restarts costs requests only time; one that does not return is waited for two
/// seconds, once.
#[test]
fn a_server_that_was_in_use_is_waited_for() {
    for mode in POOLS {
        let mut world = World::new(pool(mode, 1), 1, 1);
        for back in [true, false] {
            let first = world.client();
            world.get(first, "00000001");
            world.run_for(SOON_US);
            assert_eq!(world.clients[first].statuses(), [200]);
            world.servers[0].door = Door::Refuses;
            for conn in world.open_conns() {
                world.cut(conn, Do::Rst);
            }
            world.settle();
            let clients = [world.client(), world.client()];
            world.get(clients[0], "00000002");
            world.post(clients[1], "00000003", b"x");
            world.run_for(SECOND_US);
            assert!(
                clients.iter().all(|client| world.clients[*client].replies.is_empty()),
                "{mode:?}"
            );
            if back {
                world.servers[0].door = Door::Open;
            }
            world.run_for(3 * SECOND_US / 2);
            let expected = if back { 200 } else { 502 };
            assert!(
                clients.iter().all(|client| world.clients[*client].statuses() == [expected]),
                "{mode:?} {back}"
            );
        }
        world.run_for(SECOND_US);
        let late = world.client();
        world.get(late, "00000004");
        world.run_for(3 * SOON_US);
        assert_eq!(world.clients[late].statuses(), [502], "{mode:?}: it is known to be down");
        world.finish();
    }
}

/// If connects are not answered, one is waited for: from then on the state is known.
#[test]
fn a_mute_server_is_waited_for_once() {
    let mut world = World::new(pool(Pool::Pipelined, 1), 1, 1);
    world.servers[0].door = Door::Mute;
    for (round, wait_us) in [6 * SECOND_US, SOON_US, SOON_US].into_iter().enumerate() {
        let client = world.client();
        world.get(client, &format!("{round:08}"));
        world.run_for(wait_us);
        assert_eq!(world.clients[client].statuses(), [502], "round {round}");
    }
    world.finish();
}

/// A server is also in use if it has only begun its responses, which may have no end, or has
/// tunnels.
#[test]
fn a_server_with_long_answers_was_in_use() {
    let stream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n";
    let tunnel =
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    for (script, fields) in
        [(stream.to_vec(), ""), (tunnel.to_vec(), "Connection: upgrade\r\nUpgrade: websocket\r\n")]
    {
        let mut world = World::new(pool(Pool::Pipelined, 1), 1, 1);
        let mut long = Some(script);
        world.serve(move |seen| match long.take() {
            Some(script) => Some(vec![Do::Bytes(script), Do::Silence]),
            None => crate::world::honest(seen),
        });
        let first = world.client();
        world.ask(first, "GET", "/v?n=00000001", fields);
        world.run_for(2 * SECOND_US);
        world.servers[0].door = Door::Refuses;
        for conn in world.open_conns() {
            world.cut(conn, Do::Rst);
        }
        world.settle();
        let client = world.client();
        world.get(client, "00000002");
        world.run_for(SECOND_US / 2);
        assert!(
            world.clients[client].replies.is_empty(),
            "{fields:?}: {:?}",
            world.clients[client].statuses()
        );
        world.servers[0].door = Door::Open;
        world.run_for(SECOND_US);
        assert_eq!(world.clients[client].statuses(), [200], "{fields:?}");
        world.finish();
    }
}

/// A server that accepts, waits and closes also counts as down.
#[test]
fn what_accepts_waits_and_closes_is_asked_twice() {
    let mut world = World::new(pool(Pool::Pipelined, 1), 1, 1);
    world.serve(|_| Some(vec![Do::Delay(2 * SECOND_US), Do::Fin]));
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(20 * SECOND_US);
    assert_eq!(world.clients[client].statuses(), [502]);
    assert_eq!(world.times_served("00000001"), 2);
    world.finish();
}
