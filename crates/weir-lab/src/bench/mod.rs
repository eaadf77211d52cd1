//! The benchmark harness: weir against no proxy, nginx and HAProxy, in alternating rounds of one run.
//!
//! Called by `weir bench` (and so by `make bench`). Calls wrk, nginx and haproxy as processes, writes one line of JSON a run
//! and a Markdown table. Method: only ratios inside one run count, and medians of them; the generator must not be the
//! limit, and where it was the table says so. Bounds: each run is limited in time and each process ends with the harness.

mod cells;
mod load;
mod memory;
mod process;
mod record;
mod report;
mod stage;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cells::{CELLS, Cell, Load};
use record::{Metric, Record, median};
use report::Report;
use stage::{CONTENDERS, Contender, Running, Stage};

/// What to measure and where to write it.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The `weir` binary to measure, usually the running one.
    pub weir: PathBuf,
    /// Three short rounds of what the targets need, in a few minutes.
    pub quick: bool,
    /// Names of cells; empty means all that the targets need.
    pub only: Vec<String>,
    /// Names of contenders; empty means all of each cell.
    pub contenders: Vec<String>,
    /// Rounds in place of 5 (quick: 3).
    pub rounds: Option<u32>,
    /// Seconds of each run in place of 6 (quick: 1, and 2 from 1,000 connections on).
    pub seconds: Option<u32>,
    /// Serve from weir's own origin in place of nginx.
    pub weir_origin: bool,
    /// Directory for `latest.jsonl` and `latest.md`.
    pub out: PathBuf,
}

/// Lists cells and contenders, one a line.
pub fn list() -> String {
    let mut text = String::from("cells:\n");
    for cell in CELLS {
        let extra = if cell.extra { " (only when named)" } else { "" };
        text.push_str(&format!("  {:<15} {}{extra}\n", cell.name, cell.title));
    }
    let names: Vec<&str> = CONTENDERS.iter().map(|contender| contender.name).collect();
    text.push_str(&format!("contenders:\n  {}\n", names.join(" ")));
    text
}

/// Measures everything that was selected. Progress goes to standard error; the table is returned and written beside the
/// raw data.
///
/// # Errors
/// A name that doesn't exist ([`io::ErrorKind::InvalidInput`]), a program that is missing or doesn't start, a file that
/// can't be written, SIGINT or SIGTERM ([`io::ErrorKind::Interrupted`]). Every process is ended in any case.
pub fn run(options: &BenchOptions) -> io::Result<String> {
    let cells = selected_cells(options)?;
    check_contenders(options)?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(load::interrupted()))?;
    }
    fs::create_dir_all(&options.out)?;
    let raw = fs::File::create(options.out.join("latest.jsonl"))?;
    let stage = Stage::open(&options.weir, options.weir_origin)?;
    let mut bench = Bench { options, stage, raw, records: Vec::new(), said: Vec::new() };
    for cell in &cells {
        bench.measure(cell)?;
    }
    let text = Report { options, cells: &cells, records: &bench.records, said: &bench.said }.text();
    fs::write(options.out.join("latest.md"), &text)?;
    Ok(text)
}

fn selected_cells(options: &BenchOptions) -> io::Result<Vec<Cell>> {
    if options.only.is_empty() {
        return Ok(CELLS.iter().copied().filter(|cell| !cell.extra).collect());
    }
    let find =
        |name: &String| CELLS.iter().copied().find(|cell| cell.name == name).ok_or_else(|| unknown("cell", name));
    options.only.iter().map(find).collect()
}

fn check_contenders(options: &BenchOptions) -> io::Result<()> {
    let known = |name: &&String| CONTENDERS.iter().any(|contender| contender.name == **name);
    match options.contenders.iter().find(|name| !known(name)) {
        Some(name) => Err(unknown("contender", name)),
        None => Ok(()),
    }
}

fn unknown(what: &str, name: &str) -> io::Error {
    let text = format!("there is no {what} called `{name}`; `weir bench --list` shows all");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// The state of a whole run.
struct Bench<'a> {
    options: &'a BenchOptions,
    stage: Stage,
    raw: fs::File,
    records: Vec<Record>,
    /// What each contender said at its first start.
    said: Vec<(&'static str, String)>,
}

impl Bench<'_> {
    /// All rounds of one cell. The contenders run side by side all the time, one of them with load.
    fn measure(&mut self, cell: &Cell) -> io::Result<()> {
        eprintln!("{}: {}", cell.name, cell.title);
        if matches!(cell.load, Load::Fixed { .. }) && !self.options.weir_origin {
            // Only weir's own origin can be late on request.
            let usual = std::mem::replace(&mut self.stage, Stage::open(&self.options.weir, true)?);
            let outcome = self.measure_here(cell);
            self.stage = usual;
            return outcome;
        }
        self.measure_here(cell)
    }

    fn measure_here(&mut self, cell: &Cell) -> io::Result<()> {
        // Memory is counted from a fresh start; there the contenders are started one by one in each round.
        let fresh = matches!(cell.load, Load::Idle(_) | Load::Slow(..));
        let contenders = self.contenders(cell);
        let mut running = Vec::new();
        if !fresh {
            for contender in &contenders {
                running.push(self.stage.start(*contender)?);
            }
            self.warm_up(cell, &running)?;
        }
        let rate = self.fixed_rate(cell)?;
        for round in 1..=self.rounds(fresh) {
            for (at, contender) in contenders.iter().enumerate() {
                let started;
                let one = if let Some(one) = running.get(at) {
                    one
                } else {
                    started = self.stage.start(*contender)?;
                    &started
                };
                let record = self.run_once(cell, one, rate)?;
                self.listen_to(*contender, one);
                self.keep(cell, contender, round, record)?;
            }
        }
        Ok(())
    }

    /// Remembers what a contender says of itself.
    fn listen_to(&mut self, contender: Contender, running: &Running) {
        if !self.said.iter().any(|(name, _)| *name == contender.name)
            && let Some(line) = running.says()
        {
            self.said.push((contender.name, line));
        }
    }

    /// Who takes part: those that were named, or in a quick run those that targets need, or all.
    fn contenders(&self, cell: &Cell) -> Vec<Contender> {
        let named = &self.options.contenders;
        let wanted = |name: &str| match (named.is_empty(), self.options.quick && !cell.extra) {
            (false, _) => named.iter().any(|one| one == name),
            (true, true) => cells::is_target(cell, name),
            (true, false) => true,
        };
        let find = |name: &&str| CONTENDERS.iter().copied().find(|contender| contender.name == *name);
        cell.contenders.iter().filter(|name| wanted(name)).filter_map(find).collect()
    }

    fn rounds(&self, fresh: bool) -> u32 {
        let usual = if fresh || self.options.quick { 3 } else { 5 };
        // Memory hardly varies between rounds: once is enough when time is short.
        let usual = if fresh && self.options.quick { 1 } else { usual };
        self.options.rounds.unwrap_or(usual)
    }

    fn seconds(&self, connections: u32) -> u32 {
        let quick = if connections >= 1000 { 2 } else { 1 };
        self.options.seconds.unwrap_or(if self.options.quick { quick } else { 6 })
    }

    fn warm_up(&self, cell: &Cell, running: &[Running]) -> io::Result<()> {
        for one in running {
            match cell.load {
                Load::Closed(closed) => load::closed(&self.stage, one, closed, 1)?,
                Load::Fixed { connections, rate, target } => {
                    load::open(&self.stage, one, connections, (f64::from(rate), 1.0), target)?
                }
                _ => load::open(&self.stage, one, 64, (1000.0, 0.5), stage::SMALL)?,
            };
        }
        Ok(())
    }

    /// Half of what nginx reached in the named cell; measured now when that cell wasn't part of this run.
    fn fixed_rate(&self, cell: &Cell) -> io::Result<f64> {
        let Load::HalfOfNginx(of, connections) = cell.load else { return Ok(0.0) };
        let rates: Vec<f64> = self
            .records
            .iter()
            .filter(|record| record.cell == of && record.contender == "nginx")
            .map(|record| Metric::Rate.of(record))
            .collect();
        if !rates.is_empty() {
            return Ok(median(rates) / 2.0);
        }
        let nginx = CONTENDERS.iter().find(|contender| contender.name == "nginx").copied();
        let running = self.stage.start(nginx.ok_or_else(|| unknown("contender", "nginx"))?)?;
        let closed = load::Closed { connections, target: stage::SMALL, words: &[] };
        load::closed(&self.stage, &running, closed, 1)?;
        Ok(load::closed(&self.stage, &running, closed, 3)?.rate / 2.0)
    }

    fn run_once(&self, cell: &Cell, running: &Running, rate: f64) -> io::Result<Record> {
        // A moment of rest, so that the end of one run is not part of the next.
        load::pause(Duration::from_millis(100))?;
        match cell.load {
            Load::Closed(closed) => load::closed(&self.stage, running, closed, self.seconds(closed.connections)),
            Load::HalfOfNginx(_, connections) => {
                let seconds = f64::from(self.seconds(connections));
                load::open(&self.stage, running, connections, (rate, seconds), stage::SMALL)
            }
            Load::Fixed { connections, rate, target } => {
                let seconds = f64::from(self.seconds(connections));
                load::open(&self.stage, running, connections, (f64::from(rate), seconds), target)
            }
            Load::Idle(connections) => memory::idle(running, connections),
            Load::Slow(clients, target) => {
                let seconds = if self.options.quick { 3.0 } else { 8.0 };
                memory::slow(running, clients, target, seconds)
            }
        }
    }

    fn keep(&mut self, cell: &Cell, contender: &Contender, round: u32, mut record: Record) -> io::Result<()> {
        record.cell = cell.name.to_owned();
        record.contender = contender.name.to_owned();
        record.round = round;
        writeln!(self.raw, "{}", serde_json::to_string(&record).map_err(io::Error::other)?)?;
        eprintln!("  {round} {}", report::progress(cell, &record));
        self.records.push(record);
        Ok(())
    }
}
