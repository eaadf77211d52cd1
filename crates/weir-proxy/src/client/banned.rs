//! Banned clients (stages accept and route): weir rejects their new connections, resets the open
//! ones, and refuses requests that a trusted proxy forwards for them.
//!
//! Called by [`Clients::accepted`] and `Clients::request_parsed`, and by the engine at the end of
//! each turn as long as connections remain to be scanned. Other modules decide who is banned
//! ([`crate::shield::bans`]); an expired ban has no effect. Bound: a slice of the connections a
//! turn ([`Sweep`](crate::base::sweep::Sweep)). docs/bans.md.

use std::net::IpAddr;

use weir_http::{Fields, RequestHead};

use super::Clients;
use crate::base::keys::{ClientKey, Key as _};
use crate::cause::{Cause, Local};
use crate::client::connection::ClientConn;
use crate::context::Context;
use crate::ending::ClientEnd;
use crate::request::client_address::client_address;
use crate::shield::bans::Offence;

/// The client of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    /// Its address.
    pub(super) client: IpAddr,
    /// A trusted proxy has named it, or has named no client and is itself meant.
    pub(super) by_proxy: bool,
    /// That proxy has named no client: the request may be from any.
    pub(super) is_unknown: bool,
}

/// Returns the client that is to be banned, if one is.
pub(crate) fn take_offence(clients: &mut Clients) -> Option<Offence> {
    clients.answers.conns.guard.as_mut()?.take_offence()
}

/// The set of banned clients has changed.
pub(crate) fn look_for_banned(clients: &mut Clients) {
    clients.cutting.begin(clients.answers.conns.conns.slots());
}

/// Whether connections remain that may belong to a banned client.
pub(crate) fn is_cutting(clients: &Clients) -> bool {
    clients.cutting.is_due()
}

/// Resets some of the connections of banned clients.
pub(crate) fn cut_off(clients: &mut Clients, cx: &mut Context) {
    let slots = clients.answers.conns.conns.slots();
    for index in clients.cutting.slice(slots).map(ClientKey::new) {
        // Streams end with the connection that carries them. Other clients may wait for what one
        // client caused to be fetched.
        let goes = |conn: &ClientConn| {
            conn.stream.is_none() && !conn.is_fetch() && cx.is_banned(conn.peer)
        };
        if clients.is_there(index) && goes(clients.conn(index)) {
            clients.conn_mut(index).flags.reset = true;
            clients.answers.close_conn(index, ClientEnd::Banned, cx);
        }
    }
}

/// Returns the client of a request.
pub(super) fn asker(
    clients: &Clients,
    index: ClientKey,
    fields: &Fields,
    bytes: &[u8],
    cx: &Context,
) -> Asker {
    let conn = clients.answers.conns.at(index);
    // Clients of a forward proxy speak for themselves.
    let by_proxy = !conn.flags.proxied && cx.plan.client.trusts(conn.peer);
    let client = if by_proxy {
        client_address(conn.peer, fields, bytes, &cx.plan.client)
    } else {
        conn.peer
    };
    Asker { client, by_proxy, is_unknown: by_proxy && client == conn.peer }
}

/// Returns whether a request is refused because a trusted proxy forwards it for a banned client. A
/// banned client that connects directly is reset instead.
#[inline(never)]
pub(super) fn is_barred(
    clients: &mut Clients,
    index: ClientKey,
    head: &RequestHead,
    fields: &Fields,
    bytes: &[u8],
    cx: &mut Context,
) -> bool {
    let asker = asker(clients, index, fields, bytes, cx);
    if !asker.by_proxy || asker.is_unknown || !cx.is_banned(asker.client) {
        return false;
    }
    let exchange = clients.add_exchange(index, head, fields, bytes, cx);
    let here = bytes.len() > head.bytes;
    clients.answer_locally(index, exchange, head, here, Local::Refused(Cause::Banned), cx);
    true
}
