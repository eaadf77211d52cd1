//! The state of one worker's servers and connections at a moment, made on request
//! (docs/semantics.md#what-you-can-observe).
//!
//! Made by [`crate::engine::Engine::report`] in the worker's thread, between two turns, so that all
//! of it belongs together; read elsewhere. It costs requests nothing; a report costs a visit to
//! each connection. Times are relative to the moment of the report, microseconds. Bound: one row
//! for each existing connection, and those of [`crate::observe::accounting`].

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::cross::doubt::Doubt;
pub use crate::cross::limit::Learned as LearnedLimit;
use crate::ending::UpstreamEnd;
use crate::observe::accounting::Use;
use crate::observe::arms::ArmReport;
use crate::retry::poison::Suspect;
pub use crate::upstream::class::{ClassReport, Sharing};
use crate::upstream::server_state::State;
use crate::upstream::trust::TrustState;

/// Everything at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Clients connected to this worker.
    pub clients: usize,
    /// Their requests without a complete response.
    pub exchanges: usize,
    /// No new connections are accepted.
    pub draining: bool,
    /// By server, upstream after upstream.
    pub servers: Vec<ServerReport>,
    /// Requests that were in flight when servers died.
    pub suspects: Vec<Suspect>,
    /// The use by clients that choose their own destination; None: no such clients.
    pub usage: Option<UsageReport>,
    /// Congestion controls that share connections of `tcp`.
    pub arms: Vec<ArmReport>,
}

/// The use of one worker by clients that choose their own destination.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageReport {
    /// By host and port.
    pub destinations: UsedReport,
    /// By name.
    pub users: UsedReport,
}

/// One table of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsedReport {
    /// In no order; at most [`ROWS_MAX`](crate::observe::accounting::ROWS_MAX).
    pub rows: Vec<UsedRow>,
    /// The use of all that no longer have a row.
    pub others: Use,
    /// Connections that they have now.
    pub others_connections: u32,
}

/// A destination or user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedRow {
    /// Its name.
    pub name: Arc<str>,
    /// Connections to the destination, or of the user, now.
    pub connections: u32,
    /// Its use.
    pub used: Use,
}

/// One server as one worker sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerReport {
    /// Whether it takes requests, and why not.
    pub standing: State,
    /// How long it has been suspended, for [`State::Suspended`]; otherwise 0.
    pub suspended_us: u64,
    /// Connections that take requests.
    pub ready: u32,
    /// Requests can be sent there: a connection is up, or can be made as far as is known.
    pub reachable: bool,
    /// Requests that wait for a connection.
    pub waiting: u32,
    /// Requests on connections, unanswered.
    pub unanswered: u32,
    /// Requests that may wait or be unanswered in all.
    pub capacity: u32,
    /// Connections set aside, because the clients of their current responses have not read for a
    /// while.
    pub aside: u32,
    /// Connections joined with a client after 101.
    pub tunnels: u32,
    /// Nothing remains there: no request, no connection, no probe.
    pub vacant: bool,
    /// Failed connects in a row.
    pub failures: u32,
    /// Whether it may be pipelined.
    pub trust: TrustState,
    /// How long that lasts, for [`TrustState::Penalty`]; otherwise 0.
    pub penalty_us: u64,
    /// The reason for that.
    pub penalty_for: Option<Doubt>,
    /// Unanswered requests that a connection may have now, 1 when it may not be pipelined.
    pub depth: u32,
    /// With `pool "fresh"`.
    pub fresh: Option<FreshReport>,
    /// The learned limit of requests at once, if more are known to be worse; the same on all
    /// workers.
    pub limit: Option<LearnedLimit>,
    /// Connections that the server serves at a time, if that was learned; the same on all workers.
    pub places: Option<NonZeroU32>,
    /// Classes of requests that are known to be alike, the most frequent first.
    pub classes: Vec<ClassReport>,
    /// By position.
    pub connections: Vec<ConnectionReport>,
}

/// Kept connections compared with those that are made for one request, on one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreshReport {
    /// Requests use connections that are made for them.
    pub in_force: bool,
    /// Such connections, including those that are being made.
    pub connections: u32,
    /// Time from a request to the beginning of its response on a kept connection recently: the 99th
    /// percentile, microseconds; None: not known.
    pub kept_p99_us: Option<u64>,
    /// The 99th percentile on a connection that was made for the request.
    pub fresh_p99_us: Option<u64>,
}

/// One connection of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionReport {
    /// Number among all connections of the server, over all workers, from 0.
    pub number: u32,
    /// Its state.
    pub state: ConnectionState,
    /// How long it has been established, or down, or connecting.
    pub since_us: u64,
    /// For [`ConnectionState::Down`]: the time to the next try.
    pub retry_us: u64,
    /// Requests given to the kernel and unanswered.
    pub in_flight: u32,
    /// Requests queued behind those.
    pub queued: u32,
    /// Responses since it was established: how often it was reused, plus one.
    pub answers: u64,
    /// Times that it, or its predecessors in this position, ended or could not be established.
    pub closes: u64,
    /// The reason for the last of these ends.
    pub closed_why: Option<UpstreamEnd>,
    /// Glitches since it was established.
    pub glitches: u32,
    /// Whether its packets arrive at this worker's core; None: not known.
    pub near: Option<bool>,
}

/// The state of a connection; the first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionState {
    /// Not connected, by order of an operator.
    Parked,
    /// Not connected, because no request needs it.
    Spare,
    /// Not connected.
    Down,
    /// A connect is in progress.
    Connecting,
    /// Ends with the current response.
    Ending,
    /// The client of the current response reads it slowly.
    Paused,
    /// The current response is large: nothing is queued behind it.
    Exclusive,
    /// The current response takes far longer than usual.
    Late,
    /// Running empty on purpose: a sync point.
    Syncing,
    /// Follows a loss: one request at a time until the first response.
    Probation,
    /// A request that nothing may follow is unanswered.
    Held,
    /// Has as many unanswered requests as it may have.
    Full,
    /// Has unanswered requests and takes more.
    Busy,
    /// Nothing is unanswered.
    Idle,
}

impl ConnectionState {
    /// All states.
    pub const ALL: [ConnectionState; 14] = [
        ConnectionState::Parked,
        ConnectionState::Spare,
        ConnectionState::Down,
        ConnectionState::Connecting,
        ConnectionState::Ending,
        ConnectionState::Paused,
        ConnectionState::Exclusive,
        ConnectionState::Late,
        ConnectionState::Syncing,
        ConnectionState::Probation,
        ConnectionState::Held,
        ConnectionState::Full,
        ConnectionState::Busy,
        ConnectionState::Idle,
    ];

    /// Returns the word for status and metrics.
    pub fn word(self) -> &'static str {
        match self {
            ConnectionState::Parked => "parked",
            ConnectionState::Spare => "spare",
            ConnectionState::Down => "down",
            ConnectionState::Connecting => "connecting",
            ConnectionState::Ending => "ending",
            ConnectionState::Paused => "paused",
            ConnectionState::Exclusive => "exclusive",
            ConnectionState::Late => "late",
            ConnectionState::Syncing => "syncing",
            ConnectionState::Probation => "probation",
            ConnectionState::Held => "held",
            ConnectionState::Full => "full",
            ConnectionState::Busy => "busy",
            ConnectionState::Idle => "idle",
        }
    }

    /// Whether it is established.
    pub fn is_up(self) -> bool {
        use ConnectionState::{Connecting, Down, Parked, Spare};
        !matches!(self, Parked | Spare | Down | Connecting)
    }
}
