//! The listeners of another configuration: weir binds the new ones before it changes anything, so
//! that a failure leaves everything as it was.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use weir_io::{SocketFile, bind_listeners, bind_unix};
use weir_proxy::plan::{ListenerPlan, Location, kept};
use weir_worker::{ListenerChange, Port, Speech, inbound};

use crate::failure::Failure;
use crate::run::{check_free, patiently};

/// The next listeners, which are certain to work.
pub(super) struct Opened {
    pub(super) changes: Vec<ListenerChange>,
    /// Addresses of all of them, with the real port where port 0 was configured.
    pub(super) addresses: Vec<Location>,
    /// Sockets of the new ones, in their order.
    pub(super) ports: Vec<Port>,
    /// Names of new unix sockets.
    pub(super) files: Vec<SocketFile>,
}

/// Checks that the ports can be bound that the second configuration has and the first has not.
///
/// # Errors
/// A port cannot be bound: the text names it.
pub(super) fn check(old: &[ListenerPlan], new: &[ListenerPlan]) -> Result<(), Failure> {
    let taken = Taken::new(old);
    for (plan, before) in new.iter().zip(kept(old, new)) {
        // Beside its own listeners this weir may listen as well.
        if before.is_none() && !taken.is_beside(plan) {
            // A listener that was just removed keeps its port for another second.
            patiently(|| check_free(&plan.address, plan.device()))
                .map_err(|error| Failure::binding(&error))?;
        }
    }
    Ok(())
}

/// Places with listeners, by what a new one would share with them.
#[derive(Default)]
struct Taken<'a> {
    places: HashMap<Location, Devices<'a>>,
    /// Of all addresses of a port and a family, and of the wildcard addresses.
    ports: HashMap<(u16, bool), [Devices<'a>; 2]>,
}

/// Interfaces; None: any.
type Devices<'a> = HashSet<Option<&'a str>>;

/// Returns the place of an address without its scope.
fn bare(address: SocketAddr) -> Location {
    Location::Network(SocketAddr::new(address.ip(), address.port()))
}

impl<'a> Taken<'a> {
    fn new(plans: &'a [ListenerPlan]) -> Taken<'a> {
        let mut taken = Taken::default();
        for plan in plans {
            let place = match plan.address.network() {
                Some(address) => {
                    let [all, wild] =
                        taken.ports.entry((address.port(), address.is_ipv4())).or_default();
                    all.insert(plan.device());
                    address.ip().is_unspecified().then(|| wild.insert(plan.device()));
                    bare(address)
                }
                None => plan.address.clone(),
            };
            taken.places.entry(place).or_default().insert(plan.device());
        }
        taken
    }

    /// Whether one of them already gets connections meant for this listener, on the same interface.
    fn is_beside(&self, plan: &ListenerPlan) -> bool {
        let device = plan.device();
        let is_near = |devices: &Devices<'_>| match device {
            None => !devices.is_empty(),
            Some(_) => devices.contains(&None) || devices.contains(&device),
        };
        let Some(address) = plan.address.network() else {
            return self.places.get(&plan.address).is_some_and(is_near);
        };
        if address.port() == 0 {
            return false;
        }
        let ports = self.ports.get(&(address.port(), address.is_ipv4()));
        let near = ports.map(|[all, wild]| if address.ip().is_unspecified() { all } else { wild });
        near.is_some_and(is_near) || self.places.get(&bare(address)).is_some_and(is_near)
    }
}

/// Binds a socket for each worker. Returns them with their address.
fn bind(
    plan: &ListenerPlan,
    workers: usize,
    files: &mut Vec<SocketFile>,
) -> io::Result<(Vec<OwnedFd>, Location)> {
    match &plan.address {
        Location::Network(address) => {
            let (sockets, address) =
                bind_listeners(*address, plan.backlog, inbound(plan), workers)?;
            let sockets: Vec<OwnedFd> = sockets.into_iter().map(OwnedFd::from).collect();
            Ok((sockets, address.into()))
        }
        Location::Destination => Err(io::ErrorKind::InvalidInput.into()),
        Location::Unix(path) => {
            let (socket, file) = bind_unix(path, plan.backlog, plan.mode, plan.group)?;
            files.push(file);
            let sockets = (0..workers).map(|_| socket.try_clone()).collect::<io::Result<_>>()?;
            Ok((sockets, plan.address.clone()))
        }
    }
}

/// Binds the new listeners. `addresses` are those of the old ones, `speech` is the protocol of each
/// new listener's clients.
///
/// # Errors
/// A listener cannot be bound; then nothing new is open.
pub(super) fn open(
    old: &[ListenerPlan],
    addresses: &[Location],
    new: &[ListenerPlan],
    workers: usize,
    speech: Vec<Speech>,
) -> Result<Opened, Failure> {
    let mut opened =
        Opened { changes: Vec::new(), addresses: Vec::new(), ports: Vec::new(), files: Vec::new() };
    for ((plan, before), speech) in new.iter().zip(kept(old, new)).zip(speech) {
        let (sockets, address) = match before.and_then(|at| addresses.get(at)) {
            Some(address) => (Vec::new(), address.clone()),
            None => {
                let bound =
                    bind(plan, workers, &mut opened.files).and_then(|(sockets, address)| {
                        opened.ports.push(Port::of_own(address.clone(), &sockets)?);
                        Ok((sockets, address))
                    });
                bound.map_err(|error| Failure::binding(&error))?
            }
        };
        let sockets = Mutex::new(sockets.into_iter().map(Some).collect());
        opened.changes.push(ListenerChange { before, sockets, speech });
        opened.addresses.push(address);
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    //! Proves: a new place is beside a taken one if a socket of one would get connections for the
    //! other, by an interface that both have. How: all pairs of a few places, against the
    //! definition.

    use super::*;
    use weir_config::is_same_place;
    use weir_proxy::plan::Tuning;

    #[test]
    fn places_are_beside_what_is_taken() {
        let texts = [
            "0.0.0.0:80",
            "10.0.0.1:80",
            "10.0.0.2:80",
            "10.0.0.1:81",
            "10.0.0.1:0",
            "[::]:80",
            "[fe80::1%1]:80",
            "[fe80::1%2]:80",
            "unix:/a",
            "unix:/b",
        ];
        let plan = |text: &&str, device: Option<&str>| {
            let mut plan = ListenerPlan::new(SocketAddr::from(([0, 0, 0, 0], 0)));
            plan.address = Location::read(text).expect("a place");
            plan.tuning = device.map(|name| Tuning::by(Some(name)).into());
            plan
        };
        let devices = [None, Some("a0"), Some("b0")];
        let all: Vec<_> =
            texts.iter().flat_map(|text| devices.map(|device| plan(text, device))).collect();
        for (old, new) in all.iter().flat_map(|old| all.iter().map(move |new| (old, new))) {
            let are_apart = old.device().zip(new.device()).is_some_and(|(old, new)| old != new);
            let wanted = is_same_place(&old.address, &new.address) && !are_apart;
            assert_eq!(
                Taken::new(std::slice::from_ref(old)).is_beside(new),
                wanted,
                "{old:?} {new:?}"
            );
        }
    }
}
