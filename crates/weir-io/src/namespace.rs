//! Network namespaces: finding them, making them, running code in them. Called by the laboratory.
//! network_namespaces(7).
//!
//! A thread that enters a namespace remains there, so work in one is done by a thread that ends
//! with it. Making and entering need CAP_SYS_ADMIN.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// The namespace of the thread that asks.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace; it lasts at least as long as this.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// The namespace that this thread is in.
    ///
    /// # Errors
    /// The operating system's: no /proc.
    pub fn current() -> io::Result<Namespace> {
        Ok(Namespace { file: File::open(OWN)? })
    }

    /// The namespace at this path: `/proc/PID/ns/net`, or an entry that `ip netns` has made in
    /// `/run/netns`.
    ///
    /// # Errors
    /// The path does not exist; EINVAL: it is something else; EPERM: it can't be entered from here.
    pub fn open(path: &Path) -> io::Result<Namespace> {
        let namespace = Namespace { file: File::open(path)? };
        namespace.enter(|| ())?;
        Ok(namespace)
    }

    /// A new one without a name, in which not even the loopback interface is up.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN; ENOSPC: the maximum number of them exists.
    pub fn create() -> io::Result<Namespace> {
        let create = || {
            // SAFETY: the thread continues to share its descriptors with all others.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Namespace::current()
        };
        aside(create)
    }

    /// Runs `body` in the namespace, on a separate thread. Programs that are started there remain
    /// there.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN, EINVAL when it is no network namespace; then nothing was done.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> io::Result<T> {
        let enter = || {
            move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(body())
        };
        aside(enter)
    }

    /// From now on this thread, and all that it starts later, are in it.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN.
    pub fn stay(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Whether both are the same namespace.
    ///
    /// # Errors
    /// The operating system's.
    pub fn is(&self, other: &Namespace) -> io::Result<bool> {
        let (own, other) = (self.file.metadata()?, other.file.metadata()?);
        Ok((own.dev(), own.ino()) == (other.dev(), other.ino()))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Runs it on a thread that ends with it.
fn aside<T: Send>(body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread =
            thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, body)?;
        thread.join().map_err(|_| io::Error::other("a thread panicked"))?
    })
}
