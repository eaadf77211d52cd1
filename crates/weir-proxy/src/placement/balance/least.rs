//! `least`: the less loaded of two servers that chance proposes, in proportion to their weights.
//!
//! Load is unanswered requests for each unit of weight. Two random candidates are nearly as good as looking for the least of
//! all (Mitzenmacher 2001), and workers that see the same loads don't all run to the same server. Bound: two passes over the
//! usable servers.

use crate::base::stamp::mix;

/// The chance, and room for the candidates.
#[derive(Debug, Clone)]
pub(super) struct Least {
    state: u64,
    candidates: Vec<u32>,
}

impl Least {
    /// For so many servers; `seed` differs between workers.
    pub(super) fn new(servers: usize, seed: u64) -> Least {
        Least { state: mix(seed), candidates: Vec::with_capacity(servers) }
    }

    /// One of those that are usable; None when nobody is.
    pub(super) fn pick(&mut self, weights: &[i64], loads: &[u32], usable: impl Fn(usize) -> bool) -> Option<usize> {
        self.candidates.clear();
        self.candidates.extend((0..weights.len()).filter(|at| usable(*at)).map(|at| at as u32));
        let first = self.draw(weights, None)?;
        let Some(second) = self.draw(weights, Some(first)) else { return Some(first) };
        // Equal loads leave it to chance, which knows the weights.
        let cost = |at: usize, other: usize| i64::from(loads[at]) * weights[other];
        Some(if cost(second, first) < cost(first, second) { second } else { first })
    }

    /// A candidate other than `not`, each as likely as its weight says.
    fn draw(&mut self, weights: &[i64], not: Option<usize>) -> Option<usize> {
        let others = || self.candidates.iter().map(|at| *at as usize).filter(|at| Some(*at) != not);
        let sum: i64 = others().map(|at| weights[at]).sum();
        if sum <= 0 {
            return None;
        }
        let mut rest = (mix(self.state) % sum as u64) as i64;
        let chosen = others().find(|at| {
            rest -= weights[*at];
            rest < 0
        });
        self.state = self.state.wrapping_add(1);
        chosen
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the shares of idle servers are their weights, load evens out in proportion to them, nobody unusable is
    //! chosen. How: picks in great number from fixed seeds.

    use super::*;

    #[test]
    fn idle_servers_share_by_weight() {
        let weights = [70, 20, 10];
        let mut least = Least::new(3, 1);
        let mut picks = [0u32; 3];
        (0..100_000).for_each(|_| picks[least.pick(&weights, &[0; 3], |_| true).unwrap()] += 1);
        for (picks, weight) in picks.iter().zip(weights) {
            assert!(picks.abs_diff(weight as u32 * 1000) < 1000, "{picks} of 100,000 for {weight}");
        }
    }

    #[test]
    fn load_evens_out_by_weight() {
        let (weights, mut loads) = ([60, 30, 10], [300, 0, 0]);
        let mut least = Least::new(3, 2);
        for _ in 0..700 {
            let chosen = least.pick(&weights, &loads, |_| true).unwrap();
            loads[chosen] += 1;
        }
        assert!(loads.iter().zip([600, 300, 100]).all(|(load, fair)| load.abs_diff(fair) <= fair / 10), "{loads:?}");
    }

    #[test]
    fn only_usable_ones() {
        let mut least = Least::new(4, 3);
        for _ in 0..1000 {
            assert!(matches!(least.pick(&[1, 9, 1, 9], &[0, 5, 0, 0], |at| at < 2), Some(0 | 1)));
            assert_eq!(least.pick(&[1, 9, 1, 9], &[9, 9, 9, 0], |at| at == 2), Some(2));
        }
        assert_eq!(least.pick(&[1, 1, 1, 1], &[0; 4], |_| false), None);
    }
}
