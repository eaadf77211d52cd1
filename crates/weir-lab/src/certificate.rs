//! Certificates made on the spot, for test servers only: self-signed, so that only clients that are
//! configured to trust them do.
//!
//! Called by `weir origin --tls`, `weir demo --tls`, by benchmarks, which give the same one to all
//! contenders, and by tests.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256,
    RsaKeySize, date_time_ymd,
};
use weir_tls::{Files, Materials, Pair, Terms, Wanted, provider};

/// The common name of the certificate.
const COMMON_NAME: &str = "weir test";
/// Characters of a line of PEM (RFC 7468 §2).
const PEM_COLUMNS: usize = 64;
/// The years of its validity: a test must not fail because a clock is wrong.
const YEARS: (i32, i32) = (2020, 2100);

/// The kind of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// ECDSA with the curve P-256: quick to sign.
    EcdsaP256,
    /// RSA with 2048 bits: slow to sign, and still what many servers have.
    Rsa2048,
}

/// A certificate with its key, both in PEM.
#[derive(Clone)]
pub struct Certificate {
    /// The certificate.
    pub certificate: String,
    /// Its private key (PKCS #8).
    pub key: String,
}

impl fmt::Debug for Certificate {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl Certificate {
    /// Makes a new certificate for these names and addresses.
    ///
    /// # Errors
    /// One of them is not a name; the system has no randomness.
    pub fn make(kind: KeyKind, names: &[String]) -> Result<Certificate, String> {
        let made = || -> Result<(Vec<u8>, Vec<u8>), rcgen::Error> {
            let key = match kind {
                KeyKind::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?,
                KeyKind::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?,
            };
            let mut parameters = CertificateParams::new(names)?;
            parameters.distinguished_name = DistinguishedName::new();
            parameters.distinguished_name.push(DnType::CommonName, COMMON_NAME);
            (parameters.not_before, parameters.not_after) =
                (date_time_ymd(YEARS.0, 1, 1), date_time_ymd(YEARS.1, 1, 1));
            let certificate = parameters.self_signed(&key)?;
            Ok((certificate.der().to_vec(), key.serialize_der()))
        };
        let (certificate, key) =
            made().map_err(|error| format!("cannot create a certificate: {error}"))?;
        Ok(Certificate {
            certificate: pem("CERTIFICATE", &certificate),
            key: pem("PRIVATE KEY", &key),
        })
    }

    /// Makes a certificate for a server on this machine that listens there.
    ///
    /// # Errors
    /// As [`Certificate::make`].
    pub fn local(kind: KeyKind, listen: std::net::IpAddr) -> Result<Certificate, String> {
        let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let own = listen.to_string();
        if !listen.is_unspecified() && !names.contains(&own) {
            names.push(own);
        }
        Certificate::make(kind, &names)
    }

    /// Returns the TLS terms of a listener with this certificate: TLS 1.2 and 1.3, tickets, and
    /// HTTP/2 beside HTTP/1.1 if `http2`.
    ///
    /// # Errors
    /// The library rejects the configuration.
    pub fn terms(&self, http2: bool) -> Result<Arc<Terms>, String> {
        let (certificate, key) = (self.certificate.as_bytes(), self.key.as_bytes());
        let pair = Pair::of_texts("the generated certificate", certificate, key, &provider());
        terms(pair.map_err(|bad| bad.to_string())?, http2)
    }
}

/// Returns the TLS terms of a listener with the certificate in these files, otherwise the same.
///
/// # Errors
/// They can't be read, or are something else; the key does not match.
pub fn terms_of_files(files: &Files) -> Result<Arc<Terms>, String> {
    terms(Pair::read(files, &provider()).map_err(|bad| bad.to_string())?, false)
}

fn terms(pair: Pair, http2: bool) -> Result<Arc<Terms>, String> {
    let wanted = Wanted { http2, ..Wanted::of(pair.files.clone()) };
    Terms::new(wanted, Materials::of(&[pair]), provider())
        .map(Arc::new)
        .map_err(|bad| bad.to_string())
}

/// RFC 7468 §2.
fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, others) = rest.split_at(rest.len().min(PEM_COLUMNS));
        out.push_str(line);
        out.push('\n');
        rest = others;
    }
    out + &format!("-----END {label}-----\n")
}

#[cfg(test)]
mod tests {
    //! Proves: the result is a certificate with its key for the requested names, as the server's
    //! side reads it.

    use super::*;

    #[test]
    fn what_is_made_is_read_with_its_names() {
        for kind in [KeyKind::EcdsaP256, KeyKind::Rsa2048] {
            let made =
                Certificate::make(kind, &["a.test".to_owned(), "127.0.0.9".to_owned()]).unwrap();
            let pair =
                Pair::of_texts("it", made.certificate.as_bytes(), made.key.as_bytes(), &provider())
                    .unwrap();
            assert_eq!(pair.names.len(), 1, "an address is no name: {:?}", pair.names);
            assert_eq!(&*pair.names[0], "a.test");
            assert_eq!(pair.out_of_time(1_800_000_000), None);
            made.terms(true).unwrap();
        }
        assert!(
            Certificate::make(KeyKind::EcdsaP256, &["ä".to_owned()])
                .unwrap_err()
                .contains("cannot create a certificate")
        );
    }

    #[test]
    fn an_address_of_its_own_is_among_the_names() {
        let text = |listen: &str| {
            let made = Certificate::local(KeyKind::EcdsaP256, listen.parse().unwrap()).unwrap();
            made.certificate.len()
        };
        assert!(text("127.0.0.7") > text("0.0.0.0"), "one more entry");
    }

    #[test]
    fn keys_are_not_shown() {
        let made = Certificate::make(KeyKind::EcdsaP256, &["a.test".to_owned()]).unwrap();
        let shown = format!("{made:?}");
        assert!(shown.contains("BEGIN CERTIFICATE") && !shown.contains("PRIVATE"), "{shown}");
    }
}
