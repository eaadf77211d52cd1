//! Clients that leave while their servers are silent: those that have closed their sending
//! direction, and those that weir does not read from.

use super::Clients;
use super::answer::Answers;
use super::pace::{Rest, Taken, rest_is_taken};
use crate::action::Action;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::client::connection::{Exchange, Phase, Reading};
use crate::context::Context;
use crate::ending::ClientEnd;

/// The state of a client that weir does not read from, or that has closed its sending direction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sight {
    /// It has closed its sending direction, behind everything that it has sent.
    pub ended: bool,
    /// Its connection is reset, or ended on both sides.
    pub broken: bool,
    /// How much of its output it has taken.
    pub taken: Taken,
}

/// Handles the result of a check of a client.
pub(crate) fn client_seen(clients: &mut Clients, token: u64, sight: Sight, cx: &mut Context) {
    let Some(index) = clients.answers.conns.of_token(token) else { return };
    if sight.broken {
        return clients.answers.close_conn(index, ClientEnd::ClientReset, cx);
    }
    // The bytes before the end of a body are still for its server.
    let conns = &mut clients.answers.conns;
    let conn = conns.at(index);
    let may_leave = !matches!(conn.reading(), Reading::Body | Reading::Tunnel)
        && !cx.plan.client.serves_half_closed;
    let first = conns.current(conn);
    let waits = first.is_some_and(|first| conn.awaits_server(first) && conn.outgoing() == 0);
    let has_ended = if conn.flags.ended { waits } else { sight.ended && conn.flags.stopped };
    if !may_leave || !has_ended {
        return;
    }
    // A client that still takes something has not left.
    let since_us = first.map_or(0, Exchange::awaited_since_us);
    if rest_is_taken(conns, index, since_us, sight.taken, cx) != Rest::IsTaken {
        client_left(&mut clients.answers, index, cx);
    }
}

/// A client waits for a server's response to its first request. Returns whether it is time to check
/// whether it has left.
pub(super) fn look_for_client(
    clients: &mut Clients,
    index: ClientKey,
    first: ExchangeKey,
    cx: &mut Context,
) -> bool {
    let now_us = cx.now_us;
    let (conn, exchange) = (clients.conn(index), clients.answers.conns.exchange(first));
    let is_due = conn.left_us(exchange, &cx.plan.client).min(conn.see_us(exchange)) <= now_us;
    if is_due {
        let token = clients.answers.conns.token(index);
        let conn = clients.conn_mut(index);
        conn.send_us = now_us;
        cx.actions.push_back(Action::SeeClient { token, socket: conn.socket });
        clients.answers.conns.arm(index, cx);
    }
    is_due
}

/// A client has closed its sending direction, and no longer waits for what has not arrived.
fn client_left(answers: &mut Answers, index: ClientKey, cx: &mut Context) {
    let begun = answers
        .conns
        .current(answers.conns.at(index))
        .is_some_and(|first| first.phase() == Phase::Answering);
    // If it is still there, the part that it has of a response must not look complete.
    answers.conns.at_mut(index).flags.reset |= begun;
    answers.close_conn(index, ClientEnd::ClientClosed, cx);
}
