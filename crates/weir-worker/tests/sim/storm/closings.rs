//! docs/hostile.md E18 and E27: servers that close after some number of responses, in the middle of
//! pipelines.
//!
//! All servers earn trust in peace. From the burst on, one server, or each, ends all its
//! connections as the row says.

use weir_check::upstreams::{Closing, Ending, closings};
use weir_io::sim::Rng;

use super::super::run::Run;
use super::super::{each_seed, seeds_of};
use super::{BURST_US, Counts, add_clients, count, judge, scenario, settle};

/// Worlds where a hundred seeds are usual.
const WORLDS: u64 = 24;
/// This many responses per connection are many: more worlds are needed to see as many ends.
const MANY_ANSWERS: usize = 50;

/// Rows to draw from: each ends about as many connections as the others.
fn tickets() -> Vec<Closing> {
    let times = |closing: &Closing| if closing.answers > MANY_ANSWERS { 3 } else { 1 };
    closings()
        .into_iter()
        .flat_map(|closing| std::iter::repeat_n(closing, times(&closing)))
        .collect()
}

/// Ordinary requests of each client: enough for several ends of each connection.
fn victims(closing: &Closing) -> usize {
    match closing.answers {
        0..5 => 8,
        5..MANY_ANSWERS => 20,
        _ => 60,
    }
}

fn closing_world(seed: u64, counts: &Counts) {
    let mut scenario = scenario("closings", seed, 2);
    let tickets = tickets();
    let closing = tickets[seed as usize % tickets.len()];
    let rng = &mut Rng::new(seed ^ 0xc105);
    let closers = if rng.chance(500) { 1 } else { 2 };
    for style in &mut scenario.styles[..closers] {
        (style.closing, style.closes_from_us) = (Some(closing), BURST_US);
    }
    let run = Run::new(scenario);
    let earn_with = *rng.pick(&["GET", "HEAD"]);
    add_clients(&run, seed, earn_with, |_, script| script.burst(&[], victims(&closing), None));
    run.finish_with(|book| {
        count(counts, book);
        // A reset may overtake the end of a response that its client has begun to read.
        judge(book, !matches!(closing.how, Ending::Fin | Ending::Announced), 0)
    });
}

#[test]
fn e18_e27_servers_that_close_among_pipelines_harm_nobody() {
    let counts = Counts::default();
    each_seed(seeds_of(WORLDS), |seed| closing_world(seed, &counts));
    settle("closings", WORLDS, counts, closings().iter().map(|closing| closing.id), [].into_iter());
}
