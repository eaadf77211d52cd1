//! Several threads at once: readers, fetchers and purges. A body always names its key, and a thread
//! never finds what it purged itself.

use super::*;

const KEYS: u64 = 64;
const ROUNDS: u64 = 10_000;

/// Returns a few bits that differ from call to call.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn number_of(body: &[u8]) -> u64 {
    body.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes))
}

fn work(store: &Store, thread: u64) {
    let mut state = thread;
    for round in 0..ROUNDS {
        let number = next(&mut state) % KEYS;
        let name = number.to_string();
        match next(&mut state) % 16 {
            0..4 => {
                let bytes = (next(&mut state) % 3) as usize * 3000 + 8;
                let whole: Vec<u8> = number.to_be_bytes().into_iter().cycle().take(bytes).collect();
                let _ = put(store, draft(&key(&name)), &whole);
            }
            4 => store.invalidate(format!("http://a/{name}").as_bytes()),
            // A thread's own key: no other thread stores it, so after a purge it is absent.
            5 => {
                let own = format!("own{thread}");
                let _ = put(store, draft(&key(&own)), &round.to_be_bytes());
                let url = format!("http://a/{own}").into_bytes();
                let purged =
                    store.ban(Target::Url(url), false).or_else(|_| store.ban(Target::All, false));
                assert!(purged.is_ok(), "{own} {round}: {purged:?}");
                assert_eq!(found(store, &own), None, "{own} {round}");
            }
            6 => store.sweep(10, 1),
            7 => drop(store.report()),
            _ => {
                let whole = found(store, &name);
                assert!(whole.is_none_or(|body| number_of(&body) == number
                    && number_of(&body[body.len() - 8..]) == number));
            }
        }
    }
}

#[test]
fn never_anothers_body_nor_what_was_purged() {
    let store = store(256 << 10, 16 << 10, 4);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..5)
            .map(|thread| {
                scope.spawn({
                    let store = &store;
                    move || work(store, thread)
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
    });
    store.ban(Target::All, false).expect("always");
    (0..100).for_each(|_| store.sweep(100, 1));
    let report = store.report();
    assert_eq!((report.live_bytes, report.objects, report.bans, report.fill_bytes), (0, 0, 0, 0));
}
