//! The live view of a running proxy: what its workers counted since the last look, as one line.
//!
//! Called by `weir demo` once a second. Reads the workers' counters without disturbing them, and
//! their threads' processor time from /proc.

use std::fs;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use weir_proxy::observe::counters::{Counters, Totals};
use weir_proxy::observe::histogram::{Histogram, Snapshot};

/// The readable state of one worker.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its counters.
    pub counters: Arc<Counters>,
    /// Its latencies, microseconds.
    pub latency: Arc<Histogram>,
}

/// Looks at the workers again and again.
#[derive(Debug)]
pub struct Live {
    sources: Vec<Source>,
    /// Worker threads are called this and a number.
    thread_prefix: &'static str,
    last: Reading,
}

/// Everything at one moment.
#[derive(Debug)]
struct Reading {
    at: Instant,
    totals: Totals,
    latency: Vec<Snapshot>,
    cpu_us: u64,
}

/// What happened between two looks, and how things are now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Complete requests a second.
    pub rate: f64,
    /// Open client connections.
    pub clients: u64,
    /// Established upstream connections.
    pub upstreams: u64,
    /// Requests waiting for an upstream connection.
    pub waiting: u64,
    /// Requests sent and not yet answered.
    pub in_flight: u64,
    /// Responses of the class 5xx.
    pub failures: u64,
    /// Processor time of the workers for each request, microseconds. None without requests.
    pub cpu_us: Option<f64>,
    /// Median of the time from a request to the end of its response, microseconds. None without
    /// requests.
    pub p50_us: Option<u64>,
    /// Its 99th percentile.
    pub p99_us: Option<u64>,
}

impl Live {
    /// Takes the first reading. `thread_prefix` and a number are the names of the workers' threads.
    pub fn new(sources: Vec<Source>, thread_prefix: &'static str) -> Live {
        let last = Reading::take(&sources, thread_prefix);
        Live { sources, thread_prefix, last }
    }

    /// Requests since the workers started.
    pub fn requests(&self) -> u64 {
        self.last.totals.get("requests", None)
    }

    /// Returns what happened since the last look.
    pub fn look(&mut self) -> Figures {
        let now = Reading::take(&self.sources, self.thread_prefix);
        let figures = now.since(&self.last);
        self.last = now;
        figures
    }
}

impl Reading {
    fn take(sources: &[Source], thread_prefix: &str) -> Reading {
        let mut totals = Totals::default();
        for source in sources {
            totals.add(&source.counters);
        }
        let latency = sources.iter().map(|source| source.latency.snapshot()).collect();
        Reading { at: Instant::now(), totals, latency, cpu_us: threads_cpu_us(thread_prefix) }
    }

    fn since(&self, earlier: &Reading) -> Figures {
        let grown = |name: &str, label| {
            self.totals.get(name, label).saturating_sub(earlier.totals.get(name, label))
        };
        let requests = grown("requests", None);
        let seconds = self.at.duration_since(earlier.at).as_secs_f64().max(1e-3);
        let mut latencies =
            self.latency.iter().zip(&earlier.latency).map(|(now, then)| now.since(then));
        let merged = latencies.next().map(|first| {
            latencies.fold(first, |mut sum, next| {
                sum.merge(&next);
                sum
            })
        });
        let percentile =
            |of_10_000| merged.as_ref().and_then(|snapshot| snapshot.percentile(of_10_000));
        let cpu_us = self.cpu_us.saturating_sub(earlier.cpu_us) as f64;
        Figures {
            rate: requests as f64 / seconds,
            clients: self.totals.get("client_connections", None),
            upstreams: self.totals.get("upstream_connections", None),
            waiting: self.totals.get("queue_waiting", None),
            in_flight: self.totals.get("in_flight", None),
            failures: grown("answers", Some("5xx")),
            cpu_us: (requests > 0).then(|| cpu_us / requests as f64),
            p50_us: percentile(5000),
            p99_us: percentile(9900),
        }
    }
}

impl Figures {
    /// Returns a line of at most `columns`: a narrow line leaves out the least important parts,
    /// which are at its end.
    pub fn line(&self, columns: usize) -> String {
        let Figures { rate, clients, upstreams, waiting, in_flight, .. } = self;
        let mut parts = vec![format!("{rate:>7.0} req/s")];
        if self.failures > 0 {
            parts.push(format!("{} failed", self.failures));
        }
        parts.push(match (self.p50_us, self.p99_us) {
            (Some(p50_us), Some(p99_us)) => {
                format!("p50 {:.2} p99 {:.2} ms", p50_us as f64 / 1e3, p99_us as f64 / 1e3)
            }
            _ => "p50 - p99 -".to_owned(),
        });
        parts.push(format!("{clients} clients, {upstreams} upstream"));
        parts.push(
            self.cpu_us.map_or_else(|| "CPU -".to_owned(), |us| format!("CPU {us:.1} us/req")),
        );
        parts.push(format!("{in_flight} in flight, {waiting} waiting"));
        let mut line = String::new();
        for part in parts {
            let gap = if line.is_empty() { "" } else { " | " };
            // All of it is ASCII.
            if line.len() + gap.len() + part.len() > columns {
                break;
            }
            line += gap;
            line += &part;
        }
        line
    }
}

/// Shows a line: in place of the last one on a terminal, below it elsewhere.
///
/// # Errors
/// The output's.
pub fn show(out: &mut impl Write, terminal: bool, line: &str) -> io::Result<()> {
    if terminal {
        write!(out, "\r\x1b[2K{line}")?;
    } else {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// Processor time of this process's threads that are called `prefix` and a number, microseconds. 0
/// where the kernel keeps no such count.
fn threads_cpu_us(prefix: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let read = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default();
    let of_task = |task: fs::DirEntry| {
        let name = read(task.path().join("comm"));
        let number = name.trim().strip_prefix(prefix)?;
        number.parse::<u32>().ok()?;
        read(task.path().join("schedstat")).split(' ').next()?.parse::<u64>().ok()
    };
    tasks.filter_map(of_task).sum::<u64>() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> Vec<Source> {
        (0..2).map(|_| Source { counters: Arc::default(), latency: Arc::default() }).collect()
    }

    #[test]
    fn figures_are_what_happened_since_the_last_look() {
        let sources = sources();
        sources[0].counters.requests.add(1000);
        let mut live = Live::new(sources.clone(), "nobody-");
        for (index, source) in sources.iter().enumerate() {
            source.counters.requests.add(10);
            source.counters.client_connections.set(3);
            source.counters.in_flight.set(index as u64);
            source.latency.record(100 + 900 * index as u64);
        }
        sources[1].counters.answer(502);
        let figures = live.look();
        assert!(figures.rate > 0.0 && live.requests() == 1020);
        assert_eq!((figures.clients, figures.in_flight, figures.failures), (6, 1, 1));
        assert!(figures.p50_us.unwrap() <= 110 && figures.p99_us.unwrap() >= 900, "{figures:?}");
        let still = live.look();
        assert_eq!((still.rate, still.cpu_us, still.p50_us, still.failures), (0.0, None, None, 0));
    }

    #[test]
    fn one_line_is_rewritten_only_on_a_terminal() {
        let (mut terminal, mut file) = (Vec::new(), Vec::new());
        for line in ["a", "b"] {
            show(&mut terminal, true, line).unwrap();
            show(&mut file, false, line).unwrap();
        }
        assert_eq!(terminal, b"\r\x1b[2Ka\r\x1b[2Kb");
        assert_eq!(file, b"a\nb\n");
    }

    #[test]
    fn a_line_is_no_wider_than_it_may_be() {
        let figures = Figures {
            rate: 123_456.0,
            clients: 4_000,
            upstreams: 32,
            waiting: 900,
            in_flight: 3_100,
            failures: 17,
            cpu_us: Some(12.3),
            p50_us: Some(345),
            p99_us: Some(34_567),
        };
        let whole = figures.line(usize::MAX);
        for columns in 0..=whole.len() {
            let line = figures.line(columns);
            assert!(line.len() <= columns && whole.starts_with(&line), "{columns}: {line}");
        }
        assert!(figures.line(79).contains("upstream"), "{}", figures.line(79));
        assert!(whole.contains("3100 in flight, 900 waiting"), "{whole}");
    }

    #[test]
    fn processor_time_is_that_of_the_named_threads() {
        let spin = || (0..3_000_000u64).fold(0, |sum, value| std::hint::black_box(sum ^ value));
        let (ready, wait) = std::sync::mpsc::channel();
        let (done, release) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("livetest-0".into()).spawn(move || {
            spin();
            ready.send(()).unwrap();
            let _ = release.recv();
        });
        wait.recv().unwrap();
        assert!(threads_cpu_us("livetest-") > 0);
        assert_eq!(threads_cpu_us("nobody-"), 0);
        drop(done);
        thread.unwrap().join().unwrap();
    }
}
