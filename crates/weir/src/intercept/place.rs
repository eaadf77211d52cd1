//! The place of an interception: a network namespace, joined to this one by a pair of interfaces,
//! which treats every packet that arrives as local.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::{Duration, Instant};

use weir_bpf::{BpfError, Holding, Inside, Intercept, Programs, Side};
use weir_io::{Interfaces, Link, Namespace, Tun};

use super::ahead::Device;
use super::beside::{self, Beside};
use super::keeper::Way;
use super::{Connect, Route};
use crate::failure::Failure;
use crate::log::Event;

/// The name of the pair's inner end.
const INSIDE: &str = "outside";
/// The name of the device that first packets come out of, and how many may wait there.
const HELD: &str = "held";
const HELD_PACKETS: u32 = 4096;
/// Both families.
const ALL: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
/// How long an interface may take until it carries packets, and how often to check that.
const RUNNING_PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);
/// Longest queue of an interface, in packets.
pub(super) const PACKETS: u32 = 1000;

/// A namespace that is ready. It exists as long as a thread is in it.
pub(super) struct Place {
    namespace: Namespace,
}

impl Place {
    /// Moves this thread into the namespace, with everything that it makes later.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn enter(&self) -> Result<(), Failure> {
        self.namespace.stay().map_err(|error| failed("cannot enter the namespace", &error))
    }
}

/// Returns the name of the pair's outer end, which no other process has.
fn outer() -> String {
    format!("weir{}", std::process::id())
}

/// Shows the commands that one would type for this.
pub(super) fn shown(route: &Route) -> String {
    let (Route { initcwnd: [to_clients, to_servers], .. }, outer) = (route, "weirPID");
    let window = |segments: &Option<u32>| {
        segments.map_or_else(String::new, |segments| format!(" initcwnd {segments}"))
    };
    let mut text = String::from(
        "# In a network namespace without a name, NS, which ends with weir; MTU is the smaller MTU \
            of both sides:\n",
    );
    let _ = writeln!(text, "# ip link add {outer} type veth peer name {INSIDE} netns NS");
    let limits = format!("mtu MTU txqueuelen {PACKETS} addrgenmode none");
    let _ = writeln!(text, "# ip link set {outer} {limits} up");
    text.push_str("# Where the kernel and the interface can do it:\n");
    text.push_str(&beside::shown(route, false));
    text.push_str("# In any case:\n");
    text.push_str("# ip -n NS link set lo up\n");
    let _ = writeln!(
        text,
        "# ip -n NS link set {INSIDE} address ADDRESS-OF-{outer} {limits} arp off up"
    );
    for family in ["-4", "-6"] {
        let _ = writeln!(text, "# ip -n NS {family} route add local default dev lo table 100");
        let _ = writeln!(text, "# ip -n NS {family} rule add iif {INSIDE} lookup 100");
        if to_clients.is_some() {
            let window = window(to_clients);
            let _ = writeln!(
                text,
                "# ip -n NS {family} route add default dev {INSIDE}{window} table 101"
            );
            let _ = writeln!(
                text,
                "# ip -n NS {family} rule add fwmark {} lookup 101",
                Interfaces::MARK
            );
        }
        let _ = writeln!(
            text,
            "# ip -n NS {family} route add default dev {INSIDE}{}",
            window(to_servers)
        );
    }
    let set =
        |(name, value): &(String, String)| format!("# ip netns exec NS {}\n", sysctl(name, value));
    text.extend(settings(&route.ports).iter().map(set));
    let holds = route.connect == Connect::First;
    if route.connect != Connect::Accept {
        let _ = writeln!(text, "# ip -n NS tuntap add {HELD} mode tun");
        text.push_str(&set(&of_held()));
        let _ = writeln!(
            text,
            "# ip -n NS link set {HELD} mtu MTU txqueuelen {HELD_PACKETS} addrgenmode none up"
        );
    }
    if holds {
        for family in ["-4", "-6"] {
            let _ = writeln!(text, "# ip -n NS {family} rule add iif {HELD} lookup 100");
        }
    }
    text.push_str(&shown_programs(route, outer));
    text.push_str("# There, with this configuration:\n");
    text
}

/// Shows the part that the kernel programs do.
fn shown_programs(route: &Route, outer: &str) -> String {
    let Route { client, server, connect, .. } = route;
    let mut text = String::from("# Kernel programs (tcx), whose links only weir holds:\n");
    let _ = writeln!(text, "#   {client}, in: packets of connections that weir has go to {INSIDE}");
    let _ =
        writeln!(text, "#   {server}, out: new connections that came by {client} go to {INSIDE}");
    let _ = writeln!(text, "#   {server}, in: packets of connections that weir has go to {INSIDE}");
    let _ = writeln!(
        text,
        "#   {outer}, in: packets of weir go to {server}, and those to clients to {client}"
    );
    let _ =
        writeln!(text, "#   NS {INSIDE}, out: they go to an interface beside those, if one exists");
    text.push_str(&beside::shown(route, true));
    match connect {
        Connect::Accept => {}
        Connect::Syn => {
            let line = "in: copies of new connections go to";
            let _ = writeln!(text, "#   NS {INSIDE}, {line} {HELD}, where weir begins to connect");
        }
        Connect::First => {
            let line = "in: new connections go to";
            let _ = writeln!(
                text,
                "#   NS {INSIDE}, {line} {HELD}, where weir holds them until their servers answer"
            );
            let _ =
                writeln!(text, "#   NS {HELD}, in: those go on to weir, and refusals to {INSIDE}");
            let _ =
                writeln!(text, "#   {client}, out: errors about what weir has sent go to {INSIDE}");
        }
    }
    text
}

/// Makes the namespace, and begins to lead connections there.
///
/// # Errors
/// The kernel's. Then nothing is left behind.
pub(super) fn open(route: &Route) -> Result<(Place, Way, Option<Device>), Failure> {
    let kernel = |what: &'static str| move |error: io::Error| failed(what, &error);
    let mut here = Interfaces::here().map_err(kernel("cannot list interfaces"))?;
    let [client, server] = [&route.client, &route.server].map(|name| side(&mut here, name));
    let (mut client, mut server) = (client?, server?);
    let namespace = Namespace::create().map_err(kernel("cannot create a namespace"))?;
    let outer = outer();
    here.make_pair(&outer, INSIDE, &namespace)
        .map_err(kernel("cannot create a pair of interfaces"))?;
    let index = here.index(&outer).map_err(kernel("the pair of interfaces"))?;
    let index =
        index.ok_or_else(|| failed("the pair of interfaces", &io::ErrorKind::NotFound.into()))?;
    // One of the families may be missing.
    let _ = here.keep_silent(index);
    let mtu = client.1.mtu.min(server.1.mtu);
    here.set_limits(index, mtu, PACKETS).map_err(kernel("the pair of interfaces"))?;
    here.set_up(index).map_err(kernel("the pair of interfaces"))?;
    let missing =
        || failed("the pair of interfaces has no address", &io::ErrorKind::NotFound.into());
    let hardware =
        here.link(index).map_err(kernel("the pair of interfaces"))?.hardware.ok_or_else(missing)?;
    let furnish = || furnish(mtu, route, hardware);
    namespace
        .enter(furnish)
        .and_then(|done| done)
        .map_err(kernel("cannot set up the namespace"))?;
    let mut programs = Programs::load().map_err(|error| refused(&error))?;
    let is_copied = route.connect == Connect::Syn;
    let device = (route.connect != Connect::Accept)
        .then(|| namespace.enter(|| read_first(&mut programs, mtu, hardware, is_copied)))
        .transpose()
        .map_err(kernel("cannot enter the namespace"))?
        .transpose()?;
    let outside = running(&mut here, index).map_err(kernel("the pair of interfaces"))?;
    let number = outside
        .namespace
        .ok_or_else(|| failed("the namespace has no number", &io::ErrorKind::NotFound.into()))?;
    let inside = Inside { namespace: number, name: &outer, index, hardware };
    let beside = Beside::make(&mut here, [&mut client, &mut server], &namespace, mtu);
    let mut intercept = Intercept::open(&mut programs, &client.0, &server.0, inside, &route.ports)
        .map_err(|error| refused(&error))?;
    if beside.is_any() {
        let leave = || intercept.leave(&mut programs, INSIDE);
        if let Err(why) = namespace.enter(leave).map_err(kernel("cannot enter the namespace"))? {
            let sentence = format_args!(
                "packets that weir sends pass through the stack twice before they leave: {why}"
            );
            Event::InterceptFallback.says(sentence).log();
        }
    }
    let ports: Vec<String> = route.ports.iter().map(u16::to_string).collect();
    let plural = if ports.len() == 1 { "port" } else { "ports" };
    let (ports, from, to) = (ports.join(", "), &route.client, &route.server);
    let sentence = format_args!(
        "new TCP connections from {from} to {to}, {plural} {ports}; without weir they are \
            forwarded as usual"
    );
    Event::Intercepting.says(sentence).log();
    Ok((Place { namespace }, Way { intercept, interfaces: here, index, beside }, device))
}

/// Explains why the kernel rejects the programs.
fn refused(error: &BpfError) -> Failure {
    let text = format!("weir: cannot redirect connections to weir: {error}\n");
    match error {
        BpfError::NotPermitted => Failure::Privilege(text),
        BpfError::Kernel(_) => Failure::Running(text),
    }
}

/// Has first packets, or copies of them, come out of a device, in the namespace of this thread.
fn read_first(
    programs: &mut Programs,
    mtu: u32,
    hardware: [u8; 6],
    is_copied: bool,
) -> Result<Device, Failure> {
    let kernel = |error: io::Error| failed("no device to read first packets", &error);
    let missing = || kernel(io::ErrorKind::NotFound.into());
    let tun = Tun::create(HELD).map_err(kernel)?;
    let mut interfaces = Interfaces::here().map_err(kernel)?;
    let index =
        |interfaces: &Interfaces, name| interfaces.index(name).map_err(kernel)?.ok_or_else(missing);
    let (device, out) = (index(&interfaces, HELD)?, index(&interfaces, INSIDE)?);
    // One of the families may be missing.
    let _ = interfaces.keep_silent(device);
    interfaces.set_limits(device, mtu, HELD_PACKETS).map_err(kernel)?;
    set(&of_held()).map_err(kernel)?;
    interfaces.set_up(device).map_err(kernel)?;
    let at = Holding { out: (INSIDE, out), device: (HELD, device), hardware };
    if is_copied {
        let hold = programs.copy(at).map_err(|error| refused(&error))?;
        return Ok(Device { tun, hold });
    }
    for family in ALL {
        match interfaces.lead_in_also(HELD, family) {
            Err(error) if family.is_ipv4() => return Err(kernel(error)),
            // A kernel without IPv6 has nothing to lead.
            _ => {}
        }
    }
    let hold = programs.hold(at).map_err(|error| refused(&error))?;
    Ok(Device { tun, hold })
}

/// Waits until an interface carries packets: earlier ones would be lost.
fn running(here: &mut Interfaces, index: u32) -> io::Result<Link> {
    let end = Instant::now() + RUNNING_PATIENCE;
    loop {
        let link = here.link(index)?;
        if link.is_running {
            return Ok(link);
        }
        if Instant::now() > end {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(LOOK);
    }
}

fn side(here: &mut Interfaces, name: &str) -> Result<(Side, Link), Failure> {
    let missing = || failed(name, &io::ErrorKind::NotFound.into());
    let index = here.index(name).map_err(|error| failed(name, &error))?.ok_or_else(missing)?;
    let link = here.link(index).map_err(|error| failed(name, &error))?;
    let header_bytes = if link.is_ethernet() { 14 } else { 0 };
    Ok((Side { name: name.to_owned(), index, header_bytes, beside: None }, link))
}

/// Sets up the namespace, from inside. Both ends of the pair have the same hardware address, so
/// every packet is for its receiver, even on a machine whose programs have just been removed. So
/// the last resets arrive.
fn furnish(mtu: u32, route: &Route, hardware: [u8; 6]) -> io::Result<()> {
    let mut interfaces = Interfaces::here()?;
    let index = |interfaces: &Interfaces, name| {
        interfaces.index(name)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    };
    let lo: io::Result<u32> = index(&interfaces, "lo");
    let (lo, inside): (u32, u32) = (lo?, index(&interfaces, INSIDE)?);
    interfaces.set_up(lo)?;
    let _ = interfaces.keep_silent(inside);
    interfaces.set_hardware(inside, hardware)?;
    interfaces.set_limits(inside, mtu, PACKETS)?;
    for family in ALL {
        match interfaces.lead_in(inside, INSIDE, lo, family, route.initcwnd) {
            Err(error) if family.is_ipv4() => return Err(error),
            // A kernel without IPv6 has nothing to lead.
            _ => {}
        }
    }
    settings(&route.ports).iter().try_for_each(set)
}

/// Returns the settings inside, by names below `/proc/sys`.
fn settings(ports: &[u16]) -> Vec<(String, String)> {
    let reserved: Vec<String> = ports.iter().map(u16::to_string).collect();
    let of_inside = format!("net/ipv4/conf/{INSIDE}/rp_filter");
    let all = [
        ("net/ipv4/conf/all/rp_filter", "0"),
        (&of_inside, "0"),
        ("net/ipv4/ip_local_port_range", "1024 65535"),
        // No other program is in this namespace, so ports below 1024 need no right.
        ("net/ipv4/ip_unprivileged_port_start", "0"),
        // A connection from one of the ports would look like an intercepted one.
        ("net/ipv4/ip_local_reserved_ports", &reserved.join(",")),
        ("net/ipv4/tcp_max_syn_backlog", "65535"),
        // With a SYN cookie the kernel has no socket by which to identify the packets.
        ("net/ipv4/tcp_syncookies", "0"),
        ("net/ipv4/tcp_slow_start_after_idle", "0"),
        ("net/core/somaxconn", "65535"),
    ];
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Returns the setting of the device that first packets come out of.
fn of_held() -> (String, String) {
    (format!("net/ipv4/conf/{HELD}/rp_filter"), "0".to_owned())
}

fn set((name, value): &(String, String)) -> io::Result<()> {
    fs::write(format!("/proc/sys/{name}"), value)
        .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
}

/// Returns the same as a command.
fn sysctl(name: &str, value: &str) -> String {
    let quote = if value.contains(' ') { "'" } else { "" };
    format!("sysctl -w {quote}{}={value}{quote}", name.replace('/', "."))
}

pub(super) fn failed(what: &str, error: &io::Error) -> Failure {
    let text = format!("weir: {what}: {error}\n");
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::Privilege(text),
        _ => Failure::Running(text),
    }
}
