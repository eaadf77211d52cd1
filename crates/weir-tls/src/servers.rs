//! How weir as a client speaks TLS to the servers of an upstream: which CAs it trusts, which
//! certificate it shows, which name each server's certificate must have. Workers read it for each
//! connection; it is replaced as a whole when files have changed.
//!
//! Bounds: [`FILE_BYTES_MAX`](crate::FILE_BYTES_MAX) of a file, [`TRUSTED_MAX`] certificates in it,
//! [`TICKETS_MAX`] sessions of a server that may be resumed.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName};

use crate::chain;
use crate::cipher::{Cipher, Seal};
use crate::der;
use crate::keys;
use crate::known::{Known, KnownServers, Strangers};
use crate::pairs::{self, BadPair, Files, Pair};
use crate::pem;
use crate::rustls23::Rustls23;

/// Sessions of a server that may be resumed. A ticket of TLS 1.3 is used once (RFC 8446 §C.4).
pub const TICKETS_MAX: usize = 8;
/// Certificates of a file of CAs.
pub const TRUSTED_MAX: usize = 4096;

/// Which signatures under a server's certificate are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Those of CAs that the operating system trusts.
    System,
    /// Those of CAs in this file, in PEM.
    File(PathBuf),
    /// Any signature: an attacker in between can read and change everything.
    Anybody,
}

/// CAs as they were read.
#[derive(Clone)]
pub struct Roots {
    /// The trusted CAs. None: every certificate is trusted.
    roots: Option<Arc<RootCertStore>>,
    /// The certificates of a file, each of which is also trusted directly.
    known: Known,
    /// How many certificates were read.
    len: usize,
    /// The file.
    file: Option<PathBuf>,
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots").field("len", &self.len()).finish()
    }
}

impl Roots {
    /// Reads those of a file, or of the system.
    ///
    /// # Errors
    /// None are there, or they can't be read.
    pub fn read(trust: &Trust) -> Result<Roots, BadPair> {
        let (certificates, place, path) = match trust {
            Trust::Anybody => {
                return Ok(Roots { roots: None, known: Known::default(), len: 0, file: None });
            }
            Trust::System => (system()?, "what the system trusts".to_owned(), None),
            Trust::File(path) => (file(path)?, path.display().to_string(), Some(path.clone())),
        };
        let known = if path.is_some() { Known::new(&certificates) } else { Known::default() };
        let found = certificates.len();
        // A file may list the certificate of a single server or client for itself: it must not sign
        // others.
        let signs = |certificate: &CertificateDer<'_>| path.is_none() || der::may_sign(certificate);
        let (authorities, others): (Vec<_>, Vec<_>) = certificates.into_iter().partition(signs);
        let mut roots = RootCertStore::empty();
        let (used, refused) = roots.add_parsable_certificates(authorities);
        let (used_alone, refused_alone) = RootCertStore::empty().add_parsable_certificates(others);
        let (len, refused) = (used + used_alone, refused + refused_alone);
        // Systems trust a few that the library can't read; a configured file must be completely
        // valid.
        if len == 0 || refused > 0 && path.is_some() {
            let text = format!(
                "weir cannot parse {refused} of {found} certificates in {place} as those of a CA"
            );
            return Err(BadPair::new(text));
        }
        Ok(Roots { roots: Some(Arc::new(roots)), known, len, file: path })
    }

    /// A verifier that judges certificates by them.
    ///
    /// # Errors
    /// The library rejects these CAs.
    pub fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ServerCertVerifier>, BadPair> {
        let strangers = match &self.roots {
            None => Strangers::Trusted,
            Some(roots) if roots.is_empty() => Strangers::Refused,
            Some(roots) => {
                let builder = WebPkiServerVerifier::builder_with_provider(
                    Arc::clone(roots),
                    Arc::clone(provider),
                );
                let judge = builder
                    .build()
                    .map_err(|error| BadPair::new(format!("TLS can't be set up: {error}")))?;
                Strangers::Judged(judge)
            }
        };
        let algorithms = provider.signature_verification_algorithms;
        Ok(Arc::new(KnownServers { known: self.known.clone(), strangers, algorithms }))
    }

    /// The certificates that are trusted directly.
    pub(crate) fn known(&self) -> Known {
        self.known.clone()
    }

    /// Warnings for the operator about a file of them at this time, seconds since 1970.
    pub fn warnings(&self, now: i64) -> Vec<String> {
        let Some(file) = self.file.as_deref().map(Path::display) else { return Vec::new() };
        let judge = |certificate: &[u8]| {
            let subject = chain::subject(certificate);
            if let Some(flaw) = keys::flaw(certificate) {
                return Some(format!(
                    "{subject} in {file}: {flaw}; weir rejects certificates that it signed"
                ));
            }
            let end = der::read(certificate)?.not_after;
            let day = der::day_text(end);
            (end < now).then(|| {
                format!("{subject} in {file} expired on {day}: weir rejects a server that shows it")
            })
        };
        self.known.iter().filter_map(judge).collect()
    }

    /// The CAs whose signatures are accepted, possibly none; None: every certificate is trusted.
    pub(crate) fn store(&self) -> Option<Arc<RootCertStore>> {
        self.roots.clone()
    }

    /// How many certificates; 0 when every certificate is trusted.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether every certificate is trusted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn system() -> Result<Vec<CertificateDer<'static>>, BadPair> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        let text = format!(
            "the system has no certificates of CAs{why}: install the package ca-certificates, or \
                name a file with `ca`"
        );
        return Err(BadPair::new(text));
    }
    Ok(found.certs)
}

fn file(path: &Path) -> Result<Vec<CertificateDer<'static>>, BadPair> {
    let shown = path.display();
    let (text, _) = pairs::read(path, "the certificates of CAs")?;
    let found = pem::certificates(&text)
        .map_err(|damage| BadPair::new(format!("{shown} is damaged: {damage}")))?;
    match found.len() {
        0 => {
            let instead = pem::instead(&text);
            Err(BadPair::new(format!(
                "{shown} has no certificate in PEM (`-----BEGIN CERTIFICATE-----`){instead}"
            )))
        }
        1..=TRUSTED_MAX => Ok(found),
        many => Err(BadPair::new(format!(
            "{shown} has {many} certificates, but it can have at most {TRUSTED_MAX}"
        ))),
    }
}

/// The name that a server's certificate must have: a DNS name, which is also asked for (RFC 6066
/// §3), or an address, which is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerName(ServerName<'static>);

impl PeerName {
    /// From a name, or an address with or without its brackets.
    ///
    /// # Errors
    /// It is neither.
    pub fn new(name: &str) -> Result<PeerName, BadPair> {
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(PeerName(ServerName::IpAddress(address.into())));
        }
        let bad = || {
            BadPair::new(format!(
                "`{name}` is not a name that a certificate can have: write a DNS name or an IP \
                 address"
            ))
        };
        ServerName::try_from(name.to_ascii_lowercase()).map(PeerName).map_err(|_| bad())
    }

    /// The name as a certificate has it.
    pub fn text(&self) -> String {
        self.0.to_str().into_owned()
    }
}

/// The configuration for the servers of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedOfServers {
    /// CAs that may have signed their certificates.
    pub trust: Trust,
    /// The certificate that weir shows to servers that ask for one; None: it shows none.
    pub files: Option<Files>,
}

/// Makes the client's end of each connection to one server. Sessions are resumed with that server
/// only.
pub struct ServerSeal {
    name: ServerName<'static>,
    /// Locked only while the pointer is copied.
    now: RwLock<Arc<ClientConfig>>,
}

impl fmt::Debug for ServerSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSeal").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Seal for ServerSeal {
    fn cipher(&self) -> Box<dyn Cipher> {
        let config = Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner));
        Box::new(Rustls23::client(config, self.name.clone()))
    }
}

/// How weir speaks TLS to the servers of an upstream.
#[derive(Debug)]
pub struct ServerTerms {
    wanted: WantedOfServers,
    provider: Arc<CryptoProvider>,
    seals: Vec<Arc<ServerSeal>>,
}

impl ServerTerms {
    /// For servers of these names. `roots` and `pair` are those of `wanted`.
    ///
    /// # Errors
    /// The library rejects the configuration.
    pub fn new(
        wanted: WantedOfServers,
        names: &[PeerName],
        roots: &Roots,
        pair: Option<&Pair>,
        provider: Arc<CryptoProvider>,
    ) -> Result<ServerTerms, BadPair> {
        let config = configure(roots, pair, &provider)?;
        let seal = |name: &PeerName| ServerSeal {
            name: name.0.clone(),
            now: RwLock::new(of_one_server(&config)),
        };
        let seals = names.iter().map(|name| Arc::new(seal(name))).collect();
        Ok(ServerTerms { wanted, provider, seals })
    }

    /// Applies these from the next connection on. Earlier sessions are not resumed: otherwise a
    /// server that is no longer trusted could resume one.
    ///
    /// # Errors
    /// The library rejects the configuration: everything remains as it is.
    pub fn renew(&self, roots: &Roots, pair: Option<&Pair>) -> Result<(), BadPair> {
        let config = configure(roots, pair, &self.provider)?;
        for seal in &self.seals {
            *seal.now.write().unwrap_or_else(PoisonError::into_inner) = of_one_server(&config);
        }
        Ok(())
    }

    /// The configuration.
    pub fn wanted(&self) -> &WantedOfServers {
        &self.wanted
    }

    /// By server, in the order of their names.
    pub fn seals(&self) -> &[Arc<ServerSeal>] {
        &self.seals
    }
}

/// The same configuration with separate sessions.
fn of_one_server(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.resumption = Resumption::in_memory_sessions(TICKETS_MAX);
    Arc::new(config)
}

fn configure(
    roots: &Roots,
    pair: Option<&Pair>,
    provider: &Arc<CryptoProvider>,
) -> Result<ClientConfig, BadPair> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider));
    let builder =
        builder.with_protocol_versions(&[&TLS13, &TLS12]).map_err(|error| BadPair::of(&error))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(roots.verifier(provider)?);
    let mut config = match pair {
        Some(pair) => builder.with_client_cert_resolver(Arc::new(Shown(Arc::clone(&pair.key)))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificate that is shown to servers that ask for one.
#[derive(Debug)]
struct Shown(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for Shown {
    fn resolve(
        &self,
        _: &[&[u8]],
        schemes: &[SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        // The CAs that a server names are only a hint. Where it is wrong, servers say so by an
        // alert, which tells more than showing nothing.
        self.0.key.choose_scheme(schemes).is_some().then(|| Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}
