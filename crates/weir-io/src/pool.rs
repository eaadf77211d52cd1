//! The pool that receive buffers of one class come from: a lazily touched mapping, a
//! last-in-first-out free list, and an inbox for buffers that are dropped on other cores.
//!
//! Owned by a driver; [`RecvBuf`]s hold leases of it. Bound: `count` buffers, never more. The
//! mapping is anonymous memory, so a page costs nothing until a byte is received into it. The free
//! list hands out the buffer that was used last, so that few pages are touched; pages that a burst
//! touched are given back to the system when they were not needed for two seconds.
//!
//! ```text
//!   free (owner) --take--> [in the kernel's ring] --lend--> RecvBuf
//!   RecvBuf --recycle (owner's thread)--> free
//!       \---drop (any thread)--> inbox --collect--> free
//! ```

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::RecvBuf;
use crate::wake::WakeState;

const PAGE_BYTES: usize = 4096;

/// Each buffer starts this much deeper in its first page than the one before (up to a page). At the
/// same depth the first lines of all buffers would fall into the same few sets of the processor's
/// caches, and every head is parsed from those lines.
const COLOUR_BYTES: usize = 64;

/// Buffers whose memory is given back to the system in one turn.
const TRIM_MAX: usize = 16;
/// After this time without use, a buffer's memory is given back, microseconds.
const TRIM_AFTER_US: u64 = 2_000_000;
/// Pause between turns that give memory back, microseconds.
const TRIM_PAUSE_US: u64 = 20_000;

/// Anonymous memory of this process.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory with no thread affinity; its users decide who may touch which
// part.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself hands out only addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed, page-aligned memory that is not resident until touched.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn new(bytes: usize) -> io::Result<Mapping> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice about the range that was just mapped. Huge pages would make one received
        // byte cost 2 MiB of resident memory; a kernel without them answers with an error that does
        // not matter.
        unsafe { libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, bytes })
    }

    /// The first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this range was mapped by `new`, and no borrow of it outlives it: leases hold the
        // `Arc`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[derive(Debug, Default)]
struct Inbox {
    ids: Vec<u16>,
    /// The owner ran out of buffers and wants to be woken.
    starved: bool,
}

/// The part of a pool that outlives its driver as long as a buffer is held.
#[derive(Debug)]
pub(crate) struct Shared {
    mapping: Mapping,
    stride: usize,
    inbox: Mutex<Inbox>,
    /// The inbox is not empty; spares the owner the lock on each turn.
    returned: AtomicBool,
    wake: Arc<WakeState>,
}

impl Shared {
    /// Address of a buffer.
    pub(crate) fn address(&self, id: u16) -> NonNull<u8> {
        let id = usize::from(id);
        let depth = id * COLOUR_BYTES % PAGE_BYTES;
        // SAFETY: `id` is below the pool's count and the stride has room for the depth, so it is
        // inside the mapping.
        unsafe { self.mapping.base.add(id * self.stride + depth) }
    }

    /// Takes back a buffer from any thread.
    pub(crate) fn give_back(&self, id: u16) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.ids.push(id);
        let starved = std::mem::take(&mut inbox.starved);
        self.returned.store(true, Ordering::Release);
        drop(inbox);
        if starved {
            self.wake.buffers_back();
        }
    }
}

/// The owner's end.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// One reference for each buffer, so that lending and recycling move it instead of counting.
    leases: Box<[Option<Arc<Shared>>]>,
    free: Vec<u16>,
    /// Buffers that may have resident memory, by number.
    touched: Box<[bool]>,
    /// The lowest length of `free` since the last trim: this many buffers at its bottom were not
    /// used.
    unused: usize,
    trim_us: u64,
    size: u32,
}

impl Pool {
    /// A pool of `count` buffers of `size` bytes. `wake` is called when a buffer comes back after
    /// [`Pool::collect_or_starve`] found none.
    ///
    /// # Errors
    /// The operating system's, when the address space is exhausted.
    pub(crate) fn new(count: u16, size: u32, wake: Arc<WakeState>) -> io::Result<Pool> {
        let stride = (size as usize).next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        let mapping = Mapping::new(stride * usize::from(count).max(1))?;
        let shared = Arc::new(Shared {
            mapping,
            stride,
            inbox: Mutex::default(),
            returned: AtomicBool::new(false),
            wake,
        });
        let leases = (0..count).map(|_| Some(Arc::clone(&shared))).collect();
        let touched = vec![false; usize::from(count)].into();
        let free: Vec<u16> = (0..count).rev().collect();
        Ok(Pool { shared, leases, unused: free.len(), free, touched, trim_us: 0, size })
    }

    /// Bytes in a buffer.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Buffers on the free list.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// All buffers.
    pub(crate) fn total(&self) -> usize {
        self.leases.len()
    }

    /// The buffer that was used last.
    pub(crate) fn take(&mut self) -> Option<u16> {
        let id = self.free.pop();
        self.unused = self.unused.min(self.free.len());
        id
    }

    /// Puts back an unused buffer from [`Pool::take`].
    pub(crate) fn put(&mut self, id: u16) {
        self.free.push(id);
    }

    /// Address of a buffer.
    pub(crate) fn address(&self, id: u16) -> *mut u8 {
        self.shared.address(id).as_ptr()
    }

    /// Turns a taken buffer with `len` written bytes at its start into a [`RecvBuf`].
    ///
    /// # Panics
    /// When the buffer is lent already (broken ledger).
    pub(crate) fn lend(&mut self, id: u16, len: u32) -> RecvBuf {
        debug_assert!(len <= self.size);
        self.touched[usize::from(id)] = true;
        let lease = self.leases[usize::from(id)].take().expect("a buffer is lent once");
        RecvBuf::pooled(lease, id, len)
    }

    /// Keeps the memory mapped for ever: the kernel may still write to it.
    pub(crate) fn leak(&self) {
        std::mem::forget(Arc::clone(&self.shared));
    }

    /// Takes a buffer back on the owner's thread; returns it if it belongs to another pool.
    pub(crate) fn recycle(&mut self, buffer: RecvBuf) -> Option<RecvBuf> {
        if !buffer.is_of(&self.shared) {
            return Some(buffer);
        }
        if let Some((lease, id)) = buffer.into_lease() {
            self.leases[usize::from(id)] = Some(lease);
            self.free.push(id);
        }
        None
    }

    /// Moves buffers that other threads gave back to the free list.
    pub(crate) fn collect(&mut self) {
        if self.shared.returned.load(Ordering::Acquire) {
            self.empty_inbox(false);
        }
    }

    /// As [`Pool::collect`]; if still none is free, asks to be woken once one is.
    pub(crate) fn collect_or_starve(&mut self) {
        self.empty_inbox(true);
    }

    /// Gives unused memory back after a while, a little each turn.
    pub(crate) fn trim(&mut self, now_us: u64) {
        if now_us < self.trim_us {
            return;
        }
        let unused =
            self.free[..self.unused].iter().copied().filter(|&id| self.touched[usize::from(id)]);
        let batch: Vec<u16> = unused.take(TRIM_MAX).collect();
        for &id in &batch {
            // SAFETY: the pages between this buffer's place and the next one's hold only this
            // buffer. It is free, so no reference points into it and the kernel does not have it.
            unsafe {
                let start = self.shared.mapping.base.add(usize::from(id) * self.shared.stride);
                libc::madvise(start.as_ptr().cast(), self.shared.stride, libc::MADV_DONTNEED);
            }
            self.touched[usize::from(id)] = false;
        }
        if batch.len() == TRIM_MAX {
            self.trim_us = now_us + TRIM_PAUSE_US;
        } else {
            self.trim_us = now_us + TRIM_AFTER_US;
            self.unused = self.free.len();
        }
    }

    fn empty_inbox(&mut self, may_starve: bool) {
        let mut inbox = self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.returned.store(false, Ordering::Relaxed);
        for id in inbox.ids.drain(..) {
            self.leases[usize::from(id)] = Some(Arc::clone(&self.shared));
            self.free.push(id);
        }
        inbox.starved = may_starve && self.free.is_empty();
    }
}

#[cfg(test)]
mod tests {
    //! The ledger of a pool balances whichever way its buffers take, and memory outlives the owner
    //! while it is lent.

    use proptest::prelude::*;

    use super::*;

    const COUNT: u16 = 8;
    const SIZE: u32 = 128;

    fn pool() -> Pool {
        Pool::new(COUNT, SIZE, Arc::new(WakeState::new().expect("an event descriptor")))
            .expect("a pool")
    }

    /// Takes a buffer and writes its own number into all of it.
    fn lend(pool: &mut Pool) -> Option<(u16, RecvBuf)> {
        let id = pool.take()?;
        // SAFETY: the buffer was just taken, so no other reference to its SIZE bytes exists.
        unsafe { std::ptr::write_bytes(pool.address(id), id as u8, SIZE as usize) };
        Some((id, pool.lend(id, SIZE)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Lent, recycled, dropped here or on another thread, kept as slices: no buffer is ever
        /// lent twice at a time, none is lost, and kept bytes do not change.
        #[test]
        fn the_ledger_balances(
            steps in proptest::collection::vec((0u8..5, any::<prop::sample::Index>()), 1..80),
        ) {
            let mut pool = pool();
            let mut held: Vec<(u16, RecvBuf)> = Vec::new();
            let mut kept: Vec<(u16, bytes::Bytes)> = Vec::new();
            for (step, which) in steps {
                match step {
                    0 | 1 => held.extend(lend(&mut pool)),
                    _ if held.is_empty() => {}
                    2 => {
                        prop_assert!(pool.recycle(held.remove(which.index(held.len())).1).is_none())
                    }
                    3 => {
                        let (_, buffer) = held.remove(which.index(held.len()));
                        std::thread::spawn(move || drop(buffer)).join().expect("no panic");
                    }
                    _ => {
                        let (id, buffer) = held.remove(which.index(held.len()));
                        kept.push((id, buffer.into_bytes()));
                    }
                }
                pool.collect();
                prop_assert_eq!(pool.free() + held.len(), usize::from(COUNT));
                for (id, bytes) in held
                    .iter()
                    .map(|(id, b)| (id, &b[..]))
                    .chain(kept.iter().map(|(id, b)| (id, &b[..])))
                {
                    prop_assert!(
                        bytes.len() == SIZE as usize && bytes.iter().all(|&byte| byte == *id as u8)
                    );
                }
            }
        }
    }

    #[test]
    fn the_last_one_used_is_the_next() {
        let mut pool = pool();
        let (first, buffer) = lend(&mut pool).expect("a buffer");
        pool.recycle(buffer);
        assert_eq!(pool.take(), Some(first));
    }

    #[test]
    fn anothers_buffer_goes_back_to_where_it_came_from() {
        let (mut one, mut other) = (pool(), pool());
        let (_, buffer) = lend(&mut one).expect("a buffer");
        let refused = other.recycle(buffer).expect("not its own");
        drop(refused);
        one.collect();
        assert_eq!((one.free(), other.free()), (8, 8));
        assert!(other.recycle(RecvBuf::from_vec(vec![1])).is_some());
    }

    /// Resident pages of the pool's memory.
    fn resident(pool: &Pool) -> usize {
        let mut pages = vec![0u8; pool.shared.mapping.bytes.div_ceil(PAGE_BYTES)];
        let base = pool.shared.mapping.base().cast();
        let bytes = pool.shared.mapping.bytes;
        // SAFETY: the range is the mapping, and `pages` has a byte for each of its pages.
        assert_eq!(unsafe { libc::mincore(base, bytes, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|&&page| page & 1 != 0).count()
    }

    #[test]
    fn memory_of_a_burst_goes_back_to_the_system() {
        let mut pool = pool();
        assert_eq!(resident(&pool), 0, "nothing is touched before it is used");
        let burst: Vec<_> = std::iter::from_fn(|| lend(&mut pool)).collect();
        assert_eq!((burst.len(), resident(&pool)), (8, 8));
        let mut burst = burst.into_iter().map(|(_, buffer)| buffer);
        let kept = burst.next().expect("eight");
        burst.for_each(|buffer| drop(pool.recycle(buffer)));
        // The first look finds that all were used, the next one that they were not.
        pool.trim(1);
        assert_eq!(resident(&pool), 8);
        pool.trim(TRIM_AFTER_US);
        assert_eq!(resident(&pool), 8, "not so soon");
        pool.trim(TRIM_AFTER_US + 1);
        assert_eq!(resident(&pool), 1, "one is lent");
        assert!(kept.iter().all(|&byte| byte == kept[0]));
        let (id, again) = lend(&mut pool).expect("a buffer");
        assert!(again.iter().all(|&byte| byte == id as u8));
    }

    #[test]
    fn lent_memory_outlives_the_pool() {
        let mut pool = Pool::new(2, 4096, Arc::new(WakeState::new().expect("an event descriptor")))
            .expect("a pool");
        let id = pool.take().expect("a buffer");
        // SAFETY: the buffer was just taken.
        unsafe { std::ptr::write_bytes(pool.address(id), 9, 4096) };
        let bytes = pool.lend(id, 4096).into_bytes();
        drop(pool);
        assert!(bytes.iter().all(|&byte| byte == 9));
    }
}
