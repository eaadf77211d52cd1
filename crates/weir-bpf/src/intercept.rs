//! Redirects TCP connections that this machine forwards into a network namespace with sockets that
//! end and continue them (`bpf/intercept.bpf.c` says which, and how). When this is dropped, or the
//! process ends in any way, everything is as before. First packets may be held there until their
//! server has answered ([`Hold`]).
//!
//! Needs CAP_BPF and CAP_NET_ADMIN (or CAP_SYS_ADMIN) when it is opened, in the namespace that the
//! connections belong to; afterwards nothing. Linux 6.6 (tcx).

use std::fmt;
use std::io;
use std::time::Duration;

use aya::maps::{Array, MapData, PerCpuArray};
use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};

use crate::error::{BpfError, kernel, map, of_map, of_object, of_program};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/intercept.bpf.o");

/// The program that takes new connections.
const TAKES: &str = "to_servers";
/// Connections that are remembered as taken: with more, senders on ended connections learn of the
/// end later.
const BEGUN_MAX: u32 = 1 << 16;

/// An interface with packets that are examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Bytes of its link header: 14 for Ethernet, or none.
    pub header_bytes: u32,
    /// The number of the interface inside that sends packets by it (macvlan), for
    /// [`Intercept::leave`]; None: it has none.
    pub beside: Option<u32>,
}

/// Where connections are redirected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inside<'a> {
    /// The number of the namespace as seen from this one (IFLA_LINK_NETNSID of the interface).
    pub namespace: u32,
    /// The interface here, one of a pair (veth(4)).
    pub name: &'a str,
    /// Its number.
    pub index: u32,
    /// The address of its peer.
    pub hardware: [u8; 6],
}

/// First packets of connections to the ports, from clients to servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Redirected inside.
    pub taken: u64,
    /// Left alone, because that was [requested](Intercept::pass_by), or no socket listens inside.
    pub passed_by: u64,
    /// Left alone, because they have options that a second connection could not keep: MD5 (RFC
    /// 2385), AO (RFC 5925), Multipath TCP (RFC 8684).
    pub with_options: u64,
    /// Left alone, because this machine has changed their addresses or ports (NAT).
    pub changed: u64,
    /// Left alone, because weir was not reported to be [running](Intercept::runs_for) in time.
    pub unserved: u64,
}

/// See the module.
pub struct Intercept {
    settings: Array<MapData, Settings>,
    alive: Array<MapData, u64>,
    counts: PerCpuArray<MapData, u64>,
    /// Detached before the others, even when the process is killed: the kernel closes descriptors
    /// then in the order of their numbers, the last first (`task_work_run`, kernel/task_work.c).
    /// Packets sent after that are received by this machine, which knows where they belong.
    leaves: Option<FdLink>,
    /// Kept open so that no descriptor below theirs becomes free, which `leaves` would get.
    _ports: Array<MapData, u64>,
    /// The programs remain attached while these are open.
    _links: Vec<FdLink>,
}

/// Where first packets are held, in the namespace that connections are redirected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding<'a> {
    /// The interface that leads out of it, an Ethernet that does not resolve addresses: its name
    /// and number.
    pub out: (&'a str, u32),
    /// The TUN device that first packets are read from, and to which they are written when held
    /// ones continue: its name and number.
    pub device: (&'a str, u32),
    /// The address of both ends of `out`.
    pub hardware: [u8; 6],
}

/// First packets are sent to a device, instead of a listener or in addition to it. When this is
/// dropped they are sent to the listener alone.
pub struct Hold {
    holding: Array<MapData, HoldingWords>,
    _links: Vec<FdLink>,
}

/// `struct holding` of the programs, in its order, and the word of it that says that first packets
/// go on at once.
type HoldingWords = [u32; 6];
const LET_THROUGH: usize = 2;

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").finish_non_exhaustive()
    }
}

impl Hold {
    /// Whether first packets are sent to the listener at once, and nowhere else.
    ///
    /// # Errors
    /// The operating system's.
    pub fn let_through(&mut self, on: bool) -> Result<(), BpfError> {
        let mut words = self.holding.get(&0, 0).map_err(of_map)?;
        words[LET_THROUGH] = on.into();
        self.holding.set(0, words, 0).map_err(of_map)
    }
}

/// The programs in the kernel, not attached yet.
pub struct Programs {
    object: Ebpf,
    holds: bool,
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs").field("holds", &self.holds).finish_non_exhaustive()
    }
}

impl Programs {
    /// Loads them into the kernel.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn load() -> Result<Programs, BpfError> {
        load().map(|object| Programs { object, holds: false })
    }

    /// Holds first packets from now on. For a thread in the namespace that they are redirected to.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn hold(&mut self, at: Holding<'_>) -> Result<Hold, BpfError> {
        // Held ones come last: written packets then find their program.
        let hold = self.read_first(at, false, &[("release", at.device.0), ("hold", at.out.0)])?;
        self.holds = true;
        Ok(hold)
    }

    /// From now on copies of first packets are sent to the device, which is not written to.
    /// Otherwise as [`Programs::hold`].
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn copy(&mut self, at: Holding<'_>) -> Result<Hold, BpfError> {
        self.read_first(at, true, &[("hold", at.out.0)])
    }

    fn read_first(
        &mut self,
        at: Holding<'_>,
        is_copied: bool,
        places: &[(&str, &str)],
    ) -> Result<Hold, BpfError> {
        let mut holding: Array<_, HoldingWords> = map(&mut self.object, "holding")?;
        let [hardware, rest] = words_of(at.hardware);
        holding
            .set(0, [at.device.1, at.out.1, 0, hardware, rest, is_copied.into()], 0)
            .map_err(of_map)?;
        let links = places
            .iter()
            .map(|(name, place)| attach(&mut self.object, name, place, TcAttachType::Ingress));
        let links = links.collect::<Result<_, _>>()?;
        Ok(Hold { holding, _links: links })
    }
}

/// An Ethernet address as words of a map.
fn words_of([a, b, c, d, e, f]: [u8; 6]) -> [u32; 2] {
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, 0, 0])]
}

/// `struct settings` of the program, in its order.
type Settings = [u32; 11];
/// The word of it that says that new connections are left alone.
const PASS_BY: usize = 6;

impl fmt::Debug for Intercept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intercept").field("taken", &self.taken()).finish_non_exhaustive()
    }
}

impl Intercept {
    /// Whether interception could begin, as far as that depends on the kernel. Nothing is changed.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn probe() -> Result<(), BpfError> {
        load().map(drop)
    }

    /// Whether another program takes new connections that leave by the interface of this name.
    /// False if the kernel or the process may not tell.
    pub fn is_at(server: &str) -> bool {
        let there = SchedClassifier::query_tcx(server, TcAttachType::Egress);
        there.is_ok_and(|(_, programs)| {
            programs.iter().any(|program| program.name_as_str() == Some(TAKES))
        })
    }

    /// Begins. `ports` are the ports that clients connect to.
    ///
    /// # Errors
    /// See [`BpfError`]. Then nothing is changed.
    pub fn open(
        programs: &mut Programs,
        client: &Side,
        server: &Side,
        inside: Inside<'_>,
        ports: &[u16],
    ) -> Result<Intercept, BpfError> {
        let Programs { object, holds } = programs;
        let mut words = vec![0u64; 1 << 10];
        ports.iter().for_each(|port| words[usize::from(port / 64)] |= 1 << (port % 64));
        let mut bits: Array<_, u64> = map(object, "ports")?;
        for (at, word) in (0u32..).zip(words).filter(|(_, word)| *word != 0) {
            bits.set(at, word, 0).map_err(of_map)?;
        }
        let [hardware, rest] = words_of(inside.hardware);
        let mut settings: Array<_, Settings> = map(object, "settings")?;
        let known = [
            inside.namespace,
            inside.index,
            client.index,
            server.index,
            client.header_bytes,
            server.header_bytes,
            0,
            hardware,
            rest,
            client.beside.unwrap_or(0),
            server.beside.unwrap_or(0),
        ];
        settings.set(0, known, 0).map_err(of_map)?;
        let (alive, counts) = (map(object, "alive")?, map(object, "counts")?);
        // New connections come last: they then find all the other programs in their places.
        let reported = holds.then_some(("to_clients", &*client.name, TcAttachType::Egress));
        let onward = client.beside.map(|_| ("onward", &*client.name, TcAttachType::Egress));
        let places = [
            ("from_inside", inside.name, TcAttachType::Ingress),
            ("from_outside", &*client.name, TcAttachType::Ingress),
            ("from_outside", &*server.name, TcAttachType::Ingress),
            (TAKES, &*server.name, TcAttachType::Egress),
        ];
        let places = reported.into_iter().chain(onward).chain(places);
        let links = places.map(|(name, interface, kind)| attach(object, name, interface, kind));
        let links = links.collect::<Result<_, _>>()?;
        Ok(Intercept { settings, alive, counts, leaves: None, _ports: bits, _links: links })
    }

    /// Whether [`Intercept::leave`] is safe on this kernel. `bpf_redirect_neigh` leaked the route
    /// of a packet that had one (CVE-2025-40183, <https://git.kernel.org/linus/23f3770e1a53>),
    /// until 6.6.113, 6.12.54, 6.17.4 and 6.18. Other versions count as not fixed.
    pub fn may_leave() -> bool {
        KernelVersion::current().is_ok_and(leaks_nothing)
    }

    /// Packets that are sent by the interface of this name inside are not received at its other
    /// end. They leave by the interfaces beside those of the sides, where they have one. For a
    /// thread in the namespace that connections are redirected to. The last step: its program has
    /// to be the first to be detached.
    ///
    /// # Errors
    /// See [`BpfError`]. Then nothing has changed.
    pub fn leave(&mut self, programs: &mut Programs, out: &str) -> Result<(), BpfError> {
        self.leaves = Some(attach(&mut programs.object, "leave", out, TcAttachType::Egress)?);
        Ok(())
    }

    /// Whether new connections are left alone.
    ///
    /// # Errors
    /// The operating system's.
    pub fn pass_by(&mut self, on: bool) -> Result<(), BpfError> {
        let mut known = self.settings.get(&0, 0).map_err(of_map)?;
        known[PASS_BY] = on.into();
        self.settings.set(0, known, 0).map_err(of_map)
    }

    /// From now on takes new connections for this time, and then leaves them alone until this is
    /// called again. So if anything keeps the process from running, even a signal that stops it, no
    /// connection is left without a process that accepts it. Before the first call they are left
    /// alone.
    ///
    /// # Errors
    /// The operating system's.
    pub fn runs_for(&mut self, time: Duration) -> Result<(), BpfError> {
        // The clock of `bpf_ktime_get_ns`.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32);
        let until = u64::try_from((now + time).as_nanos()).unwrap_or(u64::MAX);
        self.alive.set(0, until, 0).map_err(of_map)
    }

    /// Counts of the outcomes of first packets.
    ///
    /// # Errors
    /// The operating system's.
    pub fn taken(&self) -> io::Result<Taken> {
        let sum = |which: u32| {
            let counts = self.counts.get(&which, 0).map_err(io::Error::other)?;
            Ok::<u64, io::Error>(counts.iter().sum())
        };
        let [taken, passed_by, with_options, changed, unserved] =
            [sum(0)?, sum(1)?, sum(2)?, sum(3)?, sum(4)?];
        Ok(Taken { taken, passed_by, with_options, changed, unserved })
    }
}

fn leaks_nothing(version: KernelVersion) -> bool {
    let branches = [(6, 113), (12, 54), (17, 4)].map(|(branch, patch)| {
        let since = KernelVersion::new(6, branch, patch);
        (since..KernelVersion::new(6, branch + 1, 0)).contains(&version)
    });
    branches.contains(&true) || version >= KernelVersion::new(6, 18, 0)
}

/// Loads the programs into the kernel, attached nowhere yet.
fn load() -> Result<Ebpf, BpfError> {
    if KernelVersion::current().is_ok_and(|version| version < KernelVersion::new(6, 6, 0)) {
        return Err(kernel("it needs Linux 6.6 or later (tcx)"));
    }
    let mut loader = EbpfLoader::new();
    // The programs need no kernel type information; the kernel may have none to offer.
    loader.btf(None);
    loader.map_max_entries("begun", BEGUN_MAX);
    let mut object = loader.load(OBJECT).map_err(of_object)?;
    // Before any map is dropped: the programs refer to maps by their descriptors.
    for name in
        ["from_outside", TAKES, "from_inside", "to_clients", "onward", "leave", "hold", "release"]
    {
        program(&mut object, name)?.load().map_err(of_program)?;
    }
    Ok(object)
}

fn program<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, BpfError> {
    let missing = || kernel(&format!("the object has no program {name}"));
    object.program_mut(name).ok_or_else(missing)?.try_into().map_err(of_program)
}

/// Attaches a program to an interface, in front of those that are there, by a link that ends with
/// its descriptor.
fn attach(
    object: &mut Ebpf,
    name: &str,
    interface: &str,
    kind: TcAttachType,
) -> Result<FdLink, BpfError> {
    let program = program(object, name)?;
    let id =
        program.attach_with_options(interface, kind, TcAttachOptions::TcxOrder(LinkOrder::first()));
    let link = program.take_link(id.map_err(of_program)?).map_err(of_program)?;
    FdLink::try_from(link)
        .map_err(|_| kernel(&format!("{interface}: its link would outlive this process")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_way_is_for_kernels_that_leak_nothing() {
        let of = |(minor, patch)| leaks_nothing(KernelVersion::new(6, minor, patch));
        assert!([(6, 113), (6, 200), (12, 54), (17, 4), (18, 0), (19, 3)].into_iter().all(of));
        assert!(![(6, 112), (7, 200), (11, 0), (12, 53), (13, 99), (17, 3)].into_iter().any(of));
        assert!(leaks_nothing(KernelVersion::new(7, 0, 0)));
    }
}
