//! What the route of a request decides: which upstream answers, or what weir answers itself,
//! whether its client may send it, and what rules change in it (stage route). Called by
//! `Clients::request_parsed`; the result is a [`Ruled`], which the exchange keeps.
//! docs/routes.md.

use std::net::IpAddr;
use std::sync::Arc;

use weir_http::{Fields, Method, RequestBody, RequestHead, TargetForm};

use super::Clients;
use super::ask::key_of;
use super::stalls::carrier_of;
use super::visitors::Login;
use crate::base::keys::ClientKey;
use crate::cause::{Cause, Local};
use crate::client::connection::ClientConn;
use crate::context::Context;
use crate::forward::lookup::{Credentials, User};
use crate::plan::Plan;
use crate::request::client_address::{client_address, client_scheme};
use crate::request::identity::Identity;
use crate::request::own_answer::OwnAnswer;
use crate::request::route::{Asked, Routed, Target};
use crate::request::rules::{Known, RouteRules, Ruled};

/// The upstream for a request, or the response of weir itself; and the result of its route's rules,
/// if any.
pub(super) type Ruling = (Result<usize, Local>, Option<Box<Ruled>>);

/// The goal of a request's route, its rules, and the facts that those need.
#[derive(Debug)]
pub(super) struct Found {
    /// An upstream, or a response of weir itself.
    goal: Result<usize, Arc<OwnAnswer>>,
    pub(super) rules: Option<Arc<RouteRules>>,
    /// The client, as trusted proxies name it.
    pub(super) client: IpAddr,
    /// It speaks TLS.
    sealed: bool,
    identity: Option<Identity>,
}

impl Clients {
    /// Returns what answers a request, and the result of its route's rules, if any.
    ///
    /// # Errors
    /// These credentials have to be compared first.
    #[inline]
    pub(super) fn routed(
        &mut self,
        index: ClientKey,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &Context,
    ) -> Result<Ruling, Box<(Found, Credentials)>> {
        let identity = self.identify(index, fields, bytes, cx);
        let conns = &self.answers.conns;
        let conn = conns.at(index);
        let spoken = client_scheme(conn.peer, conn.flags.sealed, fields, bytes, &cx.plan.client);
        if spoken.is_doubtful && !conn.flags.proxied {
            cx.counters.schemes_ignored.add(1);
        }
        let (goal, rules) =
            match route(conn, spoken.sealed, head, fields, bytes, cx, &mut self.path) {
                Ok(Routed { target: Target::Upstream(upstream), rules }) => (Ok(upstream), rules),
                Ok(Routed { target: Target::Split(split), rules }) => {
                    let hash = split.key().and_then(|key| {
                        key_of(key, conn.peer, head, fields, bytes, &cx.plan.client)
                    });
                    let (upstream, is_part) = split.choose(hash);
                    cx.counters.split_off.add(u64::from(is_part));
                    (Ok(upstream), rules)
                }
                Ok(Routed { target: Target::Here(own), rules }) => (Err(own), rules),
                Err(local) => return Ok((Err(local), identity.map(Ruled::only_named))),
            };
        if let (Ok(upstream), None) = (&goal, &rules) {
            return Ok((Ok(*upstream), identity.map(Ruled::only_named)));
        }
        let client = client_address(conn.peer, fields, bytes, &cx.plan.client);
        let found = Found { goal, rules, client, sealed: spoken.sealed, identity };
        let rules = found.rules.as_deref();
        let refusal = rules.and_then(|rules| rules.refusal(client, head, fields, bytes));
        let user = match (refusal, rules.and_then(|rules| rules.users.as_ref())) {
            (Some(cause), _) => Err(cause),
            (None, None) => Ok(None),
            (None, Some(users)) => {
                match conns.visitors.login(carrier_of(conns, index), users, fields, bytes) {
                    Login::Known(user) => Ok(Some(user)),
                    Login::Refused(cause) => Err(cause),
                    Login::Unknown(credentials) => return Err(Box::new((found, credentials))),
                }
            }
        };
        Ok(found.rule(user, conn.peer, head, fields, bytes, &cx.plan))
    }

    /// Returns the identifiers of a request. None: they are not needed, or the request belongs to a
    /// client of the forward proxy, where destinations are strangers.
    #[inline]
    fn identify(
        &mut self,
        index: ClientKey,
        fields: &Fields,
        bytes: &[u8],
        cx: &Context,
    ) -> Option<Identity> {
        let plan = &cx.plan.client;
        if !plan.names_requests() || self.conn(index).flags.proxied {
            return None;
        }
        let peer = self.conn(index).peer;
        Some(self.identities.identify(fields, bytes, plan, peer, (cx.now_us, cx.wall_us())))
    }
}

impl Found {
    /// Decides about the request of this user (None: no user was required), or about a refused
    /// request.
    pub(super) fn rule(
        self,
        user: Result<Option<Arc<User>>, Cause>,
        peer: IpAddr,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        plan: &Plan,
    ) -> Ruling {
        let Found { goal, rules, client, sealed, identity } = self;
        let upstream = goal.as_ref().map_or("", |upstream| &plan.upstreams[*upstream].name);
        let (user, refusal) = match user {
            Ok(user) => (user, None),
            Err(cause) => (None, Some(cause)),
        };
        let (identity_of, user) = (identity.as_ref(), user.as_ref());
        let known = Known {
            head,
            fields,
            bytes,
            client,
            peer,
            sealed,
            identity: identity_of,
            upstream,
            user,
        };
        let rules = rules.filter(|rules| !rules.changes_nothing());
        let (ruled, fault) = match rules.map(|rules| Ruled::new(&rules, &known)).transpose() {
            Ok(ruled) => (ruled, None),
            Err(fault) => (None, Some(fault.into())),
        };
        let refusal = match (refusal, fault) {
            // A 401 has a challenge (RFC 9110 §15.5.2), which is one of the rules.
            (
                Some(
                    Cause::AuthorizationMissing
                    | Cause::AuthorizationInvalid
                    | Cause::AuthorizationWrong,
                ),
                Some(fault),
            ) => Some(fault),
            (refusal, fault) => refusal.or(fault),
        };
        let goal = match (refusal, goal) {
            (Some(cause), _) => Err(cause.into()),
            (None, Ok(upstream)) => Ok(upstream),
            (None, Err(own)) => {
                Err(own.local(&known, ruled.as_ref().and_then(|ruled| ruled.path())))
            }
        };
        let ruled = match ruled {
            Some(ruled) => Some(ruled.named(identity)),
            None => identity.map(Ruled::only_named),
        };
        (goal, ruled)
    }
}

/// Returns the upstream of a request, or the response of weir itself. `sealed`: its client speaks
/// TLS; `scratch` is memory for a path.
pub(super) fn route(
    conn: &ClientConn,
    sealed: bool,
    head: &RequestHead,
    fields: &Fields,
    bytes: &[u8],
    cx: &Context,
    scratch: &mut Vec<u8>,
) -> Result<Routed, Local> {
    let plan = &cx.plan;
    let proxied = conn.flags.proxied;
    if head.is_loop {
        return Err(Cause::Loop.into());
    }
    if !proxied && (head.method == Method::Connect || head.form == TargetForm::Authority) {
        return Err(Cause::ConnectRefused.into());
    }
    if head.max_forwards == Some(0) && matches!(head.method, Method::Trace | Method::Options) {
        return Err(if head.method == Method::Trace {
            Cause::MaxForwards.into()
        } else {
            Local::Options
        });
    }
    if let (RequestBody::Length(length), Some(max)) = (head.body, plan.client.body_bytes_max)
        && length > max
    {
        return Err(Cause::BodyTooLarge.into());
    }
    if proxied {
        return conn.decided(plan);
    }
    let path = head.path.of(bytes);
    let path = if path.is_empty() { b"/" } else { path };
    let (host, method) = (head.authority.of(bytes), head.method_span.of(bytes));
    let listener = cx.listeners.get(conn.entered_by() as usize).copied().flatten();
    let asked = Asked { listener, sealed, host, path, method, fields, bytes };
    match plan.routes.find(&asked, scratch) {
        Ok(Some(routed)) => Ok(routed.clone()),
        Ok(None) => Err(Cause::NoRoute.into()),
        Err(_) => Err(Cause::Path.into()),
    }
}
