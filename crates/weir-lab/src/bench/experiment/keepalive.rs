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
}
