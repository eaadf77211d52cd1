//! Proves: depth is earned as docs/connections.md#trust-in-a-server says and lost on doubt. How:
//! every event in every state, the doubling step by step, and a property against a model that only
//! remembers the list of events.

use proptest::prelude::*;

use super::*;

const MINUTE_US: u64 = 60 * 1_000_000;

/// Clean answers, alternating between two connections.
fn earn(trust: &mut Trust, now_us: u64, answers: u32) {
    for answer in 0..answers {
        trust.on_clean_answer(now_us, answer % 2);
    }
}

fn trusted(now_us: u64) -> Trust {
    let mut trust = Trust::new(32);
    earn(&mut trust, now_us, 64);
    trust
}

#[test]
fn e0_depth_is_earned_by_64_answers_over_two_connections() {
    let mut trust = Trust::new(32);
    for answer in 0..100 {
        trust.on_clean_answer(0, 7);
        assert!(!trust.may_pipeline(), "{answer} answers of one connection");
    }
    trust.on_clean_answer(0, 8);
    assert!(trust.may_pipeline());

    let mut trust = Trust::new(2);
    earn(&mut trust, 0, 63);
    assert_eq!((trust.may_pipeline(), trust.state(0)), (false, TrustState::Earning { clean: 63 }));
    trust.on_clean_answer(0, 0);
    assert_eq!((trust.may_pipeline(), trust.state(0)), (true, TrustState::Trusted));
}

#[test]
fn a_server_with_one_connection_earns_on_it() {
    let mut trust = Trust::new(1);
    for _ in 0..64 {
        assert!(!trust.may_pipeline());
        trust.on_clean_answer(0, 3);
    }
    assert!(trust.may_pipeline());
}

#[test]
fn the_kinds_of_doubt_that_demote() {
    let demoting: Vec<_> =
        Doubt::ALL.iter().filter(|doubt| doubt.demotes()).map(|doubt| doubt.word()).collect();
    let expected = [
        "garbage",
        "answer-to-nothing",
        "forbidden-body",
        "both-framings",
        "invalid-length",
        "unknown-coding",
        "unasked-upgrade",
        "interim-flood",
        "echo-mismatch",
        "cuts-short",
        "reset-within",
        "fails-rehearsal",
        "falls-silent",
        "dies-shared",
        "misframing",
    ];
    assert_eq!(demoting, expected);
    for (at, doubt) in Doubt::ALL.into_iter().enumerate() {
        assert_eq!(doubt as usize, at);
        let mut trust = trusted(0);
        assert_eq!(trust.on_doubt(0, doubt), doubt.demotes());
        assert_eq!(trust.may_pipeline(), !doubt.demotes(), "{}", doubt.word());
    }
}

#[test]
fn a_server_is_rehearsed_before_it_is_pipelined() {
    let due = || {
        let mut trust = Trust::new(2).rehearsed_first(true);
        assert!(!trust.wants_rehearsal(), "nothing is known of it");
        earn(&mut trust, 0, 64);
        trust
    };
    let mut trust = due();
    assert_eq!(
        (trust.wants_rehearsal(), trust.may_pipeline(), trust.state(0)),
        (true, false, TrustState::Clean)
    );
    trust.on_rehearsed(0);
    assert_eq!(
        (trust.wants_rehearsal(), trust.may_pipeline(), trust.state(0)),
        (false, true, TrustState::Trusted)
    );
    // Another program may be behind its address, and after a doubt everything must be shown again.
    trust.rehearse_again();
    assert_eq!(trust.state(0), TrustState::Clean);
    trust.on_rehearsed(0);
    trust.on_doubt(0, Doubt::Garbage);
    earn(&mut trust, MINUTE_US, 64);
    assert_eq!(trust.state(MINUTE_US), TrustState::Clean);
    // A server that needs no rehearsal is trusted as before.
    let mut plain = trusted(0);
    plain.rehearse_again();
    assert_eq!((plain.wants_rehearsal(), plain.may_pipeline()), (false, true));
}

/// Two failures are no chance; several workers that see the same one are one failure.
#[test]
fn who_fails_twice_is_not_rehearsed_again() {
    let mut trust = Trust::new(2).rehearsed_first(true);
    earn(&mut trust, 0, 64);
    assert!(trust.on_doubt(0, Doubt::FailsRehearsal));
    assert!((0..8).all(|_| !trust.on_doubt(1, Doubt::FailsRehearsal)));
    assert_eq!(
        (trust.penalty_for(2), trust.wants_rehearsal()),
        (Some(Doubt::FailsRehearsal), false)
    );
    earn(&mut trust, 2 * MINUTE_US, 64);
    assert!(trust.wants_rehearsal(), "it has another chance");
    assert!(trust.on_doubt(2 * MINUTE_US, Doubt::FailsRehearsal));
    assert_eq!(trust.penalty_for(u64::MAX), Some(Doubt::FailsRehearsal));
    earn(&mut trust, 1_000 * MINUTE_US, 1_000);
    assert_eq!(trust.state(1_000 * MINUTE_US), TrustState::Unfit);
    assert!(!trust.on_doubt(1_000 * MINUTE_US, Doubt::Garbage) && !trust.is_lost());
    trust.clear();
    earn(&mut trust, 1_000 * MINUTE_US, 64);
    assert_eq!(trust.state(1_000 * MINUTE_US), TrustState::Clean);
    trust.on_rehearsed(0);
    assert!(trust.may_pipeline());
}

/// Two crashes soon after requests began to share connections are a verdict, unless the server also
/// crashes without that.
#[test]
fn a_server_that_dies_of_company_is_not_pipelined_again() {
    // Crashes after `lives_us` of pipelining, five times, and between them without it where
    // `also_alone`.
    let crashes = |lives_us: u64, also_alone: bool| {
        let mut trust = Trust::new(2).rehearsed_first(true);
        let mut now_us = 0;
        let mut states = Vec::new();
        for _ in 0..5 {
            earn(&mut trust, now_us, 65);
            trust.on_rehearsed(now_us);
            now_us += lives_us;
            // As one crash is reported by several workers, in any order.
            for doubt in
                [Doubt::ResetWithin, Doubt::DiesShared, Doubt::ResetWithin, Doubt::DiesShared]
            {
                trust.on_doubt(now_us, doubt);
            }
            if also_alone {
                trust.on_crash_alone();
            }
            states.push(trust.state(now_us));
            now_us += PENALTY_MAX_US;
        }
        assert!(matches!(states[0], TrustState::Penalty { .. }));
        states.iter().filter(|state| **state == TrustState::Unfit).count()
    };
    assert_eq!(crashes(1, false), 4);
    assert_eq!(crashes(SOON_US, false), 4);
    assert_eq!(crashes(SOON_US + 1, false), 0);
    assert_eq!(crashes(1, true), 0);
}

/// Every event in every state.
#[test]
fn all_pairs_of_state_and_event() {
    type Make = fn() -> Trust;
    let states: [(&str, Make); 4] = [
        ("earning", || Trust::new(2)),
        ("trusted", || trusted(0)),
        ("penalty", || {
            let mut trust = trusted(0);
            trust.on_doubt(0, Doubt::Garbage);
            trust
        }),
        ("surplus", || {
            let mut trust = trusted(0);
            trust.on_surplus();
            trust
        }),
    ];
    type Act = fn(&mut Trust) -> bool;
    type Outcome = (&'static str, bool);
    let events: [(&str, Act, [Outcome; 4]); 6] = [
        (
            "clean",
            |trust| {
                trust.on_clean_answer(1, 0);
                false
            },
            [("earning", false), ("trusted", false), ("penalty", false), ("surplus", false)],
        ),
        (
            "demoting doubt",
            |trust| trust.on_doubt(1, Doubt::BothFramings),
            [("penalty", true), ("penalty", true), ("penalty", false), ("surplus", false)],
        ),
        (
            "mild doubt",
            |trust| trust.on_doubt(1, Doubt::NotPersistent),
            [("earning", false), ("trusted", false), ("penalty", false), ("surplus", false)],
        ),
        (
            "surplus",
            Trust::on_surplus,
            [("surplus", true), ("surplus", true), ("surplus", true), ("surplus", false)],
        ),
        (
            "clear",
            |trust| {
                trust.clear();
                false
            },
            [("earning", false); 4],
        ),
        (
            "64 clean after a minute",
            |trust| {
                earn(trust, MINUTE_US, 64);
                trust.may_pipeline()
            },
            [("trusted", true), ("trusted", true), ("trusted", true), ("surplus", false)],
        ),
    ];
    for (event, act, expected) in events {
        for ((state, make), expected) in states.iter().zip(expected) {
            let mut trust = make();
            assert_eq!(trust.state(1).word(), *state);
            let result = act(&mut trust);
            assert_eq!((trust.state(1).word(), result), expected, "{event} in {state}");
        }
    }
}

#[test]
fn penalties_double_to_an_hour_and_are_forgiven() {
    let mut trust = Trust::new(2);
    let mut now_us = 0;
    for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
        earn(&mut trust, now_us, 64);
        assert!(trust.may_pipeline(), "before {minutes}");
        assert!(trust.on_doubt(now_us, Doubt::Garbage));
        let until_us = now_us + minutes * MINUTE_US;
        assert_eq!(trust.state(now_us), TrustState::Penalty { until_us });
        earn(&mut trust, until_us - 1, 64);
        assert!(!trust.may_pipeline());
        assert_eq!(trust.state(until_us), TrustState::Earning { clean: 0 });
        now_us = until_us;
    }
    earn(&mut trust, now_us, 64);
    now_us += 8 * 60 * MINUTE_US;
    assert!(trust.on_doubt(now_us, Doubt::Garbage));
    assert_eq!(trust.state(now_us), TrustState::Penalty { until_us: now_us + MINUTE_US });
    assert!(trust.penalty_for(now_us).is_some() && trust.penalty_for(now_us + MINUTE_US).is_none());
}

/// The doubt shown beside a surplus is the one that led there, not an earlier penalty.
#[test]
fn a_surplus_knows_what_it_is_for() {
    type Act = fn(&mut Trust) -> bool;
    let acts: [(Act, Option<Doubt>); 2] = [
        (|trust| trust.on_doubt(1, Doubt::Misframing), Some(Doubt::Misframing)),
        (Trust::on_surplus, None),
    ];
    for (act, reason) in acts {
        let mut trust = trusted(0);
        assert!(trust.on_doubt(0, Doubt::Garbage));
        assert!(act(&mut trust));
        assert_eq!((trust.state(1), trust.penalty_for(1)), (TrustState::Surplus, reason));
        assert!(!trust.on_doubt(2, Doubt::Garbage));
        assert_eq!(trust.penalty_for(2), reason);
        trust.clear();
        assert_eq!(trust.penalty_for(3), None);
    }
}

#[test]
fn one_incident_on_many_connections_is_one_demotion() {
    let mut trust = trusted(0);
    let news = (0..32).filter(|at| trust.on_doubt(*at, Doubt::InvalidLength)).count();
    assert_eq!((news, trust.state(31)), (1, TrustState::Penalty { until_us: 31 + MINUTE_US }));
}

#[derive(Debug, Clone)]
enum Event {
    Wait(u64),
    Clean(u32),
    Burst(u32),
    Doubt(usize),
    Surplus,
    Clear,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..100 * MINUTE_US).prop_map(Event::Wait),
        4 => (0..3u32).prop_map(Event::Clean),
        6 => (1..80u32).prop_map(Event::Burst),
        3 => (0..Doubt::ALL.len()).prop_map(Event::Doubt),
        1 => Just(Event::Surplus),
        1 => Just(Event::Clear),
    ]
}

proptest! {
    /// Depth above 1 only with 64 clean answers over two connections since the last demotion, none
    /// of them within its first minute, and never after a surplus.
    #[test]
    fn never_pipelined_without_having_earned_it(events in prop::collection::vec(event(), 1..60)) {
        let mut trust = Trust::new(8);
        let mut now_us = 0;
        let mut clean: Vec<u32> = Vec::new();
        let mut demoted_us: Option<u64> = None;
        let mut surplus = false;
        for event in events {
            let mut answers = Vec::new();
            match event {
                Event::Wait(us) => now_us += us,
                Event::Clean(connection) => answers.push(connection),
                Event::Burst(count) => answers.extend((0..count).map(|at| at % 2)),
                Event::Doubt(at) if Doubt::ALL[at].demotes() => {
                    trust.on_doubt(now_us, Doubt::ALL[at]);
                    demoted_us = Some(now_us);
                    surplus |= Doubt::ALL[at].lasts();
                    clean.clear();
                }
                Event::Doubt(at) => prop_assert!(!trust.on_doubt(now_us, Doubt::ALL[at])),
                Event::Surplus => {
                    trust.on_surplus();
                    surplus = true;
                }
                Event::Clear => {
                    trust.clear();
                    (surplus, demoted_us) = (false, None);
                    clean.clear();
                }
            }
            for connection in answers {
                trust.on_clean_answer(now_us, connection);
                if demoted_us.is_none_or(|at| now_us >= at + PENALTY_MIN_US) {
                    clean.push(connection);
                }
            }
            if trust.may_pipeline() {
                prop_assert!(
                    !surplus && clean.len() >= 64 && clean.iter().any(|one| *one != clean[0])
                );
            }
        }
    }
}
