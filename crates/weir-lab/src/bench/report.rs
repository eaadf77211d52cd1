//! Turns records into a Markdown text: the targets, then a table for each cell, then how everything was set.
//!
//! Called by `mod.rs`. Figures are medians over the rounds; ratios are taken within a round before their median is.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use super::BenchOptions;
use super::cells::{Bound, Cell, Load, TARGETS, Target};
use super::record::{Errors, Metric, Record, median, median_ratio};

/// Below this share of idle time the cores are the limit, whoever uses them.
const IDLE_MIN: f64 = 0.05;
/// Generator and origin together with more than this share of all cores: the rate says little about the proxy.
const OTHERS_MAX: f64 = 0.5;

/// Other programs with more than this share disturb the figures. The kernel's own threads stay below it.
const FOREIGN_MAX: f64 = 0.1;

/// Everything that is reported.
pub(super) struct Report<'a> {
    pub(super) options: &'a BenchOptions,
    pub(super) cells: &'a [Cell],
    pub(super) records: &'a [Record],
    pub(super) said: &'a [(&'static str, String)],
}

impl Report<'_> {
    /// The whole text.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("# weir bench\n\n");
        text.push_str(&self.circumstances());
        for (name, line) in self.said {
            let _ = writeln!(text, "- {name}: {line}");
        }
        text.push('\n');
        text.push_str(&self.targets());
        for cell in self.cells {
            text.push_str(&self.cell(cell));
        }
        text.push_str(METHOD);
        text
    }

    fn circumstances(&self) -> String {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let date = String::from_utf8_lossy(&weir_http::http_date(seconds)).into_owned();
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let origin = if self.options.weir_origin { "weir origin" } else { "nginx" };
        let speed = if self.options.quick {
            " Quick: short rounds of what the targets need, so expect more noise."
        } else {
            ""
        };
        format!(
            "{date}. {cores} cores ({}), Linux {}; generator, proxy and origin share them. Origin: {origin}. {}; {}; {}.{speed}\n\n",
            model.trim_start_matches([' ', '\t', ':']).trim(),
            kernel.trim(),
            version("/usr/sbin/nginx", "-v"),
            version("haproxy", "-v"),
            version("wrk", "-v"),
        )
    }

    fn targets(&self) -> String {
        let measured: Vec<&Target> =
            TARGETS.iter().filter(|target| self.cells.iter().any(|cell| cell.name == target.cell)).collect();
        if measured.is_empty() {
            return String::new();
        }
        let mut text = String::from("## Targets\n\n| | target | measured | |\n|---|---|---|---|\n");
        for target in measured {
            let value = self.value(target);
            let bound = match target.bound {
                Bound::AtLeast(bound) => format!("≥ {}", figure(bound)),
                Bound::AtMost(bound) => format!("≤ {}", figure(bound)),
            };
            let verdict = self.verdict(target, value);
            let _ = writeln!(text, "| {} | {bound} | {} | {verdict} |", target.title, figure(value));
        }
        text.push('\n');
        text
    }

    fn value(&self, target: &Target) -> f64 {
        let records = self.of_cell(target.cell);
        match target.against {
            Some(against) => median_ratio(&records, target.metric, target.subject, against),
            None => {
                let own = records.iter().filter(|record| record.contender == target.subject);
                median(own.map(|record| target.metric.of(record)).collect())
            }
        }
    }

    fn verdict(&self, target: &Target, value: f64) -> String {
        if !value.is_finite() {
            return "not measured".to_owned();
        }
        let mut verdict = if target.bound.holds(value) { "pass".to_owned() } else { "**miss**".to_owned() };
        let errors = self.errors(target.cell, target.subject);
        if errors.total() > 0 {
            let _ = write!(verdict, ", but {} errors", errors.total());
        }
        let limited = self
            .of_cell(target.cell)
            .into_iter()
            .any(|record| record.contender == target.subject && others_share(record) > OTHERS_MAX);
        if target.metric == Metric::Rate && limited {
            verdict.push_str(" (generator and origin took most of the machine: a floor)");
        }
        verdict
    }

    fn of_cell(&self, cell: &str) -> Vec<&Record> {
        self.records.iter().filter(|record| record.cell == cell).collect()
    }

    fn errors(&self, cell: &str, contender: &str) -> Errors {
        let mut errors = Errors::default();
        for record in self.records.iter().filter(|record| record.cell == cell && record.contender == contender) {
            errors.add(&record.errors);
        }
        errors
    }

    fn cell(&self, cell: &Cell) -> String {
        let records = self.of_cell(cell.name);
        let rounds = records.iter().map(|record| record.round).max().unwrap_or(0);
        let mut text = format!("## {}: {}\n\n", cell.name, cell.title);
        text.push_str(match cell.load {
            Load::Idle(_) => "| | PSS, MiB | bytes for each connection | connections lost |\n|---|---|---|---|\n",
            Load::Slow(..) => "| | resident, MB above idle | read by the clients, MB/s | connections lost |\n|---|---|---|---|\n",
            _ => {
                "| | rate /s | p50 | p95 | p99 | p99.9 | max, ms | errors | upstream conns | CPU µs: proxy | generator | origin | idle | PSS, MiB | limit |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
            }
        });
        for contender in cell.contenders {
            let own: Vec<&Record> = records.iter().copied().filter(|record| record.contender == *contender).collect();
            if !own.is_empty() {
                text.push_str(&self.row(cell, contender, &own));
            }
        }
        let _ = writeln!(text, "\nMedians of {rounds} rounds.\n");
        text
    }

    fn row(&self, cell: &Cell, contender: &str, own: &[&Record]) -> String {
        let of = |read: &dyn Fn(&Record) -> f64| median(own.iter().map(|record| read(record)).collect());
        let errors = self.errors(cell.name, contender);
        match cell.load {
            Load::Idle(_) => format!(
                "| {contender} | {:.1} | {:.0} | {} |\n",
                of(&|r| r.pss_bytes as f64) / 1048576.0,
                of(&|r| r.bytes_per_connection),
                errors.total()
            ),
            Load::Slow(..) => format!(
                "| {contender} | {:.1} | {:.1} | {} |\n",
                of(&|r| r.memory_bytes) / 1e6,
                of(&|r| r.rate) / 1e6,
                errors.total()
            ),
            _ => format!(
                "| {contender} | {:.0} | {} | {} | {} | {} | {} | {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} % | {:.1} | {} |\n",
                of(&|r| r.rate),
                ms(of(&|r| r.latency.p50_us as f64)),
                ms(of(&|r| r.latency.p95_us as f64)),
                ms(of(&|r| r.latency.p99_us as f64)),
                ms(of(&|r| r.latency.p999_us as f64)),
                ms(of(&|r| r.latency.max_us as f64)),
                error_text(&errors),
                of(&|r| r.upstream_connections as f64),
                of(&Record::proxy_us_per_request),
                of(&Record::generator_us_per_request),
                of(&Record::origin_us_per_request),
                of(&|r| r.idle) * 100.0,
                of(&|r| r.pss_bytes as f64) / 1048576.0,
                limit(of(&|r| r.idle), of(&others_share), of(&foreign_share)),
            ),
        }
    }
}

/// One line for somebody who waits.
pub(super) fn progress(cell: &Cell, record: &Record) -> String {
    let name = &record.contender;
    let errors = record.errors.total();
    match cell.load {
        Load::Idle(_) => format!("{name:<11} {:>8.0} B a connection, {errors} lost", record.bytes_per_connection),
        Load::Slow(..) => format!("{name:<11} {:>8.1} MB above idle, {errors} lost", record.memory_bytes / 1e6),
        _ => format!(
            "{name:<11} {:>8.0}/s, CPU {:>6.2} µs, p99 {:>7} ms, idle {:>3.0} %, {} upstream connections, {errors} errors",
            record.rate,
            record.proxy_us_per_request(),
            ms(record.latency.p99_us as f64),
            record.idle * 100.0,
            record.upstream_connections,
        ),
    }
}

/// Share of all cores' time that generator and origin used.
fn others_share(record: &Record) -> f64 {
    share(record, record.generator_us + record.origin_us)
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

/// What kept the rate from being higher.
fn limit(idle: f64, others: f64, foreign: f64) -> String {
    let percent = others * 100.0;
    let mut text = if idle > IDLE_MIN {
        String::new()
    } else if others > OTHERS_MAX {
        format!("generator and origin ({percent:.0} % of the machine): the rate is a floor")
    } else {
        format!("all cores, shared ({percent:.0} % by generator and origin)")
    };
    if foreign > FOREIGN_MAX {
        let _ = write!(text, " **not quiet: {:.0} % went to other programs**", foreign * 100.0);
    }
    text
}

fn error_text(errors: &Errors) -> String {
    let kinds = [
        ("connect", errors.connect),
        ("read", errors.read),
        ("write", errors.write),
        ("timeout", errors.timeout),
        ("status", errors.status),
    ];
    let named: Vec<String> =
        kinds.iter().filter(|(_, count)| *count > 0).map(|(kind, count)| format!("{kind} {count}")).collect();
    if named.is_empty() { "0".to_owned() } else { named.join(", ") }
}

fn ms(us: f64) -> String {
    if us < 10_000.0 { format!("{:.2}", us / 1000.0) } else { format!("{:.0}", us / 1000.0) }
}

/// Enough digits for a ratio, not too many for bytes.
fn figure(value: f64) -> String {
    if !value.is_finite() {
        "-".to_owned()
    } else if value.abs() < 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.0}")
    }
}

/// The first line of what a program says about itself.
fn version(program: &str, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else { return format!("{program} missing") };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().next().unwrap_or_default();
    line.split(" - ").next().unwrap_or_default().split(" Copyright").next().unwrap_or_default().trim().to_owned()
}

const METHOD: &str = "## Method

Contenders take turns within each round (A B C A B C ...). Ratios are taken within a round, then their median is. CPU is user
and system time of all processes and threads of the program in the window of the run, divided by the replies of that
window. Upstream connections are those that the origin accepted in the window. In closed-loop cells latency counts from the
send; at the fixed rate it counts from the time a request was due. Idle memory is the growth of the proportional set size
(PSS); with slow clients it is the highest resident size above that before the load.

Settings. Origin and proxy nginx: a worker a core, pinned, epoll, multi_accept on, accept_mutex off, reuseport, backlog 65535,
logs off, keepalive_requests 10^9; origin with open_file_cache and sendfile; proxy with 4,096 kept upstream connections,
HTTP/1.1 upstream, proxy_buffers 16 32k, no temporary files. HAProxy: a thread a core, pinned, a listener a thread, http-reuse
always, no log. weir: default settings (32 connections to the server) but for `-epoll` (driver), `-128`, `-256` and `-one`
(connections to the server; the last with queue-size 10000), `-off` (pipeline off) and `-stay` (escape=off).
";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::cells::CELLS;
    use super::super::record::Latency;
    use super::*;

    fn options() -> BenchOptions {
        BenchOptions {
            weir: PathBuf::from("weir"),
            quick: true,
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
            latency: Latency { p50_us: 400, p95_us: 900, p99_us: 12_345, p999_us: 20_000, max_us: 30_000 },
            ..Record::default()
        }
    }

    fn text(records: &[Record]) -> String {
        let cells: Vec<Cell> = CELLS.iter().copied().filter(|cell| cell.name == "c64" || cell.name == "idle").collect();
        Report { options: &options(), cells: &cells, records, said: &[("weir", "weir: io_uring".to_owned())] }.text()
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
        assert!(text.contains("| CPU a request, 64 connections, against nginx | ≤ 0.50 | 0.44 | pass |"), "{text}");
        assert!(text.contains("| epoll: CPU a request, 64 connections, against nginx | ≤ 0.65 | 0.80 | **miss** |"));
        assert!(text.contains("| user memory for an idle connection, bytes | ≤ 512 | - | not measured |"), "{text}");
        assert!(!text.contains("4,000 connections"), "that cell was not selected");
        assert!(text.contains("- weir: weir: io_uring\n"));
    }

    #[test]
    fn a_row_says_what_limited_it_and_which_errors_there_were() {
        let mut limited = record("c64", "weir", 1, 4.0);
        limited.errors.timeout = 3;
        let mut disturbed = record("c64", "nginx", 1, 10.0);
        disturbed.generator_us = 0.0;
        let text = text(&[limited, disturbed]);
        let row = |name: &str| text.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap().to_owned();
        assert!(row("weir").starts_with("| weir | 1000 | 0.40 | 0.90 | 12 | 20 | 30 | timeout 3 |"), "{}", row("weir"));
        assert!(row("weir").contains("the rate is a floor"), "{}", row("weir"));
        assert!(row("nginx").contains("**not quiet: "), "{}", row("nginx"));
        assert!(text.contains("pass, but 3 errors |"), "{text}");
    }
}
