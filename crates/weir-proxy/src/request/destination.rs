//! Where a request goes whose upstream doesn't say that: decided by the forward proxy (docs/semantics.md §9), or where its client has connected
//! to (docs/semantics.md §24).

use std::net::SocketAddr;

/// Where a request may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Host in lower case and port: what tells its connections from others; empty where the client's requests go nowhere else.
    pub name: Box<str>,
    /// Addresses that are allowed, in the order in which they are tried; not empty.
    pub addresses: Vec<SocketAddr>,
}

impl Destination {
    /// Where a client has connected to.
    pub(crate) fn original(address: SocketAddr) -> Destination {
        Destination { name: "".into(), addresses: vec![address] }
    }
}
