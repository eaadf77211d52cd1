//! The clients of a worker: their connections, the requests on them, and the answers on their way out.
//!
//! Owns the tables of client connections and of exchanges, and nobody else can reach them. Requests go to the servers' side by
//! [`Requests`](crate::cross::router::Requests), which is at hand only while something of a client is read; everything else that it has
//! to know (nobody wants this answer any more, don't read on for this client) goes by mail. Answers come by
//! [`Replies`](crate::cross::router::Replies).
//!
//! Invariants: answers leave in the order of requests; `held_bytes` of a connection is the sum of what its exchanges hold, the first one
//! aside; `queued` <= `queue` + 1; whatever is waited for has its timer ([`Connections::audit`]). Bounds: docs/buffers.md.

mod account;
mod answer;
mod ask;
pub(crate) mod connection;
mod connections;
mod errands;
mod glitches;
mod messages;
mod patience;
mod relays;
mod requests;
mod sending;
mod timers;
mod tunnels;
mod uploads;

use std::sync::Arc;

use weir_http::Fields;

use account::Records;
pub(crate) use answer::{Lines, Stop};

use crate::base::stamp::Stamper;
use crate::client::connections::Connections;
use crate::context::Context;
use crate::cross::retry_copy::RetryCopies;
use crate::forward::decide::ForwardProxy;
use crate::observe::histogram::Histogram;

/// See the module.
#[derive(Debug)]
pub(crate) struct Clients {
    conns: Connections,
    records: Records,
    latency: Arc<Histogram>,
    fields: Fields,
    path: Vec<u8>,
    /// Copies of requests that are with other workers.
    shelf: RetryCopies,
    stamper: Stamper,
    serial: u64,
    forward: ForwardProxy,
}

impl Clients {
    /// Connections and requests, to be looked at.
    #[inline]
    pub(crate) fn conns(&self) -> &Connections {
        &self.conns
    }

    /// The access log.
    pub(crate) fn records(&mut self) -> &mut Records {
        &mut self.records
    }

    /// None yet. `secret`: see [`Parts`](crate::engine::Parts).
    pub(crate) fn new(latency: Arc<Histogram>, secret: [u64; 2], cx: &Context) -> Clients {
        Clients {
            conns: Connections::default(),
            records: Records::new(&cx.plan, cx.worker),
            latency,
            fields: Fields::default(),
            path: Vec::new(),
            shelf: RetryCopies::default(),
            stamper: Stamper::new(secret),
            serial: 0,
            forward: ForwardProxy::default(),
        }
    }
}
