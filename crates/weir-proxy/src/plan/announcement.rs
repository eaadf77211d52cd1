//! The header at the start of a connection to a server, if its upstream has `proxy-protocol`.

use std::net::SocketAddr;

/// `proxy-protocol` of an upstream: which version of the PROXY protocol its servers understand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// Version 1, a line of text.
    V1,
    /// Version 2, binary.
    V2,
}

/// A header of the PROXY protocol before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// How it is written.
    pub version: ProxyProtocol,
    /// The client that it announces.
    pub whose: Whose,
}

/// The client that a connection to a server is announced for, or made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// weir itself: a probe.
    Own,
    /// A client on a unix socket, which has no address.
    Unknown,
    /// A client.
    Client {
        /// Its address, as docs/client-address.md says; port 0: not known.
        address: SocketAddr,
        /// The driver's name for the connection that it came on: its other address is where the
        /// client has connected to.
        socket: u64,
    },
}

impl Whose {
    /// Returns the address of the client; None: no client with an address.
    pub(crate) fn address(self) -> Option<SocketAddr> {
        if let Whose::Client { address, .. } = self { Some(address) } else { None }
    }
}
