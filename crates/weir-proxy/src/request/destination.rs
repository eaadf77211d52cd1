//! Where a request of the forward proxy goes, once that is decided (docs/semantics.md §9).

use std::net::SocketAddr;

/// Where a request may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Host in lower case and port: what tells its connections from others.
    pub name: Box<str>,
    /// Addresses that are allowed, in the order in which they are tried; not empty.
    pub addresses: Vec<SocketAddr>,
}
