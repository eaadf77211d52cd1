//! Crowds of clients that do the same at once: clients that pipeline and reset at the same moment,
//! uploads to a server that stops reading, clients that leave in the middle of responses. Each
//! world has some of these crowds among clients that wait for their responses, from the same server
//! and from another upstream. Those get all of them, and nothing is done for clients that have
//! gone.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_io::sim::{Faults, Rng, Settings};
use weir_proxy::plan::{PipelineMode, ServerPlan, UpstreamPlan};
use weir_proxy::request::route::{Route, RouteTable, Target};
use weir_proxy::retry::budget::{BURST_MIN, FLOOR_PER_SECOND};

use super::book::{Asked, Book, Outcome};
use super::client::{Act, Client, Manners};
use super::each_seed;
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, server_address, set_connections};
use super::server::Style;

const SECOND: u64 = 1_000_000;
/// The world's clock at the start.
const START_US: u64 = SECOND;
/// When clients reset, from the start on.
const WAVES_US: [u64; 2] = [2 * SECOND, 4 * SECOND];
/// Time until every worker must know of all that: some turns later, before the servers' responses
/// have made much room.
const KNOWN_US: u64 = 2_000;
/// How long the server reads no uploads.
const DEAF_US: u64 = 8 * SECOND;
/// Rounds of one request a second to another upstream, and the time in which it is answered: with a
/// connect, and late completions.
const ROUNDS: u64 = 9;
const PROMPT_US: u64 = SECOND / 2;

/// The groups of a world, by the first letter of nonces.
const UPLOADS: char = 'a';
const GONE: char = 'b';
const LEAVERS: char = 'c';
const NEIGHBOURS: char = 'd';
const ELSEWHERE: char = 'e';

fn nonce(who: char, client: usize, request: usize) -> String {
    format!("{who}{client:03x}{request:04x}")
}

fn asked(nonce: &str, body: usize) -> Asked {
    let method = if body > 0 { "POST" } else { "GET" };
    Asked {
        nonce: nonce.to_owned(),
        method,
        conditional: false,
        body: vec![b'x'; body],
        trigger: None,
    }
}

fn get(path: &str, nonce: &str) -> Act {
    Act::Send(format!("GET {path}?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n\r\n").into_bytes())
}

fn scenario(seed: u64, is_deaf: bool) -> Scenario {
    let rng = &mut Rng::new(seed ^ 0xc0d);
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 2) as u16);
    scenario.name = "crowds";
    let faults = Faults { latency_us: 50, ..Faults::none() };
    scenario.settings = Settings { small_buffers: 64, ..Settings::random(seed, faults) };
    scenario.settings.window_bytes = 64 << 10;
    // So slow that most pipelined requests still wait when their client leaves.
    let busy = Style { delay_us_max: *rng.pick(&[20_000, 60_000]), ..Style::honest() };
    let deaf_until_us = if is_deaf { START_US + DEAF_US } else { 0 };
    scenario.styles = vec![Style { deaf_until_us, ..busy }, Style::honest()];
    (scenario.clients, scenario.manners) = (0, Manners::quiet(1));
    let plan = Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet");
    let upstream = &mut plan.upstreams[0];
    upstream.servers.truncate(1);
    (upstream.echo, upstream.queue_size) = (None, 10_000);
    upstream.pipeline =
        *rng.pick(&[PipelineMode::Off, PipelineMode::Depth(4), PipelineMode::Adaptive]);
    let server = &mut upstream.servers[0];
    server.connections_max = 1024;
    set_connections(server, 1 + (seed % 3) as u32);
    let other = ServerPlan { connections_min: 0, ..ServerPlan::new("other", server_address(1)) };
    plan.upstreams.push(UpstreamPlan {
        name: "other".to_owned(),
        servers: vec![other],
        ..UpstreamPlan::default()
    });
    let route = |path: &str, target| Route {
        path: path.to_owned(),
        target: Target::Upstream(target),
        ..Route::default()
    };
    plan.routes = RouteTable::new(vec![route("/other", 1), route("/", 0)]);
    scenario
}

fn add(run: &Run, start_us: u64, acts: Vec<Act>, asked: Vec<Asked>) {
    run.add(|book| {
        Client::scripted(listen_address(), start_us, book, VecDeque::from(acts), asked, false)
    });
}

/// Uploads that go on before they are complete, to a server that reads only their beginnings.
fn add_uploads(run: &Run, rng: &mut Rng) {
    for client in 0..24 {
        let (nonce, bytes) = (nonce(UPLOADS, client, 0), 200_000 + rng.index(200_000));
        let head = format!(
            "POST /?n={nonce} HTTP/1.1\r\nHost: weir.test\r\nContent-Length: {bytes}\r\n\r\n"
        );
        let acts = vec![Act::Ask(0), Act::Send(head.into_bytes()), Act::Send(vec![b'x'; bytes])];
        add(run, rng.below(SECOND), acts, vec![asked(&nonce, bytes)]);
    }
}

/// Clients that send as many requests as they may without waiting, and all leave at the same
/// moment, before most of them are answered.
fn add_gone(run: &Run, rng: &mut Rng) {
    for client in 0..50 {
        let wave_us = WAVES_US[client % WAVES_US.len()];
        let nonces: Vec<String> =
            (0..20 + rng.index(45)).map(|request| nonce(GONE, client, request)).collect();
        let asks =
            nonces.iter().enumerate().flat_map(|(index, nonce)| [Act::Ask(index), get("/", nonce)]);
        let end = [Act::Until(START_US + wave_us), Act::Reset];
        let start_us = wave_us - SECOND / 10 - rng.below(SECOND / 2);
        add(
            run,
            start_us,
            asks.chain(end).collect(),
            nonces.iter().map(|nonce| asked(nonce, 0)).collect(),
        );
    }
}

/// Clients that leave as soon as their response has begun.
fn add_leavers(run: &Run, rng: &mut Rng) {
    for client in 0..80 {
        let large = |nonce: &String| asked(nonce, 0).expected().body.len() > 30_000;
        let nonce =
            (0..).map(|request| nonce(LEAVERS, client, request)).find(large).expect("one of many");
        let acts = vec![Act::Ask(0), get("/", &nonce), Act::LeaveAtFirstBytes, Act::Reset];
        add(run, rng.below(6 * SECOND), acts, vec![asked(&nonce, 0)]);
    }
}

/// Clients of the same server that wait for their responses, one after the other or several at
/// once.
fn add_neighbours(run: &Run, rng: &mut Rng) {
    for client in 0..20 {
        let nonces: Vec<String> =
            (0..10).map(|request| nonce(NEIGHBOURS, client, request)).collect();
        let together = *rng.pick(&[1, 5, 10]);
        let acts = nonces.iter().enumerate().flat_map(|(index, nonce)| {
            let before = if index % together == 0 { index } else { 0 };
            [Act::AwaitAnswers(before), Act::Ask(index), get("/", nonce)]
        });
        let acts = acts.collect();
        add(run, rng.below(5 * SECOND), acts, nonces.iter().map(|nonce| asked(nonce, 0)).collect());
    }
}

/// Clients of another upstream, one a second.
fn add_elsewhere(run: &Run) {
    for round in 0..ROUNDS {
        let nonce = nonce(ELSEWHERE, round as usize, 0);
        let acts = vec![Act::Until(START_US + round * SECOND), Act::Ask(0), get("/other", &nonce)];
        add(run, 0, acts, vec![asked(&nonce, 0)]);
    }
}

/// How many requests servers have got so far of clients that leave.
fn arrivals_of_gone(book: &Book) -> usize {
    let theirs = book.entries.iter().filter(|(nonce, _)| nonce.starts_with(GONE));
    theirs.map(|(_, entry)| entry.arrivals.len()).sum()
}

/// Every request that waits for a connection has a client that waits for it.
fn nothing_waits_for_nobody(run: &Run) {
    let waiting = run.count(|counters| counters.queue_waiting.get());
    let wanted = run
        .book
        .borrow()
        .entries
        .values()
        .filter(|entry| entry.outcome == Outcome::Waiting)
        .count();
    if waiting > wanted as u64 {
        run.fail(&format!("{waiting} requests wait, {wanted} have a client"));
    }
}

#[test]
fn crowds_harm_nobody_else() {
    each_seed(0..28, |seed| {
        // Each kind of crowd alone and all together.
        let kinds = 1 + seed % 7;
        let (uploads, gone, leavers) = (kinds & 1 > 0, kinds & 2 > 0, kinds & 4 > 0);
        let run = Run::new(scenario(seed, uploads));
        let rng = &mut Rng::new(seed);
        add_elsewhere(&run);
        add_neighbours(&run, rng);
        if uploads {
            add_uploads(&run, rng);
        }
        if gone {
            add_gone(&run, rng);
        }
        if leavers {
            add_leavers(&run, rng);
        }
        let until =
            |us: u64| run.pass((START_US + us).saturating_sub(run.world.now_us()), || false);
        let mut arrived = 0;
        for round in 0..ROUNDS {
            if WAVES_US.contains(&(round * SECOND)) {
                until(round * SECOND + KNOWN_US);
                nothing_waits_for_nobody(&run);
                arrived = arrivals_of_gone(&run.book.borrow());
            }
            until(round * SECOND + PROMPT_US);
            let outcome =
                run.book.borrow().entries[&nonce(ELSEWHERE, round as usize, 0)].outcome.clone();
            if outcome != Outcome::Answered {
                run.fail(&format!(
                    "what was asked of another upstream in round {round} got {outcome:?}"
                ));
            }
        }
        let arrivals = arrivals_of_gone(&run.book.borrow());
        if arrivals > arrived {
            run.fail(&format!(
                "servers got {arrived} requests of clients until they had gone, \
                {arrivals} in the end"
            ));
        }
        judge(run);
    });
}

/// All others are answered. Repeated requests were counted, and are no more than the budget allows.
fn judge(run: Run) {
    let counted = |run: &Run| {
        run.count(|counters| counters.resends.get() + counters.retries.get() + counters.moves.get())
            + run.count(|counters| counters.escapes.get())
    };
    run.pass(600 * SECOND, || false);
    let (again, seconds) = (counted(&run), run.world.now_us() / SECOND);
    run.finish_with(|book| {
        let stays = |nonce: &str| !nonce.starts_with([GONE, LEAVERS]);
        if let Some((nonce, entry)) = book
            .entries
            .iter()
            .find(|(nonce, entry)| stays(nonce) && entry.outcome != Outcome::Answered)
        {
            return Err(format!("{nonce} got {:?} after {:?}", entry.outcome, entry.arrivals));
        }
        let repeated: usize =
            book.entries.values().map(|entry| entry.arrivals.len().saturating_sub(1)).sum();
        let most = BURST_MIN + book.entries.len() as u64 / 5 + FLOOR_PER_SECOND * seconds;
        match repeated as u64 <= again && again <= most {
            true => Ok(()),
            false => Err(format!(
                "{repeated} requests came again, {again} were counted, {most} are allowed"
            )),
        }
    });
}
