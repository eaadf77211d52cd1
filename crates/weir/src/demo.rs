//! `weir demo`: the test origin, the proxy in front of it, clients that load it, and live figures,
//! in one process.

mod load;

use std::io::{self, IsTerminal as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use weir_config::{AdminChoice, parse};
use weir_lab::certificate::{Certificate, KeyKind};
use weir_lab::live::{Live, Source, show};
use weir_lab::origin::{OriginOptions, spawn};
use weir_proxy::plan::{Location, Plan, SERVERS_SPARE};
use weir_worker::{Running, Sealing, Setup};

use crate::admin::{Doors, Facts};
use crate::certificates::Watcher;
use crate::cli::Io;
use crate::discovery::Discovery;
use crate::failure::Failure;
use crate::reload::{Fixed, Reloader, Workers, Written};
use crate::side::Registry;
use crate::upgrade::Heritage;
use crate::{admin, log, machine, run, terminal};
use load::{Comparison, Load, WAYS};

/// Signals that end it.
const ENDS: [i32; 4] = [SIGINT, SIGTERM, SIGQUIT, SIGHUP];

/// How often the figures are shown.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest TLS handshake.
const HANDSHAKE_US: u64 = 10_000_000;
/// How long clients may take to get their responses at the end.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// `weir demo`.
#[derive(Args, Debug)]
#[command(after_help = "\
Clients send requests as fast as they get responses: 15 seconds through an upstream that is \
pipelined (/), then as long through one that sends one request at a time on a connection \
(/one-at-a-time). Both have the same server and as many connections. The page shows the run live; \
a summary at the end says what each cost.

Example:
  weir demo --listen 127.0.0.1:8081 --seconds 10
  weir demo --clients 0 --tls")]
pub(crate) struct DemoArgs {
    /// Address to accept clients on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Address of the live page and of metrics; port 0 takes any free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    metrics: SocketAddr,
    /// Number of simulated clients; 0: only you
    #[arg(
        long,
        value_name = "N",
        default_value = "256",
        value_parser = clap::value_parser!(u32).range(0..=10_000)
    )]
    clients: u32,
    /// End after this many seconds; 0 means on Ctrl-C
    #[arg(long, value_name = "N", default_value = "0")]
    seconds: u64,
    /// I/O driver
    #[arg(long, value_enum, value_name = "DRIVER", default_value = "auto")]
    io: Io,
    /// Accept TLS from clients, with a generated certificate, and HTTP/2 if they support it
    #[arg(long)]
    tls: bool,
}

/// Runs the verb.
///
/// # Errors
/// The address is in use, the certificate cannot be made, or the driver does not work here.
pub(crate) fn demo(arguments: &DemoArgs) -> Result<(), Failure> {
    let signals = run::watch_signals(&ENDS).map_err(|error| run::failed("signals", &error))?;
    machine::raise_descriptors();
    run::patiently(|| run::check_free(&arguments.listen.into(), None)).map_err(|error| {
        Failure::Running(format!(
            "weir: {error}\n  use another address: weir demo --listen 127.0.0.1:8081\n"
        ))
    })?;
    let probe = weir_io::choose(run::io_choice(arguments.io.into()))
        .map_err(|text| Failure::Running(format!("weir: {text}\n")))?;
    let workers = machine::workers();
    let options = OriginOptions {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        threads: workers as usize,
        io: run::io_choice(arguments.io.into()),
    };
    let origin = spawn(options).map_err(|error| run::failed("origin", &error))?;
    let (proxy, admin, page) = start(arguments, origin.local_addr(), workers, &probe)?;
    let address = proxy.addresses().first().and_then(Location::network).unwrap_or(arguments.listen);
    let shown = introduction(
        arguments,
        address,
        page,
        admin.as_ref().is_some_and(admin::Admin::has_socket),
    );
    terminal::print(&format!(
        "{shown}weir demo: {probe}; {workers} workers; a test origin on {}\n\n",
        origin.local_addr()
    ));
    let wrong = |why| Failure::Running(format!("weir demo: {why}\n"));
    let mut load =
        Load::start(arguments.clients, address, arguments.tls, run::io_choice(arguments.io.into()));
    let load = load.as_mut().map_err(|why| wrong(std::mem::take(why)))?;
    let deadline =
        (arguments.seconds > 0).then(|| Instant::now() + Duration::from_secs(arguments.seconds));
    let (requests, comparison) = watch(&proxy, load, &signals, deadline);
    load.end();
    drop(admin);
    finish(proxy)?;
    origin.stop().map_err(|error| run::failed("origin", &error))?;
    terminal::print(&format!(
        "{}weir demo: {requests} requests served\n",
        comparison.lines().unwrap_or_default()
    ));
    Ok(())
}

/// Returns what to look at and to try.
fn introduction(
    arguments: &DemoArgs,
    address: SocketAddr,
    page: Option<SocketAddr>,
    has_socket: bool,
) -> String {
    let page = page.map_or_else(String::new, |page| format!("  look    http://{page}/\n"));
    let status = if has_socket { "  status  weir status --watch\n" } else { "" };
    // The certificate is self-signed, so clients do not know it.
    let (scheme, unchecked) = if arguments.tls { ("https", "-k --http2 ") } else { ("http", "") };
    let bomb = if arguments.tls {
        "weir bomb --insecure --http2 --streams 10 -c64 -d10s"
    } else {
        "weir bomb -c64 -d10s"
    };
    let load = if arguments.clients == 0 {
        format!("  load    {bomb} {scheme}://{address}/\n")
    } else {
        String::new()
    };
    let clients = match arguments.clients {
        0 => String::new(),
        clients => {
            format!(
                "{clients} clients send requests, pipelined and one at a time in turn\n  \
                    (--clients 0: only you)\n"
            )
        }
    };
    let what = format!("weir demo: weir on {address}, in front of a test origin\n");
    let clients = if clients.is_empty() { clients } else { format!("weir demo: {clients}") };
    format!(
        "{page}\n{what}{clients}\n  try     curl {unchecked}-i {scheme}://{address}/\n  browse  \
         {scheme}://{address}/page\n\
         {load}{status}  end     Ctrl-C\n\n"
    )
}

/// Returns a configuration with one server, twice: with all defaults, and with one request at a
/// time on a connection.
fn configuration(arguments: &DemoArgs, to: SocketAddr) -> String {
    let [(pipelined, _), (single, path)] = WAYS;
    let DemoArgs { listen, metrics, .. } = arguments;
    format!(
        "listen \"{listen}\"\nmetrics \"{metrics}\"\n\
         upstream \"{pipelined}\" {{ server \"{to}\"; }}\n\
         upstream \"{single}\" {{ pool \"shared\"; server \"{to}\"; }}\n\
         route {{ proxy \"{pipelined}\"; }}\nroute path=\"{path}\" {{ proxy \"{single}\"; }}\n"
    )
}

/// Starts the proxy and its control plane. Returns them with the address of the page.
fn start(
    arguments: &DemoArgs,
    to: SocketAddr,
    workers: u32,
    probe: &weir_io::Probe,
) -> Result<(Running, Option<admin::Admin>, Option<SocketAddr>), Failure> {
    let DemoArgs { listen, tls, .. } = arguments;
    let config = parse(&configuration(arguments, to), "(the demo)")
        .map_err(|errors| Failure::Usage(terminal::render(&errors)))?;
    let seal = if *tls { Some(sealing(*listen)?) } else { None };
    let workers = u16::try_from(workers).unwrap_or(u16::MAX);
    let fixed = Fixed::of(&config);
    let plan = Arc::new(config.plan);
    let setup = Setup {
        plan: Arc::clone(&plan),
        workers,
        driver: probe.driver,
        pin: true,
        seed: run::seed(),
        errands: None,
        seals: vec![seal],
        server_seals: Vec::new(),
        prepared: None,
        board: None,
        complain: log::of_access_log,
    };
    let running = weir_worker::start(&setup).map_err(run::not_started)?;
    let choice = std::env::var("WEIR_ADMIN")
        .ok()
        .and_then(|text| AdminChoice::read(&text).ok())
        .unwrap_or_default();
    let mut heritage = Heritage::default();
    let metrics = Doors::listen(config.metrics, &mut heritage)
        .map_err(|error| run::failed("metrics", &error))?;
    let doors = Doors::open(&choice, metrics, &mut heritage);
    let doors = doors.map_err(|error| run::failed("admin", &error))?;
    let page = doors.metrics_address();
    let reloader =
        Reloader::new(Arc::clone(&plan), run::servers(&running), running.addresses().to_vec());
    let desk = reloader.desk();
    let workers = Workers::new(
        running.handle(),
        plan.servers() + SERVERS_SPARE,
        Vec::new(),
        Watcher::default(),
        Registry::default(),
    );
    let written = Written {
        tree: config.tree,
        plan: Plan::clone(&plan),
        discovery: Discovery::default(),
        temporary: Default::default(),
    };
    reloader
        .start(written, fixed, None, workers, None)
        .map_err(|error| run::failed("reloads", &error))?;
    let admin = admin::start(doors, plan, running.handle(), Facts::of(probe), desk);
    let admin = admin.map_err(|error| run::failed("admin", &error))?;
    Ok((running, admin, page))
}

/// Makes a certificate for the one listener.
fn sealing(listen: SocketAddr) -> Result<Sealing, Failure> {
    let made = Certificate::local(KeyKind::EcdsaP256, listen.ip())
        .and_then(|certificate| certificate.terms(true));
    let seal = made.map_err(|why| Failure::Running(format!("weir demo: {why}\n")))?;
    Ok(Sealing { seal, handshake_timeout_us: HANDSHAKE_US })
}

/// Shows figures until a signal or the deadline. Returns the number of requests, and what the ways
/// cost.
fn watch(
    proxy: &Running,
    load: &Load,
    signals: &std::sync::mpsc::Receiver<i32>,
    deadline: Option<Instant>,
) -> (u64, Comparison) {
    let is_terminal = io::stdout().is_terminal();
    let of_view = |view: &weir_worker::View| Source {
        counters: Arc::clone(&view.counters),
        latency: Arc::clone(&view.latency),
    };
    let mut live = Live::new(proxy.views().iter().map(of_view).collect(), "weir-");
    let mut comparison = Comparison::default();
    while !proxy.is_finished() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let left = deadline
            .map_or(LOOK_EVERY, |deadline| deadline.saturating_duration_since(Instant::now()));
        match signals.recv_timeout(LOOK_EVERY.min(left)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(RecvTimeoutError::Disconnected) => break,
        }
        let figures = live.look();
        let way = load.turn().map_or_else(String::new, |(_, way)| format!("{:<13} ", WAYS[way].0));
        if let Some(turn) = load.turn() {
            comparison.add(turn, &figures);
        }
        // If standard output is closed, the figures are lost. A line wider than the terminal could
        // not be overwritten.
        let columns = terminal::size()
            .map_or(usize::MAX, |(columns, _)| columns.saturating_sub(1 + way.len()));
        let _ = show(&mut io::stdout(), is_terminal, &format!("{way}{}", figures.line(columns)));
    }
    if is_terminal {
        terminal::print("\n");
    }
    live.look();
    (live.requests(), comparison)
}

/// Lets clients get their responses, then ends the workers.
fn finish(proxy: Running) -> Result<(), Failure> {
    proxy.drain();
    let deadline = Instant::now() + DRAIN_MAX;
    while !proxy.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    proxy.stop();
    proxy.join().map_err(|error| run::failed("a worker failed", &error))
}
