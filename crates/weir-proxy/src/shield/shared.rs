//! Accounts that those share for whom the table has no room: of a limit that counts by values, so that nobody makes it forget by inventing values.
//!
//! One of [`CELLS`] is a value's, by its keyed hash: so a guesser can't choose with whom he shares, and keeps out only those few who come upon his,
//! and only if they have no account either. What is owed in a cell is owed by whoever gets an account of his own as well, if he owes nothing there: a place that
//! becomes free is no new beginning. Called where a request is judged. Bound: [`CELLS`], which are made when they are first needed.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use super::limit::{Rate, Verdict};
use super::table::{Charged, Name, Table};

/// Accounts of one limit.
pub const CELLS: usize = 4096;

/// What is owed in them.
#[derive(Debug, Default)]
pub struct Shared(OnceLock<Box<[AtomicU64]>>);

impl Shared {
    /// Charges one request to what it says: to its own account, or where the table has no room for that to the one that it shares here. True: it
    /// is shared.
    pub(crate) fn charge(&self, table: &Table, name: &Name, slot: usize, rate: &Rate, now_us: u64) -> (Verdict, bool) {
        match table.charge_above(name, None, (slot, self.due(name)), rate, now_us) {
            Charged::At(_, verdict) => (verdict, false),
            Charged::Untracked => (rate.charge(self.cell(name), now_us), true),
        }
    }

    /// What [`Shared::charge`] would say; nothing is charged.
    pub(crate) fn look(&self, table: &Table, name: &Name, slot: usize, rate: &Rate, now_us: u64) -> Verdict {
        rate.look_above(table.due(name, slot), self.due(name), now_us)
    }

    /// The account that a value shares, which is made if need be.
    fn cell(&self, name: &Name) -> &AtomicU64 {
        let cells = self.0.get_or_init(|| (0..CELLS).map(|_| AtomicU64::new(0)).collect());
        &cells[cell_of(name.tag())]
    }

    /// What is owed in it.
    fn due(&self, name: &Name) -> u64 {
        self.0.get().map_or(0, |cells| cells[cell_of(name.tag())].load(SeqCst))
    }
}

/// The place of a tag, by bits of it that say nothing of its bucket.
pub(super) fn cell_of(tag: u64) -> usize {
    (tag >> 48) as usize % CELLS
}
