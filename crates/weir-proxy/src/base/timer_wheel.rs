//! Timers: a hierarchical wheel for deadlines that are checked lazily.
//!
//! The worker inserts a key when it sets a deadline for something without one in the wheel. On
//! expiry it checks whether the deadline is still current; if the deadline has moved, it inserts
//! the key again. So a deadline that moves with every request costs nothing, and nothing is ever
//! cancelled. Bounds: 16 bytes an entry; insertion and expiry take constant time (an entry moves at
//! most once a level).
//!
//! ```text
//! level 0   64 slots of one tick (8.2 ms)
//! level 1   64 slots of 64 ticks (0.5 s)      entries move one level down when their slot begins
//! level 2   64 slots of 4096 ticks (34 s)
//! ...       9 levels: as far as 64 bits of microseconds reach
//! ```

/// Length of a tick, as a power of two of microseconds: 8,192 µs.
const TICK_BITS: u32 = 13;
/// Length of a tick in microseconds.
pub(crate) const TICK_US: u64 = 1 << TICK_BITS;
/// Slots of a level, as a power of two.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 9;
/// The last tick of the clock.
const TICK_MAX: u64 = u64::MAX >> TICK_BITS;
const _: () = assert!(TICK_MAX < 1 << (SLOT_BITS * LEVELS as u32), "every tick has a place");
/// An emptied slot keeps its memory up to this many entries.
const KEPT_ENTRIES_MAX: usize = 64;

/// Keys with the time at which each is due.
///
/// Invariants: a level's occupied slots come after its current slot (those of the ticks before are
/// empty); an entry of level n agrees with the current tick in all digits (of 6 bits) above n.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// Everything due at or before this tick has been handed out.
    now_tick: u64,
    /// `LEVELS` times `SLOTS`.
    slots: Vec<Vec<Entry>>,
    /// One bit for each slot that is not empty.
    occupied: [u64; LEVELS],
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: u64,
    due_tick: u64,
}

impl Wheel {
    /// An empty wheel at this time.
    pub(crate) fn new(now_us: u64) -> Wheel {
        let slots = std::iter::repeat_with(Vec::new).take(LEVELS * SLOTS).collect();
        Wheel { now_tick: now_us >> TICK_BITS, slots, occupied: [0; LEVELS], len: 0 }
    }

    /// Entries held.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether no entry is held.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a key. The first [`Wheel::advance`] in the tick that begins at or next after `due_us`
    /// hands it out: never early, and late by less than a tick. A key that is already due comes
    /// with the next tick. The same key may be inserted several times and comes out as often.
    #[inline]
    pub(crate) fn insert(&mut self, key: u64, due_us: u64) {
        let due_tick = due_us.div_ceil(TICK_US).min(TICK_MAX).max(self.now_tick + 1);
        self.len += 1;
        self.place(Entry { key, due_tick });
    }

    /// Appends the keys that are due. A time before the last one counts as the last one.
    pub(crate) fn advance(&mut self, now_us: u64, into: &mut Vec<u64>) {
        let target = now_us >> TICK_BITS;
        while let Some((tick, level)) = self.next_slot()
            && tick <= target
        {
            self.now_tick = tick;
            self.empty_slot(level, into);
        }
        self.now_tick = self.now_tick.max(target);
    }

    /// When [`Wheel::advance`] should be called next: no later than the first entry is due. It may
    /// be earlier, when entries only move a level down then (once a level for each).
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.next_slot().map(|(tick, _)| tick << TICK_BITS)
    }

    /// The first tick at which something happens, and on which level.
    #[inline]
    fn next_slot(&self) -> Option<(u64, usize)> {
        // An entry of a lower level agrees with the current tick in more digits, so it comes first.
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        let slot = u64::from(self.occupied[level].trailing_zeros());
        let shift = SLOT_BITS * level as u32;
        let above = self.now_tick >> (shift + SLOT_BITS) << SLOT_BITS;
        Some(((above | slot) << shift, level))
    }

    /// Hands out or moves the entries of the current slot of a level.
    fn empty_slot(&mut self, level: usize, into: &mut Vec<u64>) {
        let slot = digit(self.now_tick, level);
        self.occupied[level] &= !(1 << slot);
        let mut entries = std::mem::take(&mut self.slots[level * SLOTS + slot]);
        for entry in entries.drain(..) {
            if entry.due_tick <= self.now_tick {
                self.len -= 1;
                into.push(entry.key);
            } else {
                self.place(entry);
            }
        }
        if entries.capacity() <= KEPT_ENTRIES_MAX {
            self.slots[level * SLOTS + slot] = entries;
        }
    }

    /// Puts an entry into its slot as seen from the current tick, which is earlier.
    fn place(&mut self, entry: Entry) {
        debug_assert!(entry.due_tick > self.now_tick);
        let differing = (entry.due_tick ^ self.now_tick) | 1;
        let level = (differing.ilog2() / SLOT_BITS) as usize;
        let slot = digit(entry.due_tick, level);
        self.occupied[level] |= 1 << slot;
        self.slots[level * SLOTS + slot].push(entry);
    }
}

/// The slot of a tick in a level.
fn digit(tick: u64, level: usize) -> usize {
    (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    //! Proves: nothing is lost, early, or late by a tick or more, and the announced next time is
    //! never too late. How: examples at the edges of levels, and a property against a plain list.

    use proptest::prelude::*;

    use super::*;

    fn advance(wheel: &mut Wheel, now_us: u64) -> Vec<u64> {
        let mut keys = Vec::new();
        wheel.advance(now_us, &mut keys);
        keys
    }

    #[test]
    fn an_entry_is_16_bytes() {
        assert_eq!(size_of::<Entry>(), 16);
    }

    #[test]
    fn never_early_and_at_most_a_tick_late() {
        for start_us in [0, 1, 123_456_789, u64::from(u32::MAX) * 1000] {
            for delay_us in
                [0, 1, TICK_US, 64 * TICK_US, 4096 * TICK_US - 1, 75_000_000, 3_600_000_000]
            {
                let due_us = start_us + delay_us;
                let mut wheel = Wheel::new(start_us);
                wheel.insert(7, due_us);
                if delay_us > 0 {
                    assert!(advance(&mut wheel, due_us - 1).is_empty(), "{start_us} {delay_us}");
                }
                assert_eq!(advance(&mut wheel, due_us + TICK_US), [7], "{start_us} {delay_us}");
                assert!(wheel.is_empty() && wheel.next_due().is_none());
            }
        }
    }

    #[test]
    fn sleeping_until_the_next_time_takes_few_turns() {
        let mut wheel = Wheel::new(987_654_321);
        let due_us = 987_654_321 + 75_000_000;
        wheel.insert(1, due_us);
        let mut turns = 0;
        let mut keys = Vec::new();
        while let Some(next_us) = wheel.next_due() {
            assert!(next_us < due_us + TICK_US);
            wheel.advance(next_us, &mut keys);
            turns += 1;
        }
        assert!(keys == [1] && turns <= LEVELS, "{turns}");
    }

    #[test]
    fn far_away_is_not_lost() {
        let mut wheel = Wheel::new(0);
        wheel.insert(1, u64::MAX);
        wheel.insert(2, u64::MAX / 2);
        assert!(advance(&mut wheel, u64::MAX / 4).is_empty());
        assert_eq!(wheel.len(), 2);
        assert_eq!(advance(&mut wheel, u64::MAX / 2 + TICK_US), [2]);
        assert_eq!(advance(&mut wheel, u64::MAX), [1]);
    }

    #[test]
    fn time_that_goes_backwards_changes_nothing() {
        let mut wheel = Wheel::new(10 * TICK_US);
        wheel.insert(1, 20 * TICK_US);
        assert!(advance(&mut wheel, 0).is_empty());
        assert_eq!(advance(&mut wheel, 20 * TICK_US), [1]);
    }

    #[test]
    fn memory_of_a_crowd_is_given_back() {
        let mut wheel = Wheel::new(0);
        (0..100_000).for_each(|key| wheel.insert(key, 1_000_000));
        assert_eq!(advance(&mut wheel, 2_000_000).len(), 100_000);
        let kept: usize = wheel.slots.iter().map(Vec::capacity).sum();
        assert!(kept <= KEPT_ENTRIES_MAX * 3, "{kept}");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64),
        Advance(u64),
        Sleep,
    }

    fn step() -> impl Strategy<Value = Step> {
        // Delays of all magnitudes.
        let delay = (any::<u64>(), 20..64u32).prop_map(|(bits, shift)| bits >> shift);
        prop_oneof![
            delay.clone().prop_map(Step::Insert),
            delay.prop_map(Step::Advance),
            (0..5 * TICK_US).prop_map(Step::Advance),
            Just(Step::Sleep),
        ]
    }

    proptest! {
        #[test]
        fn equals_a_plain_list(
            start_us in 0..1u64 << 50,
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut wheel = Wheel::new(start_us);
            let mut now_us = start_us;
            let mut list: Vec<(u64, u64)> = Vec::new();
            for (key, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(delay_us) => {
                        wheel.insert(key as u64, now_us + delay_us);
                        list.push((key as u64, now_us + delay_us));
                        prop_assert!(
                            wheel.next_due().unwrap() < now_us + delay_us.max(1) + TICK_US
                        );
                        continue;
                    }
                    Step::Advance(us) => now_us += us,
                    Step::Sleep => now_us = wheel.next_due().unwrap_or(now_us),
                }
                for key in advance(&mut wheel, now_us) {
                    let at = list.iter().position(|one| one.0 == key);
                    prop_assert!(at.is_some(), "handed out twice");
                    let (_, due_us) = list.swap_remove(at.unwrap());
                    prop_assert!(due_us <= now_us, "early");
                }
                prop_assert_eq!(wheel.len(), list.len());
                prop_assert!(list.iter().all(|one| one.1 + 2 * TICK_US > now_us), "late");
                let first_us = list.iter().map(|one| one.1).min();
                prop_assert!(
                    first_us
                        .is_none_or(|us| wheel.next_due().unwrap() < us.max(now_us) + 2 * TICK_US)
                );
            }
        }
    }
}
