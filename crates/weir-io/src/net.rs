//! Small helpers for sockets that both drivers and the start-up need: listeners, addresses, the
//! clock.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{
    Domain, Protocol, SockAddr, SockAddrStorage, SockFilter, SockRef, Socket, TcpKeepalive, Type,
};

use crate::Inbound;
use crate::driver::{AcceptQueue, Delivery, Departure};

/// Placeholder for the address of a client on a unix socket, which has none. No client of TCP has
/// it (RFC 4291 §2.5.2).
pub const UNIX_PEER: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// The state of a listening socket (net/tcp_states.h).
const TCP_LISTEN: u32 = 10;

/// Makes a listener of which each worker can have one: SO_REUSEADDR, SO_REUSEPORT, TCP_NODELAY
/// (accepted sockets inherit it), non-blocking. `backlog` is in connections; the system caps it at
/// `net.core.somaxconn`. An IPv6 address listens on IPv6 alone.
///
/// # Errors
/// The operating system's, with a text that names the address and the usual cause (port taken,
/// privilege, no such address).
pub fn bind_listener(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    bind_listener_by(address, backlog, Inbound::default())
}

/// The same with clients that are accepted in a chosen way from the first one on.
///
/// # Errors
/// As [`bind_listener`] and [`Inbound::apply`].
pub fn bind_listener_by(
    address: SocketAddr,
    backlog: u32,
    way: Inbound<'_>,
) -> io::Result<TcpListener> {
    let explained = |error: io::Error| explain(address, &error);
    let socket = bound(address, way).map_err(explained)?;
    let listener = OwnedFd::from(socket);
    way.apply(&listener)?;
    let socket = Socket::from(listener);
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX)).map_err(explained)?;
    Ok(socket.into())
}

/// The same for each of `workers` workers, and the address: one port for all of them where 0 is
/// configured.
///
/// # Errors
/// As [`bind_listener_by`].
pub fn bind_listeners(
    address: SocketAddr,
    backlog: u32,
    way: Inbound<'_>,
    workers: usize,
) -> io::Result<(Vec<TcpListener>, SocketAddr)> {
    let mut real = address;
    let mut sockets = Vec::new();
    for _ in 0..workers {
        let socket = bind_listener_by(real, backlog, way)?;
        real = socket.local_addr()?;
        sockets.push(socket);
    }
    Ok((sockets, real))
}

fn bound(address: SocketAddr, way: Inbound<'_>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if let Some(device) = way.tuning.device {
        // Only listeners of the same interface share a port, so that each gets the connections of
        // its own. An impossible choice is reported when the other options are set.
        let _ = socket.bind_device(Some(device.as_bytes()));
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Turns a listening socket, of TCP or at a path, that another process has opened into one as
/// [`bind_listener`] makes it, as far as that can still be changed.
///
/// # Errors
/// It is not such a socket, or the operating system's.
pub fn adopt_listener(socket: OwnedFd, backlog: u32) -> io::Result<OwnedFd> {
    let socket = Socket::from(socket);
    let address = socket.local_addr()?;
    let is_tcp = address.as_socket().is_some();
    let is_known = socket.r#type()? == Type::STREAM && (is_tcp || address.as_pathname().is_some());
    if !is_known || !socket.is_listener()? {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no listening socket of TCP or at a path",
        ));
    }
    if is_tcp {
        socket.set_tcp_nodelay(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

fn explain(address: SocketAddr, error: &io::Error) -> io::Error {
    let cause = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => "another program uses this port".to_owned(),
        Some(libc::EACCES | libc::EPERM) => {
            format!(
                "no permission: port {} needs the capability CAP_NET_BIND_SERVICE",
                address.port()
            )
        }
        Some(libc::EADDRNOTAVAIL) => "this machine has no such address".to_owned(),
        Some(libc::EMFILE | libc::ENFILE) => "no file descriptors left".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("cannot listen on {address}: {cause}"))
}

/// How the kernel checks a connection while nothing is sent on it. A connection with a peer that
/// vanished silently (a firewall forgot it, a machine lost its power) ends after 24 s, and no
/// middlebox takes the others for unused. A thousand idle connections cost 67 packets a second each
/// way.
///
/// TCP_USER_TIMEOUT is not used. It would also end a connection whose other side reads slowly and
/// says so, with acknowledgements of a window of zero (net/ipv4/tcp_timer.c, `tcp_probe_timer`),
/// and after the first of these probes that is lost (`tcp_keepalive_timer`). [`delivery`]
/// distinguishes the two.
pub(crate) const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(3))
    .with_retries(3);

/// The same for a client whose connection may be idle for an hour: a client that vanished silently
/// is noticed after 2 minutes.
pub(crate) const CLIENT_KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(10))
    .with_retries(6);

/// How often the kernel must have retried without success before a connection counts as unheard:
/// that takes 0.6 s and more, and distinguishes a silent network from a machine that stood still.
const TRIES_MIN: u8 = 2;

/// Makes a unix socket, and tells whether it is connected to the socket that listens at this path.
/// That is known at once, because a socket that would have to wait for room in the listener's queue
/// is not connected (EAGAIN). It may be blocking for its later users.
pub(crate) fn connect_unix(
    path: &Path,
    nonblocking: bool,
) -> io::Result<(OwnedFd, io::Result<()>)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    let outcome = SockAddr::unix(path).and_then(|address| socket.connect(&address));
    if !nonblocking {
        socket.set_nonblocking(false)?;
    }
    Ok((socket.into(), outcome))
}

/// Accepts one connection; waits for it only if the listener blocks.
pub(crate) fn accept(fd: RawFd, nonblocking: bool) -> io::Result<(RawFd, SocketAddr)> {
    let mut storage = SockAddrStorage::zeroed();
    let mut len = storage.size_of();
    let flags = libc::SOCK_CLOEXEC | if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: `storage` is writable for `len` bytes, and both outlive the call.
    let accepted = unsafe { libc::accept4(fd, (&raw mut storage).cast(), &raw mut len, flags) };
    if accepted < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled `len` bytes of `storage`.
    let address = unsafe { SockAddr::new(storage, len) };
    let Some(peer) = peer_of(&address) else {
        close_fd(accepted);
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    };
    Ok((accepted, peer))
}

/// The client's address; None: a kind of client that is not served.
fn peer_of(address: &SockAddr) -> Option<SocketAddr> {
    address.as_socket().or_else(|| address.is_unix().then_some(UNIX_PEER))
}

/// Whether a descriptor is a socket of the unix domain.
pub(crate) fn is_unix(fd: RawFd) -> bool {
    // SAFETY: the caller's descriptor remains open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    SockRef::from(&socket).local_addr().is_ok_and(|address| address.is_unix())
}

/// The address of this end of a connected TCP socket.
pub(crate) fn local_address(fd: RawFd) -> Option<SocketAddr> {
    // SAFETY: the caller's descriptor remains open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    SockRef::from(&socket).local_addr().ok()?.as_socket()
}

/// The address of the other end of a connected socket; [`UNIX_PEER`] where it has none.
pub(crate) fn peer_address(fd: RawFd) -> io::Result<SocketAddr> {
    let mut storage = SockAddrStorage::zeroed();
    let mut len = storage.size_of();
    // SAFETY: `storage` is writable for `len` bytes, and both outlive the call.
    let result = unsafe { libc::getpeername(fd, (&raw mut storage).cast(), &raw mut len) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled `len` bytes of `storage`.
    let address = unsafe { SockAddr::new(storage, len) };
    peer_of(&address).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Microseconds of the monotonic clock. All drivers of a process share its start.
pub fn clock_us() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `now` is writable, and CLOCK_MONOTONIC exists on every Linux, so it is always filled.
    let now = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr());
        now.assume_init()
    };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// The outcome of a connect that was in progress. Neither readiness nor the absence of an error
/// means success: errors that the network reports (ICMP) are queued and reported before they become
/// the socket's error (`tcp_v4_err` in net/ipv4/tcp_ipv4.c), and io_uring takes that for success
/// (`io_connect` in io_uring/net.c).
pub(crate) fn connect_result(fd: RawFd) -> io::Result<()> {
    // SAFETY: the caller's descriptor remains open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    if rustix::net::getpeername(socket).is_ok() {
        return Ok(());
    }
    match SockRef::from(&socket).take_error()? {
        Some(error) => Err(error),
        None => Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH)),
    }
}

/// The core that received the last packet of a connection (SO_INCOMING_CPU).
pub(crate) fn receiving_core(fd: RawFd) -> Option<u32> {
    let mut core: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `core` is writable for `len` bytes; a descriptor that is not a socket gives an error.
    unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_INCOMING_CPU,
            (&raw mut core).cast(),
            &raw mut len,
        )
    };
    u32::try_from(core).ok()
}

/// The accept queue. For a listening socket the kernel reports it in two fields that mean something
/// else for others (net/ipv4/tcp.c, `tcp_get_info`).
pub(crate) fn accept_queue(fd: RawFd) -> Option<AcceptQueue> {
    let info = tcp_info(fd)?;
    let listening = u32::from(info.tcpi_state) == TCP_LISTEN;
    listening.then_some(AcceptQueue { waiting: info.tcpi_unacked, limit: info.tcpi_sacked })
}

/// Sets another congestion control for a connection; where it is not possible, nothing changes.
pub(crate) fn set_congestion(fd: RawFd, name: &str) {
    // SAFETY: the caller's descriptor remains open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = SockRef::from(&socket).set_tcp_congestion(name.as_bytes());
}

/// What has happened to the bytes that were sent on a connection. Those on a unix socket are with
/// the other side at once.
pub(crate) fn delivery(fd: RawFd) -> Delivery {
    if unacknowledged(fd) == 0 {
        return Delivery::Acknowledged;
    }
    let Some(info) = tcp_info(fd) else { return Delivery::Acknowledged };
    let silent_us = u64::from(info.tcpi_last_ack_recv) * 1_000;
    // Without a byte on its way all of them wait for room: then probes ask whether the other side
    // has any.
    let tries = if info.tcpi_unacked > 0 { info.tcpi_retransmits } else { info.tcpi_probes };
    let unheard = tries >= TRIES_MIN && silent_us >= Delivery::UNHEARD_US;
    if unheard { Delivery::Unheard } else { Delivery::Underway }
}

/// Whether the other side of a connection has ended its direction or reset it.
pub(crate) fn departure(fd: RawFd) -> Departure {
    // SAFETY: the caller's descriptor remains open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut asked = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut asked, Some(&now)) {
        Ok(1..) if asked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) => {
            Departure::Broken
        }
        Ok(1..) => Departure::Ended,
        _ => Departure::Stays,
    }
}

/// Bytes that the kernel has and that are not acknowledged (tcp(7), SIOCOUTQ).
fn unacknowledged(fd: RawFd) -> libc::c_int {
    let mut count: libc::c_int = 0;
    // SAFETY: `count` is writable; a descriptor that is not a socket gives an error.
    unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut count) };
    count
}

/// The kernel's figures of a connection; None: it is not TCP.
fn tcp_info(fd: RawFd) -> Option<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is writable for `len` bytes and plain numbers; a descriptor that is not a TCP
    // socket gives an error.
    unsafe {
        let result = libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        );
        (result == 0).then(|| info.assume_init())
    }
}

/// Changes how many connections may wait at a listener: a second listen(2) only changes that.
/// Errors mean that it is no listener.
pub(crate) fn set_backlog(fd: RawFd, backlog: u32) {
    // SAFETY: no pointers are involved; a descriptor that is not a listening socket gives an error.
    unsafe { libc::listen(fd, i32::try_from(backlog).unwrap_or(i32::MAX)) };
}

/// Another descriptor of the same file.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the caller's descriptor remains open during the call.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
}

/// Drops the first packets (SYN without ACK, RFC 9293 §3.5) of new clients of a listener from now
/// on, by a filter of the socket (socket(7), SO_ATTACH_FILTER). Accepted sockets inherit the
/// filter, which does not affect them.
///
/// Linux 6.18 and later grant a filter only with CAP_NET_ADMIN. Without it the listener is made
/// deaf to all packets whose hop limit is less than the highest (ip(7), IP_MINTTL); nearly all
/// senders begin below that. The last packet of a handshake that has begun is exempt. Accepted
/// sockets are deaf as well. True: that is so, and [`listen_again`] is to be called for them.
pub(crate) fn turn_away(fd: RawFd) -> bool {
    let is_deaf = attach_deaf_filter(fd).is_err();
    if is_deaf {
        set_hops_min(fd, 255);
    }
    is_deaf
}

/// Makes a socket hear again that was accepted from a deaf listener.
pub(crate) fn listen_again(fd: RawFd) {
    set_hops_min(fd, 0);
}

/// Errors mean that the socket has no such option, as for the other family.
fn set_hops_min(fd: RawFd, least: libc::c_int) {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    for (level, option) in
        [(libc::IPPROTO_IP, libc::IP_MINTTL), (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT)]
    {
        // SAFETY: the option value is readable for `len` bytes; a descriptor that is not such a
        // socket gives an error.
        unsafe { libc::setsockopt(fd, level, option, (&raw const least).cast(), len) };
    }
}

fn attach_deaf_filter(fd: RawFd) -> io::Result<()> {
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, otherwise, k| SockFilter::new(code, 0, otherwise, k);
    // A filter of a TCP socket sees packets from their TCP header on; its flags are byte 13, ACK
    // 0x10 and SYN 0x02.
    let program = [
        step(LOAD_BYTE, 0, 13),
        step(AND, 0, 0x12),
        step(JUMP_IF_EQUAL, 1, 0x02),
        step(RETURN, 0, 0),
        step(RETURN, 0, u32::MAX),
    ];
    // SAFETY: the caller's descriptor remains open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    SockRef::from(&socket).attach_filter(&program)
}

/// Ends the sending direction at once. Errors mean that nothing is left to end.
pub(crate) fn shutdown_write(fd: RawFd) {
    // SAFETY: no pointers are involved; a descriptor that is not a connected socket gives an error.
    unsafe { libc::shutdown(fd, libc::SHUT_WR) };
}

/// Sends the acknowledgement that the kernel delays in the hope of a send. Errors mean that it is
/// no connection.
pub(crate) fn acknowledge(fd: RawFd) {
    set_quick_ack(fd, true);
}

/// Delays the acknowledgement that a connect succeeded until the first send, or [`acknowledge`], or
/// the kernel's after 200 ms (`TCP_DELACK_MAX` in include/net/tcp.h): a segment less where a client
/// speaks first. Only before the connect. Errors mean that it is no TCP socket.
pub(crate) fn acknowledge_late(fd: RawFd) {
    set_quick_ack(fd, false);
}

fn set_quick_ack(fd: RawFd, on: bool) {
    let on = libc::c_int::from(on);
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option value is readable for `len` bytes; a descriptor that is not a TCP socket
    // gives an error.
    unsafe {
        libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, (&raw const on).cast(), len)
    };
}

/// Leaves urgent bytes in their place among the others (SO_OOBINLINE; RFC 6093, section 6);
/// otherwise a receive skips them. Errors mean that it is no connection.
pub(crate) fn keep_urgent(fd: RawFd) {
    let on: libc::c_int = 1;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option value is readable for `len` bytes; a descriptor that is not a socket gives
    // an error.
    unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, (&raw const on).cast(), len)
    };
}

/// Lets the kernel check whether the other side is still there, as [`KEEPALIVE`] says. Errors mean
/// that it is no connection.
pub(crate) fn keep_alive(fd: RawFd) {
    // SAFETY: the caller owns `fd`, which is open for as long as this takes.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = SockRef::from(&socket).set_tcp_keepalive(&KEEPALIVE);
}

/// Makes the close of a connection a reset. Errors mean that it is no connection to reset.
pub(crate) fn linger_zero(fd: RawFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the option value is readable for `len` bytes; a descriptor that is not a socket gives
    // an error.
    unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len)
    };
}

/// Makes the close of a connection an orderly end again, whatever its listener or
/// [`Outbound`](crate::Outbound) had requested.
pub(crate) fn linger_usual(fd: RawFd) {
    let linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let len = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the option value is readable for `len` bytes; a descriptor that is not a socket gives
    // an error.
    unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len)
    };
}

/// Closes a descriptor that its slot owns.
pub(crate) fn close_fd(fd: RawFd) {
    // SAFETY: the caller owns `fd` and forgets it; dropping the wrapper closes it exactly once.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// Whether an accept failed because of the connection that was to be accepted (accept(2), "Error
/// handling"): then the next one may be fine, and trying again at once does not spin.
pub(crate) fn concerns_one_connection(code: i32) -> bool {
    matches!(
        code,
        libc::ECONNABORTED
            | libc::EINTR
            | libc::EPROTO
            | libc::ENETDOWN
            | libc::ENOPROTOOPT
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
    )
}

/// Receives without waiting.
///
/// # Safety
/// `start` must be writable for `len` bytes, without any other reference to them.
pub(crate) unsafe fn receive(fd: RawFd, start: *mut u8, len: usize) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    check_len(unsafe { libc::recv(fd, start.cast(), len, libc::MSG_DONTWAIT) })
}

/// Sends one slice without waiting. `ends`: [`shutdown_write`] follows at once, so that the last
/// segment waits for it and also carries the end of the connection (MSG_MORE, send(2)).
///
/// # Safety
/// `start` must be readable for `len` bytes.
pub(crate) unsafe fn send(
    fd: RawFd,
    start: *const u8,
    len: usize,
    ends: bool,
) -> io::Result<usize> {
    let more = if ends { libc::MSG_MORE } else { 0 };
    // SAFETY: the caller's promise.
    check_len(unsafe {
        libc::send(fd, start.cast(), len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more)
    })
}

/// A count that a call returned, or its error.
pub(crate) fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Makes a descriptor non-blocking, for calls that no flag can keep from waiting.
pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: no pointers are involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let result = if flags < 0 {
        flags
    } else {
        // SAFETY: no pointers are involved.
        unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
