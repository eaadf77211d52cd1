//! Who holds how many bytes: of the stored, of what is evicted and still being sent, and of what is being fetched.
//!
//! A [`Charge`] lives as long as the memory that it counts: it is dropped with it, wherever the last reference is. So what an evicted answer
//! still occupies in the outputs of slow clients counts to the end. Bounds, which [`Account::take_fill`] and [`Account::admit`] enforce:
//!
//! - live <= limit, but for what an answer has besides its body that is whole and finds no room ([`Account::take_over`]): it is only sent
//! - fills <= limit * 5/16: a quarter, which is the largest object, and what surrounds it
//!
//! Here is also how many answers have which serial, so that a ban ends when nobody is left that it was not looked at for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bans::Serial;

/// What is being fetched gets this part of `limit` at most: slow servers must not empty the store.
pub(crate) fn part_of_fills(limit: u64) -> u64 {
    limit / 16 * 5
}

/// Bytes that the allocator takes for so many that are asked for: sizes of mimalloc, eight between a power of two and the next.
pub(crate) fn allocated(bytes: usize) -> u64 {
    let bytes = (bytes as u64).max(16);
    let step = (bytes.next_power_of_two() / 16).max(16);
    bytes.div_ceil(step) * step
}

/// The sums.
#[derive(Debug)]
pub(crate) struct Account {
    /// Bytes that live may have.
    limit: AtomicU64,
    /// All bytes that live.
    live: AtomicU64,
    /// Of these, what is being fetched.
    fills: AtomicU64,
    /// How many answers and fetches have each serial. Taken when one comes or goes, never by a lookup that finds nothing new.
    seen: Mutex<BTreeMap<Serial, u64>>,
}

impl Account {
    pub(crate) fn new(limit: u64) -> Self {
        let zero = || AtomicU64::new(0);
        Self { limit: AtomicU64::new(limit), live: zero(), fills: zero(), seen: Mutex::default() }
    }

    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    pub(crate) fn fills(&self) -> u64 {
        self.fills.load(Ordering::Relaxed)
    }

    /// Takes bytes for what is being fetched; false when they are not there.
    pub(crate) fn take_fill(&self, bytes: u64) -> bool {
        let limit = self.limit();
        let fills = self.fills.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = fills <= part_of_fills(limit) && live <= limit;
        if !fits {
            self.give_fill(bytes);
        }
        fits
    }

    /// Gives back what [`Account::take_fill`] took.
    pub(crate) fn give_fill(&self, bytes: u64) {
        self.fills.fetch_sub(bytes, Ordering::Relaxed);
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether an answer of so many bytes may live in place of what was taken for it while it was fetched. Takes them if so; the caller
    /// gives `fetched` back afterwards.
    pub(crate) fn admit(self: &Arc<Self>, bytes: u64, fetched: u64) -> Option<Charge> {
        let (charge, fits) = self.take_over(bytes, fetched);
        fits.then_some(charge)
    }

    /// Makes of what was taken for a fetch the bytes of an answer, which has them already; the caller gives `fetched` back afterwards. And whether all that lives is within the
    /// limit with it: what an answer has besides its body may be too much.
    pub(crate) fn take_over(self: &Arc<Self>, bytes: u64, fetched: u64) -> (Charge, bool) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (Charge { account: Arc::clone(self), bytes }, live.saturating_sub(fetched) <= self.limit())
    }

    /// One more has this serial.
    pub(crate) fn hold(&self, serial: Serial) {
        *self.seen().entry(serial).or_default() += 1;
    }

    /// One fewer has it.
    pub(crate) fn release(&self, serial: Serial) {
        let mut seen = self.seen();
        if let Some(count) = seen.get_mut(&serial) {
            *count -= 1;
            if *count == 0 {
                seen.remove(&serial);
            }
        }
    }

    /// The oldest serial that somebody has.
    pub(crate) fn oldest(&self) -> Option<Serial> {
        self.seen().keys().next().copied()
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<Serial, u64>> {
        // A panic can at most leave one too many, which keeps bans too long.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that live as long as this.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Charge {
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits off so many of them, at most all.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { account: Arc::clone(&self.account), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.live.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Never fewer than asked for, and at most an eighth more but for the smallest.
    #[test]
    fn sizes_of_the_allocator() {
        for (bytes, expected) in [(0, 16), (1, 16), (17, 32), (100, 112), (129, 144), (1025, 1152), (65_536, 65_536)] {
            assert_eq!(allocated(bytes), expected, "{bytes}");
        }
        for bytes in 128..5000 {
            let taken = allocated(bytes);
            assert!(taken >= bytes as u64 && taken <= (bytes as u64) * 9 / 8 + 16, "{bytes} {taken}");
        }
    }

    #[test]
    fn nothing_above_the_limits() {
        let account = Arc::new(Account::new(1000));
        assert!(account.take_fill(310) && !account.take_fill(1));
        let stored = account.admit(900, 310).expect("it replaces what was fetched");
        account.give_fill(310);
        assert_eq!((account.live(), account.fills()), (900, 0));
        assert!(!account.take_fill(101), "within its part, but not within the whole");
        assert!(account.admit(101, 0).is_none());
        assert_eq!(account.live(), 900);
        drop(stored);
        assert_eq!(account.live(), 0);
    }

    #[test]
    fn a_split_charge_counts_once() {
        let account = Arc::new(Account::new(1000));
        let mut whole = account.admit(100, 0).expect("fits");
        let part = whole.split(30);
        drop(whole);
        assert_eq!(account.live(), 30);
        drop(part);
        assert_eq!(account.live(), 0);
    }
}
