//! Features that are not carried over, because weir does not have them or an import cannot write
//! them, each with the solution: the one place to change when either learns something.

/// The note that is made once about all paths.
pub(super) const SEGMENTS: &str = "paths of weir end on a segment: `/a` takes `/a` and `/a/b`, and not `/ab` as here";

/// The note on a path that is meant alone, where weir cannot express that.
pub(super) const EXACT: &str = "it is for this path alone here; a route takes all below it, too";

/// The note that is made once about all paths that are compared in any case.
pub(super) const CASE: &str = "paths of weir have their case: `/a` doesn't take `/A`, as it does here, and what it refuses is let in where another route takes that";

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
            Missing::Redirect => "an import can't say this by weir's rules; write `redirect` in a `route`",
            Missing::Respond => "an import can't say this by weir's rules; write `respond` in a `route`",
            Missing::Compress => "weir compresses as `zstd`, `br` and `gzip`; see `compress`",
            Missing::Pages => {
                "write `error-page` in a `route`, whose file is the content of answers that weir makes itself"
            }
            Missing::Cache => "an import can't say this by weir's rules; write `cache` in a `route`",
            Missing::Files => "weir serves no files; let a server behind it do so",
            Missing::Acme => {
                "weir gets no certificates by itself; have certbot or the like put them there, weir sees when they change"
            }
            Missing::ProxyProtocol => {
                "write `proxy-protocol` in the `listen`, and in `trusted-proxies` who may connect there"
            }
            Missing::Http2Servers => "weir speaks HTTP/1.1 to servers, and so no gRPC",
            Missing::Gateway => "weir speaks HTTP to servers; let the application do so, too",
            Missing::Rates => "write a `limit` for each client in `shield`",
            Missing::Discovery => "weir looks names up again by itself, and has SRV and `servers-from`",
            Missing::PathMatch => "paths of routes are prefixes; write a route for each prefix that it stands for",
            Missing::Criteria => "routes go by host, path, method, fields, cookies and query; try to say it by these",
            Missing::Access => "write `allow` and `deny`, or `users` with a file of `weir passwd`, in a `route`",
            Missing::Syslog => {
                "lines go to a file or to standard output: write `access-log \"stdout\"`, and let the service manager pass them on"
            }
            Missing::Nothing => "weir has nothing like it",
        }
    }
}
