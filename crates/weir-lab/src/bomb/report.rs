//! A run as one HTML file that needs nothing else: what was run, what came of it, and charts as SVG.
//!
//! Called by the verb. Reads the record and its summary only; everything that users typed is escaped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plotters::prelude::*;

use super::record::{Line, Record};
use super::slice::Slice;
use super::summary::{ClassSummary, Percentiles, Summary, time};

/// Size of a chart, pixels.
const SIZE: (u32, u32) = (860, 300);
/// Colours of lines, told apart also by those who don't see red and green (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
];
const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}.limit{color:#b00;font-weight:600}\
    pre{background:#f5f5f5;padding:.8em;overflow:auto}";

/// Points of one line of a chart.
type Points = Vec<(f64, f64)>;

/// A chart that could not be drawn.
type Failed = DrawingAreaErrorKind<std::io::Error>;

/// One line of a chart.
struct Series {
    name: String,
    points: Points,
}

/// What a chart shows.
struct Chart {
    title: &'static str,
    across: &'static str,
    up: &'static str,
    series: Vec<Series>,
    /// Numbers on the axis across are -log10(1 - quantile) and shown as percentiles.
    quantiles: bool,
}

/// The whole file.
///
/// # Errors
/// A chart can't be drawn, which would be a bug.
pub fn html(record: &Record, summary: &Summary) -> Result<String, String> {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>weir bomb</title>\n");
    let _ = write!(out, "<style>{STYLE}</style>\n<h1>weir bomb</h1>\n");
    put_run(&mut out, record);
    put_verdict(&mut out, summary);
    put_classes(&mut out, summary);
    let (rates, blocked, latency, distribution) = charts(record, summary);
    for chart in [&rates, &blocked, &latency, &distribution] {
        if chart.series.iter().any(|series| series.points.len() > 1) {
            out.push_str(&chart.svg().map_err(|error| format!("{}: {error}", chart.title))?);
        }
    }
    let _ = write!(out, "<h2>All counts</h2>\n<pre>{}</pre>\n</html>\n", escaped(&summary.to_string()));
    Ok(out)
}

fn put_run(out: &mut String, record: &Record) {
    let Some(Line::Run(run)) = record.lines().next() else { return };
    out.push_str("<table><tr><th>class<th>host<th>connections<th>rate<th>behaviour<th>requests\n");
    for class in &run.classes {
        let rate = class.rate.clone().unwrap_or_else(|| "closed loop".to_owned());
        let requests = class.requests.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
        let cells = [&class.name, &class.host, &class.connections.to_string(), &rate, &class.behaviour, &requests];
        put_row(out, &cells.map(String::as_str));
    }
    out.push_str("</table>\n");
}

fn put_verdict(out: &mut String, summary: &Summary) {
    let generator = &summary.generator;
    let (seconds, busy) = (summary.seconds, generator.busy * 100.0);
    let _ = writeln!(
        out,
        "<p>{seconds:.1} s, {} threads on {}, at most {busy:.0} % busy.",
        generator.threads, generator.driver
    );
    if let Some(cause) = &generator.limit {
        let _ = writeln!(out, "<p class=\"limit\">The generator was the limit: {}.", escaped(cause));
    }
}

fn put_classes(out: &mut String, summary: &Summary) {
    out.push_str(
        "<table><tr><th>class<th>offered/s<th>answered/s<th>blocked<th>latency<th>p50<th>p90<th>p99<th>p99.9<th>max\n",
    );
    for class in &summary.classes {
        put_class(out, class, "from due", class.corrected);
        put_class(out, class, "from sent", class.raw);
        if class.corrected.or(class.raw).is_none() {
            put_class(out, class, "-", None);
        }
    }
    out.push_str("</table>\n");
}

fn put_class(out: &mut String, class: &ClassSummary, what: &str, times: Option<Percentiles>) {
    if times.is_none() && what != "-" {
        return;
    }
    let at = |which: fn(&Percentiles) -> u64| times.as_ref().map_or_else(|| "-".to_owned(), |times| time(which(times)));
    let cells = [
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
    ];
    put_row(out, &cells.each_ref().map(String::as_str));
}

fn put_row(out: &mut String, cells: &[&str]) {
    out.push_str("<tr>");
    cells.iter().for_each(|cell| {
        let _ = write!(out, "<td>{}", escaped(cell));
    });
    out.push('\n');
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn charts(record: &Record, summary: &Summary) -> (Chart, Chart, Chart, Chart) {
    let last = record.seconds.iter().filter_map(|seconds| seconds.keys().next_back()).max().copied().unwrap_or(0);
    // Answers that came after the counted time are not part of a rate.
    let whole = (summary.seconds as u32).clamp(1, last + 1);
    let each = |of: &dyn Fn(&Slice) -> Option<f64>| -> Vec<Series> {
        let classes = record.names.iter().zip(&record.seconds);
        classes.map(|(name, seconds)| Series { name: name.clone(), points: over_time(seconds, whole, of) }).collect()
    };
    let chart = |title, up, series| Chart { title, across: "second", up, series, quantiles: false };
    let rates = chart("Answers", "answers/s", each(&|slice| Some(slice.counts.answered() as f64)));
    let blocked = chart("Blocked", "attempts/s", each(&|slice| Some(slice.counts.blocked() as f64)));
    let p99 = |slice: &Slice| {
        let latency = slice.times()?.latency();
        (!latency.is_empty()).then(|| latency.value_at_quantile(0.99) as f64 / 1e3)
    };
    let latency = chart("99th percentile of the latency", "ms", each(&p99));
    let distribution = Chart {
        title: "Latency by percentile",
        across: "percentile",
        up: "ms",
        series: summary.classes.iter().flat_map(distribution).collect(),
        quantiles: true,
    };
    (rates, blocked, latency, distribution)
}

/// A second without anything is 0 where there is a count, and a gap where there is a time.
fn over_time(seconds: &BTreeMap<u32, Slice>, whole: u32, of: &dyn Fn(&Slice) -> Option<f64>) -> Points {
    let empty = Slice::default();
    let at = |second| of(seconds.get(&second).unwrap_or(&empty)).map(|value| (f64::from(second), value));
    (0..whole).filter_map(at).collect()
}

/// Latencies from due and from sent, by quantile.
fn distribution(class: &ClassSummary) -> Vec<Series> {
    let Some(times) = class.times() else { return Vec::new() };
    let kinds = [("from due", &times.corrected), ("from sent", &times.raw)];
    let of = |(kind, histogram): (&str, &hdrhistogram::Histogram<u64>)| {
        let most = (histogram.len() as f64).log10().min(5.0);
        let steps = (0..=(most * 20.0) as u32).map(|step| f64::from(step) / 20.0);
        let at = |nines: f64| (nines, histogram.value_at_quantile(1.0 - 10f64.powf(-nines)) as f64 / 1e3);
        Series { name: format!("{} {kind}", class.name), points: steps.map(at).collect() }
    };
    kinds.into_iter().filter(|(_, histogram)| !histogram.is_empty()).map(of).collect()
}

/// 0 is the lowest, 1 is 90 %, 2 is 99 %.
fn percentile(nines: f64) -> String {
    let digits = (nines.ceil() as usize).saturating_sub(2);
    format!("{:.digits$}", 100.0 - 100.0 * 10f64.powf(-nines))
}

impl Chart {
    fn svg(&self) -> Result<String, Failed> {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let across = points().map(|point| point.0).fold(1.0, f64::max);
        let up = points().map(|point| point.1).fold(0.0, f64::max).max(1e-3) * 1.05;
        let mut svg = String::new();
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..across, 0.0..up)?;
        let plain = |value: &f64| format!("{value}");
        let quantile = |value: &f64| percentile(*value);
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.across).y_desc(self.up).light_line_style(RGBColor(240, 240, 240));
        mesh.x_label_formatter(if self.quantiles { &quantile } else { &plain }).draw()?;
        for (at, series) in self.series.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let style = colour.stroke_width(2);
            let line = LineSeries::new(series.points.iter().copied(), style);
            let key = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style);
            chart.draw_series(line)?.label(series.name.as_str()).legend(key);
        }
        let position = SeriesLabelPosition::UpperLeft;
        chart
            .configure_series_labels()
            .position(position)
            .background_style(WHITE.mix(0.8))
            .border_style(WHITE)
            .draw()?;
        area.present()?;
        drop(chart);
        drop(area);
        Ok(svg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_typed_is_escaped() {
        assert_eq!(escaped("<script>\"&"), "&lt;script&gt;&quot;&amp;");
    }

    #[test]
    fn percentiles_are_named_as_people_do() {
        let named = [0.0, 1.0, 2.0, 3.0, 4.0].map(percentile);
        assert_eq!(named, ["0", "90", "99", "99.9", "99.99"]);
    }
}
