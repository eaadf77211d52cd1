//! The dynamic table of a decoder (RFC 7541 §2.3.2, §4): the newest fields, as far as 4,096 bytes
//! go.
//!
//! Text of all entries in one buffer, oldest first, each name followed by its value; entries never
//! wrap around, so they can be lent as slices. When the end of the buffer is reached, live entries
//! are moved to its beginning. Invariants: `size` is the sum over entries of name, value and 32;
//! `size <= size_max <= SIZE_MAX`; so there are at most 128 entries. Memory: nothing before the
//! first entry, then at most 4,096 bytes of text and 1 KiB of entries.

use std::collections::VecDeque;

/// The default of SETTINGS_HEADER_TABLE_SIZE, and the largest size that weir allows.
pub(super) const SIZE_MAX: usize = 4096;
/// What an entry counts beyond its text (RFC 7541 §4.1).
const ENTRY_BYTES: usize = 32;
/// First size of the buffer.
const BYTES_FIRST: usize = 512;

/// Newest fields first, by index from 0.
#[derive(Debug)]
pub(super) struct Table {
    bytes: Vec<u8>,
    /// Oldest first.
    entries: VecDeque<Entry>,
    size: usize,
    size_max: usize,
}

/// The position of a field in `bytes`.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u16,
    name_len: u16,
    value_len: u16,
}

impl Entry {
    fn end(self) -> usize {
        usize::from(self.start) + usize::from(self.name_len) + usize::from(self.value_len)
    }

    fn size(self) -> usize {
        usize::from(self.name_len) + usize::from(self.value_len) + ENTRY_BYTES
    }
}

impl Default for Table {
    fn default() -> Table {
        Table { bytes: Vec::new(), entries: VecDeque::new(), size: 0, size_max: SIZE_MAX }
    }
}

impl Table {
    /// Name and value, the newest has index 0.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = *self.entries.get(self.entries.len().checked_sub(index + 1)?)?;
        let text = &self.bytes[usize::from(entry.start)..entry.end()];
        Some(text.split_at(usize::from(entry.name_len)))
    }

    /// Adds a field; older ones are evicted as far as it needs room, and when it is larger than the
    /// table all are (RFC 7541 §4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + ENTRY_BYTES;
        self.evict_to(self.size_max.saturating_sub(size));
        if size > self.size_max {
            return;
        }
        self.make_room(name.len() + value.len());
        let (start, name_len, value_len) =
            (self.bytes.len() as u16, name.len() as u16, value.len() as u16);
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_back(Entry { start, name_len, value_len });
        self.size += size;
    }

    /// Changes how much may be kept, at most [`SIZE_MAX`] (RFC 7541 §4.3). At 0 memory is given
    /// back.
    pub(super) fn resize(&mut self, size_max: usize) {
        debug_assert!(size_max <= SIZE_MAX);
        self.size_max = size_max;
        self.evict_to(size_max);
        if size_max == 0 {
            (self.bytes, self.entries) = (Vec::new(), VecDeque::new());
        }
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.size -= oldest.size();
        }
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    /// Makes room for `bytes` bytes after the newest entry: moves live entries to the beginning
    /// before memory grows.
    fn make_room(&mut self, bytes: usize) {
        if self.bytes.len() + bytes <= self.bytes.capacity() {
            return;
        }
        if let Some(&Entry { start: moved, .. }) = self.entries.front() {
            self.bytes.drain(..usize::from(moved));
            self.entries.iter_mut().for_each(|entry| entry.start -= moved);
        }
        let needed = self.bytes.len() + bytes;
        if needed > self.bytes.capacity() {
            let capacity = needed.next_power_of_two().clamp(BYTES_FIRST, SIZE_MAX);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
    }

    /// Returns the bytes of memory that it has.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the table has the newest fields whose sizes fit, and never more memory than it may.
    //! How: against a list that does the same naively, over a long run of sizes.

    use super::*;
    use crate::fuzzing::Mutator;

    #[test]
    fn as_a_naive_list() {
        let (mut table, mut naive) = (Table::default(), VecDeque::<(Vec<u8>, Vec<u8>)>::new());
        let (mut chance, mut size_max) = (Mutator::new(7), SIZE_MAX);
        for step in 0..20_000 {
            if chance.below(50) == 0 {
                size_max = [0, 31, 32, 100, 1000, SIZE_MAX, SIZE_MAX][chance.below(7)];
                table.resize(size_max);
            } else {
                let longest = [8, 60, 600, 5000][chance.below(4)];
                let (name, value) = (
                    vec![step as u8; chance.below(longest)],
                    vec![!step as u8; chance.below(longest)],
                );
                table.insert(&name, &value);
                naive.push_front((name, value));
            }
            let size = |(name, value): &(Vec<u8>, Vec<u8>)| name.len() + value.len() + 32;
            while naive.iter().map(size).sum::<usize>() > size_max {
                naive.pop_back();
            }
            for (at, (name, value)) in naive.iter().enumerate() {
                assert_eq!(table.get(at), Some((&name[..], &value[..])), "step {step}");
            }
            assert_eq!(table.get(naive.len()), None);
            assert!(
                table.memory() <= 4096 + 1024 && table.bytes.len() <= SIZE_MAX,
                "{}",
                table.memory()
            );
        }
    }

    #[test]
    fn many_small_entries() {
        let mut table = Table::default();
        for _ in 0..1000 {
            table.insert(b"", b"");
        }
        assert_eq!(table.entries.len(), 128);
        assert!(table.memory() <= 4096 + 1024);
        table.resize(0);
        assert_eq!((table.memory(), table.get(0)), (0, None));
    }
}
