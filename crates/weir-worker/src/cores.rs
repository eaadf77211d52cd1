//! The cores of the workers: how much of them they get, how they are bound to them, and how the
//! kernel schedules them there. Called by the main thread some times a second.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use weir_io::{Board, available_cores};

use crate::pinning::{Change, Pinning, Pins, Place};
use crate::scheduling::Scheduling;
use crate::start::Handle;
use crate::starvation::Starvation;

/// See the module.
#[derive(Debug)]
pub struct Cores {
    board: Arc<Board>,
    /// By worker.
    threads: Vec<i32>,
    begun: Instant,
    starvation: Starvation,
    pins: Pins,
    scheduling: Scheduling,
}

impl Cores {
    /// For running workers that are bound as [`crate::Setup`] said. Call it on a thread that may
    /// use all cores of this process.
    pub fn new(workers: &Handle, pinning: Pinning) -> Cores {
        let threads = workers.threads().to_vec();
        let places: Vec<Arc<Place>> =
            workers.views().iter().map(|view| Arc::clone(&view.place)).collect();
        Cores {
            board: Arc::clone(workers.board()),
            begun: Instant::now(),
            starvation: Starvation::new(&threads),
            pins: Pins::new(&threads, &places, pinning, available_cores()),
            scheduling: Scheduling::new(&threads),
            threads,
        }
    }

    /// Checks all of them: writes on the board how much they are starved, unpins those whose cores
    /// are taken, and adapts how they are scheduled. Returns the workers whose binding changed.
    pub fn look(&mut self) -> Vec<Change> {
        self.starvation.look(&self.board);
        let lines = self.board.lines();
        let starved = |worker: usize| lines[worker].starved_permille.load(Relaxed);
        let read = || std::fs::read_to_string("/proc/stat").ok();
        let changes = self.pins.look(self.begun.elapsed(), starved, read);
        for change in &changes {
            self.scheduling.set_core(
                self.threads[change.worker],
                Some(change.core).filter(|_| !change.is_free),
            );
        }
        self.scheduling.look();
        changes
    }
}
