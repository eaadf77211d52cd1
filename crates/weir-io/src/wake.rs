//! Wakes a driver that sleeps in the kernel, at the price of one atomic operation when it does not
//! sleep.
//!
//! Called by other cores (through [`Waker`]) and by the buffer pool when a starved driver gets
//! memory back. The event descriptor is written only between "about to wait" and "running again",
//! at most once for each sleep.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Waker;

/// [`Waker::wake`] was called.
const WOKEN: u32 = 1;
/// The owner is about to wait or waits.
const ASLEEP: u32 = 2;
/// Buffers came back while sockets were starved of them.
const BUFFERS: u32 = 4;

/// State shared by a driver and all threads that may wake it.
///
/// No wake is lost: the owner sets `ASLEEP` with the same atomic operation that reads `WOKEN`, and
/// a waker sets `WOKEN` with the one that reads `ASLEEP`; whichever comes second sees the other.
#[derive(Debug)]
pub(crate) struct WakeState {
    state: AtomicU32,
    event: File,
}

impl WakeState {
    /// Makes the event descriptor.
    ///
    /// # Errors
    /// The operating system's, when descriptors run out.
    pub(crate) fn new() -> io::Result<WakeState> {
        // SAFETY: no pointers are involved; the result is checked before it is used as a
        // descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just created and nothing else owns it.
        let event = unsafe { File::from_raw_fd(fd) };
        Ok(WakeState { state: AtomicU32::new(0), event })
    }

    /// The descriptor that the driver watches for readability (edge: each write counts).
    pub(crate) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Owner: about to wait. False when it must not, because a wake is pending.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.state.fetch_or(ASLEEP, Ordering::AcqRel) & (WOKEN | BUFFERS) == 0
    }

    /// Owner: running again. True when [`Waker::wake`] was called since the last time.
    pub(crate) fn rise(&self) -> bool {
        // A plain load first: without it each turn pays for a read-modify-write even when nothing
        // ever wakes it.
        if self.state.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.state.swap(0, Ordering::AcqRel) & WOKEN != 0
    }

    /// The pool: memory came back for a driver that waits for it.
    pub(crate) fn buffers_back(&self) {
        self.notify(BUFFERS);
    }

    fn notify(&self, why: u32) {
        let before = self.state.fetch_or(why, Ordering::AcqRel);
        if before & ASLEEP != 0 && before & (WOKEN | BUFFERS) == 0 {
            // Fails only when the counter is at its maximum, and then the descriptor is readable
            // anyway.
            let _ = (&self.event).write(&1u64.to_ne_bytes());
        }
    }
}

impl Waker for WakeState {
    fn wake(&self) {
        self.notify(WOKEN);
    }
}
