//! A run as one self-contained HTML file: its parameters, its results, and charts as SVG.
//!
//! Called by the verb. Reads the record and its summary only; all text from users is escaped.

use std::collections::BTreeMap;

use super::record::{Identity, Line, Record};
use super::slice::Slice;
use super::summary::{ClassSummary, Percentiles, Summary, time};
use crate::chart::{Across, Lines, Palette, Point, Series};
use crate::machine::Machine;
use crate::page::{Page, Table};

/// The whole file.
///
/// # Errors
/// A chart can't be drawn, which would be a bug.
pub fn html(record: &Record, summary: &Summary) -> Result<String, String> {
    let mut page = Page::new("weir bomb");
    put_run(&mut page, record);
    put_verdict(&mut page, summary);
    put_classes(&mut page, summary);
    for chart in charts(record, summary).iter().filter(|chart| is_worth_it(chart)) {
        page.chart(&chart.svg()?);
    }
    page.heading("All counts");
    page.verbatim(&summary.to_string());
    Ok(page.finish())
}

fn put_run(page: &mut Page, record: &Record) {
    let Some(Line::Run(run)) = record.lines().next() else { return };
    put_identity(page, &run.identity, run.seed);
    let mut table = Table::new(&["class", "host", "connections", "rate", "behaviour", "requests"]);
    for class in &run.classes {
        let rate = class.rate.clone().unwrap_or_else(|| "closed loop".to_owned());
        let requests = class.requests.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
        table.row(&[
            &class.name,
            &class.host,
            &class.connections.to_string(),
            &rate,
            &class.behaviour,
            &requests,
        ]);
    }
    page.table(&table);
}

/// Writes the version, machine, date and command line; nothing for a record without them.
fn put_identity(
    page: &mut Page,
    Identity { date, weir, machine, command }: &Identity,
    seed: Option<u64>,
) {
    if date.is_empty() {
        return;
    }
    let Machine { processor, cores, memory_mib, kernel } = machine;
    let mut table = Table::new(&["", ""]);
    let rows = [
        ("date", date.clone()),
        ("version", weir.clone()),
        ("processor", processor.clone()),
        ("cores", cores.to_string()),
        ("memory", format!("{memory_mib} MiB")),
        ("kernel", format!("Linux {kernel}")),
        ("seed", seed.map_or_else(|| "unknown".to_owned(), |seed| seed.to_string())),
    ];
    rows.iter().for_each(|(name, value)| table.row_of("text", &[*name, value]));
    page.table(&table);
    page.verbatim(&format!("$ {command}"));
}

fn put_verdict(page: &mut Page, summary: &Summary) {
    let generator = &summary.generator;
    let (seconds, busy) = (summary.seconds, generator.busy * 100.0);
    let (threads, driver) = (generator.threads, &generator.driver);
    page.paragraph(&format!(
        "{seconds:.1} s, {threads} threads on {driver}, at most {busy:.0} % busy."
    ));
    if let Some(cause) = &generator.limit {
        page.paragraph_of("limit", &format!("The generator was the limit: {cause}."));
    }
}

fn put_classes(page: &mut Page, summary: &Summary) {
    let columns = [
        "class",
        "offered/s",
        "answered/s",
        "blocked",
        "latency",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
    ];
    let mut table = Table::new(&columns);
    for class in &summary.classes {
        put_class(&mut table, class, "from due", class.corrected);
        put_class(&mut table, class, "from sent", class.raw);
        if class.corrected.or(class.raw).is_none() {
            put_class(&mut table, class, "-", None);
        }
    }
    page.table(&table);
}

fn put_class(table: &mut Table, class: &ClassSummary, what: &str, times: Option<Percentiles>) {
    if times.is_none() && what != "-" {
        return;
    }
    let at = |which: fn(&Percentiles) -> u64| {
        times.as_ref().map_or_else(|| "-".to_owned(), |times| time(which(times)))
    };
    table.row(&[
        class.name.clone(),
        format!("{:.0}", class.offered_per_second),
        format!("{:.0}", class.answered_per_second),
        format!("{:.2} %", class.blocked * 100.0),
        what.to_owned(),
        at(|times| times.p50_us),
        at(|times| times.p90_us),
        at(|times| times.p99_us),
        at(|times| times.p999_us),
        at(|times| times.max_us),
    ]);
}

fn charts(record: &Record, summary: &Summary) -> [Lines; 4] {
    let palette = Palette::new(record.names.iter().map(String::as_str));
    let last = record
        .seconds
        .iter()
        .filter_map(|seconds| seconds.keys().next_back())
        .max()
        .copied()
        .unwrap_or(0);
    // Responses that came after the counted time are not part of a rate.
    let whole = (summary.seconds as u32).clamp(1, last + 1);
    let over = |title: &str, up_name, of: &dyn Fn(&Slice) -> Option<f64>| {
        let classes = record.names.iter().zip(&record.seconds);
        let series = classes.map(|(name, seconds)| {
            let points = over_time(seconds, whole, of);
            Series { name: name.clone(), look: palette.look(name), points }
        });
        let (title, series) = (title.to_owned(), series.collect());
        Lines { title, across: Across::Linear, across_name: "second", up_name, series }
    };
    let p99 = |slice: &Slice| {
        let latency = slice.times()?.latency();
        (!latency.is_empty()).then(|| latency.value_at_quantile(0.99) as f64 / 1e3)
    };
    let rates = over("Answers", "answers/s", &|slice| Some(slice.counts.answered() as f64));
    let blocked = over("Blocked", "attempts/s", &|slice| Some(slice.counts.blocked() as f64));
    let latency = over("99th percentile of the latency", "ms", &p99);
    let distribution = Lines {
        title: "Latency by percentile".to_owned(),
        across: Across::Quantiles,
        across_name: "percentile",
        up_name: "ms",
        series: summary.classes.iter().flat_map(|class| distribution(class, &palette)).collect(),
    };
    [rates, blocked, latency, distribution]
}

/// A chart is drawn only if one of its lines has at least two points.
fn is_worth_it(chart: &Lines) -> bool {
    !chart.is_empty() && chart.series.iter().any(|series| series.points.len() > 1)
}

/// An empty second is 0 where there is a count, and a gap where there is a time.
fn over_time(
    seconds: &BTreeMap<u32, Slice>,
    whole: u32,
    of: &dyn Fn(&Slice) -> Option<f64>,
) -> Vec<Point> {
    let empty = Slice::default();
    let at = |second| of(seconds.get(&second).unwrap_or(&empty)).unwrap_or(f64::NAN);
    (0..whole).map(|second| Point::new(f64::from(second), at(second))).collect()
}

/// Latencies from due and, dashed, from sent, by quantile.
fn distribution(class: &ClassSummary, palette: &Palette) -> Vec<Series> {
    let Some(times) = class.times() else { return Vec::new() };
    let look = palette.look(&class.name);
    let kinds = [("from due", look, &times.corrected), ("from sent", look.dashed(), &times.raw)];
    let of = |(kind, look, histogram): (&str, _, &hdrhistogram::Histogram<u64>)| {
        let most = (histogram.len() as f64).log10().min(5.0);
        let steps = (0..=(most * 20.0) as u32).map(|step| f64::from(step) / 20.0);
        let at = |nines: f64| histogram.value_at_quantile(1.0 - 10f64.powf(-nines)) as f64 / 1e3;
        let points = steps.map(|nines| Point::new(nines, at(nines))).collect();
        Series { name: format!("{} {kind}", class.name), look, points }
    };
    kinds.into_iter().filter(|(_, _, histogram)| !histogram.is_empty()).map(of).collect()
}
