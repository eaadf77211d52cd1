//! One request and its response on a blocking socket, with the time of each phase.
//!
//! Called by `mod.rs`, one after the other on one thread: only the kernel is between the clock and
//! the server. Bounds: the time-out for the whole exchange, [`HEAD_BYTES_MAX`] of a head; bodies
//! are read and discarded. RFC 9112 §6, §9.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};
use rustls::ClientConnection;
use socket2::{Domain, SockAddr, Socket, Type};
use weir_http::{Fields, Limits, ReplyContext, ReplyHead, ReplyPart, ReplyReader};

use crate::tls::Caller;

/// Longest head that is read; also the size of a receive.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The time-out of a receive is shortened only once this much of it has passed: a fast exchange
/// needs no such system call.
const SHORTEN_AFTER: Duration = Duration::from_millis(1);

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// An address.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// The phases of an exchange; one of them took longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Until the connection is established.
    Connect,
    /// From then until TLS is established, where it is used.
    Handshake,
    /// From then until the first byte of the response.
    FirstByte,
    /// From then until its last byte.
    Body,
}

/// Why a request has no good response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing listens.
    Refused,
    /// No route leads there.
    Unreachable,
    /// The connection was reset.
    Reset,
    /// The connection ended before the first byte of the response.
    Closed,
    /// It ended in the middle of the response.
    Truncated,
    /// It took longer than allowed.
    Timeout,
    /// The bytes are not a response, or are more than one.
    Malformed,
    /// The status is 400 or more.
    Status,
    /// This machine is out of ports, descriptors or memory.
    Local,
    /// TLS could not be negotiated, the certificate is rejected, or the connection broke after
    /// that.
    Tls,
    /// Anything else.
    Other,
}

/// Nanoseconds of each phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// None: the connection existed already.
    pub connect_ns: Option<u64>,
    /// From the connection until TLS is established. None: it is not used, or the connection
    /// existed already.
    pub handshake_ns: Option<u64>,
    /// From the request to the first byte.
    pub first_byte_ns: u64,
    /// From the first byte to the last.
    pub body_ns: u64,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A whole response with a status under 400.
    Answered {
        /// Its status.
        status: u16,
        /// How long it took.
        times: Times,
    },
    /// No such response.
    Failed {
        /// Why.
        kind: Kind,
        /// When it happened.
        phase: Phase,
        /// Since the beginning, nanoseconds.
        after_ns: u64,
        /// What exactly.
        detail: String,
    },
}

impl Phase {
    /// Returns its name in texts.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Connect => "connect",
            Phase::Handshake => "handshake",
            Phase::FirstByte => "first byte",
            Phase::Body => "body",
        }
    }
}

impl Kind {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Kind; 11] = [
        Kind::Refused,
        Kind::Unreachable,
        Kind::Reset,
        Kind::Closed,
        Kind::Truncated,
        Kind::Timeout,
        Kind::Malformed,
        Kind::Status,
        Kind::Local,
        Kind::Tls,
        Kind::Other,
    ];

    /// Returns its name in texts.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Refused => "refused",
            Kind::Unreachable => "unreachable",
            Kind::Reset => "reset",
            Kind::Closed => "closed",
            Kind::Truncated => "truncated",
            Kind::Timeout => "timeout",
            Kind::Malformed => "malformed",
            Kind::Status => "status",
            Kind::Local => "local",
            Kind::Tls => "tls",
            Kind::Other => "other",
        }
    }

    fn of(error: &io::Error) -> Kind {
        match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => Kind::Refused,
            ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => Kind::Unreachable,
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                Kind::Reset
            }
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Kind::Timeout,
            ErrorKind::AddrNotAvailable | ErrorKind::OutOfMemory => Kind::Local,
            _ if is_out_of_descriptors(error) => Kind::Local,
            _ => Kind::Other,
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS))
}

impl Times {
    /// Returns the time of all phases.
    pub fn total_ns(&self) -> u64 {
        self.connect_ns.unwrap_or(0)
            + self.handshake_ns.unwrap_or(0)
            + self.first_byte_ns
            + self.body_ns
    }

    /// The phase that took longest.
    pub fn slowest(&self) -> Phase {
        // Of equal ones, the last one here.
        let phases = [
            (self.body_ns, Phase::Body),
            (self.handshake_ns.unwrap_or(0), Phase::Handshake),
            (self.connect_ns.unwrap_or(0), Phase::Connect),
            (self.first_byte_ns, Phase::FirstByte),
        ];
        phases.into_iter().max_by_key(|(ns, _)| *ns).map_or(Phase::FirstByte, |(_, phase)| phase)
    }
}

/// A prober's one connection.
#[derive(Debug)]
pub(super) struct Prober {
    place: Place,
    timeout: Duration,
    /// How the client uses TLS, if it does.
    caller: Option<Caller>,
    socket: Option<Socket>,
    /// TLS on that socket.
    sealed: Option<Box<ClientConnection>>,
    /// Its receives have less than the whole time-out.
    is_short: bool,
    buffer: Vec<u8>,
    fields: Fields,
    limits: Limits,
}

/// Times taken so far, and the phase that a failure would interrupt.
struct Clock {
    begin: Instant,
    deadline: Instant,
    /// The connection was there before.
    is_kept: bool,
    connected: Option<Instant>,
    /// TLS is established since.
    secured: Option<Instant>,
    first_byte: Option<Instant>,
    phase: Phase,
}

impl Prober {
    pub(super) fn new(place: Place, timeout: Duration, caller: Option<Caller>) -> Prober {
        Prober {
            place,
            timeout,
            caller,
            socket: None,
            sealed: None,
            is_short: false,
            buffer: vec![0; HEAD_BYTES_MAX],
            fields: Fields::default(),
            limits: Limits::default(),
        }
    }

    /// Ends the connection; over TLS it announces that first (RFC 8446 §6.1), unless that would
    /// take time.
    fn hang_up(&mut self) {
        if let (Some(mut sealed), Some(socket)) = (self.sealed.take(), &mut self.socket) {
            sealed.send_close_notify();
            // The server may be gone, and no one needs the result.
            let _ = socket.set_nonblocking(true).and_then(|()| sealed.write_tls(socket));
        }
        self.socket = None;
    }

    /// Whether a connection is kept for the next request.
    pub(super) fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Gives up a kept connection that the server has ended or spoilt since, without waiting.
    ///
    /// # Errors
    /// Unsolicited bytes came.
    pub(super) fn renew(&mut self) -> Result<bool, String> {
        loop {
            let Some(socket) = &mut self.socket else { return Ok(false) };
            match recv(&*socket, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Ok((_, 1..)) => {
                    match self
                        .sealed
                        .as_deref_mut()
                        .map_or(Unasked::Bytes, |sealed| unasked(sealed, socket))
                    {
                        Unasked::Nothing => {}
                        Unasked::End => break,
                        Unasked::Bytes => {
                            self.hang_up();
                            return Err("bytes after the last response that no request asked for"
                                .to_owned());
                        }
                    }
                }
                Ok(_) | Err(_) => break,
            }
        }
        self.hang_up();
        Ok(true)
    }

    /// Sends a request and waits for its response. `is_last`: the connection isn't used again.
    pub(super) fn exchange(&mut self, request: &[u8], is_last: bool) -> Outcome {
        let kept = self.socket.as_ref().filter(|_| self.is_short);
        // Fails only for a socket that is no longer valid, which the exchange will report.
        let _ = kept.map(|socket| socket.set_read_timeout(Some(self.timeout)));
        self.is_short = false;
        let is_kept = self.socket.is_some();
        let phase = if is_kept { Phase::FirstByte } else { Phase::Connect };
        let begin = Instant::now();
        let deadline = begin + self.timeout;
        let mut clock = Clock {
            begin,
            deadline,
            is_kept,
            connected: is_kept.then_some(begin),
            secured: None,
            first_byte: None,
            phase,
        };
        let outcome = self.attempt(request, &mut clock);
        let end = Instant::now();
        match outcome {
            Ok(head) => {
                if is_last || !head.persist {
                    self.hang_up();
                }
                clock.judge(&head, end)
            }
            Err(fault) => {
                self.hang_up();
                clock.failed(fault, end)
            }
        }
    }

    fn attempt(&mut self, request: &[u8], clock: &mut Clock) -> Result<ReplyHead, Fault> {
        if self.socket.is_none() {
            let socket = open(&self.place, self.timeout)?;
            // The creation of the socket does not count as connecting.
            clock.begin = Instant::now();
            clock.deadline = clock.begin + self.timeout;
            connect(&socket, &self.place)?;
            clock.connected = Some(Instant::now());
            let socket = self.socket.insert(socket);
            if let Some(caller) = &self.caller {
                clock.phase = Phase::Handshake;
                let sealed = self.sealed.insert(Box::new(caller.connection()?));
                self.is_short |= handshake(sealed, socket, clock)?;
                clock.secured = Some(Instant::now());
            }
            clock.phase = Phase::FirstByte;
        }
        let Some(socket) = &mut self.socket else {
            return Err(io::Error::from(ErrorKind::NotConnected).into());
        };
        let sealed = self.sealed.as_deref_mut();
        let mut answer =
            Answer { socket, sealed, reader: ReplyReader::judging(), final_head: None, held: 0 };
        answer.ask(request)?;
        loop {
            self.is_short |= clock.shorten(answer.socket)?;
            let length = answer.receive(&mut self.buffer, clock)?;
            if length == 0 {
                return answer.ended(clock);
            }
            let bytes = &mut self.buffer[..answer.held + length];
            if let Some(head) = answer.take(bytes, &self.limits, &mut self.fields)? {
                return Ok(head);
            }
        }
    }
}

/// A response in progress.
struct Answer<'a> {
    socket: &'a mut Socket,
    sealed: Option<&'a mut ClientConnection>,
    reader: ReplyReader,
    final_head: Option<ReplyHead>,
    /// Bytes of an incomplete head at the beginning of the buffer.
    held: usize,
}

impl Answer<'_> {
    fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        match &mut self.sealed {
            None => self.socket.write_all(request),
            Some(sealed) => {
                let mut stream = rustls::Stream::new(*sealed, self.socket);
                stream.write_all(request).and_then(|()| stream.flush())
            }
        }
    }

    /// Receives after the held bytes. There is room: the parser rejects heads long before.
    fn receive(&mut self, buffer: &mut [u8], clock: &mut Clock) -> Result<usize, Fault> {
        let length = loop {
            let read = match &mut self.sealed {
                None => self.socket.read(&mut buffer[self.held..]),
                Some(sealed) => {
                    rustls::Stream::new(*sealed, self.socket).read(&mut buffer[self.held..])
                }
            };
            match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A body that ends with the connection may be cut short (RFC 9112 §9.8); all others
                // mark their own end.
                Err(error)
                    if error.kind() == ErrorKind::UnexpectedEof && self.reader.ends_by_close() =>
                {
                    return Err(Fault::new(Kind::Truncated, "it ended without close_notify"));
                }
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break 0,
                other => break other?,
            }
        };
        if clock.first_byte.is_none() && length > 0 {
            clock.first_byte = Some(Instant::now());
            clock.phase = Phase::Body;
        }
        Ok(length)
    }

    /// Parses the held and the received bytes; returns the head once the response is complete.
    fn take(
        &mut self,
        bytes: &mut [u8],
        limits: &Limits,
        fields: &mut Fields,
    ) -> Result<Option<ReplyHead>, Fault> {
        let mut at = 0;
        loop {
            let part =
                self.reader.read(bytes, &mut at, ReplyContext { head: false }, limits, fields);
            match part.map_err(|fault| malformed(&fault.to_string()))? {
                ReplyPart::Head(head) if head.status == 101 => {
                    return Err(malformed("101 although the request asked for no switch"));
                }
                ReplyPart::Head(head) if head.status >= 200 => self.final_head = Some(head),
                ReplyPart::Head(_) | ReplyPart::Data { .. } => {}
                ReplyPart::More => break,
                ReplyPart::End if at < bytes.len() => {
                    return Err(malformed("bytes after the response that no request asked for"));
                }
                ReplyPart::End => return Ok(self.final_head),
            }
        }
        bytes.copy_within(at.., 0);
        self.held = bytes.len() - at;
        Ok(None)
    }

    /// The server sends nothing more: the response is complete only if its body ends with the
    /// connection.
    fn ended(&self, clock: &Clock) -> Result<ReplyHead, Fault> {
        match self.final_head {
            Some(head) if self.reader.ends_by_close() => Ok(head),
            _ if clock.first_byte.is_some() => {
                Err(Fault::new(Kind::Truncated, "it ended in the middle of the response"))
            }
            _ => Err(Fault::new(Kind::Closed, "it ended without a response")),
        }
    }
}

/// The failure.
struct Fault {
    kind: Kind,
    detail: String,
}

impl Fault {
    fn new(kind: Kind, detail: &str) -> Fault {
        Fault { kind, detail: detail.to_owned() }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        if error.get_ref().is_some_and(|source| source.is::<rustls::Error>()) {
            return Fault::new(Kind::Tls, &error.to_string());
        }
        match Kind::of(&error) {
            Kind::Timeout => Fault::new(Kind::Timeout, "it did not arrive in time"),
            kind => Fault::new(kind, &error.to_string()),
        }
    }
}

impl Clock {
    /// Limits the next receive to the rest of the time-out; returns true if that is less.
    fn shorten(&self, socket: &Socket) -> io::Result<bool> {
        let now = Instant::now();
        if now.saturating_duration_since(self.begin) < SHORTEN_AFTER {
            return Ok(false);
        }
        // Zero would mean for ever, and so does less than a microsecond.
        let left = self.deadline.saturating_duration_since(now).max(Duration::from_micros(1));
        socket.set_read_timeout(Some(left)).map(|()| true)
    }

    fn judge(&self, head: &ReplyHead, end: Instant) -> Outcome {
        let status = head.status;
        if status >= 400 {
            return self
                .failed(Fault { kind: Kind::Status, detail: format!("status {status}") }, end);
        }
        let connected = self.connected.unwrap_or(self.begin);
        let ready = self.secured.unwrap_or(connected);
        let first_byte = self.first_byte.unwrap_or(end);
        let times = Times {
            connect_ns: (!self.is_kept).then(|| ns(self.begin, connected)),
            handshake_ns: self.secured.map(|secured| ns(connected, secured)),
            first_byte_ns: ns(ready, first_byte),
            body_ns: ns(first_byte, end),
        };
        Outcome::Answered { status, times }
    }

    fn failed(&self, fault: Fault, end: Instant) -> Outcome {
        let Fault { kind, detail } = fault;
        Outcome::Failed { kind, phase: self.phase, after_ns: ns(self.begin, end), detail }
    }
}

fn ns(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

/// Runs the handshake until TLS is established; returns true if receives have less than the whole
/// time-out from now on.
fn handshake(
    sealed: &mut ClientConnection,
    socket: &mut Socket,
    clock: &Clock,
) -> Result<bool, Fault> {
    let mut is_short = false;
    while sealed.is_handshaking() {
        if sealed.wants_write() {
            sealed.write_tls(socket)?;
            continue;
        }
        is_short |= clock.shorten(socket)?;
        match sealed.read_tls(socket) {
            Ok(0) => return Err(Fault::new(Kind::Tls, "it ended during the TLS handshake")),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if let Err(error) = sealed.process_new_packets() {
            // The alert: the server may be gone already.
            let _ = sealed.write_tls(socket);
            return Err(Fault::new(Kind::Tls, &error.to_string()));
        }
    }
    Ok(is_short)
}

/// What a server sent between two requests.
enum Unasked {
    /// Tickets and the like, which the server may send at any time.
    Nothing,
    /// It ended the connection.
    End,
    /// Unsolicited bytes.
    Bytes,
}

/// Reads the received bytes. They must be there: this does not wait.
fn unasked(sealed: &mut ClientConnection, socket: &mut Socket) -> Unasked {
    let read = sealed
        .read_tls(socket)
        .map_err(|_| ())
        .and_then(|_| sealed.process_new_packets().map_err(|_| ()));
    match read {
        Ok(state) if state.plaintext_bytes_to_read() > 0 => Unasked::Bytes,
        Ok(state) if !state.peer_has_closed() => Unasked::Nothing,
        Ok(_) | Err(()) => Unasked::End,
    }
}

fn malformed(why: &str) -> Fault {
    Fault::new(Kind::Malformed, why)
}

/// Makes a socket that gives up after the time-out: in Linux the one for sending covers connecting
/// as well (socket(7)).
fn open(place: &Place, timeout: Duration) -> io::Result<Socket> {
    let domain = match place {
        Place::Tcp(address) => Domain::for_address(*address),
        Place::Unix(_) => Domain::UNIX,
    };
    let socket = Socket::new(domain, Type::STREAM, None)?;
    socket.set_write_timeout(Some(timeout))?;
    socket.set_read_timeout(Some(timeout))?;
    if matches!(place, Place::Tcp(_)) {
        socket.set_tcp_nodelay(true)?;
    }
    Ok(socket)
}

fn connect(socket: &Socket, place: &Place) -> io::Result<()> {
    let address = match place {
        Place::Tcp(address) => SockAddr::from(*address),
        Place::Unix(path) => SockAddr::unix(path)?,
    };
    let in_progress = |error: &io::Error| {
        rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::INPROGRESS)
    };
    socket
        .connect(&address)
        .map_err(|error| if in_progress(&error) { ErrorKind::TimedOut.into() } else { error })
}
