//! `weir bomb`: load, and an honest account of its results. The generator is `weir_lab::bomb`.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use clap::{ArgAction, Args};
use weir_lab::bomb::{
    self, Behaviour, Class, ClassSummary, Drip, Ending, Identity, Line, Mix, Plan, Rate, Record,
    Request, Sources, Spelling, Summary, Threshold,
};
use weir_lab::machine as laboratory;
use weir_lab::target::Target;
use weir_lab::tls::Caller;
use weir_lab::units::{duration_us, show_ns};

use crate::bench::{COMMIT, version};
use crate::cli::Io;
use crate::failure::Failure;
use crate::secure::TlsArgs;
use crate::{machine, run, terminal};

/// Counted time if neither a duration nor a number is given, microseconds.
const DURATION_US: u64 = 10_000_000;

/// Seconds whose rates are shown during the run.
const SPARKS: u32 = 20;

/// `weir bomb`.
#[derive(Args, Debug)]
#[command(after_help = "\
A rate is REQUESTS_PER_SECOND, a ramp 100..1000/30s, or steps 100/10s,500/10s,1000.

A class of clients is NAME: key=value, key=value with the keys connections, rate (or closed; steps \
are joined by +), arrivals, behave, source, to (ADDRESS:PORT in place of the URL's), path, method, \
body, preset, pipeline (or streams, with --http2), close-every, end, seed, pieces. What a class \
omits, it takes from the other options. Values of behave are normal, connect-flood, hold, \
slow-head, slow-body, slow-reader, malformed, oversized, fuzz or stalled.

With --http2, weir also counts stream resets and GOAWAYs by cause. Clients read bodies as fast as \
they arrive, except stalled clients, which let none arrive. weir reports a server that does not \
choose HTTP/2, and tries it again.

With https://, weir counts handshakes: full, resumed (with --tls-resume), and failed by cause. \
Certificates must be valid unless --insecure is given.

A condition is p50 ... p99.9, max or mean with a duration, rate with requests a second, or \
blocked, failed, answered, late, 2xx ... 5xx with a share: p99>20ms, attackers: blocked<99%. \
Blocked means: refused, no reply to the attempt to connect, closed or reset before a response, or \
a response of 403, 429 or 503. Failed means: not connected, no response, a wrong response, or a \
response of 500 to 599.

Exit codes: 0 success, 1 failure, a condition was met, or no request or attempt to connect \
succeeded (unless a condition about blocked, failed, answered or statuses judges that), 2 wrong \
usage.

Example:
  weir bomb -c 64 -d 10s http://127.0.0.1:8080/
  weir bomb --insecure --close-every 1 -c 64 -d 10s https://127.0.0.1:8443/
  weir bomb --http2 --streams 10 --insecure -c 64 -d 10s https://127.0.0.1:8443/
  weir bomb -c 100 -R 5000 --arrivals poisson --fail-if 'p99>20ms' http://127.0.0.1:8080/
  weir bomb -d 30s --class 'users: connections=90, rate=900, source=127.0.2.0/24' \\
    --class 'attackers: connections=10, source=127.0.3.0/28' --fail-if 'attackers: blocked<99%' \\
    http://127.0.0.1:8080/")]
pub(crate) struct BombArgs {
    /// URLs to request; several with --weight need the same host
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    /// Connections
    #[arg(short, long, value_name = "N", default_value = "64", value_parser = bomb::connections)]
    connections: u32,
    /// Requests per second, sent on schedule [default: closed loop, each connection sends its next
    /// request after the response]
    #[arg(short = 'R', long, value_name = "RATE", value_parser = Rate::parse)]
    rate: Option<Rate>,
    /// Spacing of scheduled requests: even or poisson
    #[arg(
        long,
        action = ArgAction::Set,
        value_name = "HOW",
        default_value = "even",
        value_parser = bomb::arrivals
    )]
    arrivals: bool,
    /// Duration of the run [default: 10s, unless -n is given]
    #[arg(short, long, value_name = "DURATION", value_parser = duration_us)]
    duration: Option<u64>,
    /// End after this many requests of each class
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Time before counting starts
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration_us)]
    warm_up: u64,
    /// Threads [default: one for each core, at most one for each connection]
    #[arg(
        short,
        long,
        overrides_with = "threads",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    threads: Option<u32>,
    /// Method [default: GET, or POST with a body]
    #[arg(short = 'X', long, value_name = "METHOD")]
    method: Option<String>,
    /// Header of each request; may be repeated
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = field)]
    header: Vec<(String, String)>,
    /// Body of each request, or @FILE
    #[arg(long, value_name = "TEXT", value_parser = content)]
    body: Option<Content>,
    /// Send requests to this forward proxy, in absolute-form
    #[arg(long, value_name = "ADDRESS:PORT")]
    proxy: Option<SocketAddr>,
    /// Headers besides Host: minimal, or browser (11, with a Cookie of 1.5 KB)
    #[arg(long, value_name = "PRESET", default_value = "minimal", value_parser = bomb::preset)]
    preset: bomb::Preset,
    /// Relative frequency of each URL, in their order; give it once for each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    weight: Vec<u32>,
    /// Read requests from a file, one JSON object per line: {"path": "/a", "method": "PUT",
    /// "fields": [["A", "b"]], "body": "x", "weight": 3}
    #[arg(long, value_name = "FILE", conflicts_with_all = ["weight", "method", "header", "body"])]
    requests_file: Option<PathBuf>,
    #[command(flatten)]
    use_of: UseArgs,
    /// Send requests in pieces of BYTES, one every DURATION
    #[arg(long, value_name = "BYTES/DURATION", value_parser = Drip::parse)]
    pieces: Option<Drip>,
    /// Local addresses: one, ADDRESS/PREFIX, or ADDRESS-ADDRESS
    #[arg(long, value_name = "RANGE", value_parser = Sources::parse)]
    source: Option<Sources>,
    /// Class of clients; may be repeated
    #[arg(long = "class", value_name = "NAME: KEY=VALUE, ...")]
    classes: Vec<String>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Compare each successful body with the first one for the same request
    #[arg(long)]
    same_body: bool,
    /// Timeout of an attempt to connect; slower ones count as dropped
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration_us)]
    connect_timeout: u64,
    /// Timeout of a request until its response is complete
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration_us)]
    timeout: u64,
    /// Count responses slower than this as late
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration_us)]
    late: u64,
    /// Seed of all random values
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Fail if this holds at the end; may be repeated
    #[arg(long, value_name = "CONDITION", value_parser = Threshold::parse)]
    fail_if: Vec<Threshold>,
    #[command(flatten)]
    results: Results,
    /// I/O driver
    #[arg(long, value_enum, value_name = "DRIVER", default_value = "auto")]
    io: Io,
    /// One of several processes of a run; started by weir itself
    #[arg(long, hide = true, value_parser = part)]
    part: Option<(usize, usize)>,
    /// Allow a target that is neither this machine nor in a private range
    #[arg(long)]
    yes: bool,
}

/// How requests go over a connection.
#[derive(Args, Debug)]
struct UseArgs {
    /// Use HTTP/2: negotiated by ALPN for https, with prior knowledge for http [default: HTTP/1.1]
    #[arg(long)]
    http2: bool,
    /// With --http2: unanswered requests (streams) per connection [default: 1]
    #[arg(long, value_name = "N", value_parser = bomb::depth)]
    streams: Option<u32>,
    /// With HTTP/1.1: unanswered requests per connection [default: 1]
    #[arg(long, value_name = "DEPTH", value_parser = bomb::depth)]
    pipeline: Option<u32>,
    /// Close a connection after this many requests [default: never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    close_every: Option<u32>,
    /// End connections without notice: in order (fin) or with a reset (rst) [default: in order, by
    /// the server where the last request can ask for it]
    #[arg(long, value_name = "HOW", value_parser = bomb::ending)]
    end: Option<Ending>,
}

impl UseArgs {
    /// Returns the requests that may be unanswered on a connection.
    ///
    /// # Errors
    /// An option for the other version of HTTP.
    fn depth(&self) -> Result<u32, String> {
        match (self.http2, self.pipeline, self.streams) {
            (true, Some(_), _) => Err(format!("--pipeline: {}", bomb::PIPELINE)),
            (false, _, Some(_)) => Err(format!("--streams: {}", bomb::STREAMS)),
            (_, depth, None) | (_, None, depth) => Ok(depth.unwrap_or(1)),
        }
    }
}

/// Where results go besides the terminal, and how they look there.
#[derive(Args, Debug)]
struct Results {
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Write everything to a file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write a report with charts as one self-contained HTML file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the latencies of each second in HdrHistogram's log format
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,
}

/// Runs the verb.
///
/// # Errors
/// Wrong usage, a file that cannot be read or written, a driver that cannot be made, a condition
/// that is met.
pub(crate) fn bomb(arguments: BombArgs) -> Result<(), Failure> {
    let conditions = arguments.fail_if.clone();
    let (json, part) = (arguments.results.json, arguments.part);
    let Results { out, report, hdr, .. } = &arguments.results;
    let files = [out.clone(), report.clone(), hdr.clone()];
    let mut plan = arguments.plan().map_err(|text| usage(&text))?;
    for name in conditions.iter().filter_map(Threshold::class) {
        if !plan.classes.iter().any(|class| class.name == name) {
            return Err(usage(&format!("--fail-if: no class `{name}`")));
        }
    }
    bomb::spread(&mut plan);
    if let Some((part, parts)) = part {
        return run_part(&mut plan, part, parts);
    }
    let descriptors = machine::raise_descriptors().unwrap_or(u64::MAX);
    bomb::check(&plan, descriptors).map_err(|text| usage(&text))?;
    // Before any load: a run whose results cannot be written is a waste.
    let [out, report, hdr] = create(files)?;
    end_on_signals(&plan)?;
    let began = SystemTime::now() + Duration::from_micros(plan.warm_up_us);
    let identity = identity();
    let seconds = plan.duration_us.map(|us| us as f64 / 1e6);
    let live = !json && io::stdout().is_terminal();
    let parts = bomb::processes(&plan, descriptors) as usize;
    let watch = |record: &Record, second: u32| {
        if live {
            terminal::print(&progress(record, second, seconds));
        }
    };
    let record = if parts > 1 {
        // Each has the same number of threads.
        plan.threads = plan.threads.next_multiple_of(parts);
        bomb::run_parts(&plan, parts, |part| command_of(part, parts, plan.threads), watch)
    } else {
        bomb::run(&plan, watch)
    };
    let mut record = record.map_err(|error| running(&error))?;
    record.identify(identity);
    if live {
        terminal::print("\r\x1b[K");
    }
    let summary = Summary::of(&record);
    let written =
        write_raw(out, &record).and_then(|()| write_report(report, &record, &summary)).and_then(
            |()| hdr.map_or(Ok(()), |file| record.write_hdr_log(&mut BufWriter::new(file), began)),
        );
    let text = if json { json_of(&summary)? } else { summary.to_string() };
    // The results first: a full disk must not cost them.
    terminal::print(&text);
    written.map_err(|error| running(&error))?;
    let mut met: Vec<String> =
        conditions.iter().filter_map(|condition| condition.failure(&summary)).collect();
    if !conditions.iter().any(Threshold::judges_attempts) {
        let statuses_are_judged = conditions.iter().any(Threshold::judges_statuses);
        met.extend(nothing_worked(&summary.total, statuses_are_judged).map(str::to_owned));
    }
    if met.is_empty() {
        Ok(())
    } else {
        Err(Failure::Running(format!("weir bomb: failed, {}\n", met.join("; "))))
    }
}

/// Returns the description of this run for the report and the raw file.
fn identity() -> Identity {
    let words: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    Identity {
        date: laboratory::date(),
        weir: version(COMMIT),
        machine: laboratory::Machine::look(),
        command: laboratory::shown_command_line(&words),
    }
}

/// Returns a message for a run in which nothing worked. `statuses_are_judged`: error responses to
/// all requests may be intended.
fn nothing_worked(total: &ClassSummary, statuses_are_judged: bool) -> Option<&'static str> {
    if total.reached_nobody() {
        Some("no connection succeeded")
    } else if total.failed_entirely() && !statuses_are_judged {
        Some("no request succeeded")
    } else {
        None
    }
}

fn end_on_signals(plan: &Plan) -> Result<(), Failure> {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&plan.stop))
            .map_err(|error| running(&error))?;
    }
    Ok(())
}

/// Returns a command that starts this program again, with the same arguments, for some of the
/// threads.
fn command_of(part: usize, parts: usize, threads: usize) -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "weir".into());
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).args(["--threads", &threads.to_string()]);
    command.args(["--part", &format!("{part}/{parts}")]);
    command
}

/// Does the share of one process, and writes its results to standard output, a line at a time.
fn run_part(plan: &mut Plan, part: usize, parts: usize) -> Result<(), Failure> {
    machine::raise_descriptors();
    let share = plan.threads / parts;
    plan.own = part * share..(part + 1) * share;
    end_on_signals(plan)?;
    let mut out = io::stdout().lock();
    let mut written = Ok(());
    let run = bomb::run_part(plan, |line| {
        if written.is_ok() {
            written = write_line(&mut out, &line);
        }
    });
    run.and(written).map_err(|error| running(&error))
}

/// Parses `PART/PARTS`.
fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text
        .split_once('/')
        .and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    numbers
        .filter(|(part, parts)| part < parts)
        .ok_or_else(|| format!("`{text}` is not PART/PARTS"))
}

fn usage(text: &str) -> Failure {
    Failure::Usage(format!("weir bomb: {text}\n"))
}

fn running(error: &io::Error) -> Failure {
    Failure::Running(format!("weir bomb: {error}\n"))
}

fn json_of(summary: &Summary) -> Result<String, Failure> {
    serde_json::to_string(summary)
        .map(|text| text + "\n")
        .map_err(|error| running(&io::Error::other(error)))
}

/// Makes the wanted ones of these files.
fn create<const N: usize>(paths: [Option<PathBuf>; N]) -> Result<[Option<File>; N], Failure> {
    let mut files = [const { None }; N];
    for (file, path) in files.iter_mut().zip(paths) {
        let Some(path) = path else { continue };
        *file = Some(
            File::create(&path).map_err(|error| usage(&format!("{}: {error}", path.display())))?,
        );
    }
    Ok(files)
}

fn write_report(file: Option<File>, record: &Record, summary: &Summary) -> io::Result<()> {
    let Some(mut file) = file else { return Ok(()) };
    let text = bomb::html(record, summary).map_err(io::Error::other)?;
    file.write_all(text.as_bytes())
}

fn write_raw(file: Option<File>, record: &Record) -> io::Result<()> {
    file.map_or(Ok(()), |file| write_lines(file, record))
}

fn write_lines(out: impl io::Write, record: &Record) -> io::Result<()> {
    let mut file = BufWriter::new(out);
    record.lines().try_for_each(|line| write_line(&mut file, &line))?;
    file.flush()
}

fn write_line(out: &mut impl io::Write, line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    out.write_all(text.as_bytes())
}

/// Returns a line that overwrites itself: progress, the rates of the last seconds, and figures of
/// the last whole one.
fn progress(record: &Record, second: u32, seconds: Option<f64>) -> String {
    let (answered, blocked, p99_us) = record.glance(second);
    let rates: Vec<u64> = (second.saturating_sub(SPARKS - 1)..=second)
        .map(|second| record.glance(second).0)
        .collect();
    let p99 = p99_us.map_or_else(|| "-".to_owned(), |us| show_ns(us * 1000));
    let of = seconds.map_or_else(String::new, |seconds| format!("/{seconds:.0}"));
    let line = format!(
        "{}{of} s {} {answered} answered/s, p99 {p99}, {blocked} blocked/s",
        second + 1,
        sparkline(&rates)
    );
    // A line wider than the terminal, which may have been made smaller, could not be overwritten.
    let columns = terminal::size().map_or(usize::MAX, |(columns, _)| columns.saturating_sub(1));
    format!("\r\x1b[K{}", line.chars().take(columns).collect::<String>())
}

/// Returns each number as a bar of eight heights, the largest as the highest.
fn sparkline(numbers: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = numbers.iter().copied().max().unwrap_or(0).max(1);
    numbers.iter().map(|number| BARS[(number * 7 / most) as usize]).collect()
}

/// Parses `Name: value`.
fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once(':').ok_or_else(|| format!("`{text}` is not `Name: value`"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Returns the text itself, or the file behind `@`.
fn content(text: &str) -> Result<Content, String> {
    match text.strip_prefix('@') {
        Some(path) => std::fs::read(path).map(Content).map_err(|error| format!("{path}: {error}")),
        None => Ok(Content(text.as_bytes().to_vec())),
    }
}

/// The body of a request. For clap, a bare vector would be a list of arguments.
#[derive(Debug, Clone)]
struct Content(Vec<u8>);

impl BombArgs {
    /// Returns everything to do, checked.
    fn plan(self) -> Result<Plan, String> {
        let targets: Vec<Target> =
            self.urls.iter().map(|url| Target::parse(url)).collect::<Result<_, _>>()?;
        let mut target = targets[0].clone();
        if let Some(other) = targets.iter().find(|other| other.host != target.host) {
            return Err(format!(
                "one run loads one host, but the URLs have {} and {}",
                target.host, other.host
            ));
        }
        let tls = self.caller(&targets)?;
        if !self.weight.is_empty() && self.weight.len() != targets.len() {
            return Err(format!(
                "{} URLs and {} of --weight: give one for each",
                targets.len(),
                self.weight.len()
            ));
        }
        let spelling = Spelling {
            method: self.method.clone(),
            fields: self.header.clone(),
            body: self.body.clone().map(|content| content.0).unwrap_or_default(),
            preset: self.preset,
            absolute: self.proxy.is_some(),
            http2: self.use_of.http2.then(|| bomb::scheme(target.is_tls)),
        };
        let mix = self.mix(&targets, &spelling)?;
        if let Some(proxy) = self.proxy {
            target.address = proxy;
        }
        let base = Class {
            name: "all".to_owned(),
            target,
            connections: self.connections,
            rate: self.rate,
            poisson: self.arrivals,
            behaviour: Behaviour::Normal,
            sources: self.source,
            mix,
            http2: self.use_of.http2,
            depth: self.use_of.depth()?,
            close_every: self.use_of.close_every,
            ending: self.use_of.end.unwrap_or(Ending::Announced),
            seed: self.seed,
            drip: self.pieces,
            tls,
        };
        let classes = if self.classes.is_empty() {
            vec![base.arrange()?]
        } else {
            self.classes
                .iter()
                .map(|text| Class::parse(text, &base, &spelling))
                .collect::<Result<_, _>>()?
        };
        let mut asked: Vec<&Target> =
            targets.iter().chain(classes.iter().map(|class: &Class| &class.target)).collect();
        asked.dedup_by_key(|target| target.address);
        for target in asked {
            if let Some(warning) = target.permit(self.yes)? {
                terminal::print_error(&format!("weir bomb: {warning}\n"));
            }
        }
        let connections: u64 =
            classes.iter().map(|class: &Class| u64::from(class.connections)).sum();
        let threads =
            self.threads.map_or_else(|| machine::workers() as usize, |threads| threads as usize);
        let threads = threads.min(usize::try_from(connections).unwrap_or(usize::MAX)).max(1);
        Ok(Plan {
            classes,
            threads,
            own: 0..threads,
            io: run::io_choice(self.io.into()),
            duration_us: self.duration.or(self.requests.is_none().then_some(DURATION_US)),
            requests: self.requests,
            warm_up_us: self.warm_up,
            connect_timeout_us: self.connect_timeout,
            timeout_us: self.timeout,
            late_us: self.late,
            same_body: self.same_body,
            seed: self.seed,
            stop: Arc::new(AtomicBool::new(false)),
        })
    }

    /// Returns how to use TLS, if the run does.
    fn caller(&self, targets: &[Target]) -> Result<Option<Caller>, String> {
        let is_tls = targets[0].is_tls;
        if targets.iter().any(|other| other.is_tls != is_tls) {
            return Err(
                "one run uses TLS or not, but the URLs have http:// and https://".to_owned()
            );
        }
        if is_tls && self.proxy.is_some() {
            return Err(
                "https:// through a proxy needs a tunnel, which --proxy does not open".to_owned()
            );
        }
        if self.use_of.http2 && self.proxy.is_some() {
            return Err(
                "requests to a forward proxy use HTTP/1.1: remove --http2 or --proxy".to_owned()
            );
        }
        let client = self.tls.client(is_tls, self.use_of.http2)?;
        client.map(|client| Caller::new(&client, &targets[0].name)).transpose()
    }

    fn mix(&self, targets: &[Target], spelling: &Spelling) -> Result<Mix, String> {
        if let Some(path) = &self.requests_file {
            let wrong = |why: String| format!("{}: {why}", path.display());
            let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
            return Mix::parse(&text, &targets[0].host, spelling).map_err(wrong);
        }
        let requests = targets.iter().enumerate().map(|(at, target)| {
            let weight = self.weight.get(at).copied().unwrap_or(1);
            Request::new(&target.host, &target.path, weight, spelling)
        });
        Mix::new(requests.collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_the_numbers() {
        assert_eq!(sparkline(&[0, 50, 100, 7]), "▁▄█▁");
        assert_eq!(sparkline(&[0, 0]), "▁▁");
        assert_eq!(sparkline(&[]), "");
    }
}
