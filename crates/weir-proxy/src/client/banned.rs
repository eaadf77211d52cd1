//! Clients who are banned (stages accept and route): they are not accepted, what they have is reset, and what a trusted proxy asks for them
//! is refused.
//!
//! Called by [`Clients::accepted`] and `Clients::request_parsed`, and by the engine at the end of each turn as long as there are connections
//! to be looked through. Who is banned others decide ([`crate::shield::bans`]); a ban that is over is none. Bound: a
//! slice of the connections a turn ([`Sweep`](crate::base::sweep::Sweep)). docs/semantics.md §22.

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

/// Who asks something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    /// The client.
    pub(super) client: IpAddr,
    /// A trusted proxy says so, or has said nothing and is meant itself.
    pub(super) by_proxy: bool,
    /// That proxy has said nothing: it may be anybody.
    pub(super) is_unknown: bool,
}

/// Who is to be banned, if anybody is.
pub(crate) fn take_offence(clients: &mut Clients) -> Option<Offence> {
    clients.answers.conns.guard.as_mut()?.take_offence()
}

/// Others are banned than before.
pub(crate) fn look_for_banned(clients: &mut Clients) {
    clients.cutting.begin(clients.answers.conns.conns.slots());
}

/// Whether there are connections that may be of somebody who is banned.
pub(crate) fn is_cutting(clients: &Clients) -> bool {
    clients.cutting.is_due()
}

/// Resets some of the connections of who is banned.
pub(crate) fn cut_off(clients: &mut Clients, cx: &mut Context) {
    let slots = clients.answers.conns.conns.slots();
    for index in clients.cutting.slice(slots).map(ClientKey::new) {
        // Streams go with what carries them.
        // What was asked for one is waited for by others.
        let goes = |conn: &ClientConn| conn.stream.is_none() && !conn.is_fetch() && cx.is_banned(conn.peer);
        if clients.is_there(index) && goes(clients.conn(index)) {
            clients.conn_mut(index).flags.reset = true;
            clients.answers.close_conn(index, ClientEnd::Banned, cx);
        }
    }
}

/// Who has sent a request.
pub(super) fn asker(clients: &Clients, index: ClientKey, fields: &Fields, bytes: &[u8], cx: &Context) -> Asker {
    let conn = clients.answers.conns.at(index);
    // Clients of a forward proxy speak for themselves.
    let by_proxy = !conn.flags.proxied && cx.plan.client.trusts(conn.peer);
    let client = if by_proxy { client_address(conn.peer, fields, bytes, &cx.plan.client) } else { conn.peer };
    Asker { client, by_proxy, is_unknown: by_proxy && client == conn.peer }
}

/// Whether a request is one of a client who is banned, and who came by a trusted proxy: then it is refused. Whoever came by himself is reset.
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
