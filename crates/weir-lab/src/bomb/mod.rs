//! `weir bomb`: a load generator that reports what was offered, what was served, what was blocked
//! and how, and whether it was itself the limit.
//!
//! Called by the binary's verb and by tests. `class` defines the clients, `requests` (and `http2`)
//! their requests, `schedule` the times. `thread` does the work on one of weir's own drivers;
//! `count` and `slice` hold the results. `record` is everything that a run leaves, `summary` the
//! figures derived from it, `limits` the checks before a run, `threshold` the criteria to judge it.
//!
//! Bounds: the connections of its classes, one thread a core by default, and an end at the run's
//! time and two seconds.

mod class;
mod count;
mod hdr;
mod http2;
mod limits;
mod odd;
mod parts;
mod record;
mod reply;
mod report;
mod requests;
mod schedule;
mod slice;
mod sources;
mod summary;
mod thread;
mod threshold;

#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};

use weir_io::{IoChoice, Options};

pub use class::{
    BEHAVIOURS, Behaviour, Class, Drip, Ending, KEYS, PIPELINE, STREAMS, arrivals, connections,
    depth, ending, preset, scheme,
};
pub use count::{Connect, Counts, CountsDocument, End, Handshake, Outcome};
pub use limits::{check, processes, spread};
pub use parts::run_parts;
pub use record::{Identity, Line, Record};
pub use report::html;
#[cfg(test)]
pub(crate) use requests::with_serial;
pub use requests::{Mix, Preset, Request, Spelling};
pub use schedule::Rate;
pub(crate) use slice::pairs;
pub use slice::{Slice, Times};
pub use sources::Sources;
pub use summary::{ClassSummary, Percentiles, Summary};
pub use threshold::Threshold;

use crate::io::with_driver;
use thread::{Bodies, Thread};

/// Returns the sizes of a thread's driver. Responses are small or read at once: few large buffers
/// are enough.
fn sizes() -> Options {
    Options { large_count: 64, ..Options::default() }
}

/// A run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The classes of clients that take part; at least one.
    pub classes: Vec<Class>,
    /// Threads, from 1; connections are dealt out to them in turn.
    pub threads: usize,
    /// The threads of them that this process has; all, unless it is one of several (`parts`).
    pub own: Range<usize>,
    /// Which driver to run on.
    pub io: IoChoice,
    /// How long requests become due or are begun, after the warm-up, microseconds. None: until
    /// `requests` are done.
    pub duration_us: Option<u64>,
    /// Requests of each class. None: as many as there is time for.
    pub requests: Option<u64>,
    /// Time before anything is counted, microseconds.
    pub warm_up_us: u64,
    /// How long an attempt to connect may take before it counts as dropped, microseconds.
    pub connect_timeout_us: u64,
    /// How long a request may go without a complete response, microseconds.
    pub timeout_us: u64,
    /// A response later than this counts as late, microseconds.
    pub late_us: u64,
    /// Compare each successful body with the first one for the same request.
    pub same_body: bool,
    /// Seed of all random draws.
    pub seed: u64,
    /// Set it to end early; the results until then are the result.
    pub stop: Arc<AtomicBool>,
}

/// What threads report while they run.
#[derive(Debug)]
enum News {
    /// A second of a class is over.
    Second { second: u32, class: u16, slice: Box<Slice> },
    /// This was the last.
    Finished(Finished),
}

/// What a thread reports of itself at its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finished {
    thread: u32,
    /// Processor time, without the warm-up.
    busy_us: u64,
    /// Time from the end of the warm-up to the end.
    wall_us: u64,
    /// Time in which results were counted.
    counted_us: u64,
    driver: &'static str,
}

/// Runs it, calling `watch` about once a second with the results so far and the last whole second.
///
/// # Errors
/// A driver can't be made, or a thread can't be started.
pub fn run(plan: &Plan, mut watch: impl FnMut(&Record, u32)) -> io::Result<Record> {
    let mut record = Record::new(plan);
    let mut seen = 0;
    run_threads(plan, |news| match news {
        News::Second { second, class, slice } => {
            record.add(second, usize::from(class), &slice);
            // All threads hand over a second within moments; it is shown when the next one begins.
            if second > seen {
                watch(&record, seen);
                seen = second;
            }
        }
        News::Finished(finished) => record.finished(finished),
    })?;
    Ok(record)
}

/// Runs the threads that this process has of a run of several, and gives `write` a line of the
/// record whenever one of them has something to report.
///
/// # Errors
/// As [`run`].
pub fn run_part(plan: &Plan, mut write: impl FnMut(Line)) -> io::Result<()> {
    run_threads(plan, |news| write(Line::of(plan, news)))
}

/// Runs the threads of this process and receives their reports.
fn run_threads(plan: &Plan, mut hear: impl FnMut(News)) -> io::Result<()> {
    let requests = plan.classes.iter().map(|class| class.mix.requests().len());
    let bodies: Bodies =
        requests.map(|count| (0..count).map(|_| OnceLock::new()).collect()).collect();
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for number in plan.own.clone() {
            let (news, bodies) = (sender.clone(), &bodies);
            std::thread::Builder::new().name(format!("bomb-{number}")).spawn_scoped(
                scope,
                move || {
                    let thread = Thread { plan, number, bodies, news: news.clone() };
                    if let Err(error) = with_driver(plan.io, sizes(), thread) {
                        let _ = news.send(Err(error));
                    }
                },
            )?;
        }
        drop(sender);
        let mut failure = None;
        // Ends when the last thread has dropped its sender.
        for news in receiver {
            match news {
                Ok(news) => hear(news),
                Err(error) => {
                    plan.stop.store(true, Ordering::Relaxed);
                    failure.get_or_insert(error);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    })
}
