//! A thread that stays outside of the namespace: it tells the programs which addresses are this machine's, and that connections are to pass by when
//! there are hardly descriptors for more. It is made before the process enters the namespace, and gives up privileges with the others.

use std::fs;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use weir_bpf::{Intercept, Taken};
use weir_io::Interfaces;

use super::place::failed;
use crate::failure::Failure;
use crate::terminal::{tell, warn};

/// How often it looks.
const LOOK: Duration = Duration::from_millis(100);
/// Of the descriptors that there may be: with so many sockets in hundred connections pass by, and with so many no more.
const FULL_PERCENT: u64 = 90;
const ROOM_PERCENT: u64 = 80;

/// How long what is on its way may take at the end.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// What leads connections inside, and what is there for that.
pub(super) struct Way {
    /// The programs.
    pub(super) intercept: Intercept,
    /// The interfaces outside.
    pub(super) interfaces: Interfaces,
    /// The index of the one that leads inside.
    pub(super) index: u32,
}

/// See the module. Connections are led inside until this [ends](Keeper::end), or the process does.
pub(super) struct Keeper {
    end: SyncSender<()>,
    thread: JoinHandle<Way>,
}

impl Keeper {
    /// Leads nothing inside any more once what was over there has reached its ends, and says what was.
    pub(super) fn end(self) {
        drop(self.end);
        let Ok(Way { intercept, mut interfaces, index }) = self.thread.join() else { return };
        let until = Instant::now() + LAST_PATIENCE;
        while sockets_inside() > 0 && Instant::now() < until {
            thread::sleep(LOOK);
        }
        if let Ok(Taken { taken, passed_by, with_options, from_here }) = intercept.taken() {
            tell(format_args!(
                "{taken} connections were taken; {passed_by} passed by for want of room, {with_options} for their options, {from_here} as this machine's own"
            ));
        }
        drop(intercept);
        // Else it goes with the namespace.
        let _ = interfaces.remove(index);
    }
}

/// Begins; the namespace of this thread is the one outside.
///
/// # Errors
/// No thread, or the addresses of this machine can't be known.
pub(super) fn start(mut way: Way) -> Result<Keeper, Failure> {
    let list = |error| failed("can't list the addresses of this machine", &error);
    tell_own(&mut way.intercept, &weir_io::local_addresses().map_err(list)?);
    let (end, ended) = sync_channel(0);
    let thread = thread::Builder::new().name("intercept".to_owned()).spawn(move || keep(way, &ended));
    Ok(Keeper { end, thread: thread.map_err(|error| failed("no thread", &error))? })
}

fn keep(mut way: Way, ended: &Receiver<()>) -> Way {
    let intercept = &mut way.intercept;
    /// Looks in ten seconds.
    const OWN_EVERY: u32 = 100;
    let (mut looks, mut is_full) = (0u32, false);
    while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        looks = looks.wrapping_add(1);
        if looks % OWN_EVERY == 0
            && let Ok(addresses) = weir_io::local_addresses()
        {
            tell_own(intercept, &addresses);
        }
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let was_full = is_full;
        is_full = sockets_inside() >= room(descriptors, is_full);
        if is_full != was_full && intercept.pass_by(is_full).is_ok() {
            if is_full {
                warn(format_args!("new connections pass by: {descriptors} descriptors are nearly used up"));
            } else {
                tell("new connections are taken again");
            }
        }
    }
    way
}

/// With so many sockets connections pass by.
fn room(descriptors: u64, is_full: bool) -> u64 {
    let percent = if is_full { ROOM_PERCENT } else { FULL_PERCENT };
    descriptors / 100 * percent
}

fn tell_own(intercept: &mut Intercept, addresses: &[IpAddr]) {
    if let Err(error) = intercept.set_own(addresses) {
        warn(format_args!("not all addresses of this machine are known to the kernel's programs: {error}"));
    }
}

/// Sockets of TCP in the namespace of the process, which this thread is not in.
fn sockets_inside() -> u64 {
    let all = ["/proc/self/net/sockstat", "/proc/self/net/sockstat6"].map(fs::read_to_string);
    all.iter().flatten().map(|text| in_use(text)).sum()
}

/// Sockets of TCP that a file of statistics tells of (proc_pid_net(5)).
fn in_use(text: &str) -> u64 {
    let line =
        text.lines().find_map(|line| line.strip_prefix("TCP: inuse ").or_else(|| line.strip_prefix("TCP6: inuse ")));
    line.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    //! Proves: sockets are counted as the kernel tells of them, and connections pass by until there is clearly room again. How: examples.

    use super::*;

    #[test]
    fn sockets_are_counted() {
        let four = "sockets: used 161\nTCP: inuse 27 orphan 0 tw 4 alloc 30 mem 1\nUDP: inuse 2 mem 0\n";
        let six = "TCP6: inuse 5\nUDP6: inuse 1\n";
        assert_eq!((in_use(four), in_use(six), in_use("")), (27, 5, 0));
        assert!(sockets_inside() < 1_000_000);
    }

    #[test]
    fn there_is_room_again_when_there_is_clearly_some() {
        assert_eq!((room(1000, false), room(1000, true)), (900, 800));
        assert!(room(u64::MAX, false) > 1 << 60);
    }
}
