//! Proves: a connection that announces its client to the server by the PROXY protocol carries
//! requests of that client only, even if a proxy in front forwards for several clients on one
//! connection. Requests that are sent again, move to another upstream or come after a reload are
//! announced as that upstream says; a probe is weir's own. How: the first bytes of connections, and
//! the requests on each. docs/proxy-protocol.md#to-servers.

use std::net::{IpAddr, SocketAddr};

use weir_proxy::plan::{
    AllDown, Announcement, Dial, HealthPlan, Network, Plan, Pool, ProxyProtocol, UpstreamPlan,
    Whose,
};

use crate::world::{Do, Door, World, answer, plan};

/// Names of client sockets begin here.
const SOCKETS: u64 = 1 << 32;

fn told(pool: Pool, version: ProxyProtocol, servers: usize) -> Plan {
    let mut plan = plan(servers, 8);
    (plan.upstreams[0].pool, plan.upstreams[0].dial.proxy_protocol) = (pool, Some(version));
    plan
}

/// Returns the announcement of a connection for a client with this address.
fn of(client: usize, address: &str, version: ProxyProtocol) -> Option<Announcement> {
    let address = address.parse().expect("an address with a port");
    Some(Announcement {
        version,
        whose: Whose::Client { address, socket: SOCKETS + client as u64 },
    })
}

/// Returns the announcement of a client without a proxy.
fn itself(world: &World, client: usize, version: ProxyProtocol) -> Option<Announcement> {
    of(client, &SocketAddr::new(world.peer, world.clients[client].port).to_string(), version)
}

#[test]
fn each_connection_names_its_client() {
    for (pool, version) in
        [(Pool::Pinned, ProxyProtocol::V1), (Pool::PerRequest, ProxyProtocol::V2)]
    {
        for workers in [1, 3] {
            let mut world = World::started(told(pool, version, 1), workers, 1);
            let clients: Vec<usize> =
                (0..6).map(|n| world.client_of(n % usize::from(workers))).collect();
            for round in 0..3 {
                for client in &clients {
                    world.get(*client, &format!("{client:04}{round:04}"));
                }
                world.run_for(10_000);
            }
            assert_eq!(world.conns.len(), if pool == Pool::Pinned { 6 } else { 18 });
            for conn in &world.conns {
                assert!(!conn.requests.is_empty());
                for request in &conn.requests {
                    let client = request.nonce()[..4].parse().expect("a number");
                    assert_eq!(conn.announcement, itself(&world, client, version));
                }
            }
            world.finish();
        }
    }
}

/// A trusted proxy forwards for several clients on one connection: none has a request on the
/// connection of another.
#[test]
fn a_proxy_speaks_for_several() {
    let mut plan = told(Pool::Pinned, ProxyProtocol::V2, 1);
    plan.client.trusted_proxies =
        vec![Network { address: IpAddr::from([192, 0, 2, 0]), prefix_bits: 24 }];
    let mut world = World::started(plan, 1, 1);
    let client = world.client();
    let own = world.clients[client].port;
    let proxy = format!("192.0.2.1:{own}");
    let mut expected = Vec::new();
    for (n, (line, who, is_new)) in [
        ("X-Forwarded-For: 198.51.100.1\r\n", "198.51.100.1:0", true),
        ("X-Forwarded-For: 198.51.100.1\r\n", "198.51.100.1:0", false),
        ("X-Forwarded-For: 198.51.100.2\r\n", "198.51.100.2:0", true),
        ("X-Forwarded-For: 198.51.100.2:4711\r\n", "198.51.100.2:4711", true),
        ("X-Forwarded-For: 198.51.100.1, 2001:db8::1\r\n", "[2001:db8::1]:0", true),
        ("X-Forwarded-For: 2001:db8::1, 192.0.2.9\r\n", "[2001:db8::1]:0", false),
        ("", &*proxy, true),
    ]
    .into_iter()
    .enumerate()
    {
        world.ask(client, "GET", &format!("/v?n={n:08}"), line);
        world.run_for(10_000);
        if is_new {
            expected.push(of(client, who, ProxyProtocol::V2));
        }
        assert_eq!(world.open_conns().len(), 1, "the one of another client has ended");
        let announced: Vec<_> = world.conns.iter().map(|conn| conn.announcement).collect();
        assert_eq!(announced, expected, "{line}");
        assert_eq!(
            world.conns.last().map(|conn| conn.requests.last().map(|one| one.nonce().to_owned())),
            Some(Some(format!("{n:08}")))
        );
    }
    // Sent at once, they are still forwarded one after the other.
    for n in 10..20 {
        world.ask(
            client,
            "GET",
            &format!("/v?n={n:08}"),
            &format!("X-Forwarded-For: 198.51.100.{n}\r\n"),
        );
    }
    world.run_for(100_000);
    assert_eq!(world.clients[client].statuses(), [200; 17]);
    for (n, conn) in (10..20).zip(&world.conns[expected.len()..]) {
        assert_eq!(conn.announcement, of(client, &format!("198.51.100.{n}:0"), ProxyProtocol::V2));
        assert_eq!(
            conn.requests.iter().map(|one| one.nonce().to_owned()).collect::<Vec<_>>(),
            [format!("{n:08}")]
        );
    }
    world.finish();
}

/// A client on a unix socket has no address, and a probe no client.
#[test]
fn who_has_no_address() {
    let mut plan = told(Pool::Pinned, ProxyProtocol::V1, 1);
    plan.upstreams[0].health =
        Some(HealthPlan { path: "/health".to_owned(), ..HealthPlan::default() });
    let mut world = World::new(plan, 2, 1);
    world.peer = weir_proxy::plan::NO_ADDRESS;
    world.run_for(20_000_000);
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(10_000);
    assert_eq!(world.clients[client].statuses(), [200]);
    for conn in &world.conns {
        let is_probe = conn.requests.iter().all(|request| request.target == "/health");
        let whose = if is_probe { Whose::Own } else { Whose::Unknown };
        assert_eq!(conn.announcement, Some(Announcement { version: ProxyProtocol::V1, whose }));
    }
    assert!(world.conns.len() > 1);
    world.finish();
}

/// A request that is sent again after a loss, or to another server, is announced as before.
#[test]
fn what_is_sent_again() {
    let mut world = World::started(told(Pool::Pinned, ProxyProtocol::V2, 2), 1, 1);
    world.servers[0].door = Door::Refuses;
    let mut lost = 0;
    world.servers[1].serve = Box::new(move |seen| {
        lost += usize::from(seen.complete);
        seen.complete
            .then(|| if lost == 1 { vec![Do::Rst] } else { vec![Do::Answer(answer(seen.request))] })
    });
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(5_000_000);
    assert_eq!(world.clients[client].statuses(), [200]);
    assert!(world.conns.len() > 1 && world.times_served("00000001") == 2);
    let expected = itself(&world, client, ProxyProtocol::V2);
    assert!(world.conns.iter().all(|conn| conn.announcement == expected));
    world.finish();
}

/// A fallback announces as its own upstream says, or not at all.
#[test]
fn who_stands_in() {
    let mut plan = told(Pool::Pinned, ProxyProtocol::V1, 3);
    let mut servers = std::mem::take(&mut plan.upstreams[0].servers).into_iter();
    let base = plan.upstreams[0].clone();
    let mut upstream = |name: &str, proxy_protocol, fallback: Option<usize>| UpstreamPlan {
        name: name.to_owned(),
        servers: servers.next().into_iter().collect(),
        all_down: fallback.map_or(AllDown::TryAll, AllDown::Fallback),
        dial: Dial { proxy_protocol, ..Dial::default() },
        ..base.clone()
    };
    let versions = [Some(ProxyProtocol::V1), Some(ProxyProtocol::V2), None];
    plan.upstreams = vec![
        upstream("app", versions[0], Some(1)),
        upstream("spare", versions[1], Some(2)),
        upstream("last", versions[2], None),
    ];
    let mut world = World::started(plan, 1, 1);
    let client = world.client();
    for server in 0..3 {
        world.get(client, &format!("{server:08}"));
        world.run_for(1_000_000);
        assert_eq!(world.seen_by(&format!("{server:08}")), [server]);
        world.servers[server].door = Door::Refuses;
        for conn in world.open_conns() {
            world.cut(conn, Do::Rst);
        }
        world.run_for(1_000);
    }
    assert_eq!(world.clients[client].statuses(), [200; 3]);
    for conn in world.conns.iter().filter(|conn| !conn.requests.is_empty()) {
        let expected = versions[conn.server].and_then(|version| itself(&world, client, version));
        assert_eq!(conn.announcement, expected);
    }
    world.finish();
}

/// From a reload on connections are announced as it says, and earlier ones carry no more requests.
#[test]
fn a_reload_changes_it() {
    let mut world = World::started(told(Pool::Pinned, ProxyProtocol::V1, 1), 1, 1);
    let client = world.client();
    for (n, version) in
        [Some(ProxyProtocol::V1), Some(ProxyProtocol::V2), None, None].into_iter().enumerate()
    {
        let mut wanted = told(Pool::Pinned, ProxyProtocol::V1, 1);
        wanted.upstreams[0].dial.proxy_protocol = version;
        world.reload(wanted);
        world.get(client, &format!("{n:08}"));
        world.run_for(100_000);
        let expected = version.and_then(|version| itself(&world, client, version));
        let used = world.conns.iter().rfind(|conn| !conn.requests.is_empty());
        assert_eq!(used.map(|conn| conn.announcement), Some(expected));
    }
    assert_eq!((world.clients[client].statuses(), world.conns.len()), (vec![200; 4], 3));
    world.finish();
}
