//! Whether connections to a server live for more than one response: shared by all workers, without
//! locks. docs/connections.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Their connections live for more than one response.
const KEPT: u8 = 1;
/// They end with their first one.
const SINGLE: u8 = 2;

/// Whether a server's connections live for more than one response: the last observation of any
/// worker, for all of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lasting(Arc<AtomicU8>);

impl Lasting {
    /// Whether they have been observed to.
    pub(crate) fn is_kept(&self) -> bool {
        self.0.load(Ordering::Relaxed) == KEPT
    }

    /// Whether the last one ended with its first response, as the server had announced: the next
    /// one may do so as well. Believed at once, because an idle connection may keep such a server
    /// from all other clients.
    pub(crate) fn is_single(&self) -> bool {
        self.0.load(Ordering::Relaxed) == SINGLE
    }

    /// A connection has given a second response, or lived on for a while behind its first one.
    pub(crate) fn on_kept(&self) {
        self.set(KEPT);
    }

    /// A connection has ended with its first response, as announced.
    pub(crate) fn on_single(&self) {
        self.set(SINGLE);
    }

    /// One was to continue behind its first response: it may still end without notice.
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
