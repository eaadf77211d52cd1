//! How late workers are: the load board and the times of each worker -> its part of the document,
//! and metrics. Called by `reading`, `status` and `metrics`.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use weir_io::board::Line;
use weir_proxy::observe::histogram::Snapshot;
use weir_worker::{Handle, Times, View};

use super::document::Latency;
use super::exposition::{Exposition, Type};
use super::metrics::histogram;
use super::reading::{Reading, WorkerReading};
use super::window::{Counts, Past};

/// One worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Worker {
    pub(crate) number: usize,
    /// Whether it reported in time.
    pub(crate) responsive: bool,
    /// It has ended, as all do at the end of a drain.
    pub(crate) ended: bool,
    pub(crate) driver: Option<String>,
    pub(crate) clients: Option<usize>,
    pub(crate) cpu_us: Option<u64>,
    /// Connections that wait to be accepted.
    pub(crate) accept_queue: Option<u32>,
    pub(crate) turns: u64,
    pub(crate) mail_delayed: u64,
    /// Idle client connections that it gave to other workers, and got from them.
    pub(crate) given: u64,
    pub(crate) taken: u64,
    pub(crate) rebirths: u64,
    /// Requests without a complete response.
    pub(crate) open_requests: u64,
    /// The recent share of time in which it wanted its core and did not have it.
    pub(crate) starved_permille: u32,
    /// `pinned`, `let go` while other programs take its core, or `not pinned`.
    pub(crate) pinning: String,
    /// How often it was let go.
    pub(crate) let_go: u32,
    /// How long its turn has lasted; 0: it waits for something to do.
    pub(crate) turn_now_us: u64,
    /// How long its turns took in the window.
    pub(crate) turn: Latency,
    /// How long clients' bytes had been in the kernel when it got them, in the window.
    pub(crate) kernel_wait: Latency,
}

/// A worker's line on the board.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Present {
    /// How long its turn has lasted, microseconds; 0: it waits for something to do.
    pub(crate) turn_us: u64,
    /// Requests without a complete response.
    pub(crate) open_requests: u32,
    /// Client connections.
    pub(crate) sessions: u32,
    /// The recent share of time in which it wanted its core and did not have it, in thousandths.
    pub(crate) starved_permille: u32,
}

impl Present {
    /// Returns those of all workers, by worker.
    pub(crate) fn of(handle: &Handle) -> Vec<Present> {
        let now_us = weir_io::clock_us();
        let present = |line: &Line| Present {
            turn_us: line.turn_us(now_us),
            open_requests: line.open_requests.load(Relaxed),
            sessions: line.sessions.load(Relaxed),
            starved_permille: line.starved_permille.load(Relaxed),
        };
        handle.board().lines().iter().map(present).collect()
    }
}

/// Durations on one worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Took {
    /// Its turns.
    pub(crate) turn: Snapshot,
    /// From the arrival of a client's bytes until the worker reads them.
    pub(crate) kernel_wait: Snapshot,
}

impl Took {
    /// Returns those since the start.
    pub(crate) fn of(times: &Times) -> Took {
        Took { turn: times.turn.snapshot(), kernel_wait: times.kernel_wait.snapshot() }
    }
}

/// The past of one worker.
#[derive(Debug)]
pub(crate) struct WorkerPast {
    turn: Past,
    kernel_wait: Past,
}

impl WorkerPast {
    /// Begins without any counts.
    pub(crate) fn new(now: Instant) -> WorkerPast {
        WorkerPast { turn: Past::new(now), kernel_wait: Past::new(now) }
    }

    /// Makes a note of the present counts.
    pub(crate) fn note(&mut self, now: Instant, view: &View) {
        let Took { turn, kernel_wait } = Took::of(&view.times);
        self.turn.note(now, Counts::default(), &turn);
        self.kernel_wait.note(now, Counts::default(), &kernel_wait);
    }

    /// Returns the durations within the window.
    pub(crate) fn lately(&self, now: Instant, view: &View) -> Took {
        let Took { turn, kernel_wait } = Took::of(&view.times);
        let lately = |past: &Past, all: &Snapshot| past.lately(now, Counts::default(), all).latency;
        Took {
            turn: lately(&self.turn, &turn),
            kernel_wait: lately(&self.kernel_wait, &kernel_wait),
        }
    }
}

/// Adds families of metrics.
pub(crate) fn metrics(text: &mut Exposition, reading: &Reading) {
    let numbers: Vec<String> =
        (0..reading.workers.len()).map(|number| number.to_string()).collect();
    let workers = || reading.workers.iter().zip(&numbers);
    let mut each = |name: &str, help: &str, of: &dyn Fn(&WorkerReading) -> String| {
        text.family(name, Type::Gauge, help);
        workers().for_each(|(worker, number)| text.sample(&[("worker", number)], of(worker)));
    };
    each("worker_client_connections", "Client connections of the worker.", &|worker| {
        worker.present.sessions.to_string()
    });
    each(
        "worker_open_requests",
        "Requests of the worker without a complete response.",
        &|worker| worker.present.open_requests.to_string(),
    );
    let help = "Share of the last moments in which the worker waited for its core because \
        something else ran there, from 0 to 1.";
    each("worker_starved_ratio", help, &|worker| {
        format!("{:.3}", f64::from(worker.present.starved_permille) / 1000.0)
    });
    each(
        "worker_pinned",
        "Whether the worker is pinned to its core: 0 while weir has unpinned it.",
        &|worker| u8::from(worker.view.place.is_pinned()).to_string(),
    );
    text.family(
        "worker_let_go",
        Type::Counter,
        "Times that weir unpinned the worker, because other programs took its core.",
    );
    workers().for_each(|(worker, number)| {
        text.sample(&[("worker", number)], worker.view.place.times_let_go())
    });
    let all: Vec<(Took, &String)> =
        workers().map(|(worker, number)| (Took::of(&worker.view.times), number)).collect();
    let help = "Time from the delivery of events to the worker until it is ready for more.";
    text.family("worker_turn_seconds", Type::Histogram, help);
    all.iter().for_each(|(took, number)| histogram(text, &[("worker", number)], &took.turn));
    let help = "Time from the arrival of a client's bytes in the kernel until the worker had them, \
        for one receive in 64, in ticks of the kernel.";
    text.family("worker_kernel_wait_seconds", Type::Histogram, help);
    all.iter().for_each(|(took, number)| histogram(text, &[("worker", number)], &took.kernel_wait));
}
