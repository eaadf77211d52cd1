//! A report as one HTML file: the results first, then charts, then all figures, then how it was
//! measured.
//!
//! Called by `bench/mod.rs`. The figures are those of `figures.rs`, the charts those of
//! `drawing.rs`.

use std::fmt::Write as _;

use super::drawing::latency::by_percentile;
use super::drawing::{Section, sections};
use super::figures::{Judged, Report, Row};
use super::setup;
use crate::bench::experiment::cells::Cell;
use crate::bench::experiment::metric::{Compared, Metric};
use crate::bench::record::statistics::Spread;
use crate::page::{Page, Table};

/// Explains marks and bars.
const READING: &str = "Marks and bars are medians over the rounds. The thin bars are their \
    confidence intervals, with the probability that the tables state.";
/// Explains rows that are grey.
const LIMITED: &str = "Hollow marks and grey rows show that generator and origin used most of the \
    machine, or that the generator was at its limit. There the contender may be faster than its \
    rate says, so compare CPU time per request.";

/// Returns the whole file. The raw file is beside it.
///
/// # Errors
/// A chart can't be drawn, which would be a bug.
pub(crate) fn html(report: &Report<'_>) -> Result<String, String> {
    let name = report.experiment.name;
    let mut page = Page::new(&format!("weir bench {name}"));
    page.paragraph(&format!("{}.", title(report.experiment.title)));
    page.paragraph_of("note", &report.setting());
    put_outcome(&mut page, report);
    put_targets(&mut page, &report.judged(), report.decides());
    put_charts(&mut page, report)?;
    put_figures(&mut page, report)?;
    put_method(&mut page, report);
    put_setup(&mut page, report);
    Ok(page.finish())
}

/// Writes the conclusions of the experiment, in a few sentences.
fn put_outcome(page: &mut Page, report: &Report<'_>) {
    let judged = report.judged();
    let count = |of: Option<bool>| judged.iter().filter(|target| target.is_met == of).count();
    if !judged.is_empty() {
        let (met, missed, open) = (count(Some(true)), count(Some(false)), count(None));
        let open = if open == 0 { String::new() } else { format!(", {open} not measured") };
        let all = judged.len();
        let run = if report.options.quick { "quick" } else { "partial" };
        page.paragraph(&if report.decides() {
            format!("Of {all} targets {met} are met, {missed} missed{open}.")
        } else {
            format!(
                "A {run} run decides nothing: of {all} targets {met} are within their bounds, \
                    {missed} outside{open}."
            )
        });
    }
    for compared in report.experiment.compared {
        if let Some(line) = subject(report).and_then(|subject| range(report, compared, subject)) {
            page.paragraph(&line);
        }
    }
    if report.cells.iter().any(|cell| report.sheet(cell).rows.iter().any(|row| row.is_limited)) {
        page.paragraph(LIMITED);
    }
}

/// Returns the subject of an experiment: the first of ours that takes part.
fn subject(report: &Report<'_>) -> Option<&'static str> {
    let ours = ["weir", "bomb", "weir-origin"];
    let measured = |name: &&&str| report.records.iter().any(|record| record.contender == **name);
    ours.iter().find(measured).copied()
}

/// Returns the lowest and the highest ratio over the cells, and where they occur.
fn range(report: &Report<'_>, &(_, metric, against): &Compared, subject: &str) -> Option<String> {
    let compared = report.cells.iter().filter(|cell| !cell.load.is_memory());
    let of =
        |cell: &'_ Cell| Spread::of_ratios(&report.of_cell(&cell.name), metric, subject, against);
    let medians = compared.filter_map(|cell| Some((of(cell)?.median, cell.title.as_str())));
    let medians: Vec<(f64, &str)> = medians.collect();
    let low = medians.iter().copied().reduce(|a, b| if b.0 < a.0 { b } else { a })?;
    let high = medians.iter().copied().reduce(|a, b| if b.0 > a.0 { b } else { a })?;
    let (verb, what) = match metric {
        Metric::Rate => ("reaches", "rate"),
        Metric::P50 => ("has", "median latency"),
        Metric::P99 => ("has", "99th percentile of the latency"),
        Metric::P999 => ("has", "99.9th percentile of the latency"),
        _ => ("needs", "CPU time per request"),
    };
    let mut range = format!("{:.2} ({})", low.0, low.1);
    if low.1 != high.1 {
        let _ = write!(range, " to {:.2} ({})", high.0, high.1);
    }
    Some(format!("{subject} {verb} {range} times the {what} of {against}."))
}

fn put_targets(page: &mut Page, judged: &[Judged], decides: bool) {
    if judged.is_empty() {
        return;
    }
    let mut table = Table::new(&["target", "bound", "measured", "verdict"]);
    for Judged { title, bound, measured, is_met, remark } in judged {
        let (class, verdict) = match (is_met, decides) {
            (None, _) => ("open", "not measured"),
            (Some(true), true) => ("pass", "pass"),
            (Some(false), true) => ("miss", "miss"),
            (Some(true), false) => ("open", "within"),
            (Some(false), false) => ("open", "outside"),
        };
        table.row_of(class, &[&plain(title), bound, measured, &format!("{verdict}{remark}")]);
    }
    page.table(&table);
}

fn put_charts(page: &mut Page, report: &Report<'_>) -> Result<(), String> {
    let sections = sections(report);
    if !sections.is_empty() {
        page.heading("Charts");
        page.paragraph_of("note", READING);
    }
    for Section { heading, lines, bars } in sections {
        if !heading.is_empty() {
            page.heading(&title(&heading));
        }
        for lines in lines {
            page.chart(&lines.svg()?);
        }
        for bars in bars {
            page.chart(&bars.svg()?);
        }
    }
    Ok(())
}

fn put_figures(page: &mut Page, report: &Report<'_>) -> Result<(), String> {
    page.heading("Figures");
    for cell in report.cells {
        let sheet = report.sheet(cell);
        if sheet.rows.is_empty() {
            continue;
        }
        let mut columns = vec![""];
        columns.extend(&sheet.columns);
        let mut table = Table::new(&columns);
        sheet.rows.iter().for_each(|row| put_row(&mut table, row, columns.len()));
        page.subheading(&cell.title);
        page.paragraph_of("note", &format!("{}. {}", cell.name, sheet.rounds()));
        page.table(&table);
        report.chosen(cell).iter().for_each(|chosen| page.paragraph_of("note", &plain(chosen)));
        if let Some(latencies) = by_percentile(report, cell) {
            page.folded("Latency by percentile", |page| {
                latencies.svg().map(|svg| page.chart(&svg))
            })?;
        }
        let generators = report.of_cell(&cell.name);
        if let Some(record) = generators.iter().find(|record| !record.special.generator.is_empty())
        {
            page.folded("The generator of the first run", |page| {
                page.verbatim(&format!("$ {}", record.special.generator));
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn put_row(table: &mut Table, row: &Row, columns: usize) {
    let mut cells = vec![row.contender.to_owned()];
    match &row.figures {
        Ok(figures) => cells.extend(figures.iter().map(|figure| plain(figure))),
        Err(why) => {
            cells.resize(columns - 1, "-".to_owned());
            cells.push(format!("not run: {}", plain(why)));
        }
    }
    table.row_of(if row.is_limited { "limited" } else { "own" }, &cells);
}

fn put_method(page: &mut Page, report: &Report<'_>) {
    page.heading("Method");
    report.method().trim().split("\n\n").for_each(|paragraph| page.paragraph(&plain(paragraph)));
    for (name, line) in &report.circumstances.said {
        page.paragraph_of("note", &format!("{name}: {line}"));
    }
    page.link(
        "Each run with all that was measured is a line of ",
        &format!("{}.jsonl", report.experiment.name),
    );
}

/// Environment, command lines and configurations.
fn put_setup(page: &mut Page, report: &Report<'_>) {
    page.heading("Environment");
    let mut table = Table::new(&["", ""]);
    setup::environment(report)
        .iter()
        .for_each(|(name, value)| table.row_of("text", &[name, value]));
    page.table(&table);
    if !report.settings.is_empty() {
        page.heading("Command lines and configurations");
    }
    for setting in report.settings {
        let _ = page.folded(&setup::heading(setting), |page| {
            page.verbatim(&setup::text(setting));
            Ok(())
        });
    }
}

/// With a capital letter, unless it begins with our name.
fn title(text: &str) -> String {
    if text.starts_with("weir") {
        return text.to_owned();
    }
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Without what is emphasis in Markdown.
fn plain(text: &str) -> String {
    text.replace("**", "").replace('`', "")
}

#[cfg(test)]
mod tests;
