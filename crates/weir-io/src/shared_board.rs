//! A load board in an eBPF map that programs in the kernel read (BPF_F_MMAPABLE, bpf(2)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use crate::Board;
use crate::board::Line;

/// Memory that is mapped, until it is dropped.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is only an address until it is dropped, which any thread may do.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference allows nothing.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this address and length, and all of its users are gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Board {
    /// For this number of workers, in an array with at least as many lines that can be mapped.
    ///
    /// # Errors
    /// The operating system's: it is no such array, or has less room.
    pub fn map(array: BorrowedFd<'_>, workers: usize) -> io::Result<Board> {
        let bytes = workers.checked_mul(size_of::<Line>()).ok_or(io::ErrorKind::InvalidInput)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses an unused place.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, array.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        let mapping = Mapping { start, bytes };
        // SAFETY: mapped for as long as `mapping` lives; the program in the kernel accesses its
        // words one by one, and adds atomically.
        unsafe { Board::over(start, bytes, workers, mapping) }
            .ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}
