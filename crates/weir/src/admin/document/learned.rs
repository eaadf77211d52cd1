//! What workers have learned about a server.

use serde::{Deserialize, Serialize};

/// Kept connections compared with connections made for one request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Fresh {
    /// Workers that make a connection for each request, and all workers with a report.
    pub(crate) in_force: u32,
    pub(crate) workers: u32,
    pub(crate) connections: u32,
    /// Of the worker where it is highest.
    pub(crate) kept_p99_us: Option<u64>,
    pub(crate) fresh_p99_us: Option<u64>,
}

/// How many requests a server gets at once, because it answered fewer a second with more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConcurrencyLimit {
    pub(crate) requests: u32,
    /// Requests at once before the limit.
    pub(crate) before: u32,
    /// Growth of the responses per second since then.
    pub(crate) gain_percent: u32,
}

/// Requests of one method and shape of target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Class {
    pub(crate) shape: String,
    /// First quartile of the time of its responses, on the worker where it is highest; 0: unknown.
    pub(crate) usual_us: u32,
    /// `alike` (they may share connections), `new`, `overtaken`, `slower` or `long`, from the
    /// worker that knows most.
    pub(crate) sharing: String,
    /// Responses that are missing until it is known to be alike.
    pub(crate) missing: u32,
}
