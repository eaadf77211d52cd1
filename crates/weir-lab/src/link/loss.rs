//! Which packets are lost. Called by `way.rs` for each packet that comes; pure.

use crate::random::Random;

/// Draws one packet after another.
#[derive(Debug, Clone)]
pub(super) struct Loss {
    random: Random,
    model: Model,
}

#[derive(Debug, Clone, Copy)]
enum Model {
    /// Each packet independently, with this probability.
    Single(f64),
    /// All in bad times and none in good ones (Gilbert, 1960).
    Bursts {
        /// Probability that bad times begin with the next packet.
        begins: f64,
        /// Probability that they end.
        ends: f64,
        /// These are bad times.
        is_bad: bool,
    },
}

impl Loss {
    /// Draws losses of `share` of all packets, from 0 to 1, in bursts of this many on average if
    /// given: from 1, and from what [`burst_min`] says.
    pub(super) fn new(share: f64, burst: Option<f64>, mut random: Random) -> Loss {
        let model = match burst {
            None => Model::Single(share),
            Some(_) if share >= 1.0 => Model::Single(1.0),
            Some(mean) => {
                let is_bad = random.fraction() < share;
                Model::Bursts { begins: share / (mean * (1.0 - share)), ends: 1.0 / mean, is_bad }
            }
        };
        Loss { random, model }
    }

    /// Whether the next packet is lost.
    pub(super) fn next(&mut self) -> bool {
        let drawn = self.random.fraction();
        match &mut self.model {
            Model::Single(share) => drawn < *share,
            Model::Bursts { begins, ends, is_bad } => {
                let is_lost = *is_bad;
                *is_bad = if is_lost { drawn >= *ends } else { drawn < *begins };
                is_lost
            }
        }
    }
}

/// Returns the shortest mean of bursts with which this share of packets can be lost: with shorter
/// bursts, there could not be enough of them.
pub(super) fn burst_min(share: f64) -> f64 {
    (share / (1.0 - share)).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: usize = 400_000;

    fn drawn(share: f64, burst: Option<f64>, seed: u64) -> Vec<bool> {
        let mut loss = Loss::new(share, burst, Random::new(seed));
        (0..PACKETS).map(|_| loss.next()).collect()
    }

    fn share(drawn: &[bool]) -> f64 {
        drawn.iter().filter(|lost| **lost).count() as f64 / drawn.len() as f64
    }

    #[test]
    fn as_many_are_lost_as_are_asked_for() {
        for seed in 0..5 {
            for wanted in [0.0, 0.001, 0.01, 0.2, 0.5, 1.0] {
                // Five standard deviations; those of bursts are wider by the root of about twice
                // their length.
                let deviation = (wanted * (1.0 - wanted) / PACKETS as f64).sqrt();
                let single = share(&drawn(wanted, None, seed));
                assert!((single - wanted).abs() <= 5.0 * deviation, "{wanted}: {single}");
                for mean in [1.0, 3.0, 20.0] {
                    let bursts = share(&drawn(wanted, Some(mean), seed));
                    let bound = 5.0 * deviation * (2.0 * mean).sqrt();
                    assert!(
                        (bursts - wanted).abs() <= bound,
                        "{wanted} in bursts of {mean}: {bursts}"
                    );
                }
            }
        }
    }

    #[test]
    fn bursts_are_as_long_as_asked_for() {
        for mean in [1.0, 2.5, 10.0] {
            let drawn = drawn(0.05, Some(mean), 7);
            let lost = drawn.iter().filter(|lost| **lost).count() as f64;
            let bursts = drawn.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
            assert!((lost / bursts / mean - 1.0).abs() < 0.05, "{mean}: {}", lost / bursts);
        }
    }

    #[test]
    fn a_seed_is_a_series() {
        assert_eq!(drawn(0.1, None, 3), drawn(0.1, None, 3));
        assert_ne!(drawn(0.1, None, 3), drawn(0.1, None, 4));
        assert_eq!((burst_min(0.0), burst_min(0.5), burst_min(0.9).round()), (1.0, 1.0, 9.0));
    }
}
