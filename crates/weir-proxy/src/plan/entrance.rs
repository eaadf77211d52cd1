//! How a client came in, and the protocols that it may speak there.

use std::net::SocketAddr;

use super::Serves;

/// How a client came in: its listener, with the terms on which it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entrance {
    /// The number of the worker's listener. It is never reused.
    pub listener: u32,
    /// What its clients may request.
    pub serves: Serves,
    /// The protocols that this client may speak, or speaks.
    pub protocols: Protocols,
    /// The original destination of the client, if that is not this machine: its listener takes
    /// connections to other addresses.
    pub destination: Option<SocketAddr>,
    /// The original destination if that is this machine.
    pub own: Option<SocketAddr>,
    /// The listener is about to close: a client that had connected before may send one request.
    pub is_leaving: bool,
}

/// Which versions of HTTP clients may speak: with TLS they choose by ALPN (RFC 7301), else by how
/// they begin (RFC 9113 §3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocols {
    /// HTTP/1.0 and 1.1. Default true.
    pub http1: bool,
    /// HTTP/2. Default false.
    pub http2: bool,
}

impl Default for Protocols {
    fn default() -> Protocols {
        Protocols { http1: true, http2: false }
    }
}
