//! What happened in a simulation, as one number to compare runs by, and the last lines of it for people.

use std::collections::VecDeque;

/// Lines kept when lines are kept at all.
const LINES_MAX: usize = 100_000;

/// A running hash (FNV-1a, 64 bits) of everything that happened, and optionally the last of it in words.
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
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
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
