//! Sockets with deferred bytes: arriving bytes do not wake the driver, and are checked for from
//! time to time.
//!
//! Used by both real drivers. An epoll instance that no thread waits on notes which sockets have
//! something; one call every [`LATER_US`] asks it. A wake-up of a thread costs more than a receive,
//! so that bytes of many such sockets together cost a fraction. Bound: the sockets of the driver,
//! and [`LOOKS_MAX`] times [`EVENTS_MAX`] of them in one turn; the rest is still there at the next
//! one.

use std::os::fd::RawFd;

use crate::Socket;
use crate::epoll::poller::{EVENTS_MAX, Poller, Wait};

/// Calls in one turn.
const LOOKS_MAX: usize = 16;
/// Time between two looks, microseconds.
pub(crate) const LATER_US: u64 = 20_000;

/// See the module.
#[derive(Default)]
pub(crate) struct Later {
    /// Made with the first socket.
    poller: Option<Poller>,
    sockets: u32,
    /// When to look, if it has sockets.
    next_us: u64,
    events: Vec<(u64, u32)>,
}

impl Later {
    /// Takes a socket in. False: the kernel has no room for that, and the socket is unchanged.
    pub(crate) fn enter(&mut self, fd: RawFd, socket: Socket, now_us: u64) -> bool {
        if self.poller.is_none() {
            self.poller = Poller::new().ok();
        }
        let Some(poller) = &self.poller else { return false };
        let data = u64::from(socket.index) << 32 | u64::from(socket.generation);
        let entered = poller.add_level(fd, data).is_ok();
        if entered {
            self.sockets += 1;
            if self.sockets == 1 {
                self.next_us = now_us + LATER_US;
            }
        }
        entered
    }

    /// Removes a socket.
    pub(crate) fn leave(&mut self, fd: RawFd) {
        if let Some(poller) = &self.poller {
            poller.remove(fd);
            self.sockets -= 1;
        }
    }

    /// The time until the next look; None: it has no sockets.
    pub(crate) fn wait_us(&self, now_us: u64) -> Option<u64> {
        (self.sockets > 0).then(|| self.next_us.saturating_sub(now_us))
    }

    /// The sockets that have something, with the events of epoll, if it is time to look.
    pub(crate) fn look(&mut self, now_us: u64, syscalls: &mut u64) -> Vec<(Socket, u32)> {
        let Some(poller) =
            self.poller.as_mut().filter(|_| self.sockets > 0 && self.next_us <= now_us)
        else {
            return Vec::new();
        };
        self.next_us = now_us + LATER_US;
        // Sockets that were reported move to the end of the kernel's list.
        for look in 1..=LOOKS_MAX {
            *syscalls += 1;
            // It does not fail for a descriptor of our own.
            let _ = poller.wait(Wait::No, &mut self.events);
            if self.events.len() < look * EVENTS_MAX {
                break;
            }
        }
        let named =
            |(data, mask)| (Socket { index: (data >> 32) as u32, generation: data as u32 }, mask);
        self.events.drain(..).map(named).collect()
    }
}
