//! Work for `?burn=` and `?block=`: occupies the thread for an amount of processor time, or asleep,
//! as an application does.
//!
//! Called by `connection.rs`; the whole thread serves no other connection meanwhile, which is the
//! purpose of busy workers.

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Rounds of arithmetic between two looks at the clock, a fraction of a microsecond.
const ROUNDS: u32 = 200;

/// Uses this much processor time of this thread. Time in which the thread doesn't run is not
/// counted, so a full machine takes longer, as with real work.
pub(super) fn burn(cpu_us: u64) {
    let end_us = thread_cpu_us() + cpu_us;
    let mut value = cpu_us;
    while thread_cpu_us() < end_us {
        for _ in 0..ROUNDS {
            value = black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
        }
    }
}

/// Sleeps, like a worker that waits for a database.
pub(super) fn block(us: u64) {
    std::thread::sleep(Duration::from_micros(us));
}

/// Processor time of this thread, microseconds.
fn thread_cpu_us() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_so_much_processor_time_is_used() {
        let before_us = thread_cpu_us();
        burn(3_000);
        assert!(thread_cpu_us() - before_us >= 3_000);
    }
}
