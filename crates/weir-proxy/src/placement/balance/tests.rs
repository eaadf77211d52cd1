//! Proves: the common behaviour of all methods: backups, slow start, usable servers, shares over
//! several workers. How: examples of plans.

use super::*;
use crate::plan::ServerPlan;

const SECOND_US: u64 = 1_000_000;

fn plan(weights: &[u32], balance: Method) -> UpstreamPlan {
    let server = |(n, weight): (usize, &u32)| {
        let address = std::net::SocketAddr::from(([10, 0, 0, n as u8], 9090));
        ServerPlan { weight: *weight, ..ServerPlan::new(&address.to_string(), address) }
    };
    UpstreamPlan {
        servers: weights.iter().enumerate().map(server).collect(),
        balance,
        ..UpstreamPlan::default()
    }
}

impl Balance {
    /// Chooses among the backups, or the others, that are usable.
    pub(super) fn pick(
        &mut self,
        backup: bool,
        key: Option<u64>,
        usable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let fits = |at: &usize| self.is_backup(*at) == backup && usable(*at);
        let among: Vec<usize> = (0..self.backups.len()).filter(fits).collect();
        let chosen = self.choose(key, &among)?;
        self.took(key, &among, chosen);
        Some(chosen)
    }
}

fn methods() -> [Method; 5] {
    let predict =
        Method::Predict { by: Statistic::Avg, past_us: 30 * SECOND_US, ahead_us: 15 * SECOND_US };
    [Method::Ratio, Method::Dynamic(Statistic::Avg), predict, Method::Least, Method::Hash(Key::Uri)]
}

#[test]
fn every_method_chooses_only_what_is_usable() {
    for method in methods() {
        let mut plan = plan(&[50, 10, 50, 1], method);
        plan.servers[3].backup = true;
        let mut balance = Balance::new(&plan, 0, 1);
        balance.reweigh(SECOND_US, |_| Finding::default());
        for turn in 0..200 {
            balance.begin(turn, |_| 0);
            let key = Some(stamp(turn));
            assert!(
                matches!(balance.pick(false, key, |at| at != 1), Some(0 | 2)),
                "{:?}",
                plan.balance
            );
            assert_eq!(balance.pick(true, key, |_| true), Some(3));
            assert_eq!(balance.pick(true, key, |at| at != 3), None);
            assert_eq!(balance.pick(false, key, |at| at == 3), None);
        }
        assert!(balance.has_backups());
    }
}

fn stamp(n: u64) -> u64 {
    crate::base::stamp::mix(n)
}

/// Weights of 70, 20 and 10 over 10,000 requests, spread unevenly over workers that each count
/// independently.
#[test]
fn shares_of_all_workers_together() {
    let plan = plan(&[70, 20, 10], Method::Ratio);
    let mut workers: Vec<Balance> = (0..7).map(|worker| Balance::new(&plan, worker, 1)).collect();
    let mut picks = [0u32; 3];
    for n in 0..10_000 {
        let worker = (stamp(n) % 7).min(stamp(!n) % 7) as usize;
        picks[workers[worker].pick(false, None, |_| true).unwrap()] += 1;
    }
    for (picks, weight) in picks.iter().zip([70, 20, 10]) {
        assert!(picks.abs_diff(weight * 100) <= 14, "{picks} of 10,000 for {weight}");
    }
}

/// A server that recovers gets a tenth of its weight, half of it half-way, all of it at the end.
#[test]
fn slow_start() {
    let mut plan = plan(&[50, 50], Method::Ratio);
    plan.slow_start_us = 10 * SECOND_US;
    let mut balance = Balance::new(&plan, 0, 1);
    let back_us = 100 * SECOND_US;
    let mut share = |now_us: u64| {
        assert!(balance.is_due(now_us));
        balance
            .reweigh(now_us, |at| Finding { recovered_us: back_us * at as u64, response_us: None });
        assert!(!balance.is_due(now_us) && !balance.is_due(now_us + TICK_US - 1));
        (0..3000).filter(|_| balance.pick(false, None, |_| true) == Some(1)).count()
    };
    assert!(share(back_us).abs_diff(273) <= 2, "a tenth of 50 against 50");
    assert!(share(back_us + 5 * SECOND_US).abs_diff(1000) <= 2, "half of it");
    assert!(share(back_us + 10 * SECOND_US).abs_diff(1500) <= 2);
}

/// Nothing is computed for methods and plans that don't need it.
#[test]
fn static_weights_are_never_due() {
    let balance = Balance::new(&plan(&[50, 50], Method::Ratio), 0, 1);
    assert!(!balance.is_due(u64::MAX - 1) && !balance.wants_loads(7));
    assert!(Balance::new(&plan(&[50, 50], Method::Least), 0, 1).wants_loads(7));
}

/// A request without the key (no such field, no such cookie) goes to the less loaded of two.
#[test]
fn hash_without_key() {
    let mut balance =
        Balance::new(&plan(&[50, 50], Method::Hash(Key::Header("x".to_owned()))), 0, 1);
    balance.begin(1, |at| [100, 0][at]);
    assert!((0..100).all(|_| balance.pick(false, None, |_| true) == Some(1)));
}
