//! Requests that change something: the stored responses are invalid by the time the client learns
//! of the success (stage cache). RFC 9111 §4.4.

use std::sync::Arc;

use weir_cache::{Place, Store, invalidates, same_origin_path, url};
use weir_http::{Method, ReplyParts};

use crate::plan::CacheRules;

/// What a response may invalidate.
#[derive(Debug)]
pub(in crate::client) struct Change {
    method: Method,
    upstream: Box<[u8]>,
    scheme: &'static [u8],
    authority: Box<[u8]>,
    path: Box<[u8]>,
    rules: Arc<CacheRules>,
}

impl Change {
    /// For a request of this method; None: it changes nothing.
    pub(super) fn of(
        place: Place<'_>,
        scheme: &'static [u8],
        rules: &Arc<CacheRules>,
        method: Method,
    ) -> Option<Change> {
        let (upstream, authority, path) =
            (place.upstream.into(), place.authority.into(), place.path.into());
        let rules = Arc::clone(rules);
        (!method.is_safe()).then_some(Change { method, upstream, scheme, authority, path, rules })
    }

    /// The outcome of the request will stay unknown: its URL may have changed.
    pub(super) fn invalidate_all(&self, store: &Store) {
        let Change { upstream, scheme, authority, path, rules, .. } = self;
        store.invalidate(&url(Place { upstream, scheme, authority, path }, &rules.keys));
    }

    /// The response has arrived: invalidates what it must, before any client learns of it.
    pub(super) fn invalidate(&self, parts: &ReplyParts<'_>, store: &Store) {
        if !invalidates(self.method, parts.status) {
            return;
        }
        let Change { upstream, scheme, authority, path, rules, .. } = self;
        let place = Place { upstream, scheme, authority, path };
        store.invalidate(&url(place, &rules.keys));
        for (name, value) in parts.fields() {
            if name.eq_ignore_ascii_case(b"location")
                || name.eq_ignore_ascii_case(b"content-location")
            {
                let other = same_origin_path(place, &value);
                other
                    .iter()
                    .for_each(|path| store.invalidate(&url(Place { path, ..place }, &rules.keys)));
            }
        }
    }
}
