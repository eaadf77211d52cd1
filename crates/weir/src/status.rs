//! `weir status`: how a running weir is doing. Asks its admin socket and shows what it says, once or again and again.

pub(crate) mod detail;
pub(crate) mod figures;
pub(crate) mod overview;
pub(crate) mod table;
mod tls;
mod usage;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use crate::admin::document::{ServerStatus, Status};
use crate::client::{Client, Unanswered, server_path};
use crate::failure::Failure;
use crate::terminal;
use overview::Look;

/// How often `--wait` asks.
const WAIT_PAUSE: Duration = Duration::from_millis(50);

/// Where the admin socket is.
#[derive(Args, Debug)]
pub(crate) struct PlaceArgs {
    /// Admin socket of the weir to ask [default: /run/weir/admin.sock, then $XDG_RUNTIME_DIR/weir/admin.sock]
    #[arg(long, value_name = "PATH", env = "WEIR_ADMIN", hide_env_values = true, global = true)]
    pub(crate) admin: Option<PathBuf>,
}

/// `weir status`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = false,
    after_help = "\
REQ/S is of the last two seconds; MEAN, times, answers and RETRY are of the last 300 s; BUSY are requests on their way to a server, WAIT those \
without a connection. A narrow terminal leaves columns out. Fields of --json: docs/status.md.

Example:
  weir status
  weir status --watch
  weir status server app 10.0.0.1:9090
  weir status --json | jq '.upstreams[].servers[].window.latency.p99_us'"
)]
pub(crate) struct StatusArgs {
    /// Where the admin socket is.
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Print JSON as the admin socket gives it; with --watch one document a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show it again every SECONDS until Ctrl-C; where there is no terminal one line each
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=3600), global = true)]
    pub(crate) watch: Option<u32>,
    /// Wait until weir is ready and each upstream has a server, at most SECONDS (30 if not said), and print nothing;
    /// code 1 if it is not in time
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "30",
          conflicts_with_all = ["watch", "json"])]
    pub(crate) wait: Option<u32>,
    /// What to look at.
    #[command(subcommand)]
    pub(crate) what: Option<What>,
}

/// A part of it.
#[derive(Subcommand, Debug)]
pub(crate) enum What {
    /// Everything about one server, and a line for each of its connections
    #[command(after_help = "\
SENT are requests given to the kernel and unanswered, QUEUED those in line behind them.

Example:
  weir status server app 10.0.0.1:9090")]
    Server {
        /// Its upstream
        upstream: String,
        /// The server as the configuration calls it
        server: String,
    },
}

/// Does the verb.
///
/// # Errors
/// Nobody answers, or there is no such server, or it isn't ready in time.
pub(crate) fn status(arguments: &StatusArgs) -> Result<(), Failure> {
    let client = Client::new(arguments.place.admin.as_deref());
    if let Some(seconds) = arguments.wait {
        return wait(&client, Duration::from_secs(u64::from(seconds)));
    }
    let Some(seconds) = arguments.watch else {
        terminal::print(&once(&client, arguments, false)?);
        return Ok(());
    };
    let screen = !arguments.json && io::stdout().is_terminal();
    loop {
        let text = once(&client, arguments, !screen)?;
        let shown = if screen { redrawn(&text) } else { text };
        if !terminal::try_print(&shown) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(u64::from(seconds)));
    }
}

/// One look, as text. `line`: as one line.
fn once(client: &Client, arguments: &StatusArgs, line: bool) -> Result<String, Unanswered> {
    let look = look();
    match &arguments.what {
        None => {
            let (status, json) = client.get::<Status>("/v1/status")?;
            Ok(match (arguments.json, line) {
                (true, _) => json,
                (false, true) => overview::line(&status),
                (false, false) => overview::overview(&status, look),
            })
        }
        Some(What::Server { upstream, server }) => {
            let (status, json) = client.get::<ServerStatus>(&server_path(upstream, server))?;
            Ok(if arguments.json { json } else { detail::detail(&status, look) })
        }
    }
}

/// How to show it here.
pub(crate) fn look() -> Look {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let size = terminal::size();
    let width = asked.or(size.map(|(columns, _)| columns)).unwrap_or(usize::MAX);
    Look { width, colour: size.is_some() && terminal::wants_colour() }
}

/// In place of the screen before: no line that doesn't fit, nothing left of what stood there.
fn redrawn(text: &str) -> String {
    let rows = terminal::size().map_or(usize::MAX, |(_, rows)| rows);
    let lines: Vec<&str> = text.lines().collect();
    let (shown, more) =
        if lines.len() < rows { (lines.len(), None) } else { (rows.saturating_sub(2), Some(lines.len())) };
    let mut out = String::from("\x1b[H");
    for line in &lines[..shown] {
        out += line;
        out += "\x1b[K\n";
    }
    if let Some(all) = more {
        out += &format!("... {} more lines\x1b[K\n", all - shown);
    }
    out + "\x1b[J"
}

/// What `--wait` still waits for: weir itself, or a server of an upstream, whether it is required or not.
fn missing(status: &Status) -> Option<String> {
    let dead = status.upstreams.iter().find(|upstream| !upstream.usable);
    status.unready.clone().or_else(|| Some(format!("no-server {}", dead?.name)))
}

/// Until it is ready.
fn wait(client: &Client, patience: Duration) -> Result<(), Failure> {
    let end = Instant::now() + patience;
    loop {
        let why = match client.get::<Status>("/v1/status") {
            Ok((status, _)) => match missing(&status) {
                None => return Ok(()),
                Some(why) => format!("weir: not ready: {why}\n"),
            },
            Err(Unanswered::Away(text) | Unanswered::Refused(text)) => format!("weir: {text}\n"),
        };
        if Instant::now() >= end {
            return Err(Failure::Running(format!("{why}weir: waited {} s\n", patience.as_secs())));
        }
        std::thread::sleep(WAIT_PAUSE);
    }
}
