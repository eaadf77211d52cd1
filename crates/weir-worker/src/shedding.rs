//! Decides which worker is to give idle client connections away, to which worker, and how many. A
//! late worker can't do that itself, so the main thread decides, from the load board. Pure: the
//! time and the loads are given.

use std::time::Duration;

/// A worker with at most this cost never gives anything away, in nanoseconds: clients do not notice
/// it.
const COST_NS_MIN: u64 = 500_000;
/// And it costs more than this many times the cost of the median worker.
const TIMES_MEDIAN: u64 = 4;
/// How long this must hold, at each look, before each step.
const HOLDS: Duration = Duration::from_millis(100);
/// How long after giving connections away a worker is given none, and after being given some gives
/// none away.
const CALM: Duration = Duration::from_secs(1);
/// At most one in this number of its connections is moved in a step.
const SHARE: u32 = 10;

/// The load of one worker, as the load board has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// How long something new would wait for it, in nanoseconds.
    pub cost_ns: u64,
    /// Client connections that it holds.
    pub sessions: u32,
    /// It may be given connections: it accepts, does not drain, and is not late.
    pub takes: bool,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shed {
    /// The worker that gives away.
    pub from: usize,
    /// The worker that receives.
    pub to: usize,
    /// The maximum number of connections; at least 1.
    pub most: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Since when it has been costly at each look.
    costly_since: Option<Duration>,
    gave: Option<Duration>,
    given: Option<Duration>,
}

/// Decides at each look.
#[derive(Debug)]
pub struct Shedding {
    seen: Vec<Seen>,
    looked: Option<Duration>,
}

impl Shedding {
    /// For this number of workers.
    pub fn new(workers: usize) -> Shedding {
        Shedding { seen: vec![Seen::default(); workers], looked: None }
    }

    /// The steps to take at `now` (of any clock that never runs backwards), given the load of each
    /// worker. Call it every 20 ms or so; if it was not called for longer than 100 ms, earlier
    /// observations count for nothing.
    pub fn look(&mut self, now: Duration, loads: &[Load]) -> Vec<Shed> {
        let gap = self.looked.replace(now).is_none_or(|looked| now.saturating_sub(looked) > HOLDS);
        let costly = COST_NS_MIN.max(median_of(loads).saturating_mul(TIMES_MEDIAN));
        let mut steps = Vec::new();
        for from in 0..self.seen.len().min(loads.len()) {
            let seen = &mut self.seen[from];
            if loads[from].cost_ns <= costly || loads[from].sessions == 0 {
                seen.costly_since = None;
                continue;
            }
            let since = seen.costly_since.filter(|_| !gap).unwrap_or(now);
            seen.costly_since = Some(since);
            if now.saturating_sub(since) < HOLDS || is_recent(seen.given, now) {
                continue;
            }
            let Some(to) = self.receiver(from, now, loads) else { continue };
            self.seen[from].costly_since = Some(now);
            self.seen[from].gave = Some(now);
            self.seen[to].given = Some(now);
            steps.push(Shed { from, to, most: share_of(loads[from], loads[to].cost_ns) });
        }
        steps
    }

    /// Whether a worker was costly at the last look: then the next one is to come soon.
    pub fn is_on_watch(&self) -> bool {
        self.seen.iter().any(|seen| seen.costly_since.is_some())
    }

    /// The receiver of what `from` gives away: the worker with the least to do of those that are
    /// not costly themselves.
    fn receiver(&self, from: usize, now: Duration, loads: &[Load]) -> Option<usize> {
        let may = |(worker, load): &(usize, &Load)| {
            let fair = load.cost_ns <= loads[from].cost_ns / TIMES_MEDIAN;
            *worker != from && load.takes && fair && !is_recent(self.seen[*worker].gave, now)
        };
        let takers = loads.iter().enumerate().take(self.seen.len()).filter(may);
        takers.min_by_key(|(_, load)| (load.cost_ns, load.sessions)).map(|(worker, _)| worker)
    }
}

/// Up to a tenth of its connections, in proportion to how much less the receiver has to do.
fn share_of(from: Load, to_cost_ns: u64) -> u32 {
    let most = u64::from(from.sessions.div_ceil(SHARE));
    let less = u128::from(from.cost_ns.saturating_sub(to_cost_ns));
    let share = u128::from(most) * less / u128::from(from.cost_ns.max(1));
    u32::try_from(share).unwrap_or(u32::MAX).max(1)
}

fn is_recent(then: Option<Duration>, now: Duration) -> bool {
    then.is_some_and(|then| now.saturating_sub(then) < CALM)
}

/// The lower of the two in the middle, so that one of two workers can be costly.
fn median_of(loads: &[Load]) -> u64 {
    let mut costs: Vec<u64> = loads.iter().map(|load| load.cost_ns).collect();
    costs.sort_unstable();
    costs.get(costs.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    //! Proves: only a worker that is costly for a while gives connections away, to one that has
    //! time, never back and forth, never more than a share. How: rows of loads over time, and any
    //! sequence of them.

    use proptest::prelude::*;

    use super::*;

    const STEP: Duration = Duration::from_millis(20);

    fn load(cost_us: u64, sessions: u32) -> Load {
        Load { cost_ns: cost_us * 1000, sessions, takes: true }
    }

    /// The steps decided when the same loads are seen at each of `looks` looks.
    fn decided(loads: &[Load], looks: u32) -> Vec<(u32, Shed)> {
        let mut shedding = Shedding::new(loads.len());
        let look =
            |at: u32| shedding.look(STEP * at, loads).into_iter().map(move |step| (at, step));
        (0..looks).flat_map(look).collect()
    }

    #[test]
    fn a_costly_worker_gives_a_share_away_each_100_ms() {
        let loads = [load(2000, 64), load(100, 64)];
        let shed = Shed { from: 0, to: 1, most: 6 };
        assert_eq!(decided(&loads, 12), [(5, shed), (10, shed)]);
    }

    #[test]
    fn nobody_gives_when_nothing_is_wrong() {
        for loads in [
            vec![load(500, 64), load(0, 64)],
            vec![load(4000, 64), load(1000, 64)],
            vec![load(9000, 64)],
            vec![load(9000, 0), load(0, 64)],
            vec![load(9000, 9), Load { takes: false, ..load(0, 9) }],
            // Most of them are costly: that is load, and moving does not help.
            vec![load(9000, 9), load(8000, 9), load(0, 9)],
            vec![],
        ] {
            assert_eq!(decided(&loads, 50), [], "{loads:?}");
        }
    }

    #[test]
    fn one_look_in_which_it_was_well_starts_anew_and_so_does_a_gap() {
        let (bad, well) = ([load(2000, 64), load(0, 1)], [load(100, 64), load(0, 1)]);
        let mut shedding = Shedding::new(2);
        let looks: Vec<bool> = (0..12u32)
            .map(|at| !shedding.look(STEP * at, if at == 4 { &well } else { &bad }).is_empty())
            .collect();
        assert_eq!(looks.iter().position(|gave| *gave), Some(10));
        let mut shedding = Shedding::new(2);
        for at in [0, 40, 80, 181, 220, 260] {
            assert_eq!(shedding.look(Duration::from_millis(at), &bad), [], "at {at} ms");
        }
        assert_eq!(shedding.look(Duration::from_millis(281), &bad).len(), 1);
    }

    #[test]
    fn the_one_with_the_least_to_do_is_given_and_of_equals_the_one_with_the_fewest_connections() {
        let step = |loads: &[Load]| decided(loads, 6).first().map(|(_, step)| step.to);
        assert_eq!(step(&[load(9, 5), load(8000, 50), load(5, 70), load(20, 1)]), Some(2));
        assert_eq!(step(&[load(0, 5), load(8000, 50), load(0, 4), load(0, 9)]), Some(2));
    }

    proptest! {
        /// However the loads change: steps are from costly workers to accepting ones, and no worker
        /// both gives and is given within a second.
        #[test]
        fn never_back_and_forth(
            rows in proptest::collection::vec(
            proptest::collection::vec((0u64..20_000, 0u32..200, any::<bool>()), 4), 1..200),
        ) {
            let mut shedding = Shedding::new(4);
            let (mut gave, mut given) = ([None; 4], [None; 4]);
            for (at, row) in (0u32..).zip(rows) {
                let now = STEP * at;
                let loads: Vec<Load> = row
                    .into_iter()
                    .map(|(cost, sessions, takes)| Load { takes, ..load(cost, sessions) })
                    .collect();
                for Shed { from, to, most } in shedding.look(now, &loads) {
                    prop_assert!(
                        from != to && loads[to].takes && loads[from].cost_ns > COST_NS_MIN
                    );
                    prop_assert!((1..=loads[from].sessions.div_ceil(SHARE)).contains(&most));
                    prop_assert!(!is_recent(given[from], now) && !is_recent(gave[to], now));
                    (gave[from], given[to]) = (Some(now), Some(now));
                }
            }
        }
    }
}
