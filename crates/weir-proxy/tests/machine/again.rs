//! Proves: requests are sent again where a server is up, soon, and not more often than the budget
//! allows; a server that is up again is found within a second. How: worlds whose servers refuse,
//! hang, reset and recover. docs/retries.md.

use weir_check::upstreams::check_honest;
use weir_proxy::plan::{PipelineMode, Plan};
use weir_proxy::retry::budget::BURST_MIN;

use crate::world::{Do, Door, World, honest, plan};

/// Ends every connection of a server with a reset.
fn kill(world: &mut World, server: usize) {
    for conn in world.open_conns() {
        if world.conns[conn].server == server {
            world.say(conn, Do::Rst);
        }
    }
}

fn answered(world: &World, client: usize, nonce: &str) {
    assert_eq!(world.clients[client].statuses(), [200]);
    check_honest(nonce, &world.clients[client].replies[0]).unwrap();
}

/// A server that was down for minutes gets a request within a second of accepting again, and all
/// its connections are made as soon as it has answered; also if something in front of it accepts
/// and closes all the time.
#[test]
fn a_revived_server_is_found_within_a_second() {
    for accepts in [false, true] {
        for workers in [1, 2] {
            let mut world = World::started(plan(1, 8), workers, 1);
            kill(&mut world, 0);
            world.servers[0].door = if accepts { Door::Slams } else { Door::Refuses };
            world.run_for(200_000_000);
            world.servers[0].door = Door::Open;
            world.run_for(1_000_000);
            assert_eq!(world.open_conns().len(), usize::from(workers), "one scout a worker");
            for node in 0..usize::from(workers) {
                let client = world.client_of(node);
                world.get(client, "00000001");
                world.run_for(1000);
                answered(&world, client, "00000001");
            }
            world.run_for(50_000);
            assert_eq!(world.open_conns().len(), 8, "the others follow");
            world.finish();
        }
    }
}

/// While others of the same server are up, a connection that cannot be made is tried less and less
/// often.
#[test]
fn there_are_no_scouts_while_the_server_is_up() {
    let mut world = World::started(plan(1, 2), 1, 1);
    world.servers[0].door = Door::Refuses;
    world.say(0, Do::Rst);
    let before = world.conns.len();
    world.run_for(60_000_000);
    let tries = world.conns.len() - before;
    assert!((8..16).contains(&tries), "{tries} tries of one connection in a minute");
    let client = world.client();
    world.get(client, "00000001");
    world.settle();
    answered(&world, client, "00000001");
    world.finish();
}

/// Requests that were sent to a server that dies, or wait for one whose host has vanished, move to
/// the server that is up.
#[test]
fn nothing_waits_for_a_dead_server() {
    let mut world = World::started(plan(2, 1), 1, 1);
    world.servers[0].serve = Box::new(|_| Some(Vec::new()));
    let clients: Vec<usize> = (0..20).map(|_| world.client()).collect();
    for (n, client) in clients.iter().enumerate() {
        world.get(*client, &format!("{n:08}"));
    }
    world.run_for(1000);
    assert!(clients.iter().any(|client| world.clients[*client].replies.is_empty()));
    world.servers[0].door = Door::Mute;
    kill(&mut world, 0);
    world.run_for(10_000);
    for (n, client) in clients.iter().enumerate() {
        answered(&world, *client, &format!("{n:08}"));
    }
    world.finish();
}

/// With a connection a server and a worker, the server that is up is up on another worker: a retry
/// moves there, for clients of both workers.
#[test]
fn a_retry_crosses_workers() {
    for dead in 0..2 {
        let mut world = World::started(plan(2, 1), 2, 1);
        world.servers[dead].serve = Box::new(|_| Some(vec![Do::Rst]));
        world.servers[dead].door = Door::Refuses;
        for n in 0..8 {
            let client = world.client_of(n % 2);
            world.get(client, &format!("{n:08}"));
            world.run_for(10_000);
            answered(&world, client, &format!("{n:08}"));
        }
        world.finish();
    }
}

/// Two dead servers: a request does not pass between them and the workers for ever.
#[test]
fn a_request_does_not_circle_between_dead_servers() {
    let mut two = plan(2, 1);
    two.upstreams[0].retry.connect_retries = 3;
    let mut world = World::started(two, 2, 1);
    for server in 0..2 {
        world.servers[server].serve = Box::new(|_| Some(vec![Do::Rst]));
    }
    let clients: Vec<usize> = (0..2).map(|node| world.client_of(node)).collect();
    for client in &clients {
        world.get(*client, "00000001");
    }
    world.run_for(10_000_000);
    for client in &clients {
        assert_eq!(world.clients[*client].statuses(), [502]);
    }
    assert!(world.times_served("00000001") <= 12, "{}", world.times_served("00000001"));
    world.finish();
}

/// Servers that fail everything get a burst and then little more than their requests; a refused
/// client learns why.
#[test]
fn the_budget_bounds_retries() {
    let mut generous = plan(2, 4);
    generous.upstreams[0].retry.per_request_max = 100;
    generous.upstreams[0].pipeline = PipelineMode::Off;
    let mut world = World::started(generous, 1, 1);
    for server in 0..2 {
        let mut seen = 0;
        world.servers[server].serve = Box::new(move |request| {
            // A response now and then, otherwise the back-off of its connections would be the
            // limit.
            seen += 1;
            if seen % 4 == 0 { honest(request) } else { Some(vec![Do::Rst]) }
        });
    }
    let begun_us = world.now_us;
    let mut asked = 0;
    while world.now_us < begun_us + 20_000_000 {
        for _ in 0..16 {
            let client = world.client();
            world.get(client, &format!("{asked:08}"));
            asked += 1;
        }
        world.run_for(100_000);
    }
    let retries = world.count(|counters| counters.retries.get());
    let most = BURST_MIN + asked / 5 + 20 * 10;
    assert!(
        retries >= BURST_MIN && retries <= most,
        "{retries} retries of {asked} requests, at most {most}"
    );
    let refused = world.count(|counters| counters.refusals.get("retry-budget"));
    assert!(refused > asked / 4, "{refused} of {asked} refused");
    world.finish();
}

/// One connection that may be pipelined.
fn deep() -> Plan {
    let mut deep = plan(1, 1);
    deep.upstreams[0].pipeline = PipelineMode::Depth(8);
    deep
}

/// Returns a world with a connection of worker 0 whose server has stopped reading: later requests
/// are behind a send that never ends. Also returns the client of the request in that send,
/// `aaaa0001`.
fn behind_an_endless_send(workers: u16) -> (World, usize) {
    let mut world = World::started(deep(), workers, 1);
    let reader = world.client();
    for n in 0..80 {
        world.get(reader, &format!("{n:08}"));
        world.settle();
    }
    world.servers[0].deaf = true;
    world.get(reader, "aaaa0001");
    world.settle();
    (world, reader)
}

/// The server that did not read is gone, and another one is up at once.
fn replace_the_deaf(world: &mut World) {
    world.servers[0].deaf = false;
    world.say(0, Do::Rst);
    world.run_for(1_000_000);
}

/// A request that was not sent at all may always move, even if it must not be repeated.
#[test]
fn a_post_that_was_not_sent_moves() {
    let (mut world, reader) = behind_an_endless_send(1);
    let poster = world.client();
    world.post(poster, "aaaa0002", b"x");
    world.settle();
    replace_the_deaf(&mut world);
    check_honest("aaaa0001", world.clients[reader].replies.last().unwrap()).unwrap();
    answered(&world, poster, "aaaa0002");
    assert_eq!(world.times_served("aaaa0002"), 1);
    assert_eq!(
        world.count(|counters| counters.moves.get()),
        0,
        "it was never given to that connection"
    );
    world.finish();
}

/// A large body whose request was not sent at all moves with it, as far as it has arrived, and the
/// rest follows; also when its client is on another worker.
#[test]
fn a_streamed_request_that_was_not_sent_moves() {
    for (node, complete) in [(0, false), (0, true), (1, false), (1, true)] {
        let (mut world, reader) = behind_an_endless_send(2);
        let poster = world.client_of(node);
        let length = if complete { 90_000 } else { 600_000 };
        world.expect(poster, "POST", false, false);
        let head =
            format!("POST /p?n=aaaa0002 HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        world.send(poster, head.as_bytes());
        for _ in 0..length / 30_000 {
            world.send(poster, &[b'x'; 30_000]);
        }
        world.settle();
        replace_the_deaf(&mut world);
        check_honest("aaaa0001", world.clients[reader].replies.last().unwrap()).unwrap();
        answered(&world, poster, "aaaa0002");
        assert_eq!(world.times_served("aaaa0002"), 1);
        let body =
            world.requests().find(|request| request.nonce() == "aaaa0002").unwrap().body.length;
        assert_eq!(body, length, "client of worker {node}");
        assert_eq!(
            world.count(|counters| counters.moves.get()),
            0,
            "it was never given to that connection"
        );
        world.finish();
    }
}

/// Its beginning was sent: it is not sent again.
#[test]
fn a_streamed_request_that_was_sent_does_not_move() {
    let mut world = World::started(deep(), 1, 1);
    let poster = world.client();
    world.serve(|seen| if seen.complete { honest(seen) } else { None });
    world.expect(poster, "POST", false, false);
    world.send(poster, b"POST /p?n=aaaa0002 HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n");
    world.send(poster, &[b'x'; 100_000]);
    world.settle();
    world.say(0, Do::Rst);
    world.run_for(100_000);
    assert_eq!(world.clients[poster].statuses(), [502]);
    assert_eq!(world.times_served("aaaa0002"), 0);
    world.finish();
}
