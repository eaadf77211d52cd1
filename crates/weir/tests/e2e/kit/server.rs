//! A scripted server: a thread for each connection; it judges every byte that it receives, and
//! records everything.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_check::upstreams::{Ending, honest_answer};
use weir_check::{Request, Rules, StrictRequests};

use super::{Waiting, eventually, tcp_sockets};

/// Number of last requests that a failed test shows.
const LAST_REQUESTS: usize = 5;

/// The response of a server that accepts an Upgrade.
pub const SWITCH: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";

/// The treatment of requests by a server. One object serves all its connections.
pub trait Behaviour: Send + Sync + 'static {
    /// Handles a complete request.
    ///
    /// # Errors
    /// The connection is over.
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone>;

    /// Handles a head whose body is incomplete.
    ///
    /// # Errors
    /// The connection is over.
    fn on_head(&self, _link: &mut Link, _request: &Request) -> Result<(), Gone> {
        Ok(())
    }
}

/// A function is a behaviour.
impl<F: Fn(&mut Link, &Request) -> Result<(), Gone> + Send + Sync + 'static> Behaviour for F {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        self(link, request)
    }
}

/// Responds to each request with its nonce.
#[derive(Debug, Clone, Copy)]
pub struct Honest;

impl Behaviour for Honest {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        link.honest(request)
    }
}

/// The connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

/// One connection of a server, in the hands of its behaviour.
pub struct Link {
    /// Its number among the server's connections, counted from 0.
    pub index: usize,
    /// Final responses sent.
    pub answers: usize,
    stream: TcpStream,
    judge: StrictRequests,
    shared: Arc<Shared>,
}

/// The record of a server.
#[derive(Debug, Default)]
pub struct Log {
    /// Connections accepted.
    pub accepted: usize,
    /// Open connections.
    pub open: usize,
    /// Complete requests, with the index of their connection, in the order of arrival.
    pub requests: Vec<(usize, Request)>,
    /// Largest number of unanswered requests at once, for each connection.
    pub depths: Vec<usize>,
    /// Bytes that weir must not have sent, and other faults.
    pub faults: Vec<String>,
    /// Events that behaviours and tests exchange.
    pub events: Vec<String>,
    /// The sockets of connections, by index, until they end.
    sockets: Vec<Option<TcpStream>>,
}

impl Log {
    /// Returns a report on this server for a failed test: counts, the last requests, faults and
    /// events.
    fn story(&self) -> String {
        let asked = self.requests.len();
        let last = self.requests.iter().skip(asked.saturating_sub(LAST_REQUESTS));
        let last: Vec<_> = last
            .map(|(at, request)| format!("{at}: {} {}", request.method, request.target))
            .collect();
        format!(
            "accepted {}, open {}, requests {asked} (the last: {last:?}), most unanswered {:?}, \
                faults {:#?}, events {:?}",
            self.accepted, self.open, self.depths, self.faults, self.events
        )
    }
}

#[derive(Default)]
struct Shared {
    log: Mutex<Log>,
    changed: Condvar,
}

/// A server on a separate port.
pub struct Server {
    /// The address of its listener.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    stopping: Arc<std::sync::atomic::AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server that expects what weir sends by default. Its port is not one that the kernel
    /// gives to connections, one of which could have it while the server is dead.
    pub fn start(behaviour: impl Behaviour) -> Server {
        Server::start_at(([127, 0, 0, 1], super::free_port()).into(), behaviour, Rules::default())
    }

    /// Starts a server at this address, with these expectations.
    pub fn start_at(address: SocketAddr, behaviour: impl Behaviour, rules: Rules) -> Server {
        // An earlier socket may live on for a moment in a program that another test is starting.
        let mut listener = None;
        eventually("the address is free", || {
            listener = TcpListener::bind(address).ok();
            listener.is_some()
        });
        let listener = listener.expect("just bound");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        let stopping = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (log, stop) = (Arc::clone(&shared), Arc::clone(&stopping));
        let acceptor =
            std::thread::spawn(move || accept(&listener, &log, &stop, &Arc::new(behaviour), rules));
        Server { address, shared, stopping, acceptor: Some(acceptor) }
    }

    /// Returns the record so far.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.shared.log()
    }

    /// Waits until the record satisfies this.
    ///
    /// # Panics
    /// It does not at the deadline.
    pub fn wait(&self, what: &str, holds: impl Fn(&Log) -> bool) {
        if let Err(log) = self.shared.wait(holds) {
            panic!("not in time: {what}; {}", log.story());
        }
    }

    /// Sends behaviours an event.
    pub fn tell(&self, event: &str) {
        self.shared.change(|log| log.events.push(event.to_owned()));
    }

    /// Ends listening, waits for the end of all connections (weir has to end them), and fails if
    /// there was a fault.
    pub fn finish(mut self) -> Log {
        self.wait("connections end", |log| log.open == 0);
        self.close();
        let log = std::mem::take(&mut *self.shared.log());
        assert!(log.faults.is_empty(), "faults upstream: {:#?}", log.faults);
        log
    }

    /// Ends it as SIGKILL does: connections are reset, whatever they are in the middle of. Returns
    /// the record.
    pub fn kill(mut self) -> Log {
        self.close();
        self.shared.change(|log| {
            for socket in log.sockets.drain(..).flatten() {
                let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
                let _ = socket.shutdown(Shutdown::Both);
            }
        });
        self.wait("connections end", |log| log.open == 0);
        let log = std::mem::take(&mut *self.shared.log());
        assert!(log.faults.is_empty(), "faults upstream: {:#?}", log.faults);
        log
    }

    fn close(&mut self) {
        self.stopping.store(true, std::sync::atomic::Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
        if std::thread::panicking() {
            eprintln!("--- upstream: {}", self.shared.log().story());
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Log)) {
        change(&mut self.log());
        self.changed.notify_all();
    }

    fn wait(&self, holds: impl Fn(&Log) -> bool) -> Result<(), MutexGuard<'_, Log>> {
        let mut waiting = Waiting::begin();
        let mut log = self.log();
        while !holds(&log) {
            if !waiting.goes_on() {
                eprintln!("{}", waiting.story());
                return Err(log);
            }
            let woken = self.changed.wait_timeout(log, waiting.block());
            log = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        Ok(())
    }
}

fn accept<B: Behaviour>(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    stopping: &std::sync::atomic::AtomicBool,
    behaviour: &Arc<B>,
    rules: Rules,
) {
    for stream in listener.incoming() {
        if stopping.load(std::sync::atomic::Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let mut index = 0;
        shared.change(|log| {
            index = log.accepted;
            log.accepted += 1;
            log.open += 1;
            log.depths.push(0);
            log.sockets.push(stream.try_clone().ok());
        });
        let mut link = Link {
            index,
            answers: 0,
            stream,
            judge: StrictRequests::new(rules),
            shared: Arc::clone(shared),
        };
        let behaviour = Arc::clone(behaviour);
        std::thread::spawn(move || {
            let _end = OnEnd(Arc::clone(&link.shared), link.index);
            let _ = link.serve(&*behaviour);
        });
    }
}

/// Counts a connection out, even when its behaviour panics.
struct OnEnd(Arc<Shared>, usize);

impl Drop for OnEnd {
    fn drop(&mut self) {
        let panicked = std::thread::panicking();
        let index = self.1;
        self.0.change(|log| {
            log.open -= 1;
            // A socket ends with its last descriptor.
            if let Some(socket) = log.sockets.get_mut(index) {
                *socket = None;
            }
            if panicked {
                log.faults.push("a behaviour panicked".to_owned());
            }
        });
    }
}

impl Link {
    fn serve(&mut self, behaviour: &dyn Behaviour) -> Result<(), Gone> {
        self.stream.set_nodelay(true).map_err(|_| Gone)?;
        let mut told_of = None;
        loop {
            self.receive()?;
            while let Some(request) = self.next_request() {
                behaviour.on_request(self, &request)?;
            }
            if let Some(request) =
                self.judge.current().filter(|it| told_of != Some(it.offset)).cloned()
            {
                told_of = Some(request.offset);
                behaviour.on_head(self, &request)?;
            }
        }
    }

    /// Waits for bytes, then takes all that have arrived.
    ///
    /// # Errors
    /// weir ended the connection, or sent forbidden bytes (which are recorded then).
    pub fn receive(&mut self) -> Result<(), Gone> {
        self.stream.set_read_timeout(None).map_err(|_| Gone)?;
        self.take_once()?;
        self.drain()
    }

    /// Takes all bytes that have arrived already.
    ///
    /// # Errors
    /// As [`Link::receive`].
    pub fn drain(&mut self) -> Result<(), Gone> {
        self.stream.set_nonblocking(true).map_err(|_| Gone)?;
        let result = loop {
            match self.take_once() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                // Requests before the end are handled first; the next read reports it again.
                Err(Gone) => break if self.is_faulty() { Err(Gone) } else { Ok(()) },
            }
        };
        self.stream.set_nonblocking(false).map_err(|_| Gone)?;
        result
    }

    fn is_faulty(&self) -> bool {
        !self.shared.log().faults.is_empty()
    }

    /// Reads once; false: nothing has arrived.
    fn take_once(&mut self) -> Result<bool, Gone> {
        let mut buffer = [0; 64 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(Gone),
            Ok(n) => {
                if let Err(violation) = self.judge.feed(&buffer[..n]) {
                    self.fault(&violation.to_string());
                    return Err(Gone);
                }
                let (index, depth) = (self.index, self.judge.unanswered_max());
                self.shared.change(|log| log.depths[index] = depth);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(Gone),
        }
    }

    /// Records a fault.
    pub fn fault(&self, what: &str) {
        self.shared.change(|log| log.faults.push(format!("connection {}: {what}", self.index)));
    }

    /// Sends the test (and other connections) an event.
    pub fn tell(&self, event: &str) {
        self.shared.change(|log| log.events.push(event.to_owned()));
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// It did not come; that is recorded.
    pub fn await_event(&self, event: &str) -> Result<(), Gone> {
        let came = self.shared.wait(|log| log.events.iter().any(|it| it == event)).is_ok();
        if !came {
            self.fault(&format!("the event {event} didn't come"));
        }
        if came { Ok(()) } else { Err(Gone) }
    }

    /// Waits until this many requests are unanswered here, but not for long: a connection that is
    /// being emptied (a sync point) gets no more. True: they came.
    ///
    /// # Errors
    /// The connection is over.
    pub fn await_unanswered(&mut self, count: usize) -> Result<bool, Gone> {
        let end = Instant::now() + Duration::from_millis(300);
        while self.judge.unanswered() < count {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.stream.set_read_timeout(Some(left)).map_err(|_| Gone)?;
            self.take_once()?;
        }
        Ok(true)
    }

    /// Returns the next complete request that has arrived already, and records it.
    pub fn next_request(&mut self) -> Option<Request> {
        let request = self.judge.poll_request()?;
        self.shared.change(|log| log.requests.push((self.index, request.clone())));
        Some(request)
    }

    /// Returns the received bytes of the body of the incomplete request; None: no request is
    /// incomplete.
    pub fn body_so_far(&self) -> Option<u64> {
        self.judge.current().map(|request| request.body.length)
    }

    /// Returns the number of unanswered requests here.
    pub fn unanswered(&self) -> usize {
        self.judge.unanswered()
    }

    /// Writes the final response to the oldest unanswered request.
    ///
    /// # Errors
    /// The connection is over.
    pub fn answer(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.judge.answered();
        self.answers += 1;
        self.write(bytes)
    }

    /// Responds with the nonce of the request (without body for HEAD).
    ///
    /// # Errors
    /// The connection is over.
    pub fn honest(&mut self, request: &Request) -> Result<(), Gone> {
        let answer = honest_answer(request.nonce());
        let end = match request.method.as_str() {
            "HEAD" => answer
                .windows(4)
                .position(|window| window == b"\r\n\r\n")
                .map_or(answer.len(), |at| at + 4),
            _ => answer.len(),
        };
        self.answer(&answer[..end])
    }

    /// Sends the last response on this connection, and ends it like this; the half response comes
    /// with the next request.
    ///
    /// # Errors
    /// The connection is over.
    pub fn end(&mut self, request: &Request, how: Ending) -> Result<(), Gone> {
        match how {
            Ending::HalfAnswer => self.honest(request),
            Ending::Announced => {
                let answer = String::from_utf8(honest_answer(request.nonce())).expect("text");
                self.answer(answer.replacen("\r\n", "\r\nConnection: close\r\n", 1).as_bytes())
                    .and(Err(Gone))
            }
            Ending::Rst => {
                self.honest(request)?;
                Err(self.rst())
            }
            Ending::Fin => {
                self.honest(request)?;
                self.fin();
                self.until_closed();
                Err(Gone)
            }
            // Closing while requests are unread makes the kernel send a reset behind the responses.
            Ending::Unread => self.honest(request).and(Err(Gone)),
        }
    }

    /// Writes 101 and more; from now on the connection is a tunnel.
    ///
    /// # Errors
    /// The connection is over.
    pub fn upgrade(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.judge.upgraded();
        self.answers += 1;
        self.write(bytes)
    }

    /// Sends the bytes of the tunnel back, until its end.
    ///
    /// # Errors
    /// The connection is over.
    pub fn echo(&mut self) -> Result<(), Gone> {
        loop {
            let bytes = self.tunnel();
            if bytes.is_empty() {
                return Ok(());
            }
            self.write(&bytes)?;
        }
    }

    /// Returns bytes of the tunnel; none at its end.
    pub fn tunnel(&mut self) -> Vec<u8> {
        let mut bytes = self.judge.take_tunnel();
        while bytes.is_empty() {
            match self.take_once() {
                Ok(true) => bytes = self.judge.take_tunnel(),
                _ => return Vec::new(),
            }
        }
        bytes
    }

    /// Writes bytes that are not a final response.
    ///
    /// # Errors
    /// The connection is over.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.stream.write_all(bytes).map_err(|_| Gone)
    }

    /// Waits until all written bytes are in weir's socket. A reset discards the others: on a busy
    /// machine a few small segments fill the first window of a connection.
    pub fn until_acknowledged(&self) {
        let name = |address: SocketAddr| match address.ip() {
            IpAddr::V4(ip) => {
                format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port())
            }
            IpAddr::V6(_) => panic!("servers of tests have IPv4 addresses"),
        };
        let (Ok(own), Ok(peer)) = (self.stream.local_addr(), self.stream.peer_addr()) else {
            return;
        };
        let (own, peer) = (name(own), name(peer));
        eventually("weir's system acknowledges an answer", || {
            let socket = tcp_sockets()
                .into_iter()
                .find(|socket| socket.local == own && socket.remote == peer);
            socket.is_none_or(|socket| socket.unacknowledged == 0)
        });
    }

    /// Ends the sending direction.
    pub fn fin(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Makes the drop of the connection, which is next, a reset.
    pub fn rst(&mut self) -> Gone {
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        Gone
    }

    /// Reads (and judges) until weir ends the connection. Returns further complete requests,
    /// unanswered.
    pub fn until_closed(&mut self) -> Vec<Request> {
        let mut late = Vec::new();
        loop {
            let over = self.receive().is_err();
            while let Some(request) = self.judge.poll_request() {
                late.push(request);
            }
            if over {
                return late;
            }
        }
    }
}
