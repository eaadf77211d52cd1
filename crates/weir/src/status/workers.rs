//! Workers for people: a row each, so that a late one is noticed. Pure: document -> text. Called by
//! `overview`.

use std::cmp::Reverse;
use std::time::Duration;

use super::figures::{count, span, time};
use super::overview::Look;
use super::table::{Cell, Column, Row, Tone, number, table, text};
use crate::admin::document::Worker;

/// With more workers only the latest ones are shown.
const ROWS_MAX: usize = 8;
/// Microseconds from which a turn, or a wait, is late.
const LATE_US: u64 = 5_000;
/// A worker that is starved for more than this share of its time needs attention, in thousandths.
const STARVED: u32 = 50;
/// And more than this is bad.
const STARVED_BADLY: u32 = 200;

/// Returns the table, without workers that report no turns.
pub(crate) fn workers(workers: &[Worker], look: Look) -> String {
    let mut shown: Vec<&Worker> = workers.iter().filter(|worker| worker.turn.count > 0).collect();
    if shown.is_empty() {
        return String::new();
    }
    let others = shown.len().saturating_sub(ROWS_MAX);
    if others > 0 {
        shown.sort_by_key(|worker| Reverse(lateness(worker)));
        shown.truncate(ROWS_MAX);
    }
    // Left out first on a narrow terminal: medians, the longest.
    let columns: [Column; 10] = [
        text("WORKER"),
        text("CORE"),
        number("CLIENTS", 0),
        number("OPEN", 0),
        number("STARVED", 0),
        number("TURN P50", 4),
        number("TURN P99", 0),
        number("TURN MAX", 2),
        number("WAIT P50", 3),
        number("WAIT P99", 0),
    ];
    let rows: Vec<Row> = shown.into_iter().map(row).collect();
    let more = if others > 0 {
        format!("  and {others} more, which are less late\n")
    } else {
        String::new()
    };
    format!("\n{}{more}", table(&columns, &rows, 2, look.width, look.colour))
}

/// Returns a measure that is greater for a later worker.
fn lateness(worker: &Worker) -> (u64, u32, Option<u64>, Option<u64>) {
    let present = if worker.turn_now_us > LATE_US { worker.turn_now_us } else { 0 };
    (present, worker.starved_permille, worker.turn.p99_us, worker.kernel_wait.p99_us)
}

fn row(worker: &Worker) -> Row {
    let toned = |us: Option<u64>| {
        let tone = if us.is_some_and(|us| us > LATE_US) { Tone::Odd } else { Tone::Plain };
        Cell { text: time(us), tone }
    };
    let starved = worker.starved_permille;
    let tone = match starved {
        _ if starved > STARVED_BADLY => Tone::Bad,
        _ if starved > STARVED => Tone::Odd,
        _ => Tone::Plain,
    };
    let cells = vec![
        worker.number.to_string().into(),
        worker.pinning.as_str().into(),
        worker.clients.map_or_else(|| "-".to_owned(), |clients| count(clients as u64)).into(),
        count(worker.open_requests).into(),
        Cell { text: format!("{:.1}%", f64::from(starved) / 10.0), tone },
        time(worker.turn.p50_us).into(),
        toned(worker.turn.p99_us),
        toned(worker.turn.max_us),
        time(worker.kernel_wait.p50_us).into(),
        toned(worker.kernel_wait.p99_us),
    ];
    Row { cells, below: remark(worker) }
}

/// Returns what needs attention.
fn remark(worker: &Worker) -> Option<Cell> {
    let mut parts = Vec::new();
    let mut tone = Tone::Plain;
    if worker.turn_now_us > LATE_US {
        let lasts = match worker.turn_now_us {
            us @ ..1_000_000 => time(Some(us)),
            us => span(Duration::from_micros(us)),
        };
        parts.push(format!("late: its turn has lasted for {lasts}"));
        tone = Tone::Odd;
    }
    if worker.pinning == "let go" {
        parts.push("unpinned: other programs use its core".to_owned());
        tone = Tone::Odd;
    }
    if worker.starved_permille > STARVED_BADLY && worker.pinning != "let go" {
        parts.push("other programs use its core".to_owned());
        tone = Tone::Bad;
    }
    (!parts.is_empty()).then(|| Cell { text: parts.join("; "), tone })
}

#[cfg(test)]
mod tests {
    //! Proves: a late worker is noticed, even among many. How: made-up documents.

    use super::*;
    use crate::admin::document::Latency;

    fn worker(number: usize, turn_us: u64, starved_permille: u32) -> Worker {
        let latency = |p99_us| Latency {
            count: 9,
            p50_us: Some(40),
            p99_us: Some(p99_us),
            max_us: Some(p99_us * 2),
            ..Latency::default()
        };
        Worker {
            number,
            responsive: true,
            clients: Some(320),
            open_requests: 12,
            starved_permille,
            pinning: "pinned".to_owned(),
            turn: latency(turn_us),
            kernel_wait: latency(turn_us / 2),
            ..Worker::default()
        }
    }

    #[test]
    fn the_table() {
        let late = Worker { turn_now_us: 340_000, clients: None, ..worker(1, 31_000, 412) };
        let stuck =
            Worker { turn_now_us: 71_000_000, pinning: "let go".to_owned(), ..worker(2, 900, 51) };
        let all = [worker(0, 210, 3), late, stuck];
        assert_eq!(
            workers(&all, Look { width: 100, colour: false }),
            "
  WORKER  CORE    CLIENTS  OPEN  STARVED  TURN P50  TURN P99  TURN MAX  WAIT P50  WAIT P99
  0       pinned      320    12     0.3%      40us     210us     420us      40us     105us
  1       pinned        -    12    41.2%      40us      31ms      62ms      40us      16ms
    late: its turn has lasted for 340ms; other programs use its core
  2       let go      320    12     5.1%      40us     900us     1.8ms      40us     450us
    late: its turn has lasted for 1m11s; unpinned: other programs use its core
"
        );
        let coloured = workers(&all, Look { width: 100, colour: true });
        assert!(
            coloured.contains("\x1b[31m41.2%\x1b[0m") && coloured.contains("\x1b[33m5.1%\x1b[0m"),
            "{coloured}"
        );
        assert_eq!(workers(&[Worker::default()], Look { width: 80, colour: false }), "");
    }

    #[test]
    fn of_many_the_latest_are_shown() {
        let mut all: Vec<Worker> = (0..64).map(|number| worker(number, 200, 0)).collect();
        all[17] = worker(17, 9_000, 0);
        all[40] = worker(40, 200, 300);
        let shown = workers(&all, Look { width: 80, colour: false });
        let first: Vec<&str> =
            shown.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!((first[0], first[2], first.len()), ("40", "17", ROWS_MAX + 2), "{shown}");
        assert!(shown.ends_with("\n  and 56 more, which are less late\n"), "{shown}");
    }
}
