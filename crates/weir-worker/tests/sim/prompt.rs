//! Nobody waits for another client's slowness longer than it takes to make a connection, with servers of each kind that people run:
//! that keep connections, that end each after one answer and say so, or end it without a word.
//!
//! While uploads drip and readers stand still, each second some clients ask for something that the server answers at once; all
//! of them must have it within [`PROMPT_US`].

use std::collections::VecDeque;
use std::sync::Arc;

use weir_check::upstreams::{Closing, Ending, closings};
use weir_io::sim::{Faults, Rng, Settings};

use super::book::{Asked, Outcome};
use super::client::{Act, Client, Manners};
use super::each_seed;
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, set_connections};
use super::server::Style;

const SECOND: u64 = 1_000_000;
/// What is prompt: connects, an answer of at most a millisecond, and what noticing a late answer takes when nothing is known of the
/// server yet.
const PROMPT_US: u64 = 250_000;
const ROUNDS: u64 = 10;
const VICTIMS: usize = 6;

fn asked(nonce: &str, body: usize) -> Asked {
    let method = if body > 0 { "POST" } else { "GET" };
    Asked { nonce: nonce.to_owned(), method, conditional: false, body: vec![b'x'; body], trigger: None }
}

fn get(nonce: &str) -> Vec<u8> {
    format!("GET /?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n\r\n").into_bytes()
}

/// An upload that is forwarded before it is complete, and drips.
fn dripping(nonce: &str) -> (VecDeque<Act>, Vec<Asked>) {
    const BYTES: usize = 100_000;
    let head = format!("POST /?n={nonce} HTTP/1.1\r\nHost: weir.test\r\nContent-Length: {BYTES}\r\n\r\n");
    let begin = [Act::Ask(0), Act::Send(head.into_bytes()), Act::Send(vec![b'x'; 70_000])];
    let drops = (0..15).flat_map(|_| [Act::Wait(SECOND), Act::Send(vec![b'x'; 2_000])]);
    (begin.into_iter().chain(drops).collect(), vec![asked(nonce, BYTES)])
}

/// A reader of a large answer who stands still.
fn standing(number: usize) -> (VecDeque<Act>, Vec<Asked>) {
    let nonces = (0..).map(|n| format!("ee{number:02x}{n:04x}"));
    let nonce =
        nonces.into_iter().find(|nonce| asked(nonce, 0).expected().body.len() > 300 << 10).expect("one of many");
    ([Act::StopReading(15 * SECOND), Act::Ask(0), Act::Send(get(&nonce))].into(), vec![asked(&nonce, 0)])
}

/// How the server of this seed ends its connections.
fn ending(seed: u64) -> Option<Closing> {
    let how = [None, Some(Ending::Announced), Some(Ending::Fin)][(seed % 3) as usize]?;
    closings().into_iter().find(|closing| closing.how == how).map(|closing| Closing { answers: 1, ..closing })
}

fn scenario(seed: u64) -> Scenario {
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed / 3 % 2) as u16);
    scenario.name = "prompt";
    scenario.settings = Settings::random(seed, Faults::none());
    scenario.settings.window_bytes = 64 << 10;
    scenario.styles = vec![Style { delay_us_max: 1_000, closing: ending(seed), ..Style::honest() }];
    (scenario.clients, scenario.manners) = (0, Manners::quiet(1));
    let upstream = &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
    upstream.servers.truncate(1);
    upstream.echo = None;
    let server = &mut upstream.servers[0];
    (server.connections_min, server.connections_max) = (1, 1024);
    set_connections(server, 2 + (seed % 4) as u32);
    scenario
}

#[test]
fn nobody_waits_for_the_slowness_of_others() {
    each_seed(0..24, |seed| {
        let run = Run::new(scenario(seed));
        let rng = &mut Rng::new(seed);
        let add = |start_us, acts, asked| {
            run.add(|book| Client::scripted(listen_address(), start_us, book, acts, asked, false));
        };
        for number in 0..20 {
            let (acts, asked) = match number % 2 {
                0 => dripping(&format!("dddd{number:04x}")),
                _ => standing(number),
            };
            add(rng.below(SECOND / 2), acts, asked);
        }
        for round in 1..=ROUNDS {
            for victim in 0..VICTIMS {
                let nonce = format!("{round:04x}{victim:04x}");
                let acts = [Act::Until(round * SECOND), Act::Ask(0), Act::Send(get(&nonce)), Act::AwaitAnswers(1)];
                add(0, acts.into(), vec![asked(&nonce, 0)]);
            }
        }
        run.pass(PROMPT_US, || false);
        for round in 1..=ROUNDS {
            run.pass(SECOND, || false);
            let late = (0..VICTIMS).filter(|victim| {
                let nonce = format!("{round:04x}{victim:04x}");
                run.book.borrow().entries.get(&nonce).is_none_or(|entry| entry.outcome != Outcome::Answered)
            });
            let late = late.count();
            if late > 0 {
                run.fail(&format!("{late} of round {round} wait for others"));
            }
        }
        run.finish();
    });
}
