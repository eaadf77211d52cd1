//! Idle connections that move to another worker, or come from one (stage accept): see
//! [`crate::engine::part`].
//!
//! A connection moves only between two requests, when no part of the next one has arrived and only
//! these tables hold anything for it: no response, no body, no tunnel, no private upstream
//! connection, no errand. HTTP/2, TLS, clients of the forward proxy and those with deferred input
//! never move. The facts about the client move along ([`MovedClient`]), so that neither limits nor
//! timeouts start over: the place where it counts as open in the accounts of `shield` is given back
//! if no worker takes the connection. Bound: one pass over the connections, for the worker that
//! gives some away.

use std::net::{IpAddr, SocketAddr};

use super::Clients;
use super::accept::Unwanted;
use super::connection::{ClientConn, Flags, Reading};
use super::connections::Connections;
use super::guard::Standing;
use super::visitors::Vouched;
use crate::base::keys::ClientKey;
use crate::context::Context;
use crate::ending::ClientEnd;
use crate::request::destination::Original;

/// An idle client connection between two workers, without its socket.
#[derive(Debug)]
pub struct MovedClient {
    peer: IpAddr,
    port: u16,
    /// When it became idle, microseconds of the clock of all workers.
    since_us: u64,
    glitches: u32,
    /// The entrance that it came in by.
    listener: u32,
    late: bool,
    may_be_http2: bool,
    /// It has sent a request before.
    has_asked: bool,
    /// Its place among the open connections, and its refusals in a row.
    standing: Standing,
    /// Its verified user.
    vouched: Option<Vouched>,
    /// The destination that it connected to.
    destination: Option<Original>,
}

impl MovedClient {
    /// The number of the listener that it came in by.
    pub fn listener(&self) -> u32 {
        self.listener
    }
}

/// Whether a connection is idle, and all facts about it can move.
fn may_part(conns: &Connections, index: ClientKey, conn: &ClientConn) -> bool {
    let rests = conn.reading() == Reading::Head && conn.stash.is_none() && conn.has_sent_all();
    // Anything else means that something is under way that belongs here.
    let has_none = conn.stream.is_none()
        && conn.relay.is_none()
        && conn.proxied.is_none()
        && conn.shown.is_none();
    let has_none = has_none && conn.stalls.is_none();
    rests
        && has_none
        && conn.flags.is_plain()
        && !conns.tarpit.is_held(index)
        && conns.guard.as_ref().is_none_or(|guard| !guard.is_deferred(index))
}

/// Up to `most` idle connections, those with the latest requests first.
fn idle(conns: &Connections, most: usize) -> Vec<ClientKey> {
    if conns.is_draining() {
        return Vec::new();
    }
    let idle = conns.all().filter(|(index, conn)| may_part(conns, *index, conn));
    let mut idle: Vec<(u64, ClientKey)> =
        idle.map(|(index, conn)| (conn.since_us, index)).collect();
    let latest_first =
        |(since_us, index): &(u64, ClientKey)| (std::cmp::Reverse(*since_us), *index);
    if most < idle.len() {
        idle.select_nth_unstable_by_key(most, latest_first);
        idle.truncate(most);
    }
    idle.sort_unstable_by_key(latest_first);
    idle.into_iter().map(|(_, index)| index).collect()
}

impl Flags {
    /// Whether no flag ties the connection to its worker.
    fn is_plain(&self) -> bool {
        let Flags { sending, dirty, stopped, ended, close, unread, reset, shut, .. } = *self;
        let Flags { tunnel_ended, proxied, has_pool, sealed, leaves, unverified, .. } = *self;
        !(sending || dirty || stopped || ended || close || unread || reset || shut)
            && !(tunnel_ended || proxied || has_pool || sealed || leaves || unverified)
    }
}

/// Gives up to `most` idle connections away: returns the driver's name of each, and the facts about
/// it. Nothing of them remains here.
pub(crate) fn part(clients: &mut Clients, most: usize, cx: &Context) -> Vec<(u64, MovedClient)> {
    let conns = &mut clients.answers.conns;
    let mut parted = Vec::new();
    for index in idle(conns, most) {
        let standing = conns.guard.as_mut().map(|guard| guard.part(index)).unwrap_or_default();
        let vouched = conns.visitors.take_vouched(index);
        let destination = conns.destinations.take(index).map(Original::elsewhere_counted);
        let conn = conns.remove(index);
        cx.counters.client_connections.sub(1);
        let ClientConn { socket, peer, port, since_us, send_us, glitches, listener, flags, .. } =
            conn;
        let Flags { late, may_be_http2, .. } = flags;
        let client = MovedClient {
            peer,
            port,
            since_us,
            glitches,
            listener,
            late,
            may_be_http2,
            has_asked: send_us > 0,
            standing,
            vouched,
            destination,
        };
        parted.push((socket, client));
    }
    parted
}

/// Takes a connection that another worker, or this worker, has given away. It is read from now on.
/// `is_leaving`: its listener closes. Returns the token that names it.
///
/// # Errors
/// Its client was banned meanwhile.
pub(crate) fn arrive(
    clients: &mut Clients,
    socket: u64,
    client: MovedClient,
    is_leaving: bool,
    cx: &mut Context,
) -> Result<u64, Unwanted> {
    if cx.is_banned(client.peer) {
        cx.counters.client_closes.count(ClientEnd::Banned);
        return Err(Unwanted::Reset);
    }
    let peer = SocketAddr::new(client.peer, client.port);
    let conns = &mut clients.answers.conns;
    if is_leaving {
        conns.expect_leaving();
    }
    let mut conn = ClientConn::new(socket, peer, client.since_us.min(cx.now_us));
    conn.glitches = client.glitches;
    conn.listener = client.listener;
    conn.flags.late = client.late;
    conn.flags.may_be_http2 = client.may_be_http2;
    if client.has_asked {
        conn.send_us = conn.since_us.max(1);
    }
    conn.flags.leaves = conns.is_draining() || is_leaving;
    if conn.flags.leaves {
        // Input that it has sent in between is not read yet.
        conn.since_us = cx.now_us;
    }
    let (index, _) = conns.conns.insert(conn);
    cx.counters.client_connections.add(1);
    if let Some(destination) = client.destination {
        conns.destinations.put(index, destination);
    }
    if let Some(vouched) = client.vouched {
        conns.visitors.put_vouched(index, vouched);
    }
    if let Some(guard) = &mut conns.guard {
        guard.settle(index, client.standing);
    }
    conns.arm(index, cx);
    let token = conns.token(index);
    clients.answers.records.accepted(index, peer);
    Ok(token)
}

/// Closes a connection that was given away. `why`: the reason.
pub(crate) fn lost(client: MovedClient, why: ClientEnd, cx: &Context) {
    cx.counters.client_closes.count(why);
    drop(client);
}
