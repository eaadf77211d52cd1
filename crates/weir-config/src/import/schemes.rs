//! Clients with TLS and without, in an import. Called by the dialects.

use super::draft::Draft;
use super::route::Scheme;

impl Draft<'_> {
    /// Returns the schemes of the clients of a group.
    pub(super) fn schemes_of(&self, group: usize) -> impl Iterator<Item = Scheme> {
        let has = move |scheme: &Scheme| {
            self.groups[group]
                .listens
                .iter()
                .any(|at| Scheme::of(self.listens[*at].tls.is_some()) == *scheme)
        };
        Scheme::ALL.into_iter().filter(has)
    }
}
