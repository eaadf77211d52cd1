//! Charts of runs second by second: what clients saw while servers died.
//!
//! Called by the parent. A value is the median over the rounds, with the lowest and the highest.

use super::{Drawing, Section};
use crate::bench::experiment::cells::{Cell, Load};
use crate::bench::record::failover::Second;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::Spread;
use crate::chart::{Across, Lines, Point, Series};

/// What is drawn of a second: title, unit, value; NaN is a gap.
type Figure = (&'static str, &'static str, fn(&Second) -> f64);

const FIGURES: [Figure; 3] = [
    ("Answers with 2xx", "answers/s", |second| second.good as f64),
    ("Requests that failed", "requests/s", |second| second.failed as f64),
    ("99th percentile of the latency", "ms", |second| second.p99_us.map_or(f64::NAN, |us| us as f64 / 1e3)),
];

impl Drawing<'_> {
    /// A section for each cell in which servers died.
    pub(super) fn over_time(&self) -> Vec<Section> {
        let cells = self.report.cells.iter().filter(|cell| matches!(cell.load, Load::Failover(_)));
        let section = |cell: &Cell| {
            let lines = FIGURES.map(|figure| self.seconds(cell, figure));
            let lines = lines.into_iter().filter(|lines| !lines.is_empty()).collect();
            Section { heading: cell.title.clone(), lines, bars: Vec::new() }
        };
        cells.map(section).collect()
    }

    fn seconds(&self, cell: &Cell, (title, up_name, of): Figure) -> Lines {
        let line = |name: &&'static str| {
            let own = self.own(cell, name);
            let look = self.palette.look(name);
            (!own.is_empty()).then(|| Series { name: (*name).to_owned(), look, points: points(&own, of) })
        };
        let series = cell.contenders.iter().filter_map(line).collect();
        Lines { title: title.to_owned(), across: Across::Linear, across_name: "second", up_name, series }
    }
}

/// Without what came after the time of the run.
fn points(own: &[&Record], of: fn(&Second) -> f64) -> Vec<Point> {
    let whole = own.iter().map(|record| (record.wall_us / 1e6) as u32).min().unwrap_or(0);
    let point = |at: u32| {
        let runs = own.iter().filter_map(|record| record.special.failover.as_ref());
        let values = runs.filter_map(|run| run.timeline.iter().find(|second| second.second == at).map(of));
        let spread = Spread::of(values);
        Point {
            x: f64::from(at),
            y: spread.map_or(f64::NAN, |spread| spread.median),
            spread: spread.filter(|_| own.len() > 1).map(|spread| (spread.low, spread.high)),
            limited: false,
        }
    };
    (0..whole).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::failover::Failover;
    use crate::bench::record::outcome::Special;

    #[test]
    fn a_second_is_the_median_of_its_rounds_and_late_ones_are_left_out() {
        let run = |failed: [u64; 3]| {
            let second =
                |(at, failed): (usize, &u64)| Second { second: at as u32, failed: *failed, ..Second::default() };
            let timeline = failed.iter().enumerate().map(second).collect();
            Record {
                wall_us: 2.02e6,
                special: Special { failover: Some(Failover { timeline, ..Failover::default() }), ..Special::default() },
                ..Record::default()
            }
        };
        let runs = [run([0, 7, 1]), run([0, 9, 1]), run([0, 1, 1])];
        let points = points(&runs.each_ref(), FIGURES[1].2);
        let drawn: Vec<_> = points.iter().map(|point| (point.x, point.y, point.spread)).collect();
        assert_eq!(drawn, [(0.0, 0.0, Some((0.0, 0.0))), (1.0, 7.0, Some((1.0, 9.0)))]);
    }
}
