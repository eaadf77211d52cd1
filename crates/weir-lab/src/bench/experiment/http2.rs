//! The experiment `http2`: who stalls, and how much there is of it.
//!
//! Read by `cells.rs` and `catalogue.rs`. TLS, where it is spoken, is that of the experiment `tls`.

/// Connections, and streams at a time on each.
pub(crate) const CONNECTIONS: u32 = 64;
pub(crate) const STREAMS: u32 = 10;

/// Honest clients that ask by the clock, beside others whose answers can't leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stalling {
    /// Connections of the honest ones.
    pub(crate) connections: u32,
    /// Their requests a second.
    pub(crate) rate: u32,
    /// Connections of the others.
    pub(crate) clients: u32,
    /// Streams of each that ask at a time.
    pub(crate) streams: u32,
    /// Length of each answer that they let not come, bytes.
    pub(crate) body: u64,
}

/// More than any window that a proxy may count on.
pub(crate) const STALLING: Stalling =
    Stalling { connections: 64, rate: 1000, clients: 200, streams: 100, body: 200 << 10 };
