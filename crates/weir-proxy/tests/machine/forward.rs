//! Proves: the responses to clients of the forward proxy and the targets of their requests:
//! destinations, names, policy, users, tunnels. How: a world whose servers are destinations on
//! 127.0.0.1, which a rule allows; the test itself is the side thread. docs/forward.md.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use weir_check::upstreams::check_honest;
use weir_proxy::forward::lookup::{
    Addresses, Credentials, Errand, News, Unresolved, Unverified, User,
};
use weir_proxy::forward::policy::{Policy, Rule};
use weir_proxy::forward::shares::Asker;
use weir_proxy::plan::{ForwardPlan, Network, Plan, Pool, ServerPlan, Serves, UpstreamPlan};

use crate::world::{Do, Door, World};

const SECOND_US: u64 = 1_000_000;

/// A forward proxy that allows 127.0.0.1-127.0.0.9 with ports from 9000 on; three destinations
/// exist.
pub(crate) fn forward() -> Plan {
    let address = SocketAddr::from(([0, 0, 0, 0], 0));
    let server =
        |n: u16| ServerPlan { connections: 0, ..ServerPlan::new(&format!("none-{n}"), address) };
    let upstream = |name: &str, servers: u16| UpstreamPlan {
        name: name.to_owned(),
        servers: (0..servers).map(server).collect(),
        pool: Pool::Pinned,
        ..UpstreamPlan::default()
    };
    let local = Network { address: IpAddr::from([127, 0, 0, 0]), prefix_bits: 29 };
    let rule =
        Rule { allow: true, addresses: vec![local], ports: vec![9000..=9010], ..Rule::default() };
    let own = vec![SocketAddr::from(([127, 0, 0, 1], 9009))];
    Plan {
        upstreams: vec![upstream("forward", 1), upstream("unused", 2)],
        forward: Some(ForwardPlan {
            upstream: 0,
            policy: Policy::new(vec![rule], own),
            users: None,
            realm: "weir".to_owned(),
            destinations_max: 16,
            user_connections_max: None,
            user_rate_max: None,
            resolvers: Vec::new(),
            pac: None,
        }),
        access_log: Some(crate::world::access_log(crate::world::LINE)),
        ..Plan::default()
    }
}

pub(crate) fn change(mut plan: Plan, change: impl FnOnce(&mut ForwardPlan)) -> Plan {
    change(plan.forward.as_mut().expect("a forward proxy"));
    plan
}

pub(crate) fn world(plan: Plan) -> World {
    let mut world = World::new(plan, 1, 1);
    world.serves = Serves::Forward;
    world
}

/// A GET in absolute-form.
pub(crate) fn get(world: &mut World, client: usize, authority: &str, nonce: &str) {
    send(world, client, "GET", &format!("http://{authority}/v?n={nonce}"), "");
}

pub(crate) fn send(world: &mut World, client: usize, method: &str, target: &str, fields: &str) {
    world.expect(client, method, false, false);
    world.send(
        client,
        format!("{method} {target} HTTP/1.1\r\nHost: ignored.example\r\n{fields}\r\n").as_bytes(),
    );
}

pub(crate) fn resolved(world: &mut World, name: &str, addresses: &[[u8; 4]], ttl_us: u64) {
    let list: Arc<[IpAddr]> = addresses.iter().map(|address| IpAddr::from(*address)).collect();
    tell(world, name, asker(1), Ok(Addresses { list, ttl_us }));
}

/// A client of which only the address is known: 192.0.2.`last`.
fn asker(last: u8) -> Asker {
    Asker::of(None, IpAddr::from([192, 0, 2, last]))
}

fn tell(world: &mut World, name: &str, asker: Asker, answer: Result<Addresses, Unresolved>) {
    world.news(0, News::Resolved { name: name.into(), asker, answer });
    world.run_for(1000);
}

fn words(world: &World, client: usize) -> Vec<String> {
    let text = |reply: &weir_check::Reply| reply.body.text().trim().to_owned();
    world.clients[client].replies.iter().map(text).collect()
}

/// One connection of the client for each destination; Host is that of the target, and the
/// destination learns nothing of the client.
#[test]
fn a_connection_for_each_destination() {
    let mut world = world(forward());
    let client = world.client();
    for n in 0..6 {
        get(&mut world, client, ["127.0.0.1:9000", "127.0.0.1:9001"][n % 2], &format!("{n:08}"));
        world.run_for(1000);
        check_honest(&format!("{n:08}"), &world.clients[client].replies[n]).unwrap();
    }
    assert_eq!(world.conns.iter().map(|conn| conn.server).collect::<Vec<_>>(), [0, 1]);
    for conn in &world.conns {
        let request = &conn.requests[0];
        assert_eq!(
            request.fields.first("host"),
            Some(&*format!("127.0.0.1:{}", 9000 + conn.server))
        );
        assert!(request.target.starts_with("/v?n="));
        assert!(!request.fields.has("x-forwarded-for") && !request.fields.has("forwarded"));
        assert!(request.fields.has("via"));
    }
    assert!(world.errands.is_empty(), "nobody is asked for addresses of an address");
    world.finish();
}

/// This many connections and no more: the least recently used one is closed.
#[test]
fn destinations_are_bounded() {
    let mut world = world(change(forward(), |forward| forward.destinations_max = 2));
    let client = world.client();
    for (n, port) in [9000, 9001, 9000, 9002, 9000, 9001].into_iter().enumerate() {
        get(&mut world, client, &format!("127.0.0.1:{port}"), &format!("{n:08}"));
        world.run_for(1000);
    }
    assert_eq!(world.clients[client].statuses(), [200; 6]);
    assert_eq!(world.conns.iter().map(|conn| conn.server).collect::<Vec<_>>(), [0, 1, 2, 1]);
    assert_eq!(world.open_conns(), [0, 3]);
    world.finish();
}

/// A forbidden destination is refused before any connect or lookup, and the response says so.
#[test]
fn refused_destinations() {
    let cases = [
        ("GET", "http://127.0.0.8/", 403, "address-not-public"),
        ("GET", "http://10.0.0.1/", 403, "address-not-public"),
        ("GET", "http://[::ffff:127.0.0.1]:80/", 403, "address-not-public"),
        ("GET", "http://192.0.2.1:25/", 403, "port-not-allowed"),
        ("CONNECT", "192.0.2.1:80", 403, "port-not-allowed"),
        ("CONNECT", "169.254.169.254:443", 403, "address-not-public"),
        ("GET", "http://127.0.0.1:9009/", 403, "own-address"),
        ("GET", "http://2130706433/", 400, "host-numeric"),
        ("GET", "http://0x7f.1/", 400, "host-numeric"),
        ("GET", "https://127.0.0.1:9000/", 501, "scheme"),
        ("GET", "http://127.0.0.1:0/", 400, "port"),
        ("GET", "/proxy.pac", 404, "no-pac"),
        ("GET", "/", 400, "not-absolute"),
        ("OPTIONS", "*", 400, "not-absolute"),
    ];
    for (method, target, status, word) in cases {
        let mut world = world(forward());
        let client = world.client();
        send(&mut world, client, method, target, "");
        world.run_for(1000);
        assert_eq!(world.clients[client].statuses(), [status], "{method} {target}");
        assert!(
            words(&world, client)[0].ends_with(word),
            "{method} {target}: {:?}",
            words(&world, client)
        );
        let explained = world.clients[client].replies[0].fields.first("proxy-status");
        assert_eq!(explained.is_some(), status == 403, "{explained:?}");
        assert!(world.connects.is_empty() && world.errands.is_empty());
        world.finish();
    }
}

/// A name is looked up once for all waiting requests, and the request is sent to the address that
/// was allowed.
#[test]
fn names_are_looked_up() {
    let mut world = world(forward());
    let (one, two) = (world.client(), world.client());
    get(&mut world, one, "Www.Example.org.:9000", "00000001");
    get(&mut world, two, "www.example.org:9000", "00000002");
    world.run_for(1000);
    assert_eq!(
        world.errands,
        [(0, Errand::Resolve { name: "www.example.org".into(), asker: asker(1) })]
    );
    assert!(world.connects.is_empty());
    resolved(&mut world, "www.example.org", &[[10, 0, 0, 1], [127, 0, 0, 2]], 60 * SECOND_US);
    assert_eq!(
        world.connects,
        [SocketAddr::from(([127, 0, 0, 2], 9000)); 2],
        "the address that is refused is not tried"
    );
    for (client, nonce) in [(one, "00000001"), (two, "00000002")] {
        check_honest(nonce, &world.clients[client].replies[0]).unwrap();
    }
    let three = world.client();
    get(&mut world, three, "www.example.org:9000", "00000003");
    world.run_for(1000);
    assert_eq!((world.clients[three].statuses(), world.errands.len()), (vec![200], 1), "known");
    world.finish();
}

/// A name with an allowed address first and a private one later (rebinding) is refused then, also
/// on a connection that has been used before; only its existing connection to the allowed address
/// remains in use.
#[test]
fn rebinding() {
    let mut world = world(forward());
    let (client, other) = (world.client(), world.client());
    get(&mut world, client, "evil.example:9000", "00000001");
    world.run_for(1000);
    resolved(&mut world, "evil.example", &[[127, 0, 0, 1]], SECOND_US);
    assert_eq!(world.clients[client].statuses(), [200]);
    world.run_for(2 * SECOND_US);
    get(&mut world, other, "evil.example:9000", "00000002");
    get(&mut world, client, "evil.example:9000", "00000003");
    world.run_for(1000);
    assert_eq!(world.errands.len(), 2, "asked anew");
    resolved(&mut world, "evil.example", &[[10, 0, 0, 1], [192, 168, 0, 1]], SECOND_US);
    assert_eq!(world.clients[other].statuses(), [403]);
    assert_eq!(world.clients[client].statuses(), [200, 403]);
    assert_eq!(world.connects.len(), 1);
    world.finish();
}

/// Names without addresses, name servers that fail, are slow, or never respond: each has its
/// status, no request waits for ever.
#[test]
fn names_that_can_not_be_resolved() {
    let cases = [
        (Unresolved::NoSuchName { ttl_us: 0 }, 502, "no-such-name", "dns_error"),
        (Unresolved::Failed, 502, "name-servers-failed", "dns_error"),
        (Unresolved::TimedOut, 504, "name-servers-timeout", "dns_timeout"),
        (Unresolved::NoRoom, 503, "names-busy", "dns_error"),
    ];
    for (why, status, word, error) in cases {
        let mut world = world(forward());
        let client = world.client();
        get(&mut world, client, "nobody.example:9000", "00000001");
        world.run_for(1000);
        tell(&mut world, "nobody.example", asker(1), Err(why));
        assert_eq!(world.clients[client].statuses(), [status]);
        assert!(words(&world, client)[0].ends_with(word));
        let explained =
            world.clients[client].replies[0].fields.first("proxy-status").unwrap_or_default();
        assert!(explained.contains(error), "{explained}");
        assert_eq!(
            world.clients[client].replies[0].fields.first("retry-after").is_some(),
            status == 503
        );
        assert!(!world.clients[client].closed, "the connection goes on");
        world.finish();
    }
    let mut world = world(forward());
    let client = world.client();
    get(&mut world, client, "silent.example:9000", "00000001");
    world.run_for(20 * SECOND_US);
    assert_eq!(world.clients[client].statuses(), [504]);
    assert!(words(&world, client)[0].ends_with("errand-timeout"));
    // Late news is for no one.
    resolved(&mut world, "silent.example", &[[127, 0, 0, 1]], SECOND_US);
    assert!(world.connects.is_empty());
    world.finish();
}

/// The lack of room for one client's name affects neither others that wait for it, nor the client's
/// next request.
#[test]
fn no_room_for_a_name_is_for_who_asked() {
    let mut world = world(forward());
    let one = world.client();
    world.peer = IpAddr::from([192, 0, 2, 2]);
    let (two, three) = (world.client(), world.client());
    for client in [one, two, three] {
        get(&mut world, client, "a.example:9000", &format!("{client:08}"));
        world.run_for(1000);
    }
    let errand = |last| (0, Errand::Resolve { name: "a.example".into(), asker: asker(last) });
    assert_eq!(world.errands, [errand(1), errand(2)], "one for each address");
    tell(&mut world, "a.example", asker(1), Err(Unresolved::NoRoom));
    assert_eq!([one, two, three].map(|client| world.clients[client].statuses().len()), [1, 0, 0]);
    resolved(&mut world, "a.example", &[[127, 0, 0, 1]], SECOND_US);
    get(&mut world, one, "a.example:9000", "00000009");
    world.run_for(1000);
    assert_eq!(
        [one, two, three].map(|client| world.clients[client].statuses()),
        [vec![503, 200], vec![200], vec![200]]
    );
    // A request after a refusal starts a new lookup.
    world.run_for(2 * SECOND_US);
    world.errands.clear();
    for nonce in ["00000010", "00000011"] {
        get(&mut world, one, "a.example:9000", nonce);
        world.run_for(1000);
        assert_eq!(world.errands.pop(), Some(errand(1)));
        tell(&mut world, "a.example", asker(1), Err(Unresolved::NoRoom));
    }
    assert_eq!(world.clients[one].statuses(), [503, 200, 503, 503]);
    world.finish();
}

/// A user has its share on every connection, and leaves that of its address to others.
#[test]
fn names_are_asked_for_by_users() {
    let mut world = world(with_users());
    let (client, ann) = (world.client(), Arc::new(User::new("ann")));
    send(&mut world, client, "GET", "http://a.example:9000/v?n=00000001", ANN);
    world.run_for(1000);
    verify(&mut world, Some(&ann));
    let asker = Asker::User("ann".into());
    assert_eq!(
        world.errands,
        [(0, Errand::Resolve { name: "a.example".into(), asker: asker.clone() })]
    );
    tell(&mut world, "a.example", asker, Err(Unresolved::NoRoom));
    assert_eq!(world.clients[client].statuses(), [503]);
    world.finish();
}

/// Several addresses: one that refuses is followed by the next at once, one that is silent after a
/// quarter of a second, and the first that accepts serves the request. When none does, the client
/// learns it.
#[test]
fn addresses_are_raced() {
    let mut world = world(forward());
    let client = world.client();
    // The world's doors are by port, so names with several addresses of one port share a door: two
    // names, two ports.
    world.servers[0].door = Door::Refuses;
    get(&mut world, client, "two.example:9000", "00000001");
    world.run_for(1000);
    resolved(&mut world, "two.example", &[[127, 0, 0, 1], [127, 0, 0, 2]], SECOND_US);
    assert_eq!(world.clients[client].statuses(), [502]);
    assert_eq!(world.connects.len(), 2);
    assert!(words(&world, client)[0].ends_with("connect-failed"));
    world.servers[1].door = Door::Mute;
    get(&mut world, client, "mute.example:9001", "00000002");
    world.run_for(1000);
    resolved(
        &mut world,
        "mute.example",
        &[[127, 0, 0, 1], [127, 0, 0, 2], [127, 0, 0, 3]],
        60 * SECOND_US,
    );
    assert_eq!(world.connects.len(), 3, "one at first");
    world.run_for(300_000);
    assert_eq!(world.connects.len(), 4, "the next one beside it");
    world.servers[1].door = Door::Open;
    world.run_for(300_000);
    assert_eq!(world.clients[client].statuses(), [502, 200]);
    assert_eq!(world.connects.len(), 5);
    assert_eq!(world.open_conns().len(), 1, "the others are closed");
    world.servers[2].door = Door::Mute;
    get(&mut world, client, "127.0.0.1:9002", "00000003");
    world.run_for(6 * SECOND_US);
    assert_eq!(world.clients[client].statuses(), [502, 200, 504]);
    assert!(words(&world, client)[2].ends_with("connect-timeout"));
    world.finish();
}

fn connected(plan: Plan) -> (World, usize) {
    let mut world = world(plan);
    world.raw = true;
    let client = world.client();
    send(&mut world, client, "CONNECT", "127.0.0.1:9000", "");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [200]);
    (world, client)
}

/// A tunnel carries bytes both ways and nothing else; each direction ends separately.
#[test]
fn tunnels() {
    for client_first in [true, false] {
        let (mut world, client) = connected(forward());
        world.send(client, b"ping");
        world.say(0, Do::Bytes(b"pong".to_vec()));
        world.run_for(1000);
        assert_eq!(
            (&world.conns[0].tunnel[..], &world.clients[client].tunnel[..]),
            (&b"ping"[..], &b"pong"[..])
        );
        assert_eq!(world.count(|counters| counters.tunnels.get()), 1);
        if client_first {
            world.half_close(client);
            world.run_for(1000);
            assert!(world.conns[0].fin && !world.clients[client].closed);
            world.say(0, Do::Bytes(b"late".to_vec()));
            world.say(0, Do::Fin);
        } else {
            world.say(0, Do::Fin);
            world.run_for(1000);
            assert!(world.clients[client].end.is_some() && !world.clients[client].closed);
            world.send(client, b"late");
            world.half_close(client);
        }
        world.run_for(1000);
        let (up, down) = (&world.conns[0].tunnel[..], &world.clients[client].tunnel[..]);
        assert_eq!(
            (up, down),
            if client_first {
                (&b"ping"[..], &b"ponglate"[..])
            } else {
                (b"pinglate".as_slice(), b"pong".as_slice())
            }
        );
        assert!(world.conns[0].closed && world.clients[client].closed);
        world.finish();
    }
}

/// Bytes that a client sends before the tunnel exists wait, and are never sent if it fails; nor are
/// they parsed as a request.
#[test]
fn early_data_waits() {
    let mut world = world(forward());
    world.raw = true;
    world.servers[0].door = Door::Mute;
    let client = world.client();
    world.expect(client, "CONNECT", false, false);
    world.send(
        client,
        b"CONNECT 127.0.0.1:9000 HTTP/1.1\r\nHost: x\r\n\r\n\
            GET http://127.0.0.1:9001/ HTTP/1.1\r\n\r\n",
    );
    world.run_for(1000);
    assert!(world.clients[client].replies.is_empty() && world.conns[0].tunnel.is_empty());
    world.servers[0].door = Door::Open;
    world.run_for(6 * SECOND_US);
    assert_eq!(world.clients[client].statuses(), [504]);
    assert_eq!(world.connects.len(), 1, "what stood behind it was not a request");
    assert!(world.conns.iter().all(|conn| conn.tunnel.is_empty()));
    world.finish();

    let (mut world, client) = {
        let mut world = self::world(forward());
        world.raw = true;
        let client = world.client();
        world.expect(client, "CONNECT", false, false);
        world.send(client, b"CONNECT 127.0.0.1:9000 HTTP/1.1\r\nHost: x\r\n\r\nearly");
        world.run_for(1000);
        (world, client)
    };
    assert_eq!(
        (world.clients[client].statuses(), &world.conns[0].tunnel[..]),
        (vec![200], &b"early"[..])
    );
    world.reset(client);
    world.run_for(1000);
    assert!(world.conns[0].closed);
    world.finish();
}

/// Refused, unreachable and mute destinations of tunnels have their statuses, and the connection
/// ends behind them.
#[test]
fn tunnels_that_fail() {
    for (door, wait_us, status) in [(Door::Refuses, 1000, 502), (Door::Mute, 6 * SECOND_US, 504)] {
        let mut world = world(forward());
        world.servers[0].door = door;
        let client = world.client();
        send(&mut world, client, "CONNECT", "127.0.0.1:9000", "");
        world.run_for(wait_us);
        assert_eq!(world.clients[client].statuses(), [status]);
        assert!(world.clients[client].replies[0].fields.has("proxy-status"));
        world.finish();
    }
    // A reset from the destination ends the tunnel; an idle one ends after its time.
    let (mut world, client) = connected(forward());
    world.say(0, Do::Rst);
    world.run_for(1000);
    assert!(world.clients[client].closed);
    world.finish();
    let (mut world, client) = connected(forward());
    world.run_for(3601 * SECOND_US);
    assert!(world.clients[client].closed && world.conns[0].closed);
    world.finish();
}

/// After a request in absolute-form the same connection may tunnel, and its pinned connection is
/// separate.
#[test]
fn a_tunnel_after_requests() {
    let mut world = world(forward());
    let client = world.client();
    get(&mut world, client, "127.0.0.1:9001", "00000001");
    world.run_for(1000);
    world.raw = true;
    send(&mut world, client, "CONNECT", "127.0.0.1:9000", "");
    world.run_for(1000);
    world.send(client, b"x");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [200, 200]);
    assert_eq!((world.conns[0].requests.len(), &world.conns[1].tunnel[..]), (1, &b"x"[..]));
    world.finish();
}

/// A tunnel is passed to the driver as soon as that has all earlier bytes; the bytes that it moves
/// are counted, also in the log.
#[test]
fn tunnels_are_handed_over() {
    let mut plan = forward();
    plan.access_log = Some(crate::world::access_log("$request_length $bytes_sent $reason"));
    let mut world = world(plan);
    world.let_relay();
    (world.raw, world.servers[0].deaf) = (true, true);
    let client = world.client();
    world.expect(client, "CONNECT", false, false);
    world.send(client, b"CONNECT 127.0.0.1:9000 HTTP/1.1\r\nHost: x\r\n\r\nearly");
    world.stall(client, true);
    world.run_for(1000);
    assert_eq!(world.relays, [(client, 0)], "what is with the driver may be on its way");
    world.stall(client, false);
    world.swallow(0);
    world.run_for(1000);
    world.moved = (1000, 50_000);
    world.end_relay(client, false);
    world.run_for(1000);
    assert!(world.clients[client].closed && world.conns[0].closed);
    assert_eq!(
        world.lines,
        ["1049 50039 -"],
        "head, early bytes and what was relayed; the answer and what was relayed"
    );
    assert_eq!(world.count(|counters| counters.upstream_bytes_in.get()), 50_000);
}

/// More than the driver takes at once waits here, and nothing is handed over before.
#[test]
fn a_tunnel_is_not_handed_over_before_its_bytes() {
    let mut world = world(forward());
    world.let_relay();
    (world.raw, world.servers[0].deaf) = (true, true);
    let client = world.client();
    world.expect(client, "CONNECT", false, false);
    world.send(client, b"CONNECT 127.0.0.1:9000 HTTP/1.1\r\nHost: x\r\n\r\nearly");
    world.send(client, b"more");
    world.stall(client, true);
    world.run_for(1000);
    let early = world.relays.len();
    world.swallow(0);
    world.run_for(1000);
    world.stall(client, false);
    world.run_for(1000);
    assert_eq!((early <= 1, world.relays.len()), (true, 1), "once");
    world.reset(client);
    world.end_relay(client, true);
    world.run_for(1000);
    assert!(world.conns[0].closed);
}

/// A tunnel without traffic for its time ends; one with traffic in between continues.
#[test]
fn a_relayed_tunnel_that_is_idle() {
    let mut plan = forward();
    // The bytes that the test reports as moved never reach a client.
    plan.access_log = None;
    let mut world = world(plan);
    world.let_relay();
    world.raw = true;
    let client = world.client();
    send(&mut world, client, "CONNECT", "127.0.0.1:9000", "");
    world.run_for(1000);
    assert_eq!(world.relays.len(), 1);
    for hour in 1..4 {
        world.run_for(2000 * SECOND_US);
        world.moved.1 += 1;
        world.run_for(1000 * SECOND_US);
        assert!(!world.clients[client].closed, "after {hour} times");
    }
    world.run_for(4600 * SECOND_US);
    assert!(world.clients[client].closed && world.conns[0].closed);
    assert_eq!(world.count(|counters| counters.timeouts.get("tunnel")), 1);
    world.finish();
}

// ---- users ----

pub(crate) const ANN: &str = "Proxy-Authorization: Basic YW5uOnNlY3JldA==\r\n"; // ann:secret
const BOB: &str = "Proxy-Authorization: Basic Ym9iOnB3\r\n"; // bob:pw

pub(crate) fn with_users() -> Plan {
    change(forward(), |forward| forward.users = Some(Path::new("users").into()))
}

/// Answers the one open verification, and returns its credentials.
pub(crate) fn verify(world: &mut World, user: Option<&Arc<User>>) -> Credentials {
    let (node, errand) = world.errands.pop().expect("a verification");
    assert!(world.errands.is_empty());
    let Errand::Verify { question, client, credentials, .. } = errand else { panic!("{errand:?}") };
    world.news(
        node,
        News::Verified { question, client, user: user.cloned().ok_or(Unverified::Wrong) },
    );
    world.run_for(1000);
    credentials
}

/// Without credentials weir sends a challenge; with them they are verified once for a connection,
/// and never forwarded.
#[test]
fn credentials_are_verified_once() {
    let mut world = world(with_users());
    let client = world.client();
    get(&mut world, client, "127.0.0.1:9000", "00000001");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [407]);
    let challenge = world.clients[client].replies[0].fields.first("proxy-authenticate");
    assert_eq!(challenge, Some("Basic realm=\"weir\", charset=\"UTF-8\""));
    let ann = Arc::new(User::new("ann"));
    send(&mut world, client, "GET", "http://127.0.0.1:9000/v?n=00000002", ANN);
    world.run_for(1000);
    let asked = verify(&mut world, Some(&ann));
    assert_eq!((&*asked.name, &*asked.password), ("ann", &b"secret"[..]));
    for n in 3..6 {
        send(&mut world, client, "GET", &format!("http://127.0.0.1:9000/v?n={n:08}"), ANN);
        world.run_for(1000);
    }
    assert_eq!(world.clients[client].statuses(), [407, 200, 200, 200, 200]);
    assert_eq!((world.errands.len(), ann.connections()), (0, 1));
    assert!(world.requests().all(|request| !request.fields.has("proxy-authorization")));
    // Another user on the same connection is separate, and each request is checked separately.
    send(&mut world, client, "GET", "http://127.0.0.1:9000/v?n=00000007", BOB);
    world.run_for(1000);
    assert_eq!(&*verify(&mut world, None).name, "bob");
    get(&mut world, client, "127.0.0.1:9000", "00000008");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses()[5..], [407, 407]);
    assert_eq!(ann.connections(), 0);
    world.finish();
}

/// Each request is checked against the current users. A revoked user is verified again on a live
/// connection, also if it is revoked while a positive result is in flight, and its limits continue.
#[test]
fn a_revoked_user_is_verified_anew() {
    let mut world = world(change(with_users(), |forward| forward.user_connections_max = Some(1)));
    let (client, ann) = (world.client(), Arc::new(User::new("ann")));
    let ask = |world: &mut World, n: u32| {
        send(world, client, "GET", &format!("http://127.0.0.1:9000/v?n={n:08}"), ANN);
        world.run_for(1000);
    };
    ask(&mut world, 1);
    verify(&mut world, Some(&ann));
    ask(&mut world, 2);
    assert_eq!(world.clients[client].statuses(), [200, 200]);
    let again = Arc::new(ann.renewed());
    ann.revoke();
    ask(&mut world, 3);
    assert_eq!(world.clients[client].statuses().len(), 2, "the third one waits");
    verify(&mut world, Some(&ann));
    assert_eq!(world.clients[client].statuses().len(), 2, "old news count for nothing");
    verify(&mut world, Some(&again));
    ask(&mut world, 4);
    assert_eq!((world.clients[client].statuses(), again.connections()), (vec![200; 4], 1));
    again.revoke();
    ask(&mut world, 5);
    verify(&mut world, None);
    assert_eq!(world.clients[client].statuses()[4..], [407]);
    assert_eq!((world.requests().count(), again.connections()), (4, 0));
    world.finish();
}

/// Credentials that could not be compared are not wrong: 503 with Retry-After, and the next request
/// starts a new verification.
#[test]
fn no_room_to_compare_is_no_refusal_of_credentials() {
    let mut world = world(with_users());
    let (client, ann) = (world.client(), Arc::new(User::new("ann")));
    send(&mut world, client, "GET", "http://127.0.0.1:9000/v?n=00000001", ANN);
    world.run_for(1000);
    let Some((node, Errand::Verify { question, client: asker, .. })) = world.errands.pop() else {
        panic!("no verification")
    };
    world.news(node, News::Verified { question, client: asker, user: Err(Unverified::NoRoom) });
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [503]);
    assert_eq!(world.clients[client].replies[0].fields.first("retry-after"), Some("1"));
    assert!(words(&world, client)[0].ends_with("credentials-busy"));
    send(&mut world, client, "GET", "http://127.0.0.1:9000/v?n=00000002", ANN);
    world.run_for(1000);
    verify(&mut world, Some(&ann));
    assert_eq!(world.clients[client].statuses(), [503, 200]);
    world.finish();
}

/// CONNECT is verified as well; limits of a user hold over all its connections, and an end of a
/// connection makes room.
#[test]
fn limits_of_users() {
    let plan = change(with_users(), |forward| {
        (forward.user_connections_max, forward.user_rate_max) = (Some(2), Some(5));
    });
    let mut world = world(plan);
    world.raw = true;
    let ann = Arc::new(User::new("ann"));
    let clients: Vec<usize> = (0..3).map(|_| world.client()).collect();
    for client in &clients {
        send(&mut world, *client, "CONNECT", "127.0.0.1:9000", ANN);
        world.run_for(1000);
        verify(&mut world, Some(&ann));
    }
    let statuses: Vec<u16> =
        clients.iter().map(|client| world.clients[*client].statuses()[0]).collect();
    assert_eq!(statuses, [200, 200, 429]);
    world.reset(clients[0]);
    world.run_for(1000);
    world.raw = false;
    let client = world.client();
    for n in 0..6 {
        send(&mut world, client, "GET", &format!("http://127.0.0.1:9001/v?n={n:08}"), ANN);
        world.run_for(1000);
        if n == 0 {
            verify(&mut world, Some(&ann));
        }
    }
    assert_eq!(
        world.clients[client].statuses(),
        [200, 200, 200, 429, 429, 429],
        "two of five went to tunnels"
    );
    world.run_for(SECOND_US);
    send(&mut world, client, "GET", "http://127.0.0.1:9001/v?n=00000009", ANN);
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses()[6..], [200]);
    world.finish();
    assert_eq!(ann.connections(), 0);
}

/// A user with the maximum of connections is refused on a further one, each time, until one of them
/// ends.
#[test]
fn a_refused_connection_of_a_user_may_try_again() {
    let mut world = world(change(with_users(), |forward| forward.user_connections_max = Some(1)));
    let (ann, one, two) = (Arc::new(User::new("ann")), world.client(), world.client());
    let ask = |world: &mut World, client: usize, n: u32| {
        send(world, client, "GET", &format!("http://127.0.0.1:9000/v?n={n:08}"), ANN);
        world.run_for(1000);
        verify(world, Some(&ann));
    };
    ask(&mut world, one, 1);
    ask(&mut world, two, 2);
    ask(&mut world, two, 3);
    world.reset(one);
    world.run_for(1000);
    ask(&mut world, two, 4);
    assert_eq!(world.clients[two].statuses(), [429, 429, 200]);
    world.finish();
    assert_eq!(ann.connections(), 0);
}

/// An operator's order holds for tunnels as well.
#[test]
fn a_disabled_forward_proxy() {
    use weir_proxy::cross::standing::Order;
    let mut world = world(forward());
    world.nodes[0].engine.order(0, Order::Disable);
    let client = world.client();
    get(&mut world, client, "127.0.0.1:9000", "00000001");
    send(&mut world, client, "CONNECT", "127.0.0.1:9000", "");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [503, 503]);
    assert!(world.connects.is_empty());
    world.finish();
}

/// The log has the verified user, and the address of the connection.
#[test]
fn lines_of_the_log() {
    let mut plan = with_users();
    plan.access_log =
        Some(crate::world::access_log("$remote_user $request_uri $status $upstream_addr $reason"));
    let mut world = world(plan);
    let (client, ann) = (world.client(), Arc::new(User::new("ann")));
    send(&mut world, client, "GET", "http://a.example:9000/v?n=00000001", ANN);
    world.run_for(1000);
    verify(&mut world, Some(&ann));
    world.errands.clear();
    resolved(&mut world, "a.example", &[[127, 0, 0, 1]], SECOND_US);
    send(&mut world, client, "GET", "http://10.0.0.1/", ANN);
    send(&mut world, client, "GET", "http://127.0.0.1:9000/", "");
    world.run_for(1000);
    let lines = [
        "ann http://a.example:9000/v?n=00000001 200 127.0.0.1:9000 -",
        "ann http://10.0.0.1/ 403 - address-not-public",
        "- http://127.0.0.1:9000/ 407 - credentials-missing",
    ];
    assert_eq!(world.lines, lines);
}

/// All clients can read how to use the proxy, even where authentication is required.
#[test]
fn pac() {
    let mut world = world(change(with_users(), |forward| forward.pac = Some("function".into())));
    let client = world.client();
    send(&mut world, client, "GET", "/proxy.pac", "");
    send(&mut world, client, "HEAD", "/proxy.pac", "");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [200, 200]);
    let reply = &world.clients[client].replies[0];
    assert_eq!(reply.fields.first("content-type"), Some("application/x-ns-proxy-autoconfig"));
    assert_eq!(words(&world, client)[0], "function");
    assert_eq!(world.count(|counters| counters.refusals.sum()), 0, "it is no refusal");
    assert!(
        world.lines.len() == 2 && world.lines.iter().all(|line| line.contains(" none done - ")),
        "{:?}",
        world.lines
    );
    world.finish();
}
