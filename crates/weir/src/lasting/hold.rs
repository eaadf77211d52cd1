//! Decides which process may use a file that outlives processes: the two of an upgrade take turns
//! ([`Turn`]), and other processes exclude each other ([`Claim`]).
//!
//! Used by the owners of files (`bans`, `snapshot`).

use std::path::Path;

use super::claim::{Claim, Taken};

/// Which process of an upgrade owns the files, and related tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The predecessor, still.
    Before,
    /// This process.
    #[default]
    Now,
    /// The successor, by now.
    After,
}

/// This process's turn, and its claim.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    turn: Turn,
    claim: Claim,
}

impl Hold {
    /// Without a file. `waits`: the previous process owns the file until [`Hold::enter`].
    pub(crate) fn new(waits: bool) -> Hold {
        Hold { turn: if waits { Turn::Before } else { Turn::Now }, claim: Claim::default() }
    }

    pub(crate) fn turn(&self) -> Turn {
        self.turn
    }

    /// Sets which file is wanted from now on, if any, and releases another one.
    pub(crate) fn want(&mut self, path: Option<&Path>) {
        self.claim.want(path);
    }

    /// The predecessor no longer owns the file. False: it did not.
    pub(crate) fn enter(&mut self) -> bool {
        let has_waited = self.turn == Turn::Before;
        if has_waited {
            self.turn = Turn::Now;
        }
        has_waited
    }

    /// From now on it belongs to the successor.
    pub(crate) fn leave(&mut self) {
        self.turn = Turn::After;
        self.claim.let_go();
    }

    /// Releases it; any process may take it from now on.
    pub(crate) fn let_go(&mut self) {
        self.claim.let_go();
    }

    /// Takes the file if it is this process's turn and no other process has it. Never waits: if
    /// another process has it, the caller may try again.
    pub(crate) fn take(&mut self) -> Taken {
        if self.turn == Turn::Now { self.claim.take() } else { Taken::Before }
    }

    /// It is this process's, as far as that can be known.
    pub(crate) fn is_ours(&self) -> bool {
        self.turn == Turn::Now && self.claim.is_ours()
    }
}
