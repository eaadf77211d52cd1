//! The interface between the worker and the operating system.
//!
//! The worker calls commands, which only queue work; [`Driver::turn`] submits everything queued
//! with one system call (as far as the kernel allows), waits, and reaps completions. Bound: one
//! send and one connect in flight for each socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Courtesy, Descriptors, Loose, Outbound, RecvBuf, Released};

/// Chosen by the caller for each socket and handed back in each of its completions.
pub type Token = u64;

/// Names one socket of one driver: a slot and the generation of its occupant, so that a late name
/// has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Socket {
    /// Slot in the driver's table.
    pub index: u32,
    /// Occupant of the slot; differs for each socket that used it.
    pub generation: u32,
}

/// Which pool of receive buffers a socket draws from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// 4 KiB: request heads.
    Small,
    /// 64 KiB: upstream responses, bodies.
    Large,
}

/// How a socket is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receive {
    /// Stop. Completions already on their way are still delivered.
    Off,
    /// Exactly one [`Event::Received`] (or an end), then off.
    Once(Class),
    /// Until changed or ended.
    Many(Class),
}

/// Bytes to send; owned by the driver until [`Event::Sent`] hands them back.
#[derive(Debug)]
pub enum Payload {
    /// One owned buffer, returned for reuse.
    Owned(Vec<u8>),
    /// One shared slice.
    Shared(Bytes),
    /// Several slices, in order.
    Vectored(Vec<Bytes>),
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A listener has a new connection. It has no token and receives nothing until
    /// [`Driver::set_token`] and [`Driver::receive`].
    Accepted {
        /// The new socket.
        socket: Socket,
        /// Address of the client; [`UNIX_PEER`](crate::UNIX_PEER) on a unix socket.
        peer: SocketAddr,
    },
    /// Accepting failed (descriptors, memory). The driver tries again after a pause without being
    /// asked, and never spins.
    AcceptFailed(io::Error),
    /// The outcome of [`Driver::connect`].
    Connected(io::Result<()>),
    /// Bytes arrived; never empty.
    Received(RecvBuf),
    /// The other side closed its sending direction (FIN). Nothing more will be received.
    Ended,
    /// Receiving failed (reset, time-out of the kernel). Nothing more will be received.
    ReceiveFailed(io::Error),
    /// Everything given to [`Driver::send`] was taken by the kernel, or an error ended it. The
    /// payload comes back.
    Sent {
        /// The payload that was given to send.
        payload: Payload,
        /// The outcome. After an error an unknown part was sent.
        result: io::Result<()>,
    },
    /// A relay is over ([`Driver::relay`]). Comes once, for the first of its sockets. Both are
    /// still open; they can only be closed or reset.
    RelayEnded {
        /// The bytes that it moved in all.
        moved: Relayed,
        /// Why it is over.
        how: RelayEnd,
    },
    /// The connection does not belong to this driver any more ([`Driver::release`]), and no further
    /// event of it follows.
    Released(Box<Released>),
    /// [`Waker::wake`] was called since the last turn. Comes with token 0.
    Woken,
}

/// Bytes that a relay has moved: those that the kernel accepted for the destination socket. Earlier
/// sends and receives count only as far as the relay itself had to forward the bytes of such a
/// receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Relayed {
    /// From the first socket to the second.
    pub a_to_b: u64,
    /// From the second socket to the first.
    pub b_to_a: u64,
    /// Exactly one direction is over.
    pub half_closed: bool,
}

/// Why a relay is over.
#[derive(Debug)]
pub enum RelayEnd {
    /// Both sides ended their sending direction, all their bytes were delivered, and both ends were
    /// passed on.
    Complete,
    /// The first socket failed, with this error. Bytes that had arrived from it were delivered,
    /// bytes for it are lost.
    FailedA(io::Error),
    /// The same with the second.
    FailedB(io::Error),
}

/// One event of one socket.
#[derive(Debug)]
pub struct Completion {
    /// Token of the socket (of the listener for accepts).
    pub token: Token,
    /// The socket concerned; for [`Event::Woken`] meaningless.
    pub socket: Socket,
    /// What happened.
    pub event: Event,
}

/// Wakes a driver's [`Driver::turn`] from another thread. Cheap when the driver is not waiting.
pub trait Waker: Send + Sync {
    /// Makes the current or next turn return with [`Event::Woken`].
    fn wake(&self);
}

/// One core's connection to the operating system.
///
/// Commands never fail visibly: problems arrive as completions. A command for a socket that is
/// closed or of another generation does nothing. After [`Driver::close`] no completion of that
/// socket is delivered, its payload and buffers are freed when the kernel is done with them.
pub trait Driver {
    /// Monotonic time in microseconds since an arbitrary start, as of the last turn.
    fn now_us(&self) -> u64;

    /// Starts accepting on a bound, listening, non-blocking socket of TCP, or of the unix domain.
    /// Clients of the latter all have the address [`UNIX_PEER`](crate::UNIX_PEER).
    ///
    /// # Errors
    /// The operating system's, when the listener can't be registered.
    fn listen(&mut self, listener: impl Into<OwnedFd>, token: Token) -> io::Result<Socket>;

    /// Lets a listener take no new connections. Those that are established, or of which the kernel
    /// has answered the first packet, are accepted as before. Later clients get no answer, so that
    /// they try again after a second: then they are refused, or find a successor. For closing the
    /// listener soon without losing a client; where the kernel can't do it, nothing changes.
    fn turn_away(&mut self, listener: Socket);

    /// Sets the courtesy with which it accepts from listeners that other drivers have as well. A
    /// driver without such listeners needs none.
    fn set_courtesy(&mut self, _: Courtesy) {}

    /// From now on it shares the limit of descriptors for clients with other drivers. Otherwise it
    /// accepts as long as the kernel does.
    fn share_descriptors(&mut self, _: Arc<Descriptors>) {}

    /// Stops accepting on a listener that another process has as well, and closes it here: the
    /// other process serves clients that wait there, or come later. Clients that were accepted
    /// until then are reported as before; after the last of them [`Driver::accept_queue`] no longer
    /// knows the listener.
    fn hand_over(&mut self, listener: Socket);

    /// Another descriptor of a listener, for another process.
    ///
    /// # Errors
    /// The operating system's, when descriptors run out; the listener is closed; it has nothing
    /// that another process could use.
    fn duplicate(&mut self, listener: Socket) -> io::Result<OwnedFd>;

    /// Changes how many connections may wait at a listener to be accepted (listen(2)); the system
    /// caps it.
    fn set_backlog(&mut self, listener: Socket, backlog: u32);

    /// Starts a TCP connection (TCP_NODELAY is set). Ends in [`Event::Connected`].
    ///
    /// # Errors
    /// The operating system's, when no socket can be made (descriptors run out).
    fn connect(&mut self, to: SocketAddr, token: Token) -> io::Result<Socket> {
        self.connect_by(Outbound::default(), to, token)
    }

    /// The same in a chosen way.
    ///
    /// # Errors
    /// As [`Driver::connect`]; the choice is not possible. That a port is taken may also be the
    /// result of the connect.
    fn connect_by(&mut self, way: Outbound<'_>, to: SocketAddr, token: Token)
    -> io::Result<Socket>;

    /// Starts a connection to the socket that listens at this path (unix(7)). Ends in
    /// [`Event::Connected`]; when the listener has no room for it, that is an error at once
    /// (EAGAIN) and not a wait.
    ///
    /// # Errors
    /// The operating system's, when no socket can be made; such sockets do not exist (in the
    /// simulated network).
    fn connect_unix(&mut self, path: &Path, token: Token) -> io::Result<Socket>;

    /// Takes over a TCP socket that was made as [`Outbound`] says, and whose connect was begun
    /// elsewhere, or has ended already. Ends in [`Event::Connected`], as a connect of this driver
    /// does.
    ///
    /// # Errors
    /// The operating system's; the simulated network has only the connects that were begun in it
    /// ([`sim::Net::begin`](crate::sim::Net::begin)).
    fn adopt(&mut self, begun: OwnedFd, token: Token) -> io::Result<Socket>;

    /// Releases a connection to another driver, which takes it in ([`Driver::take_in`]). From now
    /// on its only event is [`Event::Released`], with all bytes that were received but not handed
    /// out. Of the commands only [`Driver::close`] and [`Driver::reset`] have an effect, and then
    /// no event follows. False: it can't be released, because it is no connected stream, a send or
    /// a relay of it is not over, or another event of it has to be reported first; then everything
    /// is as before.
    fn release(&mut self, socket: Socket) -> bool;

    /// Takes in a connection that was released. As after an accept, nothing is received until
    /// [`Driver::receive`].
    ///
    /// # Errors
    /// The operating system's; it is of another kind of driver (simulated or not). The connection
    /// is closed then.
    fn take_in(&mut self, connection: Loose, token: Token) -> io::Result<Socket>;

    /// Sets the token of a socket.
    fn set_token(&mut self, socket: Socket, token: Token);

    /// Changes how a socket is read. Repeating the current mode re-arms a finished `Once`. Of
    /// several changes between two turns only the last one counts: nothing is received because of
    /// those before it. Sockets that wait for a receive buffer get one in the order in which they
    /// began to wait, before any other.
    fn receive(&mut self, socket: Socket, how: Receive);

    /// Sets whether bytes that arrive on a socket may come later. Then they do not wake the driver,
    /// and are received some milliseconds later together with those of other such sockets, which
    /// costs less for all of them. For peers that deserve no haste. Where it is not possible,
    /// nothing changes.
    fn defer(&mut self, socket: Socket, on: bool);

    /// Sends all of `payload`. Only when no send of this socket is in flight.
    fn send(&mut self, socket: Socket, payload: Payload);

    /// Ends the sending direction (FIN) at once; only when no send is in flight.
    fn shutdown_write(&mut self, socket: Socket);

    /// Acknowledges received bytes at once instead of together with the next send (TCP_QUICKACK,
    /// tcp(7)).
    fn acknowledge(&mut self, socket: Socket);

    /// Hands two connected sockets over to each other: from now on the driver itself moves bytes
    /// from each to the other, without copying them where that pays, until both directions have
    /// ended. Does nothing if either is closed or relays already.
    ///
    /// **Before**: all bytes that were handed out in [`Event::Received`] are the caller's; those
    /// meant for the other side were given to [`Driver::send`]. A receive may be armed and a send
    /// in flight on each socket. No byte is lost, repeated or moved: receives stop, and bytes that
    /// they bring and that were not handed out yet belong to the relay, as does an end or an error
    /// that they find. Each direction begins when the send on its sink is over, which
    /// [`Event::Sent`] still reports. A direction whose [`Event::Ended`] was handed out has ended
    /// for the relay as well.
    ///
    /// **Meanwhile** each direction runs independently: when its source ends (FIN) and the last
    /// byte was delivered, the end is passed on (FIN), and the other direction continues. A slow
    /// reader stops the writer on the other side: besides the buffers of the kernel's sockets at
    /// most [`crate::Options::relay_pipe_bytes`] wait. No event reports bytes; [`Driver::relayed`]
    /// does. A turn moves a limited number of bytes and doesn't return for their sake. Of the
    /// commands only [`Driver::set_token`], [`Driver::acknowledge`], [`Driver::close`] and
    /// [`Driver::reset`] have an effect on the two.
    ///
    /// **The end** is [`Event::RelayEnded`], with the token of `a`. When one socket fails, bytes
    /// that had arrived from it are still delivered first. Closing or resetting either socket ends
    /// the relay without an event, and bytes that waited in it are lost; the other socket remains
    /// open, but the only thing left to do with it is to close it as well.
    fn relay(&mut self, a: Socket, b: Socket);

    /// The bytes that the relay of a socket has moved so far; None when it has none (any more).
    fn relayed(&self, socket: Socket) -> Option<Relayed>;

    /// Ends everything about the socket. Data already taken by the kernel is still delivered to the
    /// other side, unless received bytes are unread (then the kernel sends RST).
    fn close(&mut self, socket: Socket);

    /// Like [`Driver::close`], but with a reset (SO_LINGER of zero), so that the other side doesn't
    /// take the bytes that it has for complete. Bytes that the kernel has not delivered are lost.
    fn reset(&mut self, socket: Socket);

    /// All open sockets except listeners, including those just handed out in [`Event::Accepted`].
    /// For giving everything up.
    fn streams(&self) -> Vec<Socket>;

    /// Gives a receive buffer back; cheaper than dropping it.
    fn recycle(&mut self, buffer: RecvBuf);

    /// Free receive buffers of a class, and their total: `(free, total)`.
    fn buffers(&self, class: Class) -> (u32, u32);

    /// Lets the kernel check from time to time whether the other side of a connection of
    /// [`Outbound::resets`] is still there (SO_KEEPALIVE, socket(7)), which costs four system
    /// calls: too much for connections that are soon over. Others have it from the start.
    fn keep_alive(&mut self, socket: Socket);

    /// The core that received the socket's last packet (SO_INCOMING_CPU, socket(7)); None when that
    /// is not known.
    fn receiving_core(&mut self, socket: Socket) -> Option<u32>;

    /// The address that the client of an accepted connection has connected to (getsockname(2));
    /// None on a unix socket, and when the connection is closed.
    fn destination(&mut self, socket: Socket) -> Option<SocketAddr>;

    /// Whether the bytes that were sent on a connection have arrived (TCP_INFO, tcp(7)).
    fn delivery(&mut self, socket: Socket) -> Delivery;

    /// Whether the other side of a connection has left, even while nothing is received (poll(2),
    /// POLLRDHUP). A connection that is closed here is broken. For use before expensive work for
    /// it, or while it is not read.
    fn departure(&mut self, socket: Socket) -> Departure;

    /// Whether the other side of a connection has ended its direction or reset it, or it is closed
    /// here.
    fn has_left(&mut self, socket: Socket) -> bool {
        self.departure(socket) != Departure::Stays
    }

    /// The kernel's figures of the path of the bytes that were sent on a connection (TCP_INFO,
    /// tcp(7)), also when the connection is over and not closed here; None: it is closed, not TCP,
    /// or nothing is known.
    fn path(&mut self, socket: Socket) -> Option<crate::Path>;

    /// Gives a connection another congestion control (TCP_CONGESTION, tcp(7)). If the system does
    /// not have it, or does not allow it to this thread, nothing changes.
    fn set_congestion(&mut self, socket: Socket, name: &str);

    /// The connections that wait at a listener to be accepted (TCP_INFO, tcp(7)); None when that is
    /// not known.
    fn accept_queue(&mut self, listener: Socket) -> Option<AcceptQueue>;

    /// Submits queued operations, waits at most `wait_us` microseconds (None: until something
    /// happens; 0: not at all), and appends completions to `into`. It may append none, and may
    /// return earlier, when relays have much to move.
    ///
    /// # Errors
    /// Only errors that make the driver unusable.
    fn turn(&mut self, wait_us: Option<u64>, into: &mut Vec<Completion>) -> io::Result<()>;

    /// A handle that wakes this driver.
    fn waker(&self) -> std::sync::Arc<dyn Waker>;

    /// The name for logs and status: `io_uring`, `epoll`, `sim`.
    fn name(&self) -> &'static str;

    /// Counters since the start, for the status.
    fn stats(&self) -> DriverStats;
}

/// Whether the bytes that were sent on a connection have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// The other side acknowledged all of them; or nothing is known.
    Acknowledged,
    /// Some are on their way, or wait until the other side has room for them.
    Underway,
    /// Some were sent several times, and for [`Delivery::UNHEARD_US`] nothing at all came back: no
    /// acknowledgement of them, and none that reports a lack of room.
    Unheard,
}

impl Delivery {
    /// How long nothing must have come back.
    pub const UNHEARD_US: u64 = 2_400_000;
}

/// Whether the other side of a connection is still there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    /// Still there, as far as known.
    Stays,
    /// It has ended its sending direction, perhaps behind bytes that were not received.
    Ended,
    /// The connection is broken, or both directions have ended.
    Broken,
}

/// Established connections that a listener has not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AcceptQueue {
    /// How many there are.
    pub waiting: u32,
    /// With more of them than this, the kernel completes no handshakes.
    pub limit: u32,
}

/// Counters of a driver since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverStats {
    /// Calls of [`Driver::turn`].
    pub turns: u64,
    /// System calls of the data path (enter, or wait, receive, send, accept), without the opening
    /// and closing of sockets.
    pub syscalls: u64,
    /// Completions delivered.
    pub completions: u64,
    /// Connections accepted.
    pub accepts: u64,
    /// Times that accepting failed and paused (descriptors, memory).
    pub accept_failures: u64,
    /// Times that accepting paused because most clients are refused.
    pub accept_pauses: u64,
    /// Receives that delivered bytes.
    pub receives: u64,
    /// Payloads that were sent completely.
    pub sends: u64,
    /// Sends that the kernel took in more than one part.
    pub partial_sends: u64,
    /// Bytes that relays moved by copying them.
    pub relay_copied: u64,
    /// Bytes that relays moved through pipes, without copying them.
    pub relay_spliced: u64,
    /// Times that a socket had to wait for a receive buffer (ENOBUFS).
    pub starved: u64,
    /// Times that [`Waker::wake`] made a turn return.
    pub wakes: u64,
}
