//! OCSP responses from files, which clients get with a certificate (RFC 6066 §8, RFC 8446
//! §4.4.2.1), so that they need not ask its CA whether it was revoked.
//!
//! Read before a listener is sealed, and again when a file has changed. Weir checks that a response
//! is about the certificate and within its validity period; clients check its signature. Bound:
//! [`FILE_BYTES_MAX`](crate::FILE_BYTES_MAX).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::sign::CertifiedKey;

use crate::der::{self, Reader};
use crate::pairs::{self, BadPair, Pair};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const ENUMERATED: u8 = 0x0a;
/// `[0]`: the response itself, its version, the time of the next one.
const FIRST: u8 = 0xa0;
/// `[0]` without content: the certificate is good. `[1]`: it was revoked.
const GOOD: u8 = 0x80;
const REVOKED: u8 = 0xa1;
/// id-pkix-ocsp-basic, 1.3.6.1.5.5.7.48.1.1.
const BASIC: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1];
/// 1.3.14.3.2.26, and 2.16.840.1.101.3.4.2.1.
const SHA_1: &[u8] = &[0x2b, 0x0e, 3, 2, 0x1a];
const SHA_256: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1];

/// An OCSP response as it was read.
#[derive(Clone)]
pub struct Staple {
    path: PathBuf,
    response: Vec<u8>,
    /// Its statements, at least one.
    verdicts: Vec<Verdict>,
}

/// The statement of a response about one certificate (RFC 6960 §4.2.1).
#[derive(Clone, PartialEq, Eq, Debug)]
struct Verdict {
    hash: Vec<u8>,
    /// The hash of the name of its CA.
    issuer_hash: Vec<u8>,
    serial: Vec<u8>,
    status: u8,
    /// When a newer one is due, seconds since 1970.
    end: Option<i64>,
}

impl fmt::Debug for Staple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staple")
            .field("path", &self.path)
            .field("verdicts", &self.verdicts.len())
            .finish_non_exhaustive()
    }
}

impl Staple {
    /// Reads a file in DER, as `openssl ocsp -respout` writes it.
    ///
    /// # Errors
    /// It can't be read, is something else, or is the refusal of a responder.
    pub fn read(path: &Path) -> Result<Staple, BadPair> {
        let (response, _) = pairs::read(path, "the OCSP response")?;
        let shown = path.display();
        let Some((status, verdicts)) = parse(&response) else {
            return Err(BadPair::new(format!(
                "{shown} has no OCSP response (DER) that weir can parse"
            )));
        };
        if status != 0 || verdicts.is_empty() {
            return Err(BadPair::new(format!(
                "the OCSP response in {shown} has no information: its status is {status}"
            )));
        }
        Ok(Staple { path: path.into(), response, verdicts })
    }

    /// Why clients must not get it with this certificate at this time, seconds since 1970; None:
    /// they may.
    pub fn misfit(&self, pair: &Pair, now: i64) -> Option<String> {
        let (shown, certificate) = (self.path.display(), pair.files.certificate.display());
        let leaf = pair.key.cert.first()?;
        let verdict = der::identity(leaf).and_then(|(serial, issuer)| {
            self.verdicts.iter().find(|verdict| verdict.is_about(serial, issuer))
        });
        let Some(verdict) = verdict else {
            return Some(format!(
                "the OCSP response in {shown} is not for the certificate in {certificate}"
            ));
        };
        match (verdict.status, verdict.end) {
            (GOOD, Some(end)) if now > end => {
                let day = der::day_text(end);
                Some(format!(
                    "the OCSP response in {shown} expired on {day}: weir does not send it to \
                     clients"
                ))
            }
            (GOOD, _) => None,
            (REVOKED, _) => {
                Some(format!("{shown} says that the certificate in {certificate} was revoked"))
            }
            _ => Some(format!(
                "{shown} says that the CA does not know the certificate in {certificate}"
            )),
        }
    }
}

impl Verdict {
    /// Whether it is about the certificate with this number of the CA with this name, as both are
    /// encoded.
    fn is_about(&self, serial: &[u8], issuer: &[u8]) -> bool {
        let algorithm = match &self.hash[..] {
            SHA_1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            SHA_256 => &digest::SHA256,
            _ => return false,
        };
        self.serial == serial && digest::digest(algorithm, issuer).as_ref() == self.issuer_hash
    }
}

impl Pair {
    /// The same for clients that also get this OCSP response.
    pub fn stapled(&self, staple: &Staple) -> Pair {
        let key =
            CertifiedKey { ocsp: Some(staple.response.clone()), ..CertifiedKey::clone(&self.key) };
        Pair { key: Arc::new(key), ..self.clone() }
    }
}

/// The status of a response, and its statements when that is 0 (RFC 6960 §4.2.1).
fn parse(der: &[u8]) -> Option<(u8, Vec<Verdict>)> {
    let mut response = Reader(der).expect(SEQUENCE)?;
    let status = *response.expect(ENUMERATED)?.0.first()?;
    if status != 0 {
        return Some((status, Vec::new()));
    }
    let mut bytes = response.expect(FIRST)?.expect(SEQUENCE)?;
    if bytes.expect(OBJECT_IDENTIFIER)?.0 != BASIC {
        return None;
    }
    let mut data = bytes.expect(OCTET_STRING)?.expect(SEQUENCE)?.expect(SEQUENCE)?;
    if data.0.first() == Some(&FIRST) {
        data.next()?;
    }
    // The responder and the time.
    data.next()?;
    data.next()?;
    let mut all = data.expect(SEQUENCE)?;
    let mut verdicts = Vec::new();
    while !all.0.is_empty() {
        verdicts.push(verdict(all.expect(SEQUENCE)?)?);
    }
    Some((status, verdicts))
}

fn verdict(mut single: Reader<'_>) -> Option<Verdict> {
    let mut id = single.expect(SEQUENCE)?;
    let hash = id.expect(SEQUENCE)?.expect(OBJECT_IDENTIFIER)?.0.to_vec();
    let issuer_hash = id.expect(OCTET_STRING)?.0.to_vec();
    id.expect(OCTET_STRING)?;
    let serial = id.expect(INTEGER)?.0.to_vec();
    let (status, _) = single.next()?;
    der::time(single.next()?)?;
    let end = match single.next() {
        Some((FIRST, time)) => Some(der::time(Reader(time).next()?)?),
        _ => None,
    };
    Some(Verdict { hash, issuer_hash, serial, status, end })
}
