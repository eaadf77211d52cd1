//! Messages about bans: lines wait while the list is locked, so that no thread waits for the reader
//! of standard error. Bound: [`LINES_MAX`] lines of changes in a second; further ones are counted.

use crate::terminal::{tell, warn};

/// Lines in one second.
const LINES_MAX: u32 = 10;

/// The waiting lines.
#[derive(Debug, Default)]
pub(super) struct Voice {
    /// Of the present second.
    second: u64,
    told: u32,
    dropped: u64,
    said: Vec<Said>,
}

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Told(String),
    Warned(String),
}

impl Said {
    /// Prints it to standard error.
    pub(super) fn print(self) {
        match self {
            Said::Told(line) => tell(line),
            Said::Warned(line) => warn(line),
        }
    }
}

impl Voice {
    /// Takes the lines to print.
    pub(super) fn take_said(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.said)
    }

    /// Adds a warning.
    pub(super) fn warn(&mut self, line: String) {
        self.said.push(Said::Warned(line));
    }

    /// Adds a line about a change, if this second has room for it.
    pub(super) fn tell(&mut self, now_s: u64, line: String) {
        self.look(now_s);
        if self.told < LINES_MAX {
            self.told += 1;
            self.said.push(Said::Told(line));
        } else {
            self.dropped += 1;
        }
    }

    /// Reports dropped lines, when their second is over.
    pub(super) fn look(&mut self, now_s: u64) {
        if self.second == now_s {
            return;
        }
        let dropped = std::mem::take(&mut self.dropped);
        (self.second, self.told) = (now_s, 0);
        if dropped > 0 {
            self.said.push(Said::Told(format!("{dropped} more changes of bans are not shown")));
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a flood of lines is cut, and the number of dropped lines is reported. How: by hand.

    use super::*;

    #[test]
    fn a_flood_of_lines_is_cut() {
        let mut voice = Voice::default();
        (0..25).for_each(|_| voice.tell(7, String::new()));
        voice.warn("odd".to_owned());
        assert_eq!(voice.take_said().len(), 11, "warnings are not cut");
        voice.tell(8, "next".to_owned());
        let told = |text: &str| Said::Told(text.to_owned());
        assert_eq!(
            voice.take_said(),
            [told("15 more changes of bans are not shown"), told("next")]
        );
        voice.look(9);
        assert_eq!(voice.take_said(), []);
    }
}
