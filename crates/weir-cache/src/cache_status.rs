//! The result of the cache for a request, as the member of Cache-Status that it adds (RFC 9211).
//!
//! The access log uses the same words. Members of other caches remain before ours.

use crate::request::Bypass;
use crate::storable::NotStored;

/// Why a request was forwarded (RFC 9211 §2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forward {
    /// The cache does not handle it.
    Bypass,
    /// Its method is never answered from the store.
    Method,
    /// Nothing is stored under its key.
    UriMiss,
    /// The stored responses were selected by other fields.
    VaryMiss,
    /// The request asks for a fresher one.
    Request,
    /// The stored response is stale.
    Stale,
    /// The stored response has other parts than the requested ones.
    Partial,
}

impl Forward {
    /// Returns its token.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Request => "request",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

impl From<Bypass> for Forward {
    fn from(bypass: Bypass) -> Self {
        match bypass {
            Bypass::Method => Self::Method,
            _ => Self::Bypass,
        }
    }
}

/// The result for a request. `hit` and `forward` exclude each other, unless a hit was stale and the
/// server failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStatus {
    /// Answered from the store without waiting for a server.
    pub hit: bool,
    /// Why it was forwarded.
    pub forward: Option<Forward>,
    /// The status from the server, if the client got another one.
    pub forward_status: Option<u16>,
    /// Seconds that the response is still fresh; negative: how long it has been stale.
    pub ttl_s: Option<i64>,
    /// The response was stored.
    pub stored: bool,
    /// The request waited for the response to another one.
    pub collapsed: bool,
    /// A word of ours with more detail.
    pub detail: Option<&'static str>,
}

impl CacheStatus {
    /// Returns the status of a request that is answered from the store.
    pub fn hit() -> Self {
        Self { hit: true, ..Self::default() }
    }

    /// Returns the status of a request that bypasses the cache.
    pub fn bypassed(bypass: Bypass) -> Self {
        Self { forward: Some(bypass.into()), detail: Some(bypass.word()), ..Self::default() }
    }

    /// Returns the status of a request that was forwarded, by whether its response is stored.
    pub fn forwarded(forward: Forward, outcome: Result<(), NotStored>) -> Self {
        let detail = outcome.err().map(NotStored::word);
        Self { forward: Some(forward), stored: outcome.is_ok(), detail, ..Self::default() }
    }

    /// Adds the member to `out`: `weir; hit; ttl=57`.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"weir");
        let mut add = |text: &str| out.extend_from_slice(text.as_bytes());
        if self.hit {
            add("; hit");
        }
        if let Some(forward) = self.forward {
            add("; fwd=");
            add(forward.word());
        }
        if let Some(status) = self.forward_status {
            add("; fwd-status=");
            add(itoa::Buffer::new().format(status));
        }
        if let Some(seconds) = self.ttl_s {
            add("; ttl=");
            add(itoa::Buffer::new().format(seconds));
        }
        if self.stored {
            add("; stored");
        }
        if self.collapsed {
            add("; collapsed");
        }
        if let Some(detail) = self.detail {
            add("; detail=");
            add(detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structured::{Value, parse_list};

    fn text(status: CacheStatus) -> String {
        let mut out = Vec::new();
        status.put(&mut out);
        let mut count = 0;
        parse_list(&out, |value| {
            assert_eq!(value, Value::Other, "a token");
            count += 1;
        })
        .expect("a list");
        assert_eq!(count, 1);
        String::from_utf8(out).expect("text")
    }

    /// RFC 9211 §2
    #[test]
    fn members() {
        let none = CacheStatus::default();
        assert_eq!(text(CacheStatus { hit: true, ttl_s: Some(57), ..none }), "weir; hit; ttl=57");
        assert_eq!(text(CacheStatus { hit: true, ttl_s: Some(-3), ..none }), "weir; hit; ttl=-3");
        assert_eq!(
            text(CacheStatus::forwarded(Forward::UriMiss, Ok(()))),
            "weir; fwd=uri-miss; stored"
        );
        let refused = CacheStatus::forwarded(Forward::VaryMiss, Err(NotStored::Private));
        assert_eq!(text(refused), "weir; fwd=vary-miss; detail=private");
        let validated = CacheStatus {
            forward: Some(Forward::Stale),
            forward_status: Some(304),
            collapsed: true,
            ..none
        };
        assert_eq!(text(validated), "weir; fwd=stale; fwd-status=304; collapsed");
        assert_eq!(text(CacheStatus::bypassed(Bypass::Body)), "weir; fwd=bypass; detail=fat-get");
        assert_eq!(text(CacheStatus::bypassed(Bypass::Method)), "weir; fwd=method; detail=method");
        for forward in [Forward::Request, Forward::Partial] {
            text(CacheStatus { forward: Some(forward), ..none });
        }
    }
}
