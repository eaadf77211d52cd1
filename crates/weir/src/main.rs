//! weir: the command. Reads the command line, runs one verb, exits with its code.

mod admin;
mod arrival;
mod ban;
mod bans;
mod bench;
mod bomb;
mod cache;
mod certificates;
mod check;
mod cli;
mod client;
mod cores;
mod demo;
mod discovery;
mod failure;
mod forward;
mod import;
mod intercept;
mod journal;
mod lab;
mod lasting;
mod leaving;
mod log;
mod machine;
mod manual;
mod names;
mod notify;
mod origin;
mod passwd;
mod privileges;
mod probe;
mod reload;
mod reverse;
mod run;
mod scarcity;
mod secure;
mod server;
mod shield;
mod side;
mod snapshot;
mod spreading;
mod status;
mod terminal;
mod upgrade;
mod verdicts;
mod ways;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Verb};

/// Small per-thread heaps: workers never share one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if let Some(code) = upgrade::start_again() {
        return code;
    }
    let outcome = match Cli::parse_from(cli::words(std::env::args_os())).verb {
        Verb::Run(arguments) => upgrade::inheriting(|heritage| run::run(&arguments, heritage)),
        Verb::Check(arguments) => check::check(&arguments),
        Verb::Import(arguments) => import::import(&arguments),
        Verb::Status(arguments) => status::status(&arguments),
        Verb::Reload(arguments) => server::reload(&arguments),
        Verb::Upgrade(arguments) => server::upgrade(&arguments),
        Verb::Server(arguments) => server::server(&arguments),
        Verb::Ban(arguments) => ban::ban(&arguments),
        Verb::Shield(arguments) => shield::shield(&arguments),
        Verb::Cache(arguments) => cache::cache(&arguments),
        Verb::Reverse(arguments) => {
            upgrade::inheriting(|heritage| reverse::reverse(arguments, heritage))
        }
        Verb::Forward(arguments) => {
            upgrade::inheriting(|heritage| forward::forward(*arguments, heritage))
        }
        Verb::Intercept(arguments) => {
            upgrade::inheriting(|heritage| intercept::intercept(*arguments, heritage))
        }
        Verb::Passwd(arguments) => passwd::passwd(&arguments),
        Verb::Origin(arguments) => origin::origin(&arguments),
        Verb::Probe(arguments) => probe::probe(arguments),
        Verb::Demo(arguments) => demo::demo(&arguments),
        Verb::Bomb(arguments) => bomb::bomb(*arguments),
        Verb::Lab(arguments) => lab::lab(arguments),
        Verb::Bench(arguments) => bench::bench(arguments),
        Verb::Completion(arguments) => manual::completion(&arguments),
        Verb::Man(arguments) => manual::man(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If standard error is closed, the message is lost.
            let _ = write!(std::io::stderr().lock(), "{failure}");
            ExitCode::from(failure.code())
        }
    }
}
