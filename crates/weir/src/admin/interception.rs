//! What an interception does with new connections, in the document.

use serde::{Deserialize, Serialize};

/// First packets of connections to the ports, since the start, and the treatment of new ones now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Interception {
    /// Led to weir.
    pub(crate) taken: u64,
    /// Left alone: for lack of room, during a flood, or while weir did not listen.
    pub(crate) passed_by: u64,
    /// The same, because of options that a second connection could not keep.
    pub(crate) with_options: u64,
    /// The same, because this machine has changed their addresses or ports.
    pub(crate) translated: u64,
    /// The same, because weir did not run: it was stopped, or hung.
    pub(crate) unserved: u64,
    /// Why new ones pass by now; None: they are taken, as long as weir listens.
    pub(crate) passing: Option<String>,
}
