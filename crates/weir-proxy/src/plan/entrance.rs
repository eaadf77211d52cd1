//! What a client comes in by, and what it may speak there.

use std::net::SocketAddr;

use super::Serves;

/// What a client comes in by: a listener, with the terms on which it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entrance {
    /// Which one of the worker's. The number is never given to another one.
    pub listener: u32,
    /// What its clients may ask for.
    pub serves: Serves,
    /// What this client may speak, or does speak.
    pub protocols: Protocols,
    /// Where the client has connected to, when that is not this machine: its listener takes connections to other addresses.
    pub destination: Option<SocketAddr>,
    /// The same when that is this machine.
    pub own: Option<SocketAddr>,
    /// The listener is about to go: who had connected before may ask once.
    pub is_leaving: bool,
}

/// Which versions of HTTP clients may speak: with TLS they choose by ALPN (RFC 7301), else by how they begin (RFC 9113 §3.3).
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
