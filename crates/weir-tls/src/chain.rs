//! The certificates of a file, the server's own first: read, and judged by how clients treat their
//! order. Called when a pair is put together. Bound: [`CHAIN_MAX`].

use std::path::Path;
use std::sync::Arc;

use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;

use crate::der;
use crate::keys;
use crate::pairs::{BadPair, CHAIN_MAX, Files};
use crate::pem;

/// The certificates of a text; at least one.
///
/// # Errors
/// The text has no certificates, has too many, or is damaged.
pub(crate) fn read(file: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, BadPair> {
    let shown = file.display();
    let chain = pem::certificates(text)
        .map_err(|damage| BadPair::new(format!("{shown} is damaged: {damage}")))?;
    match chain.len() {
        0 => {
            let instead = pem::instead(text);
            let text = format!(
                "{shown} has no certificate in PEM (`-----BEGIN CERTIFICATE-----`){instead}"
            );
            Err(BadPair::new(text))
        }
        1..=CHAIN_MAX => Ok(chain),
        many => Err(BadPair::new(format!(
            "{shown} has {many} certificates, but it can have at most {CHAIN_MAX}"
        ))),
    }
}

/// Why the first certificate and the key don't fit.
pub(crate) fn misfit(files: &Files, pair: &CertifiedKey) -> BadPair {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    if let Some(flaw) = keys::flaw(&pair.cert[0]) {
        return BadPair::new(format!("the certificate in {certificate} can't be used: {flaw}"));
    }
    let fits = |other: &CertificateDer<'static>| {
        CertifiedKey::new(vec![other.clone()], Arc::clone(&pair.key)).keys_match().is_ok()
    };
    let text = match pair.cert.iter().position(fits) {
        None => format!("the key in {key} does not match the certificate in {certificate}"),
        Some(at) => format!(
            "the certificates in {certificate} are in the wrong order: the key in {key} matches \
             number {} ({}), but the first is {}; put the certificate of the server first, then \
             the one that signed it, and so on",
            at + 1,
            subject(&pair.cert[at]),
            subject(&pair.cert[0]),
        ),
    };
    BadPair::new(text)
}

/// Returns a reason why some clients reject the chain at any time.
pub(crate) fn flaw(file: &Path, chain: &[CertificateDer<'_>]) -> Option<String> {
    let parties: Option<Vec<_>> =
        chain.iter().map(|certificate| der::parties(certificate)).collect();
    let parties = parties?;
    let at = parties.windows(2).position(|pair| pair[0].0 != pair[1].1)?;
    let ((issuer, below), (_, above)) = (&parties[at], &parties[at + 1]);
    Some(format!(
        "certificate {} in {} is `{above}`, which did not sign the one before it (`{below}`): put \
         `{issuer}` there, or some clients reject the chain",
        at + 2,
        file.display(),
    ))
}

/// The certificates behind the first one that clients reject at this time, seconds since 1970.
pub(crate) fn out_of_time(file: &Path, chain: &[CertificateDer<'_>], now: i64) -> Vec<String> {
    let judge = |(at, certificate): (usize, &CertificateDer<'_>)| {
        let end = der::read(certificate)?.not_after;
        let (at, subject, day) = (at + 1, subject(certificate), der::day_text(end));
        (end < now)
            .then(|| format!("certificate {at} in {} ({subject}) expired on {day}", file.display()))
    };
    chain.iter().enumerate().skip(1).filter_map(judge).collect()
}

/// The subject of a certificate, for messages.
pub(crate) fn subject(certificate: &[u8]) -> String {
    match der::subject_text(certificate) {
        Some(text) if !text.is_empty() => format!("`{text}`"),
        _ => "one without a subject".to_owned(),
    }
}
