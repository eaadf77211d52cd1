//! Asking a running worker what it is doing: its thread answers between two turns (semantics.md §7).
//!
//! The worker compares a number once a turn; only when somebody has asked does it make a report and hand it over. The lock
//! is held to exchange a pointer. A worker that waits for events is woken; one that is stuck does not answer, which the
//! asker sees when its patience ends.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use weir_io::{AcceptQueue, DriverStats, Waker};
use weir_proxy::report::Report;

/// What a worker says of itself.
#[derive(Debug, Clone)]
pub struct WorkerReport {
    /// Its clients, servers and connections.
    pub machines: Report,
    /// The name of its driver.
    pub driver: &'static str,
    /// What its driver did so far.
    pub driver_stats: DriverStats,
    /// Processor time of its thread, microseconds.
    pub cpu_us: u64,
    /// What waits to be accepted, by listener, as far as the system tells. Empty when nothing is accepted any more.
    pub accept_queues: Vec<AcceptQueue>,
    /// Free and all receive buffers for clients.
    pub small_buffers: (u32, u32),
    /// Free and all receive buffers for servers.
    pub large_buffers: (u32, u32),
}

/// Where questions to one worker are put, and its answers.
#[derive(Default)]
pub struct Enquiry {
    /// Questions so far.
    asked: AtomicU64,
    answer: Mutex<Answer>,
    answered: Condvar,
    waker: OnceLock<Arc<dyn Waker>>,
}

#[derive(Default)]
struct Answer {
    /// Questions that had been asked when the report was made.
    number: u64,
    report: Option<Arc<WorkerReport>>,
}

impl fmt::Debug for Enquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Enquiry {{ asked: {} }}", self.asked.load(Ordering::Relaxed))
    }
}

impl Enquiry {
    /// Asks; the number is for [`Enquiry::wait`]. Several workers are asked first and waited for then.
    pub fn ask(&self) -> u64 {
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
        number
    }

    /// A report made after the question. None: the worker did not come to it until the deadline.
    pub fn wait(&self, number: u64, deadline: Instant) -> Option<Arc<WorkerReport>> {
        let mut answer = self.lock();
        while answer.number < number {
            let patience = deadline.saturating_duration_since(Instant::now());
            if patience == Duration::ZERO {
                return None;
            }
            answer = self.answered.wait_timeout(answer, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        answer.report.clone()
    }

    /// The worker's side, once: how it is woken.
    pub(crate) fn set_waker(&self, waker: Arc<dyn Waker>) {
        // Set twice only if a worker were started twice.
        let _ = self.waker.set(waker);
    }

    /// The worker's side, once a turn: questions so far.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// The worker's side: the answer to all questions up to this one.
    pub(crate) fn tell(&self, number: u64, report: WorkerReport) {
        let report = Some(Arc::new(report));
        let before = std::mem::replace(&mut *self.lock(), Answer { number, report });
        self.answered.notify_all();
        drop(before);
    }

    fn lock(&self) -> MutexGuard<'_, Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks several workers at once. By worker: its report, or None when it did not answer within `patience`.
pub fn enquire(workers: &[Arc<Enquiry>], patience: Duration) -> Vec<Option<Arc<WorkerReport>>> {
    let deadline = Instant::now() + patience;
    let numbers: Vec<u64> = workers.iter().map(|enquiry| enquiry.ask()).collect();
    workers.iter().zip(numbers).map(|(enquiry, number)| enquiry.wait(number, deadline)).collect()
}
