//! Watches a server's first packets to a client, on whichever interface they come in and whichever
//! socket receives them (packet(7)). For checking whether they come by the right way. It takes no
//! packet away from any receiver. Needs the capability CAP_NET_RAW.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use socket2::{Domain, SockFilter, Socket, Type};

/// `ETH_P_ALL`, and `PACKET_OUTGOING` for sent packets.
const ALL: u16 = 3;
const OUTGOING: u8 = 4;
/// Flags of TCP.
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const TCP: u32 = 6;
/// Bytes of the IPv6 header, which is expected to have no options here.
const IPV6_BYTES: usize = 40;
/// The longest IP header, and the flags of TCP.
const ROOM: usize = 60 + 14;

/// Waits for answers.
#[derive(Debug)]
pub struct Answers {
    socket: Socket,
}

/// The answer to the first packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The number of the interface by which it has come.
    pub interface: u32,
    /// The port of the client.
    pub port: u16,
    /// The connection is refused (RST).
    pub is_refusal: bool,
}

impl Answers {
    /// From now on watches those of a server to a client with this address.
    ///
    /// # Errors
    /// EPERM: the capability is missing. As socket(2).
    pub fn of(server: SocketAddr, client: IpAddr) -> io::Result<Answers> {
        // No packet comes before the filter is set.
        let socket = Socket::new(Domain::PACKET, Type::DGRAM.nonblocking(), None)?;
        socket.attach_filter(&filter(server, client))?;
        // SAFETY: all zeroes is a value of this type.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        (address.sll_family, address.sll_protocol) = (libc::AF_PACKET as u16, ALL.to_be());
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is readable for `length` bytes; the descriptor is open.
        let code = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if code == 0 { Ok(Answers { socket }) } else { Err(io::Error::last_os_error()) }
    }

    /// The next one; None: none is there now. poll(2) tells when one may be.
    ///
    /// # Errors
    /// As recvfrom(2).
    pub fn next(&self) -> io::Result<Option<Answer>> {
        loop {
            let mut room = [MaybeUninit::<u8>::uninit(); ROOM];
            let (length, from) = match self.socket.recv_from(&mut room) {
                Ok(came) => came,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            // SAFETY: the kernel has written this number of bytes.
            let packet =
                unsafe { std::slice::from_raw_parts(room.as_ptr().cast::<u8>(), length.min(ROOM)) };
            // SAFETY: the kernel gives the address of such a socket in this form, and the storage
            // is larger.
            let by = unsafe { from.as_ptr().cast::<libc::sockaddr_ll>().read_unaligned() };
            let interface = u32::try_from(by.sll_ifindex).unwrap_or(0);
            if by.sll_pkttype != OUTGOING
                && let Some((port, is_refusal)) = read(packet)
            {
                return Ok(Some(Answer { interface, port, is_refusal }));
            }
        }
    }
}

impl AsFd for Answers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The port of the client in an answer to a first packet, and whether it refuses; None: it is no
/// such answer.
fn read(packet: &[u8]) -> Option<(u16, bool)> {
    let tcp = match packet.first()? >> 4 {
        4 => usize::from(packet[0] & 15) * 4,
        _ => IPV6_BYTES,
    };
    let segment = packet.get(tcp..)?;
    let port = u16::from_be_bytes(*segment.get(2..)?.first_chunk()?);
    let flags = *segment.get(13)?;
    match flags & (SYN | RST | ACK) {
        flags if flags & RST != 0 => Some((port, true)),
        flags if flags == SYN | ACK => Some((port, false)),
        _ => None,
    }
}

/// A program that takes TCP packets from this server to this client (networking/filter in the
/// documentation of Linux).
fn filter(server: SocketAddr, client: IpAddr) -> Vec<SockFilter> {
    const WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const HALF_BEHIND: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
    const HEADER_LENGTH: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
    const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let words = |address: IpAddr| -> Vec<u32> {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        octets
            .chunks_exact(4)
            .filter_map(|word| Some(u32::from_be_bytes(*word.first_chunk()?)))
            .collect()
    };
    let (version, protocol_at, addresses_at) =
        if server.is_ipv6() { (6, 6, 8) } else { (4, 9, 12) };
    let mut steps = vec![(BYTE, 0), (AND, 0xf0), (JUMP_IF_EQUAL, version << 4)];
    steps.extend([(BYTE, protocol_at), (JUMP_IF_EQUAL, TCP)]);
    let both = words(server.ip()).into_iter().chain(words(client));
    let compared = (addresses_at..).step_by(4).zip(both);
    steps.extend(compared.flat_map(|(at, word)| [(WORD, at), (JUMP_IF_EQUAL, word)]));
    match server.is_ipv6() {
        true => steps.push((HALF, IPV6_BYTES as u32)),
        false => steps.extend([(HEADER_LENGTH, 0), (HALF_BEHIND, 0)]),
    }
    steps.extend([(JUMP_IF_EQUAL, u32::from(server.port())), (RETURN, u32::MAX)]);
    let last = steps.len();
    let step = |(at, (code, k)): (usize, (u16, u32))| {
        // Any other packet leads to the end.
        let otherwise = if code == JUMP_IF_EQUAL { (last - at - 1) as u8 } else { 0 };
        SockFilter::new(code, 0, otherwise, k)
    };
    let end = SockFilter::new(RETURN, 0, 0, 0);
    steps.into_iter().enumerate().map(step).chain([end]).collect()
}

#[cfg(test)]
mod tests {
    //! Proves: answers of one server to one client are reported with the interface that they come
    //! by, of both families, and no other packets are; a truncated one is no answer. How:
    //! connections on the loopback interface of a new namespace, if it may be made; bytes.

    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Attempt, Interfaces, Namespace, Outbound};

    fn await_one(answers: &Answers) -> Answer {
        let begin = Instant::now();
        loop {
            if let Some(answer) = answers.next().expect("it is open") {
                return answer;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "waited in vain");
            std::thread::yield_now();
        }
    }

    #[test]
    fn answers_are_told_with_their_interface() {
        let Ok(there) = Namespace::create() else {
            return eprintln!("not tested: no namespace can be made");
        };
        let told = || {
            let mut interfaces = Interfaces::here().expect("a socket");
            let lo = interfaces.index("lo").expect("a kernel").expect("each namespace has it");
            interfaces.set_up(lo).expect("root may");
            for host in ["127.0.0.1", "::1"] {
                let host: IpAddr = host.parse().expect("an address");
                let Ok(listener) = TcpListener::bind((host, 0)) else { continue };
                let server = listener.local_addr().expect("bound");
                let answers = Answers::of(server, host).expect("root may");
                let other =
                    TcpListener::bind((host, 0)).expect("a port").local_addr().expect("bound");
                // A refusal by another server is ignored.
                let begin = |to| Attempt::begin(Outbound::default(), to).expect("a socket");
                let _elsewhere = begin(other);
                let accepted = begin(server);
                let answer = await_one(&answers);
                let port = socket2::SockRef::from(&accepted)
                    .local_addr()
                    .expect("bound")
                    .as_socket()
                    .expect("IP");
                assert_eq!(answer, Answer { interface: lo, port: port.port(), is_refusal: false });
                drop(listener);
                let _refused = begin(server);
                let mut answer = await_one(&answers);
                // The rest of the first connection may be reset as well.
                while !answer.is_refusal || answer.port == port.port() {
                    answer = await_one(&answers);
                }
                assert_eq!(answer.interface, lo);
            }
        };
        there.enter(told).expect("it may be entered");
    }

    #[test]
    fn what_is_cut_is_none() {
        let mut packet =
            [&[0x45][..], &[0; 19], &[0, 80, 0x12, 0x34], &[0; 9], &[SYN | ACK]].concat();
        assert_eq!(read(&packet), Some((0x1234, false)));
        (0..packet.len()).for_each(|cut| assert_eq!(read(&packet[..cut]), None));
        packet[33] = ACK;
        assert_eq!(read(&packet), None);
        packet[33] = RST;
        assert_eq!(read(&packet), Some((0x1234, true)));
        let packet = [&[0x60][..], &[0; 39], &[0, 80, 0x12, 0x34], &[0; 9], &[RST | ACK]].concat();
        assert_eq!(read(&packet), Some((0x1234, true)));
    }
}
