//! The keeper's (`snapshot`) knowledge of the file and of the changes to append to it, behind a
//! lock that is held only for moments.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use weir_cache::{Noted, SnapshotFigures};

use super::tail::Tail;
use super::{LOOK_EVERY, Wish, file};
use crate::lasting::{Hold, Taken, Turn, remove_rest};
use crate::log::Event;

/// The state behind the lock.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// Of the file of `wish`.
    pub(super) hold: Hold,
    /// Another program has the file for now: the next try is not before this.
    pub(super) take_at: Option<Instant>,
    /// Another process accepts clients instead of this process, or is about to: it may store what
    /// is purged here.
    pub(super) has_successor: bool,
    /// Of the plan in force: see [`Desk::news`](crate::reload::Desk::news).
    pub(super) number: u64,
    pub(super) wish: Option<Wish>,
    /// The file of the last run has been read: from then on changes are appended to the last
    /// snapshot.
    pub(super) is_read: bool,
    /// Only part of the file was read, so it remains.
    pub(super) is_partly_read: bool,
    /// The last snapshot, if any.
    pub(super) last: Option<Tail<File>>,
    /// Invalidations since the snapshot that is being written was begun.
    pub(super) next: Option<Tail<Vec<u8>>>,
    /// Number of stored responses when the last snapshot was written.
    pub(super) stored: u64,
    pub(super) write_at: Option<Instant>,
    /// No other snapshot is written before this, however much becomes invalid.
    pub(super) spaced_until: Option<Instant>,
    /// Callers that wait for a snapshot.
    pub(super) asked: Vec<SyncSender<()>>,
    pub(super) ends: bool,
    pub(super) figures: SnapshotFigures,
}

impl Book {
    /// Follows another wish.
    pub(super) fn adopt(&mut self, wish: Option<Wish>, bell: &SyncSender<()>) {
        let before = std::mem::replace(&mut self.wish, wish);
        let before_rules = before.as_ref().map(|before| before.rules);
        let store = |wish: &Option<Wish>| wish.as_ref().map(|wish| Arc::as_ptr(&wish.store));
        let path = |wish: &Option<Wish>| wish.as_ref().map(|wish| wish.plan.path.clone());
        let (is_same_store, is_same_path) =
            (store(&before) == store(&self.wish), path(&before) == path(&self.wish));
        if let Some(before) = before.filter(|_| !is_same_store || !is_same_path) {
            // Later invalidations would be missing from it.
            self.last = None;
            let path = &before.plan.path;
            if self.has_file()
                && let Err(error) = file::remove_last(path).and_then(|()| remove_rest(path))
            {
                let sentence = format_args!("cannot remove {}: {error}", path.display());
                Event::SnapshotFailed.says(sentence).log();
            }
            if !is_same_store || self.wish.is_none() {
                // They concern a store that is no longer kept.
                let _ = before.store.end_changes();
                before.store.tell_snapshot(None);
            }
        }
        self.hold.want(self.wish.as_ref().map(|wish| wish.plan.path.as_path()));
        self.take_at = None;
        let Some(wish) = &self.wish else { return };
        if before_rules != Some(wish.rules) && self.is_read {
            // The last snapshot would not be used any more.
            (self.write_at, self.stored) = (Some(Instant::now()), u64::MAX);
        }
        if !is_same_store {
            wish.store.note_changes(bell.clone());
        }
        if !is_same_store || !is_same_path {
            self.figures = SnapshotFigures::default();
            wish.store.tell_snapshot(Some(self.figures.clone()));
            // At the start there may be a snapshot to read.
            self.write_at = self.is_read.then(Instant::now);
        }
    }

    /// Whether the file belongs to this process.
    pub(super) fn has_file(&self) -> bool {
        self.hold.is_ours()
    }

    /// From now on this process may use the file.
    pub(super) fn enter(&mut self) {
        self.hold.enter();
        self.take_at = None;
    }

    /// From now on the next process may use the file. Invalidations up to now apply to it, later
    /// ones do not.
    pub(super) fn leave(&mut self) {
        // Most of it first, because that takes a while; then the rest, of which nothing may be
        // lost.
        self.flush();
        self.sync();
        if let Some(noted) = self.wish.as_ref().map(|wish| wish.store.end_changes()) {
            self.put(&noted);
        }
        self.sync();
        (self.last, self.next, self.has_successor) = (None, None, true);
        self.hold.leave();
    }

    /// Takes the file if this process may use it and no other program does; tries that every
    /// [`LOOK_EVERY`].
    pub(super) fn take_file(&mut self) {
        let Some(wish) = self.wish.clone().filter(|_| self.hold.turn() == Turn::Now) else {
            return;
        };
        let now = Instant::now();
        if self.take_at.is_some_and(|at| now < at) {
            return;
        }
        self.take_at = Some(now + LOOK_EVERY);
        match self.hold.take() {
            Taken::Before => {}
            Taken::Now(note) => {
                note.into_iter().for_each(|note| Event::SnapshotFailed.says(note).log());
                self.told(&wish, None);
                // It lacks purges from the time without an owner.
                if self.is_read {
                    self.is_partly_read = false;
                    if let Err(error) = file::remove_last(&wish.plan.path) {
                        let sentence = format_args!("{}: {error}", wish.plan.path.display());
                        Event::SnapshotFailed.says(sentence).log();
                    }
                }
            }
            Taken::Others(who) => {
                (self.last, self.next) = (None, None);
                let way_out = "name another file in `snapshot`, or end that program";
                self.told(&wish, Some(format!("no snapshot of the cache: {who}: {way_out}")));
            }
        }
    }

    /// Releases the file to any process; changes no longer apply to it.
    pub(super) fn let_go(&mut self) {
        self.sync();
        (self.last, self.next) = (None, None);
        self.hold.let_go();
    }

    /// Begins a snapshot. Returns what to write, if it is to be written.
    pub(super) fn begin(&mut self) -> Option<Wish> {
        let wish = self
            .wish
            .clone()
            .filter(|_| self.has_file() && self.is_read && !self.is_partly_read)?;
        self.flush();
        self.next = Some(Tail::default());
        Some(wish)
    }

    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let Some(wish) = self.wish.as_ref().filter(|_| self.has_file() && self.is_read) else {
            return false;
        };
        if self.ends || !self.asked.is_empty() {
            return true;
        }
        let is_time = self.write_at.is_none_or(|at| now >= at);
        let is_short = self.last.as_ref().is_some_and(|last| !last.is_long());
        if is_time && is_short && wish.store.report().stored == self.stored {
            // Nothing was stored since.
            self.write_at = Some(now + Duration::from_micros(wish.plan.every_us));
            return false;
        }
        is_time
    }

    /// Appends invalidations to the last snapshot, and to the next one.
    pub(super) fn flush(&mut self) {
        let Some(wish) = self.wish.as_ref().filter(|_| self.has_file() && self.is_read) else {
            return;
        };
        let noted = wish.store.take_changes();
        self.put(&noted);
    }

    fn put(&mut self, noted: &Noted) {
        if noted.list.is_empty() && !noted.has_more {
            return;
        }
        if self.next.as_mut().is_some_and(|next| next.add(noted).is_err()) {
            self.next = None;
        }
        match self.last.as_mut().map(|last| last.add(noted).map(|()| last.is_long())) {
            Some(Err(error)) => self.drop_last(&error),
            Some(Ok(true)) => self.write_soon(),
            Some(Ok(false)) | None => {}
        }
    }

    /// Brings the next snapshot forward, to the earliest allowed time.
    pub(super) fn write_soon(&mut self) {
        let soon = self.spaced_until.unwrap_or_else(Instant::now);
        self.write_at = self.write_at.map(|at| at.min(soon));
    }

    /// Syncs changes to the disk that have waited long enough.
    pub(super) fn sync_in_time(&mut self) {
        if self.last.as_ref().is_some_and(|last| last.is_unsynced_for(LOOK_EVERY)) {
            self.sync();
        }
    }

    /// Syncs changes to the disk.
    pub(super) fn sync(&mut self) {
        if let Some(Err(error)) = self.last.as_mut().map(Tail::sync) {
            self.drop_last(&error);
        }
    }

    /// Removes the last snapshot, because invalidations could not be appended to it.
    pub(super) fn drop_last(&mut self, error: &io::Error) {
        self.last = None;
        self.write_soon();
        let Some(wish) = self.wish.clone() else { return };
        let path = &wish.plan.path;
        let removed = match file::remove_last(path) {
            Ok(()) => "weir removed it".to_owned(),
            Err(error) => {
                format!("remove it, or purged responses return at the next start: {error}")
            }
        };
        self.told(
            &wish,
            Some(format!(
                "cannot keep the snapshot {} up to date: {error}; {removed}",
                path.display()
            )),
        );
    }

    /// Notes the outcome; a problem is reported once.
    pub(super) fn told(&mut self, wish: &Wish, problem: Option<String>) {
        let problem = problem.unwrap_or_default();
        if problem != self.figures.problem && !problem.is_empty() {
            Event::SnapshotFailed.says(&problem).log();
        }
        self.figures.problem = problem;
        wish.store.tell_snapshot(Some(self.figures.clone()));
    }
}
