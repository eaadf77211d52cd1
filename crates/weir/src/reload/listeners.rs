//! The listeners of another configuration: what is new of them is bound before anything is changed, so that one that can't be had leaves
//! all as it was.

use std::net::SocketAddr;
use std::sync::Mutex;

use weir_config::collide;
use weir_io::bind_listeners;
use weir_proxy::plan::{ListenerPlan, kept};
use weir_worker::{ListenerChange, Speech};

use crate::failure::Failure;
use crate::run::{check_free, patiently};

/// What is to become of the listeners, all of it possible.
pub(super) struct Opened {
    pub(super) changes: Vec<ListenerChange>,
    /// Addresses of all of them, with the real port where 0 was asked.
    pub(super) addresses: Vec<SocketAddr>,
}

/// Whether the ports can be had that are listened on by the second and not by the first.
///
/// # Errors
/// One can't: the text names it.
pub(super) fn check(old: &[ListenerPlan], new: &[ListenerPlan]) -> Result<(), Failure> {
    for (plan, before) in new.iter().zip(kept(old, new)) {
        // What this weir itself listens on, it may listen on beside that.
        if before.is_none() && !old.iter().any(|old| collide(old.address, plan.address)) {
            // One that went a moment ago has its port for a second still.
            patiently(|| check_free(plan.address)).map_err(|error| Failure::binding(&error))?;
        }
    }
    Ok(())
}

/// Binds what is new. `addresses` are those of the old ones, `speech` is how clients of the new ones speak.
///
/// # Errors
/// One can't be bound; nothing is open then that was not.
pub(super) fn open(
    old: &[ListenerPlan],
    addresses: &[SocketAddr],
    new: &[ListenerPlan],
    workers: usize,
    speech: Vec<Speech>,
) -> Result<Opened, Failure> {
    let mut opened = Opened { changes: Vec::new(), addresses: Vec::new() };
    for ((plan, before), speech) in new.iter().zip(kept(old, new)).zip(speech) {
        let (sockets, address) = match before.and_then(|at| addresses.get(at)) {
            Some(address) => (Vec::new(), *address),
            None => bind_listeners(plan.address, plan.backlog, workers).map_err(|error| Failure::binding(&error))?,
        };
        let sockets = Mutex::new(sockets.into_iter().map(Some).collect());
        opened.changes.push(ListenerChange { before, sockets, speech });
        opened.addresses.push(address);
    }
    Ok(opened)
}
