//! The process group of a page: everything that the page has started ends with it.

use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

/// A process group whose leader does nothing but wait for the end of the page.
///
/// The leader kills its own group when it is told to, and when this process ends. It is not waited for before, so that the
/// number of the group belongs to no other group.
pub(crate) struct Group {
    leader: Child,
    page: Option<ChildStdin>,
}

impl Group {
    pub(crate) fn begin() -> Group {
        let mut command = Command::new("sh");
        command.args(["-c", "read -r end; kill -s KILL -- -$$"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut leader = command.spawn().expect("sh starts");
        let page = leader.stdin.take();
        Group { leader, page }
    }

    /// The number of the group, for [`CommandExt::process_group`].
    pub(crate) fn id(&self) -> i32 {
        i32::try_from(self.leader.id()).expect("numbers of processes are positive i32")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.page.take());
        // The leader is part of its group: when it has ended, all have the signal.
        let _ = self.leader.wait();
    }
}
