//! The benchmark harness: experiments in which weir is compared with no proxy, nginx, HAProxy and
//! others, in alternating rounds of one run.
//!
//! Called by `weir bench` (and so by `make bench`). `experiment` defines the questions, `run` does
//! the work, `record` is what a run leaves, `report` shows that. They are tied together here, where
//! the files of an experiment are written. `run` and `report` know `experiment` and `record` but
//! not each other, and no other module knows this file (a test checks that).
//!
//! Method: only ratios inside one run count, and medians of them; where the generator was the
//! limit, the row says so. Bounds: each run is limited in time and each process ends with the
//! harness.

mod experiment;
mod record;
mod report;
mod run;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use experiment::catalogue::EXPERIMENTS;
use experiment::cells::{Axes, Cell};
use experiment::contenders::CONTENDERS;
use experiment::selection::{
    check_contenders, check_programs, experiment, programs, selected_cells,
};
use record::circumstances::Circumstances;
use record::outcome::Record;
use record::setting::Setting;
use record::sweep::Sweep;
use report::figures::{Median, Report};
use report::{markdown, page, progress};
use run::programs::Programs;
use run::rounds::rounds;
use run::{circumstances, load};

pub use experiment::cells::{body, connections};
pub use experiment::selection::{BenchOptions, program};

/// Lists experiments with their cells, and contenders.
pub fn list() -> String {
    let mut text = String::new();
    for experiment in EXPERIMENTS {
        text.push_str(&format!("{:<12}{}\n", experiment.name, experiment.title));
        let cells = (experiment.cells)(&Axes::default());
        let lines = if cells.len() > CELLS_LISTED { &[] } else { &cells[..] };
        lines
            .iter()
            .for_each(|cell| text.push_str(&format!("  {:<16} {}\n", cell.name, cell.title)));
        if lines.is_empty() {
            text.push_str(&format!(
                "  {} cells, {} to {}\n",
                cells.len(),
                cells[0].name,
                cells[cells.len() - 1].name
            ));
        }
    }
    let names: Vec<&str> = CONTENDERS.iter().map(|contender| contender.name).collect();
    text.push_str(&format!("contenders\n  {}\n", names.join(" ")));
    text
}

/// Of experiments with more cells, only the first and the last are listed.
const CELLS_LISTED: usize = 13;

/// The result of a bench.
#[derive(Debug)]
pub struct Outcome {
    /// The table.
    pub table: String,
    /// SIGINT or SIGTERM came: the table has only rounds that were complete.
    pub is_partial: bool,
}

/// Measures everything that was selected. Progress goes to standard error; the table is returned
/// and written beside the raw data, as is a page with charts. SIGINT and SIGTERM end it with what
/// is complete.
///
/// # Errors
/// A name that doesn't exist ([`io::ErrorKind::InvalidInput`]), a program that doesn't start, a
/// file that can't be written, a signal before one round was complete
/// ([`io::ErrorKind::Interrupted`]). Every process is ended in any case.
pub fn run(options: &BenchOptions) -> io::Result<Outcome> {
    let experiment = experiment(&options.experiment)?;
    let cells = selected_cells(experiment, options)?;
    check_contenders(options, &cells)?;
    let programs = programs(&cells, options);
    check_programs(options, &programs)?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(load::interrupted()))?;
    }
    let file = |ending: &str| options.out.join(format!("{}.{ending}", experiment.name));
    let written = |path: &PathBuf, error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    };
    fs::create_dir_all(&options.out).map_err(|error| written(&options.out, error))?;
    let raw = file("jsonl");
    let mut raw = fs::File::create(&raw).map_err(|error| written(&raw, error))?;
    let table = file("md");
    let mut table_file = fs::File::create(&table).map_err(|error| written(&table, error))?;
    let page = file("html");
    let mut page_file = fs::File::create(&page).map_err(|error| written(&page, error))?;
    let places = Programs::new(&options.programs);
    let mut circumstances = circumstances::look(&options.version, &programs, &places);
    if cells.iter().any(|cell| cell.secure.is_some()) {
        circumstances.libraries = circumstances::libraries(&programs, &places);
    }
    write_line(
        &mut raw,
        &Line::Machine { experiment: experiment.name, circumstances: &circumstances },
    )?;
    let measured = rounds(experiment, options, &cells, &mut |cell: &Cell, record: &Record| {
        write_line(&mut raw, &Line::Run(record))?;
        eprintln!("  {} {}", record.round, progress::progress(cell, record));
        Ok(())
    })?;
    circumstances.said = measured.said;
    let (records, settings, stopped) =
        (&measured.records, &measured.settings, measured.stopped.as_deref());
    if stopped.is_some() && records.iter().all(|record| record.not_run.is_some()) {
        return Err(io::Error::new(
            io::ErrorKind::Interrupted,
            "interrupted before a round was complete",
        ));
    }
    settings.iter().try_for_each(|setting| write_line(&mut raw, &Line::Setting(setting)))?;
    let sweeps = &measured.sweeps.all;
    sweeps.iter().try_for_each(|sweep| write_line(&mut raw, &Line::Sweep(sweep)))?;
    let (cells, circumstances) = (&cells, &circumstances);
    let report =
        Report { experiment, options, cells, records, circumstances, settings, sweeps, stopped };
    report
        .medians()
        .into_iter()
        .try_for_each(|median| write_line(&mut raw, &Line::Median(median)))?;
    let table = markdown::text(&report);
    table_file.write_all(table.as_bytes())?;
    page_file.write_all(page::html(&report).map_err(io::Error::other)?.as_bytes())?;
    Ok(Outcome { table, is_partial: stopped.is_some() })
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
    /// How a program was started and configured.
    Setting(&'a Setting),
    /// Which settings a rival was tried with, and which one it got.
    Sweep(&'a Sweep),
    /// The medians of all rounds; after an interrupt, of those that were complete.
    Median(Median<'a>),
}

fn write_line(raw: &mut fs::File, line: &Line) -> io::Result<()> {
    writeln!(raw, "{}", serde_json::to_string(line).map_err(io::Error::other)?)
}
