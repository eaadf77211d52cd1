//! Clients of routes with `users`: their verified users, and requests that wait for the
//! verification (stage route).
//!
//! A request whose credentials have to be compared keeps its place in the order of responses, and
//! its connection reads nothing behind it ([`Reading::Await`]): one request of a connection, or of
//! each stream of HTTP/2, waits in this way. The side thread compares
//! ([`Errand`](crate::forward::lookup::Errand)), and its verdict is for the request that asked,
//! never for a later one of the connection. Then the request continues as it would have, by the
//! rules that it was routed under. The connection remembers a verified user until it sends other
//! credentials, another file applies, or the user is revoked. Nothing is sent to the client before
//! (RFC 9110 §10.1.1: no 100), and of a body only as much is read as a connection may have
//! unparsed. docs/basic-auth.md.

use std::path::Path;
use std::sync::Arc;

use weir_http::{FieldName, Fields, RequestHead};

use super::Clients;
use super::receive::go_on;
use super::ruling::Found;
use super::stalls::carrier_of;
use crate::base::keys::ClientKey;
use crate::base::side_table::SideTable;
use crate::cause::Cause;
use crate::client::connection::Reading;
use crate::context::Context;
use crate::cross::router::Requests;
use crate::forward::credentials::{Unreadable, is_same, read_basic, shown};
use crate::forward::lookup::{Credentials, Unverified, User};
use crate::forward::shares::Lane;
use crate::request::pending_request::ExchangeId;
use crate::request::rules::basic_auth::BasicAuth;

/// The users of a connection. A stream has the waiting request, its connection the verified user.
#[derive(Debug, Default)]
pub(super) struct Visitor {
    vouched: Option<Vouched>,
    waiting: Option<Box<Waiting>>,
}

/// Credentials that were correct.
#[derive(Debug)]
pub(super) struct Vouched {
    users: Arc<Path>,
    /// The field as it arrived.
    value: Box<[u8]>,
    user: Arc<User>,
}

/// A request that waits for a verdict.
#[derive(Debug)]
struct Waiting {
    id: ExchangeId,
    found: Found,
    head: RequestHead,
    fields: Fields,
    /// The bytes that the two refer to.
    bytes: Vec<u8>,
    /// The serial number of the question; None: no question could be asked.
    asked: Option<u64>,
    verdict: Option<Result<Arc<User>, Unverified>>,
}

/// What is known of the user of a request.
#[derive(Debug)]
pub(super) enum Login {
    /// This user.
    Known(Arc<User>),
    /// No user with access.
    Refused(Cause),
    /// These credentials have to be compared.
    Unknown(Credentials),
}

/// The visitors of a worker, by connection.
#[derive(Debug, Default)]
pub(super) struct Visitors(SideTable<ClientKey, Visitor>);

impl Visitors {
    /// Returns the user of a request on a route with users, as far as that is known. `carrier`: the
    /// connection, or that of the stream.
    pub(super) fn login(
        &self,
        carrier: ClientKey,
        users: &BasicAuth,
        fields: &Fields,
        bytes: &[u8],
    ) -> Login {
        let value = match shown(fields, FieldName::Authorization, bytes) {
            Ok(value) => value,
            Err(Unreadable::Missing) => return Login::Refused(Cause::AuthorizationMissing),
            Err(Unreadable::Invalid) => return Login::Refused(Cause::AuthorizationInvalid),
        };
        let vouched = self.0.get(carrier).and_then(|visitor| visitor.vouched.as_ref());
        if let Some(Vouched { user, .. }) = vouched.filter(|vouched| vouched.is_for(users, value)) {
            return Login::Known(Arc::clone(user));
        }
        read_basic(value).map_or(Login::Refused(Cause::AuthorizationInvalid), Login::Unknown)
    }

    /// Takes the verdict on a question of a connection. Returns whether a request waits for it.
    pub(super) fn judged(
        &mut self,
        index: ClientKey,
        asked: u64,
        verdict: Result<Arc<User>, Unverified>,
    ) -> bool {
        let waiting = self.0.get_mut(index).and_then(|visitor| visitor.waiting.as_mut());
        let Some(waiting) = waiting.filter(|waiting| waiting.asked == Some(asked)) else {
            return false;
        };
        waiting.verdict = Some(verdict);
        true
    }

    /// Takes the request of a connection that waited for a verdict, if that has arrived.
    fn take_judged(&mut self, index: ClientKey) -> Option<Box<Waiting>> {
        self.0.get_mut(index)?.waiting.take_if(|waiting| waiting.verdict.is_some())
    }

    /// Ends the wait of a connection's request for a verdict, and returns the request.
    pub(super) fn stop_waiting(&mut self, index: ClientKey) -> Option<ExchangeId> {
        Some(self.0.get_mut(index)?.waiting.take()?.id)
    }

    /// Takes the verified user of a connection that moves to another worker.
    pub(super) fn take_vouched(&mut self, index: ClientKey) -> Option<Vouched> {
        self.0.get_mut(index)?.vouched.take()
    }

    /// Sets the verified user of a connection that has moved here.
    pub(super) fn put_vouched(&mut self, index: ClientKey, vouched: Vouched) {
        self.0.get_or_default(index).vouched = Some(vouched);
    }

    /// A connection is gone.
    pub(super) fn forget(&mut self, index: ClientKey) {
        self.0.take(index);
    }
}

impl Vouched {
    fn is_for(&self, users: &BasicAuth, value: &[u8]) -> bool {
        is_same(value, &self.value) && self.users == users.users && !self.user.is_revoked()
    }
}

/// Makes a request wait until its credentials are compared. It keeps its place in the order of
/// responses, and nothing is parsed behind it.
pub(super) fn await_verdict(
    clients: &mut Clients,
    index: ClientKey,
    (found, credentials): (Found, Credentials),
    head: &RequestHead,
    fields: &Fields,
    bytes: &[u8],
    cx: &mut Context,
) {
    let exchange = clients.add_exchange(index, head, fields, bytes, cx);
    let id = clients.answers.conns.exchange_id(exchange, cx);
    let asked = verify(clients, index, &found, credentials);
    let bytes = bytes[..head.bytes].to_vec();
    let waiting =
        Waiting { id, found, head: *head, fields: fields.clone(), bytes, asked, verdict: None };
    clients.answers.conns.visitors.0.get_or_default(index).waiting = Some(Box::new(waiting));
    let conn = clients.conn_mut(index);
    conn.read_as(Reading::Await);
    conn.flags.unverified = true;
    conn.since_us = cx.now_us;
    clients.answers.conns.arm(index, cx);
}

/// Has credentials compared. Returns the serial number of the question.
fn verify(
    clients: &mut Clients,
    index: ClientKey,
    found: &Found,
    credentials: Credentials,
) -> Option<u64> {
    let users = Arc::clone(&found.users()?.users);
    let (token, client) = (clients.answers.conns.token(index), Lane::of(found.client));
    Some(clients.forward.verify(token, client, users, credentials))
}

/// Continues a request that waited for a verdict, if that has arrived.
pub(super) fn go_on_judged(
    clients: &mut Clients,
    index: ClientKey,
    to: &mut Requests<'_>,
    cx: &mut Context,
) {
    let Some(waiting) = clients.answers.conns.visitors.take_judged(index) else { return };
    let Waiting { id, found, head, fields, bytes, verdict: Some(verdict), .. } = *waiting else {
        return;
    };
    if !clients.answers.conns.holds(id) || clients.conn(index).reading() != Reading::Await {
        clients.conn_mut(index).flags.unverified = false;
        return;
    }
    let user = match verdict {
        // The file has changed since.
        Ok(user) if user.is_revoked() => match relogin(clients, index, &found, &fields, &bytes) {
            Login::Unknown(credentials) => {
                let asked = verify(clients, index, &found, credentials);
                let waiting = Waiting { id, found, head, fields, bytes, asked, verdict: None };
                clients.answers.conns.visitors.0.get_or_default(index).waiting =
                    Some(Box::new(waiting));
                return;
            }
            Login::Known(user) => Ok(Some(user)),
            Login::Refused(cause) => Err(cause),
        },
        Ok(user) => Ok(Some(user)),
        Err(Unverified::Wrong) => Err(Cause::AuthorizationWrong),
        Err(Unverified::NoRoom) => Err(Cause::CredentialsBusy),
    };
    if let Ok(Some(user)) = &user {
        vouch(clients, index, &found, user, &fields, &bytes);
    }
    let conn = clients.answers.conns.at_mut(index);
    conn.flags.unverified = false;
    let here = conn.stashed() > 0;
    let peer = conn.peer;
    let closes = clients.answers.conns.exchange(id.index).want.close;
    clients.conn_mut(index).read_as(if closes { Reading::Closing } else { Reading::Head });
    let ruling = found.rule(user, peer, &head, &fields, &bytes, &cx.plan);
    go_on(clients, index, id.index, ruling, &head, &fields, &bytes, here, to, cx);
    if clients.is_there(index) {
        read_behind(clients, index, to, cx);
    }
}

fn relogin(
    clients: &Clients,
    index: ClientKey,
    found: &Found,
    fields: &Fields,
    bytes: &[u8],
) -> Login {
    match found.users() {
        Some(users) => {
            let conns = &clients.answers.conns;
            conns.visitors.login(carrier_of(conns, index), users, fields, bytes)
        }
        None => Login::Refused(Cause::AuthorizationMissing),
    }
}

/// The client of a connection, or of all its streams, has proved to be this user.
fn vouch(
    clients: &mut Clients,
    index: ClientKey,
    found: &Found,
    user: &Arc<User>,
    fields: &Fields,
    bytes: &[u8],
) {
    let Some(users) = found.users() else { return };
    let Ok(value) = shown(fields, FieldName::Authorization, bytes) else { return };
    let (users, value, user) = (Arc::clone(&users.users), value.into(), Arc::clone(user));
    let conns = &mut clients.answers.conns;
    conns.visitors.0.get_or_default(carrier_of(conns, index)).vouched =
        Some(Vouched { users, value, user });
}

/// Reads the input that arrived behind a request while it waited.
fn read_behind(clients: &mut Clients, index: ClientKey, to: &mut Requests<'_>, cx: &mut Context) {
    let conn = clients.conn_mut(index);
    if conn.stream.is_some() && conn.reading() != Reading::Body {
        let unread = conn.stash.take().map_or(0, |stash| stash.len());
        return clients.answers.ignore_body(index, unread);
    }
    if conn.has_waiting_input() {
        clients.answers.conns.look_again(index);
    } else if conn.flags.ended {
        return clients.input_ended(index, to, cx);
    }
    clients.answers.conns.update_receive(index, cx);
    clients.answers.conns.arm(index, cx);
}

impl Found {
    /// The users that its route requires.
    fn users(&self) -> Option<&BasicAuth> {
        self.rules.as_ref()?.users.as_ref()
    }
}
