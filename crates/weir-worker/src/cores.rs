//! The cores of the workers: how much of them they get, and how the kernel schedules them there. Called by the main thread some times a
//! second.

use std::sync::Arc;

use weir_io::Board;

use crate::scheduling::Scheduling;
use crate::starvation::Starvation;

/// See the module.
#[derive(Debug)]
pub struct Cores {
    board: Arc<Board>,
    starvation: Starvation,
    scheduling: Scheduling,
}

impl Cores {
    /// For workers whose threads have these numbers (gettid), and who write this board.
    pub fn new(numbers: &[i32], board: Arc<Board>) -> Cores {
        Cores { board, starvation: Starvation::new(numbers), scheduling: Scheduling::new(numbers) }
    }

    /// Looks at them all: writes on the board how much they are starved, and adapts how they are scheduled.
    pub fn look(&mut self) {
        self.starvation.look(&self.board);
        self.scheduling.look();
    }
}
