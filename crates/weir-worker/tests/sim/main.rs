//! Whole workers on a simulated network, against random clients and servers: checks weir's promises
//! in every run.
//!
//! Everything in a run follows from its seed: configuration, network, faults, clients, servers, the
//! order of events. After each run: every request got exactly one response, its own and in order,
//! or an outcome that the faults of the run excuse. Requests that may not be repeated reached
//! servers at most once; bodies arrived whole; every byte that left was judged. Nothing is held
//! once the clients have gone.
//!
//! `WEIR_SIM_SEEDS=N` runs N seeds where 100 are usual and in proportion elsewhere, from
//! `WEIR_SIM_FIRST` on if that is set (`fresh`: from a seed that is new each time).
//! `WEIR_SIM_SEED=x` runs only that seed, and `WEIR_SIM_TRACE=1` prints the events before a
//! failure.

// A test binary exports nothing that could be reached from outside.
#![allow(unreachable_pub)]

mod book;
mod bounds;
mod cached;
mod client;
mod crowds;
mod dials;
mod direct;
mod drivers;
mod floods;
mod forward;
mod hostile;
mod http2;
mod joins;
mod leavers;
mod limits;
mod node;
mod operator;
mod outage;
mod placing;
mod prompt;
mod relay;
mod run;
mod scenario;
mod sealed;
mod server;
mod storm;
mod streams;
mod tcp;
mod through;
mod tunnel;
mod watch;

use std::cell::Cell;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use run::{Run, Summary};
use scenario::{Kind, Scenario};

/// Runs of each test by default.
const SEEDS: u64 = 100;

/// Returns the first of a range of seeds that are new each time. It prints it once, because a
/// failure may be hard to reproduce without it.
fn fresh() -> u64 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    *FIRST.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let first = 1_000_000 + now.as_micros() as u64 % 1_000_000_000;
        // Bypasses the capture of test output.
        let _ = writeln!(std::io::stderr(), "simulation: fresh seeds from {first} on");
        first
    })
}

/// Returns the seeds to run where `usual` ones are the default: the same each time, so that a test
/// that passed passes again.
fn seeds_of(usual: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match (number("WEIR_SIM_SEED"), number("WEIR_SIM_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => {
            let is_fresh = std::env::var("WEIR_SIM_FIRST").is_ok_and(|first| first == "fresh");
            let first =
                if is_fresh { fresh() } else { number("WEIR_SIM_FIRST").unwrap_or_default() };
            (first..first + (count * usual).div_ceil(SEEDS)).collect()
        }
        (None, None) => (0..usual).collect(),
    }
}

fn seeds() -> Vec<u64> {
    seeds_of(SEEDS)
}

fn run(seed: u64, workers: u16) -> Summary {
    Run::new(Scenario::new(seed, workers)).finish()
}

/// Runs all seeds, so that one look shows the number of failures; the messages are those of the
/// failures. `WEIR_SIM_STOP` stops at the first failure.
fn each_seed(seeds: impl IntoIterator<Item = u64>, run: impl Fn(u64)) {
    let most = if std::env::var_os("WEIR_SIM_STOP").is_some() { 1 } else { usize::MAX };
    let fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err();
    let failed: Vec<u64> = seeds.into_iter().filter(fails).take(most).collect();
    assert!(failed.is_empty(), "failed with seeds {failed:?}");
}

#[test]
fn one_worker_keeps_its_promises() {
    each_seed(seeds(), |seed| {
        run(seed, 1);
    });
}

#[test]
fn two_workers_keep_their_promises() {
    each_seed(seeds(), |seed| {
        run(seed, 2);
    });
}

/// Servers are killed, frozen and replaced while one remains: requests that may be repeated are
/// answered. The rest have a definite outcome and reached an application at most once.
#[test]
fn while_a_server_is_left_clients_notice_no_outage() {
    for workers in [1, 2, 3] {
        each_seed(seeds_of(50), |seed| {
            Run::new(Scenario::of(Kind::Outages, seed, workers)).finish();
        });
    }
}

/// docs/hostile.md K3. A bug in weir, wherever it strikes, costs the clients and connections of one
/// worker and nothing else: no response is wrong, nothing is sent twice, the pool is whole again,
/// and new clients are served.
#[test]
fn k3_a_panic_costs_one_worker_its_connections() {
    for workers in [1, 2, 3] {
        let sums = Cell::new((0, 0));
        each_seed(seeds_of(50), |seed| {
            let run = Run::new(Scenario::of(Kind::Panicking, seed, workers));
            run.panic(1 + (seed % 6) as u32, 300);
            let summary = run.finish();
            let (answered, rebirths) = sums.get();
            sums.set((answered + summary.answered as u64, rebirths + summary.rebirths));
        });
        let (answered, rebirths) = sums.get();
        // A single replayed world may have too few.
        let enough = seeds_of(50).len() == 1 || rebirths > 0 && answered > rebirths;
        assert!(enough, "{workers} workers: {answered} answered, {rebirths} rebirths");
    }
}

/// A panic that comes back whatever is tried ends the worker: a service manager may know what to do
/// then.
#[test]
fn k3_panics_without_end_end_the_worker() {
    let mut scenario = Scenario::of(Kind::Panicking, 1, 1);
    let upstream =
        &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
    // Without kept connections each life would have to wait for a client before it panics.
    upstream.servers.iter_mut().for_each(|server| server.connections_min = server.connections);
    let run = Run::new(scenario);
    run.panic(u32::MAX, 1);
    let outcome = catch_unwind(AssertUnwindSafe(|| run.finish()));
    let panic = outcome.err().expect("the worker goes on for ever");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&node::FAULT));
}

/// The checks of connections that move to another worker are worth something only if they do move.
#[test]
fn connections_move() {
    let runs: Vec<Summary> = (0..40).map(|seed| run(seed, 2)).collect();
    let (moved, runs) = (
        runs.iter().map(|run| run.moved).sum::<u64>(),
        runs.iter().filter(|run| run.moved > 0).count(),
    );
    assert!(moved > 100 && runs > 10, "{moved} connections in {runs} runs");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..4 {
        assert_eq!(run(seed, 2).trace_hash, run(seed, 2).trace_hash, "seed {seed}");
    }
}

/// The promises are worth something only if most requests are answered and pipelining really
/// happens.
#[test]
fn runs_are_not_empty() {
    let runs: Vec<Summary> = (0..24).map(|seed| run(seed, 1)).collect();
    let sum = |count: fn(&Summary) -> usize| runs.iter().map(count).sum::<usize>();
    let (answered, refused, cut) =
        (sum(|run| run.answered), sum(|run| run.refused), sum(|run| run.cut));
    assert!(answered > 4 * (refused + cut), "{answered} answered, {refused} refused, {cut} cut");
    assert!(refused > 0 && cut > 0, "{refused} refused, {cut} cut");
    assert!(runs.iter().any(|run| run.depth_max > 4), "nothing was pipelined");
}

/// The checks of health, sessions and backups are worth something only where they have an effect.
#[test]
fn dials_matter() {
    let runs: Vec<Summary> = (0..120).map(|seed| run(seed, 1)).collect();
    let sum = |count: fn(&Summary) -> u64| runs.iter().map(count).sum::<u64>();
    let (suspensions, trials, probes) =
        (sum(|run| run.suspensions), sum(|run| run.trials), sum(|run| run.probes));
    assert!(
        suspensions > 5 && trials > 2 && probes > 20,
        "{suspensions} suspensions, {trials} trials, {probes} probes"
    );
    let (bound, backed_up) = (sum(|run| run.bound as u64), sum(|run| run.backed_up));
    assert!(bound > 100 && backed_up > 10, "{bound} requests of sessions, {backed_up} at backups");
}
