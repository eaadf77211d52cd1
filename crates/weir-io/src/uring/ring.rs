//! The ring itself: set-up, queueing, the one system call. Knows nothing about sockets. Called by
//! [`super::Uring`] and the probe.
//!
//! Bound: `queue_entries` operations wait in shared memory; further ones, when the kernel refuses
//! to take more (lack of memory), wait in `backlog`, which the number of sockets bounds.

use std::collections::VecDeque;
use std::io;

use io_uring::types::Timespec;
use io_uring::{EnterFlags, IoUring, cqueue, squeue};

use crate::Options;

/// `struct io_uring_getevents_arg`: what [`EnterFlags::EXT_ARG`] points at.
#[repr(C)]
struct WaitArgument {
    signal_mask: u64,
    signal_mask_bytes: u32,
    min_wait_us: u32,
    timeout: u64,
}

/// One completion as the kernel reported it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) user_data: u64,
    pub(crate) result: i32,
    pub(crate) flags: u32,
}

impl Entry {
    /// The operation continues.
    pub(crate) fn more(self) -> bool {
        cqueue::more(self.flags)
    }

    /// The provided buffer that was filled.
    pub(crate) fn buffer(self) -> Option<u16> {
        cqueue::buffer_select(self.flags)
    }
}

/// How long to wait for the first completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// At most this number of microseconds.
    Us(u64),
    /// Until something happens.
    Forever,
}

/// Longest wait for more completions than one, microseconds.
const SKIP_WAIT_US: u64 = 2_000;

impl Wait {
    fn at_most(self, most_us: u64) -> Wait {
        match self {
            Wait::No => Wait::No,
            Wait::Us(us) => Wait::Us(us.min(most_us)),
            Wait::Forever => Wait::Us(most_us),
        }
    }
}

/// A ring with one issuer; its completions run only inside [`Ring::enter`].
pub(crate) struct Ring {
    ring: IoUring,
    backlog: VecDeque<squeue::Entry>,
    /// Calls of io_uring_enter.
    pub(crate) syscalls: u64,
}

impl Ring {
    /// Sets the ring up for the calling thread, the only one that may use it.
    ///
    /// # Errors
    /// The operating system's: EPERM or ENOSYS where io_uring is forbidden, EINVAL where a flag is
    /// unknown (before 6.1).
    pub(crate) fn new(options: &Options) -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            // Reports in shared memory whether a system call has anything to do; see `has_work`.
            .setup_taskrun_flag()
            // A bad operation fails alone instead of blocking those queued behind it.
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(options.completion_entries)
            .dontfork()
            .build(options.queue_entries)?;
        let features = ring.params();
        if !features.is_feature_nodrop()
            || !features.is_feature_submit_stable()
            || !features.is_feature_ext_arg()
        {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Ring { ring, backlog: VecDeque::new(), syscalls: 0 })
    }

    pub(crate) fn submitter(&self) -> io_uring::Submitter<'_> {
        self.ring.submitter()
    }

    /// Queues an operation; submits early when the queue is full.
    ///
    /// # Safety
    /// Memory that the operation points at must remain valid until it is submitted (see
    /// [`Ring::is_drained`]); buffers that it reads or writes, until its last completion was
    /// reaped.
    pub(crate) unsafe fn push(&mut self, entry: squeue::Entry) {
        // Behind the backlog, because the order of operations on a socket matters.
        if !self.backlog.is_empty() {
            self.backlog.push_back(entry);
            return;
        }
        // SAFETY: passed on from the caller.
        if unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        // A failure shows as a queue that is still full, and is reported by the next `enter`.
        let _ = self.call(0, EnterFlags::empty(), Wait::No);
        // SAFETY: passed on from the caller.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.backlog.push_back(entry);
        }
    }

    /// Everything queued has been taken by the kernel: memory that operations only point at until
    /// submission is free.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.backlog.is_empty() && self.ring.submission().is_empty()
    }

    /// Whether a call without waiting would do anything.
    fn has_work(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Whether the kernel has work that it would do when called.
    pub(crate) fn has_pending_work(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Submits queued operations, lets the kernel run those that became ready, and waits for a
    /// completion as `wait` says, unless one is there already. The first `skip` completions do not
    /// end the wait: those of cancellations, which come at once.
    ///
    /// # Errors
    /// Only errors that make the ring unusable.
    pub(crate) fn enter(&mut self, wait: Wait, skip: u32) -> io::Result<()> {
        self.refill_queue();
        let wait = if self.ring.completion().is_empty() { wait } else { Wait::No };
        if wait == Wait::No && !self.has_work() {
            return Ok(());
        }
        let want = if wait == Wait::No { 0 } else { 1 + skip };
        // Should the kernel post fewer than expected, the wait is short, and the caller waits
        // again.
        let wait = if want > 1 { wait.at_most(SKIP_WAIT_US) } else { wait };
        let result = self.call(want, EnterFlags::GETEVENTS, wait);
        self.refill_queue();
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The time is up; a signal; short of memory or of completion space for now:
                // operations that were not submitted remain queued.
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    fn call(&mut self, want: u32, flags: EnterFlags, wait: Wait) -> io::Result<usize> {
        self.syscalls += 1;
        let queued = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        let Wait::Us(us) = wait else {
            // SAFETY: no argument is passed, and `queued` is the length of the queue.
            return unsafe { submitter.enter::<libc::sigset_t>(queued, want, flags.bits(), None) };
        };
        let timeout = Timespec::new().sec(us / 1_000_000).nsec((us % 1_000_000) as u32 * 1_000);
        let argument = WaitArgument {
            signal_mask: 0,
            signal_mask_bytes: 0,
            min_wait_us: 0,
            timeout: (&raw const timeout) as u64,
        };
        // SAFETY: `argument` and `timeout` outlive the call, have the kernel's layout, and EXT_ARG
        // announces them.
        unsafe {
            submitter.enter(queued, want, (flags | EnterFlags::EXT_ARG).bits(), Some(&argument))
        }
    }

    fn refill_queue(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: `push` took it under its conditions, which hold while it waits (`is_drained`
            // is false).
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Moves up to `most` completions out of shared memory.
    pub(crate) fn reap(&mut self, most: usize, into: &mut Vec<Entry>) {
        let queue = self.ring.completion();
        into.extend(queue.take(most).map(|entry| Entry {
            user_data: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }));
    }
}
