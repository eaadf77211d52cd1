//! Certificates that are trusted because a file lists exactly them, and the reasons why others are
//! rejected.
//!
//! The library takes a certificate only if a CA has signed it, and rejects that of a CA itself. But
//! the usual certificate of an internal server is self-signed, and claims to be a CA.
//!
//! A certificate that is listed byte for byte in `ca` (or `client-ca`) is trusted like one that is
//! signed by a CA in it. Its name and its validity period still have to be right, and the other
//! side must have its key. Certificates that it has signed are trusted only if it is a CA. Called
//! by the library within each handshake, on the thread that works on it. Bound:
//! [`TRUSTED_MAX`](crate::TRUSTED_MAX) certificates, one look-up a handshake.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::cipher::Failure;
use crate::{der, keys};

/// Certificates that are listed in a file themselves.
#[derive(Clone, Default)]
pub(crate) struct Known(Arc<BTreeSet<Vec<u8>>>);

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Known").field(&self.0.len()).finish()
    }
}

impl Known {
    /// These.
    pub(crate) fn new(certificates: &[CertificateDer<'static>]) -> Known {
        Known(Arc::new(certificates.iter().map(|certificate| certificate.to_vec()).collect()))
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// Whether this is one of them, byte for byte.
    fn has(&self, certificate: &CertificateDer<'_>) -> bool {
        self.0.contains(certificate.as_ref())
    }
}

/// How server certificates that are not listed are judged.
#[derive(Debug)]
pub(crate) enum Strangers {
    /// All are taken.
    Trusted,
    /// Those that a CA has signed are accepted.
    Judged(Arc<dyn ServerCertVerifier>),
    /// All are rejected: no CA is configured.
    Refused,
}

/// Judges the certificates of servers. A server that shows one must have its key, whatever the
/// verdict is.
#[derive(Debug)]
pub(crate) struct KnownServers {
    pub(crate) known: Known,
    pub(crate) strangers: Strangers,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for KnownServers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict = if self.known.has(end_entity) {
            is_in_time(end_entity, now)
                .and_then(|()| is_for(end_entity, name))
                .map(|()| ServerCertVerified::assertion())
        } else {
            match &self.strangers {
                Strangers::Trusted => Ok(ServerCertVerified::assertion()),
                Strangers::Judged(judge) => {
                    judge.verify_server_cert(end_entity, intermediates, name, ocsp, now)
                }
                Strangers::Refused => Err(CertificateError::UnknownIssuer.into()),
            }
        };
        verdict.map_err(|error| named(error, end_entity, intermediates))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verdict = verify_tls12_signature(message, certificate, signature, &self.algorithms);
        verdict.map_err(|error| named(error, certificate, &[]))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verdict = verify_tls13_signature(message, certificate, signature, &self.algorithms);
        verdict.map_err(|error| named(error, certificate, &[]))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Judges the certificates of clients.
#[derive(Debug)]
pub(crate) struct KnownClients {
    pub(crate) known: Known,
    /// Judges certificates that are not listed. None: no CA is configured, and they are rejected.
    pub(crate) others: Option<Arc<dyn ClientCertVerifier>>,
    /// Clients without a certificate are rejected.
    pub(crate) required: bool,
    /// Names of CAs that clients receive.
    pub(crate) hints: Vec<DistinguishedName>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for KnownClients {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.known.has(end_entity) {
            return is_in_time(end_entity, now).map(|()| ClientCertVerified::assertion());
        }
        match &self.others {
            Some(others) => others.verify_client_cert(end_entity, intermediates, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Whether a certificate may be used at this time.
fn is_in_time(certificate: &[u8], now: UnixTime) -> Result<(), Error> {
    let read = der::read(certificate).ok_or(CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < read.not_before {
        Err(CertificateError::NotValidYet.into())
    } else if now > read.not_after {
        Err(CertificateError::Expired.into())
    } else {
        Ok(())
    }
}

/// Whether a certificate is for this name (RFC 9525).
fn is_for(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    if !der::has_names(certificate) {
        return Err(CertificateError::NotValidForName.into());
    }
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
}

/// The same rejection with its cause, where the library has no word for that.
fn named(error: Error, certificate: &CertificateDer<'_>, above: &[CertificateDer<'_>]) -> Error {
    let Error::InvalidCertificate(why) = &error else { return error };
    let has_no_names = || !der::has_names(certificate);
    let cause = match why {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            has_no_names().then_some(Failure::NoNames)
        }
        // These have words.
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. }
        | CertificateError::UnknownIssuer
        | CertificateError::InvalidPurpose
        | CertificateError::InvalidPurposeContext { .. } => None,
        _ if std::iter::once(certificate).chain(above).any(|one| keys::flaw(one).is_some()) => {
            Some(Failure::UnusableKey)
        }
        CertificateError::Other(_) if der::is_authority(certificate) => {
            Some(Failure::CaCertificate)
        }
        // As it is in version 1, which the library does not read.
        CertificateError::Other(_) if has_no_names() => Some(Failure::NoNames),
        _ => None,
    };
    cause.map_or(error, |cause| CertificateError::Other(OtherError(Arc::new(cause))).into())
}
