//! Proves: which server gets a request, over one worker and several: shares by weight, backups,
//! slow start, keys, load, response times, and requests behind one that nothing may follow. How:
//! worlds of servers that are slow, silent or down, and the requests at each. docs/connections.md,
//! docs/failover.md.

use weir_check::upstreams::check_honest;
use weir_proxy::cross::standing::Order;
use weir_proxy::placement::balance::{Key, Method, Statistic};
use weir_proxy::placement::sticky::{Cookie, Sticky};
use weir_proxy::plan::{Network, PipelineMode, Plan, Pool};

use crate::world::{Do, Door, Seen, World, answer, honest, plan};

const SECOND_US: u64 = 1_000_000;

/// Returns a plan with one server for each weight.
fn weighted(weights: &[u32], connections: u32) -> Plan {
    let mut plan = plan(weights.len(), connections);
    for (n, weight) in weights.iter().enumerate() {
        plan.upstreams[0].servers[n].weight = *weight;
        plan.upstreams[0].servers[n].name = format!("10.0.0.{n}:9000");
    }
    plan
}

fn balanced(servers: usize, connections: u32, balance: Method) -> Plan {
    let mut plan = weighted(&vec![50; servers], connections);
    plan.upstreams[0].balance = balance;
    plan
}

/// Complete requests at each server.
fn arrived(world: &World) -> Vec<usize> {
    let mut counts = vec![0; world.servers.len()];
    world.conns.iter().for_each(|conn| counts[conn.server] += conn.requests.len());
    counts
}

/// Returns the requests that arrived at each server during `run`.
fn during(world: &mut World, run: impl FnOnce(&mut World)) -> Vec<usize> {
    let before = arrived(world);
    run(world);
    arrived(world).iter().zip(before).map(|(now, before)| now - before).collect()
}

/// A server that takes this long for each response.
fn slow(us: u64) -> impl FnMut(&Seen<'_>) -> Option<Vec<Do>> + 'static {
    move |seen| seen.complete.then(|| vec![Do::Delay(us), Do::Answer(answer(seen.request))])
}

/// The server goes down, or recovers after a while.
fn shut(world: &mut World, server: usize) {
    world.servers[server].door = Door::Refuses;
    for conn in world.open_conns() {
        if world.conns[conn].server == server {
            world.say(conn, Do::Rst);
        }
    }
    world.run_for(10_000);
}

fn open(world: &mut World, server: usize) {
    world.servers[server].door = Door::Open;
    let up =
        |world: &World| world.open_conns().iter().any(|conn| world.conns[*conn].server == server);
    for _ in 0..4000 {
        if up(world) {
            return;
        }
        world.run_for(10_000);
    }
    panic!("server {server} is not connected to");
}

/// Sends one request after the other.
fn ask_each(world: &mut World, clients: &[usize], count: usize) {
    for n in 0..count {
        world.get(clients[n % clients.len()], &format!("{n:08}"));
        world.settle();
    }
}

/// Clients that send again as soon as they have a response.
fn ask_all(world: &mut World, clients: &[usize], us: u64) {
    let end_us = world.now_us + us;
    let mut asked: Vec<usize> =
        clients.iter().map(|client| world.clients[*client].replies.len()).collect();
    while world.now_us < end_us {
        for (at, client) in clients.iter().enumerate() {
            if world.clients[*client].replies.len() == asked[at] {
                asked[at] += 1;
                world.get(*client, &format!("{:08}", asked[at]));
            }
        }
        world.run_for(500);
    }
    world.run_for(SECOND_US);
}

/// Weights 70, 20 and 10 over 10,000 requests: within a point, even if some workers own no
/// connection to some servers.
#[test]
fn shares_follow_the_weights() {
    for (workers, connections) in [(1, 4), (2, 1), (3, 5), (4, 2)] {
        let mut world = World::started(weighted(&[70, 20, 10], connections), workers, 1);
        // More clients on the first worker than on the others.
        let nodes = (0..usize::from(workers)).chain([0, 0]);
        let clients: Vec<usize> = nodes.map(|node| world.client_of(node)).collect();
        let counts = during(&mut world, |world| ask_each(world, &clients, 10_000));
        for (count, weight) in counts.iter().zip([70, 20, 10]) {
            assert!(count.abs_diff(weight * 100) <= 100, "{counts:?} on {workers} workers");
        }
        world.finish();
    }
}

/// The backup gets nothing while another server can be used, everything while none can, and nothing
/// again.
#[test]
fn a_backup_stands_in() {
    for balance in
        [Method::Ratio, Method::Least, Method::Dynamic(Statistic::Avg), Method::Hash(Key::Uri)]
    {
        for workers in [1, 2] {
            let mut plan = balanced(3, 4, balance.clone());
            plan.upstreams[0].servers[1].backup = true;
            let mut world = World::started(plan, workers, 1);
            let clients: Vec<usize> =
                (0..usize::from(workers)).map(|node| world.client_of(node)).collect();
            let counts = during(&mut world, |world| ask_each(world, &clients, 100));
            assert!(counts[0] > 0 && counts[1] == 0 && counts[2] > 0, "{counts:?}");
            shut(&mut world, 0);
            assert_eq!(during(&mut world, |world| ask_each(world, &clients, 100)), [0, 0, 100]);
            shut(&mut world, 2);
            assert_eq!(during(&mut world, |world| ask_each(world, &clients, 100)), [0, 100, 0]);
            open(&mut world, 0);
            world.run_for(31 * SECOND_US);
            assert_eq!(
                during(&mut world, |world| ask_each(world, &clients, 100)),
                [100, 0, 0],
                "{balance:?}"
            );
            assert!(clients.iter().all(|client| {
                world.clients[*client].statuses().iter().all(|status| *status == 200)
            }));
            world.finish();
        }
    }
}

/// A server that closes its only connection and accepts a new one at once is not down: no backup is
/// needed.
#[test]
fn a_backup_is_not_used_between_two_connections() {
    let mut plan = weighted(&[50, 50], 1);
    plan.upstreams[0].servers[1].backup = true;
    let mut world = World::started(plan, 1, 1);
    let client = world.client();
    let counts = during(&mut world, |world| {
        for n in 0..50 {
            let conn =
                *world.open_conns().iter().find(|conn| world.conns[**conn].server == 0).unwrap();
            world.say(conn, Do::Fin);
            world.settle_once();
            world.get(client, &format!("{n:08}"));
            world.run_for(20_000);
        }
    });
    assert_eq!(counts, [50, 0]);
    world.finish();
}

/// A retry uses the backup only when no other server is available for it.
#[test]
fn a_retry_prefers_others_to_the_backup() {
    let mut plan = weighted(&[50, 50, 50], 2);
    plan.upstreams[0].servers[1].backup = true;
    let mut world = World::started(plan, 1, 1);
    world.servers[0].serve = Box::new(|_| Some(vec![Do::Rst]));
    let client = world.client();
    let counts = during(&mut world, |world| {
        for n in 0..20 {
            world.get(client, &format!("{n:08}"));
            world.run_for(1_000);
        }
    });
    assert_eq!((counts[1], counts[2]), (0, 20), "{counts:?}");
    world.finish();
}

/// Also when the other server is up at another worker only, and the backup at this one.
#[test]
fn a_retry_crosses_workers_before_it_takes_a_backup() {
    let mut plan = weighted(&[50, 50, 50], 1);
    plan.upstreams[0].servers[2].backup = true;
    let mut world = World::started(plan, 2, 1);
    world.servers[0].serve = Box::new(|_| Some(vec![Do::Rst]));
    let client = world.client_of(0);
    let counts = during(&mut world, |world| {
        for n in 0..20 {
            world.get(client, &format!("{n:08}"));
            world.run_for(10_000);
        }
    });
    assert_eq!((counts[1], counts[2]), (20, 0), "{counts:?}");
    world.finish();
}

/// After it was down, a server's share grows from a tenth to the whole over `slow-start`, on
/// workers with and without connections of their own to it; replaced connections in between restart
/// nothing.
#[test]
fn slow_start() {
    for (workers, connections) in [(1, 2), (2, 1)] {
        let mut plan = weighted(&[50, 50], connections);
        plan.upstreams[0].slow_start_us = 20 * SECOND_US;
        let mut world = World::started(plan, workers, 1);
        let clients: Vec<usize> =
            (0..usize::from(workers)).map(|node| world.client_of(node)).collect();
        let share = |world: &mut World| during(world, |world| ask_each(world, &clients, 220))[1];
        assert!(share(&mut world).abs_diff(110) <= 2, "at the start nobody has been away");
        let conn = *world.open_conns().iter().find(|conn| world.conns[**conn].server == 1).unwrap();
        world.say(conn, Do::Fin);
        world.run_for(100_000);
        assert!(share(&mut world).abs_diff(110) <= 2, "one connection is not the server");
        shut(&mut world, 1);
        world.run_for(SECOND_US);
        assert_eq!(share(&mut world), 0);
        open(&mut world, 1);
        assert!(share(&mut world).abs_diff(20) <= 3, "a tenth of 50, against 50");
        world.run_for(10 * SECOND_US);
        assert!(share(&mut world).abs_diff(73) <= 4, "half of 50");
        world.run_for(11 * SECOND_US);
        assert!(share(&mut world).abs_diff(110) <= 2);
        world.finish();
    }
}

/// A server that joins servers in use also begins with a tenth: a new one, and one that returns.
/// One that takes over a name does not.
#[test]
fn slow_start_of_who_comes() {
    for workers in [1, 2] {
        let with = |servers: &[usize], connections: u32| {
            let mut plan = weighted(&[50, 50, 50], connections);
            plan.upstreams[0].slow_start_us = 20 * SECOND_US;
            let all = plan.upstreams[0].servers.clone();
            plan.upstreams[0].servers = servers.iter().map(|at| all[*at].clone()).collect();
            plan
        };
        let mut first = with(&[0, 1, 2], 2);
        first.upstreams[0].servers[2].name = "another".to_owned();
        let mut world = World::started(first, workers, 1);
        let clients: Vec<usize> =
            (0..usize::from(workers)).map(|node| world.client_of(node)).collect();
        let shares = |world: &mut World| during(world, |world| ask_each(world, &clients, 210));
        for servers in [&[0, 1, 2][..], &[1, 2], &[1, 2, 0]] {
            world.reload(with(servers, 2));
            world.run_for(100_000);
            if let [.., come] = servers
                && servers.len() == 3
            {
                let shares = shares(&mut world);
                assert!(
                    shares[*come].abs_diff(10) <= 3,
                    "a tenth of 50, against 50 and 50: {shares:?}"
                );
            }
            world.run_for(21 * SECOND_US);
        }
        world.reload(with(&[1, 2, 0], 3));
        world.run_for(100_000);
        let shares = shares(&mut world);
        assert!(shares.iter().all(|share| share.abs_diff(70) <= 2), "they were there: {shares:?}");
        world.finish();
    }
}

/// Requests are sent where they do not wait behind a request that nothing may follow; such a
/// request is sent where nothing is unanswered.
#[test]
fn queues_without_a_post_come_first() {
    for balance in [Method::Ratio, Method::Least] {
        let mut world = World::started(balanced(3, 1, balance), 1, 1);
        let clients: Vec<usize> = (0..6).map(|_| world.client()).collect();
        for server in 0..3 {
            world.servers[server].serve = Box::new(|seen| match seen.request.method.as_str() {
                "POST" => Some(vec![Do::Silence]),
                _ => honest(seen),
            });
        }
        world.post(clients[0], "aaaa0001", b"x");
        world.settle();
        let first = arrived(&world).iter().position(|count| *count == 1).unwrap();
        let counts = during(&mut world, |world| ask_each(world, &clients[1..2], 30));
        assert_eq!((counts[first], counts.iter().sum::<usize>()), (0, 30), "{counts:?}");
        world.post(clients[2], "aaaa0002", b"x");
        world.post(clients[3], "aaaa0003", b"x");
        world.settle();
        let posts = |conn: usize| {
            world.conns[conn].requests.iter().filter(|one| one.method == "POST").count()
        };
        assert!(world.open_conns().into_iter().all(|conn| posts(conn) == 1));
        world.get(clients[4], "bbbb0001");
        world.settle();
        assert!(world.clients[clients[4]].replies.is_empty(), "it waits: there is no other place");
        world.finish();
    }
}

/// A POST is sent to the server with an idle connection, also out of turn.
#[test]
fn a_post_goes_where_nothing_is_unanswered() {
    let mut world = World::started(weighted(&[50, 50], 1), 1, 1);
    world.servers[0].serve = Box::new(|_| Some(vec![Do::Silence]));
    let (reader, poster) = (world.client(), world.client());
    world.get(reader, "aaaa0001");
    world.get(reader, "aaaa0002");
    world.settle();
    assert_eq!(arrived(&world), [1, 1]);
    let counts = during(&mut world, |world| {
        for n in 0..10 {
            world.post(poster, &format!("bbbb{n:04}"), b"x");
            world.settle();
        }
    });
    assert_eq!(counts, [0, 10]);
    world.finish();
}

fn server_of(world: &mut World, client: usize, target: &str, fields: &str) -> usize {
    let counts = during(world, |world| {
        world.ask(client, "GET", target, fields);
        world.settle();
    });
    assert_eq!(counts.iter().sum::<usize>(), 1, "asked again");
    counts.iter().position(|count| *count == 1).unwrap()
}

/// Target and fields of the n-th request.
type PendingRequest = dyn Fn(usize) -> (String, String);

/// One key, one server: on every worker, whichever owns the connections, and after a restart.
#[test]
fn the_same_key_goes_to_the_same_server() {
    let cases: [(Key, &PendingRequest); 4] = [
        (Key::Uri, &|n| (format!("/item?n={n:08}"), String::new())),
        (Key::ClientIp, &|n| {
            (
                "/v?n=00000000".to_owned(),
                format!("X-Forwarded-For: 10.9.9.9, 203.0.113.{n} , 198.51.100.7\r\n"),
            )
        }),
        (Key::Header("x-user".to_owned()), &|n| {
            ("/v?n=00000000".to_owned(), format!("X-User: u{n}\r\n"))
        }),
        (Key::Cookie("id".to_owned()), &|n| {
            ("/v?n=00000000".to_owned(), format!("Cookie: a=b; id=\"{n}\"\r\n"))
        }),
    ];
    for (key, request) in cases {
        let mut places: Vec<Vec<usize>> = Vec::new();
        for (workers, connections) in [(1, 4), (3, 1), (2, 2)] {
            let mut plan = balanced(5, connections, Method::Hash(key.clone()));
            plan.client.trusted_proxies = ["192.0.2.0", "198.51.100.0"]
                .map(|address| Network { address: address.parse().unwrap(), prefix_bits: 24 })
                .to_vec();
            let mut world = World::started(plan, workers, 1);
            for node in 0..usize::from(workers) {
                let client = world.client_of(node);
                let ask = |n| {
                    let (target, fields) = request(n);
                    server_of(&mut world, client, &target, &fields)
                };
                places.push((0..40).map(ask).collect());
            }
            world.finish();
        }
        assert!(places.windows(2).all(|pair| pair[0] == pair[1]), "{key:?}: {places:?}");
        assert!((0..5).all(|server| places[0].contains(&server)), "{key:?}: {:?}", places[0]);
    }
}

/// An address that an untrusted client claims is no key.
#[test]
fn a_claimed_address_is_not_believed() {
    let mut world = World::started(balanced(5, 1, Method::Hash(Key::ClientIp)), 1, 1);
    let client = world.client();
    let ask = |n: usize| {
        server_of(&mut world, client, "/v?n=00000000", &format!("X-Forwarded-For: 10.0.0.{n}\r\n"))
    };
    let places: Vec<usize> = (0..20).map(ask).collect();
    assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
}

/// When one of ten servers is removed, only its keys move; when it returns, they do.
#[test]
fn keys_of_a_server_that_goes_move_and_return() {
    let mut world = World::started(balanced(10, 1, Method::Hash(Key::Uri)), 1, 1);
    let client = world.client();
    let places = |world: &mut World| -> Vec<usize> {
        (0..500).map(|n| server_of(world, client, &format!("/item?n={n:08}"), "")).collect()
    };
    let before = places(&mut world);
    shut(&mut world, 3);
    let without = places(&mut world);
    let moved = before.iter().zip(&without).filter(|(before, without)| before != without).count();
    assert!(before.iter().zip(&without).all(|(before, without)| before == without || *before == 3));
    assert!((20..=80).contains(&moved), "{moved} of 500 keys moved");
    open(&mut world, 3);
    assert_eq!(places(&mut world), before);
    world.finish();
}

/// Returns the servers in the order of a key: the next ones when those before are out of use.
fn order_of(world: &mut World, client: usize, fields: &str) -> Vec<usize> {
    let mut order = Vec::new();
    for _ in 0..world.servers.len() {
        order.push(server_of(world, client, "/v?n=00000000", fields));
        world.order(*order.last().unwrap() as u32, Order::Disable);
    }
    (0..order.len()).for_each(|server| world.order(server as u32, Order::Enable));
    world.run_for(SECOND_US);
    order
}

fn by_user(connections: u32) -> Plan {
    let mut plan = balanced(4, connections, Method::Hash(Key::Header("x-user".to_owned())));
    plan.upstreams[0].pipeline = PipelineMode::Depth(16);
    plan
}

/// Returns the servers that saw requests with this nonce, in that order.
fn servers_of(world: &World, nonce: &str) -> Vec<usize> {
    let mut seen = world.seen_by(nonce);
    seen.dedup();
    seen
}

/// The server of a key is trusted, and known to be fast.
fn earn_depth(world: &mut World, node: usize, fields: &str) {
    let clients = [(); 3].map(|()| world.client_of(node));
    for n in 0..200 {
        clients
            .iter()
            .for_each(|client| world.ask(*client, "GET", &format!("/v?n={n:08}"), fields));
        world.settle();
    }
}

/// A retry moves to the next server in the order of its key, and one that fails there to the one
/// after that, on every worker.
#[test]
fn retries_follow_the_order_of_the_key() {
    for (workers, connections) in [(1, 4), (2, 4), (2, 1), (3, 1)] {
        let mut world = World::started(by_user(connections), workers, 1);
        let clients: Vec<usize> =
            (0..usize::from(workers)).map(|node| world.client_of(node)).collect();
        for user in 0..8 {
            let client = clients[user % clients.len()];
            let fields = format!("X-User: u{user}\r\n");
            let order = order_of(&mut world, client, &fields);
            let nonce = format!("dead{user:04}");
            for server in &order[..2] {
                let killer = nonce.clone();
                world.servers[*server].serve = Box::new(move |seen| {
                    if seen.request.nonce() == killer { Some(vec![Do::Rst]) } else { honest(seen) }
                });
            }
            world.ask(client, "GET", &format!("/v?n={nonce}"), &fields);
            world.run_for(2 * SECOND_US);
            assert_eq!(world.clients[client].replies.last().map(|reply| reply.status), Some(200));
            assert_eq!(servers_of(&world, &nonce), order[..3], "{workers} workers, user {user}");
        }
        world.finish();
    }
}

/// Requests behind a response with which the server closed the connection in order remain with that
/// server.
#[test]
fn what_is_sent_again_without_a_failure_stays_with_its_key() {
    for workers in [1, 2] {
        let mut world = World::started(by_user(2), workers, 1);
        let client = world.client_of(usize::from(workers) - 1);
        earn_depth(&mut world, usize::from(workers) - 1, "X-User: u1\r\n");
        let own = server_of(&mut world, client, "/v?n=00000000", "X-User: u1\r\n");
        world.servers[own].serve = Box::new(|seen| {
            let text = String::from_utf8(answer(seen.request)).unwrap();
            Some(vec![
                Do::Answer(text.replacen("\r\n", "\r\nConnection: close\r\n", 1).into_bytes()),
                Do::Fin,
            ])
        });
        for n in 0..3 {
            let other = world.client_of(usize::from(workers) - 1);
            world.ask(other, "GET", &format!("/v?n=close00{n}"), "X-User: u1\r\n");
        }
        world.run_for(SECOND_US);
        assert!(
            world.count(|counters| counters.resends.get()) > 0,
            "{workers} workers: nothing was sent again"
        );
        for n in 0..3 {
            assert_eq!(servers_of(&world, &format!("close00{n}")), [own], "{workers} workers");
        }
        world.finish();
    }
}

/// A request that escapes from behind a late response moves to the next server in the order of its
/// key.
#[test]
fn escapes_follow_the_order_of_the_key() {
    for user in 0..4 {
        let mut fixed = by_user(2);
        fixed.upstreams[0].pipeline = PipelineMode::Depth(16);
        let mut world = World::started(fixed, 1, 1);
        let fields = format!("X-User: u{user}\r\n");
        let client = world.client();
        let order = order_of(&mut world, client, &fields);
        earn_depth(&mut world, 0, &fields);
        world.servers[order[0]].serve = Box::new(|seen| {
            let slow = seen.request.nonce() == "slow0000";
            Some(slow.then_some(Do::Delay(SECOND_US)).into_iter().chain(honest(seen)?).collect())
        });
        for nonce in ["slow0000", "late0000", "late0001"] {
            let other = world.client();
            world.ask(other, "GET", &format!("/v?n={nonce}"), &fields);
        }
        world.run_for(SECOND_US / 2);
        assert_eq!(world.count(|counters| counters.escapes.get()), 2);
        for nonce in ["late0000", "late0001"] {
            assert_eq!(servers_of(&world, nonce), order[..2]);
        }
        world.run_for(SECOND_US);
        world.finish();
    }
}

/// Requests for one popular key do not pile up at one server.
#[test]
fn a_popular_key_does_not_overload_its_server() {
    let mut world = World::started(balanced(4, 4, Method::Hash(Key::Uri)), 1, 1);
    for server in 0..4 {
        world.servers[server].serve = Box::new(|_| Some(vec![Do::Silence]));
    }
    // Requests that wait for a silent server count as well.
    for _ in 0..80 {
        let client = world.client();
        world.get(client, "00000000");
        world.settle();
    }
    let loads: Vec<usize> = (0..4).map(|server| world.nodes[0].engine.load(server)).collect();
    assert!(loads.iter().all(|load| *load <= 25), "{loads:?}");
    world.finish();
}

/// `least`: a server that has not answered gets no more than the others have.
#[test]
fn least_outstanding() {
    for workers in [1, 2] {
        let mut world = World::started(balanced(3, 4, Method::Least), workers, 1);
        world.servers[0].serve = Box::new(|_| Some(vec![Do::Silence]));
        let clients: Vec<usize> =
            (0..30).map(|n| world.client_of(n % usize::from(workers))).collect();
        let counts = during(&mut world, |world| {
            for (n, client) in clients.iter().enumerate() {
                world.get(*client, &format!("{n:08}"));
                world.settle();
            }
        });
        // At the second choice it has one more than the others, permanently.
        assert!(counts[0] <= 1 + usize::from(workers), "{counts:?} on {workers} workers");
        world.finish();
    }
}

/// `dynamic`: at least 80 % of the load leaves a server that becomes ten times slower, and returns;
/// also for a worker that has no connection to it.
#[test]
fn load_leaves_a_slow_server() {
    for (workers, connections) in [(1, 4), (2, 1)] {
        let mut world =
            World::started(balanced(2, connections, Method::Dynamic(Statistic::Avg)), workers, 1);
        let clients: Vec<usize> =
            (0..8).map(|n| world.client_of(n % usize::from(workers))).collect();
        world.servers[0].serve = Box::new(slow(2_000));
        world.servers[1].serve = Box::new(slow(2_000));
        let share = |world: &mut World, us: u64| {
            let counts = during(world, |world| ask_all(world, &clients, us));
            counts[0] as f64 / (counts[0] + counts[1]) as f64
        };
        share(&mut world, SECOND_US);
        let before = share(&mut world, SECOND_US);
        assert!((0.45..0.55).contains(&before), "{before}");
        world.servers[0].serve = Box::new(slow(20_000));
        share(&mut world, SECOND_US);
        let after = share(&mut world, SECOND_US);
        assert!(after <= 0.2 * before, "{before} -> {after} on {workers} workers");
        world.servers[0].serve = Box::new(slow(2_000));
        share(&mut world, 5 * SECOND_US);
        let again = share(&mut world, SECOND_US);
        assert!(again > 0.4, "{again} on {workers} workers");
        world.finish();
    }
}

/// With any method, every response belongs to its request, over several workers, while servers come
/// and go.
#[test]
fn every_method_delivers() {
    let predict = Method::Predict {
        by: Statistic::Percentile(9000),
        past_us: 30 * SECOND_US,
        ahead_us: 15 * SECOND_US,
    };
    for balance in [Method::Dynamic(Statistic::Max), predict, Method::Least, Method::Hash(Key::Uri)]
    {
        let mut world = World::started(balanced(3, 2, balance), 2, 7);
        let clients: Vec<usize> = (0..6).map(|n| world.client_of(n % 2)).collect();
        for round in 0..60 {
            if round % 20 == 5 {
                shut(&mut world, round / 20);
            }
            if round % 20 == 15 {
                open(&mut world, round / 20);
            }
            clients.iter().for_each(|client| world.get(*client, &format!("{round:08}")));
            world.run_for(60_000);
        }
        world.run_for(5 * SECOND_US);
        for client in clients {
            for (n, reply) in world.clients[client].replies.iter().enumerate() {
                check_honest(&format!("{n:08}"), reply).unwrap();
            }
            assert_eq!(world.clients[client].replies.len(), 60);
        }
        world.finish();
    }
}

/// Servers with a sticky cookie named `srv`.
fn sticky(servers: usize, connections: u32, allow_failover: bool) -> Plan {
    let mut plan = balanced(servers, connections, Method::Ratio);
    let upstream = &mut plan.upstreams[0];
    let names: Vec<&str> = upstream.servers.iter().map(|server| server.name.as_str()).collect();
    upstream.sticky = Some(Sticky::new(&Cookie::new("srv"), allow_failover, "", "app", &names));
    plan
}

/// Returns the value that the last reply binds to, if any.
fn binding(world: &World, client: usize) -> Option<String> {
    let set = world.clients[client].replies.last().unwrap().fields.first("set-cookie")?;
    let value = set.strip_prefix("srv=").unwrap().split(';').next().unwrap();
    assert_eq!(value.len(), 16);
    Some(value.to_owned())
}

/// Sends a request with the cookie; returns the server that got it, and the new binding.
fn ask_bound(world: &mut World, client: usize, cookie: &str) -> (usize, Option<String>) {
    let server =
        server_of(world, client, "/v?n=00000001", &format!("Cookie: x=y; srv={cookie}\r\n"));
    (server, binding(world, client))
}

/// A session keeps its server, on every worker, whichever owns the connections; one without a valid
/// cookie gets one.
#[test]
fn a_session_stays_with_its_server() {
    for (workers, connections) in [(1, 2), (3, 1)] {
        let mut world = World::started(sticky(3, connections, true), workers, 1);
        let clients: Vec<usize> =
            (0..usize::from(workers)).map(|node| world.client_of(node)).collect();
        let mut values = Vec::new();
        for n in 0..9 {
            let client = clients[n % clients.len()];
            let server = server_of(&mut world, client, "/v?n=00000001", "");
            let value = binding(&world, client).expect("a cookie with the first answer");
            assert!(!value.contains("10.0.0"));
            for other in &clients {
                assert_eq!(
                    ask_bound(&mut world, *other, &value),
                    (server, None),
                    "{workers} workers"
                );
            }
            values.push((server, value));
        }
        values.sort();
        values.dedup();
        assert_eq!(values.len(), 3, "one value for each server: {values:?}");
        let (_, renewed) = ask_bound(&mut world, clients[0], "0123456789abcdef");
        assert!(renewed.is_some(), "a value that nobody gave is replaced");
        world.finish();
    }
}

/// With `pool` pinned a session overrides the connection that its client has, which is closed.
#[test]
fn a_session_is_stronger_than_a_pinned_connection() {
    let mut plan = sticky(3, 1, true);
    plan.upstreams[0].pool = Pool::Pinned;
    let mut world = World::started(plan, 1, 1);
    let mut values = Vec::new();
    for _ in 0..3 {
        let client = world.client();
        let server = server_of(&mut world, client, "/v?n=00000001", "");
        values.push((server, binding(&world, client).unwrap()));
    }
    let client = world.client();
    let open = world.open_conns().len();
    for (server, value) in values.iter().chain(&values) {
        for _ in 0..2 {
            assert_eq!(ask_bound(&mut world, client, value), (*server, None));
        }
        assert_eq!(world.open_conns().len(), open + 1, "one of its own");
    }
    world.finish();
}

/// When its server cannot be used, a session moves to another one and is bound to that; with
/// `allow-failover off` it gets 502.
#[test]
fn a_session_whose_server_goes_away() {
    for (workers, connections) in [(1, 2), (2, 1)] {
        for allow_failover in [true, false] {
            let mut plan = sticky(2, connections, allow_failover);
            plan.upstreams[0].retry.connect_retries = 1;
            let mut world = World::started(plan, workers, 1);
            let client = world.client_of(0);
            let server = server_of(&mut world, client, "/v?n=00000001", "");
            let value = binding(&world, client).unwrap();
            shut(&mut world, server);
            world.run_for(SECOND_US);
            if !allow_failover {
                world.ask(client, "GET", "/v?n=00000002", &format!("Cookie: srv={value}\r\n"));
                world.run_for(100_000);
                assert_eq!(world.clients[client].statuses(), [200, 502]);
                assert_eq!(binding(&world, client), None);
                open(&mut world, server);
                assert_eq!(ask_bound(&mut world, client, &value), (server, None));
                world.finish();
                continue;
            }
            let (other, renewed) = ask_bound(&mut world, client, &value);
            assert_ne!(other, server);
            let renewed = renewed.expect("the cookie is renewed");
            open(&mut world, server);
            assert_eq!(
                ask_bound(&mut world, client, &renewed),
                (other, None),
                "it does not go back"
            );
            world.finish();
        }
    }
}

/// A request whose connection is lost remains with the server of its session while that has other
/// connections; when it fails there again, another server gets it and the session.
#[test]
fn a_lost_connection_does_not_end_a_session() {
    let mut world = World::started(sticky(3, 4, true), 1, 1);
    let client = world.client();
    let server = server_of(&mut world, client, "/v?n=00000001", "");
    let value = binding(&world, client).unwrap();
    let mut losses = 1;
    world.servers[server].serve = Box::new(move |seen| {
        if seen.request.target.contains("00000002") && losses > 0 {
            losses -= 1;
            return Some(vec![Do::Rst]);
        }
        if seen.request.target.contains("00000003") { Some(vec![Do::Rst]) } else { honest(seen) }
    });
    let cookie = format!("Cookie: srv={value}\r\n");
    world.ask(client, "GET", "/v?n=00000002", &cookie);
    world.run_for(100_000);
    assert_eq!((world.clients[client].statuses(), binding(&world, client)), (vec![200, 200], None));
    world.ask(client, "GET", "/v?n=00000003", &cookie);
    world.run_for(100_000);
    assert_eq!(world.clients[client].statuses(), [200, 200, 200]);
    assert!(binding(&world, client).is_some(), "another server has answered");
    world.finish();
}

/// A server that is draining keeps its sessions and gets no new ones.
#[test]
fn a_draining_server_keeps_its_sessions() {
    let mut world = World::started(sticky(2, 2, true), 1, 1);
    let client = world.client();
    let server = server_of(&mut world, client, "/v?n=00000001", "");
    let value = binding(&world, client).unwrap();
    world.nodes[0].engine.order(server as u32, Order::Drain);
    for _ in 0..10 {
        assert_eq!(ask_bound(&mut world, client, &value), (server, None));
        assert_ne!(server_of(&mut world, client, "/v?n=00000001", ""), server);
    }
    world.finish();
}

/// A cookie comes with the final response only, including a switch of protocols, and not with
/// weir's own responses.
#[test]
fn which_answers_bind() {
    let mut world = World::started(sticky(2, 1, true), 1, 1);
    let client = world.client();
    for server in 0..2 {
        world.servers[server].serve = Box::new(|seen| {
            let hint = Do::Bytes(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec());
            let bye = Do::Answer(
                b"HTTP/1.1 404 Not Found\r\nSet-Cookie: own=1\r\nContent-Length: 0\r\n\r\n"
                    .to_vec(),
            );
            seen.complete.then(|| vec![hint, bye])
        });
    }
    world.get(client, "00000001");
    world.settle();
    assert_eq!(world.clients[client].interim(), [] as [u16; 0]);
    let reply = &world.clients[client].replies[0];
    assert_eq!(reply.status, 404);
    let set = reply.fields.all("set-cookie");
    assert!(set.len() == 2 && set[0] == "own=1" && set[1].starts_with("srv="), "{set:?}");
    world.finish();
}
