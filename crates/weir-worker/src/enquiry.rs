//! Asks a running worker what it is doing: its thread answers between two turns
//! (docs/semantics.md#what-you-can-observe).
//!
//! The worker compares a number once a turn; only when a question has come does it make a report
//! and hand it over. The lock is held to exchange a pointer. A worker that waits for events is
//! woken; a stuck worker does not answer, which the asker notices when its patience ends.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use weir_io::{AcceptQueue, Class, Driver, DriverStats, Waker};
use weir_proxy::observe::report::Report;

use crate::control::Control;
use crate::worker::Worker;

/// A worker's report on itself.
#[derive(Debug, Clone)]
pub struct WorkerReport {
    /// Its clients, servers and connections.
    pub machines: Report,
    /// The name of its driver.
    pub driver: &'static str,
    /// Counters of its driver so far.
    pub driver_stats: DriverStats,
    /// Processor time of its thread, microseconds.
    pub cpu_us: u64,
    /// The accept queues, by listener, as far as the system tells. Empty when nothing is accepted
    /// any more.
    pub accept_queues: Vec<(SocketAddr, AcceptQueue)>,
    /// Free and all receive buffers for clients.
    pub small_buffers: (u32, u32),
    /// Free and all receive buffers for servers.
    pub large_buffers: (u32, u32),
}

/// The questions to one worker, and its answers.
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
    /// The worker has ended: no more questions will be answered.
    over: bool,
}

impl fmt::Debug for Enquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Enquiry {{ asked: {} }}", self.asked.load(Ordering::Relaxed))
    }
}

impl Enquiry {
    /// Asks; the number is for [`Enquiry::wait`]. Ask several workers first, then wait for them.
    pub fn ask(&self) -> u64 {
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
        number
    }

    /// A report made after the question. None: the worker did not answer before the deadline, or
    /// has ended.
    pub fn wait(&self, number: u64, deadline: Instant) -> Option<Arc<WorkerReport>> {
        let mut answer = self.lock();
        while answer.number < number {
            if answer.over {
                return None;
            }
            let patience = deadline.saturating_duration_since(Instant::now());
            if patience == Duration::ZERO {
                return None;
            }
            answer = self
                .answered
                .wait_timeout(answer, patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        answer.report.clone()
    }

    /// Whether the worker has ended.
    pub fn is_over(&self) -> bool {
        self.lock().over
    }

    /// The worker's side, at its end: waiting for it is now pointless.
    pub(crate) fn close(&self) {
        self.lock().over = true;
        self.answered.notify_all();
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
        let before = std::mem::replace(&mut *self.lock(), Answer { number, report, over: false });
        self.answered.notify_all();
        drop(before);
    }

    fn lock(&self) -> MutexGuard<'_, Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Driver> Worker<D> {
    /// Answers open questions with a report, after carrying out the commands that were queued
    /// before them.
    pub(crate) fn answer(&mut self, control: &Control) {
        let asked = self.enquiry.asked();
        if asked != self.answered {
            self.answered = asked;
            self.obey(control);
            if let Some(prepared) = &self.dialing.prepared {
                prepared.tell(&self.parts.counters, self.parts.worker);
            }
            self.survive(|worker| {
                let report = worker.report();
                worker.enquiry.tell(asked, report);
            });
        }
    }

    /// A report on the worker. Call it on the worker's thread.
    pub fn report(&mut self) -> WorkerReport {
        let accept_queues = self.listeners.queues(&mut self.driver);
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        WorkerReport {
            cpu_us: cpu.tv_sec as u64 * 1_000_000 + cpu.tv_nsec as u64 / 1_000,
            accept_queues,
            machines: self.engine.report(),
            driver: self.driver.name(),
            driver_stats: self.driver.stats(),
            small_buffers: self.driver.buffers(Class::Small),
            large_buffers: self.driver.buffers(Class::Large),
        }
    }
}

/// Asks several workers at once. By worker: its report, or None when it did not answer within
/// `patience`.
pub fn enquire(workers: &[Arc<Enquiry>], patience: Duration) -> Vec<Option<Arc<WorkerReport>>> {
    let deadline = Instant::now() + patience;
    let numbers: Vec<u64> = workers.iter().map(|enquiry| enquiry.ask()).collect();
    workers.iter().zip(numbers).map(|(enquiry, number)| enquiry.wait(number, deadline)).collect()
}

#[cfg(test)]
mod tests {
    //! Proves: an enquiry does not wait for a worker that has ended. How: one that never answers,
    //! with patience for an hour.

    use super::*;

    #[test]
    fn a_worker_that_has_ended_is_not_waited_for() {
        let enquiry = Arc::new(Enquiry::default());
        let asked = Arc::clone(&enquiry);
        let asker = std::thread::spawn(move || enquire(&[asked], Duration::from_secs(3600)));
        enquiry.close();
        assert!(asker.join().expect("no panic")[0].is_none() && enquiry.is_over());
    }
}
