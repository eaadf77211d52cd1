//! Limits in time: slow, silent and vanished clients end, keep no other client waiting, and leave
//! nothing behind; draining ends. docs/hostile.md H1-H3.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_io::sim::{Faults, Rng, Settings};
use weir_proxy::plan::{PipelineMode, ServerPlan};

use super::book::{Asked, Book, Outcome};
use super::client::{Act, Client, Manners};
use super::each_seed;
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, server_address, set_connections};
use super::seeds;
use super::server::Style;

const SECOND: u64 = 1_000_000;

/// A network without faults, one honest server, and a few ordinary clients.
fn scenario(name: &'static str, seed: u64, clients: usize) -> Scenario {
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 2) as u16);
    scenario.name = name;
    scenario.settings = Settings::random(seed, Faults::none());
    scenario.settings.window_bytes = 64 << 10;
    scenario.styles = vec![Style { delay_us_max: 1_000, ..Style::honest() }];
    scenario.clients = clients;
    scenario.manners = Manners { burst: 4, ..Manners::quiet(20) };
    let upstream =
        &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
    upstream.servers.truncate(1);
    upstream.echo = None;
    scenario
}

fn get(nonce: &str) -> Asked {
    Asked {
        nonce: nonce.to_owned(),
        method: "GET",
        conditional: false,
        body: Vec::new(),
        trigger: None,
    }
}

fn request(nonce: &str) -> Vec<u8> {
    format!("GET /big?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n\r\n").into_bytes()
}

/// A nonce whose response has at least this many bytes.
fn nonce_of_a_large_answer(bytes: usize) -> String {
    let nonces = (0..).map(|n| format!("bbbb{n:04x}"));
    nonces.into_iter().find(|nonce| get(nonce).expected().body.len() > bytes).expect("one of many")
}

fn add(run: &Run, start_us: u64, acts: impl Into<VecDeque<Act>>, asked: Vec<Asked>) {
    run.add(|book| Client::scripted(listen_address(), start_us, book, acts.into(), asked, false));
}

/// H3: one client takes its large response after half a minute; the others share its server's only
/// connection.
#[test]
fn a_slow_reader_keeps_nobody_waiting() {
    each_seed(0..12, |seed| {
        let mut scenario = scenario("slow reader", seed, 8);
        let upstream =
            &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
        set_connections(&mut upstream.servers[0], 1);
        upstream.pipeline = PipelineMode::Depth(16);
        let run = Run::new(scenario);
        let nonce = nonce_of_a_large_answer(300 << 10);
        let acts = [Act::StopReading(30 * SECOND), Act::Ask(0), Act::Send(request(&nonce))];
        add(&run, Rng::new(seed).below(50_000), acts, vec![get(&nonce)]);
        if !run.pass(5 * SECOND, || run.book.borrow().clients_done == 8) {
            run.fail("others wait for the client that reads slowly");
        }
        run.finish_with(all_answered);
    });
}

fn all_answered(book: &Book) -> Result<(), String> {
    match book.entries.values().find(|entry| entry.outcome != Outcome::Answered) {
        Some(entry) => Err(format!("{} got {:?}", entry.asked.nonce, entry.outcome)),
        None => Ok(()),
    }
}

/// The upstream is down at the start: errors at once, and everything works soon after it has come
/// up.
#[test]
fn a_server_that_comes_up_late_is_used() {
    each_seed(0..24, |seed| {
        let mut scenario = scenario("late server", seed, 0);
        let up_us = Rng::new(seed).between(1, 40 * SECOND);
        scenario.styles[0].up_after_us = up_us;
        let run = Run::new(scenario);
        let asked = |number: u64| get(&format!("dddd{number:04x}"));
        for number in 0..40 {
            let asked = asked(number);
            let acts = [Act::Ask(0), Act::Send(request(&asked.nonce))];
            add(&run, number * 3 * SECOND, acts, vec![asked]);
        }
        run.finish_with(|book| {
            // weir retries connects after 30 s at the latest.
            let settled = |number: &u64| number * 3 * SECOND > up_us + 45 * SECOND;
            let wrong =
                |number: &u64| book.entries[&asked(*number).nonce].outcome != Outcome::Answered;
            match (0..40).filter(settled).find(wrong) {
                Some(number) => {
                    Err(format!("request {number} was not answered, up since {up_us} us"))
                }
                None => Ok(()),
            }
        });
    });
}

/// With more workers than connections some workers own none: their requests wait at the owner until
/// a connection is established.
#[test]
fn workers_without_connections_wait_for_those_of_others() {
    each_seed(0..24, |seed| {
        let mut scenario = scenario("early client", seed, 8);
        scenario.workers = 4;
        scenario.styles = vec![Style::honest(), Style::honest()];
        let upstream =
            &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
        upstream.servers.push(ServerPlan::new("other", server_address(1)));
        upstream.servers.iter_mut().for_each(|server| set_connections(server, 1));
        Run::new(scenario).finish_with(all_answered);
    });
}

/// H1, H2, H3: clients that say nothing, or too little, or stop reading, or vanish, each among
/// ordinary ones. All ordinary clients are served where a server may have another connection in
/// place of one that is held.
#[test]
fn silent_clients_are_ended_in_time() {
    each_seed(0..12, |seed| {
        let mut scenario = scenario("silent clients", seed, 3);
        let server = &mut scenario.plan_mut().upstreams[0].servers[0];
        let is_roomy = seed % 3 < 2;
        if is_roomy {
            server.connections_max = 1024;
        }
        let run = Run::new(scenario);
        let rng = &mut Rng::new(seed);
        for number in 0..30 {
            let start_us = rng.below(SECOND);
            let (acts, asked) = silent(number % 6, &silent_nonce(number), rng);
            add(&run, start_us, acts, asked);
        }
        // Idle connections may stay for 75 s, a send may take 60 s, all others must be gone long
        // before.
        if !run.pass(200 * SECOND, || run.book.borrow().clients_done == 33) {
            run.fail("silent clients stay");
        }
        run.pass(150 * SECOND, || false);
        run.finish_with(|book| {
            for number in (0..30).filter(|number| number % 6 < 3) {
                let outcome = &book.entries[&silent_nonce(number)].outcome;
                // A body is not read, and so not judged, while its request waits for a connection,
                // for at most `forward-timeout`.
                let has_waited = number % 6 == 2 && !is_roomy && *outcome == Outcome::Refused(504);
                if *outcome != Outcome::Refused(408) && !has_waited {
                    return Err(format!("slow request {number} got {outcome:?}"));
                }
            }
            let ordinary = |nonce: &&String| !nonce.starts_with("cccc");
            match book
                .entries
                .keys()
                .filter(ordinary)
                .find(|nonce| book.entries[*nonce].outcome != Outcome::Answered)
            {
                Some(nonce) if is_roomy => {
                    Err(format!("{nonce} got {:?}", book.entries[nonce].outcome))
                }
                _ => Ok(()),
            }
        });
    });
}

fn silent_nonce(number: usize) -> String {
    format!("cccc{number:04x}")
}

/// The script of a silent client of this kind.
fn silent(kind: usize, nonce: &str, rng: &mut Rng) -> (VecDeque<Act>, Vec<Asked>) {
    let whole = request(nonce);
    let half = Act::Send(whole[..whole.len() / 2].to_vec());
    let post = Asked { method: "POST", body: vec![b'x'; 100_000], ..get(nonce) };
    let head =
        format!("POST /?n={nonce} HTTP/1.1\r\nHost: weir.test\r\nContent-Length: 100000\r\n\r\n");
    match kind {
        // Half a head, then nothing.
        0 => ([Act::Ask(0), half].into(), vec![get(nonce)]),
        // A head at one byte per second.
        1 => {
            let bytes =
                whole[..30].iter().flat_map(|byte| [Act::Send(vec![*byte]), Act::Wait(SECOND)]);
            ([Act::Ask(0)].into_iter().chain(bytes).collect(), vec![get(nonce)])
        }
        // A body of a few bytes now and then.
        2 => {
            let bytes = (0..30).flat_map(|_| [Act::Send(vec![b'x'; 20]), Act::Wait(2 * SECOND)]);
            (
                [Act::Ask(0), Act::Send(head.into_bytes())].into_iter().chain(bytes).collect(),
                vec![post],
            )
        }
        // Nothing at all.
        3 => ([Act::Vanish].into(), Vec::new()),
        // A whole request, and no client left to read the response.
        4 => ([Act::Ask(0), Act::Send(whole), Act::Vanish].into(), vec![get(nonce)]),
        // Half a body, gone.
        _ => {
            let some = rng.index(80_000);
            (
                [
                    Act::Ask(0),
                    Act::Send(head.into_bytes()),
                    Act::Send(vec![b'x'; some]),
                    Act::Vanish,
                ]
                .into(),
                vec![post],
            )
        }
    }
}

/// Responses that last longer than the idle timeout of clients, and are silent for longer than
/// servers have to begin one: each arrives whole. This also holds on a machine that is short of
/// time, where timers fire in the turns in which sends are taken.
#[test]
fn answers_outlast_every_patience() {
    each_seed(seeds(), |seed| {
        let mut scenario = scenario("long answers", seed, 0);
        let rng = &mut Rng::new(seed ^ 0x10a6);
        scenario.settings = Settings::random(seed, Faults::harmless(seed));
        scenario.settings.window_bytes = 1 << rng.between(12, 14);
        let turn_us = *rng.pick(&[1, 5_000, 30_000]);
        scenario.settings.turn_us_max = turn_us;
        let plan = scenario.plan_mut();
        // Longer than reading a first request may take here, and much shorter than a response
        // lasts.
        plan.client.idle_timeout_us = rng.between(100_000, 200_000) + 60 * turn_us;
        let upstream = &mut plan.upstreams[0];
        upstream.forward_timeout_us = 10 * SECOND;
        // No request has to wait until a response that lasts is over.
        set_connections(&mut upstream.servers[0], 32);
        let run = Run::new(scenario);
        let nonces = (0..)
            .map(|n| format!("cccc{n:04x}"))
            .filter(|nonce| get(nonce).expected().body.len() > 100_000);
        for (number, nonce) in nonces.take(16).enumerate() {
            // Half of them come in two halves, far apart.
            let path = if number % 2 == 0 { "big" } else { "events" };
            let text =
                format!("GET /{path}?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n\r\n").into_bytes();
            add(&run, rng.below(50_000), [Act::Ask(0), Act::Send(text)], vec![get(&nonce)]);
        }
        run.finish_with(all_answered);
    });
}

/// Draining in the middle of work: requests that reached a server are answered, every client ends,
/// and the workers are drained.
#[test]
fn draining_answers_what_was_asked_and_ends() {
    each_seed(seeds(), |seed| {
        let mut scenario = scenario("drain", seed, 10);
        let rng = &mut Rng::new(seed ^ 0xd1);
        scenario.settings = Settings::random(seed, Faults::harmless(seed));
        scenario.settings.window_bytes = 64 << 10;
        scenario.styles[0] = Style { delay_us_max: 20_000, pieces: 300, ..Style::honest() };
        let run = Run::new(scenario);
        run.pass(rng.below(SECOND), || false);
        run.drain();
        run.finish_with(|book| {
            let lost = |entry: &&super::book::Entry| match entry.outcome {
                Outcome::Answered => false,
                Outcome::Cut => !entry.arrivals.is_empty(),
                _ => true,
            };
            match book.entries.values().find(lost) {
                Some(entry) => Err(format!(
                    "{} got {:?} after {:?}",
                    entry.asked.nonce, entry.outcome, entry.arrivals
                )),
                None => Ok(()),
            }
        });
    });
}
