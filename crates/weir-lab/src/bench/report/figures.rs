//! Turns records into figures as text: the targets with their results, and a table for each cell.
//!
//! `markdown.rs` and `page.rs` show them. Figures are medians over the rounds; ratios are taken
//! within a round before their median is.

use std::fmt::Write as _;

use serde::Serialize;

use super::limits::{OTHERS_MAX, is_floor, limit, others_share};
use super::method::METHOD;
use super::numbers::{error_text, figure_beside, microseconds, ms, number};
use super::{bans, block, cache, even, failover, http2, keepalive, mixed, pep, tls, tunnel, wan};
use crate::bench::experiment::cache_cells::RATIOS;
use crate::bench::experiment::catalogue::{Experiment, compared};
use crate::bench::experiment::cells::{Cell, Load, Origin};
use crate::bench::experiment::metric::{Compared, Metric};
use crate::bench::experiment::selection::BenchOptions;
use crate::bench::experiment::targets::{Bound, Target};
use crate::bench::experiment::tunnel::Tunnels;
use crate::bench::record::answers::Errors;
use crate::bench::record::circumstances::Circumstances;
use crate::bench::record::histogram::Histogram;
use crate::bench::record::outcome::Record;
use crate::bench::record::setting::Setting;
use crate::bench::record::statistics::{Spread, confidence, middle};
use crate::bench::record::sweep::Sweep;

/// Everything that is reported.
pub(crate) struct Report<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) options: &'a BenchOptions,
    pub(crate) cells: &'a [Cell],
    pub(crate) records: &'a [Record],
    pub(crate) circumstances: &'a Circumstances,
    pub(crate) settings: &'a [Setting],
    pub(crate) sweeps: &'a [Sweep],
    /// The cell in which the user stopped it; rounds and cells that were not complete are left out.
    pub(crate) stopped: Option<&'a str>,
}

/// A target with its result, for people.
pub(super) struct Judged {
    pub(super) title: &'static str,
    /// `≥ 2.00`.
    pub(super) bound: String,
    /// The median, of ratios with its confidence interval.
    pub(super) measured: String,
    /// None: not measured.
    pub(super) is_met: Option<bool>,
    /// Remarks: errors, or that it is a floor. Empty: none.
    pub(super) remark: String,
}

/// The table of a cell.
pub(super) struct Sheet {
    /// Without the first, which names contenders.
    pub(super) columns: Vec<&'static str>,
    pub(super) rows: Vec<Row>,
    /// From 0, which means that the cell was not measured.
    pub(super) rounds: u32,
}

impl Sheet {
    /// Returns how certain its figures are.
    pub(super) fn rounds(&self) -> String {
        match self.rounds {
            0 | 1 => "One round: no interval can be said.".to_owned(),
            rounds => {
                let percent = confidence(rounds) * 100.0;
                format!(
                    "Medians of {rounds} rounds; in parentheses their {percent:.0} % confidence \
                        intervals."
                )
            }
        }
    }
}

/// The median of a figure over the rounds of a cell: a line of the raw file.
#[derive(Debug, Serialize)]
pub(crate) struct Median<'a> {
    cell: &'a str,
    contender: &'a str,
    of: &'static str,
    /// The contender whose figure it is divided by, round by round.
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<&'static str>,
    #[serde(flatten)]
    spread: Spread,
    rounds: u32,
    /// The probability that `low` to `high` encloses the true median.
    confidence: f64,
}

/// A contender in the table of a cell.
pub(super) struct Row {
    pub(super) contender: &'static str,
    /// Its figures as text, one for each column; or why there are none.
    pub(super) figures: Result<Vec<String>, String>,
    /// The rate was limited by something other than the contender.
    pub(super) is_limited: bool,
}

impl Report<'_> {
    /// Returns how it was measured, and how everything was configured.
    pub(super) fn method(&self) -> String {
        match self.cells.first().map(|cell| cell.load) {
            Some(Load::Failover(_)) => failover::method(),
            Some(Load::Probe(_)) => keepalive::method(),
            Some(load) if matches!(load, Load::Block(_)) || load.is_of_bans() => block::method(),
            Some(Load::Pep(_)) => pep::method(),
            Some(Load::Wan(_)) => wan::method(),
            Some(Load::Ladder(_)) => even::ladder_method(),
            Some(Load::Taken) => even::taken_method(),
            Some(Load::Reload) => even::reload_method(),
            Some(Load::Mixed(_)) => mixed::method(),
            _ if self.cells.iter().any(|cell| matches!(cell.load, Load::Tunnel(_))) => {
                METHOD.to_owned() + tunnel::METHOD
            }
            _ if self.experiment.compared == RATIOS => METHOD.to_owned() + cache::METHOD,
            _ if self.cells.iter().any(|cell| cell.streams.is_some()) => {
                METHOD.to_owned() + http2::METHOD
            }
            _ if self.cells.iter().any(|cell| cell.secure.is_some()) => {
                METHOD.to_owned() + tls::METHOD
            }
            _ => METHOD.to_owned(),
        }
    }

    /// Returns which settings rivals have in a cell because a sweep has found them best, a sentence
    /// each.
    pub(super) fn chosen(&self, cell: &Cell) -> Vec<String> {
        let of_cell = self.sweeps.iter().filter(|sweep| sweep.cells.contains(&cell.name));
        of_cell.map(|sweep| format!("{}.", sweep.text())).collect()
    }

    /// Returns the machine, the programs, and how it was run.
    pub(super) fn setting(&self) -> String {
        // Tunnels end in the harness.
        let others = || self.cells.iter().filter(|cell| !matches!(cell.load, Load::Tunnel(_)));
        let own = self.options.weir_origin || others().any(|cell| cell.origin != Origin::Usual);
        let origin = match others().next() {
            None => "the harness",
            Some(_) if own => "weir origin",
            Some(_) => "nginx",
        };
        let speed = if self.options.quick {
            " Quick: few and short rounds, which decide nothing about targets."
        } else {
            ""
        };
        let partial = self.stopped.map_or_else(String::new, |cell| {
            format!(
                " Partial: stopped in `{cell}`; only whole rounds are counted, which decide \
                nothing about targets."
            )
        });
        format!("{} Origin: {origin}.{speed}{partial}", machine(self.circumstances))
    }

    /// Whether it judges targets.
    pub(super) fn decides(&self) -> bool {
        !self.options.quick && self.stopped.is_none()
    }

    /// Latencies of a contender in all rounds of a cell.
    pub(super) fn histogram(&self, cell: &Cell, contender: &str) -> Histogram {
        let own = self
            .records
            .iter()
            .filter(|record| record.cell == cell.name && record.contender == contender);
        Histogram::of(own.flat_map(|record| record.special.histogram.pairs()))
    }

    /// Returns medians of the figures that are compared, for readers of the raw data.
    pub(crate) fn medians(&self) -> Vec<Median<'_>> {
        let mut medians = Vec::new();
        for cell in self.cells {
            for contender in &cell.contenders {
                let own = || {
                    self.records
                        .iter()
                        .filter(|record| record.cell == cell.name && record.contender == *contender)
                };
                let mut put = |of: &'static str, against, spread: Option<Spread>| {
                    let rounds = own().count() as u32;
                    let Some(spread) = spread else { return };
                    medians.push(Median {
                        cell: &cell.name,
                        contender,
                        of,
                        against,
                        spread,
                        rounds,
                        confidence: confidence(rounds),
                    });
                };
                if matches!(cell.load, Load::Block(_)) || cell.load.is_of_bans() {
                    for (name, metric) in block::MEDIANS {
                        put(name, None, Spread::of(own().map(|record| record.figure(*metric))));
                    }
                    continue;
                }
                if matches!(cell.load, Load::Ladder(_)) {
                    for (name, metric) in even::MEDIANS {
                        put(name, None, Spread::of(own().map(|record| record.figure(*metric))));
                    }
                    continue;
                }
                if matches!(cell.load, Load::Mixed(_)) {
                    for (name, metric) in mixed::MEDIANS {
                        put(name, None, Spread::of(own().map(|record| record.figure(*metric))));
                    }
                }
                put("rate", None, Spread::of(own().map(|record| record.rate)));
                put(
                    "cpu_us_per_request",
                    None,
                    Spread::of(own().map(Record::proxy_us_per_request)),
                );
                put(
                    "p99_us",
                    None,
                    Spread::of(own().map(|record| record.latency_us(|latency| latency.p99_us))),
                );
                for (head, metric, against) in compared(cell.load, self.experiment.compared) {
                    if contender != against {
                        let records = self.of_cell(&cell.name);
                        put(
                            head,
                            Some(*against),
                            Spread::of_ratios(&records, *metric, contender, against),
                        );
                    }
                }
            }
        }
        medians
    }

    /// The targets of cells that were selected.
    pub(super) fn judged(&self) -> Vec<Judged> {
        let selected = |target: &&Target| self.cells.iter().any(|cell| cell.name == target.cell);
        self.experiment.targets.iter().filter(selected).map(|target| self.judge(target)).collect()
    }

    fn judge(&self, target: &Target) -> Judged {
        let spread = self.spread(target);
        let value = spread.map_or(f64::NAN, |spread| spread.median);
        let (sign, bound) = match target.bound {
            Bound::AtLeast(bound) => ("≥ ", bound),
            Bound::AtMost(bound) => ("≤ ", bound),
            Bound::ExceedsBy(bound) => ("≤ +", bound),
        };
        let figure = |value| figure_beside(value, bound);
        let bound = format!("{sign}{}", figure(bound));
        let is_met = value.is_finite().then(|| target.bound.holds(value));
        let mut remark = if is_met.is_some() { self.remark(target) } else { String::new() };
        if spread
            .is_some_and(|spread| target.bound.holds(spread.low) != target.bound.holds(spread.high))
        {
            remark.insert_str(0, ", but the bound lies within the interval");
        }
        let interval = spread.filter(|spread| spread.low < spread.high);
        let interval = interval.map_or_else(String::new, |Spread { low, high, .. }| {
            format!(" ({}-{})", figure(low), figure(high))
        });
        Judged { title: target.title, bound, measured: figure(value) + &interval, is_met, remark }
    }

    fn spread(&self, target: &Target) -> Option<Spread> {
        let records = self.of_cell(target.cell);
        match target.against {
            Some(against) if matches!(target.bound, Bound::ExceedsBy(_)) => {
                Spread::of_differences(&records, target.metric, target.subject, against)
            }
            Some(against) => Spread::of_ratios(&records, target.metric, target.subject, against),
            None => {
                let own = records.iter().filter(|record| record.contender == target.subject);
                let figures = own.map(|record| record.figure(target.metric));
                // A single request that was executed twice in one round already violates the
                // target: a median would hide it.
                if target.metric == Metric::Twice {
                    return Spread::of(figures.reduce(|sum, figure| sum + figure).into_iter());
                }
                Spread::of(figures)
            }
        }
    }

    fn remark(&self, target: &Target) -> String {
        let mut remark = String::new();
        let errors: u64 = self.errors(target.cell, target.subject).values().sum();
        if errors > 0 {
            let _ = write!(remark, ", but {errors} errors");
        }
        let limited = self
            .of_cell(target.cell)
            .into_iter()
            .any(|record| record.contender == target.subject && others_share(record) > OTHERS_MAX);
        let mut own = self.of_cell(target.cell);
        own.retain(|record| record.contender == target.subject);
        if target.metric == Metric::AttemptCpu && block::is_disturbed(&own) {
            remark.push_str(", but other programs had much of the proxy's core");
        }
        if wan::is_disturbed(&own) {
            remark.push_str(", but the link was late");
        }
        if target.metric == Metric::Rate && limited {
            remark.push_str(" (others took most of the machine: a floor)");
        }
        remark
    }

    /// Returns the records of a cell.
    pub(super) fn of_cell(&self, cell: &str) -> Vec<&Record> {
        self.records.iter().filter(|record| record.cell == cell).collect()
    }

    fn errors(&self, cell: &str, contender: &str) -> Errors {
        let mut errors = Errors::default();
        for record in self
            .records
            .iter()
            .filter(|record| record.cell == cell && record.contender == contender)
        {
            for (kind, count) in &record.errors {
                *errors.entry(kind.clone()).or_default() += count;
            }
        }
        errors
    }

    /// The figures of a cell.
    pub(super) fn sheet(&self, cell: &Cell) -> Sheet {
        let records = self.of_cell(&cell.name);
        let compared = compared(cell.load, self.experiment.compared);
        let mut columns = columns(cell.load).to_vec();
        columns.splice(1..1, compared.iter().map(|(head, ..)| *head));
        if cell.secure.is_some() {
            columns.extend(tls::columns(cell.load));
        }
        columns.extend(http2::columns(cell.load));
        columns.extend(cache::columns(cell.load));
        let row = |contender: &&'static str| {
            let own: Vec<&Record> =
                records.iter().copied().filter(|record| record.contender == *contender).collect();
            let figures = match own.first()?.not_run.clone() {
                Some(why) => Err(why),
                None => {
                    let mut row = self.row(cell, contender, &own);
                    row.splice(
                        1..1,
                        compared.iter().map(|column| self.ratios(cell, column, contender)),
                    );
                    if cell.secure.is_some() {
                        row.extend(tls::row(cell, contender, &own, self.circumstances));
                    }
                    row.extend(http2::row(cell.load, &own));
                    row.extend(cache::row(cell.load, &own));
                    Ok(row)
                }
            };
            Some(Row { contender, figures, is_limited: !cell.load.is_memory() && is_floor(&own) })
        };
        let rounds = records.iter().map(|record| record.round).max().unwrap_or(0);
        Sheet { columns, rows: cell.contenders.iter().filter_map(row).collect(), rounds }
    }

    fn row(&self, cell: &Cell, contender: &str, own: &[&Record]) -> Vec<String> {
        let of = |read: &dyn Fn(&Record) -> f64| middle(own, read);
        let errors = error_text(&self.errors(&cell.name, contender));
        match cell.load {
            Load::Failover(_) => failover::row(own),
            Load::Probe(_) => keepalive::row(own),
            Load::Block(_) => block::row(&self.of_cell(&cell.name), contender),
            Load::Pep(load) => pep::row(load, own),
            Load::Wan(link) => wan::row(link, own),
            Load::Ladder(_) => even::ladder_row(own),
            Load::Taken => even::taken_row(own),
            Load::Reload => even::reload_row(own),
            Load::Mixed(_) => mixed::row(own),
            Load::BanMemory => bans::memory_row(own),
            Load::Recovery => bans::recovery_row(own),
            Load::Tunnel(Tunnels::Full(_)) => tunnel::row(own),
            Load::Idle(_) | Load::Tunnel(Tunnels::Idle(_)) => vec![
                number(of(&|r| r.pss_bytes as f64) / 1048576.0, 1),
                number(of(&|r| r.bytes_per_connection), 0),
                errors,
            ],
            Load::Slow { .. } => {
                vec![
                    number(of(&|r| r.memory_bytes) / 1e6, 1),
                    number(of(&|r| r.rate) / 1e6, 1),
                    errors,
                ]
            }
            _ => vec![
                number(of(&|r| r.rate), 0),
                ms(of(&|r| r.latency_us(|latency| latency.p50_us))),
                ms(of(&|r| r.latency_us(|latency| latency.p99_us))),
                ms(of(&|r| r.latency_us(|latency| latency.p999_us))),
                ms(of(&|r| r.latency_us(|latency| latency.max_us))),
                ms(of(&|r| r.sent.map_or(f64::NAN, |sent| sent.p99_us as f64))),
                errors,
                number(of(&|r| r.upstream_connections as f64), 0),
                microseconds(of(&Record::proxy_us_per_request)),
                microseconds(of(&Record::generator_us_per_request)),
                microseconds(of(&Record::origin_us_per_request)),
                format!("{} %", number(of(&|r| r.idle) * 100.0, 0)),
                number(
                    of(&|r| if r.proxy_us > 0.0 { r.pss_bytes as f64 } else { f64::NAN })
                        / 1048576.0,
                    1,
                ),
                limit(own),
            ],
        }
    }

    /// The median of the ratios, with its confidence interval.
    fn ratios(&self, cell: &Cell, &(_, metric, against): &Compared, subject: &str) -> String {
        let spread = Spread::of_ratios(&self.of_cell(&cell.name), metric, subject, against);
        spread.filter(|_| subject != against).map_or_else(
            || "-".to_owned(),
            |spread| format!("{:.2} ({:.2}-{:.2})", spread.median, spread.low, spread.high),
        )
    }
}

/// The machine and the programs on it.
fn machine(circumstances: &Circumstances) -> String {
    format!(
        "{}. {}. {} cores ({}), {} MiB, Linux {}, {} descriptors a process; generator, proxy and \
            origin share them. {}.",
        circumstances.weir,
        circumstances.date,
        circumstances.cores,
        circumstances.processor,
        circumstances.memory_mib,
        circumstances.kernel,
        circumstances.descriptors,
        circumstances.programs.join("; "),
    )
}

/// Heads of a cell's table, without that of the first column and the ratios, which follow the
/// second.
fn columns(load: Load) -> &'static [&'static str] {
    match load {
        Load::Failover(_) => failover::COLUMNS,
        Load::Probe(_) => keepalive::COLUMNS,
        Load::Block(_) => block::COLUMNS,
        Load::Pep(load) => pep::columns(load),
        Load::Wan(link) => wan::columns(link),
        Load::Ladder(_) => even::LADDER,
        Load::Taken => even::TAKEN,
        Load::Reload => even::RELOADED,
        Load::Mixed(_) => mixed::COLUMNS,
        Load::BanMemory => bans::MEMORY,
        Load::Recovery => bans::RECOVERY,
        Load::Tunnel(Tunnels::Full(_)) => tunnel::COLUMNS,
        Load::Tunnel(Tunnels::Idle(_)) => &["PSS, MiB", "bytes for each tunnel", "ends lost"],
        Load::Idle(_) => &["PSS, MiB", "bytes for each connection", "connections lost"],
        Load::Slow { .. } => {
            &["resident, MB above idle", "read by the clients, MB/s", "connections lost"]
        }
        _ => &[
            "rate /s",
            "p50",
            "p99",
            "p99.9",
            "max, ms",
            "p99 from sent",
            "errors",
            "upstream conns",
            "CPU µs: proxy",
            "generator",
            "origin",
            "idle",
            "PSS, MiB",
            "limit",
        ],
    }
}
