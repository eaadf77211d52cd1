//! Loads that answer "how much memory": idle keep-alive connections, and clients that read slowly.
//!
//! Called by `rounds.rs`, and by `tunnel.rs` for idle tunnels. The harness holds the client side
//! itself, so the proxy has its process limit of descriptors to itself. Bounds: the numbers of
//! connections and the seconds given.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use weir_http::h2;

use super::load::{check_interrupt, pause};
use super::process::{own_bytes, pss_bytes, resident_bytes};
use super::stage::Running;
use crate::bench::experiment::tls::{GROUP, SUITE};
use crate::bench::record::answers::Errors;
use crate::bench::record::outcome::Record;
use crate::tls::{Caller, Client, Trust, Version, Wishes};

/// Connections that warm the proxy up before its memory is read for the first time.
const WARM_UP: u32 = 200;
/// How long a proxy gets to settle before its memory is read.
const REST: Duration = Duration::from_millis(500);
/// A slow client reads this much at a time, this often: 160 KB/s.
const SLOW_READ_BYTES: usize = 16 * 1024;
const SLOW_READ_EVERY: Duration = Duration::from_millis(100);
/// Fields that fill a header table: each takes its name, its value and 32 bytes (RFC 7541 §4.1).
const FILLING_FIELDS: usize = 32;
const FILLING_VALUE_BYTES: usize = 86;
const _: () = assert!(FILLING_FIELDS * (10 + FILLING_VALUE_BYTES + 32) == 4096);

/// Opens `connections`, does one request on each, and reads the memory while they are idle.
///
/// # Errors
/// A connection fails, or the user interrupts.
pub(super) fn idle(running: &Running, connections: u32) -> io::Result<Record> {
    growth(running, connections, |count| hold(running, count))
}

/// Reads the memory before and after `count` connections or tunnels are opened and left idle.
/// `hold` opens that many.
///
/// # Errors
/// As those of `hold`, or the user interrupts.
pub(super) fn growth(
    running: &Running,
    count: u32,
    hold: impl Fn(u32) -> io::Result<Vec<TcpStream>>,
) -> io::Result<Record> {
    drop(hold(WARM_UP)?);
    pause(REST)?;
    // Not earlier: nginx listens before it has its workers.
    let pids = running.pids();
    let before = own_bytes(&pids);
    let held = hold(count)?;
    pause(REST)?;
    let grown = own_bytes(&pids) as f64 - before as f64;
    let gone = held.iter().filter(|stream| !is_open(stream)).count() as u64;
    Ok(Record {
        requests: u64::from(count),
        pss_bytes: pss_bytes(&pids),
        memory_bytes: grown,
        bytes_per_connection: grown / f64::from(count),
        errors: error_of("lost", gone),
        ..Record::default()
    })
}

/// Errors of one kind, if there are some.
pub(super) fn error_of(kind: &str, count: u64) -> Errors {
    (count > 0).then(|| (kind.to_owned(), count)).into_iter().collect()
}

/// Opens that many connections, each with one request and its response.
fn hold(running: &Running, connections: u32) -> io::Result<Vec<TcpStream>> {
    let address = running.address();
    let is_http2 = running.streams.is_some();
    let caller = running.secure.map(|_| caller(address, is_http2)).transpose()?;
    let mut held = Vec::new();
    for _ in 0..connections {
        check_interrupt()?;
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        // For TLS, only the server's end is measured: ours is dropped after one request.
        let mut sealed = caller.as_ref().map(Caller::connection).transpose()?;
        let mut stream = Held { stream, sealed: sealed.as_mut() };
        if is_http2 {
            ask_by_http2(&mut stream, address)?;
        } else {
            ask(&mut stream, address)?;
        }
        held.push(stream.stream);
    }
    Ok(held)
}

/// Returns the error for a connection that ends too early.
fn ended() -> io::Error {
    io::Error::other("a connection ended before its reply was complete")
}

/// Sends a request and reads the response.
fn ask(stream: &mut Held<'_>, address: SocketAddr) -> io::Result<()> {
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let (mut reply, mut length) = ([0; 4096], 0);
    while !reply[..length].ends_with(b"\r\n\r\nok\n") {
        match stream.read(&mut reply[length..])? {
            0 => return Err(ended()),
            read => length += read,
        }
    }
    Ok(())
}

/// The same by HTTP/2, from a client that makes the proxy store as many fields as allowed, as
/// browsers do in time.
fn ask_by_http2(stream: &mut Held<'_>, address: SocketAddr) -> io::Result<()> {
    let mut client = h2::client::Client::new(h2::client::Windows::OPEN);
    let block = filling_block(&address.to_string());
    client.open(&h2::client::Request { block: &block, content: &Arc::from([]), is_head: false });
    let (mut reply, mut is_answered) = ([0; 4096], false);
    while !is_answered || client.wants_write() {
        let out = client.take_out();
        stream.write_all(&out)?;
        if is_answered {
            continue;
        }
        let length = stream.read(&mut reply)?;
        let mut at = 0;
        while let Some(event) = client.read(&reply[..length], &mut at).map_err(io::Error::other)? {
            is_answered |= matches!(event, h2::client::Event::Data { end: true, .. });
        }
        if length == 0 || !is_answered && client.open_streams() == 0 {
            return Err(ended());
        }
    }
    Ok(())
}

/// Returns a request for `/` with enough indexed fields (RFC 7541 §6.2.1) to fill a header table of
/// 4,096 bytes.
fn filling_block(authority: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in
        [(":method", "GET"), (":scheme", "https"), (":authority", authority), (":path", "/")]
    {
        h2::hpack::encode::put_known(&mut block, name.as_bytes(), value.as_bytes());
    }
    for nth in 0..FILLING_FIELDS {
        let (name, value) = (format!("x-field-{nth:02}"), "v".repeat(FILLING_VALUE_BYTES));
        block.extend(
            [&[0x40, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()]
                .concat(),
        );
    }
    block
}

/// Returns the TLS client of the harness.
fn caller(address: SocketAddr, http2: bool) -> io::Result<Caller> {
    let wishes = Wishes {
        trust: Trust::Anybody,
        version: Some(Version::Tls13),
        suite: Some(SUITE.to_owned()),
        group: Some(GROUP.to_owned()),
        resume: false,
        http2,
    };
    let caller =
        Client::new(&wishes).and_then(|client| Caller::new(&client, &address.ip().to_string()));
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

/// Lets that many clients request a large response each and read it slowly; the highest resident
/// memory above idle is recorded.
///
/// # Errors
/// A connection fails, or the user interrupts.
pub(super) fn slow(
    running: &Running,
    clients: u32,
    target: &str,
    seconds: f64,
) -> io::Result<Record> {
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
