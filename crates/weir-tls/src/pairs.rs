//! Certificates with their keys, as files have them: read, put together, judged. Called at the start, when files have changed, and by
//! whoever checks a configuration.
//!
//! Bounds: [`FILE_BYTES_MAX`] of a file, [`CHAIN_MAX`] certificates in it.

use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::der;

/// Bytes of a file.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Certificates of a chain.
pub const CHAIN_MAX: usize = 16;
/// How long before its end a certificate is told of, seconds: two weeks.
pub const EXPIRES_SOON_S: i64 = 14 * 86_400;

/// Where a certificate and its key are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Files {
    /// The chain in PEM, the certificate itself first.
    pub certificate: PathBuf,
    /// Its private key in PEM; may be the same file.
    pub key: PathBuf,
}

/// What is wrong with a certificate, its key, or those of CAs.
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

/// What is wrong with a file in PEM, in words of ours: those of the library show what is in the file, which may be a key.
pub(crate) fn damage(error: &rustls_pki_types::pem::Error) -> &'static str {
    use rustls_pki_types::pem::Error;
    match error {
        Error::MissingSectionEnd { .. } => "a line `-----END …-----` is missing, or lines are not where they must be",
        Error::IllegalSectionStart { .. } => "a line `-----BEGIN …-----` is not as it must be",
        Error::Base64Decode(_) => "what stands between `BEGIN` and `END` is not base64",
        _ => "it is not as PEM must be",
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
    /// Others than the owner and his group may read the key.
    pub is_open: bool,
}

impl Pair {
    /// Reads both files.
    ///
    /// # Errors
    /// They can't be read, or are something else; the key does not fit.
    pub fn read(files: &Files, provider: &CryptoProvider) -> Result<Pair, BadPair> {
        let (chain, _) = read(&files.certificate, "the certificate")?;
        let (key, is_open) = read(&files.key, "the key")?;
        Pair::of(files, &chain, &key, is_open, provider)
    }

    /// Of texts in PEM that are in no file; `what` is what messages call them.
    ///
    /// # Errors
    /// They are something else; the key does not fit.
    pub fn of_texts(what: &str, chain: &[u8], key: &[u8], provider: &CryptoProvider) -> Result<Pair, BadPair> {
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
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain_text).collect();
        let chain = chain.map_err(|error| bad(format!("{certificate} is damaged: {}", damage(&error))))?;
        let Some(leaf) = chain.first() else {
            return Err(bad(format!("{certificate} has no certificate in PEM (`-----BEGIN CERTIFICATE-----`)")));
        };
        if chain.len() > CHAIN_MAX {
            return Err(bad(format!(
                "{certificate} has {} certificates, of {CHAIN_MAX} that it may have",
                chain.len()
            )));
        }
        let Some(der::Certificate { names, not_before, not_after }) = der::read(leaf) else {
            return Err(bad(format!("{certificate} has no certificate that can be understood")));
        };
        let der = PrivateKeyDer::from_pem_slice(key_text).map_err(|error| match error {
            rustls_pki_types::pem::Error::NoItemsFound if is_encrypted(key_text) => {
                bad(format!("the key in {key} is encrypted: `openssl pkey -in {key} -out PLAIN` writes it in plain"))
            }
            rustls_pki_types::pem::Error::NoItemsFound => {
                bad(format!("{key} has no private key in PEM (`-----BEGIN PRIVATE KEY-----`)"))
            }
            error => bad(format!("the key in {key} is damaged: {}", damage(&error))),
        })?;
        let loaded = provider.key_provider.load_private_key(der);
        let loaded = loaded.map_err(|error| bad(format!("the key in {key} can't be used: {error}")))?;
        let pair = CertifiedKey::new(chain, loaded);
        match pair.keys_match() {
            Ok(()) => {}
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
                return Err(bad(format!("the key in {key} is not that of the certificate in {certificate}")));
            }
            Err(error) => return Err(bad(format!("the certificate in {certificate} can't be used: {error}"))),
        }
        Ok(Pair { files: files.clone(), key: Arc::new(pair), names, not_before, not_after, is_open })
    }

    /// Why clients refuse it at this time, seconds since 1970; None: they don't for its time.
    pub fn out_of_time(&self, now: i64) -> Option<String> {
        let certificate = self.files.certificate.display();
        if now > self.not_after {
            Some(format!("the certificate in {certificate} has expired on {}", der::day_text(self.not_after)))
        } else if now < self.not_before {
            Some(format!("the certificate in {certificate} is valid from {} on", der::day_text(self.not_before)))
        } else {
            None
        }
    }

    /// What the operator should know of it at this time.
    pub fn warnings(&self, now: i64) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.out_of_time(now).is_none() && self.not_after - now < EXPIRES_SOON_S {
            let (certificate, days) = (self.files.certificate.display(), (self.not_after - now) / 86_400);
            let day = der::day_text(self.not_after);
            warnings.push(format!("the certificate in {certificate} expires on {day}, in {days} days"));
        }
        if self.is_open {
            let key = self.files.key.display();
            warnings.push(format!("everybody on this host may read the key in {key}; `chmod o= {key}` ends that"));
        }
        warnings
    }
}

fn is_encrypted(pem: &[u8]) -> bool {
    let text = String::from_utf8_lossy(pem);
    text.contains("ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED")
}

/// The content of a file, and whether everybody may read it.
pub(crate) fn read(path: &Path, what: &str) -> Result<(Vec<u8>, bool), BadPair> {
    read_up_to(path, what, FILE_BYTES_MAX)
}

/// The same of one that may have so many bytes.
pub(crate) fn read_up_to(path: &Path, what: &str, bytes_max: u64) -> Result<(Vec<u8>, bool), BadPair> {
    let failed = |error: io::Error| BadPair(format!("cannot read {what} in {}: {error}", path.display()));
    let file = weir_io::open_regular(path).map_err(failed)?;
    let is_open = file.metadata().map_err(failed)?.mode() & 0o004 != 0;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(BadPair(format!("{} is larger than {} MiB", path.display(), bytes_max >> 20)));
    }
    Ok((bytes, is_open))
}
