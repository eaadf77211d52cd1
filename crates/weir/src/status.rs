//! `weir status`: shows the state of a running weir, once or regularly, from its admin socket.

mod accepting;
pub(crate) mod arms;
pub(crate) mod cache;
pub(crate) mod detail;
pub(crate) mod figures;
mod interception;
pub(crate) mod limits;
pub(crate) mod overview;
mod screen;
pub(crate) mod table;
mod tls;
mod usage;
mod watch;
mod workers;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use crate::admin::document::{ServerStatus, Status};
use crate::client::{Client, Unanswered, server_path};
use crate::failure::Failure;
use crate::log::Event;
use crate::terminal;
use overview::Look;

/// How often `--wait` queries.
const WAIT_PAUSE: Duration = Duration::from_millis(50);

/// Where the admin socket is.
#[derive(Args, Debug)]
pub(crate) struct PlaceArgs {
    /// Admin socket of the running weir [default: /run/weir/admin.sock, then
    /// $XDG_RUNTIME_DIR/weir/admin.sock]
    #[arg(long, value_name = "PATH", env = "WEIR_ADMIN", hide_env_values = true, global = true)]
    pub(crate) admin: Option<PathBuf>,
}

/// `weir status`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = false,
    after_help = "\
REQ/S covers the last two seconds; MEAN, times, statuses and RETRY cover the last 300 s. BUSY \
counts requests in flight at a server, WAIT those without a connection. A narrow terminal \
hides columns. For the fields of --json, see docs/status.md.

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
    /// Print JSON from the admin socket; with --watch, one document per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Refresh every SECONDS until q or Ctrl-C, also while weir restarts; sick servers come first,
    /// keys sort and scroll. Without a terminal, print one line each time
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=3600),
        global = true
    )]
    pub(crate) watch: Option<u32>,
    /// Wait until weir is ready and each upstream has a server, at most SECONDS (30 if omitted),
    /// and print nothing; code 1 on timeout
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "30",
        conflicts_with_all = ["watch", "json"]
    )]
    pub(crate) wait: Option<u32>,
    /// What to look at.
    #[command(subcommand)]
    pub(crate) what: Option<What>,
}

/// A part of it.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum What {
    /// Show everything about one server, and a line for each connection
    #[command(after_help = "\
SENT counts requests given to the kernel and unanswered, QUEUED those in line behind them.

Example:
  weir status server app 10.0.0.1:9090")]
    Server {
        /// Name of the upstream
        upstream: String,
        /// Name of the server in the configuration
        server: String,
    },
}

/// Runs the verb.
///
/// # Errors
/// weir does not reply, the server does not exist, or weir is not ready in time.
pub(crate) fn status(arguments: &StatusArgs) -> Result<(), Failure> {
    let client = Client::new(arguments.place.admin.as_deref());
    if let Some(seconds) = arguments.wait {
        return wait(&client, Duration::from_secs(u64::from(seconds)));
    }
    let (first, json) = seen(&client, arguments.what.as_ref())?;
    let Some(seconds) = arguments.watch else {
        terminal::print(&if arguments.json { json } else { first.shown() });
        return Ok(());
    };
    let pause = Duration::from_secs(u64::from(seconds));
    if !arguments.json && io::stdout().is_terminal() {
        return watch::watch(client, arguments.what.clone(), pause, first);
    }
    lines(&client, arguments, pause, (first, json));
    Ok(())
}

/// The response of weir.
#[derive(Debug)]
enum Seen {
    All(Box<Status>),
    Server(Box<ServerStatus>),
}

/// Queries once. Returns the response, and its text.
fn seen(client: &Client, what: Option<&What>) -> Result<(Seen, String), Unanswered> {
    match what {
        None => client.get("/v1/status").map(|(status, json)| (Seen::All(Box::new(status)), json)),
        Some(What::Server { upstream, server }) => {
            let path = server_path(upstream, server);
            client.get(&path).map(|(status, json)| (Seen::Server(Box::new(status)), json))
        }
    }
}

impl Seen {
    /// Returns it for people, once.
    fn shown(&self) -> String {
        match self {
            Seen::All(status) => overview::overview(status, look()),
            Seen::Server(status) => detail::detail(status, look()),
        }
    }

    /// Returns it for people, at each interval.
    fn line(&self) -> String {
        match self {
            Seen::All(status) => overview::line(status),
            Seen::Server(status) => detail::detail(status, look()),
        }
    }
}

/// Prints a line each time, until the reader has gone. Without a response it prints none, and
/// standard error says so once.
fn lines(client: &Client, arguments: &StatusArgs, pause: Duration, first: (Seen, String)) {
    let mut answer = Ok(first);
    let mut away = false;
    loop {
        match &answer {
            Ok((seen, json)) => {
                away = false;
                if !terminal::try_print(&if arguments.json { json.clone() } else { seen.line() }) {
                    return;
                }
            }
            Err(Unanswered::Away(text) | Unanswered::Refused(text)) if !away => {
                away = true;
                let first = text.lines().next().unwrap_or_default();
                Event::StatusAway.says(format_args!("{first}; retrying")).log();
            }
            Err(_) => {}
        }
        std::thread::sleep(pause);
        answer = seen(client, arguments.what.as_ref());
    }
}

/// Returns how to show it here.
pub(crate) fn look() -> Look {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let size = terminal::size();
    let width = asked.or(size.map(|(columns, _)| columns)).unwrap_or(usize::MAX);
    Look { width, colour: size.is_some() && terminal::wants_colour() }
}

/// Returns what `--wait` still waits for: weir itself, or a server of an upstream, even of one that
/// is not required.
fn missing(status: &Status) -> Option<String> {
    let dead = status.upstreams.iter().find(|upstream| !upstream.usable);
    status.unready.clone().or_else(|| Some(format!("no-server {}", dead?.name)))
}

/// Waits until it is ready.
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
