//! What is known of a client connection that speaks TLS. Told by the worker when it was accepted; the access log says it, and servers learn whose certificate a client has shown.

use std::sync::Arc;

use base64::Engine as _;

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
    /// Whose certificate the client has shown (RFC 4514); None: it has shown none.
    pub subject: Option<Box<str>>,
    /// What servers are told of it.
    pub shown: Option<Arc<Shown>>,
}

/// The certificate of a client as Client-Cert says it to servers (RFC 9440 §2.2): a byte sequence of structured fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown(Box<[u8]>);

impl Shown {
    /// Of a certificate in DER that was verified.
    pub fn new(certificate: &[u8]) -> Shown {
        let text = base64::engine::general_purpose::STANDARD.encode(certificate);
        Shown([b":", text.as_bytes(), b":"].concat().into())
    }

    /// The value of the field.
    pub fn value(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_a_byte_sequence() {
        assert_eq!(Shown::new(&[0xfb, 0xff, 1, 2]).value(), b":+/8BAg==:");
    }
}
