//! A raw client: sends the given bytes, reads with a deadline, and judges every byte that comes
//! back.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use weir_check::upstreams::check_honest;
use weir_check::{End, Reply, StrictReplies};

use super::{Patient, Weir, bounded, nonce, patient};

/// One client connection.
#[derive(Debug)]
pub struct Client {
    stream: Patient<TcpStream>,
    judge: StrictReplies,
    ended: Option<Ended>,
    /// A write has met the reset, which the kernel reports once.
    met_reset: bool,
    /// Bytes received.
    pub received: u64,
}

/// How the connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// What was complete.
    pub end: End,
    /// By a reset.
    pub reset: bool,
}

impl Client {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Client {
        Client::of(TcpStream::connect(address).expect("weir accepts"))
    }

    /// Connects from another address of this host.
    pub fn connect_from(from: IpAddr, address: SocketAddr) -> Client {
        let socket =
            Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a descriptor");
        socket.bind(&SocketAddr::new(from, 0).into()).expect("an address of this host");
        socket.connect(&address.into()).expect("weir accepts");
        Client::of(socket.into())
    }

    /// Uses an existing connection.
    pub fn of(stream: TcpStream) -> Client {
        stream.set_nodelay(true).expect("a socket option");
        Client {
            stream: patient(stream),
            judge: StrictReplies::new(),
            ended: None,
            met_reset: false,
            received: 0,
        }
    }

    /// Announces a request to the judge of replies. Call it before its last byte is sent.
    pub fn ask(&mut self, method: &str, version_10: bool) {
        self.judge.ask(method, version_10, false);
    }

    /// Announces a request for an upgrade.
    pub fn ask_upgrade(&mut self) {
        self.judge.ask("GET", false, true);
    }

    /// Sends a GET of this target, host `a`.
    pub fn get(&mut self, target: &str) {
        self.request("GET", target, "", b"");
    }

    /// Sends a request with these field lines (each with CRLF) and a body (with its length, unless
    /// it is empty).
    pub fn request(&mut self, method: &str, target: &str, fields: &str, body: &[u8]) {
        self.ask(method, false);
        let length = match body.is_empty() {
            true => String::new(),
            false => format!("Content-Length: {}\r\n", body.len()),
        };
        let head = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{fields}{length}\r\n");
        self.send(&[head.as_bytes(), body].concat());
    }

    /// Writes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("weir reads");
    }

    /// Writes; false: weir has already closed.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        let outcome = self.stream.write_all(bytes);
        self.met_reset |=
            outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        outcome.is_ok()
    }

    /// Writes in pieces that end at these positions.
    pub fn try_send_split(&mut self, bytes: &[u8], cuts: &[usize]) -> bool {
        let mut start = 0;
        for &cut in cuts.iter().chain(&[bytes.len()]) {
            let cut = cut.clamp(start, bytes.len());
            if !self.try_send(&bytes[start..cut]) {
                return false;
            }
            start = cut;
        }
        true
    }

    /// Returns the next final reply.
    pub fn reply(&mut self) -> Reply {
        self.try_reply()
            .unwrap_or_else(|| panic!("expected a reply, the connection ended: {:?}", self.ended))
    }

    /// Returns the next final reply, or None if the connection ends before it.
    pub fn try_reply(&mut self) -> Option<Reply> {
        loop {
            if let Some(reply) = self.judge.poll_reply() {
                return Some(reply);
            }
            if !self.read() {
                return self.judge.poll_reply();
            }
        }
    }

    /// Returns interim replies since the last final one; waits for at least one.
    pub fn interim(&mut self) -> Vec<u16> {
        while self.judge.interim().is_empty() {
            assert!(
                self.read(),
                "expected an interim reply, the connection ended: {:?}",
                self.ended
            );
        }
        self.judge.interim().to_vec()
    }

    /// Waits until at least this many bytes of the body of the next reply have come, and returns it
    /// as it is.
    pub fn beginning(&mut self, bytes: u64) -> Reply {
        loop {
            match self.judge.current() {
                Some(reply) if reply.body.length >= bytes => return reply.clone(),
                _ => {
                    assert!(self.read(), "expected a body, the connection ended: {:?}", self.ended)
                }
            }
        }
    }

    /// Waits until weir ends the connection. Replies that come meanwhile can be taken afterwards.
    pub fn end(&mut self) -> Ended {
        while self.read() {}
        self.ended.clone().expect("it ended")
    }

    /// Returns how it ended, if that has been seen.
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// Returns exactly this many bytes of a tunnel.
    pub fn tunnel(&mut self, bytes: usize) -> Vec<u8> {
        let mut all = self.judge.take_tunnel();
        while all.len() < bytes {
            assert!(
                self.read(),
                "tunnel ended after {} of {bytes} bytes: {:?}",
                all.len(),
                self.ended
            );
            all.extend(self.judge.take_tunnel());
        }
        all
    }

    /// Ends the sending direction.
    pub fn finish(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Resets the connection.
    pub fn reset(self) {
        let socket = socket2::Socket::from(self.stream.into_inner());
        socket.set_linger(Some(Duration::ZERO)).expect("a socket option");
    }

    /// Makes the receive window small (before anything is read).
    pub fn shrink_window(&self, bytes: usize) {
        socket2::SockRef::from(&*self.stream).set_recv_buffer_size(bytes).expect("a socket option");
    }

    /// Returns the local port.
    pub fn port(&self) -> u16 {
        self.stream.local_addr().expect("connected").port()
    }

    /// Returns the socket, for use by hand or by another thread.
    pub fn stream(&self) -> TcpStream {
        let stream = TcpStream::try_clone(&self.stream).expect("descriptors are left");
        bounded(&stream);
        stream
    }

    /// Reads once; false at the end of the connection.
    fn read(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let mut buffer = [0; 64 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.over(self.met_reset),
            Ok(n) => {
                self.received += n as u64;
                self.judge
                    .feed(&buffer[..n])
                    .unwrap_or_else(|violation| panic!("weir sent to a client: {violation}"));
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => self.over(true),
            Err(error) => panic!("no reply in time ({error}); so far {:?}", self.judge),
        }
    }

    fn over(&mut self, reset: bool) -> bool {
        self.ended = Some(Ended { end: self.judge.end(), reset });
        false
    }
}

/// Sends one honest request of a client, and checks the response.
pub fn request(client: &mut Client) {
    let nonce = nonce();
    client.get(&format!("/victim?n={nonce}"));
    let reply = client.reply();
    assert_eq!(reply.status, 200);
    check_honest(&nonce, &reply).unwrap();
}

/// Sends requests on one connection until that is over; counts the responses.
pub fn keep_asking(address: SocketAddr, over: &AtomicBool, done: &AtomicUsize) {
    let mut client = Client::connect(address);
    while !over.load(Ordering::Relaxed) {
        request(&mut client);
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends a GET on a separate connection, checks the response, and returns how long it took.
pub fn timed_get(weir: &Weir) -> Duration {
    let (mut client, nonce) = (Client::connect(weir.address), nonce());
    let begin = Instant::now();
    client.get(&format!("/?n={nonce}"));
    check_honest(&nonce, &client.reply()).expect("an answer");
    begin.elapsed()
}

/// Sends this many GETs, each on its own connection.
pub fn scattered(weir: &Weir, count: usize) -> Vec<(Client, String)> {
    let send = |_| {
        let (mut client, nonce) = (Client::connect(weir.address), nonce());
        client.get(&format!("/victim?n={nonce}"));
        (client, nonce)
    };
    (0..count).map(send).collect()
}

/// Checks that each of them gets its response.
///
/// # Panics
/// One does not.
pub fn all_answered(clients: Vec<(Client, String)>) {
    for (mut client, nonce) in clients {
        check_honest(&nonce, &client.reply()).unwrap();
    }
}
