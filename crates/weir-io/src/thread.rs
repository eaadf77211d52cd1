//! How the kernel schedules a thread, and where. Called by weir-worker for the threads of its workers, and by weir-lab for those
//! of the origin. sched(7).

use std::io;

use rustix::thread::CpuSet;

/// Cores that this process may use.
pub fn available_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    set.map(|set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()).unwrap_or_default()
}

/// Binds the thread that calls to a core. Where that is forbidden (false), the kernel's choice is good enough.
pub fn pin_to(core: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}

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

#[cfg(test)]
mod tests {
    //! Proves: a thread that is bound to a core may use no other. How: a thread binds itself to the last one of this process.

    use super::*;

    #[test]
    fn a_thread_is_bound_to_one_core_and_no_other_thread_with_it() {
        let all = available_cores();
        let last = *all.last().unwrap();
        let inside = std::thread::spawn(move || (pin_to(last), available_cores())).join().unwrap();
        assert_eq!((inside, available_cores()), ((true, vec![last]), all));
    }
}
