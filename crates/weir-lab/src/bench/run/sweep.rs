//! A short sweep before a cell is measured: each rival gets the cheapest of its candidate settings
//! that is not slower than another.
//!
//! Called by `rounds.rs` before contenders start. Candidates run one after the other and back (A B
//! B A), each freshly started, so that a machine that becomes slower or faster favours none. A
//! choice holds for all cells of the same kind. Bounds: the candidates of `experiment/tuning.rs`,
//! once in a quick run and twice else, for the seconds that [`Sweeps`] is given.

use std::io;

use super::load::{self, Times};
use super::stage::Stage;
use crate::bench::experiment::cells::Cell;
use crate::bench::experiment::contenders::Contender;
use crate::bench::experiment::metric::Metric;
use crate::bench::experiment::tuning::{Kind, Tuning, USUAL, candidates, probe};
use crate::bench::record::sweep::{Sweep, Tried};

/// What was chosen so far.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    known: Vec<(Kind, Tuning)>,
    /// What the report shows, in the order of `known`.
    pub(crate) all: Vec<Sweep>,
}

impl Sweeps {
    /// The setting of a contender in a cell: known from a cell of the same kind, or found now by
    /// runs of `times`.
    ///
    /// # Errors
    /// The contender doesn't start, a run fails, or the user interrupts.
    pub(super) fn choose(
        &mut self,
        stage: &Stage,
        cell: &Cell,
        contender: Contender,
        (times, is_quick): (Times, bool),
    ) -> io::Result<Tuning> {
        let Some(closed) = probe(cell) else { return Ok(USUAL) };
        let candidates = candidates(contender, closed);
        if candidates.is_empty() {
            return Ok(USUAL);
        }
        let kind = Kind::of(contender, cell, closed);
        if let Some(at) = self.known.iter().position(|(known, _)| *known == kind) {
            self.all[at].cells.push(cell.name.clone());
            return Ok(self.known[at].1);
        }
        let mut tried: Vec<Tried> = candidates.iter().map(unmeasured).collect();
        for at in turns(candidates.len(), is_quick) {
            let running = stage.start_tuned(contender, cell, candidates[at])?;
            let record = load::closed(stage, &running, closed, times)?;
            tried[at].cpu_us.push(record.figure(Metric::Cpu));
            tried[at].rates.push(record.figure(Metric::Rate));
            tried[at].failures += record.errors.values().sum::<u64>();
        }
        let sweep = Sweep::of(contender.name, &cell.name, tried);
        eprintln!("  {}", sweep.text());
        let chosen = candidates[sweep.chosen];
        self.known.push((kind, chosen));
        self.all.push(sweep);
        Ok(chosen)
    }
}

fn unmeasured(candidate: &Tuning) -> Tried {
    Tried { setting: candidate.name.to_owned(), cpu_us: Vec::new(), rates: Vec::new(), failures: 0 }
}

/// Returns the order in which candidates run.
fn turns(candidates: usize, is_quick: bool) -> Vec<usize> {
    let there = 0..candidates;
    if is_quick { there.collect() } else { there.clone().chain(there.rev()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_go_there_and_back() {
        assert_eq!(turns(2, false), [0, 1, 1, 0]);
        assert_eq!(turns(3, true), [0, 1, 2]);
    }
}
