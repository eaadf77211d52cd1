//! Which server of an upstream gets the next request: smooth weighted round robin.
//!
//! The engine keeps one [`Balance`] an upstream. Weights 2 and 1 give A B A, not A A B: load stays even also over a few
//! requests. The method is nginx's (each turn every candidate gains its weight, the richest is chosen and pays the sum).
//! Cost: one pass over the servers; none with a single one. semantics.md §5.

/// The turn of each server of one upstream.
///
/// Invariants: the sum of all credits is 0; while nobody is unusable, |credit| is less than the sum of the weights.
#[derive(Debug, Clone)]
pub struct Balance {
    servers: Vec<Turn>,
}

#[derive(Debug, Clone)]
struct Turn {
    weight: i64,
    /// What it is owed, in picks times the sum of weights.
    credit: i64,
}

impl Balance {
    /// A server for each weight (1 or more; 0 counts as 1), known by its index.
    pub fn new(weights: &[u32]) -> Balance {
        let servers = weights.iter().map(|weight| Turn { weight: i64::from((*weight).max(1)), credit: 0 });
        Balance { servers: servers.collect() }
    }

    /// Whose turn it is among those that are usable; None when nobody is.
    ///
    /// While the same servers are usable, each gets exactly its weight of picks in every run of as many picks as the
    /// sum of their weights. An unusable server neither gains nor pays: when it comes back it goes on where it was,
    /// without a burst to catch up.
    #[inline]
    pub fn pick(&mut self, usable: impl Fn(usize) -> bool) -> Option<usize> {
        if self.servers.len() == 1 {
            return usable(0).then_some(0);
        }
        self.pick_one(usable)
    }

    fn pick_one(&mut self, usable: impl Fn(usize) -> bool) -> Option<usize> {
        let mut best: Option<(usize, i64)> = None;
        let mut sum = 0;
        for (at, turn) in self.servers.iter_mut().enumerate().filter(|(at, _)| usable(*at)) {
            turn.credit += turn.weight;
            sum += turn.weight;
            if best.is_none_or(|(_, credit)| turn.credit > credit) {
                best = Some((at, turn.credit));
            }
        }
        let (chosen, _) = best?;
        self.servers[chosen].credit -= sum;
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: exact shares, smoothness, and that servers that come and go neither starve nor burst. How: examples and
    //! properties over random weights and usability.

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn weights_interleave_smoothly() {
        let mut balance = Balance::new(&[5, 1, 1]);
        let picks: Vec<_> = (0..7).map(|_| balance.pick(|_| true).unwrap()).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn one_server_or_none() {
        let mut balance = Balance::new(&[50]);
        assert_eq!((balance.pick(|_| true), balance.pick(|_| false)), (Some(0), None));
        assert_eq!(Balance::new(&[]).pick(|_| true), None);
        assert_eq!(Balance::new(&[1, 1]).pick(|_| false), None);
        // A weight of 0 is not a way to switch a server off.
        assert_eq!(Balance::new(&[0, 0]).pick(|at| at == 1), Some(1));
    }

    proptest! {
        /// From the start, each whole cycle has the exact shares, and no server waits longer than its share says by
        /// more than one pick of each other server.
        #[test]
        fn shares_are_exact_over_a_cycle(weights in prop::collection::vec(1..100u32, 1..8)) {
            let mut balance = Balance::new(&weights);
            let sum: u32 = weights.iter().sum();
            for _ in 0..3 {
                let mut picks = vec![0; weights.len()];
                (0..sum).for_each(|_| picks[balance.pick(|_| true).unwrap()] += 1);
                prop_assert_eq!(&picks, &weights);
            }
        }

        /// After any history, a server's picks never differ from its share by more than one for each server.
        #[test]
        fn a_server_that_comes_back_neither_starves_nor_bursts(
            weights in prop::collection::vec(1..100u32, 2..6),
            history in prop::collection::vec((any::<u8>(), 1..200usize), 0..12),
            window in 1..500usize,
        ) {
            let mut balance = Balance::new(&weights);
            for (mask, picks) in history {
                for _ in 0..picks {
                    let chosen = balance.pick(|at| mask >> at & 1 == 1);
                    prop_assert!(chosen.is_none_or(|at| mask >> at & 1 == 1));
                }
            }
            let mut picks = vec![0i64; weights.len()];
            (0..window).for_each(|_| picks[balance.pick(|_| true).unwrap()] += 1);
            let sum: u32 = weights.iter().sum();
            for (at, weight) in weights.iter().enumerate() {
                let share = i64::from(*weight) * window as i64 / i64::from(sum);
                let servers = weights.len() as i64;
                prop_assert!((picks[at] - share).abs() <= servers, "{:?} of {}, weights {:?}", picks, window, weights);
            }
        }
    }
}
