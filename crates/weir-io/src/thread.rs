//! How the kernel schedules a thread, and where. Called by weir-worker for the threads of its
//! workers, and by weir-lab for those of the origin. sched(7).

use std::io;
use std::time::Duration;

use rustix::thread::{CpuSet, Pid};

/// Cores that this process may use.
pub fn available_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    set.map(|set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
        .unwrap_or_default()
}

/// Binds the calling thread to a core. Where that is forbidden (false), the kernel's choice is good
/// enough.
pub fn pin_to(core: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}

/// Limits a thread of this process to these cores, as far as the process may use them.
///
/// # Errors
/// As sched_setaffinity(2): none of the cores may be used, the thread does not exist, or a sandbox
/// forbids it.
pub fn set_cores(thread: i32, cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| set.set(*core));
    let thread = Pid::from_raw(thread.max(0)).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::thread::sched_setaffinity(Some(thread), &set)?)
}

/// Whether a thread that is woken may take its core from the one that runs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// SCHED_OTHER: it may.
    Normal,
    /// SCHED_BATCH: it waits until the other stops or has used its time. Changes nothing about its
    /// share.
    Batch,
}

/// The policy of a thread of this process; None: another one, which was set from outside.
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
    // SAFETY: it contains only a number, and 0 is the only priority that both policies allow.
    let priority: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads the parameter before it returns.
    match unsafe { libc::sched_setscheduler(thread, number, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Processor time that a thread of this process has used; None when the thread does not exist, or a
/// sandbox hides it.
///
/// Costs one short system call, where a file below /proc is opened, read and closed. The clock's
/// number is made as pthread_getcpuclockid(3) makes it (`CPUCLOCK_PERTHREAD_MASK` in Linux,
/// include/linux/posix-timers_types.h).
pub fn cpu_time_of(thread: i32) -> Option<Duration> {
    const PER_THREAD: i32 = 4;
    const SCHEDULED: i32 = 2;
    /// Numbers are below 2^22 (proc(5), pid_max); from a larger one the bits of another clock would
    /// be left.
    const NUMBERS: std::ops::Range<i32> = 1..1 << 28;
    if !NUMBERS.contains(&thread) {
        return None;
    }
    let clock = (!thread) << 3 | PER_THREAD | SCHEDULED;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` before it returns, and fails for a number that names no
    // clock.
    let told = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
    told.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    //! Proves: a thread that is bound to a core may use no other, and its processor time is visible
    //! to others. How: a thread binds itself to the last core of this process; another works until
    //! its time, as read by the test's thread, has passed.

    use super::*;

    #[test]
    fn a_thread_is_bound_to_one_core_and_no_other_thread_with_it() {
        let all = available_cores();
        let last = *all.last().unwrap();
        let inside = std::thread::spawn(move || (pin_to(last), available_cores())).join().unwrap();
        assert_eq!((inside, available_cores()), ((true, vec![last]), all));
    }

    #[test]
    fn another_thread_is_bound() {
        let all = available_cores();
        let (number, told) = std::sync::mpsc::channel();
        let (go, bound) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                number.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("heard");
                bound.recv().map(|()| available_cores())
            });
            let thread = told.recv().expect("a number");
            set_cores(thread, &all[..1]).expect("a core");
            go.send(()).expect("heard");
            assert_eq!(inside.join().expect("no panic"), Ok(all[..1].to_vec()));
        });
        let nobody = [0, -1, i32::MAX].map(|thread| set_cores(thread, &all).is_err());
        assert_eq!((nobody, set_cores(1, &[]).is_err()), ([true; 3], true));
    }

    #[test]
    fn the_time_of_another_thread_is_its_own() {
        let (number, told) = std::sync::mpsc::channel();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                number.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("heard");
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let thread = told.recv().expect("a number");
            let begun = cpu_time_of(thread).expect("a clock");
            while cpu_time_of(thread).expect("a clock") - begun < Duration::from_millis(5) {
                std::thread::yield_now();
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let nobody = [i32::MIN, -1, 0, (1 << 28) - 1, i32::MAX];
        assert_eq!(nobody.map(cpu_time_of), [None; 5], "there are no such threads");
    }
}
