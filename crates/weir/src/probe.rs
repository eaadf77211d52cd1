//! `weir probe`: one request at a time; slow and failed ones as they happen, percentiles at the
//! end.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use socket2::SockAddr;
use weir_lab::probe::{self, Finding, Kind, Next, Outcome, Phase, Place, ProbeOptions, Summary};
use weir_lab::target::{Target, Url};
use weir_lab::tls::Caller;
use weir_lab::units::{show_ns, time_us};

use crate::failure::Failure;
use crate::secure::TlsArgs;
use crate::{run, terminal};

/// How often the terminal shows progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// Failures that are shown one by one; all of them are counted, and JSON has each.
const FAILURES_SHOWN_MAX: u64 = 100;

/// Longest pause, threshold and timeout.
const TIME_US_MAX: u64 = 3_600_000_000;
/// To the beginning of the line, and clears the line.
const CLEAR: &str = "\r\x1b[K";

/// `weir probe`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each request waits for the previous response, so that weir shows each slow one with the phase \
that made it slow, where averages would hide it. weir counts failures (refused, reset, closed, \
truncated, timeout, malformed, TLS, status 400 and above) by kind, and in no percentile. Times \
are numbers with us, ms or s; without a unit they are ms. The exit code is 1 if a request failed. \
Ctrl-C ends the run and prints the results so far.

Example:
  weir probe http://127.0.0.1:8080/ --count 10000 --pause 5ms --threshold 20ms --close-every 2")]
pub(crate) struct ProbeArgs {
    /// URL to request: http://HOST[:PORT][/PATH][?QUERY], or https://...
    url: String,
    /// Number of requests
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value = "10000",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    count: u64,
    /// Pause between a response and the next request
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = time)]
    pause: Duration,
    /// Show responses that take longer, including connecting
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = time)]
    threshold: Duration,
    /// Requests per connection: a number, or never to keep connections open
    #[arg(long, value_name = "N", default_value = "1", value_parser = close_every)]
    close_every: CloseEvery,
    /// Timeout of a request, including connecting
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time_from_1us)]
    timeout: Duration,
    #[command(flatten)]
    tls: TlsArgs,
    /// Connect to this Unix socket; the host of the URL is only sent, not resolved
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Print JSON: one object per line for each slow or failed request, and one for the summary
    #[arg(long)]
    json: bool,
    /// Allow a server that is neither on this machine nor in a private range
    #[arg(long)]
    yes: bool,
}

/// Requests for each connection; None: never closed.
#[derive(Debug, Clone, Copy)]
struct CloseEvery(Option<u64>);

/// Runs the verb.
///
/// # Errors
/// A malformed URL, an unavailable or forbidden target, failed requests.
pub(crate) fn probe(arguments: ProbeArgs) -> Result<(), Failure> {
    let signals =
        Signals::new([SIGINT, SIGTERM]).map_err(|error| run::failed("signals", &error))?;
    let json = arguments.json;
    let options = options(arguments)?;
    if !json {
        terminal::print(&title(&options));
    }
    let threshold_ns = u64::try_from(options.threshold.as_nanos()).unwrap_or(u64::MAX);
    let summary = Arc::new(Mutex::new(Summary::new(threshold_ns)));
    let (interrupted, unreachable) = until_signal(&options, &summary, signals, json)?;
    if let Some(why) = unreachable {
        return Err(Failure::Running(format!("weir probe: {}: {why}\n", shown(&options.place))));
    }
    // Held to the end, so that the prober prints nothing more if it still runs.
    let summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
    terminal::print(&if json {
        last_line(&options, &summary, interrupted)
    } else {
        last_text(&summary, interrupted)
    });
    match summary.failed() {
        0 => Ok(()),
        failed => Err(Failure::Running(format!(
            "weir probe: {failed} of {} requests failed\n",
            summary.requests
        ))),
    }
}

/// Converts the flags; warns about a foreign server.
fn options(arguments: ProbeArgs) -> Result<ProbeOptions, Failure> {
    let usage = |why: String| Failure::Usage(format!("weir probe: {why}\n"));
    let (place, url) = match arguments.unix {
        Some(socket) => {
            SockAddr::unix(&socket)
                .map_err(|error| usage(format!("--unix {}: {error}", socket.display())))?;
            let url = Url::parse(&arguments.url).map_err(usage)?;
            (Place::Unix(socket), url)
        }
        None => {
            let url = Url::parse(&arguments.url).map_err(usage)?;
            let target = url
                .clone()
                .resolve()
                .map_err(|why| Failure::Running(format!("weir probe: {why}\n")))?;
            if let Some(warning) = target.permit(arguments.yes).map_err(usage)? {
                terminal::print_error(&format!("weir probe: warning: {warning}\n"));
            }
            let Target { address, .. } = target;
            (Place::Tcp(address), url)
        }
    };
    let client = arguments.tls.client(url.is_tls, false).map_err(usage)?;
    let tls = client.map(|client| Caller::new(&client, &url.name)).transpose().map_err(usage)?;
    Ok(ProbeOptions {
        place,
        host: url.host,
        path: url.path,
        count: arguments.count,
        pause: arguments.pause,
        threshold: arguments.threshold,
        close_every: arguments.close_every.0,
        timeout: arguments.timeout,
        tls,
    })
}

fn shown(place: &Place) -> String {
    match place {
        Place::Tcp(address) => address.to_string(),
        Place::Unix(path) => path.display().to_string(),
    }
}

fn title(options: &ProbeOptions) -> String {
    let each = match options.close_every {
        Some(1) => "a connection for each".to_owned(),
        Some(every) => format!("a connection for each {every}"),
        None => "one connection".to_owned(),
    };
    format!(
        "weir probe: {}{}{} at {}: {} requests, {each}, pauses of {}, slow is over {}\n",
        Url::scheme(options.tls.is_some()),
        options.host,
        options.path,
        shown(&options.place),
        options.count,
        shown_time(options.pause),
        shown_time(options.threshold),
    )
}

fn shown_time(time: Duration) -> String {
    show_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Probes on a separate thread, so that a signal ends it even while it waits for a silent server.
/// Returns whether a signal came, and why the server could not be reached.
fn until_signal(
    options: &ProbeOptions,
    summary: &Arc<Mutex<Summary>>,
    mut signals: Signals,
    json: bool,
) -> Result<(bool, Option<String>), Failure> {
    let (options, summary, over) = (options.clone(), Arc::clone(summary), signals.handle());
    let prober = std::thread::Builder::new().name("probe".to_owned()).spawn(move || {
        let mut view = View::new(options.count, json);
        probe::run(&options, &summary, |summary, finding| view.tell(summary, finding));
        view.clear();
        over.close();
        view.unreachable
    });
    let prober = prober.map_err(|error| run::failed("cannot start a thread", &error))?;
    if signals.forever().next().is_some() {
        return Ok((true, None));
    }
    let unreachable = prober
        .join()
        .map_err(|_| Failure::Running("weir probe: the prober panicked\n".to_owned()))?;
    Ok((false, unreachable))
}

/// The output while it runs.
struct View {
    count: u64,
    json: bool,
    /// Columns, if there is a terminal for progress.
    columns: Option<usize>,
    /// When progress was last shown, and whether it is still visible.
    progress: (Instant, bool),
    failures_shown: u64,
    /// The first connection could not be made.
    unreachable: Option<String>,
}

impl View {
    fn new(count: u64, json: bool) -> View {
        let columns = terminal::size().map(|(columns, _)| columns).filter(|_| !json);
        View {
            count,
            json,
            columns,
            progress: (Instant::now(), false),
            failures_shown: 0,
            unreachable: None,
        }
    }

    fn tell(&mut self, summary: &Summary, finding: Option<&Finding>) -> Next {
        // A server that resets connections at once is reachable.
        if let Some(Finding {
            number: 1,
            outcome: Outcome::Failed { phase: Phase::Connect, kind, detail, .. },
            ..
        }) = finding
            && *kind != Kind::Reset
        {
            self.unreachable = Some(detail.clone());
            return Next::Stop;
        }
        let line = finding.and_then(|finding| self.line(finding));
        let is_read = line.is_none_or(|line| {
            self.clear();
            terminal::try_print(&line)
        });
        self.show_progress(summary);
        if is_read { Next::Continue } else { Next::Stop }
    }

    fn line(&mut self, finding: &Finding) -> Option<String> {
        if self.json {
            return Some(format!("{}\n", finding.json()));
        }
        if matches!(finding.outcome, Outcome::Failed { .. }) {
            self.failures_shown += 1;
            match self.failures_shown {
                ..FAILURES_SHOWN_MAX => {}
                FAILURES_SHOWN_MAX => {
                    return Some(format!(
                        "{}\nfurther failures are counted, but not shown\n",
                        finding.text()
                    ));
                }
                _ => return None,
            }
        }
        Some(finding.text() + "\n")
    }

    fn show_progress(&mut self, summary: &Summary) {
        let Some(columns) = self.columns.filter(|_| self.progress.0.elapsed() >= PROGRESS_EVERY)
        else {
            return;
        };
        let text = format!(
            "{} of {}, {} slow, {} failed, p50 {}, p99 {}",
            summary.requests,
            self.count,
            summary.slow,
            summary.failed(),
            show_ns(summary.quantile_ns(0.5)),
            show_ns(summary.quantile_ns(0.99)),
        );
        // A line that wraps could not be cleared.
        let fits: String = text.chars().take(columns.saturating_sub(1)).collect();
        terminal::print(&format!("{CLEAR}{fits}"));
        self.progress = (Instant::now(), true);
    }

    /// Clears the progress.
    fn clear(&mut self) {
        if std::mem::take(&mut self.progress.1) {
            terminal::print(CLEAR);
        }
    }
}

/// Returns the results for people.
fn last_text(summary: &Summary, interrupted: bool) -> String {
    let clear = if terminal::size().is_some() { CLEAR } else { "" };
    let so_far = if interrupted { "interrupted; results so far:\n" } else { "" };
    format!("{clear}\n{so_far}{}", summary.text())
}

/// Returns the results for programs.
fn last_line(options: &ProbeOptions, summary: &Summary, interrupted: bool) -> String {
    let mut line = summary.json();
    line["url"] = Value::from(format!(
        "{}{}{}",
        Url::scheme(options.tls.is_some()),
        options.host,
        options.path
    ));
    line["address"] = Value::from(shown(&options.place));
    line["interrupted"] = Value::from(interrupted);
    format!("{line}\n")
}

/// Parses `5`, `5ms`, `2s`, `500us`.
fn time(text: &str) -> Result<Duration, String> {
    let read = time_us(text).filter(|time_us| *time_us <= TIME_US_MAX).map(Duration::from_micros);
    read.ok_or_else(|| "expected a time such as 500us, 20ms or 2s, at most 3600s".to_owned())
}

fn time_from_1us(text: &str) -> Result<Duration, String> {
    time(text).and_then(|time| {
        if time.is_zero() { Err("expected a time greater than zero".to_owned()) } else { Ok(time) }
    })
}

fn close_every(text: &str) -> Result<CloseEvery, String> {
    let read = if text == "never" {
        Some(None)
    } else {
        text.parse().ok().filter(|every| *every > 0).map(Some)
    };
    read.map(CloseEvery).ok_or_else(|| "expected a number from 1, or never".to_owned())
}
