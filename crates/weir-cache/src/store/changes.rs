//! Purges and invalidations, recorded for keepers of a copy of the store that has to follow them:
//! the snapshot.
//!
//! Nothing is recorded before it is wanted ([`Store::note_changes`]). A change is recorded after it
//! takes effect: a copy that is begun in between lacks the purged responses, and then sees the
//! change as well. Bound: [`NOTED_BYTES_MAX`]; beyond that only the overflow is known.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard};

use super::Store;
use crate::bans::Target;

/// Most bytes of changes that were not taken yet.
const NOTED_BYTES_MAX: usize = 4 << 20;
/// The memory of a change besides its text.
const CHANGE_BYTES: usize = 64;

/// A part of the store became invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The responses that it covers.
    pub target: Target,
    /// They are stale instead of removed.
    pub is_soft: bool,
}

/// The changes since they were taken last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Noted {
    /// In the order in which they were noted.
    pub list: Vec<Change>,
    /// More changes occurred than fit: an earlier copy must not be used any more.
    pub has_more: bool,
}

#[derive(Debug, Default)]
struct Queue {
    noted: Noted,
    bytes: usize,
    /// Rung when a change was recorded.
    bell: Option<SyncSender<()>>,
}

/// The recorded changes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    is_wanted: AtomicBool,
    queue: Mutex<Queue>,
}

impl Changes {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic leaves at most a change that is not in the list: then the list is incomplete.
        self.queue.lock().unwrap_or_else(|poisoned| {
            let mut queue = poisoned.into_inner();
            queue.noted.has_more = true;
            self.queue.clear_poison();
            queue
        })
    }

    /// Records a change, which is in effect already.
    pub(super) fn note(&self, target: impl FnOnce() -> Target, is_soft: bool) {
        if !self.is_wanted.load(Ordering::Acquire) {
            return;
        }
        let target = target();
        let mut queue = self.queue();
        queue.bytes += CHANGE_BYTES + target_bytes(&target);
        if queue.bytes > NOTED_BYTES_MAX {
            queue.noted.has_more = true;
        } else {
            queue.noted.list.push(Change { target, is_soft });
        }
        if let Some(bell) = &queue.bell {
            // Full: it was rung already.
            let _ = bell.try_send(());
        }
    }
}

fn target_bytes(target: &Target) -> usize {
    match target {
        Target::All | Target::Source(_) => 0,
        Target::Host(text) | Target::Prefix(text) | Target::Url(text) => text.len(),
        Target::Tag { tag, host } => tag.len() + host.as_ref().map_or(0, Vec::len),
    }
}

impl Store {
    /// From now on purges, invalidations and withdrawals are recorded, and `bell` is rung for them.
    pub fn note_changes(&self, bell: SyncSender<()>) {
        self.changes.queue().bell = Some(bell);
        self.changes.is_wanted.store(true, Ordering::Release);
    }

    /// Stops recording. Returns the changes since the last time until now.
    pub fn end_changes(&self) -> Noted {
        self.changes.is_wanted.store(false, Ordering::Release);
        std::mem::take(&mut *self.changes.queue()).noted
    }

    /// Returns the changes since the last time.
    pub fn take_changes(&self) -> Noted {
        let mut queue = self.changes.queue();
        queue.bytes = 0;
        std::mem::take(&mut queue.noted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::bans::SourceMark;
    use crate::store::tests::store;

    #[test]
    fn what_is_noted() {
        let store = store(1 << 20, 1 << 16, 1);
        store.invalidate(b"http://a/");
        assert_eq!(store.take_changes(), Noted::default(), "nobody wanted it");
        let (bell, rung) = sync_channel(1);
        store.note_changes(bell);
        store.invalidate(b"http://a/");
        store.ban(Target::Host(b"a".to_vec()), true).expect("room");
        let source = SourceMark { connection: 1, position: 2 };
        store.withdraw(source);
        assert_eq!(rung.try_iter().count(), 1);
        let change = |target, is_soft| Change { target, is_soft };
        let expected = [
            change(Target::Url(b"http://a/".to_vec()), false),
            change(Target::Host(b"a".to_vec()), true),
            change(Target::Source(source), false),
        ];
        assert_eq!(store.take_changes(), Noted { list: expected.into(), has_more: false });
        assert_eq!(store.take_changes(), Noted::default());
        store.invalidate(b"http://a/");
        assert_eq!(store.end_changes().list.len(), 1);
        store.invalidate(b"http://a/");
        assert_eq!(store.take_changes(), Noted::default());
    }

    #[test]
    fn too_many_are_told() {
        let store = store(1 << 20, 1 << 16, 1);
        let (bell, _rung) = sync_channel(1);
        store.note_changes(bell);
        let url = vec![b'x'; 1 << 16];
        for _ in 0..NOTED_BYTES_MAX / url.len() + 1 {
            store.invalidate(&url);
        }
        let noted = store.take_changes();
        assert!(noted.has_more && noted.list.len() < 64, "{}", noted.list.len());
        assert!(!store.take_changes().has_more);
    }
}
