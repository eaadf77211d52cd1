//! Checks before any load is sent: descriptors, ports and incompatible settings. Called once, by
//! the verb.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::{Behaviour, Plan, Sources};

/// Descriptors that a process needs besides its connections: standard streams, rings, files.
const DESCRIPTORS_OTHER: u64 = 64;
/// Most processes of a run.
const PROCESSES_MAX: u64 = 64;
/// Ports of a local address where the range can't be read.
const PORTS: u64 = 28_232;

/// Says what would make the run fail or mislead, with the remedy. `descriptors` is how many the
/// process may have.
///
/// # Errors
/// One line.
pub fn check(plan: &Plan, descriptors: u64) -> Result<(), String> {
    if plan.duration_us.is_none() && plan.requests.is_none() {
        return Err("neither a duration nor a number of requests".to_owned());
    }
    if plan.duration_us.is_none()
        && let Some(class) = plan.classes.iter().find(|class| !class.answers())
    {
        return Err(format!(
            "class `{}` waits for no responses, so the run needs a duration (-d)",
            class.name
        ));
    }
    let mut names: Vec<&str> = plan.classes.iter().map(|class| class.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two classes are called `{}`", pair[0]));
    }
    let needed = processes(plan, descriptors);
    if needed > PROCESSES_MAX {
        return Err(format!(
            "{} connections would take {needed} processes of {descriptors} descriptors: \
             use fewer connections, or raise the limit (ulimit -n, LimitNOFILE=)",
            connections(plan)
        ));
    }
    check_ports(plan, ports())
}

fn connections(plan: &Plan) -> u64 {
    plan.classes.iter().map(|class| u64::from(class.connections)).sum()
}

/// Returns the number of processes over which the run must be spread because of their descriptors.
pub fn processes(plan: &Plan, descriptors: u64) -> u64 {
    // Connections are dealt out thread by thread, class by class: each may have one more than the
    // others.
    let uneven = (plan.threads * plan.classes.len()) as u64;
    (connections(plan) + uneven).div_ceil(descriptors.saturating_sub(DESCRIPTORS_OTHER).max(1))
}

/// Addresses of loopback that connections to it may come from when one address has not enough
/// ports.
const LOOPBACK: &str = "127.0.0.0/24";

/// Gives classes that connect to this machine, and don't specify a source, enough local addresses
/// for their connections.
pub fn spread(plan: &mut Plan) {
    if check_ports(plan, ports()).is_ok() {
        return;
    }
    let own = |address: SocketAddr| address.is_ipv4() && address.ip().is_loopback();
    for class in
        plan.classes.iter_mut().filter(|class| class.sources.is_none() && own(class.target.address))
    {
        class.sources = Sources::parse(LOOPBACK).ok();
    }
}

/// Each connection to one address needs a pair of local address and port.
fn check_ports(plan: &Plan, ports: u64) -> Result<(), String> {
    let mut needed: BTreeMap<SocketAddr, (u64, u64)> = BTreeMap::new();
    for class in plan.classes.iter().filter(|class| class.behaviour != Behaviour::ConnectFlood) {
        let (connections, room) = needed.entry(class.target.address).or_default();
        *connections += u64::from(class.connections);
        *room +=
            class.sources.map_or(ports, |sources| u64::from(sources.count()).saturating_mul(ports));
    }
    match needed.iter().find(|(_, (connections, room))| connections > room) {
        None => Ok(()),
        Some((address, (connections, room))) => Err(format!(
            "{connections} connections to {address} need as many local ports, but there are \
             {room}: give a \
             range of source addresses (--source 127.0.0.0/24), or widen \
             net.ipv4.ip_local_port_range"
        )),
    }
}

fn ports() -> u64 {
    let text =
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let bounds: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match bounds[..] {
        [low, high] if high >= low => high - low + 1,
        _ => PORTS,
    }
}
