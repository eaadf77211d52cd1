//! Pseudo-random numbers: the draws for load and for links. Pure; not for secrets.

/// Numbers that look random and are the same for the same seed (splitmix64, Steele et al., 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Starts the numbers of this seed; those of its neighbours are the same ones shifted by one
    /// place.
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns another sequence, which depends only on the current state and on the label.
    pub(crate) fn fork(&self, label: u64) -> Random {
        Random::new(Random(self.0 ^ label.wrapping_mul(0xd1b5_4a32_d192_ed03)).next())
    }

    /// From 0 to below 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A distance with the mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        // From (0, 1]: the logarithm of 0 is no number.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -uniform.ln()
    }

    /// From the standard normal distribution (Box and Muller, 1958).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (std::f64::consts::TAU * self.fraction()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_the_mean_0_and_the_deviation_1() {
        let mut random = Random::new(1);
        let drawn: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / 1e5;
        let deviation = (drawn.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / 1e5).sqrt();
        assert!(mean.abs() < 0.02 && (deviation - 1.0).abs() < 0.02, "{mean} {deviation}");
        let beyond = drawn.iter().filter(|it| it.abs() > 1.96).count();
        assert!((4_700..5_300).contains(&beyond), "{beyond} of 100,000 lie outside of 95 %");
    }
}
