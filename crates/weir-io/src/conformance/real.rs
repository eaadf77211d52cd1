//! Features that only real drivers have: other threads, descriptors, memory that outlives its
//! driver.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::faults::counts;
use super::{Bench, Subject, pattern, suite};
use crate::board::ACCEPTS;
use crate::courtesy::LEFT_US;
use crate::{
    AcceptQueue, Board, Class, Completion, Courtesy, Delivery, Driver, Event, Options, Outbound,
    Receive, RelayEnd, Relayed, bind_listener, set_network_aside, take_up_network,
};

/// Descriptors that a test may open beyond those that others need.
pub fn descriptors_to_spare() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable; a failure leaves it at 0, and the test then opens hardly any.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (limit.rlim_cur as usize).saturating_sub(400) / 2
}

/// A turn or a read without an end in all this time has missed something: shorter times would hide
/// that.
const PATIENCE: Duration = weir_check::waiting::CAP;

/// Ten thousand wakes, each while the driver sleeps or falls asleep: none is lost.
pub fn no_wake_is_lost<S: Subject>(subject: &S) {
    const WAKES: usize = 10_000;
    let mut driver = subject.driver(Options::default());
    let waker = driver.waker();
    let (answer, answered) = channel();
    let thread = std::thread::spawn(move || {
        for _ in 0..WAKES {
            waker.wake();
            match answered.recv_timeout(PATIENCE) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    });
    let (mut completions, mut woken) = (Vec::new(), 0);
    let start = Instant::now();
    while woken < WAKES && start.elapsed() < PATIENCE {
        driver.turn(None, &mut completions).expect("a turn");
        for completion in completions.drain(..) {
            assert!(
                matches!(completion.event, Event::Woken) && completion.token == 0,
                "{completion:?}"
            );
            woken += 1;
            // The thread may have given up; the count shows that.
            let _ = answer.send(());
        }
    }
    drop(answer);
    assert!(thread.join().expect("no panic"), "a wake was lost after {woken}");
    assert_eq!(driver.stats().wakes as usize, WAKES);
}

/// Four threads wake at once: after the last call of each, the driver is woken, however many calls
/// became one.
pub fn wakes_of_many_threads<S: Subject>(subject: &S) {
    const ROUNDS: usize = 2_000;
    let mut driver = subject.driver(Options::default());
    let done = AtomicUsize::new(0);
    let mut seen = 0;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let waker = driver.waker();
            let done = &done;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    done.fetch_add(1, Ordering::Release);
                    waker.wake();
                }
            });
        }
        let mut completions = Vec::new();
        // Each wake follows its count, so the turn after the last count must end with a wake.
        let start = Instant::now();
        while seen < 4 * ROUNDS && start.elapsed() < PATIENCE {
            driver.turn(Some(PATIENCE.as_micros() as u64), &mut completions).expect("a turn");
            if completions.drain(..).count() > 0 {
                seen = done.load(Ordering::Acquire);
            }
        }
    });
    assert_eq!(seen, 4 * ROUNDS);
}

/// The core that received a socket's packets is known, for as long as the socket is open. On
/// loopback it is the one that sent them.
pub fn receiving_core<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    let before = sched_getaffinity(None).expect("an affinity");
    let mut expected = Vec::new();
    for core in (0..CpuSet::MAX_CPU).filter(|core| before.is_set(*core)) {
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only).expect("pinning a thread to a core that it may use");
        bench.send_all(near, b"x");
        expected.push(b'x');
        bench.expect(far, &expected);
        assert_eq!(bench.driver.receiving_core(far), Some(core as u32));
    }
    sched_setaffinity(None, &before).expect("what was before");
    bench.driver.close(far);
    assert_eq!(bench.driver.receiving_core(far), None);
    bench.finish();
}

/// Bytes that the other side has no room for are on their way, however long; when it has taken them
/// they are acknowledged.
pub fn delivery<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    assert_eq!(bench.driver.delivery(near), Delivery::Acknowledged);
    let bytes = vec![b'x'; 16 << 20];
    bench.send(near, &bytes);
    bench.until("bytes that wait", |bench| bench.driver.delivery(near) == Delivery::Underway);
    let full = Instant::now();
    while full.elapsed().as_micros() < u128::from(Delivery::UNHEARD_US) {
        bench.turn(100_000);
    }
    assert_eq!(bench.driver.delivery(near), Delivery::Underway, "a window of zero is acknowledged");
    bench.receive(far, Receive::Many(Class::Large));
    bench.expect(far, &bytes);
    bench
        .until("an acknowledgement", |bench| bench.driver.delivery(near) == Delivery::Acknowledged);
    bench.close(near);
    assert_eq!(bench.driver.delivery(near), Delivery::Acknowledged);
    bench.finish();
}

/// The accept queue of a listener is known before it is accepted from, and only of listeners.
pub fn accept_queue<S: Subject>(subject: &S) {
    let mut driver = subject.driver(Options::default());
    let listener = bind_listener(([127, 0, 0, 1], 0).into(), 16).expect("a free port");
    let address = listener.local_addr().expect("an address");
    // The kernel completes handshakes without the driver, which accepts in its turns.
    let clients = [(); 3].map(|()| TcpStream::connect(address).expect("room in the queue"));
    let listener = driver.listen(listener, 1).expect("a listener");
    assert_eq!(driver.accept_queue(listener), Some(AcceptQueue { waiting: 3, limit: 16 }));
    driver.set_backlog(listener, 4);
    assert_eq!(driver.accept_queue(listener), Some(AcceptQueue { waiting: 3, limit: 4 }));
    let stream = driver.connect(address, 2).expect("a socket");
    assert_eq!(driver.accept_queue(stream), None);
    driver.close(listener);
    assert_eq!(driver.accept_queue(listener), None);
    drop(clients);
}

/// Accepting pauses while most clients are refused: no client is forgotten, one at a time or many.
/// It works as before when most are served.
pub fn many_are_refused<S: Subject>(subject: &S) {
    let mut driver = subject.driver(Options::default());
    let listener = bind_listener(([127, 0, 0, 1], 0).into(), 64).expect("a free port");
    let address = listener.local_addr().expect("an address");
    driver.listen(listener, 1).expect("a listener");
    let (mut completions, start) = (Vec::new(), Instant::now());
    let mut come = |driver: &mut S::Driver, together: usize, are_served: bool| {
        let clients: Vec<TcpStream> = (0..together)
            .map(|_| TcpStream::connect(address).expect("room in the queue"))
            .collect();
        let mut accepted = Vec::new();
        while accepted.len() < together {
            assert!(start.elapsed() < PATIENCE, "{} of {together} were accepted", accepted.len());
            driver.turn(Some(PATIENCE.as_micros() as u64), &mut completions).expect("a turn");
            for completion in completions.drain(..) {
                let Event::Accepted { socket, peer } = completion.event else { continue };
                accepted.push(peer);
                if are_served {
                    driver.set_token(socket, 2);
                    driver.receive(socket, Receive::Many(Class::Small));
                    driver.close(socket);
                } else {
                    driver.reset(socket);
                }
            }
        }
        accepted.sort_unstable();
        let mut expected: Vec<_> =
            clients.iter().map(|client| client.local_addr().expect("an address")).collect();
        expected.sort_unstable();
        assert_eq!(accepted, expected);
        driver.stats().accept_pauses
    };
    assert_eq!(come(&mut driver, 50, false), 0, "few say nothing");
    for together in [50, 50, 1, 1, 10] {
        come(&mut driver, together, false);
    }
    let before = come(&mut driver, 1, false);
    assert!(come(&mut driver, 1, false) > before && before > 0, "accepting pauses");
    for together in [50, 50, 50, 1, 1] {
        come(&mut driver, together, true);
    }
    let before = come(&mut driver, 1, true);
    assert_eq!(come(&mut driver, 40, true), before, "it pauses no more");
}

/// A listener that turns clients away accepts those that were connected before, and loses none of
/// them when it is closed.
pub fn turning_away<S: Subject>(subject: &S) {
    let mut driver = subject.driver(Options::default());
    let listener = bind_listener(([127, 0, 0, 1], 0).into(), 16).expect("a free port");
    let address = listener.local_addr().expect("an address");
    let clients = [(); 3].map(|()| TcpStream::connect(address).expect("room in the queue"));
    let listener = driver.listen(listener, 1).expect("a listener");
    driver.turn_away(listener);
    let late = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
        .expect("a descriptor");
    late.set_nonblocking(true).expect("an option of every socket");
    let pending = late.connect(&address.into()).expect_err("no answer");
    assert_eq!(pending.raw_os_error(), Some(libc::EINPROGRESS));
    let start = Instant::now();
    let (mut completions, mut accepted) = (Vec::new(), Vec::new());
    while accepted.len() < clients.len() && start.elapsed() < PATIENCE {
        driver.turn(Some(PATIENCE.as_micros() as u64), &mut completions).expect("a turn");
        accepted.extend(completions.drain(..).filter_map(|completion| match completion.event {
            Event::Accepted { peer, .. } => Some(peer),
            _ => None,
        }));
    }
    let expected = clients.each_ref().map(|client| client.local_addr().expect("an address"));
    assert_eq!(accepted, expected);
    assert_eq!(driver.accept_queue(listener), Some(AcceptQueue { waiting: 0, limit: 16 }));
    driver.turn(Some(0), &mut completions).expect("a turn");
    assert!(completions.is_empty(), "{completions:?}");
    assert!(late.peer_addr().is_err(), "it is not connected");
    driver.close(listener);
    // A stream is no listener; neither is a closed socket.
    let stream = driver.connect(address, 2).expect("a socket");
    driver.turn_away(stream);
    driver.turn_away(listener);
}

/// The same where the kernel grants no filter; a client whose connection is made meanwhile is heard
/// as soon as it is accepted.
pub fn turning_away_without_a_right<S: Subject>(subject: &S) {
    set_network_aside().expect("own capabilities");
    turning_away(subject);
    let mut driver = subject.driver(Options::default());
    let listener = bind_listener(([127, 0, 0, 1], 0).into(), 16).expect("a free port");
    let address = listener.local_addr().expect("an address");
    // The connection is made when the first byte is there, like one that a slow network makes late.
    let (seconds, len) = (60 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
    // SAFETY: the option value is readable for `len` bytes.
    let set = unsafe {
        libc::setsockopt(listener.as_raw_fd(), level, option, (&raw const seconds).cast(), len)
    };
    assert_eq!(set, 0, "an option of every listener");
    let mut client = TcpStream::connect(address).expect("room in the queue");
    let listener = driver.listen(listener, 1).expect("a listener");
    driver.turn_away(listener);
    client.write_all(b"a").expect("a connection");
    let (start, mut completions, mut heard) = (Instant::now(), Vec::new(), 0);
    while heard < 2 && start.elapsed() < PATIENCE {
        driver.turn(Some(PATIENCE.as_micros() as u64), &mut completions).expect("a turn");
        for completion in completions.drain(..) {
            match completion.event {
                Event::Accepted { socket, .. } => {
                    client.write_all(b"b").expect("a connection");
                    driver.receive(socket, Receive::Many(Class::Small));
                }
                Event::Received(buffer) => {
                    heard += buffer.len();
                    driver.recycle(buffer);
                }
                _ => {}
            }
        }
    }
    assert_eq!(heard, 2);
    take_up_network().expect("own capabilities");
}

/// A listener moves from one driver to another, as between processes. A client that connects
/// before, meanwhile or after is reported by one of them, once, and the first driver keeps those
/// that the kernel reported to it.
pub fn handing_over<S: Subject>(subject: &S) {
    for (before, between) in [(0, 1), (1, 0), (3, 2), (20, 20)] {
        let mut drivers = [subject.driver(Options::default()), subject.driver(Options::default())];
        let listener = bind_listener(([127, 0, 0, 1], 0).into(), 64).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (mut completions, mut accepted) = (Vec::new(), Vec::new());
        let first = drivers[0].listen(listener, 1).expect("a listener");
        drivers[0].turn(Some(0), &mut completions).expect("a turn");
        let copy = drivers[0].duplicate(first).expect("a descriptor");
        drivers[1].listen(copy, 1).expect("a listener");
        drivers[1].turn(Some(0), &mut completions).expect("a turn");
        let connect = |count: usize| -> Vec<TcpStream> {
            (0..count).map(|_| TcpStream::connect(address).expect("room in the queue")).collect()
        };
        let mut clients = connect(before);
        drivers[0].hand_over(first);
        clients.extend(connect(between));
        let start = Instant::now();
        while accepted.len() < clients.len() && start.elapsed() < PATIENCE {
            for driver in &mut drivers {
                driver.turn(Some(1_000), &mut completions).expect("a turn");
                accepted.extend(completions.drain(..).filter_map(
                    |completion| match completion.event {
                        Event::Accepted { peer, .. } => Some(peer.port()),
                        _ => None,
                    },
                ));
            }
        }
        let mut expected: Vec<u16> =
            clients.iter().map(|it| it.local_addr().expect("an address").port()).collect();
        expected.sort_unstable();
        accepted.sort_unstable();
        assert_eq!(accepted, expected, "{before} before, {between} between");
        assert_eq!(drivers[0].accept_queue(first), None, "it is closed when all are told");
        drivers[0].duplicate(first).expect_err("it is closed");
        let _late = connect(1);
        drivers[1].turn(Some(PATIENCE.as_micros() as u64), &mut completions).expect("a turn");
        assert!(
            matches!(&completions[..], [only] if matches!(only.event, Event::Accepted { .. })),
            "{completions:?}"
        );
        let calls = drivers[0].stats().accepts;
        drivers[0].turn(Some(0), &mut completions).expect("a turn");
        assert_eq!(
            (completions.len(), drivers[0].stats().accepts),
            (1, calls),
            "the first one hears nothing of it"
        );
    }
}

/// Of two drivers that share a listener, the one that turns gets the connection, whichever learned
/// of the listener first.
pub fn shared_listener<S: Subject>(subject: &S) {
    let options = Options { shared_listeners: true, ..Options::default() };
    let mut drivers = [subject.driver(options), subject.driver(options)];
    let listener = bind_listener(([127, 0, 0, 1], 0).into(), 16).expect("a free port");
    let address = listener.local_addr().expect("an address");
    let mut completions = Vec::new();
    for driver in &mut drivers {
        driver.listen(listener.try_clone().expect("a descriptor"), 1).expect("a listener");
        driver.turn(Some(0), &mut completions).expect("a turn");
    }
    for (round, idle) in [0, 1, 1, 0].into_iter().enumerate() {
        let client = TcpStream::connect(address).expect("room in the queue");
        let start = Instant::now();
        while completions.is_empty() && start.elapsed() < PATIENCE {
            drivers[idle]
                .turn(Some(PATIENCE.as_micros() as u64), &mut completions)
                .expect("a turn");
        }
        assert!(
            matches!(&completions[..], [only] if matches!(only.event, Event::Accepted { .. })),
            "{completions:?}"
        );
        completions.clear();
        // The second driver looks too late, and that is no error.
        drivers[1 - idle].turn(Some(0), &mut completions).expect("a turn");
        assert!(completions.is_empty(), "round {round}: {completions:?}");
        drop(client);
    }
    assert!(drivers.iter_mut().all(|driver| driver.stats().accepts == 2));
}

/// Two drivers share a listener. The one with much to do leaves a connection to the other, which
/// has less; where that does not come, it accepts after a moment.
pub fn courtesy<S: Subject>(subject: &S) {
    let options = Options { shared_listeners: true, ..Options::default() };
    let board = Arc::new(Board::new(2));
    for line in board.lines() {
        line.flags.store(ACCEPTS, Ordering::Relaxed);
    }
    board.line(0).starved_permille.store(1000, Ordering::Relaxed);
    let mut drivers = [subject.driver(options), subject.driver(options)];
    let listener = bind_listener(([127, 0, 0, 1], 0).into(), 16).expect("a free port");
    let mut completions = Vec::new();
    for (worker, driver) in drivers.iter_mut().enumerate() {
        driver.set_courtesy(Courtesy::new(Arc::clone(&board), worker));
        driver.listen(listener.try_clone().expect("a descriptor"), 1).expect("a listener");
        driver.turn(Some(0), &mut completions).expect("a turn");
    }
    let [busy, idle] = &mut drivers;
    for other_comes in [true, false, true] {
        let client = TcpStream::connect(listener.local_addr().expect("an address"))
            .expect("room in the queue");
        busy.turn(Some(0), &mut completions).expect("a turn");
        assert!(completions.is_empty(), "it is left to the other one: {completions:?}");
        let comes = if other_comes { &mut *idle } else { &mut *busy };
        let start = Instant::now();
        while completions.is_empty() && start.elapsed() < PATIENCE {
            comes.turn(Some(PATIENCE.as_micros() as u64), &mut completions).expect("a turn");
        }
        assert!(
            matches!(&completions[..], [only] if matches!(only.event, Event::Accepted { .. })),
            "{completions:?}"
        );
        completions.clear();
        // When the moment is over, the busy one looks again for the connection that it has left,
        // and finds none.
        let over_us = busy.now_us() + 2 * LEFT_US;
        while busy.now_us() < over_us {
            busy.turn(Some(LEFT_US), &mut completions).expect("a turn");
        }
        // That moment may have ended only since that turn.
        busy.turn(Some(0), &mut completions).expect("a turn");
        assert!(completions.is_empty(), "{completions:?}");
        drop(client);
    }
}

/// A connection comes from the address and port that were chosen for it. An address that is not of
/// this machine is refused at once. If a connection from a port to that server exists already, the
/// error says so, at once or by the connect.
pub fn chosen_source<S: Subject>(subject: &S) {
    let mut driver = subject.driver(Options::default());
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("an address");
    let source = [127, 0, 7, 9].into();
    driver.connect_by(Outbound::from_address(source), address, 2).expect("a socket");
    driver.turn(Some(0), &mut Vec::new()).expect("a turn");
    let (_stream, peer) = listener.accept().expect("a connection");
    assert_eq!(peer.ip(), source);
    assert!(driver.connect_by(Outbound::from_address([192, 0, 2, 1].into()), address, 3).is_err());
    let free = std::net::TcpListener::bind((source, 0))
        .expect("a free port")
        .local_addr()
        .expect("an address");
    let way = Outbound { from: Some(free), ..Outbound::default() };
    driver.connect_by(way, address, 4).expect("a socket");
    driver.turn(Some(0), &mut Vec::new()).expect("a turn");
    assert_eq!(listener.accept().expect("a connection").1, free);
    let refused = |result: io::Result<()>| result.expect_err("the pair is taken").kind();
    let why = match driver.connect_by(way, address, 5) {
        Err(error) => error.kind(),
        Ok(_) => {
            let mut completions = Vec::new();
            let start = Instant::now();
            while !completions.iter().any(|completion: &Completion| completion.token == 5)
                && start.elapsed() < PATIENCE
            {
                driver.turn(Some(100_000), &mut completions).expect("a turn");
            }
            let event = completions
                .into_iter()
                .find(|completion| completion.token == 5)
                .expect("an end")
                .event;
            let Event::Connected(result) = event else { panic!("{event:?}") };
            refused(result)
        }
    };
    assert!(matches!(why, io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse), "{why:?}");
}

/// A socket that was connected elsewhere is like one of the driver's own, whatever its mode was and
/// whatever has come by then.
pub fn adopted_sockets<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let sent = pattern(1 << 20, 5);
    for nonblocking in [false, true] {
        let connected =
            TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        connected.set_nonblocking(nonblocking).expect("a mode");
        let (mut far, _) = listener.accept().expect("a connection");
        far.set_read_timeout(Some(PATIENCE)).expect("not zero");
        far.write_all(&sent[..1000]).expect("there is room");
        let echo = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            far.read_to_end(&mut bytes).expect("an end");
            far.write_all(&bytes).expect("they are read");
        });
        let near = bench.adopt(connected.into());
        bench.until("the connect", |bench| bench.of(near).connected.is_some());
        assert!(bench.of(near).connected.as_ref().is_some_and(Result::is_ok));
        if nonblocking {
            bench.receive(near, Receive::Many(Class::Large));
            bench.expect(near, &sent[..1000]);
            bench.send_all(near, &sent[1000..]);
            bench.driver.shutdown_write(near);
            bench.until("the end comes back", |bench| bench.of(near).ended);
            assert!(bench.of(near).received == sent, "all came back as it was");
            bench.close(near);
        } else {
            let (client, inner) = bench.pair();
            bench.relay(inner, near);
            bench.receive(client, Receive::Many(Class::Large));
            bench.expect(client, &sent[..1000]);
            bench.send_all(client, &sent[1000..]);
            bench.driver.shutdown_write(client);
            bench.until("the end comes back", |bench| bench.of(client).ended);
            assert!(bench.of(client).received == sent, "all came back as it was");
            bench.until("the relay ends", |bench| bench.of(inner).relay_end.is_some());
        }
        echo.join().expect("no panic");
    }
    bench.finish();
}

/// A connection to a unix socket is like another: bytes both ways, ends, relays. Bytes sent on it
/// count as arrived.
pub fn unix_sockets<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let place = Sockets::new(bench.driver.name());
    let listener = UnixListener::bind(place.path("a")).expect("a socket");
    let near = bench.connect_unix(&place.path("a"));
    let (mut far, _) = listener.accept().expect("a connection");
    far.set_read_timeout(Some(PATIENCE)).expect("not zero");
    bench.until("the connect", |bench| bench.of(near).connected.is_some());
    assert!(bench.of(near).connected.as_ref().is_some_and(Result::is_ok));
    bench.receive(near, Receive::Many(Class::Large));
    let sent = pattern(1 << 20, 3);
    bench.send_all(near, &sent[..1000]);
    assert_eq!(bench.driver.delivery(near), Delivery::Acknowledged, "nobody has read them");
    bench.driver.acknowledge(near);
    assert_eq!((bench.driver.receiving_core(near), bench.driver.destination(near)), (None, None));
    let echo = std::thread::spawn(move || {
        let mut bytes = vec![0; 1000];
        far.read_exact(&mut bytes).expect("they come");
        far.write_all(&bytes).expect("they are read");
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).expect("an end");
        far.write_all(&rest).expect("they are read");
    });
    bench.expect(near, &sent[..1000]);
    bench.send_all(near, &sent[1000..]);
    bench.driver.shutdown_write(near);
    bench.until("the end comes back", |bench| bench.of(near).ended);
    assert!(bench.of(near).received == sent, "all came back as it was");
    echo.join().expect("no panic");
    bench.close(near);
    // A TCP client and a server with a unix socket.
    let (client, inner) = bench.pair();
    let server = bench.connect_unix(&place.path("a"));
    let (far, _) = listener.accept().expect("a connection");
    far.set_read_timeout(Some(PATIENCE)).expect("not zero");
    bench.until("the connect", |bench| bench.of(server).connected.is_some());
    bench.relay(inner, server);
    bench.receive(client, Receive::Many(Class::Large));
    let echo = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        (&far).read_to_end(&mut bytes).expect("an end");
        (&far).write_all(&bytes).expect("they are read");
    });
    bench.send_all(client, &sent);
    bench.driver.shutdown_write(client);
    bench.expect(client, &sent);
    bench.until("the relay ends", |bench| bench.of(inner).relay_end.is_some());
    let end = bench.of(inner).relay_end.take().expect("just seen");
    assert!(
        matches!(
            end,
            (Relayed { a_to_b, b_to_a, .. }, RelayEnd::Complete)
                if a_to_b == 1 << 20 && b_to_a == 1 << 20
        ),
        "{end:?}"
    );
    echo.join().expect("no panic");
    bench.finish();
}

/// A unix socket that can't be connected to is reported at once, each time with its reason; so is
/// one whose listener has no room, which is connected to when it has some.
pub fn unix_sockets_that_fail<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let place = Sockets::new(bench.driver.name());
    let [nobody, stale, file, packets] =
        ["nobody", "stale", "file", "packets"].map(|name| place.path(name));
    drop(UnixListener::bind(&stale).expect("a socket"));
    std::fs::write(&file, b"no socket").expect("a file");
    let _packets = std::os::unix::net::UnixDatagram::bind(&packets).expect("a socket");
    let long = place.path(&"x".repeat(120));
    for (path, code) in [
        (&nobody, Some(libc::ENOENT)),
        (&stale, Some(libc::ECONNREFUSED)),
        (&file, Some(libc::ECONNREFUSED)),
        (&packets, Some(libc::EPROTOTYPE)),
        (&long, None),
    ] {
        let socket = bench.connect_unix(path);
        bench.until("it is told", |bench| bench.of(socket).connected.is_some());
        let error = bench.of(socket).connected.as_ref().and_then(|result| result.as_ref().err());
        let error = error.expect("nobody listens there");
        assert!(code.is_none() || error.raw_os_error() == code, "{}: {error}", path.display());
        bench.close(socket);
    }
    let listener =
        socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
    let full = place.path("full");
    listener
        .bind(&socket2::SockAddr::unix(&full).expect("short enough"))
        .expect("the name is free");
    listener.listen(0).expect("it is bound");
    let first = bench.connect_unix(&full);
    let second = bench.connect_unix(&full);
    bench.until("both are told", |bench| {
        [first, second].iter().all(|one| bench.of(*one).connected.is_some())
    });
    assert!(bench.of(first).connected.as_ref().is_some_and(Result::is_ok));
    let refused = bench.of(second).connected.as_ref().and_then(|result| result.as_ref().err());
    assert_eq!(refused.and_then(std::io::Error::raw_os_error), Some(libc::EAGAIN));
    drop(listener.accept().expect("a connection"));
    let third = bench.connect_unix(&full);
    bench.until("it is told", |bench| bench.of(third).connected.is_some());
    assert!(bench.of(third).connected.as_ref().is_some_and(Result::is_ok));
    // Nothing is reported of a socket that was closed before.
    let closed = bench.connect_unix(&nobody);
    bench.close(closed);
    bench.turn(0);
    assert!(bench.of(closed).connected.is_none());
}

/// A folder for sockets that is removed at the end.
struct Sockets(std::path::PathBuf);

impl Sockets {
    fn new(name: &str) -> Sockets {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("weir-io-{}-{name}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("room for a folder");
        Sockets(folder)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.join(name)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A wake before the driver ever waits is not forgotten, and is reported once.
pub fn early_wake<S: Subject>(subject: &S) {
    let mut driver = subject.driver(Options::default());
    let waker = driver.waker();
    waker.wake();
    waker.wake();
    let mut completions = Vec::new();
    driver.turn(None, &mut completions).expect("a turn");
    assert!(
        matches!(&completions[..], [only] if matches!(only.event, Event::Woken)),
        "{completions:?}"
    );
    completions.clear();
    driver.turn(Some(0), &mut completions).expect("a turn");
    assert!(completions.is_empty());
}

/// A starved driver that sleeps wakes up when another thread drops a buffer, and reports nothing of
/// it.
pub fn buffers_dropped_elsewhere<S: Subject>(subject: &S) {
    let options = Options { small_count: 2, small_armed: 2, ..Options::default() };
    let mut bench = Bench::with(subject, options);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    let (give, take) = channel::<Bytes>();
    // Drops one buffer for each that it gets, so the driver must wake up for each.
    let thread = std::thread::spawn(move || {
        let mut total = 0;
        while let Ok(bytes) = take.recv_timeout(PATIENCE) {
            total += bytes.len();
        }
        total
    });
    let bytes = pattern(2000 * 300, 3);
    bench.hold = true;
    bench.send(near, &bytes);
    let start = Instant::now();
    while bench.of(far).received.len() < bytes.len() {
        // Nothing else would end this wait in time.
        bench.turn(PATIENCE.as_micros() as u64);
        assert!(start.elapsed() < PATIENCE, "slept although a buffer came back");
        for (_, buffer) in std::mem::take(&mut bench.held) {
            give.send(buffer.into_bytes()).expect("the thread lives");
        }
    }
    assert_eq!(bench.of(far).received, bytes);
    assert_eq!(bench.woken, 0);
    for (_, buffer) in std::mem::take(&mut bench.held) {
        give.send(buffer.into_bytes()).expect("the thread lives");
    }
    drop(give);
    assert_eq!(thread.join().expect("no panic"), bytes.len());
    bench.finish();
}

/// Received bytes remain the same when their driver is gone.
pub fn bytes_outlive_the_driver<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Large));
    let bytes = pattern(50_000, 1);
    bench.hold = true;
    bench.send_all(near, &bytes);
    bench.expect(far, &bytes);
    let mut kept: Vec<Bytes> = Vec::new();
    for (_, buffer) in std::mem::take(&mut bench.held) {
        kept.push(buffer.into_bytes());
    }
    drop(bench);
    assert_eq!(kept.concat(), bytes);
    let part = kept[0].slice(10..20);
    drop(kept);
    assert_eq!(part, bytes[10..20]);
}

/// Dropping a driver in the middle of everything: no crash, no wait without end.
pub fn dropped_in_full_flight<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let pairs: Vec<_> = (0..50).map(|_| bench.pair()).collect();
    for (at, &(near, far)) in pairs.iter().enumerate() {
        bench.receive(far, if at % 3 == 0 { Receive::Off } else { Receive::Many(Class::Large) });
        bench.send(near, &pattern(400_000, at));
    }
    let pending = bench.connect(bench.address);
    bench.driver.receive(pending, Receive::Once(Class::Small));
    bench.turn(0);
    drop(bench);
}

/// A relay forwards bytes that were sent as urgent in their place, and the bytes behind them at
/// once, whether they come alone or in the middle of much.
pub fn relay_with_urgent_bytes<S: Subject>(subject: &S) {
    for bytes in [3, 3 << 20] {
        let mut bench = Bench::new(subject);
        let mut client = TcpStream::connect(bench.address).expect("room in the queue");
        bench.until("a connection", |bench| !bench.accepted.is_empty());
        let (a, _) = bench.accepted.remove(0);
        let (right, b) = bench.pair();
        bench.receive(right, Receive::Many(Class::Large));
        bench.relay(a, b);
        let text = pattern(bytes, 4);
        let thread = std::thread::spawn(move || {
            for round in 0..4 {
                client.write_all(&text).expect("a reader");
                // SAFETY: one byte is readable.
                let sent = unsafe {
                    libc::send(client.as_raw_fd(), [b'!'].as_ptr().cast(), 1, libc::MSG_OOB)
                };
                assert_eq!(sent, 1, "round {round}");
            }
            client.write_all(&text).expect("a reader");
            (client, text)
        });
        bench.until("all bytes", |bench| bench.of(right).received.len() >= 5 * bytes + 4);
        let (_client, text) = thread.join().expect("no panic");
        assert!(
            bench.of(right).received == [&text[..]; 5].join(&b'!'),
            "other bytes than were sent"
        );
        bench.finish();
    }
}

/// A relay that never finishes moving bytes does not keep the turn from ending: its caller has
/// timers to look at.
pub fn relay_without_a_pause<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let [writer, reader] =
        [0, 1].map(|_| TcpStream::connect(bench.address).expect("room in the queue"));
    bench.until("both connections", |bench| bench.accepted.len() == 2);
    let (a, b) = (bench.accepted.remove(0).0, bench.accepted.remove(0).0);
    bench.relay(a, b);
    let ends = [&writer, &reader].map(|end| end.try_clone().expect("a descriptor"));
    std::thread::scope(|scope| {
        let bytes = [1; 256 << 10];
        // Until the connections are shut down.
        scope.spawn(move || while (&writer).write(&bytes).is_ok() {});
        scope
            .spawn(move || while (&reader).read(&mut [0; 256 << 10]).is_ok_and(|read| read > 0) {});
        let mut completions = Vec::new();
        let mut turns: Vec<Duration> = Vec::new();
        for _ in 0..20 {
            let begin = Instant::now();
            bench.driver.turn(Some(PATIENCE.as_micros() as u64), &mut completions).expect("a turn");
            turns.push(begin.elapsed());
        }
        let moved = bench.driver.relayed(a);
        for end in ends {
            end.shutdown(Shutdown::Both).expect("a connection");
        }
        assert!(turns.iter().all(|turn| *turn < PATIENCE / 2), "{turns:?}");
        assert!(completions.is_empty() && moved.is_some_and(|moved| moved.a_to_b > 0), "{moved:?}");
    });
}

/// A turn receives a limited number of bytes into small buffers, and little more, however many have
/// more to send.
pub fn a_turn_receives_so_much<S: Subject>(subject: &S) {
    const PAIRS: usize = 24;
    const EACH: usize = 64 * 1024;
    let options =
        Options { small_bytes_per_turn: 32 * 1024, small_armed: 16, ..Options::default() };
    let mut bench = Bench::with(subject, options);
    let pairs: Vec<_> = (0..PAIRS).map(|_| bench.pair()).collect();
    for &(near, far) in &pairs {
        bench.send_all(near, &pattern(EACH, 2));
        bench.receive(far, Receive::Many(Class::Small));
    }
    let most = options.small_bytes_per_turn + 17 * options.small_bytes as usize;
    // Some were received while others sent.
    let mut before = counts(&mut bench, &pairs).iter().sum::<usize>();
    bench.until("all of it", |bench| {
        let sum = counts(bench, &pairs).iter().sum::<usize>();
        assert!(sum - before <= most, "{} bytes in one turn", sum - before);
        before = sum;
        sum == PAIRS * EACH
    });
    bench.finish();
}

suite!(
    no_wake_is_lost,
    wakes_of_many_threads,
    early_wake,
    receiving_core,
    delivery,
    chosen_source,
    adopted_sockets,
    unix_sockets,
    unix_sockets_that_fail,
    accept_queue,
    shared_listener,
    courtesy,
    turning_away,
    many_are_refused,
    turning_away_without_a_right,
    handing_over,
    buffers_dropped_elsewhere,
    a_turn_receives_so_much,
    bytes_outlive_the_driver,
    dropped_in_full_flight,
    relay_with_urgent_bytes,
    relay_without_a_pause,
);
