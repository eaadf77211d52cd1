//! Seeded pseudo-random numbers: everything that the simulation leaves to chance comes from here.
//!
//! SplitMix64 (Steele, Lea, Flood 2014): 64 bits of state, passes BigCrush, and any two seeds give
//! unrelated streams. Not for secrets.

/// A stream of pseudo-random numbers that depends on its seed alone.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `limit`; 0 when `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // Multiply and shift: the bias is below 2^-32 for the small limits used here.
        let wide = u128::from(self.next_u64()) * u128::from(limit);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// A length or index below `limit`; 0 when `limit` is 0.
    pub fn index(&mut self, limit: usize) -> usize {
        self.below(limit as u64) as usize
    }

    /// True with this probability, in thousandths. 0 draws nothing, so that a dial at 0 disturbs no
    /// other draw.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }

    /// One of the items.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// A separate stream, so that one actor's draws don't move another's.
    pub fn fork(&mut self, label: u64) -> Rng {
        Rng::new(mix(self.next_u64() ^ label))
    }
}

fn mix(value: u64) -> u64 {
    let mut z = value;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_reference_values_of_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn draws_stay_in_their_range() {
        let mut rng = Rng::new(7);
        let mut hits = 0;
        for _ in 0..10_000 {
            assert!(rng.below(10) < 10);
            assert!((5..=9).contains(&rng.between(5, 9)));
            hits += u32::from(rng.chance(250));
            assert!(!rng.chance(0) && rng.chance(1000));
        }
        assert!((2_200..2_800).contains(&hits), "{hits}");
        assert_eq!(rng.below(0), 0);
    }
}
