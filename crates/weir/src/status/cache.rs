//! The store, in a line. Called by `overview` and `weir cache`. Pure.

use std::collections::BTreeMap;

use super::figures::{bytes, count};
use crate::admin::cache::CacheFigures;
use crate::admin::document::Status;

/// Results of requests that were served without their server.
const FROM_STORE: [&str; 2] = ["hit", "stale"];

/// Returns the line of the status; empty without a store.
pub(super) fn cache(status: &Status) -> String {
    status
        .cache
        .as_ref()
        .map_or_else(String::new, |figures| format!("cache    {}\n", summary(figures)))
}

/// Returns how full it is, and how much comes from it.
pub(crate) fn summary(figures: &CacheFigures) -> String {
    let mut text = format!(
        "{} of {}, {} responses",
        bytes(figures.bytes),
        bytes(figures.size_bytes),
        count(figures.answers)
    );
    let all: u64 = figures.requests.values().sum();
    if all > 0 {
        let hits: u64 = FROM_STORE.iter().filter_map(|word| figures.requests.get(*word)).sum();
        text +=
            &format!(", hit {:.1} % of {} requests", hits as f64 * 100.0 / all as f64, count(all));
    }
    if figures.fetches > 0 {
        text += &format!(", {} fetches", count(figures.fetches));
    }
    text
}

/// Returns counts by word, without those that are 0.
pub(crate) fn words(counts: &BTreeMap<String, u64>) -> String {
    let shown = counts.iter().filter(|(_, value)| **value > 0);
    let shown: Vec<String> =
        shown.map(|(word, value)| format!("{word} {}", count(*value))).collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join("  ") }
}

#[cfg(test)]
mod tests {
    //! Proves: the line shows how much is stored and how much comes from it. How: a made-up
    //! document.

    use super::*;

    #[test]
    fn the_line() {
        let mut status = Status::default();
        assert_eq!(cache(&status), "");
        let mut figures = CacheFigures {
            size_bytes: 268_435_456,
            bytes: 1234,
            answers: 7,
            ..CacheFigures::default()
        };
        assert_eq!(summary(&figures), "1234B of 268MB, 7 responses");
        let requests = [("hit", 896), ("stale", 4), ("miss", 100)];
        figures.requests = requests.map(|(word, count)| (word.to_owned(), count)).into();
        figures.fetches = 3;
        status.cache = Some(figures);
        assert_eq!(
            cache(&status),
            "cache    1234B of 268MB, 7 responses, hit 90.0 % of 1000 requests, 3 fetches\n"
        );
    }
}
