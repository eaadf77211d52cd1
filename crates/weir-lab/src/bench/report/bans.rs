//! The tables of bans in the experiment `block`: their cost, and how they end.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::numbers::{error_text, number};
use crate::bench::experiment::block::BANS;
use crate::bench::record::answers::Errors;
use crate::bench::record::bans::{Held, Recovery};
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::median;

/// Heads of the table of memory, without the first.
pub(super) const MEMORY: &[&str] = &[
    "resident, MB: no ban",
    "10,000",
    "65,536",
    "65,536 above none, MB",
    "bytes a ban",
    "kernel of the whole machine, MB more: no ban",
    "10,000",
    "65,536",
];
const _: () = assert!(BANS[0] == 0 && BANS[1] == 10_000 && BANS[2] == 65_536);

/// Heads of the table of recovery, without the first.
pub(super) const RECOVERY: &[&str] =
    &["clients", "refused attempts", "end of a ban to the first answer, ms: p50", "max", "errors"];

/// A contender's row: medians.
pub(super) fn memory_row(own: &[&Record]) -> Vec<String> {
    let of = |read: &dyn Fn(&Held) -> f64| {
        median(own.iter().filter_map(|record| record.special.held.as_ref()).map(read).collect())
    };
    let resident =
        |bans| of(&|held| held.of(bans).map_or(f64::NAN, |taken| taken.resident_bytes as f64));
    let kernel =
        |bans| of(&|held| held.of(bans).map_or(f64::NAN, |taken| taken.kernel_bytes as f64));
    let [_, _, most] = BANS;
    let more = of(&|held| held.more_bytes(most));
    let mb = |bytes: f64| number(bytes / 1e6, 1);
    let mut row: Vec<String> = BANS.map(|bans| mb(resident(bans))).into();
    row.extend([mb(more), number(more / f64::from(most), 0)]);
    row.extend(BANS.map(|bans| mb(kernel(bans))));
    row
}

/// A contender's row: all clients of all rounds.
pub(super) fn recovery_row(own: &[&Record]) -> Vec<String> {
    let runs: Vec<&Recovery> =
        own.iter().filter_map(|record| record.special.recovery.as_ref()).collect();
    let times: Vec<f64> =
        runs.iter().flat_map(|run| &run.after_us).map(|us| *us as f64 / 1e3).collect();
    let longest = times.iter().copied().fold(f64::NAN, f64::max);
    let mut errors = Errors::default();
    for (kind, count) in own.iter().flat_map(|record| &record.errors) {
        *errors.entry(kind.clone()).or_default() += count;
    }
    vec![
        times.len().to_string(),
        runs.iter().map(|run| run.refused).sum::<u64>().to_string(),
        number(median(times), 1),
        number(longest, 1),
        error_text(&errors),
    ]
}

/// Returns the line of progress for memory.
pub(super) fn memory_progress(record: &Record) -> String {
    let Some(held) = &record.special.held else { return String::new() };
    let [_, _, most] = BANS;
    format!("{:>5.1} MB for {most} bans", held.more_bytes(most) / 1e6)
}

/// Returns the line of progress for recovery.
pub(super) fn recovery_progress(record: &Record) -> String {
    let Some(recovery) = &record.special.recovery else { return String::new() };
    let errors: u64 = record.errors.values().sum();
    format!(
        "{:>5.1} ms from the end of a ban to an answer, for the slowest; {errors} errors",
        recovery.longest_ms()
    )
}
