//! Accounts that those share for whom the table has no room: of a limit that counts by values, so that nobody makes it forget by inventing values.
//!
//! One of [`CELLS`] is a value's, by its keyed hash: so a guesser can't choose with whom he shares, and keeps out only those few who come upon his,
//! and only if they have no account either. What is owed in a cell is owed by whoever gets an account of his own as well, if he owes nothing there: a place that
//! becomes free is no new beginning. Called by [`super::table::Table`]. Bound: [`CELLS`], which are made when they are first needed.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Accounts of one limit.
pub const CELLS: usize = 4096;

/// What is owed in them.
#[derive(Debug, Default)]
pub struct Shared(OnceLock<Box<[AtomicU64]>>);

impl Shared {
    /// The account of a value with this tag, which is made if need be.
    pub(super) fn cell(&self, tag: u64) -> &AtomicU64 {
        let cells = self.0.get_or_init(|| (0..CELLS).map(|_| AtomicU64::new(0)).collect());
        &cells[cell_of(tag)]
    }

    /// What is owed in it.
    pub(super) fn due(&self, tag: u64) -> u64 {
        self.0.get().map_or(0, |cells| cells[cell_of(tag)].load(SeqCst))
    }
}

/// The place of a tag, by bits of it that say nothing of its bucket.
pub(super) fn cell_of(tag: u64) -> usize {
    (tag >> 48) as usize % CELLS
}
