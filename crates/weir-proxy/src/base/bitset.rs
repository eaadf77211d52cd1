//! A set of small numbers: which connections of a server can take a request. Finds the first one in
//! O(words).

/// A set of indexes below a fixed count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// Makes room for indexes below `count`, which are not members yet.
    pub(crate) fn grow(&mut self, count: usize) {
        self.words.resize(count.div_ceil(64).max(self.words.len()), 0);
    }

    /// Adds an index or removes it.
    pub(crate) fn set(&mut self, index: usize, member: bool) {
        let bit = 1u64 << (index % 64);
        let word = &mut self.words[index / 64];
        if member {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    /// Whether the index is a member.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.words[index / 64] & (1 << (index % 64)) != 0
    }

    /// The lowest member: connections are filled in this order.
    pub(crate) fn first(&self) -> Option<usize> {
        let at = self.words.iter().position(|word| *word != 0)?;
        Some(at * 64 + self.words[at].trailing_zeros() as usize)
    }

    /// The lowest member that is also in `other`, a set of as many indices.
    pub(crate) fn first_in(&self, other: &Bits) -> Option<usize> {
        self.first_masked(other, |word| word)
    }

    /// The lowest member that is not in `other`, a set of as many indices.
    pub(crate) fn first_outside(&self, other: &Bits) -> Option<usize> {
        self.first_masked(other, |word| !word)
    }

    fn first_masked(&self, other: &Bits, mask: impl Fn(u64) -> u64) -> Option<usize> {
        let words = self.words.iter().zip(&other.words).map(|(word, other)| word & mask(*other));
        let (at, word) = words.enumerate().find(|(_, word)| *word != 0)?;
        Some(at * 64 + word.trailing_zeros() as usize)
    }

    /// All members, lowest first.
    pub(crate) fn members(&self) -> impl Iterator<Item = usize> {
        let of_word = |(at, word): (usize, &u64)| {
            let rests =
                std::iter::successors(Some(*word), |rest| Some(rest & rest.wrapping_sub(1)));
            rests
                .take_while(|rest| *rest != 0)
                .map(move |rest| at * 64 + rest.trailing_zeros() as usize)
        };
        self.words.iter().enumerate().flat_map(of_word)
    }

    /// Whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The number of members.
    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_set(
            ops in prop::collection::vec((0usize..200, any::<bool>()), 0..200),
            others in prop::collection::btree_set(0usize..200, 0..200),
        ) {
            let (mut bits, mut other) = (Bits::default(), Bits::default());
            bits.grow(200);
            other.grow(200);
            others.iter().for_each(|index| other.set(*index, true));
            let mut model = std::collections::BTreeSet::new();
            for (index, member) in ops {
                bits.set(index, member);
                if member {
                    model.insert(index);
                } else {
                    model.remove(&index);
                }
                prop_assert_eq!(bits.first(), model.first().copied());
                prop_assert_eq!(bits.first_in(&other), model.intersection(&others).next().copied());
                prop_assert_eq!(
                    bits.first_outside(&other),
                    model.difference(&others).next().copied()
                );
                prop_assert_eq!(bits.count() as usize, model.len());
                prop_assert_eq!(bits.has(index), member);
                prop_assert!(bits.members().eq(model.iter().copied()));
            }
        }
    }
}
