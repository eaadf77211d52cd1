//! How the worker for a new connection is chosen at each listener, in the document.

use serde::{Deserialize, Serialize};

use crate::spreading::Shown;

/// How a listener spreads new connections over the workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Accepting {
    pub(crate) listener: String,
    /// `even by eBPF`, `even by classic BPF`, `by hash`, `one socket for all workers`, `one
    /// worker`.
    pub(crate) way: String,
    /// Why a better way is unavailable.
    pub(crate) why: Option<String>,
}

impl From<Shown> for Accepting {
    fn from(Shown { listener, way, why }: Shown) -> Accepting {
        Accepting { listener, way: way.to_owned(), why }
    }
}
