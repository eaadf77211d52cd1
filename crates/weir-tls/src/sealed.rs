//! A driver around a driver: the sockets of listeners that were [`sealed`](Sealed::seal) and those
//! that were [connected so](Sealed::connect_sealed) speak TLS, and the caller sees plain bytes.
//!
//! ```text
//!   caller ── commands ──▶ Sealed ── records ──▶ driver
//!   caller ◀─ plain bytes ── (opens, seals) ◀─ completions
//! ```
//!
//! A connection is reported as accepted, or connected, when its handshake is complete. Bytes of
//! other connections pass untouched. Differences from a plain socket: one [`Event::Received`] may
//! carry as many bytes as fit the buffer plus one record; [`Event::Ended`] is a close_notify or a
//! FIN ([`Sealed::is_cut`]); a close first sends a close_notify and takes until it is sent, at most
//! [`CLOSE_US`]; nothing is relayed.
//!
//! Bounds: [`HANDSHAKES_MAX`] unfinished handshakes with clients, each with [`HANDSHAKE_BYTES_MAX`]
//! of unused bytes and the time that its listener allows. Those with servers have
//! [`FLIGHT_BYTES_MAX`] and the time that the caller allows. One step of one handshake in a turn.
//! An open session holds [`REST_BYTES_MAX`] of unused bytes, and while it sends the records of one
//! payload.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use weir_io::{
    Class, Completion, Driver, Event, Outbound, Payload, Receive, RecvBuf, Socket, Token,
};

use crate::cipher::{Cipher, Facts, Failure, RECORD_BYTES_MAX, Seal, State, Tally};
use crate::gate::Gate;
use crate::guarded::Guarded;
use crate::records::{self, SHORT_RECORD_BYTES};
use crate::session::{Buffers, Origin, Over, Session, Sessions, Stage};

/// Unfinished handshakes of one driver; with one more the oldest is given up.
pub const HANDSHAKES_MAX: u32 = 4096;
/// Unused bytes of a handshake: one record, the largest message that clients without certificates
/// send.
pub const HANDSHAKE_BYTES_MAX: usize = 18 * 1024;
/// The same for a server's flight: a message of 64 KiB, the largest that rustls takes, with the
/// records around it.
pub const FLIGHT_BYTES_MAX: usize = 72 * 1024;
/// Unused bytes of an open connection: one record of the longest kind is 18,437 (RFC 5246 §6.2.3).
pub(crate) const REST_BYTES_MAX: usize = 20 * 1024;
/// How long a closed connection may take to send its last bytes, microseconds.
pub const CLOSE_US: u64 = 1_000_000;

/// A listener whose connections are sealed.
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) token: Token,
    pub(crate) seal: Arc<dyn Seal>,
    pub(crate) timeout_us: u64,
    /// Connections that are accepted from now on are sealed.
    pub(crate) is_on: bool,
    /// Handshakes of it that are not complete.
    pub(crate) unfinished: u32,
}

/// See the module.
pub struct Sealed<D> {
    pub(crate) inner: D,
    pub(crate) sessions: Sessions,
    /// Tokens of all listeners.
    pub(crate) tokens: Vec<(Socket, Token)>,
    pub(crate) listeners: Vec<Listener>,
    /// Handshakes that have something to work on: those with servers, then the others, oldest
    /// first.
    pub(crate) work: VecDeque<Socket>,
    /// The last turn skipped the step that it could have made for them.
    pub(crate) put_off: bool,
    /// Open sessions that have something to hand out.
    pub(crate) ready: Vec<Socket>,
    /// Sends that failed before the driver saw them.
    pub(crate) failed: Vec<Completion>,
    /// By time, microseconds.
    pub(crate) deadlines: BTreeSet<(u64, u32, u32)>,
    /// The plaintext that was opened last; kept for its memory.
    plain: Vec<u8>,
    pub(crate) buffers: Buffers,
    pub(crate) unfinished: u32,
    /// For accepted connections, and for started ones.
    pub(crate) tally: Tally,
    pub(crate) connects_tally: Tally,
    /// Decides which clients may shake hands; None: all may.
    pub(crate) gate: Option<Box<dyn Gate>>,
    /// The client's end of started connections (tests speak to themselves).
    #[cfg(test)]
    pub(crate) connects: Option<Arc<dyn Seal>>,
    /// Seals each listener.
    #[cfg(test)]
    pub(crate) listens: Option<Arc<dyn Seal>>,
}

impl<D: Driver> Sealed<D> {
    /// Wraps this driver; nothing is sealed yet.
    pub fn new(inner: D) -> Sealed<D> {
        Sealed {
            inner,
            sessions: Sessions::default(),
            tokens: Vec::new(),
            listeners: Vec::new(),
            work: VecDeque::new(),
            put_off: false,
            ready: Vec::new(),
            failed: Vec::new(),
            deadlines: BTreeSet::new(),
            plain: Vec::new(),
            buffers: Buffers::default(),
            unfinished: 0,
            tally: Tally::default(),
            connects_tally: Tally::default(),
            gate: None,
            #[cfg(test)]
            connects: None,
            #[cfg(test)]
            listens: None,
        }
    }

    /// From now on connections of this listener speak TLS; a handshake may take `timeout_us`.
    pub fn seal(&mut self, listener: Socket, seal: Arc<dyn Seal>, timeout_us: u64) {
        if let Some(known) = self.listeners.iter_mut().find(|known| known.socket == listener) {
            (known.seal, known.timeout_us, known.is_on) = (seal, timeout_us, true);
            return;
        }
        let token = self
            .tokens
            .iter()
            .find(|(socket, _)| *socket == listener)
            .map_or(0, |(_, token)| *token);
        self.listeners.push(Listener {
            socket: listener,
            token,
            seal,
            timeout_us,
            is_on: true,
            unfinished: 0,
        });
    }

    /// From now on connections of this listener are plain; those that have begun a handshake, or
    /// are open, are unchanged.
    pub fn unseal_listener(&mut self, listener: Socket) {
        if let Some(known) = self.listeners.iter_mut().find(|known| known.socket == listener) {
            known.is_on = false;
        }
    }

    /// Starts a connection that speaks TLS with this client's end of it. Ends as
    /// [`Driver::connect_by`] does, but only when the handshake is complete; the caller limits how
    /// long that may take.
    ///
    /// # Errors
    /// As [`Driver::connect_by`].
    pub fn connect_sealed(
        &mut self,
        way: Outbound<'_>,
        to: SocketAddr,
        token: Token,
        cipher: Box<dyn Cipher>,
    ) -> io::Result<Socket> {
        let socket = self.inner.connect_by(way, to, token)?;
        self.begin(socket, Origin::Connected, Some(Guarded::around(cipher)), token);
        Ok(socket)
    }

    /// The same for a unix socket.
    ///
    /// # Errors
    /// As [`Driver::connect_unix`].
    pub fn connect_unix_sealed(
        &mut self,
        path: &Path,
        token: Token,
        cipher: Box<dyn Cipher>,
    ) -> io::Result<Socket> {
        let socket = self.inner.connect_unix(path, token)?;
        self.begin(socket, Origin::Connected, Some(Guarded::around(cipher)), token);
        Ok(socket)
    }

    /// The driver inside, for inspection.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The driver inside, for calls that concern only it.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }

    /// The negotiated parameters of an open connection; None when it is not sealed. Returned only
    /// once.
    pub fn take_facts(&mut self, socket: Socket) -> Option<Facts> {
        self.sessions.get_mut(socket)?.facts.take().map(|facts| *facts)
    }

    /// Counts of what has happened to accepted connections since the last call; None: nothing.
    pub fn take_tally(&mut self) -> Option<Tally> {
        (self.tally != Tally::default()).then(|| std::mem::take(&mut self.tally))
    }

    /// The same for started connections.
    pub fn take_connects_tally(&mut self) -> Option<Tally> {
        (self.connects_tally != Tally::default()).then(|| std::mem::take(&mut self.connects_tally))
    }

    pub(crate) fn tally_of(&mut self, origin: Origin) -> &mut Tally {
        match origin {
            Origin::Accepted { .. } => &mut self.tally,
            Origin::Connected => &mut self.connects_tally,
        }
    }

    /// Whether the reported end of a connection was only the network's: the other side did not
    /// announce it (close_notify), so its data may have been truncated on the way (RFC 9112 §9.8).
    /// False when it is not sealed.
    pub fn is_cut(&self, socket: Socket) -> bool {
        self.sessions.get(socket).is_some_and(|session| session.is_cut)
    }

    /// Handshakes of accepted connections that are not complete.
    pub fn unfinished(&self) -> u32 {
        self.unfinished
    }

    /// The same of those that this listener has accepted.
    pub fn unfinished_of(&self, listener: Socket) -> u32 {
        self.listeners
            .iter()
            .find(|known| known.socket == listener)
            .map_or(0, |known| known.unfinished)
    }

    /// Whether a client waits to be accepted at this listener: in its queue, or in a handshake that
    /// has begun. A client that has sent nothing yet may never send anything.
    pub fn is_awaited(&mut self, listener: Socket) -> bool {
        let has_begun = |session: &Session| {
            session.stage == Stage::Handshaking
                && session.heard
                && matches!(session.origin, Origin::Accepted { listener: of, .. } if of == listener)
        };
        self.inner.accept_queue(listener).is_some_and(|queue| queue.waiting > 0)
            || !self.sessions.names(has_begun).is_empty()
    }

    /// Whether closed connections still have bytes to send, at most for [`CLOSE_US`]: the last of
    /// them is the close_notify.
    pub fn is_closing(&self) -> bool {
        !self
            .sessions
            .names(|session| session.stage == Stage::Closing && session.sending)
            .is_empty()
    }

    pub(crate) fn set_deadline(&mut self, socket: Socket, session: &mut Session, at_us: u64) {
        if session.deadline_us > 0 {
            self.deadlines.remove(&(session.deadline_us, socket.index, socket.generation));
        }
        session.deadline_us = at_us;
        if at_us > 0 {
            self.deadlines.insert((at_us, socket.index, socket.generation));
        }
    }

    pub(crate) fn listener_of(&mut self, origin: Origin) -> Option<&mut Listener> {
        let Origin::Accepted { listener, .. } = origin else { return None };
        self.listeners.iter_mut().find(|known| known.socket == listener)
    }

    /// Gives a session up; the caller closes the socket.
    pub(crate) fn drop_session(&mut self, socket: Socket, mut session: Box<Session>) {
        if session.stage == Stage::Handshaking {
            self.end_of_handshake(socket, &mut session);
        }
        self.set_deadline(socket, &mut session, 0);
        self.buffers.give_back(std::mem::take(&mut session.out));
    }

    /// Sends the waiting records, unless a send is in flight.
    pub(crate) fn flush(&mut self, socket: Socket, session: &mut Session) {
        if !session.sending && !session.out.is_empty() {
            session.sending = true;
            session.payload_waits = false;
            self.inner.send(socket, Payload::Owned(std::mem::take(&mut session.out)));
        }
    }

    /// Seals the caller's payload, and sends it or the records that waited before it.
    pub(crate) fn send_sealed(&mut self, socket: Socket, session: &mut Session, payload: Payload) {
        if session.out.capacity() == 0 {
            session.out = self.buffers.take();
        }
        let Session { cipher, rest, out, pace, origin, .. } = session;
        let (before, parts) = (out.len(), parts(&payload));
        let short = match origin {
            Origin::Accepted { .. } => {
                pace.short(parts.iter().map(|part| part.len()).sum(), self.inner.now_us())
            }
            Origin::Connected => 0,
        };
        let sealed = match cipher {
            Some(cipher) if short == 0 => cipher.seal(rest, &parts, RECORD_BYTES_MAX, out),
            Some(cipher) => {
                let (first, others) = records::split(&parts, short);
                let sealed = cipher.seal(rest, &first, SHORT_RECORD_BYTES, out);
                if others.is_empty() {
                    sealed
                } else {
                    sealed.and_then(|()| cipher.seal(rest, &others, RECORD_BYTES_MAX, out))
                }
            }
            None => Err(Failure::Misbehaved),
        };
        if let Err(why) = sealed {
            // One that broke before was already counted.
            if session.cipher.take().is_some() {
                self.tally_of(session.origin).fail(why);
            }
            // A part of it must not look complete.
            session.out.truncate(before);
            let result = Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
            let event = Event::Sent { payload, result };
            return self.failed.push(Completion { token: session.token, socket, event });
        }
        session.payload = Some(payload);
        session.payload_waits = true;
        if session.out.is_empty() && !session.sending {
            // An empty send is sent as well.
            session.sending = true;
            session.payload_waits = false;
            self.inner.send(socket, Payload::Owned(Vec::new()));
        }
        self.flush(socket, session);
    }

    /// Sends the remaining bytes, the last of this socket, then closes it.
    pub(crate) fn close_behind(&mut self, socket: Socket, mut session: Box<Session>) {
        if session.stage == Stage::Handshaking {
            self.end_of_handshake(socket, &mut session);
        }
        session.stage = Stage::Closing;
        self.flush(socket, &mut session);
        if session.sending {
            self.inner.receive(socket, Receive::Off);
            self.set_deadline(socket, &mut session, self.inner.now_us() + CLOSE_US);
            session.cipher = None;
            (session.rest, session.held, session.over) = (Vec::new(), Vec::new(), None);
            self.sessions.put(socket, session);
        } else {
            self.drop_session(socket, session);
            self.inner.close(socket);
        }
    }

    /// The caller wants an open session to be read in this way.
    pub(crate) fn want(&mut self, socket: Socket, session: &mut Session, how: Receive) {
        session.want = how;
        if !session.held.is_empty() || session.over.is_some() {
            if how != Receive::Off {
                self.list(socket, session);
            }
        } else if !session.is_over {
            self.inner.receive(socket, how);
        }
    }

    /// Hands out the bytes that sessions hold.
    pub(crate) fn hand_out(&mut self, into: &mut Vec<Completion>) {
        for completion in std::mem::take(&mut self.failed) {
            if self
                .sessions
                .get(completion.socket)
                .is_some_and(|session| session.stage == Stage::Open)
            {
                into.push(completion);
            }
        }
        for socket in std::mem::take(&mut self.ready) {
            let Some(mut session) = self.sessions.take(socket) else { continue };
            session.listed = false;
            let token = session.token;
            if session.stage == Stage::Open && session.want != Receive::Off {
                let had_bytes = !session.held.is_empty();
                if had_bytes {
                    let bytes = RecvBuf::from_vec(std::mem::take(&mut session.held));
                    into.push(Completion { token, socket, event: Event::Received(bytes) });
                }
                if had_bytes && matches!(session.want, Receive::Once(_)) {
                    session.want = Receive::Off;
                } else if let Some(over) = session.over.take() {
                    into.push(Completion { token, socket, event: over.event() });
                } else if !session.is_over {
                    self.inner.receive(socket, session.want);
                }
            }
            self.sessions.put(socket, session);
        }
    }

    /// Turns a completion of the driver into the one that the caller is to see; false: none.
    pub(crate) fn pass(
        &mut self,
        completion: &mut Completion,
        into_later: &mut Vec<Completion>,
    ) -> bool {
        let socket = completion.socket;
        if matches!(completion.event, Event::Woken) {
            return true;
        }
        if matches!(completion.event, Event::AcceptFailed(_)) {
            return !self.make_room();
        }
        if let Event::Accepted { socket: new, peer } = completion.event {
            let is_sealed =
                self.listeners.iter().any(|listener| listener.socket == socket && listener.is_on);
            // Other clients reach the caller, which judges them itself.
            if is_sealed {
                self.arrived(new, socket, peer);
            }
            return !is_sealed;
        }
        let Some(session) = self.sessions.take(socket) else { return true };
        let event = std::mem::replace(&mut completion.event, Event::Woken);
        let seen = match session.stage {
            Stage::Handshaking => {
                self.during_handshake(socket, session, event, into_later);
                None
            }
            Stage::Open => self.while_open(socket, session, event),
            Stage::Closing => {
                self.while_closing(socket, session, event);
                None
            }
        };
        let Some(event) = seen else { return false };
        completion.event = event;
        true
    }

    /// A send of the driver is over.
    pub(crate) fn sent(&mut self, session: &mut Session, payload: Payload) {
        session.sending = false;
        if let Payload::Owned(buffer) = payload {
            self.buffers.give_back(buffer);
        }
    }

    pub(crate) fn while_open(
        &mut self,
        socket: Socket,
        mut session: Box<Session>,
        event: Event,
    ) -> Option<Event> {
        let seen = match event {
            Event::Received(buffer) => self.opened(socket, &mut session, buffer),
            Event::Ended if session.is_over => None,
            Event::Ended => {
                session.is_cut = true;
                self.over(&mut session, Over::Ended)
            }
            Event::ReceiveFailed(_) if session.is_over => None,
            Event::ReceiveFailed(error) => self.over(&mut session, Over::Failed(error)),
            Event::Sent { payload, result } => {
                let was_whole = !session.payload_waits;
                self.sent(&mut session, payload);
                match result {
                    Err(error) => {
                        session.out = Vec::new();
                        session.finish = false;
                        session
                            .payload
                            .take()
                            .map(|payload| Event::Sent { payload, result: Err(error) })
                    }
                    Ok(()) => {
                        let done = if was_whole { session.payload.take() } else { None };
                        self.flush(socket, &mut session);
                        // Nothing of it was to be sent.
                        let done = if session.payload_waits && !session.sending {
                            session.payload_waits = false;
                            session.payload.take()
                        } else {
                            done
                        };
                        if session.finish && !session.sending {
                            session.finish = false;
                            self.inner.shutdown_write(socket);
                        }
                        done.map(|payload| Event::Sent { payload, result: Ok(()) })
                    }
                }
            }
            other => Some(other),
        };
        self.sessions.put(socket, session);
        seen
    }

    /// Nothing more is received; reported at once, or behind held bytes.
    pub(crate) fn over(&mut self, session: &mut Session, over: Over) -> Option<Event> {
        session.is_over = true;
        if session.held.is_empty() {
            return Some(over.event());
        }
        session.over = Some(over);
        None
    }

    /// Opens received bytes; returns the event for the caller.
    pub(crate) fn opened(
        &mut self,
        socket: Socket,
        session: &mut Session,
        mut buffer: RecvBuf,
    ) -> Option<Event> {
        let state = self.unseal(session, &mut buffer);
        self.flush(socket, session);
        let over = match state {
            Ok(State::Ended) => Some(Over::Ended),
            Ok(_) => None,
            Err(why) => {
                self.tally_of(session.origin).fail(why);
                Some(Over::Failed(io::Error::new(io::ErrorKind::InvalidData, why)))
            }
        };
        if let Some(over) = &over {
            if matches!(over, Over::Failed(_)) {
                // It must not see any more bytes.
                session.cipher = None;
            }
            session.rest = Vec::new();
            session.is_over = true;
            self.inner.receive(socket, Receive::Off);
        }
        let has_bytes = !buffer.is_empty();
        match (over, matches!(session.want, Receive::Once(_))) {
            (Some(over), _) if !has_bytes => return self.over(session, over),
            (Some(over), once) => {
                session.over = Some(over);
                if once {
                    session.want = Receive::Off;
                } else {
                    self.list(socket, session);
                }
            }
            (None, true) if has_bytes => session.want = Receive::Off,
            (None, true) => self.inner.receive(socket, session.want),
            (None, false) => {}
        }
        if has_bytes {
            return Some(Event::Received(buffer));
        }
        self.inner.recycle(buffer);
        None
    }

    /// Turns the records in a buffer, and the rest of earlier ones, into their plaintext.
    pub(crate) fn unseal(
        &mut self,
        session: &mut Session,
        buffer: &mut RecvBuf,
    ) -> Result<State, Failure> {
        let Some(cipher) = session.cipher.as_mut().filter(|_| !session.is_over) else {
            buffer.truncate(0);
            return Ok(State::Open);
        };
        self.plain.clear();
        // With nothing left from before, records are opened in the buffer; otherwise both must be
        // joined in memory.
        if session.rest.is_empty() {
            let bytes = buffer.bytes_mut();
            let opened = cipher.open(bytes, &mut self.plain, &mut session.out);
            session.rest.extend_from_slice(&bytes[opened.used..]);
            // Records are longer than their content.
            bytes[..self.plain.len()].copy_from_slice(&self.plain);
            buffer.truncate(self.plain.len());
            return bounded(session, opened.state);
        }
        session.rest.extend_from_slice(buffer);
        let opened = cipher.open(&mut session.rest, &mut self.plain, &mut session.out);
        session.use_rest(opened.used);
        let plain = RecvBuf::from_vec(std::mem::take(&mut self.plain));
        self.inner.recycle(std::mem::replace(buffer, plain));
        bounded(session, opened.state)
    }

    /// It has something to hand out.
    pub(crate) fn list(&mut self, socket: Socket, session: &mut Session) {
        if !session.listed {
            session.listed = true;
            self.ready.push(socket);
        }
    }

    pub(crate) fn while_closing(
        &mut self,
        socket: Socket,
        mut session: Box<Session>,
        event: Event,
    ) {
        match event {
            Event::Received(buffer) => self.inner.recycle(buffer),
            Event::Sent { payload, result } => {
                self.sent(&mut session, payload);
                if result.is_ok() {
                    self.flush(socket, &mut session);
                }
                session.lingers &= result.is_ok() && !session.is_over;
                if !session.sending && session.lingers {
                    self.inner.shutdown_write(socket);
                    self.inner.receive(socket, Receive::Many(Class::Small));
                }
            }
            Event::Ended | Event::ReceiveFailed(_) => session.lingers = false,
            _ => {}
        }
        if session.sending || session.lingers {
            return self.sessions.put(socket, session);
        }
        self.drop_session(socket, session);
        self.inner.close(socket);
    }

    /// How long the driver may wait.
    pub(crate) fn patience(&self, wait_us: Option<u64>) -> Option<u64> {
        let now_us = self.inner.now_us();
        let due_us = self.deadlines.first().map(|(at_us, ..)| at_us.saturating_sub(now_us));
        if self.work.is_empty() { [wait_us, due_us].into_iter().flatten().min() } else { Some(0) }
    }

    /// Whether the caller no longer knows the socket.
    pub(crate) fn is_gone(&self, socket: Socket) -> bool {
        self.sessions.get(socket).is_some_and(|session| session.stage == Stage::Closing)
    }
}

impl Over {
    pub(crate) fn event(self) -> Event {
        match self {
            Over::Ended => Event::Ended,
            Over::Failed(error) => Event::ReceiveFailed(error),
        }
    }
}

/// Whether a session continues: a library may use nothing of a message before all of it has
/// arrived, in however many records.
fn bounded(session: &Session, state: Result<State, Failure>) -> Result<State, Failure> {
    if state.is_ok() && session.rest.len() > REST_BYTES_MAX {
        Err(Failure::Misbehaved)
    } else {
        state
    }
}

/// The slices of a payload.
fn parts(payload: &Payload) -> Vec<&[u8]> {
    match payload {
        Payload::Owned(bytes) => vec![bytes],
        Payload::Shared(bytes) => vec![bytes],
        Payload::Vectored(slices) => slices.iter().map(|slice| &slice[..]).collect(),
    }
}
