//! Finds out by trying which driver runs on this machine. Called once at start-up.
//!
//! The kernel has no flag for "multishot receive works" (liburing #1542), containers and gVisor
//! forbid the set-up with EPERM, and a version number says little about a patched kernel. So the
//! probe makes a small ring with exactly the flags that the driver uses, registers a buffer ring,
//! and sends bytes through a pair of sockets. Bound: one second.

use std::ffi::CStr;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use io_uring::{opcode, types};

use crate::uring::{Group, Ring, Wait};
use crate::wake::WakeState;
use crate::{IoChoice, Options};

/// Longest wait for one completion of the trial, microseconds.
const TRIAL_WAIT_US: u64 = 500_000;

/// A driver of the real operating system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriverKind {
    /// [`crate::Uring`].
    Uring,
    /// [`crate::Epoll`].
    Epoll,
}

impl DriverKind {
    /// For people and metrics.
    pub fn word(self) -> &'static str {
        match self {
            DriverKind::Uring => "io_uring",
            DriverKind::Epoll => "epoll",
        }
    }
}

/// Which driver will run, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The driver.
    pub driver: DriverKind,
    /// Without the driver's name; see the `Display` form for the whole sentence.
    pub reason: String,
}

impl fmt::Display for Probe {
    /// One line for the log, such as `io_uring: kernel 6.18.44, multishot receive and buffer rings
    /// work`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.driver.word(), self.reason)
    }
}

/// A step of the trial that failed.
struct Failure {
    step: &'static str,
    error: io::Error,
}

impl Failure {
    fn at(step: &'static str) -> impl Fn(io::Error) -> Failure {
        move |error| Failure { step, error }
    }

    /// The reason for the log.
    fn sentence(&self) -> String {
        format!("{} failed: {}{}", self.step, plain(&self.error), self.hint())
    }

    /// A short hint what to check.
    fn hint(&self) -> &'static str {
        match self.error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                " (forbidden by the container or kernel.io_uring_disabled)"
            }
            Some(libc::ENOSYS) => " (the kernel has no io_uring, or not all of it)",
            Some(libc::EINVAL) => " (the kernel is older than 6.1)",
            Some(libc::ENOMEM) => " (the limit of locked memory is too low)",
            _ => "",
        }
    }
}

/// Tries io_uring and says which driver [`IoChoice::Auto`] means here.
pub fn probe() -> Probe {
    match trial() {
        Ok(()) => Probe {
            driver: DriverKind::Uring,
            reason: format!("kernel {}, multishot receive and buffer rings work", kernel_release()),
        },
        Err(failure) => Probe { driver: DriverKind::Epoll, reason: failure.sentence() },
    }
}

/// The driver for the user's choice.
///
/// # Errors
/// The sentence for the user when io_uring was demanded and does not work.
pub fn choose(choice: IoChoice) -> Result<Probe, String> {
    match choice {
        IoChoice::Auto => Ok(probe()),
        IoChoice::Epoll => {
            Ok(Probe { driver: DriverKind::Epoll, reason: "as asked for".to_owned() })
        }
        IoChoice::Uring => match probe() {
            found if found.driver == DriverKind::Uring => Ok(found),
            found => Err(format!("io_uring does not work here: {}", found.reason)),
        },
    }
}

/// Without Rust's `(os error 1)`.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// The kernel's release, such as `6.18.44`.
fn kernel_release() -> String {
    // SAFETY: utsname is plain bytes for which all zeroes is a value.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: `name` is writable; a failure leaves it empty.
    unsafe { libc::uname(&raw mut name) };
    // SAFETY: the kernel ends the field with a zero byte, and it was zeroed before.
    unsafe { CStr::from_ptr(name.release.as_ptr()) }.to_string_lossy().into_owned()
}

/// Two pieces through one multishot receive.
fn trial() -> Result<(), Failure> {
    // Of the real size, because the limit of locked memory may be the obstacle.
    let mut ring = Ring::new(&Options::default()).map_err(Failure::at("io_uring_setup"))?;
    let wake = WakeState::new().map_err(Failure::at("eventfd"))?;
    let mut group = Group::new(&ring, 0, 4, 4096, 4, Arc::new(wake))
        .map_err(Failure::at("registering a buffer ring"))?;
    let (mut near, far) = UnixStream::pair().map_err(Failure::at("socketpair"))?;
    let receive =
        opcode::RecvMulti::new(types::Fd(far.as_raw_fd()), group.id()).build().user_data(1);
    // SAFETY: the operation points at nothing; the pool lives until the trial is over (`settle`).
    unsafe { ring.push(receive) };
    let outcome = (|| {
        for text in ["one", "two"] {
            near.write_all(text.as_bytes())?;
            exchange(&mut ring, &mut group, text)?;
        }
        Ok(())
    })();
    drop(near);
    let settled = settle(&mut ring);
    group.release(&ring);
    outcome.and(settled).map_err(Failure::at("multishot receive"))
}

/// Waits for one piece.
fn exchange(ring: &mut Ring, group: &mut Group, text: &str) -> io::Result<()> {
    let entry = next(ring)?;
    if entry.result < 0 {
        return Err(io::Error::from_raw_os_error(-entry.result));
    }
    let wrong = || io::Error::from(io::ErrorKind::Unsupported);
    let id = entry.buffer().ok_or_else(wrong)?;
    group.consumed();
    let bytes = group.pool.lend(id, entry.result as u32);
    if !entry.more() || &bytes[..] != text.as_bytes() { Err(wrong()) } else { Ok(()) }
}

/// Waits for the end of the receive, after which the kernel writes nowhere.
fn settle(ring: &mut Ring) -> io::Result<()> {
    while next(ring)?.more() {}
    Ok(())
}

fn next(ring: &mut Ring) -> io::Result<crate::uring::Entry> {
    let mut entries = Vec::new();
    ring.enter(Wait::Us(TRIAL_WAIT_US), 0)?;
    ring.reap(1, &mut entries);
    entries.pop().ok_or_else(|| io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    //! The sentences, and that a demand is met or rejected. The trial itself runs on the kernel at
    //! hand.

    use super::*;

    #[test]
    fn the_choice_is_kept_or_refused() {
        let found = probe();
        assert_eq!(choose(IoChoice::Auto), Ok(found.clone()));
        assert_eq!(
            choose(IoChoice::Epoll).map(|probe| probe.to_string()),
            Ok("epoll: as asked for".to_owned())
        );
        match found.driver {
            DriverKind::Uring => {
                assert!(found.to_string().starts_with("io_uring: kernel "), "{found}");
                assert_eq!(choose(IoChoice::Uring), Ok(found));
            }
            DriverKind::Epoll => {
                let refusal = choose(IoChoice::Uring).expect_err("it does not work");
                assert_eq!(refusal, format!("io_uring does not work here: {}", found.reason));
            }
        }
    }

    #[test]
    fn failures_are_told_with_a_hint() {
        for (code, sentence) in [
            (
                libc::EPERM,
                "io_uring_setup failed: Operation not permitted (forbidden by the container or \
                    kernel.io_uring_disabled)",
            ),
            (
                libc::ENOSYS,
                "io_uring_setup failed: Function not implemented (the kernel has no io_uring, or \
                    not all of it)",
            ),
            (
                libc::EINVAL,
                "io_uring_setup failed: Invalid argument (the kernel is older than 6.1)",
            ),
        ] {
            let failure =
                Failure { step: "io_uring_setup", error: io::Error::from_raw_os_error(code) };
            assert_eq!(failure.sentence(), sentence);
        }
    }

    /// Makes `io_uring_setup` fail on the calling thread from now on, as containers do.
    fn forbid_io_uring(code: i32) {
        let instruction = |code: u32, jump_if: u8, jump_else: u8, k: u32| libc::sock_filter {
            code: code as u16,
            jt: jump_if,
            jf: jump_else,
            k,
        };
        let mut filter = [
            // The number of the system call is the first field.
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            instruction(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                1,
                libc::SYS_io_uring_setup as u32,
            ),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | code as u32),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: no pointers; only this thread is concerned.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
        // SAFETY: the program and its instructions outlive the call, which copies them.
        let result = unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        assert_eq!(result, 0);
    }

    #[test]
    fn a_container_that_forbids_io_uring_gets_epoll() {
        for (code, hint) in
            [(libc::EPERM, "container"), (libc::ENOSYS, "has no io_uring"), (libc::EINVAL, "older")]
        {
            let thread = std::thread::spawn(move || {
                forbid_io_uring(code);
                let found = probe();
                assert_eq!(found.driver, DriverKind::Epoll);
                assert!(found.to_string().starts_with("epoll: io_uring_setup failed: "), "{found}");
                assert!(found.reason.contains(hint), "{found}");
                let refusal = choose(IoChoice::Uring).expect_err("it is forbidden");
                assert!(
                    refusal.starts_with("io_uring does not work here: io_uring_setup failed"),
                    "{refusal}"
                );
                assert!(crate::Uring::new(Options::default()).is_err());
                assert!(crate::Epoll::new(Options::default()).is_ok());
            });
            thread.join().expect("no panic");
        }
    }
}
