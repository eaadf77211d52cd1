//! Upgrade without a gap: a new program takes the listening sockets over, and the old one finishes
//! its clients (docs/upgrade.md).
//!
//! ```text
//!   old (successor.rs)                               new (heritage.rs)
//!   starts it, gives copies of its sockets  ───▶     reads the configuration, starts workers,
//!                                                    waits until it is ready
//!                                           ◀───     ready (or why not: then the old one goes on
//!                                                    as if nothing had been)
//!   may accept                              ───▶     accepts beside the old one
//!                                           ◀───     accepts
//!   stops to accept, admin socket too       ───▶     answers there; the service manager knows
//!   finishes its clients, ends
//! ```
//!
//! At each moment a program accepts from each socket, and none is closed by its last owner. The
//! messages are in `wire`; they go over standard input of the new program, as `WEIR_UPGRADE` in its
//! environment says.

mod heritage;
mod orders;
mod successor;
mod wire;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
pub(crate) use heritage::{Heritage, Predecessor, Taken, start_again};
pub(crate) use successor::{Handed, Upgrader};

/// Marks a new program as such, and says which of its two processes it is.
const CHANNEL: &str = "WEIR_UPGRADE";
/// The process that starts the other.
const VARIABLE_START: &str = "start";
/// The other process.
const VARIABLE_GO: &str = "go";

/// How a program was started, so that it can be started again: with another file then.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Returns how this program was started. Call it before the working directory can change.
    pub(crate) fn of_this() -> Program {
        let mut words = std::env::args_os();
        let name = PathBuf::from(words.next().unwrap_or_default());
        let path = if name.parent().is_some_and(|parent| !parent.as_os_str().is_empty()) {
            std::path::absolute(&name).ok()
        } else {
            in_search_path(&name)
        };
        let path = path
            .filter(|path| path.exists())
            .or_else(|| std::env::current_exe().ok())
            .unwrap_or(name);
        Program { path, arguments: words.collect() }
    }
}

/// Finds it as a shell did.
fn in_search_path(name: &Path) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&directories).map(|directory| directory.join(name));
    found.filter_map(|path| std::path::absolute(path).ok()).find(|path| path.is_file())
}

/// Runs a proxy with the sockets that this process inherits. Reports a failure to the predecessor.
///
/// # Errors
/// Those of `run`.
pub(crate) fn inheriting(run: impl FnOnce(Heritage) -> Result<(), Failure>) -> Result<(), Failure> {
    let heritage = Heritage::receive()?;
    let predecessor = heritage.predecessor.clone();
    run(heritage).inspect_err(|failure| {
        if let Some(predecessor) = predecessor {
            predecessor.tell_failed(failure);
        }
    })
}
