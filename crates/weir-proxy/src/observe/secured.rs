//! What is known of a client connection that speaks TLS. Told by the worker when it was accepted; the access log says it.

/// What the handshake agreed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secured {
    /// As `TLSv1.3`.
    pub version: &'static str,
    /// The name of the cipher suite in IANA's registry.
    pub suite: &'static str,
    /// The name that the client asked for (RFC 6066 §3), in lower case.
    pub name: Option<Box<str>>,
    /// It went on with an earlier session.
    pub resumed: bool,
}
