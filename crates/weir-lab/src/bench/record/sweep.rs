//! The settings that a rival was tried with before it was measured, the result of each, and the
//! chosen one.
//!
//! Filled by `run/sweep.rs`; each is a line of the raw file, and a line below the tables of its
//! cells.

use serde::Serialize;

/// The choice for one contender in some cells.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sweep {
    /// The contender that was configured.
    pub(crate) contender: String,
    /// Names of the cells with this choice. The first is the one in which candidates were tried.
    pub(crate) cells: Vec<String>,
    /// All candidates, in their order.
    pub(crate) tried: Vec<Tried>,
    /// The index of the candidate that the contender got.
    pub(crate) chosen: usize,
}

/// A candidate and its short runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Tried {
    /// Its name.
    pub(crate) setting: String,
    /// Processor time a request in each run, microseconds.
    pub(crate) cpu_us: Vec<f64>,
    /// Responses a second in each run.
    pub(crate) rates: Vec<f64>,
    /// Requests that failed in all runs.
    pub(crate) failures: u64,
}

/// How much cheaper than the first candidate, which is the usual setting, another has to be: less
/// is chance.
const CHEAPER: f64 = 0.98;
/// A candidate needs this share of the best rate. A candidate below it is slower, and not by
/// chance.
const RATE_MIN: f64 = 0.97;

impl Tried {
    /// Returns the responses a second: the mean of its runs, of which there are two at most. NaN
    /// without runs.
    fn rate(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    /// Returns the cost of a request, microseconds: the mean of its runs. NaN without runs.
    pub(crate) fn mean_us(&self) -> f64 {
        self.cpu_us.iter().sum::<f64>() / self.cpu_us.len() as f64
    }
}

impl Sweep {
    /// Returns the choice among candidates that were tried. Candidates without failures whose rate
    /// is close to the best are eligible; it is the first of these unless another is clearly
    /// cheaper. Where all have failures it is the first.
    pub(crate) fn of(contender: &str, cell: &str, tried: Vec<Tried>) -> Sweep {
        let works = |one: &Tried| one.failures == 0 && !one.mean_us().is_nan();
        let best_rate = tried.iter().filter(|one| works(one)).map(Tried::rate).fold(0.0, f64::max);
        let is_eligible = |one: &Tried| works(one) && one.rate() >= best_rate * RATE_MIN;
        let first_us = tried.first().filter(|first| is_eligible(first)).map(Tried::mean_us);
        let cheapest = tried.iter().enumerate().filter(|(_, one)| is_eligible(one));
        let cheapest = cheapest.min_by(|a, b| a.1.mean_us().total_cmp(&b.1.mean_us()));
        let is_clear = |us: f64| first_us.is_none_or(|first_us| us < first_us * CHEAPER);
        let chosen = cheapest.filter(|(_, one)| is_clear(one.mean_us())).map_or(0, |(at, _)| at);
        Sweep { contender: contender.to_owned(), cells: vec![cell.to_owned()], tried, chosen }
    }

    /// Returns the text for people:
    /// `haproxy has tune.x 90 (6.1 us a request), by a sweep; tune.x 20 takes 13.0 us`.
    pub(crate) fn text(&self) -> String {
        let figure = |one: &Tried| format!("{:.1} µs", one.mean_us());
        let Some(chosen) = self.tried.get(self.chosen) else { return String::new() };
        let others = self.tried.iter().enumerate().filter(|(at, _)| *at != self.chosen);
        let others: Vec<_> =
            others.map(|(_, one)| format!("{}: {}", one.setting, figure(one))).collect();
        let (contender, setting, others) = (&self.contender, &chosen.setting, others.join(", "));
        format!(
            "{contender} has `{setting}`, {} a request in a short sweep ({others})",
            figure(chosen)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(setting: &str, cpu_us: &[f64]) -> Tried {
        let rates = vec![1000.0; cpu_us.len()];
        Tried { setting: setting.to_owned(), cpu_us: cpu_us.to_vec(), rates, failures: 0 }
    }

    #[test]
    fn the_cheapest_is_chosen_and_a_tie_changes_nothing() {
        let chosen = |all: &[&[f64]]| {
            let tried = all.iter().map(|cpu_us| tried("a", cpu_us)).collect();
            Sweep::of("haproxy", "c4000", tried).chosen
        };
        assert_eq!(chosen(&[&[13.0, 12.8], &[6.0, 6.2]]), 1);
        assert_eq!(chosen(&[&[6.0, 6.2], &[13.0, 12.8]]), 0);
        assert_eq!(chosen(&[&[10.0], &[9.9]]), 0, "within chance the usual setting stays");
        assert_eq!(chosen(&[&[10.0], &[9.0], &[8.0]]), 2);
        assert_eq!(chosen(&[&[], &[9.0]]), 1, "what could not be run is not chosen");
        assert_eq!(chosen(&[&[]]), 0);
    }

    #[test]
    fn what_is_slower_or_fails_is_not_chosen() {
        let chosen = |all: &[(f64, &[f64], u64)]| {
            let tried = all.iter().map(|(us, rates, failures)| {
                let (rates, failures) = (rates.to_vec(), *failures);
                Tried { rates, failures, ..tried("a", &[*us]) }
            });
            Sweep::of("haproxy", "c4000", tried.collect()).chosen
        };
        let usual = (10.0, &[1000.0, 1020.0][..], 0);
        assert_eq!(chosen(&[usual, (5.0, &[900.0], 0)]), 0, "cheaper, and slower by a tenth");
        assert_eq!(chosen(&[usual, (5.0, &[990.0], 0)]), 1, "not slower but by chance");
        assert_eq!(
            chosen(&[usual, (5.0, &[900.0], 0), (8.0, &[1000.0], 0)]),
            2,
            "the cheapest of the fast ones"
        );
        assert_eq!(chosen(&[usual, (11.0, &[1200.0], 0)]), 1, "the usual one is slower");
        assert_eq!(chosen(&[usual, (5.0, &[2000.0], 3)]), 0, "requests failed");
        assert_eq!(
            chosen(&[(10.0, &[2000.0], 1), (11.0, &[1000.0], 0)]),
            1,
            "requests of the usual one failed"
        );
        assert_eq!(chosen(&[(10.0, &[1000.0], 1), (5.0, &[1000.0], 1)]), 0);
    }

    #[test]
    fn the_report_names_the_choice_and_what_the_others_cost() {
        let sweep = Sweep::of(
            "haproxy",
            "c4000",
            vec![tried("ratio 20", &[13.0]), tried("ratio 90", &[6.1, 6.3])],
        );
        assert_eq!(
            sweep.text(),
            "haproxy has `ratio 90`, 6.2 µs a request in a short sweep (ratio 20: 13.0 µs)"
        );
        let raw = serde_json::to_value(&sweep).expect("JSON");
        assert_eq!((&raw["chosen"], &raw["tried"][0]["cpu_us"][0]), (&1.into(), &13.0.into()));
    }
}
