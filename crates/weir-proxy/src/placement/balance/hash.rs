//! `hash`: the same server for the same key, with bounded load.
//!
//! Weighted rendezvous hashing: each server draws a number from the key and its own name, the
//! highest wins. When a server is removed, exactly its keys move, and they spread over all others
//! by weight. Nothing is stored, and all workers, restarts and other proxies with the same server
//! names agree. It costs a few nanoseconds for each server. A ring or a table would cost less with
//! hundreds of servers, but would move more keys than necessary, and upstreams have tens of
//! servers.
//!
//! A server that has more than its share of the unanswered requests ([`Bound`]) is passed over
//! (Mirrokni, Thorup and Zadimoghaddam 2016). Neither a popular key nor keys that an attacker chose
//! to collide can overload it. So the hash needs no secret.

use super::{Bound, LOAD_PERCENT};
use crate::base::stamp::{mix, siphash};

/// The same everywhere, so that all agree.
const KEY: [u64; 2] = [0x7765_6972_2062_616c, 0x616e_6365_2068_6173];

/// Returns the hash of the property that requests are hashed by.
pub(crate) fn hash_key(bytes: &[u8]) -> u64 {
    siphash(KEY, bytes)
}

/// The seeds of the servers.
#[derive(Debug, Clone)]
pub(super) struct Rendezvous {
    seeds: Vec<u64>,
}

impl Rendezvous {
    /// Returns the seeds of servers with these names.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a [u8]>) -> Rendezvous {
        Rendezvous { seeds: names.map(hash_key).collect() }
    }

    /// Returns the key's server among these, or the next one in its order if that is overloaded;
    /// None when the list is empty.
    pub(super) fn pick(
        &self,
        key: u64,
        weights: &[i64],
        loads: &[u32],
        among: impl Iterator<Item = usize> + Clone,
    ) -> Option<usize> {
        let mut bound = Bound { load: 0, weight: 0, percent: LOAD_PERCENT };
        let best = self.highest(
            key,
            weights,
            among.clone().inspect(|at| bound.add(loads[*at], weights[*at])),
        )?;
        let has_room = |at: usize| bound.has_room(loads[at], weights[at]);
        if has_room(best) {
            return Some(best);
        }
        self.highest(key, weights, among.filter(|at| has_room(*at))).or(Some(best))
    }

    /// Appends all servers in the key's order, those with more than their share of the usable
    /// capacity after the others. The failed server is left out; the order begins with the one
    /// behind it.
    pub(super) fn order_behind(
        &self,
        key: u64,
        failed: Option<usize>,
        weights: &[i64],
        loads: &[u32],
        usable: impl Fn(usize) -> bool,
        order: &mut Vec<usize>,
    ) {
        let mut bound = Bound { load: 0, weight: 0, percent: LOAD_PERCENT };
        (0..weights.len())
            .filter(|at| usable(*at))
            .for_each(|at| bound.add(loads[at], weights[at]));
        let score = |at: usize| score(mix(key ^ self.seeds[at]), weights[at]);
        let least = failed.map_or(f64::INFINITY, score);
        order.extend((0..weights.len()).filter(|at| Some(*at) != failed));
        order.sort_by(|one, other| score(*other).total_cmp(&score(*one)));
        // When none is usable, none has more than its share either.
        let is_busy = |at: usize| bound.weight > 0 && !bound.has_room(loads[at], weights[at]);
        order.sort_by_key(|at| (is_busy(*at), score(*at) > least));
    }

    fn highest(
        &self,
        key: u64,
        weights: &[i64],
        among: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        let mut best: Option<(usize, f64)> = None;
        for at in among {
            let score = score(mix(key ^ self.seeds[at]), weights[at]);
            if best.is_none_or(|(_, most)| score > most) {
                best = Some((at, score));
            }
        }
        best.map(|(at, _)| at)
    }
}

/// Returns the score of a server: with -1/ln(u) in place of u, weights come out as shares
/// (Schindelhauer and Schomaker 2005).
fn score(draw: u64, weight: i64) -> f64 {
    // 53 bits, never 0.
    let uniform = ((draw >> 11) + 1) as f64 / (1u64 << 53) as f64;
    weight as f64 / -uniform.ln()
}

#[cfg(test)]
mod tests {
    //! Proves: shares by weight, only the keys of a removed server move, load is bounded, the
    //! choice never changes between versions. How: many keys, random weights, stored examples.

    use proptest::prelude::*;

    use super::*;
    use crate::placement::balance::LOAD_MIN;

    fn servers(count: usize) -> Rendezvous {
        let names: Vec<String> = (0..count).map(|n| format!("10.0.0.{n}:9090")).collect();
        Rendezvous::new(names.iter().map(String::as_bytes))
    }

    fn key(n: u64) -> u64 {
        hash_key(format!("/item/{n}").as_bytes())
    }

    #[test]
    fn one_of_ten_servers_goes() {
        let (hash, weights, loads) = (servers(10), [50; 10], [0; 10]);
        let mut moved = 0;
        for n in 0..100_000 {
            let before = hash.pick(key(n), &weights, &loads, 0..10).unwrap();
            let after = hash.pick(key(n), &weights, &loads, (0..10).filter(|at| *at != 3)).unwrap();
            assert!(before == after || before == 3, "a key moved that need not");
            moved += u32::from(before != after);
        }
        assert!((9_000..11_000).contains(&moved), "{moved} of 100,000 keys moved");
    }

    #[test]
    fn shares_follow_the_weights() {
        let (hash, weights) = (servers(3), [70, 20, 10]);
        let mut picks = [0u32; 3];
        (0..100_000).for_each(|n| picks[hash.pick(key(n), &weights, &[0; 3], 0..3).unwrap()] += 1);
        for (picks, weight) in picks.iter().zip(weights) {
            assert!(picks.abs_diff(weight as u32 * 1000) < 1000, "{picks} of 100,000 for {weight}");
        }
    }

    /// Other workers, later versions and other proxies must choose the same.
    #[test]
    fn the_choice_is_for_ever() {
        let hash = servers(5);
        let picks: Vec<_> =
            (0..12).map(|n| hash.pick(key(n), &[1; 5], &[0; 5], 0..5).unwrap()).collect();
        assert_eq!(picks, [2, 4, 4, 2, 0, 0, 4, 2, 2, 4, 2, 4]);
    }

    #[test]
    fn nobody_is_usable() {
        assert_eq!(servers(3).pick(1, &[1; 3], &[0; 3], 0..0), None);
        assert_eq!(servers(0).pick(1, &[], &[], 0..0), None);
        let mut order = Vec::new();
        servers(3).order_behind(1, Some(0), &[1; 3], &[0; 3], |_| false, &mut order);
        assert_eq!(order.len(), 2, "they may come up");
    }

    proptest! {
        /// All requests for one key: no server ever has more than its bound.
        #[test]
        fn load_is_bounded(
            weights in prop::collection::vec(1..100i64, 2..8),
            count in 1..400u64,
            key: u64,
        ) {
            let hash = servers(weights.len());
            let mut loads = vec![0u32; weights.len()];
            for _ in 0..count {
                let chosen = hash.pick(key, &weights, &loads, 0..weights.len()).unwrap();
                loads[chosen] += 1;
            }
            let sum: i64 = weights.iter().sum();
            for (load, weight) in loads.iter().zip(&weights) {
                let most = (count * LOAD_PERCENT * *weight as u64)
                    .div_ceil(100 * sum as u64)
                    .max(LOAD_MIN);
                prop_assert!(u64::from(*load) <= most, "{:?}, weights {:?}", loads, weights);
            }
        }

        /// The order begins with the choice; from each failed server to the next it leads through
        /// all servers; those with more than their share come last.
        #[test]
        fn the_order_leads_through_all(
            weights in prop::collection::vec(1..100i64, 2..8),
            key: u64,
            busy: prop::sample::Index,
        ) {
            let (hash, count) = (servers(weights.len()), weights.len());
            let behind = |failed, weights: &[i64], loads: &[u32]| {
                let mut order = Vec::new();
                hash.order_behind(key, failed, weights, loads, |_| true, &mut order);
                order
            };
            let mut loads = vec![0; count];
            let order = behind(None, &weights, &loads);
            prop_assert_eq!(Some(order[0]), hash.pick(key, &weights, &loads, 0..weights.len()));
            for at in 0..count {
                prop_assert_eq!(
                    behind(Some(order[at]), &weights, &loads)[0],
                    order[(at + 1) % count]
                );
            }
            let busy = busy.index(count);
            loads[busy] = 1_000_000;
            prop_assert_eq!(behind(None, &vec![50; count], &loads)[count - 1], busy);
        }

        /// A change of one weight moves keys only to or from that server.
        #[test]
        fn a_weight_that_changes_moves_few(
            weight in 1..100i64,
            keys in prop::collection::vec(any::<u64>(), 100),
        ) {
            let hash = servers(6);
            let (before, mut after) = ([50; 6], [50; 6]);
            after[2] = weight;
            for key in keys {
                let old = hash.pick(key, &before, &[0; 6], 0..6);
                let new = hash.pick(key, &after, &[0; 6], 0..6);
                let fine = if weight < 50 { old == Some(2) } else { new == Some(2) };
                prop_assert!(old == new || fine);
            }
        }
    }
}
