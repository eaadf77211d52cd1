//! Tests of the store as a whole: which responses are found, which are found no more, how large it
//! gets, and the cost of a panic.

mod model;
mod threads;

use super::*;
use crate::bans::{BANS_MAX, Target};
use crate::kit::{NOW_S, with_get};
use crate::vary::Vary;

pub(super) const SOURCE: SourceMark = SourceMark { connection: 1, position: 1 };
const LINES: &[u8] = b"Date: Sat, 28 Nov 2026 00:00:00 GMT\r\nETag: \"1\"\r\n";

pub(super) fn store(bytes: u64, object_bytes_max: u64, shards: usize) -> Store {
    Store::new(Limits { bytes, object_bytes_max, variants_max: 4 }, [3, 5], shards)
}

pub(super) fn key(name: &str) -> Vec<u8> {
    format!("http://a/{name}\napp\n").into_bytes()
}

pub(super) fn terms() -> Terms {
    crate::kit::TERMS
}

pub(super) fn draft(key: &[u8]) -> Draft<'_> {
    Draft {
        key,
        selector: Selector::default(),
        lines: LINES,
        terms: terms(),
        tags: Vec::new(),
        source: SOURCE,
    }
}

pub(super) fn complete(
    store: &Store,
    fill: &Fill,
    draft: Draft<'_>,
    body: &[u8],
) -> Result<Pending, NotKept> {
    let mut collector = store.collect(None)?;
    collector.push(body)?;
    store.complete(fill, draft, collector).map_err(|(why, _)| why)
}

pub(super) fn put(store: &Store, draft: Draft<'_>, body: &[u8]) -> Result<Arc<Object>, NotKept> {
    let fill = store.lone_fill(draft.key);
    store.insert(complete(store, &fill, draft, body)?, 0)
}

pub(super) fn body(object: &Object) -> Vec<u8> {
    object.small_body().map_or_else(|| object.pieces().concat(), <[u8]>::to_vec)
}

pub(super) fn found(store: &Store, name: &str) -> Option<Vec<u8>> {
    with_get("", |request| store.find(&key(name), request, 1)).map(|found| body(&found.object))
}

#[test]
fn what_is_stored_is_found() {
    let store = store(1 << 20, 1 << 16, 4);
    assert_eq!(found(&store, "a"), None);
    for (name, bytes) in
        [("a", 0), ("b", 1), ("c", INLINE_MAX), ("d", INLINE_MAX + 1), ("e", 1 << 16)]
    {
        let sent = vec![name.as_bytes()[0]; bytes];
        let object = put(&store, draft(&key(name)), &sent).expect("room");
        assert_eq!((object.body_bytes(), object.lines()), (bytes as u64, LINES));
        assert_eq!(object.small_body().is_some(), bytes <= INLINE_MAX);
        assert_eq!(object.validators(NOW_S).etag, Some(&b"\"1\""[..]));
        assert_eq!(found(&store, name), Some(sent));
        assert_eq!(object.hits(), 1);
    }
    assert_eq!(
        put(&store, draft(&key("f")), &vec![0; (1 << 16) + 1]).err(),
        Some(NotKept::TooLarge)
    );
    let report = store.report();
    assert_eq!((report.objects, report.keys, report.stored, report.fill_bytes), (5, 5, 5, 0));
    assert_eq!((report.stored_bytes, report.zombie_bytes), (report.live_bytes, 0));
    let top = store.top(By::Bytes, 2);
    assert_eq!(top.iter().map(|top| top.key.clone()).collect::<Vec<_>>(), [key("e"), key("c")]);
}

/// A key that is the beginning of another one, or shares all but the upstream, is another key.
#[test]
fn keys_are_compared_whole() {
    let store = store(1 << 20, 1 << 16, 1);
    put(&store, draft(b"http://a/x\napp\n"), b"app").expect("room");
    for other in [
        &b"http://a/x\n"[..],
        b"http://a/x\napp2\n",
        b"http://a/xy\napp\n",
        b"http://a/x\napp\nx=1\n",
    ] {
        assert!(with_get("", |request| store.find(other, request, 1)).is_none());
    }
    assert_eq!(store.keys_of(b"http://a/x"), [b"http://a/x\napp\n"]);
}

#[test]
fn variants_are_chosen() {
    let store = store(1 << 20, 1 << 16, 4);
    let vary = |lines: &str, name: &str| {
        let mut vary = Vary::default();
        vary.add_line(name.as_bytes());
        let Vary::Names(names) = vary else { panic!("{name}") };
        with_get(lines, |request| Selector::of(&names, request))
    };
    let key = key("v");
    for value in ["1", "2", "1"] {
        let selector = vary(&format!("Foo: {value}\r\n"), "Foo");
        put(&store, Draft { selector, ..draft(&key) }, value.as_bytes()).expect("room");
    }
    let get = |lines: &str| {
        with_get(lines, |request| store.find(&key, request, 1)).map(|found| body(&found.object))
    };
    assert_eq!(get("Foo: 1\r\n").as_deref(), Some(&b"1"[..]));
    assert_eq!(get("Foo: 2\r\n").as_deref(), Some(&b"2"[..]));
    assert_eq!(get("Foo: 3\r\n"), None);
    assert_eq!(store.variants(&key, 0).len(), 2);
    assert_eq!(store.top(By::Variants, 1)[0].variants, 2);
    for value in 3..9 {
        let selector = vary(&format!("Foo: {value}\r\n"), "Foo");
        put(&store, Draft { selector, ..draft(&key) }, b"").expect("room");
    }
    assert_eq!(store.variants(&key, 0).len(), 4);
    let (one, other) = with_get("Foo: 8\r\n", |request| {
        (store.fill_name(&key, request), store.fill_name(b"x", request))
    });
    let same = with_get("Foo: 8\r\nBar: 1\r\n", |request| store.fill_name(&key, request));
    let differs = with_get("Foo: 9\r\n", |request| store.fill_name(&key, request));
    assert!(one == same && one != differs && one != other);
}

#[test]
fn a_304_shares_the_body() {
    let store = store(1 << 20, 1 << 16, 4);
    for (name, bytes) in [("small", 10), ("large", 40_000)] {
        let key = key(name);
        let old = put(&store, draft(&key), &vec![7; bytes]).expect("room");
        let fill = store.lone_fill(&key);
        let fresh = Draft { lines: b"Age-Of: new\r\n", ..draft(&key) };
        let new = store.insert(store.refresh(&fill, fresh, &old).expect("room"), 1).expect("room");
        assert_eq!((new.lines(), new.body_bytes()), (&b"Age-Of: new\r\n"[..], bytes as u64));
        assert_eq!(body(&new), body(&old));
        let live = store.report().live_bytes;
        let shared = if bytes > INLINE_MAX { bytes as u64 } else { 0 };
        drop(old);
        assert!(
            live - store.report().live_bytes < 1000,
            "the body of {name} counts once: {shared}"
        );
        assert_eq!(found(&store, name), Some(vec![7; bytes]));
    }
}

#[test]
fn purges_hold_at_once() {
    let store = store(1 << 20, 1 << 16, 4);
    let fill = store.lone_fill(&key("late"));
    for name in ["a", "b", "c"] {
        put(&store, draft(&key(name)), b"x").expect("room");
    }
    let tags = vec![b"t".to_vec()];
    put(&store, Draft { tags, ..draft(&key("tagged")) }, b"x").expect("room");
    store.ban(Target::Url(b"http://a/a".to_vec()), false).expect("room");
    store.ban(Target::Tag { tag: b"t".to_vec(), host: None }, false).expect("room");
    store.ban(Target::Prefix(b"http://a/b".to_vec()), true).expect("room");
    assert_eq!((found(&store, "a"), found(&store, "tagged")), (None, None));
    let soft =
        with_get("", |request| store.find(&key("b"), request, 5_500_000)).expect("only stale");
    assert!(soft.object.is_purged_softly());
    assert_eq!((soft.terms.lifetime_s, soft.object.stored_terms().lifetime_s), (5, 60));
    assert!(!crate::is_fresh(&soft.terms, 5_500_000));
    let fresh = with_get("", |request| store.find(&key("c"), request, 1)).expect("there");
    assert_eq!(fresh.terms, terms());
    // A fetch from before the purge of all does not return after it.
    store.ban(Target::All, false).expect("room");
    assert_eq!(found(&store, "c"), None);
    let pending = complete(&store, &fill, draft(&key("late")), b"x").expect("room");
    assert_eq!(store.insert(pending, 1).err(), Some(NotKept::Purged));
    assert_eq!(store.report().not_kept, [0, 0, 1, 0]);
    put(&store, draft(&key("late")), b"y").expect("fetched afterwards");
    assert_eq!(found(&store, "late"), Some(b"y".to_vec()));
}

#[test]
fn what_changes_a_url_invalidates_it() {
    let store = store(1 << 20, 1 << 16, 4);
    let elsewhere = b"http://a/x\nother\n";
    let fill = store.lone_fill(&key("x"));
    put(&store, draft(&key("x")), b"1").expect("room");
    put(&store, draft(elsewhere), b"1").expect("room");
    put(&store, draft(&key("y")), b"1").expect("room");
    store.invalidate(b"http://a/x");
    assert_eq!((found(&store, "x"), found(&store, "y")), (None, Some(b"1".to_vec())));
    assert!(with_get("", |request| store.find(elsewhere, request, 1)).is_none());
    let pending = complete(&store, &fill, draft(&key("x")), b"old").expect("room");
    assert_eq!(store.insert(pending, 1).err(), Some(NotKept::Purged));
    put(&store, draft(&key("x")), b"2").expect("fetched afterwards");
    assert_eq!(found(&store, "x"), Some(b"2".to_vec()));
    assert_eq!(store.report().invalidations, 1);
}

#[test]
fn what_a_doubted_connection_brought_goes() {
    let store = store(1 << 20, 1 << 16, 4);
    let put_from = |name: &str, connection, position| {
        let source = SourceMark { connection, position };
        put(&store, Draft { source, ..draft(&key(name)) }, b"x").expect("room");
    };
    for (name, connection, position) in [("a", 1, 9), ("b", 1, 10), ("c", 1, 11), ("d", 2, 11)] {
        put_from(name, connection, position);
    }
    let source = SourceMark { connection: 1, position: 12 };
    let fill = store.lone_fill(&key("e"));
    let pending =
        complete(&store, &fill, Draft { source, ..draft(&key("e")) }, b"x").expect("room");
    store.withdraw(SourceMark { connection: 1, position: 10 });
    assert_eq!(store.insert(pending, 1).err(), Some(NotKept::Withdrawn));
    let there: Vec<bool> =
        ["a", "b", "c", "d", "e"].iter().map(|name| found(&store, name).is_some()).collect();
    assert_eq!(there, [true, false, false, true, false]);
    let report = store.report();
    assert_eq!((report.withdrawn, report.withdrawals, report.purged), (2, 1, 0));
    // Without room for a ban everything is dropped.
    while store.ban(Target::Host(b"nobody".to_vec()), false).is_ok() {}
    store.withdraw(SourceMark { connection: 9, position: 0 });
    assert_eq!(found(&store, "a"), None);
}

/// A sweep that has checked all lets bans end; responses being fetched, or waiting to be stored,
/// keep them.
#[test]
fn bans_end() {
    let store = store(1 << 20, 1 << 16, 4);
    for number in 0..100 {
        put(&store, draft(&key(&format!("{number}"))), b"x").expect("room");
    }
    let fill = store.lone_fill(&key("late"));
    for _ in 0..BANS_MAX {
        store.ban(Target::Url(b"http://a/7".to_vec()), false).expect("room");
    }
    assert!(store.ban(Target::Url(b"http://a/8".to_vec()), false).is_err());
    let sweep_all = || (0..40).for_each(|_| store.sweep(7, 1));
    sweep_all();
    assert_eq!((store.report().bans, store.report().objects), (BANS_MAX as u64, 99));
    let pending = complete(&store, &fill, draft(&key("late")), b"x").expect("room");
    drop(fill);
    sweep_all();
    assert_eq!(store.report().bans, BANS_MAX as u64);
    store.insert(pending, 1).expect("no ban is about it");
    sweep_all();
    assert_eq!((store.report().bans, store.report().objects), (0, 100));
    store.ban(Target::Url(b"http://a/8".to_vec()), false).expect("room");
    assert_eq!(found(&store, "8"), None);
}

/// No caller has to request it: a ban that is added to many has all checked, and an insertion
/// checks some.
#[test]
fn bans_end_by_themselves() {
    let store = store(1 << 20, 1 << 16, 4);
    for number in 0..100 {
        put(&store, draft(&key(&format!("{number}"))), b"x").expect("room");
    }
    for _ in 0..BANS_MAX * 3 {
        store.ban(Target::Url(b"http://a/7".to_vec()), false).expect("others ended");
    }
    assert!(store.report().bans <= BANS_MAX as u64 / 2, "{:?}", store.report());
    for number in 200..220 {
        put(&store, draft(&key(&format!("{number}"))), b"x").expect("room");
    }
    assert_eq!((store.report().bans, store.report().objects), (0, 119));
    // A softly purged response is stale from the latest moment that the store knows.
    put(&store, draft(&key("soft")), b"x").expect("room");
    store.sweep(1, 7_000_000);
    for _ in 0..=BANS_MAX {
        store.ban(Target::Url(b"http://a/soft".to_vec()), true).expect("others ended");
    }
    let soft =
        with_get("", |request| store.find(&key("soft"), request, 9_000_000)).expect("only stale");
    assert_eq!(soft.terms.lifetime_s, 7);
}

/// An evicted response that is still being sent does not keep bans, but its bytes count until it is
/// dropped.
#[test]
fn what_is_still_being_sent() {
    let store = store(1 << 20, 1 << 16, 1);
    let held: Vec<_> = (0..4)
        .map(|n| put(&store, draft(&key(&format!("h{n}"))), &[1; 60_000]).expect("room"))
        .collect();
    let piece = held[0].pieces()[0].clone();
    store.ban(Target::All, false).expect("room");
    (0..10).for_each(|_| store.sweep(100, 1));
    let report = store.report();
    assert_eq!((report.objects, report.stored_bytes, report.bans), (0, 0, 0));
    assert!(report.zombie_bytes > 240_000, "{report:?}");
    drop(held);
    let report = store.report();
    assert!(
        report.zombie_bytes >= piece.len() as u64 && report.zombie_bytes < piece.len() as u64 + 200,
        "{report:?}"
    );
    assert_eq!(piece[..10], [1; 10]);
    drop(piece);
    assert_eq!(store.report().live_bytes, 0);
}

#[test]
fn limits_change_while_it_is_used() {
    let store = store(4 << 20, 1 << 16, 4);
    for number in 0..100 {
        put(&store, draft(&key(&format!("{number}"))), &[0; 20_000]).expect("room");
    }
    let smaller = Limits { bytes: 1 << 20, object_bytes_max: 10_000, variants_max: 1 };
    store.set_limits(smaller);
    let report = store.report();
    assert!(report.live_bytes <= 1 << 20 && report.objects > 10, "{report:?}");
    let there = (0..100).filter(|number| found(&store, &format!("{number}")).is_some()).count();
    assert_eq!(report.objects, there as u64);
    assert_eq!(put(&store, draft(&key("x")), &[0; 20_000]).err(), Some(NotKept::TooLarge));
}

/// A panic of a thread that was changing a shard costs the contents of the shard, once.
#[test]
fn a_panic_costs_a_shard() {
    let store = store(1 << 20, 1 << 16, 1);
    put(&store, draft(&key("a")), b"x").expect("room");
    let panics = std::panic::AssertUnwindSafe(|| {
        let _guard = store.shards[0].write();
        std::panic::resume_unwind(Box::new("as a bug would"));
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(found(&store, "a"), None);
    put(&store, draft(&key("a")), b"y").expect("room");
    assert_eq!(found(&store, "a"), Some(b"y".to_vec()));
    let report = store.report();
    assert_eq!((report.poisoned, report.objects, report.zombie_bytes), (1, 1, 0));
}

/// After a panic amid a purge nothing is known to be allowed.
#[test]
fn a_panic_amid_a_purge_purges_all() {
    let store = store(1 << 20, 1 << 16, 1);
    put(&store, draft(&key("a")), b"x").expect("room");
    let panics = std::panic::AssertUnwindSafe(|| store.purges.panic_while_locked());
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(found(&store, "a"), None);
    put(&store, draft(&key("a")), b"y").expect("room");
    assert_eq!(found(&store, "a"), Some(b"y".to_vec()));
}

/// The memory of a stored response besides its key, its lines and its body: the promise of the
/// documents.
#[test]
fn an_object_costs_256_bytes() {
    let index = size_of::<index::Bucket>() + size_of::<index::Key>() + 21;
    assert_eq!(OBJECT_BYTES, size_of::<Object>() + 16 + index * 3 / 2);
    let exact = size_of::<Object>() + 16 + index;
    assert!(exact <= 256, "object {} + 16, index {index}", size_of::<Object>());
    // The charge for it equals that, with the slack of tables that grow.
    let store = store(1 << 20, 1 << 16, 1);
    let object = put(&store, draft(&key("a")), b"").expect("room");
    let rest = allocated(LINES.len()) + allocated(key("a").len());
    assert_eq!(object.weight(), rest + OBJECT_BYTES as u64);
    assert_eq!(store.report().live_bytes, object.weight());
}

#[test]
fn shards_have_room_for_large_objects() {
    for (bytes, object_bytes_max, wanted, expected) in [
        (256 << 20, 8 << 20, 64, 8),
        (1 << 20, 1 << 18, 64, 1),
        (1 << 30, 1 << 20, 64, 64),
        (1 << 20, 1 << 10, 5, 4),
    ] {
        let limits = Limits { bytes, object_bytes_max, variants_max: 1 };
        assert_eq!(limits.shards(wanted), expected, "{limits:?}");
        let store = Store::new(limits, [0, 0], wanted);
        put(&store, draft(&key("large")), &vec![1; object_bytes_max as usize]).expect("it fits");
    }
}

#[test]
fn what_began_with_another_store_is_not_kept() {
    let (old, new) = (store(1 << 20, 1 << 16, 1), store(1 << 20, 1 << 16, 1));
    let fill = old.lone_fill(&key("a"));
    assert_eq!(complete(&new, &fill, draft(&key("a")), b"a").err(), Some(NotKept::NoRoom));
    let pending = complete(&old, &fill, draft(&key("a")), b"a").expect("room");
    assert_eq!(new.insert(pending, 0).err(), Some(NotKept::NoRoom));
    assert_eq!((new.report().live_bytes, found(&new, "a")), (0, None));
}

#[test]
fn what_was_taken_out_is_not_used_by_whoever_has_found_it() {
    let store = store(1 << 20, 1 << 16, 1);
    let object = put(&store, draft(&key("a")), b"a").expect("room");
    assert!(store.is_valid(&key("a"), &object));
    store.ban(Target::Host(b"a".to_vec()), false).expect("the first");
    assert!(!store.is_valid(&key("a"), &object));
    // Another lookup comes first, and takes it out: its serial no longer means anything.
    assert_eq!(found(&store, "a"), None);
    assert!(!store.is_valid(&key("a"), &object));
}

#[test]
fn what_finds_no_room_can_still_be_sent() {
    let store = store(64 << 10, 16 << 10, 1);
    // Slow clients hold all memory except that of the response being fetched.
    let own = collector::piece_weight(16 << 10) + 64;
    let held = store.account.admit((64 << 10) - own, 0).expect("it is empty");
    let (fill, mut collector) =
        (store.lone_fill(&key("a")), store.collect(Some(16 << 10)).expect("small"));
    assert_eq!(collector.push(&[7; 16 << 10]), Ok(()));
    let pending = store
        .complete(&fill, draft(&key("a")), collector)
        .map_err(|(why, _)| why)
        .expect("memory of its own");
    let object = Arc::clone(pending.object());
    assert_eq!(store.insert(pending, 0).err(), Some(NotKept::NoRoom));
    assert_eq!((body(&object), found(&store, "a")), (vec![7; 16 << 10], None));
    drop((held, object));
    assert_eq!(store.report().live_bytes, 0);
}
