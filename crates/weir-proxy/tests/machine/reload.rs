//! Proves: another plan replaces the one in force without touching what does not change; removed
//! servers finish their requests, new ones get their share, and no request is lost whatever is in
//! progress. How: reloads in the middle of everything, on one engine and on two that take them one
//! after the other. docs/reload.md.

use std::collections::BTreeSet;

use weir_check::upstreams::check_honest;
use weir_proxy::cross::standing::Order;
use weir_proxy::plan::{HealthPlan, Plan, ServerPlan, UpstreamPlan};
use weir_proxy::request::route::{Route, RouteTable, Target};
use weir_proxy::upstream::server_state::State;
use weir_proxy::upstream::trust::TrustState;

use crate::tunnels::SWITCH;
use crate::world::{Do, Rng, World, access_log, answer, honest, plan};

/// The plan of [`plan`] with these of its servers.
fn only(of: usize, connections: u32, servers: &[usize]) -> Plan {
    let mut plan = plan(of, connections);
    let all = plan.upstreams[0].servers.clone();
    plan.upstreams[0].servers = servers.iter().map(|at| all[*at].clone()).collect();
    plan
}

/// The plan of [`plan`] with names for its servers.
fn named(servers: usize, connections: u32) -> Plan {
    let mut plan = plan(servers, connections);
    plan.upstreams[0]
        .servers
        .iter_mut()
        .enumerate()
        .for_each(|(at, server)| server.name = format!("server-{at}"));
    plan
}

/// Each of the two servers has its own upstream, and each upstream a path.
fn apart(names: &[&str]) -> Plan {
    let base = plan(2, 2);
    let all = base.upstreams[0].servers.clone();
    let servers = names.iter().map(|name| all[usize::from(*name == "two")].clone());
    let upstream = |(name, server): (&&str, ServerPlan)| UpstreamPlan {
        name: (*name).to_owned(),
        servers: vec![server],
        ..UpstreamPlan::default()
    };
    let route = |(target, name): (usize, &&str)| Route {
        path: format!("/{name}"),
        target: Target::Upstream(target),
        ..Route::default()
    };
    Plan {
        upstreams: names.iter().zip(servers).map(upstream).collect(),
        routes: RouteTable::new(names.iter().enumerate().map(route).collect()),
        ..base
    }
}

fn server_of(world: &World, nonce: &str) -> usize {
    *world.seen_by(nonce).last().expect("it was asked")
}

fn open_at(world: &World, server: usize) -> usize {
    world.open_conns().into_iter().filter(|conn| world.conns[*conn].server == server).count()
}

/// Sends this many requests of each client, one after the other; returns the servers that got them.
fn asked(world: &mut World, clients: &[usize], tag: &str, rounds: usize) -> Vec<usize> {
    let mut servers = Vec::new();
    for round in 0..rounds {
        for client in clients {
            let nonce = format!("{tag}{client:02}{round:04}");
            world.get(*client, &nonce);
            world.settle();
            check_honest(&nonce, world.clients[*client].replies.last().unwrap()).unwrap();
            servers.push(server_of(world, &nonce));
        }
    }
    servers
}

#[test]
fn what_is_not_different_is_not_touched() {
    for workers in [1, 2] {
        let mut world = World::started(plan(2, 2), workers, 1);
        let clients: Vec<usize> =
            (0..usize::from(workers)).map(|node| world.client_of(node)).collect();
        asked(&mut world, &clients, "a", 100);
        let (conns, trust) = (world.open_conns(), |world: &World| {
            world
                .nodes
                .iter()
                .flat_map(|node| node.engine.report().servers)
                .map(|server| server.trust)
                .collect::<Vec<_>>()
        });
        let before = trust(&world);
        world.order(0, Order::Drain);
        let mut wanted = plan(2, 2);
        wanted.client.body_bytes_max = Some(10);
        wanted.upstreams[0].forward_timeout_us = 1_000_000;
        world.reload(wanted);
        world.run_for(100_000);
        assert_eq!((world.open_conns(), trust(&world)), (conns, before));
        assert!(
            asked(&mut world, &clients, "b", 10).iter().all(|server| *server == 1),
            "the order holds"
        );
        let refused = world.client_of(0);
        world.post(refused, "cc000001", &[b'x'; 11]);
        world.settle();
        assert_eq!(world.clients[refused].statuses(), [413], "the new limit holds");
        world.finish();
    }
}

#[test]
fn servers_come_and_go() {
    for workers in [1, 2] {
        let mut world = World::new(plan(3, 2), workers, 1);
        world.reload(only(3, 2, &[0]));
        world.run_for(100_000);
        let clients: Vec<usize> =
            (0..usize::from(workers)).map(|node| world.client_of(node)).collect();
        assert_eq!([0, 1, 2].map(|server| open_at(&world, server)), [2, 0, 0]);
        assert!(asked(&mut world, &clients, "a", 20).iter().all(|server| *server == 0));
        world.reload(only(3, 2, &[0, 2]));
        world.run_for(100_000);
        assert_eq!([0, 1, 2].map(|server| open_at(&world, server)), [2, 0, 2]);
        let servers = asked(&mut world, &clients, "b", 20);
        assert!(servers.contains(&0) && servers.contains(&2) && !servers.contains(&1));
        world.reload(only(3, 2, &[1, 2]));
        world.run_for(100_000);
        assert_eq!([0, 1, 2].map(|server| open_at(&world, server)), [0, 2, 2]);
        assert!(!asked(&mut world, &clients, "c", 20).contains(&0));
        world.finish();
    }
}

/// From one server to several and back: a choice can also appear later.
#[test]
fn one_server_gets_company() {
    let mut world = World::new(plan(2, 2), 2, 1);
    let mut wanted = only(2, 2, &[0]);
    wanted.upstreams[0].name = "other".to_owned();
    world.reload(wanted);
    world.run_for(100_000);
    let clients = [world.client_of(0), world.client_of(1)];
    assert!(asked(&mut world, &clients, "a", 10).iter().all(|server| *server == 0));
    let mut wanted = plan(2, 2);
    wanted.upstreams[0].name = "other".to_owned();
    wanted.upstreams[0].servers[1].weight = 25;
    world.reload(wanted);
    world.run_for(100_000);
    let servers = asked(&mut world, &clients, "b", 30);
    assert_eq!(
        [0, 1].map(|server| servers.iter().filter(|one| **one == server).count()),
        [40, 20],
        "by their weights"
    );
    world.finish();
}

/// A batch of which nothing, a part or all was sent to the server that is removed.
#[test]
fn a_batch_under_way_is_answered() {
    for workers in [1, 2] {
        for wait_us in [0, 500, 1_500, 10_000] {
            let mut world = World::started(plan(2, 2), workers, 1);
            world.serve(|seen| {
                seen.complete.then(|| vec![Do::Delay(1_000), Do::Answer(answer(seen.request))])
            });
            let clients: Vec<usize> =
                (0..6).map(|n| world.client_of(n % usize::from(workers))).collect();
            for n in 0..20 {
                clients.iter().for_each(|client| world.get(*client, &format!("{client:02}{n:06}")));
            }
            world.run_for(wait_us);
            world.reload(only(2, 2, &[1]));
            world.run_for(1_000_000);
            for client in clients {
                assert_eq!(
                    world.clients[client].replies.len(),
                    20,
                    "{workers} workers, after {wait_us} us"
                );
                for (n, reply) in world.clients[client].replies.iter().enumerate() {
                    check_honest(&format!("{client:02}{n:06}"), reply).unwrap();
                }
            }
            assert_eq!(open_at(&world, 0), 0, "it is let go when it is done");
            world.finish();
        }
    }
}

#[test]
fn uploads_and_tunnels_go_on() {
    let mut world = World::started(plan(2, 2), 2, 1);
    world.serve(|seen| match seen.request.fields.has("upgrade") {
        true => Some(vec![Do::Switch(SWITCH.to_vec())]),
        false => seen.complete.then(|| vec![Do::Answer(answer(seen.request))]),
    });
    let clients: Vec<usize> = (0..4).map(|n| world.client_of(n % 2)).collect();
    let tunnel = world.client_of(0);
    world.ask(tunnel, "GET", "/ws", "Connection: upgrade\r\nUpgrade: websocket\r\n");
    for client in &clients {
        world.expect(*client, "POST", false, false);
        let head = format!(
            "POST /p?n=00000{client:03} HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n"
        );
        world.send(*client, head.as_bytes());
        world.send(*client, &[b'x'; 150_000]);
    }
    world.run_for(10_000);
    world.reload(only(2, 2, &[]).upstream_gone());
    world.run_for(10_000);
    clients.iter().for_each(|client| world.send(*client, &[b'x'; 50_000]));
    world.send(tunnel, b"ping");
    world.run_for(100_000);
    for client in clients {
        check_honest(&format!("00000{client:03}"), &world.clients[client].replies[0]).unwrap();
    }
    assert!(!world.clients[tunnel].closed, "the tunnel lives");
    let late = world.client_of(1);
    world.get(late, "00000999");
    world.settle();
    assert_eq!(world.clients[late].statuses(), [404], "no route leads there");
    world.finish();
}

trait Gone {
    fn upstream_gone(self) -> Plan;
}

impl Gone for Plan {
    /// Without upstreams and routes.
    fn upstream_gone(self) -> Plan {
        Plan { upstreams: Vec::new(), routes: RouteTable::default(), ..self }
    }
}

/// Requests that were routed to an upstream are finished there, even if they have to be sent again.
#[test]
fn an_upstream_that_is_gone_finishes_what_it_has() {
    for workers in [1, 2] {
        let mut world = World::started(apart(&["one", "two"]), workers, 1);
        world.serve(|seen| {
            seen.complete.then(|| vec![Do::Delay(50_000), Do::Answer(answer(seen.request))])
        });
        let clients: Vec<usize> =
            (0..4).map(|n| world.client_of(n % usize::from(workers))).collect();
        for client in &clients {
            world.ask(*client, "GET", &format!("/one?n=000000{client:02}"), "");
        }
        world.run_for(10_000);
        world.reload(apart(&["two"]));
        let busy = world
            .open_conns()
            .into_iter()
            .find(|conn| !world.conns[*conn].requests.is_empty())
            .expect("a request");
        world.cut(busy, Do::Rst);
        world.run_for(2_000_000);
        for client in clients {
            check_honest(&format!("000000{client:02}"), &world.clients[client].replies[0]).unwrap();
        }
        world.run_for(200_000_000);
        assert_eq!(open_at(&world, 0), 0, "its connections rest until they are closed");
        world.finish();
    }
}

/// With options that cannot change in place, another upstream takes the name over.
#[test]
fn an_upstream_is_replaced() {
    let mut world = World::started(named(2, 2), 2, 1);
    let clients = [world.client_of(0), world.client_of(1)];
    asked(&mut world, &clients, "a", 10);
    world.order(1, Order::Drain);
    let mut wanted = named(2, 2);
    wanted.upstreams[0].queue_size = 7;
    world.reload(wanted);
    world.run_for(100_000);
    assert!(
        asked(&mut world, &clients, "b", 10).iter().all(|server| *server == 0),
        "the order holds"
    );
    assert_eq!([0, 1].map(|server| open_at(&world, server)), [4, 4], "old and new");
    world.run_for(200_000_000);
    assert_eq!([0, 1].map(|server| open_at(&world, server)), [2, 2], "new");
    world.finish();
}

/// One engine has taken the successor, the other only the step before it.
#[test]
fn engines_may_be_a_step_apart() {
    let mut world = World::new(plan(3, 1), 2, 1);
    world.reload(only(3, 1, &[0, 1]));
    world.run_for(100_000);
    let clients = [world.client_of(0), world.client_of(1)];
    for (round, servers) in [[1, 2], [0, 2], [0, 1], [2, 1]].into_iter().enumerate() {
        let (wide, next) = world.successor(only(3, 1, &servers), &BTreeSet::new());
        let tag = format!("{round}");
        world.adopt(1, &wide);
        asked(&mut world, &clients, &format!("{tag}a"), 5);
        world.adopt(0, &wide);
        asked(&mut world, &clients, &format!("{tag}b"), 5);
        world.adopt(round % 2, &next);
        asked(&mut world, &clients, &format!("{tag}c"), 5);
        world.adopt(1 - round % 2, &next);
        world.run_for(100_000);
        assert!(
            asked(&mut world, &clients, &format!("{tag}d"), 5)
                .iter()
                .all(|server| servers.contains(server))
        );
    }
    world.finish();
}

/// Slots at which no engine has anything left.
fn vacant(world: &World) -> BTreeSet<usize> {
    let reports: Vec<_> = world.nodes.iter().map(|node| node.engine.report()).collect();
    let slots = 0..reports[0].servers.len();
    slots.filter(|slot| reports.iter().all(|report| report.servers[*slot].vacant)).collect()
}

/// Whatever it was: nothing of a removed server remains with the one that gets its slot.
#[test]
fn a_slot_is_given_away_when_nothing_is_left_there() {
    for workers in [1, 2] {
        let mut started = plan(3, 2);
        started.upstreams[0].health = Some(HealthPlan::default());
        let with = |servers: &[usize]| Plan {
            upstreams: vec![UpstreamPlan {
                servers: only(3, 2, servers).upstreams[0].servers.clone(),
                ..started.upstreams[0].clone()
            }],
            ..started.clone()
        };
        let mut world = World::new(with(&[0, 1, 2]), workers, 1);
        let clients: Vec<usize> =
            (0..usize::from(workers)).map(|node| world.client_of(node)).collect();
        world.run_for(100_000);
        asked(&mut world, &clients, "a", 100);
        world.serve(|seen| {
            seen.complete.then(|| vec![Do::Delay(1_000_000), Do::Answer(answer(seen.request))])
        });
        let late: Vec<usize> = (0..9).map(|n| world.client_of(n % usize::from(workers))).collect();
        for (n, client) in late.iter().enumerate() {
            world.get(*client, &format!("b000000{n}"));
        }
        world.run_for(10_000);
        world.order(0, Order::Drain);
        world.reload(with(&[1]));
        assert_eq!(vacant(&world), BTreeSet::from([2]), "requests are under way at the first");
        world.run_for(3_000_000);
        late.iter().for_each(|client| assert_eq!(world.clients[*client].statuses(), [200]));
        assert_eq!(vacant(&world), BTreeSet::from([0, 2]));
        let mut wanted = with(&[1, 2]);
        wanted.upstreams[0].servers[1].name = "another".to_owned();
        world.serve(honest);
        world.reload_into(wanted, &vacant(&world));
        world.run_for(100_000);
        for node in &world.nodes {
            let servers = node.engine.report().servers;
            assert_eq!(
                (servers.len(), servers[0].standing),
                (3, State::Active),
                "the order was for another"
            );
            assert!(!matches!(servers[0].trust, TrustState::Trusted), "and so was the trust");
        }
        assert_eq!([0, 1, 2].map(|server| open_at(&world, server)), [0, 2, 2]);
        let servers = asked(&mut world, &clients, "c", 100);
        assert!(
            servers.contains(&1) && servers.contains(&2) && !servers.contains(&0),
            "{servers:?}"
        );
        // And back.
        world.reload_into(with(&[0, 1, 2]), &BTreeSet::new());
        world.run_for(100_000);
        assert_eq!([0, 1, 2].map(|server| open_at(&world, server)), [2; 3]);
        let servers = asked(&mut world, &clients, "d", 100);
        assert!((0..3).all(|server| servers.contains(&server)), "{servers:?}");
        world.finish();
    }
}

/// A line is written in the format in which it began.
#[test]
fn a_format_holds_for_what_was_begun_by_it() {
    let with = |format: &str| Plan { access_log: Some(access_log(format)), ..plan(1, 2) };
    let mut world = World::started(with("old $http_a $status"), 1, 1);
    world.serve(|seen| {
        seen.complete.then(|| vec![Do::Delay(10_000), Do::Answer(answer(seen.request))])
    });
    let client = world.client_of(0);
    for (n, format) in ["mid $http_b $http_a $status", "new $status"].into_iter().enumerate() {
        world.ask(client, "GET", &format!("/?n=0000000{n}"), "A: 1\r\nB: 2\r\n");
        world.run_for(1_000);
        world.reload(with(format));
    }
    world.ask(client, "GET", "/?n=00000009", "A: 1\r\nB: 2\r\n");
    world.run_for(100_000);
    let lines: Vec<String> = world.lines.iter().map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(lines, ["old 1 200", "mid 2 1 200", "new 200"]);
}

/// A restarted worker continues with the plan in force.
#[test]
fn a_new_life_has_the_plan_in_force() {
    let mut world = World::new(plan(3, 2), 2, 1);
    world.reload(only(3, 2, &[0, 2]));
    world.reload(only(3, 2, &[2, 1]));
    world.run_for(100_000);
    world.begin_anew(0);
    world.run_for(1_000_000);
    let clients = [world.client_of(0), world.client_of(1)];
    let servers = asked(&mut world, &clients, "a", 20);
    assert!(servers.contains(&1) && servers.contains(&2) && !servers.contains(&0));
    world.finish();
}

/// Any reload at any moment of any traffic: each request is answered, once and honestly.
#[test]
fn reloads_at_random() {
    for seed in 0..60 {
        let (mut rng, workers) = (Rng(seed), 1 + (seed % 3) as u16);
        let mut world = World::started(plan(4, 2), workers, seed);
        world.serve(|seen| match seen.complete {
            true if seen.now_us % 3 == 0 => honest(seen),
            true => Some(vec![Do::Delay(300), Do::Answer(answer(seen.request))]),
            false => None,
        });
        let clients: Vec<usize> =
            (0..8).map(|n| world.client_of(n % usize::from(workers))).collect();
        let mut sent = vec![0; clients.len()];
        for _ in 0..60 {
            for (at, client) in clients.iter().enumerate() {
                for _ in 0..rng.below(4) {
                    world.get(*client, &format!("{at:02}{:06}", sent[at]));
                    sent[at] += 1;
                }
            }
            world.run_for(rng.below(1_500));
            if rng.one_in(3) {
                let mut servers: Vec<usize> = (0..4).filter(|_| rng.one_in(2)).collect();
                servers.push(rng.below(4) as usize);
                servers.sort_unstable();
                servers.dedup();
                let mut wanted = only(4, 2, &servers);
                wanted.upstreams[0]
                    .servers
                    .iter_mut()
                    .for_each(|server| server.weight = 1 + rng.below(100) as u32);
                wanted.upstreams[0].queue_size = if rng.one_in(4) { 500 } else { 1000 };
                world.reload(wanted);
            }
        }
        world.run_for(3_000_000);
        for (at, client) in clients.iter().enumerate() {
            let replies = &world.clients[*client].replies;
            assert_eq!(replies.len(), sent[at], "client {at}, seed {seed}");
            for (n, reply) in replies.iter().enumerate() {
                check_honest(&format!("{at:02}{n:06}"), reply)
                    .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            }
        }
        world.finish();
    }
}
