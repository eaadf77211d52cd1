//! The commands of [`Sealed`], and its turn.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use weir_io::{
    AcceptQueue, Class, Completion, Courtesy, Delivery, Departure, Descriptors, Driver,
    DriverStats, Loose, Outbound, Payload, Receive, RecvBuf, Relayed, Socket, Token, Waker,
};

use crate::sealed::Sealed;
use crate::session::{Origin, Session, Stage};

impl<D: Driver> Driver for Sealed<D> {
    fn now_us(&self) -> u64 {
        self.inner.now_us()
    }

    fn listen(&mut self, listener: impl Into<OwnedFd>, token: Token) -> io::Result<Socket> {
        let socket = self.inner.listen(listener, token)?;
        self.tokens.push((socket, token));
        #[cfg(test)]
        if let Some(seal) = self.listens.clone() {
            // As long as a test waits, even on a machine that others keep busy.
            self.seal(socket, seal, 60_000_000);
        }
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

    /// Handshakes that have begun continue: they are reported as long as the listener is not
    /// closed.
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
        #[cfg(test)]
        if let Some(cipher) = self.connects.as_ref().map(|seal| seal.cipher()) {
            return self.connect_sealed(way, to, token, cipher);
        }
        self.inner.connect_by(way, to, token)
    }

    fn connect_unix(&mut self, path: &Path, token: Token) -> io::Result<Socket> {
        self.inner.connect_unix(path, token)
    }

    fn adopt(&mut self, connected: OwnedFd, token: Token) -> io::Result<Socket> {
        self.inner.adopt(connected, token)
    }

    /// A connection that speaks TLS is not released: its keys are here.
    fn release(&mut self, socket: Socket) -> bool {
        self.sessions.get(socket).is_none() && self.inner.release(socket)
    }

    fn take_in(&mut self, connection: Loose, token: Token) -> io::Result<Socket> {
        self.inner.take_in(connection, token)
    }

    fn set_token(&mut self, socket: Socket, token: Token) {
        if let Some(session) = self.sessions.get_mut(socket) {
            session.token = token;
        }
        self.inner.set_token(socket, token);
    }

    fn receive(&mut self, socket: Socket, how: Receive) {
        let Some(mut session) = self.sessions.take(socket) else {
            return self.inner.receive(socket, how);
        };
        match session.stage {
            Stage::Handshaking => session.want = how,
            Stage::Open => self.want(socket, &mut session, how),
            Stage::Closing => {}
        }
        self.sessions.put(socket, session);
    }

    fn send(&mut self, socket: Socket, payload: Payload) {
        let Some(mut session) = self.sessions.take(socket) else {
            return self.inner.send(socket, payload);
        };
        if session.stage == Stage::Open {
            self.send_sealed(socket, &mut session, payload);
        }
        self.sessions.put(socket, session);
    }

    fn shutdown_write(&mut self, socket: Socket) {
        let Some(mut session) = self.sessions.take(socket) else {
            return self.inner.shutdown_write(socket);
        };
        if let Session { stage: Stage::Open, cipher: Some(cipher), rest, out, finish, .. } =
            &mut *session
        {
            cipher.close(rest, out);
            *finish = true;
            self.flush(socket, &mut session);
        }
        self.sessions.put(socket, session);
    }

    fn defer(&mut self, socket: Socket, on: bool) {
        if !self.is_gone(socket) {
            self.inner.defer(socket, on);
        }
    }

    fn acknowledge(&mut self, socket: Socket) {
        if !self.is_gone(socket) {
            self.inner.acknowledge(socket);
        }
    }

    fn relay(&mut self, a: Socket, b: Socket) {
        // Bytes of a sealed socket have to be opened: a caller that wants them relayed moves them
        // itself.
        if self.sessions.get(a).is_none() && self.sessions.get(b).is_none() {
            self.inner.relay(a, b);
        }
    }

    fn relayed(&self, socket: Socket) -> Option<Relayed> {
        self.inner.relayed(socket)
    }

    fn close(&mut self, socket: Socket) {
        let Some(mut session) = self.sessions.take(socket) else {
            self.close_listener(socket);
            return self.inner.close(socket);
        };
        match session.stage {
            Stage::Closing => self.sessions.put(socket, session),
            // The payload that the caller is still sending is lost with the close, so the stream
            // must not look complete.
            Stage::Open if session.payload.is_none() => {
                if let Session { cipher: Some(cipher), rest, out, finish: false, .. } =
                    &mut *session
                {
                    cipher.close(rest, out);
                }
                self.close_behind(socket, session);
            }
            Stage::Open | Stage::Handshaking => {
                self.drop_session(socket, session);
                self.inner.close(socket);
            }
        }
    }

    fn reset(&mut self, socket: Socket) {
        match self.sessions.take(socket) {
            Some(session) if session.stage == Stage::Closing => self.sessions.put(socket, session),
            session => {
                if let Some(session) = session {
                    self.drop_session(socket, session);
                }
                self.inner.reset(socket);
            }
        }
    }

    fn streams(&self) -> Vec<Socket> {
        let mut streams = self.inner.streams();
        if !self.sessions.is_empty() {
            let mut hidden = self.sessions.names(|session| match session.stage {
                Stage::Handshaking => matches!(session.origin, Origin::Accepted { .. }),
                Stage::Open => false,
                Stage::Closing => true,
            });
            hidden.sort_unstable_by_key(|socket| socket.index);
            streams.retain(|socket| {
                hidden.binary_search_by_key(&socket.index, |hidden| hidden.index).is_err()
            });
        }
        streams
    }

    fn recycle(&mut self, buffer: RecvBuf) {
        self.inner.recycle(buffer);
    }

    fn buffers(&self, class: Class) -> (u32, u32) {
        self.inner.buffers(class)
    }

    fn destination(&mut self, socket: Socket) -> Option<SocketAddr> {
        if self.is_gone(socket) { None } else { self.inner.destination(socket) }
    }

    fn path(&mut self, socket: Socket) -> Option<weir_io::Path> {
        if self.is_gone(socket) { None } else { self.inner.path(socket) }
    }

    fn set_congestion(&mut self, socket: Socket, name: &str) {
        self.inner.set_congestion(socket, name);
    }

    fn keep_alive(&mut self, socket: Socket) {
        if !self.is_gone(socket) {
            self.inner.keep_alive(socket);
        }
    }

    fn receiving_core(&mut self, socket: Socket) -> Option<u32> {
        if self.is_gone(socket) { None } else { self.inner.receiving_core(socket) }
    }

    fn delivery(&mut self, socket: Socket) -> Delivery {
        if self.is_gone(socket) { Delivery::Acknowledged } else { self.inner.delivery(socket) }
    }

    fn departure(&mut self, socket: Socket) -> Departure {
        if self.is_gone(socket) { Departure::Broken } else { self.inner.departure(socket) }
    }

    /// Connections with an incomplete handshake count as waiting to be accepted.
    fn accept_queue(&mut self, listener: Socket) -> Option<AcceptQueue> {
        let unfinished = self.unfinished_of(listener);
        let queue = self.inner.accept_queue(listener)?;
        Some(AcceptQueue { waiting: queue.waiting.saturating_add(unfinished), ..queue })
    }

    fn turn(&mut self, wait_us: Option<u64>, into: &mut Vec<Completion>) -> io::Result<()> {
        if self.listeners.is_empty() && self.sessions.is_empty() {
            return self.inner.turn(wait_us, into);
        }
        let before = into.len();
        self.hand_out(into);
        let wait_us = if into.len() > before { Some(0) } else { self.patience(wait_us) };
        let (from, mut at) = (into.len(), 0);
        self.inner.turn(wait_us, into)?;
        let mut told = Vec::new();
        into.retain_mut(|completion| {
            at += 1;
            at <= from || self.pass(completion, &mut told)
        });
        into.append(&mut told);
        self.work_on_handshakes(into.len() > before, into);
        self.expire(into);
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

impl<D: Driver> Sealed<D> {
    /// Closing a listener also ends the handshakes of the connections that it would have handed
    /// out.
    fn close_listener(&mut self, socket: Socket) {
        self.tokens.retain(|(listener, _)| *listener != socket);
        if !self.listeners.iter().any(|listener| listener.socket == socket) {
            return;
        }
        let of_it = |session: &Session| {
            session.stage == Stage::Handshaking
                && matches!(session.origin, Origin::Accepted { listener, .. } if listener == socket)
        };
        for name in self.sessions.names(of_it) {
            if let Some(session) = self.sessions.take(name) {
                self.drop_session(name, session);
                self.inner.close(name);
            }
        }
        self.listeners.retain(|listener| listener.socket != socket);
    }
}
