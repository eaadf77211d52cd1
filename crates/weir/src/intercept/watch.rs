//! What `weir status` shows of an interception, as its keeper has seen it last.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_bpf::Taken;

use crate::admin::document::Interception;

/// See the module. The same for all clones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<Interception>>);

impl Watch {
    /// What was counted by now, and why new connections pass by.
    pub(super) fn set(&self, Taken { taken, passed_by, with_options, changed }: Taken, passing: Option<&str>) {
        let passing = passing.map(str::to_owned);
        *self.lock() = Interception { taken, passed_by, with_options, translated: changed, passing };
    }

    /// What it was then.
    pub(crate) fn shown(&self) -> Interception {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Interception> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
