//! The files of a run that `--keep` keeps: configurations, logs and the generator's output, in a
//! folder for each cell.
//!
//! Called by `rounds.rs` after each run and each cell. Copies files, so that the working directory
//! remains unchanged: the next cell overwrites them, and the directory is removed at the end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::block::ATTACKERS_OUT;
use crate::bench::experiment::catalogue::Experiment;
use crate::bench::experiment::cells::Cell;
use crate::bench::experiment::contenders::Contender;
use crate::bench::experiment::selection::BenchOptions;

/// Inputs and logs of contenders and origins.
const OF_A_CELL: [&str; 5] = ["conf", "json", "kdl", "log", "requests"];
/// Output files of generators.
const OF_A_RUN: [&str; 4] = ["bomb.jsonl", ATTACKERS_OUT, "failover.jsonl", "probe.json"];

/// The folder; None: nothing is kept.
#[derive(Debug)]
pub(super) struct Kept(Option<PathBuf>);

impl Kept {
    /// Creates an empty folder, if one is wanted. Files that an earlier run kept in its place are
    /// removed.
    ///
    /// # Errors
    /// It can't be made.
    pub(super) fn new(experiment: &Experiment, options: &BenchOptions) -> io::Result<Kept> {
        if !options.keep {
            return Ok(Kept(None));
        }
        let folder = options.kept(experiment.name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(Kept(Some(folder)))
    }

    /// Keeps the generator's output of the run that is over.
    ///
    /// # Errors
    /// A file can't be copied.
    pub(super) fn run(
        &self,
        from: &Path,
        cell: &Cell,
        contender: Contender,
        round: u32,
    ) -> io::Result<()> {
        let Some(folder) = &self.0 else { return Ok(()) };
        let folder = folder.join(&cell.name);
        fs::create_dir_all(&folder)?;
        for name in OF_A_RUN {
            let written = from.join(name);
            if written.is_file() {
                fs::copy(&written, folder.join(format!("{}.{round}.{name}", contender.name)))?;
                // The next run may have another generator.
                fs::remove_file(&written)?;
            }
        }
        Ok(())
    }

    /// Keeps configurations and logs of the cell that is over, even of one that failed.
    ///
    /// # Errors
    /// A file can't be copied.
    pub(super) fn cell(&self, from: &Path, cell: &Cell) -> io::Result<()> {
        let Some(folder) = &self.0 else { return Ok(()) };
        let folder = folder.join(&cell.name);
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(from)? {
            let file = entry?.path();
            let is_wanted = file
                .extension()
                .is_some_and(|ending| OF_A_CELL.iter().any(|wanted| ending == *wanted));
            if file.is_file() && is_wanted {
                fs::copy(&file, folder.join(file.file_name().unwrap_or_default()))?;
            }
        }
        Ok(())
    }
}
