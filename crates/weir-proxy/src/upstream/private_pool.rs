//! What belongs to one client connection and to nobody else: its upstream connections, and the request that waits for a new one.
//!
//! Used with `pool` pinned and per-request and by the forward proxy. A client connection without any of it has none of this
//! memory. Bound: [`PrivatePool::links`] by the number of upstreams, or by `destinations`. docs/semantics.md §8, §9.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::base::keys::{ClientKey, ConnKey, ServerIndex};
use crate::observe::accounting::Account;
use crate::request::destination::Destination;
use crate::upstream::backoff::Backoff;
use crate::upstream::queue::Waiting;

/// What belongs to one client connection.
#[derive(Debug, Default)]
pub(crate) struct PrivatePool {
    /// Upstream connections that its requests use, the least recently used one first.
    pub links: Vec<PrivateConn>,
    /// The request for which a connection is being made; one at a time.
    pub approach: Option<Box<ConnectAttempt>>,
    /// Where its present request goes, where the upstream doesn't say that.
    pub destination: Option<Arc<Destination>>,
    /// To whom that is charged.
    pub account: Account,
}

/// Whose connection it is, where it belongs to no pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    /// Slot of the client; it keeps that until its connections have ended.
    pub client: ClientKey,
    /// For one request, not for the client's next ones.
    pub once: bool,
}

/// An upstream connection of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PrivateConn {
    /// Slot in the table of connections.
    pub index: ConnKey,
    /// Occupant of the slot.
    pub generation: u32,
    /// Index of its upstream in the plan.
    pub upstream: u16,
    /// Where it leads to, as [`Destination::name`]; empty where the upstream says that.
    pub destination: Box<str>,
}

/// A request for which a connection is being made, to one of several addresses.
#[derive(Debug)]
pub(crate) struct ConnectAttempt {
    /// The request.
    pub waiting: Waiting,
    /// The server.
    pub server: ServerIndex,
    /// Addresses that were not tried yet.
    pub more: VecDeque<SocketAddr>,
    /// Connects under way, the oldest first: slot and occupant.
    pub attempts: Vec<(ConnKey, u32)>,
    /// A connect was not answered in time.
    pub timed_out: bool,
    /// Servers that could not be reached for it.
    pub tried: Tried,
    /// When servers are asked again; `u64::MAX`: connects are under way.
    pub retry_us: u64,
}

/// Servers that could not be reached for a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tried {
    /// How many, each as often as it was tried.
    pub servers: u32,
    /// How often all had been tried, and how long to wait then.
    pub rounds: Backoff,
}

impl PrivatePool {
    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty() && self.approach.is_none()
    }

    /// Takes a connection out of those that may be used again.
    pub(crate) fn forget(&mut self, index: ConnKey) {
        self.links.retain(|link| link.index != index);
    }

    /// Notes that a connection is the one that was used last.
    pub(crate) fn touch(&mut self, position: usize) {
        let link = self.links.remove(position);
        self.links.push(link);
    }
}
