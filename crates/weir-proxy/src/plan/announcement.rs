//! What a connection to a server begins with where its upstream has `proxy-protocol`.

use std::net::SocketAddr;

/// `proxy-protocol` of an upstream: which version of the PROXY protocol its servers understand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// Version 1, a line of text.
    V1,
    /// Version 2, binary.
    V2,
}

/// A header of the PROXY protocol, before anybody has written it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// How it is written.
    pub version: ProxyProtocol,
    /// Whose connection it says it is.
    pub whose: Whose,
}

/// Whose connection one to a server is said to be, or as whose it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// That of weir itself: a probe.
    Own,
    /// That of a client on a unix socket, which has no address.
    Unknown,
    /// That of a client.
    Client {
        /// Who that is, as docs/client-address.md says; port 0: not known.
        address: SocketAddr,
        /// The driver's name for the connection that it came on: where that leads to is where the client has connected to.
        socket: u64,
    },
}

impl Whose {
    /// Who the client is; None: nobody with an address.
    pub(crate) fn address(self) -> Option<SocketAddr> {
        if let Whose::Client { address, .. } = self { Some(address) } else { None }
    }
}
