//! The latencies of a cell by percentile: a line for each contender, all rounds together.
//!
//! Called by `page.rs` for each cell whose generator counted latencies.

use crate::bench::experiment::cells::Cell;
use crate::bench::record::histogram::Histogram;
use crate::bench::report::figures::Report;
use crate::bench::report::looks::palette;
use crate::chart::{Across, Lines, Point, Series};

/// Points of a line for each further nine of the percentile.
const STEPS: f64 = 20.0;
/// The last percentile is 99.999, however many requests there were.
const NINES_MAX: f64 = 5.0;

/// The chart; None where nothing was counted.
pub(in crate::bench::report) fn by_percentile(report: &Report<'_>, cell: &Cell) -> Option<Lines> {
    let palette = palette(report);
    let line = |name: &&'static str| {
        let histogram = report.histogram(cell, name);
        let points = points(&histogram);
        (points.len() > 1).then(|| Series {
            name: (*name).to_owned(),
            look: palette.look(name),
            points,
        })
    };
    let series: Vec<Series> = cell.contenders.iter().filter_map(line).collect();
    let title = format!("{}: latency by percentile", cell.name);
    (!series.is_empty()).then_some(Lines {
        title,
        across: Across::Quantiles,
        across_name: "percentile",
        up_name: "ms",
        series,
    })
}

/// Returns points up to the percentile that corresponds to a single request.
fn points(histogram: &Histogram) -> Vec<Point> {
    let most = (histogram.count() as f64).log10().min(NINES_MAX);
    let steps = (0..=(most * STEPS) as u32).map(|step| f64::from(step) / STEPS);
    let at = |nines: f64| histogram.quantile_us(1.0 - 10f64.powf(-nines)) / 1e3;
    if histogram.is_empty() {
        Vec::new()
    } else {
        steps.map(|nines| Point::new(nines, at(nines))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_where_one_request_stands_for_the_rest() {
        let histogram = Histogram::of((1..=1000).map(|us| (us * 1000, 1)));
        let points = points(&histogram);
        assert_eq!(points.len(), 61, "three nines");
        let at = |nines: f64| points.iter().find(|point| point.x == nines).unwrap().y;
        assert!(
            (900.0..945.0).contains(&at(1.0)) && (990.0..1040.0).contains(&at(2.0)),
            "{points:?}"
        );
        assert!(super::points(&Histogram::default()).is_empty());
    }
}
