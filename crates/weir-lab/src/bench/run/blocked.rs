//! The probe of the experiment `keepalive` against a server of many workers that sleep where others
//! would compute, so that they don't need the machine for it.
//!
//! Called by `keepalive.rs`. Each worker has its own connection on which bursts come at random
//! times, straight to the server: workers are busy for equal shares of the time, whatever the proxy
//! does. Before the probe, clients send requests through the proxy, so that it keeps connections as
//! it would in use. With `pool "fresh"`, the probe waits until weir's status says that requests
//! have separate connections. Bounds: [`PATIENCE`], [`WORKERS`] threads for bursts and [`CLIENTS`]
//! for clients.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::bans::ask as ask_weir;
use super::load::pause;
use super::ports::free_address;
use super::process::Process;
use super::settings;
use super::stage::{Running, Stage, start_origin};
use crate::bench::experiment::contenders::{Contender, WEIR, What};
use crate::bench::experiment::keepalive::{BLOCK_MS, Blocked, WORKERS_BLOCKED as WORKERS};
use crate::random::Random;

/// Clients that send requests through the proxy before the probe.
const CLIENTS: usize = 16;
/// How long they do so at least.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long it may take until requests have separate connections.
const PATIENCE: Duration = Duration::from_secs(90);
/// Between two looks, and two requests of such a client.
const LOOK: Duration = Duration::from_millis(200);
const CLIENT_PAUSE: Duration = Duration::from_millis(2);
/// How long a worker is kept from accepting a second connection of the bursts.
const OCCUPY_MS: u64 = 2_000;
/// How long it may take until the worker has read the request that occupies it.
const READ_MAX: Duration = Duration::from_millis(60);
/// Longest wait for bytes before the next check whether all is over.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// How a good response begins.
const GOOD: &[u8] = b"HTTP/1.1 200";
/// How long such a client waits for a response.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A server with busy workers, and the proxy in front of it, if any.
pub(super) struct Scene {
    pub(super) running: Running,
    /// Where the server listens, for a probe without a proxy.
    pub(super) at: Place,
    bursts: Bursts,
    /// The admin socket of weir, if requests are to have separate connections.
    admin: Option<PathBuf>,
    _server: Process,
}

/// Where the server listens.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Place {
    /// Returns the address as the configuration of a program has it.
    fn text(&self, what: What) -> String {
        match (self, what) {
            (Place::Tcp(address), _) => address.to_string(),
            (Place::Unix(path), What::Haproxy) => format!("unix@{}", path.display()),
            (Place::Unix(path), _) => format!("unix:{}", path.display()),
        }
    }
}

impl Scene {
    /// Starts all of it and returns when it is ready for the probe.
    ///
    /// # Errors
    /// Something doesn't start, or requests get no separate connections although the proxy is
    /// configured for that.
    pub(super) fn start(
        stage: &Stage,
        contender: Contender,
        blocked: Blocked,
    ) -> io::Result<Scene> {
        let (address, path) = (free_address()?, stage.scratch("origin.sock"));
        let unix = path.to_string_lossy().into_owned();
        let words = ["--accept", "shared", "--unix", &unix];
        let mut server =
            start_origin(stage.weir(), address, WORKERS, &words, &stage.scratch("blocked.log"))?;
        server.await_listening(address)?;
        let at = if blocked.unix { Place::Unix(path) } else { Place::Tcp(address) };
        let is_fresh = matches!(contender.what, What::Weir(settings) if settings.pool == "fresh");
        let admin = is_fresh.then(|| stage.scratch("fresh.sock"));
        let running = match contender.what {
            What::Direct => Running::direct(address),
            what => {
                let listen = free_address()?;
                let text = proxy_text(stage, what, listen, &at.text(what));
                stage.start_looked_at(contender, listen, &text, admin.as_deref())?
            }
        };
        let bursts = Bursts::start(&at, f64::from(blocked.busy_percent) / 100.0)?;
        let scene = Scene { running, at, bursts, admin, _server: server };
        scene.warm_up(contender.what == What::Direct)?;
        Ok(scene)
    }

    /// Lets clients send requests until the proxy has connections, and connects as it is configured
    /// to.
    fn warm_up(&self, is_direct: bool) -> io::Result<()> {
        if is_direct {
            return pause(WARM_UP);
        }
        let clients = Clients::start(self.running.address())?;
        let (begin, deadline) = (Instant::now(), Instant::now() + PATIENCE);
        while begin.elapsed() < WARM_UP || !self.is_in_force()? {
            if Instant::now() > deadline {
                return Err(io::Error::other(
                    "weir does not go over to connections for each request",
                ));
            }
            pause(LOOK)?;
        }
        clients.end()
    }

    /// Whether requests have separate connections on all workers of weir, where they are to have
    /// them.
    fn is_in_force(&self) -> io::Result<bool> {
        let Some(admin) = &self.admin else { return Ok(true) };
        let fresh = fresh_of(admin)?;
        Ok(fresh["in_force"].as_u64() == fresh["workers"].as_u64() && fresh["in_force"].is_u64())
    }

    /// Ends the load. Returns the load of the server's workers, and whether the proxy still
    /// connects as configured on some worker.
    pub(super) fn end(self, wall_us: f64) -> io::Result<(Running, Seen)> {
        let fresh = self.admin.as_deref().map(fresh_of).transpose()?;
        let is_in_force = fresh.map(|fresh| fresh["in_force"].as_u64() > Some(0));
        let answered = self.bursts.end()?;
        let mut busy: Vec<f64> = answered
            .iter()
            .map(|bursts| *bursts as f64 * BLOCK_MS as f64 * 1e3 / wall_us)
            .collect();
        busy.sort_by(f64::total_cmp);
        Ok((self.running, Seen { busy, load: (answered.iter().sum(), 0), is_in_force }))
    }

    /// Bursts are counted from here on.
    pub(super) fn begin(&self) {
        self.bursts.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// Results besides the probe's.
pub(super) struct Seen {
    /// Shares of the time that each worker was busy, the least busy first.
    pub(super) busy: Vec<f64>,
    /// Requests of the load with a response, and without one.
    pub(super) load: (u64, u64),
    /// Whether requests had separate connections, where they were to have them.
    pub(super) is_in_force: Option<bool>,
}

/// Returns the configuration of a proxy in front of a server that it addresses as `to`.
pub(super) fn proxy_text(stage: &Stage, what: What, listen: SocketAddr, to: &str) -> String {
    let cores = stage.cores();
    match what {
        What::Nginx => settings::nginx_proxy(
            stage.directory(),
            listen,
            &[to],
            (cores as u64, stage.descriptors()),
        ),
        What::Haproxy => {
            let shape = settings::Shape { processes: 1, threads: cores };
            settings::haproxy(listen, &[to], shape, stage.descriptors())
        }
        What::Weir(weir) => settings::weir(listen, to, cores, weir),
        _ => settings::weir(listen, to, cores, WEIR),
    }
}

/// Returns what weir's status says of kept connections and others.
fn fresh_of(admin: &Path) -> io::Result<serde_json::Value> {
    let status = ask_weir(admin, "GET", "/v1/status")?;
    Ok(status["upstreams"][0]["servers"][0]["fresh"].clone())
}

/// A connection to the server, with a time-out for reading.
trait Line: Read + Write + Send {
    fn wait_at_most(&self, time: Duration) -> io::Result<()>;
}

impl Line for TcpStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

impl Line for UnixStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

/// What keeps workers busy: a thread for each.
struct Bursts {
    stop: Arc<AtomicBool>,
    /// Responses of each worker.
    counts: Arc<Vec<AtomicU64>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Bursts {
    /// Each worker gets a connection, because the others are asleep when it is made; then each is
    /// kept busy for this share of the time.
    fn start(at: &Place, share: f64) -> io::Result<Bursts> {
        let mut lines: Vec<Box<dyn Line>> = Vec::new();
        for _ in 0..WORKERS {
            let mut line: Box<dyn Line> = match at {
                Place::Tcp(address) => {
                    let stream = TcpStream::connect(address)?;
                    stream.set_nodelay(true)?;
                    Box::new(stream)
                }
                Place::Unix(path) => Box::new(UnixStream::connect(path)?),
            };
            write!(line, "GET /?block={OCCUPY_MS} HTTP/1.1\r\nHost: a\r\n\r\n")?;
            // Otherwise the worker might accept the next one before it reads this request.
            pause(READ_MAX)?;
            lines.push(line);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let counts: Arc<Vec<AtomicU64>> =
            Arc::new((0..WORKERS).map(|_| AtomicU64::new(0)).collect());
        let mean = Duration::from_millis(BLOCK_MS).div_f64(share);
        let threads = lines.into_iter().enumerate().map(|(worker, line)| {
            let (stop, counts) = (Arc::clone(&stop), Arc::clone(&counts));
            std::thread::spawn(move || burst(line, mean, worker as u64, &stop, &counts[worker]))
        });
        let threads = threads.collect();
        Ok(Bursts { stop, counts, threads })
    }

    /// Ends them. Returns how many requests each worker has answered.
    fn end(self) -> io::Result<Vec<u64>> {
        let answered = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| io::Error::other("a thread of the load panicked"))??;
        }
        Ok(answered)
    }
}

/// Sends bursts at random times (Poisson); a burst that is due while another is under way queues
/// behind it.
fn burst(
    mut line: Box<dyn Line>,
    mean: Duration,
    seed: u64,
    stop: &AtomicBool,
    answered: &AtomicU64,
) -> io::Result<()> {
    let request = format!("GET /?block={BLOCK_MS} HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut random = Random::new(seed + 1);
    let mut due = Instant::now() + mean.mul_f64(random.exponential());
    let (mut buffer, mut tail) = ([0; 4096], Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if due <= now {
            line.write_all(request.as_bytes())?;
            due += mean.mul_f64(random.exponential());
            continue;
        }
        line.wait_at_most((due - now).min(WAIT_MAX).max(Duration::from_micros(50)))?;
        match line.read(&mut buffer) {
            Ok(0) => return Err(io::Error::other("the server ended a connection of the load")),
            Ok(length) => {
                tail.extend_from_slice(&buffer[..length]);
                answered.fetch_add(take_answers(&mut tail), Ordering::Relaxed);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes complete responses of three bytes and returns their number. An incomplete one stays in
/// the buffer.
fn take_answers(bytes: &mut Vec<u8>) -> u64 {
    const END: &[u8] = b"\r\n\r\nok\n";
    let mut count = 0;
    while let Some(at) = memchr::memmem::find(bytes, END) {
        bytes.drain(..at + END.len());
        count += 1;
    }
    count
}

/// Clients that send one request after the other through the proxy.
struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Clients {
    fn start(to: SocketAddr) -> io::Result<Clients> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..CLIENTS {
            let (stream, stop) = (TcpStream::connect(to)?, Arc::clone(&stop));
            stream.set_read_timeout(Some(ANSWER_MAX))?;
            threads.push(std::thread::spawn(move || ask(stream, &stop)));
        }
        Ok(Clients { stop, threads })
    }

    fn end(self) -> io::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| io::Error::other("a client panicked"))??;
        }
        Ok(())
    }
}

fn ask(mut stream: TcpStream, stop: &AtomicBool) -> io::Result<()> {
    let (mut buffer, mut bytes) = ([0; 4096], Vec::new());
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        while take_answers(&mut bytes) == 0 {
            match stream.read(&mut buffer)? {
                0 => return Err(io::Error::other("the proxy ended a connection of a client")),
                length => bytes.extend_from_slice(&buffer[..length]),
            }
            if bytes.len() >= GOOD.len() && !bytes.starts_with(GOOD) {
                let start = String::from_utf8_lossy(&bytes[..GOOD.len()]).into_owned();
                return Err(io::Error::other(format!("the proxy responds {start}")));
            }
        }
        std::thread::sleep(CLIENT_PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_however_they_come() {
        let one = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n";
        let all = one.repeat(3);
        for cut in 0..all.len() {
            let mut bytes = all[..cut].to_vec();
            let before = take_answers(&mut bytes);
            bytes.extend_from_slice(&all[cut..]);
            assert_eq!((before + take_answers(&mut bytes), bytes.len()), (3, 0), "{cut}");
        }
    }

    #[test]
    fn places_are_written_as_each_program_wants_them() {
        let unix = Place::Unix("/tmp/a".into());
        assert_eq!(unix.text(What::Haproxy), "unix@/tmp/a");
        assert_eq!(unix.text(What::Nginx), "unix:/tmp/a");
        assert_eq!(Place::Tcp("127.0.0.1:80".parse().unwrap()).text(What::Haproxy), "127.0.0.1:80");
    }
}
