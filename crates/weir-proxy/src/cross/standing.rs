//! The standing of a server on all workers: an operator's orders, and the evidence that its judge
//! has found against it.
//!
//! [`ServerState`](crate::upstream::server_state::ServerState) decides what follows from both.
//! docs/failover.md.

use std::fmt;

use crate::ending::ServerTlsFailure;

/// An operator's order for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// To serve.
    #[default]
    Enable,
    /// To finish what it has and take nothing new, but for clients that are bound to it.
    Drain,
    /// To finish the requests in flight and to be left alone then, without connections.
    Disable,
}

impl Order {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Order; 3] = [Order::Enable, Order::Drain, Order::Disable];

    /// As written on the command line and in the log.
    pub fn word(self) -> &'static str {
        match self {
            Order::Enable => "enable",
            Order::Drain => "drain",
            Order::Disable => "disable",
        }
    }
}

/// Why a server is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspensionCause {
    /// It gave as many bad responses as a `failover` rule allows.
    Answers {
        /// Which rule of its upstream.
        rule: u8,
    },
    /// As many of its connections were lost as a `failover` rule allows.
    Losses {
        /// Which rule of its upstream.
        rule: u8,
    },
    /// As many probes failed as `fall` says.
    Probe {
        /// The fault that the last one found.
        fault: ProbeFault,
    },
}

impl SuspensionCause {
    /// For status and log.
    pub fn word(self) -> &'static str {
        match self {
            SuspensionCause::Answers { .. } => "answers",
            SuspensionCause::Losses { .. } => "losses",
            SuspensionCause::Probe { fault } => fault.word(),
        }
    }
}

/// The evidence of health against a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspension {
    /// Why.
    pub cause: SuspensionCause,
    /// Since when.
    pub since_us: u64,
}

/// The faults that a probe can find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeFault {
    /// No connection.
    Connect,
    /// No TLS on it.
    Tls(ServerTlsFailure),
    /// No complete response in time.
    Timeout,
    /// The connection ended before the response did.
    Closed,
    /// Not an HTTP response, or one beyond the limits.
    Garbage,
    /// An unexpected status.
    Status(u16),
    /// The body is not what it should be.
    Body,
}

impl ProbeFault {
    /// For status and log.
    pub fn word(self) -> &'static str {
        match self {
            ProbeFault::Connect => "probe-connect",
            ProbeFault::Tls(why) => why.word(),
            ProbeFault::Timeout => "probe-timeout",
            ProbeFault::Closed => "probe-closed",
            ProbeFault::Garbage => "probe-garbage",
            ProbeFault::Status(_) => "probe-status",
            ProbeFault::Body => "probe-body",
        }
    }
}

impl fmt::Display for ProbeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeFault::Connect => f.write_str("no connection"),
            ProbeFault::Tls(why) => f.write_str(why.text()),
            ProbeFault::Timeout => f.write_str("no response in time"),
            ProbeFault::Closed => f.write_str("closed before the response was complete"),
            ProbeFault::Garbage => f.write_str("not a valid response"),
            ProbeFault::Status(status) => write!(f, "status {status}"),
            ProbeFault::Body => f.write_str("unexpected body"),
        }
    }
}
