//! Charts of runs second by second: what clients saw while servers died, and how users and
//! attackers affected each other.
//!
//! Called by the parent. A value is the median over the rounds, with the lowest and the highest.

use super::{Drawing, Section};
use crate::bench::experiment::cells::{Cell, Load};
use crate::bench::record::block::Moment;
use crate::bench::record::failover::Second;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::Spread;
use crate::chart::{Across, Lines, Point, Series};

/// What is drawn for a second of a run: title, unit, value; NaN is a gap, None means that the
/// second does not exist.
type Figure = (&'static str, &'static str, fn(&Record, u32) -> Option<f64>);

const OF_FAILOVER: &[Figure] = &[
    ("Responses with 2xx", "responses/s", |run, at| second(run, at, |second| second.good as f64)),
    ("Requests that failed", "requests/s", |run, at| {
        second(run, at, |second| second.failed as f64)
    }),
    ("99th percentile of the latency", "ms", |run, at| {
        second(run, at, |second| millis(second.p99_us))
    }),
];
const OF_BLOCK: &[Figure] = &[
    ("Users: median of the latency", "ms", |run, at| {
        moment(run, at, |moment| millis(moment.p50_us))
    }),
    ("Users: 99th percentile of the latency", "ms", |run, at| {
        moment(run, at, |moment| millis(moment.p99_us))
    }),
    ("Attackers: served attempts", "attempts/s", |run, at| {
        moment(run, at, |moment| moment.served as f64)
    }),
    ("Attackers: rejected attempts", "attempts/s", |run, at| {
        moment(run, at, |moment| moment.blocked as f64)
    }),
];

/// Returns the value, without what came after the time of the run.
fn second(run: &Record, at: u32, of: fn(&Second) -> f64) -> Option<f64> {
    let timeline =
        &run.special.failover.as_ref().filter(|_| f64::from(at + 1) <= run.wall_us / 1e6)?.timeline;
    Some(timeline.iter().find(|second| second.second == at).map_or(f64::NAN, of))
}

fn moment(run: &Record, at: u32, of: fn(&Moment) -> f64) -> Option<f64> {
    run.special.blocked.as_ref()?.timeline.iter().find(|moment| moment.second == at).map(of)
}

fn millis(us: Option<u64>) -> f64 {
    us.map_or(f64::NAN, |us| us as f64 / 1e3)
}

impl Drawing<'_> {
    /// A section for each cell in which servers died, or clients were attackers.
    pub(super) fn over_time(&self) -> Vec<Section> {
        let section = |cell: &Cell| {
            let figures = match cell.load {
                Load::Failover(_) => OF_FAILOVER,
                Load::Block(_) => OF_BLOCK,
                _ => return None,
            };
            let lines = figures.iter().map(|figure| self.seconds(cell, *figure));
            let lines = lines.filter(|lines| !lines.is_empty()).collect();
            Some(Section { heading: cell.title.clone(), lines, bars: Vec::new() })
        };
        self.report.cells.iter().filter_map(section).collect()
    }

    fn seconds(&self, cell: &Cell, (title, up_name, of): Figure) -> Lines {
        let line = |name: &&'static str| {
            let own = self.own(cell, name);
            let look = self.palette.look(name);
            (!own.is_empty()).then(|| Series {
                name: (*name).to_owned(),
                look,
                points: points(&own, of),
            })
        };
        let series = cell.contenders.iter().filter_map(line).collect();
        Lines {
            title: title.to_owned(),
            across: Across::Linear,
            across_name: "second",
            up_name,
            series,
        }
    }
}

/// As many seconds as all runs have.
fn points(own: &[&Record], of: fn(&Record, u32) -> Option<f64>) -> Vec<Point> {
    let point = |at: u32| {
        let values: Option<Vec<f64>> = own.iter().map(|run| of(run, at)).collect();
        let spread = Spread::of(values?.into_iter());
        Some(Point {
            x: f64::from(at),
            y: spread.map_or(f64::NAN, |spread| spread.median),
            spread: spread.filter(|_| own.len() > 1).map(|spread| (spread.low, spread.high)),
            limited: false,
        })
    };
    (0..).map_while(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::failover::Failover;
    use crate::bench::record::outcome::Special;

    #[test]
    fn a_second_is_the_median_of_its_rounds_and_late_ones_are_left_out() {
        let run = |failed: [u64; 3]| {
            let second = |(at, failed): (usize, &u64)| Second {
                second: at as u32,
                failed: *failed,
                ..Second::default()
            };
            let timeline = failed.iter().enumerate().map(second).collect();
            Record {
                wall_us: 2.02e6,
                special: Special {
                    failover: Some(Failover { timeline, ..Failover::default() }),
                    ..Special::default()
                },
                ..Record::default()
            }
        };
        let runs = [run([0, 7, 1]), run([0, 9, 1]), run([0, 1, 1])];
        let points = points(&runs.each_ref(), OF_FAILOVER[1].2);
        let drawn: Vec<_> = points.iter().map(|point| (point.x, point.y, point.spread)).collect();
        assert_eq!(drawn, [(0.0, 0.0, Some((0.0, 0.0))), (1.0, 7.0, Some((1.0, 9.0)))]);
    }
}
