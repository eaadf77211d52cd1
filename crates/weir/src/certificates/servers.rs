//! What connections to the servers of an upstream need of files: the certificates of CAs, and the one that weir shows. Opened, looked at
//! again and exchanged as those of listeners are.

use std::path::Path;
use std::sync::Arc;

use weir_proxy::plan::{ServerTlsPlan, TrustPlan, UpstreamPlan};
use weir_tls::{Files, PeerName, Seal, ServerTerms, Trust, WantedOfServers, provider};

use super::kept::{Kept, Source as _};

/// The servers of an upstream that are spoken TLS to.
#[derive(Debug)]
pub(super) struct Servers {
    terms: ServerTerms,
    /// CAs that are trusted.
    pub(super) roots: Kept<Trust>,
    /// What weir shows.
    pub(super) shown: Option<Kept<Files>>,
}

/// What the servers of an upstream need of files, read; which servers those are may come later.
#[derive(Debug)]
pub(super) struct ServerFiles {
    wanted: WantedOfServers,
    roots: Kept<Trust>,
    shown: Option<Kept<Files>>,
}

impl ServerFiles {
    /// Reads what they need.
    ///
    /// # Errors
    /// A file is bad.
    pub(super) fn read(tls: &ServerTlsPlan) -> Result<ServerFiles, String> {
        let trust = match &tls.trust {
            TrustPlan::System => Trust::System,
            TrustPlan::File(path) => Trust::File(path.clone()),
            TrustPlan::Anybody => Trust::Anybody,
        };
        let files =
            tls.certificate.as_ref().map(|plan| Files { certificate: plan.certificate.clone(), key: plan.key.clone() });
        let now = super::now();
        let shown = files.clone().map(|files| Kept::open(files, now)).transpose()?;
        let roots = Kept::open(trust.clone(), now)?;
        Ok(ServerFiles { wanted: WantedOfServers { trust, files }, roots, shown })
    }

    /// The files.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.roots.source.files().into_iter().chain(self.shown.iter().flat_map(|kept| kept.source.files()))
    }
}

impl Servers {
    /// Reads what they need.
    ///
    /// # Errors
    /// A file is bad, or a server's name can't be in a certificate.
    pub(super) fn open(upstream: &UpstreamPlan, tls: &ServerTlsPlan) -> Result<Servers, String> {
        Servers::new(upstream, tls, ServerFiles::read(tls)?)
    }

    /// With what was read.
    ///
    /// # Errors
    /// A server's name can't be in a certificate.
    pub(super) fn new(upstream: &UpstreamPlan, tls: &ServerTlsPlan, files: ServerFiles) -> Result<Servers, String> {
        let ServerFiles { wanted, roots, shown } = files;
        let names = upstream.servers.iter().map(|server| PeerName::new(tls.name_of(server)));
        let names = names.collect::<Result<Vec<_>, _>>().map_err(|bad| bad.to_string())?;
        let pair = shown.as_ref().map(|kept| &kept.value);
        let terms = ServerTerms::new(wanted, &names, &roots.value, pair, provider());
        Ok(Servers { terms: terms.map_err(|bad| bad.to_string())?, roots, shown })
    }

    /// What makes connections to each server speak TLS.
    pub(super) fn seals(&self) -> impl Iterator<Item = Option<Arc<dyn Seal>>> {
        self.terms.seals().iter().map(|seal| Some(Arc::<weir_tls::ServerSeal>::clone(seal) as Arc<dyn Seal>))
    }

    /// Whether anybody may make connections with what [`Servers::seals`] gave.
    pub(super) fn are_used(&self) -> bool {
        self.terms.seals().iter().any(|seal| Arc::strong_count(seal) > 1)
    }

    pub(super) fn look(&mut self, now: i64, tell: &mut dyn FnMut(String)) {
        let mut is_new = self.roots.look(now, tell);
        if let Some(kept) = &mut self.shown {
            is_new |= kept.look(now, tell);
        }
        if is_new && let Err(bad) = self.terms.renew(&self.roots.value, self.shown.as_ref().map(|kept| &kept.value)) {
            tell(format!("{bad}; connections to servers go on as before"));
        }
    }
}
