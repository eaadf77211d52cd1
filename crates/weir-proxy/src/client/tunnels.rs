//! Tunnels: a client and an upstream connection joined after 101; each direction ends separately
//! (RFC 9110 §7.8).
//!
//! Bound: [`HIGH_BYTES`](crate::base::output::HIGH_BYTES) unsent each way; the tunnel's timeout,
//! and the client's send timeout for the remaining output.

use super::Clients;
use super::answer::Answers;
use super::ask::send_body;
use crate::base::keys::ClientKey;
use crate::base::piece::Piece;
use crate::client::connection::Reading;
use crate::context::Context;
use crate::cross::router::Requests;
use crate::ending::{ClientEnd, Timeout};

impl Clients {
    /// Takes bytes from the client of a tunnel.
    pub(super) fn tunnel_from_client(
        &mut self,
        index: ClientKey,
        piece: Piece<'_>,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let conn = self.conn_mut(index);
        conn.since_us = cx.now_us;
        let Some(exchange) = conn.codec.current() else { return };
        self.answers.records.body(exchange, piece.len() as u64, false, cx);
        send_body(&self.answers.conns, exchange, piece, false, to, cx);
    }

    pub(super) fn tunnel_client_ended(
        &mut self,
        index: ClientKey,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let conn = self.conn(index);
        let Some(exchange) = conn.codec.current() else { return };
        let over = conn.flags.shut;
        send_body(&self.answers.conns, exchange, Piece::Borrowed(&[]), true, to, cx);
        if over {
            self.answers.close_conn(index, ClientEnd::TunnelEnded, cx);
        }
    }
}

impl Answers {
    /// The upstream's side of a tunnel broke: its client gets the bytes received so far, then the
    /// end.
    pub(super) fn break_tunnel(&mut self, index: ClientKey, cx: &mut Context) {
        let conn = self.conns.at_mut(index);
        if conn.codec.is_sent() && !conn.flags.sending {
            self.close_conn(index, ClientEnd::TunnelEnded, cx);
            return;
        }
        conn.read_as(Reading::Closing);
        conn.flags.close = true;
        cx.counters.tunnels.sub(1);
        self.complete(index, cx);
        self.conns.mark(index);
    }

    /// Nothing was sent either way for too long.
    pub(super) fn tunnel_timed_out(&mut self, index: ClientKey, cx: &mut Context) {
        cx.counters.timeouts.count(Timeout::Tunnel);
        self.close_conn(index, ClientEnd::TunnelTimeout, cx);
    }

    /// The upstream of a tunnel has closed its direction.
    pub(super) fn tunnel_answer_ended(&mut self, index: ClientKey) {
        self.conns.at_mut(index).flags.tunnel_ended = true;
        self.conns.mark(index);
    }
}
