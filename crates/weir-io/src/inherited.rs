//! Descriptors that a service manager has opened for this process (sd_listen_fds(3)). Called once,
//! when a proxy is started. Bound: as many as LISTEN_FDS says, at most [`COUNT_MAX`].

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first one: behind standard input, output and error.
const FIRST: RawFd = 3;
/// More sockets than any service has.
const COUNT_MAX: usize = 4096;

/// Takes the descriptors that LISTEN_PID and LISTEN_FDS say are for this process; those that are
/// not open are missing. Programs that are started from here do not inherit them. Each is handed
/// out once: a second call finds none.
pub fn take_inherited() -> Vec<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok()?.trim().parse::<usize>().ok();
    if number("LISTEN_PID") != Some(std::process::id() as usize)
        || TAKEN.swap(true, Ordering::Relaxed)
    {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(COUNT_MAX);
    (FIRST..FIRST + count as RawFd).filter_map(take).collect()
}

fn take(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: no pointers are involved; a descriptor that is not open gives an error.
    let set = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: it was open when this process began, as its starter says by the number of this
    // process, so no code here has opened it; and it is taken once.
    (set >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}
