//! Proves: connections that move from one worker to another continue to serve their clients,
//! whatever those request meanwhile. A drain in the middle of it loses none and ends. How: real
//! workers of both drivers that give connections away all the time, and clients that send requests
//! all the time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use weir_check::waiting::{Patient, eventually, patient};
use weir_io::DriverKind;
use weir_proxy::plan::{ListenerPlan, Plan, ServerPlan, UpstreamPlan};
use weir_proxy::request::route::{Route, RouteTable};
use weir_worker::{Running, Setup, start};

const WORKERS: u16 = 2;
const CLIENTS: usize = 40;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn drivers() -> impl Iterator<Item = DriverKind> {
    let usable = |choice| weir_io::choose(choice).ok().map(|probe| probe.driver);
    [weir_io::IoChoice::Uring, weir_io::IoChoice::Epoll].into_iter().filter_map(usable)
}

/// A server that answers every head.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        thread::spawn(move || {
            let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                bytes.extend_from_slice(&buffer[..count]);
                while let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                    bytes.drain(..end + 4);
                    if stream.write_all(ANSWER).is_err() {
                        return;
                    }
                }
            }
        });
    }
}

fn run(driver: DriverKind) -> Running {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = server.local_addr().expect("an address");
    thread::spawn(move || serve(&server));
    let plan = Plan {
        listeners: vec![ListenerPlan::new(([127, 0, 0, 1], 0).into())],
        upstreams: vec![UpstreamPlan {
            name: "app".to_owned(),
            servers: vec![ServerPlan::new("server", address)],
            ..UpstreamPlan::default()
        }],
        routes: RouteTable::new(vec![Route::default()]),
        ..Plan::default()
    };
    let setup = Setup {
        plan: Arc::new(plan),
        workers: WORKERS,
        driver,
        pin: false,
        seed: 1,
        errands: None,
        seals: Vec::new(),
        server_seals: Vec::new(),
        prepared: None,
        board: None,
        complain: |_| {},
    };
    start(&setup).expect("workers")
}

struct Client(Patient<TcpStream>);

impl Client {
    fn connect(running: &Running) -> Client {
        let address: SocketAddr = running.addresses()[0].network().expect("of TCP");
        let stream = TcpStream::connect(address).expect("weir accepts");
        stream.set_nodelay(true).expect("an option of every socket");
        Client(patient(stream))
    }

    /// Sends a request, with the head in two pieces, and reads the response.
    fn ask(&mut self) {
        self.0.write_all(b"GET / HTTP/1.1\r\n").expect("an open connection");
        self.0.write_all(b"Host: a\r\n\r\n").expect("an open connection");
        let mut answer = Vec::new();
        let mut buffer = [0; 1024];
        while !answer.ends_with(b"\r\n\r\nok") {
            let count = self.read(&mut buffer);
            assert!(
                count > 0,
                "the connection ended within {:?}",
                String::from_utf8_lossy(&answer)
            );
            answer.extend_from_slice(&buffer[..count]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
    }

    /// Waits for the end of the connection, which must come without a further byte.
    fn expect_end(&mut self) {
        assert_eq!(self.read(&mut [0; 16]), 0, "an answer that nobody asked for");
    }

    /// Reads the next bytes.
    fn read(&mut self, into: &mut [u8]) -> usize {
        self.0.read(into).expect("something in time")
    }
}

/// Returns a sum over all workers.
fn count(running: &Running, of: fn(&weir_proxy::observe::counters::Counters) -> u64) -> u64 {
    running.views().iter().map(|view| of(&view.counters)).sum()
}

/// Makes each worker give all idle connections to the other worker.
fn shed(running: &Running) {
    for from in 0..WORKERS {
        // A worker whose queue of commands is full gets the command next time.
        let _ = running.handle().shed(from.into(), 1 - from, 1000);
    }
}

/// Makes clients send requests, one after the other and again, until `over` is set.
fn keep_asking(mut clients: Vec<Client>, over: &Arc<AtomicBool>) -> JoinHandle<Vec<Client>> {
    let over = Arc::clone(over);
    thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            clients.iter_mut().for_each(Client::ask);
        }
        clients
    })
}

#[test]
fn clients_are_served_on() {
    for driver in drivers() {
        let running = run(driver);
        let over = Arc::new(AtomicBool::new(false));
        let clients = (0..4).map(|_| (0..CLIENTS / 4).map(|_| Client::connect(&running)).collect());
        let asking: Vec<_> =
            clients.map(|clients: Vec<Client>| keep_asking(clients, &over)).collect();
        eventually("connections that moved", || {
            shed(&running);
            count(&running, |counters| counters.connections_taken.get()) > 500
        });
        over.store(true, Ordering::Relaxed);
        let mut clients: Vec<Client> =
            asking.into_iter().flat_map(|thread| thread.join().expect("all were served")).collect();
        eventually("all connections at rest", || {
            count(&running, |counters| counters.connections_given.get())
                == count(&running, |counters| counters.connections_taken.get())
                && count(&running, |counters| counters.client_connections.get()) == CLIENTS as u64
        });
        clients.iter_mut().for_each(Client::ask);
        assert_eq!(
            count(&running, |counters| counters.accepted.get()),
            CLIENTS as u64,
            "each was accepted once"
        );
        assert_eq!(count(&running, |counters| counters.rebirths.get()), 0);
        drop(clients);
        eventually("the ends of all", || {
            count(&running, |counters| counters.client_connections.get()) == 0
        });
        running.stop();
        running.join().expect("workers that end well");
    }
}

#[test]
fn a_drain_in_the_middle_ends_and_cuts_nobody_off() {
    for driver in drivers() {
        for _ in 0..8 {
            let running = run(driver);
            let mut clients: Vec<Client> =
                (0..CLIENTS).map(|_| Client::connect(&running)).collect();
            clients.iter_mut().for_each(Client::ask);
            shed(&running);
            // They send requests while their connections are moving, and the response announces
            // that it is the last.
            clients[..CLIENTS / 2].iter_mut().for_each(|client| {
                client
                    .0
                    .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                    .expect("an open connection");
            });
            running.drain();
            for client in &mut clients[..CLIENTS / 2] {
                let mut answer = Vec::new();
                client.0.read_to_end(&mut answer).expect("an end in time");
                assert!(answer.ends_with(b"\r\n\r\nok"), "{}", String::from_utf8_lossy(&answer));
            }
            clients[CLIENTS / 2..].iter_mut().for_each(Client::expect_end);
            running.join().expect("workers that end");
        }
    }
}
