//! Messages about bans: lines wait while the list is locked, so that no thread waits for the reader
//! of standard error. Bound: [`LINES_MAX`] lines of changes in a second; further ones are counted.

use crate::log::{Event, Line};

/// Lines in one second.
const LINES_MAX: u32 = 10;

/// The waiting lines.
#[derive(Debug, Default)]
pub(super) struct Voice {
    /// Of the present second.
    second: u64,
    told: u32,
    dropped: u64,
    said: Vec<Line>,
}

impl Voice {
    /// Takes the lines to print.
    pub(super) fn take_said(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.said)
    }

    /// Adds a line about the file of bans.
    pub(super) fn warn(&mut self, sentence: String) {
        self.said.push(Event::BansFile.says(sentence));
    }

    /// Adds a line about a change, if this second has room for it.
    pub(super) fn tell(&mut self, now_s: u64, line: Line) {
        self.look(now_s);
        if self.told < LINES_MAX {
            self.told += 1;
            self.said.push(line);
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
            let sentence = "more changes of bans in one second are not shown";
            self.said.push(Event::BansHidden.says(sentence).with("count", dropped));
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
        (0..25).for_each(|_| voice.tell(7, Event::BanAdded.says("")));
        voice.warn("odd".to_owned());
        assert_eq!(voice.take_said().len(), 11, "warnings are not cut");
        let next = Event::BanAdded.says("next");
        voice.tell(8, next.clone());
        let hidden = Event::BansHidden.says("more changes of bans in one second are not shown");
        assert_eq!(voice.take_said(), [hidden.with("count", 15), next]);
        voice.look(9);
        assert_eq!(voice.take_said(), []);
    }
}
