//! Interfaces of a network namespace: finding them by name, setting them up, their addresses and
//! routes, the packets that they dropped. rtnetlink(7). Called by the laboratory; calls that change
//! something need CAP_NET_ADMIN in the namespace.
//!
//! The socket belongs to the namespace of the thread that made it, even when other threads use it
//! later. Bound: a call waits for the kernel at most [`ANSWER_US`].

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netdevice::{index_to_name, name_to_index};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
    sockopt,
};

use crate::Namespace;
use crate::netlink::{ACKNOWLEDGE, ALL, Answer, Attributes, CREATE, EXCLUSIVE, answers, find, put};

/// How long the kernel may take for an answer.
const ANSWER_US: u64 = 2_000_000;
/// More than the kernel says about one interface.
const ANSWER_BYTES: usize = 64 * 1024;

/// `RTM_NEWLINK`, `RTM_DELLINK`, `RTM_GETLINK`, `RTM_NEWADDR`, `RTM_NEWROUTE`, `RTM_NEWRULE`.
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const NEW_RULE: u16 = 32;
/// `struct ifinfomsg`.
const LINK_HEADER_BYTES: usize = 16;
/// `IFF_UP`.
const UP: u32 = 1;
/// `IFF_RUNNING`.
const RUNNING: u32 = 0x40;
/// `IFF_NOARP`: no link addresses are resolved behind it.
const NO_ARP: u32 = 0x80;
/// Tables of routes that have no name in the kernel: for incoming packets, and for marked ones.
const TABLE: u8 = 100;
const MARKED_TABLE: u8 = 101;
/// `RT_TABLE_MAIN`.
const MAIN_TABLE: u8 = 254;
/// Packets with this mark use [`MARKED_TABLE`].
const MARK: u32 = 1;
/// `IFA_F_NODAD`: it may be used at once.
const NO_DUPLICATE_DETECTION: u8 = 2;

/// The facts about an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Its type (`ARPHRD_ETHER` and others, linux/if_arp.h).
    pub kind: u16,
    /// It was set up.
    pub is_up: bool,
    /// And carries packets (`IFF_RUNNING`), which the kernel notices up to a second later.
    pub is_running: bool,
    /// The longest packet that it takes, bytes.
    pub mtu: u32,
    /// Its address, where that is an Ethernet address.
    pub hardware: Option<[u8; 6]>,
    /// The namespace of its peer, by its number in the present one; None: it is the present one, or
    /// it has no peer.
    pub namespace: Option<u32>,
    /// Its kind for the kernel.
    pub layer: Layer,
}

/// The kind of an interface for the kernel (`IFLA_INFO_KIND`), as far as that matters for others on
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// A macvlan or macvtap: another one on it is made beside it, on the interface below.
    Macvlan,
    /// A bridge, which receives all passing packets once another machine has an address on it.
    Bridge,
    /// Something else.
    Other,
}

impl Link {
    /// Whether its packets begin with an Ethernet header.
    pub fn is_ethernet(&self) -> bool {
        self.kind == libc::ARPHRD_ETHER
    }
}

fn layer(attributes: &[u8]) -> Layer {
    // IFLA_LINKINFO, IFLA_INFO_KIND.
    match find(attributes, 18).and_then(|info| find(info, 1)) {
        Some(kind) if kind.starts_with(b"macv") => Layer::Macvlan,
        Some(kind) if kind.starts_with(b"bridge") => Layer::Bridge,
        _ => Layer::Other,
    }
}

/// The interfaces of one namespace.
#[derive(Debug)]
pub struct Interfaces {
    socket: OwnedFd,
    /// The number of the next message.
    number: u32,
    /// Buffer for answers.
    buffer: Vec<u8>,
}

impl Interfaces {
    /// The mark by which [`Interfaces::lead_in`] distinguishes sockets.
    pub const MARK: u32 = MARK;

    /// The interfaces of the namespace that this thread is in.
    ///
    /// # Errors
    /// The operating system's.
    pub fn here() -> io::Result<Interfaces> {
        // No protocol is NETLINK_ROUTE, which has the number 0.
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(
            &socket,
            sockopt::Timeout::Recv,
            Some(Duration::from_micros(ANSWER_US)),
        )?;
        Ok(Interfaces { socket, number: 1, buffer: vec![0; ANSWER_BYTES] })
    }

    /// The index of the interface with this name, if it exists.
    ///
    /// # Errors
    /// The operating system's.
    pub fn index(&self, name: &str) -> io::Result<Option<u32>> {
        match name_to_index(&self.socket, name) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::NODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The name of the interface with this index, if it exists.
    ///
    /// # Errors
    /// The operating system's.
    pub fn name(&self, index: u32) -> io::Result<Option<String>> {
        match index_to_name(&self.socket, index) {
            Ok(name) => Ok(Some(name)),
            Err(Errno::NODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the longest packet that an interface takes, bytes, and how many may wait to be sent by
    /// it.
    ///
    /// # Errors
    /// EINVAL: it does not support this length.
    pub fn set_limits(&mut self, index: u32, mtu: u32, packets: u32) -> io::Result<()> {
        self.change(NEW_LINK, 0, &link_header(index, 0), |message| {
            // IFLA_MTU, IFLA_TXQLEN.
            message.bytes(4, &mtu.to_ne_bytes());
            message.bytes(13, &packets.to_ne_bytes());
        })
    }

    /// Gives an interface no IPv6 link-local address, so that it sends nothing unasked before a
    /// router announces itself there.
    ///
    /// # Errors
    /// EAFNOSUPPORT and others without IPv6.
    pub fn keep_silent(&mut self, index: u32) -> io::Result<()> {
        // IFLA_AF_SPEC, AF_INET6, IFLA_INET6_ADDR_GEN_MODE: none.
        self.change(NEW_LINK, 0, &link_header(index, 0), |message| {
            message.nest(26, |of| of.nest(u16::from(INET6), |six| six.bytes(8, &[1])));
        })
    }

    /// Gives an interface this Ethernet address.
    ///
    /// # Errors
    /// EBUSY: it is up, and can't change it then.
    pub fn set_hardware(&mut self, index: u32, hardware: [u8; 6]) -> io::Result<()> {
        // IFLA_ADDRESS.
        self.change(NEW_LINK, 0, &link_header(index, 0), |message| message.bytes(1, &hardware))
    }

    /// Removes an interface, with its peer if it has one.
    ///
    /// # Errors
    /// ENODEV: it is not there.
    pub fn remove(&mut self, index: u32) -> io::Result<()> {
        self.change(DELETE_LINK, 0, &link_header(index, 0), |_| {})
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// The operating system's.
    pub fn set_up(&mut self, index: u32) -> io::Result<()> {
        self.change(NEW_LINK, 0, &link_header(index, UP), |_| {})
    }

    /// Makes a pair of interfaces (veth(4)): `name` here, and `peer` in the other namespace. Both
    /// disappear with either namespace.
    ///
    /// # Errors
    /// EEXIST: one of the names is taken; EOPNOTSUPP: the kernel has no such interfaces.
    pub fn make_pair(&mut self, name: &str, peer: &str, there: &Namespace) -> io::Result<()> {
        self.change(NEW_LINK, CREATE | EXCLUSIVE, &[0; LINK_HEADER_BYTES], |message| {
            // IFLA_IFNAME; IFLA_LINKINFO with IFLA_INFO_KIND and IFLA_INFO_DATA; VETH_INFO_PEER,
            // IFLA_NET_NS_FD.
            message.text(3, name);
            message.nest(18, |info| {
                info.text(1, "veth");
                info.nest(2, |data| {
                    data.message(1, &[0; LINK_HEADER_BYTES], |of| {
                        of.text(3, peer);
                        of.bytes(28, &there.as_fd().as_raw_fd().to_ne_bytes());
                    });
                });
            });
        })
    }

    /// Makes an interface in the other namespace with packets that leave by one of this namespace
    /// (macvlan, ip-link(8)), unchanged. Packets that arrive on the lower interface reach it only
    /// if they have its address. It disappears with either.
    ///
    /// # Errors
    /// EBUSY, EINVAL: the packets that arrive on that interface belong to another user, such as a
    /// bridge, or it is no Ethernet; EOPNOTSUPP: the kernel has no such interfaces.
    pub fn make_macvlan(&mut self, name: &str, lower: u32, there: &Namespace) -> io::Result<()> {
        self.change(NEW_LINK, CREATE | EXCLUSIVE, &[0; LINK_HEADER_BYTES], |message| {
            // IFLA_IFNAME, IFLA_LINK, IFLA_NET_NS_FD.
            message.text(3, name);
            message.bytes(5, &lower.to_ne_bytes());
            message.bytes(28, &there.as_fd().as_raw_fd().to_ne_bytes());
            // IFLA_BROADCAST: it gets no copies of broadcasts.
            message.bytes(2, &[0; 6]);
            // IFLA_LINKINFO with IFLA_INFO_KIND and IFLA_INFO_DATA; IFLA_MACVLAN_MODE: private.
            message.nest(18, |info| {
                info.text(1, "macvlan");
                info.nest(2, |data| data.bytes(1, &1u32.to_ne_bytes()));
            });
        })
    }

    /// Sets an interface up that neither asks for link addresses nor answers such requests
    /// (`IFF_NOARP`).
    ///
    /// # Errors
    /// The operating system's.
    pub fn set_up_unasked(&mut self, index: u32) -> io::Result<()> {
        self.change(NEW_LINK, 0, &link_header(index, UP | NO_ARP), |_| {})
    }

    /// The facts about an interface.
    ///
    /// # Errors
    /// ENODEV: it is not there.
    pub fn link(&mut self, index: u32) -> io::Result<Link> {
        let told = self.ask(
            GET_LINK,
            0,
            &link_header(index, 0),
            |_| {},
            |told| {
                // `ifi_type` and `ifi_flags`; IFLA_MTU, IFLA_ADDRESS, IFLA_LINK_NETNSID.
                let attributes = told.get(LINK_HEADER_BYTES..)?;
                let number =
                    |kind| find(attributes, kind)?.first_chunk().copied().map(u32::from_ne_bytes);
                let flags = u32::from_ne_bytes(*told.get(8..)?.first_chunk()?);
                Some(Link {
                    kind: u16::from_ne_bytes(*told.get(2..)?.first_chunk()?),
                    is_up: flags & UP != 0,
                    is_running: flags & RUNNING != 0,
                    mtu: number(4)?,
                    hardware: find(attributes, 1).and_then(|address| address.try_into().ok()),
                    namespace: number(37),
                    layer: layer(attributes),
                })
            },
        )?;
        told.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Treats every packet that arrives on an interface as local to this namespace, whatever its
    /// destination, and sends all packets without another route by it, without resolving link
    /// addresses. `loopback` is the index of the loopback interface. The numbers are the initial
    /// windows of connections, in segments: the first for sockets with the mark
    /// [`Interfaces::MARK`] (None: as the others), the second for all others (None: the kernel's
    /// default).
    ///
    /// # Errors
    /// The operating system's; EAFNOSUPPORT without IPv6 if `of` is an IPv6 address.
    pub fn lead_in(
        &mut self,
        index: u32,
        name: &str,
        loopback: u32,
        of: IpAddr,
        [marked, others]: [Option<u32>; 2],
    ) -> io::Result<()> {
        self.set_up_unasked(index)?;
        // RT_TABLE, RTPROT_STATIC, RT_SCOPE_HOST, RTN_LOCAL; RTA_OIF.
        let local = [family(of), 0, 0, 0, TABLE, 4, 254, 2, 0, 0, 0, 0];
        self.change(NEW_ROUTE, CREATE | EXCLUSIVE, &local, |message| {
            message.bytes(4, &loopback.to_ne_bytes())
        })?;
        self.lead_in_also(name, of)?;
        if marked.is_some() {
            self.default_route(index, of, MARKED_TABLE, marked)?;
            // FRA_FWMARK, FRA_PRIORITY.
            let rule = [family(of), 0, 0, 0, MARKED_TABLE, 0, 0, 1, 0, 0, 0, 0];
            self.change(NEW_RULE, CREATE | EXCLUSIVE, &rule, |message| {
                message.bytes(10, &MARK.to_ne_bytes());
                message.bytes(6, &101u32.to_ne_bytes());
            })?;
        }
        self.default_route(index, of, MAIN_TABLE, others)
    }

    /// Treats packets that arrive on another interface as local to this namespace as well, once
    /// [`Interfaces::lead_in`] was done for this family.
    ///
    /// # Errors
    /// As there.
    pub fn lead_in_also(&mut self, name: &str, of: IpAddr) -> io::Result<()> {
        // FR_ACT_TO_TBL; FRA_IIFNAME, FRA_PRIORITY.
        let rule = [family(of), 0, 0, 0, TABLE, 0, 0, 1, 0, 0, 0, 0];
        self.change(NEW_RULE, CREATE | EXCLUSIVE, &rule, |message| {
            message.text(3, name);
            message.bytes(6, &100u32.to_ne_bytes());
        })
    }

    /// Gives an interface an address in a network with a prefix of `prefix` bits.
    ///
    /// # Errors
    /// EEXIST: it has it; EACCES without IPv6.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let flags = if address.is_ipv6() { NO_DUPLICATE_DETECTION } else { 0 };
        let mut header = vec![family(address), prefix, flags, 0];
        header.extend_from_slice(&index.to_ne_bytes());
        self.change(NEW_ADDRESS, CREATE | EXCLUSIVE, &header, |message| {
            // IFA_LOCAL and IFA_ADDRESS.
            message.bytes(2, &octets(address));
            message.bytes(1, &octets(address));
        })
    }

    /// Puts all addresses of the family of `of` that have no other route behind an interface.
    ///
    /// # Errors
    /// EEXIST: such a route exists.
    pub fn add_default_route(&mut self, index: u32, of: IpAddr) -> io::Result<()> {
        self.default_route(index, of, MAIN_TABLE, None)
    }

    fn default_route(
        &mut self,
        index: u32,
        of: IpAddr,
        table: u8,
        initcwnd: Option<u32>,
    ) -> io::Result<()> {
        // RTPROT_STATIC, RT_SCOPE_LINK, RTN_UNICAST.
        let header = [family(of), 0, 0, 0, table, 4, 253, 1, 0, 0, 0, 0];
        self.change(NEW_ROUTE, CREATE | EXCLUSIVE, &header, |message| {
            message.bytes(4, &index.to_ne_bytes());
            if let Some(segments) = initcwnd {
                // RTA_METRICS, RTAX_INITCWND.
                message.nest(8, |metrics| metrics.bytes(11, &segments.to_ne_bytes()));
            }
        })
    }

    /// Counts packets that an interface should have sent but has dropped.
    ///
    /// # Errors
    /// ENODEV: it is not there.
    pub fn dropped(&mut self, index: u32) -> io::Result<u64> {
        let told = self.ask(
            GET_LINK,
            0,
            &link_header(index, 0),
            |_| {},
            |told| {
                // The eighth number of IFLA_STATS64.
                let counts = find(told.get(LINK_HEADER_BYTES..)?, 23)?;
                counts.get(7 * 8..)?.first_chunk().copied().map(u64::from_ne_bytes)
            },
        )?;
        told.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn change(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        write: impl FnOnce(&mut Attributes<'_>),
    ) -> io::Result<()> {
        self.ask(kind, flags | ACKNOWLEDGE, header, write, |_| None::<()>).map(drop)
    }

    /// Sends a message and waits for the result: the value that `take` finds in the answer, if the
    /// message is a query.
    pub(crate) fn ask<T>(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        write: impl FnOnce(&mut Attributes<'_>),
        take: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        self.answer(kind, flags, header, write, take)?.map_err(io::Error::from_raw_os_error)
    }

    /// The same, with the kernel's error answer returned separately: other errors are those of the
    /// socket, such as a message that SELinux forbids to send.
    pub(crate) fn answer<T>(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        write: impl FnOnce(&mut Attributes<'_>),
        take: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Result<Option<T>, i32>> {
        let number = self.send(kind, flags, header, write)?;
        loop {
            let read = self.receive()?;
            // Late answers to an earlier call have another number.
            let answer = answers(&self.buffer[..read]).find(|(of, _)| *of == number);
            match answer {
                Some((_, Answer::Done(0))) => return Ok(Ok(None)),
                Some((_, Answer::Done(code))) => return Ok(Err(-code)),
                Some((_, Answer::Told(told))) => return Ok(Ok(take(told))),
                None => {}
            }
        }
    }

    /// Passes all entries of a kind to `each`.
    pub(crate) fn tell_all(
        &mut self,
        kind: u16,
        header: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let number = self.send(kind, ALL, header, |_| {})?;
        loop {
            let read = self.receive()?;
            for (_, answer) in answers(&self.buffer[..read]).filter(|(of, _)| *of == number) {
                match answer {
                    Answer::Done(0) => return Ok(()),
                    Answer::Done(code) => return Err(io::Error::from_raw_os_error(-code)),
                    Answer::Told(told) if told.len() >= header.len() => each(told),
                    Answer::Told(_) => {}
                }
            }
        }
    }

    /// Sends a message; returns its number.
    fn send(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        write: impl FnOnce(&mut Attributes<'_>),
    ) -> io::Result<u32> {
        let number = self.number;
        self.number = number.wrapping_add(1);
        let mut message = Vec::new();
        put(&mut message, kind, flags, number, header, write);
        sendto(&self.socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(number)
    }

    /// Reads the kernel's next datagram; returns its length, bytes.
    fn receive(&mut self) -> io::Result<usize> {
        loop {
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((read, _)) => return Ok(read),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Its socket.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.socket
    }
}

const INET: u8 = 2;
const INET6: u8 = 10;

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { INET } else { INET6 }
}

/// The bytes of an address, in network byte order.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// `struct ifinfomsg` of an interface, which sets these flags.
fn link_header(index: u32, flags: u32) -> [u8; LINK_HEADER_BYTES] {
    let mut header = [0; LINK_HEADER_BYTES];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    //! Proves: a TUN device in a new namespace is found by its name, gets addresses and routes, is
    //! invisible outside, carries a packet, and disappears with its descriptor; names that are
    //! taken or wrong are rejected. How: on the machine that runs it, if it may make namespaces.

    use std::net::UdpSocket;

    use super::*;
    use crate::{Namespace, Tun};

    #[test]
    fn what_cannot_be_asked_has_no_answer() {
        // A socket that can't send there returns EINVAL, the same error as the kernel's answer for
        // a route that leads nowhere.
        let (socket, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let mut interfaces =
            Interfaces { socket: socket.into(), number: 1, buffer: vec![0; ANSWER_BYTES] };
        let told = interfaces.is_local("192.0.2.1".parse().unwrap());
        assert_eq!(told.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn a_device_is_made_and_goes() {
        let Ok(there) = Namespace::create() else {
            return eprintln!("not tested: no namespace can be made");
        };
        if Tun::probe().is_err() {
            return eprintln!("not tested: there are no TUN devices");
        }
        assert!(!there.is(&Namespace::current().unwrap()).unwrap());
        let (name, own, other) = ("weir-unit", "198.18.9.1", "198.18.9.2");
        there
            .enter(|| {
                assert!(there.is(&Namespace::current().unwrap()).unwrap());
                let tun = Tun::create(name).unwrap();
                assert_eq!(Tun::create(name).unwrap_err().raw_os_error(), Some(libc::EBUSY));
                for wrong in ["", "a/b", "%d", "sixteen-letters-"] {
                    let kind = Tun::create(wrong).unwrap_err().kind();
                    assert_eq!(kind, io::ErrorKind::InvalidInput, "{wrong}");
                }
                let mut interfaces = Interfaces::here().unwrap();
                let index = interfaces.index(name).unwrap().unwrap();
                let _ = interfaces.keep_silent(index);
                interfaces.set_limits(index, 1400, 1000).unwrap();
                assert!(interfaces.set_limits(index, 70_000, 1000).is_err());
                let address: IpAddr = own.parse().unwrap();
                interfaces.add_address(index, address, 30).unwrap();
                let twice = interfaces.add_address(index, address, 30).unwrap_err();
                assert_eq!(twice.kind(), io::ErrorKind::AlreadyExists);
                interfaces.set_up(index).unwrap();
                interfaces.add_default_route(index, address).unwrap();
                assert_eq!(interfaces.dropped(index).unwrap(), 0);
                let mut packet = [0; 1500];
                assert_eq!(
                    tun.read(&mut packet).unwrap(),
                    None,
                    "it sends nothing of its own accord"
                );
                let socket = UdpSocket::bind((own, 0)).unwrap();
                socket.send_to(b"hello", (other, 9)).unwrap();
                let bytes = tun.read(&mut packet).unwrap().unwrap();
                assert!(
                    packet[..bytes].ends_with(b"hello") && bytes == 20 + 8 + 5,
                    "{:?}",
                    &packet[..bytes]
                );
                // Back again, with source and destination exchanged, which changes no checksum.
                let ports = socket.local_addr().unwrap().port().to_be_bytes();
                packet[12..20].rotate_left(4);
                packet[20..24].copy_from_slice(&[0, 9, ports[0], ports[1]]);
                socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                tun.write(&packet[..bytes]).unwrap();
                let mut told = [0; 16];
                assert_eq!(
                    socket.recv_from(&mut told).unwrap(),
                    (5, (other.parse::<IpAddr>().unwrap(), 9).into())
                );
                drop(tun);
                assert_eq!(interfaces.index(name).unwrap(), None);
                assert_eq!(
                    interfaces.dropped(index).unwrap_err().raw_os_error(),
                    Some(libc::ENODEV)
                );
            })
            .unwrap();
        assert_eq!(Interfaces::here().unwrap().index(name).unwrap(), None);
    }

    #[test]
    fn what_is_no_namespace_is_refused() {
        for path in ["/proc/self/ns/uts", "/dev/null", "/nowhere"] {
            assert!(Namespace::open(std::path::Path::new(path)).is_err(), "{path}");
        }
    }
}
