//! Whose a file is that outlives processes: the two of an upgrade have it one after the other ([`Turn`]), and of others one ([`Claim`]).
//!
//! Called by those who keep files (`bans`, `snapshot`).

use std::path::Path;

use super::claim::{Claim, Taken};

/// Which process of an upgrade has the files, and whatever goes with them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The one before, still.
    Before,
    /// This one.
    #[default]
    Now,
    /// The next one, by now.
    After,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    turn: Turn,
    claim: Claim,
}

impl Hold {
    /// Of no file yet. `waits`: the process before has it until [`Hold::enter`].
    pub(crate) fn new(waits: bool) -> Hold {
        Hold { turn: if waits { Turn::Before } else { Turn::Now }, claim: Claim::default() }
    }

    pub(crate) fn turn(&self) -> Turn {
        self.turn
    }

    /// This file is wanted from now on, or none; another one is let go.
    pub(crate) fn want(&mut self, path: Option<&Path>) {
        self.claim.want(path);
    }

    /// The process before has it no more. False: it had not.
    pub(crate) fn enter(&mut self) -> bool {
        let has_waited = self.turn == Turn::Before;
        if has_waited {
            self.turn = Turn::Now;
        }
        has_waited
    }

    /// From now on it is the next process's.
    pub(crate) fn leave(&mut self) {
        self.turn = Turn::After;
        self.claim.let_go();
    }

    /// From now on it is whoever's takes it.
    pub(crate) fn let_go(&mut self) {
        self.claim.let_go();
    }

    /// Takes it, if it is this process's turn and nobody else has it. Never waits: who is told that others have it may try again.
    pub(crate) fn take(&mut self) -> Taken {
        if self.turn == Turn::Now { self.claim.take() } else { Taken::Before }
    }

    /// It is this process's, as far as that can be known.
    pub(crate) fn is_ours(&self) -> bool {
        self.turn == Turn::Now && self.claim.is_ours()
    }
}
