//! The epoll descriptor and the system calls on sockets, with errors as values. Called by
//! [`super::Epoll`].

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use socket2::SockAddr;

use crate::net::check_len;
use crate::outgoing::SLICES_MAX;

/// Events fetched by one wait.
pub(crate) const EVENTS_MAX: usize = 256;

/// Readable, or ended in a way that a receive reports.
pub(super) const IN: u32 = libc::EPOLLIN as u32;
pub(super) const OUT: u32 = libc::EPOLLOUT as u32;
/// The other side ended or the connection failed: something follows the last byte.
pub(super) const HANGUP: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
/// The connection failed or is over in both directions.
pub(super) const BROKEN: u32 = (libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// Urgent bytes matter to relays only.
const WATCH: u32 = (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

/// How long to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    No,
    Us(u64),
    Forever,
}

/// One epoll instance.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Box<[MaybeUninit<libc::epoll_event>; EVENTS_MAX]>,
    /// The kernel has no epoll_pwait2 (before 5.11): waits are in milliseconds, rounded up.
    milliseconds: bool,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        // SAFETY: no pointers; the result is checked.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` was just created and nothing else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Poller {
            epoll,
            events: Box::new([const { MaybeUninit::uninit() }; EVENTS_MAX]),
            milliseconds: false,
        })
    }

    /// Watches a descriptor, edge-triggered, until it is closed. `more` is [`OUT`] or 0.
    pub(super) fn add(&self, fd: RawFd, data: u64, more: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, data, WATCH | more)
    }

    /// The same, reported again as long as something is there.
    pub(crate) fn add_level(&self, fd: RawFd, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, data, (libc::EPOLLIN | libc::EPOLLRDHUP) as u32)
    }

    /// Changes the watched events: something to receive or not, and `more` as above. Events that
    /// are there already are reported at once.
    pub(super) fn change(&self, fd: RawFd, data: u64, receives: bool, more: u32) -> io::Result<()> {
        let events = if receives { WATCH } else { libc::EPOLLET as u32 };
        self.control(libc::EPOLL_CTL_MOD, fd, data, events | more)
    }

    /// Stops watching a descriptor. For files that are open elsewhere as well: otherwise the kernel
    /// forgets a file only with its last descriptor.
    pub(crate) fn remove(&self, fd: RawFd) {
        // It fails only when it was not watched.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    fn control(&self, operation: i32, fd: RawFd, data: u64, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: `event` is valid for the call, which copies it.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) })
            .map(drop)
    }

    /// Waits and appends `(data, events)`. A signal ends the wait early.
    pub(crate) fn wait(&mut self, wait: Wait, into: &mut Vec<(u64, u32)>) -> io::Result<()> {
        let count = match self.wait_once(wait) {
            Ok(count) => count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        for event in &self.events[..count] {
            // SAFETY: the kernel filled the first `count` events.
            let event = unsafe { event.assume_init() };
            into.push((event.u64, event.events));
        }
        Ok(())
    }

    fn wait_once(&mut self, wait: Wait) -> io::Result<i32> {
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr().cast());
        let milliseconds = match wait {
            Wait::No => 0,
            Wait::Forever => -1,
            Wait::Us(us) if self.milliseconds => {
                i32::try_from(us.div_ceil(1_000)).unwrap_or(i32::MAX)
            }
            Wait::Us(us) => return self.wait_us(us),
        };
        // SAFETY: `events` has room for EVENTS_MAX events.
        check(unsafe { libc::epoll_wait(epoll, events, EVENTS_MAX as i32, milliseconds) })
    }

    fn wait_us(&mut self, us: u64) -> io::Result<i32> {
        let timeout = libc::timespec {
            tv_sec: (us / 1_000_000) as i64,
            tv_nsec: (us % 1_000_000) as libc::c_long * 1_000,
        };
        let (epoll, events) =
            (self.epoll.as_raw_fd(), self.events.as_mut_ptr().cast::<libc::epoll_event>());
        let mask = std::ptr::null::<libc::sigset_t>();
        // musl has no function for it. SAFETY: `events` has room for EVENTS_MAX events; `timeout`
        // outlives the call; no signal mask is given, and its size does not count then.
        let result = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll,
                events,
                EVENTS_MAX as i32,
                &raw const timeout,
                mask,
                0_usize,
            )
        };
        match check(result as i32) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                self.milliseconds = true;
                self.wait_once(Wait::Us(us))
            }
            result => result,
        }
    }
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Sends several slices without waiting.
///
/// # Safety
/// The first `count` slices must be readable.
pub(super) unsafe fn send_slices(
    fd: RawFd,
    slices: &mut [libc::iovec; SLICES_MAX],
    count: usize,
) -> io::Result<usize> {
    // SAFETY: msghdr is plain data for which all zeroes is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = slices.as_mut_ptr();
    message.msg_iovlen = count as _;
    // SAFETY: `message` describes `count` slices that the caller vouches for.
    check_len(unsafe {
        libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    })
}

/// Starts a connect, which may be over at once.
pub(super) fn connect(fd: RawFd, to: SocketAddr) -> io::Result<()> {
    let address = SockAddr::from(to);
    // SAFETY: `address` outlives the call, and its length is its own.
    match check(unsafe { libc::connect(fd, address.as_ptr().cast(), address.len()) }) {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => {
            Err(error)
        }
        _ => Ok(()),
    }
}
