//! Threads beside the workers that compress parts of large responses, so that no other client waits
//! for that. docs/compression.md.
//!
//! Made by [`crate::prepare`]. A worker hands over a [`Job`] when its machines want it, and
//! [`News::Encoded`] arrives like any news. Jobs are done in the order in which they come, by as
//! many threads as workers, on all cores that the process may use: which worker has many of them is
//! chance. The threads yield to workers, and a thread exists only when it has been needed. Bounds:
//! each worker has [`JOBS_MAX`] open, and the machines bound their contents. A job that is not
//! accepted is done by its worker itself.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use rustix::thread::CpuSet;
use weir_proxy::engine::Job;
use weir_proxy::forward::lookup::News;

use crate::start::Handle;

/// Jobs that one worker may have open: a second of one thread's work, by default and with text.
pub(crate) const JOBS_MAX: usize = 256;
/// How much the threads yield: they get a quarter of a core that a worker wants all of. Less would
/// stop downloads while workers are busy. Time that nice programs use counts as idle
/// (`scheduling.rs`), so it does not change how workers are woken.
const NICE: i32 = 5;

/// The threads. They end when it is dropped, and jobs not yet begun are forgotten.
#[derive(Debug)]
pub(crate) struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Signals a job, or the end.
    wanted: Condvar,
    /// The workers that get the results; no job is taken before it is set.
    handle: OnceLock<Handle>,
    threads_max: usize,
    /// The cores of the process: the thread that starts one may be bound to one core.
    cores: Option<CpuSet>,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<(u16, Box<Job>)>,
    threads: Vec<JoinHandle<()>>,
    /// Threads that wait for a job.
    idle: usize,
    is_over: bool,
}

impl Pool {
    /// A pool of at most this number of threads. Call it on a thread that may use all cores.
    pub(crate) fn new(threads_max: usize) -> Pool {
        let cores = rustix::thread::sched_getaffinity(None).ok();
        let (state, wanted, handle) = Default::default();
        Pool(Arc::new(Shared { state, wanted, handle, threads_max, cores }))
    }

    /// Where workers hand over jobs.
    pub(crate) fn encoders(&self) -> Encoders {
        Encoders(Arc::clone(&self.0))
    }

    /// The workers run: they can now get the results of their jobs.
    pub(crate) fn set_handle(&self, handle: Handle) {
        // Only the first one counts.
        let _ = self.0.handle.set(handle);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let State { threads, jobs, .. } = self.0.end();
        drop(jobs);
        for thread in threads {
            // A panic of the thread would already be on standard error.
            let _ = thread.join();
        }
    }
}

/// Where workers hand over jobs.
#[derive(Debug)]
pub(crate) struct Encoders(Arc<Shared>);

impl Encoders {
    /// Takes a job of a worker without waiting. Exactly one [`News::Encoded`] follows, by
    /// [`Handle::tell`].
    ///
    /// # Errors
    /// The job, when no thread accepts it; nothing follows then.
    pub(crate) fn run(&self, worker: u16, job: Box<Job>) -> Result<(), Box<Job>> {
        let mut state = self.0.lock();
        if state.is_over || self.0.handle.get().is_none() {
            return Err(job);
        }
        // Each idle thread takes one of the waiting jobs.
        if state.idle <= state.jobs.len() && state.threads.len() < self.0.threads_max {
            let thread = start(&self.0, state.threads.len());
            state.threads.extend(thread);
        }
        if state.threads.is_empty() {
            return Err(job);
        }
        state.jobs.push_back((worker, job));
        drop(state);
        self.0.wanted.notify_one();
        Ok(())
    }
}

/// A thread that works until the end; None: the operating system can't create one.
fn start(shared: &Arc<Shared>, number: usize) -> Option<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(format!("weir-encode-{number}"));
    thread.spawn(move || shared.work()).ok()
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of one thread.
    fn work(&self) {
        // It reads untrusted data.
        let _ = weir_io::forgo_network();
        // Rejected only where threads have no cores or priorities: then they have those of the
        // thread that started them.
        if let Some(cores) = &self.cores {
            let _ = rustix::thread::sched_setaffinity(None, cores);
        }
        let _ = rustix::process::nice(NICE);
        while let (Some((worker, job)), Some(handle)) = (self.next(), self.handle.get()) {
            handle.tell(worker, News::Encoded(job.run()));
        }
    }

    /// Ends the pool: no thread begins another job. Returns the previous state.
    fn end(&self) -> State {
        let state =
            std::mem::replace(&mut *self.lock(), State { is_over: true, ..State::default() });
        self.wanted.notify_all();
        state
    }

    /// The next job, as soon as one arrives; None: the pool has ended.
    fn next(&self) -> Option<(u16, Box<Job>)> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(next) = state.jobs.pop_front() {
                return Some(next);
            }
            state.idle += 1;
            state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle = state.idle.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: no job is taken before its results can be delivered, or after the end, and the end
    //! waits for the threads. How: without workers, because only machines can make jobs;
    //! `crates/weir/tests/e2e/compress.rs` has both.

    use super::*;

    #[test]
    fn threads_end_with_their_owner() {
        let pool = Pool::new(2);
        pool.set_handle(Handle::default());
        let shared = Arc::clone(&pool.0);
        let threads: Vec<_> =
            (0..2).map(|number| start(&pool.0, number).expect("a thread")).collect();
        shared.lock().threads.extend(threads);
        weir_check::waiting::eventually("the threads wait for jobs", || shared.lock().idle == 2);
        drop(pool);
        let state = shared.lock();
        assert!(state.is_over && state.threads.is_empty());
        assert_eq!(Arc::strong_count(&shared), 1, "a thread is left");
    }
}
