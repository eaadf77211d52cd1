//! Whether connections to a server live for more than one answer: shared by all workers, without locks.
//! docs/connections.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Their connections live for more than one answer.
const KEPT: u8 = 1;
/// They end with their first one.
const SINGLE: u8 = 2;

/// Whether a server's connections live for more than one answer: what any worker has seen last, for all of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lasting(Arc<AtomicU8>);

impl Lasting {
    /// Whether they have been seen to.
    pub(crate) fn is_kept(&self) -> bool {
        self.0.load(Ordering::Relaxed) == KEPT
    }

    /// Whether the last one ended with its first answer, as the server had announced: the next one may too. Believed at once,
    /// because an idle connection may keep such a server from everybody else.
    pub(crate) fn is_single(&self) -> bool {
        self.0.load(Ordering::Relaxed) == SINGLE
    }

    /// A connection has given a second answer, or lived on for a while behind its first one.
    pub(crate) fn on_kept(&self) {
        self.set(KEPT);
    }

    /// A connection has ended with its first answer, as announced.
    pub(crate) fn on_single(&self) {
        self.set(SINGLE);
    }

    /// One was to go on behind its first answer: it may still end without a word.
    pub(crate) fn on_promised(&self) {
        if self.is_single() {
            self.set(0);
        }
    }

    /// It is another server.
    pub(crate) fn forget(&self) {
        self.set(0);
    }

    fn set(&self, word: u8) {
        if self.0.load(Ordering::Relaxed) != word {
            self.0.store(word, Ordering::Relaxed);
        }
    }
}
