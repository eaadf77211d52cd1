//! Keeps the cache over a restart: writes a snapshot of it, and reads that at the start
//! (docs/cache-rules.md).
//!
//! One thread does this; workers never wait for a disk. It reads at the start, while weir already
//! serves clients. Then it writes every `snapshot-interval`, before another program takes over
//! ([`Snapshots::write_before_upgrade`]), and at the end. A purge also applies to the file, even if
//! weir is killed a moment later. The store notes what becomes invalid, and the thread appends that
//! to the last snapshot, where the next process looks first. After many such changes the next
//! snapshot is written early; if that fails too, the file is removed. If another program uses the
//! same file, that program keeps it ([`Hold`]). Bounds: `snapshot-size`, and
//! [`CHANGES_BYTES_MAX`](file::CHANGES_BYTES_MAX) behind it.

mod book;
mod file;
mod reading;
mod rules;
mod tail;

use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use weir_cache::{Moment, PREFACE_BYTES, Preface, Store, url_of};
use weir_proxy::plan::{Plan, SnapshotPlan};
use weir_worker::wall_offset_us;

use crate::bans::wall_us;
use crate::lasting::{Hold, Turn};
use crate::reload::Desk;
use book::Book;
pub(crate) use file::check;

/// How often the thread checks for a new plan, and syncs what was appended to a snapshot to the
/// disk.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often to check for signals while the last snapshot is written, and for invalid entries while
/// any is.
const HURRY_EVERY: Duration = Duration::from_millis(50);
/// How long an upgrade waits for the snapshot; after that the new program gets an older one.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a snapshot between two syncs to the disk.
const SYNC_BYTES: u64 = 8 << 20;
/// Shortest time between two snapshots when much becomes invalid,
const SPACE: Duration = Duration::from_secs(2);
/// and writing takes at most one part in this many of the time.
const SPACE_SHARE: u32 = 10;
const BUFFER_BYTES: usize = 256 << 10;

/// The snapshot, shared by all parts of the program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    book: Mutex<Book>,
    /// Wakes the thread.
    bell: SyncSender<()>,
    rung: Mutex<Option<Receiver<()>>>,
    /// The last snapshot is not worth waiting for.
    hurries: AtomicBool,
}

impl Default for Shared {
    fn default() -> Shared {
        let (bell, rung) = sync_channel(1);
        Shared {
            book: Mutex::default(),
            bell,
            rung: Mutex::new(Some(rung)),
            hurries: AtomicBool::new(false),
        }
    }
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Keeper(Snapshots, JoinHandle<()>);

/// The outcome of writing a snapshot.
#[derive(Debug)]
enum Outcome {
    /// It has replaced the last one.
    Whole,
    /// Writing was abandoned to end quickly, or because the file belongs to another process.
    GivenUp,
    /// It was in place, but not durably: now no snapshot exists.
    Dropped,
}

/// What to keep, and where.
#[derive(Debug, Clone)]
struct Wish {
    plan: SnapshotPlan,
    store: Arc<Store>,
    /// See [`rules::mark`].
    rules: u64,
}

fn moment() -> Moment {
    let wall_us = wall_us();
    Moment { wall_us, now_us: wall_us.saturating_add_signed(wall_offset_us().saturating_neg()) }
}

fn wish(plan: &Plan) -> Option<Wish> {
    let cache = plan.cache.as_ref()?;
    let store = Arc::clone(cache.store.as_ref()?);
    Some(Wish { plan: cache.snapshot.clone()?, store, rules: rules::mark(plan) })
}

impl Snapshots {
    /// Opens the snapshot for a plan. `waits`: another process owns the file until
    /// [`Snapshots::enter`].
    pub(crate) fn open(plan: &Plan, waits: bool) -> Snapshots {
        let snapshots = Snapshots::default();
        let mut book = snapshots.lock();
        book.hold = Hold::new(waits);
        book.adopt(wish(plan), &snapshots.0.bell);
        drop(book);
        snapshots
    }

    /// Starts the thread. `Keeper::finish` ends it.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(&self, desk: Desk) -> io::Result<Keeper> {
        let (snapshots, thread) =
            (self.clone(), std::thread::Builder::new().name("weir-snapshot".to_owned()));
        let rung = self.0.rung.lock().unwrap_or_else(PoisonError::into_inner).take();
        let keep = move || rung.into_iter().for_each(|rung| snapshots.keep(&rung, &desk));
        thread.spawn(keep).map(|thread| Keeper(self.clone(), thread))
    }

    /// From now on the file belongs to this process.
    pub(crate) fn enter(&self) {
        self.lock().enter();
        self.ring();
    }

    /// From now on it belongs to another process, which reads it as it is.
    pub(crate) fn leave(&self) {
        self.lock().leave();
    }

    /// Another process accepts clients beside this process from now on, and will own the file;
    /// false: the upgrade has failed.
    pub(crate) fn set_successor(&self, is_there: bool) {
        self.lock().has_successor = is_there;
    }

    /// Returns when earlier invalidations also apply to the file, even if this process or its
    /// machine crashes. False: another process takes over, or has. That process may have stored
    /// entries unknown to this one, and does not learn of the invalidations.
    pub(crate) fn settle(&self) -> bool {
        let mut book = self.lock();
        book.flush();
        book.sync();
        !book.has_successor
    }

    /// Writes what is stored now for a program that will take over. Returns after [`PATIENCE`] at
    /// the latest.
    pub(crate) fn write_before_upgrade(&self) {
        let (done, written) = sync_channel(1);
        {
            let mut book = self.lock();
            if book.wish.is_none() || !book.has_file() || !book.is_read {
                return;
            }
            book.asked.push(done);
        }
        self.ring();
        let _ = written.recv_timeout(PATIENCE);
    }

    /// Ends the wait for the last snapshot: the present file has to do.
    pub(crate) fn hurry(&self) {
        self.0.hurries.store(true, Ordering::Relaxed);
    }

    fn hurries(&self) -> bool {
        self.0.hurries.load(Ordering::Relaxed)
    }

    fn ring(&self) {
        // Full: the thread is waking up already.
        let _ = self.0.bell.try_send(());
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, rung: &Receiver<()>, desk: &Desk) {
        loop {
            let (is_to_read, ends) = {
                let mut book = self.lock();
                if let Some(current) = desk.news(book.number) {
                    book.number = current.number;
                    book.adopt(wish(&current.plan), &self.0.bell);
                }
                book.take_file();
                // If nothing was to be kept at the start, nothing is read later.
                book.is_read |= book.wish.is_none() && book.hold.turn() == Turn::Now;
                (book.has_file() && !book.is_read, book.ends)
            };
            if is_to_read && !ends {
                self.read();
            }
            let is_due = {
                let mut book = self.lock();
                book.flush();
                book.sync_in_time();
                book.is_due(Instant::now())
            };
            if is_due && !self.hurries() {
                self.write();
            }
            let mut book = self.lock();
            book.asked.drain(..).for_each(|asked| {
                let _ = asked.try_send(());
            });
            if book.ends {
                book.let_go();
                return;
            }
            drop(book);
            // Woken or not: invalidations may need a sync to the disk.
            let _ = rung.recv_timeout(LOOK_EVERY);
        }
    }

    /// Writes a snapshot that replaces the last one.
    fn write(&self) {
        let Some(wish) = self.lock().begin() else { return };
        let begun = Instant::now();
        let outcome = self.write_all(&wish);
        let mut book = self.lock();
        let now = Instant::now();
        book.spaced_until = Some(now + SPACE.max((now - begun) * SPACE_SHARE));
        book.write_at = Some(now + Duration::from_micros(wish.plan.every_us));
        // Otherwise more became invalid than fits, or it was complete.
        let is_overrun = book.next.take().is_none();
        match outcome {
            Ok(Outcome::Whole) => book.told(&wish, None),
            Ok(Outcome::GivenUp) => {}
            Ok(Outcome::Dropped) => book.write_soon(),
            Err(error) => {
                if is_overrun {
                    book.write_soon();
                }
                book.told(
                    &wish,
                    Some(format!(
                        "no snapshot of the cache: {}: {error}",
                        wish.plan.path.display()
                    )),
                );
            }
        }
    }

    fn write_all(&self, wish: &Wish) -> io::Result<Outcome> {
        let Wish { plan, store, rules } = wish;
        let began = moment();
        let stored = store.report().stored;
        let next = file::create(&plan.path)?;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, next.file());
        out.write_all(&[0; PREFACE_BYTES])?;
        let (mut answers, mut bytes, mut synced) = (0, PREFACE_BYTES as u64, 0);
        let mut looked = Instant::now();
        let keys = store.hottest(plan.bytes_max, || _ = self.look());
        if let Some(changes) = &mut self.lock().next {
            changes.concern(keys.iter().map(|key| url_of(key)));
        }
        for key in &keys {
            let (more, more_bytes) =
                store.put_records(key, began, plan.bytes_max.saturating_sub(bytes), &mut out)?;
            (answers, bytes) = (answers + more, bytes + more_bytes);
            if bytes - synced >= SYNC_BYTES {
                // Keeps the last sync short.
                out.get_ref().sync_data()?;
                synced = bytes;
            }
            let mut is_others = false;
            if looked.elapsed() >= HURRY_EVERY {
                looked = Instant::now();
                is_others = !self.look()?;
            }
            if is_others || self.hurries() {
                return Ok(Outcome::GivenUp);
            }
        }
        out.flush()?;
        drop(out);
        // Syncs most of it while the book is unlocked.
        next.file().sync_data()?;
        let mut book = self.lock();
        book.flush();
        if !book.has_file() {
            return Ok(Outcome::GivenUp);
        }
        let changes = book.next.take().ok_or_else(overrun)?;
        let preface = Preface { rules: *rules, written_us: began.wall_us, end: bytes, answers };
        next.file().write_all_at(&preface.encode(), 0)?;
        let last = changes.behind(next.file().try_clone()?)?;
        file::take_its_place(next, &plan.path)?;
        // Whatever happens to the directory, this is the file by that name now.
        (book.last, book.stored) = (Some(last), stored);
        if let Err(error) = file::sync_directory(&plan.path) {
            book.drop_last(&error);
            return Ok(Outcome::Dropped);
        }
        let figures = &mut book.figures;
        (figures.written_s, figures.answers, figures.bytes) =
            (began.wall_us / 1_000_000, answers, bytes);
        Ok(Outcome::Whole)
    }

    /// Appends invalidations where they belong while another snapshot is written. False: the file
    /// belongs to another process.
    ///
    /// # Errors
    /// More became invalid than fits behind the new snapshot.
    fn look(&self) -> io::Result<bool> {
        let mut book = self.lock();
        book.flush();
        book.sync_in_time();
        if book.has_file() && book.next.is_none() {
            return Err(overrun());
        }
        Ok(book.has_file())
    }
}

fn overrun() -> io::Error {
    io::Error::other("more responses become invalid while weir writes it than weir can record")
}

impl Keeper {
    /// Has the last snapshot written, and waits for that; `signals` can end the wait.
    pub(crate) fn finish(self, signals: &Receiver<i32>) {
        let Keeper(snapshots, thread) = self;
        snapshots.lock().ends = true;
        snapshots.ring();
        let mut patience = Duration::from_millis(1);
        while !thread.is_finished() {
            // The other signals concern logs and configurations.
            if matches!(signals.recv_timeout(patience), Ok(SIGINT | SIGTERM | SIGQUIT)) {
                snapshots.hurry();
            }
            patience = (patience * 2).min(HURRY_EVERY);
        }
        // A panic of the thread is already on standard error, and the proxy itself has ended well.
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests;
