//! `weir intercept`: a router's TCP connections are ended and continued here, and neither side has to know of it (docs/semantics.md §24).
//!
//! The proxy lives in a network namespace without a name, joined to this one by a pair of interfaces; programs of the kernel lead packets there
//! (`weir-bpf/src/intercept.rs`). All of that goes with the process, whatever ends it. What could be wrong is looked at before anything is changed
//! (`intercept/obstacles.rs`). A thread stays outside and tells the programs when there is no room for more.

mod keeper;
mod obstacles;
mod place;

use std::net::{Ipv6Addr, UdpSocket};

use clap::{Args, ValueEnum};
use weir_config::{Interception, parse_with};

use crate::cli::EngineArgs;
use crate::failure::Failure;
use crate::upgrade::Heritage;
use crate::{run, terminal};

/// Ports that may be named.
const PORTS_MAX: usize = 64;

/// `weir intercept`.
#[derive(Args, Debug)]
#[command(after_help = "\
Runs on a router that forwards between the two interfaces. New connections from clients to servers on these ports are taken after this machine has \
routed them and its firewall has let them through; servers see the client's address and port. Connections from before, those with options \
of TCP that a second connection could not keep (MD5, AO, MPTCP), and those of a NAT on this machine pass by. When weir ends, by whatever \
means, all is as before. Needs root, and Linux 6.6.

Example:
  weir intercept check --client-side eth1 --server-side eth2 --ports 80,443
  weir intercept --client-side eth1 --server-side eth2 --ports 80,443 --client-congestion bbr")]
pub(crate) struct InterceptArgs {
    /// check: only say what stands in the way
    #[arg(value_enum, value_name = "ACTION")]
    action: Option<Action>,
    /// The interface that clients' packets come by
    #[arg(long, value_name = "INTERFACE")]
    client_side: String,
    /// The interface that they leave by to servers
    #[arg(long, value_name = "INTERFACE")]
    server_side: String,
    /// Ports whose connections are taken
    #[arg(long, value_name = "PORT", value_delimiter = ',', required = true, value_parser = clap::value_parser!(u16).range(1..))]
    ports: Vec<u16>,
    /// Those of them on which HTTP is spoken: requests are read, and what is none is refused
    #[arg(long, value_name = "PORT", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    http: Vec<u16>,
    /// Write a line for each connection, and each request, to this file, or stdout
    #[arg(long, value_name = "FILE")]
    access_log: Option<String>,
    /// Congestion control towards clients, such as bbr [default: the system's]
    #[arg(long, value_name = "NAME")]
    client_congestion: Option<String>,
    /// Congestion control towards servers [default: the system's]
    #[arg(long, value_name = "NAME")]
    server_congestion: Option<String>,
    /// Become this user, once everything is set up
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Print what would be done, and the configuration that this stands for, and end
    #[arg(long)]
    print: bool,
    /// How to run.
    #[command(flatten)]
    engine: EngineArgs,
}

/// What else it does.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Check,
}

/// Between which interfaces, and which connections.
#[derive(Debug, Clone)]
struct Route {
    client: String,
    server: String,
    ports: Vec<u16>,
    congestion: Vec<String>,
}

/// Does the verb; returns when the proxy has ended.
///
/// # Errors
/// Wrong flags, what stands in the way, or what [`run::serve`] says.
pub(crate) fn intercept(arguments: InterceptArgs, heritage: Heritage) -> Result<(), Failure> {
    let InterceptArgs { action, client_side, server_side, mut ports, client_congestion, server_congestion, .. } =
        arguments;
    let (http_ports, access_log) = (arguments.http, arguments.access_log);
    if arguments.engine.metrics.is_some() {
        let text = "weir: --metrics would listen where nobody can connect; `weir status` shows the same\n";
        return Err(Failure::Usage(text.to_owned()));
    }
    ports.sort_unstable();
    ports.dedup();
    if ports.len() > PORTS_MAX {
        return Err(Failure::Usage(format!(
            "weir: --ports: {} ports, and at most {PORTS_MAX} can be taken\n",
            ports.len()
        )));
    }
    if let Some(port) = http_ports.iter().find(|port| !ports.contains(port)) {
        let text =
            format!("weir: --http {port}: connections to that port are not taken\n  help: name it in --ports, too\n");
        return Err(Failure::Usage(text));
    }
    let congestion = [&client_congestion, &server_congestion].into_iter().flatten().cloned().collect();
    let route = Route { client: client_side, server: server_side, ports: ports.clone(), congestion };
    let common = arguments.engine.into();
    let ipv6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    let user = arguments.user;
    let asked =
        Interception { ports, http_ports, ipv6, client_congestion, server_congestion, access_log, user, common };
    let text = asked.to_kdl();
    // What is wrong here was wrong on the command line.
    let config = parse_with(&text, "(from the command line)", run::EXPERTS)
        .map_err(|errors| Failure::Usage(terminal::render(&errors)))?;
    if arguments.print {
        terminal::print(&format!("{}\n{text}", place::shown(&route)));
        return Ok(());
    }
    let found = obstacles::look(&route);
    if action == Some(Action::Check) {
        terminal::print(&found.to_string());
        return if found.is_clear() { Ok(()) } else { Err(Failure::Running(String::new())) };
    }
    if heritage.predecessor.is_some() {
        let text = "weir: an interception can't be handed over: start another one when this one has ended; until then connections pass by\n";
        return Err(Failure::Running(text.to_owned()));
    }
    found.refuse()?;
    let (place, way) = place::open(&route)?;
    let keeper = keeper::start(way)?;
    place.enter()?;
    let outcome = run::serve(config, heritage);
    keeper.end();
    outcome
}
