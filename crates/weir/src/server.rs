//! `weir server`: drains, disables and enables a server of a running weir, changes its weight, and
//! lets it earn trust again; adds and removes temporary servers. Also `weir reload` and
//! `weir upgrade`, which work in the same way.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use crate::admin::document::{JobStatus, Left, ServerStatus, Status};
use crate::client::{Client, server_path};
use crate::failure::Failure;
use crate::reload::Added;
use crate::status::PlaceArgs;
use crate::terminal;

/// How often a drain is checked.
const PAUSE: Duration = Duration::from_millis(50);

/// `weir server`.
#[derive(Args, Debug)]
#[command(after_help = "\
A change holds until the next command or the end of the process. On success the command prints \
nothing; `weir status` shows the change.

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
    /// Let a server finish its requests, and send it no new ones
    #[command(after_help = "Example:\n  weir server drain app 10.0.0.1:9090 --wait")]
    Drain {
        /// Which server.
        #[command(flatten)]
        server: Which,
        /// Wait until no request waits for it or is unanswered, at most SECONDS (30 if omitted);
        /// code 1 on timeout
        #[arg(
            long,
            value_name = "SECONDS",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "30"
        )]
        wait: Option<u32>,
    },
    /// Drain a server, move waiting requests to others, close its connections
    #[command(after_help = "Example:\n  weir server disable app 10.0.0.1:9090")]
    Disable(Which),
    /// Let a server serve again
    #[command(after_help = "Example:\n  weir server enable app 10.0.0.1:9090")]
    Enable(Which),
    /// Change the weight of a server, overriding the configuration
    #[command(after_help = "\
The weight holds until the configuration says another weight, or until you set `configured`. \
`weir status` shows both.

Example:
  weir server weight app 10.0.0.1:9090 5")]
    Weight {
        /// Which server.
        #[command(flatten)]
        server: Which,
        /// Weight, 1 to 100, or `configured`
        #[arg(value_parser = weight)]
        weight: String,
    },
    /// Add a server to an upstream until removal, outside the configuration
    #[command(after_help = "\
The server takes requests as soon as weir can connect to it. If the upstream has `health`, weir \
probes it like others, and it serves until a probe fails. It survives reloads and upgrades as \
long as its upstream does, until `weir server remove`, a restart, or until the configuration has \
it as well. Options are those of `server` in the configuration.

Example:
  weir server add app 10.0.0.3:9090 --weight 20
  weir server add app unix:/run/app.sock")]
    Add(Box<AddArgs>),
    /// Remove an added server; it finishes its requests
    #[command(after_help = "\
The server gets no new requests from now on. It answers those under way, and tunnels continue. To \
remove a server of the configuration, edit the configuration. `--wait` asks the weir in charge, \
which does not know what its predecessor still has open there after `weir upgrade`.

Example:
  weir server remove app 10.0.0.3:9090 --wait && shutdown")]
    Remove {
        /// Which server.
        #[command(flatten)]
        server: Which,
        /// Wait until nothing of it is left, including tunnels, at most SECONDS (30 if omitted);
        /// code 1 on timeout
        #[arg(
            long,
            value_name = "SECONDS",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "30"
        )]
        wait: Option<u32>,
        /// Print the server before the removal as JSON, like `weir status server`
        #[arg(long)]
        json: bool,
    },
    /// Trust a repaired server again after a surplus or truncated response
    #[command(after_help = "Example:\n  weir server clear app 10.0.0.1:9090")]
    Clear(Which),
    /// Stop isolating or rejecting requests that were in flight as servers died
    #[command(after_help = "Example:\n  weir server forgive")]
    Forgive,
}

/// `weir server add`.
#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    /// Name of the upstream
    upstream: String,
    /// Address of the server: ADDRESS:PORT or unix:PATH
    #[arg(value_parser = address)]
    address: String,
    /// Share of requests relative to the other servers, 1 to 100 [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    weight: Option<u32>,
    /// Use it only when no other server can be used
    #[arg(long)]
    backup: bool,
    /// Connections to keep to it even without traffic; this and the next two options are totals
    /// over all workers [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65_535))]
    connections_min: Option<u32>,
    /// Most connections for requests that share them [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    connections: Option<u32>,
    /// Most connections, with those that carry one request each [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    connections_max: Option<u32>,
    /// Requests that it works on at once, in total over all workers; further ones wait [default:
    /// unlimited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    concurrency: Option<u32>,
    /// Print the server after the change as JSON, like `weir status server`
    #[arg(long)]
    json: bool,
}

impl AddArgs {
    /// Adds it.
    fn add(&self, client: &Client) -> Result<(), Failure> {
        let path = server_path(&self.upstream, &self.address);
        let numbers = [
            ("weight", self.weight),
            ("connections-min", self.connections_min),
            ("connections", self.connections),
            ("connections-max", self.connections_max),
            ("concurrency", self.concurrency),
        ];
        let options = numbers
            .iter()
            .filter_map(|(name, number)| number.map(|number| format!("{name}={number}")));
        let options: Vec<String> =
            options.chain(self.backup.then(|| "backup=on".to_owned())).collect();
        job(client, &format!("{path}/add?{}", options.join("&")))?;
        if self.json {
            terminal::print(&client.get::<ServerStatus>(&path)?.1);
        }
        Ok(())
    }
}

/// A server.
#[derive(Args, Debug)]
pub(crate) struct Which {
    /// Name of the upstream
    upstream: String,
    /// Name of the server in `weir status`
    server: String,
}

/// Runs the verb.
///
/// # Errors
/// weir does not reply, the server does not exist, or it does not become empty in time.
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
        Order::Add(added) => return added.add(&client),
        Order::Remove { server, wait, json } => return remove(&client, server, *wait, *json),
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
weir reads and checks the whole file first. If it is invalid, the command exits with code 78, and \
the previous configuration remains in force. Unchanged parts keep their connections, trust, \
counts and operator commands.

Example:
  weir reload --dry-run && weir reload")]
pub(crate) struct ReloadArgs {
    /// Where the admin socket is.
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Print each difference in a line, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Runs the verb `reload`.
///
/// # Errors
/// weir does not reply, the configuration is wrong, or a running weir cannot apply it.
pub(crate) fn reload(arguments: &ReloadArgs) -> Result<(), Failure> {
    let client = Client::new(arguments.place.admin.as_deref());
    job(&client, if arguments.dry_run { "/v1/reload/dry-run" } else { "/v1/reload" })
}

/// `weir upgrade`.
#[derive(Args, Debug)]
#[command(after_help = "\
weir starts the new program as it was started itself, and passes its listening sockets on. When \
the new program is ready, the old one finishes its clients and exits. If it does not become \
ready, the command exits with code 78 for its configuration or 1, and the old one continues.

Example:
  weir check && weir upgrade")]
pub(crate) struct UpgradeArgs {
    /// Where the admin socket is.
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// Runs the verb `upgrade`: returns when the new program is in charge.
///
/// # Errors
/// weir does not reply, or the new program is not ready in time.
pub(crate) fn upgrade(arguments: &UpgradeArgs) -> Result<(), Failure> {
    job(&Client::new(arguments.place.admin.as_deref()), "/v1/upgrade")
}

/// Starts a job, and waits for it: a file may have many server names, and all have to be resolved.
fn job(client: &Client, path: &str) -> Result<(), Failure> {
    let mut job = client.post::<JobStatus>(path)?;
    let path = format!("/v1/jobs/{}", job.number);
    while !job.done {
        std::thread::sleep(PAUSE);
        (job, _) = client.get::<JobStatus>(&path)?;
    }
    match job.code {
        0 => {
            terminal::print(&job.text);
            Ok(())
        }
        code => Err(Failure::of(code, job.text)),
    }
}

fn remove(client: &Client, which: &Which, wait: Option<u32>, json: bool) -> Result<(), Failure> {
    let path = server_path(&which.upstream, &which.server);
    // The job reports a missing server, because it knows what can be removed at all.
    let before = if json { client.get::<ServerStatus>(&path).ok() } else { None };
    job(client, &format!("{path}/remove"))?;
    if let Some((_, text)) = before {
        terminal::print(&text);
    }
    let Some(seconds) = wait else { return Ok(()) };
    let end = Instant::now() + Duration::from_secs(u64::from(seconds));
    loop {
        let left = client.get::<Left>(&format!("{path}/left"))?.0.left;
        if left == Some(0) {
            return Ok(());
        }
        if Instant::now() >= end {
            let left = left.map_or_else(
                || "a worker does not respond".to_owned(),
                |left| match left {
                    1 => "1 request or tunnel".to_owned(),
                    left => format!("{left} requests and tunnels"),
                },
            );
            let text = format!(
                "weir: {} is removed, but not empty after {seconds} s: {left}\n",
                which.server
            );
            return Err(Failure::Running(text));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Parses the address of a server to add, in the form of its name.
fn address(text: &str) -> Result<String, String> {
    Added::read(text, &[]).map(|added| added.server.name)
}

/// Parses the argument of `weight`.
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
        // A worker that does not reply may still have requests.
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
