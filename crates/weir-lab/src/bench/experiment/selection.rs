//! What users selected: their options, and the experiment, cells and contenders that these mean.
//!
//! Called by `bench/mod.rs` before anything is started. All errors about users' choices come from
//! here.

use std::io;
use std::path::PathBuf;

use super::catalogue::{EXPERIMENTS, Experiment};
use super::cells::{self, Axes, Axis, Cell, Origin};
use super::contenders::contender;

/// What to measure and where to write it.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The `weir` binary to measure, usually the running one.
    pub weir: PathBuf,
    /// What it is, for readers who cite the result: version and commit.
    pub version: String,
    /// Programs of contenders by name, with the path of each.
    pub programs: Vec<(String, PathBuf)>,
    /// Copy configurations, logs and what the generator wrote to `EXPERIMENT.work` in `out`.
    pub keep: bool,
    /// Name of the experiment.
    pub experiment: String,
    /// Short rounds of less, in a few minutes.
    pub quick: bool,
    /// Client connections to measure with; empty means those of the experiment.
    pub connections: Vec<u32>,
    /// How requests look: minimal, browser, close; empty means all.
    pub requests: Vec<String>,
    /// Lengths of bodies, bytes; empty means those of the experiment.
    pub bodies: Vec<u64>,
    /// Names of cells; empty means all.
    pub only: Vec<String>,
    /// Names of contenders; empty means all of each cell.
    pub contenders: Vec<String>,
    /// Rounds in place of the experiment's (quick: 3).
    pub rounds: Option<u32>,
    /// Seconds of each run in place of the experiment's (quick: 1, and 2 from 1,000 connections
    /// on).
    pub seconds: Option<u32>,
    /// Serve from weir's own origin in place of nginx.
    pub weir_origin: bool,
    /// Directory for `EXPERIMENT.jsonl`, `EXPERIMENT.md` and `EXPERIMENT.html`.
    pub out: PathBuf,
}

impl BenchOptions {
    /// Where `keep` copies to.
    pub fn kept(&self, experiment: &str) -> PathBuf {
        self.out.join(format!("{experiment}.work"))
    }
}

#[cfg(test)]
impl BenchOptions {
    /// Returns the options of an experiment, with no other selection.
    pub(crate) fn of_test(experiment: &str) -> BenchOptions {
        BenchOptions {
            weir: PathBuf::from("weir"),
            version: "weir 0.0.0".to_owned(),
            programs: Vec::new(),
            keep: false,
            experiment: experiment.to_owned(),
            quick: false,
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
}

/// The experiment of that name.
///
/// # Errors
/// No experiment has this name; the text suggests what may have been meant.
pub(crate) fn experiment(name: &str) -> io::Result<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name).ok_or_else(|| {
        let near =
            EXPERIMENTS.iter().map(|other| (strsim::jaro_winkler(name, other.name), other.name));
        let near = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness > 0.75);
        let hint = near.map_or_else(String::new, |(_, near)| format!(", did you mean `{near}`?"));
        invalid(format!("no experiment `{name}`{hint}; `weir bench list` shows all"))
    })
}

/// The cells that were selected.
///
/// # Errors
/// The experiment has no such axis or cell, a word is unknown, or nothing is left.
pub(crate) fn selected_cells(
    experiment: &Experiment,
    options: &BenchOptions,
) -> io::Result<Vec<Cell>> {
    let given = [
        (Axis::Connections, "--connections", options.connections.is_empty()),
        (Axis::Requests, "--requests", options.requests.is_empty()),
        (Axis::Bodies, "--bodies", options.bodies.is_empty()),
    ];
    for (axis, flag, is_empty) in given {
        if !is_empty && !experiment.axes.contains(&axis) {
            return Err(invalid(format!(
                "{flag}: the experiment `{}` has its own",
                experiment.name
            )));
        }
    }
    let kinds = options
        .requests
        .iter()
        .map(|word| cells::kind(word))
        .collect::<Result<_, _>>()
        .map_err(invalid)?;
    let (connections, bodies) = (options.connections.clone(), options.bodies.clone());
    let all = (experiment.cells)(&Axes { quick: options.quick, connections, kinds, bodies });
    if all.is_empty() {
        return Err(invalid(
            "no cell is left: responses of that length on that many connections do not fit"
                .to_owned(),
        ));
    }
    if options.only.is_empty() {
        return Ok(all);
    }
    let find = |name: &String| {
        let cell = all.iter().find(|cell| cell.name == *name).cloned();
        cell.ok_or_else(|| unknown(experiment, "cell", name))
    };
    options.only.iter().map(find).collect()
}

/// Checks that every named contender takes part.
///
/// # Errors
/// No contender of that name takes part in those cells.
pub(crate) fn check_contenders(options: &BenchOptions, cells: &[Cell]) -> io::Result<()> {
    let known = |name: &&String| cells.iter().any(|cell| cell.contenders.contains(&name.as_str()));
    match options.contenders.iter().find(|name| !known(name)) {
        Some(name) => Err(invalid(format!("no contender `{name}` in the selection"))),
        None => Ok(()),
    }
}

/// Checks that each program that was given by path takes part and is there.
///
/// # Errors
/// It does not or is not; the text says which ones take part.
pub(crate) fn check_programs(options: &BenchOptions, programs: &[&str]) -> io::Result<()> {
    for (name, path) in &options.programs {
        if !programs.contains(&name.as_str()) {
            let all = if programs.is_empty() { "none".to_owned() } else { programs.join(", ") };
            return Err(invalid(format!(
                "--program: no program `{name}` in the selection; it has: {all}"
            )));
        }
        if !path.is_file() {
            return Err(invalid(format!("--program {name}: {} is not a file", path.display())));
        }
    }
    Ok(())
}

/// Parses a program of a contender with its path: `nginx=/opt/nginx/sbin/nginx`.
///
/// # Errors
/// The text does not have that form.
pub fn program(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && path.starts_with('/') => {
            Ok((name.to_owned(), PathBuf::from(path)))
        }
        _ => Err(format!(
            "`{text}` is not NAME=PATH with a path from the root, as in nginx=/opt/nginx/sbin/nginx"
        )),
    }
}

/// Programs that take part, each once.
pub(crate) fn programs(cells: &[Cell], options: &BenchOptions) -> Vec<&'static str> {
    let usual = cells.iter().any(|cell| cell.origin == Origin::Usual) && !options.weir_origin;
    let mut programs: Vec<&str> = if usual { vec!["nginx"] } else { Vec::new() };
    let taking_part = |name: &str| {
        options.contenders.is_empty() || options.contenders.iter().any(|one| one == name)
    };
    for name in cells.iter().flat_map(|cell| &cell.contenders).filter(|name| taking_part(name)) {
        let program = contender(name).and_then(|contender| contender.what.program());
        programs.extend(program.filter(|program| !programs.contains(program)));
    }
    programs
}

/// The error of a name that an experiment doesn't have.
pub(crate) fn unknown(experiment: &Experiment, what: &str, name: &str) -> io::Error {
    invalid(format!(
        "the experiment `{}` has no {what} called `{name}`; `weir bench list` shows all",
        experiment.name
    ))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
