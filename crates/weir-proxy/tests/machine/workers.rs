//! Proves: with fewer connections than workers, requests, bodies, responses, cancellations and
//! doubts cross by mail, with the same results as with one worker.
//! docs/internals/workers.md#how-workers-share-connections

use weir_check::upstreams::{check_honest, honest_answer};

use crate::placement::adaptive;
use crate::tunnels::SWITCH;
use crate::world::{Do, Door, Seen, World, answer, honest, plan};

/// One connection for two workers: both use it, from both sides.
#[test]
fn one_connection_serves_two_workers() {
    let mut world = World::started(plan(1, 1), 2, 1);
    assert_eq!(world.open_conns().len(), 1, "exactly as many connections as configured");
    let clients = [world.client_of(0), world.client_of(1)];
    for n in 0..100 {
        clients.iter().for_each(|client| world.get(*client, &format!("{n:08}")));
        world.settle();
    }
    for client in clients {
        for (n, reply) in world.clients[client].replies.iter().enumerate() {
            check_honest(&format!("{n:08}"), reply).unwrap();
        }
        assert_eq!(world.clients[client].replies.len(), 100);
    }
    assert!(world.count(|counters| counters.mail_sent.get()) >= 200);
    world.finish();
}

/// Two workers choose a place for a request that crosses, each for its own reasons. It is counted
/// where it is sent.
#[test]
fn a_request_that_crosses_rides_apart_once() {
    let mut world = World::started(adaptive(1, 1), 2, 1);
    let clients = [world.client_of(0), world.client_of(1)];
    for n in 0..3 {
        for client in clients {
            world.get(client, &format!("{n:04}{client:04}"));
            world.run_for(10_000);
        }
    }
    assert!(clients.iter().all(|client| world.clients[*client].replies.len() == 3));
    assert!(world.count(|counters| counters.mail_sent.get()) >= 6, "one worker has all by mail");
    let apart = world.count_of(0, |stats| {
        stats.apart_untrusted.get() + stats.apart_unlike.get() + stats.apart_costly.get()
    });
    assert!((3..=6).contains(&apart), "{apart} of 6 requests");
    world.finish();
}

#[test]
fn connections_are_counted_over_all_workers() {
    for (servers, connections, workers) in [(1, 1, 2), (1, 5, 2), (3, 1, 2), (2, 3, 4), (1, 32, 3)]
    {
        let mut world = World::started(plan(servers, connections), workers, 1);
        world.run_for(1_000_000);
        for server in 0..servers {
            let open = world
                .open_conns()
                .into_iter()
                .filter(|conn| world.conns[*conn].server == server)
                .count();
            assert_eq!(
                open, connections as usize,
                "server {server} of {servers}, {workers} workers"
            );
        }
        world.finish();
    }
}

fn send_body(world: &mut World, client: usize, body: &[u8], chunked: bool) {
    for piece in body.chunks(10_000) {
        match chunked {
            true => world.send(client, &[b"2710;x=y\r\n", piece, b"\r\n"].concat()),
            false => world.send(client, piece),
        }
    }
    if chunked {
        world.send(client, b"0\r\nX-Dropped: x\r\n\r\n");
    }
}

/// A body that streams across workers arrives whole; back-pressure crosses too.
#[test]
fn uploads_cross_workers() {
    for chunked in [false, true] {
        let mut world = World::started(plan(1, 1), 2, 1);
        let client = world.client_of(1);
        let body: Vec<u8> = (0..600_000u32).map(|n| (n * 7) as u8).collect();
        world.expect(client, "POST", false, false);
        let framing = if chunked {
            "Transfer-Encoding: chunked".into()
        } else {
            format!("Content-Length: {}", body.len())
        };
        world.send(
            client,
            format!("POST /p?n=00000001 HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n").as_bytes(),
        );
        world.servers[0].deaf = true;
        send_body(&mut world, client, &body, chunked);
        world.settle();
        assert!(world.clients[client].unread() > 200_000, "read although the server takes nothing");
        // Bytes that were sent to the deaf server are lost to the judge, so it starts over.
        world.reset(client);
        world.settle();
        world.servers[0].deaf = false;
        world.run_for(100_000);
        let client = world.client_of(1);
        world.expect(client, "POST", false, false);
        world.send(
            client,
            format!("POST /p?n=00000002 HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n").as_bytes(),
        );
        send_body(&mut world, client, &body, chunked);
        world.settle();
        check_honest("00000002", &world.clients[client].replies[0]).unwrap();
        let got = world.requests().find(|request| request.nonce() == "00000002").unwrap();
        assert_eq!(got.body, weir_check::Body::of(&body));
        assert_eq!(
            world.requests().count(),
            1,
            "the body that was broken off is not complete anywhere"
        );
        world.finish();
    }
}

/// Clients that leave: their requests are cancelled where they are, waiting or sent, and their
/// responses reach no client.
#[test]
fn cancellations_cross_workers() {
    let mut world = World::started(plan(1, 1), 2, 1);
    world.serve(|seen| Some(vec![Do::Delay(10_000), Do::Answer(answer(seen.request))]));
    let others = [world.client_of(0), world.client_of(1)];
    for round in 0..20 {
        let leavers = [world.client_of(0), world.client_of(1)];
        for (n, leaver) in leavers.into_iter().enumerate() {
            world.get(leaver, &format!("a{n}{round:06}"));
        }
        for (n, other) in others.into_iter().enumerate() {
            world.get(other, &format!("b{n}{round:06}"));
        }
        world.run_for(2_000 * (round % 8));
        leavers.into_iter().for_each(|leaver| world.reset(leaver));
        world.run_for(200_000);
        for (n, other) in others.into_iter().enumerate() {
            check_honest(&format!("b{n}{round:06}"), world.clients[other].replies.last().unwrap())
                .unwrap();
        }
    }
    assert_eq!(world.count(|counters| counters.in_flight.get()), 0);
    world.finish();
}

/// An upload that breaks off ends the connection that carries half of it, on whichever worker that
/// is.
#[test]
fn broken_uploads_end_their_connection() {
    for (workers, node) in [(1, 0), (2, 0), (2, 1)] {
        let mut world = World::started(plan(1, 1), workers, 1);
        let (client, victim) = (world.client_of(node), world.client_of(0));
        world.expect(client, "POST", false, false);
        world.send(client, b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n");
        world.send(client, &[b'x'; 100_000]);
        world.settle();
        assert!(world.conns[0].judge.current().is_some());
        world.get(victim, "00000001");
        world.settle();
        assert!(
            world.clients[victim].replies.is_empty(),
            "nothing follows a body that is not complete"
        );
        world.reset(client);
        world.settle();
        assert!(world.conns[0].closed);
        world.run_for(100_000);
        check_honest("00000001", &world.clients[victim].replies[0]).unwrap();
        world.finish();
    }
}

/// A request that has to wait for a response in progress, on the only connection, does not touch
/// that.
#[test]
fn a_broken_upload_behind_an_answer_waits_for_its_end() {
    for workers in [1, 2] {
        let mut world = World::started(plan(1, 1), workers, 1);
        let (reader, client) = (world.client_of(0), world.client_of(usize::from(workers) - 1));
        for n in 0..80 {
            world.get(reader, &format!("{n:08}"));
            world.settle();
        }
        world.serve(|seen| {
            if seen.request.method == "POST" {
                return None;
            }
            let head = format!(
                "HTTP/1.1 200 OK\r\nX-Nonce: {}\r\nContent-Length: 40\r\n\r\n",
                seen.request.nonce()
            );
            let half = || Do::Bytes(vec![b'y'; 20]);
            Some(vec![
                Do::Delay(1000),
                Do::Answer(head.into_bytes()),
                half(),
                Do::Delay(50_000),
                half(),
            ])
        });
        world.get(reader, "aaaa0001");
        world.expect(client, "POST", false, false);
        world.send(
            client,
            b"POST /p?n=aaaa0002 HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n",
        );
        world.send(client, &[b'x'; 100_000]);
        world.run_for(10_000);
        assert!(world.clients[reader].current().is_some());
        world.reset(client);
        world.run_for(100_000);
        let last = world.clients[reader].replies.last().unwrap();
        assert_eq!((last.fields.first("x-nonce"), last.body.length), (Some("aaaa0001"), 40));
        assert!(!world.conns[0].closed, "the body has nothing to do with it");
        assert_eq!(world.count(|counters| counters.in_flight.get()), 0);
        world.finish();
    }
}

/// Doubt and surplus that one worker finds put the server back on all of them.
#[test]
fn doubt_crosses_workers() {
    for (surplus, text) in [(false, b"GARBAGE".to_vec()), (true, honest_answer("SURPLUS!"))] {
        let mut limited = plan(1, 4);
        limited.upstreams[0].pipeline = weir_proxy::plan::PipelineMode::Depth(8);
        let mut world = World::started(limited, 2, 1);
        let clients: Vec<usize> = (0..8).map(|n| world.client_of(n % 2)).collect();
        let burst = |world: &mut World, count: usize| {
            world.measure_depth();
            for n in 0..count {
                clients.iter().for_each(|client| world.get(*client, &format!("{n:08}")));
                world.settle();
            }
            world.depth()
        };
        assert!(burst(&mut world, 100) > 1);
        let conn = *world.open_conns().iter().find(|conn| world.conns[**conn].node == 0).unwrap();
        // Not right behind a response: that would last.
        world.run_for(1_000);
        world.say(conn, Do::Bytes(text));
        world.run_for(100_000);
        assert_eq!(burst(&mut world, 20), 1);
        let count =
            world.count(
                |counters| if surplus { counters.surplus.get() } else { counters.demotions.get() },
            );
        assert_eq!(count, 1, "counted by the worker that found it");
        world.run_for(61_000_000);
        burst(&mut world, 100);
        assert_eq!(
            burst(&mut world, 20) == 1,
            surplus,
            "a doubt is over after a minute, a surplus is not"
        );
        world.finish();
    }
}

/// A server that is down for one worker is down for the other; when it recovers, both are served.
#[test]
fn a_server_that_is_down_for_two_workers() {
    let mut world = World::new(plan(1, 1), 2, 1);
    world.servers[0].door = Door::Refuses;
    let clients = [world.client_of(0), world.client_of(1)];
    clients.iter().for_each(|client| world.get(*client, "00000001"));
    world.run_for(59_000_000);
    for client in clients {
        assert_eq!(world.clients[client].statuses(), [502]);
    }
    world.servers[0].door = Door::Open;
    world.run_for(31_000_000);
    let clients = [world.client_of(0), world.client_of(1)];
    clients.iter().for_each(|client| world.get(*client, "00000002"));
    world.settle();
    for client in clients {
        check_honest("00000002", &world.clients[client].replies[0]).unwrap();
    }
    world.finish();
}

/// A request that was passed to another worker finds that its server cannot be reached any more: it
/// moves to one that can, whichever worker has its connections.
#[test]
fn a_server_that_dies_while_a_request_is_in_the_mail() {
    for connections in [1, 2] {
        let mut world = World::started(plan(2, connections), 2, 1);
        let clients = [world.client_of(0), world.client_of(0)];
        // As in a worker that considers the last connection of another lost, and asks that one.
        for conn in world.open_conns() {
            if world.conns[conn].server == 1 && world.conns[conn].node == 0 {
                world.say(conn, Do::Fin);
            }
        }
        world.servers[1].door = Door::Refuses;
        world.settle();
        world.nodes[1].mail_stopped = true;
        clients.iter().for_each(|client| world.get(*client, "00000001"));
        world.settle();
        for conn in world.open_conns() {
            if world.conns[conn].server == 1 {
                world.say(conn, Do::Fin);
            }
        }
        world.run_for(20_000_000);
        assert!(
            clients.iter().any(|client| world.clients[*client].replies.is_empty()),
            "one of them is in the mail"
        );
        world.nodes[1].mail_stopped = false;
        world.run_for(1_000_000);
        for client in clients {
            assert_eq!(world.clients[client].statuses(), [200], "{connections} connections");
        }
        world.finish();
    }
}

/// If the one remaining server is full, a request that is returned is refused: it does not move to
/// and fro between workers.
#[test]
fn what_nobody_can_take_does_not_go_to_and_fro() {
    let mut two = plan(2, 1);
    two.upstreams[0].queue_size = 1;
    let mut world = World::started(two, 2, 1);
    world.servers[0].serve = Box::new(|_| Some(vec![Do::Silence]));
    world.servers[1].door = Door::Refuses;
    let conns = world
        .open_conns()
        .into_iter()
        .filter(|conn| world.conns[*conn].server == 1)
        .collect::<Vec<_>>();
    conns.into_iter().for_each(|conn| world.say(conn, Do::Fin));
    world.run_for(20_000_000);
    let clients: Vec<usize> = (0..4).map(|n| world.client_of(n % 2)).collect();
    for (n, client) in clients.iter().enumerate() {
        world.get(*client, &format!("{n:08}"));
    }
    world.run_for(1_000_000);
    let statuses = |world: &World, client: &usize| world.clients[*client].statuses();
    let refused = clients.iter().filter(|client| statuses(&world, client) == [503]).count();
    assert_eq!(
        refused,
        3,
        "{:?}",
        clients.iter().map(|client| statuses(&world, client)).collect::<Vec<_>>()
    );
    assert!(world.count(|counters| counters.mail_sent.get()) < 50);
    world.finish();
}

/// Losses across workers: repeatable requests are repeated, others get 502, each once.
#[test]
fn losses_cross_workers() {
    let mut world = World::started(plan(1, 1), 2, 1);
    let mut first = true;
    world.serve(move |seen| match std::mem::take(&mut first) {
        true => Some(vec![Do::Delay(1000), Do::Rst]),
        false => honest(seen),
    });
    let (reader, poster) = (world.client_of(1), world.client_of(1));
    world.post(poster, "00000001", b"x");
    world.settle();
    world.get(reader, "00000002");
    world.run_for(1_000_000);
    assert_eq!(world.clients[poster].statuses(), [502]);
    check_honest("00000002", &world.clients[reader].replies[0]).unwrap();
    assert_eq!(world.times_served("00000001"), 1);
    world.finish();
}

/// docs/hostile.md K3. Messages that were sent to a worker before it lost everything are not
/// mistaken for responses to its new clients, whose requests have the names of earlier ones; also
/// when it happens again before the first time is known everywhere.
#[test]
fn k3_a_new_life_does_not_listen_to_the_old_one() {
    for lives in [1, 2] {
        let mut world = World::started(plan(1, 1), 2, 1);
        let first = world.client_of(1);
        world.nodes[1].mail_stopped = true;
        world.get(first, "00000001");
        world.settle();
        assert_eq!(world.times_served("00000001"), 1);
        for life in 1..=lives {
            world.begin_anew(1);
            if life < lives {
                let client = world.client_of(1);
                world.get(client, "00000002");
                world.settle();
                assert_eq!(world.times_served("00000002"), 1);
            }
        }
        let last = world.client_of(1);
        world.get(last, "00000003");
        world.settle();
        world.nodes[1].mail_stopped = false;
        world.settle();
        assert!(world.clients[first].replies.is_empty(), "it was gone");
        assert_eq!(world.clients[last].replies.len(), 1, "{lives} lives");
        check_honest("00000003", &world.clients[last].replies[0]).unwrap();
        world.finish();
    }
}

/// docs/hostile.md K3. Two workers lose everything, one of them with the welcome for the other:
/// they listen to each other again.
#[test]
fn k3_a_welcome_that_is_lost_leaves_no_strangers() {
    for (first, second) in [(0, 1), (1, 0)] {
        let mut world = World::started(plan(1, 1), 2, 1);
        world.begin_anew(first);
        world.begin_anew_after_mail(second);
        world.run_for(1_000_000);
        for node in 0..2 {
            let client = world.client_of(node);
            world.get(client, "00000001");
            world.run_for(1_000_000);
            check_honest("00000001", &world.clients[client].replies[0]).unwrap();
        }
        world.finish();
    }
}

/// docs/hostile.md K3. When the worker that owns the connection loses everything, requests of other
/// workers' clients there are sent again if they may be; the rest gets 502, in its place.
#[test]
fn k3_clients_of_other_workers_are_answered_where_that_may_be() {
    let mut world = World::started(plan(1, 1), 2, 1);
    let (client, poster, local) = (world.client_of(1), world.client_of(1), world.client_of(0));
    world.serve(|_| Some(vec![Do::Silence]));
    world.get(client, "00000001");
    world.post(poster, "00000002", b"x");
    world.get(poster, "00000003");
    world.get(local, "00000004");
    world.settle();
    world.begin_anew(0);
    world.serve(honest);
    world.run_for(1_000_000);
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    assert_eq!(world.clients[poster].statuses(), [502, 200]);
    check_honest("00000003", &world.clients[poster].replies[1]).unwrap();
    assert!(world.times_served("00000002") <= 1);
    assert!(world.clients[local].replies.is_empty(), "it was gone");
    assert_eq!(world.count(|counters| counters.retries.get()), 2);
    assert_eq!(world.count(|counters| counters.in_flight.get()), 0);
    assert_eq!(world.open_conns().len(), 1);
    world.finish();
}

/// docs/hostile.md K3. A response that has begun there, but waits for its turn here, is requested
/// again: its client has nothing of it.
#[test]
fn k3_an_answer_that_waits_for_its_turn_is_asked_for_again() {
    let mut world = World::started(plan(2, 1), 2, 1);
    let client = world.client_of(0);
    let late = |seen: &Seen<'_>| Some(vec![Do::Delay(500_000), Do::Answer(answer(seen.request))]);
    let half = b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\nhalf";
    world.servers[0].serve = Box::new(late);
    world.servers[1].serve = Box::new(|_| Some(vec![Do::Bytes(half.to_vec()), Do::Silence]));
    world.get(client, "00000001");
    world.get(client, "00000002");
    world.settle();
    let at = |nonce: &str| {
        world.conns.iter().find(|conn| conn.requests.iter().any(|seen| seen.nonce() == nonce))
    };
    let workers = [at("00000001"), at("00000002")].map(|conn| conn.unwrap().node);
    assert_eq!(workers, [0, 1], "each worker has one of them");
    world.begin_anew(1);
    world.servers[1].serve = Box::new(honest);
    world.run_for(2_000_000);
    assert_eq!(world.clients[client].statuses(), [200, 200]);
    check_honest("00000002", &world.clients[client].replies[1]).unwrap();
    world.finish();
}

/// docs/hostile.md K3, E19. A worker may die because of a request: it is sent again once, not from
/// one worker to the next.
#[test]
fn k3_a_request_that_may_kill_workers_goes_again_once() {
    let mut world = World::started(plan(1, 1), 2, 1);
    let client = world.client_of(1);
    world.serve(|_| Some(vec![Do::Silence]));
    world.get(client, "00000001");
    for served in 1..=2 {
        world.run_for(1_000_000);
        assert_eq!(world.times_served("00000001"), served);
        assert!(world.clients[client].replies.is_empty());
        world.begin_anew(0);
    }
    world.run_for(1_000_000);
    assert_eq!(world.clients[client].statuses(), [502]);
    assert_eq!(world.times_served("00000001"), 2);
    world.finish();
}

/// docs/hostile.md K3. A request that the other worker had not even received is sent again whatever
/// it is.
#[test]
fn k3_what_was_not_mailed_yet_is_safe() {
    let mut world = World::started(plan(1, 1), 2, 1);
    let client = world.client_of(1);
    world.nodes[0].mail_full = true;
    world.post(client, "00000001", b"x");
    world.settle();
    world.begin_anew(0);
    world.nodes[0].mail_full = false;
    world.run_for(1_000_000);
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    assert_eq!(world.times_served("00000001"), 1);
    world.finish();
}

/// docs/hostile.md K3. Uploads and tunnels of a worker that lost everything end on the other side
/// too.
#[test]
fn k3_uploads_and_tunnels_end_on_the_other_side() {
    let mut world = World::started(plan(1, 1), 2, 1);
    let client = world.client_of(1);
    world.expect(client, "POST", false, false);
    world.send(client, b"POST /p?n=00000001 HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n");
    world.send(client, &[b'x'; 300_000]);
    world.settle();
    let conn = world.open_conns()[0];
    world.begin_anew(1);
    world.run_for(1_000_000);
    assert!(world.conns[conn].closed, "the rest of the body will not come");
    let client = world.client_of(1);
    world.expect(client, "GET", false, true);
    world.serve(|_| Some(vec![Do::Switch(SWITCH.to_vec())]));
    world.send(
        client,
        b"GET /t?n=00000002 HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\
        Upgrade: websocket\r\n\r\n",
    );
    world.settle();
    assert_eq!(world.clients[client].statuses(), [101]);
    let tunnel = world.conns.len() - 2;
    world.begin_anew(1);
    world.run_for(1_000_000);
    assert!(world.conns[tunnel].closed, "nobody is at the other end");
    assert_eq!(world.count(|counters| counters.tunnels.get()), 0);
    world.finish();
}
