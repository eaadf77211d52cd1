//! Proves: fresh connections are in force when kept ones are measurably worse and only then, and no
//! longer when they are good again or fresh ones fail; probes are as rare as promised; percentiles
//! are near the exact ones. How: examples with made-up times, and properties over random ones.

use proptest::prelude::*;

use super::*;

const SECOND_US: u64 = 1_000_000;

/// Requests of a server, one each `step_us`, with the given time for each kind. Returns how many
/// used each way.
fn run(
    all: &mut Comparison,
    now_us: &mut u64,
    requests: u32,
    step_us: u64,
    time_us: impl Fn(Kind, u32) -> u64,
) -> [u32; 2] {
    let mut went = [0; 2];
    for n in 0..requests {
        *now_us += step_us;
        let kind = all.next(*now_us, true);
        went[kind as usize] += 1;
        all.record(kind, *now_us, time_us(kind, n));
    }
    went
}

fn even(_: Kind, _: u32) -> u64 {
    2_000
}

/// One in thirty or so on a kept connection waits for a worker that is busy; none on a fresh one
/// does.
fn tied(kind: Kind, n: u32) -> u64 {
    let is_busy = n.wrapping_mul(2_654_435_761) >> 27 == 0;
    if kind == Kind::Kept && is_busy { 25_000 } else { 500 }
}

#[test]
fn nothing_changes_while_both_are_alike() {
    let (mut all, mut now_us) = (Comparison::new(0), 0);
    run(&mut all, &mut now_us, 1_000, 1_000, even);
    let [_, fresh] = run(&mut all, &mut now_us, 100_000, 1_000, even);
    assert!(!all.is_in_force());
    assert!((1_000..=1_101).contains(&fresh), "{fresh} of 100,000");
}

#[test]
fn a_slow_trickle_is_probed_each_second() {
    let (mut all, mut now_us) = (Comparison::new(0), 0);
    run(&mut all, &mut now_us, 1_000, 1_000, even);
    let [_, fresh] = run(&mut all, &mut now_us, 1_000, SECOND_US / 10, even);
    assert!((90..=101).contains(&fresh), "{fresh} in 100 s");
}

/// Where kept connections are known to be worse, few requests try them.
#[test]
fn what_is_worse_is_probed_less() {
    let (mut all, mut now_us) = (Comparison::new(0), 0);
    run(&mut all, &mut now_us, 2_000, 1_000, tied);
    let [kept, _] =
        run(&mut all, &mut now_us, 1_000, SECOND_US / 10, |kind, _| [25_000, 500][kind as usize]);
    assert!(all.is_in_force() && (18..=21).contains(&kept), "{kept} in 100 s");
    let [kept, _] =
        run(&mut all, &mut now_us, 100, SECOND_US, |kind, _| [25_000, 500][kind as usize]);
    assert!(all.is_in_force() && (9..=10).contains(&kept), "{kept} of 100");
}

#[test]
fn there_and_back() {
    let (mut all, mut now_us) = (Comparison::new(0), 0);
    run(&mut all, &mut now_us, 2_000, 1_000, tied);
    assert!(all.is_in_force());
    let [kept, fresh] = all.p99s_us().map(Option::unwrap);
    assert!((25_000..28_200).contains(&kept) && (500..570).contains(&fresh), "{kept} {fresh}");
    let [kept, _] = run(&mut all, &mut now_us, 20_000, 1_000, tied);
    assert!(all.is_in_force() && (49..=52).contains(&kept), "kept ones go on to be probed: {kept}");
    run(&mut all, &mut now_us, 400_000, 1_000, even);
    assert!(!all.is_in_force(), "{:?}", all.p99s_us());
}

/// 3 times as long is not worse, 0.9 ms longer neither.
#[test]
fn a_little_worse_is_no_reason() {
    for (kept_us, fresh_us, worse) in
        [(30_000, 10_000, false), (1_000, 100, false), (60_000, 10_000, true)]
    {
        let (mut all, mut now_us) = (Comparison::new(0), 0);
        run(&mut all, &mut now_us, 10_000, 1_000, |kind, _| {
            if kind == Kind::Kept { kept_us } else { fresh_us }
        });
        assert_eq!(all.is_in_force(), worse, "{kept_us} {fresh_us}");
    }
}

#[test]
fn eight_failures_in_a_row_end_it() {
    let (mut all, mut now_us) = (Comparison::new(0), 0);
    run(&mut all, &mut now_us, 2_000, 1_000, tied);
    for n in 0..FAILURES_MAX {
        assert!(all.is_in_force(), "after {n}");
        all.on_failure(now_us);
    }
    assert!(!all.is_in_force());
    let [_, fresh] = run(&mut all, &mut now_us, 9_000, 1_000, tied);
    assert_eq!(fresh, 0, "none for a while");
    run(&mut all, &mut now_us, 10_000, 1_000, tied);
    assert!(all.is_in_force(), "then they have another chance");
    (0..FAILURES_MAX - 1).for_each(|_| all.on_failure(now_us));
    all.record(Kind::Fresh, now_us, 500);
    all.on_failure(now_us);
    assert!(all.is_in_force(), "not in a row");
}

/// One slow response among the few on fresh connections is chance.
#[test]
fn one_slow_fresh_answer_is_chance() {
    let (mut all, mut now_us) = (Comparison::new(0), 0);
    all.record(Kind::Fresh, 0, 200_000);
    run(&mut all, &mut now_us, 2_000, 1_000, tied);
    assert!(all.is_in_force(), "{:?}", all.p99s_us());
}

/// A request that may not be a probe takes the way of the others, and counts for none.
#[test]
fn others_are_no_probes() {
    let mut all = Comparison::new(0);
    assert!((0..1_000).all(|n| all.next(n * SECOND_US, false) == Kind::Kept));
    let (mut all, mut now_us) = (Comparison::new(0), 0);
    run(&mut all, &mut now_us, 2_000, 1_000, tied);
    let last_us = now_us + HALF_US_MAX - SECOND_US;
    assert!(
        (now_us..=last_us)
            .step_by(SECOND_US as usize)
            .all(|at_us| all.next(at_us, false) == Kind::Fresh)
    );
    // Nothing was measured for this long: nothing is known.
    assert_eq!((all.next(last_us + 2 * SECOND_US, false), all.is_in_force()), (Kind::Kept, false));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Not below the exact percentile, and above by an eighth at most.
    #[test]
    fn percentiles_are_near(times in prop::collection::vec(0u64..40_000_000, 8..2_000)) {
        let mut recent = Recent::new(0);
        times.iter().for_each(|time_us| recent.record(0, *time_us, false));
        let mut sorted = times.clone();
        sorted.sort_unstable();
        let exact = sorted[times.len() - 1 - times.len() / 100];
        let found = recent.p99_us(false).unwrap();
        prop_assert!(found >= exact && found <= exact + exact / 8, "{} for {}", found, exact);
    }

    /// Whatever comes, the sum remains correct, nothing overflows, and it comes into force exactly
    /// when `record` says so.
    #[test]
    fn any_history(
        steps in prop::collection::vec((0u8..4, 0u64..100_000_000, 0u64..3_000_000), 1..400),
    ) {
        let (mut all, mut now_us) = (Comparison::new(0), 0);
        for (what, time_us, step_us) in steps {
            now_us += step_us;
            let was = all.is_in_force();
            match what {
                0 => all.on_failure(now_us),
                1 => drop(all.next(now_us, true)),
                kind => {
                    let begun = all.record(
                        if kind == 2 { Kind::Kept } else { Kind::Fresh },
                        now_us,
                        time_us,
                    );
                    prop_assert_eq!(begun, !was && all.is_in_force());
                    // It is lighter now, which may have taken away its slowest.
                    let fresh_us = all.fresh.p99_us(true);
                    prop_assert!(!begun || fresh_us.is_some());
                }
            }
            for recent in [&all.kept, &all.fresh] {
                prop_assert_eq!(recent.counts.iter().sum::<u32>(), recent.total);
            }
        }
    }
}
