//! What becomes of a request of a client of the forward proxy: who asks, where to, and whether that may be (stage route).
//!
//! Everything that has to be known first is asked for while the request waits unparsed: credentials and names are looked at on the
//! side thread ([`Errand`]). Then [`ForwardState::decision`](crate::client::forward_state::ForwardState) says where it goes; each
//! request is decided anew. The address that was checked is the one that is connected to. docs/semantics.md §9, RFC 9110 §7.3.2, §9.3.6, §11.7.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use weir_http::{FieldName, Fields, Method, RequestHead, TargetForm};

use super::Clients;
use crate::base::keys::ClientKey;
use crate::cause::{Cause, Local};
use crate::client::forward_state::{ForwardState, UserConnectionGuard};
use crate::context::Context;
use crate::forward::dns_cache::Lookup;
use crate::forward::lookup::{Credentials, Errand, Unresolved, Unverified, User};
use crate::forward::policy::Wanted;
use crate::forward::policy::host::{Host, parse as parse_host};
use crate::forward::shares::{Asker, Lane};
use crate::plan::ForwardPlan;
use crate::upstream::private_pool::Destination;

/// Longest value of Proxy-Authorization that is looked at.
const CREDENTIALS_BYTES_MAX: usize = 4096;
/// Where the proxy says how to be used.
const PAC_PATH: &[u8] = b"/proxy.pac";

/// What a request still waits for.
enum Pending {
    /// The side thread.
    News,
    /// Nothing: it goes nowhere.
    Local(Local),
}

impl From<Cause> for Pending {
    fn from(cause: Cause) -> Pending {
        Pending::Local(cause.into())
    }
}

impl Clients {
    /// Decides where a request of a client of the forward proxy goes. False: that has to wait for the side thread.
    pub(super) fn decide(
        &mut self,
        index: ClientKey,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &mut Context,
    ) -> bool {
        let plan = Arc::clone(&cx.plan);
        let Some(forward) = &plan.forward else { return true };
        let decision = match self.judge(forward, index, head, fields, bytes, cx) {
            Err(Pending::News) => return false,
            Err(Pending::Local(local)) => Err(local),
            Ok(destination) => Ok(Arc::new(destination)),
        };
        let proxied = self.proxied(index);
        proxied.verdict = None;
        proxied.no_room = None;
        proxied.is_counted = false;
        proxied.decision = Some(decision);
        true
    }

    /// Whether such a request may go where it wants to, and which addresses that has.
    fn judge(
        &mut self,
        forward: &ForwardPlan,
        index: ClientKey,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &mut Context,
    ) -> Result<Destination, Pending> {
        self.begin_account(index);
        if matches!(head.form, TargetForm::Origin | TargetForm::Asterisk) {
            return Err(Pending::Local(asked_itself(forward, head, bytes)));
        }
        self.proxied(index).asker = None;
        let user = self.identify(forward, index, fields, bytes, cx)?;
        if let Some(user) = &user {
            self.charge_user(index, &user.name, cx);
        }
        self.proxied(index).asker.clone_from(&user);
        let (host, port) = destination(head, bytes)?;
        let text = match &host {
            Host::Name(name) => name.clone().into_owned(),
            Host::Address(address) => address.to_string(),
        };
        let name = SocketName(&text, port).to_string();
        self.charge_destination(index, &name, cx);
        let wanted = Wanted {
            host: text.as_bytes(),
            literal: if let Host::Address(address) = &host { Some(*address) } else { None },
            port,
            method: head.method_span.of(bytes),
            client: self.conns.at(index).peer,
            user: user.as_ref().map(|user| &*user.name),
            wall_s: cx.wall_s(),
        };
        forward.policy.check(&wanted).map_err(Cause::from)?;
        let list: Arc<[IpAddr]> = match host {
            Host::Address(address) => Arc::from([address]),
            Host::Name(name) => self.addresses_of(index, &name, Asker::of(wanted.user, wanted.client), cx)?,
        };
        let addresses = permitted(forward, &wanted, &list)?;
        let now_us = cx.now_us;
        if let Some(user) = user
            && !std::mem::replace(&mut self.proxied(index).is_counted, true)
            && !user.spend(forward.user_rate_max, now_us)
        {
            return Err(Cause::UserRate.into());
        }
        Ok(Destination { name: name.into(), addresses })
    }

    /// Who asks, by what stands in Proxy-Authorization; None: nobody is asked who he is.
    fn identify(
        &mut self,
        forward: &ForwardPlan,
        index: ClientKey,
        fields: &Fields,
        bytes: &[u8],
        cx: &mut Context,
    ) -> Result<Option<Arc<User>>, Pending> {
        if forward.users.is_none() {
            return Ok(None);
        }
        let mut lines = fields.all(FieldName::ProxyAuthorization);
        let Some(field) = lines.next() else { return Err(Cause::CredentialsMissing.into()) };
        let value = field.value.of(bytes);
        if lines.next().is_some() || value.len() > CREDENTIALS_BYTES_MAX {
            return Err(Cause::CredentialsInvalid.into());
        }
        let token = self.conns.token(index);
        let client = self.conns.at(index).peer;
        let proxied = self.proxied(index);
        let is_known = proxied.seat.as_ref().is_none_or(|seat| !seat.user().is_revoked());
        if *proxied.credentials == *value && is_known {
            if let Some(seat) = &proxied.seat {
                return Ok(Some(Arc::clone(seat.user())));
            }
            match proxied.verdict.take() {
                // The users have changed since: they are asked anew.
                Some(Ok(user)) if user.is_revoked() => {}
                Some(Ok(user)) => {
                    proxied.seat = UserConnectionGuard::take(&user, forward.user_connections_max);
                    if proxied.seat.is_none() {
                        // The next request tries again.
                        proxied.credentials = Box::default();
                        self.charge_user(index, &user.name, cx);
                        return Err(Cause::UserConnections.into());
                    }
                    return Ok(Some(user));
                }
                Some(Err(why)) => {
                    proxied.credentials = Box::default();
                    return Err(match why {
                        Unverified::Wrong => Cause::CredentialsWrong.into(),
                        Unverified::NoRoom => Cause::CredentialsBusy.into(),
                    });
                }
                // Asked already, and something else woke the client.
                None => return Err(Pending::News),
            }
        }
        let credentials = read_basic(value).ok_or(Cause::CredentialsInvalid)?;
        (proxied.seat, proxied.verdict) = (None, None);
        proxied.credentials = value.into();
        self.errands.push_back(Errand::Verify { token, client: Lane::of(client), credentials });
        Err(Pending::News)
    }

    /// The addresses of a name, if they are known.
    fn addresses_of(
        &mut self,
        index: ClientKey,
        name: &str,
        asker: Asker,
        cx: &Context,
    ) -> Result<Arc<[IpAddr]>, Pending> {
        let client = self.conns.local_name(index);
        if self.proxied(index).no_room.as_deref() == Some(name) {
            return Err(Cause::NamesBusy.into());
        }
        match self.names.look(name, client, asker.clone(), cx.now_us) {
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

    pub(super) fn proxied(&mut self, index: ClientKey) -> &mut ForwardState {
        self.conns.at_mut(index).proxied.get_or_insert_default()
    }

    /// What was decided of the request of a client of the forward proxy: the upstream that stands for all destinations.
    pub(super) fn decided(&self, index: ClientKey, cx: &Context) -> Result<usize, Local> {
        let decision = self.conns.at(index).proxied.as_deref().and_then(|proxied| proxied.decision.as_ref());
        match (decision, &cx.plan.forward) {
            (Some(Ok(_)), Some(forward)) => Ok(forward.upstream),
            (Some(Err(refused)), _) => Err(*refused),
            _ => Err(Cause::NotDecided.into()),
        }
    }

    /// Where the request of a client of the forward proxy goes.
    pub(super) fn destination(&self, session: ClientKey) -> Option<Arc<Destination>> {
        let decision = self.conns.at(session).proxied.as_deref()?.decision.as_ref()?;
        decision.as_ref().ok().cloned()
    }

    /// Fields that an answer of the forward proxy's own has: why (RFC 9209), and how to say who one is (RFC 9110 §11.7.1).
    pub(super) fn proxy_lines(&self, session: ClientKey, cause: Cause, cx: &Context) -> Vec<u8> {
        let mut lines = Vec::new();
        let Some(forward) = cx.plan.forward.as_ref().filter(|_| self.conns.at(session).flags.proxied) else {
            return lines;
        };
        if let Some(error) = cause.proxy_error() {
            let word = cause.word();
            lines.extend_from_slice(format!("Proxy-Status: weir; error={error}; details=\"{word}\"\r\n").as_bytes());
        }
        if cause.status() == 407 {
            let realm: String = forward.realm.chars().filter(|c| !matches!(c, '"' | '\\') && !c.is_control()).collect();
            let line = format!("Proxy-Authenticate: Basic realm=\"{realm}\", charset=\"UTF-8\"\r\n");
            lines.extend_from_slice(line.as_bytes());
        }
        lines
    }
}

/// A request to the proxy itself rather than through it.
fn asked_itself(forward: &ForwardPlan, head: &RequestHead, bytes: &[u8]) -> Local {
    let is_read = matches!(head.method, Method::Get | Method::Head);
    match head.path.of(bytes) == PAC_PATH && is_read {
        true if forward.pac.is_some() => Local::Pac,
        true => Cause::NoPac.into(),
        false => Cause::NotAbsolute.into(),
    }
}

/// Host and port that a request names, for a tunnel or for plain HTTP.
fn destination<'a>(head: &RequestHead, bytes: &'a [u8]) -> Result<(Host<'a>, u16), Cause> {
    let is_tunnel = head.method == Method::Connect;
    let (host, port) = split_port(head.authority.of(bytes));
    if !is_tunnel && !head.target.of(bytes)[..5].eq_ignore_ascii_case(b"http:") {
        // Whoever wants TLS to the destination tunnels it.
        return Err(Cause::Scheme);
    }
    let port = port.unwrap_or(80);
    if port == 0 {
        return Err(Cause::Port);
    }
    Ok((parse_host(host)?, port))
}

/// Those of a destination's addresses to which such a request may go; a refusal if there are some and none of them is good.
fn permitted(forward: &ForwardPlan, wanted: &Wanted<'_>, list: &[IpAddr]) -> Result<Vec<SocketAddr>, Cause> {
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

/// An authority in two: RFC 3986 §3.2.
fn split_port(authority: &[u8]) -> (&[u8], Option<u16>) {
    let digits = authority.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let colon = authority.len() - digits;
    if colon == 0 || authority[colon - 1] != b':' {
        return (authority, None);
    }
    let port = std::str::from_utf8(&authority[colon..]).ok().and_then(|text| text.parse().ok());
    (&authority[..colon - 1], port)
}

/// Credentials of the scheme Basic (RFC 7617 §2).
fn read_basic(value: &[u8]) -> Option<Credentials> {
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let pair = BASE64_STANDARD.decode(rest.trim_ascii_start()).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(&pair[..colon]).ok()?;
    let clean = !name.is_empty() && !name.chars().any(char::is_control);
    clean.then(|| Credentials { name: name.into(), password: pair[colon + 1..].into() })
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
    //! Proves: authorities and credentials are read as the RFCs have them.

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

    #[test]
    fn credentials() {
        // The example of RFC 7617 §2, and one whose password has a colon and is no UTF-8.
        let aladdin = read_basic(b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").unwrap();
        assert_eq!((&*aladdin.name, &*aladdin.password), ("Aladdin", &b"open sesame"[..]));
        let odd = read_basic(b"BASIC   YTo6/w==").unwrap();
        assert_eq!((&*odd.name, &*odd.password), ("a", &b":\xff"[..]));
        for bad in ["", "Basic", "Basic ", "Basic YQ==", "Basic Og==", "Basic YQpiOmM=", "Bearer YTpi", "Basic YTpi!"] {
            assert_eq!(read_basic(bad.as_bytes()), None, "{bad}");
        }
    }
}
