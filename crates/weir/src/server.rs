//! `weir server`: drains, disables and enables a server of a running weir, gives it another weight, and lets it earn trust again. And
//! `weir reload` and `weir upgrade`, which are asked of it in the same way.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use crate::admin::document::{JobStatus, ServerStatus, Status};
use crate::client::{Client, server_path};
use crate::failure::Failure;
use crate::status::PlaceArgs;

/// How often a drain is looked at.
const PAUSE: Duration = Duration::from_millis(50);

/// `weir server`.
#[derive(Args, Debug)]
#[command(after_help = "\
Holds until the next order or the end of the process. Says nothing when it is done; `weir status` shows it.

Example:
  weir server drain app 10.0.0.1:9090 --wait && deploy && weir server enable app 10.0.0.1:9090")]
pub(crate) struct ServerArgs {
    /// Where the admin socket is.
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) order: Order,
}

/// What can be done.
#[derive(Subcommand, Debug)]
pub(crate) enum Order {
    /// Let it finish what it has, give it nothing new
    #[command(after_help = "Example:\n  weir server drain app 10.0.0.1:9090 --wait")]
    Drain {
        /// Which server.
        #[command(flatten)]
        server: Which,
        /// Return when nothing waits for it or is unanswered, at most after SECONDS (30 if not said); code 1 if it isn't
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "30")]
        wait: Option<u32>,
    },
    /// Drain it, give what waits for it to others, and close its connections
    #[command(after_help = "Example:\n  weir server disable app 10.0.0.1:9090")]
    Disable(Which),
    /// Let it serve again
    #[command(after_help = "Example:\n  weir server enable app 10.0.0.1:9090")]
    Enable(Which),
    /// Give it another share of the requests than the configuration says
    #[command(after_help = "\
Holds until the configuration says another weight, or `configured` is ordered. `weir status` shows both.

Example:
  weir server weight app 10.0.0.1:9090 5")]
    Weight {
        /// Which server.
        #[command(flatten)]
        server: Which,
        /// 1 to 100, or `configured`
        #[arg(value_parser = weight)]
        weight: String,
    },
    /// Trust it again after it sent an answer too many, or declared more than it sent, because it has been mended
    #[command(after_help = "Example:\n  weir server clear app 10.0.0.1:9090")]
    Clear(Which),
    /// Forget which requests were in flight when servers died, so that none is sent alone or refused any more
    #[command(after_help = "Example:\n  weir server forgive")]
    Forgive,
}

/// A server.
#[derive(Args, Debug)]
pub(crate) struct Which {
    /// Its upstream
    upstream: String,
    /// The server as the configuration calls it
    server: String,
}

/// Does the verb.
///
/// # Errors
/// Nobody answers, there is no such server, or it doesn't become empty in time.
pub(crate) fn server(arguments: &ServerArgs) -> Result<(), Failure> {
    let client = Client::new(arguments.place.admin.as_deref());
    let (which, word, wait) = match &arguments.order {
        Order::Drain { server, wait } => (server, "drain", *wait),
        Order::Disable(server) => (server, "disable", None),
        Order::Enable(server) => (server, "enable", None),
        Order::Clear(server) => (server, "clear", None),
        Order::Weight { server, weight } => {
            let path = server_path(&server.upstream, &server.server);
            return job(&client, &format!("{path}/weight/{weight}"));
        }
        Order::Forgive => {
            client.post::<Status>("/v1/suspects/forgive")?;
            return Ok(());
        }
    };
    let path = server_path(&which.upstream, &which.server);
    client.post::<ServerStatus>(&format!("{path}/{word}"))?;
    match wait {
        Some(seconds) => wait_until_empty(&client, &path, Duration::from_secs(u64::from(seconds))),
        None => Ok(()),
    }
}

/// `weir reload`.
#[derive(Args, Debug)]
#[command(after_help = "\
The file is read and checked whole; wrong: code 78, and what was in force stays so. What is not different is not touched: no \
connection, no trust, no count, no order.

Example:
  weir reload --dry-run && weir reload")]
pub(crate) struct ReloadArgs {
    /// Where the admin socket is.
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Print what would be different, a line each, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Does the verb `reload`.
///
/// # Errors
/// Nobody answers, or the configuration is wrong, or a running weir can't do it.
pub(crate) fn reload(arguments: &ReloadArgs) -> Result<(), Failure> {
    let client = Client::new(arguments.place.admin.as_deref());
    job(&client, if arguments.dry_run { "/v1/reload/dry-run" } else { "/v1/reload" })
}

/// `weir upgrade`.
#[derive(Args, Debug)]
#[command(after_help = "\
The new program is started as the old one was, and gets its listening sockets. When it is ready the old one finishes its clients and \
ends; when it is not, code 78 for its configuration or 1, and the old one goes on.

Example:
  weir check && weir upgrade")]
pub(crate) struct UpgradeArgs {
    /// Where the admin socket is.
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// Does the verb `upgrade`: returns when the new program is in charge.
///
/// # Errors
/// Nobody answers, or the new program is not ready in time.
pub(crate) fn upgrade(arguments: &UpgradeArgs) -> Result<(), Failure> {
    job(&Client::new(arguments.place.admin.as_deref()), "/v1/upgrade")
}

/// Has a job done, and waits for it: a file may name many servers, whose names are asked for.
fn job(client: &Client, path: &str) -> Result<(), Failure> {
    let mut job = client.post::<JobStatus>(path)?;
    let path = format!("/v1/jobs/{}", job.number);
    while !job.done {
        std::thread::sleep(PAUSE);
        (job, _) = client.get::<JobStatus>(&path)?;
    }
    match job.code {
        0 => {
            crate::terminal::print(&job.text);
            Ok(())
        }
        code => Err(Failure::of(code, job.text)),
    }
}

/// What stands behind `weight`.
fn weight(text: &str) -> Result<String, String> {
    let is_weight = text.parse::<u32>().is_ok_and(|weight| (1..=100).contains(&weight));
    let known = is_weight || text == "configured";
    if known { Ok(text.to_owned()) } else { Err("expected 1 to 100, or `configured`".to_owned()) }
}

fn wait_until_empty(client: &Client, path: &str, patience: Duration) -> Result<(), Failure> {
    let end = Instant::now() + patience;
    loop {
        let (status, _) = client.get::<ServerStatus>(path)?;
        let server = &status.server;
        // A worker that doesn't tell may have requests yet.
        if server.state != "unknown" && server.in_flight + server.waiting == 0 {
            return Ok(());
        }
        if Instant::now() >= end {
            let text = format!("{} unanswered, {} waiting", server.in_flight, server.waiting);
            return Err(Failure::Running(format!(
                "weir: {} is still not empty after {} s: {text}\n",
                server.name,
                patience.as_secs()
            )));
        }
        std::thread::sleep(PAUSE);
    }
}
