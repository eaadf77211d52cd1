//! Worlds whose connections speak TLS, with a toy cipher: handshakes in pieces, ends with and
//! without close_notify, alerts, and failed handshakes, beside all faults of other worlds.

use std::cell::Cell;

use super::run::Run;
use super::scenario::{Kind, Scenario, Sealed};
use super::{each_seed, seeds_of};

/// Clients and servers send the same in these worlds as in the others, so that all checks of those
/// apply.
#[test]
fn whoever_speaks_tls_keeps_its_answers() {
    for workers in [1, 2] {
        each_seed(seeds_of(12), |seed| {
            let sealed = Sealed { clients: seed % 3 != 1, servers: seed % 3 != 0 };
            Run::new(Scenario::new(seed, workers).with_tls(sealed).with_http2()).finish();
        });
    }
}

/// Handshakes that fail in each way, and connections that break in the middle of records: no client
/// gets a wrong response, or takes a part of a response for a whole one.
#[test]
fn what_breaks_never_looks_whole() {
    let sums = Cell::new((0, 0, 0));
    each_seed(seeds_of(16), |seed| {
        let sealed = Sealed { clients: true, servers: seed % 2 == 0 };
        let mut scenario = Scenario::of(Kind::Rough, seed, 1 + (seed % 2) as u16).with_tls(sealed);
        if seed % 4 < 2 {
            scenario = scenario.with_http2();
        }
        scenario.mischief = 250;
        let run = Run::new(scenario);
        let (completed, refused, broken) = sums.get();
        let (run_completed, run_refused, run_broken) = run.finish_counting(|counters| {
            let broken = counters.upstream_tls_failures.sum();
            (counters.tls_handshakes.get(), counters.tls_failures.sum(), broken)
        });
        sums.set((completed + run_completed, refused + run_refused, broken + run_broken));
    });
    let (completed, refused, broken) = sums.get();
    let enough = seeds_of(16).len() < 16 || completed > 30 && refused > 10 && broken > 10;
    assert!(enough, "{completed} handshakes, {refused} that failed, {broken} with servers");
}

/// docs/hostile.md K3, with handshakes in progress.
#[test]
fn a_panic_costs_sealed_connections_of_one_worker() {
    each_seed(seeds_of(8), |seed| {
        let sealed = Sealed { clients: true, servers: true };
        let run = Run::new(
            Scenario::of(Kind::Panicking, seed, 1 + (seed % 3) as u16)
                .with_tls(sealed)
                .with_http2(),
        );
        run.panic(1 + (seed % 6) as u32, 300);
        run.finish();
    });
}
