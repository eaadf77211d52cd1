//! Makes the ends of a link: checks whether it can be done, then does it. Called by `mod.rs`.
//! Nothing is changed before everything that can be checked has been; what is made is gone when it
//! is dropped.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use rustix::thread::{CapabilitySet, capabilities};
use weir_io::{Interfaces, Namespace, TUN_DEVICE, Tun, local_addresses};

use super::Obstacle;
use super::terms::{End, LinkOptions, Place, shares_network};

/// Packets that wait in a device until they are read: more than senders hand over at once, so that
/// none is dropped unintentionally.
const WAITING_PACKETS: u32 = 10_000;
/// How a user other than root gets the rights.
const WAY_OUT: &str =
    "run as root, or in your own namespace: unshare --user --map-root-user --net weir lab link ...";

/// An existing end.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) namespace: Namespace,
    pub(super) interfaces: Interfaces,
    pub(super) index: u32,
}

/// Makes both, with their devices.
///
/// # Errors
/// The obstacle, with the remedy.
pub(super) fn make(options: &LinkOptions) -> Result<([Made; 2], [Tun; 2]), Obstacle> {
    options.check().map_err(Obstacle::Usage)?;
    privileges()?;
    devices()?;
    let [a, b] = options.ends.each_ref().map(|end| find(&end.place));
    let found = [a?, b?];
    check_apart(&found)?;
    for (end, namespace) in options.ends.iter().zip(&found) {
        if let Some(namespace) = namespace {
            check_free(end, namespace)?;
        }
    }
    let [a, b] = found;
    let [a_end, b_end] = &options.ends;
    let (a, a_device) = end(a_end, a, options.mtu)?;
    let (b, b_device) = end(b_end, b, options.mtu)?;
    Ok(([a, b], [a_device, b_device]))
}

fn privileges() -> Result<(), Obstacle> {
    let may = capabilities(None)
        .map_err(|error| Obstacle::Failed(format!("capabilities: {error}")))?
        .effective;
    let wanted =
        [(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN")];
    let missing: Vec<&str> =
        wanted.iter().filter(|(one, _)| !may.contains(*one)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" and ");
    Err(Obstacle::Privilege(format!("a link between namespaces needs {missing}: {WAY_OUT}")))
}

fn devices() -> Result<(), Obstacle> {
    Tun::probe().map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            Obstacle::Privilege(format!("{TUN_DEVICE}: {error}: {WAY_OUT}"))
        }
        _ => Obstacle::Failed(format!(
            "{TUN_DEVICE}: {error}: the kernel offers no TUN devices here; try `modprobe tun`, or \
                in a container `--device {TUN_DEVICE}`"
        )),
    })
}

/// The namespace of an end, unless it is to be a new one.
fn find(place: &Place) -> Result<Option<Namespace>, Obstacle> {
    match place {
        Place::Here => Namespace::current()
            .map(Some)
            .map_err(|error| Obstacle::Failed(format!("/proc: {error}"))),
        Place::New => Ok(None),
        Place::At(path, said) => {
            let shown = path.display();
            let why = |error: io::Error| match error.kind() {
                ErrorKind::PermissionDenied => {
                    Obstacle::Privilege(format!("cannot enter {shown}: {error}: {WAY_OUT}"))
                }
                ErrorKind::NotFound if path.starts_with("/proc") => {
                    Obstacle::Failed(format!("no process {said} ({shown})"))
                }
                ErrorKind::NotFound => Obstacle::Failed(format!(
                    "no namespace {said} ({shown}): `ip netns list` shows named namespaces, `ip \
                        netns add NAME` creates one"
                )),
                ErrorKind::InvalidInput => {
                    Obstacle::Failed(format!("{shown} is not a network namespace"))
                }
                _ => Obstacle::Failed(format!("{shown}: {error}")),
            };
            Namespace::open(path).map(Some).map_err(why)
        }
    }
}

/// The kernel delivers packets to an address of its own namespace directly: no link would see any.
fn check_apart(found: &[Option<Namespace>; 2]) -> Result<(), Obstacle> {
    let [Some(a), Some(b)] = found else { return Ok(()) };
    match a.is(b) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Obstacle::Usage(
            "both ends are in the same namespace, where no packet would use the link: choose \
                another one for an end with --netns-a or --netns-b"
                .to_owned(),
        )),
        Err(error) => Err(Obstacle::Failed(format!("a namespace: {error}"))),
    }
}

/// Checks whether the name of an end, and the networks of its addresses, are free.
fn check_free(end: &End, namespace: &Namespace) -> Result<(), Obstacle> {
    let look = || -> io::Result<(bool, Vec<IpAddr>)> {
        Ok((Interfaces::here()?.index(&end.name)?.is_some(), local_addresses()?))
    };
    let looked = namespace.enter(look).and_then(|looked| looked);
    let (is_taken, present) =
        looked.map_err(|error| Obstacle::Failed(format!("interfaces: {error}")))?;
    let place = end.place.text();
    if is_taken {
        let name = &end.name;
        return Err(Obstacle::Failed(format!(
            "interface {name} already exists {place}: choose other --names"
        )));
    }
    for (address, prefix) in &end.addresses {
        if let Some(other) = present.iter().find(|other| shares_network(*address, **other, *prefix))
        {
            return Err(Obstacle::Failed(format!(
                "{address}/{prefix}: the network already has an address {place}, {other}: choose \
                    other --addresses"
            )));
        }
    }
    Ok(())
}

/// Makes an end in this namespace, or in a new one, which gets a loopback interface and routes over
/// the link.
fn end(end: &End, namespace: Option<Namespace>, mtu: u32) -> Result<(Made, Tun), Obstacle> {
    let is_new = namespace.is_none();
    let namespace = match namespace {
        Some(namespace) => namespace,
        None => Namespace::create().map_err(|error| failed("a new namespace", &error))?,
    };
    let make = || -> Result<(Tun, Interfaces, u32), Obstacle> {
        let step = |what: &str| {
            let what = format!("{} {}: {what}", end.name, end.place.text());
            move |error: io::Error| failed(&what, &error)
        };
        let tun = Tun::create(&end.name).map_err(step("making it"))?;
        let mut interfaces = Interfaces::here().map_err(step("asking for it"))?;
        let index = interfaces
            .index(&end.name)
            .and_then(|index| index.ok_or_else(|| ErrorKind::NotFound.into()));
        let index = index.map_err(step("finding it"))?;
        // Without IPv6 the interface sends nothing anyway.
        let _ = interfaces.keep_silent(index);
        interfaces
            .set_limits(index, mtu, WAITING_PACKETS)
            .map_err(step(&format!("an MTU of {mtu}")))?;
        for (address, prefix) in &end.addresses {
            let what = format!("the address {address}/{prefix}");
            interfaces.add_address(index, *address, *prefix).map_err(|error| {
                match error.kind() {
                    // The rights were checked before: the kernel gives this error also where it
                    // has no IPv6.
                    ErrorKind::PermissionDenied if address.is_ipv6() => Obstacle::Failed(format!(
                        "{} {}: {what}: IPv6 is disabled there (sysctl \
                        net.ipv6.conf.all.disable_ipv6): remove that address",
                        end.name,
                        end.place.text()
                    )),
                    _ => step(&what)(error),
                }
            })?;
        }
        interfaces.set_up(index).map_err(step("setting it up"))?;
        if is_new {
            let loopback = interfaces.index("lo").map_err(step("loopback"))?;
            loopback
                .map_or(Ok(()), |index| interfaces.set_up(index))
                .map_err(step("setting loopback up"))?;
            for of in [IpAddr::is_ipv4, IpAddr::is_ipv6] {
                let first = end.addresses.iter().find(|(address, _)| of(address));
                first
                    .map_or(Ok(()), |(address, _)| interfaces.add_default_route(index, *address))
                    .map_err(step("a default route"))?;
            }
        }
        Ok((tun, interfaces, index))
    };
    let made = namespace.enter(make).map_err(|error| failed("entering a namespace", &error))?;
    let (tun, interfaces, index) = made?;
    Ok((Made { namespace, interfaces, index }, tun))
}

fn failed(what: &str, error: &io::Error) -> Obstacle {
    match error.kind() {
        ErrorKind::PermissionDenied => Obstacle::Privilege(format!("{what}: {error}: {WAY_OUT}")),
        _ => Obstacle::Failed(format!("{what}: {error}")),
    }
}
