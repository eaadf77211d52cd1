//! The command line: verbs, flags, help. Called by `main`; each verb has its own module.
//!
//! Each `--help` ends with an example. Wrong usage ends with code 2.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

/// HTTP reverse proxy with pipelined upstream connections
#[derive(Parser, Debug)]
#[command(
    name = "weir",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  weir reverse --listen 127.0.0.1:8080 --to 10.0.0.1:9090
  weir check -c weir.kdl && weir run -c weir.kdl

Exit codes: 0 success, 1 failure while running, 2 wrong usage, 77 missing privilege, 78 invalid \
configuration."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum Verb {
    /// Run the proxy with a configuration file
    #[command(alias = "start")]
    Run(RunArgs),
    /// Report every error in a configuration, or print it with all defaults
    #[command(aliases = ["validate", "configtest"])]
    Check(CheckArgs),
    /// Convert a configuration of nginx, HAProxy or Caddy for weir
    Import(crate::import::ImportArgs),
    /// Show the status of a running weir
    Status(crate::status::StatusArgs),
    /// Reload the configuration of a running weir
    Reload(crate::server::ReloadArgs),
    /// Change servers of a running weir: drain, disable, weight, add, remove
    Server(crate::server::ServerArgs),
    /// List, add, remove or explain bans of a running weir
    Ban(crate::ban::BanArgs),
    /// Show limits of a running weir, and clients near or over them
    Shield(crate::shield::ShieldArgs),
    /// Inspect the cache of a running weir, explain its decisions, or purge it
    Cache(crate::cache::CacheArgs),
    /// Replace a running weir with the binary on disk without losing a request
    Upgrade(crate::server::UpgradeArgs),
    /// Run a reverse proxy without a configuration file
    Reverse(ReverseArgs),
    /// Run a forward proxy without a configuration file
    Forward(Box<ForwardArgs>),
    /// Intercept forwarded TCP, with separate congestion control on each side
    Intercept(Box<crate::intercept::InterceptArgs>),
    /// Add, update, delete or check a user of the forward proxy
    Passwd(crate::passwd::PasswdArgs),
    /// Run the test origin
    Origin(OriginArgs),
    /// Send requests one at a time, and show the phases of slow ones
    Probe(crate::probe::ProbeArgs),
    /// Run the test origin and the proxy in front of it, with live figures
    Demo(crate::demo::DemoArgs),
    /// Load-test a server, and account for every connection and request
    Bomb(Box<crate::bomb::BombArgs>),
    /// Emulate a slow and lossy link
    Lab(crate::lab::LabArgs),
    /// Compare weir with nginx, HAProxy and no proxy
    Bench(crate::bench::BenchArgs),
    /// Print a shell completion script
    Completion(crate::manual::CompletionArgs),
    /// Print a man page, or write all of them
    Man(crate::manual::ManArgs),
}

/// Where the configuration is.
#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    /// Configuration file, JSON if its name ends in .json [default: $WEIR_CONFIG, ./weir.kdl, then
    /// /etc/weir/weir.kdl]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Same as -c FILE
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
}

impl ConfigArgs {
    /// Returns the named file, if any.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.config.as_deref().or(self.file.as_deref())
    }
}

/// Translates options that other programs have for `check`: `weir -t -c FILE`, as in nginx and
/// Apache.
pub(crate) fn words(said: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let is_test = |(place, word): &(usize, OsString)| {
        *place == 1 && ["-t", "--test"].iter().any(|test| word == test)
    };
    said.into_iter()
        .enumerate()
        .map(move |said| if is_test(&said) { "check".into() } else { said.1 })
}

/// How to run; over what the configuration says.
#[derive(Args, Debug, Clone)]
pub(crate) struct EngineArgs {
    /// Worker threads, each pinned to a core [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: Option<u32>,
    /// I/O driver [default: auto, which is io_uring where it works]
    #[arg(long, value_enum, value_name = "DRIVER")]
    pub(crate) io: Option<Io>,
    /// Admin socket, for `weir status` and others: a path, off, or auto [default: auto, which is
    /// /run/weir/admin.sock or $XDG_RUNTIME_DIR/weir/admin.sock]
    #[arg(
        long,
        value_name = "PATH",
        env = "WEIR_ADMIN",
        hide_env_values = true,
        value_parser = admin
    )]
    pub(crate) admin: Option<String>,
    /// Serve the live page (/), /metrics, /healthz and /readyz at this address [default: off]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
}

impl From<EngineArgs> for weir_config::Common {
    fn from(arguments: EngineArgs) -> weir_config::Common {
        weir_config::Common {
            workers: arguments.workers,
            io: arguments.io.map(|io| io.word().to_owned()),
            admin: arguments.admin,
            metrics: arguments.metrics.map(|address| address.to_string()),
        }
    }
}

/// How to talk to the kernel. The variants have no help texts, so that clap lists them in one line.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Io {
    Auto,
    Uring,
    Epoll,
}

/// `weir run`.
#[derive(Args, Debug)]
#[command(after_help = "\
On SIGTERM or SIGQUIT, weir waits up to 30 s for requests to finish, then exits. On a second one, \
or on SIGINT, it exits at once. SIGHUP reloads the configuration, like `weir reload`. SIGUSR2 \
starts a new program, which takes over, like `weir upgrade`.

Example:
  weir run -c /etc/weir/weir.kdl --workers 4")]
pub(crate) struct RunArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// How to run.
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `weir check`.
#[derive(Args, Debug)]
#[command(after_help = "\
If the configuration is valid, prints ok on a terminal, and nothing elsewhere. If not, prints \
every error with file, line, column and the probable intention, and exits with code 78.

Example:
  weir check -c weir.kdl --print")]
pub(crate) struct CheckArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Print the effective configuration with all defaults
    #[arg(long)]
    pub(crate) print: bool,
    /// Print JSON: the errors, or with --print the effective configuration
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not resolve server names
    #[arg(long)]
    pub(crate) no_resolve: bool,
}

/// `weir reverse`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  weir reverse --listen 127.0.0.1:8080 --to 10.0.0.1:9090 --to 10.0.0.2:9090
  weir reverse --to http://127.0.0.1:9090")]
pub(crate) struct ReverseArgs {
    /// Listen on this address; may be repeated
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: Vec<String>,
    /// Accept TLS from clients, with this certificate chain (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: Option<String>,
    /// Private key of --cert (PEM) [default: in the file of --cert]
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<String>,
    /// Forward to this server: HOST:PORT or a URL, with https:// for TLS; may be repeated
    #[arg(long, value_name = "HOST:PORT", required = true)]
    pub(crate) to: Vec<String>,
    /// Connections to keep to each server even without traffic; this and the next two options are
    /// totals over all workers [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65_535))]
    pub(crate) connections_min: Option<u32>,
    /// Most connections to each server for requests that share them [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) connections: Option<u32>,
    /// Most connections to each server, with those that carry one request each [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) connections_max: Option<u32>,
    /// How clients share connections to servers [default: pipelined]
    #[arg(
        long,
        value_name = "MODE",
        value_parser = ["pipelined", "shared", "pinned", "per-request", "fresh"]
    )]
    pub(crate) pool: Option<String>,
    /// Pipelining to servers: adaptive, off, or a depth in requests [default: adaptive]
    #[arg(long, value_name = "MODE", value_parser = pipeline)]
    pub(crate) pipeline: Option<String>,
    /// Print the equivalent configuration, and exit
    #[arg(long)]
    pub(crate) print: bool,
    /// How to run.
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `weir forward`.
#[derive(Args, Debug)]
#[command(after_help = "\
By default, weir allows tunnels to ports 443 and 8443, and plain HTTP to ports 80 and 8080, both \
only to public addresses. Flags allow more. For rules, see docs/forward.md.

Example:
  weir forward --listen 127.0.0.1:3128 & curl -x http://127.0.0.1:3128 https://example.org/
  weir forward --listen 192.168.0.1:3128 --users /etc/weir/users --allow-address 192.168.0.0/16")]
pub(crate) struct ForwardArgs {
    /// Listen on this address; may be repeated
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3128")]
    pub(crate) listen: Vec<String>,
    /// Require a name and password from this file, which `weir passwd` writes
    #[arg(long, value_name = "FILE")]
    pub(crate) users: Option<String>,
    /// Accept only clients in this range; may be repeated, like --allow-*, --deny-name and
    /// --resolver
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    pub(crate) client: Vec<String>,
    /// Allow addresses that are not public, such as 10.0.0.0/8
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    pub(crate) allow_address: Vec<String>,
    /// Allow another port, or a range such as 8000-8999; plain HTTP only above 1024
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    pub(crate) allow_port: Vec<String>,
    /// Allow only this name and all names below it
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) allow_name: Vec<String>,
    /// Deny this name and all names below it
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) deny_name: Vec<String>,
    /// Name server [default: those of the system]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) resolver: Vec<String>,
    /// Content of /proxy.pac: auto, or the path of a file
    #[arg(long, value_name = "FILE")]
    pub(crate) pac: Option<String>,
    /// Print the equivalent configuration, and exit
    #[arg(long)]
    pub(crate) print: bool,
    /// How to run.
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `weir origin`.
#[derive(Args, Debug)]
#[command(after_help = format!("\
Responds to /?size=BYTES&status=CODE&delay=TIME&beyond=N&burn=MS&block=MS&every=N&chunked=1&\
close=1&private=1&tag=N, /echo, /sum, /page, and /__stats as JSON. \
delay is a time such as 5ms, a random time in 100ms..600ms, or lognormal:MEDIAN:SIGMA. beyond=N \
slows down delayed responses while more than N are in progress. burn keeps the thread busy, and \
block makes it sleep, up to 10 s. private adds it to Cache-Control, and tag=N adds the tag tN to \
Surrogate-Key. Values of --misbehave are below; HOW-OFTEN is every=N or P%, by default each time:
{}
Example:
  weir origin --listen 127.0.0.1:9090 & curl '127.0.0.1:9090/?size=1000&delay=5'
  weir origin --misbehave close-after=100,reset=1%,stall=300:every=1000 --stats",
    weir_lab::origin::misbehaviours_help()
))]
pub(crate) struct OriginArgs {
    /// Listen on this address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9090")]
    pub(crate) listen: SocketAddr,
    /// Listen on this Unix socket as well; all threads share it
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Option<PathBuf>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Option<u32>,
    /// I/O driver
    #[arg(long, value_enum, value_name = "DRIVER", default_value = "auto")]
    pub(crate) io: Io,
    /// Accept TLS from clients, with a generated certificate unless --cert is given
    #[arg(long)]
    pub(crate) tls: bool,
    /// Certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of --cert (PEM) [default: in the file of --cert]
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Thread that accepts a connection: any (spread), an idle one (shared), or one without
    /// connections (one)
    #[arg(long, value_enum, value_name = "HOW", default_value = "spread")]
    pub(crate) accept: Accept,
    /// Append the first line of each request to this file before responding
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Misbehave in this way; separate several with commas, or repeat the option
    #[arg(long, value_name = "WHAT", allow_hyphen_values = true)]
    pub(crate) misbehave: Vec<String>,
    /// Print figures every second, not only at the end
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print statistics as JSON, with totals in each line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which thread of the origin gets a new connection.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accept {
    Spread,
    Shared,
    One,
}

impl From<Accept> for weir_lab::origin::Accept {
    fn from(accept: Accept) -> weir_lab::origin::Accept {
        match accept {
            Accept::Spread => weir_lab::origin::Accept::Spread,
            Accept::Shared => weir_lab::origin::Accept::Shared,
            Accept::One => weir_lab::origin::Accept::One,
        }
    }
}

impl Io {
    /// Returns the word of the configuration.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Io::Auto => "auto",
            Io::Uring => "uring",
            Io::Epoll => "epoll",
        }
    }
}

/// Parses `--admin`: the same words as in the configuration, and any path.
fn admin(text: &str) -> Result<String, String> {
    let absolute = match text {
        "auto" | "off" => text.to_owned(),
        path => std::path::absolute(path)
            .map_err(|error| error.to_string())?
            .to_string_lossy()
            .into_owned(),
    };
    weir_config::AdminChoice::read(&absolute).map(|_| absolute)
}

/// Parses `--pipeline`: the same words as in the configuration.
fn pipeline(text: &str) -> Result<String, String> {
    let is_depth = text.parse::<u32>().is_ok_and(|depth| depth > 0);
    if is_depth || matches!(text, "adaptive" | "off") {
        return Ok(text.to_owned());
    }
    Err("expected `adaptive`, `off` or a depth from 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_has_an_example() {
        for verb in Cli::command().get_subcommands() {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example:\n  weir "), "{}", verb.get_name());
        }
    }
}
