//! The experiment `keepalive`: how a probe asks a server, and what keeps the workers of that busy.
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
/// A run against such a server is so many times as long as others: of its answers few are slow.
pub(crate) const TIMES_BLOCKED: u32 = 3;

/// How the server is asked.
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
    /// Nothing: what is slow then is the machine.
    No,
    /// Requests that come to the server past the proxy.
    Beside,
    /// Requests that come through the proxy like the probe.
    Through,
    /// Requests for which workers sleep, which come to each worker past the proxy.
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
