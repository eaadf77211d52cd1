//! A ring of provided buffers: which of a pool's buffers the kernel may receive into.
//!
//! Called by [`super::Uring`] for each class. The kernel takes from the head, first in, first out,
//! so only `armed` buffers are in the ring and the rest wait on the pool's last-in-first-out list:
//! few pages get hot.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use crate::pool::{Mapping, Pool};
use crate::wake::WakeState;

use super::ring::Ring;

/// A pool and the kernel's part of it.
pub(crate) struct Group {
    pub(crate) pool: Pool,
    entries: Mapping,
    /// Number of entries, a power of two.
    armed: u16,
    /// The kernel's group number.
    id: u16,
    /// Next entry to fill, counting without end.
    tail: u16,
    /// Buffers that the kernel has.
    in_ring: u16,
}

impl Group {
    /// Makes the pool and registers its ring, filled.
    ///
    /// # Errors
    /// The operating system's: EINVAL before Linux 5.19.
    pub(crate) fn new(
        ring: &Ring,
        id: u16,
        count: u16,
        bytes: u32,
        armed: u16,
        wake: Arc<WakeState>,
    ) -> io::Result<Group> {
        let armed = armed.clamp(1, 1 << 15).next_power_of_two();
        let entries = Mapping::new(usize::from(armed) * size_of::<BufRingEntry>())?;
        // SAFETY: the mapping is page-aligned, zeroed, large enough for `armed` entries, and is
        // unmapped only after the ring is gone or the group was unregistered (`release`).
        unsafe {
            ring.submitter().register_buf_ring_with_flags(entries.base() as u64, armed, id, 0)
        }?;
        let pool = Pool::new(count, bytes, wake)?;
        let mut group = Group { pool, entries, armed, id, tail: 0, in_ring: 0 };
        group.refill();
        Ok(group)
    }

    /// Hands free buffers to the kernel.
    pub(crate) fn refill(&mut self) {
        if self.in_ring == self.armed || self.pool.free() == 0 {
            return;
        }
        let base = self.entries.base().cast::<BufRingEntry>();
        while self.in_ring < self.armed {
            let Some(id) = self.pool.take() else { break };
            // SAFETY: masked, the position is inside the ring; the kernel reads an entry only once
            // the tail has passed it.
            let entry = unsafe { &mut *base.add(usize::from(self.tail & (self.armed - 1))) };
            entry.set_addr(self.pool.address(id) as u64);
            entry.set_len(self.pool.size());
            entry.set_bid(id);
            self.tail = self.tail.wrapping_add(1);
            self.in_ring += 1;
        }
        // SAFETY: `base` is the registered ring, and the reserved field of its first entry is the
        // tail; it is aligned for u16 and both sides access it atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(base).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// The kernel filled one.
    pub(crate) fn consumed(&mut self) {
        self.in_ring -= 1;
    }

    /// Buffers that the kernel can fill now.
    pub(crate) fn armed(&self) -> usize {
        usize::from(self.in_ring)
    }

    /// Free buffers, wherever they are.
    pub(crate) fn free(&self) -> usize {
        self.pool.free() + self.armed()
    }

    /// The kernel's group number.
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// Ends the kernel's use of the ring.
    pub(crate) fn release(&self, ring: &Ring) {
        // Fails only when it is not registered.
        let _ = ring.submitter().unregister_buf_ring(self.id);
    }
}
