//! No client waits for another client's slowness longer than it takes to make a connection, with
//! all common kinds of servers. Some keep connections, some end each after one response with or
//! without announcing it, some close with requests unread. Others process requests behind the
//! response that announces the end, speak HTTP/1.0, close idle connections, or serve few
//! connections at a time.
//!
//! While uploads drip, readers stall, and long polls and event streams last, each second some
//! clients send requests that the server answers at once. All of them must be answered within
//! [`PROMPT_US`], and a POST reaches a server once.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_check::upstreams::{Closing, Ending, closings};
use weir_io::sim::{Faults, Rng, START_US, Settings};

use super::book::{Asked, Entry, Outcome};
use super::client::{Act, Client, Manners};
use super::http2::{Ask, GivesUp, Habits, Http2Client};
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, set_connections};
use super::server::{LASTING_US, Style};
use super::{each_seed, seeds_of};

const SECOND: u64 = 1_000_000;
/// The limit for prompt: connects, a response of at most a millisecond, and the time to notice a
/// late response when nothing is known of the server yet.
const PROMPT_US: u64 = 250_000;
const ROUNDS: u64 = 10;
const VICTIMS: usize = 6;
/// Clients that hold connections.
const HOLDERS: usize = 24;
/// Kinds of servers.
const KINDS: u64 = 7;
/// A server that ends connections without announcing it may do so while a POST is on its way.
const UNREAD: u64 = 3;

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

fn get(nonce: &str) -> Vec<u8> {
    format!("GET /?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n\r\n").into_bytes()
}

/// An upload that is forwarded before it is complete, and drips.
fn dripping(nonce: &str) -> (VecDeque<Act>, Vec<Asked>) {
    const BYTES: usize = 100_000;
    let head =
        format!("POST /?n={nonce} HTTP/1.1\r\nHost: weir.test\r\nContent-Length: {BYTES}\r\n\r\n");
    let begin = [Act::Ask(0), Act::Send(head.into_bytes()), Act::Send(vec![b'x'; 70_000])];
    let drops = (0..15).flat_map(|_| [Act::Wait(SECOND), Act::Send(vec![b'x'; 2_000])]);
    (begin.into_iter().chain(drops).collect(), vec![asked(nonce, BYTES)])
}

/// A reader of a large response that stalls.
fn standing(number: usize) -> (VecDeque<Act>, Vec<Asked>) {
    let nonces = (0..).map(|n| format!("ee{number:02x}{n:04x}"));
    let nonce = nonces
        .into_iter()
        .find(|nonce| asked(nonce, 0).expected().body.len() > 300 << 10)
        .expect("one of many");
    (
        [Act::StopReading(15 * SECOND), Act::Ask(0), Act::Send(get(&nonce))].into(),
        vec![asked(&nonce, 0)],
    )
}

/// A request with a lasting response: `/poll` or `/events`.
fn lasting(number: usize, target: &str) -> (VecDeque<Act>, Vec<Asked>) {
    let nonces = (0..).map(|n| format!("cc{number:02x}{n:04x}"));
    let fits = |nonce: &String| (100..50_000).contains(&asked(nonce, 0).expected().body.len());
    let nonce = nonces.into_iter().find(fits).expect("one of many");
    let head = format!("GET /{target}?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n\r\n");
    (
        [Act::Ask(0), Act::Send(head.into_bytes()), Act::AwaitAnswers(1)].into(),
        vec![asked(&nonce, 0)],
    )
}

/// A client whose request is answered at once, and that leaves then.
fn victim(nonce: &str, at_us: u64) -> (VecDeque<Act>, Vec<Asked>) {
    let body = if nonce.ends_with('5') { 3 } else { 0 };
    let bytes = match body {
        0 => get(nonce),
        _ => {
            format!("POST /?n={nonce} HTTP/1.1\r\nHost: weir.test\r\nContent-Length: 3\r\n\r\nxxx")
                .into_bytes()
        }
    };
    (
        [Act::Until(START_US + at_us), Act::Ask(0), Act::Send(bytes), Act::AwaitAnswers(1)].into(),
        vec![asked(nonce, body)],
    )
}

/// The server of this seed.
fn style(seed: u64) -> Style {
    let honest = Style { delay_us_max: 1_000, ..Style::honest() };
    let ends = |how, answers| {
        let closing = closings().into_iter().find(|closing| closing.how == how);
        Style { closing: closing.map(|closing| Closing { answers, ..closing }), ..honest.clone() }
    };
    match seed % KINDS {
        1 => ends(Ending::Announced, 1),
        2 => ends(Ending::Fin, 1),
        UNREAD => ends(Ending::Unread, 7),
        4 => Style { works_ahead: true, ..ends(Ending::Announced, 7) },
        5 => Style { old: true, ..honest },
        6 => Style { idle_us: 2 * SECOND, ..honest },
        _ => honest,
    }
}

fn scenario(seed: u64) -> Scenario {
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed / KINDS % 2) as u16);
    scenario.name = "prompt";
    scenario.settings = Settings::random(seed, Faults::none());
    scenario.settings.window_bytes = 64 << 10;
    scenario.styles = vec![style(seed)];
    (scenario.clients, scenario.manners) = (0, Manners::quiet(1));
    let upstream =
        &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
    upstream.servers.truncate(1);
    upstream.echo = None;
    let server = &mut upstream.servers[0];
    (server.connections_min, server.connections_max) = (1, 1024);
    set_connections(server, 2 + (seed % 4) as u32);
    scenario
}

/// Streams of responses of more than `bytes` bytes for which their client opens no window. It gives
/// up `given_up` of them.
fn stalled(run: &Run, number: usize, streams: usize, bytes: usize, given_up: usize) {
    let large = |nonce: &String| asked(nonce, 0).expected().body.len() > bytes;
    let nonces =
        (0..).map(|n| format!("bb{number:02x}{n:04x}")).filter(large).take(streams).enumerate();
    let gives_up = |at| if at < given_up { GivesUp::After(2 * SECOND) } else { GivesUp::Never };
    let asks = nonces
        .map(|(at, nonce)| Ask { gives_up: gives_up(at), ..Ask::new(asked(&nonce, 0)) })
        .collect();
    let habits =
        Habits { window: 1_000, stalls_until_us: START_US + 15 * SECOND, ..Habits::quiet(streams) };
    let rng = Rng::new(number as u64);
    run.add(|book| {
        Http2Client::scripted(
            listen_address(),
            rng.clone().below(SECOND / 4),
            book,
            habits,
            asks,
            rng,
        )
    });
}

/// How many of the victims of a round have no response.
fn late(run: &Run, round: u64, may_lose_posts: bool) -> usize {
    let book = run.book.borrow();
    let is_good = |victim: &usize| {
        let entry = &book.entries[&format!("{round:04x}{victim:04x}")];
        let lost = may_lose_posts
            && entry.asked.method == "POST"
            && entry.outcome == Outcome::Refused(502);
        entry.outcome == Outcome::Answered || lost
    };
    VICTIMS - (0..VICTIMS).filter(is_good).count()
}

fn add(run: &Run, start_us: u64, (acts, asked): (VecDeque<Act>, Vec<Asked>)) {
    run.add(|book| Client::scripted(listen_address(), start_us, book, acts, asked, false));
}

/// Checks that the victims that ask each second are answered promptly from round `first` on.
/// Everything that holds connections has begun half a second before.
fn check_rounds(run: &Run, seed: u64, first: u64) {
    for round in 1..=ROUNDS {
        for number in 0..VICTIMS {
            add(run, 0, victim(&format!("{round:04x}{number:04x}"), (round + 1) * SECOND));
        }
    }
    run.pass(3 * SECOND / 2 + PROMPT_US, || false);
    for round in 1..=ROUNDS {
        if round > 1 {
            run.pass(SECOND, || false);
        }
        let late = late(run, round, seed % KINDS == UNREAD);
        if late > 0 && round >= first {
            run.fail(&format!("{late} of round {round} wait for others"));
        }
    }
}

#[test]
fn nobody_waits_for_the_slowness_of_others() {
    each_seed(seeds_of(28), |seed| {
        let run = Run::new(scenario(seed));
        let rng = &mut Rng::new(seed);
        let mut streams = Vec::new();
        // Lets each worker learn something of the server.
        for number in 0..80 {
            add(&run, 0, victim(&format!("aaaa{number:03x}0"), number / 8 * 20_000));
        }
        run.pass(SECOND / 2, || false);
        for number in 0..HOLDERS {
            let holder = match number % 4 {
                0 => dripping(&format!("dddd{number:04x}")),
                1 => standing(number),
                2 => lasting(number, "poll"),
                _ => lasting(number, "events"),
            };
            if number % 4 == 3 {
                streams.push(holder.1[0].nonce.clone());
            }
            add(&run, rng.below(SECOND / 4), holder);
        }
        check_rounds(&run, seed, 1);
        let begun =
            streams.iter().filter(|nonce| run.book.borrow().entries[*nonce].delivered).count();
        if begun < streams.len() {
            run.fail(&format!("{begun} of {} streams of events have begun", streams.len()));
        }
        run.pass(LASTING_US, || false);
        run.finish();
    });
}

/// Clients of HTTP/2, each with many stalled streams.
#[test]
fn nobody_waits_for_streams_that_stand_still() {
    each_seed(seeds_of(14), |seed| {
        let run = Run::new(scenario(seed).with_http2());
        // Lets each worker learn something of the server.
        for number in 0..80 {
            add(&run, 0, victim(&format!("aaaa{number:03x}0"), number / 8 * 20_000));
        }
        run.pass(SECOND / 2, || false);
        (0..2).for_each(|number| stalled(&run, number, 30, 200 << 10, 0));
        check_rounds(&run, seed, 1);
        let (stalled, absorbed) = (
            run.count(|counters| counters.stalled.get()),
            run.count(|counters| counters.absorbed.get()),
        );
        if absorbed == 0 {
            run.fail("nothing was taken in");
        }
        if stalled > 2 * (30 - 16) {
            run.fail(&format!("{stalled} streams were given up"));
        }
        run.pass(LASTING_US, || false);
        run.finish();
    });
}

/// The same with fewer streams of each client than it may have set aside: weir gives up none, and
/// streams that their clients give up leave nothing behind.
#[test]
fn who_stands_still_is_judged_by_itself() {
    each_seed(seeds_of(KINDS), |seed| {
        let run = Run::new(scenario(seed).with_http2());
        for number in 0..80 {
            add(&run, 0, victim(&format!("aaaa{number:03x}0"), number / 8 * 20_000));
        }
        run.pass(SECOND / 2, || false);
        (0..4).for_each(|number| stalled(&run, number, 12, 300 << 10, 4));
        check_rounds(&run, seed, 1);
        run.pass(LASTING_US, || false);
        if run.count(|counters| counters.stalled.get()) > 0 {
            run.fail("streams were given up that were not too many");
        }
        run.finish_with(|book| {
            let cut = |(nonce, entry): &(&String, &Entry)| {
                nonce.starts_with("bb") && entry.outcome == Outcome::Cut
            };
            match book.entries.iter().find(cut) {
                Some((nonce, _)) => Err(format!("{nonce} was cut off")),
                None => Ok(()),
            }
        });
    });
}

/// A server that serves few connections at a time, each until it ends, and clients of all workers:
/// once that is known, no request waits for an idle connection.
#[test]
fn a_server_of_few_places_serves_everybody() {
    each_seed(seeds_of(24), |seed| {
        let mut scenario = scenario(seed);
        scenario.workers = 1 + (seed % 3) as u16;
        scenario.styles = vec![Style {
            delay_us_max: 1_000,
            places: 1 + (seed / 3 % 4) as usize,
            ..Style::honest()
        }];
        let upstream =
            &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
        set_connections(&mut upstream.servers[0], 32);
        upstream.servers[0].connections_min = 1;
        upstream.servers[0].connections_max = 1024;
        let run = Run::new(scenario);
        for round in 1..=ROUNDS {
            for number in 0..VICTIMS {
                add(&run, 0, victim(&format!("{round:04x}{number:04x}"), round * SECOND));
            }
        }
        run.pass(PROMPT_US, || false);
        for round in 1..=ROUNDS {
            run.pass(SECOND, || false);
            // Some requests of the first rounds wait until it is found out.
            let judged = if round < 3 { 0 } else { round };
            let late: usize = (1..=judged).map(|round| late(&run, round, false)).sum();
            if late > 0 {
                run.fail(&format!("{late} wait in round {round}"));
            }
        }
        run.finish();
    });
}
