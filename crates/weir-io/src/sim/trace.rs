//! The events of a simulation, as one number to compare runs by, and the last of them as lines for
//! people.

use std::collections::VecDeque;

/// Lines kept when lines are kept at all.
const LINES_MAX: usize = 100_000;

/// A running hash of all events, and optionally the last of them in words. The hash is FNV-1a over
/// words of 64 bits instead of bytes, because otherwise most of a run would be hashing.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    lines: Option<VecDeque<String>>,
}

impl Trace {
    pub(super) fn new() -> Trace {
        Trace { hash: 0xcbf2_9ce4_8422_2325, lines: None }
    }

    pub(super) fn keep_lines(&mut self) {
        self.lines = Some(VecDeque::new());
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn number(&mut self, value: u64) {
        // The turn brings the upper bits, which multiplication only moves up, down to the next
        // words.
        self.hash = (self.hash ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.number(word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        }
        let rest = words.remainder();
        self.number(rest.iter().fold(rest.len() as u64, |sum, byte| sum << 8 | u64::from(*byte)));
    }

    /// Adds a line, if lines are kept. `line` is only called then.
    pub(super) fn line(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(line());
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.iter().flatten().cloned().collect()
    }
}

/// The beginning of bytes, printable.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    const SHOWN: usize = 600;
    let shown = &bytes[..bytes.len().min(SHOWN)];
    let dots = if bytes.len() > SHOWN { ".." } else { "" };
    format!("{} B \"{}{dots}\"", bytes.len(), shown.escape_ascii())
}
