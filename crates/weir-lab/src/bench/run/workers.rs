//! The load of each worker of a contender: its client connections, and its processor time.
//!
//! Called by `ladder.rs`. Workers of nginx are processes, whose sockets `/proc` shows. Those of
//! HAProxy are threads, and its stats socket says which thread has which descriptor (`show fd`).
//! Those of weir are threads, and its admin socket says how many clients each has.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::bans::ask;
use crate::bench::experiment::block::Program;

/// How long HAProxy may take to respond.
const PATIENCE: Duration = Duration::from_secs(10);

/// The workers of a contender, in their order.
#[derive(Debug)]
pub(super) struct Workers {
    program: Program,
    /// Process and thread of each.
    threads: Vec<(u32, u32)>,
}

impl Workers {
    /// Finds the workers of a program with these processes, the first one first.
    ///
    /// # Errors
    /// There are fewer workers than `count`.
    pub(super) fn find(program: Program, pids: &[u32], count: usize) -> io::Result<Workers> {
        let mut threads = match program {
            // The first is the master.
            Program::Nginx => pids.iter().skip(1).map(|pid| (*pid, *pid)).collect(),
            Program::Haproxy => threads(pids, |_| Some(0)),
            Program::Weir => threads(pids, |name| name.strip_prefix("weir-")?.parse().ok()),
        };
        threads.truncate(count);
        if threads.len() < count {
            return Err(io::Error::other(format!(
                "{} workers were found, not {count}",
                threads.len()
            )));
        }
        Ok(Workers { program, threads })
    }

    /// Processor time of each so far, microseconds.
    ///
    /// # Errors
    /// One is gone.
    pub(super) fn cpu_us(&self) -> io::Result<Vec<u64>> {
        let read = |(pid, thread): &(u32, u32)| {
            let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat"))?;
            let ns = text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
            Ok(ns.ok_or_else(|| io::Error::other("schedstat tells no time"))? / 1000)
        };
        self.threads.iter().map(read).collect()
    }

    /// Returns the client connections of each, counting those to this address.
    ///
    /// # Errors
    /// The program does not report them.
    pub(super) fn connections(&self, listen: SocketAddr, admin: &Path) -> io::Result<Vec<u64>> {
        match self.program {
            Program::Nginx => {
                let inodes = established(&fs::read_to_string("/proc/net/tcp")?, listen.port());
                self.threads.iter().map(|(pid, _)| held(*pid, &inodes)).collect()
            }
            Program::Haproxy => Ok(by_thread(&show_fd(admin)?, self.threads.len())),
            Program::Weir => {
                let status = ask(admin, "GET", "/v1/status")?;
                let clients = |nth: usize| status["workers"][nth]["clients"].as_u64();
                let all: Option<Vec<u64>> = (0..self.threads.len()).map(clients).collect();
                all.ok_or_else(|| {
                    io::Error::other("a worker of weir does not tell how many clients it has")
                })
            }
        }
    }
}

/// Threads of processes whose names have a number, by that and then by their own.
fn threads(pids: &[u32], number: impl Fn(&str) -> Option<u32>) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for pid in pids {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let thread = task.file_name().to_string_lossy().parse::<u32>().ok();
            found.extend(
                thread.zip(number(name.trim())).map(|(thread, number)| (number, (*pid, thread))),
            );
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, thread)| thread).collect()
}

/// Inodes of sockets in a table as `/proc/net/tcp` is one, proc_net_tcp(5): those of established
/// connections to this port.
fn established(table: &str, port: u16) -> HashSet<u64> {
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let its = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
        (its == port && *state == "01").then_some(inode.parse().ok()?)
    };
    table.lines().skip(1).filter_map(inode).collect()
}

/// How many of these sockets a process has.
fn held(pid: u32, inodes: &HashSet<u64>) -> io::Result<u64> {
    let is_one = |entry: &fs::DirEntry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let inode = target
            .to_str()
            .and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        inode.is_some_and(|inode: u64| inodes.contains(&inode))
    };
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().filter(is_one).count() as u64)
}

/// What HAProxy says of its descriptors.
fn show_fd(socket: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"show fd\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Client connections of each thread: lines of connections in front (`back=0`) of our frontend,
/// with the thread as the only bit of `tmask`.
fn by_thread(text: &str, threads: usize) -> Vec<u64> {
    let mut counts = vec![0; threads];
    for line in text.lines().filter(|line| line.contains(" back=0 ") && line.contains(" fe=in ")) {
        let mask = line.split_whitespace().find_map(|word| word.strip_prefix("tmask=0x"));
        let mask = mask
            .and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .filter(|mask| mask.is_power_of_two());
        if let Some(count) = mask.and_then(|mask| counts.get_mut(mask.trailing_zeros() as usize)) {
            *count += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn sockets_of_a_process_are_those_that_clients_have_to_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<TcpStream> =
            (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let accepted: Vec<TcpStream> =
            clients.iter().map(|_| listener.accept().unwrap().0).collect();
        let inodes = established(&fs::read_to_string("/proc/net/tcp").unwrap(), address.port());
        assert_eq!(
            (inodes.len(), held(std::process::id(), &inodes).unwrap()),
            (3, 3),
            "their ends here, not those of clients"
        );
        drop(accepted);
    }

    #[test]
    fn threads_are_those_with_a_number_in_its_order() {
        let (ready, told) = std::sync::mpsc::channel();
        let ends = std::sync::Arc::new(std::sync::Barrier::new(4));
        let start = |nth: usize| {
            let (ready, ends) = (ready.clone(), std::sync::Arc::clone(&ends));
            std::thread::Builder::new().name(format!("weir-{nth}")).spawn(move || {
                ready.send(()).unwrap();
                ends.wait();
            })
        };
        let started = [10, 2, 1].map(|nth| start(nth).unwrap());
        started.iter().for_each(|_| told.recv().unwrap());
        let pids = [std::process::id()];
        let workers = Workers::find(Program::Weir, &pids, 3).unwrap();
        let names = workers.threads.iter().map(|(pid, thread)| {
            fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap().trim().to_owned()
        });
        assert_eq!(names.collect::<Vec<_>>(), ["weir-1", "weir-2", "weir-10"]);
        assert_eq!(workers.cpu_us().unwrap().len(), 3);
        assert!(
            Workers::find(Program::Weir, &pids, 5)
                .unwrap_err()
                .to_string()
                .contains("3 workers were found, not 5")
        );
        ends.wait();
        started.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn haproxy_tells_which_thread_has_a_client() {
        // Lines of HAProxy 2.6: a listener, clients of threads 1 and 3, a connection to a server,
        // and the connection of this query.
        let text = concat!(
            "4 : st=0x100121(cl heopI W:sRa R:srA) ref=0 gid=1 tmask=0xf umask=0x0 ",
            "owner=0x1 iocb=0x2(sock_accept_iocb) l.st=RDY fe=in fam=ipv4 lport=28471\n",
            "     18 : st=0x000121(cl heopI W:sRa R:srA) ref=0 gid=1 tmask=0x1 umask=0x0 ",
            "owner=0x1 iocb=0x2(sock_conn_iocb) back=0 cflg=0x300 cerr=0 ",
            "fam=ipv4 lport=28471 rport=49784 fe=in mux=H1\n",
            "     20 : st=0x000121(cl heopI W:sRa R:srA) ref=0 gid=1 tmask=0x4 umask=0x0 ",
            "owner=0x1 iocb=0x2(sock_conn_iocb) back=0 cflg=0x300 cerr=0 ",
            "fam=ipv4 lport=28471 rport=49812 fe=in mux=H1\n",
            "     21 : st=0x000121(cl heopI W:sRa R:srA) ref=0 gid=1 tmask=0x4 umask=0x0 ",
            "owner=0x1 iocb=0x2(sock_conn_iocb) back=0 cflg=0x300 cerr=0 ",
            "fam=ipv4 lport=28471 rport=49822 fe=in mux=H1\n",
            "     24 : st=0x000121(cl heopI W:sRa R:srA) ref=0 gid=1 tmask=0x2 umask=0x0 ",
            "owner=0x1 iocb=0x2(sock_conn_iocb) back=1 cflg=0x300 fam=ipv4 sv=s0/app mux=H1\n",
            "     31 : st=0x000021(cl heopi W:sRa R:srA) ref=0 gid=1 tmask=0x1 umask=0x1 ",
            "owner=0x1 iocb=0x2(sock_conn_iocb) back=0 cflg=0x300 cerr=0 ",
            "fam=unix fe=GLOBAL mux=PASS\n",
        );
        assert_eq!(by_thread(text, 4), [1, 0, 2, 0]);
    }
}
