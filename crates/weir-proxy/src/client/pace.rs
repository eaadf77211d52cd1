//! Whether a client takes a send that lasts: `send-timeout` is for each [`PACE_BYTES`] of it, or
//! for the rest.
//!
//! A send is over when the kernel has all of it. Until then that says nothing: the kernel's buffers
//! are large, and give room in large steps. So at half the time, and at its end, weir asks the
//! kernel how much the client has acknowledged ([`Action::LookClient`]); a client that has
//! acknowledged enough in between gets its full time again. Where the kernel does not know this
//! (unix sockets), one send has one timeout. The same rule holds for bytes that the kernel still
//! has when a connection ends. Called by `client/timers.rs`. Bound: a row for each connection that
//! has ever had such a send, until it ends.

use super::Clients;
use super::connections::Connections;
use super::timers::send_timed_out;
use crate::action::Action;
use crate::base::keys::ClientKey;
use crate::client::connection::Reading;
use crate::context::Context;

/// Bytes that a client has to take in `send-timeout`, or all remaining ones: so that it can't
/// continue with one byte a minute.
pub(super) const PACE_BYTES: u64 = 16 * 1024;

/// The value of [`Pace`]'s `send_us` for the rest of a connection that ends.
const LINGERS: u64 = u64::MAX;

/// The progress of a send.
#[derive(Debug)]
pub(super) struct Pace {
    /// The send: [`ClientConn::send_us`](super::connection::ClientConn::send_us). While weir sends
    /// nothing but the kernel still has bytes, the name of that wait ([`rest_is_taken`]).
    send_us: u64,
    /// When the period began in which enough must be taken.
    from_us: u64,
    /// Bytes acknowledged by then; None: weir has asked, and has no reply yet.
    acked: Option<u64>,
}

/// How a client takes its output.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    /// Bytes of all its output that it has acknowledged; None: unknown.
    pub acked: Option<u64>,
    /// The kernel has bytes for it that it has not acknowledged, and the client still sends
    /// acknowledgements.
    pub is_taking: bool,
}

/// When to ask for the progress of a send that is with the driver; `u64::MAX`: weir has already
/// asked.
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

/// Half of the time for a send is over: from here on some of it must be taken.
pub(super) fn look_at_send(conns: &mut Connections, index: ClientKey, cx: &mut Context) {
    let send_us = conns.at(index).send_us;
    conns.paces.put(index, Pace { send_us, from_us: cx.now_us, acked: None });
    ask(conns, index, false, cx);
}

/// The time for a send, or for the end of a connection, is over: the connection is closed, unless
/// enough was taken.
pub(super) fn judge(conns: &Connections, index: ClientKey, cx: &mut Context) {
    ask(conns, index, true, cx);
}

fn ask(conns: &Connections, index: ClientKey, over: bool, cx: &mut Context) {
    let (token, socket) = (conns.token(index), conns.at(index).socket);
    cx.actions.push_back(Action::LookClient { token, socket, over });
}

/// Takes the result of a look at a client.
pub(crate) fn client_looked(
    clients: &mut Clients,
    token: u64,
    taken: Taken,
    over: bool,
    cx: &mut Context,
) {
    let conns = &mut clients.answers.conns;
    let Some(index) = conns.of_token(token) else { return };
    let conn = conns.at(index);
    if !conn.flags.sending {
        if conn.reading() == Reading::Linger {
            end_looked(clients, index, taken, cx);
        }
        return;
    }
    let (send_us, now_us) = (conn.send_us, cx.now_us);
    let timeout_us = cx.plan.client.send_timeout_us;
    let pace = conns.paces.get(index).filter(|pace| pace.send_us == send_us);
    let (send_us, from_us, acked) = match (over, pace, taken.acked) {
        (false, _, acked) => (send_us, now_us, acked),
        (true, _, None) => return send_timed_out(clients, index, cx),
        // Its timer came late, as that of a small send may: it gets the other half.
        (true, None, acked) => (now_us.saturating_sub(timeout_us / 2), now_us, acked),
        (true, Some(pace), Some(acked)) => match pace.acked {
            Some(before) if acked >= before + PACE_BYTES => (now_us, now_us, Some(acked)),
            // What it has taken in the first half is unknown: it gets all of the time from there
            // on.
            Some(before) if now_us < pace.from_us + timeout_us => {
                (pace.from_us, pace.from_us, Some(before))
            }
            _ => return send_timed_out(clients, index, cx),
        },
    };
    conns.at_mut(index).send_us = send_us;
    conns.paces.put(index, Pace { send_us, from_us, acked });
    conns.arm(index, cx);
}

/// Closes an ending connection when its client has everything, or takes too little of it. Closing
/// earlier would cut off the rest if the client sent more.
fn end_looked(clients: &mut Clients, index: ClientKey, taken: Taken, cx: &mut Context) {
    match rest_is_taken(&mut clients.answers.conns, index, LINGERS, taken, cx) {
        Rest::None => {
            let end = clients.conn(index).orderly_end(&cx.plan.client);
            clients.answers.close_conn(index, end, cx);
        }
        Rest::Stays => send_timed_out(clients, index, cx),
        Rest::IsTaken => {
            clients.conn_mut(index).since_us = cx.now_us;
            clients.answers.conns.arm(index, cx);
        }
    }
}

/// The state of the bytes that the kernel still has for a client, while weir sends nothing to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// No bytes remain, or that is unknown.
    None,
    /// The client takes it.
    IsTaken,
    /// The client has taken less than [`PACE_BYTES`] of it for `send-timeout`.
    Stays,
}

/// See [`Rest`]. `wait`: the same value for all looks of one wait.
pub(super) fn rest_is_taken(
    conns: &mut Connections,
    index: ClientKey,
    wait: u64,
    taken: Taken,
    cx: &Context,
) -> Rest {
    let Some(acked) = taken.acked.filter(|_| taken.is_taking) else { return Rest::None };
    let pace = conns.paces.get(index).filter(|pace| pace.send_us == wait);
    match pace.and_then(|pace| Some((pace.from_us, pace.acked?))) {
        Some((from_us, before)) if acked < before + PACE_BYTES => {
            match cx.now_us < from_us + cx.plan.client.send_timeout_us {
                true => Rest::IsTaken,
                false => Rest::Stays,
            }
        }
        _ => {
            conns.paces.put(index, Pace { send_us: wait, from_us: cx.now_us, acked: Some(acked) });
            Rest::IsTaken
        }
    }
}
