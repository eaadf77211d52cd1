//! The first part of a sealed connection: from the accept, or the connect, to the end of its
//! handshake.
//!
//! Received bytes are collected and processed in steps. Handshakes with servers come first, because
//! requests wait for them, then the oldest; a waiting handshake is not read further. A step takes
//! 30 to 1,000 us without interruption, and every other connection of the worker waits for it. So
//! at most one step is made between two checks for other events, and those events are reported
//! before it. Clients that have left before their first step are dropped without it, at most
//! [`LEFT_MAX`] between two checks. A connection that fails is closed behind its alert, and counted
//! under its reason.

use std::io;

use weir_io::{Class, Completion, Driver, Event, Receive, Socket, Token};

use crate::cipher::{ALERT_RECORD, Cipher, Failure, HANDSHAKE_RECORD, State};
use crate::guarded::Guarded;
use crate::sealed::{FLIGHT_BYTES_MAX, HANDSHAKE_BYTES_MAX, HANDSHAKES_MAX, Listener, Sealed};
use crate::session::{Origin, Over, Session, Stage};

/// Handshakes of clients that have left, which are given up in one turn: a system call each.
const LEFT_MAX: usize = 64;
/// When descriptors are scarce, a handshake of this age makes room, microseconds; most handshakes
/// take far less.
const ROOM_US: u64 = 1_000_000;
/// A client that is silent for this time after the accept may never send anything.
const SILENT_US: u64 = 100_000;
/// One in this number of handshakes makes room at a time.
const ROOM_SHARE: u32 = 16;

impl<D: Driver> Sealed<D> {
    /// Begins a connection that is to be sealed.
    pub(crate) fn begin(
        &mut self,
        socket: Socket,
        origin: Origin,
        cipher: Option<Box<dyn Cipher>>,
        token: Token,
    ) {
        if self.unfinished >= HANDSHAKES_MAX && matches!(origin, Origin::Accepted { .. }) {
            self.give_up_oldest();
        }
        self.unfinished += u32::from(matches!(origin, Origin::Accepted { .. }));
        let timeout_us = self.listener_of(origin).map_or(u64::MAX / 2, |listener| {
            listener.unfinished += 1;
            listener.timeout_us
        });
        let mut session = Box::new(Session::new(socket, origin, cipher, token));
        self.set_deadline(socket, &mut session, self.inner.now_us().saturating_add(timeout_us));
        if matches!(origin, Origin::Accepted { .. }) {
            self.inner.receive(socket, Receive::Once(Class::Small));
        }
        self.sessions.put(socket, session);
    }

    /// Makes room for a new handshake: gives up the accepted one that would time out first. Silent
    /// clients thus can't keep other clients out.
    fn give_up_oldest(&mut self) {
        if let Some(oldest) = self.first_of(|_, _| true) {
            self.give_up_one(oldest);
        }
    }

    /// Accepting was held back, because descriptors are scarce. Handshakes make room as soon as
    /// they are [`ROOM_US`] old, before any client that has sent a request. False: no client is
    /// silent.
    pub(crate) fn make_room(&mut self) -> bool {
        let now_us = self.inner.now_us();
        let age_us = |known: &Listener, session: &Session| {
            (now_us + known.timeout_us).saturating_sub(session.deadline_us)
        };
        let mut makes_room = false;
        for _ in 0..self.unfinished.div_ceil(ROOM_SHARE) {
            let Some(old) = self.first_of(|known, session| age_us(known, session) >= ROOM_US)
            else {
                break;
            };
            self.give_up_one(old);
            makes_room = true;
        }
        // A client that means to shake hands sends its hello at once; one that has not is old
        // enough in a moment.
        makes_room
            || self
                .first_of(|known, session| !session.heard && age_us(known, session) >= SILENT_US)
                .is_some()
    }

    /// The first accepted handshake that meets the condition, by the time at which it would be
    /// given up anyway.
    fn first_of(&self, is_so: impl Fn(&Listener, &Session) -> bool) -> Option<Socket> {
        let is_one = |session: &Session| {
            let Origin::Accepted { listener, .. } = session.origin else { return false };
            let known = self.listeners.iter().find(|known| known.socket == listener);
            session.stage == Stage::Handshaking && known.is_none_or(|known| is_so(known, session))
        };
        let mut names =
            self.deadlines.iter().map(|&(_, index, generation)| Socket { index, generation });
        names.find(|socket| self.sessions.get(*socket).is_some_and(is_one))
    }

    fn give_up_one(&mut self, socket: Socket) {
        if let Some(session) = self.sessions.take(socket) {
            self.give_up(socket, session, Failure::TooMany, &mut Vec::new());
        }
    }

    /// The handshake no longer counts as unfinished.
    pub(crate) fn end_of_handshake(&mut self, socket: Socket, session: &mut Session) {
        self.unfinished -= u32::from(matches!(session.origin, Origin::Accepted { .. }));
        if let Some(listener) = self.listener_of(session.origin) {
            listener.unfinished -= 1;
        }
        self.set_deadline(socket, session, 0);
    }

    /// Ends a handshake that has failed. The caller learns of it only if it started the connection
    /// itself.
    pub(crate) fn give_up(
        &mut self,
        socket: Socket,
        mut session: Box<Session>,
        why: Failure,
        into: &mut Vec<Completion>,
    ) {
        self.tally_of(session.origin).fail(why);
        self.tell_failed(&mut session, why);
        if matches!(session.origin, Origin::Connected) {
            let event =
                Event::Connected(Err(io::Error::new(io::ErrorKind::ConnectionAborted, why)));
            into.push(Completion { token: session.token, socket, event });
        }
        session.lingers =
            matches!(session.origin, Origin::Accepted { .. }) && why.is_about_certificate();
        self.close_behind(socket, session);
    }

    /// Makes one step of a handshake, if one waits for it. A turn that `tells` of other events
    /// makes no step, but the next turn makes one in any case. Otherwise new clients would not be
    /// served while the others are busy.
    pub(crate) fn work_on_handshakes(&mut self, tells: bool, into: &mut Vec<Completion>) {
        self.put_off = tells && !self.put_off && !self.work.is_empty();
        if self.put_off {
            return;
        }
        for _ in 0..LEFT_MAX {
            let Some(socket) = self.work.pop_front() else { return };
            if !self.drop_left(socket, into) {
                return self.advance(socket, into);
            }
        }
    }

    /// Gives a handshake up for which nothing was computed yet and whose client has left: the first
    /// step is the most expensive one. Returns whether it did so.
    fn drop_left(&mut self, socket: Socket, into: &mut Vec<Completion>) -> bool {
        let is_new =
            |session: &Session| session.stage == Stage::Handshaking && session.cipher.is_none();
        if !self.sessions.get(socket).is_some_and(is_new) || !self.inner.has_left(socket) {
            return false;
        }
        let Some(mut session) = self.sessions.take(socket) else { return true };
        session.listed = false;
        // The handshake counts against its client, or leaving early would be free.
        match self.charge(&mut session) {
            Ok(()) => {
                self.settle(&mut session);
                self.give_up(socket, session, Failure::Left, into);
            }
            Err(refusal) => {
                self.drop_session(socket, session);
                self.refuse(socket, refusal);
            }
        }
        true
    }

    /// Makes one step of a handshake, as far as the received bytes allow.
    pub(crate) fn advance(&mut self, socket: Socket, into: &mut Vec<Completion>) {
        let Some(mut session) = self.sessions.take(socket) else { return };
        if session.stage != Stage::Handshaking {
            self.sessions.put(socket, session);
            return;
        }
        session.listed = false;
        if let Err(refusal) = self.charge(&mut session) {
            self.drop_session(socket, session);
            return self.refuse(socket, refusal);
        }
        if session.cipher.is_none() {
            session.cipher = self
                .listener_of(session.origin)
                .map(|listener| Guarded::around(listener.seal.cipher()));
        }
        let Some(cipher) = &mut session.cipher else {
            return self.give_up(socket, session, Failure::Internal, into);
        };
        let mut plain = Vec::new();
        let opened = cipher.open(&mut session.rest, &mut plain, &mut session.out);
        session.use_rest(opened.used);
        self.settle(&mut session);
        match opened.state {
            Err(why) => self.give_up(socket, session, why, into),
            Ok(State::Handshaking) if session.is_over => {
                self.give_up(socket, session, Failure::Left, into)
            }
            Ok(State::Handshaking) if session.rest.len() > flight_bytes_max(session.origin) => {
                self.give_up(socket, session, Failure::Misbehaved, into);
            }
            Ok(State::Handshaking) => {
                self.flush(socket, &mut session);
                self.inner.receive(socket, Receive::Once(class(session.origin)));
                self.sessions.put(socket, session);
            }
            Ok(state) => {
                session.held = plain;
                if state == State::Ended {
                    (session.is_over, session.is_cut) = (true, false);
                }
                if session.is_over {
                    session.over = Some(Over::Ended);
                }
                self.complete(socket, session, into);
            }
        }
    }

    /// The handshake is complete: the connection belongs to the caller.
    pub(crate) fn complete(
        &mut self,
        socket: Socket,
        mut session: Box<Session>,
        into: &mut Vec<Completion>,
    ) {
        self.end_of_handshake(socket, &mut session);
        session.stage = Stage::Open;
        let facts = session.cipher.as_ref().map(|cipher| cipher.facts()).unwrap_or_default();
        let tally = self.tally_of(session.origin);
        tally.completed += 1;
        tally.resumed += u64::from(facts.resumed);
        session.facts = Some(Box::new(facts));
        self.flush(socket, &mut session);
        let completion = match session.origin {
            Origin::Accepted { listener, peer } => {
                let token = self.listener_of(session.origin).map_or(0, |listener| listener.token);
                Completion { token, socket: listener, event: Event::Accepted { socket, peer } }
            }
            Origin::Connected => {
                let want = session.want;
                self.want(socket, &mut session, want);
                Completion { token: session.token, socket, event: Event::Connected(Ok(())) }
            }
        };
        self.sessions.put(socket, session);
        into.push(completion);
    }

    pub(crate) fn during_handshake(
        &mut self,
        socket: Socket,
        mut session: Box<Session>,
        event: Event,
        into: &mut Vec<Completion>,
    ) {
        match event {
            Event::Received(buffer) => {
                let is_tls = std::mem::replace(&mut session.heard, true)
                    || begins_tls(session.origin, buffer.first());
                session.rest.extend_from_slice(&buffer);
                self.inner.recycle(buffer);
                if !is_tls {
                    return self.give_up(socket, session, Failure::NotTls, into);
                }
            }
            Event::Connected(Err(error)) => {
                let event = Event::Connected(Err(error));
                into.push(Completion { token: session.token, socket, event });
                return self.drop_session(socket, session);
            }
            // The bytes received before may be all that is needed.
            Event::Ended => (session.is_over, session.is_cut) = (true, true),
            Event::ReceiveFailed(_) => return self.give_up(socket, session, Failure::Left, into),
            Event::Sent { payload, result } => {
                self.sent(&mut session, payload);
                if result.is_err() {
                    return self.give_up(socket, session, Failure::Left, into);
                }
                self.flush(socket, &mut session);
                self.sessions.put(socket, session);
                return;
            }
            _ => {}
        }
        if !session.listed {
            session.listed = true;
            match session.origin {
                Origin::Accepted { .. } => self.work.push_back(socket),
                Origin::Connected => self.work.push_front(socket),
            }
        }
        self.sessions.put(socket, session);
    }

    /// Ends handshakes and closes that have taken too long.
    pub(crate) fn expire(&mut self, into: &mut Vec<Completion>) {
        let now_us = self.inner.now_us();
        while let Some(&(at_us, index, generation)) =
            self.deadlines.first().filter(|(at_us, ..)| *at_us <= now_us)
        {
            let socket = Socket { index, generation };
            self.deadlines.remove(&(at_us, index, generation));
            let Some(session) = self.sessions.take(socket) else { continue };
            if session.stage == Stage::Handshaking {
                self.give_up(socket, session, Failure::Timeout, into);
            } else {
                self.drop_session(socket, session);
                self.inner.close(socket);
            }
        }
    }
}

/// Bytes of a flight that were received but not used. Servers send the certificates of a chain in
/// one message.
fn flight_bytes_max(origin: Origin) -> usize {
    match origin {
        Origin::Accepted { .. } => HANDSHAKE_BYTES_MAX,
        Origin::Connected => FLIGHT_BYTES_MAX,
    }
}

/// The pool that a handshake is received into.
fn class(origin: Origin) -> Class {
    match origin {
        Origin::Accepted { .. } => Class::Small,
        Origin::Connected => Class::Large,
    }
}

/// Whether TLS begins with this byte: clients with a handshake, servers maybe with an alert (RFC
/// 8446 §5.1).
fn begins_tls(origin: Origin, first: Option<&u8>) -> bool {
    matches!(
        (origin, first),
        (_, Some(&HANDSHAKE_RECORD)) | (Origin::Connected, Some(&ALERT_RECORD))
    )
}
