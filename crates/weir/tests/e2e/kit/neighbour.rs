//! Another network than that of the test, behind a pair of virtual interfaces, or unconnected.
//! Needs root, or a user namespace in which the test is root.

use std::process::{Child, Command};

use weir_io::Namespace;

use super::{eventually, run};

/// The other network. It disappears with its last process.
#[derive(Debug)]
pub struct Neighbour {
    holder: Child,
}

impl Neighbour {
    /// Makes an unconnected one.
    pub fn apart() -> Neighbour {
        let holder = Command::new("unshare")
            .args(["--net", "sleep", "600"])
            .spawn()
            .expect("unshare starts");
        let neighbour = Neighbour { holder };
        let own = Namespace::current().expect("a namespace");
        let is_other = || {
            Namespace::open(neighbour.place().as_ref())
                .and_then(|other| other.is(&own))
                .is_ok_and(|is| !is)
        };
        eventually("it is there", is_other);
        neighbour
    }

    /// Joins it to the test's network by the interface `near`, with the other end `far` there.
    pub fn new(near: &str, far: &str) -> Neighbour {
        let neighbour = Neighbour::apart();
        ip(&format!("link add {near} type veth peer name {far} netns {}", neighbour.process()));
        neighbour.ip("link set lo up");
        neighbour
    }

    /// Returns a process in it.
    pub fn process(&self) -> String {
        self.holder.id().to_string()
    }

    /// Returns its namespace.
    pub fn place(&self) -> String {
        format!("/proc/{}/ns/net", self.process())
    }

    /// Gives it an interface of the test.
    pub fn take(&self, name: &str) {
        ip(&format!("link set {name} netns {}", self.process()));
    }

    /// Runs `ip` there.
    pub fn ip(&self, line: &str) {
        ip_by(&format!("nsenter --net={} ip", self.place()), line);
    }

    /// Runs this there.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let namespace = Namespace::open(self.place().as_ref()).expect("its namespace");
        namespace.enter(body).expect("it may be entered")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Runs `ip` here.
pub fn ip(line: &str) {
    ip_by("ip", line);
}

fn ip_by(command: &str, line: &str) {
    let mut words = command.split(' ').chain(line.split(' '));
    let done = run(words.next().expect("a program"), &words.collect::<Vec<_>>());
    assert!(done.status.success(), "ip {line}: {}", String::from_utf8_lossy(&done.stderr));
}
