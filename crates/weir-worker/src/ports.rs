//! Sockets that listen at one address, for code that tells the kernel which of them gets a new
//! connection.

use std::io;
use std::os::fd::OwnedFd;

use weir_proxy::plan::Location;

/// The sockets of a listener.
#[derive(Debug)]
pub struct Port {
    /// Its address, with the real port where 0 was configured.
    pub address: Location,
    /// How workers share it.
    pub sharing: Sharing,
    /// Another descriptor of each, with the worker that accepts there; None: a worker that has
    /// another socket here. Keeping a descriptor keeps the socket open. Empty where workers share
    /// one.
    pub sockets: Vec<(OwnedFd, Option<u32>)>,
}

/// How workers share a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Each worker has its own socket; the sockets began to listen in the order of the workers.
    Own,
    /// The same, but another process has opened some of them, in an unknown order.
    Inherited,
    /// Some workers accept from the same socket, so that the first to look gets the new client.
    Common,
}

impl Port {
    /// For sockets that were just opened, by worker.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn of_own(address: Location, sockets: &[OwnedFd]) -> io::Result<Port> {
        let sharing = if address.network().is_some() { Sharing::Own } else { Sharing::Common };
        let own = if sharing == Sharing::Own { sockets } else { &[] };
        let sockets =
            own.iter().zip(0..).map(|(socket, worker)| Ok((socket.try_clone()?, Some(worker))));
        Ok(Port { address, sharing, sockets: sockets.collect::<io::Result<_>>()? })
    }
}
