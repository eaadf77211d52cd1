//! How the experiment `cache` is shown: columns that only it has, its line of progress, and how it was measured.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::numbers::{ms, number};
use crate::bench::experiment::cells::Load;
use crate::bench::record::cache::Cached;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::middle;

/// What is said behind the usual method.
pub(super) const METHOD: &str = "
Caches. All get answers that say nothing of their lifetime and are told that it is an hour. nginx: `proxy_cache` on /dev/shm, `proxy_cache_lock`, `open_file_cache`, `use_temp_path=off`, sendfile, and a manager that deletes 10,000 files at a time, each 50 ms, else it keeps far more than it may; what it has in files is not in its PSS. Varnish: `-s malloc`, no
grace, a pool of threads a core, cookies of requests dropped as the built-in VCL would pass them by; its child process counts, too. weir: `cache` with `ttl`, and `object-limit \"1MiB\"`. `weir` is weir without a cache: what a hit saves. The one answer is
stored before anything counts. In `herd` the programs start anew, 1,000 clients ask for the same at once, and the origin writes down what it gets; in `zipf` they start anew with room for a quarter of the bodies, as much is asked
before the counted time as in it, and hits are those of the clients' requests that the origin did not get. `best` is the share of a cache that always has the most wanted ones and needs no byte besides bodies. weir's own
origin stands behind both.
";

/// Columns behind the usual ones of a load.
pub(super) fn columns(load: Load) -> &'static [&'static str] {
    match load {
        Load::Herd(_) => &["requests at the origin"],
        Load::Zipf(_) => &["requests at the origin", "hits", "best", "PSS / room"],
        _ => &[],
    }
}

/// Their figures.
pub(super) fn row(load: Load, own: &[&Record]) -> Vec<String> {
    let of = |read: fn(&Record, Cached) -> f64| {
        middle(own, &|record: &Record| record.special.cached.map_or(f64::NAN, |cached| read(record, cached)))
    };
    let fetches = number(of(|_, cached| cached.fetches as f64), 0);
    match load {
        Load::Herd(_) => vec![fetches],
        Load::Zipf(_) => vec![
            fetches,
            format!("{} %", number(of(|_, cached| cached.hit_percent()), 1)),
            format!("{} %", number(of(|_, cached| cached.best_percent), 1)),
            number(of(|record, cached| record.pss_bytes as f64 / cached.room_bytes as f64), 2),
        ],
        _ => Vec::new(),
    }
}

/// For somebody who waits.
pub(super) fn progress(record: &Record) -> String {
    let Some(cached) = record.special.cached else { return String::new() };
    let errors: u64 = record.errors.values().sum();
    format!(
        "{:>6} of {} requests reached the origin ({:.1} % hits), p99 {} ms, {errors} errors",
        cached.fetches,
        cached.requests,
        cached.hit_percent(),
        ms(record.latency_us(|latency| latency.p99_us)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::cache::Zipf;
    use crate::bench::record::outcome::Special;

    #[test]
    fn a_row_has_a_figure_for_each_column() {
        let cached = Cached { fetches: 250, requests: 1000, room_bytes: 1 << 20, best_percent: 80.0 };
        let special = Special { cached: Some(cached), ..Special::default() };
        let record = Record { pss_bytes: 2 << 20, special, ..Record::default() };
        let load = Load::Zipf(Zipf { keys: 1, body: 1, room_mib: 1, alpha: 1.0 });
        let row = row(load, &[&record]);
        assert_eq!(row, ["250", "75.0 %", "80.0 %", "2.00"]);
        assert_eq!(row.len(), columns(load).len());
        assert!(progress(&record).contains("250 of 1000 requests reached the origin (75.0 % hits)"));
    }
}
