//! The kernel's figures of the path that a connection's bytes have taken (TCP_INFO, tcp(7)), for
//! comparing ways to send them.

use std::os::fd::RawFd;

use libc::c_int;

/// Figures of one connection, mostly of the bytes sent on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// Bytes sent, including those that were sent again.
    pub bytes_sent: u64,
    /// Bytes sent again.
    pub bytes_sent_again: u64,
    /// The number of them that the other side has acknowledged; one more on the side that has
    /// connected, because Linux counts its SYN.
    pub bytes_acked: u64,
    /// The round trip, smoothed, microseconds; 0: not known.
    pub rtt_us: u32,
    /// The shortest round trip lately, microseconds; 0: not known.
    pub min_rtt_us: u32,
    /// Bytes a second that arrived while there was enough to send; 0: not known.
    pub rate: u64,
    /// How long ago the last bytes of the other side arrived, microseconds, in ticks of the kernel
    /// (1 to 10 ms).
    pub received_ago_us: u32,
}

/// As much of `struct tcp_info` (linux/tcp.h) as is read; since Linux 4.19 it has all of that.
const INFO_BYTES: usize = 216;
/// `tcpi_last_data_recv`, in milliseconds.
const LAST_RECEIVED: usize = 52;
/// `tcpi_rtt`.
const RTT: usize = 68;
/// `tcpi_bytes_acked`.
const ACKED: usize = 120;
/// `tcpi_min_rtt`.
const MIN_RTT: usize = 148;
/// `tcpi_delivery_rate`.
const RATE: usize = 160;
/// `tcpi_bytes_sent`.
const SENT: usize = 200;
/// `tcpi_bytes_retrans`.
const SENT_AGAIN: usize = 208;
/// No round trip was measured.
const NO_RTT: u32 = u32::MAX;

/// The figures of a connection, also when it is over and still open here; None: it is not TCP.
pub(crate) fn path(fd: RawFd) -> Option<Path> {
    let mut info = [0u8; INFO_BYTES];
    let mut len = INFO_BYTES as libc::socklen_t;
    let (level, name): (c_int, c_int) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: `info` is writable for `len` bytes; a descriptor that is not a TCP socket gives an
    // error.
    let result =
        unsafe { libc::getsockopt(fd, level, name, info.as_mut_ptr().cast(), &raw mut len) };
    (result == 0).then(|| read(&info))
}

/// Figures that an older kernel does not report are zero.
fn read(info: &[u8; INFO_BYTES]) -> Path {
    let small = |at: usize| info[at..].first_chunk().copied().map_or(0, u32::from_ne_bytes);
    let large = |at: usize| info[at..].first_chunk().copied().map_or(0, u64::from_ne_bytes);
    Path {
        bytes_sent: large(SENT),
        bytes_sent_again: large(SENT_AGAIN),
        bytes_acked: large(ACKED),
        rtt_us: small(RTT),
        min_rtt_us: Some(small(MIN_RTT)).filter(|us| *us != NO_RTT).unwrap_or(0),
        rate: large(RATE),
        received_ago_us: small(LAST_RECEIVED).saturating_mul(1_000),
    }
}

#[cfg(test)]
mod tests {
    //! Proves: figures are those of the connection, and are also there after a reset. How: bytes
    //! over loopback, and a descriptor that is no socket.

    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::time::Duration;

    use socket2::SockRef;
    use weir_check::waiting::eventually;

    use super::*;

    #[test]
    fn figures_are_those_of_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut server, _) = listener.accept().expect("one waits");
        let mut bytes = vec![7; 300_000];
        let sent = bytes.clone();
        let writer = std::thread::spawn(move || {
            client.write_all(&sent).map(|()| client).expect("it is read")
        });
        server.read_exact(&mut bytes).expect("as much as was sent");
        let client = writer.join().expect("no panic");
        let found = path(client.as_raw_fd()).expect("a socket of TCP");
        assert_eq!(found.bytes_sent - found.bytes_sent_again, 300_000);
        assert!((1..=300_001).contains(&found.bytes_acked), "{found:?}");
        assert!(found.rtt_us > 0 && found.min_rtt_us > 0 && found.rate > 0, "{found:?}");
        // The other side has sent nothing.
        assert_eq!(path(server.as_raw_fd()).expect("a socket of TCP").bytes_sent, 0);
        SockRef::from(&server).set_linger(Some(Duration::ZERO)).expect("an option");
        drop(server);
        let mut byte = [0];
        assert!((&client).read(&mut byte).is_err(), "reset");
        assert_eq!(path(client.as_raw_fd()).expect("still open").bytes_sent, found.bytes_sent);
        assert_eq!(path(-1), None);
    }

    #[test]
    fn what_arrived_becomes_older_until_more_arrives() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (server, _) = listener.accept().expect("one waits");
        client.write_all(b"x").expect("it is open");
        let is_old =
            || path(server.as_raw_fd()).expect("a socket of TCP").received_ago_us >= 50_000;
        eventually("it becomes older", is_old);
        eventually("it becomes new", || {
            client.write_all(b"x").expect("it is open");
            !is_old()
        });
    }
}
