//! Proves: clients that read never wait for each other, whatever they send in any order. A response
//! too large to be held until its turn stops its connection, and its turn must not wait for a
//! request behind it that may not move. How: two workers whose requests cross in the mail, and
//! random worlds of large responses, unsafe requests and connections that end.

use weir_check::upstreams::check_honest;
use weir_proxy::plan::PipelineMode;

use crate::world::{Do, Rng, Seen, World, answer, plan};

/// More than is held of a response before its turn.
const LARGE_BYTES: usize = 600_000;

/// Responses to targets of `/large` are large.
fn text_of(seen: &Seen<'_>) -> Vec<u8> {
    if !seen.request.target.starts_with("/large") {
        return answer(seen.request);
    }
    let nonce = seen.request.nonce();
    format!("HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\nContent-Length: {LARGE_BYTES}\r\n\r\n")
        .into_bytes()
}

/// Returns the actions of a server for a request, in pieces that a receive takes.
fn script_of(seen: &Seen<'_>, delay_us: u64, ends: bool) -> Vec<Do> {
    let mut text = String::from_utf8(text_of(seen)).expect("a head");
    if ends {
        text = text.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    }
    let mut script = vec![Do::Delay(delay_us), Do::Answer(text.into_bytes())];
    if seen.request.target.starts_with("/large") {
        script.extend((0..LARGE_BYTES / 20_000).map(|_| Do::Bytes(vec![b'm'; 20_000])));
    }
    script.extend(ends.then_some(Do::Fin));
    script
}

/// Servers that have earned their depth.
fn warm(servers: usize, connections: u32, workers: u16, seed: u64) -> World {
    warm_limited(servers, connections, None, workers, seed)
}

/// The same, with a limit of requests at once.
fn warm_limited(
    servers: usize,
    connections: u32,
    concurrency: Option<u32>,
    workers: u16,
    seed: u64,
) -> World {
    let mut deep = plan(servers, connections);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    deep.upstreams[0].servers.iter_mut().for_each(|server| server.concurrency = concurrency);
    let mut world = World::started(deep, workers, seed);
    let clients: Vec<usize> =
        (0..4 * usize::from(workers)).map(|n| world.client_of(n % usize::from(workers))).collect();
    for n in 0..70 * servers {
        clients.iter().for_each(|client| world.get(*client, &format!("{n:08}")));
        world.settle();
    }
    world
}

fn ask(world: &mut World, client: usize, method: &str, large: bool, nonce: &str) {
    let place = if large { "large" } else { "v" };
    world.ask(client, method, &format!("/{place}?n={nonce}"), "");
}

fn check(world: &World, client: usize, asked: &[(String, bool)]) {
    let replies = &world.clients[client].replies;
    assert_eq!(
        replies.len(),
        asked.len(),
        "client {client} waits: {:?}",
        world.clients[client].statuses()
    );
    for (reply, (nonce, large)) in replies.iter().zip(asked) {
        match large {
            true => {
                assert_eq!(
                    (reply.fields.first("x-nonce"), reply.body.length),
                    (Some(&nonce[..]), LARGE_BYTES as u64)
                )
            }
            false => check_honest(nonce, reply).unwrap(),
        }
    }
}

/// Two clients, each on its own worker, send an unsafe and a large request while no connection is
/// idle. Each request is sent to another server, so that the unsafe ones cross in the mail and find
/// the large ones on their connections.
#[test]
fn unsafe_requests_that_cross() {
    for turns in 0..16 {
        let mut world = warm(2, 1, 2, 1);
        for server in &mut world.servers {
            server.serve = Box::new(|seen| seen.complete.then(|| script_of(seen, 1_000, false)));
        }
        let clients = [world.client_of(0), world.client_of(1)];
        for at in 0..2 {
            // The next turn at the arrival of the unsafe request depends on how many came before.
            let other = world.client_of(at);
            (0..1 + (turns >> (2 * at) & 3))
                .for_each(|n| world.get(other, &format!("b00{at}000{n}")));
            world.settle();
        }
        for (at, client) in clients.iter().enumerate() {
            let [unsafe_one, large] =
                [("DELETE", "v?n=d"), ("GET", "large?n=a")].map(|(method, target)| {
                    world.expect(*client, method, false, false);
                    format!("{method} /{target}000000{at} HTTP/1.1\r\nHost: a\r\n\r\n")
                });
            world.send(*client, (unsafe_one + &large).as_bytes());
        }
        world.run_for(1_000_000);
        for (at, client) in clients.iter().enumerate() {
            check(
                &world,
                *client,
                &[(format!("d000000{at}"), false), (format!("a000000{at}"), true)],
            );
        }
        world.finish();
    }
}

/// Anything in any order.
#[test]
fn nobody_waits_in_a_circle() {
    for seed in 0..100 {
        let mut rng = Rng(seed);
        let (servers, connections) = (1 + rng.below(3) as usize, 1 + rng.below(2) as u32);
        let workers = 1 + rng.below(3) as u16;
        // Every third world limits what a server works on.
        let concurrency = [None, None, Some(1 + seed as u32 % 4)][seed as usize % 3];
        let mut world = warm_limited(servers, connections, concurrency, workers, seed);
        for (at, server) in world.servers.iter_mut().enumerate() {
            let mut rng = Rng(seed << 8 | at as u64);
            server.serve = Box::new(move |seen| {
                let (delay_us, ends) = (rng.below(5_000), rng.one_in(20));
                seen.complete.then(|| script_of(seen, delay_us, ends))
            });
        }
        let clients: Vec<usize> =
            (0..6).map(|n| world.client_of(n % usize::from(workers))).collect();
        let mut asked = vec![Vec::new(); clients.len()];
        for round in 0..30 {
            for (at, client) in clients.iter().enumerate() {
                if rng.one_in(2) {
                    let method = if rng.one_in(3) { "DELETE" } else { "GET" };
                    let (large, nonce) = (rng.one_in(3), format!("{at:04}{round:04}"));
                    ask(&mut world, *client, method, large, &nonce);
                    asked[at].push((nonce, large));
                }
            }
            if rng.one_in(2) {
                world.run_for(rng.below(4_000));
            }
        }
        world.run_for(20_000_000);
        for (client, asked) in clients.iter().zip(&asked) {
            check(&world, *client, asked);
        }
        world.finish();
    }
}
