//! The experiment `handshakes`: plain requests, and clients beside them that do nothing but
//! handshakes.
//!
//! Read by `cells.rs`, `catalogue.rs` and `even_cells.rs`, done by `run/handshakes.rs`.

/// Clients at a time that do nothing but full handshakes.
pub(crate) const CLIENTS: u32 = 1000;
/// Connections of clients without TLS, and their requests a second.
pub(crate) const BESIDE: (u32, u32) = (64, 500);
/// HAProxy with `tune.sched.low-latency`.
pub(crate) const LOW_LATENCY: &str = "haproxy-low-latency";
