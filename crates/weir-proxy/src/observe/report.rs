//! What one worker's servers and connections are at a moment, told when somebody asks
//! (docs/semantics.md#what-you-can-observe).
//!
//! Made by [`crate::engine::Engine::report`] in the worker's thread, between two turns, so that all of it belongs together;
//! read elsewhere. A request pays nothing for it, a report costs a visit to each connection. Times are relative to the
//! moment of the report, microseconds. Bound: one row for each connection there is, and
//! those of [`crate::observe::accounting`].

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
    /// Their requests without a complete answer.
    pub exchanges: usize,
    /// Nothing new is accepted.
    pub draining: bool,
    /// By server, upstream after upstream.
    pub servers: Vec<ServerReport>,
    /// Requests that were in flight when servers died.
    pub suspects: Vec<Suspect>,
    /// What clients do who choose where they go; None: there are none such.
    pub usage: Option<UsageReport>,
    /// Congestion controls that share connections of `tcp`.
    pub arms: Vec<ArmReport>,
}

/// What clients who choose where they go do on one worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageReport {
    /// By host and port.
    pub destinations: UsedReport,
    /// By name.
    pub users: UsedReport,
}

/// A table of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsedReport {
    /// In no order; at most [`ROWS_MAX`](crate::observe::accounting::ROWS_MAX).
    pub rows: Vec<UsedRow>,
    /// What those did that have no row any more.
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
    /// What was done.
    pub used: Use,
}

/// One server as one worker sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerReport {
    /// Whether it takes requests, and why not.
    pub standing: State,
    /// How long it has been suspended, for [`State::Suspended`]; else 0.
    pub suspended_us: u64,
    /// Connections that take requests.
    pub ready: u32,
    /// Requests can go there: a connection is up, or can be made as far as is known.
    pub reachable: bool,
    /// Requests that wait for a connection.
    pub waiting: u32,
    /// Requests on connections, unanswered.
    pub unanswered: u32,
    /// Requests that may wait or be unanswered in all.
    pub capacity: u32,
    /// Connections set aside, because the clients of the answers under way have not read for a while.
    pub aside: u32,
    /// Connections joined with a client after 101.
    pub tunnels: u32,
    /// Nothing is left there: no request, no connection, no probe.
    pub vacant: bool,
    /// Failed connects in a row.
    pub failures: u32,
    /// Whether it may be pipelined.
    pub trust: TrustState,
    /// How long that stays so, for [`TrustState::Penalty`]; else 0.
    pub penalty_us: u64,
    /// What it is for.
    pub penalty_for: Option<Doubt>,
    /// Unanswered requests that a connection may have now, 1 when it may not be pipelined.
    pub depth: u32,
    /// With `pool "fresh"`.
    pub fresh: Option<FreshReport>,
    /// How many requests it works on at once, where more are known to be worse; the same on all workers.
    pub limit: Option<LearnedLimit>,
    /// Which requests are known to be alike, those first that are asked for most.
    pub classes: Vec<ClassReport>,
    /// By position.
    pub connections: Vec<ConnectionReport>,
}

/// Kept connections beside those that are made for one request, on one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreshReport {
    /// Requests go on connections that are made for them.
    pub in_force: bool,
    /// Such connections, those that are being made included.
    pub connections: u32,
    /// From a request to the beginning of its answer on a kept connection lately: the 99th percentile, microseconds; None: not known.
    pub kept_p99_us: Option<u64>,
    /// The same on one that was made for it.
    pub fresh_p99_us: Option<u64>,
}

/// One connection of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionReport {
    /// Number among all connections of the server, over all workers, from 0.
    pub number: u32,
    /// Where it stands.
    pub state: ConnectionState,
    /// How long it has been established, or down, or connecting.
    pub since_us: u64,
    /// When it is [`ConnectionState::Down`]: the time to the next try.
    pub retry_us: u64,
    /// Requests given to the kernel and unanswered.
    pub in_flight: u32,
    /// Requests in line behind those.
    pub queued: u32,
    /// Answers since it was established: how often it was reused, and once.
    pub answers: u64,
    /// Times that it, or its predecessors in this position, ended or could not be established.
    pub closes: u64,
    /// Why the last one did.
    pub closed_why: Option<UpstreamEnd>,
    /// Glitches since it was established.
    pub glitches: u32,
    /// Whether its packets arrive at this worker's core; None: not known.
    pub near: Option<bool>,
}

/// Where a connection stands; the first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionState {
    /// Not connected, by order of an operator.
    Parked,
    /// Not connected, because no request needs it.
    Spare,
    /// Not connected.
    Down,
    /// A connect is on its way.
    Connecting,
    /// Ends with the answer under way.
    Ending,
    /// The client of the answer under way takes it slowly.
    Paused,
    /// The answer under way is large: nothing is queued behind it.
    Exclusive,
    /// The answer under way takes far longer than usual.
    Late,
    /// Being let run empty: a sync point.
    Syncing,
    /// Follows a loss: one request at a time until the first answer.
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
    /// All of them.
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

    /// For status and metrics.
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
