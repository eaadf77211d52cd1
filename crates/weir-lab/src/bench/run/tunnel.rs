//! Loads through tunnels: one that is always full, and thousands that are idle.
//!
//! Called by `rounds.rs` for each run. The harness holds both ends of a tunnel, so that a forward
//! proxy, which takes CONNECT, and one that forwards whatever arrives can be compared. The ends
//! cost as little as possible: the sender hands over pages of a file (sendfile), the receiver
//! discards the bytes inside the kernel (MSG_TRUNC). Bounds: the seconds or the number of tunnels
//! given, [`PATIENCE`] for each wait.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};

use super::load::{Readings, check_interrupt, pause};
use super::memory::{self, error_of};
use super::ports::free_address;
use super::process;
use super::settings;
use super::stage::{Running, Stage};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::tunnel::{Tunnels, Way};
use crate::bench::record::outcome::Record;

/// How long a tunnel may take to open, and either end of a full one may wait for the other.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a full tunnel runs before anything counts.
const WARM_UP: Duration = Duration::from_millis(500);
/// Length of the file whose pages are sent over and over, bytes: more than caches of processors
/// hold.
const FILE_BYTES: u64 = 256 << 20;
/// Bytes that either end moves in one call.
const PIECE_BYTES: usize = 1 << 20;
/// The first bytes through each tunnel: they show that it works, and which connection belongs to
/// it.
const HELLO: &[u8] = b"hello tunnel\n";

/// Does one run, of this many seconds for a full tunnel.
///
/// # Errors
/// Something can't be started, a tunnel doesn't open, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    tunnels: Tunnels,
    seconds: u32,
) -> io::Result<(Running, Record)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let running = start_proxy(stage, contender, listener.local_addr()?)?;
    let record = match tunnels {
        Tunnels::Full(way) => full(stage, &running, &listener, way, seconds)?,
        Tunnels::Idle(count) => {
            memory::growth(&running, count, |count| hold(&running, &listener, count))?
        }
    };
    Ok((running, record))
}

fn start_proxy(stage: &Stage, contender: Contender, to: SocketAddr) -> io::Result<Running> {
    let (listen, cores) = (free_address()?, stage.cores());
    let text = match contender.what {
        What::Direct => return Ok(Running::direct(to)),
        What::HaproxyTcp(pipes) => {
            settings::haproxy_tcp(listen, to, cores, stage.descriptors(), pipes)
        }
        What::WeirForward { pool, io } => settings::weir_forward(listen, to, cores, (pool, io)),
        _ => return Err(io::Error::other(format!("{} makes no tunnels", contender.name))),
    };
    let mut running = stage.start_with(contender, listen, &text)?;
    running.destination = contender.what.is_forward().then_some(to);
    Ok(running)
}

/// A tunnel: its end at the client and that at the server, of which the latter has received
/// [`HELLO`].
fn open(running: &Running, listener: &TcpListener) -> io::Result<[TcpStream; 2]> {
    let mut near = patient(TcpStream::connect(running.address())?)?;
    if let Some(destination) = running.destination {
        ask(&mut near, destination)?;
    }
    near.write_all(HELLO)?;
    loop {
        let mut far = patient(accept(listener)?)?;
        let mut hello = [0; HELLO.len()];
        // A proxy in TCP mode also connects for a client that only checked whether it listens.
        if far.read_exact(&mut hello).is_ok() && hello == *HELLO {
            return Ok([near, far]);
        }
    }
}

fn patient(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream, destination: SocketAddr) -> io::Result<()> {
    write!(stream, "CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\n\r\n")?;
    let (mut head, mut length) = ([0; 4096], 0);
    while !head[..length].ends_with(b"\r\n\r\n") {
        match stream.read(&mut head[length..])? {
            0 => return Err(io::Error::other("the proxy did not respond to CONNECT")),
            read => length += read,
        }
    }
    if head.starts_with(b"HTTP/1.1 200 ") {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the proxy opens no tunnel: {}",
        String::from_utf8_lossy(&head[..length])
    )))
}

fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&patience))? {
        0 => Err(io::Error::other("the proxy doesn't connect to the server")),
        _ => Ok(listener.accept()?.0),
    }
}

/// Opens this many tunnels and returns both ends of each.
fn hold(running: &Running, listener: &TcpListener, count: u32) -> io::Result<Vec<TcpStream>> {
    let mut held = Vec::new();
    for _ in 0..count {
        check_interrupt()?;
        held.extend(open(running, listener)?);
    }
    Ok(held)
}

fn full(
    stage: &Stage,
    running: &Running,
    listener: &TcpListener,
    way: Way,
    seconds: u32,
) -> io::Result<Record> {
    let path = stage.scratch("tunnel-file");
    // Without blocks: its zeros come from the page cache and take no disk.
    File::create(&path)?.set_len(FILE_BYTES)?;
    let [near, far] = open(running, listener)?;
    let (from, to) = if way == Way::Down { (far, near) } else { (near, far) };
    let flow = Flow::start(from, to, File::open(&path)?);
    pause(WARM_UP)?;
    let (before, own_us, bytes) = (Readings::take(stage, running), own_cpu_us(), flow.received());
    pause(Duration::from_secs(u64::from(seconds)))?;
    let (received, generator_us) = (flow.received() - bytes, own_cpu_us().saturating_sub(own_us));
    let mut record = before.finish();
    record.bytes = received;
    record.rate = received as f64 / (record.wall_us / 1e6);
    record.generator_us = generator_us as f64;
    if let Err(error) = flow.end() {
        record.errors = error_of(&error.kind().to_string(), 1);
    }
    Ok(record)
}

/// Returns the processor time of the tunnels' ends.
fn own_cpu_us() -> u64 {
    process::cpu_us(&[std::process::id()])
}

/// Both ends of a full tunnel at work, a thread each.
struct Flow {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    sender: JoinHandle<io::Result<u64>>,
    receiver: JoinHandle<io::Result<()>>,
}

impl Flow {
    fn start(from: TcpStream, to: TcpStream, file: File) -> Flow {
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counter) = (Arc::clone(&stop), Arc::clone(&received));
        Flow {
            stop,
            received,
            sender: std::thread::spawn(move || send(&from, &file, &stopped)),
            receiver: std::thread::spawn(move || discard(&to, &counter)),
        }
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Sends no more, and waits until everything has come.
    ///
    /// # Errors
    /// Either end failed, or less arrived than was sent.
    fn end(self) -> io::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = |_| io::Error::other("an end of the tunnel panicked");
        let sent = self.sender.join().map_err(ended)??;
        self.receiver.join().map_err(ended)??;
        if self.received.load(Ordering::Relaxed) == sent {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// Sends pages of the file over and over. Returns the number of bytes.
fn send(to: &TcpStream, file: &File, stop: &AtomicBool) -> io::Result<u64> {
    let mut bytes = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut offset = bytes % FILE_BYTES;
        bytes += rustix::fs::sendfile(to, file, Some(&mut offset), PIECE_BYTES)? as u64;
    }
    to.shutdown(std::net::Shutdown::Write)?;
    Ok(bytes)
}

/// Receives until the end without looking at anything.
fn discard(from: &TcpStream, received: &AtomicU64) -> io::Result<()> {
    let mut never_written = vec![0_u8; PIECE_BYTES];
    loop {
        match recv(from.as_fd(), &mut never_written[..], RecvFlags::TRUNC)?.1 {
            0 => return Ok(()),
            bytes => received.fetch_add(bytes as u64, Ordering::Relaxed),
        };
    }
}
