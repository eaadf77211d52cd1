//! Random steps on the store and on a plain model beside it: never a body of another key, never a
//! purged response, never too many bytes.

use proptest::prelude::*;
use std::collections::HashMap;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// A fetch of this key begins.
    Begin(u8),
    /// A fetch in progress ends with a body of this many bytes.
    End(usize, usize),
    Find(u8),
    /// A client continues to send a found response.
    Hold(u8),
    /// One of these is dropped.
    LetGo(usize),
    PurgeUrl(u8),
    PurgeTag(u8),
    PurgeAll,
    Invalidate(u8),
    Withdraw(u64),
    Sweep(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..12).prop_map(Step::Begin),
        6 => (0usize..8, prop_oneof![0usize..100, 3000usize..5000, 20_000usize..40_000])
            .prop_map(|(at, bytes)| Step::End(at, bytes)),
        6 => (0u8..12).prop_map(Step::Find),
        2 => (0u8..12).prop_map(Step::Hold),
        2 => (0usize..4).prop_map(Step::LetGo),
        1 => (0u8..12).prop_map(Step::PurgeUrl),
        1 => (0u8..3).prop_map(Step::PurgeTag),
        1 => Just(Step::PurgeAll),
        1 => (0u8..12).prop_map(Step::Invalidate),
        1 => (0u64..3).prop_map(Step::Withdraw),
        2 => (1usize..5).prop_map(Step::Sweep),
    ]
}

/// A fetch in progress: its key, the number of its future body, and whether it was purged
/// meanwhile.
struct Fetch {
    key: u8,
    number: u32,
    fill: Fill,
    is_purged: bool,
}

/// The state of the model: the number of the newest body of each key that may be found.
#[derive(Default)]
struct Model {
    stored: HashMap<u8, u32>,
    fetches: Vec<Fetch>,
    number: u32,
}

impl Model {
    fn purge(&mut self, is_met: impl Fn(u8) -> bool) {
        self.stored.retain(|key, _| !is_met(*key));
        self.fetches.iter_mut().for_each(|fetch| fetch.is_purged |= is_met(fetch.key));
    }
}

fn name(key: u8) -> String {
    format!("k{key}")
}

/// Returns a body that repeats its key and number.
fn body_of(key: u8, number: u32, bytes: usize) -> Vec<u8> {
    let mark = format!("<{key}:{number}>");
    mark.bytes().cycle().take(bytes.max(mark.len())).collect()
}

fn source_of(key: u8) -> SourceMark {
    SourceMark { connection: u64::from(key % 3), position: 1 }
}

fn take(store: &Store, model: &mut Model, held: &mut Vec<Arc<Object>>, step: &Step) {
    let tag_of = |key: u8| vec![key % 3];
    match *step {
        Step::Begin(key) => {
            model.number += 1;
            let fill = store.lone_fill(&super::key(&name(key)));
            model.fetches.push(Fetch { key, number: model.number, fill, is_purged: false });
        }
        Step::End(at, bytes) if !model.fetches.is_empty() => {
            let fetch = model.fetches.swap_remove(at % model.fetches.len());
            let key = super::key(&name(fetch.key));
            let draft = Draft {
                tags: vec![tag_of(fetch.key)],
                source: source_of(fetch.key),
                ..draft(&key)
            };
            let body = body_of(fetch.key, fetch.number, bytes);
            let result = complete(store, &fetch.fill, draft, &body)
                .and_then(|pending| store.insert(pending, 1));
            // Invalidations may affect others, and without room nothing is stored.
            if result.is_ok() {
                assert!(!fetch.is_purged, "{step:?} stored what was purged");
                model.stored.insert(fetch.key, fetch.number);
            }
        }
        Step::Find(key) | Step::Hold(key) => {
            let asked = super::key(&name(key));
            let Some(found) = with_get("", |request| store.find(&asked, request, 1)) else {
                return;
            };
            let expected = model.stored.get(&key).unwrap_or_else(|| panic!("{key} was purged"));
            let whole = body(&found.object);
            assert_eq!(whole, body_of(key, *expected, whole.len()));
            if matches!(step, Step::Hold(_)) {
                held.push(found.object);
            }
        }
        Step::LetGo(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
        Step::End(..) | Step::LetGo(_) => {}
        Step::PurgeUrl(key) => {
            store
                .ban(Target::Url(format!("http://a/{}", name(key)).into_bytes()), false)
                .expect("few");
            model.purge(|other| other == key);
        }
        Step::PurgeTag(tag) => {
            store.ban(Target::Tag { tag: vec![tag], host: None }, false).expect("few");
            model.purge(|key| tag_of(key) == [tag]);
        }
        Step::PurgeAll => {
            store.ban(Target::All, false).expect("always");
            model.purge(|_| true);
        }
        Step::Invalidate(key) => {
            store.invalidate(format!("http://a/{}", name(key)).as_bytes());
            model.purge(|other| other == key);
        }
        Step::Withdraw(connection) => {
            store.withdraw(SourceMark { connection, position: 0 });
            model.purge(|key| source_of(key).connection == connection);
        }
        Step::Sweep(keys) => store.sweep(keys, 1),
    }
}

proptest! {
    #[test]
    fn like_the_model(steps in prop::collection::vec(step(), 0..200), shards in 1usize..4) {
        let store = store(256 << 10, 40_000, shards);
        let (mut model, mut held) = (Model::default(), Vec::new());
        for step in &steps {
            take(&store, &mut model, &mut held, step);
            let report = store.report();
            prop_assert!(report.live_bytes <= report.limit_bytes, "{report:?}");
            let known = report.stored_bytes + report.fill_bytes;
            prop_assert!(known <= report.live_bytes, "{report:?}");
            let walk = |shard| {
                store.read(shard).iter().map(|(_, bucket)| bucket.len() as u64).sum::<u64>()
            };
            prop_assert_eq!(report.objects, store.shards.iter().map(walk).sum::<u64>());
        }
        // Bans end when everything older is dropped or checked; and no byte is left when all is
        // dropped.
        model.fetches.clear();
        (0..200).for_each(|_| store.sweep(5, 1));
        prop_assert_eq!(store.report().bans, 0);
        store.ban(Target::All, false).expect("always");
        (0..200).for_each(|_| store.sweep(5, 1));
        held.clear();
        let report = store.report();
        prop_assert_eq!((report.live_bytes, report.bans, report.objects), (0, 0, 0));
    }

    /// Two runs of the same steps evict the same.
    #[test]
    fn runs_repeat(steps in prop::collection::vec(step(), 0..150)) {
        let run = || {
            let store = store(128 << 10, 40_000, 2);
            let (mut model, mut held) = (Model::default(), Vec::new());
            steps.iter().for_each(|step| take(&store, &mut model, &mut held, step));
            (store.report(), store.top(By::Hits, 100))
        };
        prop_assert_eq!(run(), run());
    }
}
