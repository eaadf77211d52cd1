//! The thread that carries packets from each end to the other, until it is stopped or an end is
//! gone. Called by `mod.rs`.
//!
//! Bound: [`BATCH`] packets are read from an end, and as many written to one, before the others
//! have their turn.

use std::io::{self, PipeReader};
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::setpriority_process;
use rustix::thread::set_current_timer_slack;
use weir_io::Tun;

use super::way::{Figures, Way};

/// The thread's priority: the highest for threads without real-time priority.
const NICE: i32 = -20;
/// Packets of one end in a row.
const BATCH: usize = 64;
/// Longest packet of IP.
const PACKET_BYTES_MAX: usize = 65_535;

/// Carries packets until `until` is closed. `ways[0]` leads from `ends[0]` to `ends[1]`; figures
/// are kept up to date.
///
/// # Errors
/// Which end is gone, and what the operating system says.
pub(super) fn carry(
    ends: &[Tun; 2],
    mut ways: [Way; 2],
    figures: &Mutex<[Figures; 2]>,
    until: &PipeReader,
) -> Result<(), (usize, io::Error)> {
    // By default the kernel wakes up to 50 us late, on purpose.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    // Ahead of the programs that use the link: a packet that waits for a core comes late. Without
    // CAP_SYS_NICE the priority does not change.
    let _ = setpriority_process(None, NICE);
    let begin = Instant::now();
    let now_ns = || u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut packet = vec![0; PACKET_BYTES_MAX];
    loop {
        let mut is_more = false;
        for (at, (from, way)) in ends.iter().zip(&mut ways).enumerate() {
            let mut left = BATCH;
            while left > 0
                && let Some(bytes) = from.read(&mut packet).map_err(|error| (at, error))?
            {
                way.offer(now_ns(), &packet[..bytes]);
                left -= 1;
            }
            is_more |= left == 0;
        }
        for (to, way) in ends.iter().rev().zip(&mut ways) {
            let mut left = BATCH;
            while left > 0
                && let Some(packet) = way.take(now_ns())
            {
                if to.write(&packet).is_err() {
                    way.refuse(&packet);
                }
                left -= 1;
            }
        }
        *figures.lock().unwrap_or_else(PoisonError::into_inner) = ways.each_ref().map(Way::figures);
        let next_ns = ways.iter().filter_map(Way::next_due_ns).min();
        let wait_ns =
            if is_more { Some(0) } else { next_ns.map(|due_ns| due_ns.saturating_sub(now_ns())) };
        if wait(ends, until, wait_ns)? {
            return Ok(());
        }
    }
}

/// Waits until an end has a packet, or for this long. Returns whether it is over.
fn wait(
    ends: &[Tun; 2],
    until: &PipeReader,
    wait_ns: Option<u64>,
) -> Result<bool, (usize, io::Error)> {
    let time = wait_ns.map(|ns| Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let mut watched = [
        PollFd::new(&ends[0], PollFlags::IN),
        PollFd::new(&ends[1], PollFlags::IN),
        PollFd::new(until, PollFlags::IN),
    ];
    match poll(&mut watched, time.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err((0, error.into())),
    }
    let gone = watched[..2].iter().position(|end| end.revents().contains(PollFlags::ERR));
    match gone {
        Some(at) => Err((at, io::Error::other("the interface was deleted"))),
        None => Ok(!watched[2].revents().is_empty()),
    }
}
