//! Features that are not carried over, because weir does not have them or an import cannot write
//! them, each with the solution: the one place to change when either learns something.

/// The note that is made once about all paths.
pub(super) const SEGMENTS: &str =
    "weir's paths match whole segments: `/a` takes `/a` and `/a/b`, but not `/ab` as here";

/// The note that is made once about all paths that are compared in any case.
pub(super) const CASE: &str = "weir's paths are case-sensitive: `/a` does not take `/A`, as it \
    does here; if this rejects `/A`, another route may now accept it";

/// A feature that is not carried over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// Redirects in a form that weir does not have.
    Redirect,
    /// Responses of the proxy itself in such a form.
    Respond,
    /// Compressed responses in such a form.
    Compress,
    /// Pages for errors.
    Pages,
    /// A cache in such a form.
    Cache,
    /// Files in a folder.
    Files,
    /// Certificates from a CA by ACME.
    Acme,
    /// The PROXY protocol of listeners.
    ProxyProtocol,
    /// HTTP/2 to servers, and so gRPC.
    Http2Servers,
    /// FastCGI and the like.
    Gateway,
    /// Limits of requests for each client.
    Rates,
    /// Servers that are discovered at run time.
    Discovery,
    /// Paths by expression, or exactly one.
    PathMatch,
    /// Other criteria of requests.
    Criteria,
    /// Access control.
    Access,
    /// Lines of the access log to a syslog server.
    Syslog,
    /// No counterpart of any kind.
    Nothing,
}

impl Missing {
    /// Returns why not, and the solution.
    pub(super) fn why(self) -> &'static str {
        match self {
            Missing::Redirect => {
                "an import cannot express this with weir's rules; write `redirect` in a `route`"
            }
            Missing::Respond => {
                "an import cannot express this with weir's rules; write `respond` in a `route`"
            }
            Missing::Compress => "weir compresses with `zstd`, `br` and `gzip`; see `compress`",
            Missing::Pages => {
                "write `error-page` in a `route`, with a file for the content of weir's own \
                    responses"
            }
            Missing::Cache => {
                "an import cannot express this with weir's rules; write `cache` in a `route`"
            }
            Missing::Files => "weir serves no files; use a server behind it",
            Missing::Acme => {
                "weir requests no certificates; let certbot or the like write them, and weir \
                    notices when they change"
            }
            Missing::ProxyProtocol => {
                "write `proxy-protocol` in the `listen`, and name in `trusted-proxies` the proxies \
                    that may connect there"
            }
            Missing::Http2Servers => "weir speaks HTTP/1.1 to servers, so it cannot forward gRPC",
            Missing::Gateway => "weir speaks only HTTP to servers; let the application speak HTTP",
            Missing::Rates => "write a `limit` for each client in `shield`",
            Missing::Discovery => {
                "weir resolves names again automatically, and supports SRV and `servers-from`"
            }
            Missing::PathMatch => {
                "weir cannot use this expression; write `path-regex` in a `route`, without \
                    look-around and backreferences"
            }
            Missing::Criteria => {
                "routes match host, path, method, headers, cookies and query; try to express it \
                    with these"
            }
            Missing::Access => {
                "write `allow` and `deny`, or `users` with a file of `weir passwd`, in a `route`"
            }
            Missing::Syslog => {
                "weir logs to a file or to standard output: write `access-log \"stdout\"`, and let \
                    the service manager forward the lines"
            }
            Missing::Nothing => "weir has no equivalent",
        }
    }
}
