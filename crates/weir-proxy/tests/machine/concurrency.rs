//! Proves: a server never works on more requests than `concurrency`, for any number of workers and
//! requests on a connection. Further requests wait or go to a server that has room. A client that
//! does not read delays no other. A request waits at most `queue-timeout`, then it gets 503 or goes
//! to the fallback, unless a server may have received it. How: slow servers, and a count of their
//! requests each millisecond. docs/connections.md#limit-what-a-server-works-on-at-once

use weir_proxy::plan::{AllDown, PipelineMode, Plan};

use crate::placement::{adaptive, answered, burst};
use crate::world::{Do, World, answer, plan};

/// The time of each response.
const TOOK_US: u64 = 20_000;
const MOST: u32 = 4;

fn slow(world: &mut World) {
    for server in &mut world.servers {
        server.serve = Box::new(|seen| {
            seen.complete.then(|| vec![Do::Delay(TOOK_US), Do::Answer(answer(seen.request))])
        });
    }
}

fn limited(pipeline: PipelineMode, most: u32) -> Plan {
    let mut plan = adaptive(8, 64);
    plan.upstreams[0].pipeline = pipeline;
    plan.upstreams[0].servers[0].concurrency = Some(most);
    plan
}

/// Sends this many GETs, each of a new client of the worker that `worker_of` names. Returns the
/// clients.
fn ask(
    world: &mut World,
    letter: char,
    count: usize,
    worker_of: impl Fn(usize) -> usize,
) -> Vec<usize> {
    let mut send = |n| {
        let client = world.client_of(worker_of(n));
        world.get(client, &format!("{letter}{n:07}"));
        client
    };
    (0..count).map(&mut send).collect()
}

/// Returns a plan of two servers with these limits.
fn pair(concurrency: [Option<u32>; 2]) -> Plan {
    let mut plan = plan(2, 1);
    plan.upstreams[0].pipeline = PipelineMode::Off;
    for (server, concurrency) in plan.upstreams[0].servers.iter_mut().zip(concurrency) {
        (server.connections, server.connections_max) = (8, 8);
        server.concurrency = concurrency;
    }
    plan
}

/// Returns the number of requests at a server, over all workers.
fn at_once(world: &World, server: usize) -> u32 {
    world.nodes.iter().map(|node| node.engine.report().servers[server].unanswered).sum()
}

/// Passes this time and returns the most requests that any server had.
fn most_at_once(world: &mut World, us: u64) -> u32 {
    let servers = world.servers.len();
    let mut most = 0;
    for _ in 0..us / 1_000 {
        world.run_for(1_000);
        most = most.max((0..servers).map(|server| at_once(world, server)).max().unwrap_or(0));
    }
    most
}

#[test]
fn a_server_works_on_no_more_at_once() {
    for pipeline in [PipelineMode::Adaptive, PipelineMode::Off, PipelineMode::Depth(8)] {
        for (workers, limit) in [(1, 1), (1, MOST), (2, MOST), (3, MOST), (3, 1)] {
            let mut world = World::started(limited(pipeline, limit), workers, 1);
            slow(&mut world);
            let mut clients = Vec::new();
            for n in 0..48 {
                let client = world.client_of(n % usize::from(workers));
                let method = if n % 5 == 4 { "POST" } else { "GET" };
                let fields = if n % 5 == 4 { "Content-Length: 0\r\n" } else { "" };
                world.ask(client, method, &format!("/v?n={n:08}"), fields);
                clients.push(client);
            }
            let rounds = u64::from(48 / limit + 8);
            let most = most_at_once(&mut world, rounds * (TOOK_US + 2_000));
            assert_eq!(answered(&world, &clients), 48, "{pipeline:?} {workers} {limit}");
            assert_eq!(most, limit, "{pipeline:?}, {workers} workers");
            // Others would have nothing to do; but a POST may need another one than that which has
            // just been used.
            let open = world.open_conns().len();
            assert!(open <= 24, "{open} connections for {limit} requests");
            let waited = world.count_of(0, |stats| stats.concurrency_waits.get());
            assert!(waited >= u64::from(48 - limit) / 2, "{waited} waited");
            world.finish();
        }
    }
}

/// The requests of a worker do not wait for all of another worker's.
#[test]
fn workers_take_turns() {
    for limit in [1, 2] {
        let mut plan = limited(PipelineMode::Off, limit);
        plan.upstreams[0].servers[0].connections_min = 2;
        let mut world = World::started(plan, 2, 1);
        slow(&mut world);
        let many = ask(&mut world, 'a', 40, |_| 0);
        world.run_for(TOOK_US / 2);
        let few = ask(&mut world, 'b', 4, |_| 1);
        world.run_for(10 * (TOOK_US + 1_000) / u64::from(limit));
        assert_eq!(answered(&world, &few), 4, "{limit}");
        let others = answered(&world, &many);
        assert!((3..=9).contains(&others), "{limit}: {others}");
        world.run_for(50 * TOOK_US);
        assert_eq!(answered(&world, &many), 40);
        world.finish();
    }
}

/// A request goes to a server that has room instead of a busy one.
#[test]
fn others_have_what_a_busy_server_has_no_room_for() {
    let mut world = World::started(pair([Some(1), None]), 1, 1);
    slow(&mut world);
    let clients = burst(&mut world, "/v", 'q', 0, 6);
    let most = most_at_once(&mut world, TOOK_US + 2_000);
    assert_eq!((answered(&world, &clients), most), (6, 5));
    world.finish();
}

/// A server that is done takes over requests that wait for a slow one.
#[test]
fn who_is_done_takes_over_what_waits_elsewhere() {
    let mut world = World::started(pair([Some(1); 2]), 1, 1);
    for (server, took_us) in world.servers.iter_mut().zip([10 * TOOK_US, TOOK_US]) {
        server.serve = Box::new(move |seen| {
            seen.complete.then(|| vec![Do::Delay(took_us), Do::Answer(answer(seen.request))])
        });
    }
    let clients = burst(&mut world, "/v", 'q', 0, 10);
    world.run_for(10 * TOOK_US + 5_000);
    assert_eq!(answered(&world, &clients), 10, "nine of the quick one");
    world.finish();
}

/// A client that does not read keeps its response in the server, and others from nothing, also
/// those of another worker.
#[test]
fn who_does_not_read_takes_no_place() {
    for workers in [1, 2] {
        let mut plan = limited(PipelineMode::Adaptive, 1);
        plan.upstreams[0].servers[0].connections_min = workers;
        let mut world = World::started(plan, workers as u16, 1);
        world.serve(|seen| {
            let nonce = seen.request.nonce().to_owned();
            if !nonce.starts_with('l') {
                return Some(vec![Do::Answer(answer(seen.request))]);
            }
            let length = "Content-Length: 2000000\r\n\r\n";
            let head = format!("HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\n{length}");
            let large = (0..100).map(|_| Do::Bytes(vec![b'm'; 20_000]));
            Some(std::iter::once(Do::Answer(head.into_bytes())).chain(large).collect())
        });
        let reader = world.client();
        world.stall(reader, true);
        world.get(reader, "l0000000");
        world.run_for(10_000);
        let clients = ask(&mut world, 'q', 10, |_| workers as usize - 1);
        world.run_for(2_000_000);
        assert_eq!(answered(&world, &clients), 10, "{workers}");
        world.stall(reader, false);
        world.run_for(2_000_000);
        assert_eq!(answered(&world, &[reader]), 1);
        world.finish();
    }
}

/// Half of the requests must be sent alone, and have as much of the server as the others.
#[test]
fn unsafe_requests_use_all_of_it() {
    let mut plan = adaptive(32, 1024);
    plan.upstreams[0].servers[0].concurrency = Some(40);
    let mut world = World::started(plan, 1, 1);
    slow(&mut world);
    let clients: Vec<usize> = (0..40)
        .map(|n| {
            let client = world.client();
            world.post(client, &format!("{n:08}"), b"body");
            client
        })
        .collect();
    let most = most_at_once(&mut world, 4 * TOOK_US);
    assert_eq!((answered(&world, &clients), most), (40, 40));
    world.finish();
}

/// Each of the others waits for `queue-timeout`, a hundredth more or less, and no longer.
#[test]
fn a_wait_ends_with_503() {
    const TIMEOUT_US: u64 = 50_000;
    for workers in [1, 2] {
        let mut plan = limited(PipelineMode::Adaptive, 1);
        plan.upstreams[0].queue_timeout_us = Some(TIMEOUT_US);
        let mut world = World::started(plan, workers, 1);
        slow(&mut world);
        let clients = ask(&mut world, 'w', 12, |n| n % usize::from(workers));
        world.run_for(TIMEOUT_US - 5_000);
        let served = answered(&world, &clients);
        assert!((1..=2).contains(&served), "as many as there is time for: {served}");
        world.run_for(20_000);
        let statuses: Vec<u16> =
            clients.iter().flat_map(|client| world.clients[*client].statuses()).collect();
        assert_eq!(
            statuses.iter().filter(|status| **status == 503).count(),
            12 - 3,
            "{statuses:?}"
        );
        world.run_for(TOOK_US);
        assert_eq!(answered(&world, &clients), 12);
        let reply = clients
            .iter()
            .map(|client| &world.clients[*client].replies[0])
            .find(|reply| reply.status == 503)
            .unwrap();
        assert!(reply.fields.first("retry-after").is_some());
        // Nothing is left of it.
        let clients = burst(&mut world, "/v", 'q', 1, 1);
        world.run_for(TOOK_US + 2_000);
        assert_eq!(answered(&world, &clients), 1);
        world.finish();
    }
}

/// Requests that arrive one after the other end one after the other.
#[test]
fn each_wait_has_its_own_end() {
    let mut plan = limited(PipelineMode::Off, 1);
    plan.upstreams[0].queue_timeout_us = Some(50_000);
    let mut world = World::started(plan, 1, 1);
    world.serve(|_| None);
    let first = world.client();
    world.get(first, "00000000");
    world.run_for(1_000);
    let clients: Vec<usize> = (1..5)
        .map(|n| {
            let client = world.client();
            world.get(client, &format!("{n:08}"));
            world.run_for(20_000);
            client
        })
        .collect();
    // The first two are over.
    for ended in [2, 3, 4] {
        world.run_for(2_000);
        assert_eq!(answered(&world, &clients), ended);
        world.run_for(18_000);
    }
    assert_eq!(answered(&world, &[first]), 0, "a server works on it");
}

#[test]
fn a_wait_ends_at_the_fallback() {
    let mut plan = plan(2, 1);
    let spare = plan.upstreams[0].servers.pop().unwrap();
    let mut other = plan.upstreams[0].clone();
    (other.name, other.servers) = ("spare".to_owned(), vec![spare]);
    other.servers[0].connections_max = 64;
    plan.upstreams.push(other);
    let app = &mut plan.upstreams[0];
    (app.all_down, app.queue_timeout_us) = (AllDown::Fallback(1), Some(50_000));
    app.servers[0].concurrency = Some(1);
    let mut world = World::started(plan, 1, 1);
    world.servers[0].serve = Box::new(|_| None);
    let clients: Vec<usize> = (0..4)
        .map(|n| {
            let client = world.client();
            world.post(client, &format!("{n:08}"), b"body");
            client
        })
        .collect();
    world.run_for(80_000);
    assert_eq!(answered(&world, &clients), 3, "one is at the server that does not answer");
    assert_eq!(world.count(|counters| counters.fallbacks.get()), 3);
}
