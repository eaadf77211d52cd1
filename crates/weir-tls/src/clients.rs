//! How the clients of a listener authenticate: which CAs may have signed their certificates, and
//! which certificates are revoked. The files are read before a listener is sealed, and again when
//! they have changed; the library applies them within each handshake.
//!
//! Bounds: [`TRUSTED_MAX`](crate::TRUSTED_MAX) CAs, [`LIST_FILE_BYTES_MAX`] of a file of revocation
//! lists, [`LISTS_MAX`] of them; clients receive names of CAs up to [`HINTS_BYTES_MAX`].

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{DistinguishedName, RootCertStore};
use rustls_pki_types::CertificateRevocationListDer;

use crate::known::{Known, KnownClients};
use crate::pairs::{self, BadPair};
use crate::servers::{Roots, Trust};
use crate::{der, pem};

/// Bytes of a file of revocation lists.
pub const LIST_FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Lists in it.
pub const LISTS_MAX: usize = 256;
/// Bytes of CA names that a client receives, so that it can choose a certificate. If the names are
/// longer, it receives none, and may show any certificate.
pub const HINTS_BYTES_MAX: usize = 8 * 1024;

/// The configuration for the clients of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedOfClients {
    /// The CAs that may have signed their certificates, and certificates of clients themselves, in
    /// PEM.
    pub authorities: PathBuf,
    /// Which certificates were revoked: lists in PEM, or one in DER. Each certificate of a chain
    /// must be of a CA with a current list. None: revocation is not checked.
    pub revocations: Option<PathBuf>,
    /// Clients without a certificate are rejected.
    pub required: bool,
}

/// What clients are verified against, as it was read.
#[derive(Clone)]
pub struct ClientTrust {
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    revocations: Option<PathBuf>,
    /// How many certificates of CAs, and of clients themselves.
    pub authorities: usize,
    /// How many revocation lists.
    pub lists: usize,
    /// Common names of CAs without a list, or another part of the name if it has none.
    unlisted: Vec<String>,
    /// When the first list expires, seconds since 1970.
    pub lists_end: Option<i64>,
}

impl fmt::Debug for ClientTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTrust")
            .field("authorities", &self.authorities)
            .field("lists", &self.lists)
            .finish_non_exhaustive()
    }
}

impl ClientTrust {
    /// Reads the files.
    ///
    /// # Errors
    /// They can't be read, or contain something else.
    pub fn read(
        wanted: &WantedOfClients,
        provider: &Arc<CryptoProvider>,
    ) -> Result<ClientTrust, BadPair> {
        let trusted = Roots::read(&Trust::File(wanted.authorities.clone()))?;
        let roots = trusted.store().ok_or_else(|| BadPair::new("there are no CAs".to_owned()))?;
        let lists = wanted.revocations.as_deref().map(lists).transpose()?.unwrap_or_default();
        let (unlisted, lists_end) = match &wanted.revocations {
            Some(path) => judge(path, &lists, &roots)?,
            None => (Vec::new(), None),
        };
        // Revocation of a certificate that is listed in the file itself is not checked. So such
        // certificates are not trusted where revocation lists are configured.
        let known = if wanted.revocations.is_none() { trusted.known() } else { Known::default() };
        if roots.is_empty() && wanted.revocations.is_some() {
            let file = wanted.authorities.display();
            let text = format!(
                "{file} has no certificate of a CA; with revocation lists, weir trusts no other \
                 certificate"
            );
            return Err(BadPair::new(text));
        }
        let (count, hints) = (lists.len(), hints(&roots, &known));
        let others = if roots.is_empty() {
            None
        } else {
            let builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
            let judge = builder.with_crls(lists).enforce_revocation_expiration().build();
            Some(judge.map_err(|error| {
                let file = wanted.revocations.as_ref().unwrap_or(&wanted.authorities).display();
                BadPair::new(format!("{file} can't be used: {error}"))
            })?)
        };
        let algorithms = provider.signature_verification_algorithms;
        Ok(ClientTrust {
            verifier: Arc::new(KnownClients {
                known,
                others,
                required: wanted.required,
                hints,
                algorithms,
            }),
            revocations: wanted.revocations.clone(),
            authorities: trusted.len(),
            lists: count,
            unlisted,
            lists_end,
        })
    }

    /// Why clients are rejected at this time, seconds since 1970: a list has expired.
    pub fn out_of_time(&self, now: i64) -> Option<String> {
        let (file, end) = (self.revocations.as_ref()?.display(), self.lists_end?);
        let day = der::day_text(end);
        let text = || {
            format!(
                "a revocation list in {file} expired on {day}: weir rejects clients that it \
                 applies to"
            )
        };
        (now > end).then(text)
    }

    /// Warnings for the operator at this time.
    pub fn warnings(&self, now: i64) -> Vec<String> {
        let file = self.revocations.as_deref().unwrap_or(Path::new("")).display();
        let refused = |name: &String| {
            format!(
                "{file} has no revocation list of the CA `{name}`: weir rejects clients whose \
                 certificates it signed"
            )
        };
        self.out_of_time(now).into_iter().chain(self.unlisted.iter().map(refused)).collect()
    }
}

/// Names of CAs by which a client chooses a certificate: the trusted CAs, and those that have
/// signed a certificate that is listed in the file itself. Empty if they are too long.
fn hints(roots: &RootCertStore, known: &Known) -> Vec<DistinguishedName> {
    let of_known =
        known.iter().filter(|certificate| !der::may_sign(certificate)).filter_map(der::identity);
    let issuers: BTreeSet<&[u8]> = of_known.map(|(_, issuer)| issuer).collect();
    let issuers = issuers.into_iter().map(|issuer| DistinguishedName::from(issuer.to_vec()));
    let all: Vec<DistinguishedName> = roots.subjects().into_iter().chain(issuers).collect();
    let bytes: usize = all.iter().map(|name| name.as_ref().len()).sum();
    if bytes > HINTS_BYTES_MAX { Vec::new() } else { all }
}

/// The lists of a file.
fn lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, BadPair> {
    let shown = path.display();
    let (bytes, _) = pairs::read_up_to(path, "the revocation lists", LIST_FILE_BYTES_MAX)?;
    if der::read_list(&bytes).is_some() {
        return Ok(vec![CertificateRevocationListDer::from(bytes)]);
    }
    let found = pem::lists(&bytes)
        .map_err(|damage| BadPair::new(format!("{shown} is damaged: {damage}")))?;
    match found.len() {
        0 => Err(BadPair::new(format!(
            "{shown} has no revocation list in PEM (`-----BEGIN X509 CRL-----`) or DER"
        ))),
        1..=LISTS_MAX => Ok(found),
        many => Err(BadPair::new(format!(
            "{shown} has {many} revocation lists, but it can have at most {LISTS_MAX}"
        ))),
    }
}

/// Which CAs have no list, and when the first list ends.
fn judge(
    path: &Path,
    lists: &[CertificateRevocationListDer<'_>],
    roots: &RootCertStore,
) -> Result<(Vec<String>, Option<i64>), BadPair> {
    let read: Option<Vec<_>> = lists.iter().map(|list| der::read_list(list)).collect();
    let Some(read) = read else {
        return Err(BadPair::new(format!(
            "{} has a revocation list that weir cannot parse",
            path.display()
        )));
    };
    let mut unlisted = Vec::new();
    for name in roots.subjects() {
        let name = der::name_of(name.as_ref());
        if !read.iter().any(|list| list.issuer == name) {
            unlisted.push(der::name_text(name));
        }
    }
    Ok((unlisted, read.iter().filter_map(|list| list.end).min()))
}
