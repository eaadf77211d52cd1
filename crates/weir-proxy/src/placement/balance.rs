//! Chooses the server of an upstream that gets the next request.
//!
//! The servers' side keeps one [`Balance`] for each upstream with several servers (a single server
//! needs none). It asks which of several equally good servers to choose ([`Balance::choose`], which
//! changes nothing), and then reports the one that was taken ([`Balance::took`]). Each method is a
//! file: [`ratio`], [`dynamic`] and [`predict`] (weights that follow the response time, known from
//! [`measure`]), [`least`], [`hash`]; workers share their knowledge in [`shared`]. Cost: two or
//! three passes over the servers, no allocation; weights are computed every [`TICK_US`].
//! docs/failover.md#how-weir-chooses-a-server, docs/balancing.md.

mod dynamic;
mod hash;
mod least;
pub(crate) mod measure;
mod predict;
mod ratio;
mod shared;

use dynamic::Dynamic;
use hash::Rendezvous;
pub(crate) use hash::hash_key;
use least::Least;
pub use measure::Measure;
use predict::Trend;
use ratio::Ratio;
pub use shared::Shared;

use crate::plan::{ServerPlan, UpstreamPlan};

/// Variable weights are computed this often, when there is traffic.
pub const TICK_US: u64 = 50_000;
/// A weight of 1 in the units of the computation: fine enough for a hundredth of it.
const WEIGHT_UNIT: i64 = 10_000;
/// A server that has just recovered gets one part in this many of its weight.
const SLOW_START_PARTS: u64 = 10;

/// Unanswered requests that a server may have where load is bounded, in percent of its fair share.
const LOAD_PERCENT: u64 = 125;
/// A server may always have this many: with few requests at a time a bound would only disturb.
const LOAD_MIN: u64 = 4;

/// `balance` of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Method {
    /// By `weight`. The default.
    #[default]
    Ratio,
    /// By `weight` and response time.
    Dynamic(Statistic),
    /// By `weight` and the response time that is to be expected.
    Predict {
        /// Which response time.
        by: Statistic,
        /// How far back the trend reaches, 1 s to 1 h. Default 30 s.
        past_us: u64,
        /// How far ahead it is drawn, 0 to 1 h. Default 15 s.
        ahead_us: u64,
    },
    /// The less loaded of two.
    Least,
    /// The same server for the same key.
    Hash(Key),
}

impl Method {
    /// Returns the statistic of response times that the method uses, if any.
    pub(crate) fn statistic(&self) -> Option<Statistic> {
        match self {
            Method::Dynamic(by) | Method::Predict { by, .. } => Some(*by),
            Method::Ratio | Method::Least | Method::Hash(_) => None,
        }
    }
}

/// The number that represents the response times of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// The shortest.
    Min,
    /// The mean.
    Avg,
    /// The longest.
    Max,
    /// The time that this many of 10,000 do not exceed.
    Percentile(u32),
}

/// The property of a request that is hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// Path and query as the client sent them.
    Uri,
    /// The address of the client.
    ClientIp,
    /// A field of this name, the first one.
    Header(String),
    /// A cookie of this name, the first one.
    Cookie(String),
}

/// The state of the method.
#[derive(Debug, Clone)]
enum Picker {
    Ratio(Ratio),
    Dynamic(Ratio, Dynamic),
    Least(Least),
    Hash(Rendezvous, Least),
}

/// The state of the servers of one upstream, by index.
#[derive(Debug, Clone)]
pub struct Balance {
    picker: Picker,
    /// As configured, in units.
    configured: Vec<i64>,
    /// As they are now, in units, at least 1.
    weights: Vec<i64>,
    backups: Vec<bool>,
    /// Unanswered requests, of all workers, at the last [`Balance::begin`], plus those that were
    /// placed since.
    loads: Vec<u32>,
    slow_start_us: u64,
    due_us: u64,
    turn: u64,
}

/// Bounded load: no server gets far more than its fair share of the unanswered requests.
#[derive(Debug, Clone, Copy)]
struct Bound {
    /// Unanswered requests of all servers together.
    load: u64,
    /// The sum of their weights, above 0.
    weight: u64,
    /// The load of a server relative to its fair share, at most, percent.
    percent: u64,
}

impl Bound {
    /// Counts a server that may be chosen.
    fn add(&mut self, load: u32, weight: i64) {
        (self.load, self.weight) = (self.load + u64::from(load), self.weight + weight as u64);
    }

    /// Whether a server with this load and weight may have one more.
    fn has_room(self, load: u32, weight: i64) -> bool {
        let fair = u128::from((self.load + 1) * self.percent) * weight as u128;
        let most = fair.div_ceil(100 * u128::from(self.weight)) as u64;
        u64::from(load) < most.max(LOAD_MIN)
    }
}

/// Measurements of a server for the computation of weights.
#[derive(Debug, Clone, Copy, Default)]
pub struct Finding {
    /// When it last recovered; 0: it never failed.
    pub recovered_us: u64,
    /// Its response time in microseconds, over all workers; None: not known.
    pub response_us: Option<u64>,
}

impl Balance {
    /// Returns the state for the servers of this upstream. Each worker starts at another server.
    pub fn new(plan: &UpstreamPlan, worker: u16, seed: u64) -> Balance {
        let servers = plan.servers.len();
        let configured: Vec<i64> = plan
            .servers
            .iter()
            .map(|one| i64::from(one.weight_now().max(1)) * WEIGHT_UNIT)
            .collect();
        let least = || Least::new(seed ^ u64::from(worker) << 32);
        let ratio = || Ratio::new(&configured, worker);
        let picker = match &plan.balance {
            Method::Ratio => Picker::Ratio(ratio()),
            Method::Dynamic(_) => Picker::Dynamic(ratio(), Dynamic::new(&configured, None)),
            Method::Predict { past_us, ahead_us, .. } => Picker::Dynamic(
                ratio(),
                Dynamic::new(&configured, Some(Trend::new(*past_us, *ahead_us))),
            ),
            Method::Least => Picker::Least(least()),
            Method::Hash(_) => {
                let names = plan.servers.iter().map(|server| server.name.as_bytes());
                Picker::Hash(Rendezvous::new(names), least())
            }
        };
        let follows = plan.slow_start_us > 0 || matches!(picker, Picker::Dynamic(..));
        Balance {
            picker,
            weights: configured.clone(),
            configured,
            backups: plan.servers.iter().map(|server| server.backup).collect(),
            loads: vec![0; servers],
            slow_start_us: plan.slow_start_us,
            due_us: if follows { 0 } else { u64::MAX },
            turn: u64::MAX,
        }
    }

    /// Whether two servers of the configuration are the same to every method.
    pub(crate) fn is_same(one: &ServerPlan, other: &ServerPlan) -> bool {
        (&one.name, one.weight_now(), one.backup) == (&other.name, other.weight_now(), other.backup)
    }

    /// Whether [`Balance::reweigh`] is due.
    #[inline]
    pub fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.due_us
    }

    /// Recomputes the weights.
    pub fn reweigh(&mut self, now_us: u64, finding: impl Fn(usize) -> Finding) {
        let since_us = now_us.saturating_sub(self.due_us.saturating_sub(TICK_US));
        self.due_us = now_us + TICK_US;
        for (at, configured) in self.configured.iter().enumerate() {
            self.weights[at] =
                slow_started(*configured, finding(at).recovered_us, now_us, self.slow_start_us);
        }
        if let Picker::Dynamic(_, dynamic) = &mut self.picker {
            dynamic.reweigh(now_us, since_us, &mut self.weights, |at| finding(at).response_us);
        }
    }

    /// Whether the choice depends on the numbers of unanswered requests.
    #[inline]
    pub fn uses_loads(&self) -> bool {
        !matches!(self.picker, Picker::Ratio(_))
    }

    /// Whether [`Balance::begin`] is to be called before a choice in this turn.
    #[inline]
    pub fn wants_loads(&self, turn: u64) -> bool {
        self.uses_loads() && self.turn != turn
    }

    /// Begins a turn with the number of unanswered requests of each server.
    pub fn begin(&mut self, turn: u64, load: impl Fn(usize) -> u32) {
        self.turn = turn;
        self.loads.iter_mut().enumerate().for_each(|(at, mine)| *mine = load(at));
    }

    /// Whether requests may use any server with room; with `hash` each has a particular one.
    #[inline]
    pub fn may_roam(&self) -> bool {
        !matches!(self.picker, Picker::Hash(..))
    }

    /// Chooses among these servers, which are in the order of the plan; None when the list is
    /// empty.
    #[inline]
    pub fn choose(&self, key: Option<u64>, among: &[usize]) -> Option<usize> {
        let (weights, loads, servers) = (&self.weights, &self.loads, among.iter().copied());
        match (&self.picker, key) {
            (Picker::Ratio(ratio), _) => ratio.next(weights, servers),
            (Picker::Dynamic(ratio, dynamic), _) => {
                let has_room = dynamic.has_room(loads);
                ratio
                    .next(weights, servers.clone().filter(|at| has_room(*at)))
                    .or_else(|| ratio.next(weights, servers))
            }
            (Picker::Hash(hash, _), Some(key)) => hash.pick(key, weights, loads, servers),
            (Picker::Least(least) | Picker::Hash(_, least), _) => least.next(weights, loads, among),
        }
    }

    /// Notes that a request is sent to the server that was [chosen](Balance::choose) among these.
    #[inline]
    pub fn took(&mut self, key: Option<u64>, among: &[usize], chosen: usize) {
        let (weights, servers) = (&self.weights, among.iter().copied());
        match (&mut self.picker, key) {
            (Picker::Ratio(ratio), _) => return ratio.took(weights, servers, chosen),
            (Picker::Dynamic(ratio, dynamic), _) => {
                let has_room = dynamic.has_room(&self.loads);
                // A server without room is chosen only if none has any.
                let all = !has_room(chosen);
                ratio.took(weights, servers.filter(|at| all || has_room(*at)), chosen);
            }
            (Picker::Hash(..), Some(_)) => {}
            (Picker::Least(least) | Picker::Hash(_, least), _) => least.took(among.len()),
        }
        self.note(chosen);
    }

    /// With `hash`: appends the servers in the order of a key, overloaded ones after all others.
    /// `failed` is left out, and the order begins behind it.
    pub fn order_behind(
        &self,
        key: u64,
        failed: Option<usize>,
        usable: impl Fn(usize) -> bool,
        order: &mut Vec<usize>,
    ) {
        if let Picker::Hash(hash, _) = &self.picker {
            hash.order_behind(key, failed, &self.weights, &self.loads, usable, order);
        }
    }

    /// Notes a request that is sent to a server without a choice.
    pub fn note(&mut self, at: usize) {
        self.loads[at] = self.loads[at].saturating_add(1);
    }

    /// Whether a server is a backup.
    #[inline]
    pub fn is_backup(&self, at: usize) -> bool {
        self.backups[at]
    }

    /// Whether any server is a backup.
    #[inline]
    pub fn has_backups(&self) -> bool {
        self.backups.contains(&true)
    }
}

/// Returns the weight of a server that recovered at `recovered_us`. It grows evenly from a tenth to
/// the whole, which it reaches after `slow_start_us`.
fn slow_started(configured: i64, recovered_us: u64, now_us: u64, slow_start_us: u64) -> i64 {
    let since_us = now_us.saturating_sub(recovered_us);
    if recovered_us == 0 || since_us >= slow_start_us {
        return configured;
    }
    let part = (since_us as f64 / slow_start_us as f64).max(1.0 / SLOW_START_PARTS as f64);
    ((configured as f64 * part) as i64).max(1)
}

#[cfg(test)]
mod tests;
