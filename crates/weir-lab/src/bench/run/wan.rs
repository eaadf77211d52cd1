//! Clients behind a slow link that loses packets; a proxy and the origin, or the origin alone, at
//! its other end.
//!
//! Called by `rounds.rs` for each run of the experiment `wan`. Each run has a separate link,
//! namespaces, an origin and a proxy. In all runs of a round, the same packets are lost, by their
//! numbers. The clients are threads of the harness, so that times count from connect(2). Bounds:
//! the seconds given, [`PATIENCE`] for each small object.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::load::{Readings, check_interrupt};
use super::process::{self, Process};
use super::settings;
use super::slow_link::{CLIENT_ADDRESS, CLIENTS, FAR, FAR_ADDRESS, FAR_NAME, options, why};
use super::stage::{Running, Stage};
use crate::bench::experiment::contenders::{Contender, TcpPipes, What};
use crate::bench::experiment::wan::{Object, SplitProxy, Wan};
use crate::bench::record::answers::{Errors, Latency};
use crate::bench::record::histogram::Histogram;
use crate::bench::record::outcome::Record;
use crate::bench::record::wan::{Carried, Wayed};
use crate::link::{Figures, Link};

/// Where proxy and origin listen.
const PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(FAR_ADDRESS), 8080);
const ORIGIN: SocketAddr = SocketAddr::new(IpAddr::V4(FAR_ADDRESS), 9090);
/// How long a small object may take: longer than the kernel needs to send a first packet four
/// times.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two checks of the time while nothing arrives.
const LOOK: Duration = Duration::from_millis(100);
/// Longest head of a response, bytes.
const HEAD_BYTES_MAX: usize = 4096;
/// The congestion controls for unprivileged processes.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Does one run, for this many seconds.
///
/// # Errors
/// Something can't be made or started, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    wan: Wan,
    (round, seconds): (u32, u32),
) -> io::Result<(Running, Record)> {
    let What::Split(split) = contender.what else {
        return Err(io::Error::other(format!("{} doesn't pass connections on", contender.name)));
    };
    let mut link =
        Link::spawn(&options(wan, round)).map_err(|obstacle| io::Error::other(why(obstacle)))?;
    let [clients, server] = split.of_options(&fs::read_to_string(ALLOWED)?);
    if clients.is_none() {
        choose(stage, &link, split.clients)?;
    }
    let running = start(stage, &link, (contender, split.proxy), [clients, server])?;
    let (before, own_us) = (Readings::take(stage, &running), own_cpu_us());
    let figures = link.figures();
    let time = Duration::from_secs(u64::from(seconds));
    let seen = link.namespace(CLIENTS).enter(|| ask_all(running.address(), wan, time))??;
    let mut record = before.finish();
    record.generator_us = own_cpu_us().saturating_sub(own_us) as f64;
    let [there, back] = link.figures();
    record.special.wan =
        Some(Carried { to_servers: way(&there, &figures[0]), to_clients: way(&back, &figures[1]) });
    fill(&mut record, seen, wan.object, time);
    link.stop().map_err(io::Error::other)?;
    Ok((running, record))
}

/// Makes sockets at the far end that don't choose a congestion control use this one towards
/// clients: by their route. Outside the machine's own namespace, the default can only be one of
/// `tcp_allowed_congestion_control` (tcp_set_default_congestion_control() of the kernel).
fn choose(stage: &Stage, link: &Link, congestion: &str) -> io::Result<()> {
    let (entrance, client) =
        (format!("--net={}", link.entrance(FAR)), format!("{CLIENT_ADDRESS}/32"));
    let words = [&entrance, "ip", "route", "add", &client, "dev", FAR_NAME, "congctl", congestion];
    let mut process =
        Process::start(Path::new("nsenter"), &words, &stage.scratch("wan-route.log"))?;
    process.await_success()
}

/// Returns the processor time of the harness: clients and link.
fn own_cpu_us() -> u64 {
    process::cpu_us(&[std::process::id()])
}

/// Starts origin and proxy at the far end; weir gets these congestion controls towards clients and
/// server.
fn start(
    stage: &Stage,
    link: &Link,
    (contender, proxy): (Contender, Option<SplitProxy>),
    congestions: [Option<&str>; 2],
) -> io::Result<Running> {
    let begin = |program: &Path,
                 words: &[&str],
                 name: &str,
                 address: SocketAddr|
     -> io::Result<Process> {
        let (entrance, program) =
            (format!("--net={}", link.entrance(FAR)), program.to_string_lossy());
        let words = [&[entrance.as_str(), &program], words].concat();
        let mut process =
            Process::start(Path::new("nsenter"), &words, &stage.scratch(&format!("{name}.log")))?;
        link.namespace(FAR).enter(|| process.await_listening(address))??;
        Ok(process)
    };
    let words = ["origin", "--listen", &ORIGIN.to_string(), "--threads", "1"];
    let origin = (begin(stage.weir(), &words, "wan-origin", ORIGIN)?, ORIGIN);
    let Some(proxy) = proxy else { return Ok(Running::origin_alone(origin)) };
    let (name, cores) = (contender.name, stage.cores());
    let (ending, text) = match proxy {
        SplitProxy::Weir => ("kdl", settings::weir_tcp((PROXY, ORIGIN), cores, congestions)),
        SplitProxy::Haproxy => (
            "conf",
            settings::haproxy_tcp(PROXY, ORIGIN, cores, stage.descriptors(), TcpPipes::Large),
        ),
    };
    let file = stage.scratch(&format!("{name}.{ending}"));
    fs::write(&file, text)?;
    let file = file.to_string_lossy();
    let process = match proxy {
        SplitProxy::Weir => {
            begin(stage.weir(), &["run", "--admin", "off", "-c", &file], name, PROXY)?
        }
        SplitProxy::Haproxy => {
            let missing = || io::Error::new(ErrorKind::NotFound, "haproxy is not installed");
            let program = stage.programs().path("haproxy").ok_or_else(missing)?;
            begin(&program, &["-db", "-f", &file], name, PROXY)?
        }
    };
    Ok(Running::of((process, PROXY), origin))
}

/// What clients saw.
#[derive(Debug, Default)]
struct Seen {
    /// Bytes received, including heads and responses cut off at the end.
    bytes: u64,
    /// How long each whole object took from connect(2) to its last byte, microseconds.
    times_us: Vec<u64>,
    errors: Errors,
}

impl Seen {
    fn add(mut self, other: Seen) -> Seen {
        self.bytes += other.bytes;
        self.times_us.extend(other.times_us);
        other
            .errors
            .into_iter()
            .for_each(|(kind, count)| *self.errors.entry(kind).or_default() += count);
        self
    }
}

/// Runs all clients for this time, then waits for small objects that were begun by then.
fn ask_all(to: SocketAddr, wan: Wan, time: Duration) -> io::Result<Seen> {
    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..wan.clients()).map(|_| scope.spawn(|| ask(to, wan.object, until))).collect();
        clients.into_iter().try_fold(Seen::default(), |seen, client| {
            Ok(seen.add(client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?))
        })
    })
}

/// Runs one client: an object after the other, a connection for each.
fn ask(to: SocketAddr, object: Object, until: Instant) -> io::Result<Seen> {
    let mut seen = Seen::default();
    while Instant::now() < until {
        let begin = Instant::now();
        let deadline = if object == Object::Large { until } else { begin + PATIENCE };
        match fetch(to, object.bytes(), deadline, &mut seen.bytes) {
            Ok(true) => seen.times_us.push(begin.elapsed().as_micros() as u64),
            Ok(false) if object == Object::Large => {}
            Ok(false) => *seen.errors.entry("timed_out".to_owned()).or_default() += 1,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                *seen.errors.entry(error.to_string()).or_default() += 1;
                // A client that is refused at once doesn't retry as fast as it can.
                std::thread::sleep(LOOK);
            }
        }
    }
    Ok(seen)
}

/// Returns whether an object came whole before the deadline; the received bytes are added to
/// `bytes`.
fn fetch(to: SocketAddr, length: u64, deadline: Instant, bytes: &mut u64) -> io::Result<bool> {
    let left = || deadline.saturating_duration_since(Instant::now());
    let is_late =
        |error: &io::Error| matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock);
    let mut stream = match TcpStream::connect_timeout(&to, left().max(Duration::from_millis(1))) {
        Err(error) if is_late(&error) => return Ok(false),
        connected => connected?,
    };
    stream.set_read_timeout(Some(LOOK))?;
    // In one piece: bytes that are written after an unacknowledged small packet wait for a round
    // trip.
    stream.write_all(
        format!("GET /?size={length} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n")
            .as_bytes(),
    )?;
    let mut answer = Answer::default();
    let mut piece = vec![0; 64 << 10];
    while !left().is_zero() {
        check_interrupt()?;
        match stream.read(&mut piece) {
            Ok(0) => return answer.finish(length).map(|()| true),
            Ok(read) => {
                *bytes += read as u64;
                answer.add(&piece[..read]);
            }
            Err(error) if is_late(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// A response in progress.
#[derive(Debug, Default)]
struct Answer {
    /// Its beginning.
    head: Vec<u8>,
    bytes: u64,
}

impl Answer {
    fn add(&mut self, piece: &[u8]) {
        let room = HEAD_BYTES_MAX - self.head.len();
        self.head.extend_from_slice(&piece[..piece.len().min(room)]);
        self.bytes += piece.len() as u64;
    }

    /// Checks that this is a response with `length` bytes of content.
    fn finish(&self, length: u64) -> io::Result<()> {
        let end = self.head.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at as u64 + 4);
        match end {
            Some(end) if self.head.starts_with(b"HTTP/1.1 200 ") => {
                match self.bytes.cmp(&(end + length)) {
                    std::cmp::Ordering::Equal => Ok(()),
                    std::cmp::Ordering::Less => Err(io::Error::other("truncated")),
                    std::cmp::Ordering::Greater => Err(io::Error::other("too_long")),
                }
            }
            None if self.bytes == 0 => Err(io::Error::other("closed")),
            _ => Err(io::Error::other("not_200")),
        }
    }
}

/// Fills in everything that clients saw in that time.
fn fill(record: &mut Record, seen: Seen, object: Object, time: Duration) {
    let Seen { bytes, mut times_us, errors } = seen;
    record.requests = times_us.len() as u64;
    record.bytes = bytes;
    record.errors = errors;
    record.rate = match object {
        Object::Large => bytes as f64 / time.as_secs_f64(),
        // The wait at the end took longer than that.
        Object::Small => record.requests as f64 / (record.wall_us / 1e6),
    };
    times_us.sort_unstable();
    record.latency = percentiles(&times_us);
    record.special.histogram = Histogram::of(times_us.into_iter().map(|us| (us, 1)));
}

/// Returns the percentiles of times in rising order; None without times.
fn percentiles(rising_us: &[u64]) -> Option<Latency> {
    let last = rising_us.len().checked_sub(1)?;
    let at = |share: f64| {
        rising_us[((share * rising_us.len() as f64).ceil() as usize).saturating_sub(1).min(last)]
    };
    let (p50_us, p95_us, p99_us, p999_us) = (at(0.5), at(0.95), at(0.99), at(0.999));
    Some(Latency { p50_us, p95_us, p99_us, p999_us, max_us: rising_us[last] })
}

/// Returns what happened to packets of one direction since then.
fn way(now: &Figures, before: &Figures) -> Wayed {
    let Figures { packets_in, lost, dropped, overrun, .. } = now.since(before);
    let (late_mean_us, late_max_us) =
        (now.late_mean_ns() as f64 / 1e3, now.late_max_ns as f64 / 1e3);
    Wayed { packets: packets_in, lost, dropped, overrun, late_mean_us, late_max_us }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_or_says_what_is_wrong() {
        let finish = |pieces: &[&[u8]], length| {
            let mut answer = Answer::default();
            pieces.iter().for_each(|piece| answer.add(piece));
            answer.finish(length).map_err(|error| error.to_string())
        };
        let long = vec![b'x'; 3 * HEAD_BYTES_MAX];
        assert_eq!(finish(&[b"HTTP/1.1 200 OK\r\n\r", b"\nabc"], 3), Ok(()));
        assert_eq!(finish(&[b"HTTP/1.1 200 OK\r\n\r\n", &long], long.len() as u64), Ok(()));
        for (pieces, word) in [
            (&[b"HTTP/1.1 200 OK\r\n\r\nab".as_slice()][..], "truncated"),
            (&[b"HTTP/1.1 200 OK\r\n\r\nabcd".as_slice()], "too_long"),
            (&[b"HTTP/1.1 503 No\r\n\r\nabc".as_slice()], "not_200"),
            (&[b"HTTP/1.1 200 OK\r\n".as_slice()], "not_200"),
            (&[], "closed"),
        ] {
            assert_eq!(finish(pieces, 3), Err(word.to_owned()));
        }
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        assert_eq!(percentiles(&[]), None);
        let one = percentiles(&[7]).unwrap();
        assert_eq!((one.p50_us, one.p999_us, one.max_us), (7, 7, 7));
        let many: Vec<u64> = (1..=1000).collect();
        let Latency { p50_us, p95_us, p99_us, p999_us, max_us } = percentiles(&many).unwrap();
        assert_eq!([p50_us, p95_us, p99_us, p999_us, max_us], [500, 950, 990, 999, 1000]);
    }

    #[test]
    fn the_rate_of_large_objects_is_that_of_all_bytes_and_of_small_ones_that_of_answers() {
        let seen =
            || Seen { bytes: 3_000_000, times_us: vec![30, 10, 20], errors: Errors::default() };
        let of = |object| {
            let mut record = Record { wall_us: 4e6, ..Record::default() };
            fill(&mut record, seen(), object, Duration::from_secs(2));
            record
        };
        let (large, small) = (of(Object::Large), of(Object::Small));
        assert_eq!((large.rate, small.rate, small.requests), (1_500_000.0, 0.75, 3));
        assert_eq!(small.latency.map(|latency| (latency.p50_us, latency.max_us)), Some((20, 30)));
        assert_eq!(small.special.histogram.count(), 3);
    }
}
