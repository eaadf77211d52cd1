//! A table of slots with generations, so that a late name never hits a new occupant.
//!
//! Grows by chunks that never move: growth copies nothing and leaves no hole of freed memory
//! behind.

use super::keys::Key;
use super::token::ShortGeneration;

/// Slots in a chunk.
const CHUNK: usize = 128;

/// Occupants of type `T`, named by key and generation.
#[derive(Debug)]
pub(crate) struct Slab<K, T> {
    /// Each has a fixed length, so that indexing into one needs no bounds check.
    chunks: Vec<Box<[Slot<T>; CHUNK]>>,
    free: Vec<K>,
    count: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    occupant: Option<T>,
}

impl<K, T> Default for Slab<K, T> {
    fn default() -> Slab<K, T> {
        Slab { chunks: Vec::new(), free: Vec::new(), count: 0 }
    }
}

impl<K: Key, T> Slab<K, T> {
    /// Occupied slots.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Puts a value into a free slot and returns its key and generation.
    pub(crate) fn insert(&mut self, value: T) -> (K, u32) {
        let key = match self.free.pop() {
            Some(key) => key,
            None => self.grow(),
        };
        let slot = self.slot_mut(key);
        slot.occupant = Some(value);
        let generation = slot.generation;
        self.count += 1;
        (key, generation)
    }

    fn grow(&mut self) -> K {
        let first = (self.chunks.len() * CHUNK) as u32;
        let slots: Box<[Slot<T>]> =
            (0..CHUNK).map(|_| Slot { generation: 0, occupant: None }).collect();
        self.chunks.extend(slots.try_into());
        self.free.extend((first + 1..first + CHUNK as u32).rev().map(K::new));
        K::new(first)
    }

    fn slot(&self, key: K) -> &Slot<T> {
        &self.chunks[key.index() / CHUNK][key.index() % CHUNK]
    }

    fn slot_mut(&mut self, key: K) -> &mut Slot<T> {
        &mut self.chunks[key.index() / CHUNK][key.index() % CHUNK]
    }

    /// The generation of a slot that was used at least once.
    pub(crate) fn generation(&self, key: K) -> u32 {
        self.slot(key).generation
    }

    /// The number of slots, free or not.
    pub(crate) fn slots(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// Whether the slot is occupied.
    pub(crate) fn is_occupied(&self, key: K) -> bool {
        self.slot(key).occupant.is_some()
    }

    /// Makes names of the occupant stale although the occupant remains.
    pub(crate) fn renew(&mut self, key: K) {
        let slot = self.slot_mut(key);
        slot.generation = slot.generation.wrapping_add(1);
    }

    /// Whether this very occupant is still there.
    pub(crate) fn holds(&self, key: K, generation: u32) -> bool {
        key.index() < self.slots() && {
            let slot = self.slot(key);
            slot.generation == generation && slot.occupant.is_some()
        }
    }

    /// The same, as far as a token can tell.
    pub(crate) fn holds_short(&self, key: K, generation: ShortGeneration) -> bool {
        key.index() < self.slots() && {
            let slot = self.slot(key);
            ShortGeneration::of(slot.generation) == generation && slot.occupant.is_some()
        }
    }

    /// The occupant.
    ///
    /// # Panics
    /// When the slot is free: the caller holds a name that it gave back.
    pub(crate) fn at(&self, key: K) -> &T {
        self.slot(key).occupant.as_ref().expect("occupied slot")
    }

    /// The occupant, mutable.
    ///
    /// # Panics
    /// As [`Slab::at`].
    pub(crate) fn at_mut(&mut self, key: K) -> &mut T {
        self.slot_mut(key).occupant.as_mut().expect("occupied slot")
    }

    /// The occupant, mutable; None: the slot is free.
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        self.slot_mut(key).occupant.as_mut()
    }

    /// Frees a slot; names of its occupant are stale from now on.
    ///
    /// # Panics
    /// When the slot is free.
    pub(crate) fn remove(&mut self, key: K) -> T {
        let slot = self.slot_mut(key);
        slot.generation = slot.generation.wrapping_add(1);
        let value = slot.occupant.take().expect("occupied slot");
        self.free.push(key);
        self.count -= 1;
        value
    }

    /// Keys of all occupied slots, ascending.
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.chunks.iter().enumerate().flat_map(|(chunk, slots)| {
            slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| slot.occupant.is_some())
                .map(move |(at, _)| K::new((chunk * CHUNK + at) as u32))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::ConnKey;
    use super::*;

    #[test]
    fn a_stale_name_misses_the_next_occupant() {
        let mut slab = Slab::<ConnKey, _>::default();
        let (key, generation) = slab.insert('a');
        assert_eq!(slab.remove(key), 'a');
        let (again, next) = slab.insert('b');
        assert_eq!(again, key);
        assert!(!slab.holds(key, generation));
        assert!(slab.holds(again, next));
        assert!(!slab.holds(ConnKey::new(1_000_000), 0));
    }

    #[test]
    fn grows_past_a_chunk_and_lists_what_is_there() {
        let mut slab = Slab::<ConnKey, _>::default();
        let names: Vec<_> = (0..300).map(|n| slab.insert(n).0).collect();
        for key in names.iter().step_by(2) {
            slab.remove(*key);
        }
        assert_eq!(slab.len(), 150);
        assert_eq!(slab.keys().count(), 150);
        assert!(slab.keys().all(|key| *slab.at(key) % 2 == 1));
    }
}
