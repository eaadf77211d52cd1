//! Plain TCP: which machines are called when something happens to a connection of `tcp`
//! ([`Flows`]).

use std::net::SocketAddr;
use std::sync::Arc;

use super::{Engine, Unwanted};
use crate::action::MeasuredArm;
use crate::base::token::Token;
use crate::observe::arms::PathFigures;
use crate::plan::{Entrance, Side};
pub use crate::tcp::Over;
use crate::tcp::{Flows, Sides};
use crate::upstream::port_taken;

/// An event of a connection of `tcp`, besides those that it shares with servers' connections
/// ([`Engine::upstream_started`], [`Engine::upstream_connected`]) and tunnels
/// ([`Engine::relay_looked`]).
#[derive(Debug, Clone, Copy)]
pub enum FlowEvent<'a> {
    /// Its client sent bytes.
    Received(&'a [u8]),
    /// Its client closed its direction, as a receive has found.
    Ended,
    /// Its client's connection broke, as a receive has found.
    Failed,
    /// Its connect could not be begun, because descriptors or memory ran out: that says nothing of
    /// the server.
    Unstarted,
    /// The driver no longer moves its bytes. Both sockets are still open.
    RelayEnded {
        /// Bytes from the client and to it.
        moved: (u64, u64),
        /// How it is over.
        over: Over,
    },
}

/// Handles an event of a connection of `tcp`.
pub fn on_flow(engine: &mut Engine, token: u64, event: FlowEvent<'_>) {
    let (flows, mut sides) = parts(engine);
    match event {
        FlowEvent::Received(bytes) => flows.received(token, bytes, &mut sides),
        FlowEvent::Ended => flows.client_ended(token, &mut sides),
        FlowEvent::Failed => flows.client_failed(token, &mut sides),
        FlowEvent::Unstarted => flows.unstarted(token, &mut sides),
        FlowEvent::RelayEnded { moved, over } => flows.relay_ended(token, moved, over, &mut sides),
    }
    engine.pass_on();
}

/// A client of `tcp` has this congestion control, one of several of its listener. The client that
/// the token names may be gone.
pub fn divided(engine: &mut Engine, token: u64, name: &Arc<str>) {
    engine.flows.has_arm(token, Side::Client, name);
}

/// The results of a connection with one of several congestion controls.
pub fn measured(engine: &mut Engine, arm: &MeasuredArm, figures: PathFigures) {
    engine.flows.arms.count(arm.side, &arm.name, arm.lasted_us, figures);
}

/// A connect to a server can't be made from the requested port: the port already has a connection
/// there, or belongs to another program.
pub fn on_port_taken(engine: &mut Engine, token: u64) {
    if Token::is_flow(token) {
        let (flows, mut sides) = parts(engine);
        flows.port_taken(token, &mut sides);
    } else {
        port_taken(&mut engine.upstreams, token, &mut engine.cx);
    }
    engine.pass_on();
}

/// weir ends now: resets the connections of `tcp` that are under way, and counts them as ended for
/// that reason.
pub fn stop_flows(engine: &mut Engine) {
    let (flows, mut sides) = parts(engine);
    flows.stop(&mut sides);
    engine.pass_on();
}

/// The flows, and the sides that they need.
pub(super) fn parts(engine: &mut Engine) -> (&mut Flows, Sides<'_>) {
    let Engine { flows, clients, upstreams, cx, .. } = engine;
    (flows, Sides { clients, upstreams, cx })
}

/// A client of `tcp` connected.
///
/// # Errors
/// It is not wanted.
pub(super) fn accepted(
    engine: &mut Engine,
    socket: u64,
    peer: SocketAddr,
    entrance: Entrance,
) -> Result<u64, Unwanted> {
    let (flows, mut sides) = parts(engine);
    let token = flows.accepted(socket, peer, entrance, &mut sides);
    engine.pass_on();
    token
}

/// All events of a turn were handled.
pub(super) fn settle(engine: &mut Engine) {
    let (flows, mut sides) = parts(engine);
    flows.join(&mut sides);
}

/// Looks for impossible states.
///
/// # Errors
/// The first broken invariant, in words.
pub(super) fn audit(engine: &Engine) -> Result<(), String> {
    engine.flows.audit(&engine.upstreams, &engine.cx)
}
