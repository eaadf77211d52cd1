//! Pipes that relays move bytes through, and the system calls on them. Called by [`super::flow`].
//!
//! A pipe belongs to a flow only while it holds bytes, so connections that are idle, or that have a
//! fast enough reader, need none. Bounds: `most` pipes open at a time, [`FREE_MAX`] of them unused;
//! `bytes` in each.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Empty pipes that are kept for the next flow.
const FREE_MAX: usize = 8;

/// A pipe that can hold less is not worth its calls: beyond `fs.pipe-user-pages-soft` Linux gives a
/// user pipes of 8 KiB.
const CAPACITY_MIN: i32 = 64 << 10;

/// Requests for a pipe that are turned down after one could not be made, before the kernel is asked
/// again.
const REFUSALS: u32 = 256;

/// One pipe and its content.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    bytes: u32,
}

impl Pipe {
    /// Makes a pipe of this capacity, or of the usual one where a larger one is forbidden.
    fn new(capacity: u32) -> io::Result<Pipe> {
        let mut fds = [0; 2];
        // SAFETY: `fds` has room for two descriptors.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both were just created and nothing else owns them.
        let (read, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        let capacity = i32::try_from(capacity).unwrap_or(i32::MAX);
        // SAFETY: no pointers are involved.
        let mut given = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, capacity) };
        if given < 0 {
            // SAFETY: no pointers are involved.
            given = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_GETPIPE_SZ) };
        }
        if given < CAPACITY_MIN.min(capacity) {
            Err(io::ErrorKind::QuotaExceeded.into())
        } else {
            Ok(Pipe { read, write, bytes: 0 })
        }
    }

    /// Bytes in it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Moves up to `most` bytes from a non-blocking socket into the empty pipe; 0 is the end of the
    /// socket.
    pub(super) fn fill(&mut self, from: RawFd, most: u32) -> io::Result<usize> {
        debug_assert!(self.bytes == 0, "a full pipe and an empty socket would look the same");
        let taken = splice(from, self.write.as_raw_fd(), most)?;
        self.bytes = taken as u32;
        Ok(taken)
    }

    /// Moves as much out of the pipe as the non-blocking socket takes.
    pub(super) fn drain(&mut self, to: RawFd) -> io::Result<usize> {
        let taken = splice(self.read.as_raw_fd(), to, self.bytes)?;
        self.bytes -= (taken as u32).min(self.bytes);
        Ok(taken)
    }

    /// Reads everything out of it.
    pub(super) fn unload(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes()];
        let mut have = 0;
        while have < bytes.len() {
            let rest = &mut bytes[have..];
            // SAFETY: `rest` is writable for its length.
            let result =
                unsafe { libc::read(self.read.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len()) };
            have += usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
            if result == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.bytes = 0;
        Ok(bytes)
    }
}

/// Moves bytes between a pipe and a socket. The flag makes the pipe's side not wait; the socket's
/// side doesn't because it is non-blocking (splice(2)). A socket whose peer is gone raises SIGPIPE,
/// which Rust's runtime ignores.
fn splice(from: RawFd, to: RawFd, most: u32) -> io::Result<usize> {
    let none = std::ptr::null_mut();
    // SAFETY: without offsets no pointers are involved.
    let result = unsafe {
        libc::splice(
            from,
            none,
            to,
            none,
            most as usize,
            libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE,
        )
    };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// The pipes of one driver.
#[derive(Debug)]
pub(super) struct Pipes {
    free: Vec<Pipe>,
    /// Pipes in use and free ones.
    open: u32,
    most: u32,
    capacity: u32,
    /// Requests that are still turned down unheard.
    refusals: u32,
}

impl Pipes {
    /// No pipe yet; at most `most` of `capacity` bytes each.
    pub(super) fn new(most: u32, capacity: u32) -> Pipes {
        Pipes { free: Vec::new(), open: 0, most, capacity, refusals: 0 }
    }

    /// An empty pipe. None when there are too many, or descriptors or the user's share of pipe
    /// memory run out.
    pub(super) fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.free.pop() {
            return Some(pipe);
        }
        if self.open >= self.most {
            return None;
        }
        if self.refusals > 0 {
            self.refusals -= 1;
            return None;
        }
        match Pipe::new(self.capacity) {
            Ok(pipe) => {
                self.open += 1;
                Some(pipe)
            }
            Err(_) => {
                self.refusals = REFUSALS;
                None
            }
        }
    }

    /// Takes a pipe back. One that holds bytes is closed: they belong to a connection that is gone.
    pub(super) fn put(&mut self, pipe: Pipe) {
        if pipe.bytes == 0 && self.free.len() < FREE_MAX {
            self.free.push(pipe);
        } else {
            self.open -= 1;
        }
    }

    /// Pipes that exist, and those of them that are unused.
    #[cfg(any(test, feature = "conformance"))]
    pub(super) fn count(&self) -> (usize, usize) {
        (self.open as usize, self.free.len())
    }
}
