//! A table of slots with generations, so that a late name never hits a new occupant.
//!
//! Grows by chunks that never move: growth copies nothing and leaves no hole of freed memory behind.

/// Slots in a chunk.
const CHUNK: usize = 128;
/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// Occupants of type `T`, named by index and generation.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Box<[Slot<T>]>>,
    free: Vec<u32>,
    count: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    occupant: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { chunks: Vec::new(), free: Vec::new(), count: 0 }
    }
}

impl<T> Slab<T> {
    /// Occupied slots.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Puts a value into a free slot and returns its index and generation.
    pub(crate) fn insert(&mut self, value: T) -> (u32, u32) {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        let slot = self.slot_mut(index);
        slot.occupant = Some(value);
        let generation = slot.generation;
        self.count += 1;
        (index, generation)
    }

    fn grow(&mut self) -> u32 {
        let first = (self.chunks.len() * CHUNK) as u32;
        self.chunks.push((0..CHUNK).map(|_| Slot { generation: 0, occupant: None }).collect());
        self.free.extend((first + 1..first + CHUNK as u32).rev());
        first
    }

    fn slot(&self, index: u32) -> &Slot<T> {
        &self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    fn slot_mut(&mut self, index: u32) -> &mut Slot<T> {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    /// The generation of a slot that was used at least once.
    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.slot(index).generation
    }

    /// Slots there are, free or not.
    pub(crate) fn slots(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// Whether anybody is in the slot.
    pub(crate) fn is_occupied(&self, index: u32) -> bool {
        self.slot(index).occupant.is_some()
    }

    /// Makes names of the occupant stale although it stays.
    pub(crate) fn renew(&mut self, index: u32) {
        let slot = self.slot_mut(index);
        slot.generation = slot.generation.wrapping_add(1);
    }

    /// Whether this very occupant is still there.
    pub(crate) fn holds(&self, index: u32, generation: u32) -> bool {
        (index as usize) < self.slots() && {
            let slot = self.slot(index);
            slot.generation == generation && slot.occupant.is_some()
        }
    }

    /// The occupant.
    ///
    /// # Panics
    /// When the slot is free: the caller holds a name that it gave back.
    pub(crate) fn at(&self, index: u32) -> &T {
        self.slot(index).occupant.as_ref().expect("occupied slot")
    }

    /// The occupant, to change.
    ///
    /// # Panics
    /// As [`Slab::at`].
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut T {
        self.slot_mut(index).occupant.as_mut().expect("occupied slot")
    }

    /// Frees a slot; names of its occupant are stale from now on.
    ///
    /// # Panics
    /// When the slot is free.
    pub(crate) fn remove(&mut self, index: u32) -> T {
        let slot = self.slot_mut(index);
        slot.generation = slot.generation.wrapping_add(1);
        let value = slot.occupant.take().expect("occupied slot");
        self.free.push(index);
        self.count -= 1;
        value
    }

    /// All occupied indexes, ascending.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = u32> + '_ {
        self.chunks.iter().enumerate().flat_map(|(chunk, slots)| {
            slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| slot.occupant.is_some())
                .map(move |(at, _)| (chunk * CHUNK + at) as u32)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_name_misses_the_next_occupant() {
        let mut slab = Slab::default();
        let (index, generation) = slab.insert('a');
        assert_eq!(slab.remove(index), 'a');
        let (again, next) = slab.insert('b');
        assert_eq!(again, index);
        assert!(!slab.holds(index, generation));
        assert!(slab.holds(again, next));
        assert!(!slab.holds(1_000_000, 0));
    }

    #[test]
    fn grows_past_a_chunk_and_lists_what_is_there() {
        let mut slab = Slab::default();
        let names: Vec<_> = (0..300).map(|n| slab.insert(n).0).collect();
        for index in names.iter().step_by(2) {
            slab.remove(*index);
        }
        assert_eq!(slab.len(), 150);
        assert_eq!(slab.indexes().count(), 150);
        assert!(slab.indexes().all(|index| *slab.at(index) % 2 == 1));
    }
}
