//! Test origins that die, freeze and come back on command, and keep a record of their requests even
//! so.
//!
//! Called by `failover.rs`. Each has an address that no outgoing connection can take while it is
//! away, and a log that outlives it. Bound: all end with [`Servers`], and the kernel kills them,
//! frozen or not, when the harness is killed.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::process::Process;
use super::stage::Stage;
use crate::bench::experiment::failover::Deed;

/// How long a signal may take to show.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// Some servers that a proxy may choose from.
#[derive(Debug)]
pub(super) struct Servers {
    weir: PathBuf,
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    address: SocketAddr,
    /// First lines of all requests, over all its lives.
    log: PathBuf,
    output: PathBuf,
    process: Option<Process>,
}

impl Servers {
    /// Starts this many.
    ///
    /// # Errors
    /// One doesn't start.
    pub(super) fn start(stage: &Stage, count: usize) -> io::Result<Servers> {
        let server = |(nth, address): (usize, SocketAddr)| Server {
            address,
            log: stage.scratch(&format!("server-{nth}.requests")),
            output: stage.scratch(&format!("server-{nth}.log")),
            process: None,
        };
        let servers: Vec<Server> = addresses(count)?.into_iter().enumerate().map(server).collect();
        let mut all = Servers { weir: stage.weir().to_owned(), servers };
        for server in &mut all.servers {
            // The file of an earlier run.
            let _ = fs::remove_file(&server.log);
            server.begin(&all.weir, None)?;
        }
        Ok(all)
    }

    /// Returns the addresses on which they listen.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address).collect()
    }

    /// Does something to one of them. Returns the number of the process that it was done to, or
    /// that was started.
    ///
    /// # Errors
    /// It can't be done.
    pub(super) fn act(&mut self, nth: usize, deed: Deed) -> io::Result<u32> {
        let (weir, server) = (&self.weir, &mut self.servers[nth]);
        match deed {
            Deed::Kill => server.kill(),
            Deed::End => server.end(),
            Deed::Start => server.begin(weir, None),
            Deed::Freeze => server.freeze(),
            Deed::Thaw => server.signal(Signal::CONT),
            Deed::Replace(how) => server.kill().and_then(|_| server.begin(weir, Some(how))),
            Deed::Heal => server.kill().and_then(|_| server.begin(weir, None)),
        }
    }

    /// Returns how often each request with this method came, over all servers and lives.
    ///
    /// # Errors
    /// A log can't be read.
    pub(super) fn requests(&self, method: &str) -> io::Result<HashMap<String, u64>> {
        let mut counts = HashMap::new();
        for server in &self.servers {
            let text = fs::read_to_string(&server.log)?;
            for line in text.lines().filter(|line| line.split(' ').next() == Some(method)) {
                *counts.entry(line.to_owned()).or_default() += 1;
            }
        }
        Ok(counts)
    }
}

impl Server {
    fn begin(&mut self, weir: &Path, misbehave: Option<&str>) -> io::Result<u32> {
        let (weir, listen, log) =
            (weir.to_string_lossy(), self.address.to_string(), self.log.to_string_lossy());
        // Another signal than the usual one at our death: SIGTERM does nothing to a process that is
        // frozen.
        let mut words = vec![
            "--pdeathsig",
            "KILL",
            "--",
            &weir,
            "origin",
            "--listen",
            &listen,
            "--threads",
            "1",
        ];
        words.extend(["--log", &log]);
        words.extend(misbehave.into_iter().flat_map(|how| ["--misbehave", how]));
        let mut process = Process::start(Path::new("setpriv"), &words, &self.output)?;
        process.await_listening(self.address)?;
        let pid = process.family()[0];
        self.process = Some(process);
        Ok(pid)
    }

    fn pid(&self) -> io::Result<Pid> {
        let pid = self.process.as_ref().and_then(|process| process.family().first().copied());
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        pid.ok_or_else(|| io::Error::other("a server that isn't there can't be signalled"))
    }

    fn signal(&self, signal: Signal) -> io::Result<u32> {
        let pid = self.pid()?;
        kill_process(pid, signal)?;
        Ok(pid.as_raw_nonzero().get().unsigned_abs())
    }

    fn kill(&mut self) -> io::Result<u32> {
        let pid = self.signal(Signal::KILL)?;
        self.process = None;
        Ok(pid)
    }

    /// Dropping the process asks it to end and waits for that.
    fn end(&mut self) -> io::Result<u32> {
        let pid = self.pid()?;
        self.process = None;
        Ok(pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Returns when the kernel reports that it is stopped.
    fn freeze(&self) -> io::Result<u32> {
        let pid = self.signal(Signal::STOP)?;
        let deadline = Instant::now() + PATIENCE;
        while state(pid) != Some('T') {
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("process {pid} doesn't stop")));
            }
            std::thread::sleep(LOOK);
        }
        Ok(pid)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A frozen process would not handle SIGTERM. An error, when there is none, is fine.
        let _ = self.signal(Signal::CONT);
    }
}

/// The state of a process: a letter of proc(5), `T` for stopped.
fn state(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// Returns free ports on separate addresses. Connections to loopback come from 127.0.0.1, so none
/// of them has such a port meanwhile.
fn addresses(count: usize) -> io::Result<Vec<SocketAddr>> {
    let host = |nth: usize| Ipv4Addr::new(127, 0, 53, nth as u8 + 1);
    (0..count).map(|nth| TcpListener::bind((host(nth), 0))?.local_addr()).collect()
}
