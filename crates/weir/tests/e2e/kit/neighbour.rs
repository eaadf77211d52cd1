//! Another network than that of the test, behind a pair of virtual interfaces. Needs root.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::{Child, Command};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{eventually, run};

/// See the module. It is gone when nobody is in it any more.
#[derive(Debug)]
pub struct Neighbour {
    holder: Child,
}

impl Neighbour {
    /// Joins it to this one by the interface `near`, which is called `far` there.
    pub fn new(near: &str, far: &str) -> Neighbour {
        let holder = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().expect("unshare starts");
        let neighbour = Neighbour { holder };
        let same = |a: &str, b: &str| std::fs::read_link(a).ok() == std::fs::read_link(b).ok();
        eventually("it is there", || !same(&neighbour.place(), "/proc/self/ns/net"));
        ip(&format!("link add {near} type veth peer name {far} netns {}", neighbour.holder.id()));
        neighbour.ip("link set lo up");
        neighbour
    }

    /// Its namespace.
    pub fn place(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.id())
    }

    /// Gives it an interface of the test.
    pub fn take(&self, name: &str) {
        ip(&format!("link set {name} netns {}", self.holder.id()));
    }

    /// `ip` there.
    pub fn ip(&self, line: &str) {
        ip_by(&format!("nsenter --net={} ip", self.place()), line);
    }

    /// Somebody does this there.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let place = File::open(self.place()).expect("its namespace");
        // A thread that has entered a namespace stays there: this one ends.
        let body = || {
            move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
            body()
        };
        std::thread::scope(|scope| scope.spawn(body).join()).expect("no panic")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// `ip` here.
pub fn ip(line: &str) {
    ip_by("ip", line);
}

fn ip_by(command: &str, line: &str) {
    let mut words = command.split(' ').chain(line.split(' '));
    let done = run(words.next().expect("a program"), &words.collect::<Vec<_>>());
    assert!(done.status.success(), "ip {line}: {}", String::from_utf8_lossy(&done.stderr));
}
