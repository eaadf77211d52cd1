//! `weir intercept`: terminates TCP connections on a router and continues them to their servers,
//! transparently for both sides (docs/intercept.md).
//!
//! The proxy runs in an unnamed network namespace, joined to this one by a pair of interfaces.
//! Kernel programs lead packets there (`weir-bpf/src/intercept.rs`). All of that disappears with
//! the process, however it ends. weir checks for obstacles before it changes anything
//! (`intercept/obstacles.rs`). A thread outside the namespace signals the programs when weir is
//! full.

mod ahead;
mod beside;
mod cores;
mod early;
mod first;
mod flood;
mod keeper;
mod limits;
mod obstacles;
mod place;
mod ports;
mod probe;
mod sides;
mod watch;

use std::net::{Ipv6Addr, UdpSocket};

pub(crate) use ahead::Ahead;
use clap::{Args, ValueEnum};
pub(crate) use watch::Watch;
use weir_config::{Experts, Interception, parse_with};
use weir_io::Interfaces;

use self::probe::ProbeArgs;
use self::sides::{ClientSide, ServerSide};
use crate::admin::Doors;
use crate::cli::EngineArgs;
use crate::failure::Failure;
use crate::upgrade::Heritage;
use crate::{run, terminal};

/// `weir intercept`.
#[derive(Args, Debug)]
#[command(after_help = "\
Run it on a router that forwards between the two interfaces. weir intercepts new connections from \
clients to servers on these ports, after this machine has routed them and its firewall has \
accepted them. Servers see the client's address and port. weir leaves alone older connections, \
those with TCP options that a second connection could not keep (MD5, AO, MPTCP), and those of a \
NAT on this machine. When weir ends, for any reason, everything is as before. Needs root and \
Linux 6.6.

Example:
  weir intercept check --client-side eth1 --server-side eth2 --ports 80,443
  weir intercept check --client-side eth1 --server-side eth2 --ports 80,443 \\
    --probe 192.0.2.80:443 --probe-from 10.1.2.3
  weir intercept --client-side eth1 --server-side eth2 --ports 80,443 --client-congestion bbr")]
pub(crate) struct InterceptArgs {
    /// check: only report obstacles
    #[arg(value_enum, value_name = "ACTION")]
    action: Option<Action>,
    /// Interface on which packets from clients arrive
    #[arg(long, value_name = "INTERFACE")]
    client_side: String,
    /// Interface on which they leave to servers
    #[arg(long, value_name = "INTERFACE")]
    server_side: String,
    /// Ports whose connections to intercept
    #[arg(
        long,
        value_name = "PORT",
        value_delimiter = ',',
        required = true,
        value_parser = ports::port
    )]
    ports: Vec<u16>,
    /// How connections with clients are.
    #[command(flatten)]
    client: ClientSide,
    /// How connections to servers are.
    #[command(flatten)]
    server: ServerSide,
    /// When to connect to the server: after accepting the client, at its first packet, or before
    /// accepting it
    #[arg(long, value_enum, default_value_t = Connect::Accept, value_name = "WHEN")]
    connect: Connect,
    /// Intercepted ports that carry HTTP: weir reads requests, and rejects anything else
    #[arg(long, value_name = "PORT", value_delimiter = ',', value_parser = ports::port)]
    http: Vec<u16>,
    /// Log each connection and each request to this file, or stdout
    #[arg(long, value_name = "FILE")]
    access_log: Option<String>,
    /// Run as this user once everything is set up
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Print the planned steps and the equivalent configuration, and exit
    #[arg(long)]
    print: bool,
    /// What `check` tries besides.
    #[command(flatten)]
    probe: ProbeArgs,
    /// How to run.
    #[command(flatten)]
    engine: EngineArgs,
}

/// What else it does.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Check,
}

/// When a server is asked, and its client accepted.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Connect {
    /// Connect after accepting the client, which is reset if its server refuses
    Accept,
    /// Connect from the client's first packet on, while accepting it; this saves the shorter of
    /// both round trips
    Syn,
    /// Connect before accepting the client, so that refusals and timeouts reach it unchanged
    First,
}

impl Connect {
    /// Returns the configuration's word if weir connects to servers before it accepts clients.
    fn ahead(self) -> Option<&'static str> {
        match self {
            Connect::Accept => None,
            Connect::Syn => Some("syn"),
            Connect::First => Some("first"),
        }
    }
}

/// The two interfaces, and the connections to take.
#[derive(Debug, Clone)]
struct Route {
    client: String,
    server: String,
    ports: Vec<u16>,
    congestion: Vec<String>,
    connect: Connect,
    /// Initial congestion windows in segments, towards clients and towards servers.
    initcwnd: [Option<u32>; 2],
}

/// Runs the verb; returns when the proxy has ended.
///
/// # Errors
/// Wrong flags, an obstacle, or the errors of [`run::serve`].
pub(crate) fn intercept(arguments: InterceptArgs, mut heritage: Heritage) -> Result<(), Failure> {
    let InterceptArgs { action, client_side, server_side, ports, client, server, connect, .. } =
        arguments;
    let (http_ports, access_log) = (arguments.http, arguments.access_log);
    let ports = ports::in_order(ports, &http_ports)?;
    let probed = arguments.probe.ends(action == Some(Action::Check))?;
    if let Some(word) = connect.ahead()
        && !http_ports.is_empty()
    {
        let text = format!(
            "weir: --connect {word} works only for connections that weir forwards unchanged\n  \
                help: remove --http or --connect: where weir reads requests, it connects to the \
                server for the first of them, and 502 and 504 report failures\n"
        );
        return Err(Failure::Usage(text));
    }
    let congestion = client.congestion.iter().chain(&server.congestion);
    let congestion =
        congestion.flat_map(|names| names.split(',')).map(|name| name.trim().to_owned()).collect();
    let initcwnd = [client.initcwnd, server.initcwnd];
    let route = Route {
        client: client_side,
        server: server_side,
        ports: ports.clone(),
        congestion,
        connect,
        initcwnd,
    };
    let (mut client, server) = (client.options(), server.options());
    if initcwnd[0].is_some() {
        client.push(("mark", Interfaces::MARK.to_string()));
    }
    let common = arguments.engine.into();
    let ipv6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    let user = arguments.user;
    let text =
        Interception { ports, http_ports, ipv6, client, server, access_log, user, common }.to_kdl();
    // Errors here are errors of the command line. Packets are led to the proxy in a separate
    // network.
    let experts = Experts { arrival: Experts::NOBODY.arrival, ..run::EXPERTS };
    let config = parse_with(&text, "(from the command line)", experts)
        .map_err(|errors| Failure::Usage(terminal::render(&errors)))?;
    if arguments.print {
        terminal::print(&format!("{}\n{text}", place::shown(&route)));
        return Ok(());
    }
    let mut found = obstacles::look(&route);
    if action == Some(Action::Check) {
        found.judge_cores(&route);
        if let Some(ends) = probed {
            found.probe(&route, ends);
        }
        terminal::print(&found.to_string());
        return if found.is_clear() { Ok(()) } else { Err(Failure::Running(String::new())) };
    }
    if heritage.predecessor.is_some() {
        let text = "weir: an interception cannot be handed over: start another one after this one \
            has ended; until then weir intercepts no connections\n";
        return Err(Failure::Running(text.to_owned()));
    }
    found.refuse()?;
    // Out here, where clients can connect.
    let metrics =
        Doors::listen(config.metrics, &mut heritage).map_err(|error| Failure::binding(&error))?;
    heritage.metrics = metrics.map(|(name, listener)| (name, listener.into()));
    let (place, way, device) = place::open(&route)?;
    let (keeper, watch) = keeper::start(way)?;
    place.enter()?;
    let dial =
        config.plan.upstreams.first().map(|upstream| upstream.dial.clone()).unwrap_or_default();
    let (ahead, ending) = device.map(|device| Ahead::new(connect, device, dial)).unzip();
    let outcome = run::serve_ahead(config, heritage, ahead, watch);
    if let Some(ending) = ending {
        ending.end();
    }
    keeper.end();
    outcome
}
