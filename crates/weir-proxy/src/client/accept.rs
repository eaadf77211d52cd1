//! A client connects (stage accept).

use std::net::{IpAddr, SocketAddr};

use super::connections::is_crowded;
use super::{Clients, Visit, guard};
use crate::base::keys::FlowKey;
use crate::context::Context;
use crate::observe::secured::Secured;
use crate::plan::{Entrance, Over, Protocols};
use crate::shield::table::Place;

/// A client that a [`Door`](super::Door) admitted earlier has finished its handshake. `visit`: the
/// result of the door. Otherwise as [`Clients::accepted`].
///
/// # Errors
/// The client is not wanted: it was banned meanwhile, or no room is left.
pub(crate) fn accepted_by_door(
    clients: &mut Clients,
    socket: u64,
    peer: SocketAddr,
    entrance: Entrance,
    visit: Option<Visit>,
    cx: &mut Context,
) -> Result<u64, Unwanted> {
    if cx.is_banned(peer.ip()) {
        cx.counters.connections_banned.increment();
        return Err(Unwanted::Reset);
    }
    let guard = clients.answers.conns.guard.as_deref();
    let open = visit.and_then(|visit| guard::take_visit(guard, visit));
    keep(clients, socket, peer, entrance, open, cx)
}

/// Turns an admitted client into a connection. `open`: the place where it counts as open.
fn keep(
    clients: &mut Clients,
    socket: u64,
    peer: SocketAddr,
    entrance: Entrance,
    open: Option<Place>,
    cx: &mut Context,
) -> Result<u64, Unwanted> {
    let Some(index) = clients.answers.conns.accept(socket, peer, entrance, cx) else {
        clients.answers.conns.guard.iter().for_each(|guard| guard.turn_away(open));
        return Err(Unwanted::Close);
    };
    clients.answers.conns.guard.iter_mut().for_each(|guard| guard.keep(index, open));
    clients.answers.records.accepted(index, peer);
    match entrance.protocols {
        Protocols { http2: false, .. } => {}
        Protocols { http1: true, .. } => clients.conn_mut(index).flags.may_be_http2 = true,
        Protocols { http1: false, .. } => clients.answers.begin_http2(index, cx),
    }
    Ok(clients.answers.conns.token(index))
}

/// What to do with a connection that is not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwanted {
    /// Close it.
    Close,
    /// Reset it: nothing of it remains, not even in the kernel.
    Reset,
}

impl From<Over> for Unwanted {
    fn from(over: Over) -> Unwanted {
        if over == Over::Close { Unwanted::Close } else { Unwanted::Reset }
    }
}

/// Decides whether a client that has just connected may stay; returns where it counts as open.
fn admit(clients: &mut Clients, peer: IpAddr, cx: &Context) -> Result<Option<Place>, Unwanted> {
    if cx.is_banned(peer) {
        cx.counters.connections_banned.increment();
        return Err(Unwanted::Reset);
    }
    match &mut clients.answers.conns.guard {
        Some(guard) => Ok(guard::admit(guard, peer, cx)?),
        None => Ok(None),
    }
}

/// The same for a client of `tcp`: [`keep_flow`] takes the place where it counts as open.
///
/// # Errors
/// It is not wanted.
pub(crate) fn admit_flow(
    clients: &mut Clients,
    peer: IpAddr,
    cx: &Context,
) -> Result<Option<Place>, Unwanted> {
    let open = admit(clients, peer, cx)?;
    if is_crowded(&clients.answers.conns, cx) {
        cx.counters.connections_refused.add(1);
        clients.answers.conns.guard.iter().for_each(|guard| guard.turn_away(open));
        return Err(Unwanted::Close);
    }
    Ok(open)
}

/// Records that an admitted client of `tcp` is this flow.
pub(crate) fn keep_flow(clients: &mut Clients, key: FlowKey, open: Option<Place>) {
    clients.answers.conns.guard.iter_mut().for_each(|guard| guard.keep_flow(key, open));
}

/// Records that a flow has ended.
pub(crate) fn flow_left(clients: &mut Clients, key: FlowKey) {
    clients.answers.conns.guard.iter_mut().for_each(|guard| guard.flow_left(key));
}

impl Clients {
    /// Takes a client that has connected. Returns the token that names it.
    ///
    /// # Errors
    /// It is not wanted.
    pub(crate) fn accepted(
        &mut self,
        socket: u64,
        peer: SocketAddr,
        entrance: Entrance,
        cx: &mut Context,
    ) -> Result<u64, Unwanted> {
        let open = admit(self, peer.ip(), cx)?;
        keep(self, socket, peer, entrance, open, cx)
    }

    /// A client that was just accepted speaks TLS.
    pub(crate) fn client_sealed(&mut self, token: u64, mut secured: Secured) {
        let Some(index) = self.answers.conns.of_token(token) else { return };
        let conn = self.conn_mut(index);
        conn.flags.sealed = true;
        conn.shown = secured.shown.take();
        self.answers.records.sealed(index, secured);
    }
}
