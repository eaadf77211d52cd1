//! Why weir itself answers with an error or truncates a response: one table, from which the
//! response, the access log, the counters and the forward proxy's `Proxy-Status` follow. No code
//! derives anything from the words. How connections end: [`crate::ending`].
//!
//! A cause that is not in [`Cause::all`] can't be made: the list comes from the same lines as the
//! variants.

use std::sync::Arc;

use weir_http::RequestError;

use crate::forward::policy::Refusal;
use crate::forward::policy::host::HostError;
use crate::observe::access::{Blame, Party, Stage};
use crate::observe::kinds::Kinds;
use crate::request::own_answer::Fixed;
use crate::retry::poison::REFUSED_US;

/// The consequences of a cause.
struct Row {
    word: &'static str,
    status: u16,
    party: Party,
    /// The stage of a request that has not been sent yet.
    stage: Stage,
    /// RFC 9209 §2.3; empty: the field is not sent.
    proxy_error: &'static str,
}

impl Row {
    /// The client has made an error, or requests something that does not exist: the status says
    /// everything.
    const fn of_request(word: &'static str, status: u16) -> Row {
        Row { word, status, party: Party::Weir, stage: Stage::Queue, proxy_error: "" }
    }
}

macro_rules! causes {
    (
        $(
            $(#[$help:meta])+
            $cause:ident: $word:literal, $status:literal, $party:ident, $stage:ident,
            $proxy_error:literal;
        )+
    ) => {
        /// Why a request gets no response from a server, or only part of one.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Cause {
            /// Its head is invalid.
            Request(RequestError),
            /// Its destination is not a valid host.
            Destination(HostError),
            /// The policy of the forward proxy refuses the destination.
            Denied(Refusal),
            $($(#[$help])+ $cause,)+
        }

        impl Cause {
            const OWN: &[Cause] = &[$(Cause::$cause),+];

            fn row(self) -> Row {
                match self {
                    Cause::Request(error) => Row::of_request(error.word(), error.status()),
                    Cause::Destination(error) => Row::of_request(error.word(), 400),
                    Cause::Denied(refusal) => {
                        let proxy_error = match refusal {
                            Refusal::Rule | Refusal::Port => "http_request_denied",
                            Refusal::Address | Refusal::Own => "destination_ip_prohibited",
                        };
                        Row { proxy_error, ..Row::of_request(refusal.word(), 403) }
                    }
                    $(Cause::$cause => Row {
                        word: $word,
                        status: $status,
                        party: Party::$party,
                        stage: Stage::$stage,
                        proxy_error: $proxy_error,
                    },)+
                }
            }
        }
    };
}

causes! {
    /// It has already passed through this proxy.
    Loop: "loop", 508, Weir, Queue, "proxy_loop_detected";
    /// CONNECT to a reverse proxy.
    ConnectRefused: "connect-refused", 405, Weir, Queue, "";
    /// TRACE that must not be forwarded any further.
    MaxForwards: "max-forwards", 405, Weir, Queue, "";
    /// HTTP/2 for an upstream with private connections for each client: the status makes the client
    /// retry with HTTP/1.1.
    NeedsHttp1: "needs-http1", 421, Weir, Queue, "";
    /// gRPC, which only works over HTTP/2: weir uses HTTP/1.1 to servers.
    Grpc: "grpc", 415, Weir, Queue, "";
    /// No route has this path.
    NoRoute: "no-route", 404, Weir, Queue, "";
    /// Its path can't be compared with routes, or can't be changed by their rules.
    Path: "path", 400, Weir, Queue, "";
    /// With it the output of its route's rules would exceed its limit.
    RulesTooLarge: "rules-too-large", 431, Weir, Queue, "";
    /// It has no Host, or one that is not valid in the redirect of its route.
    RedirectHost: "redirect-host", 400, Weir, Queue, "";
    /// Its route does not accept requests from this address.
    AddressDenied: "address-denied", 403, Weir, Queue, "";
    /// Its content has none of the media types that its route accepts, or an unknown one.
    ContentType: "content-type", 415, Weir, Queue, "";
    /// It overrides its method with one that its route does not accept.
    MethodOverride: "method-override", 403, Weir, Queue, "";
    /// Its Host is an address, and its route is for names only: weir is not authoritative for that
    /// origin (RFC 9110 §15.5.20).
    HostAddress: "host-address", 421, Weir, Queue, "";
    /// Its destination is the address that its client connected to, and that is this machine: weir
    /// would send it to itself.
    OwnDestination: "own-destination", 421, Weir, Queue, "";
    /// Its route requires a name and password, and it has none.
    AuthorizationMissing: "authorization-missing", 401, Weir, Queue, "";
    /// Name and password can't be parsed.
    AuthorizationInvalid: "authorization-invalid", 401, Weir, Queue, "";
    /// Name or password are wrong.
    AuthorizationWrong: "authorization-wrong", 401, Weir, Queue, "";
    /// It accepts only a stored response, and none may be used (RFC 9111 §5.2.1.7).
    OnlyIfCached: "only-if-cached", 504, Weir, Queue, "";
    /// It is a PURGE, and its route does not allow it for this client.
    PurgeDenied: "purge-denied", 403, Weir, Queue, "";
    /// The body is longer than `body-limit`.
    BodyTooLarge: "body-too-large", 413, Weir, Body, "";
    /// The client closed its direction within the body.
    BodyTruncated: "body-truncated", 400, Client, Body, "";
    /// No part of the body arrived for `body-timeout`.
    BodyTimeout: "body-timeout", 408, Weir, Body, "";
    /// The body arrived more slowly than `body-rate`.
    BodyTooSlow: "body-too-slow", 408, Weir, Body, "";
    /// The chunked coding of the body is invalid.
    BadChunk: "bad-chunk", 400, Weir, Body, "";
    /// The head did not arrive within `head-timeout`.
    HeadTimeout: "head-timeout", 408, Weir, Queue, "";
    /// The client had too many glitches.
    Glitches: "glitches", 400, Weir, Queue, "";
    /// The client exceeded a limit of `shield`, which may set another status.
    OverLimit: "over-limit", 429, Weir, Queue, "http_request_denied";
    /// The client, as a trusted proxy names it, is banned.
    Banned: "banned", 403, Weir, Queue, "http_request_denied";
    /// Sent to the forward proxy itself, which is not an origin server.
    NotAbsolute: "not-absolute", 400, Weir, Queue, "";
    /// No PAC file is configured.
    NoPac: "no-pac", 404, Weir, Queue, "";
    /// Its destination was never decided.
    NotDecided: "not-decided", 400, Weir, Queue, "proxy_internal_error";
    /// A scheme other than http.
    Scheme: "scheme", 501, Weir, Queue, "";
    /// Port 0.
    Port: "port", 400, Weir, Queue, "";
    /// The user exceeds its limit of requests.
    UserRate: "user-rate", 429, Weir, Queue, "http_request_denied";
    /// The user has reached its limit of connections.
    UserConnections: "user-connections", 429, Weir, Queue, "http_request_denied";
    /// No credentials.
    CredentialsMissing: "credentials-missing", 407, Weir, Queue, "";
    /// Credentials that can't be parsed.
    CredentialsInvalid: "credentials-invalid", 407, Weir, Queue, "";
    /// Wrong name or password.
    CredentialsWrong: "credentials-wrong", 407, Weir, Queue, "";
    /// Too many credentials are being compared.
    CredentialsBusy: "credentials-busy", 503, Weir, Queue, "";
    /// Too many names are being resolved.
    NamesBusy: "names-busy", 503, Weir, Queue, "dns_error";
    /// The destination's name does not exist.
    NoSuchName: "no-such-name", 502, Server, Queue, "dns_error";
    /// Name servers could not answer.
    NameServersFailed: "name-servers-failed", 502, Server, Queue, "dns_error";
    /// Name servers did not answer in time.
    NameServersTimeout: "name-servers-timeout", 504, Server, Queue, "dns_timeout";
    /// A lookup that must come first did not finish in time.
    ErrandTimeout: "errand-timeout", 504, Weir, Queue, "proxy_internal_response";
    /// No server can be reached.
    NoServer: "no-server", 502, Server, Connect, "destination_unavailable";
    /// None of the destination's addresses accepts a connection.
    ConnectFailed: "connect-failed", 502, Server, Queue, "connection_refused";
    /// None of the destination's addresses has replied in time.
    ConnectTimeout: "connect-timeout", 504, Server, Queue, "connection_timeout";
    /// Every server is suspended or disabled by an operator.
    NoHealthyServer: "no-healthy-server", 503, Server, Connect, "destination_unavailable";
    /// Every queue is full.
    QueueFull: "queue-full", 503, Weir, Queue, "connection_limit_reached";
    /// No connection was free within `queue-timeout`.
    QueueTimeout: "queue-timeout", 503, Weir, Queue, "connection_limit_reached";
    /// The server did not answer within `forward-timeout`.
    ForwardTimeout: "forward-timeout", 504, Weir, Queue, "http_response_timeout";
    /// No more of the response arrived for `answer-timeout`: weir does not wait for the rest, and
    /// closes the client's connection.
    AnswerTimeout: "answer-timeout", 504, Weir, Queue, "connection_read_timeout";
    /// The connection was lost and the request may not be retried.
    Lost: "upstream-lost", 502, Server, Queue, "connection_terminated";
    /// It was retried as often as is allowed.
    RetriesExceeded: "retries-exceeded", 502, Server, Queue, "connection_terminated";
    /// The failure rate is so high that more retries would only multiply the load.
    RetryBudget: "retry-budget", 502, Server, Queue, "connection_terminated";
    /// Requests like this killed servers.
    Suspect: "suspect", 503, Weir, Queue, "";
    /// The server's response is not valid HTTP/1.1 according to the RFC.
    BadAnswer: "bad-answer", 502, Server, Queue, "http_protocol_error";
    /// The beginning of the response is delivered and its rest will not come: the client's
    /// connection is closed.
    Truncated: "truncated", 502, Server, Queue, "http_response_incomplete";
}

impl Cause {
    /// The word in the answer, the log and the counters.
    pub fn word(self) -> &'static str {
        self.row().word
    }

    /// Status of the response that replaces the server's.
    pub fn status(self) -> u16 {
        self.row().status
    }

    /// The stage of a request that has not been sent yet: [`Stage::Body`], [`Stage::Connect`] or
    /// [`Stage::Queue`].
    pub fn stage(self) -> Stage {
        self.row().stage
    }

    /// The error type for `Proxy-Status` (RFC 9209 §2.3), if one is sent.
    pub fn proxy_error(self) -> Option<&'static str> {
        Some(self.row().proxy_error).filter(|error| !error.is_empty())
    }

    /// The value of Retry-After in seconds: with each 503.
    pub fn retry_after_s(self) -> Option<u32> {
        match self {
            Cause::Suspect => Some((REFUSED_US / 1_000_000) as u32),
            _ => (self.status() == 503).then_some(1),
        }
    }

    /// Whether no server could take the request, so that a server of a fall-back upstream may.
    pub(crate) fn is_want_of_servers(self) -> bool {
        let is_unreached =
            matches!(self, Cause::NoServer | Cause::ConnectFailed | Cause::ConnectTimeout);
        let is_queue = matches!(self, Cause::QueueFull | Cause::QueueTimeout);
        is_unreached || is_queue || self == Cause::NoHealthyServer
    }

    /// Whether the data after the request has no known start or is not wanted, so that the
    /// connection ends with the response.
    pub fn ends_connection(self) -> bool {
        let unread = matches!(
            self,
            Cause::Request(_) | Cause::HeadTimeout | Cause::ErrandTimeout | Cause::Glitches
        );
        unread || self.stage() == Stage::Body
    }
}

impl Kinds for Cause {
    fn all() -> Box<[Cause]> {
        let requests = RequestError::all().map(Cause::Request);
        let destinations = HostError::all().into_iter().map(Cause::Destination);
        let denied = Refusal::all().into_iter().map(Cause::Denied);
        requests.chain(destinations).chain(denied).chain(Cause::OWN.iter().copied()).collect()
    }

    fn word(self) -> &'static str {
        Cause::word(self)
    }
}

impl From<RequestError> for Cause {
    fn from(error: RequestError) -> Cause {
        Cause::Request(error)
    }
}

impl From<HostError> for Cause {
    fn from(error: HostError) -> Cause {
        Cause::Destination(error)
    }
}

impl From<Refusal> for Cause {
    fn from(refusal: Refusal) -> Cause {
        Cause::Denied(refusal)
    }
}

impl From<Cause> for Blame {
    fn from(cause: Cause) -> Blame {
        Blame { word: cause.word(), party: cause.row().party }
    }
}

/// A response that weir makes itself.
#[derive(Clone, Debug)]
pub enum Local {
    /// An error.
    Refused(Cause),
    /// The client exceeded a limit of `shield`.
    OverLimit {
        /// The status to send.
        status: u16,
        /// The value of Retry-After.
        retry_after_s: u32,
    },
    /// OPTIONS that must not be forwarded any further (RFC 9110 §7.6.2): 200.
    Options,
    /// The PAC file: 200.
    Pac,
    /// A redirect of a route: its status, and where to.
    Redirect(u16, Vec<u8>),
    /// A fixed response of a route.
    Fixed(Arc<Fixed>),
}

impl From<Cause> for Local {
    fn from(cause: Cause) -> Local {
        Local::Refused(cause)
    }
}
