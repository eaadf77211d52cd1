//! The facts that weir itself tells the server of a request, as part of the key: a response made
//! with them is only for requests with the same facts (stage cache).
//!
//! These are fields that the rules of a route set, add and remove, the Host that they write, and
//! the certificate of the client. So routes with the same URL share stored responses only where
//! their servers get the same facts. Not included are the facts about every client, with which no
//! stored response would be found again: its address in the forwarding fields, and the identifiers
//! of the request. A server whose responses depend on those has to say so, by `private` or Vary
//! (docs/cache-rules.md). Called wherever a key is made, so that no two keys differ. Bound: that
//! of rendered rules, and a certificate.

use weir_cache::{KeyRules, Place, Request, put_key};

use crate::observe::secured::Shown;
use crate::request::rules::Ruled;

/// The client, as far as servers learn of it from weir.
#[derive(Clone, Copy)]
pub(super) struct Told<'a> {
    /// The result of the route's rules for the request; None: it has no rules.
    pub(super) ruled: Option<&'a Ruled>,
    /// The certificate of its client, if servers get it.
    pub(super) shown: Option<&'a Shown>,
}

impl Told<'_> {
    /// Appends the key of a request to an empty text: the key of its place, then a line for each
    /// fact. No field name begins as these lines do, and no value has a line end.
    pub(super) fn put_key(
        self,
        key: &mut Vec<u8>,
        place: Place<'_>,
        rules: &KeyRules,
        request: Request<'_>,
    ) {
        put_key(key, place, rules, request);
        if let Some(ruled) = self.ruled {
            ruled.host().into_iter().for_each(|host| put_line(key, b'@', b"host", host));
            ruled.removed_fields().for_each(|name| put_line(key, b'<', name, b""));
            ruled.told_fields().for_each(|(name, value)| put_line(key, b'>', name, value));
        }
        self.shown.into_iter().for_each(|shown| put_line(key, b'>', b"client-cert", shown.value()));
    }
}

fn put_line(key: &mut Vec<u8>, mark: u8, name: &[u8], value: &[u8]) {
    key.push(mark);
    key.extend(name.iter().map(u8::to_ascii_lowercase));
    key.push(b':');
    key.extend_from_slice(value);
    key.push(b'\n');
}
