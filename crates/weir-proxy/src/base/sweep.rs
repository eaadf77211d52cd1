//! Scans all slots of a table, one slice a turn, so that no turn pays for all of them.

use std::ops::Range;

/// Slots scanned in a turn.
const SLICE: usize = 1024;

/// The progress of a scan.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    at: usize,
    left: usize,
    /// Scans all slots once more, for another reason than that of the current scan.
    again: bool,
}

impl Sweep {
    /// Begins a scan of a table with this number of slots.
    pub(crate) fn begin(&mut self, slots: usize) {
        if self.left > 0 {
            self.again = true;
        } else {
            self.left = slots;
        }
    }

    /// Whether slots remain to be scanned.
    pub(crate) fn is_due(&self) -> bool {
        self.left > 0
    }

    /// The slots of this turn, in a table with this number of slots.
    pub(crate) fn slice(&mut self, slots: usize) -> impl Iterator<Item = u32> + use<> {
        let count = self.left.min(SLICE).min(slots);
        let range: Range<usize> = self.at..self.at + count;
        self.at = range.end.checked_rem(slots).unwrap_or(0);
        self.left = if count == 0 { 0 } else { self.left - count };
        if self.left == 0 && std::mem::take(&mut self.again) {
            self.left = slots;
        }
        range.map(move |slot| (slot % slots) as u32)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each slot is scanned after the last beginning, in slices, and then the scan ends.
    //! How: tables of several sizes.

    use super::*;

    fn seen(sweep: &mut Sweep, slots: usize) -> Vec<u32> {
        let mut seen: Vec<u32> = Vec::new();
        while sweep.is_due() {
            let slice: Vec<u32> = sweep.slice(slots).collect();
            assert!(slice.len() <= SLICE);
            seen.extend(slice);
        }
        seen.sort_unstable();
        seen
    }

    #[test]
    fn each_slot_once_for_each_reason() {
        for slots in [0, 1, SLICE, SLICE + 1, 3 * SLICE + 7] {
            let mut sweep = Sweep::default();
            sweep.begin(slots);
            assert_eq!(seen(&mut sweep, slots), (0..slots as u32).collect::<Vec<_>>());
            sweep.begin(slots);
            let first: Vec<u32> = sweep.slice(slots).collect();
            sweep.begin(slots);
            let both = first.len() + seen(&mut sweep, slots).len();
            // A reason that comes when no slot is left begins a new scan.
            assert!(both >= slots && both <= 2 * slots, "{slots}: {both}");
        }
    }
}
