//! The experiment `keepalive`: the requests of a probe to a server, and the load that keeps its
//! workers busy.
//!
//! Named by `Load::Probe`.

/// Threads of the server.
pub(crate) const WORKERS: usize = 2;
/// What a request of the load costs a worker, milliseconds of processor time.
pub(crate) const BURN_MS: u64 = 25;
/// Such requests a second: each worker is busy for about 35 % of the time.
pub(crate) const BURNS: u32 = 28;
/// Connections of the load.
pub(crate) const CONNECTIONS: u32 = 8;
/// Threads of a server whose workers sleep instead.
pub(crate) const WORKERS_BLOCKED: usize = 16;
/// How long such a worker sleeps for a request of the load, milliseconds.
pub(crate) const BLOCK_MS: u64 = 25;
/// How many times as long as others a run against such a server takes: few of its responses are
/// slow.
pub(crate) const TIMES_BLOCKED: u32 = 3;

/// How the probe uses the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probing {
    /// Requests of the probe for each connection; None: it is kept.
    pub(crate) close_every: Option<u32>,
    /// What keeps the workers busy.
    pub(crate) busy: Busy,
}

/// What keeps the workers busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Busy {
    /// Nothing: slow responses are then due to the machine.
    No,
    /// Requests that reach the server directly, bypassing the proxy.
    Beside,
    /// Requests that come through the proxy like the probe.
    Through,
    /// Requests for which workers sleep, which reach each worker directly, bypassing the proxy.
    Blocked(Blocked),
}

/// A server of [`WORKERS_BLOCKED`] workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// How long each of them is busy, percent of the time.
    pub(crate) busy_percent: u32,
    /// It listens on a unix socket.
    pub(crate) unix: bool,
}
