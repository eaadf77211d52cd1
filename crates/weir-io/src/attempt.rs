//! A connect with an outcome that is passed on, so that its exact form matters: whether the server
//! refuses, or which host reported that it can't be reached, and how (ICMP). For connecting to a
//! server before its client gets any answer; the drivers need less. ip(7): IP_RECVERR.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{connect, sockopt};

use crate::Outbound;
use crate::net::check_len;
use crate::way::set_option;

/// `SO_EE_ORIGIN_ICMP` and `SO_EE_ORIGIN_ICMP6` (linux/errqueue.h).
const FROM_NETWORK: [u8; 2] = [2, 3];
/// `struct sock_extended_err`, followed by the address of the reporting host.
const ERROR_BYTES: usize = 16;
/// Room for that, with its header, and for anything else that the kernel may add.
const CONTROL_WORDS: usize = 32;

/// A connect that is under way.
#[derive(Debug)]
pub struct Attempt {
    socket: OwnedFd,
    is_ipv6: bool,
}

/// The outcome.
#[derive(Debug)]
pub enum Outcome {
    /// The server has accepted it.
    Connected(OwnedFd),
    /// The server has refused it (RST).
    Refused,
    /// A host on the way has reported that it can't be reached.
    Unreachable(Report),
    /// It has failed without a report from any host: nothing came back (ETIMEDOUT), or the reason
    /// is local.
    Failed(io::Error),
}

/// An ICMP error (RFC 792, RFC 4443).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Type and code.
    pub kind: u8,
    /// The latter.
    pub code: u8,
    /// The host that has sent it.
    pub from: IpAddr,
}

impl Attempt {
    /// Begins. When it has ended its descriptor is writable, as poll(2) reports.
    ///
    /// # Errors
    /// As socket(2), bind(2), connect(2). EADDRNOTAVAIL or EADDRINUSE: the address in `way` is
    /// taken for this server.
    pub fn begin(way: Outbound<'_>, to: SocketAddr) -> io::Result<Attempt> {
        let attempt = Attempt { socket: way.socket(to, true)?, is_ipv6: to.is_ipv6() };
        attempt.report(true)?;
        start(&attempt.socket, to).map(|()| attempt)
    }

    /// The outcome, when it has ended.
    pub fn outcome(self) -> Outcome {
        let said = sockopt::socket_error(&self.socket).unwrap_or_else(Err);
        match (said, self.reported()) {
            // Errors that are reported from now on are no reason to give up an established
            // connection.
            (Ok(()), _) => match self.report(false) {
                Ok(()) => Outcome::Connected(self.socket),
                Err(error) => Outcome::Failed(error),
            },
            (Err(_), Some(report)) => Outcome::Unreachable(report),
            (Err(Errno::CONNREFUSED), None) => Outcome::Refused,
            (Err(error), None) => Outcome::Failed(error.into()),
        }
    }

    fn report(&self, on: bool) -> io::Result<()> {
        match self.is_ipv6 {
            true => set_option(&self.socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, on),
            false => set_option(&self.socket, libc::IPPROTO_IP, libc::IP_RECVERR, on),
        }
    }

    /// The error that was reported, if one was.
    fn reported(&self) -> Option<Report> {
        let mut control = [0u64; CONTROL_WORDS];
        // SAFETY: msghdr is plain data for which all zeroes is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: `message` names `control` alone, which is writable for its length and outlives
        // the call.
        check_len(unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) })
            .ok()?;
        // SAFETY: the kernel has filled `control` with messages; their length is in `message`.
        let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !at.is_null() {
            // SAFETY: `at` is a header of a message within `control`.
            let header = unsafe { &*at };
            let kind = (header.cmsg_level, header.cmsg_type);
            // SAFETY: the call only takes numbers.
            let bytes =
                (header.cmsg_len as usize).saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            if kind == (libc::IPPROTO_IP, libc::IP_RECVERR)
                || kind == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            {
                // SAFETY: this number of bytes of data follows that header, as its length field
                // says.
                let data = unsafe { std::slice::from_raw_parts(libc::CMSG_DATA(at), bytes) };
                return read(data);
            }
            // SAFETY: as above; the next header is within `control`, or the pointer is null.
            at = unsafe { libc::CMSG_NXTHDR(&raw const message, at) };
        }
        None
    }
}

impl AsFd for Attempt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket that can [begin](begin_connect) to connect to this server.
///
/// # Errors
/// As socket(2), bind(2). EADDRINUSE: the address in `way` is taken.
pub fn unconnected(way: Outbound<'_>, to: SocketAddr) -> io::Result<OwnedFd> {
    way.socket(to, true)
}

/// Begins a connect. Its outcome belongs to the driver that takes the socket over
/// ([`Driver::adopt`](crate::Driver::adopt)).
///
/// # Errors
/// As connect(2). EADDRNOTAVAIL: its address and port are taken for this server.
pub fn begin_connect(socket: OwnedFd, to: SocketAddr) -> io::Result<OwnedFd> {
    start(&socket, to).map(|()| socket)
}

/// Whether a connection is over, or its connect has failed: an error waits, or the other side has
/// ended its direction (poll(2): POLLERR, POLLHUP, POLLRDHUP). One that is under way is not over.
/// The call does not block, and leaves everything in the socket.
pub fn is_over(socket: &impl AsFd) -> bool {
    let mut one = [PollFd::new(socket, PollFlags::RDHUP)];
    let over = PollFlags::ERR | PollFlags::HUP | PollFlags::RDHUP;
    poll(&mut one, Some(&Timespec::default())).is_ok() && one[0].revents().intersects(over)
}

fn start(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    match connect(socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads `struct sock_extended_err` and the address behind it.
fn read(data: &[u8]) -> Option<Report> {
    let (error, from) = data.split_at_checked(ERROR_BYTES)?;
    if !FROM_NETWORK.contains(&error[4]) {
        return None;
    }
    let family = i32::from(u16::from_ne_bytes(*from.first_chunk()?));
    let from: IpAddr = match family {
        libc::AF_INET => from.get(4..)?.first_chunk::<4>().copied()?.into(),
        libc::AF_INET6 => from.get(8..)?.first_chunk::<16>().copied()?.into(),
        _ => return None,
    };
    Some(Report { kind: error[5], code: error[6], from })
}

#[cfg(test)]
mod tests {
    //! Proves: accepting and refusing servers are reported, of both families, and whether a
    //! connection is over; reports are read according to their layout. How: loopback, examples.

    use std::net::TcpListener;

    use super::*;

    fn outcome(to: SocketAddr) -> Outcome {
        let attempt = Attempt::begin(Outbound::default(), to).expect("a socket");
        poll(&mut [PollFd::new(&attempt, PollFlags::OUT)], None).expect("it ends");
        attempt.outcome()
    }

    #[test]
    fn servers_take_it_or_refuse_it() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(host).expect("a port");
            let to = listener.local_addr().expect("bound");
            assert!(matches!(outcome(to), Outcome::Connected(_)), "{host}");
            drop(listener);
            assert!(matches!(outcome(to), Outcome::Refused), "{host}");
        }
    }

    #[test]
    fn what_is_over_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("bound");
        let begin = || begin_connect(unconnected(Outbound::default(), to)?, to);
        let socket = begin().expect("it begins");
        let (server, _) = listener.accept().expect("it comes");
        assert!(!is_over(&socket));
        drop(server);
        let ends = || poll(&mut [PollFd::new(&socket, PollFlags::RDHUP)], None).expect("it ends");
        assert!(ends() == 1 && is_over(&socket));
        drop(listener);
        let refused = begin().expect("it begins");
        poll(&mut [PollFd::new(&refused, PollFlags::OUT)], None).expect("it ends");
        assert!(is_over(&refused));
    }

    #[test]
    fn a_report_is_read() {
        let mut data = vec![0; ERROR_BYTES];
        data[4..7].copy_from_slice(&[2, 3, 13]);
        data.extend_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        data.extend_from_slice(&[0, 0, 198, 18, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read(&data), Some(Report { kind: 3, code: 13, from: [198, 18, 2, 1].into() }));
        for short in 0..ERROR_BYTES + 8 {
            assert_eq!(read(&data[..short]), None);
        }
        // An error that this machine raises itself is no report.
        data[4] = 1;
        assert_eq!(read(&data), None);
        data[4..7].copy_from_slice(&[3, 1, 4]);
        data.truncate(ERROR_BYTES);
        data.extend_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        data.extend_from_slice(&[0; 6]);
        data.extend_from_slice(&[0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(
            read(&data).map(|report| report.from),
            Some("fd00:2::1".parse().expect("an address"))
        );
    }
}
