//! A list indexed by keys of one type, and runs and groups of such keys.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::keys::Key;

/// Rows that are never removed.
#[derive(Debug)]
pub(crate) struct Table<K, T> {
    rows: Vec<T>,
    keys: PhantomData<K>,
}

impl<K, T> Default for Table<K, T> {
    fn default() -> Table<K, T> {
        Table { rows: Vec::new(), keys: PhantomData }
    }
}

impl<K: Key, T> Table<K, T> {
    /// Adds a row.
    pub(crate) fn push(&mut self, row: T) {
        self.rows.push(row);
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The key of the row that is added next.
    pub(crate) fn next(&self) -> K {
        K::new(self.rows.len() as u32)
    }

    /// Keys of all rows.
    pub(crate) fn keys(&self) -> Run<K> {
        Run::new(K::new(0), self.rows.len())
    }

    /// A row, if it is there.
    pub(crate) fn get(&self, key: K) -> Option<&T> {
        self.rows.get(key.index())
    }

    /// A row, mutable, if it is there.
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        self.rows.get_mut(key.index())
    }

    /// All rows.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.rows.iter()
    }

    /// All rows, mutable.
    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.rows.iter_mut()
    }
}

impl<K: Key, T> Index<K> for Table<K, T> {
    type Output = T;

    #[inline]
    fn index(&self, key: K) -> &T {
        &self.rows[key.index()]
    }
}

impl<K: Key, T> IndexMut<K> for Table<K, T> {
    #[inline]
    fn index_mut(&mut self, key: K) -> &mut T {
        &mut self.rows[key.index()]
    }
}

/// Consecutive keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<K> {
    first: K,
    count: u32,
}

impl<K: Key> Run<K> {
    /// A run of `count` keys from `first` on.
    pub(crate) fn new(first: K, count: usize) -> Run<K> {
        Run { first, count: count as u32 }
    }

    /// All of them, ascending.
    pub(crate) fn iter(self) -> impl DoubleEndedIterator<Item = K> + Clone {
        let first = self.first.number();
        (first..first + self.count).map(K::new)
    }
}

/// Keys of rows that belong together, in their own order. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Members<K>(Arc<[K]>);

impl<K: Key> Members<K> {
    /// A group of a single key.
    pub(crate) fn new(first: K) -> Members<K> {
        Members([first].into())
    }

    /// Appends a key.
    pub(crate) fn push(&mut self, key: K) {
        self.0 = self.0.iter().copied().chain([key]).collect();
    }

    /// The first key.
    pub(crate) fn first(&self) -> K {
        self.0[0]
    }

    /// The key at this position.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> K {
        self.0[place]
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All keys.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = K> + Clone {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::ServerIndex;
    use super::*;

    #[test]
    fn rows_have_the_keys_that_were_said() {
        let mut table = Table::<ServerIndex, char>::default();
        for row in ['a', 'b', 'c'] {
            let key = table.next();
            table.push(row);
            assert_eq!(table[key], row);
        }
        assert_eq!(table.keys().iter().map(|key| table[key]).collect::<String>(), "abc");
        let behind = Run::new(ServerIndex::new(0) + 1, 2);
        assert_eq!(behind.iter().map(Key::number).collect::<Vec<_>>(), [1, 2]);
        let mut members = Members::new(ServerIndex::new(2));
        members.push(ServerIndex::new(0));
        assert_eq!(members.iter().map(|key| table[key]).collect::<String>(), "ca");
        assert_eq!(
            (members.len(), members.first(), members.at(1)),
            (2, ServerIndex::new(2), ServerIndex::new(0))
        );
        table[ServerIndex::new(1)] = 'x';
        assert_eq!(
            (table.get(ServerIndex::new(1)), table.get(ServerIndex::new(3))),
            (Some(&'x'), None)
        );
    }
}
