//! Sockets that listen at one address, for whoever tells the kernel which of them gets a new connection.

use std::io;
use std::os::fd::OwnedFd;

use weir_proxy::plan::Location;

/// The sockets of a listener.
#[derive(Debug)]
pub struct Port {
    /// Where it is, with the real port where 0 was asked.
    pub address: Location,
    /// Who has them.
    pub sharing: Sharing,
    /// A descriptor more of each, with who accepts there; None: a worker that has another one here. Whoever keeps one keeps the socket open. Empty where
    /// workers share one.
    pub sockets: Vec<(OwnedFd, Option<u32>)>,
}

/// How workers share a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Each has a socket of its own, which began to listen in the order of the workers.
    Own,
    /// The same, but another process has opened some of them, in an order that is not known.
    Inherited,
    /// Some accept from the same socket, so that whoever looks first has who is new.
    Common,
}

impl Port {
    /// Of sockets that were just opened, by worker.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn of_own(address: Location, sockets: &[OwnedFd]) -> io::Result<Port> {
        let sharing = if address.network().is_some() { Sharing::Own } else { Sharing::Common };
        let own = if sharing == Sharing::Own { sockets } else { &[] };
        let sockets = own.iter().zip(0..).map(|(socket, worker)| Ok((socket.try_clone()?, Some(worker))));
        Ok(Port { address, sharing, sockets: sockets.collect::<io::Result<_>>()? })
    }
}
