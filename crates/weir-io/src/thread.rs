//! How the kernel schedules a thread. Called by weir-worker for the threads of its workers. sched(7).

use std::io;

/// Whether a thread that is woken may take its core from whoever runs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// SCHED_OTHER: it may.
    Normal,
    /// SCHED_BATCH: it waits until the other stops or has used its time. Changes nothing about its share.
    Batch,
}

/// The policy of a thread of this process; None: another one, which somebody chose for it.
///
/// # Errors
/// As sched_getscheduler(2).
pub fn policy_of(thread: i32) -> io::Result<Option<Policy>> {
    // SAFETY: the call takes and returns numbers only.
    match unsafe { libc::sched_getscheduler(thread) } {
        libc::SCHED_OTHER => Ok(Some(Policy::Normal)),
        libc::SCHED_BATCH => Ok(Some(Policy::Batch)),
        other if other < 0 => Err(io::Error::last_os_error()),
        _ => Ok(None),
    }
}

/// Sets the policy of a thread of this process. Needs no privilege.
///
/// # Errors
/// As sched_setscheduler(2); a sandbox may forbid it.
pub fn set_policy(thread: i32, policy: Policy) -> io::Result<()> {
    let number = match policy {
        Policy::Normal => libc::SCHED_OTHER,
        Policy::Batch => libc::SCHED_BATCH,
    };
    // SAFETY: a number is all there is in it, and 0 is the only priority that both policies allow.
    let priority: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads the parameter before it returns.
    match unsafe { libc::sched_setscheduler(thread, number, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
