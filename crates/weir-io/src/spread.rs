//! Sets how the kernel spreads new connections over listeners that share a port (SO_REUSEPORT,
//! socket(7)): by a hash of their addresses and ports, or at random over some of them. Called by
//! code that knows which workers have time. Needs no privilege.
//!
//! Listeners are known by their places: the n-th that began to listen has place n - 1. When one is
//! closed the last one takes its place (net/core/sock_reuseport.c), so only a process that has
//! opened all of them knows their places. Bound: [`PLACES_MAX`].

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::tuning::put;

/// Places that can be named.
pub const PLACES_MAX: usize = 256;

/// Where a classic program finds a random number (linux/filter.h).
const RANDOM: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const REMAINDER: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Sends new connections only to the listeners at these places (1 to [`PLACES_MAX`] of them), each
/// with the same probability, by a program of classic BPF in place of any other. `listener` is one
/// of those that share the port. For an empty place the kernel chooses by hash.
///
/// # Errors
/// InvalidInput: too few places, or too many. Or the operating system's.
pub fn spread_over(listener: &impl AsFd, places: &[u32]) -> io::Result<()> {
    if places.is_empty() || places.len() > PLACES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut program = program(places);
    let program =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    let len = size_of_val(&program) as libc::socklen_t;
    let value = (&raw const program).cast();
    let (fd, option) = (listener.as_fd().as_raw_fd(), libc::SO_ATTACH_REUSEPORT_CBPF);
    // SAFETY: `program` names memory that outlives the call, of as many instructions as it says;
    // the kernel only reads them.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, value, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets the kernel choose by hash again.
///
/// # Errors
/// The operating system's. `NotFound`: it already does.
pub fn spread_by_hash(listener: &impl AsFd) -> io::Result<()> {
    put(listener, (libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF), &0i32.to_ne_bytes())
}

/// A random number modulo the count of places names one of them.
fn program(places: &[u32]) -> Vec<libc::sock_filter> {
    let step = |code, otherwise, k| libc::sock_filter { code, jt: 0, jf: otherwise, k };
    let mut program = vec![step(LOAD_WORD, 0, RANDOM), step(REMAINDER, 0, places.len() as u32)];
    let (last, others) = places.split_last().unwrap_or((&0, &[]));
    for (at, place) in (0..).zip(others) {
        program.extend([step(JUMP_IF_EQUAL, 1, at), step(RETURN, 0, *place)]);
    }
    program.push(step(RETURN, 0, *last));
    program
}

#[cfg(test)]
mod tests {
    //! Proves: connections reach the named places, each of them, and are spread by hash again
    //! afterwards. How: real listeners.

    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;
    use crate::bind_listener;

    fn listeners(count: usize) -> (Vec<TcpListener>, SocketAddr) {
        let mut address = "127.0.0.1:0".parse().expect("an address");
        let mut all = Vec::new();
        for _ in 0..count {
            let listener = bind_listener(address, 512).expect("a port");
            address = listener.local_addr().expect("bound");
            all.push(listener);
        }
        (all, address)
    }

    /// Connects `count` clients: how many each listener has.
    fn connect(to: SocketAddr, listeners: &[TcpListener], count: usize) -> Vec<usize> {
        let clients: Vec<_> =
            (0..count).map(|_| TcpStream::connect(to).expect("connected")).collect();
        let take = |listener: &TcpListener| std::iter::from_fn(|| listener.accept().ok()).count();
        let taken: Vec<usize> = listeners.iter().map(take).collect();
        assert_eq!(taken.iter().sum::<usize>(), count);
        drop(clients);
        taken
    }

    #[test]
    fn those_that_are_named_get_all() {
        let (listeners, address) = listeners(4);
        for places in [&[1][..], &[0, 2, 3], &[3, 1]] {
            // Any of them will do.
            spread_over(&listeners[2], places).expect("everybody may");
            let taken = connect(address, &listeners, 120);
            for (at, taken) in (0..).zip(taken) {
                assert_eq!(taken > 0, places.contains(&at), "{places:?}: {taken} at {at}");
            }
        }
        spread_by_hash(&listeners[0]).expect("it was not");
        assert!(connect(address, &listeners, 120).iter().all(|taken| *taken > 0));
        assert_eq!(
            spread_by_hash(&listeners[0]).expect_err("it is").kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn as_many_as_can_be_named() {
        let (listeners, address) = listeners(2);
        let all: Vec<u32> = (0..PLACES_MAX as u32 + 1).collect();
        spread_over(&listeners[0], &all[..PLACES_MAX]).expect("everybody may");
        // For empty places the kernel chooses by hash.
        connect(address, &listeners, 40);
        for places in [&all[..0], &all[..]] {
            let error = spread_over(&listeners[0], places).expect_err("that can't be");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn one_that_shares_no_port_is_refused() {
        let alone = TcpListener::bind("127.0.0.1:0").expect("a port");
        assert!(spread_over(&alone, &[0]).is_err());
    }
}
