//! Actions of servers in the world, and the requests that reach them.

use std::collections::VecDeque;
use std::net::SocketAddr;

use weir_check::{Request, Rules, StrictRequests};
use weir_proxy::base::output::Out;
use weir_proxy::base::token::Token;
use weir_proxy::engine::{Delivery, FlowEvent, on_flow, on_port_taken};
use weir_proxy::plan::{Announcement, Way};

use super::{Conn, Do, Door, Event, Incoming, PORT, Seen, World, pieces};

impl World {
    /// A server acts on a connection without a request.
    pub fn say(&mut self, conn: usize, what: Do) {
        self.conns[conn].script.push_back(what);
    }

    /// A server's end of a connection vanishes, with all pending actions.
    pub fn cut(&mut self, conn: usize, end: Do) {
        self.conns[conn].script.clear();
        self.conns[conn].wait_until_us = 0;
        self.conns[conn].script.push_back(end);
    }

    /// Open upstream connections.
    pub fn open_conns(&self) -> Vec<usize> {
        (0..self.conns.len()).filter(|&conn| self.conns[conn].is_open()).collect()
    }

    /// Returns complete requests that reached servers, in order.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.arrivals.iter().map(|(conn, position)| &self.conns[*conn].requests[*position])
    }

    /// Returns the servers that a request with this nonce reached completely, in order.
    pub fn seen_by(&self, nonce: &str) -> Vec<usize> {
        let arrived = self
            .arrivals
            .iter()
            .filter(|(conn, at)| self.conns[*conn].requests[*at].nonce() == nonce);
        arrived.map(|(conn, _)| self.conns[*conn].server).collect()
    }

    /// How often a request with this nonce reached a server completely.
    pub fn times_served(&self, nonce: &str) -> usize {
        self.requests().filter(|request| request.nonce() == nonce).count()
    }

    /// Restarts the measurement of `depth` of connections.
    pub fn measure_depth(&mut self) {
        let now = |conn: &Conn| if conn.closed { 0 } else { conn.judge.unanswered() };
        self.conns.iter_mut().for_each(|conn| conn.depth = now(conn));
    }

    /// Most unanswered requests on one connection since [`World::measure_depth`].
    pub fn depth(&self) -> usize {
        self.conns.iter().map(|conn| conn.depth).max().unwrap_or_default()
    }

    /// Plays the due actions of servers. True when something happened.
    pub(super) fn play(&mut self) -> bool {
        let mut acted = false;
        let mut places: Vec<usize> = self.servers.iter().map(|server| server.places).collect();
        for conn in 0..self.conns.len() {
            let machine = &self.conns[conn];
            if !machine.closed && !machine.left {
                let free = &mut places[machine.server];
                if *free == 0 {
                    continue;
                }
                *free -= 1;
            }
            while self.play_one(conn) {
                acted = true;
            }
        }
        acted
    }

    pub(super) fn play_one(&mut self, number: usize) -> bool {
        let conn = &mut self.conns[number];
        if self.now_us < conn.wait_until_us {
            return false;
        }
        let Some(next) = conn.script.front() else { return false };
        if let Do::AwaitReply(client) = next {
            let client = &self.clients[*client];
            let has = !client.replies.is_empty() || client.judge.current().is_some() || client.gone;
            if !has {
                return false;
            }
        }
        if *next == Do::Silence || matches!(next, Do::AwaitArrival(count) if conn.arrivals < *count)
        {
            return false;
        }
        let Some(next) = conn.script.pop_front() else { return false };
        let bytes = match next {
            Do::Delay(us) => {
                conn.wait_until_us = self.now_us + us;
                self.timers.insert(conn.wait_until_us, ());
                return true;
            }
            Do::Fin => {
                conn.left = true;
                conn.incoming.push_back(Incoming::Fin);
                return true;
            }
            Do::Rst => {
                conn.left = true;
                conn.incoming.push_back(Incoming::Rst);
                conn.sent_ok = false;
                conn.script.clear();
                return true;
            }
            Do::Answer(bytes) => {
                conn.judge.answered();
                bytes
            }
            Do::Switch(bytes) => {
                conn.judge.upgraded();
                conn.tunnelling = true;
                bytes
            }
            Do::Bytes(bytes) => bytes,
            Do::AwaitReply(_) | Do::AwaitArrival(_) | Do::Silence => return true,
        };
        for piece in pieces(&bytes, self.cut_upstream, &mut self.rng) {
            self.conns[number].incoming.push_back(Incoming::Bytes(piece));
        }
        true
    }

    /// weir sent bytes to a server.
    pub(super) fn arrive(&mut self, number: usize, bytes: &[u8]) {
        let conn = &mut self.conns[number];
        assert!(!conn.fin, "conn {number}: bytes behind the end");
        conn.arrivals += 1;
        conn.judge.feed(bytes).unwrap_or_else(|fault| panic!("conn {number}: {fault:?}"));
        conn.depth = conn.depth.max(conn.judge.unanswered());
        if conn.tunnelling {
            conn.tunnel.extend(conn.judge.take_tunnel());
            return;
        }
        let serve = &mut self.servers[conn.server].serve;
        while let Some(request) = conn.judge.poll_request() {
            let behind = !conn.script.is_empty();
            let seen = Seen {
                conn: number,
                request: &request,
                complete: true,
                behind,
                now_us: self.now_us,
                arrival: conn.arrivals,
            };
            if !std::mem::take(&mut conn.head_answered) {
                conn.script.extend(serve(&seen).unwrap_or_else(|| vec![Do::Silence]));
            }
            self.arrivals.push((number, conn.requests.len()));
            conn.requests.push(request);
        }
        if let Some(request) = conn.judge.current()
            && !conn.head_answered
        {
            let behind = !conn.script.is_empty();
            let seen = Seen {
                conn: number,
                request,
                complete: false,
                behind,
                now_us: self.now_us,
                arrival: conn.arrivals,
            };
            if let Some(script) = serve(&seen) {
                conn.head_answered = true;
                conn.script.extend(script);
            }
        }
    }

    pub(super) fn send_conn(&mut self, number: usize, out: &Out) {
        let conn = &mut self.conns[number];
        assert!(conn.is_open() && !conn.sending, "conn {number}: a send that is not allowed");
        assert!(!out.is_empty());
        conn.sending = true;
        let (node, ok, deaf) = (conn.node, conn.sent_ok, self.servers[conn.server].deaf);
        if deaf {
            conn.deaf_send = true;
        } else {
            if ok && self.conns[number].delivery != Delivery::Unheard {
                self.arrive(number, &out.to_vec());
            }
            self.nodes[node].events.push_back(Event::UpstreamSent(number, ok));
        }
    }

    /// A deaf server takes the send that waits.
    pub fn swallow(&mut self, number: usize) {
        let conn = &mut self.conns[number];
        if std::mem::take(&mut conn.deaf_send) {
            self.nodes[conn.node].events.push_back(Event::UpstreamSent(number, true));
        }
    }

    pub(super) fn connect(
        &mut self,
        node: usize,
        token: u64,
        address: SocketAddr,
        announcement: Option<Announcement>,
        way: Option<Way>,
    ) {
        let engine = &mut self.nodes[node].engine;
        match &mut self.descriptors {
            Some(0) if Token::is_flow(token) => {
                return on_flow(engine, token, FlowEvent::Unstarted);
            }
            Some(0) => return engine.upstream_connected(token, false),
            descriptors => descriptors.iter_mut().for_each(|left| *left -= 1),
        }
        self.connects.push(address);
        let from = way.as_ref().and_then(|way| way.from);
        self.ways.push(way);
        let is_taken =
            |late| self.taken.is_some_and(|(taken, when)| from == Some(taken) && when == late);
        let is_taken_late = is_taken(true);
        if is_taken(false) {
            return on_port_taken(engine, token);
        }
        // A socket is of one family.
        if from.is_some_and(|from| from.is_ipv4() != address.is_ipv4()) {
            return match Token::is_flow(token) {
                true => on_flow(engine, token, FlowEvent::Unstarted),
                false => engine.upstream_connected(token, false),
            };
        }
        let server = usize::from(address.port() - PORT);
        if self.servers[server].door == Door::Absent {
            return engine.upstream_connected(token, false);
        }
        let number = self.conns.len();
        self.conns.push(Conn {
            node,
            server,
            token,
            announcement,
            connected: false,
            closed: false,
            was_reset: false,
            fin: false,
            judge: StrictRequests::new(Rules::default()),
            requests: Vec::new(),
            depth: 0,
            arrivals: 0,
            tunnel: Vec::new(),
            tunnelling: self.raw,
            script: VecDeque::new(),
            wait_until_us: 0,
            incoming: VecDeque::new(),
            receiving: false,
            sending: false,
            acknowledged: 0,
            delivery: Delivery::Acknowledged,
            examined: 0,
            sent_ok: true,
            head_answered: false,
            deaf_send: false,
            left: false,
        });
        if self.raw {
            self.conns[number].judge.upgraded();
        }
        if !self.nodes[node].engine.upstream_started(token, number as u64) {
            self.conns[number].closed = true;
            return;
        }
        if is_taken_late {
            return on_port_taken(&mut self.nodes[node].engine, token);
        }
        match self.servers[server].door {
            Door::Open => self.nodes[node].events.push_back(Event::Connected(number, true)),
            Door::Refuses => self.nodes[node].events.push_back(Event::Connected(number, false)),
            Door::Mute | Door::Absent => {}
            Door::Slams => {
                self.nodes[node].events.push_back(Event::Connected(number, true));
                self.say(number, Do::Fin);
            }
        }
    }
}
