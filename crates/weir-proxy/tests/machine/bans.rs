//! Proves: a client that is refused too often is proposed for a ban, once and by its network. A
//! banned client is reset on connect, together with all that it has open, until its ban ends. One
//! behind a trusted proxy gets 403, and no other client is affected (docs/bans.md). How: a
//! limit that one request passes, and sets of bans by hand.

use std::net::IpAddr;

use weir_proxy::engine::Unwanted;
use weir_proxy::plan::{
    BanPlan, ClientPlan, Entrance, LimitPlan, Network, Over, Plan, ShieldPlan, Terms,
};
use weir_proxy::shield::bans::{BanSet, Block, Offence};
use weir_proxy::shield::limit::Rate;

use crate::world::{Do, World, answer, plan};

const SECOND_US: u64 = 1_000_000;

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn block(text: &str) -> Block {
    Block::read(text, 32, 64).expect("a block")
}

/// One request a second, and three refusals a minute are tolerated.
fn limited(change: impl FnOnce(&mut ShieldPlan)) -> Plan {
    let one = LimitPlan::new("one", Terms::Requests(Rate::new(1, SECOND_US, 1, false)));
    let mut shield = ShieldPlan::new(vec![one], 1024);
    shield.ban =
        Some(BanPlan { offences: Rate::new(3, 60 * SECOND_US, 3, false), ..BanPlan::default() });
    change(&mut shield);
    Plan { shield: Some(shield), ..plan(1, 1) }
}

fn trusting(proxy: &str, plan: Plan) -> Plan {
    let network = Network { address: address(proxy), prefix_bits: 32 };
    Plan { client: ClientPlan { trusted_proxies: vec![network], ..ClientPlan::default() }, ..plan }
}

fn offered(world: &mut World) -> Vec<Offence> {
    let engines = world.nodes.iter_mut().map(|node| &mut node.engine);
    engines
        .flat_map(|engine| std::iter::from_fn(|| engine.take_offence()).collect::<Vec<_>>())
        .collect()
}

fn connect(world: &mut World, from: &str) -> Result<u64, Unwanted> {
    let peer = std::net::SocketAddr::new(address(from), 1);
    world.nodes[0].engine.begin_turn(world.now_us);
    world.nodes[0].engine.accepted(
        77,
        peer,
        Entrance { serves: world.serves, ..Entrance::default() },
    )
}

fn banned(world: &World, who: &[&str], for_us: u64) -> BanSet {
    BanSet::new(who.iter().map(|who| (block(who), world.now_us + for_us)).collect())
}

#[test]
fn who_is_refused_too_often_is_offered_once() {
    let mut world = World::started(limited(|_| {}), 2, 1);
    world.peer = address("192.0.2.7");
    let clients = [world.client_of(0), world.client_of(1)];
    // One is served and three refusals are tolerated, over all workers.
    for number in 0..4 {
        world.get(clients[number % 2], "a");
        world.settle();
    }
    assert_eq!(offered(&mut world), []);
    for number in 0..4 {
        world.get(clients[number % 2], "b");
        world.settle();
    }
    assert_eq!(
        offered(&mut world),
        [Offence {
            block: block("192.0.2.7"),
            limit: "one".into(),
            by_proxy: false,
            forwards: false
        }]
    );
    world.run_for(SECOND_US);
    (0..3).for_each(|_| world.get(clients[0], "c"));
    world.settle();
    assert_eq!(offered(&mut world).len(), 1, "nobody has banned him: once more after a second");
    // An operator lifts the ban.
    world.run_for(SECOND_US);
    world.nodes[0].parts.plan.shield.as_ref().expect("limits").forgive(block("192.0.2.7"));
    (0..3).for_each(|_| world.get(clients[1], "d"));
    world.settle();
    assert_eq!(offered(&mut world), []);
    world.finish();
}

#[test]
fn networks_are_offered_as_such() {
    let mut world = World::started(limited(|_| {}), 1, 1);
    world.peer = address("2001:db8:1:2:3::4");
    let client = world.client();
    (0..6).for_each(|_| world.get(client, "a"));
    world.settle();
    assert_eq!(
        offered(&mut world),
        [Offence {
            block: block("2001:db8:1:2::/64"),
            limit: "one".into(),
            by_proxy: false,
            forwards: false
        }]
    );
    world.finish();
}

#[test]
fn limits_that_only_observe_ban_nobody() {
    for all in [false, true] {
        let mut world = World::started(
            limited(|shield| {
                shield.observe = all;
                shield.limits[0].observe = !all;
                shield.limits[0].over = Over::Ban;
            }),
            1,
            1,
        );
        let client = world.client();
        (0..9).for_each(|_| world.get(client, "a"));
        world.settle();
        assert_eq!(
            (offered(&mut world), world.clients[client].statuses()),
            (Vec::new(), vec![200; 9])
        );
        world.finish();
    }
}

#[test]
fn a_limit_that_bans_does_so_at_once() {
    let mut world = World::started(limited(|shield| shield.limits[0].over = Over::Ban), 1, 1);
    world.peer = address("192.0.2.7");
    let client = world.client();
    world.get(client, "a");
    world.get(client, "b");
    world.settle();
    assert!(world.clients[client].was_reset);
    assert_eq!(offered(&mut world).len(), 1);
    world.finish();
}

/// Also for connections: at that point no request has been sent.
#[test]
fn a_limit_of_connections_bans() {
    let mut open = LimitPlan::new("open", Terms::Open(1));
    open.over = Over::Ban;
    let change = |shield: &mut ShieldPlan| {
        let ban = shield.ban.take();
        *shield = ShieldPlan::new(vec![open], 1024);
        shield.ban = ban;
    };
    let mut world = World::started(limited(change), 1, 1);
    world.client();
    let peer = world.peer.to_string();
    assert_eq!(connect(&mut world, &peer), Err(Unwanted::Reset));
    assert_eq!(
        offered(&mut world),
        [Offence { block: block(&peer), limit: "open".into(), by_proxy: false, forwards: false }]
    );
    world.finish();
}

#[test]
fn what_a_banned_client_has_is_reset() {
    let mut world = World::started(plan(1, 4), 1, 1);
    world.serve(|seen| {
        (!seen.request.target.contains("slow")).then(|| vec![Do::Answer(answer(seen.request))])
    });
    world.peer = address("192.0.2.7");
    let (idle, waits, http2) = (world.client(), world.client(), world.http2_client(0, 65_535));
    world.peer = address("192.0.2.8");
    let other = world.client();
    world.get(idle, "a");
    world.get(waits, "slow");
    world.open(http2, 1, "/slow");
    world.open(http2, 3, "/v");
    world.settle();
    let set = banned(&world, &["192.0.2.7"], 5 * SECOND_US);
    world.ban(set);
    world.settle();
    for client in [idle, waits, http2] {
        assert!(world.clients[client].closed && world.clients[client].was_reset, "{client}");
    }
    assert_eq!(world.count(|all| all.client_closes.iter().map(|(_, count)| count).sum()), 3);
    assert_eq!(connect(&mut world, "192.0.2.7"), Err(Unwanted::Reset));
    assert_eq!(connect(&mut world, "::ffff:192.0.2.7"), Err(Unwanted::Reset));
    assert_eq!(world.count(|all| all.connections_banned.get()), 2);
    world.get(other, "b");
    world.settle();
    assert_eq!(world.clients[other].statuses(), [200], "another client");
    world.peer = address("192.0.2.7");
    world.run_for(5 * SECOND_US);
    let again = world.client();
    world.get(again, "c");
    world.settle();
    assert_eq!(world.clients[again].statuses(), [200], "it ends by itself");
    world.finish();
}

/// More connections than are checked in a turn: none is missed, even if sets arrive while they are
/// being checked.
#[test]
fn many_connections_are_cut_in_slices() {
    let mut world = World::started(plan(1, 1), 1, 1);
    world.peer = address("192.0.2.7");
    let clients: Vec<usize> = (0..3000).map(|_| world.client()).collect();
    let bad = |world: &World| world.clients.iter().filter(|client| client.was_reset).count();
    for others in [&["192.0.2.7"][..], &["192.0.2.7", "192.0.2.9"]] {
        let set = banned(&world, others, SECOND_US);
        world.ban(set);
        assert!((1..2049).contains(&bad(&world)), "{}", bad(&world));
    }
    world.settle();
    assert_eq!(bad(&world), clients.len());
    world.finish();
}

#[test]
fn whom_a_trusted_proxy_speaks_for_gets_403() {
    let mut world = World::started(trusting("192.0.2.1", plan(1, 1)), 1, 1);
    world.peer = address("192.0.2.1");
    let client = world.client();
    let http2 = world.http2_client(0, 65_535);
    let set = banned(&world, &["198.51.100.0/24"], 5 * SECOND_US);
    world.ban(set);
    for (who, status) in [("198.51.100.7", 403), ("203.0.113.1", 200)] {
        world.ask(client, "GET", "/v", &format!("X-Forwarded-For: {who}\r\n"));
        world.settle();
        assert_eq!(world.clients[client].statuses().last(), Some(&status), "{who}");
    }
    world.ask(client, "GET", "/v", "");
    world.open_with(http2, 1, ("GET", "/v"), &[("x-forwarded-for", "198.51.100.7")], None);
    world.settle();
    assert_eq!(world.clients[client].statuses(), [403, 200, 200]);
    assert_eq!(world.stream_reply(http2, 1).map(|reply| reply.status), Some(403));
    assert!(!world.clients[client].closed && !world.clients[http2].closed, "they serve others");
    world.run_for(5 * SECOND_US);
    world.ask(client, "GET", "/v", "X-Forwarded-For: 198.51.100.7\r\n");
    world.settle();
    assert_eq!(world.clients[client].statuses(), [403, 200, 200, 200]);
    world.finish();
}

/// Claims of an untrusted client about others affect no other client: the offender is the connected
/// one.
#[test]
fn what_clients_say_of_others_bans_nobody() {
    let mut world = World::started(limited(|_| {}), 1, 1);
    world.peer = address("192.0.2.7");
    let client = world.client();
    for _ in 0..6 {
        world.ask(
            client,
            "GET",
            "/v",
            "X-Forwarded-For: 198.51.100.1\r\nForwarded: for=198.51.100.1\r\n",
        );
    }
    world.settle();
    assert_eq!(
        offered(&mut world),
        [Offence {
            block: block("192.0.2.7"),
            limit: "one".into(),
            by_proxy: false,
            forwards: true
        }]
    );
    let set = banned(&world, &["198.51.100.1"], SECOND_US);
    world.ban(set);
    world.run_for(SECOND_US / 2);
    assert!(!world.clients[client].closed);
    world.finish();
}

/// A client behind a trusted proxy is proposed by the proxy's statement, and the proxy never is.
#[test]
fn behind_a_trusted_proxy_the_client_is_offered() {
    let mut world = World::started(
        trusting("192.0.2.1", limited(|shield| shield.limits[0].over = Over::Ban)),
        1,
        1,
    );
    world.peer = address("192.0.2.1");
    let client = world.client();
    (0..3).for_each(|_| world.ask(client, "GET", "/v", "X-Forwarded-For: 198.51.100.1\r\n"));
    (0..3).for_each(|_| world.ask(client, "GET", "/v", ""));
    world.settle();
    assert_eq!(
        offered(&mut world),
        [Offence {
            block: block("198.51.100.1"),
            limit: "one".into(),
            by_proxy: true,
            forwards: false
        }]
    );
    assert_eq!(world.clients[client].statuses(), [200, 429, 429, 200, 200, 200]);
    world.finish();
}
