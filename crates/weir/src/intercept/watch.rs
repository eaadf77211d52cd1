//! What `weir status` shows of an interception, as of the keeper's last check, and the keeper's
//! view of the workers.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weir_bpf::Taken;
use weir_io::Board;

use crate::admin::document::Interception;

/// Shared by all clones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    shown: Mutex<Interception>,
    /// The state of the workers, once they exist.
    workers: OnceLock<Arc<Board>>,
}

impl Watch {
    /// Sets the present counts, and why new connections pass by.
    pub(super) fn set(&self, taken: Taken, passing: Option<&str>) {
        let Taken { taken, passed_by, with_options, changed, unserved } = taken;
        let passing = passing.map(str::to_owned);
        *self.lock() =
            Interception { taken, passed_by, with_options, translated: changed, unserved, passing };
    }

    /// Sets the workers that accept connections.
    pub(crate) fn set_workers(&self, board: &Arc<Board>) {
        // It is set only once: the process has one proxy.
        let _ = self.0.workers.set(Arc::clone(board));
    }

    /// Returns the longest present turn of a worker, microseconds; 0: all wait, or there are none
    /// yet.
    pub(super) fn longest_turn_us(&self) -> u64 {
        let now_us = weir_io::clock_us();
        let lines = self.0.workers.get().into_iter().flat_map(|board| board.lines());
        lines.filter(|line| line.accepts()).map(|line| line.turn_us(now_us)).max().unwrap_or(0)
    }

    /// Returns the last counts.
    pub(crate) fn shown(&self) -> Interception {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Interception> {
        self.0.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
