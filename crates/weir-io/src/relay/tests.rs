//! Whatever the kernel refuses, bytes arrive. How: a relay of the epoll driver between two clients,
//! on a thread with a seccomp filter that makes single calls fail, as a sandbox or a limit would;
//! limits beyond the filter are set as options.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockRef;
use weir_check::waiting::{Waiting, eventually};

use super::flow::{Flow, Halt, Side, Tools};
use super::pipe::Pipes;
use crate::{
    Completion, Driver, DriverStats, Epoll, Event, Options, Outbound, RelayEnd, Relayed, Socket,
};

/// Longest wait of one turn, microseconds.
const TURN_US: u64 = 1_000_000;
/// More than fits into the buffers of a connection.
const BYTES: usize = 24 << 20;

fn pattern() -> Vec<u8> {
    (0..BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// The condition under which a call fails: its number, the argument that is compared and with what,
/// whether they must be equal, the error.
#[derive(Clone, Copy)]
struct Refusal {
    call: libc::c_long,
    argument: u32,
    value: u32,
    when_equal: bool,
    code: i32,
}

impl Refusal {
    fn always(call: libc::c_long, code: i32) -> Refusal {
        Refusal { call, argument: 0, value: u32::MAX - 1, when_equal: false, code }
    }

    /// Applies it to the calling thread, for ever.
    fn install(&self) {
        let instruction =
            |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let (hit, miss) = if self.when_equal { (0, 1) } else { (1, 0) };
        // The number is the first field of the data, arguments of 8 bytes begin at 16; the lower
        // half comes first.
        let mut filter = [
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, self.call as u32),
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16 + 8 * self.argument),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, hit, miss, self.value),
            instruction(
                libc::BPF_RET | libc::BPF_K,
                0,
                0,
                libc::SECCOMP_RET_ERRNO | self.code as u32,
            ),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: no pointers; only this thread is concerned.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: the program and its instructions outlive the call, which copies them.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) }, 0);
    }
}

/// An epoll driver with two connections, and their other ends.
struct Bench {
    driver: Epoll,
    near: [Socket; 2],
    far: [TcpStream; 2],
}

impl Bench {
    fn new(options: Options) -> Bench {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let mut driver = Epoll::new(options).expect("a driver");
        let near = [1, 2].map(|token| driver.connect(address, token).expect("a socket"));
        let far = [0, 1].map(|_| listener.accept().expect("a connection").0);
        let mut bench = Bench { driver, near, far };
        let mut connected = 0;
        while connected < 2 {
            connected += bench
                .turn()
                .iter()
                .filter(|one| matches!(one.event, Event::Connected(Ok(()))))
                .count();
        }
        bench
    }

    fn turn(&mut self) -> Vec<Completion> {
        let (mut completions, mut waiting) = (Vec::new(), Waiting::begin());
        while completions.is_empty() {
            assert!(waiting.goes_on(), "no completion; {}", waiting.story());
            self.driver.turn(Some(TURN_US), &mut completions).expect("a turn");
        }
        completions
    }

    /// Sends the pattern through a relay, both ways at once.
    fn run(mut self) -> DriverStats {
        let [a, b] = self.near;
        self.driver.relay(a, b);
        let expected = pattern();
        let clients: Vec<_> =
            self.far.iter().map(|far| far.try_clone().expect("a descriptor")).collect();
        std::thread::scope(|scope| {
            for mut far in clients {
                let (mut reader, expected) = (far.try_clone().expect("a descriptor"), &expected);
                scope.spawn(move || {
                    far.write_all(expected).expect("a reader");
                    far.shutdown(std::net::Shutdown::Write).expect("a connection");
                });
                scope.spawn(move || {
                    let mut received = Vec::new();
                    reader.read_to_end(&mut received).expect("an end");
                    assert!(&received == expected, "other bytes than were sent");
                });
            }
            let completions = self.turn();
            let [
                Completion {
                    token: 1,
                    event: Event::RelayEnded { moved, how: RelayEnd::Complete },
                    ..
                },
            ] = &completions[..]
            else {
                panic!("{completions:?}");
            };
            assert_eq!(
                *moved,
                Relayed { a_to_b: BYTES as u64, b_to_a: BYTES as u64, half_closed: false }
            );
        });
        assert_eq!(self.driver.relayed(a), None);
        let (pipes, unused) = self.driver.relays.pipes();
        assert_eq!(pipes, unused, "every pipe came back");
        self.driver.stats()
    }
}

fn run(options: Options, refusal: Option<Refusal>) -> DriverStats {
    let thread = std::thread::spawn(move || {
        if let Some(refusal) = refusal {
            refusal.install();
        }
        let stats = Bench::new(options).run();
        assert_eq!(stats.relay_copied + stats.relay_spliced, 2 * BYTES as u64);
        stats
    });
    thread.join().expect("bytes arrive")
}

#[test]
fn much_is_spliced() {
    let stats = run(Options::default(), None);
    assert!(stats.relay_spliced > stats.relay_copied, "{stats:?}");
}

#[test]
fn everything_is_copied_without_pipes() {
    let stats = run(Options { relay_pipes: 0, ..Options::default() }, None);
    assert_eq!(stats.relay_spliced, 0);
}

#[test]
fn everything_is_copied_where_splicing_is_refused() {
    for code in [libc::EINVAL, libc::ENOSYS, libc::EPERM] {
        let stats = run(Options::default(), Some(Refusal::always(libc::SYS_splice, code)));
        assert_eq!(stats.relay_spliced, 0);
    }
}

/// Bytes that are in the pipe when the kernel refuses to forward them are not lost.
#[test]
fn what_can_not_leave_a_pipe_is_read_out_of_it() {
    // An odd number of bytes is requested on the way in, so that the way out can be distinguished
    // from it.
    let bytes = (100 << 10) + 1;
    let refusal = Refusal {
        call: libc::SYS_splice,
        argument: 4,
        value: bytes,
        when_equal: false,
        code: libc::EINVAL,
    };
    let stats = run(Options { relay_pipe_bytes: bytes, ..Options::default() }, Some(refusal));
    // How often a pipe is filled exactly, and gets through, is chance.
    assert!(stats.relay_copied > 0, "nothing was read out of a pipe: {stats:?}");
}

#[test]
fn everything_is_copied_when_descriptors_run_out() {
    let stats = run(Options::default(), Some(Refusal::always(libc::SYS_pipe2, libc::EMFILE)));
    assert_eq!(stats.relay_spliced, 0);
}

/// Beyond `fs.pipe-user-pages-soft` a pipe can't be made larger; the usual size will do.
#[test]
fn a_pipe_of_the_usual_size_will_do() {
    let value = libc::F_SETPIPE_SZ as u32;
    let refusal =
        Refusal { call: libc::SYS_fcntl, argument: 1, value, when_equal: true, code: libc::EPERM };
    assert!(run(Options::default(), Some(refusal)).relay_spliced > 0);
}

/// One that is smaller will not.
#[test]
fn a_pipe_that_holds_little_is_not_used() {
    let stats = run(Options { relay_pipe_bytes: 8 << 10, ..Options::default() }, None);
    assert!(stats.relay_spliced > 0, "smaller on purpose is fine");
    let value = libc::F_SETPIPE_SZ as u32;
    let refusal = Refusal {
        call: libc::SYS_fcntl,
        argument: 1,
        value: value + 1,
        when_equal: true,
        code: libc::EPERM,
    };
    assert_eq!(value + 1, libc::F_GETPIPE_SZ as u32);
    // Both sizes are refused, so that the capacity is not known to suffice.
    let stats = std::thread::spawn(move || {
        refusal.install();
        run(Options::default(), Some(Refusal { value, ..refusal }))
    });
    assert_eq!(stats.join().expect("bytes arrive").relay_spliced, 0);
}

/// The kernel's figures of a connection (TCP_INFO, tcp(7)).
fn info(stream: &TcpStream) -> libc::tcp_info {
    // SAFETY: all zeroes is a value of this type.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is writable for `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    assert_eq!(result, 0);
    info
}

/// Waits until the other end of a connection has its end (FIN-WAIT-2: it is acknowledged).
fn end_has_arrived(stream: &TcpStream) {
    const FIN_WAIT_2: u8 = 5;
    eventually("the end arrives", || info(stream).tcpi_state == FIN_WAIT_2);
}

/// A short response from a server that closes at once reaches the client in one segment, with the
/// end.
#[test]
fn the_end_goes_with_the_last_bytes() {
    let mut bench = Bench::new(Options::default());
    let [a, b] = bench.near;
    bench.driver.relay(a, b);
    // Nothing is there yet: from now on its sockets are waited for.
    let mut completions = Vec::new();
    bench.driver.turn(Some(0), &mut completions).expect("a turn");
    let before = info(&bench.far[0]).tcpi_segs_in;
    bench.far[1].write_all(&[7; 8192]).expect("room");
    bench.far[1].shutdown(std::net::Shutdown::Write).expect("a connection");
    end_has_arrived(&bench.far[1]);
    let mut got = Vec::new();
    let mut reader = bench.far[0].try_clone().expect("a descriptor");
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            reader.read_to_end(&mut got).expect("an end");
            got
        });
        while !reader.is_finished() {
            bench.driver.turn(Some(1000), &mut completions).expect("a turn");
        }
        assert_eq!(reader.join().expect("no panic"), [7; 8192]);
    });
    assert_eq!(info(&bench.far[0]).tcpi_segs_in - before, 1);
    assert!(completions.is_empty(), "the other direction goes on: {completions:?}");
}

/// Last bytes that wait for the end are sent together with it, however small the share of their
/// direction is.
#[test]
fn a_share_does_not_part_last_bytes_from_the_end() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let [(mut far, near), (_reader, to)] = [(); 2].map(|()| {
        let far = TcpStream::connect(address).expect("it listens");
        (far, listener.accept().expect("it comes").0)
    });
    far.write_all(&[7; 100]).expect("room");
    far.shutdown(std::net::Shutdown::Write).expect("a connection");
    end_has_arrived(&far);
    let [mut source, mut sink] = [&near, &to].map(|stream| Side {
        fd: stream.as_raw_fd(),
        readable: true,
        stops_short: true,
        writable: true,
        receiving: false,
        sending: false,
    });
    let pipes = Pipes::new(0, 0);
    let mut tools =
        Tools { pipes, scratch: Vec::new(), pipe_bytes: 0, syscalls: 0, copied: 0, spliced: 0 };
    let mut flow = Flow::new(false);
    let halt = flow.advance(&mut source, &mut sink, &mut tools, &mut false, 1);
    assert!(matches!(halt, Halt::Done) && flow.moved == 100, "{halt:?}");
}

/// A forwarded connection after the first turn of its relay; if `speaks`, its client has already
/// sent something. Returns the segments that the server has got, and whether weir acknowledges at
/// once what comes from there. None: it could not accept it yet.
fn begin(speaks: bool) -> Option<(u32, bool)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("an address");
    let mut driver = Epoll::new(Options::default()).expect("a driver");
    let a = driver.connect(address, 1).expect("a socket");
    let mut client = listener.accept().expect("a connection").0;
    if speaks {
        client.write_all(b"a").expect("room");
    }
    let b = driver
        .connect_by(Outbound { resets: true, ..Outbound::default() }, address, 2)
        .expect("a socket");
    let mut bench =
        Bench { driver, near: [a, b], far: [client.try_clone().expect("a descriptor"), client] };
    let mut connected = 0;
    while connected < 2 {
        connected +=
            bench.turn().iter().filter(|one| matches!(one.event, Event::Connected(Ok(())))).count();
    }
    bench.driver.relay(a, b);
    // Its connect is acknowledged by this turn at the latest.
    bench.driver.turn(Some(0), &mut Vec::new()).expect("a turn");
    listener.set_nonblocking(true).expect("an option");
    let (server, near) = listener.accept().ok()?;
    Some((info(&server).tcpi_segs_in, acknowledges_at_once(near)))
}

/// Whether the socket of this process with this address acknowledges without waiting for something
/// to send.
fn acknowledges_at_once(address: SocketAddr) -> bool {
    let open = std::fs::read_dir("/proc/self/fd").expect("a folder").flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |fd: &i32| {
        // SAFETY: only its address is read, which an invalid descriptor does not have.
        let socket = unsafe { BorrowedFd::borrow_raw(*fd) };
        SockRef::from(&socket).local_addr().is_ok_and(|local| local.as_socket() == Some(address))
    };
    let fd = numbers.into_iter().find(is_it).expect("a socket");
    let (mut on, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: `on` is writable for `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_QUICKACK,
            (&raw mut on).cast(),
            &raw mut len,
        )
    };
    assert_eq!(result, 0);
    on != 0
}

/// Bytes that a client has already sent reach its server in the segment that acknowledges the
/// connect; a silent client is not waited for.
#[test]
fn a_connect_is_acknowledged_by_what_is_sent_first() {
    // A kernel that has no time for us acknowledges on its own, or has not reported the connection
    // to the server yet.
    let least = (0..20).filter_map(|_| begin(true)).map(|(segments, _)| segments).min();
    assert_eq!(least, Some(2), "segments: SYN, and the first byte");
    let silent = (0..20).find_map(|_| begin(false)).map(|(segments, _)| segments);
    assert_eq!(silent, Some(2), "segments: SYN, and the acknowledgement");
}

/// A server that writes a response in two pieces waits with the second until the first is
/// acknowledged.
#[test]
fn an_answer_is_acknowledged_at_once() {
    for speaks in [true, false] {
        let (_, at_once) = (0..20).find_map(|_| begin(speaks)).expect("a connection");
        assert!(at_once, "speaks: {speaks}");
    }
}
