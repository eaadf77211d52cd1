//! The kit of the end-to-end tests: the real binary, scripted servers, raw clients, all on
//! loopback.
//!
//! Every byte that weir sends is judged: to servers by [`weir_check::StrictRequests`], to clients
//! by [`weir_check::StrictReplies`]. Nothing here waits by sleeping: everything waits for an event
//! as [`weir_check::waiting`] does, which decides when a test gives up and what it prints then.
#![allow(unreachable_pub)] // `pub` here means: for the tests

mod client;
pub mod forward;
pub mod http2;
#[allow(dead_code)] // the unit tests of names use the rest
pub mod names;
mod neighbour;
mod server;
pub mod tls;
pub mod tls_servers;
mod tools;
pub mod unix;
mod weir;

use std::time::Duration;

#[allow(unused_imports)] // the kit offers all of it to tests that are to come
pub use weir_check::waiting::{
    Bounded, CAP, Patient, Waiting, bounded, eventually, eventually_or, patience_now, patient,
    received,
};

pub use client::{Client, Ended, all_answered, keep_asking, request, scattered, timed_get};
pub use neighbour::{Neighbour, ip};
pub use server::{Behaviour, Gone, Honest, Link, Log, SWITCH, Server};
pub use tools::{
    Nginx, Scratch, TcpSocket, browse, finish, finish_without_rights, in_own_network,
    in_own_network_as_root, passwd, run, tcp_sockets,
};
pub use weir::{Io, Weir, app, free_port, server_status, status};

/// How long any single event may take on an idle machine, where a wait for another event is
/// impossible.
#[allow(dead_code)]
pub const DEADLINE: Duration = weir_check::waiting::DEADLINE;

/// Generates `uring::name` and `epoll::name` for functions `fn name(io: Io)`. Names behind
/// `; alone:` become `uring::alone::name`: such a test measures, or moves hundreds of megabytes,
/// and `scripts/test` runs it alone.
macro_rules! on_both_drivers {
    ($($name:ident),* $(,)? $(; alone: $($alone:ident),* $(,)?)?) => {
        mod uring {
            $( #[test] fn $name() { super::$name($crate::kit::Io::Uring); } )*
            $( mod alone {
                $( #[test] fn $alone() { super::super::$alone($crate::kit::Io::Uring); } )*
            } )?
        }
        mod epoll {
            $( #[test] fn $name() { super::$name($crate::kit::Io::Epoll); } )*
            $( mod alone {
                $( #[test] fn $alone() { super::super::$alone($crate::kit::Io::Epoll); } )*
            } )?
        }
    };
}
pub(crate) use on_both_drivers;

/// Generates `uring::row` and `epoll::row` for rows of a catalogue, each calling `run(io, "row")`.
macro_rules! rows_on_both_drivers {
    ($run:ident: $($name:ident),* $(,)?) => {
        /// The rows that have a test.
        const ROWS: &[&str] = &[$(stringify!($name)),*];
        mod uring {
            $( #[test] fn $name() { super::$run($crate::kit::Io::Uring, stringify!($name)); } )*
        }
        mod epoll {
            $( #[test] fn $name() { super::$run($crate::kit::Io::Epoll, stringify!($name)); } )*
        }
    };
}
pub(crate) use rows_on_both_drivers;

/// Random numbers for orders and sizes (xorshift64*). The seed is printed; `WEIR_SEED` repeats it.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from `WEIR_SEED`, or from the clock.
    pub fn new() -> Random {
        let clock = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |t| t.as_nanos());
        let seed = match std::env::var("WEIR_SEED") {
            Ok(text) => text.parse().expect("WEIR_SEED is a number"),
            Err(_) => (clock as u64) >> 8,
        };
        eprintln!("WEIR_SEED={seed}");
        Random(seed.wrapping_mul(2).wrapping_add(1))
    }

    /// Makes a separate generator, for another thread.
    pub fn fork(&mut self) -> Random {
        Random(self.next() | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number less than `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit.max(1)
    }

    /// Shuffles items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Returns a nonce of 8 characters that no other request of this test process has.
pub fn nonce() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0x1000_0000);
    format!("{:08x}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns text with a letter for every byte, different at every place, for checks of large bodies.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// Stops other threads of a test when dropped, even after a failure, which would wait for them
/// without end.
pub struct Stopping<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
