//! Chooses the workers that get new connections for a while, where the kernel only knows which to
//! leave out. Pure.

use std::sync::atomic::Ordering::Relaxed;

use weir_io::Board;
use weir_io::board::{Line, STARVED_PERMILLE};

/// Further connections over an eighth above the mean that a worker may have.
const SURPLUS: u64 = 8;

/// Returns the workers that should get new connections, by number: those that are not late, have
/// their cores, and hold no more clients than others. If none qualifies, those that are not late;
/// else all that accept clients; else all.
pub(super) fn chosen(board: &Board, now_us: u64) -> Vec<u32> {
    let lines = board.lines();
    let accepting: Vec<&Line> = lines.iter().filter(|line| line.accepts()).collect();
    let held = |line: &Line| u64::from(line.sessions.load(Relaxed));
    let mean =
        accepting.iter().map(|line| held(line)).sum::<u64>() / (accepting.len() as u64).max(1);
    let in_time = |line: &Line| line.accepts() && !line.is_late(now_us);
    let has_room = |line: &Line| {
        let starved = line.starved_permille.load(Relaxed);
        in_time(line) && starved <= STARVED_PERMILLE && held(line) <= mean + mean / 8 + SURPLUS
    };
    let are = |which: &dyn Fn(&Line) -> bool| -> Vec<u32> {
        lines.iter().zip(0..).filter(|(line, _)| which(line)).map(|(_, worker)| worker).collect()
    };
    let wishes: [&dyn Fn(&Line) -> bool; 4] = [&has_room, &in_time, &Line::accepts, &|_| true];
    wishes.into_iter().map(are).find(|workers| !workers.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use weir_io::board::{ACCEPTS, DRAINS};

    use super::*;

    /// Makes a board of sessions, the start of the turn (0: it waits), and the starved share; all
    /// of them accept.
    fn board(of: &[(u32, u64, u32)]) -> Board {
        let board = Board::new(of.len());
        for (line, (sessions, began_us, starved)) in board.lines().iter().zip(of) {
            line.sessions.store(*sessions, Relaxed);
            line.turn_began_us.store(*began_us, Relaxed);
            line.starved_permille.store(*starved, Relaxed);
            line.flags.store(ACCEPTS, Relaxed);
        }
        board
    }

    #[test]
    fn whoever_is_late_starved_or_full_is_left_out() {
        let now_us = 1_000_000;
        for (of, wanted) in [
            (&[(0, 0, 0), (0, 0, 0), (0, 0, 0)][..], &[0, 1, 2][..]),
            (&[(0, 0, 0), (0, now_us - 6_000, 0), (0, now_us - 4_000, 0)], &[0, 2]),
            (&[(0, 0, 201), (0, 0, 200)], &[1]),
            // The mean is 60.
            (&[(75, 0, 0), (45, 0, 0)], &[0, 1]),
            (&[(76, 0, 0), (44, 0, 0)], &[1]),
            // A full worker is better than a late one, and a late one is better than none.
            (&[(100, 0, 0), (0, now_us - 6_000, 0)], &[0]),
            (&[(0, now_us - 6_000, 0), (0, now_us - 7_000, 0)], &[0, 1]),
        ] {
            assert_eq!(chosen(&board(of), now_us), wanted, "{of:?}");
        }
    }

    #[test]
    fn whoever_takes_nobody_is_left_out_and_nobody_is_not_an_answer() {
        let board = board(&[(0, 0, 0), (0, 0, 0), (0, 0, 0)]);
        board.line(1).flags.store(ACCEPTS | DRAINS, Relaxed);
        assert_eq!(chosen(&board, 1), [0, 2]);
        board.lines().iter().for_each(|line| line.flags.store(0, Relaxed));
        assert_eq!(chosen(&board, 1), [0, 1, 2]);
    }
}
