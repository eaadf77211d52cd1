//! Faults that HTTP/1.1 can't show inside a running pipeline, and what helps: `pipeline echo`,
//! `share="client"`, the sync point. docs/hostile.md E1, E20, E21.

use std::sync::Arc;

use weir_check::upstreams::by_id;
use weir_proxy::plan::Share;

use super::super::client::{Act, SAFE};
use super::super::run::Run;
use super::super::scenario::Scenario;
use super::super::server::ECHO_FIELD;
use super::super::{each_seed, seeds_of};
use super::{BURST_US, Counts, Deck, Row, VICTIMS, add_clients, count, scenario, settle};

/// Faults that HTTP/1.1 can't show inside a running pipeline, besides E20, responses in the wrong
/// order: a forged complete response, or the beginning of one.
const FORGERS: [&str; 5] = [
    "e1_second_answer",
    "e1_half_an_answer_behind",
    "e4_head_with_an_answer_as_body",
    "e6_304_with_an_answer_as_body",
    "e21_split_answer",
];
/// A surplus response that comes when its client has finished with the connection: only an
/// identifier shows which request it belongs to.
const LATER: &str = "e2_second_answer_later";
/// The name of E20, which is no script.
const SWAPPED: &str = "e20_wrong_order";
/// Forged rows of each client that asks for them.
const FORGED: usize = 2;
/// Worlds of each test where a hundred seeds are usual.
const WORLDS: u64 = 40;

fn forge(
    seed: u64,
    name: &'static str,
    counts: &Counts,
    rows: &[&str],
    protect: impl Fn(&mut Scenario),
) -> Vec<(String, String)> {
    let mut scenario = scenario(name, seed, 2);
    // One or the other, because each of them soon ends all pipelines.
    let swaps = if seed.is_multiple_of(2) { 100 } else { 0 };
    scenario.styles.iter_mut().for_each(|style| style.swaps = swaps);
    protect(&mut scenario);
    let run = Run::new(scenario);
    run.book.borrow_mut().collects_misdelivered = true;
    let mut rows = Deck::new(rows.iter().map(|id| by_id(id)), seed);
    add_clients(&run, seed, "HEAD", |number, script| {
        // A request that must not be followed would be followed when weir mistakes a forged
        // response for its own.
        script.methods = SAFE;
        let forged = if number % 2 == 0 && swaps == 0 { FORGED } else { 0 };
        let mine: Vec<Row> = (0..forged).map(|_| rows.deal()).collect();
        script.burst(&mine, VICTIMS, None);
    });
    let mut harmed = Vec::new();
    run.finish_with(|book| {
        count(counts, book);
        harmed = book.misdelivered.iter().map(|one| (one.nonce.clone(), one.got.clone())).collect();
        Ok(())
    });
    harmed
}

/// With `pipeline echo`, no client gets a response that does not carry its request's identifier
/// back.
#[test]
fn e20_e21_with_echo_nobody_is_harmed() {
    let rows: Vec<&str> = FORGERS.into_iter().chain([LATER]).collect();
    let counts = Counts::default();
    each_seed(seeds_of(WORLDS), |seed| {
        let harmed = forge(seed, "forgers, echo", &counts, &rows, |scenario| {
            scenario.styles.iter_mut().for_each(|style| style.echo = true);
            let plan = Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet");
            plan.upstreams[0].echo = Some(ECHO_FIELD.to_owned());
        });
        assert_eq!(harmed, [], "seed {seed}");
    });
    settle("forgers, echo", WORLDS, counts, rows.into_iter().chain([SWAPPED]), [].into_iter());
}

/// With `share="client"`, a client that asks a forger harms no other client: the damage is limited
/// to a connection that is the asker's until it is empty.
#[test]
fn e20_e21_with_share_client_only_the_asker_is_harmed() {
    let counts = Counts::default();
    each_seed(seeds_of(WORLDS), |seed| {
        let harmed = forge(seed, "forgers, share client", &counts, &FORGERS, |scenario| {
            let plan = Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet");
            plan.upstreams[0].share = Share::Client;
        });
        // Every second client asks forgers.
        let other = |(nonce, got): &&(String, String)| {
            let own = nonce[..4] == got[..got.len().min(4)];
            let asks = usize::from_str_radix(&nonce[..4], 16).is_ok_and(|number| number % 2 == 0);
            !(own || asks && got == "SURPLUS")
        };
        assert_eq!(harmed.iter().find(other), None, "seed {seed}");
    });
    settle(
        "forgers, share client",
        WORLDS,
        counts,
        FORGERS.into_iter().chain([SWAPPED]),
        [].into_iter(),
    );
}

/// Without either, one forged response in a running pipeline shifts the responses of its
/// connection. The sync point ends that within about a second, finds the surplus response, and the
/// server is not pipelined again.
#[test]
fn a_forged_answer_harms_until_the_sync_point_and_is_detected() {
    let harmed: usize = seeds_of(10).into_iter().map(shift).sum();
    assert!(harmed > 0, "the forged answer went to nobody: this proves nothing");
}

/// The latest time of the sync point after the forged response: [`SYNC_US`] of weir-proxy, and the
/// time that a full connection takes to run empty.
const SHIFT_US_MAX: u64 = 1_500_000;

fn shift(seed: u64) -> usize {
    let mut scenario = scenario("shift", seed, 1);
    scenario.workers = 1;
    scenario.styles[0].delay_us_max = 500;
    let run = Run::new(scenario);
    run.book.borrow_mut().collects_misdelivered = true;
    let row = by_id("e1_second_answer");
    add_clients(&run, seed, "HEAD", |number, script| {
        // Enough to keep the connections busy for seconds.
        for at in 0..60 {
            let trigger = (number == 5 && at == 10).then_some(row);
            let bytes = script.add("GET", trigger);
            let time_us = script.rng.below(100_000);
            script.acts.extend([Act::Send(bytes), Act::Wait(time_us)]);
        }
    });
    let forged = || run.book.borrow().played.contains_key(row.id);
    assert!(run.pass(100 * BURST_US, forged), "seed {seed}: nothing was forged");
    run.pass(SHIFT_US_MAX, || false);
    let so_far = run.book.borrow().misdelivered.len();
    let detected = run.count(|counters| counters.surplus.get() + counters.demotions.get());
    if detected == 0 {
        run.fail("the answer too many was not detected");
    }
    run.book.borrow_mut().depth_max = 0;
    run.finish_with(|book| match (book.misdelivered.len() - so_far, book.depth_max) {
        (0, 0 | 1) => Ok(()),
        (late, depth) => Err(format!(
            "{late} answers went wrong after the sync point, then {depth} requests deep"
        )),
    });
    so_far
}
