//! What the route of a request says to it: which upstream answers, or what weir does, whether its client may ask, and what rules make of it
//! (stage route). Called by `Clients::request_parsed`; what it finds out is a [`Ruled`], which the exchange keeps. docs/semantics.md §14.

use weir_http::{Fields, RequestHead};

use super::Clients;
use super::receive::route;
use crate::base::keys::ClientKey;
use crate::cause::{Cause, Local};
use crate::context::Context;
use crate::request::client_address::{client_address, client_scheme};
use crate::request::identity::Identity;
use crate::request::route::{Routed, Target};
use crate::request::rules::{Known, Ruled};

/// The upstream for a request, or what weir answers by itself.
type Goal = Result<usize, Local>;

impl Clients {
    /// Who answers a request, and what the rules of its route make of it, if anything.
    #[inline]
    pub(super) fn routed(
        &mut self,
        index: ClientKey,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &Context,
    ) -> (Goal, Option<Box<Ruled>>) {
        let identity = self.identify(index, fields, bytes, cx);
        let conn = self.answers.conns.at(index);
        let spoken = client_scheme(conn.peer, conn.flags.sealed, fields, bytes, &cx.plan.client);
        if spoken.is_doubtful && !conn.flags.proxied {
            cx.counters.schemes_ignored.add(1);
        }
        let (target, rules) = match route(conn, spoken.sealed, head, fields, bytes, &cx.plan, &mut self.path) {
            Ok(Routed { target: Target::Upstream(upstream), rules: None }) => {
                return (Ok(upstream), identity.map(Ruled::only_named));
            }
            Ok(Routed { target, rules }) => (target, rules),
            Err(local) => return (Err(local), identity.map(Ruled::only_named)),
        };
        let upstream = target.upstream().map_or("", |upstream| &cx.plan.upstreams[upstream].name);
        let client = client_address(conn.peer, fields, bytes, &cx.plan.client);
        let (peer, sealed, identity_of) = (conn.peer, spoken.sealed, identity.as_ref());
        let known = Known { head, fields, bytes, client, peer, sealed, identity: identity_of, upstream };
        let is_refused = rules.as_ref().is_some_and(|rules| !rules.access.admits(client));
        let rules = rules.filter(|rules| !rules.changes_nothing());
        let (ruled, fault) = match rules.map(|rules| Ruled::new(&rules, &known)).transpose() {
            Ok(ruled) => (ruled, None),
            Err(fault) => (None, Some(fault.into())),
        };
        let goal = match (is_refused.then_some(Cause::AddressDenied).or(fault), target) {
            (Some(cause), _) => Err(cause.into()),
            (None, Target::Upstream(upstream)) => Ok(upstream),
            (None, Target::Here(own)) => Err(own.local(&known, ruled.as_ref().and_then(|ruled| ruled.path()))),
        };
        let ruled = match ruled {
            Some(ruled) => Some(ruled.named(identity)),
            None => identity.map(Ruled::only_named),
        };
        (goal, ruled)
    }

    /// What a request is called; None: nobody wants to know, or its client is one of the forward proxy, whose destinations are strangers.
    #[inline]
    fn identify(&mut self, index: ClientKey, fields: &Fields, bytes: &[u8], cx: &Context) -> Option<Identity> {
        let plan = &cx.plan.client;
        if !plan.names_requests() || self.conn(index).flags.proxied {
            return None;
        }
        let peer = self.conn(index).peer;
        Some(self.identities.identify(fields, bytes, plan, peer, (cx.now_us, cx.wall_us())))
    }
}
