//! Proves: a request that kills servers is found and refused after a bounded number of deaths, its
//! neighbours are all answered, and servers that die for other reasons accuse no request. How:
//! worlds whose servers crash whole, with every connection, when they see a certain request, or
//! when the test says so. docs/retries.md, docs/hostile.md E19.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use weir_check::upstreams::check_honest;

use crate::world::{Do, Seen, World, answer, honest, plan};

/// 64 clients that send one request after the other, and servers that take a while.
struct Crowd {
    world: World,
    clients: Vec<usize>,
    asked: Vec<String>,
    serial: usize,
    /// Servers that have just crashed.
    crashed: Rc<Cell<u64>>,
    deaths: usize,
    /// How a connection ends when its server does: a process that had read everything leaves no
    /// reset behind.
    end: Do,
}

/// Serves after a while; a request to `/kill` brings the server down.
fn mortal(server: usize, crashed: Rc<Cell<u64>>) -> impl FnMut(&Seen<'_>) -> Option<Vec<Do>> {
    move |seen| {
        if seen.request.target.starts_with("/kill") {
            crashed.set(crashed.get() | 1 << server);
            return Some(Vec::new());
        }
        seen.complete.then(|| vec![Do::Delay(300), Do::Answer(answer(seen.request))])
    }
}

impl Crowd {
    fn new(servers: usize, connections: u32, workers: u16, end: Do) -> Crowd {
        let mut world = World::started(plan(servers, connections), workers, 1);
        let crashed = Rc::new(Cell::new(0));
        for server in 0..servers {
            world.servers[server].serve = Box::new(mortal(server, Rc::clone(&crashed)));
        }
        let clients: Vec<usize> =
            (0..64).map(|n| world.client_of(n % usize::from(workers))).collect();
        let asked = vec![String::new(); 64];
        Crowd { world, clients, asked, serial: 0, crashed, deaths: 0, end }
    }

    /// A server loses all its connections; it is up again at once.
    fn crash(&mut self, server: usize) {
        for conn in self.world.open_conns() {
            if self.world.conns[conn].server == server {
                // Its pending responses are lost as well.
                self.world.cut(conn, self.end.clone());
            }
        }
    }

    /// Lets time pass; an answered client sends again.
    fn run(&mut self, us: u64) {
        let end_us = self.world.now_us + us;
        while self.world.now_us < end_us {
            for (client, asked) in self.clients.iter().zip(&mut self.asked) {
                let machine = &mut self.world.clients[*client];
                if let Some(reply) = machine.replies.pop() {
                    check_honest(asked, &reply)
                        .unwrap_or_else(|fault| panic!("{asked}: {fault} {reply:?}"));
                    asked.clear();
                }
                if asked.is_empty() {
                    self.serial += 1;
                    *asked = format!("{:08}", self.serial);
                    self.world.get(*client, asked);
                }
            }
            self.world.run_for(200);
            let crashed = self.crashed.replace(0);
            for server in (0..64).filter(|server| crashed >> server & 1 == 1) {
                self.deaths += 1;
                self.crash(server);
            }
        }
    }

    /// Finishes; no client is left without a response.
    fn finish(mut self) {
        self.run(10_000);
        for (client, asked) in self.clients.iter().zip(&self.asked) {
            self.world.run_for(100_000);
            let reply =
                self.world.clients[*client].replies.pop().expect("the last request is answered");
            check_honest(asked, &reply).unwrap();
        }
        self.world.finish();
    }
}

/// The killer takes four servers with it, whichever client sends it how often; 64 neighbours lose
/// nothing.
#[test]
fn e19_a_killer_among_64_clients() {
    for (workers, end) in [(1, Do::Rst), (2, Do::Rst), (1, Do::Fin), (2, Do::Fin)] {
        let mut crowd = Crowd::new(3, 8, workers, end);
        crowd.run(50_000);
        let killers: Vec<usize> =
            (0..6).map(|n| crowd.world.client_of(n % usize::from(workers))).collect();
        for (n, killer) in killers.iter().enumerate() {
            crowd.world.ask(*killer, "GET", "/kill?n=00000000", "");
            crowd.run(if n == 0 { 250_000 } else { 50_000 });
            assert_eq!(crowd.world.clients[*killer].statuses(), [503], "killer {n}");
        }
        assert_eq!(crowd.deaths, 4);
        assert!(crowd.world.count(|counters| counters.refusals.get("suspect")) >= 6);
        let suspects: Vec<_> =
            crowd.world.nodes.iter().flat_map(|node| node.engine.suspects()).collect();
        let refused: Vec<_> =
            suspects.iter().filter(|suspect| suspect.state == "refused").collect();
        assert!(
            !refused.is_empty() && refused.iter().all(|suspect| suspect.path == "/kill"),
            "{suspects:?}"
        );
        // After a minute it is tried again, once.
        crowd.world.run_for(60_000_000);
        crowd.run(50_000);
        crowd.world.ask(killers[0], "GET", "/kill?n=00000000", "");
        crowd.run(100_000);
        assert_eq!(crowd.world.clients[killers[0]].statuses(), [503, 503]);
        assert_eq!(crowd.deaths, 5);
        crowd.finish();
    }
}

/// Several at once.
#[test]
fn e19_killers_at_the_same_time() {
    let mut crowd = Crowd::new(3, 8, 1, Do::Rst);
    crowd.run(50_000);
    let killers: Vec<usize> = (0..8).map(|_| crowd.world.client()).collect();
    for killer in &killers {
        crowd.world.ask(*killer, "GET", "/kill?n=00000000", "");
    }
    crowd.run(1_000_000);
    for killer in &killers {
        assert_eq!(crowd.world.clients[*killer].statuses(), [503]);
    }
    assert!(crowd.deaths <= 8, "{} deaths", crowd.deaths);
    crowd.finish();
}

/// A request that must not be repeated is not: each one gets 502, and from the fifth on nothing
/// reaches a server.
#[test]
fn e19_a_post_that_kills() {
    let mut crowd = Crowd::new(3, 8, 1, Do::Rst);
    crowd.run(50_000);
    let mut statuses = Vec::new();
    for _ in 0..8 {
        let killer = crowd.world.client();
        crowd.world.expect(killer, "POST", false, false);
        crowd.world.send(
            killer,
            b"POST /kill?n=00000000 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx",
        );
        crowd.run(150_000);
        statuses.extend(crowd.world.clients[killer].statuses());
    }
    assert_eq!(statuses, [502, 502, 502, 502, 503, 503, 503, 503]);
    assert_eq!(crowd.deaths, 4);
    // An operator repairs the servers and clears the suspects.
    crowd.world.nodes[0].engine.forgive_suspects();
    assert!(crowd.world.nodes[0].engine.suspects().is_empty());
    crowd.finish();
}

/// Servers that are killed one after another, over and over, under load: no client notices, and no
/// request is suspected.
#[test]
fn deaths_accuse_no_innocent_for_longer_than_an_answer() {
    for (workers, end) in [(1, Do::Rst), (2, Do::Rst), (1, Do::Fin), (2, Do::Fin)] {
        let mut crowd = Crowd::new(3, 8, workers, end);
        crowd.run(50_000);
        for n in 0..30 {
            crowd.crash(n % 3);
            // Sometimes two within the time of a response.
            if n % 5 == 0 {
                crowd.world.run_for(200);
                crowd.crash((n + 1) % 3);
            }
            crowd.run(20_000);
            let suspects: Vec<_> =
                crowd.world.nodes.iter().flat_map(|node| node.engine.suspects()).collect();
            assert!(suspects.iter().all(|suspect| suspect.state == "noted"), "{suspects:?}");
        }
        assert_eq!(crowd.world.count(|counters| counters.refusals.sum()), 0);
        crowd.finish();
    }
}

/// Responses take longer than servers live, so that some request is in flight at one death after
/// another: none is refused for it.
#[test]
fn deaths_that_come_anyway_refuse_nobody() {
    for workers in [1, 2] {
        let mut world = World::started(plan(3, 8), workers, 1);
        for server in &mut world.servers {
            server.serve = Box::new(|seen| {
                seen.complete.then(|| vec![Do::Delay(400_000), Do::Answer(answer(seen.request))])
            });
        }
        let clients: Vec<usize> =
            (0..16).map(|n| world.client_of(n % usize::from(workers))).collect();
        let mut serial = 0;
        for death in 0..60 {
            for client in &clients {
                if world.clients[*client].replies.pop().is_some() || death == 0 {
                    serial += 1;
                    world.get(*client, &format!("{serial:08}"));
                }
            }
            world.run_for(150_000);
            for conn in world.open_conns() {
                if world.conns[conn].server == death % 3 {
                    world.cut(conn, Do::Rst);
                }
            }
        }
        assert!(
            world.count(|counters| counters.quarantined.get()) > 0,
            "nobody was suspected: this proves nothing"
        );
        assert_eq!(
            world.count(|counters| counters.refusals.get("suspect")),
            0,
            "{workers} workers"
        );
        world.run_for(10_000_000);
        world.finish();
    }
}

/// One URL that all clients request, on a server that is killed over and over: it is not mistaken
/// for the killer.
#[test]
fn a_popular_request_is_not_a_killer() {
    let mut world = World::started(plan(1, 8), 1, 1);
    world.serve(|seen| {
        seen.complete.then(|| vec![Do::Delay(300), Do::Answer(answer(seen.request))])
    });
    let clients: Vec<usize> = (0..32).map(|_| world.client()).collect();
    for _ in 0..20 {
        for client in &clients {
            world.get(*client, "00000001");
        }
        world.run_for(100);
        for conn in world.open_conns() {
            world.cut(conn, Do::Rst);
        }
        world.run_for(500_000);
    }
    for client in &clients {
        assert_eq!(world.clients[*client].replies.len(), 20);
        world.clients[*client]
            .replies
            .iter()
            .for_each(|reply| check_honest("00000001", reply).unwrap());
    }
    assert!(world.nodes[0].engine.suspects().is_empty());
    world.finish();
}

/// A server that is down behind something that accepts and closes: no request is refused when it
/// recovers.
#[test]
fn a_server_behind_a_door_that_slams_accuses_nobody() {
    let mut world = World::started(plan(1, 4), 1, 1);
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(1_000_000);
    world.servers[0].door = crate::world::Door::Slams;
    for conn in world.open_conns() {
        world.cut(conn, Do::Rst);
    }
    for _ in 0..20 {
        world.get(client, "00000001");
        world.run_for(1_000_000);
    }
    world.servers[0].door = crate::world::Door::Open;
    world.run_for(1_000_000);
    world.get(client, "00000001");
    world.run_for(1_000_000);
    assert_eq!(world.clients[client].replies.last().map(|reply| reply.status), Some(200));
    assert_eq!(world.count(|counters| counters.refusals.get("suspect")), 0);
    world.finish();
}

/// A suspect gets a connection that is made for it. While that cannot be made, because the server
/// accepts nothing for a while, the other connections continue with all other requests; and the
/// suspect has its turn, however busy they are.
#[test]
fn nobody_waits_for_the_connection_of_a_suspect() {
    for connections in [2, 4] {
        let mut crowd = Crowd::new(1, connections, 1, Do::Rst);
        // Three connections end so, however often it is sent on each.
        let mut killed = BTreeSet::new();
        crowd.world.serve(move |seen| {
            let kills = seen.request.target.starts_with("/kill")
                && (killed.len() < 3 || killed.contains(&seen.conn));
            if kills {
                killed.insert(seen.conn);
                return Some(vec![Do::Delay(150_000), Do::Rst]);
            }
            Some(vec![Do::Delay(300), Do::Answer(answer(seen.request))])
        });
        crowd.run(20_000);
        let suspect = crowd.world.client();
        crowd.world.ask(suspect, "GET", "/kill?n=00000000", "");
        while !crowd.world.nodes[0]
            .engine
            .suspects()
            .iter()
            .any(|suspect| suspect.state == "suspect")
        {
            crowd.run(200);
        }
        let quarantined = crowd.world.count(|counters| counters.quarantined.get());
        crowd.world.servers[0].door = crate::world::Door::Mute;
        while crowd.world.count(|counters| counters.quarantined.get()) == quarantined {
            crowd.run(200);
        }
        for _ in 0..20 {
            let before = crowd.serial;
            crowd.run(25_000);
            // Each takes 300 us, one after the other on the connection that is left of two.
            assert!(crowd.serial - before > 64, "{} requests in 25 ms", crowd.serial - before);
        }
        assert!(crowd.world.clients[suspect].replies.is_empty());
        crowd.world.servers[0].door = crate::world::Door::Open;
        crowd.world.run_for(4_000_000);
        crowd.run(1_000_000);
        check_honest("00000000", &crowd.world.clients[suspect].replies[0]).unwrap();
        crowd.finish();
    }
}

/// A response clears, and a suspect is served alone until then.
#[test]
fn a_suspect_that_is_answered_is_free() {
    let mut world = World::started(plan(3, 4), 1, 1);
    let deaths = Rc::new(Cell::new(3));
    for server in 0..3 {
        let deaths = Rc::clone(&deaths);
        world.servers[server].serve = Box::new(move |seen| match deaths.get() {
            0 => honest(seen),
            left => {
                deaths.set(left - 1);
                Some(vec![Do::Rst])
            }
        });
    }
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(1_000_000);
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    assert_eq!(world.times_served("00000001"), 4);
    assert!(world.nodes[0].engine.suspects().is_empty());
    assert!(world.count(|counters| counters.quarantined.get()) >= 1);
    world.finish();
}
