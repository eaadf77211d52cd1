//! The listeners of another configuration: what is new of them is bound before anything is changed, so that one that can't be had leaves
//! all as it was.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use weir_config::is_same_place;
use weir_io::{SocketFile, bind_listeners, bind_unix};
use weir_proxy::plan::{ListenerPlan, Location, kept};
use weir_worker::{ListenerChange, Port, Speech, inbound};

use crate::failure::Failure;
use crate::run::{check_free, patiently};

/// What is to become of the listeners, all of it possible.
pub(super) struct Opened {
    pub(super) changes: Vec<ListenerChange>,
    /// Addresses of all of them, with the real port where 0 was asked.
    pub(super) addresses: Vec<Location>,
    /// Sockets of the new ones, in their order.
    pub(super) ports: Vec<Port>,
    /// Names of new unix sockets.
    pub(super) files: Vec<SocketFile>,
}

/// Whether the ports can be had that are listened on by the second and not by the first.
///
/// # Errors
/// One can't: the text names it.
pub(super) fn check(old: &[ListenerPlan], new: &[ListenerPlan]) -> Result<(), Failure> {
    for (plan, before) in new.iter().zip(kept(old, new)) {
        // What this weir itself listens on, it may listen on beside that.
        let is_beside = |old: &ListenerPlan| {
            let are_apart = old.device().zip(plan.device()).is_some_and(|(old, new)| old != new);
            is_same_place(&old.address, &plan.address) && !are_apart
        };
        if before.is_none() && !old.iter().any(is_beside) {
            // One that went a moment ago has its port for a second still.
            patiently(|| check_free(&plan.address, plan.device())).map_err(|error| Failure::binding(&error))?;
        }
    }
    Ok(())
}

/// A socket for each worker, and where it is.
fn bind(plan: &ListenerPlan, workers: usize, files: &mut Vec<SocketFile>) -> io::Result<(Vec<OwnedFd>, Location)> {
    match &plan.address {
        Location::Network(address) => {
            let (sockets, address) = bind_listeners(*address, plan.backlog, inbound(plan), workers)?;
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

/// Binds what is new. `addresses` are those of the old ones, `speech` is how clients of the new ones speak.
///
/// # Errors
/// One can't be bound; nothing is open then that was not.
pub(super) fn open(
    old: &[ListenerPlan],
    addresses: &[Location],
    new: &[ListenerPlan],
    workers: usize,
    speech: Vec<Speech>,
) -> Result<Opened, Failure> {
    let mut opened = Opened { changes: Vec::new(), addresses: Vec::new(), ports: Vec::new(), files: Vec::new() };
    for ((plan, before), speech) in new.iter().zip(kept(old, new)).zip(speech) {
        let (sockets, address) = match before.and_then(|at| addresses.get(at)) {
            Some(address) => (Vec::new(), address.clone()),
            None => {
                let bound = bind(plan, workers, &mut opened.files).and_then(|(sockets, address)| {
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
