//! What [`Sealed`](crate::Sealed) needs from a TLS library: open records, seal bytes, report how it
//! ended. No sockets, no clock.
//!
//! The product uses [`Rustls23`](crate::Rustls23); tests use a paper cipher with scripted flights.

/// First byte of each unencrypted handshake record (RFC 8446 §5.1): a TLS client begins with it.
pub const HANDSHAKE_RECORD: u8 = 0x16;
/// The same for an alert.
pub(crate) const ALERT_RECORD: u8 = 0x15;
/// Longest plaintext of one record (RFC 8446 §5.1).
pub const RECORD_BYTES_MAX: usize = 16_384;

/// One end of a TLS connection, client or server.
///
/// ```text
///   bytes of the socket:  | record | record | rec        |
///                           opened by `open`  stays: `rest` of later calls
/// ```
///
/// After an error only the bytes appended to `out` until then are of use: the alert for the other
/// side.
pub trait Cipher {
    /// Opens all complete records of `bytes`. Appends plaintext to `plain`, and bytes for the other
    /// side to `out`. `bytes` may be changed; those behind [`Opened::used`] are handed in again,
    /// first and as they are now, followed by later bytes.
    fn open(&mut self, bytes: &mut [u8], plain: &mut Vec<u8>, out: &mut Vec<u8>) -> Opened;

    /// Appends to `out` records with the bytes of all `parts`, in order, at most `record_max` (1 to
    /// [`RECORD_BYTES_MAX`]) in each. Only when the handshake is complete. `rest` has the bytes
    /// that [`Cipher::open`] has not used yet.
    ///
    /// # Errors
    /// The keys are used up; nothing more can be sent.
    fn seal(
        &mut self,
        rest: &mut [u8],
        parts: &[&[u8]],
        record_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure>;

    /// Appends a close_notify: nothing follows in this direction (RFC 8446 §6.1).
    fn close(&mut self, rest: &mut [u8], out: &mut Vec<u8>);

    /// The negotiated parameters. Only when the handshake is complete.
    fn facts(&self) -> Facts;

    /// Whether the server's end has done the asymmetric work of its handshake, or will never do it,
    /// because it resumes an earlier session. None: neither is known yet.
    fn has_worked(&self) -> Option<bool>;
}

/// Makes our end of each connection: the server's end for a listener's connections, the client's
/// end for those to a server.
pub trait Seal: std::fmt::Debug + Send + Sync {
    /// Returns a new one. Its configuration may change between calls.
    fn cipher(&self) -> Box<dyn Cipher>;
}

/// What [`Cipher::open`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// How many of the bytes were used.
    pub used: usize,
    /// Where the connection is now.
    pub state: Result<State, Failure>,
}

/// Where a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The handshake is not complete: nothing can be sealed.
    Handshaking,
    /// Bytes pass both ways.
    Open,
    /// The handshake is complete, and the other side announced that nothing follows (close_notify).
    /// Bytes still pass to it.
    Ended,
}

/// The negotiated parameters of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// As `TLSv1.3`.
    pub version: &'static str,
    /// The name of the cipher suite in IANA's registry, as `TLS_AES_128_GCM_SHA256`.
    pub suite: &'static str,
    /// The name that the client asked for (RFC 6066 §3), in lower case.
    pub name: Option<Box<str>>,
    /// It resumed the session of an earlier connection.
    pub resumed: bool,
    /// HTTP/2 was negotiated (RFC 7301).
    pub http2: bool,
    /// The certificate that the client has shown, verified, in DER.
    pub certificate: Option<Box<[u8]>>,
}

/// Declares the reasons with their words once.
macro_rules! failures {
    ($($(#[doc = $help:literal])+ $name:ident: $word:literal,)+) => {
        /// Why a handshake failed, or a connection broke after it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Failure {
            $($(#[doc = $help])+ $name,)+
        }

        impl Failure {
            /// All of them, in the order of their discriminants.
            pub const ALL: [Failure; [$($word),+].len()] = [$(Failure::$name),+];

            /// The word in counters and status.
            pub fn word(self) -> &'static str {
                match self {
                    $(Failure::$name => $word,)+
                }
            }
        }
    };
}

failures! {
    /// The other side's first bytes begin no TLS handshake: HTTP without TLS, or something else.
    NotTls: "not-tls",
    /// The other side shares no version, cipher suite, group or protocol with us.
    NothingInCommon: "nothing-in-common",
    /// The client asked for a name that no certificate has, or for none, where that is rejected.
    UnknownName: "unknown-name",
    /// The other side sent an alert. Most likely, a client rejects our certificate; a server wants
    /// one, or another name.
    Alert: "alert",
    /// The other side broke the rules of TLS, or bytes were changed on the way.
    Misbehaved: "misbehaved",
    /// The other side left before the handshake was complete.
    Left: "left",
    /// The handshake took too long.
    Timeout: "timeout",
    /// There were too many handshakes that are not complete.
    TooMany: "too-many",
    /// We could not continue: a bug, or keys that are used up.
    Internal: "internal",
    /// The server's certificate is for other names.
    WrongName: "wrong-name",
    /// The other side's certificate, or one above it, has expired.
    Expired: "expired",
    /// The other side's certificate, or one above it, is not valid yet.
    NotYetValid: "not-yet-valid",
    /// No CA that we trust has signed the other side's certificate, or an intermediate certificate
    /// is missing.
    UnknownCa: "unknown-ca",
    /// The other side's certificate can't be used for another reason: damaged, signed wrongly, or
    /// made for something else.
    BadCertificate: "bad-certificate",
    /// The other side's certificate has no valid name: none in subjectAltName.
    NoNames: "no-names",
    /// The other side shows the certificate of a CA, which is not in the file of trusted
    /// certificates itself.
    CaCertificate: "ca-certificate",
    /// The key of the other side's certificate, or of one above it, has a type or a size that weir
    /// does not accept.
    UnusableKey: "unusable-key",
    /// The client showed no certificate, where one is required.
    NoCertificate: "no-certificate",
    /// The client's certificate, or one above it, was revoked.
    Revoked: "revoked",
    /// The revocation status of the client's certificate is unknown: its CA has no list, or only
    /// outdated ones.
    Unlisted: "unlisted",
}

impl Failure {
    /// Whether the failure is that we reject the other side's certificate. The other side has sent
    /// it, and waits to hear what is wrong with it.
    pub(crate) fn is_about_certificate(self) -> bool {
        use Failure::{
            BadCertificate, CaCertificate, Expired, NoCertificate, NoNames, NotYetValid, Revoked,
            UnknownCa, Unlisted, UnusableKey, WrongName,
        };
        matches!(
            self,
            WrongName
                | Expired
                | NotYetValid
                | UnknownCa
                | BadCertificate
                | NoNames
                | CaCertificate
                | UnusableKey
                | NoCertificate
                | Revoked
                | Unlisted
        )
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// [`Sealed`](crate::Sealed) puts this into the error of a connect or a receive on which TLS has
/// failed.
impl std::error::Error for Failure {}

/// How many handshakes were completed or failed, and how many connections broke after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Complete handshakes.
    pub completed: u64,
    /// Those of them that resumed an earlier session.
    pub resumed: u64,
    /// Failures by reason: index as in [`Failure::ALL`].
    pub failed: [u64; Failure::ALL.len()],
}

impl Tally {
    pub(crate) fn fail(&mut self, why: Failure) {
        self.failed[why as usize] += 1;
    }
}
