//! Tunnels of an experiment: how they are used, and the ratios that count.
//!
//! Named by `Load::Tunnel`.

use super::metric::{Compared, Metric};

/// How tunnels are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tunnels {
    /// One, always full.
    Full(Way),
    /// This many, idle.
    Idle(u32),
}

/// Where the bytes of a full tunnel go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the client.
    Down,
    /// To the server.
    Up,
}

/// Ratios that the table of a full tunnel shows.
pub(crate) const TUNNEL_RATIOS: &[Compared] = &[
    ("rate / direct", Metric::Rate, "direct"),
    ("rate / HAProxy", Metric::Rate, "haproxy-splice"),
    ("CPU / HAProxy", Metric::CpuGigabyte, "haproxy-splice"),
];
