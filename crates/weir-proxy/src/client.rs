//! The clients of a worker: their connections, the requests on them, and the responses on their way
//! out.
//!
//! Owns the tables of client connections and of exchanges; no other module can reach them. Requests
//! pass to the servers' side by [`Requests`](crate::cross::router::Requests), which is at hand only
//! while data of a client is read. Everything else that the servers' side has to know (a response
//! is no longer wanted, don't read on for this client) is mail. Responses come by
//! [`Replies`](crate::cross::router::Replies).
//!
//! [`Clients`] reads heads, bodies and tunnels, and checks for what has waited too long. Below it,
//! each without a way back up:
//!
//! - [`Asks`] forwards requests, `ForwardProxy` decides about those of its clients;
//! - [`Answers`] sends to clients: responses in their order, sends, the ends of connections;
//! - [`Connections`] has the tables and the list of clients to look at next, [`Records`] what the
//!   access log learns;
//! - `ClientConn` and `Exchange` (`connection.rs`) are one connection and one request, and change
//!   their states in one place each;
//! - `Http1` (`http1.rs`, `http1/order.rs`) is the codec: it alone knows the order in which
//!   responses leave, and their bytes.
//!
//! Invariants: responses leave in the order of requests; a codec keeps its promises; unanswered
//! requests <= `queue` + 1; every wait has its timer ([`Connections::audit`]). Bounds:
//! docs/buffers.md.

pub(crate) mod accept;
mod account;
mod answer;
mod ask;
pub(crate) mod banned;
pub(crate) mod cache;
mod codec;
mod compressing;
pub(crate) mod connection;
mod connections;
mod departed;
mod errands;
pub(crate) mod fallback;
mod glitches;
mod grpc;
mod guard;
mod http1;
mod http2;
pub(crate) mod input;
mod messages;
pub(crate) mod moving;
pub(crate) mod pace;
mod patience;
mod receive;
mod relays;
pub(crate) mod room;
mod ruling;
mod sending;
mod settled;
mod stalls;
mod tarpit;
mod timers;
mod tunnels;
mod unsent;
mod uploads;
mod visitors;

use std::sync::Arc;

use weir_http::Fields;
use weir_http::h2::Heads;

pub use accept::Unwanted;
pub(crate) use accept::{admit_flow, flow_left, keep_flow};
use account::Records;
pub(crate) use answer::Answers;
use ask::Asks;
pub use cache::outlook;
pub use departed::Sight;
pub(crate) use departed::client_seen;
use guard::Guard;
pub use guard::{Door, Visit};
pub use moving::MovedClient;
pub use pace::Taken;

use crate::action::Action;
use crate::base::keys::ClientKey;
use crate::base::sweep::Sweep;
use crate::client::connection::ClientConn;
use crate::client::connections::Connections;
use crate::context::Context;
use crate::forward::decide::ForwardProxy;
use crate::observe::histogram::Histogram;
use crate::request::identity::Identities;

/// See the module.
#[derive(Debug)]
pub(crate) struct Clients {
    answers: Answers,
    forward: ForwardProxy,
    asks: Asks,
    /// Makes the identifiers of requests.
    identities: Identities,
    /// Fields of the head that is being read; kept for its memory.
    fields: Fields,
    /// The path that is being routed; kept for its memory.
    path: Vec<u8>,
    /// Where heads of HTTP/2 are read; kept for its memory.
    heads: Heads,
    /// The scan for connections of clients that have just been banned.
    cutting: Sweep,
    /// When to look next for idle clients that can make room for others.
    room_us: u64,
}

impl Clients {
    /// Connections and requests, read-only.
    #[inline]
    pub(crate) fn conns(&self) -> &Connections {
        &self.answers.conns
    }

    /// Adopts a new plan.
    pub(crate) fn adopt(&mut self, cx: &mut Context) {
        self.answers.records.adopt(&cx.plan);
        let mut guard = self.answers.conns.guard.take();
        for index in guard.as_mut().map(|guard| guard.take_deferred()).unwrap_or_default() {
            let socket = self.conn(index).socket;
            cx.actions.push_back(Action::DeferClient { socket, on: false });
        }
        self.answers.conns.guard = Guard::of(&cx.plan, guard);
    }

    /// A connection.
    ///
    /// # Panics
    /// The connection does not exist: as [`Slab::at`](crate::base::slab::Slab::at).
    #[inline]
    fn conn(&self, index: ClientKey) -> &ClientConn {
        self.answers.conns.at(index)
    }

    /// A connection, mutable.
    ///
    /// # Panics
    /// As [`Clients::conn`].
    #[inline]
    fn conn_mut(&mut self, index: ClientKey) -> &mut ClientConn {
        self.answers.conns.at_mut(index)
    }

    /// Whether a connection still exists; only for use right after it was known to exist.
    #[inline]
    fn is_there(&self, index: ClientKey) -> bool {
        self.answers.conns.is_there(index)
    }

    /// The part that takes what arrives from the servers' side for clients.
    #[inline]
    pub(crate) fn answers(&mut self) -> &mut Answers {
        &mut self.answers
    }

    /// The access log.
    pub(crate) fn records(&mut self) -> &mut Records {
        &mut self.answers.records
    }

    /// Creates it without clients. `secret`: see [`Parts`](crate::engine::Parts).
    pub(crate) fn new(
        times: (Arc<Histogram>, Arc<Histogram>),
        secret: [u64; 2],
        cx: &Context,
    ) -> Clients {
        Clients {
            answers: Answers::new(times, cx),
            forward: ForwardProxy::default(),
            asks: Asks::new(secret),
            identities: Identities::new(secret),
            fields: Fields::default(),
            path: Vec::new(),
            heads: Heads::default(),
            cutting: Sweep::default(),
            room_us: 0,
        }
    }
}
