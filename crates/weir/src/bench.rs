//! `weir bench`: measures weir against no proxy, nginx and HAProxy, with the harness of weir-lab.

use std::path::PathBuf;

use clap::Args;
use weir_lab::bench::{self, BenchOptions};

use crate::failure::Failure;
use crate::{machine, terminal};

/// `weir bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Needs wrk, nginx and haproxy. Ratios within one run count; an absolute rate says more about the machine.

Example:
  weir bench --only c64 --only c4000 --rounds 3 --seconds 2")]
pub(crate) struct BenchArgs {
    /// Short rounds of what the targets need, in a few minutes
    #[arg(long)]
    quick: bool,
    /// Measure only this cell; may be given several times
    #[arg(long, value_name = "CELL")]
    only: Vec<String>,
    /// Measure only this contender; may be given several times
    #[arg(long, value_name = "NAME")]
    contender: Vec<String>,
    /// Rounds of each cell [default: 5, quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds of each run [default: 6, quick 1 to 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Serve from weir's own test origin in place of nginx
    #[arg(long)]
    weir_origin: bool,
    /// Directory for latest.md and latest.jsonl
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/results")]
    out: PathBuf,
    /// List cells and contenders, and end
    #[arg(long)]
    list: bool,
}

/// Does the verb.
///
/// # Errors
/// A cell or contender that doesn't exist, a program that is missing, an interrupt.
pub(crate) fn bench(arguments: BenchArgs) -> Result<(), Failure> {
    if arguments.list {
        terminal::print(&bench::list());
        return Ok(());
    }
    machine::raise_descriptors();
    let weir = std::env::current_exe().map_err(|error| failure(&error))?;
    let options = BenchOptions {
        weir,
        quick: arguments.quick,
        only: arguments.only,
        contenders: arguments.contender,
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        weir_origin: arguments.weir_origin,
        out: arguments.out,
    };
    let text = bench::run(&options).map_err(|error| failure(&error))?;
    terminal::print(&text);
    Ok(())
}

fn failure(error: &std::io::Error) -> Failure {
    let text = format!("weir bench: {error}\n");
    match error.kind() {
        std::io::ErrorKind::InvalidInput => Failure::Usage(text),
        _ => Failure::Running(text),
    }
}
