//! Drops packets from addresses in the driver of a network card (XDP, `bpf/bans.bpf.c`), before the
//! kernel processes them in any way.
//!
//! Needs CAP_BPF and CAP_NET_ADMIN (or CAP_SYS_ADMIN) when it is opened, in the network namespace
//! of the interfaces; afterwards nothing. Only drivers that run such programs natively are
//! accepted: with the kernel's own way (generic XDP) each served packet would cost more. Bounds: as
//! many hosts, and as many networks, as [`Xdp::open`] is given.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray};
use aya::programs::links::FdLink;
use aya::programs::xdp::XdpLink;
use aya::programs::{ProgramError, Xdp as Program, XdpMode};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::time::{ClockId, clock_gettime};

use crate::error::{BpfError, io_error, map, of_io, of_map, of_object};

#[cfg(test)]
mod tests;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/bans.bpf.o");
const PROGRAM: &str = "drop_banned";

/// Addresses with a common prefix: the first of them, and the length of the prefix in bits (1 to
/// 32, or 1 to 128). Bits behind the prefix are 0.
pub type Network = (IpAddr, u8);

/// The ports to which packets are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ports<'a> {
    /// TCP to these.
    These(&'a [u16]),
    /// All of TCP.
    All,
}

/// Counts of dropped packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Packets.
    pub packets: u64,
    /// Their bytes, including the Ethernet header.
    pub bytes: u64,
}

/// Why packets are not dropped.
#[derive(Debug)]
pub enum XdpError {
    /// The interface does not exist.
    NoInterface(String),
    /// Another program is attached to the interface.
    Taken(String),
    /// The driver of the interface can't run programs, or not with the configured packet size.
    NotNative(String),
    /// The required capabilities are missing: CAP_BPF and CAP_NET_ADMIN.
    NotPermitted,
    /// Any other error of the kernel.
    Kernel(String),
}

impl fmt::Display for XdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            XdpError::NoInterface(name) => write!(f, "no interface {name}"),
            XdpError::Taken(name) => {
                write!(f, "{name} has an XDP program of another owner (`ip link show {name}`)")
            }
            XdpError::NotNative(name) => {
                write!(f, "the driver of {name} can't run XDP programs as it is set up")
            }
            XdpError::NotPermitted => write!(f, "weir has no CAP_BPF and CAP_NET_ADMIN"),
            XdpError::Kernel(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for XdpError {}

impl From<BpfError> for XdpError {
    fn from(error: BpfError) -> XdpError {
        match error {
            BpfError::NotPermitted => XdpError::NotPermitted,
            BpfError::Kernel(why) => XdpError::Kernel(why),
        }
    }
}

/// The maps of one family of addresses, with keys in network byte order.
struct Family<H: aya::Pod, A: aya::Pod> {
    hosts: HashMap<MapData, H, u64>,
    networks: LpmTrie<MapData, A, u64>,
}

/// An interface that has the program.
#[derive(Debug)]
struct Place {
    name: String,
    /// Its number: an interface that was created again under its name has another number.
    number: u32,
    link: FdLink,
}

/// See the module.
pub struct Xdp {
    v4: Family<[u8; 4], [u8; 4]>,
    v6: Family<[u8; 8], [u8; 16]>,
    dropped: PerCpuArray<MapData, [u64; 2]>,
    /// The program remains there while they are open.
    links: Vec<Place>,
    /// Runs the program.
    #[cfg(test)]
    object: Ebpf,
}

impl fmt::Debug for Xdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xdp").field("dropped", &self.dropped()).finish_non_exhaustive()
    }
}

impl Xdp {
    /// Attaches the program to these interfaces, for the given numbers of blocked hosts (IPv4
    /// addresses and /64 of IPv6) and of other networks. Networks in `allowed` are never dropped.
    /// It takes the places of a program `before`: no packet passes between the two, and no driver
    /// stops to make room.
    ///
    /// # Errors
    /// See [`XdpError`]. Then no interface has a program, neither this one nor the previous.
    pub fn open(
        interfaces: &[String],
        ports: Ports<'_>,
        allowed: &[Network],
        hosts_max: u32,
        before: Option<Xdp>,
    ) -> Result<Xdp, XdpError> {
        let numbers = numbers(interfaces)?;
        let allowed_max = u32::try_from(allowed.len()).unwrap_or(u32::MAX).max(1);
        let mut loader = EbpfLoader::new();
        // The programs need no kernel type information; the kernel may have none to offer.
        loader.btf(None);
        for name in ["hosts4", "hosts6", "networks4", "networks6"] {
            loader.map_max_entries(name, hosts_max.max(1));
        }
        loader.map_max_entries("allowed4", allowed_max).map_max_entries("allowed6", allowed_max);
        let mut object = loader.load(OBJECT).map_err(of_object)?;
        // Before any map is dropped: the program refers to maps by their descriptors.
        program(&mut object)?.load().map_err(|error| of_program(error, ""))?;
        look_at(&mut object, ports)?;
        let mut allow4: LpmTrie<_, [u8; 4], u8> = map(&mut object, "allowed4")?;
        let mut allow6: LpmTrie<_, [u8; 16], u8> = map(&mut object, "allowed6")?;
        for (address, bits) in allowed {
            match address {
                IpAddr::V4(it) => allow4.insert(&Key::new((*bits).into(), it.octets()), 1, 0),
                IpAddr::V6(it) => allow6.insert(&Key::new((*bits).into(), it.octets()), 1, 0),
            }
            .map_err(of_map)?;
        }
        let v4 =
            Family { hosts: map(&mut object, "hosts4")?, networks: map(&mut object, "networks4")? };
        let v6 =
            Family { hosts: map(&mut object, "hosts6")?, networks: map(&mut object, "networks6")? };
        let dropped = map(&mut object, "dropped")?;
        let links =
            attach(&mut object, &numbers, before.map(|before| before.links).unwrap_or_default())?;
        Ok(Xdp {
            v4,
            v6,
            dropped,
            links,
            #[cfg(test)]
            object,
        })
    }

    /// Blocks each of these for the given time; one that is blocked already gets the new time.
    /// Returns those for which no place was left, and why.
    ///
    /// An entry with an expired time keeps its place until it is [removed](Xdp::remove).
    pub fn add(&mut self, blocks: &[(Network, Duration)]) -> Vec<(Network, io::Error)> {
        let now_ns = now_ns();
        let until = |time: Duration| {
            now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        let add = |(network, time): &(Network, Duration)| {
            Some((*network, self.insert(*network, until(*time)).err()?))
        };
        blocks.iter().filter_map(add).map(failed).collect()
    }

    /// Unblocks these. Returns those that could not be removed: NotFound is one that was not there.
    pub fn remove(&mut self, blocks: &[Network]) -> Vec<(Network, io::Error)> {
        blocks
            .iter()
            .filter_map(|network| Some((*network, self.take(*network).err()?)))
            .map(failed)
            .collect()
    }

    /// Whether the interfaces are still those that it was attached to.
    pub fn is_in_place(&self) -> bool {
        let names: Vec<String> = self.links.iter().map(|place| place.name.clone()).collect();
        let are_same = |(place, (_, number)): (&Place, &(String, u32))| place.number == *number;
        numbers(&names).is_ok_and(|numbers| self.links.iter().zip(&numbers).all(are_same))
    }

    /// Counts of packets dropped since it was opened.
    ///
    /// # Errors
    /// The operating system's.
    pub fn dropped(&self) -> io::Result<Dropped> {
        let counts = self.dropped.get(&0, 0).map_err(io_error)?;
        let sum = |which: usize| counts.iter().map(|count| count[which]).sum();
        Ok(Dropped { packets: sum(0), bytes: sum(1) })
    }

    fn insert(&mut self, (address, bits): Network, until_ns: u64) -> Result<(), MapError> {
        match address {
            IpAddr::V4(it) if bits == 32 => self.v4.hosts.insert(it.octets(), until_ns, 0),
            IpAddr::V4(it) => {
                self.v4.networks.insert(&Key::new(bits.into(), it.octets()), until_ns, 0)
            }
            IpAddr::V6(it) if bits == 64 => self.v6.hosts.insert(first_half(it), until_ns, 0),
            IpAddr::V6(it) => {
                self.v6.networks.insert(&Key::new(bits.into(), it.octets()), until_ns, 0)
            }
        }
    }

    fn take(&mut self, (address, bits): Network) -> Result<(), MapError> {
        match address {
            IpAddr::V4(it) if bits == 32 => self.v4.hosts.remove(&it.octets()),
            IpAddr::V4(it) => self.v4.networks.remove(&Key::new(bits.into(), it.octets())),
            IpAddr::V6(it) if bits == 64 => self.v6.hosts.remove(&first_half(it)),
            IpAddr::V6(it) => self.v6.networks.remove(&Key::new(bits.into(), it.octets())),
        }
    }
}

/// The part of an address that belongs to one client.
fn first_half(address: std::net::Ipv6Addr) -> [u8; 8] {
    *address.octets().first_chunk().unwrap_or(&[0; 8])
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sets the bits of ports.
fn look_at(object: &mut Ebpf, ports: Ports<'_>) -> Result<(), XdpError> {
    let mut words = vec![0u64; 1 << 10];
    match ports {
        Ports::All => words.fill(u64::MAX),
        Ports::These(ports) => {
            ports.iter().for_each(|port| words[usize::from(port / 64)] |= 1 << (port % 64))
        }
    }
    let mut bits: Array<_, u64> = map(object, "ports")?;
    for (at, word) in (0u32..).zip(words).filter(|(_, word)| *word != 0) {
        bits.set(at, word, 0).map_err(of_map)?;
    }
    Ok(())
}

fn program(object: &mut Ebpf) -> Result<&mut Program, XdpError> {
    let missing = || XdpError::Kernel(format!("the object has no program {PROGRAM}"));
    object
        .program_mut(PROGRAM)
        .ok_or_else(missing)?
        .try_into()
        .map_err(|error| of_program(error, ""))
}

/// The numbers of interfaces. Nothing is changed before all are known, because a driver may stop
/// for a moment when it gets a program, or loses it.
fn numbers(interfaces: &[String]) -> Result<Vec<(String, u32)>, XdpError> {
    let kernel = |error: rustix::io::Errno| XdpError::Kernel(error.to_string());
    // On earlier kernels programs remain when the process dies.
    if KernelVersion::current().is_ok_and(|version| version < KernelVersion::new(5, 9, 0)) {
        return Err(XdpError::Kernel("it needs Linux 5.9 or later".to_owned()));
    }
    // Any socket will do (netdevice(7)).
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(kernel)?;
    let number = |name: &String| match name_to_index(&socket, name) {
        Ok(number) => Ok((name.clone(), number)),
        Err(rustix::io::Errno::NODEV) => Err(XdpError::NoInterface(name.clone())),
        Err(error) => Err(kernel(error)),
    };
    interfaces.iter().map(number).collect()
}

/// Attaches the program to the interfaces by links that end with their descriptors: those of the
/// program `before`, or new ones.
fn attach(
    object: &mut Ebpf,
    interfaces: &[(String, u32)],
    mut before: Vec<Place>,
) -> Result<Vec<Place>, XdpError> {
    let program = program(object)?;
    let mut links = Vec::new();
    for (name, number) in interfaces {
        let there = before.iter().position(|place| place.name == *name && place.number == *number);
        let there = there.and_then(|at| XdpLink::try_from(before.swap_remove(at).link).ok());
        let id = match there {
            Some(link) => program.attach_to_link(link),
            None => program.attach_to_if_index(*number, XdpMode::Driver),
        };
        let id = id.map_err(|error| of_program(error, name))?;
        let link = program.take_link(id).map_err(|error| of_program(error, name))?;
        let link = FdLink::try_from(link).map_err(|_| XdpError::NotNative(name.clone()))?;
        links.push(Place { name: name.clone(), number: *number, link });
    }
    Ok(links)
}

fn failed((network, error): (Network, MapError)) -> (Network, io::Error) {
    (network, io_error(error))
}

fn of_program(error: ProgramError, interface: &str) -> XdpError {
    let name = || interface.to_owned();
    match error {
        ProgramError::LoadError { io_error, .. } => of_io(&io_error).into(),
        ProgramError::SyscallError(error) if !interface.is_empty() => match error.io_error.kind() {
            io::ErrorKind::ResourceBusy | io::ErrorKind::AlreadyExists => XdpError::Taken(name()),
            io::ErrorKind::Unsupported => XdpError::NotNative(name()),
            _ => of_io(&error.io_error).into(),
        },
        error => XdpError::Kernel(error.to_string()),
    }
}
