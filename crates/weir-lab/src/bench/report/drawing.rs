//! Charts of an experiment: lines over connections or sizes of bodies where cells are points of
//! one, else bars.
//!
//! Called by `page.rs`. Values are medians over the rounds with their confidence intervals; a
//! contender looks the same in all charts. A figure that was limited by generator or origin is
//! hollow.

pub(super) mod latency;
mod seconds;

use super::figures::Report;
use super::limits::{generator_limit, is_floor};
use super::looks::palette;
use super::wan;
use crate::bench::experiment::cells::{Cell, Closed, Load};
use crate::bench::experiment::metric::{Compared, Metric};
use crate::bench::experiment::pep::{Pace, Pep};
use crate::bench::experiment::tunnel::{TUNNEL_RATIOS, Tunnels};
use crate::bench::experiment::wan::{Object, Wan};
use crate::bench::record::keepalive::Probed;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::Spread;
use crate::chart::{Across, Bar, Bars, Group, Lines, Palette, Point, Series, Unit};
use crate::units::grouped;

/// Charts that belong together, with a heading if it isn't empty.
pub(super) struct Section {
    pub(super) heading: String,
    pub(super) lines: Vec<Lines>,
    pub(super) bars: Vec<Bars>,
}

/// A figure that is drawn.
#[derive(Clone, Copy)]
struct Figure {
    title: &'static str,
    unit: &'static str,
    of: fn(&Record) -> f64,
    /// Whether a limited row says little about this figure: a busy machine affects only rates, a
    /// busy generator all figures.
    is_limited: fn(&[&Record]) -> bool,
}

const RATE: Figure =
    Figure { title: "Rate", unit: "responses/s", of: |record| record.rate, is_limited: is_floor };
const P99: Figure = Figure {
    title: "99th percentile of the latency",
    unit: "ms",
    of: |record| record.latency_us(|latency| latency.p99_us) / 1e3,
    is_limited: is_generator_limited,
};
const P50: Figure = Figure {
    title: "Median of the latency",
    of: |record| record.latency_us(|latency| latency.p50_us) / 1e3,
    ..P99
};
const MEGABITS: Figure =
    Figure { unit: "Mbit/s", of: wan::megabits, is_limited: |_| false, ..RATE };
const P99_FROM_SENT: Figure =
    Figure { of: |record| record.sent.map_or(f64::NAN, |sent| sent.p99_us as f64 / 1e3), ..P99 };
const ERRORS: Figure = Figure {
    title: "Errors",
    unit: "in 1,000 requests",
    of: |record| {
        let errors = record.errors.values().sum::<u64>() as f64;
        errors * 1000.0 / (record.requests as f64 + errors)
    },
    is_limited: |_| false,
};
/// The first that was measured is drawn.
const PROCESSOR: [Figure; 3] = [
    Figure {
        title: "CPU time of the proxy",
        unit: "µs per request",
        of: Record::proxy_us_per_request,
        is_limited: |_| false,
    },
    Figure {
        title: "CPU time of the generator",
        unit: "µs per request",
        of: Record::generator_us_per_request,
        is_limited: |_| false,
    },
    Figure {
        title: "CPU time of the origin",
        unit: "µs per request",
        of: Record::origin_us_per_request,
        is_limited: |_| false,
    },
];
const IDLE: Figure = Figure {
    title: "Memory of the proxy for each idle connection",
    unit: "bytes",
    of: |record| record.bytes_per_connection,
    is_limited: |_| false,
};
const IDLE_TUNNEL: Figure = Figure { title: "Memory of the proxy for each idle tunnel", ..IDLE };
const SLOW: Figure = Figure {
    title: "Memory of the proxy with slow clients",
    unit: "MB above idle",
    of: |record| record.memory_bytes / 1e6,
    is_limited: |_| false,
};

const SLOW_ANSWERS: Figure = Figure {
    title: "Responses slower than 20 ms",
    unit: "in 10,000 requests",
    of: |record| record.special.probed.as_ref().map_or(f64::NAN, Probed::slow_in_10_000),
    is_limited: |_| false,
};

const P999: Figure = Figure {
    title: "99.9th percentile of the latency",
    of: |record| record.latency_us(|latency| latency.p999_us) / 1e3,
    ..P99
};
const CONNECTIONS_LADDER: Figure = Figure {
    title: "Client connections of the worker with the most",
    unit: "times those of the worker with the fewest",
    of: |record| record.figure(Metric::ConnectionsLadder),
    is_limited: |_| false,
};
const LATE: Figure = Figure {
    title: "Measured responses over 8 ms",
    unit: "% of them",
    of: |record| record.figure(Metric::LatePercent),
    is_limited: is_generator_limited,
};
const CUT_OFF: Figure = Figure {
    title: "Refused, reset or not answered",
    unit: "connections",
    of: |record| record.figure(Metric::CutOff),
    ..CONNECTIONS_LADDER
};
const CPU_LADDER: Figure = Figure {
    title: "CPU time of the busiest worker",
    unit: "times that of the least busy worker",
    of: |record| record.figure(Metric::CpuLadder),
    ..CONNECTIONS_LADDER
};
const ATTEMPT: Figure = Figure {
    title: "CPU time of the proxy's core",
    unit: "µs per attempt of an attacker",
    of: |record| record.figure(Metric::AttemptCpu),
    is_limited: is_generator_limited,
};
const ADDED: Figure = Figure {
    title: "CPU time of the machine that is added on the router",
    unit: "µs per connection",
    of: |record| record.figure(Metric::AddedCpu),
    is_limited: is_generator_limited,
};
const SLOWER: Figure = Figure {
    title: "99th percentile of the users' latency",
    unit: "times that without attackers",
    of: |record| record.figure(Metric::UsersP99),
    is_limited: is_generator_limited,
};

fn is_generator_limited(own: &[&Record]) -> bool {
    generator_limit(own).is_some()
}

/// All charts of a report.
pub(super) fn sections(report: &Report<'_>) -> Vec<Section> {
    let drawing = Drawing { report, palette: palette(report), over: Over::best(report.cells) };
    let mut sections = drawing.over_axis();
    sections.push(drawing.by_cell());
    sections.extend(drawing.over_time());
    sections.retain(|section| !section.lines.is_empty() || !section.bars.is_empty());
    sections
}

/// The quantity on the horizontal axis.
#[derive(Clone, Copy, PartialEq)]
enum Over {
    Connections,
    Bodies,
    Rates,
    Losses,
}

impl Over {
    /// Requests a second where cells run by the clock, else the quantity with more values.
    fn best(cells: &[Cell]) -> Over {
        if cells.iter().any(|cell| cell.point.is_some() && is_by_the_clock(cell.load)) {
            return Over::Rates;
        }
        if cells.iter().any(|cell| matches!(cell.load, Load::Wan(_))) {
            return Over::Losses;
        }
        let loads =
            cells.iter().filter(|cell| cell.point.is_some()).filter_map(|cell| match cell.load {
                Load::Closed(closed) => Some(closed),
                _ => None,
            });
        let (mut connections, mut bodies) = (Vec::new(), Vec::new());
        loads.for_each(|load| {
            connections.push(load.connections);
            bodies.push(load.body);
        });
        connections.sort_unstable();
        connections.dedup();
        bodies.sort_unstable();
        bodies.dedup();
        if bodies.len() > connections.len() { Over::Bodies } else { Over::Connections }
    }

    /// Returns the charts of a cell, and its place in them.
    fn place(self, cell: &Cell) -> Option<(String, f64)> {
        let (chart, across) = cell.point.as_ref()?;
        match (self, cell.load) {
            (Over::Bodies, Load::Closed(Closed { connections, body, kind })) => {
                let connections = grouped(u64::from(connections));
                Some((
                    format!("{}, {connections} connections by length of the body", kind.name()),
                    body as f64,
                ))
            }
            _ => Some((chart.clone(), *across)),
        }
    }

    fn axis(self) -> (Across, &'static str) {
        match self {
            Over::Connections => (Across::Logarithmic(Unit::Count), "connections"),
            Over::Bodies => (Across::Logarithmic(Unit::Bytes), "length of the body"),
            Over::Losses => (Across::Linear, "packets lost, %"),
            Over::Rates => (Across::Logarithmic(Unit::Count), "requests/s"),
        }
    }
}

struct Drawing<'a> {
    report: &'a Report<'a>,
    palette: Palette,
    over: Over,
}

/// A cell that is a point of charts, and its place.
type Placed<'a> = (&'a Cell, f64);

impl Drawing<'_> {
    /// Returns a section for each group of cells that share an axis.
    fn over_axis(&self) -> Vec<Section> {
        let mut groups: Vec<(String, Vec<Placed<'_>>)> = Vec::new();
        for cell in self.report.cells {
            let Some((chart, across)) = self.over.place(cell) else { continue };
            match groups.iter_mut().find(|(name, _)| *name == chart) {
                Some((_, cells)) => cells.push((cell, across)),
                None => groups.push((chart, vec![(cell, across)])),
            }
        }
        groups.into_iter().map(|(heading, cells)| self.over_axis_of(heading, cells)).collect()
    }

    fn over_axis_of(&self, heading: String, mut cells: Vec<Placed<'_>>) -> Section {
        cells.sort_by(|a, b| a.1.total_cmp(&b.1));
        let all = || cells.iter().map(|(cell, _)| *cell);
        let mut figures = match cells.first().map(|(cell, _)| cell.load) {
            Some(Load::Wan(Wan { object: Object::Large, .. })) => vec![MEGABITS],
            Some(Load::Wan(_)) => vec![P50, P99],
            _ => [RATE].into_iter().chain(self.processor(all())).chain([P99]).collect(),
        };
        figures.extend(self.has_errors(all()).then_some(ERRORS));
        let lines = figures.into_iter().map(|figure| self.lines(figure, &cells));
        Section {
            heading,
            lines: lines.filter(|lines| !lines.is_empty()).collect(),
            bars: Vec::new(),
        }
    }

    fn lines(&self, figure: Figure, cells: &[Placed<'_>]) -> Lines {
        let (across, across_name) = self.over.axis();
        let mut names: Vec<&'static str> = Vec::new();
        for name in cells.iter().flat_map(|(cell, _)| &cell.contenders) {
            if !names.contains(name) {
                names.push(name);
            }
        }
        let line = |name: &'static str| {
            let points: Vec<Point> =
                cells.iter().map(|(cell, x)| self.point(figure, cell, name, *x)).collect();
            let is_known = points.iter().any(|point| point.y.is_finite());
            is_known.then(|| Series {
                name: name.to_owned(),
                look: self.palette.look(name),
                points,
            })
        };
        let series = names.into_iter().filter_map(line).collect();
        Lines { title: figure.title.to_owned(), across, across_name, up_name: figure.unit, series }
    }

    fn point(&self, figure: Figure, cell: &Cell, contender: &str, x: f64) -> Point {
        let own = self.own(cell, contender);
        let spread = Spread::of(own.iter().map(|record| (figure.of)(record)));
        Point {
            x,
            y: spread.map_or(f64::NAN, |spread| spread.median),
            spread: spread.map(|spread| (spread.low, spread.high)),
            limited: (figure.is_limited)(&own),
        }
    }

    /// Returns bars for the cells that belong to no axis. Cells of different loads have only ratios
    /// in common.
    fn by_cell(&self) -> Section {
        let cells = || self.report.cells.iter().filter(|cell| cell.point.is_none());
        let own = self.report.experiment.compared;
        let is_tunnel = |cell: &&Cell| matches!(cell.load, Load::Tunnel(_));
        let others = if cells().any(|cell| is_tunnel(&cell)) { TUNNEL_RATIOS } else { &[] };
        let others = others.iter().filter(|compared| !own.contains(compared));
        let ratios = own.iter().chain(others).map(|compared| self.ratios(compared, cells()));
        let clocked = cells().filter(|cell| is_by_the_clock(cell.load));
        let idle = cells().filter(|cell| matches!(cell.load, Load::Idle(_)));
        let slow = cells().filter(|cell| matches!(cell.load, Load::Slow { .. }));
        let dying = || cells().filter(|cell| matches!(cell.load, Load::Failover(_)));
        let probed = cells().filter(|cell| matches!(cell.load, Load::Probe(_)));
        let tunnels = cells().filter(|cell| matches!(cell.load, Load::Tunnel(Tunnels::Idle(_))));
        let attacked = || cells().filter(|cell| matches!(cell.load, Load::Block(_)));
        let passed =
            || cells().filter(|cell| matches!(cell.load, Load::Pep(Pep { pace: Pace::Half, .. })));
        let laddered = || cells().filter(|cell| matches!(cell.load, Load::Ladder(_)));
        let taken = || cells().filter(|cell| cell.load == Load::Taken);
        let reloaded = cells().filter(|cell| cell.load == Load::Reload);
        let mixed = || cells().filter(|cell| matches!(cell.load, Load::Mixed(_)));
        let figures = [
            self.bars(CUT_OFF, reloaded),
            self.bars(CONNECTIONS_LADDER, laddered()),
            self.bars(CPU_LADDER, laddered()),
            self.bars(P99, taken()),
            self.bars(P999, taken()),
            self.bars(ADDED, passed()),
            self.bars(P99, passed()),
            self.latencies(clocked),
            self.bars(P999, mixed()),
            self.bars(
                LATE,
                mixed().filter(
                    |cell| matches!(cell.load, Load::Mixed(mixed) if !mixed.beside.is_empty()),
                ),
            ),
            self.bars(ERRORS, dying()),
            self.bars(P99, dying()),
            self.bars(SLOW_ANSWERS, probed),
            self.bars(IDLE, idle),
            self.bars(IDLE_TUNNEL, tunnels),
            self.bars(SLOW, slow),
            self.bars(ATTEMPT, attacked()),
            self.bars(SLOWER, attacked()),
        ];
        let bars = ratios.chain(figures).filter(|bars| !bars.is_empty()).collect();
        Section { heading: String::new(), lines: Vec::new(), bars }
    }

    /// Returns the figure of each contender as a multiple of that of one contender.
    fn ratios<'a>(&self, compared: &Compared, cells: impl Iterator<Item = &'a Cell>) -> Bars {
        let &(_, metric, against) = compared;
        let is_rate = metric == Metric::Rate;
        // By the clock all contenders have the same rate.
        let cells =
            cells.filter(|cell| !(cell.load.is_memory() || is_rate && is_by_the_clock(cell.load)));
        let bar = |cell: &Cell, contender: &'static str| {
            let spread =
                Spread::of_ratios(&self.report.of_cell(&cell.name), metric, contender, against);
            self.bar(contender, spread, is_rate && is_floor(&self.own(cell, contender)))
        };
        let better = if is_rate { "more is better" } else { "less is better" };
        let what = match metric {
            Metric::Rate => "Rate",
            Metric::CpuGigabyte => "CPU time per gigabyte",
            Metric::P50 => "Median of the latency",
            Metric::P99 => "99th percentile of the latency",
            Metric::P999 => "99.9th percentile of the latency",
            _ => "CPU time per request",
        };
        let title = format!("{what}, {against} = 1 ({better})");
        let mut bars =
            Bars { title, across_name: "ratio", groups: Vec::new(), reference: Some(1.0) };
        bars.groups = self.groups(cells, |cell, name| (name != against).then(|| bar(cell, name)));
        bars
    }

    fn bars<'a>(&self, figure: Figure, cells: impl Iterator<Item = &'a Cell>) -> Bars {
        let bar = |cell: &Cell, contender: &'static str| {
            let own = self.own(cell, contender);
            let spread = Spread::of(own.iter().map(|record| (figure.of)(record)));
            self.bar(contender, spread, (figure.is_limited)(&own))
        };
        let groups = self.groups(cells, |cell, name| Some(bar(cell, name)));
        Bars { title: figure.title.to_owned(), across_name: figure.unit, groups, reference: None }
    }

    /// Counted from when requests were due; where the origin pauses, also what a generator that
    /// waits for it would show.
    fn latencies<'a>(&self, cells: impl Iterator<Item = &'a Cell>) -> Bars {
        let cells: Vec<&Cell> = cells.collect();
        let mut bars = self.bars(P99, cells.iter().copied());
        let sent = self.bars(P99_FROM_SENT, cells.iter().copied());
        for (cell, (group, sent)) in cells.iter().zip(bars.groups.iter_mut().zip(sent.groups)) {
            let known = sent
                .bars
                .into_iter()
                .filter(|bar| cell.load == Load::Stall && bar.value.is_finite());
            group
                .bars
                .extend(known.map(|bar| Bar { name: format!("{}, from sent", bar.name), ..bar }));
        }
        bars
    }

    fn bar(&self, contender: &str, spread: Option<Spread>, limited: bool) -> Bar {
        Bar {
            name: contender.to_owned(),
            look: self.palette.look(contender),
            value: spread.map_or(f64::NAN, |spread| spread.median),
            spread: spread.map(|spread| (spread.low, spread.high)),
            limited,
        }
    }

    /// Returns a group for each cell with known figures, with all contenders that should have taken
    /// part. A contender that took part and has no such figure in any of them, as the origin has no
    /// proxy's, is left out.
    fn groups<'a>(
        &self,
        cells: impl Iterator<Item = &'a Cell>,
        bar: impl Fn(&'a Cell, &'static str) -> Option<Bar>,
    ) -> Vec<Group> {
        let group = |cell: &'a Cell| {
            let records = self.report.of_cell(&cell.name);
            let asked = |name: &&&str| records.iter().any(|record| record.contender == **name);
            let bars =
                cell.contenders.iter().filter(asked).filter_map(|name| bar(cell, name)).collect();
            Group { name: cell.title.clone(), bars }
        };
        let is_known = |bar: &Bar| bar.value.is_finite();
        let mut groups: Vec<Group> =
            cells.map(group).filter(|group| group.bars.iter().any(is_known)).collect();
        let all = groups.iter().flat_map(|group| &group.bars);
        let known: Vec<String> =
            all.filter(|bar| is_known(bar)).map(|bar| bar.name.clone()).collect();
        let stopped: Vec<&Record> =
            self.report.records.iter().filter(|record| record.not_run.is_some()).collect();
        let not_run = |bar: &Bar| stopped.iter().any(|record| record.contender == bar.name);
        groups
            .iter_mut()
            .for_each(|group| group.bars.retain(|bar| known.contains(&bar.name) || not_run(bar)));
        groups
    }

    /// Returns the processor time that counts: that of the first program that these cells are
    /// about.
    fn processor<'a>(&self, cells: impl Iterator<Item = &'a Cell>) -> Option<Figure> {
        let records: Vec<&Record> =
            cells.flat_map(|cell| self.report.of_cell(&cell.name)).collect();
        PROCESSOR
            .into_iter()
            .find(|figure| records.iter().any(|record| (figure.of)(record).is_finite()))
    }

    fn has_errors<'a>(&self, mut cells: impl Iterator<Item = &'a Cell>) -> bool {
        cells.any(|cell| {
            self.report.of_cell(&cell.name).iter().any(|record| !record.errors.is_empty())
        })
    }

    /// The rounds of a contender in a cell, without those that could not be run.
    fn own(&self, cell: &Cell, contender: &str) -> Vec<&Record> {
        let mut own = self.report.of_cell(&cell.name);
        own.retain(|record| record.contender == contender && record.not_run.is_none());
        own
    }
}

fn is_by_the_clock(load: Load) -> bool {
    match load {
        Load::HalfOfNginx { .. } | Load::Fixed { .. } | Load::Stall => true,
        Load::Mixed(mixed) => mixed.is_by_the_clock(),
        _ => false,
    }
}
