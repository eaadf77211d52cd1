//! Decides which name weir resolves next. Each client or user has its own line, so names that are
//! never answered delay only the client or user that asked for them. Pure. Called by `names`.
//!
//! The next turn goes to the asker that has the fewest, and among those to the name that has waited
//! longest. An asker may have as many turns as are free ([`Shares`]). Bound: the waiting tickets
//! are those of open errands.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use weir_proxy::forward::shares::{Asker, Shares};

/// A waiting name, in the order of numbers. It may be in several lines.
pub(crate) type Ticket = (u64, Rc<str>);

/// Turns, and the lines of those that wait for one.
#[derive(Debug)]
pub(crate) struct Turns {
    shares: Shares,
    /// Empty lines are removed.
    lines: HashMap<Asker, BTreeSet<Ticket>>,
    /// All lines: the asker's number of turns, the number of its first ticket, and the asker.
    order: BTreeSet<(usize, u64, Asker)>,
}

impl Turns {
    /// Allows this many turns at once.
    pub(crate) fn new(max: usize) -> Turns {
        Turns { shares: Shares::new(max), lines: HashMap::new(), order: BTreeSet::new() }
    }

    /// Puts a ticket into an asker's line, unless it is there already.
    pub(crate) fn wait(&mut self, asker: &Asker, ticket: Ticket) {
        self.change(asker, |_, line| line.insert(ticket));
    }

    /// Takes a ticket out of an asker's line, if it is there.
    pub(crate) fn withdraw(&mut self, asker: &Asker, ticket: &Ticket) {
        self.change(asker, |_, line| line.remove(ticket));
    }

    /// Gives the next turn: returns the asker and its first ticket. The ticket remains in other
    /// lines.
    pub(crate) fn next(&mut self) -> Option<(Asker, Ticket)> {
        // If any asker has room, the one with the fewest turns has.
        let (_, _, asker) =
            self.order.first().filter(|(_, _, asker)| self.shares.has_room(asker))?.clone();
        let ticket = self.change(&asker, |shares, line| {
            shares.enter(&asker);
            line.pop_first()
        });
        ticket.map(|ticket| (asker, ticket))
    }

    /// Takes a turn back.
    pub(crate) fn leave(&mut self, asker: &Asker) {
        self.change(asker, |shares, _| shares.leave(asker));
    }

    /// Changes an asker's line or turns, and its place in the order accordingly.
    fn change<R>(
        &mut self,
        asker: &Asker,
        change: impl FnOnce(&mut Shares, &mut BTreeSet<Ticket>) -> R,
    ) -> R {
        let line = self.lines.entry(asker.clone()).or_default();
        if let Some((first, _)) = line.first() {
            self.order.remove(&(self.shares.count(asker), *first, asker.clone()));
        }
        let result = change(&mut self.shares, line);
        match line.first() {
            Some((first, _)) => {
                self.order.insert((self.shares.count(asker), *first, asker.clone()));
            }
            None => {
                self.lines.remove(asker);
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    //! Proves: turns rotate between those that wait, no asker exceeds its share, and nothing
    //! remains of askers that have left.

    use super::*;

    fn asker(last: u8) -> Asker {
        Asker::of(None, [192, 0, 2, last].into())
    }

    fn ticket(number: u64) -> Ticket {
        (number, number.to_string().into())
    }

    /// Returns the numbers of all turns that can be given now.
    fn given(turns: &mut Turns) -> Vec<u64> {
        std::iter::from_fn(|| turns.next().map(|(_, (number, _))| number)).collect()
    }

    #[test]
    fn nobody_waits_behind_the_line_of_another() {
        let mut turns = Turns::new(8);
        (0..100).for_each(|number| turns.wait(&asker(1), ticket(number)));
        assert_eq!(given(&mut turns), [0, 1, 2, 3], "half of all");
        (100..200).for_each(|number| turns.wait(&asker(2), ticket(number)));
        turns.wait(&asker(3), ticket(200));
        assert_eq!(
            given(&mut turns),
            [100, 200, 101],
            "the fewest first, then who has waited longest"
        );
        turns.leave(&asker(1));
        assert!(given(&mut turns).is_empty(), "two are free, and each of both has as many");
        turns.wait(&asker(4), ticket(201));
        assert_eq!(given(&mut turns), [201]);
        turns.leave(&asker(2));
        turns.leave(&asker(2));
        assert_eq!(given(&mut turns), [102, 103]);
    }

    #[test]
    fn a_ticket_may_stand_in_several_lines() {
        let mut turns = Turns::new(4);
        (0..10).for_each(|number| turns.wait(&asker(1), ticket(number)));
        assert_eq!(given(&mut turns), [0, 1]);
        turns.wait(&asker(2), ticket(9));
        turns.wait(&asker(2), ticket(9));
        assert_eq!(turns.next(), Some((asker(2), ticket(9))), "its turn comes by the shorter line");
        turns.withdraw(&asker(1), &ticket(9));
        turns.withdraw(&asker(3), &ticket(9));
        (2..9).for_each(|number| turns.withdraw(&asker(1), &ticket(number)));
        [1, 1, 2].iter().for_each(|last| turns.leave(&asker(*last)));
        assert!(turns.next().is_none() && turns.lines.is_empty() && turns.order.is_empty());
        turns.wait(&asker(1), ticket(11));
        turns.wait(&asker(1), ticket(10));
        assert_eq!(given(&mut turns), [10, 11]);
    }
}
