//! What outlives this process, each with a thread that keeps it in a file: who is banned, which servers are not
//! pipelined, and what the cache has stored. Called by `run`, which says whose turn it is: at an upgrade all are the predecessor's first, and
//! the successor's at last ([`Hold`]).

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

/// How files are opened that somebody else may have put there: no link is followed, and nothing is waited for.
pub(crate) const WARY: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// See the module.
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
    /// For a plan. `waits`: another process has the files until [`Lasting::enter`].
    pub(crate) fn open(plan: &Arc<Plan>, waits: bool) -> Lasting {
        let (bans, verdicts) = (Bans::open(plan, waits), Verdicts::open(plan, waits));
        Lasting { bans, verdicts, snapshots: Snapshots::open(plan, waits) }
    }

    /// What is told of them, and of whom new connections are given to.
    pub(crate) fn facts(&self, probe: &weir_io::Probe, spreading: &Spreading) -> Facts {
        let (bans, verdicts, snapshots) = (self.bans.clone(), self.verdicts.clone(), self.snapshots.clone());
        Facts { bans, verdicts, snapshots, spreading: spreading.clone(), ..Facts::of(probe) }
    }

    /// Starts the threads, before workers that have just been made accept anybody.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(&self, running: &mut Running, desk: &Desk) -> io::Result<Keepers> {
        let bans = self.bans.start(running, desk.clone())?;
        let verdicts = self.verdicts.start(running, desk.clone())?;
        Ok(Keepers(bans, verdicts, self.snapshots.start(desk.clone())?))
    }

    /// From now on the files are this process's.
    pub(crate) fn enter(&self) {
        self.bans.enter();
        self.verdicts.enter();
        self.snapshots.enter();
    }

    /// Nobody waits any more, neither for clients nor for the snapshot.
    pub(crate) fn end_at_once(&self, leaving: &mut Leaving, running: &Running) {
        self.snapshots.hurry();
        leaving.end(running);
    }

    /// From now on they are another process's.
    pub(crate) fn leave(&self) {
        self.bans.leave();
        self.verdicts.leave();
        self.snapshots.leave();
    }
}

impl Keepers {
    /// Waits for the files: call it when all workers have ended. `signals` say that nobody wants to wait for the snapshot any more.
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

    /// A directory of a test's own, which goes with this.
    pub(crate) struct Directory(PathBuf);

    impl Directory {
        /// `name` is no other test's.
        pub(crate) fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        pub(crate) fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        /// What is in it, sorted.
        pub(crate) fn names(&self) -> Vec<String> {
            let all = std::fs::read_dir(Path::new(&self.0)).unwrap();
            let mut names: Vec<String> =
                all.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
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
