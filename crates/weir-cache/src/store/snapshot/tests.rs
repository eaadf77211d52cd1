//! Proves: written responses are read again unchanged, older by the time between. Responses that
//! were purged, withdrawn or are stale without leave do not return, nor does anything that a file
//! only claims. A damaged one gives the responses before the damage, unchanged. How: stores in
//! memory, every truncation and every changed byte of a snapshot, random responses.

use proptest::prelude::*;

use super::fuzzing::{mend, restore_all, seeds, snapshot, snapshot_of};
use super::*;
use crate::bans::Target;
use crate::store::NotKept;
use crate::store::changes::Change;
use crate::store::tests::{SOURCE as FROM, body, complete, draft, found, key, put, store, terms};

const WRITTEN: Moment = Moment { wall_us: 1_795_824_010_000_000, now_us: 10_000_000 };

fn later(seconds: u64) -> Moment {
    // Another boot: the monotonic clock has restarted.
    Moment { wall_us: WRITTEN.wall_us + seconds * SECOND_US, now_us: 3_000_000 }
}

fn fresh() -> Store {
    store(1 << 20, 1 << 16, 2)
}

fn named(names: &[&str]) -> Store {
    let store = fresh();
    for name in names {
        put(&store, draft(&key(name)), name.as_bytes()).expect("room");
    }
    store
}

/// All responses of a store: key, selector, lines, body, tags, in order.
type All = Vec<(Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>, Vec<Vec<u8>>)>;

fn all(store: &Store) -> All {
    let mut keys = store.hottest(u64::MAX, || ());
    keys.sort();
    let of_key = |key: Vec<u8>| {
        let variants = store.variants(&key, 0).into_iter();
        let one = move |(by, object): (Selector, Arc<Object>)| {
            (
                key.clone(),
                by.text().to_vec(),
                object.lines().to_vec(),
                body(&object),
                object.tags().to_vec(),
            )
        };
        variants.map(one).collect::<Vec<_>>()
    };
    keys.into_iter().flat_map(of_key).collect()
}

#[test]
fn a_large_one_does_not_keep_out_the_others() {
    let store = named(&["small"]);
    put(&store, draft(&key("large")), &[b'x'; 20_000]).expect("room");
    assert!(found(&store, "large").is_some(), "it is the hottest");
    let small = key("small").to_vec();
    assert_eq!(store.hottest(10_000, || ()), [small]);
    assert_eq!(store.hottest(u64::MAX, || ()).len(), 2);
}

#[test]
fn ages_go_on_while_weir_is_away() {
    let bytes = snapshot_of(&named(&["a"]), WRITTEN, &[]);
    for (away_s, expected) in
        [(0, Restored::Kept), (49, Restored::Kept), (50, Restored::Stale), (9_999, Restored::Stale)]
    {
        let restored = fresh();
        let (outcome, flaw) = restore_all(&restored, &bytes, later(away_s));
        assert!(flaw.is_none());
        assert_eq!(outcome, [expected], "{away_s}");
        if expected == Restored::Kept {
            let (_, object) = restored.variants(&key("a"), 0).pop().expect("it is there");
            let terms = object.terms();
            assert_eq!(terms.age_us(later(away_s).now_us), (10 + away_s) * SECOND_US);
            assert_eq!((terms.received_s, object.source()), (self::terms().received_s, SOURCE));
        }
    }
    let (outcome, flaw) =
        restore_all(&fresh(), &bytes, Moment { wall_us: WRITTEN.wall_us - 1, now_us: 0 });
    assert!(
        outcome.is_empty() && flaw.is_some(),
        "the clock was set back: nobody knows how old it is"
    );
}

#[test]
fn what_may_be_used_stale_is_kept_as_long_as_it_may() {
    let full = fresh();
    let stale = |more: fn(&mut Terms)| {
        let mut terms = terms();
        more(&mut terms);
        terms
    };
    let cases = [
        ("while", stale(|terms| terms.stale_while_revalidate_s = 100), true),
        ("error", stale(|terms| terms.stale_if_error_s = 100), true),
        (
            "never",
            stale(|terms| (terms.stale_if_error_s, terms.forbids_stale) = (100, true)),
            false,
        ),
        ("bad", stale(|terms| (terms.stale_if_error_s, terms.status) = (100, 404)), false),
        ("asked", stale(|terms| (terms.no_cache, terms.lifetime_s) = (true, 600)), true),
        (
            "asked-stale",
            stale(|terms| (terms.no_cache, terms.stale_if_error_s) = (true, 600)),
            false,
        ),
    ];
    for (name, terms, _) in &cases {
        put(&full, crate::Draft { terms: *terms, ..draft(&key(name)) }, b"x").expect("room");
    }
    let bytes = snapshot_of(&full, WRITTEN, &[]);
    let restored = fresh();
    restore_all(&restored, &bytes, later(140));
    for (name, _, stays) in &cases {
        assert_eq!(found(&restored, name).is_some(), *stays, "{name}");
    }
    let restored = fresh();
    restore_all(&restored, &bytes, later(151));
    assert_eq!(all(&restored).len(), 1);
}

/// Before the snapshot, since it was written, and while it is read.
#[test]
fn what_is_purged_does_not_come_back() {
    let full = named(&["a", "b", "c", "d"]);
    let fill = full.lone_fill(b"");
    full.ban(Target::Url(b"http://a/a".to_vec()), false).expect("room");
    full.ban(Target::Url(b"http://a/b".to_vec()), true).expect("room");
    full.invalidate(b"http://a/c");
    let pending = complete(&full, &fill, draft(&key("e")), b"e").expect("room");
    let bytes = snapshot_of(&full, WRITTEN, &[]);
    drop(pending);
    let restored = fresh();
    assert_eq!(
        restore_all(&restored, &bytes, later(1)).0,
        [Restored::Kept],
        "neither is what is not proved yet"
    );
    assert!(found(&restored, "d").is_some());

    let names = ["a", "b", "c", "d", "e"];
    let full = named(&names);
    let change = |target, is_soft| Change { target, is_soft };
    let url = |name: &str| Target::Url(format!("http://a/{name}").into_bytes());
    let changes = [
        change(url("a"), false),
        change(url("b"), true),
        change(url("b"), false),
        change(url("c"), true),
    ];
    let bytes = snapshot_of(&full, WRITTEN, &changes);
    let restored = fresh();
    let began = restored.begin_restoring();
    restored.invalidate(b"http://a/d");
    let preface = Preface::decode(bytes.first_chunk().expect("long enough")).expect("whole");
    let (records, behind) = bytes.split_at(preface.end as usize);
    let changed = Changed::read(behind).expect("whole");
    let mut records = Records::new(&records[PREFACE_BYTES..], &preface);
    while restored
        .restore(&began, &mut records, (&preface, &changed), later(1))
        .expect("whole")
        .is_some()
    {}
    let kept: Vec<bool> = names.iter().map(|name| found(&restored, name).is_some()).collect();
    assert_eq!(kept, [false, false, false, false, true]);
    for target in [
        Target::All,
        Target::Host(b"a".to_vec()),
        Target::Prefix(b"http://a/".to_vec()),
        Target::Source(FROM),
    ] {
        let bytes = snapshot_of(&named(&names), WRITTEN, &[change(target, false)]);
        assert_eq!(restore_all(&fresh(), &bytes, later(1)).0, [Restored::Purged; 5]);
    }
}

#[test]
fn what_is_there_stays_and_nothing_goes_for_it() {
    let bytes = snapshot_of(&named(&["a", "b"]), WRITTEN, &[]);
    let busy = fresh();
    put(&busy, draft(&key("a")), b"newer").expect("room");
    let (mut outcome, _) = restore_all(&busy, &bytes, later(1));
    outcome.sort_by_key(|one| *one == Restored::Kept);
    assert_eq!(outcome, [Restored::Present, Restored::Kept]);
    assert_eq!(found(&busy, "a").expect("it is there"), b"newer");

    let large = named(&[]);
    for number in 0..12 {
        put(&large, draft(&key(&number.to_string())), &vec![number; 60_000]).expect("room");
    }
    let small = store(1 << 19, 1 << 16, 1);
    put(&small, draft(&key("mine")), &vec![1; 60_000]).expect("room");
    let (outcome, flaw) = restore_all(&small, &snapshot_of(&large, WRITTEN, &[]), later(1));
    let count = |what| outcome.iter().filter(|one| **one == what).count();
    assert!(
        flaw.is_none() && count(Restored::Kept) >= 3 && count(Restored::NoRoom) >= 3,
        "{outcome:?}"
    );
    assert!(found(&small, "mine").is_some() && small.report().evicted == 0);
    let strict = store(1 << 20, 1 << 10, 1);
    let (outcome, flaw) = restore_all(&strict, &snapshot_of(&large, WRITTEN, &[]), later(1));
    assert!(
        flaw.is_none() && outcome.iter().all(|one| *one == Restored::NoRoom),
        "{outcome:?} {flaw:?}"
    );
    assert_eq!(put(&strict, draft(&key("x")), &[0; 2000]).err(), Some(NotKept::TooLarge));
}

#[test]
fn the_most_used_come_first_and_the_size_is_bounded() {
    let full = named(&["a", "b", "c"]);
    for (name, times) in [("b", 5), ("c", 2)] {
        (0..times).for_each(|_| assert!(found(&full, name).is_some()));
    }
    let names =
        |bytes_max| full.hottest(bytes_max, || ()).iter().map(|key| key[9]).collect::<Vec<u8>>();
    assert_eq!(names(u64::MAX), b"bca");
    let weight = full.variants(&key("b"), 0)[0].1.weight();
    assert_eq!(names(weight * 2), b"bc");
    let mut out = Vec::new();
    assert_eq!(full.put_records(&key("a"), WRITTEN, 20, &mut out).expect("memory"), (0, 0));
    let (answers, bytes) = full.put_records(&key("a"), WRITTEN, 1000, &mut out).expect("memory");
    assert_eq!((answers, bytes), (1, out.len() as u64));
    let restored = fresh();
    restore_all(&restored, &snapshot_of(&full, WRITTEN, &[]), later(1));
    assert_eq!(restored.variants(&key("b"), 0)[0].1.hits(), 5);
}

/// The result is some of the responses that were written, each unchanged, and no panic.
fn is_part_of(bytes: &[u8], whole: &All) -> usize {
    let restored = store(1 << 20, 1 << 16, 2);
    restore_all(&restored, bytes, Moment { wall_us: 1_795_824_005_000_000, now_us: 0 });
    let some = all(&restored);
    assert!(some.iter().all(|one| whole.contains(one)), "{} of {}", some.len(), whole.len());
    some.len()
}

#[test]
fn every_cut_and_every_changed_byte() {
    let seed = seeds().remove(1);
    let restored = store(1 << 20, 1 << 16, 2);
    let (outcome, flaw) =
        restore_all(&restored, &seed, Moment { wall_us: 1_795_824_005_000_000, now_us: 0 });
    let kept = outcome.iter().filter(|one| **one == Restored::Kept).count();
    assert!(flaw.is_none() && kept == 3, "{outcome:?} {flaw:?}");
    // The last invalidation may be missing, as if it had not been recorded yet.
    let before = store(1 << 20, 1 << 16, 2);
    restore_all(&before, &seeds().remove(0), Moment { wall_us: 1_795_824_005_000_000, now_us: 0 });
    let whole = all(&before);
    let preface = Preface::decode(seed.first_chunk().expect("long enough")).expect("whole");
    for cut in 0..seed.len() {
        assert!(is_part_of(&seed[..cut], &whole) == 0 || cut as u64 >= preface.end, "{cut}");
    }
    for at in 0..seed.len() {
        // Most of it is the body of one response.
        let is_of_interest = !(seed[at] == 7 && at % 97 != 0);
        for bit in [1, 0x80].into_iter().filter(|_| is_of_interest) {
            let mut other = seed.clone();
            other[at] ^= bit;
            let count = is_part_of(&other, &whole);
            assert!(count < 3 || at < PREFACE_BYTES, "byte {at}");
            // If it is not known what was purged, nothing is used.
            assert!(count == 0 || (at as u64) < preface.end, "byte {at}");
        }
    }
}

#[test]
fn seeds_and_their_faults_in_whole_checksums() {
    for seed in seeds() {
        snapshot(&seed);
        let mut same = seed.clone();
        mend(&mut same);
        assert!(same == seed);
        for at in (0..seed.len()).filter(|at| !(seed[*at] == 7 && at % 509 != 0)) {
            let mut other = seed.clone();
            other[at] = other[at].wrapping_add(1);
            snapshot(&other);
        }
    }
}

/// An attacker who can write the file still gets nothing into responses that no server could send.
#[test]
fn what_no_server_could_have_said() {
    let good = "Date: Sat, 28 Nov 2026 00:00:00 GMT\r\n";
    for lines in [
        "A: b\r\n\r\nC: d\r\n",
        "A: b\nC: d\r\n",
        "A: b",
        "A b: c\r\n",
        " A: b\r\n",
        "A: \0\r\n",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "Age: 5\r\n",
        "A: b\r\n c\r\n",
        "\r\n",
    ] {
        assert!(are_lines(good.as_bytes()) && are_lines(b""));
        assert!(!are_lines(lines.as_bytes()), "{lines:?}");
        assert!(!are_lines(format!("{good}{lines}").as_bytes()), "{lines:?}");
    }
    for key in [
        "",
        "http://a/",
        "http://a/\n",
        "ftp://a/\napp\n",
        "http://a/\napp\nx",
        "http://a/\r\napp\n",
    ] {
        assert!(!is_key(key.as_bytes()), "{key:?}");
    }
    assert!(is_key(b"https://a/\napp\nx=1\n"));
    for selector in ["a", "a=b", "B=c\n", "b\na\n", "a\na\n", "\n", "a b=c\n", "=c\n"] {
        assert!(Selector::read(selector.as_bytes()).is_none(), "{selector:?}");
    }
    for status in [0, 100, 199, 206, 304, 1000] {
        assert!(!is_status(status));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Written responses are read again, whatever they contain.
    #[test]
    fn any_answers(
        answers in prop::collection::vec(
            (
                0usize..4,
                "[a-z]{0,3}",
                "([A-Z][a-z]{1,5}: [ -~]{0,20}\r\n){0,3}",
                prop::collection::vec(any::<u8>(), 0..9000),
                prop::collection::btree_set("[a-z]{1,4}", 0..3)
            ),
            0..8
        ),
    ) {
        let full = fresh();
        for (name, by, lines, body, tags) in &answers {
            if !are_lines(lines.as_bytes()) {
                continue;
            }
            let key = key(&name.to_string());
            let by = if by.is_empty() { String::new() } else { format!("x={by}\n") };
            let selector = Selector::read(by.as_bytes()).expect("a selector");
            let tags = tags.iter().map(|tag| tag.clone().into_bytes()).collect();
            let one = crate::Draft { selector, lines: lines.as_bytes(), tags, ..draft(&key) };
            put(&full, one, body).expect("room");
        }
        let restored = fresh();
        let (outcome, flaw) = restore_all(&restored, &snapshot_of(&full, WRITTEN, &[]), later(5));
        prop_assert!(
            flaw.is_none() && outcome.iter().all(|one| *one == Restored::Kept),
            "{:?} {:?}",
            outcome,
            flaw
        );
        prop_assert_eq!(all(&restored), all(&full));
    }

    /// Any bytes behind a preface that fits them.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let preface = Preface {
            rules: 1,
            written_us: 0,
            end: (PREFACE_BYTES + bytes.len()) as u64,
            answers: 0,
        };
        snapshot(&[&preface.encode()[..], &bytes].concat());
    }
}
