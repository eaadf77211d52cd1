//! The accounting of bytes: of stored responses, of evicted ones that are still being sent, and of
//! those being fetched.
//!
//! A [`Charge`] lives as long as the memory that it counts: it is dropped with it, wherever the
//! last reference is. So an evicted response that is still in the outputs of slow clients counts to
//! the end. Bounds, which [`Account::take_fill`] and [`Account::admit`] enforce:
//!
//! - live <= limit, except for the parts besides the body of a whole response that finds no room
//!   ([`Account::take_over`]): it is only sent
//! - fills <= limit * 5/16: a quarter, which is the largest object, and its overhead
//!
//! It also counts how many responses have which serial, so that a ban ends when all of them were
//! checked against it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bans::Serial;

/// Returns the most bytes of `limit` for responses being fetched: slow servers must not empty the
/// store.
pub(crate) fn part_of_fills(limit: u64) -> u64 {
    limit / 16 * 5
}

/// Returns the bytes that the allocator takes for a request of this size: sizes of mimalloc, eight
/// between a power of two and the next.
pub(crate) fn allocated(bytes: usize) -> u64 {
    let bytes = (bytes as u64).max(16);
    let step = (bytes.next_power_of_two() / 16).max(16);
    bytes.div_ceil(step) * step
}

/// The sums.
#[derive(Debug)]
pub(crate) struct Account {
    /// Most live bytes.
    limit: AtomicU64,
    /// All live bytes.
    live: AtomicU64,
    /// Those of them that are being fetched.
    fills: AtomicU64,
    /// How many responses and fetches have each serial. Locked when one is added or removed, never
    /// by a lookup that finds nothing new.
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

    /// Takes bytes for a response being fetched; false when they are not available.
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

    /// Gives back the bytes from [`Account::take_fill`].
    pub(crate) fn give_fill(&self, bytes: u64) {
        self.fills.fetch_sub(bytes, Ordering::Relaxed);
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes `bytes` for a response that replaces the bytes of its fetch, if they are available;
    /// the caller gives `fetched` back afterwards.
    pub(crate) fn admit(self: &Arc<Self>, bytes: u64, fetched: u64) -> Option<Charge> {
        let (charge, fits) = self.take_over(bytes, fetched);
        fits.then_some(charge)
    }

    /// Converts the bytes of a fetch to those of a response, which uses them already; the caller
    /// gives `fetched` back afterwards. Also returns whether all live bytes are within the limit
    /// with it: the parts besides the body may be too much.
    pub(crate) fn take_over(self: &Arc<Self>, bytes: u64, fetched: u64) -> (Charge, bool) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (Charge { account: Arc::clone(self), bytes }, live.saturating_sub(fetched) <= self.limit())
    }

    /// Counts one more with this serial.
    pub(crate) fn hold(&self, serial: Serial) {
        *self.seen().entry(serial).or_default() += 1;
    }

    /// Counts one fewer.
    pub(crate) fn release(&self, serial: Serial) {
        let mut seen = self.seen();
        if let Some(count) = seen.get_mut(&serial) {
            *count -= 1;
            if *count == 0 {
                seen.remove(&serial);
            }
        }
    }

    /// Returns the oldest serial in use.
    pub(crate) fn oldest(&self) -> Option<Serial> {
        self.seen().keys().next().copied()
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<Serial, u64>> {
        // A panic can at most leave one too many, which keeps bans too long.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that are counted as long as this lives.
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

    /// Splits off `bytes` of them, at most all.
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

    /// Never fewer than requested, and at most an eighth more except for the smallest.
    #[test]
    fn sizes_of_the_allocator() {
        for (bytes, expected) in
            [(0, 16), (1, 16), (17, 32), (100, 112), (129, 144), (1025, 1152), (65_536, 65_536)]
        {
            assert_eq!(allocated(bytes), expected, "{bytes}");
        }
        for bytes in 128..5000 {
            let taken = allocated(bytes);
            assert!(
                taken >= bytes as u64 && taken <= (bytes as u64) * 9 / 8 + 16,
                "{bytes} {taken}"
            );
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
