//! The operator's options for the responses of a route. Defaults are those of the configuration.

use crate::directives::DirectiveSet;
use crate::list::DELTA_MAX;

/// How the cache behaves for the requests of one route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Fields that override Cache-Control, in order, in lower case (RFC 9213 §2.2). Default:
    /// `weir-cache-control`, `cdn-cache-control`.
    pub targets: Vec<Vec<u8>>,
    /// Responses that state no lifetime get one from Last-Modified (RFC 9111 §4.2.2). Default: yes.
    pub heuristic: bool,
    /// Lifetimes in seconds by status for responses that state none. Default: none.
    pub lifetimes: Vec<(u16, u32)>,
    /// Lifetimes for all responses that may be stored, whatever they state. Default: none.
    pub forced_lifetimes: Vec<(u16, u32)>,
    /// The longest lifetime of an error (status 400 and above), seconds: it bounds how long an
    /// attacker can poison with errors. Default: 10.
    pub error_lifetime_max_s: u32,
    /// Seconds beyond its lifetime that a response is served while it is refetched, unless it
    /// states that itself. Default: 0.
    pub stale_while_revalidate_s: u32,
    /// Seconds beyond its lifetime that a response is served while the server fails, unless it
    /// states that itself. Default: 0.
    pub stale_if_error_s: u32,
    /// Seconds beyond its lifetime that a client's `max-stale` may ask for. Default: 0.
    pub max_stale_s: u32,
    /// The effect of the directives of requests.
    pub request_directives: RequestDirectivesMode,
    /// Responses with Set-Cookie may be stored even without `public`. Default: no.
    pub stores_set_cookie: bool,
    /// Fields that are not stored, in lower case. Default: none.
    pub strip: Vec<Vec<u8>>,
    /// Directives of responses that count as absent. Default: none.
    pub ignored: DirectiveSet,
    /// Requests with one of these cookies bypass the cache. Default: none.
    pub bypass_cookies: Vec<Vec<u8>>,
    /// Most bytes of a stored body. Default: 8 MiB.
    pub object_bytes_max: u64,
}

/// The effect of a request's `no-cache`, `max-age` and `min-fresh` (RFC 9111 §5.2.1: caches may
/// ignore them).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RequestDirectivesMode {
    /// A response is validated for them, but not within a second of the last time, so that no
    /// client can use them to bypass the cache.
    #[default]
    Validate,
    /// It is validated each time.
    Obey,
    /// Nothing; only `only-if-cached` and `no-store` hold.
    Ignore,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            targets: vec![b"weir-cache-control".to_vec(), b"cdn-cache-control".to_vec()],
            heuristic: true,
            lifetimes: Vec::new(),
            forced_lifetimes: Vec::new(),
            error_lifetime_max_s: 10,
            stale_while_revalidate_s: 0,
            stale_if_error_s: 0,
            max_stale_s: 0,
            request_directives: RequestDirectivesMode::default(),
            stores_set_cookie: false,
            strip: Vec::new(),
            ignored: DirectiveSet::default(),
            bypass_cookies: Vec::new(),
            object_bytes_max: 8 << 20,
        }
    }
}

impl Options {
    /// The field is stored.
    pub fn keeps(&self, name: &[u8]) -> bool {
        !self.strip.iter().any(|stripped| stripped.eq_ignore_ascii_case(name))
    }

    /// The operator's lifetime for a status in one of the two lists, seconds up to [`DELTA_MAX`].
    pub(crate) fn of_status(list: &[(u16, u32)], status: u16) -> Option<u32> {
        list.iter()
            .find(|(other, _)| *other == status)
            .map(|(_, seconds)| (*seconds).min(DELTA_MAX))
    }
}
