//! How connections end, and which deadlines exist: the words of the counters, and the consequences
//! of an end.

use crate::cross::doubt::Doubt;
use crate::observe::access::{Blame, Party};
use crate::observe::kinds::worded;

/// Which clients have to leave, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// All, because weir ends: after their responses; idle ones soon.
    All,
    /// Those that came in by this listener, which is about to close: in the same way, but idle ones
    /// have time for another request.
    Listener(u32),
    /// All in the same way as those, because a successor accepts new clients.
    Successor,
    /// All except tunnels, at once. A truncated response does not look complete.
    AllButTunnels,
}

worded! {
    /// Why a client's connection ended.
    enum ClientEnd;
    /// In order.
    Done: "done";
    /// In order, because the client had too many glitches.
    Glitches: "glitches";
    /// The client exceeded a limit of `shield`.
    OverLimit: "over-limit";
    /// The client was banned.
    Banned: "banned";
    /// After a response that ends it, or cuts off those that wait.
    Closed: "connection-closed";
    /// The client closed it before all responses were complete.
    ClientClosed: "client-closed";
    /// The client reset it.
    ClientReset: "client-reset";
    /// The client did not take its output for `send-timeout`.
    SendTimeout: "send-timeout";
    /// The client did not take its responses while others needed the connections that they came on.
    Stalled: "stalled";
    /// The client violated HTTP/2, or exceeded a limit of it.
    Http2Failed: "http2-failed";
    /// More of the client's input waits than weir keeps.
    Overrun: "overrun";
    /// weir took too long to handle what the client sent at a time.
    TooCostly: "too-costly";
    /// No request came for `idle-timeout`.
    IdleTimeout: "idle-timeout";
    /// It had been idle longest when there were no descriptors for others.
    MadeRoom: "made-room";
    /// weir shuts down.
    Drained: "drained";
    /// One side of a tunnel ended it.
    TunnelEnded: "tunnel-ended";
    /// Nothing moved in a tunnel for `tunnel-timeout`.
    TunnelTimeout: "tunnel-timeout";
}

impl From<ClientEnd> for Blame {
    /// Which side is responsible that something under way is not complete.
    fn from(end: ClientEnd) -> Blame {
        let party = match end {
            ClientEnd::Done | ClientEnd::TunnelEnded => Party::None,
            ClientEnd::ClientClosed | ClientEnd::ClientReset | ClientEnd::Http2Failed => {
                Party::Client
            }
            _ => Party::Weir,
        };
        Blame { word: end.word(), party }
    }
}

worded! {
    /// Why a connection of `tcp` ended.
    enum FlowEnd;
    /// In order: both sides closed their direction.
    Done: "done";
    /// The client reset it, or can't be reached any more.
    ClientReset: "client-reset";
    /// The server reset it, or can't be reached any more.
    ServerReset: "server-reset";
    /// No server may have it: all are suspended, disabled or full.
    NoServer: "no-server";
    /// No descriptors were left for a connection to a server.
    NoDescriptors: "no-descriptors";
    /// No server accepted it.
    ConnectFailed: "connect-failed";
    /// No server accepted it, and the last attempt timed out.
    ConnectTimeout: "connect-timeout";
    /// The client did not send the name that it wants within `hello-timeout`.
    HelloTimeout: "hello-timeout";
    /// The client closed its direction before it had sent that name.
    HelloTruncated: "hello-truncated";
    /// The client's name leads nowhere, or it speaks no TLS, and no rule covers other clients.
    UnknownName: "unknown-name";
    /// The client has connected to this machine itself, although its connections are to be passed
    /// on to the address that they were made to.
    OwnDestination: "own-destination";
    /// Nothing moved for `idle-timeout`.
    IdleTimeout: "idle-timeout";
    /// Nothing moved for `half-close-timeout` after one side had closed.
    HalfCloseTimeout: "half-close-timeout";
    /// The client was banned.
    Banned: "banned";
    /// weir ended while it was still under way.
    Stopped: "stopped";
}

worded! {
    /// What became of a client's first packet: weir connects to its server before it accepts the
    /// client (docs/intercept.md).
    enum Held;
    /// The server accepted the connection, and so did weir the client's.
    Connected: "connected";
    /// The server refused, and so did weir.
    Refused: "refused";
    /// The server can't be reached, and the client was informed.
    Unreachable: "unreachable";
    /// No reply came for too long.
    Silent: "silent";
    /// The client was accepted meanwhile, and got the connection that was begun for it.
    Early: "early";
    /// The client did not come for the connection that was made for it.
    Abandoned: "abandoned";
    /// Too many servers were being tried, so the client was accepted first.
    LetThrough: "let-through";
}

impl From<FlowEnd> for Blame {
    /// Which side is responsible that it did not end in order.
    fn from(end: FlowEnd) -> Blame {
        let party = match end {
            FlowEnd::Done => Party::None,
            FlowEnd::ClientReset | FlowEnd::HelloTruncated => Party::Client,
            FlowEnd::ServerReset | FlowEnd::ConnectFailed | FlowEnd::ConnectTimeout => {
                Party::Server
            }
            _ => Party::Weir,
        };
        Blame { word: end.word(), party }
    }
}

worded! {
    /// Why TLS with a client failed.
    enum TlsFailure;
    /// The client did not begin with TLS.
    NotTls: "not-tls";
    /// The client supports no version, cipher suite, group or protocol that weir supports.
    NothingInCommon: "nothing-in-common";
    /// No certificate has the name that the client wants, and `strict-sni` is on.
    UnknownName: "unknown-name";
    /// The client sent an alert: most likely it rejects the certificate.
    Alert: "alert";
    /// The client violated TLS, or bytes were changed on the way.
    Misbehaved: "misbehaved";
    /// The client left before the handshake was complete.
    Left: "left";
    /// The handshake took longer than `handshake-timeout`.
    Timeout: "timeout";
    /// Too many handshakes were unfinished.
    TooMany: "too-many";
    /// The client showed no certificate, and `client-auth` requires one.
    CertificateMissing: "client-certificate-missing";
    /// No CA of `client-ca` has signed the client's certificate, or the client does not send an
    /// intermediate certificate.
    CertificateUnknownCa: "client-certificate-unknown-ca";
    /// The client's certificate, or one above it, has expired.
    CertificateExpired: "client-certificate-expired";
    /// The client's certificate, or one above it, is not valid yet.
    CertificateNotYetValid: "client-certificate-not-yet-valid";
    /// The client's certificate, or one above it, is in a list of `client-crl`.
    CertificateRevoked: "client-certificate-revoked";
    /// `client-crl` has no list of the CA of the client's certificate, or of one above it, or no
    /// current one.
    CertificateUnlisted: "client-certificate-unlisted";
    /// The client's certificate can't be used for another reason.
    CertificateBad: "client-certificate-bad";
    /// A bug in weir, or exhausted keys.
    Internal: "internal";
}

worded! {
    /// Why TLS with a server failed.
    enum ServerTlsFailure;
    /// The server does not speak TLS on this port.
    NotTls: "tls-not-spoken";
    /// The server supports no version, cipher suite or group that weir supports.
    NothingInCommon: "tls-nothing-in-common";
    /// Its certificate is for other names.
    Name: "tls-name";
    /// Its certificate, or one above it, has expired.
    Expired: "tls-expired";
    /// Its certificate, or one above it, is not valid yet.
    NotYetValid: "tls-not-yet-valid";
    /// No CA of `ca` has signed its certificate, or the server does not send an intermediate
    /// certificate.
    UnknownCa: "tls-unknown-ca";
    /// Its certificate has no name in subjectAltName.
    NoNames: "tls-no-names";
    /// Its certificate is that of a CA, and `ca` does not contain exactly this certificate.
    CaCertificate: "tls-ca-certificate";
    /// The key of its certificate, or of one above it, has a type or a size that weir rejects.
    UnusableKey: "tls-unusable-key";
    /// Its certificate can't be used for another reason.
    Certificate: "tls-certificate";
    /// The server sent an alert: it expects another name, or a client certificate that it knows.
    Alert: "tls-alert";
    /// The server violated TLS, or bytes were changed on the way.
    Misbehaved: "tls-misbehaved";
    /// The server closed the connection before the handshake was complete.
    Left: "tls-left";
    /// A bug in weir, or exhausted keys.
    Internal: "tls-internal";
}

impl ServerTlsFailure {
    /// The problem for people, and where to look.
    pub fn text(self) -> &'static str {
        match self {
            ServerTlsFailure::NotTls => "it does not speak TLS on this port",
            ServerTlsFailure::NothingInCommon => {
                "it has no TLS version, cipher suite or group in common with weir"
            }
            ServerTlsFailure::Name => {
                "its certificate is for other names; `name` of `tls` says which one is expected"
            }
            ServerTlsFailure::Expired => "its certificate, or one above it, has expired",
            ServerTlsFailure::NotYetValid => "its certificate, or one above it, is not valid yet",
            ServerTlsFailure::UnknownCa => {
                "no CA of `ca` has signed its certificate, or it did not send an intermediate one"
            }
            ServerTlsFailure::NoNames => {
                "its certificate has no name in subjectAltName; weir ignores the common name (CN)"
            }
            ServerTlsFailure::CaCertificate => {
                "its certificate says that it is a CA (CA:TRUE): put exactly this certificate into \
                 the file of `ca`, or give the server one that a CA has signed"
            }
            ServerTlsFailure::UnusableKey => {
                "its certificate has a key that weir does not accept: RSA keys need 2048 to 8192 \
                 bits and must not be for PSS only, and curves are P-256, P-384 and P-521"
            }
            ServerTlsFailure::Certificate => {
                "its certificate is damaged, has a wrong signature, or is for another purpose"
            }
            ServerTlsFailure::Alert => {
                "it rejected TLS with an alert: because of the name, the certificate of weir, or \
                 its own key, such as one for RSA-PSS only"
            }
            ServerTlsFailure::Misbehaved => "it violated TLS, or bytes changed on the way",
            ServerTlsFailure::Left => "it closed the connection during the TLS handshake",
            ServerTlsFailure::Internal => "TLS failed inside weir",
        }
    }
}

worded! {
    /// Why an upstream connection ended, or was not made.
    enum UpstreamEnd;
    with
    /// The server sent something impossible.
    Doubt(Doubt);
    with
    /// It does not speak TLS as required.
    Tls(ServerTlsFailure);
    /// A response without a request.
    Surplus: "surplus";
    /// The server had too many glitches.
    Glitches: "glitches";
    /// It could not be made.
    ConnectFailed: "connect-failed";
    /// The server closed it.
    ServerClosed: "server-closed";
    /// The server reset it.
    Reset: "reset";
    /// The server had announced it.
    ServerSaidClose: "server-said-close";
    /// The response can't be followed by another one.
    NotReusable: "not-reusable";
    /// The server ended it to end its response.
    AnswerEndedByClose: "answer-ended-by-close";
    /// The server ended it within a response that ends with it, and TLS does not confirm that this
    /// was all of it (RFC 9112 §9.8).
    Cut: "cut";
    /// The server said that it had been idle for too long.
    IdleClose: "idle-close";
    /// The bytes sent were never acknowledged, or may not be.
    Unacknowledged: "unacknowledged";
    /// It had been idle for long enough.
    Idle: "idle";
    /// It had been idle for too long for a request that can't be retried.
    Rested: "rested";
    /// It made room for waiting requests.
    Crowded: "crowded";
    /// It was not needed any more: when it was ready, or because it exceeded the limit.
    Unneeded: "unneeded";
    /// Another address of the same destination was faster.
    LostRace: "lost-race";
    /// Another worker's core receives its packets.
    Far: "far";
    /// Another client comes next (`share="client"`).
    ShareClient: "share-client";
    /// Its server may mistake the body of the last request for another request.
    BodyLeft: "body-left";
    /// `pool "per-request"`.
    PerRequest: "per-request";
    /// The client has another connection now.
    Replaced: "replaced";
    /// The client has as many connections as it may.
    LeastRecentlyUsed: "least-recently-used";
    /// Its server seemed to have overlooked what was sent on it, so that it was sent there once
    /// more.
    Overlooked: "overlooked";
    /// Its response is no longer wanted, or is a long one that another connection brings as well.
    Cancelled: "cancelled";
    /// The client left before its response was complete.
    ClientGone: "client-gone";
    /// A request that kills servers had it for itself.
    Quarantine: "quarantine";
    /// An operator disabled the server.
    Disabled: "disabled";
    /// It became a tunnel.
    Upgraded: "upgraded";
    /// The tunnel ended.
    TunnelEnded: "tunnel-ended";
}

impl UpstreamEnd {
    /// Whether it says something about the server: weir's own housekeeping and the actions of
    /// clients say nothing.
    pub fn tells(self) -> bool {
        matches!(
            self,
            UpstreamEnd::Doubt(_)
                | UpstreamEnd::Tls(_)
                | UpstreamEnd::Cut
                | UpstreamEnd::Surplus
                | UpstreamEnd::Glitches
                | UpstreamEnd::ConnectFailed
                | UpstreamEnd::ServerClosed
                | UpstreamEnd::Reset
                | UpstreamEnd::ServerSaidClose
                | UpstreamEnd::NotReusable
                | UpstreamEnd::Unacknowledged
        )
    }
}

worded! {
    /// Deadlines.
    enum Timeout;
    /// A request's head.
    Head: "head";
    /// A request's body, or its rate.
    Body: "body";
    /// Between requests.
    Idle: "idle";
    /// The client takes a response.
    Send: "send";
    /// A tunnel moves bytes.
    Tunnel: "tunnel";
    /// A lookup.
    Errand: "errand";
    /// A connection to a server.
    Connect: "connect";
    /// The beginning of a response.
    Forward: "forward";
    /// The next piece of a response.
    Answer: "answer";
}
