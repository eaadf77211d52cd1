//! Clients that connect while a proxy reloads its configuration again and again: the number of them
//! that are refused, reset or not answered.
//!
//! Called by `rounds.rs` for each run of the experiment `reload`. Each reload is the operators'
//! way: SIGHUP for nginx, SIGUSR2 for HAProxy's master, and `weir upgrade`, for which another
//! number of workers is a change like any other. Bounds: the seconds given; [`THREADS`] x [`BURST`]
//! connections at a time; programs that followed others are ended with the run.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::even_settings;
use super::load::{Readings, pause};
use super::ports::free_address;
use super::process::Process;
use super::stage::{Running, Stage, start_nginx, start_program};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::reload::{BURST, EVERY_MS, PAUSE_MS, THREADS, workers};
use crate::bench::record::answers::Errors;
use crate::bench::record::even::Reloads;
use crate::bench::record::outcome::Record;

/// How long a connection, a response or a reload may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two checks whether programs have ended.
const LOOK: Duration = Duration::from_millis(20);

/// Does one run of this many seconds.
///
/// # Errors
/// Something can't be started or reloaded, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    seconds: u32,
) -> io::Result<(Running, Record)> {
    let listen = free_address()?;
    let mut proxy = Proxy::start(stage, contender, listen)?;
    let readings = Readings::take(stage, &proxy.running);
    let clients = Clients::start(listen);
    let (begin, all) = (Instant::now(), Duration::from_secs(u64::from(seconds)));
    let mut times = 0;
    while begin.elapsed() + Duration::from_millis(EVERY_MS) < all {
        let due = Duration::from_millis(EVERY_MS) * (times + 1);
        pause(due.saturating_sub(begin.elapsed()))?;
        proxy.reload(stage, times)?;
        times += 1;
    }
    pause(all.saturating_sub(begin.elapsed()))?;
    let seen = clients.end()?;
    let mut record = readings.finish();
    record.requests = seen.answered;
    record.rate = seen.answered as f64 / (record.wall_us / 1e6);
    record.special.reloads = Some(Reloads { times, connections: seen.answered + seen.lost() });
    record.errors = seen.errors;
    Ok((proxy.running, record))
}

/// A program that reloads.
struct Proxy {
    running: Running,
    contender: Contender,
    addresses: [SocketAddr; 2],
    /// Its configuration.
    file: PathBuf,
    /// The admin socket of weir.
    admin: PathBuf,
    /// The processes that came after the first one, and have to be ended.
    _successors: Successors,
}

impl Proxy {
    fn start(stage: &Stage, contender: Contender, listen: SocketAddr) -> io::Result<Proxy> {
        let ending = if matches!(contender.what, What::Weir(_)) { "kdl" } else { "conf" };
        let file = stage.scratch(&format!("reload-{}.{ending}", contender.name));
        let admin = stage.scratch("reload.sock");
        let addresses = [listen, stage.origin_address()];
        fs::write(
            &file,
            even_settings::text(stage, contender, addresses, stage.cores().max(2), None)?,
        )?;
        let successors = Successors { of: file.clone() };
        let log = stage.scratch(&format!("reload-{}.log", contender.name));
        let path = file.to_string_lossy();
        let mut process = match contender.what.program() {
            Some("nginx") => start_nginx(stage.programs(), &file, stage.directory(), &log)?,
            Some("haproxy") => {
                start_program(stage.programs(), "haproxy", &["-W", "-db", "-f", &path], &log)?
            }
            _ => Process::start(
                stage.weir(),
                &["run", "--admin", &admin.to_string_lossy(), "-c", &path],
                &log,
            )?,
        };
        process.await_listening(listen)?;
        let running = Running::alone((process, listen));
        Ok(Proxy { running, contender, addresses, file, admin, _successors: successors })
    }

    /// Applies the next configuration; weir offers a way to wait for that, so this waits for weir.
    fn reload(&mut self, stage: &Stage, nth: u32) -> io::Result<()> {
        let workers = workers(stage.cores(), nth);
        fs::write(
            &self.file,
            even_settings::text(stage, self.contender, self.addresses, workers, None)?,
        )?;
        match self.contender.what.program() {
            Some("nginx") => self.signal(Signal::HUP),
            Some("haproxy") => self.signal(Signal::USR2),
            _ => {
                let log = stage.scratch("reload.out");
                let words = ["upgrade", "--admin", &self.admin.to_string_lossy()];
                Process::start(stage.weir(), &words, &log)?.await_success()
            }
        }
    }

    /// Signals the first of its processes, which is the master.
    fn signal(&self, signal: Signal) -> io::Result<()> {
        let master =
            self.running.pids().first().and_then(|pid| Pid::from_raw(i32::try_from(*pid).ok()?));
        let master = master.ok_or_else(|| io::Error::other("it has no process"))?;
        kill_process(master, signal).map_err(io::Error::from)
    }
}

/// Programs that were started by one of ours and are not its children: those whose command line has
/// this file. Ends them on drop.
struct Successors {
    of: PathBuf,
}

impl Successors {
    fn pids(&self) -> Vec<Pid> {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| runs_with(*pid, &self.of)).filter_map(Pid::from_raw).collect()
    }
}

impl Drop for Successors {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let mut signal = Signal::TERM;
        loop {
            let left = self.pids();
            if left.is_empty() || signal == Signal::KILL {
                return;
            }
            signal = if Instant::now() > deadline { Signal::KILL } else { signal };
            for pid in left {
                // A process that has ended since needs no signal.
                let _ = kill_process(pid, signal);
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn runs_with(pid: i32, file: &Path) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == file.as_os_str().as_encoded_bytes())
}

/// What clients saw.
#[derive(Default)]
struct Seen {
    answered: u64,
    errors: Errors,
}

impl Seen {
    fn lost(&self) -> u64 {
        self.errors.values().sum()
    }

    fn count(&mut self, of: Result<(), &str>) {
        match of {
            Ok(()) => self.answered += 1,
            Err(kind) => *self.errors.entry(kind.to_owned()).or_default() += 1,
        }
    }
}

/// Threads that connect again and again.
struct Clients {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Seen>>,
}

impl Clients {
    fn start(to: SocketAddr) -> Clients {
        let ends = Arc::new(AtomicBool::new(false));
        let thread = |_| {
            let told = Arc::clone(&ends);
            std::thread::spawn(move || come(to, &told))
        };
        let threads = (0..THREADS).map(thread).collect();
        Clients { ends, threads }
    }

    /// Ends them and returns what they saw.
    fn end(mut self) -> io::Result<Seen> {
        self.ends.store(true, Ordering::Relaxed);
        let mut sum = Seen::default();
        for thread in self.threads.drain(..) {
            let seen = thread
                .join()
                .map_err(|_| io::Error::other("a thread that connects has panicked"))?;
            sum.answered += seen.answered;
            seen.errors
                .into_iter()
                .for_each(|(kind, count)| *sum.errors.entry(kind).or_default() += count);
        }
        Ok(sum)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// Opens a burst of connections, sends a request on each, and reads all responses, until `ends` is
/// set.
fn come(to: SocketAddr, ends: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !ends.load(Ordering::Relaxed) {
        let opened: Vec<_> =
            (0..BURST).map(|_| TcpStream::connect_timeout(&to, PATIENCE)).collect();
        let asked: Vec<_> = opened.into_iter().map(|opened| ask(opened, to)).collect();
        for asked in asked {
            seen.count(asked.and_then(answer));
        }
        std::thread::sleep(Duration::from_millis(PAUSE_MS));
    }
    seen
}

/// Requests one response, after which the connection ends.
fn ask(opened: io::Result<TcpStream>, to: SocketAddr) -> Result<TcpStream, &'static str> {
    let mut stream = opened.map_err(|_| "refused")?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|_| "reset")?;
    let request = format!("GET / HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(|_| "reset")?;
    Ok(stream)
}

/// Reads the whole response.
fn answer(mut stream: TcpStream) -> Result<(), &'static str> {
    let mut text = Vec::new();
    match stream.read_to_end(&mut text) {
        Ok(_) if text.starts_with(b"HTTP/1.1 200") && text.ends_with(b"ok\n") => Ok(()),
        Ok(0) => Err("closed"),
        Ok(_) if text.starts_with(b"HTTP/1.1 200") => Err("cut off"),
        Ok(_) => Err("status"),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err("late")
        }
        Err(_) => Err("reset"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_becomes_of_a_connection_has_a_name() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let meet = |says: Option<&[u8]>| {
            let asked = ask(TcpStream::connect(to), to);
            let mut server = listener.accept().unwrap().0;
            if let Some(says) = says {
                let mut bytes = [0; 4096];
                assert!(server.read(&mut bytes).unwrap() > 0);
                server.write_all(says).unwrap();
            }
            // With the request unread this is a reset.
            drop(server);
            asked.and_then(answer)
        };
        assert_eq!(meet(Some(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")), Ok(()));
        assert_eq!(meet(Some(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")), Err("cut off"));
        assert_eq!(meet(Some(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")), Err("status"));
        assert_eq!(meet(Some(b"")), Err("closed"));
        assert_eq!(meet(None), Err("reset"));
        drop(listener);
        assert_eq!(ask(TcpStream::connect(to), to).and_then(answer), Err("refused"));
        let mut seen = Seen::default();
        [Ok(()), Err("reset"), Err("reset")].into_iter().for_each(|of| seen.count(of));
        assert_eq!((seen.answered, seen.lost()), (1, 2));
    }

    #[test]
    fn a_successor_is_known_by_its_file_and_ended() {
        let file =
            std::env::temp_dir().join(format!("weir-lab-successor-{}.kdl", std::process::id()));
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read -r line", "sh"])
            .arg(&file)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        let successors = Successors { of: file };
        while successors.pids().is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let pid = Pid::from_child(&child);
        assert_eq!(successors.pids(), [pid], "it runs, and nothing else has this file");
        // The process that is ended here is our child, so that its number remains until it is
        // waited for; its command line does not.
        drop(successors);
        assert!(!child.wait().unwrap().success());
    }
}
