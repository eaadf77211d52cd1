//! `ratio`: smooth weighted round robin.
//!
//! Weights 2 and 1 give A B A, not A A B, so load is even over a few requests as well. The method
//! is nginx's (each turn every candidate gains its weight, the richest is chosen and pays the sum).
//! Each worker does it independently, so the shares of all together are as exact.

/// The credit of each server, in picks times the sum of weights.
///
/// Invariants: the sum of all credits is 0; while all are usable, |credit| is less than the sum of
/// the weights.
#[derive(Debug, Clone)]
pub(super) struct Ratio {
    credits: Vec<i64>,
}

impl Ratio {
    /// All credits are 0, except for a head start: workers that begin together begin with different
    /// servers.
    pub(super) fn new(weights: &[i64], worker: u16) -> Ratio {
        let mut ratio = Ratio { credits: vec![0; weights.len()] };
        let all = 0..weights.len();
        for _ in 0..worker {
            if let Some(first) = ratio.next(weights, all.clone()) {
                ratio.took(weights, all.clone(), first);
            }
        }
        ratio
    }

    /// Returns the next server among these; None when the list is empty.
    ///
    /// While the same servers are usable and the weights do not change, each gets exactly its
    /// weight of turns in every run of as many turns as the sum of their weights. An unusable
    /// server neither gains nor pays: when it recovers, it continues where it was, without a burst
    /// to catch up.
    #[inline]
    pub(super) fn next(
        &self,
        weights: &[i64],
        among: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        let mut best: Option<(usize, i64)> = None;
        for at in among {
            let credit = self.credits[at] + weights[at];
            if best.is_none_or(|(_, most)| credit > most) {
                best = Some((at, credit));
            }
        }
        best.map(|(at, _)| at)
    }

    /// `chosen` of these had its turn.
    #[inline]
    pub(super) fn took(
        &mut self,
        weights: &[i64],
        among: impl Iterator<Item = usize>,
        chosen: usize,
    ) {
        let mut sum = 0;
        for at in among {
            self.credits[at] += weights[at];
            sum += weights[at];
        }
        self.credits[chosen] -= sum;
    }
}

#[cfg(test)]
mod tests {
    //! Proves: exact shares, smoothness, and that servers that come and go neither starve nor
    //! burst. How: examples and properties over random weights and usability.

    use proptest::prelude::*;

    use super::*;

    impl Ratio {
        /// Returns the next turn among the usable servers.
        fn pick(&mut self, weights: &[i64], usable: impl Fn(usize) -> bool) -> Option<usize> {
            let among = (0..weights.len()).filter(|at| usable(*at));
            let chosen = self.next(weights, among.clone())?;
            self.took(weights, among, chosen);
            Some(chosen)
        }
    }

    #[test]
    fn weights_interleave_smoothly() {
        let mut ratio = Ratio::new(&[5, 1, 1], 0);
        let picks: Vec<_> = (0..7).map(|_| ratio.pick(&[5, 1, 1], |_| true).unwrap()).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn nobody_is_usable() {
        assert_eq!(Ratio::new(&[], 3).pick(&[], |_| true), None);
        assert_eq!(Ratio::new(&[1, 1], 0).pick(&[1, 1], |_| false), None);
    }

    #[test]
    fn workers_begin_with_different_servers() {
        let begin = |worker| Ratio::new(&[1, 1, 1], worker).pick(&[1, 1, 1], |_| true).unwrap();
        assert_eq!([0, 1, 2, 3].map(begin), [0, 1, 2, 0]);
    }

    proptest! {
        /// Each whole cycle has the exact shares, on each worker.
        #[test]
        fn shares_are_exact_over_a_cycle(
            weights in prop::collection::vec(1..100i64, 1..8),
            worker in 0..9u16,
        ) {
            let mut ratio = Ratio::new(&weights, worker);
            let sum: i64 = weights.iter().sum();
            for _ in 0..3 {
                let mut picks = vec![0; weights.len()];
                (0..sum).for_each(|_| picks[ratio.pick(&weights, |_| true).unwrap()] += 1);
                prop_assert_eq!(&picks, &weights);
            }
        }

        /// After any history, a server's picks never differ from its share by more than one for
        /// each server.
        #[test]
        fn a_server_that_comes_back_neither_starves_nor_bursts(
            weights in prop::collection::vec(1..100i64, 2..6),
            history in prop::collection::vec((any::<u8>(), 1..200usize), 0..12),
            window in 1..500usize,
        ) {
            let mut ratio = Ratio::new(&weights, 0);
            for (mask, picks) in history {
                for _ in 0..picks {
                    let chosen = ratio.pick(&weights, |at| mask >> at & 1 == 1);
                    prop_assert!(chosen.is_none_or(|at| mask >> at & 1 == 1));
                }
            }
            let mut picks = vec![0i64; weights.len()];
            (0..window).for_each(|_| picks[ratio.pick(&weights, |_| true).unwrap()] += 1);
            let sum: i64 = weights.iter().sum();
            for (at, weight) in weights.iter().enumerate() {
                let share = weight * window as i64 / sum;
                let servers = weights.len() as i64;
                prop_assert!(
                    (picks[at] - share).abs() <= servers,
                    "{:?} of {}, weights {:?}",
                    picks,
                    window,
                    weights
                );
            }
        }
    }
}
