//! A report as Markdown: the targets, then a table for each cell, then how everything was
//! configured.
//!
//! Called by `bench/mod.rs`. The figures are those of `figures.rs`.

use std::fmt::Write as _;

use super::figures::{Judged, Report, Row, Sheet};
use super::setup;
use crate::bench::experiment::cells::Cell;

/// The whole text.
pub(crate) fn text(report: &Report<'_>) -> String {
    let mut text =
        format!("# weir bench {}: {}\n\n", report.experiment.name, report.experiment.title);
    text.push_str(&circumstances(report));
    text.push_str(&targets(report));
    for cell in report.cells {
        text.push_str(&table(report, cell));
    }
    let _ = write!(text, "## Method\n\n{}", report.method());
    text.push_str(&setup(report));
    text
}

fn circumstances(report: &Report<'_>) -> String {
    let mut text = report.setting() + "\n\n";
    for (name, line) in &report.circumstances.said {
        let _ = writeln!(text, "- {name}: {line}");
    }
    text.push('\n');
    text
}

fn targets(report: &Report<'_>) -> String {
    let judged = report.judged();
    if judged.is_empty() {
        return String::new();
    }
    let mut text = String::from("## Targets\n\n| | target | measured | |\n|---|---|---|---|\n");
    for Judged { title, bound, measured, is_met, remark } in judged {
        let run = if report.options.quick { "quick" } else { "partial" };
        let verdict = match (is_met, report.decides()) {
            (None, _) => "not measured".to_owned(),
            (Some(true), true) => "pass".to_owned(),
            (Some(false), true) => "**miss**".to_owned(),
            (Some(true), false) => format!("within, in a {run} run"),
            (Some(false), false) => format!("**outside**, in a {run} run"),
        };
        let _ = writeln!(text, "| {title} | {bound} | {measured} | {verdict}{remark} |");
    }
    text.push('\n');
    text
}

fn table(report: &Report<'_>, cell: &Cell) -> String {
    let sheet = report.sheet(cell);
    let rounds = sheet.rounds();
    let Sheet { columns, rows, .. } = sheet;
    let mut text = format!("## {}: {}\n\n| |", cell.name, cell.title);
    columns.iter().for_each(|column| {
        let _ = write!(text, " {column} |");
    });
    let _ = writeln!(text, "\n|{}", "---|".repeat(columns.len() + 1));
    for Row { contender, figures, .. } in rows {
        let figures = figures.map(|figures| figures.join(" | "));
        let figures = figures.unwrap_or_else(|why| {
            format!("not run: {why} |{}", " |".repeat(columns.len() - 2) + " ")
        });
        let _ = writeln!(text, "| {contender} | {figures} |");
    }
    let _ = writeln!(text, "\n{rounds}\n");
    for chosen in report.chosen(cell) {
        let _ = writeln!(text, "- {chosen}");
    }
    text + if report.chosen(cell).is_empty() { "" } else { "\n" }
}

/// Environment, command lines and configurations.
fn setup(report: &Report<'_>) -> String {
    let mut text = String::from("\n## Environment\n\n| | |\n|---|---|\n");
    for (name, value) in setup::environment(report) {
        let _ = writeln!(text, "| {name} | {} |", value.replace('|', "\\|"));
    }
    if !report.settings.is_empty() {
        text.push_str("\n## Command lines and configurations\n");
    }
    for setting in report.settings {
        let _ = write!(
            text,
            "\n### {}\n\n```text\n{}```\n",
            setup::heading(setting),
            setup::text(setting)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::catalogue::EXPERIMENTS;
    use crate::bench::experiment::cells::Axes;
    use crate::bench::experiment::selection::BenchOptions;
    use crate::bench::record::answers::Latency;
    use crate::bench::record::circumstances::Circumstances;
    use crate::bench::record::outcome::Record;
    use crate::bench::record::sweep::{Sweep, Tried};

    fn options() -> BenchOptions {
        BenchOptions { quick: true, ..BenchOptions::of_test("targets") }
    }

    /// Returns a run of one second on all cores: this much CPU of the proxy for each of 1,000
    /// requests, the rest to the others.
    fn record(cell: &str, contender: &str, round: u32, cpu_us: f64) -> Record {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        Record {
            cell: cell.to_owned(),
            contender: contender.to_owned(),
            round,
            requests: 1000,
            rate: 1000.0,
            wall_us: 1e6,
            proxy_us: cpu_us * 1000.0,
            generator_us: 1e6 * cores - cpu_us * 1000.0,
            latency: Some(Latency {
                p50_us: 400,
                p95_us: 900,
                p99_us: 12_345,
                p999_us: 20_000,
                max_us: 30_000,
            }),
            ..Record::default()
        }
    }

    fn text(records: &[Record]) -> String {
        let experiment = &EXPERIMENTS[0];
        let mut cells = (experiment.cells)(&Axes::default());
        cells.retain(|cell| cell.name == "c64" || cell.name == "idle");
        let said = vec![("weir".to_owned(), "weir: io_uring".to_owned())];
        let circumstances = &Circumstances { said, ..Circumstances::default() };
        let (options, settings, stopped) = (&options(), &[][..], None);
        let tried = |setting: &str, us| Tried {
            setting: setting.to_owned(),
            cpu_us: vec![us],
            rates: vec![1.0],
            failures: 0,
        };
        let sweeps =
            &[Sweep::of("haproxy", "c64", vec![tried("ratio 20", 9.0), tried("ratio 90", 6.0)])];
        super::text(&Report {
            experiment,
            options,
            cells: &cells,
            records,
            circumstances,
            settings,
            sweeps,
            stopped,
        })
    }

    #[test]
    fn targets_are_judged_by_the_median_ratio_and_what_was_not_measured_is_said() {
        let mut records = Vec::new();
        for (round, weir_us, epoll_us) in [(1, 4.0, 7.0), (2, 4.4, 9.0), (3, 9.0, 8.0)] {
            records.push(record("c64", "nginx", round, 10.0));
            records.push(record("c64", "weir", round, weir_us));
            records.push(record("c64", "weir-epoll", round, epoll_us));
        }
        let text = text(&records);
        assert!(
            text.contains(
                "| CPU a request, 64 connections, against nginx | ≤ 0.50 | 0.44 \
                (0.40-0.90) | within, in a quick run, but the bound lies within the interval |"
            ),
            "{text}"
        );
        assert!(text.contains(
            "| epoll: CPU a request, 64 connections, against nginx | ≤ 0.65 | 0.80 (0.70-0.90) | \
                **outside**, in a quick run |"
        ));
        assert!(
            text.contains(
                "| user memory for an idle connection, bytes | ≤ 512 | - | not measured |"
            ),
            "{text}"
        );
        assert!(!text.contains("4,000 connections"), "that cell was not selected: {text}");
        assert!(text.contains("- weir: weir: io_uring\n"));
    }

    #[test]
    fn the_settings_of_a_sweep_stand_below_the_table_of_their_cell() {
        let text = text(&[record("c64", "haproxy", 1, 6.0), record("c64", "weir", 1, 4.0)]);
        let told =
            "- haproxy has `ratio 90`, 6.0 µs a request in a short sweep (ratio 20: 9.0 µs).\n";
        let (table, rest) = text.split_once(told).expect("it is told");
        assert!(table.contains("## c64: ") && !table.contains("## idle: "), "{text}");
        assert!(rest.contains("## idle: ") && !rest.contains("in a short sweep ("), "{text}");
    }

    #[test]
    fn a_row_says_what_limited_it_and_which_errors_there_were() {
        let mut limited = record("c64", "weir", 1, 4.0);
        limited.errors.insert("timed_out".to_owned(), 3);
        limited.generator_limit = Some("a thread was busy".to_owned());
        let mut disturbed = record("c64", "nginx", 1, 10.0);
        disturbed.generator_us = 0.0;
        let text = text(&[limited, disturbed]);
        let row = |name: &str| {
            text.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap().to_owned()
        };
        let cells: Vec<String> =
            row("weir").split('|').map(|cell| cell.trim().to_owned()).collect();
        assert_eq!(cells[1..6], ["weir", "1000", "-", "1.00 (1.00-1.00)", "0.40 (0.40-0.40)"]);
        assert_eq!(cells[6..12], ["0.40", "12", "20", "30", "-", "timed_out 3"]);
        assert!(
            row("weir").contains("the rate is a floor; **the generator**: a thread was busy |"),
            "{}",
            row("weir")
        );
        assert!(row("nginx").contains("**not quiet: "), "{}", row("nginx"));
        assert!(text.contains("within, in a quick run, but 3 errors |"), "{text}");
    }

    #[test]
    fn a_contender_that_was_not_run_says_why_and_has_no_figures() {
        let stopped =
            Record { not_run: Some("no ports".to_owned()), ..record("c64", "haproxy", 1, 1.0) };
        let text = text(&[record("c64", "nginx", 1, 10.0), stopped]);
        let row = text.lines().find(|line| line.starts_with("| haproxy |")).unwrap();
        assert!(row.starts_with("| haproxy | not run: no ports |"), "{row}");
        let head = text.lines().find(|line| line.starts_with("| | rate /s |")).unwrap();
        assert_eq!(row.matches('|').count(), head.matches('|').count());
    }
}
