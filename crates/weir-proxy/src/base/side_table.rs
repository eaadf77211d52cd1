//! Extra data of some occupants of a [`Slab`](super::slab::Slab), kept by an owner that can't reach
//! the slab.

use std::marker::PhantomData;

use super::keys::Key;

/// At most one thing for each key. The code that frees a slot also takes out its thing.
#[derive(Debug)]
pub(crate) struct SideTable<K, T> {
    rows: Vec<Option<T>>,
    keys: PhantomData<K>,
}

impl<K, T> Default for SideTable<K, T> {
    fn default() -> SideTable<K, T> {
        SideTable { rows: Vec::new(), keys: PhantomData }
    }
}

impl<K: Key, T> SideTable<K, T> {
    /// The thing of a key.
    pub(crate) fn get(&self, key: K) -> Option<&T> {
        self.rows.get(key.index())?.as_ref()
    }

    /// The same, mutable.
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        self.rows.get_mut(key.index())?.as_mut()
    }

    /// The same; creates it if it is missing.
    pub(crate) fn get_or_default(&mut self, key: K) -> &mut T
    where
        T: Default,
    {
        self.row(key).get_or_insert_default()
    }

    /// Sets the thing of a key, replacing the present one.
    pub(crate) fn put(&mut self, key: K, thing: T) {
        *self.row(key) = Some(thing);
    }

    fn row(&mut self, key: K) -> &mut Option<T> {
        if key.index() >= self.rows.len() {
            self.rows.resize_with(key.index() + 1, || None);
        }
        &mut self.rows[key.index()]
    }

    /// Takes out the thing of a key.
    pub(crate) fn take(&mut self, key: K) -> Option<T> {
        self.rows.get_mut(key.index())?.take()
    }

    /// All things, mutable.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.rows.iter_mut().flatten()
    }

    /// All things, in the order of keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(index, row)| Some((K::new(index as u32), row.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::ClientKey;
    use super::*;

    #[test]
    fn each_key_has_its_own() {
        let mut table = SideTable::<ClientKey, Vec<u8>>::default();
        let (first, second) = (ClientKey::new(0), ClientKey::new(3));
        assert_eq!(table.get(second), None);
        assert_eq!(table.take(second), None);
        table.get_or_default(second).push(3);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(ClientKey::new(4)), None);
        table.get_or_default(first).push(0);
        table.get_or_default(second).push(4);
        assert_eq!(
            table.iter().map(|(key, row)| (key.number(), row.len())).collect::<Vec<_>>(),
            [(0, 1), (3, 2)]
        );
        assert_eq!((table.take(second), table.take(second)), (Some(vec![3, 4]), None));
        table.put(ClientKey::new(7), vec![7]);
        table.put(first, vec![1]);
        assert_eq!(
            (table.take(ClientKey::new(7)), table.take(first)),
            (Some(vec![7]), Some(vec![1]))
        );
    }
}
