//! Proves: requests that no server of an upstream can take move to its fallback, at once or when
//! waiting requests time out, whole and once. Requests that may have reached a server and must not
//! be repeated are not sent there; sessions and streamed bodies do not move; and requests return
//! when a server is up again. How: two upstreams of one server each, doors that close, random
//! traffic. docs/failover.md#fallback-upstream.

use std::collections::BTreeMap;

use weir_check::upstreams::check_honest;
use weir_proxy::cross::standing::Order;
use weir_proxy::placement::sticky::{Cookie, Sticky};
use weir_proxy::plan::{AllDown, Plan, Pool, UpstreamPlan};

use crate::world::{Do, Door, World, answer, plan};

/// Upstream `app` with the first server, its fallback `spare` with the second, and its fallback
/// `last` with the third.
fn chain() -> Plan {
    let mut all = plan(3, 2);
    let mut servers = std::mem::take(&mut all.upstreams[0].servers).into_iter();
    let mut upstream = |name: &str, fallback: Option<usize>| UpstreamPlan {
        name: name.to_owned(),
        servers: servers.next().into_iter().collect(),
        all_down: fallback.map_or(AllDown::TryAll, AllDown::Fallback),
        ..UpstreamPlan::default()
    };
    all.upstreams =
        vec![upstream("app", Some(1)), upstream("spare", Some(2)), upstream("last", None)];
    all
}

/// No connection to these servers can be made any more, and existing ones are gone.
fn shut(world: &mut World, servers: &[usize]) {
    for server in servers {
        world.servers[*server].door = Door::Refuses;
    }
    for conn in world.open_conns() {
        if servers.contains(&world.conns[conn].server) {
            world.cut(conn, Do::Rst);
        }
    }
}

/// Returns the servers that have seen requests, with how many.
fn seen(world: &World) -> BTreeMap<usize, usize> {
    let mut seen = BTreeMap::new();
    for conn in world.conns.iter().filter(|conn| !conn.requests.is_empty()) {
        *seen.entry(conn.server).or_default() += conn.requests.len();
    }
    seen
}

#[test]
fn who_stands_in_has_what_nobody_can_take() {
    for workers in [1, 2, 3] {
        let mut world = World::started(chain(), workers, 1);
        let client = world.client();
        world.get(client, "00000001");
        world.run_for(10_000);
        assert_eq!(
            seen(&world),
            BTreeMap::from([(0, 1)]),
            "while there is a server nobody stands in"
        );
        shut(&mut world, &[0]);
        for n in 2..6 {
            world.get(client, &format!("{n:08}"));
            world.post(client, &format!("{:08}", n + 100), b"body");
            world.run_for(100_000);
        }
        assert_eq!(seen(&world), BTreeMap::from([(0, 1), (1, 8)]));
        shut(&mut world, &[1]);
        world.get(client, "00000006");
        world.run_for(1_000_000);
        assert_eq!(seen(&world)[&2], 1);
        assert_eq!(world.clients[client].statuses(), [200; 10]);
        for (reply, nonce) in
            world.clients[client].replies.iter().step_by(2).zip([1, 102, 103, 104, 105])
        {
            check_honest(&format!("{nonce:08}"), reply).unwrap();
        }
        assert_eq!(
            world.count(|counters| counters.fallbacks.get()),
            10,
            "the last one went over two"
        );
        // Without any it is the same as without a fallback.
        shut(&mut world, &[2]);
        world.get(client, "00000007");
        world.run_for(70_000_000);
        assert_eq!(world.clients[client].statuses()[10..], [502]);
        // A recovered server gets its own requests.
        world.servers[0].door = Door::Open;
        world.run_for(40_000_000);
        let client = world.client();
        world.get(client, "00000008");
        world.run_for(100_000);
        assert_eq!((world.clients[client].statuses(), seen(&world)[&0]), (vec![200], 2));
        world.finish();
    }
}

/// A server that was never up keeps no request waiting: the first failed connect is enough.
#[test]
fn what_waits_is_given_up_at_once() {
    for workers in [1, 2] {
        let mut plan = chain();
        plan.upstreams[0].servers[0].connections_min = 0;
        let mut world = World::new(plan, workers, 1);
        world.servers[0].door = Door::Refuses;
        let clients: Vec<usize> =
            (0..6).map(|n| world.client_of(n % usize::from(workers))).collect();
        for (n, client) in clients.iter().enumerate() {
            world.post(*client, &format!("{n:08}"), &vec![b'x'; 10_000]);
            world.get(*client, &format!("{:08}", n + 100));
        }
        world.run_for(300_000);
        assert!(clients.iter().all(|client| world.clients[*client].statuses() == [200, 200]));
        for n in 0..6 {
            assert_eq!(world.times_served(&format!("{n:08}")), 1);
        }
        assert_eq!(seen(&world), BTreeMap::from([(1, 12)]));
        world.finish();
    }
}

/// By order, and by health: a server that must not be used has a fallback, even where all would be
/// tried otherwise.
#[test]
fn servers_that_may_not_be_asked() {
    let mut world = World::started(chain(), 1, 1);
    let client = world.client();
    world.order(0, Order::Disable);
    world.get(client, "00000001");
    world.run_for(10_000);
    assert_eq!(seen(&world), BTreeMap::from([(1, 1)]));
    world.order(0, Order::Enable);
    world.get(client, "00000002");
    world.run_for(10_000);
    assert_eq!(seen(&world), BTreeMap::from([(0, 1), (1, 1)]));
    assert_eq!(world.clients[client].statuses(), [200, 200]);
    world.finish();
}

/// A request that may have reached a server and must not be repeated fails as always; one that may
/// be repeated moves.
#[test]
fn nothing_is_asked_for_twice_that_must_not_be() {
    for workers in [1, 2] {
        let mut world = World::started(chain(), workers, 1);
        let first: Vec<usize> =
            (0..world.conns.len()).filter(|conn| world.conns[*conn].server == 0).collect();
        world.serve(move |seen| {
            let is_first = first.contains(&seen.conn);
            seen.complete.then(|| {
                if is_first { vec![Do::Rst] } else { vec![Do::Answer(answer(seen.request))] }
            })
        });
        // Connections exist, and no others can be made.
        world.servers[0].door = Door::Refuses;
        let (safe, unsafe_one) = (world.client(), world.client());
        world.get(safe, "00000001");
        world.post(unsafe_one, "00000002", b"once");
        world.run_for(10_000_000);
        assert_eq!(world.clients[unsafe_one].statuses(), [502]);
        assert_eq!(world.seen_by("00000002").len(), 1);
        assert_eq!(world.clients[safe].statuses(), [200]);
        world.finish();
    }
}

/// A session that may have no other server has none; one that may moves where it can.
#[test]
fn sessions() {
    for allow_failover in [false, true] {
        let mut plan = chain();
        let sticky = Sticky::new(
            &Cookie::new("srv"),
            allow_failover,
            "secret",
            "app",
            &["origin.test:9000"],
        );
        let cookie = sticky.cookie(0).expect("the first server").clone();
        let cookie =
            String::from_utf8_lossy(&cookie).split(';').next().unwrap_or_default().to_owned();
        plan.upstreams[0].sticky = Some(sticky);
        let mut world = World::started(plan, 1, 1);
        shut(&mut world, &[0]);
        let client = world.client();
        world.ask(client, "GET", "/v?n=00000001", &format!("Cookie: {cookie}\r\n"));
        world.run_for(70_000_000);
        assert_eq!(world.clients[client].statuses(), [if allow_failover { 200 } else { 502 }]);
        world.finish();
    }
}

/// A body that already streams does not move; one that is decided about at its beginning moves as a
/// whole.
#[test]
fn bodies_that_stream() {
    let mut world = World::started(chain(), 1, 1);
    shut(&mut world, &[0]);
    world.run_for(10_000);
    let client = world.client();
    world.post(client, "00000001", &vec![b'x'; 300_000]);
    world.run_for(1_000_000);
    assert_eq!((world.clients[client].statuses(), world.times_served("00000001")), (vec![200], 1));
    world.finish();
}

/// Clients of HTTP/2, one of which resets a waiting stream.
#[test]
fn streams_too() {
    let mut plan = chain();
    plan.upstreams[0].servers[0].connections_min = 0;
    let mut world = World::new(plan, 2, 1);
    world.servers[0].door = Door::Mute;
    let client = world.http2_client(0, 1 << 20);
    for stream in [1, 3, 5] {
        world.open(client, stream, &format!("/v?n={stream:08}"));
    }
    world.run_for(1000);
    world.reset_stream(client, 3);
    world.run_for(20_000_000);
    assert_eq!(world.streams_answered(client), [1, 5]);
    assert!(world.seen_by("00000003").is_empty());
    world.finish();
}

/// Connections of clients: the fallback also has one for each.
#[test]
fn pools_of_clients() {
    for pool in [Pool::Pinned, Pool::PerRequest] {
        let mut plan = chain();
        plan.upstreams.iter_mut().for_each(|upstream| upstream.pool = pool);
        let mut world = World::started(plan, 2, 1);
        world.servers[0].door = Door::Refuses;
        let clients = [world.client_of(0), world.client_of(1)];
        for n in 0..3 {
            for client in clients {
                world.get(client, &format!("{client:04}{n:04}"));
            }
            world.run_for(1_000_000);
        }
        assert!(clients.iter().all(|client| world.clients[*client].statuses() == [200; 3]));
        assert_eq!(seen(&world), BTreeMap::from([(1, 6)]));
        world.finish();
    }
}

/// A reload gives a fallback to requests that wait already, and takes it from later ones.
#[test]
fn a_reload_takes_it_away() {
    let mut world = World::started(chain(), 1, 1);
    shut(&mut world, &[0]);
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(100_000);
    let mut without = chain();
    // In another order: the fallback is identified by its name.
    without.upstreams.swap(1, 2);
    without.upstreams[0].all_down = AllDown::Fallback(2);
    without.upstreams[1].all_down = AllDown::TryAll;
    without.upstreams[2].all_down = AllDown::TryAll;
    world.reload(without.clone());
    world.get(client, "00000002");
    world.run_for(100_000);
    assert_eq!(
        (world.clients[client].statuses(), seen(&world)),
        (vec![200, 200], BTreeMap::from([(1, 2)]))
    );
    without.upstreams[0].all_down = AllDown::TryAll;
    world.reload(without);
    world.get(client, "00000003");
    world.run_for(70_000_000);
    assert_eq!(world.clients[client].statuses(), [200, 200, 502]);
    world.finish();
}

/// Doors that open and close under traffic of all kinds: each response is the client's own, nothing
/// is done twice that must not be, and no client gets an error while a fallback is up.
#[test]
fn random_doors() {
    for seed in 0..12 {
        let mut world = World::started(chain(), 1 + (seed % 3) as u16, seed);
        let clients: Vec<usize> = (0..4).map(|n| world.client_of(n % world.nodes.len())).collect();
        let mut posts = Vec::new();
        for round in 0..40 {
            let client = clients[world.rng.below(4) as usize];
            let nonce = format!("{seed:04}{round:04}");
            if world.rng.one_in(3) {
                let length = world.rng.below(90_000) as usize;
                world.post(client, &nonce, &vec![b'x'; length]);
                posts.push(nonce);
            } else {
                world.get(client, &nonce);
            }
            if world.rng.one_in(4) {
                let server = world.rng.below(2) as usize;
                let is_open = matches!(world.servers[server].door, Door::Open);
                if is_open {
                    shut(&mut world, &[server]);
                } else {
                    world.servers[server].door = Door::Open;
                }
            }
            let pause_us = world.rng.below(300_000);
            world.run_for(pause_us);
        }
        world.run_for(120_000_000);
        let statuses: Vec<u16> =
            clients.iter().flat_map(|client| world.clients[*client].statuses()).collect();
        assert_eq!(statuses.len(), 40, "seed {seed}");
        // A request on a broken connection may not be repeated.
        assert!(
            statuses.iter().all(|status| matches!(status, 200 | 502)),
            "seed {seed}: {statuses:?}"
        );
        for nonce in &posts {
            assert!(world.seen_by(nonce).len() <= 1, "seed {seed}: {nonce} went out twice");
        }
        world.finish();
    }
}
