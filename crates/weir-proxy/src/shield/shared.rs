//! Shared accounts, for values that have no room in the table: inventing values cannot make a limit
//! forget.
//!
//! Each value has one of [`CELLS`], by its keyed hash. So a guesser cannot choose the values with
//! which it shares a cell. It keeps out only the few that share its cell, and only if they have no
//! account either. The debt of a cell also passes to a value that later gets an account and owes
//! nothing there: a place that becomes free is no fresh start. Called where a request is judged.
//! Bound: [`CELLS`], which are made when they are first needed.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use super::limit::{Rate, Verdict};
use super::table::{Charged, Name, Table};

/// Shared accounts of one limit.
pub const CELLS: usize = 4096;

/// The dues of the shared accounts.
#[derive(Debug, Default)]
pub struct Shared(OnceLock<Box<[AtomicU64]>>);

impl Shared {
    /// Charges one request to the account of its values or, if the table has no room, to the shared
    /// one. True: it is shared.
    pub(crate) fn charge(
        &self,
        table: &Table,
        name: &Name,
        slot: usize,
        rate: &Rate,
        now_us: u64,
    ) -> (Verdict, bool) {
        match table.charge_above(name, None, (slot, self.due(name)), rate, now_us) {
            Charged::At(_, verdict) => (verdict, false),
            Charged::Untracked => (rate.charge(self.cell(name), now_us), true),
        }
    }

    /// Returns what [`Shared::charge`] would say; charges nothing.
    pub(crate) fn look(
        &self,
        table: &Table,
        name: &Name,
        slot: usize,
        rate: &Rate,
        now_us: u64,
    ) -> Verdict {
        rate.look_above(table.due(name, slot), self.due(name), now_us)
    }

    /// Returns the shared account of a value, which is made if need be.
    fn cell(&self, name: &Name) -> &AtomicU64 {
        let cells = self.0.get_or_init(|| (0..CELLS).map(|_| AtomicU64::new(0)).collect());
        &cells[cell_of(name.tag())]
    }

    /// Returns the due of the shared account.
    fn due(&self, name: &Name) -> u64 {
        self.0.get().map_or(0, |cells| cells[cell_of(name.tag())].load(SeqCst))
    }
}

/// Returns the cell of a tag, by bits that are independent of its bucket.
pub(super) fn cell_of(tag: u64) -> usize {
    (tag >> 48) as usize % CELLS
}
