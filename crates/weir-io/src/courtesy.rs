//! Leaves a new connection to another driver that accepts from the same socket and has less to do.
//!
//! All of them are woken when a client connects. A driver that is at work would mostly be the
//! first, because it is awake already, and the sleeping one comes too late. Bound: [`LEFT_US`] for
//! a connection, then the first driver to come accepts it.

use std::fmt;
use std::sync::Arc;

use crate::Board;

/// How long a connection is left to others, microseconds: longer than it takes to wake up.
pub(crate) const LEFT_US: u64 = 1_000;
/// A driver that would have a new connection wait for less than this accepts it: about as long as
/// another one takes to wake up, nanoseconds.
const SOON_NS: u64 = 50_000;

/// What one driver knows about the others.
#[derive(Default)]
pub struct Courtesy {
    /// None: it has no neighbors.
    others: Option<(Arc<Board>, usize)>,
    /// Listeners at which a client was left to others.
    left: Vec<u32>,
}

impl fmt::Debug for Courtesy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worker = self.others.as_ref().map(|(_, worker)| worker);
        f.debug_struct("Courtesy").field("worker", &worker).field("left", &self.left).finish()
    }
}

impl Courtesy {
    /// For this worker, for which the board must have a line.
    pub fn new(board: Arc<Board>, worker: usize) -> Courtesy {
        Courtesy { others: Some((board, worker)), left: Vec::new() }
    }

    /// Whether the clients that wait at this listener are to be left to others for [`LEFT_US`].
    pub(crate) fn leaves(
        &mut self,
        listener: u32,
        is_shared: impl FnOnce() -> bool,
        now_us: u64,
    ) -> bool {
        let leaves =
            self.others.as_ref().is_some_and(|(board, worker)| is_outdone(board, *worker, now_us));
        let leaves = leaves && is_shared();
        if leaves {
            self.left.push(listener);
        }
        leaves
    }

    /// Whether clients were left to others at this listener: those that are still there are
    /// accepted now.
    pub(crate) fn takes_up(&mut self, listener: u32) -> bool {
        let at = self.left.iter().position(|left| *left == listener);
        at.is_some_and(|at| self.left.swap_remove(at) == listener)
    }
}

/// Whether another worker that takes clients waits for events, and has less than half as much to
/// do.
fn is_outdone(board: &Board, worker: usize, now_us: u64) -> bool {
    let Some(own) = board.lines().get(worker) else { return false };
    let cost = own.cost(now_us);
    let waits = |other: usize| {
        let line = board.line(other);
        line.accepts() && line.turn_us(now_us) == 0 && line.cost(now_us) < cost / 2
    };
    cost >= SOON_NS && (0..board.lines().len()).any(|other| other != worker && waits(other))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::board::{ACCEPTS, DRAINS};

    /// Two workers that wait for events, the first with this number of requests of 10 us each.
    fn board(requests: u32) -> Arc<Board> {
        let board = Board::new(2);
        for line in board.lines() {
            line.flags.store(ACCEPTS, Relaxed);
            line.service_ns.store(10_000, Relaxed);
        }
        board.line(0).open_requests.store(requests, Relaxed);
        Arc::new(board)
    }

    #[test]
    fn somebody_is_left_to_who_has_less_to_do_and_taken_up_once() {
        let board = board(100);
        let mut courtesy = Courtesy::new(Arc::clone(&board), 0);
        assert!(!courtesy.takes_up(7) && courtesy.leaves(7, || true, 9));
        // Each listener separately.
        assert!(!courtesy.takes_up(8) && courtesy.takes_up(7) && !courtesy.takes_up(7));
        assert!(!courtesy.leaves(7, || false, 9), "it is not shared");
        assert!(!courtesy.takes_up(7));
        assert!(!Courtesy::new(board, 1).leaves(7, || true, 9));
        assert!(!Courtesy::default().leaves(7, || true, 9));
    }

    #[test]
    fn not_to_who_is_busy_or_takes_nobody_or_for_a_trifle() {
        let leaves = |change: &dyn Fn(&Board)| {
            let board = board(100);
            change(&board);
            Courtesy::new(board, 0).leaves(7, || true, 1_000_000)
        };
        assert!(leaves(&|_| {}));
        assert!(!leaves(&|board| board.line(0).open_requests.store(4, Relaxed)));
        assert!(!leaves(&|board| board.line(1).open_requests.store(50, Relaxed)));
        assert!(leaves(&|board| board.line(1).open_requests.store(49, Relaxed)));
        assert!(!leaves(&|board| board.line(1).turn_began_us.store(999_900, Relaxed)));
        assert!(!leaves(&|board| board.line(1).flags.store(ACCEPTS | DRAINS, Relaxed)));
        assert!(!leaves(&|board| board.line(1).starved_permille.store(500, Relaxed)));
    }
}
