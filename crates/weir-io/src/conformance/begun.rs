//! Connects that were begun elsewhere: however they end, the end is reported as that of a connect
//! of the driver. For real drivers: connects begun in the simulated network have their own tests.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockRef, Socket as RawSocket, Type};

use super::{Bench, Subject, pattern, suite};
use crate::{Class, Driver as _, Outbound, Receive, begin_connect, unconnected};

/// A turn or a read without an end in all this time has missed something: shorter times would hide
/// that.
const PATIENCE: Duration = weir_check::waiting::CAP;

fn begin(to: SocketAddr) -> OwnedFd {
    let socket =
        unconnected(Outbound { resets: true, ..Outbound::default() }, to).expect("a socket");
    begin_connect(socket, to).expect("it begins")
}

/// A listener with room for one, and a full queue: a further client gets no answer until the queue
/// has room.
fn full() -> (TcpListener, SocketAddr, OwnedFd) {
    let socket = RawSocket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    socket.listen(0).expect("it listens");
    let listener = TcpListener::from(socket);
    let to = listener.local_addr().expect("bound");
    let first = begin(to);
    // Before it is in the queue, another one still has room.
    let mut one = [PollFd::new(&listener, PollFlags::IN)];
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut one, Some(&patience)).ok(), Some(1), "the first one is in the queue");
    (listener, to, first)
}

/// It ends later: as soon as the other side answers, and not before. Then it is like any other.
pub fn one_that_is_under_way<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (listener, to, first) = full();
    let begun = begin(to);
    let same = begun.try_clone().expect("a descriptor");
    let near = bench.adopt(begun);
    (0..20).for_each(|_| bench.turn(1000));
    assert!(bench.of(near).connected.is_none());
    let (other, _) = listener.accept().expect("the first one");
    bench.until("the connect", |bench| bench.of(near).connected.is_some());
    assert!(bench.of(near).connected.as_ref().is_some_and(Result::is_ok));
    let (mut far, _) = listener.accept().expect("the second one");
    far.set_read_timeout(Some(PATIENCE)).expect("not zero");
    let sent = pattern(100_000, 5);
    bench.receive(near, Receive::Many(Class::Large));
    far.write_all(&sent).expect("there is room");
    bench.expect(near, &sent);
    bench.send_all(near, b"an answer");
    let mut back = [0; 9];
    far.read_exact(&mut back).expect("it comes");
    assert_eq!(&back, b"an answer");
    let asks = || SockRef::from(&same).keepalive().expect("an option");
    assert!(!asks(), "it costs too much for one that is soon over");
    bench.driver.keep_alive(near);
    assert!(asks());
    assert_eq!(
        SockRef::from(&same).tcp_keepalive_time().expect("an option"),
        Duration::from_secs(15)
    );
    bench.close(near);
    bench.driver.keep_alive(near);
    drop((other, first));
    bench.finish();
}

/// It has failed, or fails later.
pub fn one_that_fails<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (listener, to, first) = full();
    let later = bench.adopt(begin(to));
    bench.turn(0);
    assert!(bench.of(later).connected.is_none());
    drop((listener, first));
    // No socket listens there any more, and its next packet is refused.
    bench.until("the second one has failed", |bench| bench.of(later).connected.is_some());
    let at_once = bench.adopt(begin(to));
    bench.until("the third one has failed", |bench| bench.of(at_once).connected.is_some());
    for socket in [later, at_once] {
        let why = bench
            .of(socket)
            .connected
            .as_ref()
            .and_then(|result| result.as_ref().err().map(std::io::Error::kind));
        assert_eq!(why, Some(ErrorKind::ConnectionRefused));
        bench.close(socket);
    }
    bench.finish();
}

/// It is not wanted any more: nothing is reported, and nothing is left.
pub fn one_that_is_given_up<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (listener, to, first) = full();
    let [closed, reset] = [(); 2].map(|()| bench.adopt(begin(to)));
    bench.turn(0);
    bench.driver.close(closed);
    bench.driver.reset(reset);
    let again = begin(to);
    let from = SockRef::from(&again).local_addr().expect("bound").as_socket();
    let again = bench.adopt(again);
    let (other, _) = listener.accept().expect("the first one");
    bench.until("the last one", |bench| bench.of(again).connected.is_some());
    assert!([closed, reset].iter().all(|socket| bench.of(*socket).connected.is_none()));
    let (far, _) = listener.accept().expect("the last one");
    assert_eq!(far.peer_addr().ok(), from);
    bench.close(again);
    drop((other, first));
    bench.finish();
}

suite!(one_that_is_under_way, one_that_fails, one_that_is_given_up);
