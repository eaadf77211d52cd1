//! The files for connections to the servers of an upstream: the certificates of CAs, and weir's own
//! certificate. Opened, checked and replaced as those of listeners are.

use std::path::Path;
use std::sync::Arc;

use weir_proxy::plan::{ServerTlsPlan, TrustPlan, UpstreamPlan};
use weir_tls::{Files, PeerName, Seal, ServerTerms, Trust, WantedOfServers, provider};

use super::kept::{Kept, Source as _};
use crate::log::{Event, Line};

/// The TLS servers of an upstream.
#[derive(Debug)]
pub(super) struct Servers {
    terms: ServerTerms,
    /// Trusted CAs.
    pub(super) roots: Kept<Trust>,
    /// weir's own certificate.
    pub(super) shown: Option<Kept<Files>>,
}

/// The files that the servers of an upstream need, read; the servers may be unknown yet.
#[derive(Debug)]
pub(super) struct ServerFiles {
    wanted: WantedOfServers,
    roots: Kept<Trust>,
    shown: Option<Kept<Files>>,
}

impl ServerFiles {
    /// Reads the files that they need.
    ///
    /// # Errors
    /// A file is bad.
    pub(super) fn read(tls: &ServerTlsPlan) -> Result<ServerFiles, String> {
        let trust = match &tls.trust {
            TrustPlan::System => Trust::System,
            TrustPlan::File(path) => Trust::File(path.clone()),
            TrustPlan::Anybody => Trust::Anybody,
        };
        let files = tls
            .certificate
            .as_ref()
            .map(|plan| Files { certificate: plan.certificate.clone(), key: plan.key.clone() });
        let now = super::now();
        let shown = files.clone().map(|files| Kept::open(files, now)).transpose()?;
        let roots = Kept::open(trust.clone(), now)?;
        Ok(ServerFiles { wanted: WantedOfServers { trust, files }, roots, shown })
    }

    /// Returns the files.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.roots
            .source
            .files()
            .into_iter()
            .chain(self.shown.iter().flat_map(|kept| kept.source.files()))
    }
}

impl Servers {
    /// Reads the files that they need.
    ///
    /// # Errors
    /// A file is bad, or a server's name cannot be in a certificate.
    pub(super) fn open(upstream: &UpstreamPlan, tls: &ServerTlsPlan) -> Result<Servers, String> {
        Servers::new(upstream, tls, ServerFiles::read(tls)?)
    }

    /// Uses files that were read.
    ///
    /// # Errors
    /// A server's name cannot be in a certificate.
    pub(super) fn new(
        upstream: &UpstreamPlan,
        tls: &ServerTlsPlan,
        files: ServerFiles,
    ) -> Result<Servers, String> {
        let ServerFiles { wanted, roots, shown } = files;
        let names = upstream.servers.iter().map(|server| PeerName::new(tls.name_of(server)));
        let names = names.collect::<Result<Vec<_>, _>>().map_err(|bad| bad.to_string())?;
        let pair = shown.as_ref().map(|kept| &kept.value);
        let terms = ServerTerms::new(wanted, &names, &roots.value, pair, provider());
        Ok(Servers { terms: terms.map_err(|bad| bad.to_string())?, roots, shown })
    }

    /// Returns what makes connections to each server use TLS.
    pub(super) fn seals(&self) -> impl Iterator<Item = Option<Arc<dyn Seal>>> {
        self.terms
            .seals()
            .iter()
            .map(|seal| Some(Arc::<weir_tls::ServerSeal>::clone(seal) as Arc<dyn Seal>))
    }

    /// Whether the results of [`Servers::seals`] are still in use for new connections.
    pub(super) fn are_used(&self) -> bool {
        self.terms.seals().iter().any(|seal| Arc::strong_count(seal) > 1)
    }

    pub(super) fn look(&mut self, now: i64, tell: &mut dyn FnMut(Line)) {
        let mut is_new = self.roots.look(now, tell);
        if let Some(kept) = &mut self.shown {
            is_new |= kept.look(now, tell);
        }
        if is_new
            && let Err(bad) =
                self.terms.renew(&self.roots.value, self.shown.as_ref().map(|kept| &kept.value))
        {
            let sentence = format_args!("{bad}; connections to servers continue as before");
            tell(Event::TlsFileBad.says(sentence));
        }
    }
}
