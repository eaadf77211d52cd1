//! Turns records into figures as text, and these into Markdown: the targets, then a table for each cell, then how everything
//! was set.
//!
//! Called by `mod.rs`, and by `page.rs`, which shows the same figures as HTML. Figures are medians over the rounds; ratios are taken within a round before their median is.

use std::fmt::Write as _;

use super::method::METHOD;
use crate::bench::BenchOptions;
use crate::bench::experiment::catalogue::Experiment;
use crate::bench::experiment::cells::{Cell, Load, Origin};
use crate::bench::experiment::contenders::What;
use crate::bench::experiment::metric::{Compared, Metric};
use crate::bench::experiment::targets::{Bound, Target};
use crate::bench::experiment::tunnel::{TUNNEL_RATIOS, Tunnels};
use crate::bench::record::answers::Errors;
use crate::bench::record::circumstances::Circumstances;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::{Spread, median};
use crate::bench::run::{failover, keepalive, tunnel};

/// Below this share of idle time the cores are the limit, whoever uses them.
const IDLE_MIN: f64 = 0.05;
/// Generator and origin together with more than this share of all cores: the rate says little about the proxy.
const OTHERS_MAX: f64 = 0.5;

/// Other programs with more than this share disturb the figures. The kernel's own threads stay below it.
const FOREIGN_MAX: f64 = 0.1;

/// The contender that stands for the usual origin where origins are measured.
const ORIGIN_OF_OTHERS: &str = "nginx-file";

/// Everything that is reported.
pub(crate) struct Report<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) options: &'a BenchOptions,
    pub(crate) cells: &'a [Cell],
    pub(crate) records: &'a [Record],
    pub(crate) circumstances: &'a Circumstances,
}

/// A target with what came of it, for people.
pub(crate) struct Judged {
    pub(crate) title: &'static str,
    /// `≥ 2.00`.
    pub(crate) bound: String,
    pub(crate) measured: String,
    /// None: not measured.
    pub(crate) is_met: Option<bool>,
    /// What to know of it: errors, or that it is a floor. Empty: nothing.
    pub(crate) remark: String,
}

/// The table of a cell.
pub(crate) struct Sheet {
    /// Without the first, which names contenders.
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
    /// From 0: nothing was measured.
    pub(crate) rounds: u32,
}

/// A contender in the table of a cell.
pub(crate) struct Row {
    pub(crate) contender: &'static str,
    /// Its figures as text, one for each column; or why there are none.
    pub(crate) figures: Result<Vec<String>, String>,
    /// What keeps its rate from being its own.
    pub(crate) is_limited: bool,
}

impl Report<'_> {
    /// The whole text.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("# weir bench {}: {}\n\n", self.experiment.name, self.experiment.title);
        text.push_str(&self.circumstances());
        text.push_str(&self.targets());
        for cell in self.cells {
            text.push_str(&self.cell(cell));
        }
        let _ = write!(text, "## Method\n\n{}", self.method());
        text
    }

    /// How it was measured, and how everything was set.
    pub(crate) fn method(&self) -> String {
        match self.cells.first().map(|cell| cell.load) {
            Some(Load::Failover(_)) => failover::method(),
            Some(Load::Probe(_)) => keepalive::method(),
            _ if self.cells.iter().any(|cell| matches!(cell.load, Load::Tunnel(_))) => {
                METHOD.to_owned() + tunnel::METHOD
            }
            _ => METHOD.to_owned(),
        }
    }

    /// Machine, programs, and how it was run.
    pub(crate) fn setting(&self) -> String {
        // Tunnels end in the harness.
        let others = || self.cells.iter().filter(|cell| !matches!(cell.load, Load::Tunnel(_)));
        let own = self.options.weir_origin || others().any(|cell| cell.origin != Origin::Usual);
        let origin = match others().next() {
            None => "the harness",
            Some(_) if own => "weir origin",
            Some(_) => "nginx",
        };
        let speed =
            if self.options.quick { " Quick: few and short rounds, which decide nothing about targets." } else { "" };
        format!("{} Origin: {origin}.{speed}", machine(self.circumstances))
    }

    fn circumstances(&self) -> String {
        let mut text = self.setting() + "\n\n";
        for (name, line) in &self.circumstances.said {
            let _ = writeln!(text, "- {name}: {line}");
        }
        text.push('\n');
        text
    }

    fn targets(&self) -> String {
        let judged = self.judged();
        if judged.is_empty() {
            return String::new();
        }
        let mut text = String::from("## Targets\n\n| | target | measured | |\n|---|---|---|---|\n");
        for Judged { title, bound, measured, is_met, remark } in judged {
            let verdict = match (is_met, self.options.quick) {
                (None, _) => "not measured",
                (Some(true), false) => "pass",
                (Some(false), false) => "**miss**",
                (Some(true), true) => "within, in a quick run",
                (Some(false), true) => "**outside**, in a quick run",
            };
            let _ = writeln!(text, "| {title} | {bound} | {measured} | {verdict}{remark} |");
        }
        text.push('\n');
        text
    }

    /// The targets of cells that were selected.
    pub(crate) fn judged(&self) -> Vec<Judged> {
        let selected = |target: &&Target| self.cells.iter().any(|cell| cell.name == target.cell);
        self.experiment.targets.iter().filter(selected).map(|target| self.judge(target)).collect()
    }

    fn judge(&self, target: &Target) -> Judged {
        let value = self.value(target);
        let bound = match target.bound {
            Bound::AtLeast(bound) => format!("≥ {}", figure(bound)),
            Bound::AtMost(bound) => format!("≤ {}", figure(bound)),
        };
        let is_met = value.is_finite().then(|| target.bound.holds(value));
        let remark = if is_met.is_some() { self.remark(target) } else { String::new() };
        Judged { title: target.title, bound, measured: figure(value), is_met, remark }
    }

    fn value(&self, target: &Target) -> f64 {
        let records = self.of_cell(target.cell);
        let spread = match target.against {
            Some(against) => Spread::of_ratios(&records, target.metric, target.subject, against),
            None => {
                let own = records.iter().filter(|record| record.contender == target.subject);
                Spread::of(own.map(|record| record.figure(target.metric)))
            }
        };
        spread.map_or(f64::NAN, |spread| spread.median)
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
        if target.metric == Metric::Rate && limited {
            remark.push_str(" (others took most of the machine: a floor)");
        }
        remark
    }

    /// What was measured in a cell.
    pub(crate) fn of_cell(&self, cell: &str) -> Vec<&Record> {
        self.records.iter().filter(|record| record.cell == cell).collect()
    }

    fn errors(&self, cell: &str, contender: &str) -> Errors {
        let mut errors = Errors::default();
        for record in self.records.iter().filter(|record| record.cell == cell && record.contender == contender) {
            for (kind, count) in &record.errors {
                *errors.entry(kind.clone()).or_default() += count;
            }
        }
        errors
    }

    fn cell(&self, cell: &Cell) -> String {
        let Sheet { columns, rows, rounds } = self.sheet(cell);
        let mut text = format!("## {}: {}\n\n| |", cell.name, cell.title);
        columns.iter().for_each(|column| {
            let _ = write!(text, " {column} |");
        });
        let _ = writeln!(text, "\n|{}", "---|".repeat(columns.len() + 1));
        for Row { contender, figures, .. } in rows {
            let figures = figures.map(|figures| figures.join(" | "));
            let figures =
                figures.unwrap_or_else(|why| format!("not run: {why} |{}", " |".repeat(columns.len() - 2) + " "));
            let _ = writeln!(text, "| {contender} | {figures} |");
        }
        let _ = writeln!(text, "\nMedians of {rounds} rounds.\n");
        text
    }

    /// The figures of a cell.
    pub(crate) fn sheet(&self, cell: &Cell) -> Sheet {
        let records = self.of_cell(&cell.name);
        let compared: &[_] = match cell.load {
            Load::Tunnel(Tunnels::Full(_)) => TUNNEL_RATIOS,
            load if load.is_memory() => &[],
            _ => self.experiment.compared,
        };
        let mut columns = columns(cell.load).to_vec();
        columns.splice(1..1, compared.iter().map(|(head, ..)| *head));
        let row = |contender: &&'static str| {
            let own: Vec<&Record> = records.iter().copied().filter(|record| record.contender == *contender).collect();
            let figures = match own.first()?.not_run.clone() {
                Some(why) => Err(why),
                None => {
                    let mut row = self.row(cell, contender, &own);
                    row.splice(1..1, compared.iter().map(|column| self.ratios(cell, column, contender)));
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
            Load::Tunnel(Tunnels::Full(_)) => tunnel::row(own),
            Load::Idle(_) | Load::Tunnel(Tunnels::Idle(_)) => vec![
                number(of(&|r| r.pss_bytes as f64) / 1048576.0, 1),
                number(of(&|r| r.bytes_per_connection), 0),
                errors,
            ],
            Load::Slow { .. } => {
                vec![number(of(&|r| r.memory_bytes) / 1e6, 1), number(of(&|r| r.rate) / 1e6, 1), errors]
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
                number(of(&|r| if r.proxy_us > 0.0 { r.pss_bytes as f64 } else { f64::NAN }) / 1048576.0, 1),
                limit(own),
            ],
        }
    }

    /// The median of the ratios, with the lowest and the highest.
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
        "{}. {} cores ({}), {} MiB, Linux {}, {} descriptors a process; generator, proxy and origin share them. {}.",
        circumstances.date,
        circumstances.cores,
        circumstances.processor,
        circumstances.memory_mib,
        circumstances.kernel,
        circumstances.descriptors,
        circumstances.programs.join("; "),
    )
}

/// Heads of a cell's table, without that of the first column and the ratios, which follow the second.
fn columns(load: Load) -> &'static [&'static str] {
    match load {
        Load::Failover(_) => failover::COLUMNS,
        Load::Probe(_) => keepalive::COLUMNS,
        Load::Tunnel(Tunnels::Full(_)) => tunnel::COLUMNS,
        Load::Tunnel(Tunnels::Idle(_)) => &["PSS, MiB", "bytes for each tunnel", "ends lost"],
        Load::Idle(_) => &["PSS, MiB", "bytes for each connection", "connections lost"],
        Load::Slow { .. } => &["resident, MB above idle", "read by the clients, MB/s", "connections lost"],
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

/// One line for somebody who waits.
pub(crate) fn progress(cell: &Cell, record: &Record) -> String {
    let name = &record.contender;
    let errors: u64 = record.errors.values().sum();
    if let Some(why) = &record.not_run {
        return format!("{name:<11} not run: {why}");
    }
    match cell.load {
        Load::Failover(_) => format!("{name:<11} {}", failover::progress(record)),
        Load::Probe(_) => format!("{name:<11} {}", keepalive::progress(record)),
        Load::Tunnel(Tunnels::Full(_)) => format!("{name:<11} {}", tunnel::progress(record)),
        Load::Tunnel(Tunnels::Idle(_)) => {
            format!("{name:<11} {:>8.0} B a tunnel, {errors} ends lost", record.bytes_per_connection)
        }
        Load::Idle(_) => format!("{name:<11} {:>8.0} B a connection, {errors} lost", record.bytes_per_connection),
        Load::Slow { .. } => format!("{name:<11} {:>8.1} MB above idle, {errors} lost", record.memory_bytes / 1e6),
        _ => format!(
            "{name:<11} {:>8.0}/s, CPU {:>6} µs, p99 {:>7} ms, idle {:>3.0} %, {} upstream connections, {errors} errors",
            record.rate,
            microseconds(record.proxy_us_per_request()),
            ms(record.latency_us(|latency| latency.p99_us)),
            record.idle * 100.0,
            record.upstream_connections,
        ),
    }
}

/// Processor time of those who are there for the contender, and who they are: an origin or a generator may be a contender
/// itself.
fn others(record: &Record) -> (f64, &'static str) {
    match crate::bench::contender(&record.contender).map(|contender| contender.what) {
        _ if record.contender == ORIGIN_OF_OTHERS => (record.generator_us, "the generator"),
        Some(What::Origin(_)) => (record.generator_us, "the generator"),
        Some(What::Wrk | What::Bomb(_)) => (record.origin_us, "the origin"),
        _ => (record.generator_us + record.origin_us, "generator and origin"),
    }
}

/// Share of all cores' time that they used.
fn others_share(record: &Record) -> f64 {
    share(record, others(record).0)
}

/// Share of all cores' time that neither we nor idleness account for: other programs, and other guests of the host.
fn foreign_share(record: &Record) -> f64 {
    let ours = share(record, record.generator_us + record.origin_us + record.proxy_us);
    (1.0 - record.idle - ours).max(0.0)
}

fn share(record: &Record, us: f64) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    if record.wall_us == 0.0 { 0.0 } else { us / (record.wall_us * cores) }
}

/// Whether the rate says little about the contender, because generator and origin used most of the cores, or the generator
/// says that it was the limit.
pub(crate) fn is_floor(own: &[&Record]) -> bool {
    is_full_of_others(own) || generator_limit(own).is_some()
}

/// Why the generator was the limit, in the first round in which it was.
pub(crate) fn generator_limit<'a>(own: &[&'a Record]) -> Option<&'a str> {
    own.iter().find_map(|record| record.generator_limit.as_deref())
}

fn is_full_of_others(own: &[&Record]) -> bool {
    middle(own, &|record| record.idle) <= IDLE_MIN && middle(own, &others_share) > OTHERS_MAX
}

/// What kept the rate from being higher.
pub(crate) fn limit(own: &[&Record]) -> String {
    let (others, foreign) = (middle(own, &others_share), middle(own, &foreign_share));
    let percent = others * 100.0;
    let who = own.first().map_or("", |record| self::others(record).1);
    let mut causes = Vec::new();
    if is_full_of_others(own) {
        causes.push(format!("{who} ({percent:.0} % of the machine): the rate is a floor"));
    } else if middle(own, &|record| record.idle) <= IDLE_MIN {
        causes.push(format!("all cores, shared ({percent:.0} % by {who})"));
    }
    if let Some(cause) = generator_limit(own) {
        causes.push(format!("**the generator**: {cause}"));
    }
    if foreign > FOREIGN_MAX {
        causes.push(format!("**not quiet: {:.0} % went to other programs**", foreign * 100.0));
    }
    causes.join("; ")
}

/// The median over rounds.
fn middle(own: &[&Record], read: &dyn Fn(&Record) -> f64) -> f64 {
    median(own.iter().map(|record| read(record)).collect())
}

pub(crate) fn error_text(errors: &Errors) -> String {
    let named: Vec<String> = errors.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    if named.is_empty() { "0".to_owned() } else { named.join(", ") }
}

/// With so many digits after the point; `-` when it is not known.
pub(crate) fn number(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
}

pub(crate) fn ms(us: f64) -> String {
    match us {
        _ if !us.is_finite() => "-".to_owned(),
        _ if us < 10_000.0 => format!("{:.2}", us / 1000.0),
        _ => format!("{:.0}", us / 1000.0),
    }
}

pub(crate) fn microseconds(us: f64) -> String {
    if us.is_finite() && us > 0.0 { format!("{us:.2}") } else { "-".to_owned() }
}

/// Enough digits for a ratio, not too many for bytes.
fn figure(value: f64) -> String {
    number(value, if value.abs() < 10.0 { 2 } else { 0 })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::bench::experiment::catalogue::EXPERIMENTS;
    use crate::bench::experiment::cells::Axes;
    use crate::bench::record::answers::Latency;

    fn options() -> BenchOptions {
        BenchOptions {
            weir: PathBuf::from("weir"),
            experiment: "targets".to_owned(),
            quick: true,
            connections: Vec::new(),
            requests: Vec::new(),
            bodies: Vec::new(),
            only: Vec::new(),
            contenders: Vec::new(),
            rounds: None,
            seconds: None,
            weir_origin: false,
            out: PathBuf::new(),
        }
    }

    /// A run of one second on all cores: so much CPU of the proxy for each of 1,000 requests, the rest to the others.
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
            latency: Some(Latency { p50_us: 400, p95_us: 900, p99_us: 12_345, p999_us: 20_000, max_us: 30_000 }),
            ..Record::default()
        }
    }

    fn text(records: &[Record]) -> String {
        let experiment = &EXPERIMENTS[0];
        let mut cells = (experiment.cells)(&Axes::default());
        cells.retain(|cell| cell.name == "c64" || cell.name == "idle");
        let said = vec![("weir".to_owned(), "weir: io_uring".to_owned())];
        let circumstances = &Circumstances { said, ..Circumstances::default() };
        Report { experiment, options: &options(), cells: &cells, records, circumstances }.text()
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
            text.contains("| CPU a request, 64 connections, against nginx | ≤ 0.50 | 0.44 | within, in a quick run |"),
            "{text}"
        );
        assert!(text.contains(
            "| epoll: CPU a request, 64 connections, against nginx | ≤ 0.65 | 0.80 | **outside**, in a quick run |"
        ));
        assert!(text.contains("| user memory for an idle connection, bytes | ≤ 512 | - | not measured |"), "{text}");
        assert!(!text.contains("4,000 connections"), "that cell was not selected: {text}");
        assert!(text.contains("- weir: weir: io_uring\n"));
    }

    #[test]
    fn a_row_says_what_limited_it_and_which_errors_there_were() {
        let mut limited = record("c64", "weir", 1, 4.0);
        limited.errors.insert("timed_out".to_owned(), 3);
        limited.generator_limit = Some("a thread was busy".to_owned());
        let mut disturbed = record("c64", "nginx", 1, 10.0);
        disturbed.generator_us = 0.0;
        let text = text(&[limited, disturbed]);
        let row = |name: &str| text.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap().to_owned();
        let cells: Vec<String> = row("weir").split('|').map(|cell| cell.trim().to_owned()).collect();
        assert_eq!(cells[1..6], ["weir", "1000", "-", "1.00 (1.00-1.00)", "0.40 (0.40-0.40)"]);
        assert_eq!(cells[6..12], ["0.40", "12", "20", "30", "-", "timed_out 3"]);
        assert!(row("weir").contains("the rate is a floor; **the generator**: a thread was busy |"), "{}", row("weir"));
        assert!(row("nginx").contains("**not quiet: "), "{}", row("nginx"));
        assert!(text.contains("within, in a quick run, but 3 errors |"), "{text}");
    }

    #[test]
    fn a_generator_that_is_measured_is_no_limit_to_itself() {
        let floor = |contender: &str| is_floor(&[&record("g64", contender, 1, 0.0)]);
        assert!(floor("direct") && floor("weir-origin") && floor("nginx-file"));
        assert!(!floor("bomb") && !floor("wrk"));
        let busy = Record { origin_us: 1e9, ..record("g64", "bomb", 1, 0.0) };
        assert!(is_floor(&[&busy]), "but the origin is");
    }

    #[test]
    fn a_contender_that_was_not_run_says_why_and_has_no_figures() {
        let stopped = Record { not_run: Some("no ports".to_owned()), ..record("c64", "haproxy", 1, 1.0) };
        let text = text(&[record("c64", "nginx", 1, 10.0), stopped]);
        let row = text.lines().find(|line| line.starts_with("| haproxy |")).unwrap();
        assert!(row.starts_with("| haproxy | not run: no ports |"), "{row}");
        let head = text.lines().find(|line| line.starts_with("| | rate /s |")).unwrap();
        assert_eq!(row.matches('|').count(), head.matches('|').count());
    }
}
