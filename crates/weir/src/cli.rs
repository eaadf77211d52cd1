//! The command line: verbs, flags, help. Called by `main`; each verb has its own module.
//!
//! Each `--help` ends with an example. Wrong usage ends with code 2.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Carries HTTP between clients and servers: a reverse proxy whose upstream connections are pipelined.
#[derive(Parser, Debug)]
#[command(
    name = "weir",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  weir reverse --listen 127.0.0.1:8080 --to 10.0.0.1:9090
  weir check -c weir.kdl && weir run -c weir.kdl

Exit codes: 0 fine, 1 failed while running, 2 wrong usage, 77 missing privilege, 78 bad configuration."
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
    /// Say everything that is wrong with a configuration, or show it with all defaults
    #[command(aliases = ["validate", "configtest"])]
    Check(CheckArgs),
    /// Write the configuration of nginx, HAProxy or Caddy as one of weir
    Import(crate::import::ImportArgs),
    /// Show how a running weir is doing
    Status(crate::status::StatusArgs),
    /// Have a running weir read its configuration anew
    Reload(crate::server::ReloadArgs),
    /// Drain, disable or enable a server of a running weir, weigh it, trust it again, add one or remove it
    Server(crate::server::ServerArgs),
    /// Say who is banned by a running weir and why, ban somebody, or end bans
    Ban(crate::ban::BanArgs),
    /// Show what limits of a running weir do, and who is close to one or over it
    Shield(crate::shield::ShieldArgs),
    /// Show what a running weir has stored, say why an answer is served from it or not, or have answers gone
    Cache(crate::cache::CacheArgs),
    /// Have a running weir give way to the program that lies where it was started from, without losing a request
    Upgrade(crate::server::UpgradeArgs),
    /// Run a reverse proxy without a configuration file
    Reverse(ReverseArgs),
    /// Run a forward proxy without a configuration file
    Forward(Box<ForwardArgs>),
    /// Take the TCP connections that this machine forwards, and continue them with a congestion control on each side
    Intercept(Box<crate::intercept::InterceptArgs>),
    /// Write, delete or check a user of the forward proxy
    Passwd(crate::passwd::PasswdArgs),
    /// Run the test origin
    Origin(OriginArgs),
    /// Find slow requests that averages hide: one at a time, each with its phases
    Probe(crate::probe::ProbeArgs),
    /// Run the test origin and the proxy in front of it, with live figures
    Demo(crate::demo::DemoArgs),
    /// Load a server, and account for every connection and request
    Bomb(Box<crate::bomb::BombArgs>),
    /// Make a slow and lossy link
    Lab(crate::lab::LabArgs),
    /// Measure weir against no proxy, nginx and HAProxy
    Bench(crate::bench::BenchArgs),
    /// Write what a shell completes weir's words by
    Completion(crate::manual::CompletionArgs),
    /// Write man pages
    Man(crate::manual::ManArgs),
}

/// Where the configuration is.
#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    /// Configuration; a name that ends in .json is JSON. Otherwise $WEIR_CONFIG, ./weir.kdl, /etc/weir/weir.kdl
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The same as -c FILE
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
    let is_test = |(place, word): &(usize, OsString)| *place == 1 && ["-t", "--test"].iter().any(|test| word == test);
    said.into_iter().enumerate().map(move |said| if is_test(&said) { "check".into() } else { said.1 })
}

/// How to run; over what the configuration says.
#[derive(Args, Debug, Clone)]
pub(crate) struct EngineArgs {
    /// Threads that carry traffic, each pinned to a core [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: Option<u32>,
    /// How to talk to the kernel [default: auto, which is io_uring where it works]
    #[arg(long, value_enum, value_name = "DRIVER")]
    pub(crate) io: Option<Io>,
    /// Socket for `weir status`: a path, off, or auto [default: auto, which is /run/weir/admin.sock or
    /// $XDG_RUNTIME_DIR/weir/admin.sock]
    #[arg(long, value_name = "PATH", env = "WEIR_ADMIN", hide_env_values = true, value_parser = admin)]
    pub(crate) admin: Option<String>,
    /// Serve the live page (/), /metrics, /healthz and /readyz there [default: off]
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
SIGTERM or SIGQUIT lets requests finish for up to 30 s, then ends; a second one, or SIGINT, ends at once. SIGHUP reads the \
configuration anew, as `weir reload`; SIGUSR2 has a new program take over, as `weir upgrade`.

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
Says ok on a terminal when all is well, and nothing elsewhere. Wrong: code 78, and every error with file, line, column and what was probably meant.

Example:
  weir check -c weir.kdl --print")]
pub(crate) struct CheckArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Print the effective configuration, all defaults filled in
    #[arg(long)]
    pub(crate) print: bool,
    /// Print JSON: the errors, or with --print the effective configuration
    #[arg(long)]
    pub(crate) json: bool,
    /// Don't look up names of servers
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
    /// Address to accept clients on; may be given several times
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: Vec<String>,
    /// Clients speak TLS, with this certificate (PEM, the chain)
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: Option<String>,
    /// The private key of --cert (PEM); without it the key is in the same file
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<String>,
    /// Server to forward to: HOST:PORT or a URL, with https:// one that speaks TLS; may be given several times
    #[arg(long, value_name = "HOST:PORT", required = true)]
    pub(crate) to: Vec<String>,
    /// Connections kept to each server also without traffic; this and the next two in total over all workers [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65_535))]
    pub(crate) connections_min: Option<u32>,
    /// How many requests each server may have to work on at once: so many connections are made [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) connections: Option<u32>,
    /// So many are made when others are held by uploads, late or long answers, POSTs, tunnels [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) connections_max: Option<u32>,
    /// Whose requests use which connections [default: pipelined]
    #[arg(long, value_name = "MODE", value_parser = ["pipelined", "shared", "pinned", "per-request", "fresh"])]
    pub(crate) pool: Option<String>,
    /// Requests that follow each other on a connection: adaptive, off, or a depth [default: adaptive]
    #[arg(long, value_name = "MODE", value_parser = pipeline)]
    pub(crate) pipeline: Option<String>,
    /// Print the configuration that this stands for, and end
    #[arg(long)]
    pub(crate) print: bool,
    /// How to run.
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `weir forward`.
#[derive(Args, Debug)]
#[command(after_help = "\
Tunnels go to ports 443 and 8443, plain HTTP to 80 and 8080, both to public addresses only; flags open more. docs/forward.md \
says what rules can say.

Example:
  weir forward --listen 127.0.0.1:3128 & curl -x http://127.0.0.1:3128 https://example.org/
  weir forward --listen 192.168.0.1:3128 --users /etc/weir/users --allow-address 192.168.0.0/16")]
pub(crate) struct ForwardArgs {
    /// Address to accept clients on; may be given several times
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3128")]
    pub(crate) listen: Vec<String>,
    /// Ask for name and password; the file is what `weir passwd` writes
    #[arg(long, value_name = "FILE")]
    pub(crate) users: Option<String>,
    /// Only clients of this range may use it; may be given several times, as all that follow
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    pub(crate) client: Vec<String>,
    /// Open addresses that are not public, such as 10.0.0.0/8
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    pub(crate) allow_address: Vec<String>,
    /// Open an unusual port, or a range such as 8000-8999; plain HTTP only above 1024
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    pub(crate) allow_port: Vec<String>,
    /// Allow this name and all below it, and no others
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) allow_name: Vec<String>,
    /// Deny this name and all below it
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) deny_name: Vec<String>,
    /// Name server [default: those of the system]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) resolver: Vec<String>,
    /// What /proxy.pac answers: auto, or the path of a file
    #[arg(long, value_name = "FILE")]
    pub(crate) pac: Option<String>,
    /// Print the configuration that this stands for, and end
    #[arg(long)]
    pub(crate) print: bool,
    /// How to run.
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `weir origin`.
#[derive(Args, Debug)]
#[command(after_help = format!("\
Answers /?size=BYTES&status=CODE&delay=TIME&beyond=N&burn=MS&block=MS&every=N&chunked=1&close=1&private=1&tag=N, /echo, /sum, /page, and /__stats as JSON. \
delay is 5ms, a random time in 100ms..600ms, or lognormal:MEDIAN:SIGMA; beyond=N slows down delayed answers while more than N are in progress; burn keeps the thread busy, block has it sleep, up to 10 s; private says so in Cache-Control, tag=N is the tag tN in Surrogate-Key. What --misbehave takes; HOW-OFTEN is every=N or P%, by default each time:
{}
Example:
  weir origin --listen 127.0.0.1:9090 & curl '127.0.0.1:9090/?size=1000&delay=5'
  weir origin --misbehave close-after=100,reset=1%,stall=300:every=1000 --stats", weir_lab::origin::misbehaviours_help()))]
pub(crate) struct OriginArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9090")]
    pub(crate) listen: SocketAddr,
    /// Listen at this path as well; all threads share that listener
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Option<PathBuf>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Option<u32>,
    /// How to talk to the kernel
    #[arg(long, value_enum, value_name = "DRIVER", default_value = "auto")]
    pub(crate) io: Io,
    /// Clients speak TLS, with a certificate made on the spot unless --cert names one
    #[arg(long)]
    pub(crate) tls: bool,
    /// The certificate in PEM, with its chain
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub(crate) cert: Option<PathBuf>,
    /// Its key [default: it is in the same file]
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Which thread accepts a connection: any (spread), an idle one (shared), or one without any (one)
    #[arg(long, value_enum, value_name = "HOW", default_value = "spread")]
    pub(crate) accept: Accept,
    /// Append the first line of each request to this file, before it is answered
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Do this wrong; several with commas, or given several times
    #[arg(long, value_name = "WHAT", allow_hyphen_values = true)]
    pub(crate) misbehave: Vec<String>,
    /// Show each second what was done in it, not only at the end
    #[arg(long)]
    pub(crate) stats: bool,
    /// Write the statistics as JSON, totals in each line
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
        path => std::path::absolute(path).map_err(|error| error.to_string())?.to_string_lossy().into_owned(),
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
