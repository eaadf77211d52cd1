//! docs/hostile.md E2: a surplus response that comes 250 ms later, when its connection has nothing
//! unanswered.
//!
//! Any request from then on may get that connection, which must have ended before. No requests are
//! sent until it comes, because a response that crosses with a request looks like the response to
//! it, here as everywhere; `pipeline echo` shows that too (`forgers.rs`).

use std::collections::VecDeque;
use std::sync::Arc;

use weir_check::upstreams::by_id;
use weir_io::sim::{Faults, START_US};
use weir_proxy::plan::Share;

use super::super::book::Entry;
use super::super::client::Act;
use super::super::run::Run;
use super::super::scenario::listen_address;
use super::super::server::ECHO_FIELD;
use super::super::{each_seed, seeds_of};
use super::{Client, Counts, MIXED, Outcome, Rng, Script, count, scenario, settle};

const ROW: &str = "e2_second_answer_later";
/// Worlds of each test where a hundred seeds are usual.
const WORLDS: u64 = 8;
/// How many times it is played in a world, one after the other.
const ROUNDS: u64 = 20;
const ROUND_US: u64 = 1_000_000;
/// From the first response to the surplus one.
const LATER_US: u64 = 250_000;
/// How many clients ask afterwards, in each round.
const VICTIMS: usize = 6;
/// How soon after it came they ask.
const SOON_US: u64 = 2_000;

fn play(seed: u64, counts: &Counts, share: Share, echo: bool) {
    let rng = &mut Rng::new(seed ^ 0x1d1e);
    let mut scenario = scenario("a late answer too many", seed, 1 + (seed % 2) as usize);
    // Everything takes equally long, and nothing waits for room, so that bytes sent first arrive
    // first.
    scenario.settings.faults =
        Faults { latency_us: rng.between(10, 500), late_turn: 300, ..Faults::none() };
    scenario.styles.iter_mut().for_each(|style| (style.delay_us_max, style.echo) = (0, echo));
    let upstream =
        &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
    (upstream.share, upstream.echo) = (share, echo.then(|| ECHO_FIELD.to_owned()));
    let run = Run::new(scenario);
    for round in 0..ROUNDS {
        let at_us = START_US + (round + 1) * ROUND_US;
        add_asker(&run, round, at_us, rng);
        (0..VICTIMS).for_each(|victim| add_victim(&run, round, victim, at_us + LATER_US, rng));
    }
    run.pass((ROUNDS + 2) * ROUND_US, || false);
    if run.count(|counters| counters.surplus.get()) == 0 {
        run.fail("the answers too many were not detected: this proves nothing");
    }
    run.finish_with(|book| {
        count(counts, book);
        let harmed = |entry: &&Entry| entry.outcome != Outcome::Answered;
        match book.entries.values().find(harmed) {
            Some(entry) => Err(format!("{} got {:?}", entry.asked.nonce, entry.outcome)),
            None => Ok(()),
        }
    });
}

/// Asks for the surplus response, at times behind other requests of this client.
fn add_asker(run: &Run, round: u64, at_us: u64, rng: &mut Rng) {
    let number = round as usize * (VICTIMS + 1);
    let mut script = script(number, at_us, rng);
    let before = *script.rng.pick(&[0, 0, 1, 5]);
    script.burst(&[], before, Some(by_id(ROW)));
    let (acts, asked) = (script.acts, script.asked);
    let nonce = asked.last().expect("the row").nonce.clone();
    run.add(|book| {
        Client::scripted(listen_address(), at_us - ROUND_US / 2, book, acts, asked, false)
    });
    let mut book = run.book.borrow_mut();
    book.entries.entry(nonce).and_modify(|entry| entry.quiet_until_us = at_us + LATER_US);
}

/// Asks just after it has come.
fn add_victim(run: &Run, round: u64, victim: usize, at_us: u64, rng: &mut Rng) {
    let number = round as usize * (VICTIMS + 1) + victim + 1;
    let shift = rng.below(11);
    let soon_us = 1 + rng.below(SOON_US >> shift);
    let mut script = script(number, at_us + soon_us, rng);
    script.burst(&[], 3, None);
    let (acts, asked) = (script.acts, script.asked);
    run.add(|book| {
        Client::scripted(listen_address(), at_us - ROUND_US / 2, book, acts, asked, false)
    });
}

fn script(number: usize, at_us: u64, rng: &mut Rng) -> Script<'_> {
    let acts = VecDeque::from([Act::Until(at_us)]);
    Script { number, rng, acts, asked: Vec::new(), burst: Vec::new(), methods: MIXED }
}

#[test]
fn e2_a_late_answer_too_many_on_an_idle_connection_reaches_nobody() {
    for (name, share, echo) in [
        ("late answers too many", Share::All, false),
        ("late answers too many, share client", Share::Client, false),
        ("late answers too many, echo", Share::All, true),
    ] {
        let counts = Counts::default();
        each_seed(seeds_of(WORLDS), |seed| play(seed, &counts, share, echo));
        settle(name, WORLDS, counts, [ROW].into_iter(), [].into_iter());
    }
}
