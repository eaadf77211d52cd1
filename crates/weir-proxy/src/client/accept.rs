//! A client connects (stage accept).

use std::net::SocketAddr;

use super::Clients;
use crate::context::Context;
use crate::observe::secured::Secured;
use crate::plan::{Entrance, Protocols};

impl Clients {
    /// A client connected. Returns the token that names it, or None when it is not wanted (then close it).
    pub(crate) fn accepted(
        &mut self,
        socket: u64,
        peer: SocketAddr,
        entrance: Entrance,
        cx: &mut Context,
    ) -> Option<u64> {
        let index = self.answers.conns.accept(socket, peer, entrance, cx)?;
        self.answers.records.accepted(index, peer);
        match entrance.protocols {
            Protocols { http2: false, .. } => {}
            Protocols { http1: true, .. } => self.conn_mut(index).flags.may_be_http2 = true,
            Protocols { http1: false, .. } => self.answers.begin_http2(index, cx),
        }
        Some(self.answers.conns.token(index))
    }

    /// A client that was just accepted speaks TLS.
    pub(crate) fn client_sealed(&mut self, token: u64, mut secured: Secured) {
        let Some(index) = self.answers.conns.of_token(token) else { return };
        let conn = self.conn_mut(index);
        conn.flags.sealed = true;
        conn.shown = secured.shown.take();
        self.answers.records.sealed(index, secured);
    }
}
