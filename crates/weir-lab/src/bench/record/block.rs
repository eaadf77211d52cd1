//! The result of an attack on a contender that limits its clients.
//!
//! Filled by `run/block.rs`, shown by `report/block.rs`.

use serde::{Deserialize, Serialize};

use super::answers::{Errors, Latency};

/// The result of a run: first users alone, then the same users beside attackers, each for the same
/// time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Blocked {
    /// Attempts of attackers.
    pub(crate) attempts: u64,
    /// Those that got a normal response.
    pub(crate) served: u64,
    /// Those that were refused, by how: `429` and other statuses, `reset`, `closed`, `refused`,
    /// `dropped`.
    pub(crate) blocked: Errors,
    /// The rest, by outcome.
    pub(crate) neither: Errors,
    /// Attempts that the limit lets through; None: no client is refused.
    pub(crate) allowed: Option<u64>,
    /// Attempts of attackers, counted for each attacker, that were served beyond what the limit
    /// lets through; None: no client is refused.
    pub(crate) beyond: Option<u64>,
    /// Users' requests during the attack.
    pub(crate) users: u64,
    /// Refused requests of users, over the whole run.
    pub(crate) users_blocked: u64,
    /// Users' latency from when a request was due, without attackers.
    pub(crate) alone: Latency,
    /// The proxy's core without attackers.
    pub(crate) alone_core: Core,
    /// The proxy's core during the attack.
    pub(crate) attacked_core: Core,
    /// The share of the attack in which the generator's core was busy.
    pub(crate) generator_busy: f64,
    /// Attackers' attempts a second.
    pub(crate) attempts_per_second: f64,
    /// From each attacker's first attempt beyond the limit to its first refused one, microseconds.
    /// An attacker that was never refused has the whole time of the attack. Empty: no client is
    /// refused.
    pub(crate) time_to_block_us: Vec<u64>,
    /// Second by second. Attackers come in the middle.
    #[serde(default)]
    pub(crate) timeline: Vec<Moment>,
}

/// A second of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moment {
    /// Seconds from the beginning of the counted time.
    pub(crate) second: u32,
    /// Percentiles of users' latency from when a request was due, microseconds; None: none was
    /// answered.
    pub(crate) p50_us: Option<u64>,
    /// The same.
    pub(crate) p99_us: Option<u64>,
    /// Attempts of attackers that got a normal response.
    pub(crate) served: u64,
    /// Those that were refused.
    pub(crate) blocked: u64,
}

/// What a core did, as shares of the time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Core {
    /// Neither idle nor taken by the host, whatever it worked for.
    pub(crate) busy: f64,
    /// The part of it in which it handled packets and other interrupts, as the kernel samples it.
    pub(crate) softirq: f64,
    /// The proxy's processes.
    pub(crate) proxy: f64,
}

impl Core {
    /// Returns the share of other programs, as far as it can be known: what the kernel handles
    /// while the proxy runs counts twice.
    pub(crate) fn others(self) -> f64 {
        (self.busy - self.softirq - self.proxy).max(0.0)
    }
}

impl Blocked {
    /// Returns the number of refused attempts.
    pub(crate) fn all_blocked(&self) -> u64 {
        self.blocked.values().sum()
    }

    /// Returns a count as a share of the attempts, percent; NaN without attempts.
    pub(crate) fn percent(&self, count: u64) -> f64 {
        count as f64 / self.attempts as f64 * 100.0
    }

    /// Returns the cost of an attacker's attempt for the proxy's core, whatever its outcome,
    /// microseconds. NaN where the attack made no core busier.
    pub(crate) fn attempt_us(&self) -> f64 {
        let more =
            (self.attacked_core.busy - self.alone_core.busy) * 1e6 / self.attempts_per_second;
        if more > 0.0 { more } else { f64::NAN }
    }

    /// Returns the part of that cost that is due to the proxy's processes, including the packets
    /// that the kernel handled while they ran. NaN as above.
    pub(crate) fn attempt_own_us(&self) -> f64 {
        let more =
            (self.attacked_core.proxy - self.alone_core.proxy) * 1e6 / self.attempts_per_second;
        if more > 0.0 { more } else { f64::NAN }
    }

    /// Returns the attempts served beyond the limit, percent of what it lets through; NaN where no
    /// client is refused.
    pub(crate) fn over_service_percent(&self) -> f64 {
        let of = |count: Option<u64>| count.map_or(f64::NAN, |count| count as f64);
        of(self.beyond) / of(self.allowed) * 100.0
    }

    /// Returns the slowest block of a hundred attackers, ms; with fewer attackers the slowest of
    /// all. NaN where no client is refused.
    pub(crate) fn time_to_block_p99_ms(&self) -> f64 {
        let mut times = self.time_to_block_us.clone();
        times.sort_unstable();
        let rank = (times.len() as f64 * 0.99).ceil() as usize;
        times.get(rank.wrapping_sub(1)).map_or(f64::NAN, |us| *us as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_attack_alone() {
        let blocked = Blocked {
            attempts: 1000,
            served: 110,
            blocked: [("429".to_owned(), 800), ("reset".to_owned(), 90)].into(),
            allowed: Some(100),
            beyond: Some(10),
            alone_core: Core { busy: 0.1, ..Core::default() },
            attacked_core: Core { busy: 0.3, softirq: 0.05, proxy: 0.1 },
            attempts_per_second: 10_000.0,
            time_to_block_us: vec![3000, 1000, 2000],
            ..Blocked::default()
        };
        assert_eq!((blocked.all_blocked(), blocked.percent(890)), (890, 89.0));
        let figures =
            [blocked.attempt_us(), blocked.attempt_own_us(), blocked.over_service_percent()];
        assert_eq!(figures.map(f64::round), [20.0, 10.0, 10.0]);
        assert!((blocked.attacked_core.others() - 0.15).abs() < 1e-9);
        assert_eq!(blocked.time_to_block_p99_ms(), 3.0);
    }

    #[test]
    fn what_is_not_limited_has_no_such_figures() {
        let open = Blocked { attempts: 10, attempts_per_second: 1.0, ..Blocked::default() };
        let figures = [open.attempt_us(), open.over_service_percent(), open.time_to_block_p99_ms()];
        assert!(figures.iter().all(|figure| figure.is_nan()), "{figures:?}");
    }
}
