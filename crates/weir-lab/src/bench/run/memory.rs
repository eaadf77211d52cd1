//! Loads that answer "how much memory": idle keep-alive connections, and clients that read slowly.
//!
//! Called by `rounds.rs`, and by `tunnel.rs` for idle tunnels. The harness holds the client side itself, so the proxy has its
//! process limit of descriptors to itself. Bounds: the numbers of connections and the seconds given.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustls::ClientConnection;

use super::load::{check_interrupt, pause};
use super::process::{pss_bytes, resident_bytes};
use super::stage::Running;
use crate::bench::experiment::tls::{GROUP, SUITE};
use crate::bench::record::answers::Errors;
use crate::bench::record::outcome::Record;
use crate::tls::{Caller, Client, Trust, Version, Wishes};

/// Connections that warm the proxy up before its memory is read for the first time.
const WARM_UP: u32 = 200;
/// How long a proxy gets to come to rest before its memory is read.
const REST: Duration = Duration::from_millis(500);
/// A slow client reads this much at a time, this often: 160 KB/s.
const SLOW_READ_BYTES: usize = 16 * 1024;
const SLOW_READ_EVERY: Duration = Duration::from_millis(100);

/// Opens `connections`, does one request on each, and reads the memory while they are idle.
///
/// # Errors
/// A connection fails, or the user interrupts.
pub(super) fn idle(running: &Running, connections: u32) -> io::Result<Record> {
    growth(running, connections, |count| hold(running, count))
}

/// Reads the memory before and after `count` connections or tunnels are opened and left idle. `hold` opens so many.
///
/// # Errors
/// As those of `hold`, or the user interrupts.
pub(super) fn growth(
    running: &Running,
    count: u32,
    hold: impl Fn(u32) -> io::Result<Vec<TcpStream>>,
) -> io::Result<Record> {
    let pids = running.pids();
    drop(hold(WARM_UP)?);
    pause(REST)?;
    let before = pss_bytes(&pids);
    let held = hold(count)?;
    pause(REST)?;
    let after = pss_bytes(&pids);
    let gone = held.iter().filter(|stream| !is_open(stream)).count() as u64;
    Ok(Record {
        requests: u64::from(count),
        pss_bytes: after,
        memory_bytes: after as f64 - before as f64,
        bytes_per_connection: (after as f64 - before as f64) / f64::from(count),
        errors: error_of("lost", gone),
        ..Record::default()
    })
}

/// Errors of one kind, if there are some.
pub(super) fn error_of(kind: &str, count: u64) -> Errors {
    (count > 0).then(|| (kind.to_owned(), count)).into_iter().collect()
}

/// That many connections, each with one request answered.
fn hold(running: &Running, connections: u32) -> io::Result<Vec<TcpStream>> {
    let address = running.address();
    let caller = running.secure.map(|_| caller(address)).transpose()?;
    let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut held = Vec::new();
    let mut reply = [0; 4096];
    for _ in 0..connections {
        check_interrupt()?;
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        // Of TLS only the server's end is measured: ours is forgotten when it has been asked once.
        let mut sealed = caller.as_ref().map(Caller::connection).transpose()?;
        let mut stream = Held { stream, sealed: sealed.as_mut() };
        stream.write_all(request.as_bytes())?;
        let mut length = 0;
        while !reply[..length].ends_with(b"\r\n\r\nok\n") {
            match stream.read(&mut reply[length..])? {
                0 => return Err(io::Error::other("a connection ended before its reply was complete")),
                read => length += read,
            }
        }
        held.push(stream.stream);
    }
    Ok(held)
}

/// How the harness speaks TLS.
fn caller(address: SocketAddr) -> io::Result<Caller> {
    let wishes = Wishes {
        trust: Trust::Anybody,
        version: Some(Version::Tls13),
        suite: Some(SUITE.to_owned()),
        group: Some(GROUP.to_owned()),
        resume: false,
        http2: false,
    };
    let caller = Client::new(&wishes).and_then(|client| Caller::new(&client, &address.ip().to_string()));
    caller.map_err(io::Error::other)
}

/// A connection while it is used.
struct Held<'a> {
    stream: TcpStream,
    sealed: Option<&'a mut ClientConnection>,
}

impl Held<'_> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.sealed {
            None => self.stream.write_all(bytes),
            Some(sealed) => rustls::Stream::new(*sealed, &mut self.stream).write_all(bytes),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.sealed {
            None => self.stream.read(into),
            Some(sealed) => rustls::Stream::new(*sealed, &mut self.stream).read(into),
        }
    }
}

/// Whether the proxy has neither closed the connection nor sent anything unasked.
fn is_open(stream: &TcpStream) -> bool {
    let silent = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    matches!(silent, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// That many clients ask for a large reply each and read it slowly; the highest resident memory above idle is recorded.
///
/// # Errors
/// A connection fails, or the user interrupts.
pub(super) fn slow(running: &Running, clients: u32, target: &str, seconds: f64) -> io::Result<Record> {
    let pids = running.pids();
    drop(hold(running, WARM_UP)?);
    pause(REST)?;
    let before = resident_bytes(&pids);
    let request = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", running.address());
    let mut streams = Vec::new();
    for _ in 0..clients {
        let mut stream = TcpStream::connect(running.address())?;
        stream.write_all(request.as_bytes())?;
        stream.set_nonblocking(true)?;
        streams.push(stream);
    }
    let (mut highest, mut bytes, mut ended) = (before, 0, 0);
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    let mut buffer = vec![0; SLOW_READ_BYTES];
    while Instant::now() < deadline {
        streams.retain_mut(|stream| match stream.read(&mut buffer) {
            Ok(0) => {
                ended += 1;
                false
            }
            Ok(read) => {
                bytes += read as u64;
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(_) => {
                ended += 1;
                false
            }
        });
        highest = highest.max(resident_bytes(&pids));
        pause(SLOW_READ_EVERY)?;
    }
    Ok(Record {
        requests: u64::from(clients),
        bytes,
        rate: bytes as f64 / seconds,
        pss_bytes: pss_bytes(&pids),
        memory_bytes: highest as f64 - before as f64,
        errors: error_of("lost", ended),
        ..Record::default()
    })
}
