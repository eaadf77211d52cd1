//! Decisions about requests of forward proxy clients: the user, the destination, and whether it is
//! allowed (stage route).
//!
//! Called by the clients' side, which has the client's [`ForwardState`]. Facts that have to be
//! known first are requested while the request waits unparsed: the side thread verifies credentials
//! and resolves names ([`Errand`]). Then the state has the destination; each request is decided
//! separately. The address that was checked is the one that is connected to. docs/forward.md,
//! RFC 9110 §7.3.2, §9.3.6, §11.7.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use weir_http::{FieldName, Fields, Method, RequestHead, TargetForm};

use super::credentials::{Unreadable, challenge, is_same, read_basic, shown};
use super::dns_cache::{Client, Lookup, Names, Unasked};
use super::lookup::{Addresses, Credentials, Errand, Question, Unresolved, Unverified, User};
use super::policy::Wanted;
use super::policy::host::{Host, parse as parse_host};
use super::shares::{Asker, Lane};
use super::state::{ForwardState, UserConnectionGuard};
use crate::cause::{Cause, Local};
use crate::context::Context;
use crate::plan::{ForwardPlan, Plan};
use crate::request::destination::Destination;

/// The path of the file that tells clients how to use the proxy.
const PAC_PATH: &[u8] = b"/proxy.pac";

/// What a request still waits for.
enum Pending {
    /// The side thread.
    News,
    /// Nothing: it is not forwarded.
    Local(Local),
}

impl From<Cause> for Pending {
    fn from(cause: Cause) -> Pending {
        Pending::Local(cause.into())
    }
}

/// A client with a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    /// Its connection, by slot and occupant.
    pub client: Client,
    /// The same as the worker names it.
    pub token: u64,
    /// Its address.
    pub peer: IpAddr,
}

/// The forward proxy of a worker, for all its clients.
#[derive(Debug, Default)]
pub(crate) struct ForwardProxy {
    /// The names of destinations.
    names: Names,
    /// For the side thread.
    errands: VecDeque<Errand>,
    /// The number of verifications so far.
    asked: u64,
}

impl ForwardProxy {
    /// Takes the next errand for the side thread, if any.
    pub(crate) fn take_errand(&mut self) -> Option<Errand> {
        self.errands.pop_front()
    }

    /// Has credentials of a connection compared, also for other parts of this worker. Returns the
    /// serial number of the question, which the verdict repeats.
    pub(crate) fn verify(
        &mut self,
        token: u64,
        client: Lane,
        users: Arc<Path>,
        credentials: Credentials,
    ) -> u64 {
        self.asked += 1;
        let question = Question { token, serial: self.asked };
        self.errands.push_back(Errand::Verify { question, client, users, credentials });
        self.asked
    }

    /// A name was resolved, or can't be. Returns the clients that have to look again, first those
    /// that got no room.
    pub(crate) fn on_resolved(
        &mut self,
        name: &str,
        asker: &Asker,
        answer: Result<Addresses, Unresolved>,
        now_us: u64,
    ) -> Unasked {
        match answer {
            Err(Unresolved::NoRoom) => self.names.refuse(name, asker),
            answer => {
                Unasked { refused: Vec::new(), others: self.names.learn(name, answer, now_us) }
            }
        }
    }

    /// Decides the destination of a client's request, and notes it in the client's state. False:
    /// the decision has to wait for the side thread.
    pub(crate) fn decide(
        &mut self,
        by: Asking,
        state: &mut ForwardState,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &mut Context,
    ) -> bool {
        let plan = Arc::clone(&cx.plan);
        let Some(forward) = &plan.forward else { return true };
        let decision = match self.judge(forward, by, state, head, fields, bytes, cx) {
            Err(Pending::News) => return false,
            Err(Pending::Local(local)) => Err(local),
            Ok(destination) => Ok(Arc::new(destination)),
        };
        state.decide(decision);
        true
    }

    /// Decides whether such a request may reach its destination, and returns the addresses.
    fn judge(
        &mut self,
        forward: &ForwardPlan,
        by: Asking,
        state: &mut ForwardState,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &mut Context,
    ) -> Result<Destination, Pending> {
        state.begin_account();
        if matches!(head.form, TargetForm::Origin | TargetForm::Asterisk) {
            return Err(Pending::Local(asked_itself(forward, head, bytes)));
        }
        state.asker = None;
        let user = self.identify(forward, by, state, fields, bytes, cx)?;
        if let Some(user) = &user {
            state.charge_user(&user.name, &mut cx.usage);
        }
        state.asker.clone_from(&user);
        let (host, port) = destination(head, bytes)?;
        let text = match &host {
            Host::Name(name) => name.clone().into_owned(),
            Host::Address(address) => address.to_string(),
        };
        let name = SocketName(&text, port).to_string();
        state.charge_destination(&name, &mut cx.usage);
        let wanted = Wanted {
            host: text.as_bytes(),
            literal: if let Host::Address(address) = &host { Some(*address) } else { None },
            port,
            method: head.method_span.of(bytes),
            client: by.peer,
            user: user.as_ref().map(|user| &*user.name),
            wall_s: cx.wall_s(),
        };
        forward.policy.check(&wanted).map_err(Cause::from)?;
        let list: Arc<[IpAddr]> = match host {
            Host::Address(address) => Arc::from([address]),
            Host::Name(name) => self.addresses_of(
                &name,
                by,
                state,
                Asker::of(wanted.user, wanted.client),
                cx.now_us,
            )?,
        };
        let addresses = permitted(forward, &wanted, &list)?;
        if let Some(user) = user
            && !std::mem::replace(&mut state.is_counted, true)
            && !user.spend(forward.user_rate_max, cx.now_us)
        {
            return Err(Cause::UserRate.into());
        }
        Ok(Destination { name: name.into(), addresses })
    }

    /// Returns the user in Proxy-Authorization; None: the proxy requires no user.
    fn identify(
        &mut self,
        forward: &ForwardPlan,
        by: Asking,
        state: &mut ForwardState,
        fields: &Fields,
        bytes: &[u8],
        cx: &mut Context,
    ) -> Result<Option<Arc<User>>, Pending> {
        let Some(users) = &forward.users else { return Ok(None) };
        let value =
            shown(fields, FieldName::ProxyAuthorization, bytes).map_err(|why| match why {
                Unreadable::Missing => Cause::CredentialsMissing,
                Unreadable::Invalid => Cause::CredentialsInvalid,
            })?;
        let is_known = state.seat.as_ref().is_none_or(|seat| !seat.user().is_revoked());
        if state.credentials.as_deref().is_some_and(|shown| is_same(value, shown)) && is_known {
            if let Some(seat) = &state.seat {
                return Ok(Some(Arc::clone(seat.user())));
            }
            match state.verdict.take() {
                // The users have changed since: the credentials are verified again.
                Some(Ok(user)) if user.is_revoked() => {}
                Some(Ok(user)) => {
                    state.seat = UserConnectionGuard::take(&user, forward.user_connections_max);
                    if state.seat.is_none() {
                        // The next request tries again.
                        state.credentials = None;
                        state.charge_user(&user.name, &mut cx.usage);
                        return Err(Cause::UserConnections.into());
                    }
                    return Ok(Some(user));
                }
                Some(Err(why)) => {
                    state.credentials = None;
                    return Err(match why {
                        Unverified::Wrong => Cause::CredentialsWrong.into(),
                        Unverified::NoRoom => Cause::CredentialsBusy.into(),
                    });
                }
                // The question is under way, and something else woke the client.
                None => return Err(Pending::News),
            }
        }
        let credentials = read_basic(value).ok_or(Cause::CredentialsInvalid)?;
        (state.seat, state.verdict) = (None, None);
        state.credentials = Some(value.into());
        let (users, client) = (Arc::clone(users), Lane::of(by.peer));
        state.asked = self.verify(by.token, client, users, credentials);
        Err(Pending::News)
    }

    /// The addresses of a name, if they are known.
    fn addresses_of(
        &mut self,
        name: &str,
        by: Asking,
        state: &ForwardState,
        asker: Asker,
        now_us: u64,
    ) -> Result<Arc<[IpAddr]>, Pending> {
        if state.no_room.as_deref() == Some(name) {
            return Err(Cause::NamesBusy.into());
        }
        match self.names.look(name, by.client, asker.clone(), now_us) {
            Lookup::Known(Ok(list)) => Ok(list),
            Lookup::Known(Err(Unresolved::NoSuchName { .. })) => Err(Cause::NoSuchName.into()),
            Lookup::Known(Err(Unresolved::Failed)) => Err(Cause::NameServersFailed.into()),
            Lookup::Known(Err(Unresolved::TimedOut)) => Err(Cause::NameServersTimeout.into()),
            Lookup::Known(Err(Unresolved::NoRoom)) => Err(Cause::NamesBusy.into()),
            Lookup::Waits => Err(Pending::News),
            Lookup::Ask => {
                self.errands.push_back(Errand::Resolve { name: name.into(), asker });
                Err(Pending::News)
            }
        }
    }
}

/// Fields of a response of the forward proxy itself: the reason (RFC 9209), and how to authenticate
/// (RFC 9110 §11.7.1).
pub(crate) fn proxy_fields(cause: Cause, plan: &Plan) -> Vec<(&'static str, String)> {
    let mut fields = Vec::new();
    let Some(forward) = &plan.forward else { return fields };
    if let Some(error) = cause.proxy_error() {
        let word = cause.word();
        fields.push(("Proxy-Status", format!("weir; error={error}; details=\"{word}\"")));
    }
    if cause.status() == 407 {
        fields.push(("Proxy-Authenticate", challenge(&forward.realm)));
    }
    fields
}

/// Answers a request to the proxy itself rather than through it.
fn asked_itself(forward: &ForwardPlan, head: &RequestHead, bytes: &[u8]) -> Local {
    let is_read = matches!(head.method, Method::Get | Method::Head);
    match head.path.of(bytes) == PAC_PATH && is_read {
        true if forward.pac.is_some() => Local::Pac,
        true => Cause::NoPac.into(),
        false => Cause::NotAbsolute.into(),
    }
}

/// Parses the host and port that a request names, for a tunnel or for plain HTTP.
fn destination<'a>(head: &RequestHead, bytes: &'a [u8]) -> Result<(Host<'a>, u16), Cause> {
    let is_tunnel = head.method == Method::Connect;
    let (host, port) = split_port(head.authority.of(bytes));
    if !is_tunnel && !head.target.of(bytes)[..5].eq_ignore_ascii_case(b"http:") {
        // Clients that want TLS to the destination tunnel it.
        return Err(Cause::Scheme);
    }
    let port = port.unwrap_or(80);
    if port == 0 {
        return Err(Cause::Port);
    }
    Ok((parse_host(host)?, port))
}

/// Returns the addresses of a destination that such a request may use; a refusal if the destination
/// has addresses and none of them is allowed.
fn permitted(
    forward: &ForwardPlan,
    wanted: &Wanted<'_>,
    list: &[IpAddr],
) -> Result<Vec<SocketAddr>, Cause> {
    let mut refused = None;
    let allowed = |address: &&IpAddr| match forward.policy.check_address(wanted, **address) {
        Ok(()) => true,
        Err(refusal) => {
            refused = Some(refusal);
            false
        }
    };
    let addresses: Vec<SocketAddr> =
        list.iter().filter(allowed).map(|address| SocketAddr::new(*address, wanted.port)).collect();
    match refused {
        Some(refusal) if addresses.is_empty() => Err(refusal.into()),
        _ => Ok(addresses),
    }
}

/// Splits an authority in two: RFC 3986 §3.2.
fn split_port(authority: &[u8]) -> (&[u8], Option<u16>) {
    let digits = authority.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let colon = authority.len() - digits;
    if colon == 0 || authority[colon - 1] != b':' {
        return (authority, None);
    }
    let port = std::str::from_utf8(&authority[colon..]).ok().and_then(|text| text.parse().ok());
    (&authority[..colon - 1], port)
}

/// Host and port as an authority.
struct SocketName<'a>(&'a str, u16);

impl std::fmt::Display for SocketName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.contains(':') {
            true => write!(f, "[{}]:{}", self.0, self.1),
            false => write!(f, "{}:{}", self.0, self.1),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: authorities are parsed as the RFCs say.

    use super::*;

    #[test]
    fn authorities() {
        assert_eq!(split_port(b"a:80"), (&b"a"[..], Some(80)));
        assert_eq!(split_port(b"a"), (&b"a"[..], None));
        assert_eq!(split_port(b"80"), (&b"80"[..], None));
        assert_eq!(split_port(b"[::1]:443"), (&b"[::1]"[..], Some(443)));
        assert_eq!(split_port(b"[::1]"), (&b"[::1]"[..], None));
        assert_eq!(SocketName("::1", 80).to_string(), "[::1]:80");
        assert_eq!(SocketName("a.example", 80).to_string(), "a.example:80");
    }
}
