//! Proves: addresses appear with results and disappear only after results without them for `hold`,
//! whatever fails in between; a name is looked up neither too often nor too seldom; trouble is
//! reported once. How: random histories beside a model, and examples.

use proptest::prelude::*;

use super::*;

const SECOND_US: u64 = 1_000_000;

fn address(last: u8) -> SocketAddr {
    ([10, 0, 0, last], 80).into()
}

fn answer(last: &[u8], ttl_s: u64) -> Result<Answer, Trouble> {
    let places = last.iter().map(|last| address(*last).into()).collect();
    Ok(Answer { places, ttl: Duration::from_secs(ttl_s), is_whole: true })
}

fn ledger(now: Instant) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.want(&["a:80".to_owned()].into(), now);
    ledger
}

fn known(ledger: &Ledger) -> Vec<SocketAddr> {
    let places = ledger.known().remove("a:80").unwrap_or_default();
    places.into_iter().map(|place| place.address).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Answer(Vec<u8>, u64, bool),
    Nothing(Option<u64>),
    Failed,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (prop::collection::vec(0u8..6, 1..4), 0u64..400, any::<bool>())
            .prop_map(|(a, ttl, whole)| Step::Answer(a, ttl, whole)),
        1 => prop::option::of(0u64..100).prop_map(Step::Nothing),
        1 => Just(Step::Failed),
    ]
}

proptest! {
    #[test]
    fn addresses_come_and_go_as_they_should(
        steps in prop::collection::vec((step(), 0u64..60), 1..40),
        hold_s in 0u64..50,
    ) {
        let start = Instant::now();
        let mut now = start;
        let mut ledger = ledger(now);
        ledger.plan.hold_us = hold_s * SECOND_US;
        // By address: since when complete results lack it.
        let mut judge: BTreeMap<SocketAddr, Option<Instant>> = BTreeMap::new();
        let hold = Duration::from_secs(hold_s);
        for (step, wait_s) in steps {
            // A lookup begins when it is due, not before.
            let due = ledger.next().expect("something is due");
            now = now.max(due);
            ledger.expire(now);
            judge.retain(|_, since| since.is_none_or(|since| now < since + hold));
            prop_assert_eq!(known(&ledger), judge.keys().copied().collect::<Vec<_>>());
            if ledger.take_due(now, 9).is_empty() {
                continue;
            }
            prop_assert!(ledger.take_due(now, 9).is_empty(), "it is asked already");
            now += Duration::from_secs(wait_s);
            ledger.expire(now);
            let (last, is_whole, wanted) = match step {
                Step::Answer(last, ttl_s, is_whole) => {
                    let told = answer(&last, ttl_s).map(|answer| Answer { is_whole, ..answer });
                    ledger.learn("a:80", told, now);
                    let ttl = Duration::from_secs(ttl_s.clamp(1, if is_whole { 300 } else { 30 }));
                    (last, is_whole, ttl..=ttl)
                }
                Step::Nothing(ttl_s) => {
                    let ttl = ttl_s.map(Duration::from_secs);
                    ledger.learn("a:80", Err(Trouble::Nothing("nothing", ttl)), now);
                    let wanted = Duration::from_secs(ttl_s.unwrap_or(1).clamp(1, 5));
                    (Vec::new(), true, wanted..=wanted)
                }
                Step::Failed => {
                    ledger.learn("a:80", Err(Trouble::Failed("failed")), now);
                    (Vec::new(), false, RETRY_MIN..=RETRY_MAX)
                }
            };
            if is_whole {
                judge.values_mut().for_each(|since| _ = since.get_or_insert(now));
            }
            judge.extend(last.iter().map(|last| (address(*last), None)));
            judge.retain(|_, since| since.is_none_or(|since| now < since + hold));
            prop_assert_eq!(known(&ledger), judge.keys().copied().collect::<Vec<_>>());
            prop_assert!(wanted.contains(&(ledger.names["a:80"].due - now)));
        }
    }
}

#[test]
fn trouble_is_told_once_and_so_is_its_end() {
    let now = Instant::now();
    let mut ledger = ledger(now);
    let failed = || Err(Trouble::Failed("no name server responded in time"));
    let line = ledger.learn("a:80", failed(), now).expect("told");
    assert_eq!(
        line.to_string(),
        "name-failed: cannot resolve a:80: no name server responded in time; it has no server \
            until the lookup succeeds name=a:80"
    );
    assert_eq!(ledger.learn("a:80", failed(), now), None);
    assert_eq!(ledger.shown()[0].problem, Some("no name server responded in time"));
    assert_eq!(
        ledger.learn("a:80", answer(&[1], 1), now),
        Some(Event::NameResolved.says("resolved a:80 again").with("name", "a:80"))
    );
    assert_eq!(ledger.learn("a:80", answer(&[1], 1), now), None);
    let nothing = Err(Trouble::Nothing("there is no such name", None));
    let line = ledger.learn("a:80", nothing, now).expect("told");
    assert_eq!(
        line.to_string(),
        "name-failed: cannot resolve a:80: there is no such name; known addresses remain in use \
            for 30 s name=a:80"
    );
    assert_eq!(ledger.learn("b:80", failed(), now), None, "nobody wants it");
}

#[test]
fn pauses_double_up_to_a_bound() {
    let now = Instant::now();
    let mut ledger = ledger(now);
    let pauses = [1, 2, 4, 8, 16, 30, 30, 30].map(Duration::from_secs);
    for pause in pauses {
        ledger.learn("a:80", Err(Trouble::Failed("x")), now);
        assert_eq!(ledger.next(), Some(now + pause));
    }
    ledger.learn("a:80", answer(&[1], 7), now);
    assert_eq!(ledger.next(), Some(now + Duration::from_secs(7)));
}

/// A name that is scaled to zero, and back after a while: it is in use as soon as a name with
/// addresses would be.
#[test]
fn that_there_is_nothing_is_no_reason_to_wait() {
    let mut now = Instant::now();
    let mut ledger = ledger(now);
    for _ in 0..3 {
        ledger.learn("a:80", Err(Trouble::Failed("x")), now);
    }
    for (ttl_s, pause_s) in [(None, 1), (Some(0), 1), (Some(3), 3), (Some(3600), 5), (None, 1)] {
        for _ in 0..20 {
            ledger.learn("a:80", Err(Trouble::Nothing("x", ttl_s.map(Duration::from_secs))), now);
            assert_eq!(ledger.next(), Some(now + Duration::from_secs(pause_s)), "{ttl_s:?}");
            now += Duration::from_secs(pause_s);
        }
    }
    // Later failures of name servers are retried at once, as the first time.
    ledger.learn("a:80", Err(Trouble::Failed("x")), now);
    assert_eq!(ledger.next(), Some(now + RETRY_MIN));
    // No name is looked up more often than the operator wants.
    ledger.plan.ttl_min_us = 60 * SECOND_US;
    ledger.learn("a:80", Err(Trouble::Nothing("x", None)), now);
    assert_eq!(ledger.next(), Some(now + Duration::from_secs(60)));
}

#[test]
fn who_is_wanted_keeps_what_is_known_and_is_looked_up_when_it_is_due() {
    let now = Instant::now();
    let mut ledger = ledger(now);
    assert!(!ledger.is_settled());
    ledger.take_due(now, 1);
    ledger.learn("a:80", answer(&[1, 2], 100), now);
    assert!(ledger.is_settled() && ledger.take_due(now, 1).is_empty());
    ledger.want(&["a:80".to_owned(), "b:80".to_owned()].into(), now);
    assert_eq!((known(&ledger).len(), ledger.is_settled()), (2, false));
    assert_eq!(ledger.take_due(now, 1), ["b:80"]);
    ledger.refresh(now);
    assert_eq!(ledger.take_due(now, 9), ["a:80"], "the other is being asked");
    ledger.want(&BTreeSet::new(), now);
    assert!(ledger.is_settled() && ledger.next().is_none() && ledger.known().is_empty());
}

#[test]
fn addresses_are_bounded() {
    let now = Instant::now();
    let mut ledger = ledger(now);
    let places = (0..300).map(|port| SocketAddr::from(([10, 0, 0, 1], port)).into()).collect();
    ledger.learn("a:80", Ok(Answer { places, ttl: Duration::ZERO, is_whole: true }), now);
    assert_eq!(known(&ledger).len(), ADDRESSES_MAX);
}

#[test]
fn an_answer_may_change_what_a_place_is_like() {
    let now = Instant::now();
    let mut ledger = ledger(now);
    let mut tell = |place: Place| {
        ledger.learn(
            "a:80",
            Ok(Answer { places: vec![place], ttl: Duration::ZERO, is_whole: true }),
            now,
        );
        assert_eq!(ledger.known()["a:80"], [place]);
    };
    let place = Place::from(address(1));
    tell(place);
    tell(Place { share: 50, backup: true, ..place });
}
