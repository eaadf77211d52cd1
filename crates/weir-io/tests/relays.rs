//! Idle relays hold no pipe and hardly any memory, however many bytes have passed through them. In
//! a separate process, because it counts the descriptors and the heap of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_io::{Completion, Driver, DriverKind, Epoll, Event, Options, Uring, probe};

/// Bytes that the heap has given out.
static HEAP: AtomicUsize = AtomicUsize::new(0);

struct Counted;

// SAFETY: all work is left to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HEAP.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// The limit for a driver's share of an idle tunnel, bytes.
const IDLE_BYTES_MAX: usize = 200;

/// Unused pipes that may be kept, two descriptors each.
const SPARE_DESCRIPTORS: usize = 16;

/// Bytes that relays move are no news, so a turn lasts as long as it may.
const WAIT_US: u64 = 100;

/// Turns without a byte after which a relay counts as idle.
const QUIET_TURNS: u32 = 50;

const PIECE: usize = 512 << 10;

/// More than all buffers between two ends hold.
const FLOOD: usize = 24 << 20;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// As many relays as descriptors allow, up to 1000: four descriptors each.
fn relays_max() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    limit.rlim_cur = limit.rlim_max.min(10_000);
    // SAFETY: `limit` is readable.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    ((limit.rlim_cur as usize).saturating_sub(200) / 4).min(1_000)
}

struct Bench<D> {
    driver: D,
    listener: TcpListener,
    completions: Vec<Completion>,
}

impl<D: Driver> Bench<D> {
    fn turn(&mut self, mut each: impl FnMut(Completion)) {
        self.driver.turn(Some(WAIT_US), &mut self.completions).expect("a turn");
        self.completions.drain(..).for_each(&mut each);
    }

    /// A socket of the driver and its other end.
    fn pair(&mut self) -> (weir_io::Socket, TcpStream) {
        let address = self.listener.local_addr().expect("an address");
        let socket = self.driver.connect(address, 1).expect("a socket");
        let mut connected = false;
        while !connected {
            self.turn(|completion| {
                connected |= matches!(completion.event, Event::Connected(Ok(())))
            });
        }
        (socket, self.listener.accept().expect("a connection").0)
    }
}

fn idle_relays_are_small<D: Driver>(driver: D) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let mut bench = Bench { driver, listener, completions: Vec::with_capacity(1_000) };
    let count = relays_max();
    let mut lines = Vec::with_capacity(count);
    for _ in 0..count {
        let ((a, left), (b, right)) = (bench.pair(), bench.pair());
        lines.push((a, left, b, right));
    }
    let (heap, open) = (HEAP.load(Ordering::Relaxed), descriptors());
    for &(a, _, b, _) in &lines {
        bench.driver.relay(a, b);
    }
    // Half a megabyte through each, a part of it in a pipe.
    let bytes: Vec<u8> = (0..PIECE).map(|at| at as u8).collect();
    let mut received = vec![0; PIECE];
    for (a, left, _, right) in &mut lines {
        left.set_nonblocking(true).expect("a socket");
        right.set_nonblocking(true).expect("a socket");
        let (mut sent, mut have) = (0, 0);
        while have < PIECE {
            sent += left.write(&bytes[sent..]).unwrap_or(0);
            bench.turn(|completion| panic!("{completion:?}"));
            have += right.read(&mut received[have..]).unwrap_or(0);
        }
        assert!(received == bytes, "other bytes than were sent");
        assert_eq!(bench.driver.relayed(*a).expect("a relay").a_to_b, PIECE as u64);
    }
    assert!(bench.driver.stats().relay_spliced > 0);
    drop((bytes, received));
    let held = HEAP.load(Ordering::Relaxed).saturating_sub(heap + (64 << 10));
    println!("{count} idle relays of {} hold {held} B", bench.driver.name());
    assert!(held / count <= IDLE_BYTES_MAX, "{held} B for {count} relays");
    assert!(descriptors() <= open + SPARE_DESCRIPTORS, "{} of {open} descriptors", descriptors());
    stalled_relays_share_their_pipes(&mut bench, &mut lines);
    for (a, _, b, _) in lines {
        bench.driver.close(a);
        bench.driver.close(b);
    }
    bench.turn(|_| {});
    let left = HEAP.load(Ordering::Relaxed).saturating_sub(heap);
    drop(bench);
    println!("{left} B are kept for the next");
}

/// Stalled readers: no more pipes than allowed, and the other waiting bytes are bounded.
fn stalled_relays_share_their_pipes<D: Driver>(
    bench: &mut Bench<D>,
    lines: &mut [(weir_io::Socket, TcpStream, weir_io::Socket, TcpStream)],
) {
    let (heap, open) = (HEAP.load(Ordering::Relaxed), descriptors());
    let stalled = lines.len().min(40);
    let flood = vec![7; FLOOD];
    for (_, left, _, _) in &mut lines[..stalled] {
        let (mut sent, mut quiet) = (0, 0);
        while sent < FLOOD && quiet < QUIET_TURNS {
            let written = left.write(&flood[sent..]).unwrap_or(0);
            sent += written;
            quiet = if written == 0 { quiet + 1 } else { 0 };
            bench.turn(|completion| panic!("{completion:?}"));
        }
        assert!(sent < FLOOD, "somebody took it all");
    }
    drop(flood);
    assert!(
        descriptors() - open <= 2 * RELAY_PIPES as usize,
        "{} of {open} descriptors",
        descriptors()
    );
    let held = HEAP.load(Ordering::Relaxed).saturating_sub(heap);
    assert!(held <= stalled * (80 << 10), "{held} B");
}

/// Pipes that the drivers of this test may have: fewer than relays that stall.
const RELAY_PIPES: u32 = 20;

#[test]
fn idle_relays_hold_no_pipe_and_little_memory() {
    let options = Options { relay_pipes: RELAY_PIPES, ..Options::default() };
    idle_relays_are_small(Epoll::new(options).expect("a driver"));
    if probe().driver == DriverKind::Uring {
        idle_relays_are_small(Uring::new(options).expect("a driver"));
    }
}
