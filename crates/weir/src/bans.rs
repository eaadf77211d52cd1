//! Bans: takes the clients that workers offer, keeps the list of bans, and informs workers which
//! clients not to accept (docs/bans.md).
//!
//! One thread waits for offers and alone updates the kernel ([`kernel`]); operators' requests
//! arrive on the control thread (`weir ban`). Both use one list behind a lock that workers never
//! take: workers get a set ([`BanSet`]). They get it at once after a first ban, then at most every
//! [`PUBLISH_EVERY`], or less often when the list is so long that making a set takes a while. Bans
//! survive a restart in [`file`], written at most every [`SAVE_EVERY`] and at the end. Bounds:
//! `bans-max` bans, the limits on lines in [`voice`], [`REASON_BYTES_MAX`].

mod exempt;
mod file;
mod kernel;
mod ledger;
mod orders;
mod tier;
mod voice;

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_proxy::plan::{BanPlan, Plan};
use weir_proxy::shield::bans::{BanSet, Block, Offence};
use weir_worker::{Command, Handle, Running, wall_offset_us};

use crate::lasting::kept::{Words, usual_place};
use crate::lasting::lines::{self, Broken};
use crate::lasting::{Kept, Turn};
use crate::log::{Event, Line};
use crate::reload::Desk;
use exempt::{Exempt, Machine, exempt};
pub(crate) use kernel::Part;
use kernel::{Kernel, Prepared};
use ledger::{Ban, Ledger, Spared, Terms};
pub(crate) use orders::{Figures, NeverBanned, Shown};
use tier::Wish;
use voice::Voice;

/// Shortest time between two sets for the workers, and between two updates of the kernel.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// Making sets and updating the kernel each takes at most one part in this many of a thread's time.
const PUBLISH_SHARE: u32 = 10;
/// Shortest time between two writes of the file.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// How often weir checks for a new plan and forgets bans that are over.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often weir reads the addresses of the machine.
const EXEMPT_EVERY: Duration = Duration::from_secs(60);
/// Steps of the wall clock from this size on count.
const CLOCK_STEP_US: u64 = 1_000_000;
/// Offers taken before another thread gets the list.
const BATCH_MAX: usize = 1024;
/// Bans added to a new kernel table at a time.
const KERNEL_BATCH: usize = 2048;
/// Lines of the file written at a time.
const SAVE_BATCH: usize = 1024;
/// A reason is cut to this length.
const REASON_BYTES_MAX: usize = 200;

/// The list, shared by all parts of the program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bans(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    list: Mutex<List>,
    /// Held while the file is written, from reading the list to renaming the file, so that no older
    /// list replaces a newer one.
    writing: Mutex<()>,
}

/// The thread. It ends when all workers have ended.
#[derive(Debug)]
pub(crate) struct Keeper(JoinHandle<()>);

/// Hint about a client whose requests name other clients. Any client can write these fields, so
/// they change nothing.
const PERHAPS_A_PROXY: &str = "; its requests have X-Forwarded-For or Forwarded: if it is your \
    load balancer, add it to `trusted-proxies`";

/// An update for the kernel.
#[derive(Debug)]
struct Task {
    wish: Option<Wish>,
    /// Blocks with the ends of their bans (seconds since 1970), which may be over; None: no longer
    /// banned.
    changed: Vec<(Block, Option<u64>)>,
    /// There is a ban whose packets it can drop.
    has_some: bool,
}

#[derive(Debug, Default)]
struct List {
    ledger: Ledger,
    plan: Arc<Plan>,
    /// Of the plan in force: see [`Desk::news`].
    number: u64,
    exempt: Vec<Exempt>,
    machine: Machine,
    workers: Option<Handle>,
    /// Workers lack the latest changes.
    is_news: bool,
    /// Earliest time of the next set for the workers, and whether their last set had any bans.
    publish_at: Option<Instant>,
    knows_some: bool,
    /// How far the wall clock was ahead of the workers' clock, in microseconds.
    offset_us: i64,
    kept: Kept,
    /// What the kernel does, whether it lacks changes, and the earliest time of its next update.
    part: Part,
    kernel_waits: bool,
    kernel_at: Option<Instant>,
    total: u64,
    voice: Voice,
}

/// Returns microseconds since 1970.
pub(crate) fn wall_us() -> u64 {
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the present second. A ban begins with the next one, so that none is too short.
fn now_s() -> u64 {
    wall_us() / 1_000_000
}

fn terms(plan: &Plan) -> Terms {
    let usual = BanPlan::default();
    let ban = plan.ban().unwrap_or(&usual);
    Terms { for_s: ban.for_s, grow: ban.grow, max_s: ban.max_s, bans_max: ban.bans_max }
}

fn kept(waits: bool) -> Kept {
    Kept::new(Words { what: "bans", option: "state" }, SAVE_EVERY, waits)
}

/// The path of the file of bans.
fn place(plan: &Plan) -> Option<PathBuf> {
    let state = plan.ban().and_then(|ban| ban.state.as_deref());
    state.map(std::path::Path::to_owned).or_else(|| usual_place("bans"))
}

impl Bans {
    /// Opens the list for a plan, with the bans of the last run. `waits`: another process owns the
    /// file until [`Bans::enter`].
    pub(crate) fn open(plan: &Arc<Plan>, waits: bool) -> Bans {
        let bans = Bans::default();
        let mut machine = Machine::default();
        machine.look();
        bans.with(|list| {
            (list.kept, list.machine) = (kept(waits), machine);
            list.adopt(Arc::clone(plan));
        });
        bans
    }

    /// From now on the list belongs to this process, as the previous process left it.
    pub(crate) fn enter(&self) {
        self.with(|list| {
            if list.kept.hold.enter() {
                // Even if another program has the file, this process keeps its own list from now
                // on.
                list.take_file(true);
                list.publish(Instant::now());
            }
        });
    }

    /// Sends the bans to new workers before they accept clients, and starts the thread, which ends
    /// with the workers.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(&self, running: &mut Running, desk: Desk) -> io::Result<Keeper> {
        self.begin(running.handle());
        let (bans, offences) = (self.clone(), running.take_offences());
        let thread = std::thread::Builder::new().name("weir-bans".to_owned());
        let keep = move || offences.into_iter().for_each(|offences| bans.keep(&offences, &desk));
        thread.spawn(keep).map(Keeper)
    }

    fn begin(&self, workers: Handle) {
        let mut list = self.lock();
        list.workers = Some(workers);
        list.is_news = list.ledger.len() > 0;
        list.publish(Instant::now());
    }

    fn keep(&self, offences: &Receiver<Offence>, desk: &Desk) {
        // Without this privilege the kernel refuses, and weir reports that.
        let _ = weir_io::take_up_network();
        let mut look_at = Instant::now();
        let mut kernel = Kernel::default();
        let mut exempt_at = Instant::now() + EXEMPT_EVERY;
        loop {
            let patience = self.lock().patience(Instant::now(), look_at);
            let first = offences.recv_timeout(patience);
            let is_over = first == Err(RecvTimeoutError::Disconnected);
            let now = Instant::now();
            if now >= exempt_at {
                exempt_at = now + EXEMPT_EVERY;
                self.look_at_machine();
            }
            let has_table = kernel.is_there();
            let task = self.with(|list| {
                let offered = first.into_iter().chain(offences.try_iter()).take(BATCH_MAX);
                offered.for_each(|offence| list.take(&offence));
                if now >= look_at {
                    look_at = now + LOOK_EVERY;
                    if let Some(current) = desk.news(list.number) {
                        list.number = current.number;
                        list.adopt(current.plan);
                    }
                    list.look();
                }
                list.publish(now);
                list.kernel_task(has_table, now)
            });
            if let Some(task) = task {
                let part = self.tell_kernel(&mut kernel, task);
                let mut list = self.lock();
                list.part = part.unwrap_or_default();
                list.kernel_at =
                    Some(Instant::now() + PUBLISH_EVERY.max(now.elapsed() * PUBLISH_SHARE));
            }
            self.save(is_over);
            if is_over {
                self.lock().kept.hold.let_go();
                return;
            }
        }
    }

    /// Updates the kernel. Returns what it does from then on. None: nothing, because the list has
    /// no bans yet.
    fn tell_kernel(&self, kernel: &mut Kernel, task: Task) -> Option<Part> {
        let Task { wish, changed, has_some } = task;
        // There is no table before the first ban, except for programs on interfaces: drivers may
        // pause for a moment when they load one.
        let waits = wish.as_ref().is_none_or(|wish| wish.interfaces.is_empty());
        if !has_some && !kernel.is_there() && waits {
            return None;
        }
        let Prepared { is_new, said } = kernel.prepare(wish);
        said.into_iter().for_each(|text| Event::BansEnforced.says(text).log());
        if !is_new {
            return Some(kernel.follow(changed, wall_us()));
        }
        self.lock().ledger.watch(true, now_s());
        let (mut part, mut last) = (Part::default(), None);
        loop {
            let batch = self.lock().for_kernel(&mut last);
            if batch.is_empty() {
                return Some(part);
            }
            part = kernel.follow(batch, wall_us());
        }
    }

    /// Determines which addresses must not be banned.
    fn look_at_machine(&self) {
        let mut machine = self.lock().machine.clone();
        machine.look();
        self.with(|list| {
            list.machine = machine;
            list.look_whom_to_spare();
        });
    }

    /// Writes the file if it lacks changes and a write is due or `at_once`.
    fn save(&self, at_once: bool) {
        let _writing = self.writing();
        let Some(path) = self.lock().kept.take_unsaved(Instant::now(), at_once) else { return };
        // Other threads get the list in between; changes during the write follow with the next one.
        let mut last = None;
        let outcome = lines::write(&path, |text| {
            for (block, ban) in self.lock().ledger.behind(last).take(SAVE_BATCH) {
                file::append(text, block, ban);
                last = Some(block);
            }
        });
        self.with(|list| {
            list.kept.saved(&path, outcome).into_iter().for_each(|line| list.voice.warn(line))
        });
    }

    /// Hands the list and its file over to another process, with all the bans.
    pub(crate) fn leave(&self) {
        self.save(true);
        let _writing = self.writing();
        self.lock().kept.hold.leave();
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.0.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the list, and prints its messages after unlocking it.
    fn with<T>(&self, what: impl FnOnce(&mut List) -> T) -> T {
        let mut list = self.lock();
        let done = what(&mut list);
        let said = list.voice.take_said();
        drop(list);
        said.iter().for_each(Line::log);
        done
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper {
    /// Waits for the thread to end and to write the file: call it when all workers have ended.
    pub(crate) fn finish(self) {
        // A panic of the thread is already on standard error, and the proxy itself has ended well.
        let _ = self.0.join();
    }
}

impl List {
    /// Puts another plan in force.
    fn adopt(&mut self, plan: Arc<Plan>) {
        let place = place(&plan);
        self.plan = plan;
        self.look_whom_to_spare();
        match self.kept.want(place) {
            Some(Turn::Now) => self.take_file(false),
            // At the start, as the file is.
            Some(Turn::Before) => self.read(),
            Some(Turn::After) | None => {}
        }
    }

    /// Takes the file and reads it, if this process may use it and no other program does.
    /// `is_borrowed`: the list holds an earlier state of the previous process's file.
    fn take_file(&mut self, is_borrowed: bool) {
        if !self.kept.take(|line| self.voice.warn(line)) {
            return;
        }
        if is_borrowed {
            self.ledger.forgive(None, now_s());
        }
        // The entries of the file are added to those of the list.
        self.read();
        self.kept.is_unsaved |= self.ledger.len() > 0;
    }

    /// Notes that other addresses may be exempt from bans now.
    fn look_whom_to_spare(&mut self) {
        let exempt = exempt(&self.plan, &self.machine);
        if exempt == self.exempt {
            return;
        }
        self.exempt = exempt;
        let freed =
            self.ledger.allow(self.exempt.iter().map(|(block, _)| *block).collect(), now_s());
        for block in freed {
            self.changed();
            let why = self.why_spared(block).unwrap_or("allowed");
            self.tell(Event::BanRemoved.says(format_args!("it is {why}")).with("network", block));
        }
    }

    fn why_spared(&self, block: Block) -> Option<&'static str> {
        self.exempt.iter().find(|(exempt, _)| exempt.meets(block)).map(|(_, why)| *why)
    }

    /// Reads the saved bans.
    fn read(&mut self) {
        let Some(path) = self.kept.file.clone() else { return };
        (self.is_news, self.kernel_waits) = (true, true);
        let (terms, now_s) = (terms(&self.plan), now_s());
        let mut saved = Vec::new();
        match file::read(&path, |block, ban| saved.push((block, ban))) {
            Ok(Broken { count, first }) => {
                self.ledger.restore(saved, &terms, now_s);
                if count > 0 {
                    let path = path.display();
                    self.voice.warn(format!(
                        "{path}: {count} bans are unreadable and skipped, the first in line {first}"
                    ));
                }
            }
            Err(error) => {
                let line = self.kept.is_unreadable(&error);
                self.voice.warn(line);
            }
        }
    }

    /// Takes a client that a worker offers.
    fn take(&mut self, offence: &Offence) {
        let (terms, reason) = (terms(&self.plan), format!("limit {}", offence.limit));
        let block = offence.block;
        match self.ledger.offended(block, (&reason, offence.by_proxy), &terms, now_s() + 1) {
            Ok((for_s, _)) => {
                self.total += 1;
                self.changed();
                let count = self.ledger.get(block).map_or(1, |ban| ban.count);
                let hint = if offence.forwards { PERHAPS_A_PROXY } else { "" };
                let line = Event::BanAdded.says(format_args!("{reason}{hint}"));
                let line = line.with("network", block).with("seconds", for_s);
                self.tell(line.with("count", count));
            }
            Err(Spared::Allowed | Spared::Banned) => {}
        }
    }

    fn changed(&mut self) {
        (self.is_news, self.kept.is_unsaved, self.kernel_waits) = (true, true, true);
    }

    /// Does the regular work.
    fn look(&mut self) {
        self.take_file(false);
        let now_s = now_s();
        let before = self.ledger.len();
        let terms = terms(&self.plan);
        self.ledger.forget(&terms, now_s);
        self.kept.is_unsaved |= self.ledger.len() != before;
        // Workers need not check any more.
        self.is_news |= self.knows_some && !self.ledger.has_some(now_s);
        // Workers compare with a clock that cannot be set.
        self.is_news |=
            self.knows_some && self.offset_us.abs_diff(wall_offset_us()) > CLOCK_STEP_US;
        // Blocks within a network whose ban is over need their own entries now, and packets are
        // counted.
        self.kernel_waits = true;
        self.voice.look(now_s);
    }

    /// Returns the time until something is due.
    fn patience(&self, now: Instant, look_at: Instant) -> Duration {
        let due = |is_wanted: bool, at: Option<Instant>| is_wanted.then(|| at.unwrap_or(now));
        let saves = self.kept.is_unsaved && self.kept.is_ours();
        let kernel = due(self.kernel_waits, self.kernel_at);
        let next = [
            Some(look_at),
            due(self.is_news, self.publish_at),
            kernel,
            due(saves, self.kept.save_at),
        ];
        let next = next.into_iter().flatten().min().unwrap_or(look_at);
        next.saturating_duration_since(now)
    }

    /// Sends a set to the workers if there is a change and a set is due.
    fn publish(&mut self, now: Instant) {
        let Some(workers) = &self.workers else { return };
        if !self.is_news || self.publish_at.is_some_and(|at| now < at) {
            return;
        }
        let (begin, offset_us) = (Instant::now(), wall_offset_us());
        // Workers use the clock that never jumps.
        let end_us = |ban: &Ban| {
            ban.until_s()
                .saturating_mul(1_000_000)
                .saturating_add_signed(offset_us.saturating_neg())
        };
        let mut ends = Vec::with_capacity(self.ledger.len());
        ends.extend(self.ledger.in_force(now_s()).map(|(block, ban)| (block, end_us(ban))));
        let set = BanSet::new(ends);
        let is_some = !set.is_empty();
        let told = workers.command(&Command::Ban(Arc::new(set)));
        self.publish_at = Some(now + PUBLISH_EVERY.max(begin.elapsed() * PUBLISH_SHARE));
        if told.is_ok() {
            (self.is_news, self.knows_some, self.offset_us) = (false, is_some, offset_us);
        }
    }

    /// Returns the next update for the kernel, given whether it has a table. None: nothing new.
    fn kernel_task(&mut self, has_table: bool, now: Instant) -> Option<Task> {
        if !self.kernel_waits || self.kernel_at.is_some_and(|at| now < at) {
            return None;
        }
        self.kernel_waits = false;
        let wish =
            kernel::wish(&self.plan, &self.exempt).filter(|_| self.kept.hold.turn() == Turn::Now);
        self.ledger.watch(has_table, now_s());
        let has_some = self.ledger.in_force(now_s()).any(|(_, ban)| ban.is_for_packets());
        let changed = self.ledger.take_changed(now_s());
        let until_s = |ban: Option<&Ban>| ban.filter(|ban| ban.is_for_packets()).map(Ban::until_s);
        let changed = changed.map(|(block, ban)| (block, until_s(ban))).collect();
        Some(Task { wish, changed, has_some })
    }

    /// Returns the next bans for the kernel behind `last`, and moves `last` on. Empty: those were
    /// all.
    fn for_kernel(&self, last: &mut Option<Block>) -> Vec<(Block, Option<u64>)> {
        let now_s = now_s();
        let is_meant = |ban: &Ban| ban.until_s() > now_s && ban.is_for_packets();
        let meant = self.ledger.behind(*last).filter(|(_, ban)| is_meant(ban)).take(KERNEL_BATCH);
        let batch: Vec<_> = meant.map(|(block, ban)| (block, Some(ban.until_s()))).collect();
        *last = batch.last().map(|(block, _)| *block);
        batch
    }

    fn tell(&mut self, line: Line) {
        self.voice.tell(now_s(), line);
    }
}

#[cfg(test)]
mod tests;
