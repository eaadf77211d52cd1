//! The process group of a page: everything that the page has started ends with it.

use std::io::{PipeReader, PipeWriter, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long killed programs may take to end, on a busy machine as well.
const DEADLINE: Duration = Duration::from_secs(60);
/// The programs of a page hold the pipe of [`Group`] as descriptor 3.
const SHELL: &str = "exec 3>&0 </dev/null; exec sh -euv \"$0\"";

/// A process group whose leader does nothing but wait for the end of the page.
///
/// The leader kills its group at the end of the page, and also if this process dies. It remains a
/// child until then, so that no other group can get the same number. All programs inherit a pipe,
/// which ends when the last of them has ended.
pub(crate) struct Group {
    leader: Child,
    leash: Option<ChildStdin>,
    held: Option<PipeWriter>,
    ended: Option<PipeReader>,
}

impl Group {
    pub(crate) fn begin() -> Group {
        let mut command = Command::new("sh");
        command.args(["-c", "read -r end; kill -s KILL -- -$$"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut leader = command.spawn().expect("sh starts");
        let leash = leader.stdin.take();
        let (ended, held) = std::io::pipe().expect("a pipe");
        Group { leader, leash, held: Some(held), ended: Some(ended) }
    }

    /// Returns a shell of the group that runs this script. With -v it writes each line to standard
    /// error before it runs that line.
    pub(crate) fn shell(&self, script: &std::path::Path) -> Command {
        let held = self
            .held
            .as_ref()
            .expect("it is there until the end")
            .try_clone()
            .expect("a descriptor");
        let leader =
            i32::try_from(self.leader.id()).expect("numbers of processes are positive i32");
        let mut command = Command::new("sh");
        command.args(["-c", SHELL]).arg(script).stdin(held).process_group(leader);
        command
    }

    /// Kills all programs of the group and waits until they have ended.
    pub(crate) fn end(mut self) {
        self.kill();
        let mut pipe = self.ended.take().expect("nothing else takes it");
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || sender.send(pipe.read_to_end(&mut Vec::new())));
        ended
            .recv_timeout(DEADLINE)
            .expect("a program has left the process group of its page")
            .expect("a pipe");
    }

    fn kill(&mut self) {
        drop((self.leash.take(), self.held.take()));
        // The leader is part of its group: when it has ended, all have the signal.
        let _ = self.leader.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
