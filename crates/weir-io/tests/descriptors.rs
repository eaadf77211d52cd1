//! Descriptors: a driver leaves none behind, and survives running out of them (docs/hostile.md H6).
//!
//! A separate process with a single test, because it counts the descriptors of the whole process
//! and lowers their limit.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use weir_check::waiting::{Waiting, eventually_or};
use weir_io::{
    Class, Completion, Driver, DriverKind, Epoll, Event, Options, Payload, Receive, Socket, Uring,
    bind_listener, probe,
};

/// Short, so that the test sees several attempts; the default is 100 ms.
const PAUSE_US: u64 = 20_000;

#[test]
fn descriptors_come_back_and_may_run_out() {
    let options = Options { accept_pause_us: PAUSE_US, ..Options::default() };
    nothing_stays_open(|| Epoll::new(options).expect("epoll"));
    running_out_is_survived(|| Epoll::new(options).expect("epoll"));
    if probe().driver == DriverKind::Uring {
        nothing_stays_open(|| Uring::new(options).expect("io_uring"));
        running_out_is_survived(|| Uring::new(options).expect("io_uring"));
    }
}

fn open_descriptors() -> usize {
    // The directory that is being read is one of them, each time.
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// The kernel closes a ring's files a little after the ring: waits for the count with a deadline.
fn expect_descriptors(count: usize, what: &str) {
    let state = || format!("{} descriptors instead of {count}", open_descriptors());
    eventually_or(what, || open_descriptors() == count, state);
}

fn listen<D: Driver>(driver: &mut D) -> (Socket, SocketAddr) {
    let listener =
        bind_listener("127.0.0.1:0".parse().expect("an address"), 1024).expect("a listener");
    let address = listener.local_addr().expect("an address");
    (driver.listen(listener, 1).expect("listening"), address)
}

/// Turns until `done`, which gets each completion.
fn until<D: Driver>(driver: &mut D, what: &str, mut done: impl FnMut(&mut D, Completion) -> bool) {
    let (mut waiting, mut completions) = (Waiting::begin(), Vec::new());
    loop {
        driver.turn(Some(10_000), &mut completions).expect("a turn");
        let mut enough = false;
        for completion in completions.drain(..) {
            enough |= done(driver, completion);
        }
        if enough {
            return;
        }
        assert!(waiting.goes_on(), "not in time: {what}; {}", waiting.story());
    }
}

/// Connections in every state, closed by us, by them, or not at all when the driver is dropped.
fn nothing_stays_open<D: Driver>(make: impl Fn() -> D) {
    let before = open_descriptors();
    for round in 0..5 {
        let mut driver = make();
        let (listener, address) = listen(&mut driver);
        let mut clients: Vec<TcpStream> = Vec::new();
        let mut accepted = Vec::new();
        for _ in 0..40 {
            clients.push(TcpStream::connect(address).expect("a connection"));
        }
        until(&mut driver, "connections", |_, completion| {
            if let Event::Accepted { socket, .. } = completion.event {
                accepted.push(socket);
            }
            accepted.len() == 40
        });
        for (at, &socket) in accepted.iter().enumerate() {
            match at % 5 {
                0 => driver.receive(socket, Receive::Many(Class::Small)),
                1 => driver.receive(socket, Receive::Once(Class::Large)),
                2 => driver.send(socket, Payload::Owned(vec![7; 8 << 20])),
                3 => driver.close(socket),
                _ => {}
            }
        }
        for client in &mut clients {
            // The server may have closed it.
            let _ = client.write_all(b"hello");
        }
        driver.turn(Some(0), &mut Vec::new()).expect("a turn");
        if round % 2 == 0 {
            accepted.iter().for_each(|&socket| driver.close(socket));
            driver.close(listener);
            driver.turn(Some(0), &mut Vec::new()).expect("a turn");
        }
        let pending = driver.connect(address, 2);
        drop(driver);
        drop(pending);
        drop(clients);
        expect_descriptors(before, "after a driver is gone");
    }
}

/// Accepting fails without descriptors, at the pace of the pause, and resumes when some are
/// available.
fn running_out_is_survived<D: Driver>(make: impl Fn() -> D) {
    let mut driver = make();
    // Before the listener: io_uring notes the limit when an accept is armed. The listener, three
    // clients, two of their servers; nothing for the third server.
    let (limit, _fill) = leave_descriptors(6);
    let (_, address) = listen(&mut driver);
    let mut first = TcpStream::connect(address).expect("a connection");
    let mut served = None;
    until(&mut driver, "the first connection", |_, completion| {
        if let Event::Accepted { socket, .. } = completion.event {
            served = Some(socket);
        }
        served.is_some()
    });
    let served = served.expect("just seen");
    let mut clients: Vec<TcpStream> =
        (0..2).map(|_| TcpStream::connect(address).expect("a connection")).collect();
    let (mut failures, mut accepted) = (0u64, Vec::new());
    until(&mut driver, "failures", |_, completion| {
        match completion.event {
            Event::AcceptFailed(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                failures += 1;
            }
            Event::Accepted { socket, .. } => accepted.push(socket),
            _ => {}
        }
        failures == 3
    });
    assert_eq!(accepted.len(), 1, "the last descriptor");
    // It does not spin: each attempt is some turns and a handful of calls, with the pause between
    // them.
    let (stats, start_us) = (driver.stats(), driver.now_us());
    until(&mut driver, "three more", |_, completion| {
        failures += u64::from(matches!(completion.event, Event::AcceptFailed(_)));
        failures == 6
    });
    assert!(driver.now_us() - start_us >= 2 * PAUSE_US);
    assert!(driver.stats().syscalls - stats.syscalls < 200, "{:?} after {stats:?}", driver.stats());
    assert_eq!(driver.stats().accept_failures, failures);
    assert!(driver.connect(address, 3).is_err(), "no descriptor for a connect either");
    // Others are served meanwhile.
    first.write_all(b"ping").expect("a write");
    driver.receive(served, Receive::Once(Class::Small));
    until(&mut driver, "bytes", |_, completion| matches!(completion.event, Event::Received(_)));
    driver.send(served, Payload::Owned(b"pong".to_vec()));
    let mut answer = [0; 4];
    until(&mut driver, "a send", |_, completion| matches!(completion.event, Event::Sent { .. }));
    first.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"pong");
    // One client leaves, the waiting one is accepted.
    driver.close(served);
    until(&mut driver, "recovery", |_, completion| {
        matches!(completion.event, Event::Accepted { .. })
    });
    restore(limit);
    clients.push(TcpStream::connect(address).expect("a connection"));
    until(&mut driver, "the rest", |_, completion| {
        matches!(completion.event, Event::Accepted { .. })
    });
}

/// Lowers the limit so that this many more can be opened; the files fill the gaps below.
fn leave_descriptors(count: usize) -> (libc::rlimit, Vec<File>) {
    let highest = std::fs::read_dir("/proc/self/fd")
        .expect("proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .max()
        .expect("some are open");
    let mut fill = Vec::new();
    while fill.last().is_none_or(|last: &File| last.as_raw_fd() < highest) {
        fill.push(File::open("/dev/null").expect("a descriptor"));
    }
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `before` is writable.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) }, 0);
    let next = fill.last().map_or(highest, |last| last.as_raw_fd()) as usize + 1;
    restore(libc::rlimit { rlim_cur: (next + count) as libc::rlim_t, rlim_max: before.rlim_max });
    (before, fill)
}

fn restore(limit: libc::rlimit) {
    // SAFETY: `limit` is readable.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}
