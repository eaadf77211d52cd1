//! What connections to the servers of an upstream need of files: the certificates of CAs, and the one that weir shows. Opened, looked at
//! again and exchanged as those of listeners are.

use std::path::Path;
use std::sync::Arc;

use weir_proxy::plan::{ServerTlsPlan, TrustPlan, UpstreamPlan};
use weir_tls::{Files, PeerName, Roots, Seal, ServerTerms, Trust, WantedOfServers, provider};

use super::Kept;
use crate::side::stamp::Stamp;

/// What the operator should know of a file with the certificates of CAs, or of those of the system.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check(path: Option<&Path>) -> Result<Vec<String>, String> {
    let trust = path.map_or(Trust::System, |path| Trust::File(path.into()));
    Roots::read(&trust).map(|_| Vec::new()).map_err(|bad| bad.to_string())
}

/// CAs that are trusted, and their file.
#[derive(Debug)]
struct KeptRoots {
    trust: Trust,
    roots: Roots,
    /// Of the file that they were read from.
    read: Option<Stamp>,
    /// Of a file that could not be used, and whether that was told.
    bad: Option<(Option<Stamp>, bool)>,
}

impl KeptRoots {
    fn open(trust: Trust) -> Result<KeptRoots, String> {
        let read = stamp(&trust);
        let roots = Roots::read(&trust).map_err(|bad| bad.to_string())?;
        Ok(KeptRoots { trust, roots, read, bad: None })
    }

    /// Reads the file again if it has changed. True: others are trusted now. What can't be used is told when it is still so at
    /// the next look: whoever writes a file may be half done.
    fn look(&mut self, tell: &mut dyn FnMut(String)) -> bool {
        let found = stamp(&self.trust);
        if found == self.read {
            self.bad = None;
            return false;
        }
        let before = self.bad.filter(|(stamp, _)| *stamp == found);
        if before.is_some_and(|(_, was_told)| was_told) {
            return false;
        }
        match Roots::read(&self.trust) {
            Ok(roots) => {
                if let Trust::File(path) = &self.trust {
                    tell(format!("read the certificates of CAs in {} again: {}", path.display(), roots.len()));
                }
                (self.roots, self.read, self.bad) = (roots, found, None);
                true
            }
            Err(bad) => {
                if before.is_some() {
                    tell(format!("{bad}; those from before stay trusted"));
                }
                self.bad = Some((found, before.is_some()));
                false
            }
        }
    }
}

fn stamp(trust: &Trust) -> Option<Stamp> {
    match trust {
        Trust::File(path) => Stamp::at(path).ok(),
        Trust::System | Trust::Anybody => None,
    }
}

/// The servers of an upstream that are spoken TLS to.
#[derive(Debug)]
pub(super) struct Servers {
    terms: ServerTerms,
    roots: KeptRoots,
    /// What weir shows.
    pub(super) shown: Option<Kept>,
}

impl Servers {
    /// Reads what they need.
    ///
    /// # Errors
    /// A file is bad, or a server's name can't be in a certificate.
    pub(super) fn open(upstream: &UpstreamPlan, tls: &ServerTlsPlan) -> Result<Servers, String> {
        let trust = match &tls.trust {
            TrustPlan::System => Trust::System,
            TrustPlan::File(path) => Trust::File(path.clone()),
            TrustPlan::Anybody => Trust::Anybody,
        };
        let files =
            tls.certificate.as_ref().map(|plan| Files { certificate: plan.certificate.clone(), key: plan.key.clone() });
        let shown = files.as_ref().map(Kept::open).transpose()?;
        let roots = KeptRoots::open(trust.clone())?;
        let names = upstream.servers.iter().map(|server| PeerName::new(tls.name_of(server)));
        let names = names.collect::<Result<Vec<_>, _>>().map_err(|bad| bad.to_string())?;
        let pair = shown.as_ref().map(|kept| &kept.pair);
        let terms = ServerTerms::new(WantedOfServers { trust, files }, &names, &roots.roots, pair, provider());
        Ok(Servers { terms: terms.map_err(|bad| bad.to_string())?, roots, shown })
    }

    /// What makes connections to each server speak TLS.
    pub(super) fn seals(&self) -> impl Iterator<Item = Option<Arc<dyn Seal>>> {
        self.terms.seals().iter().map(|seal| Some(Arc::<weir_tls::ServerSeal>::clone(seal) as Arc<dyn Seal>))
    }

    pub(super) fn look(&mut self, now: i64, tell: &mut dyn FnMut(String)) {
        let mut is_new = self.roots.look(tell);
        if let Some(kept) = &mut self.shown {
            is_new |= kept.look(tell);
            kept.grow_older(now, tell);
        }
        if is_new && let Err(bad) = self.terms.renew(&self.roots.roots, self.shown.as_ref().map(|kept| &kept.pair)) {
            tell(format!("{bad}; connections to servers go on as before"));
        }
    }
}
