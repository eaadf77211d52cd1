//! `least`: the less loaded of two servers that are drawn at random, in proportion to their
//! weights.
//!
//! Load is unanswered requests for each unit of weight. Two random candidates are nearly as good as
//! looking for the least of all (Mitzenmacher 2001), and workers that see the same loads do not all
//! choose the same server. Bound: two passes over the usable servers.

use crate::base::stamp::mix;

/// The random sequence and its position.
#[derive(Debug, Clone)]
pub(super) struct Least {
    state: u64,
}

impl Least {
    /// `seed` differs between workers.
    pub(super) fn new(seed: u64) -> Least {
        Least { state: mix(seed) }
    }

    /// Returns one of these; None when the list is empty.
    pub(super) fn next(&self, weights: &[i64], loads: &[u32], among: &[usize]) -> Option<usize> {
        let first = draw(self.state, weights, among.iter().copied())?;
        let others = among.iter().copied().filter(|at| *at != first);
        let Some(second) = draw(self.state.wrapping_add(1), weights, others) else {
            return Some(first);
        };
        // Between equal loads the draw decides, which respects the weights.
        let cost = |at: usize, other: usize| i64::from(loads[at]) * weights[other];
        Some(if cost(second, first) < cost(first, second) { second } else { first })
    }

    /// One of `count` was chosen: advances the sequence by the draws that it took.
    pub(super) fn took(&mut self, count: usize) {
        self.state = self.state.wrapping_add(count.min(2) as u64);
    }
}

/// Returns one of these, each as likely as its weight says; None when the list is empty.
fn draw(
    state: u64,
    weights: &[i64],
    mut among: impl Iterator<Item = usize> + Clone,
) -> Option<usize> {
    let sum: i64 = among.clone().map(|at| weights[at]).sum();
    if sum <= 0 {
        return None;
    }
    let mut rest = (mix(state) % sum as u64) as i64;
    among.find(|at| {
        rest -= weights[*at];
        rest < 0
    })
}

#[cfg(test)]
mod tests {
    //! Proves: the shares of idle servers are their weights, load evens out in proportion to them,
    //! no unusable server is chosen. How: picks in great number from fixed seeds.

    use super::*;

    impl Least {
        fn pick(&mut self, weights: &[i64], loads: &[u32], among: &[usize]) -> Option<usize> {
            let chosen = self.next(weights, loads, among);
            self.took(among.len());
            chosen
        }
    }

    #[test]
    fn idle_servers_share_by_weight() {
        let weights = [70, 20, 10];
        let mut least = Least::new(1);
        let mut picks = [0u32; 3];
        (0..100_000).for_each(|_| picks[least.pick(&weights, &[0; 3], &[0, 1, 2]).unwrap()] += 1);
        for (picks, weight) in picks.iter().zip(weights) {
            assert!(picks.abs_diff(weight as u32 * 1000) < 1000, "{picks} of 100,000 for {weight}");
        }
    }

    #[test]
    fn load_evens_out_by_weight() {
        let (weights, mut loads) = ([60, 30, 10], [300, 0, 0]);
        let mut least = Least::new(2);
        for _ in 0..700 {
            let chosen = least.pick(&weights, &loads, &[0, 1, 2]).unwrap();
            loads[chosen] += 1;
        }
        assert!(
            loads.iter().zip([600, 300, 100]).all(|(load, fair)| load.abs_diff(fair) <= fair / 10),
            "{loads:?}"
        );
    }

    #[test]
    fn only_usable_ones() {
        let mut least = Least::new(3);
        for _ in 0..1000 {
            assert!(matches!(least.pick(&[1, 9, 1, 9], &[0, 5, 0, 0], &[0, 1]), Some(0 | 1)));
            assert_eq!(least.pick(&[1, 9, 1, 9], &[9, 9, 9, 0], &[2]), Some(2));
        }
        assert_eq!(least.pick(&[1, 1, 1, 1], &[0; 4], &[]), None);
    }
}
