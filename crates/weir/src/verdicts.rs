//! Verdicts on servers that weir does not pipeline until an operator clears them, kept over a
//! restart (docs/pipelining-trust.md#verdicts).
//!
//! Workers report verdicts as events, which the main thread passes on ([`Verdicts::note`]). They
//! get the verdicts of the file before they accept clients, and with each plan that adds a server
//! ([`Verdicts::of`]). `weir server clear` ends a verdict. One thread writes the file, at most
//! every [`SAVE_EVERY`] and at the end. Bounds: [`VERDICTS_MAX`] verdicts, [`FILE_BYTES_MAX`]; a
//! verdict on a server that the configuration has not had for [`GONE_MAX_S`] is forgotten.

mod file;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_proxy::cross::doubt::Doubt;
use weir_proxy::cross::verdict::Verdict;
use weir_proxy::observe::server_event::{Event, What};
use weir_proxy::plan::{PipelineState, Plan};
use weir_worker::{Command, Handle, Running};

use crate::bans::wall_us;
use crate::lasting::kept::{Words, usual_place};
use crate::lasting::lines::{self, Broken};
use crate::lasting::{Kept, Turn};
use crate::log::{self, Line};
use crate::reload::Desk;

/// Shortest time between two writes of the file.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// How often the thread checks for a new plan.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Largest number of verdicts.
const VERDICTS_MAX: usize = 4096;
/// Largest file that can be weir's.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Time after which weir forgets a verdict on a server that is no longer in the configuration: a
/// week.
const GONE_MAX_S: u64 = 7 * 86_400;
/// Lines about restored verdicts at a time.
const LINES_MAX: usize = 20;

/// A server: the name of its upstream, and its own.
type Key = (String, String);

/// The verdict on a server. Times are seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    verdict: Verdict,
    since_s: u64,
    /// When the server left the configuration.
    gone_s: Option<u64>,
}

/// The verdicts, shared by all parts of the program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verdicts(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    list: Mutex<Book>,
    /// Wakes the thread.
    bell: Condvar,
    /// Held while the file is written, from reading the list to renaming the file.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Book {
    entries: BTreeMap<Key, Entry>,
    kept: Kept,
    plan: Arc<Plan>,
    /// Of the plan in force: see [`Desk::news`].
    number: u64,
    workers: Option<Handle>,
    /// The operator has been warned that the verdicts are not kept.
    is_unkept_told: bool,
    /// The workers have ended.
    is_over: bool,
    /// Messages to print after the list is unlocked.
    said: Vec<Line>,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Keeper(Verdicts, JoinHandle<()>);

fn now_s() -> u64 {
    wall_us() / 1_000_000
}

/// The path of the file of verdicts.
fn place(plan: &Plan) -> Option<PathBuf> {
    match &plan.pipeline_state {
        PipelineState::Auto => usual_place("pipelining"),
        PipelineState::Off => None,
        PipelineState::File(path) => Some(path.to_path_buf()),
    }
}

/// Returns the servers of the configuration, by slot.
fn servers(plan: &Plan) -> impl Iterator<Item = (u32, Key)> {
    all_servers(plan).filter(|(slot, _)| !plan.is_retired(*slot as usize))
}

/// Returns the same with servers that have left it, or are not in it yet.
fn all_servers(plan: &Plan) -> impl Iterator<Item = (u32, Key)> {
    (0..plan.servers()).filter_map(|slot| Some((u32::try_from(slot).ok()?, key(plan, slot)?)))
}

fn key(plan: &Plan, slot: usize) -> Option<Key> {
    let (upstream, server) = plan.server(slot)?;
    Some((upstream.name.clone(), server.name.clone()))
}

impl Verdicts {
    /// Opens the list for a plan, with the verdicts of the last run. `waits`: another process owns
    /// the file until [`Verdicts::enter`].
    pub(crate) fn open(plan: &Arc<Plan>, waits: bool) -> Verdicts {
        let verdicts = Verdicts::default();
        verdicts.with(|list| {
            let words = Words {
                what: "verdicts on servers that are not pipelined",
                option: "pipeline-state",
            };
            list.kept = Kept::new(words, SAVE_EVERY, waits);
            list.adopt(Arc::clone(plan));
        });
        verdicts
    }

    /// Sends the verdicts to new workers before they accept clients, and starts the thread.
    /// [`Keeper::finish`] ends it.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(&self, running: &Running, desk: Desk) -> io::Result<Keeper> {
        self.with(|list| {
            list.workers = Some(running.handle());
            list.tell_workers(list.known());
        });
        let (verdicts, thread) =
            (self.clone(), std::thread::Builder::new().name("weir-verdicts".to_owned()));
        thread.spawn(move || verdicts.keep(&desk)).map(|thread| Keeper(self.clone(), thread))
    }

    fn keep(&self, desk: &Desk) {
        let mut look_at = Instant::now() + LOOK_EVERY;
        loop {
            let list = self.lock();
            let patience = list.patience(Instant::now(), look_at);
            if !list.is_over && !patience.is_zero() {
                drop(
                    self.0
                        .bell
                        .wait_timeout(list, patience)
                        .unwrap_or_else(PoisonError::into_inner),
                );
            } else {
                drop(list);
            }
            let now = Instant::now();
            let is_over = self.with(|list| {
                if now >= look_at {
                    look_at = now + LOOK_EVERY;
                    list.look(desk);
                }
                list.is_over
            });
            self.save(is_over);
            if is_over {
                self.lock().kept.hold.let_go();
                return;
            }
        }
    }

    /// Notes the events of workers about the servers of this plan.
    pub(crate) fn note(&self, plan: &Plan, events: &[Event]) {
        let is_ours = |event: &&Event| matches!(event.what, What::Judged(_) | What::Cleared);
        let mut events = events.iter().filter(is_ours).peekable();
        if events.peek().is_none() {
            return;
        }
        self.with(|list| {
            for event in events {
                let Some(key) = key(plan, event.server as usize) else { continue };
                match event.what {
                    What::Judged(verdict) => list.judged(key, verdict),
                    _ => list.cleared(&key),
                }
            }
        });
        self.0.bell.notify_one();
    }

    /// An operator clears this server. Send the command to the workers after this call, so that a
    /// later verdict counts as new.
    pub(crate) fn clear(&self, upstream: &str, server: &str) {
        self.lock().cleared(&(upstream.to_owned(), server.to_owned()));
        self.0.bell.notify_one();
    }

    /// Returns the verdicts on servers that are new in a plan.
    pub(crate) fn of(&self, plan: &Plan, is_new: impl Fn(usize) -> bool) -> Vec<(u32, Verdict)> {
        self.with(|list| {
            let found = all_servers(plan).filter(|(slot, _)| is_new(*slot as usize));
            let found: Vec<_> = found
                .filter_map(|(slot, key)| Some((slot, list.entries.get(&key)?.verdict)))
                .collect();
            let lines: Vec<Line> =
                found.iter().filter_map(|(slot, _)| list.line(plan, *slot)).collect();
            list.tell_lines(lines);
            found
        })
    }

    /// From now on the file belongs to this process, as the previous process left it.
    pub(crate) fn enter(&self) {
        self.with(|list| {
            if list.kept.hold.enter() {
                list.take_file(true);
            }
        });
        self.0.bell.notify_one();
    }

    /// Hands the file over to another process, with all the verdicts.
    pub(crate) fn leave(&self) {
        self.save(true);
        let _writing = self.writing();
        self.lock().kept.hold.leave();
    }

    /// Writes the file if it lacks changes and a write is due or `at_once`.
    fn save(&self, at_once: bool) {
        let _writing = self.writing();
        let mut text = Vec::new();
        let path = {
            let mut list = self.lock();
            let Some(path) = list.kept.take_unsaved(Instant::now(), at_once) else { return };
            list.entries.iter().for_each(|(key, entry)| file::append(&mut text, key, entry));
            path
        };
        let outcome = lines::write(&path, |part| *part = std::mem::take(&mut text));
        self.with(|list| {
            let problem = list.kept.saved(&path, outcome);
            list.said.extend(problem.map(|text| log::Event::VerdictsFile.says(text)));
        });
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.0.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the list, and prints its messages after unlocking it.
    fn with<T>(&self, what: impl FnOnce(&mut Book) -> T) -> T {
        let mut list = self.lock();
        let done = what(&mut list);
        let said = std::mem::take(&mut list.said);
        drop(list);
        said.iter().for_each(Line::log);
        done
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper {
    /// Has the file written, and waits for that: call it when all workers have ended.
    pub(crate) fn finish(self) {
        let Keeper(verdicts, thread) = self;
        verdicts.lock().is_over = true;
        verdicts.0.bell.notify_one();
        // A panic of the thread is already on standard error, and the proxy itself has ended well.
        let _ = thread.join();
    }
}

impl Book {
    /// Puts another plan in force.
    fn adopt(&mut self, plan: Arc<Plan>) {
        let place = place(&plan);
        self.plan = plan;
        match self.kept.want(place) {
            Some(Turn::Now) => self.take_file(false),
            // At the start, as the file is.
            Some(Turn::Before) => self.read(),
            Some(Turn::After) | None => {}
        }
        self.look_who_is_gone();
    }

    /// Takes and reads the file if this process may use it and no other program does.
    /// `is_borrowed`: the list is an older state of the previous process's file.
    fn take_file(&mut self, is_borrowed: bool) {
        let said = &mut self.said;
        if !self.kept.take(|line| said.push(log::Event::VerdictsFile.says(line))) {
            return;
        }
        let before = if is_borrowed { std::mem::take(&mut self.entries) } else { BTreeMap::new() };
        self.read_beside(&before);
        if self.kept.file.is_none() {
            // The file cannot be read.
            self.entries = before;
            return;
        }
        self.kept.is_unsaved |= !self.entries.is_empty();
        // The previous process had cleared these at the end.
        let cleared = servers(&self.plan)
            .filter(|(_, key)| before.contains_key(key) && !self.entries.contains_key(key));
        let cleared: Vec<u32> = cleared.map(|(slot, _)| slot).collect();
        if let Some(workers) = &self.workers {
            for server in &cleared {
                // A busy worker keeps the verdict, which an operator may clear.
                let _ = workers.command(&Command::Clear { server: *server });
            }
        }
    }

    /// Reads the saved verdicts.
    fn read(&mut self) {
        self.read_beside(&BTreeMap::new());
    }

    /// The same, without messages about verdicts that the workers know already.
    fn read_beside(&mut self, known: &BTreeMap<Key, Entry>) {
        let Some(path) = self.kept.file.clone() else { return };
        let mut saved = BTreeMap::new();
        let mut too_many = 0;
        let read = lines::read(&path, FILE_BYTES_MAX, |line| {
            let Some((key, entry)) = file::parsed(line) else { return false };
            if saved.len() < VERDICTS_MAX {
                _ = saved.insert(key, entry)
            } else {
                too_many += 1
            };
            true
        });
        match read {
            Ok(Broken { count, first }) => {
                if count > 0 {
                    let path = path.display();
                    self.said.push(log::Event::VerdictsFile.says(format_args!(
                        "{path}: {count} verdicts on servers are unreadable and skipped, the first \
                            in line {first}"
                    )));
                }
                if too_many > 0 {
                    let path = path.display();
                    self.said.push(log::Event::VerdictsFile.says(format_args!(
                        "{path}: skipped verdicts beyond {VERDICTS_MAX}: {too_many}"
                    )));
                }
            }
            Err(error) => {
                let line = self.kept.is_unreadable(&error);
                self.said.push(log::Event::VerdictsFile.says(line));
            }
        }
        // Verdicts of this process are newer.
        saved.retain(|key, _| !self.entries.contains_key(key));
        let is_restored =
            |(_, key): &(u32, Key)| saved.contains_key(key) && !known.contains_key(key);
        let restored: Vec<u32> =
            servers(&self.plan).filter(is_restored).map(|(slot, _)| slot).collect();
        self.entries.append(&mut saved);
        let lines: Vec<Line> =
            restored.iter().filter_map(|slot| self.line(&self.plan, *slot)).collect();
        self.tell_lines(lines);
        let mut told = self.known();
        told.retain(|(slot, _)| restored.contains(slot));
        self.tell_workers(told);
    }

    /// Forgets servers that left the configuration some time ago.
    fn look_who_is_gone(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        let now_s = now_s();
        let present: std::collections::BTreeSet<Key> =
            servers(&self.plan).map(|(_, key)| key).collect();
        let before = self.entries.clone();
        for (key, entry) in &mut self.entries {
            entry.gone_s =
                (!present.contains(key)).then(|| entry.gone_s.unwrap_or(now_s).min(now_s));
        }
        self.entries
            .retain(|_, entry| entry.gone_s.is_none_or(|gone_s| now_s - gone_s < GONE_MAX_S));
        self.kept.is_unsaved |= self.entries != before;
    }

    /// Does the regular work.
    fn look(&mut self, desk: &Desk) {
        if let Some(current) = desk.news(self.number) {
            self.number = current.number;
            self.adopt(current.plan);
        }
        self.take_file(false);
        self.look_who_is_gone();
    }

    /// Returns the time until something is due.
    fn patience(&self, now: Instant, look_at: Instant) -> Duration {
        let saves = self.kept.is_unsaved && self.kept.is_ours();
        let save_at = saves.then(|| self.kept.save_at.unwrap_or(now));
        save_at.map_or(look_at, |at| at.min(look_at)).saturating_duration_since(now)
    }

    /// Notes a worker's verdict.
    fn judged(&mut self, key: Key, verdict: Verdict) {
        if self.entries.get(&key).is_some_and(|entry| entry.verdict == verdict) {
            return;
        }
        if self.entries.len() >= VERDICTS_MAX && !self.entries.contains_key(&key) {
            // The first to go is a server that has left, then the oldest verdict.
            let least = self
                .entries
                .iter()
                .min_by_key(|(_, entry)| (entry.gone_s.is_none(), entry.since_s));
            if let Some(least) = least.map(|(key, _)| key.clone()) {
                self.entries.remove(&least);
            }
        }
        self.entries.insert(key, Entry { verdict, since_s: now_s(), gone_s: None });
        self.kept.is_unsaved = true;
        let is_unkept = self.kept.file.is_none() && self.kept.problem.is_none();
        if is_unkept && self.plan.pipeline_state == PipelineState::Auto && !self.is_unkept_told {
            self.is_unkept_told = true;
            let line = "verdicts on servers that are not pipelined do not survive a restart: set \
                        `pipeline-state`, or \
                        $STATE_DIRECTORY as systemd does";
            self.said.push(log::Event::VerdictsFile.says(line));
        }
    }

    /// Removes the verdict on this server.
    fn cleared(&mut self, key: &Key) {
        self.kept.is_unsaved |= self.entries.remove(key).is_some();
    }

    /// Returns the verdicts on servers of the plan in force, by slot.
    fn known(&self) -> Vec<(u32, Verdict)> {
        if self.entries.is_empty() {
            return Vec::new();
        }
        servers(&self.plan)
            .filter_map(|(slot, key)| Some((slot, self.entries.get(&key)?.verdict)))
            .collect()
    }

    fn tell_workers(&self, verdicts: Vec<(u32, Verdict)>) {
        if let Some(workers) = self.workers.as_ref().filter(|_| !verdicts.is_empty()) {
            // New workers have room for it; others find out again on their own.
            let _ = workers.command(&Command::Judge(verdicts.into()));
        }
    }

    fn tell_lines(&mut self, lines: Vec<Line>) {
        let more = lines.len().saturating_sub(LINES_MAX);
        self.said.extend(lines.into_iter().take(LINES_MAX));
        if more > 0 {
            let sentence = "more servers are not pipelined because of stored verdicts";
            self.said.push(log::Event::VerdictsHidden.says(sentence).with("count", more));
        }
    }

    /// Returns the log line for a restored verdict.
    fn line(&self, plan: &Plan, slot: u32) -> Option<Line> {
        let key = key(plan, slot as usize)?;
        let why = match self.entries.get(&key)?.verdict {
            Verdict::Unfit(Doubt::FailsRehearsal) => "it failed two rehearsals".to_owned(),
            Verdict::Unfit(doubt) => {
                format!("it could not handle several requests at once ({})", doubt.word())
            }
            Verdict::Surplus(Some(doubt)) => {
                format!("it gave a reason for doubt ({})", doubt.word())
            }
            Verdict::Surplus(None) => "it sent a surplus response".to_owned(),
        };
        let (upstream, server) = key;
        let sentence = format_args!(
            "not pipelined: {why} before weir was restarted or reloaded; `weir server clear \
                {upstream} {server}` allows it again"
        );
        let line = log::Event::VerdictRestored.says(sentence);
        Some(line.with("upstream", &upstream).with("server", &server))
    }
}

#[cfg(test)]
mod tests;
