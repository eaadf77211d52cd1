//! `weir bench`: experiments that compare weir with no proxy, nginx, HAProxy and others, with the
//! harness of weir-lab.

use std::path::PathBuf;

use clap::Args;
use weir_lab::bench::{self, BenchOptions};

use crate::failure::Failure;
use crate::{machine, terminal};

/// `weir bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Needs nginx, which serves the files, and the contenders; weir skips one that is not installed.
Compare ratios within one run; an absolute rate says more about the machine.

Example:
  weir bench list
  weir bench targets --quick
  weir bench sweep --connections 64,4096 --requests browser --bodies 3,64k --rounds 3")]
pub(crate) struct BenchArgs {
    /// Experiment to run; `list` shows all experiments with their cells
    #[arg(value_name = "EXPERIMENT")]
    experiment: String,
    /// Run fewer, shorter and smaller rounds, in a few minutes
    #[arg(long)]
    quick: bool,
    /// Client connections, for experiments that try several numbers
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = bench::connections)]
    connections: Vec<u32>,
    /// Kinds of requests, for sweep: minimal, browser (11 headers, with a Cookie of 1.5 KB), close
    /// (one connection per request)
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    requests: Vec<String>,
    /// Lengths of responses, for sweep: 3, 64k, 1m
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = bench::body)]
    bodies: Vec<u64>,
    /// Measure only this cell; may be repeated
    #[arg(long, value_name = "CELL", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure only this contender; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    contender: Vec<String>,
    /// Rounds of each cell [default: 3 or 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds of each run [default: 2 to 10, quick 1 to 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Use this program for a contender or the origin; may be repeated
    #[arg(long, value_name = "NAME=PATH", value_parser = bench::program)]
    program: Vec<(String, PathBuf)>,
    /// Serve from the test origin of weir instead of nginx
    #[arg(long)]
    weir_origin: bool,
    /// Directory for the page with charts, the table and the raw data: EXPERIMENT.html, .md and
    /// .jsonl
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/results")]
    out: PathBuf,
    /// Keep configurations, logs and generator output, in EXPERIMENT.work beside the page
    #[arg(long)]
    keep: bool,
}

/// The commit that it was built from, if known: the Makefile and `scripts/dist` set it.
pub(crate) const COMMIT: Option<&str> = option_env!("WEIR_COMMIT");

/// Returns the identity of this program, for reports that others cite.
pub(crate) fn version(commit: Option<&str>) -> String {
    let commit = commit.filter(|commit| !commit.is_empty()).unwrap_or("unknown");
    format!("weir {}, commit {commit}", env!("CARGO_PKG_VERSION"))
}

/// Runs the verb.
///
/// # Errors
/// An unknown experiment, cell or contender, a program that does not start, an interrupt: then the
/// table of complete results is printed all the same.
pub(crate) fn bench(arguments: BenchArgs) -> Result<(), Failure> {
    if arguments.experiment == "list" {
        terminal::print(&bench::list());
        return Ok(());
    }
    machine::raise_descriptors();
    let weir = std::env::current_exe().map_err(|error| failure(&error))?;
    let options = BenchOptions {
        weir,
        version: version(COMMIT),
        programs: arguments.program,
        keep: arguments.keep,
        experiment: arguments.experiment,
        quick: arguments.quick,
        connections: arguments.connections,
        requests: arguments.requests,
        bodies: arguments.bodies,
        only: arguments.only,
        contenders: arguments.contender,
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        weir_origin: arguments.weir_origin,
        out: arguments.out,
    };
    let outcome = bench::run(&options).map_err(|error| failure(&error))?;
    terminal::print(&outcome.table);
    if options.keep {
        eprintln!(
            "weir bench: configurations and logs are in {}",
            options.kept(&options.experiment).display()
        );
    }
    if outcome.is_partial {
        return Err(Failure::Running(
            "weir bench: interrupted: the table has the complete runs\n".to_owned(),
        ));
    }
    Ok(())
}

fn failure(error: &std::io::Error) -> Failure {
    let text = format!("weir bench: {error}\n");
    match error.kind() {
        std::io::ErrorKind::InvalidInput => Failure::Usage(text),
        _ => Failure::Running(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_a_commit_says_so() {
        let of = |commit| version(commit);
        assert!(of(Some("c1d6d8612345-dirty")).ends_with(", commit c1d6d8612345-dirty"));
        assert!(
            of(None).ends_with(", commit unknown") && of(Some("")).ends_with(", commit unknown")
        );
    }
}
