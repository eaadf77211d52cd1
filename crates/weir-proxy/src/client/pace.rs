//! Whether a client takes a send that lasts: `send-timeout` is for each [`PACE_BYTES`] of it, or for what is left.
//!
//! A send is over when the kernel has all of it, which says nothing meanwhile: its buffers are large, and give room in large steps. So at half
//! the time, and at its end, it is asked how much the client has acknowledged ([`Action::LookClient`]); one that has acknowledged
//! enough in between has its time again. Where the kernel does not know that (unix sockets), one send has one time. Called by
//! `client/timers.rs`. Bound: a row for each connection that has ever had such a send, until it ends.

use super::Clients;
use super::connections::Connections;
use super::timers::send_timed_out;
use crate::action::Action;
use crate::base::keys::ClientKey;
use crate::context::Context;

/// Bytes that a client has to take in `send-timeout`, or all there are: so that it can't go on by one byte a minute.
pub(super) const PACE_BYTES: u64 = 16 * 1024;

/// How a send goes on.
#[derive(Debug)]
pub(super) struct Pace {
    /// When the time began in which enough must be taken: [`ClientConn::send_us`](super::connection::ClientConn::send_us).
    send_us: u64,
    /// What was acknowledged by then, or at half of it; None: that was asked, and there is no answer.
    acked: Option<u64>,
}

/// When it is asked how a send goes on that is with the driver; `u64::MAX`: that has been asked.
#[inline]
pub(super) fn look_us(conns: &Connections, index: ClientKey, cx: &Context) -> u64 {
    let conn = conns.at(index);
    if !conn.flags.sending || conn.stream.is_some() {
        return u64::MAX;
    }
    match conns.paces.get(index) {
        Some(pace) if pace.send_us == conn.send_us => u64::MAX,
        _ => conn.send_us + cx.plan.client.send_timeout_us / 2,
    }
}

/// Half of the time for a send is over: from here on something of it must be taken.
pub(super) fn look_at_send(conns: &mut Connections, index: ClientKey, cx: &mut Context) {
    let send_us = conns.at(index).send_us;
    conns.paces.put(index, Pace { send_us, acked: None });
    ask(conns, index, false, cx);
}

/// All of the time for a send is over: it ends its connection, unless enough of it was taken.
pub(super) fn judge_send(conns: &Connections, index: ClientKey, cx: &mut Context) {
    ask(conns, index, true, cx);
}

fn ask(conns: &Connections, index: ClientKey, over: bool, cx: &mut Context) {
    let (token, socket) = (conns.token(index), conns.at(index).socket);
    cx.actions.push_back(Action::LookClient { token, socket, over });
}

/// So many bytes of all that was sent to a client are acknowledged; None: nobody knows.
pub(crate) fn client_looked(clients: &mut Clients, token: u64, acked: Option<u64>, over: bool, cx: &mut Context) {
    let conns = &mut clients.answers.conns;
    let Some(index) = conns.of_token(token) else { return };
    let conn = conns.at(index);
    if !conn.flags.sending {
        return;
    }
    let pace = conns.paces.get(index).filter(|pace| pace.send_us == conn.send_us);
    let send_us = match (over, pace, acked) {
        (false, ..) => conn.send_us,
        (true, _, None) => return send_timed_out(clients, index, cx),
        // Its timer came late, as that of a small send may: it has the other half.
        (true, None, Some(_)) => cx.now_us.saturating_sub(cx.plan.client.send_timeout_us / 2),
        (true, Some(pace), Some(acked)) if pace.acked.is_some_and(|before| acked >= before + PACE_BYTES) => cx.now_us,
        (true, Some(_), Some(_)) => return send_timed_out(clients, index, cx),
    };
    conns.at_mut(index).send_us = send_us;
    conns.paces.put(index, Pace { send_us, acked });
    conns.arm(index, cx);
}
