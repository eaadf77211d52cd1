//! What weir itself tells the server of a request, as part of the key: what is made for one who was told of is not for others (stage cache).
//!
//! Fields that the rules of a route set, add and remove, the Host that they write, and the certificate that the client has shown. So routes with the
//! same URL share what is stored only where their servers are told the same. Not what weir tells of every client, by which nothing would be found
//! again: its address in the forwarding fields, and the identifiers of the request; a server that makes something else of them has to say so, by
//! `private` or Vary (docs/semantics.md §26). Called wherever a key is made, so that no two of them differ. Bound: that of rendered rules, and a certificate.

use weir_cache::{KeyRules, Place, Request, put_key};

use crate::observe::secured::Shown;
use crate::request::rules::Ruled;

/// Who asks, as far as servers hear that from weir.
#[derive(Clone, Copy)]
pub(super) struct Told<'a> {
    /// What the rules of its route make of the request; None: there are none.
    pub(super) ruled: Option<&'a Ruled>,
    /// The certificate of its client, where servers are told.
    pub(super) shown: Option<&'a Shown>,
}

impl Told<'_> {
    /// Appends the key of a request to an empty text: that of its place, then a line for each thing that is told. No field name begins as
    /// these lines do, and no value has a line end.
    pub(super) fn put_key(self, key: &mut Vec<u8>, place: Place<'_>, rules: &KeyRules, request: Request<'_>) {
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
