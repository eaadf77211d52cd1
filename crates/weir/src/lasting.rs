//! State that outlives this process, each kind with a thread that keeps it in a file: bans, servers
//! that are not pipelined, and the cache. Called by `run`, which decides which process may use the
//! files: during an upgrade first the predecessor, then the successor ([`Hold`]).

mod claim;
mod hold;
pub(crate) mod kept;
pub(crate) mod lines;
mod next;
pub(crate) mod own;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use rustix::fs::OFlags;
use weir_proxy::plan::Plan;
use weir_worker::Running;

use crate::admin::Facts;
use crate::bans::{self, Bans};
use crate::leaving::Leaving;
use crate::reload::Desk;
use crate::snapshot::{self, Snapshots};
use crate::spreading::Spreading;
use crate::verdicts::{self, Verdicts};
pub(crate) use claim::Taken;
pub(crate) use hold::{Hold, Turn};
pub(crate) use kept::Kept;
pub(crate) use next::{Next, remove, remove_rest};

/// Flags for opening files that another user may have put there: do not follow links, never wait.
pub(crate) const WARY: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// All such state.
#[derive(Debug)]
pub(crate) struct Lasting {
    pub(crate) bans: Bans,
    pub(crate) verdicts: Verdicts,
    pub(crate) snapshots: Snapshots,
}

/// The threads.
#[derive(Debug)]
pub(crate) struct Keepers(bans::Keeper, verdicts::Keeper, snapshot::Keeper);

impl Lasting {
    /// Opens the state for a plan. `waits`: another process owns the files until
    /// [`Lasting::enter`].
    pub(crate) fn open(plan: &Arc<Plan>, waits: bool) -> Lasting {
        let (bans, verdicts) = (Bans::open(plan, waits), Verdicts::open(plan, waits));
        Lasting { bans, verdicts, snapshots: Snapshots::open(plan, waits) }
    }

    /// Returns what the control thread reports of this state, and of how new connections are
    /// spread.
    pub(crate) fn facts(&self, probe: &weir_io::Probe, spreading: &Spreading) -> Facts {
        let (bans, verdicts, snapshots) =
            (self.bans.clone(), self.verdicts.clone(), self.snapshots.clone());
        Facts { bans, verdicts, snapshots, spreading: spreading.clone(), ..Facts::of(probe) }
    }

    /// Starts the threads, before new workers accept clients.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(&self, running: &mut Running, desk: &Desk) -> io::Result<Keepers> {
        let bans = self.bans.start(running, desk.clone())?;
        let verdicts = self.verdicts.start(running, desk.clone())?;
        Ok(Keepers(bans, verdicts, self.snapshots.start(desk.clone())?))
    }

    /// From now on the files belong to this process.
    pub(crate) fn enter(&self) {
        self.bans.enter();
        self.verdicts.enter();
        self.snapshots.enter();
    }

    /// Ends the waits for clients and for the snapshot.
    pub(crate) fn end_at_once(&self, leaving: &mut Leaving, running: &Running) {
        self.snapshots.hurry();
        leaving.end(running);
    }

    /// From now on the files belong to another process.
    pub(crate) fn leave(&self) {
        self.bans.leave();
        self.verdicts.leave();
        self.snapshots.leave();
    }
}

impl Keepers {
    /// Waits for the files: call it when all workers have ended. `signals` can end the wait for the
    /// snapshot.
    pub(crate) fn finish(self, signals: &Receiver<i32>) {
        let Keepers(bans, verdicts, snapshots) = self;
        bans.finish();
        verdicts.finish();
        snapshots.finish(signals);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::{Path, PathBuf};

    /// A directory of one test, removed with this.
    pub(crate) struct Directory(PathBuf);

    impl Directory {
        /// `name` is unique among the tests.
        pub(crate) fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        pub(crate) fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        /// Returns the names in it, sorted.
        pub(crate) fn names(&self) -> Vec<String> {
            let all = std::fs::read_dir(Path::new(&self.0)).unwrap();
            let mut names: Vec<String> = all
                .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
