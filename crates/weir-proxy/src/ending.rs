//! How connections end, and which deadlines there are: the words of the counters, and what follows from an end.

use crate::cross::doubt::Doubt;
use crate::observe::access::{Blame, Party};
use crate::observe::kinds::worded;

/// Who of the clients is to go, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// All, for weir ends: after their answers; idle ones soon.
    All,
    /// Those that came in by this listener, which is about to go: in the same way, and idle ones have time for another request.
    Listener(u32),
    /// All in the same way as those, for a successor takes who is new.
    Successor,
    /// All but those whose connection is a tunnel, at once. What one has of an answer does not look whole.
    AllButTunnels,
}

worded! {
    /// Why a client's connection ended.
    enum ClientEnd;
    /// In order.
    Done: "done";
    /// In order, because its client was strange too often.
    Glitches: "glitches";
    /// The client passed a limit of `shield`.
    OverLimit: "over-limit";
    /// The client was banned.
    Banned: "banned";
    /// Behind an answer that ends it, or cuts off those that wait.
    Closed: "connection-closed";
    /// The client closed it while something was unanswered.
    ClientClosed: "client-closed";
    /// The client reset it.
    ClientReset: "client-reset";
    /// The client did not take what was sent for `send-timeout`.
    SendTimeout: "send-timeout";
    /// The client did not take its answers while others needed the connections that they came on.
    Stalled: "stalled";
    /// The client broke the rules of HTTP/2, or passed a limit of it.
    Http2Failed: "http2-failed";
    /// More of the client's input waits than weir keeps.
    Overrun: "overrun";
    /// weir took too long to handle what the client sent at a time.
    TooCostly: "too-costly";
    /// Nothing was asked for `idle-timeout`.
    IdleTimeout: "idle-timeout";
    /// It had asked nothing for longest when there were no descriptors for others.
    MadeRoom: "made-room";
    /// weir ends.
    Drained: "drained";
    /// One side of a tunnel ended it.
    TunnelEnded: "tunnel-ended";
    /// Nothing moved in a tunnel for `tunnel-timeout`.
    TunnelTimeout: "tunnel-timeout";
}

impl From<ClientEnd> for Blame {
    /// Whose doing it is that what was under way is not complete.
    fn from(end: ClientEnd) -> Blame {
        let party = match end {
            ClientEnd::Done | ClientEnd::TunnelEnded => Party::None,
            ClientEnd::ClientClosed | ClientEnd::ClientReset | ClientEnd::Http2Failed => Party::Client,
            _ => Party::Weir,
        };
        Blame { word: end.word(), party }
    }
}

worded! {
    /// Why a connection of `tcp` ended.
    enum FlowEnd;
    /// In order: both sides ended their direction.
    Done: "done";
    /// The client reset it, or can't be reached any more.
    ClientReset: "client-reset";
    /// The server reset it, or can't be reached any more.
    ServerReset: "server-reset";
    /// No server may have it: all are suspended, out of use or full.
    NoServer: "no-server";
    /// There were no descriptors for a connection to a server.
    NoDescriptors: "no-descriptors";
    /// No server took it.
    ConnectFailed: "connect-failed";
    /// No server took it, and the last one was silent.
    ConnectTimeout: "connect-timeout";
    /// The client did not say within `hello-timeout` which name it asks for.
    HelloTimeout: "hello-timeout";
    /// The client ended its direction before it had said that.
    HelloTruncated: "hello-truncated";
    /// The client asks for no name that leads anywhere, or speaks no TLS, and nothing is said of others.
    UnknownName: "unknown-name";
    /// The client has connected to this machine itself, where it was to be passed on to where it has connected to.
    OwnDestination: "own-destination";
    /// Nothing moved for `idle-timeout`.
    IdleTimeout: "idle-timeout";
    /// Nothing moved for `half-close-timeout` after one side had ended.
    HalfCloseTimeout: "half-close-timeout";
    /// The client was banned.
    Banned: "banned";
    /// weir has ended, and it was still under way.
    Stopped: "stopped";
}

worded! {
    /// What came of the first packet of a client, with which its server is asked before the client is accepted (docs/semantics.md §24).
    enum Held;
    /// The server took the connection, and the client was told so.
    Connected: "connected";
    /// The server refused, and so the client was.
    Refused: "refused";
    /// The server can't be reached, as the client was told.
    Unreachable: "unreachable";
    /// Nothing came back for too long.
    Silent: "silent";
    /// The client was accepted meanwhile, and has the connection that was begun for it.
    Early: "early";
    /// The client did not come for the connection that was made for it.
    Abandoned: "abandoned";
    /// The server was not asked before, for too many were: the client was accepted first.
    LetThrough: "let-through";
}

impl From<FlowEnd> for Blame {
    /// Whose doing it is that it did not end in order.
    fn from(end: FlowEnd) -> Blame {
        let party = match end {
            FlowEnd::Done => Party::None,
            FlowEnd::ClientReset | FlowEnd::HelloTruncated => Party::Client,
            FlowEnd::ServerReset | FlowEnd::ConnectFailed | FlowEnd::ConnectTimeout => Party::Server,
            _ => Party::Weir,
        };
        Blame { word: end.word(), party }
    }
}

worded! {
    /// Why a client and weir did not come to speak TLS, or could not go on.
    enum TlsFailure;
    /// The client did not begin with TLS.
    NotTls: "not-tls";
    /// The client has no version, cipher suite, group or protocol that weir has, too.
    NothingInCommon: "nothing-in-common";
    /// No certificate has the name that the client asked for, and `strict-sni` is on.
    UnknownName: "unknown-name";
    /// The client sent an alert: it does not like the certificate, most likely.
    Alert: "alert";
    /// The client broke the rules of TLS, or bytes were changed on the way.
    Misbehaved: "misbehaved";
    /// The client left before the handshake was complete.
    Left: "left";
    /// The handshake took longer than `handshake-timeout`.
    Timeout: "timeout";
    /// There were too many unfinished handshakes.
    TooMany: "too-many";
    /// The client showed no certificate, and `client-auth` requires one.
    CertificateMissing: "client-certificate-missing";
    /// No CA of `client-ca` has signed the client's certificate, or the client does not send one that is between.
    CertificateUnknownCa: "client-certificate-unknown-ca";
    /// The client's certificate, or one above it, has expired.
    CertificateExpired: "client-certificate-expired";
    /// The client's certificate, or one above it, is not valid yet.
    CertificateNotYetValid: "client-certificate-not-yet-valid";
    /// The client's certificate, or one above it, is in a list of `client-crl`.
    CertificateRevoked: "client-certificate-revoked";
    /// `client-crl` has no list of the CA of the client's certificate, or of one above it, or none that is in time.
    CertificateUnlisted: "client-certificate-unlisted";
    /// The client's certificate can't be used for another reason.
    CertificateBad: "client-certificate-bad";
    /// A bug in weir, or keys that are used up.
    Internal: "internal";
}

worded! {
    /// Why weir and a server did not come to speak TLS, or could not go on.
    enum ServerTlsFailure;
    /// The server does not speak TLS on this port.
    NotTls: "tls-not-spoken";
    /// The server has no version, cipher suite or group that weir has, too.
    NothingInCommon: "tls-nothing-in-common";
    /// Its certificate is for other names.
    Name: "tls-name";
    /// Its certificate, or one above it, has expired.
    Expired: "tls-expired";
    /// Its certificate, or one above it, is not valid yet.
    NotYetValid: "tls-not-yet-valid";
    /// No CA of `ca` has signed its certificate, or the server does not send one that is between.
    UnknownCa: "tls-unknown-ca";
    /// Its certificate has no name in subjectAltName.
    NoNames: "tls-no-names";
    /// Its certificate is that of a CA, and `ca` does not have exactly this one.
    CaCertificate: "tls-ca-certificate";
    /// The key of its certificate, or of one above it, is of a kind or a size that weir does not take.
    UnusableKey: "tls-unusable-key";
    /// Its certificate can't be used for another reason.
    Certificate: "tls-certificate";
    /// The server sent an alert: it wants another name, or a certificate of weir that it knows.
    Alert: "tls-alert";
    /// The server broke the rules of TLS, or bytes were changed on the way.
    Misbehaved: "tls-misbehaved";
    /// The server closed the connection before the handshake was complete.
    Left: "tls-left";
    /// A bug in weir, or keys that are used up.
    Internal: "tls-internal";
}

impl ServerTlsFailure {
    /// For people: what is the matter, and where to look.
    pub fn text(self) -> &'static str {
        match self {
            ServerTlsFailure::NotTls => "it does not speak TLS on this port",
            ServerTlsFailure::NothingInCommon => "it has no version, cipher suite or group of TLS that weir has",
            ServerTlsFailure::Name => "its certificate is for other names; `name` of `tls` says which one is expected",
            ServerTlsFailure::Expired => "its certificate, or one above it, has expired",
            ServerTlsFailure::NotYetValid => "its certificate, or one above it, is not valid yet",
            ServerTlsFailure::UnknownCa => "no CA of `ca` has signed its certificate, or one between is not sent",
            ServerTlsFailure::NoNames => {
                "its certificate has no name in subjectAltName; a common name (CN) does not count"
            }
            ServerTlsFailure::CaCertificate => {
                "its certificate says that it is a CA (CA:TRUE): put exactly this certificate into the file of `ca`, or \
                 give the server one that is signed by a CA"
            }
            ServerTlsFailure::UnusableKey => {
                "its certificate has a key that weir does not take: RSA needs 2048 to 8192 bits and not the kind for PSS \
                 only, and curves are P-256, P-384 and P-521"
            }
            ServerTlsFailure::Certificate => "its certificate is damaged, signed wrongly, or made for something else",
            ServerTlsFailure::Alert => {
                "it refused TLS by an alert: the name, the certificate that weir shows, or its own key, such as one for \
                 RSA-PSS only"
            }
            ServerTlsFailure::Misbehaved => "it breaks the rules of TLS, or bytes are changed on the way",
            ServerTlsFailure::Left => "it closed the connection within the TLS handshake",
            ServerTlsFailure::Internal => "TLS failed within weir",
        }
    }
}

worded! {
    /// Why an upstream connection ended, or was not made.
    enum UpstreamEnd;
    with
    /// What the server sent can't be.
    Doubt(Doubt);
    with
    /// It does not speak TLS as it must.
    Tls(ServerTlsFailure);
    /// An answer that nobody asked for.
    Surplus: "surplus";
    /// The server was strange too often.
    Glitches: "glitches";
    /// It could not be made.
    ConnectFailed: "connect-failed";
    /// The server closed it.
    ServerClosed: "server-closed";
    /// The server reset it.
    Reset: "reset";
    /// The server had announced it.
    ServerSaidClose: "server-said-close";
    /// The answer can't be followed by another one.
    NotReusable: "not-reusable";
    /// The server ended it to end its answer.
    AnswerEndedByClose: "answer-ended-by-close";
    /// The server ended it within an answer that ends with it, and TLS does not say that this was all of it (RFC 9112 §9.8).
    Cut: "cut";
    /// The server said that it had rested for too long.
    IdleClose: "idle-close";
    /// What was sent was never acknowledged, or may not be.
    Unacknowledged: "unacknowledged";
    /// It had rested for long enough.
    Idle: "idle";
    /// It had rested for too long for a request that can't be repeated.
    Rested: "rested";
    /// It made room for what waits.
    Crowded: "crowded";
    /// It was not needed any more: when it was there, or as one more than there may be.
    Unneeded: "unneeded";
    /// Another address of the same destination was faster.
    LostRace: "lost-race";
    /// Another worker's core receives its packets.
    Far: "far";
    /// Another client comes next (`share="client"`).
    ShareClient: "share-client";
    /// Its server may take what it was sent with the last request for another request.
    BodyLeft: "body-left";
    /// `pool "per-request"`.
    PerRequest: "per-request";
    /// The client has another one now.
    Replaced: "replaced";
    /// The client has as many as it may.
    LeastRecentlyUsed: "least-recently-used";
    /// Its server seemed to have overlooked what was sent on it, so that it was sent there once more.
    Overlooked: "overlooked";
    /// Nobody waits for the answer any more, or for a long one that has another connection as well.
    Cancelled: "cancelled";
    /// The client left before its answer was complete.
    ClientGone: "client-gone";
    /// A request that makes servers die had it for itself.
    Quarantine: "quarantine";
    /// An operator took the server out of use.
    Disabled: "disabled";
    /// It became a tunnel.
    Upgraded: "upgraded";
    /// The tunnel ended.
    TunnelEnded: "tunnel-ended";
}

impl UpstreamEnd {
    /// Whether it says something about the server: weir's own housekeeping and what clients do say nothing.
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
    /// Deadlines that can pass.
    enum Timeout;
    /// A request's head.
    Head: "head";
    /// A request's body, or its rate.
    Body: "body";
    /// Between requests.
    Idle: "idle";
    /// The client takes an answer.
    Send: "send";
    /// A tunnel moves.
    Tunnel: "tunnel";
    /// Something is looked up.
    Errand: "errand";
    /// A connection to a server.
    Connect: "connect";
    /// The beginning of an answer.
    Forward: "forward";
    /// The next piece of an answer.
    Answer: "answer";
}
