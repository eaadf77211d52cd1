//! Clients that leave while their server is silent, by a reset, a FIN or RST_STREAM: within half a
//! second no server has any of their requests left, on whichever worker they were. Other clients
//! get their responses at once (docs/retries.md). How: long polls and event streams that would
//! last for fourteen seconds, in worlds of one and two workers with few connections.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_io::sim::{Faults, Rng, START_US, Settings};

use super::book::{Asked, Outcome};
use super::client::{Act, Client, Manners};
use super::http2::{Ask, GivesUp, Habits, Http2Client};
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, set_connections};
use super::server::Style;
use super::{each_seed, seeds_of};

const SECOND: u64 = 1_000_000;
const LEAVERS: usize = 24;
/// When the last has left, from the start on, and how soon every server must have heard of it.
const LEFT_US: u64 = 3 * SECOND;
const TOLD_US: u64 = SECOND / 2;

fn asked(nonce: &str) -> Asked {
    Asked {
        nonce: nonce.to_owned(),
        method: "GET",
        conditional: false,
        body: Vec::new(),
        trigger: None,
    }
}

fn get(target: &str, nonce: &str) -> Act {
    Act::Send(format!("GET {target}?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n\r\n").into_bytes())
}

fn scenario(seed: u64) -> Scenario {
    let rng = &mut Rng::new(seed ^ 0x1eaf);
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 2) as u16).with_http2();
    scenario.name = "leavers";
    let faults = Faults { latency_us: 50, ..Faults::none() };
    scenario.settings = Settings::random(seed, faults);
    scenario.settings.window_bytes = 64 << 10;
    scenario.styles = vec![Style::honest()];
    (scenario.clients, scenario.manners) = (0, Manners::quiet(1));
    let plan = Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet");
    let upstream = &mut plan.upstreams[0];
    upstream.servers.truncate(1);
    upstream.echo = None;
    plan.client.serves_half_closed = false;
    let server = &mut upstream.servers[0];
    // Some requests of clients that leave wait for a connection.
    server.connections_max = *rng.pick(&[8, 1024]);
    set_connections(server, 1 + (seed % 3) as u32);
    scenario
}

/// Adds a client that requests a lasting response, and leaves.
fn add_leaver(run: &Run, number: usize, rng: &mut Rng) {
    let (nonce, target) = (format!("aaaa{number:04x}"), *rng.pick(&["/poll", "/events"]));
    let (start_us, stays_us) = (rng.below(SECOND), rng.below(SECOND));
    if rng.chance(300) {
        let ask = Ask {
            gives_up: GivesUp::After(stays_us),
            path: Some(target),
            ..Ask::new(asked(&nonce))
        };
        let rng = rng.fork(1);
        return run.add(|book| {
            Http2Client::scripted(
                listen_address(),
                start_us,
                book,
                Habits::quiet(1),
                vec![ask],
                rng,
            )
        });
    }
    let end = if rng.chance(500) { Act::Reset } else { Act::HalfClose };
    let acts = [Act::Ask(0), get(target, &nonce), Act::Wait(stays_us), end];
    run.add(|book| {
        Client::scripted(
            listen_address(),
            start_us,
            book,
            VecDeque::from(acts),
            vec![asked(&nonce)],
            false,
        )
    });
}

#[test]
fn servers_hear_that_clients_have_left() {
    each_seed(seeds_of(40), |seed| {
        let run = Run::new(scenario(seed));
        let rng = &mut Rng::new(seed);
        (0..LEAVERS).for_each(|number| add_leaver(&run, number, rng));
        run.pass(LEFT_US + TOLD_US, || false);
        let left = run.count(|counters| counters.in_flight.get() + counters.queue_waiting.get());
        if left > 0 {
            run.fail(&format!("{left} requests of clients that have left"));
        }
        let nonce = "bbbb0000";
        let acts = [Act::Until(START_US + LEFT_US + TOLD_US), Act::Ask(0), get("/", nonce)];
        run.add(|book| {
            Client::scripted(
                listen_address(),
                0,
                book,
                VecDeque::from(acts),
                vec![asked(nonce)],
                false,
            )
        });
        run.pass(TOLD_US, || false);
        let outcome = run.book.borrow().entries[nonce].outcome.clone();
        if outcome != Outcome::Answered {
            run.fail(&format!("a newcomer got {outcome:?}"));
        }
        run.finish();
    });
}
