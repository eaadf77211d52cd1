//! Proves: in any order of events, each client gets its own responses, in order and exactly once,
//! requests that must not be repeated reach a server at most once, bodies arrive whole, and nothing
//! is left behind. Seeds are printed.

use std::collections::{BTreeMap, BTreeSet};

use weir_check::{Body, End};
use weir_proxy::cross::doubt::Doubt;
use weir_proxy::plan::{PipelineMode, Pool, Share};

use crate::world::{Cut, Do, Door, Rng, Seen, World, answer, plan};

const SEEDS: u64 = 200;

/// The requests that were sent.
struct Asked {
    client: usize,
    nonce: String,
    method: &'static str,
    body: Vec<u8>,
}

/// What a server may do beside responding.
#[derive(Clone, Copy)]
struct Faults {
    /// Closes or resets behind a response, one in this many; 0: never.
    closes: u64,
    /// Likewise in the middle of a response.
    cuts: u64,
}

fn serve(seed: u64, faults: Faults, seen: &Seen<'_>) -> Option<Vec<Do>> {
    if !seen.complete {
        return None;
    }
    // Decided by the request and the place, so that a repetition may do better.
    let mut rng = Rng(seed ^ (seen.conn as u64) << 20 ^ seen.request.offset);
    let nonce = seen.request.nonce();
    let mut script = Vec::new();
    if rng.one_in(3) {
        script.push(Do::Delay(rng.below(3000)));
    }
    if rng.one_in(10) {
        script.push(Do::Bytes(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec()));
    }
    let size = if rng.one_in(20) { rng.below(400_000) } else { rng.below(300) } as usize;
    let body: Vec<u8> = nonce.bytes().cycle().take(size).collect();
    let head = |framing: &str| {
        format!("HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\n{framing}\r\n").into_bytes()
    };
    let closes = faults.closes > 0 && rng.one_in(faults.closes);
    let mut whole = match (seen.request.method.as_str(), rng.below(4)) {
        ("HEAD", _) => head("Content-Length: 7\r\n"),
        (_, 0) => {
            let mut bytes = head("Transfer-Encoding: chunked\r\n");
            for piece in body.chunks(1 + rng.below(5000) as usize) {
                bytes.extend(format!("{:x}\r\n", piece.len()).bytes());
                bytes.extend_from_slice(piece);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
            bytes
        }
        (_, 1) => head("Content-Length: 0\r\n"),
        _ => [head(&format!("Content-Length: {size}\r\n")), body].concat(),
    };
    if faults.cuts > 0 && rng.one_in(faults.cuts) {
        whole.truncate(rng.below(whole.len() as u64) as usize);
        script.extend([
            Do::Answer(whole),
            if rng.one_in(2) { Do::Fin } else { Do::Rst },
            Do::Silence,
        ]);
        return Some(script);
    }
    script.push(Do::Answer(whole));
    if closes {
        script.extend([if rng.one_in(2) { Do::Fin } else { Do::Rst }, Do::Silence]);
    }
    Some(script)
}

fn ask(world: &mut World, client: usize, number: usize) -> Asked {
    let nonce = format!("{client:04}{number:04}");
    let cut = if world.rng.one_in(3) { Cut::Random } else { Cut::Whole };
    let (method, body) = match world.rng.below(12) {
        0 => ("POST", Vec::new()),
        1 => ("POST", vec![b'p'; world.rng.below(500) as usize]),
        2 if world.rng.one_in(4) => {
            ("POST", vec![b'q'; 60_000 + world.rng.below(200_000) as usize])
        }
        3 => ("HEAD", Vec::new()),
        4 => ("PUT", vec![b'r'; world.rng.below(100) as usize]),
        _ => ("GET", Vec::new()),
    };
    world.expect(client, method, false, false);
    let mut text = format!("{method} /v?n={nonce} HTTP/1.1\r\nHost: a\r\n").into_bytes();
    let chunked = !body.is_empty() && world.rng.one_in(2);
    match (chunked, method) {
        (true, _) => {
            text.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for piece in body.chunks(1 + world.rng.below(30_000) as usize) {
                text.extend(format!("{:x}\r\n", piece.len()).bytes());
                text.extend_from_slice(piece);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
        }
        (false, "POST" | "PUT") => {
            text.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes())
        }
        _ => text.extend_from_slice(b"\r\n"),
    }
    text.extend_from_slice(if chunked { b"" } else { &body });
    world.send_cut(client, &text, cut);
    Asked { client, nonce, method, body }
}

fn run(seed: u64, faults: Faults) {
    run_pool(seed, faults, Pool::Pipelined);
}

fn run_pool(seed: u64, faults: Faults, pool: Pool) {
    let mut rng = Rng(seed);
    let mut limited = plan(1 + rng.below(2) as usize, 1 + rng.below(4) as u32);
    let modes = [
        PipelineMode::Off,
        PipelineMode::Depth(4),
        PipelineMode::Depth(64),
        PipelineMode::Adaptive,
    ];
    limited.upstreams[0].pipeline = modes[rng.below(4) as usize];
    limited.upstreams[0].share = if rng.one_in(4) { Share::Client } else { Share::All };
    limited.upstreams[0].retry.per_request_max = 50;
    limited.upstreams[0].pool = pool;
    limited.client.serves_half_closed = true;
    let workers = 1 + rng.below(2) as u16;
    let servers = limited.upstreams[0].servers.len();
    let connections = limited.upstreams[0]
        .servers
        .iter()
        .map(|server| server.connections as usize)
        .sum::<usize>();
    let mut world = World::started(limited, workers, seed);
    world.cut_upstream = if rng.one_in(2) { Cut::Random } else { Cut::Whole };
    world.shuffled = true;
    world.shared = rng.one_in(2);
    for server in 0..servers {
        world.servers[server].serve =
            Box::new(move |seen| serve(seed ^ server as u64, faults, seen));
    }
    // Trust first, so that something can go wrong.
    let warm: Vec<usize> = (0..4).map(|n| world.client_of(n % usize::from(workers))).collect();
    for server in 0..servers {
        world.servers[server].serve = Box::new(|seen| Some(vec![Do::Answer(answer(seen.request))]));
    }
    for n in 0..70 {
        warm.iter().for_each(|client| world.get(*client, &format!("w{n:07}")));
        world.settle();
    }
    for server in 0..servers {
        world.servers[server].serve =
            Box::new(move |seen| serve(seed ^ server as u64, faults, seen));
    }
    let clients: Vec<usize> =
        (0..1 + rng.below(8)).map(|n| world.client_of(n as usize % usize::from(workers))).collect();
    let mut asked = Vec::new();
    let mut ended = BTreeSet::new();
    for round in 0..1 + rng.below(20) {
        for client in &clients {
            let count = rng.below(6);
            for _ in 0..if ended.contains(client) { 0 } else { count } {
                asked.push(ask(&mut world, *client, asked.len()));
            }
            if rng.one_in(30) && round > 2 {
                world.half_close(*client);
                ended.insert(*client);
            }
            if rng.one_in(60) {
                world.reset(*client);
            }
            let stalled = rng.one_in(10);
            world.stall(*client, stalled);
        }
        if rng.one_in(20) {
            world.servers[0].door = if rng.one_in(2) { Door::Refuses } else { Door::Open };
        }
        match rng.below(3) {
            0 => world.settle_once(),
            1 => world.settle(),
            _ => world.run_for(rng.below(5000)),
        }
    }
    clients.iter().for_each(|client| world.stall(*client, false));
    world.servers[0].door = Door::Open;
    world.run_for(40_000_000);
    judge(&world, &clients, &asked, faults, pool, seed);
    let left = world.count(|counters| counters.in_flight.get() + counters.queue_waiting.get());
    assert_eq!(left, 0, "seed {seed}: requests are left behind");
    let open = world.open_conns().len();
    match pool {
        Pool::Pipelined | Pool::Shared | Pool::Fresh => {
            assert_eq!(open, connections, "seed {seed}: connections")
        }
        Pool::Pinned => assert!(open <= world.clients.len(), "seed {seed}: {open} connections"),
        Pool::PerRequest | Pool::Tcp => assert_eq!(open, 0, "seed {seed}: connections"),
    }
    assert_eq!(
        world.count(|counters| counters.upstream_connections.get()),
        open as u64,
        "seed {seed}"
    );
    let blamed = |doubt: &Doubt| doubt.demotes() && *doubt != Doubt::ResetWithin;
    let blames: u64 = Doubt::ALL
        .into_iter()
        .filter(blamed)
        .map(|doubt| world.count(|all| all.doubts[doubt as usize].get()))
        .sum();
    assert_eq!(blames + world.count(|counters| counters.surplus.get()), 0, "seed {seed}: blamed");
    world.finish();
}

fn judge(world: &World, clients: &[usize], asked: &[Asked], faults: Faults, pool: Pool, seed: u64) {
    for client in clients {
        let state = &world.clients[*client];
        let own: Vec<&Asked> = asked.iter().filter(|asked| asked.client == *client).collect();
        assert!(
            state.replies.len() <= own.len(),
            "seed {seed}: client {client} got answers too many"
        );
        for (asked, reply) in own.iter().zip(&state.replies) {
            let lost = faults.closes + faults.cuts > 0 && asked.method != "GET";
            // If connections are made for requests, no request waits for a server that refuses.
            let excused = reply.status == 502 && (lost || pool.is_private());
            let right = reply.status == 200 && reply.fields.first("x-nonce") == Some(&asked.nonce);
            assert!(
                right || excused,
                "seed {seed}: {} {} got {reply:?}",
                asked.method,
                asked.nonce
            );
            let letters = Body::of(
                &asked.nonce.bytes().cycle().take(reply.body.length as usize).collect::<Vec<u8>>(),
            );
            assert!(
                !right || reply.body == letters,
                "seed {seed}: {} has foreign bytes",
                asked.nonce
            );
        }
        let cut = matches!(state.end, Some(End::Truncated(_)));
        assert!(!cut || faults.cuts > 0 || state.gone, "seed {seed}: client {client} was cut off");
        let unsettled = state.end.is_none() && !state.gone;
        assert!(
            !unsettled || state.replies.len() == own.len(),
            "seed {seed}: client {client} waits for ever"
        );
    }
    let mut served: BTreeMap<&str, usize> = BTreeMap::new();
    for request in world.requests() {
        *served.entry(request.nonce()).or_default() += 1;
    }
    for asked in asked {
        let times = served.get(&asked.nonce[..]).copied().unwrap_or_default();
        let once = asked.method != "POST" || times <= 1;
        assert!(once, "seed {seed}: POST {} was sent {times} times", asked.nonce);
    }
    let bodies: BTreeMap<&str, Body> =
        asked.iter().map(|asked| (&asked.nonce[..], Body::of(&asked.body))).collect();
    for request in world.requests().filter(|request| bodies.contains_key(request.nonce())) {
        assert!(
            bodies[request.nonce()] == request.body,
            "seed {seed}: body of {}",
            request.nonce()
        );
    }
}

#[test]
fn honest_servers() {
    (0..SEEDS).for_each(|seed| run(seed, Faults { closes: 0, cuts: 0 }));
}

#[test]
fn servers_that_close_between_answers() {
    (0..SEEDS).for_each(|seed| run(seed, Faults { closes: 10, cuts: 0 }));
}

#[test]
fn other_pools() {
    for (n, pool) in
        [Pool::Shared, Pool::Pinned, Pool::PerRequest, Pool::Fresh].into_iter().enumerate()
    {
        for faults in [
            Faults { closes: 0, cuts: 0 },
            Faults { closes: 10, cuts: 0 },
            Faults { closes: 20, cuts: 20 },
        ] {
            (0..SEEDS / 3).for_each(|seed| run_pool(seed * 3 + n as u64, faults, pool));
        }
    }
}

#[test]
fn servers_that_break_off() {
    (0..SEEDS).for_each(|seed| run(seed, Faults { closes: 20, cuts: 20 }));
}

/// 10,000 requests over pipelined clients: each response belongs to its own request.
#[test]
fn ten_thousand_requests() {
    let mut world = World::started(plan(2, 4), 2, 7);
    world.shuffled = true;
    for server in 0..2 {
        let faults = Faults { closes: 50, cuts: 0 };
        world.servers[server].serve = Box::new(move |seen| serve(7 + server as u64, faults, seen));
    }
    let clients: Vec<usize> = (0..20).map(|n| world.client_of(n % 2)).collect();
    let mut asked = Vec::new();
    for client in &clients {
        for number in 0..500 {
            let nonce = format!("{client:04}{number:04}");
            world.get(*client, &nonce);
            asked.push(Asked { client: *client, nonce, method: "GET", body: Vec::new() });
        }
    }
    world.run_for(60_000_000);
    judge(&world, &clients, &asked, Faults { closes: 50, cuts: 0 }, Pool::Pipelined, 7);
    assert!(clients.iter().all(|client| world.clients[*client].replies.len() == 500));
    world.finish();
}
