//! A set of small numbers: which connections of a server can take a request. First one found in O(words).

/// A set of indexes below a fixed count.
#[derive(Debug, Clone, Default)]
pub struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// An empty set for indexes below `count`.
    pub fn new(count: usize) -> Bits {
        Bits { words: vec![0; count.div_ceil(64)] }
    }

    /// Puts an index in or takes it out.
    pub fn set(&mut self, index: usize, member: bool) {
        let bit = 1u64 << (index % 64);
        let word = &mut self.words[index / 64];
        if member {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    /// Whether the index is in.
    pub fn has(&self, index: usize) -> bool {
        self.words[index / 64] & (1 << (index % 64)) != 0
    }

    /// The lowest member: connections are filled in this order.
    pub fn first(&self) -> Option<usize> {
        let at = self.words.iter().position(|word| *word != 0)?;
        Some(at * 64 + self.words[at].trailing_zeros() as usize)
    }

    /// Members.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_set(ops in prop::collection::vec((0usize..200, any::<bool>()), 0..200)) {
            let mut bits = Bits::new(200);
            let mut model = std::collections::BTreeSet::new();
            for (index, member) in ops {
                bits.set(index, member);
                if member { model.insert(index); } else { model.remove(&index); }
                prop_assert_eq!(bits.first(), model.first().copied());
                prop_assert_eq!(bits.count() as usize, model.len());
                prop_assert_eq!(bits.has(index), member);
            }
        }
    }
}
