//! A driver around a driver: clients of listeners that were [`announced`](Announced::announce) come
//! through a load balancer that first names the client (PROXY protocol), and the caller sees the
//! connection of that client.
//!
//! A connection is reported as accepted when its header is complete, with the client's address;
//! bytes behind the header are handed out as received. A peer that is no balancer is reset, and one
//! that sends anything else first is closed; both are counted. In the other direction, a connection
//! to a server may be [`preceded`](Announced::precede) by a header: it is reported as connected
//! when the header is sent. Bytes of other connections pass untouched; while neither kind exists a
//! turn is passed on as it is. Bounds: [`PROXY_HEADER_BYTES_MAX`] and [`HEADER_US`] a connection
//! without a complete header; an address for each announced client.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crate::driver::{
    AcceptQueue, Class, Completion, Delivery, Departure, Driver, DriverStats, Event, Payload,
    Receive, Relayed, Socket,
};
use crate::driver::{Token, Waker};
use crate::proxy_header::{PROXY_HEADER_BYTES_MAX, ProxyHeader};
use crate::{Courtesy, Descriptors, Loose, Outbound, RecvBuf};

/// How long a header may take from the accept on, microseconds.
pub const HEADER_US: u64 = 5_000_000;

/// Whether an address is one of a load balancer, which may name the clients of the connections that
/// it forwards.
pub type Balancers = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// A listener whose clients are announced.
struct Listener {
    socket: Socket,
    token: Token,
    /// None: not announced from now on.
    balancers: Option<Balancers>,
}

/// A connection with an incomplete header, or with something to hand out.
struct Waiting {
    generation: u32,
    state: State,
}

enum State {
    /// The caller doesn't know it.
    Header { listener: Socket, peer: SocketAddr, bytes: Vec<u8>, until_us: u64 },
    /// The caller's, with the bytes that came behind the header.
    Rest { token: Token, bytes: Vec<u8>, want: Receive },
    /// It is being connected, and these bytes are sent first; empty: they are being sent.
    Preface { bytes: Vec<u8> },
    /// It is relayed, and this number of bytes from it was sent to the other side before.
    Ahead { bytes: u64 },
    /// The other side of such a relay, while those bytes are being sent.
    Behind,
}

/// See the module.
pub struct Announced<D> {
    inner: D,
    /// Tokens of all listeners.
    tokens: Vec<(Socket, Token)>,
    listeners: Vec<Listener>,
    /// By slot.
    waiting: BTreeMap<u32, Waiting>,
    /// When headers have taken too long: time, slot, generation.
    deadlines: BTreeSet<(u64, u32, u32)>,
    /// Slots with something to hand out that the caller wants.
    ready: Vec<Socket>,
    /// The destinations of announced clients, by slot, with its generation.
    destinations: BTreeMap<u32, (u32, SocketAddr)>,
    /// Connections that were closed because of their header, since the last call that asked.
    refused: u64,
}

impl<D: Driver> Announced<D> {
    /// Wraps this driver; no listener is announced yet.
    pub fn new(inner: D) -> Announced<D> {
        Announced {
            inner,
            tokens: Vec::new(),
            listeners: Vec::new(),
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            ready: Vec::new(),
            destinations: BTreeMap::new(),
            refused: 0,
        }
    }

    /// From now on these balancers announce the clients of this listener; None: clients connect
    /// directly.
    pub fn announce(&mut self, listener: Socket, balancers: Option<Balancers>) {
        let known = self.listeners.iter_mut().find(|known| known.socket == listener);
        match (known, balancers) {
            (Some(known), balancers) => known.balancers = balancers,
            (None, None) => {}
            (None, balancers) => {
                let token = self
                    .tokens
                    .iter()
                    .find(|(socket, _)| *socket == listener)
                    .map_or(0, |(_, token)| *token);
                self.listeners.push(Listener { socket: listener, token, balancers });
            }
        }
    }

    /// Makes a connection that was just started begin with these bytes, which are not empty,
    /// whatever protocol follows.
    pub fn precede(&mut self, socket: Socket, header: Vec<u8>) {
        self.put(socket, State::Preface { bytes: header });
    }

    /// The driver inside, for inspection.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Connections that were closed since the last call because they were not announced as
    /// required.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    fn take(&mut self, socket: Socket) -> Option<State> {
        self.waiting
            .get(&socket.index)
            .filter(|waiting| waiting.generation == socket.generation)?;
        self.waiting.remove(&socket.index).map(|waiting| waiting.state)
    }

    fn put(&mut self, socket: Socket, state: State) {
        self.waiting.insert(socket.index, Waiting { generation: socket.generation, state });
    }

    fn rest(&mut self, socket: Socket) -> Option<(&mut Token, &mut Receive)> {
        let waiting = self
            .waiting
            .get_mut(&socket.index)
            .filter(|waiting| waiting.generation == socket.generation)?;
        match &mut waiting.state {
            State::Rest { token, want, .. } => Some((token, want)),
            _ => None,
        }
    }

    /// A connection is closed: drops the state that was kept for it.
    fn forget(&mut self, socket: Socket) {
        self.take(socket);
        if self
            .destinations
            .get(&socket.index)
            .is_some_and(|(generation, _)| *generation == socket.generation)
        {
            self.destinations.remove(&socket.index);
        }
    }

    /// Handles a driver's event for one socket; false: it is not for the caller.
    fn pass(&mut self, completion: &mut Completion) -> bool {
        if matches!(completion.event, Event::Woken) {
            return true;
        }
        if let Event::Accepted { socket, peer } = completion.event {
            let listener = self.listeners.iter().find(|known| known.socket == completion.socket);
            let Some(balancers) = listener.and_then(|listener| listener.balancers.clone()) else {
                return true;
            };
            self.begin(socket, completion.socket, peer, &balancers);
            return false;
        }
        match self.take(completion.socket) {
            None => true,
            Some(rest @ State::Rest { .. }) => {
                self.put(completion.socket, rest);
                true
            }
            Some(State::Ahead { bytes }) => {
                match &mut completion.event {
                    Event::RelayEnded { moved, .. } => moved.a_to_b += bytes,
                    _ => self.put(completion.socket, State::Ahead { bytes }),
                }
                true
            }
            // The caller has not requested that send; a failure is the relay's.
            Some(State::Behind) if matches!(completion.event, Event::Sent { .. }) => false,
            Some(State::Behind) => {
                self.put(completion.socket, State::Behind);
                true
            }
            Some(State::Preface { bytes }) => {
                let event = std::mem::replace(&mut completion.event, Event::Woken);
                let Some(seen) = self.preface(completion.socket, bytes, event) else {
                    return false;
                };
                completion.event = seen;
                true
            }
            Some(State::Header { listener, peer, bytes, until_us }) => {
                let event = std::mem::replace(&mut completion.event, Event::Woken);
                let seen = self.header(completion.socket, listener, peer, bytes, until_us, event);
                let Some(seen) = seen else { return false };
                *completion = seen;
                true
            }
        }
    }

    fn begin(&mut self, socket: Socket, listener: Socket, peer: SocketAddr, balancers: &Balancers) {
        if !balancers(peer.ip().to_canonical()) {
            self.refused += 1;
            return self.inner.reset(socket);
        }
        let until_us = self.inner.now_us() + HEADER_US;
        self.deadlines.insert((until_us, socket.index, socket.generation));
        self.put(socket, State::Header { listener, peer, bytes: Vec::new(), until_us });
        self.inner.receive(socket, Receive::Once(Class::Small));
    }

    /// Converts an event of a connection that begins with a header to the one that the caller is to
    /// see.
    fn preface(&mut self, socket: Socket, bytes: Vec<u8>, event: Event) -> Option<Event> {
        match event {
            Event::Connected(Ok(())) if !bytes.is_empty() => {
                self.put(socket, State::Preface { bytes: Vec::new() });
                self.inner.send(socket, Payload::Owned(bytes));
                None
            }
            Event::Sent { result, .. } => Some(Event::Connected(result)),
            event => Some(event),
        }
    }

    /// Handles more bytes of a header, or the end of them. Returns the accept that the caller is to
    /// see, if the header is complete.
    fn header(
        &mut self,
        socket: Socket,
        listener: Socket,
        peer: SocketAddr,
        mut bytes: Vec<u8>,
        until_us: u64,
        event: Event,
    ) -> Option<Completion> {
        let read = match event {
            Event::Received(buffer) => {
                bytes.extend_from_slice(&buffer);
                self.inner.recycle(buffer);
                ProxyHeader::read(&bytes)
            }
            // A client that leaves before that has had no request.
            _ => {
                self.close_silent(socket, until_us);
                return None;
            }
        };
        match read {
            Ok(None) if bytes.len() < PROXY_HEADER_BYTES_MAX => {
                self.inner.receive(socket, Receive::Once(Class::Small));
                self.put(socket, State::Header { listener, peer, bytes, until_us });
                None
            }
            Ok(Some(header)) => {
                self.deadlines.remove(&(until_us, socket.index, socket.generation));
                bytes.drain(..header.bytes);
                if !bytes.is_empty() {
                    self.put(socket, State::Rest { token: 0, bytes, want: Receive::Off });
                }
                if let Some(destination) = header.destination {
                    self.destinations.insert(socket.index, (socket.generation, destination));
                }
                let token = self
                    .listeners
                    .iter()
                    .find(|known| known.socket == listener)
                    .map_or(0, |known| known.token);
                let event = Event::Accepted { socket, peer: header.client.unwrap_or(peer) };
                Some(Completion { token, socket: listener, event })
            }
            _ => {
                self.refused += 1;
                self.close_silent(socket, until_us);
                None
            }
        }
    }

    /// Closes a connection that the caller does not know.
    fn close_silent(&mut self, socket: Socket, until_us: u64) {
        self.deadlines.remove(&(until_us, socket.index, socket.generation));
        self.inner.close(socket);
    }

    /// Hands out the wanted bytes from behind headers.
    fn hand_out(&mut self, into: &mut Vec<Completion>) {
        for socket in std::mem::take(&mut self.ready) {
            match self.take(socket) {
                Some(State::Rest { token, bytes, want }) if want != Receive::Off => {
                    into.push(Completion {
                        token,
                        socket,
                        event: Event::Received(RecvBuf::from_vec(bytes)),
                    });
                    if matches!(want, Receive::Many(_)) {
                        self.inner.receive(socket, want);
                    }
                }
                Some(state) => self.put(socket, state),
                None => {}
            }
        }
    }

    /// Closes the connections with headers that have taken too long.
    fn expire(&mut self) {
        let now_us = self.inner.now_us();
        while let Some(&(until_us, index, generation)) =
            self.deadlines.first().filter(|(at_us, ..)| *at_us <= now_us)
        {
            let socket = Socket { index, generation };
            self.refused += 1;
            self.take(socket);
            self.close_silent(socket, until_us);
        }
    }

    /// Closing a listener also closes its connections without a complete header.
    fn close_listener(&mut self, listener: Socket) {
        self.tokens.retain(|(socket, _)| *socket != listener);
        self.listeners.retain(|known| known.socket != listener);
        let is_its =
            |state: &State| matches!(state, State::Header { listener: of, .. } if *of == listener);
        let all = self.waiting.iter().filter(|(_, waiting)| is_its(&waiting.state));
        let names: Vec<Socket> =
            all.map(|(&index, waiting)| Socket { index, generation: waiting.generation }).collect();
        for socket in names {
            if let Some(State::Header { until_us, .. }) = self.take(socket) {
                self.close_silent(socket, until_us);
            }
        }
    }
}

impl<D: Driver> Driver for Announced<D> {
    fn now_us(&self) -> u64 {
        self.inner.now_us()
    }

    fn listen(&mut self, listener: impl Into<OwnedFd>, token: Token) -> io::Result<Socket> {
        let socket = self.inner.listen(listener, token)?;
        self.tokens.push((socket, token));
        Ok(socket)
    }

    fn turn_away(&mut self, listener: Socket) {
        self.inner.turn_away(listener);
    }

    fn set_courtesy(&mut self, courtesy: Courtesy) {
        self.inner.set_courtesy(courtesy);
    }

    fn share_descriptors(&mut self, descriptors: Arc<Descriptors>) {
        self.inner.share_descriptors(descriptors);
    }

    fn hand_over(&mut self, listener: Socket) {
        self.inner.hand_over(listener);
    }

    fn duplicate(&mut self, listener: Socket) -> io::Result<OwnedFd> {
        self.inner.duplicate(listener)
    }

    fn set_backlog(&mut self, listener: Socket, backlog: u32) {
        self.inner.set_backlog(listener, backlog);
    }

    fn connect_by(
        &mut self,
        way: Outbound<'_>,
        to: SocketAddr,
        token: Token,
    ) -> io::Result<Socket> {
        self.inner.connect_by(way, to, token)
    }

    fn connect_unix(&mut self, path: &Path, token: Token) -> io::Result<Socket> {
        self.inner.connect_unix(path, token)
    }

    fn adopt(&mut self, begun: OwnedFd, token: Token) -> io::Result<Socket> {
        self.inner.adopt(begun, token)
    }

    /// Not released: a connection with bytes left behind its header, and one whose header has named
    /// the destination of its client.
    fn release(&mut self, socket: Socket) -> bool {
        let waits = self
            .waiting
            .get(&socket.index)
            .is_some_and(|waiting| waiting.generation == socket.generation);
        let is_told = self
            .destinations
            .get(&socket.index)
            .is_some_and(|(generation, _)| *generation == socket.generation);
        let goes = !waits && !is_told && self.inner.release(socket);
        if goes {
            self.forget(socket);
        }
        goes
    }

    fn take_in(&mut self, connection: Loose, token: Token) -> io::Result<Socket> {
        self.inner.take_in(connection, token)
    }

    fn set_token(&mut self, socket: Socket, token: Token) {
        if let Some((known, _)) = self.rest(socket) {
            *known = token;
        }
        self.inner.set_token(socket, token);
    }

    fn receive(&mut self, socket: Socket, how: Receive) {
        let Some((_, want)) = self.rest(socket) else { return self.inner.receive(socket, how) };
        *want = how;
        if how != Receive::Off && !self.ready.contains(&socket) {
            self.ready.push(socket);
        }
    }

    fn send(&mut self, socket: Socket, payload: Payload) {
        self.inner.send(socket, payload);
    }

    fn shutdown_write(&mut self, socket: Socket) {
        self.inner.shutdown_write(socket);
    }

    fn defer(&mut self, socket: Socket, on: bool) {
        self.inner.defer(socket, on);
    }

    fn acknowledge(&mut self, socket: Socket) {
        self.inner.acknowledge(socket);
    }

    /// Bytes behind the header of `a` that were not handed out are sent first. Only `a` shows that
    /// they were moved.
    fn relay(&mut self, a: Socket, b: Socket) {
        debug_assert!(self.rest(b).is_none(), "nobody announces servers");
        if self.rest(a).is_some()
            && let Some(State::Rest { bytes, .. }) = self.take(a)
        {
            self.put(a, State::Ahead { bytes: bytes.len() as u64 });
            self.put(b, State::Behind);
            self.inner.send(b, Payload::Owned(bytes));
        }
        self.inner.relay(a, b);
    }

    fn relayed(&self, socket: Socket) -> Option<Relayed> {
        let mut moved = self.inner.relayed(socket)?;
        let waiting = self
            .waiting
            .get(&socket.index)
            .filter(|waiting| waiting.generation == socket.generation);
        if let Some(Waiting { state: State::Ahead { bytes }, .. }) = waiting {
            moved.a_to_b += bytes;
        }
        Some(moved)
    }

    fn close(&mut self, socket: Socket) {
        self.forget(socket);
        self.close_listener(socket);
        self.inner.close(socket);
    }

    fn reset(&mut self, socket: Socket) {
        self.forget(socket);
        self.inner.reset(socket);
    }

    fn streams(&self) -> Vec<Socket> {
        let mut streams = self.inner.streams();
        let is_hidden = |socket: &Socket| {
            let waiting = self
                .waiting
                .get(&socket.index)
                .filter(|waiting| waiting.generation == socket.generation);
            waiting.is_some_and(|waiting| matches!(waiting.state, State::Header { .. }))
        };
        streams.retain(|socket| !is_hidden(socket));
        streams
    }

    fn recycle(&mut self, buffer: RecvBuf) {
        self.inner.recycle(buffer);
    }

    fn buffers(&self, class: Class) -> (u32, u32) {
        self.inner.buffers(class)
    }

    /// For an announced client, the destination that its balancer names.
    fn destination(&mut self, socket: Socket) -> Option<SocketAddr> {
        let told = self
            .destinations
            .get(&socket.index)
            .filter(|(generation, _)| *generation == socket.generation);
        told.map(|(_, address)| *address).or_else(|| self.inner.destination(socket))
    }

    fn path(&mut self, socket: Socket) -> Option<crate::Path> {
        self.inner.path(socket)
    }

    fn set_congestion(&mut self, socket: Socket, name: &str) {
        self.inner.set_congestion(socket, name);
    }

    fn keep_alive(&mut self, socket: Socket) {
        self.inner.keep_alive(socket);
    }

    fn receiving_core(&mut self, socket: Socket) -> Option<u32> {
        self.inner.receiving_core(socket)
    }

    fn delivery(&mut self, socket: Socket) -> Delivery {
        self.inner.delivery(socket)
    }

    fn departure(&mut self, socket: Socket) -> Departure {
        self.inner.departure(socket)
    }

    /// Connections with a header that has begun but is not complete count as waiting to be
    /// accepted.
    fn accept_queue(&mut self, listener: Socket) -> Option<AcceptQueue> {
        let is_begun = |state: &State| {
            matches!(
                state,
                State::Header { listener: of, bytes, .. } if *of == listener && !bytes.is_empty()
            )
        };
        let begun = self.waiting.values().filter(|waiting| is_begun(&waiting.state)).count() as u32;
        match self.inner.accept_queue(listener) {
            Some(queue) => {
                Some(AcceptQueue { waiting: queue.waiting.saturating_add(begun), ..queue })
            }
            // The listener was handed over.
            None if begun > 0 => Some(AcceptQueue { waiting: begun, ..AcceptQueue::default() }),
            None => None,
        }
    }

    fn turn(&mut self, wait_us: Option<u64>, into: &mut Vec<Completion>) -> io::Result<()> {
        if self.listeners.is_empty() && self.waiting.is_empty() {
            return self.inner.turn(wait_us, into);
        }
        let before = into.len();
        self.hand_out(into);
        let due_us =
            self.deadlines.first().map(|(at_us, ..)| at_us.saturating_sub(self.inner.now_us()));
        let wait_us = if into.len() > before {
            Some(0)
        } else {
            [wait_us, due_us].into_iter().flatten().min()
        };
        let (from, mut at) = (into.len(), 0);
        self.inner.turn(wait_us, into)?;
        into.retain_mut(|completion| {
            at += 1;
            at <= from || self.pass(completion)
        });
        self.expire();
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.inner.waker()
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn stats(&self) -> DriverStats {
        self.inner.stats()
    }
}

#[cfg(test)]
mod tests;
