//! A TCP forwarder on one thread, and its cost: bytes a second and processor time for each
//! gigabyte. It compares a relay, a relay that only copies, and sending received buffers on as a
//! caller without relays would do.
//!
//!     cargo run --release -p weir-io --example relay -- compare
//!     cargo run --release -p weir-io --example relay -- \
//!         serve 127.0.0.1:7001 127.0.0.1:7002 uring relay
//!     cargo run --release -p weir-io --example relay -- \
//!         load 127.0.0.1:7001 127.0.0.1:7002 PID [BYTES [CONNECTIONS]]
//!
//! `compare` runs all ways after one another, each in a separate process. `load` measures any
//! forwarder from its address to the sink's, given the number of its process (HAProxy's, for
//! example). It uses one connection that is always full, or with BYTES one message after another of
//! that size on each of CONNECTIONS (1), each answered with a byte. The sink discards bytes inside
//! the kernel (MSG_TRUNC), so that the forwarder is what is measured.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_io::{
    Class, Completion, Driver, Epoll, Event, Options, Payload, Receive, Socket, Uring,
    bind_listener,
};

/// Windows of 200 ms that are measured. Other load on the machine makes a window more expensive,
/// never cheaper: so the best window is printed as well.
const WINDOWS: usize = 12;
/// Unsent bytes above which a source is not read: as in the engine.
const HIGH_BYTES: usize = 128 << 10;
const WAYS: [&str; 4] = ["relay", "copy", "events64", "events256"];
const USAGE: &str = "compare | serve LISTEN CONNECT uring|epoll relay|copy|events64|events256 | \
    load PROXY SINK PID [BYTES [CONNECTIONS]]";

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["compare"] => compare(),
        ["serve", listen, connect, "uring", way] => Uring::new(options(way)).and_then(|driver| {
            Forwarder::new(driver, address(listen)?, address(connect)?, way)
                .and_then(Forwarder::run)
        }),
        ["serve", listen, connect, "epoll", way] => Epoll::new(options(way)).and_then(|driver| {
            Forwarder::new(driver, address(listen)?, address(connect)?, way)
                .and_then(Forwarder::run)
        }),
        ["load", proxy, sink, process] => load(proxy, sink, process, None, 1),
        ["load", proxy, sink, process, bytes] => load(proxy, sink, process, bytes.parse().ok(), 1),
        ["load", proxy, sink, process, bytes, connections] => {
            load(proxy, sink, process, bytes.parse().ok(), connections.parse().unwrap_or(1))
        }
        _ => return Err(USAGE.to_owned()),
    };
    result.map_err(|error| error.to_string())
}

fn address(text: &str) -> io::Result<SocketAddr> {
    text.parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{text} is no address")))
}

fn options(way: &str) -> Options {
    let options = Options::default();
    match way {
        "copy" => Options { relay_pipes: 0, ..options },
        "events256" => Options { large_bytes: 256 << 10, ..options },
        _ => options,
    }
}

/// Each way with each driver, on separate ports.
fn compare() -> io::Result<()> {
    let program = std::env::current_exe()?;
    let mut port = 7100;
    for driver in ["uring", "epoll"] {
        for way in WAYS {
            let (proxy, sink) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1));
            port += 2;
            let child = Command::new(&program)
                .args(["serve", &proxy, &sink, driver, way])
                .stdin(Stdio::null())
                .spawn()?;
            let child = Ended(child);
            let process = child.0.id().to_string();
            println!("{driver} {way}");
            load(&proxy, &sink, &process, None, 1)?;
            for (bytes, connections) in
                [(100, 1), (100, 50), (4 << 10, 50), (16 << 10, 1), (64 << 10, 1), (256 << 10, 1)]
            {
                load(&proxy, &sink, &process, Some(bytes), connections)?;
            }
        }
    }
    Ok(())
}

/// A process that ends with its owner.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // An error means that it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// The load.

/// Measures a forwarder for a few seconds and prints a line.
fn load(
    proxy: &str,
    sink: &str,
    process: &str,
    message: Option<usize>,
    connections: usize,
) -> io::Result<()> {
    let listener = TcpListener::bind(sink)?;
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut pairs = Vec::new();
    for _ in 0..connections {
        let source = connect_patiently(proxy)?;
        let sink = listener.accept()?.0;
        source.set_nodelay(true)?;
        sink.set_nodelay(true)?;
        pairs.push((source, sink));
    }
    std::thread::scope(|scope| {
        for (source, sink) in &mut pairs {
            scope.spawn(|| absorb(sink, &received, message));
            scope.spawn(|| send_until(source, &stop, message));
        }
        std::thread::sleep(Duration::from_millis(300));
        let (mut rates, mut costs) = (Vec::new(), Vec::new());
        for _ in 0..WINDOWS {
            let (start, before, spent) =
                (Instant::now(), received.load(Ordering::Relaxed), spent(process)?);
            std::thread::sleep(Duration::from_millis(200));
            let bytes = (received.load(Ordering::Relaxed) - before).max(1) as f64;
            let cpu = self::spent(process)? - spent;
            rates.push(bytes / start.elapsed().as_secs_f64());
            costs.push(cpu / bytes);
        }
        stop.store(true, Ordering::Relaxed);
        rates.sort_by(f64::total_cmp);
        costs.sort_by(f64::total_cmp);
        let (rate, cost, least) = (rates[WINDOWS / 2], costs[WINDOWS / 2], costs[0]);
        match message {
            None => println!(
                "full      {:5.2} GB/s  {:.3} s/GB, at best {:.3}",
                rate / 1e9,
                cost * 1e9,
                least * 1e9
            ),
            Some(size) => {
                let bytes = size as f64;
                let (cost, least) = (cost * bytes * 1e6, least * bytes * 1e6);
                let rate = rate / bytes;
                println!(
                    "{size:7} B x {connections} {rate:6.0} messages/s  {cost:.1} us each, at best \
                        {least:.1}"
                );
            }
        }
        Ok(())
    })
}

/// The forwarder may be starting.
fn connect_patiently(proxy: &str) -> io::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(proxy) {
            Err(_) if start.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_millis(10))
            }
            result => return result,
        }
    }
}

fn send_until(source: &mut TcpStream, stop: &AtomicBool, message: Option<usize>) -> io::Result<()> {
    let bytes = vec![b'x'; message.unwrap_or(256 << 10)];
    while !stop.load(Ordering::Relaxed) {
        source.write_all(&bytes)?;
        if message.is_some() {
            source.read_exact(&mut [0])?;
        }
    }
    source.shutdown(std::net::Shutdown::Write)
}

/// Takes everything, answers whole messages, and counts.
fn absorb(sink: &mut TcpStream, received: &AtomicU64, message: Option<usize>) {
    let mut total = 0;
    loop {
        // SAFETY: with MSG_TRUNC a TCP socket writes nothing to the buffer (tcp(7)).
        let taken =
            unsafe { libc::recv(sink.as_raw_fd(), std::ptr::null_mut(), 1 << 20, libc::MSG_TRUNC) };
        if taken <= 0 {
            return;
        }
        total += taken as usize;
        received.fetch_add(taken as u64, Ordering::Relaxed);
        if message.is_some_and(|size| total % size == 0) && sink.write_all(b"!").is_err() {
            return;
        }
    }
}

/// Seconds of processor time that a process has used.
fn spent(process: &str) -> io::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/schedstat"))?;
    let all = std::fs::read_dir(format!("/proc/{process}/task"))?.count();
    // Of the first thread, in nanoseconds; a forwarder with more threads is counted in ticks.
    if all == 1 {
        return Ok(
            stat.split(' ').next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
        );
    }
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    Ok((ticks(11) + ticks(12)) / 100.0)
}

// The forwarder.

/// One direction of a connection that is forwarded without a relay.
#[derive(Default)]
struct Direction {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    sending: bool,
    ended: bool,
}

/// Connections by either of their sockets: the opposite socket, and the direction that leads to a
/// socket.
struct Forwarder<D> {
    driver: D,
    connect: SocketAddr,
    relay: bool,
    peers: HashMap<Socket, Socket>,
    to: HashMap<Socket, Direction>,
}

impl<D: Driver> Forwarder<D> {
    fn new(
        mut driver: D,
        listen: SocketAddr,
        connect: SocketAddr,
        way: &str,
    ) -> io::Result<Forwarder<D>> {
        driver.listen(bind_listener(listen, 128)?, 0)?;
        let relay = matches!(way, "relay" | "copy");
        Ok(Forwarder { driver, connect, relay, peers: HashMap::new(), to: HashMap::new() })
    }

    fn run(mut self) -> io::Result<()> {
        let mut completions = Vec::new();
        loop {
            self.driver.turn(None, &mut completions)?;
            for completion in completions.drain(..) {
                self.on_completion(completion)?;
            }
        }
    }

    fn on_completion(&mut self, completion: Completion) -> io::Result<()> {
        let socket = completion.socket;
        match completion.event {
            Event::Accepted { socket, .. } => {
                let other = self.driver.connect(self.connect, 1)?;
                self.peers.extend([(socket, other), (other, socket)]);
            }
            Event::Connected(Ok(())) => self.begin(socket),
            Event::Received(buffer) => {
                let bytes = buffer.into_bytes();
                self.pass_on(socket, |to| {
                    to.bytes += bytes.len();
                    to.waiting.push_back(bytes);
                });
            }
            Event::Ended => self.pass_on(socket, |to| to.ended = true),
            Event::Sent { result: Ok(()), .. } => {
                let Some(&other) = self.peers.get(&socket) else { return Ok(()) };
                self.pass_on(other, |to| to.sending = false);
            }
            Event::Connected(Err(_))
            | Event::Sent { .. }
            | Event::ReceiveFailed(_)
            | Event::RelayEnded { .. } => {
                self.close(socket);
            }
            Event::AcceptFailed(error) => return Err(error),
            Event::Released(_) | Event::Woken => {}
        }
        Ok(())
    }

    fn begin(&mut self, socket: Socket) {
        let Some(&other) = self.peers.get(&socket) else { return };
        if self.relay {
            return self.driver.relay(other, socket);
        }
        for socket in [socket, other] {
            self.to.insert(socket, Direction::default());
            self.driver.receive(socket, Receive::Once(Class::Large));
        }
    }

    /// Changes the direction from a socket to its peer, and takes the resulting actions.
    fn pass_on(&mut self, from: Socket, change: impl FnOnce(&mut Direction)) {
        let Some(&other) = self.peers.get(&from) else { return };
        let Some(to) = self.to.get_mut(&other) else { return };
        change(to);
        if !to.sending && !to.waiting.is_empty() {
            to.sending = true;
            to.bytes = 0;
            self.driver.send(other, Payload::Vectored(to.waiting.drain(..).collect()));
        }
        if to.ended && !to.sending {
            self.driver.shutdown_write(other);
            if self.to.get(&from).is_some_and(|back| back.ended && !back.sending) {
                self.close(from);
            }
        } else if !to.ended && to.bytes < HIGH_BYTES {
            self.driver.receive(from, Receive::Once(Class::Large));
        }
    }

    fn close(&mut self, socket: Socket) {
        if let Some(other) = self.peers.remove(&socket) {
            for socket in [socket, other] {
                self.peers.remove(&socket);
                self.to.remove(&socket);
                self.driver.close(socket);
            }
        }
    }
}
