//! The compiled configuration, which workers read. Built by weir-config, immutable, shared by all
//! workers.
//!
//! All times are microseconds, all sizes bytes. Defaults are those of the documentation; `Default`
//! gives them.

mod announcement;
mod cache;
mod client;
mod congestion;
mod dial;
mod discovery;
mod entrance;
mod listener;
mod merge;
mod network;
mod server;
mod shield;
mod shutdown;
mod slots;
mod state;
mod tcp;
mod tuning;
mod upgrade;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::forward::policy::Policy;
use crate::observe::access::AccessPlan;
use crate::placement::balance::Method;
use crate::placement::sticky::Sticky;
use crate::request::nonidempotent::Rules;
use crate::request::route::RouteTable;
use crate::upstream::health::{Codes, Symptom};
pub use announcement::{Announcement, ProxyProtocol, Whose};
pub use cache::{CachePlan, CacheRules, SnapshotPlan, ToldTo};
pub use client::{ClientPlan, Http2Plan, LoopField};
pub use congestion::{ARMS_MAX, Congestion, Side};
pub use dial::{Dial, Source, Way};
pub use discovery::{DiscoveryPlan, Family, Known, written_name};
pub use entrance::{Entrance, Protocols};
pub use listener::ListenerPlan;
pub use merge::{Full, SERVERS_SPARE, kept};
pub use network::{AddressField, NO_ADDRESS, Network, Shown};
pub use server::{Location, ORIGINAL_DESTINATION, Place, ServerPlan, UNIX, UNLOCATED};
pub use shield::{
    BanPlan, BanScope, BanVia, IN_PROGRESS_MAX, LIMITS_MAX, LimitPlan, Over, PathMatch,
    RequestMatch, ShieldPlan, Terms,
};
pub(crate) use shield::{CONNECTIONS, OFFENCES};
pub use shutdown::ShutdownPlan;
pub use state::PipelineState;
pub use tcp::{NamesPlan, Serves, TcpPlan};
pub use tuning::{Keepalive, Tunable, Tuning};
pub use upgrade::UpgradePlan;

/// Everything that a worker needs to know.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Addresses to accept clients on.
    pub listeners: Vec<ListenerPlan>,
    /// Named groups of servers; routes refer to them by index.
    pub upstreams: Vec<UpstreamPlan>,
    /// The upstream of each request.
    pub routes: RouteTable,
    /// Limits of clients.
    pub client: ClientPlan,
    /// The access log; None, the default: no log.
    pub access_log: Option<AccessPlan>,
    /// Terms for clients of listeners that serve [`Serves::Forward`]; None: no such listeners.
    pub forward: Option<ForwardPlan>,
    /// Terms for connections of listeners that serve [`Serves::Tcp`].
    pub tcp: Vec<Arc<TcpPlan>>,
    /// All files of users in the plan, each once.
    pub users: Vec<Arc<Path>>,
    /// Limits for each client; None, the default: no limits.
    pub shield: Option<ShieldPlan>,
    /// The store of responses; None, the default: no route has `cache`.
    pub cache: Option<CachePlan>,
    /// The shutdown of weir.
    pub shutdown: ShutdownPlan,
    /// The lookup of server names.
    pub discovery: DiscoveryPlan,
    /// The upgrade to a new program.
    pub upgrade: UpgradePlan,
    /// The file of servers that may not be pipelined.
    pub pipeline_state: PipelineState,
    /// Host names that browsers may use for the metrics listener, in lower case: `*` stands for
    /// all, `*.` and a domain for those below it. Default none: only names that no other party can
    /// own.
    pub metrics_hosts: Vec<String>,
    /// By slot: index of the upstream, and of the server in it. Empty, the default: upstream after
    /// upstream ([`Plan::places`]).
    pub slots: Vec<(u16, u16)>,
}

/// TLS towards the clients of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsPlan {
    /// Its certificates; at least one. The first is for clients that ask for a name that none has,
    /// or for no name.
    pub certificates: Vec<CertificatePlan>,
    /// TLS 1.3 only. Default: also 1.2.
    pub only_tls13: bool,
    /// Refuse clients that ask for a name that no certificate has, or for none. Default: no.
    pub strict_sni: bool,
    /// Clients may resume sessions for 12 hours (RFC 8446 §4.6.1). Default: yes.
    pub tickets: bool,
    /// A file with the keys of tickets, shared with other weirs; None, the default: keys of this
    /// process alone.
    pub ticket_keys: Option<PathBuf>,
    /// Client certificates; None, the default: not requested. With them no session is resumed.
    pub clients: Option<ClientCertificatesPlan>,
    /// The time limit of a handshake, microseconds. Default 10 s.
    pub handshake_timeout_us: u64,
}

/// Authentication of clients by certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificatesPlan {
    /// The CAs that may have signed them, in PEM.
    pub authorities: PathBuf,
    /// Revocation lists, in PEM or DER; None, the default: not checked.
    pub revocations: Option<PathBuf>,
    /// Clients without a certificate are refused. Default: only those with a bad one.
    pub required: bool,
    /// Servers receive the certificate in Client-Cert (RFC 9440). Default: no.
    pub told: bool,
}

/// A certificate and its key, as files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePlan {
    /// The chain in PEM, the certificate itself first.
    pub certificate: PathBuf,
    /// The private key in PEM; may be the same file.
    pub key: PathBuf,
    /// An OCSP response in DER, which clients get with the certificate; None, the default: they get
    /// none. Only of listeners.
    pub ocsp: Option<PathBuf>,
}

/// TLS towards the servers of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTlsPlan {
    /// The issuers that are trusted to sign the certificates of servers. Default
    /// [`TrustPlan::System`].
    pub trust: TrustPlan,
    /// The name that certificates must have, and that weir requests (RFC 6066 §3); None, the
    /// default: that of each server as written.
    pub name: Option<String>,
    /// The certificate for servers that request one; None, the default: no certificate.
    pub certificate: Option<CertificatePlan>,
}

impl ServerTlsPlan {
    /// Returns the name that the certificate of a server must have: a DNS name, or an IP address,
    /// which may be in brackets.
    pub fn name_of<'a>(&'a self, server: &'a ServerPlan) -> &'a str {
        self.name.as_deref().unwrap_or(server.host())
    }
}

/// The issuers that are trusted for the certificate of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustPlan {
    /// Any CA that the operating system trusts.
    System,
    /// A CA in this file, in PEM.
    File(PathBuf),
    /// Any issuer: an attacker on the path may read and change everything.
    Anybody,
}

impl Plan {
    /// Returns `ban` of `shield`, if configured.
    pub fn ban(&self) -> Option<&BanPlan> {
        self.shield.as_ref()?.ban.as_ref()
    }

    /// Whether a route, a rule of one or a limit looks at paths.
    pub fn reads_paths(&self) -> bool {
        let of_limits = || {
            self.shield
                .as_ref()
                .is_some_and(|shield| shield.limits.iter().any(LimitPlan::reads_paths))
        };
        self.routes.reads_paths() || of_limits()
    }

    /// Whether weir passes client certificates to servers: then Client-Cert and Client-Cert-Chain
    /// of clients are removed (RFC 9440 §2.4), whichever listener they come from.
    pub fn tells_certificates(&self) -> bool {
        let all =
            self.listeners.iter().filter_map(|listener| listener.tls.as_ref()?.clients.as_ref());
        all.into_iter().any(|clients| clients.told)
    }
}

/// A forward proxy: requests in absolute-form, and CONNECT.
#[derive(Debug, Clone)]
pub struct ForwardPlan {
    /// Index in [`Plan::upstreams`] of the upstream that represents all destinations. It has one
    /// server, with an unused address, and no route leads to it.
    pub upstream: usize,
    /// The destinations that may be used.
    pub policy: Policy,
    /// File with the names and hashed passwords of users, as `weir passwd` writes it; None, the
    /// default: no authentication.
    pub users: Option<Arc<Path>>,
    /// The realm of the challenge (RFC 9110 §11.5). Default `weir`.
    pub realm: String,
    /// Upstream connections of one client, 1-1,000; the least recently used one is closed for
    /// another. Default 16.
    pub destinations_max: u32,
    /// Client connections of one user over all workers; above that: 429. None, the default: any
    /// number.
    pub user_connections_max: Option<u32>,
    /// Requests a second of one user over all workers, with the same number as burst; above that:
    /// 429. None, the default: any number.
    pub user_rate_max: Option<u32>,
    /// Name servers; none, the default: those of the system (resolv.conf, and /etc/hosts first).
    pub resolvers: Vec<SocketAddr>,
    /// The response to `/proxy.pac` for clients that send the request to the proxy itself. None,
    /// the default: 404.
    pub pac: Option<Bytes>,
}

/// `pool` of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pool {
    /// Requests of all clients follow each other on few connections. The default.
    #[default]
    Pipelined,
    /// A connection has one request at a time, of any client.
    Shared,
    /// Each client connection has a separate upstream connection, as long as it lives.
    Pinned,
    /// Each request has a separate upstream connection.
    PerRequest,
    /// Pipelined, but requests have separate connections while kept ones are measurably worse.
    Fresh,
    /// Each connection of `tcp` has one: not a word of the configuration, but the use by `tcp`.
    Tcp,
}

impl Pool {
    /// Returns the word of the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Pool::Pipelined => "pipelined",
            Pool::Shared => "shared",
            Pool::Pinned => "pinned",
            Pool::PerRequest => "per-request",
            Pool::Fresh => "fresh",
            Pool::Tcp => "tcp",
        }
    }

    /// Pools that let requests of all clients follow each other.
    pub const PIPELINED: [Pool; 2] = [Pool::Pipelined, Pool::Fresh];

    /// Whether connections belong to clients or requests, and are made when those need them.
    pub fn is_private(self) -> bool {
        matches!(self, Pool::Pinned | Pool::PerRequest | Pool::Tcp)
    }
}

/// A named group of servers.
#[derive(Debug, Clone)]
pub struct UpstreamPlan {
    /// As written in the configuration.
    pub name: String,
    /// At least one. In a plan that was just compiled the list may be empty, if the servers are in
    /// a file ([`DiscoveryPlan::files`]).
    pub servers: Vec<ServerPlan>,
    /// TLS of connections to them; None, the default: no TLS.
    pub tls: Option<ServerTlsPlan>,
    /// How connections to its servers are made.
    pub dial: Dial,
    /// Chooses the server of the next request.
    pub balance: Method,
    /// How long a server that is added or recovers takes to get its full share, 0-1 h. Default 0:
    /// at once.
    pub slow_start_us: u64,
    /// Binds sessions to servers; None: they are not.
    pub sticky: Option<Sticky>,
    /// Decides which requests use which connections.
    pub pool: Pool,
    /// How deep requests may follow each other on one connection. Only with [`Pool::PIPELINED`].
    pub pipeline: PipelineMode,
    /// Decides whether requests of several clients may follow each other on one connection.
    pub share: Share,
    /// A field name: weir sends an identifier in it and accepts only the response that carries it
    /// back.
    pub echo: Option<String>,
    /// Further options of pipelining.
    pub sharing: Sharing,
    /// Requests waiting or in flight for each connection, 1-1,000,000. Default 1000; 1 means no
    /// pipelining.
    pub queue_size: u32,
    /// How long a request that was not sent yet may wait for a connection, from its receipt; over
    /// it: 503. None, the default: as long as `forward_timeout_us`.
    pub queue_timeout_us: Option<u64>,
    /// How often requests are sent again after a loss, and which.
    pub retry: RetryPlan,
    /// From the receipt of a request to the beginning of its response. Default 60 s; over it: 504.
    pub forward_timeout_us: u64,
    /// Between two pieces of a response that has begun. Default 1 h; over it the response is
    /// truncated.
    pub answer_timeout_us: u64,
    /// The time limit of one connect. Default 5 s.
    pub connect_timeout_us: u64,
    /// weir is not ready while none of its servers can be used. Default false.
    pub required: bool,
    /// Limits of a response head.
    pub head: weir_http::Limits,
    /// Glitches of one connection, 1-1,000,000; above that it is replaced. None, the default: any
    /// number.
    pub glitches_max: Option<u32>,
    /// Requests that must not be pipelined although their method is safe.
    pub nonidempotent: Rules,
    /// Rules that suspend a server, at most [`FAILOVER_MAX`]. Default none.
    pub failover: Vec<FailoverRule>,
    /// How servers are probed; None, the default: not at all.
    pub health: Option<HealthPlan>,
    /// The fate of requests when no server is in use and reachable, but suspended ones are. Default
    /// try all.
    pub all_down: AllDown,
}

/// Terms of an upstream for sending requests again after a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPlan {
    /// How often one request may be sent again. Default 5.
    pub per_request_max: u32,
    /// Share of requests that may be sent again, percent 0-100, on top of a small floor. Default
    /// 20.
    pub budget_percent: u32,
    /// Non-idempotent requests as well. Default false.
    pub nonidempotent: bool,
    /// Failed connects in a row after which the requests that wait for the server move to others,
    /// or fail. Default 10.
    pub connect_retries: u32,
}

impl Default for RetryPlan {
    fn default() -> RetryPlan {
        RetryPlan {
            per_request_max: 5,
            budget_percent: 20,
            nonidempotent: false,
            connect_retries: 10,
        }
    }
}

/// Most `failover` rules of an upstream.
pub const FAILOVER_MAX: usize = 16;

/// One `failover` of an upstream: a server with this many symptoms is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailoverRule {
    /// The symptom.
    pub symptom: Symptom,
    /// How many, over all workers, 1-10,000.
    pub limit: u32,
    /// Within this time.
    pub window_us: u64,
}

/// `expect-body` of `health`. Searched in the first 64 KiB of a response, including its head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyCheck {
    /// It contains this text, which is not empty.
    Contains(String),
    /// All of it has this SHA-256 (FIPS 180-4).
    Sha256([u8; 32]),
}

/// `health` of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthPlan {
    /// Default GET.
    pub method: String,
    /// Path and query. Default `/`.
    pub path: String,
    /// Host of the probe; None: the server's name as configured.
    pub host: Option<String>,
    /// Statuses that are good. Default 200-399.
    pub expect_status: Codes,
    /// The required body. Default: any.
    pub expect_body: Option<BodyCheck>,
    /// Between two probes, varied by up to a tenth. Default 10 s.
    pub interval_us: u64,
    /// From the connect to the verdict. Default 5 s.
    pub timeout_us: u64,
    /// Good probes in a row that bring a suspended server back, at least 1. Default 2.
    pub rise: u32,
    /// Failed probes in a row that suspend a server, at least 1. Default 3.
    pub fall: u32,
}

impl Default for HealthPlan {
    fn default() -> HealthPlan {
        HealthPlan {
            method: "GET".to_owned(),
            path: "/".to_owned(),
            host: None,
            expect_status: Codes { first: 200, last: 399 },
            expect_body: None,
            interval_us: 10 * SECOND_US,
            timeout_us: 5 * SECOND_US,
            rise: 2,
            fall: 3,
        }
    }
}

impl HealthPlan {
    /// Whether a good response to this request shows the same as a probe would.
    pub fn is_like(&self, method: &[u8], path: &[u8], host: &[u8]) -> bool {
        self.expect_body.is_none()
            && self.method.as_bytes() == method
            && self.path.as_bytes() == path
            && self.host.as_ref().is_none_or(|mine| mine.as_bytes().eq_ignore_ascii_case(host))
    }
}

/// `all-down` of an upstream, or its `fallback`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllDown {
    /// Suspended servers get the requests after all: when all look bad, the judgement is more
    /// likely wrong than all of them are dead. The default.
    TryAll,
    /// Refused with 503.
    Refuse,
    /// The upstream with this index gets them, and all others that no server here can take
    /// (`fallback`). Chains end.
    Fallback(usize),
}

/// Whether requests may share a connection, and the fate of those that do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sharing {
    /// The target for the rehearsal of a server; None: one that clients request.
    pub rehearse: Option<String>,
    /// Safe requests behind a response that is far slower than usual are sent again on another
    /// connection. None: with [`PipelineMode::Depth`], where they may be behind any request.
    pub escape: Option<bool>,
}

impl UpstreamPlan {
    /// Returns the number of failed connects in a row after which nothing waits for a server. With
    /// a fallback, nothing waits for a server that fails.
    pub fn connects_failed_max(&self) -> u32 {
        if self.fallback().is_some() { 1 } else { self.retry.connect_retries.max(1) }
    }

    /// Whether requests behind a late response are sent again elsewhere.
    pub fn escapes(&self) -> bool {
        self.sharing.escape.unwrap_or(matches!(self.pipeline, PipelineMode::Depth(_)))
    }

    /// Whether its server is the original destination of each client. That is then the only server
    /// of its upstream, as are those that were there before.
    pub fn is_destination(&self) -> bool {
        self.servers.first().is_some_and(|server| server.address == Location::Destination)
    }

    /// Returns the index of the upstream that gets the requests that no server here can take.
    pub fn fallback(&self) -> Option<usize> {
        match self.all_down {
            AllDown::Fallback(upstream) => Some(upstream),
            AllDown::TryAll | AllDown::Refuse => None,
        }
    }

    /// Returns the lowest status that matters to health; above all statuses if none does.
    pub fn notable_from(&self) -> u16 {
        let good = self.health.as_ref().filter(|health| health.expect_body.is_none());
        let bad =
            self.failover.iter().filter_map(|rule| rule.symptom.codes()).map(|codes| codes.first);
        bad.chain(good.map(|health| health.expect_status.first)).min().unwrap_or(u16::MAX)
    }
}

/// `pipeline` of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelineMode {
    /// One request at a time on each connection.
    Off,
    /// The depth follows the delay that it causes. The default.
    Adaptive,
    /// Always up to this depth, 1-1,000,000.
    Depth(u32),
}

/// `share` of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Requests of all clients follow each other. The default.
    All,
    /// Only requests of one client connection follow each other.
    Client,
}

/// One second.
const SECOND_US: u64 = 1_000_000;

impl Default for UpstreamPlan {
    fn default() -> UpstreamPlan {
        UpstreamPlan {
            name: String::new(),
            servers: Vec::new(),
            tls: None,
            dial: Dial::default(),
            balance: Method::Ratio,
            slow_start_us: 0,
            sticky: None,
            pool: Pool::Pipelined,
            pipeline: PipelineMode::Adaptive,
            share: Share::All,
            echo: None,
            sharing: Sharing::default(),
            queue_size: 1000,
            queue_timeout_us: None,
            retry: RetryPlan::default(),
            forward_timeout_us: 60 * SECOND_US,
            answer_timeout_us: 3600 * SECOND_US,
            connect_timeout_us: 5 * SECOND_US,
            required: false,
            head: weir_http::Limits::default(),
            glitches_max: None,
            nonidempotent: Rules::default(),
            failover: Vec::new(),
            health: None,
            all_down: AllDown::TryAll,
        }
    }
}
