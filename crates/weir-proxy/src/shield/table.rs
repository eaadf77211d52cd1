//! The accounts of all clients: a table of fixed size, shared by all workers, without locks.
//!
//! ```text
//! tags     | bucket of 8 tags, one cache line | ...     a client's account is in one of two
//!                                                       buckets, named by its tag
//! entries  | entry of 64 bytes | ...                    place n belongs to tag n
//! ```
//!
//! A tag is a keyed hash of group and client, so that no client can choose its bucket. Even tags
//! are accounts, 0 is a free place, and an odd tag is a place that is changing hands. Invariants:
//!
//! - a tag is at one place at most: making an account takes the latch of its first bucket, or tries
//!   again;
//! - an account with all dues past, nothing open and no recent offences is *as good as none*: it
//!   may be given away, so no cleanup is needed;
//! - any other account gives way only to a newcomer that owes more, and never with something open
//!   or recent offences: so new clients never push out one that is over a limit. An account of
//!   values is never pushed out and pushes none out: invented values make the table forget nothing;
//! - a thread that charges an account checks its tag again afterwards; one that gives it away marks
//!   the tag, then checks the dues again. One of them sees the other (all of it is sequentially
//!   consistent): the charge is taken back and repeated, or the place is kept.
//!
//! Bounds: [`Table::new`]'s size; [`TRIES`] of anything. A client without room, or out of tries, is
//! [`Charged::Untracked`]: it is let through. A value then shares an account with others
//! ([`super::shared`]).

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use super::key::Key;
use super::limit::{Rate, Verdict, parts};
use super::shared::{CELLS, cell_of};
use crate::base::stamp::siphash;

/// Tags in a bucket.
const WAYS: usize = 8;
/// Limits that share an account.
pub const SLOTS: usize = 4;
/// Attempts at an operation before the client is let through.
const TRIES: usize = 64;
/// Fewest and most accounts, powers of two.
pub const ACCOUNTS: std::ops::RangeInclusive<usize> = 1024..=16 << 20;
/// How long an offence is remembered.
const OFFENCE_US: u64 = 60_000_000;
/// A larger network is an offender when this many of its networks offend within [`OFFENCE_US`].
const AGGREGATE_PARTS: u32 = 16;
/// The group of larger networks; limits have other groups.
const AGGREGATES: u32 = 0;
/// How a label begins that is no client's, with the group below: no address does (RFC 4291 §2.7,
/// reserved multicast).
const NO_CLIENT: u64 = 0xffff_ffff << 32;
/// The due in the account of a larger network that holds the end of its time.
const UNTIL: usize = 1;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

/// One account.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Entry {
    /// The client, for people.
    label: [AtomicU64; 2],
    /// By limit of its group: see [`Rate`].
    dues: [AtomicU64; SLOTS],
    /// What the client has open: connections, or requests.
    open: AtomicU32,
    /// Refusals since the last pause of [`OFFENCE_US`].
    offences: AtomicU32,
    /// The time of the last refusal.
    last_us: AtomicU64,
}

const _: () = assert!(size_of::<Bucket>() == 64 && size_of::<Entry>() == 64);

/// See the module.
#[derive(Debug)]
pub struct Table {
    buckets: Box<[Bucket]>,
    entries: Box<[Entry]>,
    /// By bucket: an account with this first bucket is being made.
    latches: Box<[AtomicBool]>,
    key: [u64; 2],
    /// When the last larger network is forgotten, parts.
    aggregated_until: AtomicU64,
    /// What is open for values that share an account for lack of room: its places follow those of
    /// the entries.
    shared: OnceLock<Box<[AtomicU32]>>,
}

/// A table to be: made when it is first needed, and kept as long as anything refers to it.
#[derive(Debug)]
pub struct TableSeed {
    accounts: usize,
    key: [u64; 2],
    table: OnceLock<Table>,
}

/// Identifies an account.
#[derive(Debug, Clone, Copy)]
pub struct Name {
    tag: u64,
    label: [u64; 2],
}

/// The place of an account. It does not change as long as something is open in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u32);

/// An account as a reader of all accounts sees it: its parts may be of different moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) tag: u64,
    pub(super) label: [u64; 2],
    pub(super) dues: [u64; SLOTS],
    pub(super) open: u32,
    /// Refusals since the last minute without one; 0: the last refusal was before that.
    pub(super) offences: u32,
    pub(super) last_us: u64,
}

/// The result of a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charged {
    /// Charged to the account at this place.
    At(Place, Verdict),
    /// The client finds no room.
    Untracked,
}

/// The result of an attempt to enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// The client is in, with this many now; [`Table::leave`] gives it back.
    At(Place, u32),
    /// The maximum is already in at this place.
    Full(Place),
    /// The client finds no room: nothing is to be given back.
    Untracked,
}

/// Where a tag was found.
enum Found {
    At(Place),
    /// Its place is changing hands, or is about to be restored.
    Moving,
    Nowhere,
}

impl TableSeed {
    /// `accounts`: a power of two among [`ACCOUNTS`]. `key`: unpredictable, so that no client can
    /// choose its bucket.
    pub fn new(accounts: usize, key: [u64; 2]) -> TableSeed {
        TableSeed { accounts, key, table: OnceLock::new() }
    }

    /// Returns the number of accounts.
    pub fn accounts(&self) -> usize {
        self.accounts
    }

    /// Returns the table, which is made if need be.
    pub fn table(&self) -> &Table {
        self.table.get_or_init(|| Table::new(self.accounts, self.key))
    }
}

impl Table {
    /// Returns a table without accounts. `accounts` as in [`TableSeed::new`]; any other number is
    /// rounded.
    pub fn new(accounts: usize, key: [u64; 2]) -> Table {
        let buckets = (accounts / WAYS).next_power_of_two().max(2);
        let aggregated_until = AtomicU64::new(0);
        Table {
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            entries: (0..buckets * WAYS).map(|_| Entry::default()).collect(),
            latches: (0..buckets).map(|_| AtomicBool::new(false)).collect(),
            key,
            aggregated_until,
            shared: OnceLock::new(),
        }
    }

    /// Returns the name of a client's account in a group of limits. Group 0 is taken.
    #[inline]
    pub fn name(&self, group: u32, key: Key) -> Name {
        Name { tag: self.tag_of(&key.message(group)), label: key.label() }
    }

    /// Returns the tag: even, and not 0.
    #[inline]
    fn tag_of(&self, message: &[u8]) -> u64 {
        (siphash(self.key, message) & !1).max(2)
    }

    /// Names an account of values, written behind [`values_begin`](super::key::values_begin) so
    /// that no two coincide.
    pub(crate) fn name_of_values(&self, group: u32, message: &[u8]) -> Name {
        let tag = self.tag_of(message);
        Name { tag, label: [NO_CLIENT | u64::from(group), tag] }
    }

    /// Charges one request. `known`: the last known place of the account.
    #[inline]
    pub fn charge(
        &self,
        name: &Name,
        known: Option<Place>,
        slot: usize,
        rate: &Rate,
        now_us: u64,
    ) -> Charged {
        self.charge_above(name, known, (slot, 0), rate, now_us)
    }

    /// Returns when the account of a name has caught up; 0: no such account.
    pub(super) fn due(&self, name: &Name, slot: usize) -> u64 {
        match self.find(name.tag) {
            Found::At(place) => self.entry(place).dues[slot].load(SeqCst),
            Found::Moving | Found::Nowhere => 0,
        }
    }

    /// Charges one request; an account that owes nothing owes `floor` before that.
    #[inline]
    pub(super) fn charge_above(
        &self,
        name: &Name,
        known: Option<Place>,
        (slot, floor): (usize, u64),
        rate: &Rate,
        now_us: u64,
    ) -> Charged {
        let mut known = known;
        for _ in 0..TRIES {
            let place = match self.place(name, known.take(), rate.gap(), now_us) {
                Ok(Some(place)) => place,
                Ok(None) => continue,
                Err(NoRoom) => break,
            };
            let account = &self.entry(place).dues[slot];
            let verdict = rate.charge_above(account, floor, now_us);
            if self.tag(place).load(SeqCst) == name.tag {
                return Charged::At(place, verdict);
            }
            if verdict == Verdict::Passed {
                rate.take_back(account);
            }
        }
        Charged::Untracked
    }

    /// Takes back a charge that has just passed. An account that is gone owes nothing.
    pub fn take_back(&self, name: &Name, slot: usize, rate: &Rate) {
        if let Found::At(place) = self.find(name.tag) {
            rate.take_back(&self.entry(place).dues[slot]);
        }
    }

    /// Returns what [`Table::charge`] would say, and where, without charging. None: no account, so
    /// nothing is owed.
    pub fn look(
        &self,
        name: &Name,
        slot: usize,
        rate: &Rate,
        now_us: u64,
    ) -> Option<(Place, Verdict)> {
        let Found::At(place) = self.find(name.tag) else { return None };
        let verdict = rate.look(&self.entry(place).dues[slot], now_us);
        // Otherwise the place has changed hands meanwhile.
        (self.tag(place).load(SeqCst) == name.tag).then_some((place, verdict))
    }

    /// Counts one client's connection or request in, unless `max` are in already.
    pub fn enter(&self, name: &Name, known: Option<Place>, max: u32, now_us: u64) -> Entered {
        let mut known = known;
        for _ in 0..TRIES {
            // An account with something open is never pushed out, so it may not push another one
            // out either.
            let place = match self.place(name, known.take(), 0, now_us) {
                Ok(Some(place)) => place,
                Ok(None) => continue,
                Err(NoRoom) => break,
            };
            let open = &self.entry(place).open;
            let entered = open.fetch_update(SeqCst, SeqCst, |open| (open < max).then(|| open + 1));
            let is_his = self.tag(place).load(SeqCst) == name.tag;
            match entered {
                Ok(before) if is_his => return Entered::At(place, before + 1),
                Ok(_) => self.leave(place),
                Err(_) if is_his => return Entered::Full(place),
                Err(_) => {}
            }
        }
        Entered::Untracked
    }

    /// Enters a value that has no room, together with others that share its account. Because others
    /// may have opened it, what is open there does not count in an account that the value gets
    /// later.
    pub(crate) fn enter_shared(&self, name: &Name, max: u32) -> Entered {
        let cell = cell_of(name.tag);
        let place = Place((self.entries.len() + cell) as u32);
        let all = self.shared.get_or_init(|| (0..CELLS).map(|_| AtomicU32::new(0)).collect());
        match all[cell].fetch_update(SeqCst, SeqCst, |open| (open < max).then(|| open + 1)) {
            Ok(before) => Entered::At(place, before + 1),
            Err(_) => Entered::Full(place),
        }
    }

    /// Returns the count of what is in, at a place or shared.
    #[inline]
    fn open_at(&self, place: Place) -> &AtomicU32 {
        let shared =
            || self.shared.get().and_then(|all| all.get(place.0 as usize - self.entries.len()));
        match self.entries.get(place.0 as usize) {
            Some(entry) => &entry.open,
            None => shared().expect("a place is an account's"),
        }
    }

    /// Gives back one that was counted in.
    #[inline]
    pub fn leave(&self, place: Place) {
        let left = self.open_at(place).fetch_update(SeqCst, SeqCst, |open| open.checked_sub(1));
        debug_assert!(left.is_ok(), "nobody is in");
    }

    /// Returns how much is open at a place.
    pub fn open(&self, place: Place) -> u32 {
        self.open_at(place).load(SeqCst)
    }

    /// Returns how much is open, in all accounts.
    pub fn open_sum(&self) -> u64 {
        let shared = self.shared.get().into_iter().flatten();
        self.entries
            .iter()
            .map(|entry| &entry.open)
            .chain(shared)
            .map(|open| u64::from(open.load(Relaxed)))
            .sum()
    }

    /// Returns the number of accounts that are worth something now.
    pub fn used(&self, now_us: u64) -> usize {
        let used = |entry: &&Entry| entry.worth(now_us) != Some(0);
        self.entries.iter().filter(used).count()
    }

    /// Returns the number of accounts that there is room for.
    pub fn accounts(&self) -> usize {
        self.entries.len()
    }

    /// Returns the accounts that are worth something now.
    pub(super) fn in_use(&self, now_us: u64) -> impl Iterator<Item = Account> {
        let tags = self.buckets.iter().flat_map(|bucket| &bucket.0);
        let accounts = tags.zip(&self.entries).map(|(tag, entry)| (tag.load(SeqCst), entry));
        accounts
            .filter(move |(tag, entry)| *tag > 0 && tag & 1 == 0 && entry.worth(now_us) != Some(0))
            .map(move |(tag, entry)| {
                let last_us = entry.last_us.load(SeqCst);
                let is_recent = now_us.saturating_sub(last_us) < OFFENCE_US;
                Account {
                    tag,
                    label: entry.label.each_ref().map(|word| word.load(Relaxed)),
                    dues: entry.dues.each_ref().map(|due| due.load(SeqCst)),
                    open: entry.open.load(SeqCst),
                    offences: if is_recent { entry.offences.load(SeqCst) } else { 0 },
                    last_us,
                }
            })
    }

    // ---- offenders ----

    /// Notes that the client of `key` was refused, in the account at this place. If `together`:
    /// when many networks of a larger one are refused, the larger one is the client for a while.
    #[cold]
    pub fn offend(&self, place: Place, key: Key, together: bool, now_us: u64) {
        let entry = self.entry(place);
        let is_known = now_us.saturating_sub(entry.last_us.swap(now_us, SeqCst)) < OFFENCE_US;
        let before = if is_known { entry.offences.load(SeqCst) } else { 0 };
        entry.offences.store(before.saturating_add(1), SeqCst);
        if !together {
            return;
        }
        let Some(larger) = key.aggregate() else { return self.prolong(key, now_us) };
        if before > 0 {
            return;
        }
        let rate = Rate::new(AGGREGATE_PARTS, OFFENCE_US, AGGREGATE_PARTS, false);
        let name = self.name(AGGREGATES, larger);
        if let Charged::At(place, Verdict::Over { .. }) = self.charge(&name, None, 0, &rate, now_us)
        {
            self.take_together(place, now_us);
        }
    }

    /// Prolongs the time of a larger network that counts as one client and was refused.
    fn prolong(&self, key: Key, now_us: u64) {
        if let Found::At(place) = self.find(self.name(AGGREGATES, key).tag) {
            self.take_together(place, now_us);
        }
    }

    fn take_together(&self, place: Place, now_us: u64) {
        let until = parts(now_us.saturating_add(OFFENCE_US));
        self.entry(place).dues[UNTIL].fetch_max(until, SeqCst);
        self.aggregated_until.fetch_max(until, SeqCst);
    }

    /// Returns the client of `key`: that network, or the larger one if many networks of that have
    /// offended.
    #[inline]
    pub fn client(&self, key: Key, now_us: u64) -> Key {
        if self.aggregated_until.load(Relaxed) <= parts(now_us) {
            return key;
        }
        let Some(larger) = key.aggregate() else { return key };
        let Found::At(place) = self.find(self.name(AGGREGATES, larger).tag) else { return key };
        if self.entry(place).dues[UNTIL].load(SeqCst) > parts(now_us) { larger } else { key }
    }

    /// Clears all debts of this account.
    pub fn forgive(&self, name: &Name) {
        if let Found::At(place) = self.find(name.tag) {
            self.entry(place).dues.iter().for_each(|due| due.store(0, SeqCst));
        }
    }

    // ---- places ----

    #[inline]
    fn entry(&self, Place(place): Place) -> &Entry {
        &self.entries[place as usize]
    }

    #[inline]
    fn tag(&self, Place(place): Place) -> &AtomicU64 {
        &self.buckets[place as usize / WAYS].0[place as usize % WAYS]
    }

    /// Returns the two buckets of a tag, by different bits of it.
    #[inline]
    fn buckets_of(&self, tag: u64) -> [usize; 2] {
        let mask = self.buckets.len() - 1;
        let first = (tag >> 1) as usize & mask;
        let second = (tag >> 33) as usize & mask;
        [first, if second == first { first ^ 1 } else { second }]
    }

    fn places_of(&self, tag: u64) -> impl Iterator<Item = Place> {
        let [first, second] = self.buckets_of(tag).map(places_in);
        first.chain(second)
    }

    #[inline]
    fn find(&self, tag: u64) -> Found {
        let mut moving = false;
        for place in self.places_of(tag) {
            let other = self.tag(place).load(SeqCst);
            if other == tag {
                return Found::At(place);
            }
            moving |= other == tag | 1;
        }
        if moving { Found::Moving } else { Found::Nowhere }
    }

    /// Returns the place of an account, which is made if need be. None: try again.
    #[inline]
    fn place(
        &self,
        name: &Name,
        known: Option<Place>,
        debt: u64,
        now_us: u64,
    ) -> Result<Option<Place>, NoRoom> {
        if let Some(place) = known
            && self.tag(place).load(SeqCst) == name.tag
        {
            return Ok(Some(place));
        }
        match self.find(name.tag) {
            Found::At(place) => Ok(Some(place)),
            Found::Moving => {
                spin_loop();
                Ok(None)
            }
            Found::Nowhere => self.make(name, debt, now_us),
        }
    }

    /// Makes an account for a newcomer that is going to owe `debt` parts, unless another thread
    /// holds the latch.
    #[inline(never)]
    fn make(&self, name: &Name, debt: u64, now_us: u64) -> Result<Option<Place>, NoRoom> {
        let latch = &self.latches[self.buckets_of(name.tag)[0]];
        if latch.swap(true, SeqCst) {
            spin_loop();
            return Ok(None);
        }
        let made = match self.find(name.tag) {
            Found::At(place) => Ok(Some(place)),
            Found::Moving => Ok(None),
            Found::Nowhere => self.vacate(name, debt, now_us).map(|place| {
                self.settle(place, name);
                Some(place)
            }),
        };
        latch.store(false, SeqCst);
        made
    }

    /// Empties a place for a tag: a free one, one that is as good as none, or the one that owes
    /// least and less than this.
    ///
    /// Inventing values is free, and each may be remembered for long: values get half of each
    /// bucket, and no account gives way to them. Nor do they give way to any: otherwise a guesser
    /// could push out the account of its guesses.
    fn vacate(&self, name: &Name, debt: u64, now_us: u64) -> Result<Place, NoRoom> {
        let (tag, is_of_values) = (name.tag, name.is_of_values());
        let may_be_theirs = |place: &Place| !is_of_values || place.0 as usize % WAYS < WAYS / 2;
        let may_go =
            |place: &Place| !is_of_values && self.entry(*place).label[0].load(Relaxed) < NO_CLIENT;
        let worth = |place: Place| match self.tag(place).load(SeqCst) {
            0 => Some(0),
            tag if tag & 1 == 1 => None,
            _ => self.entry(place).worth(now_us),
        };
        // From the bucket that has more of them, so that hardly any is full while others have room.
        let is_worthless = |place: &Place| worth(*place) == Some(0);
        let [first, second] = self.buckets_of(tag).map(places_in);
        let buckets = if second.clone().filter(is_worthless).count()
            > first.clone().filter(is_worthless).count()
        {
            second.chain(first)
        } else {
            first.chain(second)
        };
        let mut worthless = buckets.filter(may_be_theirs).filter(is_worthless);
        if let Some(place) = worthless.find(|place| self.take(*place, 0, now_us)) {
            return Ok(place);
        }
        let owes =
            |place: Place| worth(place).filter(|owed| *owed < debt).map(|owed| (owed, place));
        let theirs = self.places_of(tag).filter(may_go);
        let least = theirs.filter_map(owes).min_by_key(|(owed, _)| *owed);
        least.map(|(_, place)| place).filter(|place| self.take(*place, debt, now_us)).ok_or(NoRoom)
    }

    /// Takes a place from its account and makes its tag odd, unless the account is worth more than
    /// it was, or changes.
    fn take(&self, place: Place, debt: u64, now_us: u64) -> bool {
        let (tag, entry) = (self.tag(place), self.entry(place));
        let before = tag.load(SeqCst);
        if before & 1 == 1 || tag.compare_exchange(before, before | 1, SeqCst, SeqCst).is_err() {
            return false;
        }
        // A thread that charges it from here on sees that, or is seen here.
        let is_worth_less = entry.worth(now_us).is_some_and(|worth| worth == 0 || worth < debt);
        if is_worth_less && entry.dues.iter().all(|due| is_reset(due, debt, now_us)) {
            return true;
        }
        tag.store(before, SeqCst);
        false
    }

    /// Gives a place that was taken its new account.
    fn settle(&self, place: Place, name: &Name) {
        let entry = self.entry(place);
        entry.offences.store(0, SeqCst);
        entry.last_us.store(0, SeqCst);
        for (label, word) in entry.label.iter().zip(name.label) {
            label.store(word, Relaxed);
        }
        self.tag(place).store(name.tag, SeqCst);
    }
}

impl Name {
    /// Whether both name the same account.
    pub(super) fn is_same(&self, other: &Name) -> bool {
        self.tag == other.tag
    }

    /// Whether it names values of requests.
    fn is_of_values(&self) -> bool {
        self.label[0] >= NO_CLIENT
    }

    /// Returns the hash by which it is found.
    pub(super) fn tag(&self) -> u64 {
        self.tag
    }

    /// Whether an account with this tag is the named one.
    pub(super) fn is(&self, tag: u64) -> bool {
        self.tag == tag
    }
}

impl Account {
    /// Returns the group in which the account counts values of requests; None: it is a client's.
    pub(super) fn values_of(&self) -> Option<u32> {
        (self.label[0] >= NO_CLIENT).then_some(self.label[0] as u32)
    }
}

/// Returns the places of a bucket.
fn places_in(bucket: usize) -> impl Iterator<Item = Place> + Clone {
    let first = (bucket * WAYS) as u32;
    (first..first + WAYS as u32).map(Place)
}

/// Every place holds an account that may keep it.
struct NoRoom;

/// Resets a due to 0, unless it has reached `debt` or more.
fn is_reset(due: &AtomicU64, debt: u64, now_us: u64) -> bool {
    let is_less = |due: u64| due <= parts(now_us) || due - parts(now_us) < debt;
    let seen = due.load(SeqCst);
    seen == 0 || is_less(seen) && due.compare_exchange(seen, 0, SeqCst, SeqCst).is_ok()
}

impl Entry {
    /// Returns what the account owes, parts; 0: it is as good as none. None: it may not be given
    /// away.
    fn worth(&self, now_us: u64) -> Option<u64> {
        let has_offended = self.offences.load(SeqCst) > 0
            && now_us.saturating_sub(self.last_us.load(SeqCst)) < OFFENCE_US;
        if self.open.load(SeqCst) > 0 || has_offended {
            return None;
        }
        let due = self.dues.iter().map(|due| due.load(SeqCst)).max().unwrap_or(0);
        Some(due.saturating_sub(parts(now_us)))
    }
}
