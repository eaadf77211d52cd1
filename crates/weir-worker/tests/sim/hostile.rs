//! The hostile servers of docs/hostile.md (rows E), each with victims' requests around it in random
//! order.
//!
//! One client sends the request for which the server plays its script; the others use the same
//! server and must get their own responses, whatever the script does. The network only delays whole
//! messages, because most scripts depend on bytes that arrive together.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use weir_check::upstreams::{Asker, Company, HostileUpstream, Outcome as Seen, catalogue};
use weir_io::sim::{Faults, Rng, Settings};
use weir_proxy::plan::PipelineMode;

use super::book::{Asked, Entry, Outcome};
use super::client::{Act, Client, Manners};
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, set_connections};
use super::server::{ECHO_FIELD, Style};
use super::{each_seed, seeds_of};

/// Runs of each row by default.
const RUNS: u64 = 2;

/// The number of the asking client; its nonce has 8 characters like all nonces.
const ASKER: usize = 0xaaaa;

#[test]
fn no_victim_of_a_hostile_server_is_harmed() {
    for row in catalogue() {
        if row.company == Company::Alone {
            continue;
        }
        seeds_of(RUNS).into_iter().for_each(|seed| play(row, seed));
    }
}

/// E20: HTTP alone can't show that two responses are swapped; with `pipeline echo` no client gets
/// another's response.
#[test]
fn with_echo_exchanged_answers_reach_nobody() {
    let exchanged = AtomicUsize::new(0);
    each_seed(0..40, |seed| {
        let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 2) as u16);
        scenario.name = "exchanged answers";
        scenario.settings = Settings::random(seed, Faults::harmless(seed));
        scenario.settings.window_bytes = 256 << 10;
        let style = Style { delay_us_max: 2_000, swaps: 100, echo: true, ..Style::honest() };
        scenario.styles = vec![style];
        scenario.clients = 6;
        scenario.manners = Manners { burst: 30, ..Manners::quiet(60) };
        let upstream =
            &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
        upstream.servers.truncate(1);
        set_connections(&mut upstream.servers[0], 1);
        upstream.pipeline = PipelineMode::Depth(16);
        upstream.echo = Some(ECHO_FIELD.to_owned());
        let summary = Run::new(scenario).finish_with(|book| {
            let wrong = |entry: &&Entry| {
                !matches!(entry.outcome, Outcome::Answered | Outcome::Refused(502))
            };
            match book.entries.values().find(wrong) {
                Some(entry) => Err(format!("{} got {:?}", entry.asked.nonce, entry.outcome)),
                None => Ok(()),
            }
        });
        assert!(
            summary.answered > summary.refused,
            "seed {seed}: {} of {}",
            summary.refused,
            summary.answered
        );
        exchanged.fetch_add(usize::from(summary.refused > 0), Relaxed);
    });
    // All are answered where the first two swapped requests are repeated for another reason.
    let exchanged = exchanged.into_inner();
    assert!(exchanged > 20, "answers were exchanged with {exchanged} seeds only");
}

fn play(row: &HostileUpstream, seed: u64) {
    let rng = &mut Rng::new(seed ^ 0xe0e0);
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 2) as u16);
    scenario.name = row.id;
    scenario.settings =
        Settings::random(seed, Faults { jitter_us: rng.below(500), ..Faults::none() });
    scenario.settings.window_bytes = 256 << 10;
    scenario.styles =
        vec![Style { delay_us_max: *rng.pick(&[0, 1_000, 5_000]), ..Style::honest() }];
    scenario.clients = 8;
    scenario.manners = Manners { burst: *rng.pick(&[1, 4, 100]), ..Manners::quiet(25) };
    let plan = Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet");
    plan.upstreams[0].servers.truncate(1);
    plan.upstreams[0].echo = None;
    if row.company == Company::Queued {
        plan.upstreams[0].pipeline = PipelineMode::Off;
    }
    // Requests that wait on an unresponsive server must be able to move elsewhere.
    let connections = if row.letter == "E10" { 8 } else { 1 + rng.below(3) as u32 };
    set_connections(&mut plan.upstreams[0].servers[0], connections);
    let run = Run::new(scenario);
    let nonce = format!("{ASKER:04x}{:04x}", 0);
    let start_us = rng.between(1_000, 100_000);
    run.add(|book| asker(row, &nonce, start_us, book));
    run.finish_with(|book| {
        let entry = &book.entries[&nonce];
        let seen = Seen { nonce: &nonce, replies: &entry.replies, end: entry.end.as_ref() };
        row.asker.check(seen)?;
        let excused = |outcome: &Outcome| row.letter == "E10" && *outcome == Outcome::Refused(504);
        let harmed = book.entries.values().find(|entry| {
            entry.asked.trigger.is_none()
                && entry.outcome != Outcome::Answered
                && !excused(&entry.outcome)
        });
        match harmed {
            Some(entry) => Err(format!("the victim {} got {:?}", entry.asked.nonce, entry.outcome)),
            None => Ok(()),
        }
    });
}

fn asker(
    row: &HostileUpstream,
    nonce: &str,
    start_us: u64,
    book: &super::book::SharedBook,
) -> Client {
    let trigger = &row.trigger;
    let asked = Asked {
        nonce: nonce.to_owned(),
        method: trigger.method,
        conditional: false,
        body: trigger.body.clone(),
        trigger: Some(row.id.to_owned()),
    };
    let mut acts = VecDeque::from([Act::Ask(0), Act::Send(trigger.bytes("weir.test", nonce))]);
    if row.asker == Asker::Leaves {
        acts.push_back(Act::LeaveAtFirstBytes);
        acts.push_back(Act::Reset);
    }
    Client::scripted(listen_address(), start_us, book, acts, vec![asked], false)
}
