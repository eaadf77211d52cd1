//! TLS parameters of a client connection. Reported by the worker on accept; the access log shows
//! them, and servers learn the client certificate.

use std::sync::Arc;

use base64::Engine as _;

/// The results of the handshake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secured {
    /// As `TLSv1.3`.
    pub version: &'static str,
    /// The name of the cipher suite in IANA's registry.
    pub suite: &'static str,
    /// The name that the client asked for (RFC 6066 §3), in lower case.
    pub name: Option<Box<str>>,
    /// It resumed an earlier session.
    pub resumed: bool,
    /// The subject of the client's certificate (RFC 4514); None: no certificate.
    pub subject: Option<Box<str>>,
    /// The form in which servers receive the certificate.
    pub shown: Option<Arc<Shown>>,
}

/// The certificate of a client as servers receive it in Client-Cert (RFC 9440 §2.2): a byte
/// sequence of structured fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown(Box<[u8]>);

impl Shown {
    /// Encodes a certificate in DER that was verified.
    pub fn new(certificate: &[u8]) -> Shown {
        let text = base64::engine::general_purpose::STANDARD.encode(certificate);
        Shown([b":", text.as_bytes(), b":"].concat().into())
    }

    /// Returns the value of the field.
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
