//! The benchmark harness: experiments in which weir is compared with no proxy, nginx, HAProxy and others, in alternating
//! rounds of one run.
//!
//! Called by `weir bench` (and so by `make bench`). `experiments` says what is asked, `cells` in which situations,
//! `contenders` and `settings` who takes part, `targets` what has to be reached; `stage` starts programs, `load` and `memory`
//! measure them, `report` and `page` show the `record`s. Method: only ratios inside one run count, and medians of them; where the
//! generator was the limit, the row says so. Bounds: each run is limited in time and each process ends with the harness.

mod experiment;
mod record;
mod report;
mod run;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use experiment::catalogue::{EXPERIMENTS, Experiment};
use experiment::cells::{self, Axes, Cell, Closed, Load, Origin};
use experiment::contenders::{CONTENDERS, Contender, contender};
use experiment::metric::Metric;
use experiment::selection::{check_contenders, experiment, programs, selected_cells, unknown};
use experiment::targets;
use experiment::tunnel::Tunnels;
use record::circumstances::Circumstances;
use record::outcome::Record;
use record::statistics::median;
use report::figures::Report;
use report::{markdown, page, progress};
use run::load::{self, Times};
use run::stage::{self, Running, Stage};
use run::{failover, keepalive, memory, tunnel};

pub use experiment::cells::{body, connections};
pub use experiment::selection::BenchOptions;

/// Lists experiments with their cells, and contenders.
pub fn list() -> String {
    let mut text = String::new();
    for experiment in EXPERIMENTS {
        text.push_str(&format!("{:<11}{}\n", experiment.name, experiment.title));
        let cells = (experiment.cells)(&Axes::default());
        let lines = if cells.len() > CELLS_LISTED { &[] } else { &cells[..] };
        lines.iter().for_each(|cell| text.push_str(&format!("  {:<16} {}\n", cell.name, cell.title)));
        if lines.is_empty() {
            text.push_str(&format!("  {} cells, {} to {}\n", cells.len(), cells[0].name, cells[cells.len() - 1].name));
        }
    }
    let names: Vec<&str> = CONTENDERS.iter().map(|contender| contender.name).collect();
    text.push_str(&format!("contenders\n  {}\n", names.join(" ")));
    text
}

/// Experiments with more cells are listed by the first and the last.
const CELLS_LISTED: usize = 12;

/// Measures everything that was selected. Progress goes to standard error; the table is returned and written beside the
/// raw data, as is a page with charts.
///
/// # Errors
/// A name that doesn't exist ([`io::ErrorKind::InvalidInput`]), a program that doesn't start, a file that can't be written,
/// SIGINT or SIGTERM ([`io::ErrorKind::Interrupted`]). Every process is ended in any case.
pub fn run(options: &BenchOptions) -> io::Result<String> {
    let experiment = experiment(&options.experiment)?;
    let cells = selected_cells(experiment, options)?;
    check_contenders(options, &cells)?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(load::interrupted()))?;
    }
    let file = |ending: &str| options.out.join(format!("{}.{ending}", experiment.name));
    let written =
        |path: &PathBuf, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::create_dir_all(&options.out).map_err(|error| written(&options.out, error))?;
    let raw = file("jsonl");
    let raw = fs::File::create(&raw).map_err(|error| written(&raw, error))?;
    let table = file("md");
    let mut table_file = fs::File::create(&table).map_err(|error| written(&table, error))?;
    let page = file("html");
    let mut page_file = fs::File::create(&page).map_err(|error| written(&page, error))?;
    let circumstances = run::circumstances::look(&programs(&cells, options));
    let mut bench = Bench { experiment, options, stage: None, raw, circumstances, records: Vec::new() };
    bench.write(&Line::Machine { experiment: experiment.name, circumstances: &bench.circumstances.clone() })?;
    for cell in &cells {
        bench.measure(cell)?;
    }
    let Bench { circumstances, records, .. } = bench;
    let report = Report { experiment, options, cells: &cells, records: &records, circumstances: &circumstances };
    let text = markdown::text(&report);
    table_file.write_all(text.as_bytes())?;
    page_file.write_all(page::html(&report).map_err(io::Error::other)?.as_bytes())?;
    Ok(text)
}

/// A line of the raw file.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line<'a> {
    /// The first: where it was run.
    Machine {
        experiment: &'a str,
        #[serde(flatten)]
        circumstances: &'a Circumstances,
    },
    /// Each run.
    Run(&'a Record),
}

/// The state of a whole run.
struct Bench<'a> {
    experiment: &'static Experiment,
    options: &'a BenchOptions,
    /// What the last cell ran on, and whether its origin was weir's.
    stage: Option<(Stage, bool)>,
    raw: fs::File,
    circumstances: Circumstances,
    records: Vec<Record>,
}

impl Bench<'_> {
    /// All rounds of one cell. The contenders run side by side all the time, one of them with load.
    fn measure(&mut self, cell: &Cell) -> io::Result<()> {
        eprintln!("{}: {}", cell.name, cell.title);
        let origin_is_weir = self.options.weir_origin || cell.origin != Origin::Usual;
        // One stage at a time, and the same one as long as it will do.
        let stage = match self.stage.take().filter(|(_, is_weir)| *is_weir == origin_is_weir) {
            Some((stage, _)) => stage,
            None => Stage::open(&self.options.weir, origin_is_weir, &self.bodies())?,
        };
        let outcome = self.measure_on(&stage, cell);
        self.stage = Some((stage, origin_is_weir));
        outcome
    }

    /// Lengths of all bodies of the experiment as it was asked for.
    fn bodies(&self) -> Vec<u64> {
        let cells = selected_cells(self.experiment, self.options).unwrap_or_default();
        let bodies = cells.iter().filter_map(|cell| match cell.load {
            Load::Closed(Closed { body, .. }) | Load::Slow { body, .. } => Some(body),
            _ => None,
        });
        bodies.collect()
    }

    fn measure_on(&mut self, stage: &Stage, cell: &Cell) -> io::Result<()> {
        let contenders = self.startable(stage, cell)?;
        let mut running = Vec::new();
        if !cell.load.is_fresh() {
            for contender in &contenders {
                running.push(stage.start(*contender, cell)?);
            }
        }
        let rate = self.fixed_rate(stage, cell)?;
        for round in 1..=self.rounds(cell) {
            for (at, contender) in contenders.iter().enumerate() {
                if let Some((one, record)) = self.run_on_its_own(stage, cell, *contender)? {
                    self.listen_to(*contender, &one);
                    self.keep(cell, contender.name, round, record)?;
                    continue;
                }
                let started;
                let one = if let Some(one) = running.get(at) {
                    one
                } else {
                    started = stage.start(*contender, cell)?;
                    &started
                };
                let record = self.run_once(stage, cell, one, rate)?;
                load::settle(one)?;
                self.listen_to(*contender, one);
                self.keep(cell, contender.name, round, record)?;
            }
        }
        Ok(())
    }

    /// A run of a load that starts servers and proxy itself.
    fn run_on_its_own(
        &self,
        stage: &Stage,
        cell: &Cell,
        contender: Contender,
    ) -> io::Result<Option<(Running, Record)>> {
        let seconds = |quick| {
            let usual = if self.options.quick { quick } else { self.experiment.seconds };
            self.options.seconds.unwrap_or(usual)
        };
        match cell.load {
            Load::Failover(fault) => failover::run(stage, contender, fault, seconds(6)).map(Some),
            Load::Probe(probing) => keepalive::run(stage, contender, probing, seconds(4)).map(Some),
            Load::Tunnel(tunnels) => tunnel::run(stage, contender, tunnels, seconds(2)).map(Some),
            _ => Ok(None),
        }
    }

    /// Who can take part here; a record says why the others can't.
    fn startable(&mut self, stage: &Stage, cell: &Cell) -> io::Result<Vec<Contender>> {
        let mut startable = Vec::new();
        for contender in self.contenders(cell) {
            match stage.obstacle(contender, cell) {
                None => startable.push(contender),
                Some(why) => self.keep(cell, contender.name, 1, Record { not_run: Some(why), ..Record::default() })?,
            }
        }
        Ok(startable)
    }

    /// Remembers what a contender says of itself.
    fn listen_to(&mut self, contender: Contender, running: &Running) {
        let said = &mut self.circumstances.said;
        if !said.iter().any(|(name, _)| name == contender.name)
            && let Some(line) = running.says()
        {
            said.push((contender.name.to_owned(), line));
        }
    }

    /// Who takes part: those that were named, or in a quick run those that targets need, or all.
    fn contenders(&self, cell: &Cell) -> Vec<Contender> {
        let named = &self.options.contenders;
        let targets = self.experiment.targets;
        let only_targets = self.options.quick && targets.iter().any(|target| target.cell == cell.name);
        let wanted = |name: &str| match (named.is_empty(), only_targets) {
            (false, _) => named.iter().any(|one| one == name),
            (true, true) => targets::is_needed(targets, &cell.name, name),
            (true, false) => true,
        };
        cell.contenders.iter().filter(|name| wanted(name)).filter_map(|name| contender(name)).collect()
    }

    fn rounds(&self, cell: &Cell) -> u32 {
        let is_short = cell.load.is_fresh() && !matches!(cell.load, Load::Tunnel(Tunnels::Full(_)));
        let usual = match (self.options.quick, is_short) {
            (false, false) => self.experiment.rounds,
            (false, true) => 3,
            (true, false) => 3,
            // Memory hardly varies between rounds: once is enough when time is short.
            (true, true) => 1,
        };
        self.options.rounds.unwrap_or(usual)
    }

    fn times(&self, connections: u32) -> Times {
        let quick = if connections >= 1000 { 2 } else { 1 };
        let seconds = self.options.seconds.unwrap_or(if self.options.quick { quick } else { self.experiment.seconds });
        // Thousands of connections have to be made first, each with one to the server behind it.
        let connecting = f64::from(connections) / if connections > 10_000 { 4_000.0 } else { 10_000.0 };
        let warm_up = if self.options.quick { 0.3 } else { 1.0 } + connecting;
        Times { warm_up, seconds: f64::from(seconds) }
    }

    /// Half of what nginx reached in the named cell; measured now when that cell wasn't part of this run.
    fn fixed_rate(&self, stage: &Stage, cell: &Cell) -> io::Result<f64> {
        let Load::HalfOfNginx { of, connections } = cell.load else { return Ok(0.0) };
        let known = self.records.iter().filter(|record| record.cell == of && record.contender == "nginx");
        let rates: Vec<f64> = known.map(|record| record.figure(Metric::Rate)).collect();
        if !rates.is_empty() {
            return Ok(median(rates) / 2.0);
        }
        let nginx = contender("nginx").ok_or_else(|| unknown(self.experiment, "contender", "nginx"))?;
        let running = stage.start(nginx, cell)?;
        let load = Closed { connections, body: 3, kind: cells::RequestKind::Minimal };
        Ok(load::closed(stage, &running, load, Times { warm_up: 1.0, seconds: 3.0 })?.rate / 2.0)
    }

    fn run_once(&self, stage: &Stage, cell: &Cell, running: &Running, rate: f64) -> io::Result<Record> {
        let times = self.times(cell.load.connections());
        match cell.load {
            Load::Closed(closed) => load::closed(stage, running, closed, times),
            Load::HalfOfNginx { connections, .. } => {
                load::open(stage, running, connections, (rate, stage::SMALL), times)
            }
            Load::Fixed { connections, rate, path } => {
                load::open(stage, running, connections, (f64::from(rate), path), times)
            }
            Load::Stall => load::stall(stage, running),
            Load::Idle(connections) => memory::idle(running, connections),
            Load::Failover(_) | Load::Probe(_) | Load::Tunnel(_) => {
                Err(io::Error::other("such a run starts everything itself"))
            }
            Load::Slow { clients, body } => {
                let seconds = if self.options.quick { 3.0 } else { 8.0 };
                memory::slow(running, clients, &stage.path(body), seconds)
            }
        }
    }

    fn keep(&mut self, cell: &Cell, contender: &str, round: u32, mut record: Record) -> io::Result<()> {
        record.cell = cell.name.clone();
        record.contender = contender.to_owned();
        record.round = round;
        self.write(&Line::Run(&record))?;
        eprintln!("  {round} {}", progress::progress(cell, &record));
        self.records.push(record);
        Ok(())
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        writeln!(self.raw, "{}", serde_json::to_string(line).map_err(io::Error::other)?)
    }
}
