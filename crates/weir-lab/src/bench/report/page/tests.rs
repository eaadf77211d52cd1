//! Proves: the page shows what was measured and nothing else. How: pages of records whose medians
//! are known; cells of tables are read back from the HTML.

use super::*;
use crate::bench::experiment::catalogue::{EXPERIMENTS, Experiment};
use crate::bench::experiment::cells::{Axes, Cell};
use crate::bench::experiment::selection::BenchOptions;
use crate::bench::record::answers::Latency;
use crate::bench::record::circumstances::Circumstances;
use crate::bench::record::mixed::Mixed;
use crate::bench::record::outcome::Record;

fn experiment(name: &str) -> &'static Experiment {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name).unwrap()
}

/// A run in which half of the machine was idle.
fn record(cell: &str, contender: &str, round: u32, rate: f64, cpu_us: f64) -> Record {
    Record {
        cell: cell.to_owned(),
        contender: contender.to_owned(),
        round,
        requests: 1000,
        rate,
        wall_us: 1e6,
        proxy_us: cpu_us * 1000.0,
        generator_us: 2000.0,
        origin_us: 3000.0,
        idle: 0.5,
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

fn page(name: &str, records: &[Record]) -> String {
    page_of(name, records, &BenchOptions::of_test(""))
}

fn page_of(name: &str, records: &[Record], options: &BenchOptions) -> String {
    let experiment = experiment(name);
    let mut cells: Vec<Cell> = (experiment.cells)(&Axes::default());
    cells.retain(|cell| records.iter().any(|record| record.cell == cell.name));
    let circumstances =
        &Circumstances { processor: "A & B <fast>".to_owned(), ..Circumstances::default() };
    let (cells, settings, sweeps, stopped) = (&cells[..], &[][..], &[][..], None);
    html(&Report { experiment, options, cells, records, circumstances, settings, sweeps, stopped })
        .unwrap()
}

/// Returns the cells of the first row that begins with this text.
fn row<'a>(html: &'a str, first: &str) -> Vec<&'a str> {
    let begins = format!("<td>{first}<td");
    let line = html.lines().find(|line| line.starts_with("<tr") && line.contains(&begins)).unwrap();
    line.split("<td").skip(1).map(|cell| cell.split_once('>').unwrap().1).collect()
}

/// Three rounds of nginx and weir over three numbers of connections.
fn proxying() -> Vec<Record> {
    let mut records = Vec::new();
    for cell in ["c1", "c64", "c4096"] {
        for (round, nginx, weir) in
            [(1, 10_000.0, 21_000.0), (2, 11_000.0, 20_000.0), (3, 12_000.0, 26_000.0)]
        {
            records.push(record(cell, "nginx", round, nginx, 20.0));
            records.push(record(cell, "weir", round, weir, 8.0));
        }
    }
    records
}

#[test]
fn figures_of_tables_are_those_of_the_records() {
    let html = page("proxying", &proxying());
    let cells = row(&html, "weir");
    // Rates of nginx and weir by round: ratios 2.1, 1.82 and 2.17; the median is not that of
    // medians.
    assert_eq!(
        cells[..6],
        ["weir", "21000", "-", "2.10 (1.82-2.17)", "0.40 (0.40-0.40)", "0.40"],
        "{cells:?}"
    );
    assert_eq!(cells[6..12], ["12", "20", "30", "-", "0", "0"], "{cells:?}");
    assert_eq!(cells[12..16], ["8.00", "2.00", "3.00", "50 %"], "{cells:?}");
    assert!(html.contains("weir reaches 2.10 (1 connection, 3 B) times the rate of nginx."));
    assert!(!html.contains("NaN") && !html.contains("inf"));
}

#[test]
fn cells_on_an_axis_are_lines_and_the_others_bars() {
    let lines = page("proxying", &proxying());
    for title in ["Rate", "CPU time of the proxy", "99th percentile of the latency"] {
        assert_eq!(lines.matches(&format!("aria-label=\"{title}\"")).count(), 1, "{title}");
    }
    assert!(
        lines.contains("\n4,096\n") && !lines.contains("\nhaproxy\n"),
        "who was not measured has no line"
    );
    assert_eq!(lines.matches("<svg").count(), 3, "no errors, no chart of them");
    let bars = page(
        "targets",
        &[record("c64", "nginx", 1, 100.0, 2.0), record("c64", "weir", 1, 250.0, 1.0)],
    );
    for title in
        ["Rate, nginx = 1 (more is better)", "CPU time per request, nginx = 1 (less is better)"]
    {
        assert_eq!(bars.matches(&format!("aria-label=\"{title}\"")).count(), 1, "{title}");
    }
    assert!(bars.contains("\n2.50\n") && bars.contains("\n0.50\n") && !bars.contains("direct = 1"));
}

#[test]
fn errors_have_a_chart_as_soon_as_there_are_any() {
    let mut records = proxying();
    records[0].errors.insert("reset".to_owned(), 3);
    let html = page("proxying", &records);
    assert_eq!(html.matches("aria-label=\"Errors\"").count(), 1);
    assert_eq!(row(&html, "nginx")[10], "reset 3");
}

#[test]
fn a_row_in_which_the_generator_was_the_limit_is_marked_in_table_and_chart() {
    let mut records = proxying();
    let before = page("proxying", &records);
    assert!(
        !before.contains("class=\"limited\"")
            && !before.contains("hollow")
            && !before.contains(LIMITED)
    );
    records[1].generator_limit = Some("a thread was busy".to_owned());
    let html = page("proxying", &records);
    assert_eq!(html.matches("<tr class=\"limited\"><td>weir<td").count(), 1);
    assert!(html.contains(LIMITED) && html.contains("the generator: a thread was busy"));
    assert_eq!(html.matches("\nhollow: ").count(), 2, "rate and latency");
}

#[test]
fn targets_come_first_and_what_is_unknown_is_said() {
    let html = page(
        "targets",
        &[record("c64", "nginx", 1, 100.0, 2.0), record("c64", "weir", 1, 250.0, 1.5)],
    );
    assert!(html.contains("Of 4 targets 0 are met, 1 missed, 3 not measured."), "{html}");
    let cells = row(&html, "CPU a request, 64 connections, against nginx");
    assert_eq!(cells[1..], ["≤ 0.50", "0.75", "miss"]);
    let cells = row(&html, "connections=128: CPU a request, 64 connections, against nginx");
    assert_eq!(cells[1..], ["≤ 0.60", "-", "not measured"]);
    assert!(html.find("not measured").unwrap() < html.find("<svg").unwrap());
    let quick = BenchOptions { quick: true, ..BenchOptions::of_test("") };
    let records = [record("c64", "nginx", 1, 100.0, 2.0), record("c64", "weir", 1, 250.0, 0.5)];
    let html = page_of("targets", &records, &quick);
    let said = "A quick run decides nothing: of 4 targets 1 are within their bounds, 0 outside, 3 \
        not measured.";
    assert!(html.contains(said) && !html.contains(" met"), "{html}");
    assert_eq!(
        row(&html, "CPU a request, 64 connections, against nginx")[1..],
        ["≤ 0.50", "0.25", "within"]
    );
}

#[test]
fn bounds_of_differences_and_sums_over_rounds_are_judged() {
    let mut records = Vec::new();
    // One request of the second round was executed twice, and weir was late one time more often in
    // 1,000 than nginx.
    for (round, twice) in [(1, 0), (2, 1), (3, 0)] {
        for (cell, contender, late) in
            [("beside-8", "nginx", 1), ("beside-8", "weir", 2), ("twice", "weir", 0)]
        {
            let mut record = record(cell, contender, round, 1000.0, 10.0);
            let twice = (cell == "twice").then_some(twice);
            record.special.mixed =
                Some(Mixed { answered: 1000, late, twice, numbered: twice, ..Mixed::default() });
            records.push(record);
        }
    }
    let html = page("mixed", &records);
    let late = row(&html, "beside 8 slow clients: fast answers over 8 ms, %, more than nginx");
    assert_eq!(late[1..3], ["≤ +0.10", "0.10"], "{late:?}");
    assert_eq!(row(&html, "requests executed twice")[1..], ["≤ 0.00", "1.00", "miss"]);
    assert!(html.contains("1 of 1"), "{html}");
}

#[test]
fn who_was_not_run_has_a_reason_and_no_mark() {
    let mut records = proxying();
    records.push(Record {
        not_run: Some("no ports".to_owned()),
        ..record("c64", "haproxy", 1, 5000.0, 1.0)
    });
    let html = page("proxying", &records);
    let (cells, head) = (row(&html, "haproxy"), row(&html, "weir"));
    assert_eq!(
        (cells[1], cells[cells.len() - 1], cells.len()),
        ("-", "not run: no ports", head.len())
    );
    assert!(!html.contains("\nhaproxy\n"));
}

#[test]
fn a_page_needs_nothing_from_elsewhere_and_escapes_what_it_says() {
    let html = page("proxying", &proxying());
    assert!(html.contains("A &amp; B &lt;fast&gt;"), "{html}");
    let outside = html.replace("http://www.w3.org/2000/svg", "");
    assert!(
        !outside.contains("http://")
            && !outside.contains("https://")
            && !outside.contains("<script")
    );
    assert!(html.contains("<a href=\"proxying.jsonl\">"));
    assert!(!html.contains("**"), "no Markdown");
}

#[test]
fn bodies_lie_across_when_there_are_more_of_them() {
    let records: Vec<Record> = ["c64-browser-3b", "c64-browser-3kb", "c64-browser-64kb"]
        .map(|cell| record(cell, "weir", 1, 100.0, 1.0))
        .into();
    let html = page("sweep", &records);
    assert!(html.contains("<h2>Browser, 64 connections by length of the body</h2>"), "{html}");
    assert!(html.contains("\n64 KiB\n") && html.contains("\n3 B\n"));
}
