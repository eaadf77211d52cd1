//! Keeps what is stored over a restart: writes the snapshot of the cache, and reads it at the start (docs/semantics.md §26).
//!
//! One thread does it all; workers never wait for a disk. At the start it reads, while clients are served already; then it writes every
//! `snapshot-interval`, before another program takes over ([`Snapshots::write_before_upgrade`]), and at the end. A purge holds for the file as well,
//! also if weir is killed a moment later: what becomes invalid is noted by the store and put behind the answers of the last snapshot, which is where
//! the next process looks first. If that can't be done, the file is removed. Bounds: `snapshot-size`, and
//! [`CHANGES_BYTES_MAX`](file::CHANGES_BYTES_MAX) behind it.

mod file;
mod rules;
mod tail;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use weir_cache::{Changed, Moment, PREFACE_BYTES, Preface, Records, Restored, SnapshotFigures, Store};
use weir_proxy::plan::{Plan, SnapshotPlan};
use weir_worker::wall_offset_us;

use crate::bans::wall_us;
use crate::lasting::Turn;
use crate::reload::Desk;
use crate::terminal::{tell, warn};
use file::Refused;
pub(crate) use file::check;
use tail::Tail;

/// How often the plan is looked at, and what was put behind a snapshot is had on the disk.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often is looked for signals while the last snapshot is written, and for what becomes invalid while any is.
const HURRY_EVERY: Duration = Duration::from_millis(50);
/// How long somebody who wants another program to take over waits for the snapshot; then that one has an older one.
const PATIENCE: Duration = Duration::from_secs(10);
/// Answers that are read between two looks at what has become invalid.
const LOOK_AFTER: usize = 64;
/// Bytes of a snapshot that are had on the disk at a time.
const SYNC_BYTES: u64 = 8 << 20;
/// When another snapshot is written instead of one that had to be removed.
const ANEW_AFTER: Duration = Duration::from_secs(60);
const BUFFER_BYTES: usize = 256 << 10;

/// The snapshot, for all who have to do with it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    book: Mutex<Book>,
    /// Has the thread look.
    bell: SyncSender<()>,
    rung: Mutex<Option<Receiver<()>>>,
    /// Nobody waits for the last one.
    hurries: AtomicBool,
}

impl Default for Shared {
    fn default() -> Shared {
        let (bell, rung) = sync_channel(1);
        Shared { book: Mutex::default(), bell, rung: Mutex::new(Some(rung)), hurries: AtomicBool::new(false) }
    }
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Keeper(Snapshots, JoinHandle<()>);

/// What is to be kept, and where.
#[derive(Debug, Clone)]
struct Wish {
    plan: SnapshotPlan,
    store: Arc<Store>,
    /// See [`rules::mark`].
    rules: u64,
}

#[derive(Debug, Default)]
struct Book {
    turn: Turn,
    /// Of what is in force: see [`Desk::news`].
    number: u64,
    wish: Option<Wish>,
    /// What was there at the start has been looked at: from then on changes are put behind the last snapshot.
    is_read: bool,
    /// More is in the file than was read of it: it stays.
    is_partly_read: bool,
    /// The last snapshot, if there is one.
    last: Option<Tail<File>>,
    /// What became invalid since the one that is being written was begun.
    next: Option<Tail<Vec<u8>>>,
    /// Answers that had been stored when the last one was written.
    stored: u64,
    write_at: Option<Instant>,
    /// Who waits for a snapshot.
    asked: Vec<SyncSender<()>>,
    ends: bool,
    figures: SnapshotFigures,
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
    /// For a plan. `waits`: another process has the file until [`Snapshots::enter`].
    pub(crate) fn open(plan: &Plan, waits: bool) -> Snapshots {
        let snapshots = Snapshots::default();
        let mut book = snapshots.lock();
        book.turn = if waits { Turn::Before } else { Turn::Now };
        book.adopt(wish(plan), &snapshots.0.bell);
        drop(book);
        snapshots
    }

    /// Starts the thread, which ends when it is told to.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(&self, desk: Desk) -> io::Result<Keeper> {
        let (snapshots, thread) = (self.clone(), std::thread::Builder::new().name("weir-snapshot".to_owned()));
        let rung = self.0.rung.lock().unwrap_or_else(PoisonError::into_inner).take();
        let keep = move || rung.into_iter().for_each(|rung| snapshots.keep(&rung, &desk));
        thread.spawn(keep).map(|thread| Keeper(self.clone(), thread))
    }

    /// From now on the file is this process's.
    pub(crate) fn enter(&self) {
        let mut book = self.lock();
        if book.turn == Turn::Before {
            book.turn = Turn::Now;
        }
        drop(book);
        self.ring();
    }

    /// From now on it is another process's, which reads what there is.
    pub(crate) fn leave(&self) {
        let mut book = self.lock();
        book.flush();
        book.sync();
        book.turn = Turn::After;
        (book.last, book.next) = (None, None);
        if let Some(wish) = &book.wish {
            wish.store.forget_changes();
        }
    }

    /// Returns when what became invalid before holds for the file as well, whatever becomes of this process and its machine.
    pub(crate) fn settle(&self) {
        let mut book = self.lock();
        book.flush();
        book.sync();
    }

    /// Another program will take over: it finds what is stored now. Returns after [`PATIENCE`] at the latest.
    pub(crate) fn write_before_upgrade(&self) {
        let (done, written) = sync_channel(1);
        {
            let mut book = self.lock();
            if book.wish.is_none() || book.turn != Turn::Now || !book.is_read {
                return;
            }
            book.asked.push(done);
        }
        self.ring();
        let _ = written.recv_timeout(PATIENCE);
    }

    /// Nobody waits for the last snapshot: what there is has to do.
    pub(crate) fn hurry(&self) {
        self.0.hurries.store(true, Ordering::Relaxed);
    }

    fn hurries(&self) -> bool {
        self.0.hurries.load(Ordering::Relaxed)
    }

    fn ring(&self) {
        // Full: it is rung already.
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
                (book.turn == Turn::Now && !book.is_read, book.ends)
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
                book.sync();
                return;
            }
            drop(book);
            // Rung or not: what became invalid may have to be had on the disk.
            let _ = rung.recv_timeout(LOOK_EVERY);
        }
    }

    /// Writes a snapshot in the place of the last one.
    fn write(&self) {
        let Some(wish) = self.lock().begin() else { return };
        let outcome = self.write_all(&wish);
        let mut book = self.lock();
        book.write_at = Some(Instant::now() + Duration::from_micros(wish.plan.every_us));
        book.next = None;
        match outcome {
            Ok(true) => book.told(&wish, None),
            Ok(false) => {}
            Err(error) => {
                file::give_up(&wish.plan.path);
                book.told(&wish, Some(format!("no snapshot of the cache: {}: {error}", wish.plan.path.display())));
            }
        }
    }

    /// False: it was given up, for somebody hurries or the file is another process's.
    fn write_all(&self, wish: &Wish) -> io::Result<bool> {
        let Wish { plan, store, rules } = wish;
        let began = moment();
        let stored = store.report().stored;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file::create(&plan.path)?);
        out.write_all(&[0; PREFACE_BYTES])?;
        let (mut answers, mut bytes, mut synced) = (0, PREFACE_BYTES as u64, 0);
        let mut looked = Instant::now();
        for key in &store.hottest(plan.bytes_max, || self.lock().flush()) {
            let (more, more_bytes) = store.put_records(key, began, plan.bytes_max.saturating_sub(bytes), &mut out)?;
            (answers, bytes) = (answers + more, bytes + more_bytes);
            if bytes - synced >= SYNC_BYTES {
                // So that the last one does not take long.
                out.get_ref().sync_data()?;
                synced = bytes;
            }
            let mut is_others = false;
            if looked.elapsed() >= HURRY_EVERY {
                looked = Instant::now();
                let mut book = self.lock();
                book.flush();
                book.sync_in_time();
                is_others = book.turn != Turn::Now;
            }
            if is_others || self.hurries() {
                file::give_up(&plan.path);
                return Ok(false);
            }
        }
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        // The most of it, while nobody waits for the book.
        file.sync_data()?;
        let mut book = self.lock();
        book.flush();
        if book.turn != Turn::Now {
            file::give_up(&plan.path);
            return Ok(false);
        }
        let Some(changes) = book.next.take() else {
            return Err(io::Error::other("more becomes invalid while it is written than can be kept"));
        };
        let preface = Preface { rules: *rules, written_us: began.wall_us, end: bytes, answers };
        file.write_all_at(&preface.encode(), 0)?;
        let last = changes.behind(file)?;
        file::take_its_place(&plan.path)?;
        // Whatever becomes of the directory, this is the file by that name now.
        (book.last, book.stored) = (Some(last), stored);
        if let Err(error) = file::sync_directory(&plan.path) {
            book.drop_last(&error);
            return Ok(false);
        }
        let figures = &mut book.figures;
        (figures.written_s, figures.answers, figures.bytes) = (began.wall_us / 1_000_000, answers, bytes);
        Ok(true)
    }

    /// Stores again what was stored when weir ran the last time.
    fn read(&self) {
        let Some(wish) = self.lock().wish.clone() else {
            self.lock().is_read = true;
            return;
        };
        // From now on what is purged is purged of what is read, too.
        let restoring = wish.store.begin_restoring();
        let path = wish.plan.path.display();
        let begun = self.begin_reading(&wish);
        let mut book = self.lock();
        book.is_read = true;
        let (file, preface, changed) = match begun {
            Ok(begun) => begun,
            Err(Refused::Missing) => {
                book.told(&wish, None);
                return;
            }
            Err(Refused::Unusable(why)) => {
                // What becomes invalid is not said there, so that it is not to be read later either.
                book.write_at = Some(Instant::now());
                let left = file::remove_last(&wish.plan.path).err().map(|error| format!("; {error}"));
                book.told(&wish, Some(format!("the snapshot {path} is not used: {why}{}", left.unwrap_or_default())));
                return;
            }
        };
        drop(book);
        let mut records = Records::new(BufReader::with_capacity(BUFFER_BYTES, file), &preface);
        let mut counts = Counts::default();
        let flaw = loop {
            match wish.store.restore(&restoring, &mut records, (&preface, &changed), moment()) {
                Ok(Some(restored)) => counts.add(restored),
                Ok(None) => break None,
                Err(flaw) => break Some(flaw),
            }
            if counts.all().is_multiple_of(LOOK_AFTER as u64) {
                let mut book = self.lock();
                book.flush();
                if book.ends || book.turn != Turn::Now {
                    book.is_partly_read = true;
                    return;
                }
            }
        };
        let damage = flaw.map(|flaw| {
            let (at, left) = (records.offset(), preface.answers.saturating_sub(counts.all()));
            format!("the snapshot {path}: {flaw}, at byte {at}; {left} answers from there on are left out")
        });
        tell(format_args!("{} answers of {path} are stored again{}", counts.kept, counts.others()));
        let mut book = self.lock();
        book.write_at = Some(Instant::now() + Duration::from_micros(wish.plan.every_us));
        let figures = &mut book.figures;
        (figures.restored, figures.left_out) = (counts.kept, preface.answers.saturating_sub(counts.kept));
        (figures.written_s, figures.answers) = (preface.written_us / 1_000_000, preface.answers);
        figures.bytes = preface.end;
        book.told(&wish, damage);
    }

    /// Opens what is there; from then on changes are put behind it.
    fn begin_reading(&self, wish: &Wish) -> Result<(At, Preface, Changed), Refused> {
        let mut file = file::open(&wish.plan.path)?;
        let preface = file::preface(&mut file)?;
        if preface.rules != wish.rules {
            return Err(Refused::Unusable(
                "`cache` of a route, or what it does with requests, was another one".to_owned(),
            ));
        }
        if preface.written_us > wall_us() {
            let why = "it is of a time to come: nobody knows how old its answers are when the clock is set back";
            return Err(Refused::Unusable(why.to_owned()));
        }
        let mut book = self.lock();
        let (_, bytes) = file::changes(&mut file, &preface)?;
        book.last = Some(Tail::after(file.try_clone()?, bytes));
        book.is_read = true;
        book.flush();
        if book.last.is_none() {
            return Err(Refused::Unusable("what became invalid can't be put behind it".to_owned()));
        }
        let (changed, _) = file::changes(&mut file, &preface)?;
        Ok((At { file, at: PREFACE_BYTES as u64 }, preface, changed))
    }
}

impl Keeper {
    /// Has the last snapshot written, and waits for that; `signals` say that nobody wants to wait any more.
    pub(crate) fn finish(self, signals: &Receiver<i32>) {
        let Keeper(snapshots, thread) = self;
        snapshots.lock().ends = true;
        snapshots.ring();
        let mut patience = Duration::from_millis(1);
        while !thread.is_finished() {
            // Others mean logs and configurations.
            if matches!(signals.recv_timeout(patience), Ok(SIGINT | SIGTERM | SIGQUIT)) {
                snapshots.hurry();
            }
            patience = (patience * 2).min(HURRY_EVERY);
        }
        // Its panic would be told on standard error; the proxy has ended well all the same.
        let _ = thread.join();
    }
}

impl Book {
    /// Something else is to be kept, or elsewhere.
    fn adopt(&mut self, wish: Option<Wish>, bell: &SyncSender<()>) {
        let before = std::mem::replace(&mut self.wish, wish);
        let before_rules = before.as_ref().map(|before| before.rules);
        let store = |wish: &Option<Wish>| wish.as_ref().map(|wish| Arc::as_ptr(&wish.store));
        let path = |wish: &Option<Wish>| wish.as_ref().map(|wish| wish.plan.path.clone());
        let (is_same_store, is_same_path) = (store(&before) == store(&self.wish), path(&before) == path(&self.wish));
        if let Some(before) = before.filter(|_| !is_same_store || !is_same_path) {
            // What becomes invalid from now on would not hold for it.
            self.last = None;
            if self.turn == Turn::Now
                && let Err(error) = file::remove_last(&before.plan.path)
            {
                warn(format_args!("{} is to be removed: {error}", before.plan.path.display()));
            }
            if !is_same_store || self.wish.is_none() {
                before.store.forget_changes();
                before.store.tell_snapshot(None);
            }
        }
        let Some(wish) = &self.wish else { return };
        if before_rules != Some(wish.rules) && self.is_read {
            // The last one would not be used any more.
            (self.write_at, self.stored) = (Some(Instant::now()), u64::MAX);
        }
        if !is_same_store {
            wish.store.note_changes(bell.clone());
        }
        if !is_same_store || !is_same_path {
            self.figures = SnapshotFigures::default();
            wish.store.tell_snapshot(Some(self.figures.clone()));
            // At the start there may be one to be read.
            self.write_at = self.is_read.then(Instant::now);
            // What was purged while nobody kept it does not hold for it.
            if self.is_read
                && self.turn == Turn::Now
                && let Err(error) = file::remove_last(&wish.plan.path)
            {
                warn(format_args!("{}: {error}", wish.plan.path.display()));
            }
        }
    }

    /// A snapshot is to be written; it is begun.
    fn begin(&mut self) -> Option<Wish> {
        let wish = self.wish.clone().filter(|_| self.turn == Turn::Now && self.is_read && !self.is_partly_read)?;
        self.flush();
        self.next = Some(Tail::default());
        Some(wish)
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let Some(wish) = self.wish.as_ref().filter(|_| self.turn == Turn::Now && self.is_read) else { return false };
        if self.ends || !self.asked.is_empty() {
            return true;
        }
        let is_time = self.write_at.is_none_or(|at| now >= at);
        if is_time && self.last.is_some() && wish.store.report().stored == self.stored {
            // Nothing was stored since.
            self.write_at = Some(now + Duration::from_micros(wish.plan.every_us));
            return false;
        }
        is_time
    }

    /// Puts what became invalid behind the last snapshot, and into the next one.
    fn flush(&mut self) {
        let Some(wish) = self.wish.as_ref().filter(|_| self.turn == Turn::Now && self.is_read) else { return };
        let noted = wish.store.take_changes();
        if noted.list.is_empty() && !noted.has_more {
            return;
        }
        if self.next.as_mut().is_some_and(|next| next.add(&noted).is_err()) {
            self.next = None;
        }
        let Some(Err(error)) = self.last.as_mut().map(|last| last.add(&noted)) else { return };
        self.drop_last(&error);
    }

    /// Has on the disk what has waited for that long enough.
    fn sync_in_time(&mut self) {
        if self.last.as_ref().is_some_and(|last| last.is_unsynced_for(LOOK_EVERY)) {
            self.sync();
        }
    }

    /// Has it on the disk.
    fn sync(&mut self) {
        if let Some(Err(error)) = self.last.as_mut().map(Tail::sync) {
            self.drop_last(&error);
        }
    }

    /// What became invalid does not hold for the last snapshot.
    fn drop_last(&mut self, error: &io::Error) {
        self.last = None;
        let soon = Instant::now() + ANEW_AFTER;
        self.write_at = self.write_at.map(|at| at.min(soon));
        let Some(wish) = self.wish.clone() else { return };
        let path = &wish.plan.path;
        let removed = match file::remove_last(path) {
            Ok(()) => "it is removed".to_owned(),
            Err(error) => format!("remove it, or what was purged comes back at the next start: {error}"),
        };
        self.told(&wish, Some(format!("the snapshot {} can't be kept up to date: {error}; {removed}", path.display())));
    }

    /// How it went; a problem is told once.
    fn told(&mut self, wish: &Wish, problem: Option<String>) {
        let problem = problem.unwrap_or_default();
        if problem != self.figures.problem && !problem.is_empty() {
            warn(&problem);
        }
        self.figures.problem = problem;
        wish.store.tell_snapshot(Some(self.figures.clone()));
    }
}

/// What became of the answers of a snapshot.
#[derive(Debug, Default)]
struct Counts {
    kept: u64,
    stale: u64,
    purged: u64,
    present: u64,
    no_room: u64,
}

impl Counts {
    fn add(&mut self, restored: Restored) {
        let count = match restored {
            Restored::Kept => &mut self.kept,
            Restored::Stale => &mut self.stale,
            Restored::Purged => &mut self.purged,
            Restored::Present => &mut self.present,
            Restored::NoRoom => &mut self.no_room,
        };
        *count += 1;
    }

    fn all(&self) -> u64 {
        self.kept + self.stale + self.purged + self.present + self.no_room
    }

    /// For people: behind those that were stored.
    fn others(&self) -> String {
        let words = [
            (self.stale, "stale by now"),
            (self.purged, "purged since"),
            (self.present, "there already"),
            (self.no_room, "without room"),
        ];
        let said = words.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
        let said: Vec<String> = said.collect();
        if said.is_empty() { String::new() } else { format!("; others are left out: {}", said.join(", ")) }
    }
}

/// Reads a file whose end grows meanwhile.
#[derive(Debug)]
struct At {
    file: File,
    at: u64,
}

impl Read for At {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
