//! `weir origin`: the test origin of weir-lab until SIGINT or SIGTERM, with its statistics at the
//! end.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weir_lab::certificate::{Certificate, KeyKind, terms_of_files};
use weir_lab::origin::{
    Conduct, Misbehaviours, OriginHandle, OriginOptions, OriginStats, spawn_with,
};

use weir_tls::{Files, Seal};

use crate::cli::OriginArgs;
use crate::failure::Failure;
use crate::{machine, run, terminal};

/// Time between two lines of `--stats`.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Runs the verb.
///
/// # Errors
/// An unknown misbehaviour, a bad certificate, an address that cannot be bound, a driver that does
/// not work.
pub(crate) fn origin(arguments: &OriginArgs) -> Result<(), Failure> {
    let misbehaviours = Misbehaviours::parse(&arguments.misbehave)
        .map_err(|why| Failure::Usage(format!("weir origin: --misbehave: {why}\n")))?;
    machine::raise_descriptors();
    let signals = watch_signals().map_err(|error| run::failed("signals", &error))?;
    let threads = arguments.threads.unwrap_or_else(machine::workers) as usize;
    let io = run::io_choice(arguments.io.into());
    let options = OriginOptions { listen: arguments.listen, threads, io };
    run::patiently(|| run::check_free(&arguments.listen.into(), None))
        .map_err(|error| Failure::binding(&error))?;
    let log = arguments.log.as_deref().map(open_log).transpose()?;
    let seal = seal(arguments).map_err(|why| Failure::Usage(format!("weir origin: {why}\n")))?;
    let conduct = Conduct {
        misbehaviours,
        accept: arguments.accept.into(),
        unix: arguments.unix.clone(),
        log,
        seal,
    };
    let origin = spawn_with(options, conduct).map_err(|error| Failure::binding(&error))?;
    let begin = Instant::now();
    terminal::print_error(&format!(
        "weir origin: {}, {threads} threads, listening {}on {}\n",
        origin.driver(),
        if arguments.tls { "with TLS " } else { "" },
        origin.local_addr()
    ));
    let every = if arguments.stats { LINE_EVERY } else { Duration::MAX };
    watch(&origin, &signals, begin, every, arguments.json);
    let stats = origin.stop().map_err(|error| run::failed("origin", &error))?;
    let line = Line { seconds: begin.elapsed().as_secs_f64(), end: true, stats };
    terminal::print(&if arguments.json { line.json() } else { line.text("in all") });
    Ok(())
}

/// Returns how clients use TLS, if they do.
fn seal(arguments: &OriginArgs) -> Result<Option<Arc<dyn Seal>>, String> {
    if !arguments.tls {
        return Ok(None);
    }
    let terms = match &arguments.cert {
        Some(certificate) => {
            let key = arguments.key.as_ref().unwrap_or(certificate);
            terms_of_files(&Files { certificate: certificate.clone(), key: key.clone() })?
        }
        None => Certificate::local(KeyKind::EcdsaP256, arguments.listen.ip())?.terms(false)?,
    };
    Ok(Some(terms))
}

/// Appends, so that a restarted origin continues the same file.
fn open_log(path: &Path) -> Result<File, Failure> {
    let opened = File::options().append(true).create(true).open(path);
    opened.map_err(|error| {
        Failure::Usage(format!("weir origin: --log {}: {error}\n", path.display()))
    })
}

/// Delivers each signal that ends it.
fn watch_signals() -> io::Result<Receiver<()>> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            // Full: the first signal is not yet noticed, which is enough.
            let _ = sender.try_send(());
        }
    })?;
    Ok(receiver)
}

/// How often to check whether a thread of the origin has failed.
const LOOK: Duration = Duration::from_millis(250);

/// Shows a line at each interval until a signal comes or a thread fails.
fn watch(
    origin: &OriginHandle,
    signals: &Receiver<()>,
    begin: Instant,
    every: Duration,
    json: bool,
) {
    let mut before = OriginStats::default();
    let mut due = every;
    loop {
        let wait = due.saturating_sub(begin.elapsed());
        match signals.recv_timeout(wait.min(LOOK)) {
            Err(RecvTimeoutError::Timeout) if origin.has_failed() => return,
            Err(RecvTimeoutError::Timeout) if begin.elapsed() < due => continue,
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
        let stats = origin.stats();
        let line = Line { seconds: begin.elapsed().as_secs_f64(), end: false, stats };
        let lately = Line { stats: stats.since(before), ..line };
        terminal::print(&if json { line.json() } else { lately.text("lately") });
        before = stats;
        due += every;
    }
}

/// A line of statistics; in JSON always totals since the start.
#[derive(Serialize)]
struct Line {
    /// Since the start.
    seconds: f64,
    /// The last line.
    end: bool,
    #[serde(flatten)]
    stats: OriginStats,
}

impl Line {
    fn json(&self) -> String {
        serde_json::to_string(self).map_or_else(|_| String::new(), |text| text + "\n")
    }

    fn text(&self, when: &str) -> String {
        let OriginStats { connects, closes, requests, bytes_in, bytes_out, receives, .. } =
            self.stats;
        let OriginStats { handshakes, resumed, handshakes_failed, .. } = self.stats;
        let mut text = format!(
            "{:8.1} s {when}  connects {connects}  closes {closes}  requests {requests}  bytes in \
             {bytes_in}, \
             out {bytes_out}  receives {receives}",
            self.seconds
        );
        if handshakes + handshakes_failed > 0 {
            text += &format!(
                "  handshakes {handshakes}, resumed {resumed}, failed {handshakes_failed}"
            );
        }
        for (kind, count) in self.stats.misbehaved.iter() {
            text += &format!("  {} {count}", kind.name());
        }
        text + "\n"
    }
}
