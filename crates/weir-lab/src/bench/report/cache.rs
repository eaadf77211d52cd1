//! How the experiment `cache` is shown: columns that only it has, its line of progress, and how it
//! was measured.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::numbers::{ms, number};
use crate::bench::experiment::cache::CacheLoad;
use crate::bench::experiment::cells::Load;
use crate::bench::experiment::metric::Metric;
use crate::bench::record::cache::{Cached, Halves, Purged};
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::middle;

/// The text after the usual method.
pub(super) const METHOD: &str = "
Caches. All get responses without a lifetime, and are configured to store them for an hour. nginx
has `proxy_cache` on /dev/shm, `proxy_cache_lock`, `open_file_cache`, `use_temp_path=off` and
sendfile. Its manager deletes 10,000 files at a time, every 50 ms. Varnish has `-s malloc`, no
grace, and a pool of threads per core. It drops cookies of requests, because the built-in VCL
would bypass the cache for them. Its child process counts as well.

weir has `cache` with `ttl`, and `object-limit \"1MiB\"`. `weir` is weir without a cache, which
shows what a hit saves. In cells with one response, it is stored before anything counts. In all
other cells the programs start afresh, with weir's test origin behind them.

In `herd` 1,000 clients send the same request at once, and the origin logs what it gets. In
`herd-private` it sends `private`. There each worker of weir may have as many connections to it
as there are clients, because the others have no limit.

In `zipf` the cache has room for a quarter of the bodies. Before the counted time, clients send
as many requests as in it. Hits are those of the clients' requests that the origin did not get.
`best` is the share of a cache that always has the most wanted responses. `LRU` is the share of a
cache that evicts the least recently requested response. Both are computed for as many requests
drawn by the same law, and need no byte except bodies.

`hits / LRU of as many` compares with an LRU cache that has as many responses as weir reports. So
it compares how a cache uses its room, not the room that it needs for each response. `taken /
room` is the memory above that at the start, and files in memory, divided by the configured size.
The manager of nginx checks its room only every 10 s as long as its last check found enough. So
in a run of seconds it keeps nearly all, and its hits mean nothing.

In `purge` the responses are stored, and the first half of the time is undisturbed. Then all with
a tag are purged: weir by its admin socket, Varnish by a ban (`obj.http.Surrogate-Key ==`) that a
method of its file orders. Two connections check one response after the other, and recognize an
old one by its Age. `gone` is the time from the order to the last old one. `meanwhile` covers the
two seconds from the order on. nginx cannot purge by tags.

In `stale` responses are fresh for a second. Stale ones may be served while they are fetched, or
while the origin fails (`proxy_cache_use_stale`, grace, `stale-if-error`). The origin is killed
in the middle of the run. In `slow` other clients' requests go to the origin all the time, and
their responses must not be stored. `whole` is how long a client that reads at once waits for
what the slow clients read, of which the origin takes 300 ms.

In `restart` clients request each response once. The program ends (SIGTERM) and starts again, and
clients request each response once more. `down` is the time from the order to end until it
listens again. nginx still has its files.
";

/// Returns the columns after the usual ones of a load.
pub(super) fn columns(load: Load) -> &'static [&'static str] {
    let Load::Cache(load) = load else { return &[] };
    match load {
        CacheLoad::Herd(_) => &["requests at the origin", "p99 beyond the origin, ms"],
        CacheLoad::Zipf(_) => &[
            "requests at the origin",
            "hits",
            "best",
            "LRU",
            "answers",
            "hits / LRU of as many",
            "taken / room",
        ],
        CacheLoad::Purge(_) => &[
            "gone after, ms",
            "order, ms",
            "old afterwards",
            "looks",
            "memory, MiB",
            "hits /s before",
            "meanwhile",
            "p99 before, ms",
            "meanwhile",
            "max meanwhile",
        ],
        CacheLoad::Stale(_) => &[
            "requests at the origin",
            "failed before",
            "failed after",
            "p99 before, ms",
            "p99 after",
            "max after",
        ],
        CacheLoad::Slow(_) => &[
            "requests at the origin for it",
            "whole after, ms",
            "p99 before, ms",
            "p99 meanwhile",
            "max meanwhile",
        ],
        CacheLoad::Restart(_) => &["requests at the origin", "hits", "down, ms"],
    }
}

/// Returns their figures.
pub(super) fn row(load: Load, own: &[&Record]) -> Vec<String> {
    let Load::Cache(load) = load else { return Vec::new() };
    let figure = |metric| middle(own, &|record: &Record| record.figure(metric));
    let cached = |read: fn(&Cached) -> f64| {
        middle(own, &|record: &Record| record.special.cached.as_ref().map_or(f64::NAN, read))
    };
    let half = |read: fn(&Halves) -> f64| {
        middle(own, &|record: &Record| record.special.halves.as_ref().map_or(f64::NAN, read))
    };
    let fetches = number(figure(Metric::Fetches), 0);
    let before_ms = ms(half(|halves| halves.before.p99_us as f64));
    let after_ms = ms(half(|halves| halves.after.p99_us as f64));
    let longest_ms = ms(half(|halves| halves.after.max_us as f64));
    match load {
        CacheLoad::Herd(_) => vec![fetches, number(figure(Metric::BeyondOriginMs), 1)],
        CacheLoad::Zipf(_) => vec![
            fetches,
            format!("{} %", number(cached(Cached::hit_percent), 1)),
            format!("{} %", number(cached(|cached| cached.best_percent), 1)),
            format!("{} %", number(cached(|cached| cached.lru_percent), 1)),
            number(
                cached(|cached| if cached.answers > 0 { cached.answers as f64 } else { f64::NAN }),
                0,
            ),
            number(figure(Metric::HitsOfLru), 3),
            number(figure(Metric::TakenOfRoom), 2),
        ],
        CacheLoad::Purge(_) => {
            let purged = |read: fn(&Purged) -> u64| {
                middle(own, &|record: &Record| {
                    record.special.purged.as_ref().map_or(f64::NAN, |its| read(its) as f64)
                })
            };
            vec![
                ms(purged(|its| its.gone_us)),
                ms(purged(|its| its.order_us)),
                number(purged(|its| its.old_after), 0),
                number(purged(|its| its.looks), 0),
                number(purged(|its| its.taken_bytes) / 1_048_576.0, 0),
                number(half(|halves| halves.before.rate), 0),
                number(half(|halves| halves.after.rate), 0),
                before_ms,
                after_ms,
                longest_ms,
            ]
        }
        CacheLoad::Stale(_) => {
            let failed = [
                half(|halves| halves.before.failed as f64),
                half(|halves| halves.after.failed as f64),
            ];
            let [before, after] = failed.map(|failed| number(failed, 0));
            vec![fetches, before, after, before_ms, after_ms, longest_ms]
        }
        CacheLoad::Slow(_) => {
            vec![
                fetches,
                ms(cached(|cached| cached.whole_us as f64)),
                before_ms,
                after_ms,
                longest_ms,
            ]
        }
        CacheLoad::Restart(_) => {
            let hits = format!("{} %", number(cached(Cached::hit_percent), 1));
            vec![fetches, hits, ms(cached(|cached| cached.down_us as f64))]
        }
    }
}

/// Returns the line of progress.
pub(super) fn progress(load: CacheLoad, record: &Record) -> String {
    let errors: u64 = record.errors.values().sum();
    let (cached, halves) =
        (record.special.cached.unwrap_or_default(), record.special.halves.unwrap_or_default());
    let p99 = format!(
        "p99 {} ms, then {} ms",
        ms(halves.before.p99_us as f64),
        ms(halves.after.p99_us as f64)
    );
    let fetches = cached.fetches;
    match load {
        CacheLoad::Restart(_) => format!(
            "{:.1} % hits after a restart of {} ms, {errors} errors",
            cached.hit_percent(),
            ms(cached.down_us as f64)
        ),
        CacheLoad::Herd(_) | CacheLoad::Zipf(_) => format!(
            "{fetches:>6} of {} requests reached the origin ({:.1} % hits), p99 {} ms, {errors} \
                errors",
            cached.requests,
            cached.hit_percent(),
            ms(record.latency_us(|latency| latency.p99_us)),
        ),
        CacheLoad::Purge(_) => {
            let purged = record.special.purged.unwrap_or_default();
            let gone = ms(purged.gone_us as f64);
            format!("gone after {gone} ms, by {} looks; {p99}, {errors} errors", purged.looks)
        }
        CacheLoad::Stale(_) => {
            format!(
                "{} failed, then {} without the origin; {p99}",
                halves.before.failed, halves.after.failed
            )
        }
        CacheLoad::Slow(_) => {
            let whole = ms(cached.whole_us as f64);
            format!(
                "{fetches} requests reached the origin for it, whole after {whole} ms; {p99}, \
                    {errors} errors"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::cache::{Herd, Purge, Restart, SlowReaders, Stale, Zipf};
    use crate::bench::record::outcome::Special;

    fn special() -> Special {
        let cached = Cached {
            fetches: 250,
            requests: 1000,
            room_bytes: 1 << 20,
            taken_bytes: 2 << 20,
            best_percent: 80.0,
            lru_percent: 70.0,
            answers: 900,
            same_lru_percent: 60.0,
            ..Cached::default()
        };
        Special { cached: Some(cached), halves: Some(Halves::default()), ..Special::default() }
    }

    #[test]
    fn a_row_has_a_figure_for_each_column() {
        let record = Record { special: special(), ..Record::default() };
        let zipf = CacheLoad::Zipf(Zipf { keys: 1, body: 1, room_mib: 1, alpha: 1.0 });
        assert_eq!(
            row(Load::Cache(zipf), &[&record]),
            ["250", "75.0 %", "80.0 %", "70.0 %", "900", "1.250", "2.00"]
        );
        assert!(
            progress(zipf, &record)
                .contains("250 of 1000 requests reached the origin (75.0 % hits)")
        );
        let all = [
            zipf,
            CacheLoad::Herd(Herd { clients: 1, answer_ms: 1, is_private: false }),
            CacheLoad::Purge(Purge { objects: 1, room_mib: 1 }),
            CacheLoad::Stale(Stale { keys: 1, lifetime_s: 1 }),
            CacheLoad::Slow(SlowReaders { readers: 1, body: 1, answer_ms: 1 }),
            CacheLoad::Restart(Restart { objects: 1, body: 1 }),
        ];
        for load in all {
            assert_eq!(
                row(Load::Cache(load), &[&record]).len(),
                columns(Load::Cache(load)).len(),
                "{load:?}"
            );
        }
        assert_eq!((row(Load::Stall, &[&record]).len(), columns(Load::Stall).len()), (0, 0));
    }

    #[test]
    fn what_happened_is_told_while_it_runs() {
        let purged = Purged { gone_us: 1500, looks: 70, ..Purged::default() };
        let record =
            Record { special: Special { purged: Some(purged), ..special() }, ..Record::default() };
        let line = progress(CacheLoad::Purge(Purge { objects: 1, room_mib: 1 }), &record);
        assert!(line.starts_with("gone after 1.5") && line.contains("by 70 looks"), "{line}");
    }
}
