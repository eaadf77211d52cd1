//! Actions of clients in the world, and their results.

use std::collections::VecDeque;
use std::net::SocketAddr;

use weir_check::StrictReplies;
use weir_proxy::base::output::Out;
use weir_proxy::base::token::Token;
use weir_proxy::engine::{Unwanted, arrive, part};
use weir_proxy::observe::secured::Secured;
use weir_proxy::plan::{Entrance, Protocols};

use super::{CLIENT_SOCKETS, Client, Cut, Event, Incoming, World, pieces};

impl World {
    /// A new client of an engine.
    pub fn client_of(&mut self, node: usize) -> usize {
        self.accept(node, Protocols::default())
    }

    /// A new client that speaks HTTP/2 only: its received bytes are in [`Client::raw`].
    pub fn client_of_http2(&mut self, node: usize) -> usize {
        let client = self.accept(node, Protocols { http1: false, http2: true });
        self.clients[client].raw = Some(Vec::new());
        client
    }

    /// A new client of an engine that speaks these protocols.
    pub(super) fn accept(&mut self, node: usize, protocols: Protocols) -> usize {
        let number = self.clients.len();
        let port = 10_000 + number as u16;
        let peer = SocketAddr::new(self.peer, port);
        let (listener, serves) = (self.listener, self.serves);
        let [destination, own] =
            [false, true].map(|is_own| self.destination.filter(|_| self.is_own == is_own));
        let entrance =
            Entrance { listener, serves, protocols, destination, own, is_leaving: false };
        let engine = &mut self.nodes[node].engine;
        let token =
            engine.accepted(CLIENT_SOCKETS + number as u64, peer, entrance).expect("accepted");
        self.clients.push(Client {
            node,
            port,
            token,
            pending: VecDeque::new(),
            receiving: true,
            taken_at_once: 0,
            deferred: false,
            judge: StrictReplies::new(),
            frames: None,
            replies: Vec::new(),
            end: None,
            closed: false,
            was_reset: false,
            gone: false,
            leaves: false,
            stalled: false,
            sending: None,
            tunnel: Vec::new(),
            raw: None,
            taken: 0,
            acked: None,
            is_taking: false,
        });
        // A server is connected at once, or the client is read on request.
        if Token::is_flow(token) {
            self.clients[number].receiving = false;
            self.act(node);
        }
        number
    }

    pub fn client(&mut self) -> usize {
        self.client_of(0)
    }

    /// A client that was just accepted speaks TLS.
    pub fn seal(&mut self, client: usize, secured: Secured) {
        let Client { node, token, .. } = self.clients[client];
        self.nodes[node].engine.client_sealed(token, secured);
    }

    /// Moves idle clients of an engine, at most `most`, to another one. Returns them in the order
    /// in which they moved. A client that is not wanted there is closed.
    pub fn move_clients(&mut self, from: usize, to: usize, most: usize) -> Vec<usize> {
        let parted = part(&mut self.nodes[from].engine, most);
        let engine = &mut self.nodes[to].engine;
        let mut numbers = Vec::new();
        for (socket, moved) in parted {
            let number = (socket - CLIENT_SOCKETS) as usize;
            let client = &mut self.clients[number];
            assert_eq!(
                (client.node, client.receiving, client.deferred),
                (from, true, false),
                "an idle client"
            );
            assert!(client.sending.is_none() && !client.closed, "an idle client");
            match arrive(engine, socket, moved, false) {
                Ok(token) => (client.node, client.token) = (to, token),
                Err(unwanted) => {
                    (client.closed, client.was_reset) = (true, unwanted == Unwanted::Reset)
                }
            }
            numbers.push(number);
        }
        numbers
    }

    /// Tells the judge of a request that bytes sent later contain.
    pub fn expect(&mut self, client: usize, method: &str, old: bool, upgrade: bool) {
        self.clients[client].judge.ask(method, old, upgrade);
    }

    /// Queues bytes of a client as one segment.
    pub fn send(&mut self, client: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.clients[client].pending.push_back(Incoming::Bytes(bytes.to_vec()));
        }
    }

    /// Queues bytes of a client that a receive has brought before it was told to stop.
    pub fn send_late(&mut self, client: usize, bytes: &[u8]) {
        self.send(client, bytes);
        self.clients[client].receiving = true;
    }

    /// Queues bytes of a client, cut.
    pub fn send_cut(&mut self, client: usize, bytes: &[u8], cut: Cut) {
        for piece in pieces(bytes, cut, &mut self.rng) {
            self.send(client, &piece);
        }
    }

    /// A GET with a nonce.
    pub fn get(&mut self, client: usize, nonce: &str) {
        self.ask(client, "GET", &format!("/v?n={nonce}"), "");
    }

    /// A request without a body; `fields` are complete lines.
    pub fn ask(&mut self, client: usize, method: &str, target: &str, fields: &str) {
        self.expect(client, method, false, fields.contains("Upgrade"));
        let text = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        self.send(client, text.as_bytes());
    }

    /// A POST whose complete body is in the same segment.
    pub fn post(&mut self, client: usize, nonce: &str, body: &[u8]) {
        self.expect(client, "POST", false, false);
        let head = format!(
            "POST /p?n={nonce} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.send(client, &[head.as_bytes(), body].concat());
    }

    /// The client ends its sending direction.
    pub fn half_close(&mut self, client: usize) {
        self.clients[client].pending.push_back(Incoming::Fin);
    }

    /// The client resets.
    pub fn reset(&mut self, client: usize) {
        self.clients[client].pending.clear();
        self.clients[client].pending.push_back(Incoming::Rst);
        self.clients[client].receiving = true;
    }

    /// The client resets behind what it has sent, which weir can still receive.
    pub fn reset_behind(&mut self, client: usize) {
        self.clients[client].pending.push_back(Incoming::Rst);
    }

    /// The client reads nothing, or everything again.
    pub fn stall(&mut self, client: usize, stalled: bool) {
        self.clients[client].stalled = stalled;
        if !stalled && let Some(out) = self.clients[client].sending.take() {
            self.hand_over(client, out);
        }
    }

    /// Lets a stalled client take one send.
    pub fn sip(&mut self, client: usize) {
        if let Some(out) = self.clients[client].sending.take() {
            self.hand_over(client, out);
        }
    }

    pub(super) fn hand_over(&mut self, client: usize, out: Out) {
        let machine = &mut self.clients[client];
        let bytes = out.to_vec();
        machine.taken += bytes.len() as u64;
        if let Some(raw) = &mut machine.raw {
            raw.extend_from_slice(&bytes);
        } else if machine.frames.is_some() {
            self.hear_frames(client, &bytes);
        } else if !machine.gone {
            machine.judge.feed(&bytes).unwrap_or_else(|fault| panic!("client {client}: {fault:?}"));
        }
        let machine = &mut self.clients[client];
        machine.replies.extend(std::iter::from_fn(|| machine.judge.poll_reply()));
        machine.tunnel.extend(machine.judge.take_tunnel());
        if machine.leaves {
            machine.pending = VecDeque::from([Incoming::Rst]);
            machine.receiving = true;
            machine.leaves = false;
        }
        let spare = if let Out::Owned(buffer) = out { Some(buffer) } else { None };
        self.nodes[machine.node].events.push_back(Event::ClientSent(client, spare));
    }

    pub(super) fn client_end(&mut self, client: usize) {
        let machine = &mut self.clients[client];
        if machine.end.is_none() {
            machine.end = Some(machine.judge.end());
            machine.replies.extend(std::iter::from_fn(|| machine.judge.poll_reply()));
        }
    }
}
