//! A server on one thread that shows how a driver is used, and against which choices inside the
//! drivers are measured.
//!
//!     cargo run --release -p weir-io --example echo -- 127.0.0.1:7777 auto
//!     printf 'hello' | nc -N 127.0.0.1 7777
//!
//! It sends back what it receives. Anything that looks like the end of a request head gets a fixed
//! HTTP response instead, so that `wrk http://127.0.0.1:7777/` works; a request with `Connection:
//! close` closes after the response. A line of counters is written to standard error every ten
//! seconds.

use std::collections::HashMap;
use std::io;

use weir_io::{
    Class, Completion, Driver, DriverKind, Epoll, Event, IoChoice, Options, Payload, Receive,
    Socket, Uring, bind_listener, choose,
};

const REPLY: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Type: text/plain\r\n\r\nok\n";
const HEAD_END: &[u8] = b"\r\n\r\n";
const LISTENER: u64 = 1;
const CONNECTION: u64 = 2;
const REPORT_US: u64 = 10_000_000;

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:7777".to_owned());
    let choice = match arguments.next().as_deref() {
        Some("uring") => IoChoice::Uring,
        Some("epoll") => IoChoice::Epoll,
        _ => IoChoice::Auto,
    };
    let found = choose(choice)?;
    eprintln!("{found}");
    let address = address.parse().map_err(|error| format!("{address}: {error}"))?;
    let result = match found.driver {
        DriverKind::Uring => {
            Uring::new(Options::default()).and_then(|driver| serve(driver, address))
        }
        DriverKind::Epoll => {
            Epoll::new(Options::default()).and_then(|driver| serve(driver, address))
        }
    };
    result.map_err(|error| error.to_string())
}

/// State of a connection: bytes that came while a send was in flight, and whether to close after
/// it.
#[derive(Default)]
struct Connection {
    sending: bool,
    waiting: Vec<u8>,
    close: bool,
}

struct Server<D> {
    driver: D,
    connections: HashMap<Socket, Connection>,
    spare: Vec<Vec<u8>>,
}

fn serve<D: Driver>(mut driver: D, address: std::net::SocketAddr) -> io::Result<()> {
    driver.listen(bind_listener(address, 4096)?, LISTENER)?;
    let mut server = Server { driver, connections: HashMap::new(), spare: Vec::new() };
    let mut completions = Vec::new();
    let mut report_us = server.driver.now_us() + REPORT_US;
    loop {
        let wait_us = report_us.saturating_sub(server.driver.now_us());
        server.driver.turn(Some(wait_us), &mut completions)?;
        for completion in completions.drain(..) {
            server.on_completion(completion);
        }
        if server.driver.now_us() >= report_us {
            report_us += REPORT_US;
            eprintln!("{:?} {} connections", server.driver.stats(), server.connections.len());
        }
    }
}

impl<D: Driver> Server<D> {
    fn on_completion(&mut self, completion: Completion) {
        let socket = completion.socket;
        match completion.event {
            Event::Accepted { socket, .. } => {
                self.connections.insert(socket, Connection::default());
                self.driver.set_token(socket, CONNECTION);
                self.driver.receive(socket, Receive::Many(Class::Small));
            }
            Event::AcceptFailed(error) => eprintln!("accept: {error}"),
            Event::Received(bytes) => {
                self.answer(socket, &bytes);
                self.driver.recycle(bytes);
            }
            Event::Sent { payload, result } => self.on_sent(socket, payload, result.is_ok()),
            Event::Ended => self.finish(socket),
            Event::ReceiveFailed(_) => self.close(socket),
            Event::Connected(_) | Event::RelayEnded { .. } | Event::Released(_) | Event::Woken => {}
        }
    }

    fn answer(&mut self, socket: Socket, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&socket) else { return };
        let mut reply = self.spare.pop().unwrap_or_default();
        reply.append(&mut connection.waiting);
        let heads = bytes.windows(HEAD_END.len()).filter(|window| *window == HEAD_END).count();
        if heads == 0 {
            reply.extend_from_slice(bytes);
        }
        for _ in 0..heads {
            reply.extend_from_slice(REPLY);
        }
        connection.close |=
            heads > 0 && bytes.windows(17).any(|window| window == b"Connection: close");
        if connection.sending {
            connection.waiting = reply;
        } else {
            connection.sending = true;
            self.driver.send(socket, Payload::Owned(reply));
        }
    }

    fn on_sent(&mut self, socket: Socket, payload: Payload, good: bool) {
        if let Payload::Owned(mut memory) = payload {
            memory.clear();
            self.spare.push(memory);
        }
        let Some(connection) = self.connections.get_mut(&socket) else { return };
        connection.sending = false;
        if !good {
            self.close(socket);
        } else if !connection.waiting.is_empty() {
            connection.sending = true;
            let waiting = std::mem::take(&mut connection.waiting);
            self.driver.send(socket, Payload::Owned(waiting));
        } else if connection.close {
            self.close(socket);
        }
    }

    /// The client will send nothing more; pending responses are still sent.
    fn finish(&mut self, socket: Socket) {
        let Some(connection) = self.connections.get_mut(&socket) else { return };
        connection.close = true;
        if !connection.sending {
            self.close(socket);
        }
    }

    fn close(&mut self, socket: Socket) {
        self.connections.remove(&socket);
        self.driver.close(socket);
    }
}
