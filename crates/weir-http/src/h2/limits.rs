//! The cost limits of one HTTP/2 connection: the few configurable numbers, with their ranges, and
//! the pool that it shares with others.
//!
//! All other bounds are constants beside the code that enforces them: `budget.rs`, `receive.rs`,
//! `mux.rs`.

use std::sync::Arc;

use super::growth::WindowPool;

/// Limits of a connection. Values that are announced to the client are fixed when a
/// [`Mux`](super::Mux) is made; the rest may change between turns.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Limits of a head: its bytes are those of the header list with 32 a field (RFC 9113 §6.5.2),
    /// its fields count a split cookie once. The line is that of the same request in HTTP/1.1.
    pub head: crate::Limits,
    /// Requests under way at once, including those that were reset and still run: 1 to 1000.
    /// Default 100.
    pub streams_max: u32,
    /// Bytes of a request's body that may be on their way or unread: 16,384 to 1,048,576. Default
    /// 65,536.
    pub window_bytes: u32,
    /// Bytes of the bodies of all requests of a connection that may be on their way: 65,536 to
    /// 16,777,216. Default 1,048,576.
    pub connection_window_bytes: u32,
    /// Requests on one connection in all; then it is drained. Default 10,000.
    pub requests_max: u32,
    /// Pool from which windows of uploads may grow, shared with the other connections of a worker.
    /// Default 256 MiB.
    pub growth: Arc<WindowPool>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head: crate::Limits::default(),
            streams_max: 100,
            window_bytes: 65_536,
            connection_window_bytes: 1 << 20,
            requests_max: 10_000,
            growth: Arc::default(),
        }
    }
}
