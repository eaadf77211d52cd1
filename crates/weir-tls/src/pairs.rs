//! Certificates with their keys, as files have them: read, put together, judged. Called at the
//! start, when files have changed, and to check a configuration.
//!
//! Bounds: [`FILE_BYTES_MAX`] of a file, [`CHAIN_MAX`] certificates in it.

use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;

use crate::{chain, der, keys, pem};

/// Bytes of a file.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Certificates of a chain.
pub const CHAIN_MAX: usize = 16;
/// How long before its end weir warns of a certificate, seconds: two weeks.
pub const EXPIRES_SOON_S: i64 = 14 * 86_400;

/// Where a certificate and its key are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Files {
    /// The chain in PEM, the certificate itself first.
    pub certificate: PathBuf,
    /// Its private key in PEM; may be the same file.
    pub key: PathBuf,
}

/// Describes what is wrong with a certificate, its key, or those of CAs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPair(String);

impl BadPair {
    pub(crate) fn new(text: String) -> BadPair {
        BadPair(text)
    }

    pub(crate) fn of(error: &rustls::Error) -> BadPair {
        BadPair(format!("TLS can't be set up: {error}"))
    }
}

impl std::error::Error for BadPair {}

impl fmt::Display for BadPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A certificate with its key.
#[derive(Debug, Clone)]
pub struct Pair {
    /// Where they were read.
    pub files: Files,
    pub(crate) key: Arc<CertifiedKey>,
    /// The names that it is for, in lower case, maybe with `*` as first label.
    pub names: Vec<Box<str>>,
    /// The first and the last moment of its validity, seconds since 1970.
    pub not_before: i64,
    /// The same.
    pub not_after: i64,
    /// Users other than the owner and the group may read the key.
    pub is_open: bool,
}

impl Pair {
    /// Reads both files.
    ///
    /// # Errors
    /// They can't be read, or contain something else; the key does not match.
    pub fn read(files: &Files, provider: &CryptoProvider) -> Result<Pair, BadPair> {
        let (chain, _) = read(&files.certificate, "the certificate")?;
        let (key, is_open) = read(&files.key, "the key")?;
        Pair::of(files, &chain, &key, is_open, provider)
    }

    /// From texts in PEM that are in no file; `what` is their name in messages.
    ///
    /// # Errors
    /// They contain something else; the key does not match.
    pub fn of_texts(
        what: &str,
        chain: &[u8],
        key: &[u8],
        provider: &CryptoProvider,
    ) -> Result<Pair, BadPair> {
        let files = Files { certificate: what.into(), key: what.into() };
        Pair::of(&files, chain, key, false, provider)
    }

    fn of(
        files: &Files,
        chain_text: &[u8],
        key_text: &[u8],
        is_open: bool,
        provider: &CryptoProvider,
    ) -> Result<Pair, BadPair> {
        let (certificate, key) = (files.certificate.display(), files.key.display());
        let bad = |text: String| BadPair(text);
        let chain = chain::read(&files.certificate, chain_text)?;
        let Some(der::Certificate { names, not_before, not_after }) = der::read(&chain[0]) else {
            return Err(bad(format!("{certificate} has no certificate that weir can parse")));
        };
        let loaded = provider.key_provider.load_private_key(private_key(&files.key, key_text)?);
        let loaded = loaded.map_err(|error| match keys::flaw(&chain[0]) {
            Some(flaw) => bad(format!("the certificate in {certificate} can't be used: {flaw}")),
            None => bad(format!("the key in {key} can't be used: {error}")),
        })?;
        let pair = CertifiedKey::new(chain, loaded);
        match pair.keys_match() {
            Ok(()) => {}
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
                return Err(chain::misfit(files, &pair));
            }
            Err(error) => {
                return Err(bad(format!(
                    "the certificate in {certificate} can't be used: {error}"
                )));
            }
        }
        Ok(Pair {
            files: files.clone(),
            key: Arc::new(pair),
            names,
            not_before,
            not_after,
            is_open,
        })
    }

    /// Why clients reject it at this time, seconds since 1970; None: its validity period is no
    /// reason to.
    pub fn out_of_time(&self, now: i64) -> Option<String> {
        let certificate = self.files.certificate.display();
        if now > self.not_after {
            Some(format!(
                "the certificate in {certificate} expired on {}",
                der::day_text(self.not_after)
            ))
        } else if now < self.not_before {
            Some(format!(
                "the certificate in {certificate} is valid from {} on",
                der::day_text(self.not_before)
            ))
        } else {
            None
        }
    }

    /// Why clients reject it as that of a server, at any time.
    pub fn unnamed(&self) -> Option<String> {
        let text = || {
            let certificate = self.files.certificate.display();
            format!(
                "the certificate in {certificate} has no name in subjectAltName: clients reject \
                 it, whatever its common name (CN) is"
            )
        };
        (!der::has_names(&self.key.cert[0])).then(text)
    }

    /// Warnings for the operator at this time.
    pub fn warnings(&self, now: i64) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.out_of_time(now).is_none() && self.not_after - now < EXPIRES_SOON_S {
            let (certificate, days) =
                (self.files.certificate.display(), (self.not_after - now) / 86_400);
            let day = der::day_text(self.not_after);
            warnings
                .push(format!("the certificate in {certificate} expires on {day}, in {days} days"));
        }
        warnings.extend(chain::flaw(&self.files.certificate, &self.key.cert));
        warnings.extend(chain::out_of_time(&self.files.certificate, &self.key.cert, now));
        if self.is_open {
            let key = self.files.key.display();
            warnings.push(format!(
                "all users of this host may read the key in {key}: run `chmod o= {key}`"
            ));
        }
        warnings
    }
}

/// The private key of a text.
fn private_key(file: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, BadPair> {
    let key = file.display();
    match pem::key(text) {
        Ok(Some(der)) => Ok(der),
        Ok(None) if pem::has_encrypted_key(text) => Err(BadPair(format!(
            "the key in {key} is encrypted: `openssl pkey -in {key} -out PLAIN` writes it in plain"
        ))),
        Ok(None) => {
            Err(BadPair(format!("{key} has no private key in PEM (`-----BEGIN PRIVATE KEY-----`)")))
        }
        Err(damage) => Err(BadPair(format!("the key in {key} is damaged: {damage}"))),
    }
}

/// The content of a file, and whether all users may read it.
pub(crate) fn read(path: &Path, what: &str) -> Result<(Vec<u8>, bool), BadPair> {
    read_up_to(path, what, FILE_BYTES_MAX)
}

/// The same for a file with at most this number of bytes.
pub(crate) fn read_up_to(
    path: &Path,
    what: &str,
    bytes_max: u64,
) -> Result<(Vec<u8>, bool), BadPair> {
    let failed =
        |error: io::Error| BadPair(format!("cannot read {what} in {}: {error}", path.display()));
    let file = weir_io::open_regular(path).map_err(failed)?;
    let is_open = file.metadata().map_err(failed)?.mode() & 0o004 != 0;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(BadPair(format!("{} is larger than {} MiB", path.display(), bytes_max >> 20)));
    }
    Ok((bytes, is_open))
}
