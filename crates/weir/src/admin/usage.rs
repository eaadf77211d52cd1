//! The activity of clients that choose their destination, over all workers: reports -> the part of
//! the document. Called by `status`; pure. Bound: [`ROWS_MAX`] destinations and users, the busiest
//! first; the rest is one sum.

use std::collections::BTreeMap;

use weir_proxy::observe::accounting::{self, ROWS_MAX};
use weir_proxy::observe::report::{UsageReport, UsedReport};

use super::document::{Usage, Use, Uses};

/// Weight of a request, a tunnel or a rejection, in bytes, in the search for the busiest.
const REQUEST_BYTES: u64 = 1000;

/// Adds up the reports of workers; None: weir has no such clients.
pub(super) fn usage<'a>(reports: impl Iterator<Item = &'a UsageReport>) -> Option<Usage> {
    let reports: Vec<&UsageReport> = reports.collect();
    (!reports.is_empty()).then(|| Usage {
        destinations: merged(reports.iter().map(|report| &report.destinations)),
        users: merged(reports.iter().map(|report| &report.users)),
    })
}

fn merged<'a>(reports: impl Iterator<Item = &'a UsedReport>) -> Uses {
    let mut all: BTreeMap<&str, (u64, accounting::Use)> = BTreeMap::new();
    let (mut others, mut connections) = (accounting::Use::default(), 0);
    for report in reports {
        others.add(&report.others);
        connections += u64::from(report.others_connections);
        for row in &report.rows {
            let (connections, used) = all.entry(&row.name).or_default();
            *connections += u64::from(row.connections);
            used.add(&row.used);
        }
    }
    let mut rows: Vec<_> = all.into_iter().collect();
    rows.sort_by_key(|(_, (_, used))| std::cmp::Reverse(weight(used)));
    let few = rows.split_off(rows.len().min(ROWS_MAX));
    few.iter().for_each(|(_, (_, used))| others.add(used));
    connections += few.iter().map(|(_, (connections, _))| connections).sum::<u64>();
    Uses {
        rows: rows
            .into_iter()
            .map(|(name, (connections, used))| row(name, connections, used))
            .collect(),
        others: row("", connections, others),
    }
}

fn weight(used: &accounting::Use) -> u64 {
    let refusals: u64 = used.refusals.iter().map(|(_, count)| count).sum();
    let requests = used.requests.saturating_add(used.tunnels).saturating_add(refusals);
    requests
        .saturating_mul(REQUEST_BYTES)
        .saturating_add(used.bytes_in)
        .saturating_add(used.bytes_out)
}

fn row(name: &str, connections: u64, used: accounting::Use) -> Use {
    Use {
        name: name.to_owned(),
        connections,
        requests: used.requests,
        tunnels: used.tunnels,
        bytes_in: used.bytes_in,
        bytes_out: used.bytes_out,
        refusals: used.refusals.into_iter().map(|(word, count)| (word.to_owned(), count)).collect(),
    }
}

#[cfg(test)]
mod tests {
    //! Proves: workers are added up, the busiest come first, and the rest is in the sum. How:
    //! made-up reports.

    use super::*;
    use weir_proxy::observe::report::UsedRow;

    fn row(
        name: &str,
        connections: u32,
        requests: u64,
        bytes_in: u64,
        words: &[&'static str],
    ) -> UsedRow {
        let refusals = words.iter().map(|word| (*word, 1)).collect();
        let used = accounting::Use { requests, bytes_in, refusals, ..accounting::Use::default() };
        UsedRow { name: name.into(), connections, used }
    }

    fn report(rows: Vec<UsedRow>) -> UsageReport {
        let others = accounting::Use { tunnels: 3, ..accounting::Use::default() };
        UsageReport {
            destinations: UsedReport { rows, others, others_connections: 2 },
            ..UsageReport::default()
        }
    }

    #[test]
    fn workers_are_added_up() {
        assert_eq!(usage([].into_iter()), None);
        let one = report(vec![
            row("a:80", 1, 5, 10, &["connect-failed"]),
            row("b:443", 1, 1, 9_000, &[]),
        ]);
        let two = report(vec![
            row("a:80", 2, 1, 20, &["connect-failed", "port-not-allowed"]),
            row("c:1", 0, 0, 0, &["x"]),
        ]);
        let told = usage([&one, &two].into_iter()).unwrap();
        let names: Vec<&str> = told.destinations.rows.iter().map(|row| &*row.name).collect();
        assert_eq!(names, ["b:443", "a:80", "c:1"]);
        let a = &told.destinations.rows[1];
        assert_eq!((a.connections, a.requests, a.bytes_in), (3, 6, 30));
        assert_eq!(
            a.refusals,
            [("connect-failed".to_owned(), 2), ("port-not-allowed".to_owned(), 1)].into()
        );
        assert_eq!(
            (told.destinations.others.tunnels, told.destinations.others.connections),
            (6, 4)
        );
        assert_eq!(told.users, Uses::default());
    }

    #[test]
    fn there_is_an_end() {
        let of = |worker: usize| {
            report((0..1000).map(|n| row(&format!("{worker}-{n}"), 1, n, 0, &[])).collect())
        };
        let told = usage([of(1), of(2)].iter()).unwrap().destinations;
        assert_eq!(told.rows.len(), 1000);
        assert_eq!((told.rows[0].requests, told.rows[999].requests), (999, 500));
        assert_eq!((told.others.requests, told.others.connections), (499 * 500, 1004));
    }
}
