//! Verifies credentials for all workers: a [`Verifier`] for each file of users. The side thread
//! calls it for each [`Errand::Verify`](weir_proxy::forward::lookup::Errand).
//!
//! Comparing takes tens of milliseconds by intent, so separate threads do it, one for four cores.
//! They give way to workers (nice 10), and their order (`lanes`) ensures that a client that guesses
//! delays no client that does not. Good credentials stay good for [`GOOD_FOR`], found by a digest
//! under a key that only this process knows; the same credentials from several requests at once are
//! compared once. weir checks the file of users once in [`LOOK_EVERY`], even without requests
//! ([`Verifier::watch`]). A user that is deleted or gets another password is revoked then, and
//! workers verify again for the next request of each of its connections.
//!
//! A mismatch is reported [`REFUSED_AFTER`] the question, whether the name exists or not, was
//! compared or found no room. So the time reveals nothing, and guessing is slow. Credentials for
//! which there was no room are reported as that, never as wrong: each client has its share of
//! comparisons, whatever the names. Bounds: see `lanes` for comparisons, [`TURN_MAX`] for the wait
//! of one, [`LATE_MAX`] delayed refusals (further ones are sent at once), [`GOOD_MAX`] good
//! credentials.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::sync::{Mutex, MutexGuard};
use weir_proxy::forward::lookup::{Credentials, News, Question, Unverified, User};
use weir_proxy::forward::shares::Lane;

use super::Tell;
use super::cache::Cache;
use super::hash;
use super::lanes::{Entered, Lanes, Ticket};
use super::users::{Entry, Source, Users};
use crate::log::Line;

/// How long good credentials stay good.
const GOOD_FOR: Duration = Duration::from_secs(600);
/// Largest number of good credentials in memory.
const GOOD_MAX: usize = 10_000;
/// How often weir checks the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest time from a question to its refusal.
const REFUSED_AFTER: Duration = Duration::from_secs(1);
/// Largest number of delayed refusals.
const LATE_MAX: u32 = 512;
/// Largest number of workers that wait for one comparison; weir has no room for further ones.
const JOIN_MAX: usize = 1024;
/// Longest wait before a comparison begins; after it there was no room.
const TURN_MAX: Duration = Duration::from_secs(5);
/// Niceness of the threads that compare.
const NICE: i32 = 10;

/// Times of one service; shorter in tests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) look_every: Duration,
    pub(crate) refused_after: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times { look_every: LOOK_EVERY, refused_after: REFUSED_AFTER }
    }
}

/// Name, password and hash in one number.
type Mark = [u8; 32];

/// Limits how much is compared and delayed at once, over all files.
#[derive(Debug)]
pub(crate) struct Room {
    lanes: RefCell<Lanes>,
    /// By ticket: signals the turn of a waiting comparison. Dropping it signals that there will be
    /// none.
    waiting: RefCell<HashMap<Ticket, Sender<()>>>,
    next: Cell<Ticket>,
    /// Idle threads that compare.
    free: Cell<usize>,
    late: Cell<u32>,
}

impl Room {
    /// Returns the room of this many threads.
    pub(crate) fn new(threads: usize) -> Rc<Room> {
        let (lanes, waiting, next, late) = Default::default();
        Rc::new(Room { lanes, waiting, next, free: Cell::new(threads), late })
    }

    /// Waits for the turn of a client's comparison, [`TURN_MAX`] at most. None: the room is full.
    async fn turn(self: &Rc<Room>, lane: Lane) -> Option<Turn> {
        let ticket = self.next.replace(self.next.get() + 1);
        let waits = Waits { room: Rc::clone(self), ticket, lane, told: self.enter(ticket, lane)? };
        self.give();
        waits.turn().await
    }

    fn enter(&self, ticket: Ticket, lane: Lane) -> Option<Receiver<()>> {
        match self.lanes.borrow_mut().enter(ticket, lane, Instant::now()) {
            Entered::Refused => return None,
            Entered::InPlaceOf(other) => drop(self.waiting.borrow_mut().remove(&other)),
            Entered::Waits => {}
        }
        let (sender, receiver) = channel();
        self.waiting.borrow_mut().insert(ticket, sender);
        Some(receiver)
    }

    /// Gives turns as long as threads are free.
    fn give(&self) {
        while self.free.get() > 0 {
            let Some(ticket) = self.lanes.borrow_mut().next(Instant::now()) else { return };
            self.free.set(self.free.get() - 1);
            if let Some(waits) = self.waiting.borrow_mut().remove(&ticket) {
                // The waiting comparison takes the turn, or gives it back.
                let _ = waits.send(());
            }
        }
    }
}

/// A comparison that waits for its turn. Dropping this gives the turn up.
struct Waits {
    room: Rc<Room>,
    ticket: Ticket,
    lane: Lane,
    told: Receiver<()>,
}

impl Waits {
    async fn turn(mut self) -> Option<Turn> {
        let told = tokio::time::timeout(TURN_MAX, &mut self.told).await;
        if let Ok(Ok(())) = told { Some(self.take()) } else { self.taken() }
    }

    fn take(&self) -> Turn {
        Turn { room: Rc::clone(&self.room), lane: self.lane }
    }

    /// Takes the turn, if it was given and the signal not yet received.
    fn taken(&mut self) -> Option<Turn> {
        self.told.try_recv().ok().map(|()| self.take())
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let waits = self.room.waiting.borrow_mut().remove(&self.ticket).is_some();
        if waits {
            self.room.lanes.borrow_mut().withdraw(self.ticket);
        } else {
            drop(self.taken());
        }
    }
}

/// The turn of a comparison; dropping it starts the next one.
struct Turn {
    room: Rc<Room>,
    lane: Lane,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.room.lanes.borrow_mut().leave(self.lane);
        self.room.free.set(self.room.free.get() + 1);
        self.room.give();
    }
}

/// Compares passwords.
pub(crate) struct Verifier {
    /// Key of the marks.
    key: [u8; 32],
    times: Times,
    /// Locked by the thread that reads the file.
    source: Arc<std::sync::Mutex<Source>>,
    /// Held during a check, so that others wait for its result.
    looking: Mutex<()>,
    users: RefCell<Arc<Users>>,
    looked: Cell<Instant>,
    good: RefCell<Cache<Mark, ()>>,
    /// Questions that wait for a comparison.
    open: RefCell<HashMap<Mark, Vec<Waiting>>>,
    room: Rc<Room>,
    /// Comparisons so far.
    compared: Cell<u64>,
    tell: Tell,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verifier {{ open: {} }}", self.open.borrow().len())
    }
}

impl Verifier {
    /// Verifies against the users of a file. `key` is unpredictable.
    pub(crate) fn new(
        source: Source,
        key: [u8; 32],
        room: Rc<Room>,
        times: Times,
        tell: Tell,
    ) -> Rc<Verifier> {
        let users = RefCell::new(Arc::clone(&source.now));
        Rc::new(Verifier {
            key,
            times,
            source: Arc::new(std::sync::Mutex::new(source)),
            looking: Mutex::new(()),
            users,
            looked: Cell::new(Instant::now()),
            good: RefCell::new(Cache::new(GOOD_MAX)),
            open: RefCell::default(),
            room,
            compared: Cell::new(0),
            tell,
        })
    }

    /// Verifies credentials and replies to the worker. Call it within a local set of tokio.
    pub(crate) fn ask(
        self: &Rc<Verifier>,
        worker: u16,
        question: Question,
        client: Lane,
        credentials: Credentials,
    ) {
        // Whatever happens to the task, the worker gets a reply.
        let debt = Debt {
            verifier: Rc::clone(self),
            to: Waiting { worker, question, client },
            is_paid: false,
        };
        tokio::task::spawn_local(Rc::clone(self).verify(debt, client, credentials));
    }

    /// Checks the file regularly until the verifier is dropped. Call it within a local set of
    /// tokio.
    pub(crate) async fn watch(this: Weak<Verifier>, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let Some(verifier) = this.upgrade() else { return };
            verifier.look().await;
        }
    }

    /// Returns how often the file is checked.
    pub(crate) fn looks_every(&self) -> Duration {
        self.times.look_every
    }

    /// Revokes all users, because no listener uses this file any more.
    pub(crate) fn retire(&self) {
        self.users.borrow().end(&Users::default());
    }

    async fn verify(self: Rc<Verifier>, mut debt: Debt, client: Lane, credentials: Credentials) {
        let asked = Instant::now();
        self.look().await;
        let users = Arc::clone(&self.users.borrow());
        let entry = users.find(&credentials.name);
        let mark = self.mark(&credentials, entry);
        let is_good = self.good.borrow_mut().find(&mark, Instant::now()).is_some();
        if let (true, Some(entry)) = (is_good, entry) {
            return debt.pay(Ok(Arc::clone(&entry.user)));
        }
        if !self.join(mark, &mut debt) {
            return;
        }
        let mut ending = Ending { verifier: Rc::clone(&self), mark, user: Err(Unverified::NoRoom) };
        ending.user = self.compare(client, &credentials, entry, &users).await;
        if ending.user.is_err() {
            self.hold_back(asked).await;
        }
    }

    /// Returns the comparisons so far.
    #[cfg(test)]
    pub(crate) fn compared(&self) -> u64 {
        self.compared.get()
    }

    /// Leaves the reply to a comparison of the same credentials. True: there is none yet, so the
    /// caller compares.
    fn join(&self, mark: Mark, debt: &mut Debt) -> bool {
        let mut open = self.open.borrow_mut();
        let waiting = open.entry(mark).or_default();
        if waiting.len() < JOIN_MAX {
            waiting.push(debt.to);
            debt.is_paid = true;
        }
        debt.is_paid && waiting.len() == 1
    }

    fn mark(&self, credentials: &Credentials, entry: Option<&Entry>) -> Mark {
        let mut digest = Sha256::new_with_prefix(self.key);
        let hash = entry.map_or("", |entry| &entry.hash);
        for part in [credentials.name.as_bytes(), &credentials.password, hash.as_bytes()] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }

    /// Checks the file unless that was done recently. Concurrent callers wait for the result.
    async fn look(&self) {
        if self.looked.get().elapsed() < self.times.look_every {
            return;
        }
        let turn = self.looking.lock().await;
        if self.looked.get().elapsed() >= self.times.look_every {
            self.read(&turn, Source::look).await;
        }
    }

    /// Checks the file now.
    pub(crate) async fn look_now(&self) {
        self.read(&self.looking.lock().await, Source::look).await;
    }

    async fn read(
        &self,
        _turn: &MutexGuard<'_, ()>,
        look: impl FnOnce(&mut Source) -> Vec<Line> + Send + 'static,
    ) {
        let source = Arc::clone(&self.source);
        // A file system can be slow, so another thread reads.
        let looking = tokio::task::spawn_blocking(move || {
            // A check that panics leaves the users as they were, and the next one starts afresh.
            let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
            let told = look(&mut source);
            (Arc::clone(&source.now), told)
        });
        let looked = looking.await;
        self.looked.set(Instant::now());
        // A panic is already on standard error.
        let Ok((now, told)) = looked else { return };
        told.iter().for_each(Line::log);
        let before = std::mem::replace(&mut *self.users.borrow_mut(), Arc::clone(&now));
        if !Arc::ptr_eq(&before, &now) {
            self.good.borrow_mut().clear();
            before.end(&now);
        }
    }

    /// Returns the user if the password is right. For an unknown name it compares with another
    /// user's hash and discards the result.
    async fn compare(
        &self,
        lane: Lane,
        credentials: &Credentials,
        entry: Option<&Entry>,
        users: &Users,
    ) -> Result<Arc<User>, Unverified> {
        let hash = entry.map(|entry| &entry.hash).or(users.dummy()).ok_or(Unverified::Wrong)?;
        let Some(turn) = self.room.turn(lane).await else { return Err(Unverified::NoRoom) };
        self.compared.set(self.compared.get() + 1);
        let (password, hash) = (credentials.password.clone(), Arc::clone(hash));
        let comparing = tokio::task::spawn_blocking(move || {
            give_way();
            hash::matches(&password, &hash)
        });
        let is_right = comparing.await.map_err(|_| Unverified::NoRoom)?;
        let user = entry
            .filter(|_| is_right)
            .map(|entry| Arc::clone(&entry.user))
            .ok_or(Unverified::Wrong);
        self.room.lanes.borrow_mut().learn(lane, user.is_ok(), Instant::now());
        drop(turn);
        user
    }

    fn answer(&self, to: Waiting, user: Result<Arc<User>, Unverified>) {
        (self.tell)(to.worker, News::Verified { question: to.question, client: to.client, user });
    }

    /// Delays a refusal until it may be sent.
    async fn hold_back(&self, asked: Instant) {
        if self.room.late.get() < LATE_MAX {
            self.room.late.set(self.room.late.get() + 1);
            tokio::time::sleep(self.times.refused_after.saturating_sub(asked.elapsed())).await;
            self.room.late.set(self.room.late.get() - 1);
        }
    }
}

/// Lowers the priority of the calling thread, once for each thread.
fn give_way() {
    thread_local!(static GAVE_WAY: Cell<bool> = const { Cell::new(false) });
    if !GAVE_WAY.replace(true) {
        // Refused only where threads have no priorities.
        let _ = rustix::process::nice(NICE);
    }
}

/// A question of a worker.
#[derive(Clone, Copy)]
struct Waiting {
    worker: u16,
    question: Question,
    client: Lane,
}

/// A reply owed to a worker, sent even if the task ends early.
struct Debt {
    verifier: Rc<Verifier>,
    to: Waiting,
    is_paid: bool,
}

impl Debt {
    fn pay(&mut self, user: Result<Arc<User>, Unverified>) {
        if !std::mem::replace(&mut self.is_paid, true) {
            self.verifier.answer(self.to, user);
        }
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.pay(Err(Unverified::NoRoom));
    }
}

/// The end of a comparison: dropping it replies to all that wait for it, and remembers good
/// credentials.
struct Ending {
    verifier: Rc<Verifier>,
    mark: Mark,
    user: Result<Arc<User>, Unverified>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.user.is_ok() {
            self.verifier.good.borrow_mut().insert(self.mark, (), Instant::now() + GOOD_FOR);
        }
        let waiting = self.verifier.open.borrow_mut().remove(&self.mark).unwrap_or_default();
        for to in waiting {
            self.verifier.answer(to, self.user.clone());
        }
    }
}

#[cfg(test)]
mod tests;
