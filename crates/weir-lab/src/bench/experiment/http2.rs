//! The experiment `http2`: the clients that stall, and how many.
//!
//! Read by `cells.rs` and `catalogue.rs`. TLS, where it is used, is that of the experiment `tls`.

/// Connections, and streams at a time on each.
pub(crate) const CONNECTIONS: u32 = 64;
pub(crate) const STREAMS: u32 = 10;

/// Honest clients that send requests by the clock, beside others that let no response leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stalling {
    /// Connections of the honest ones.
    pub(crate) connections: u32,
    /// Their requests a second.
    pub(crate) rate: u32,
    /// Connections of the others.
    pub(crate) clients: u32,
    /// Streams of each that send requests at a time.
    pub(crate) streams: u32,
    /// Length of each response that they hold up, bytes.
    pub(crate) body: u64,
}

/// More than any window that a proxy can rely on.
pub(crate) const STALLING: Stalling =
    Stalling { connections: 64, rate: 1000, clients: 200, streams: 100, body: 200 << 10 };
