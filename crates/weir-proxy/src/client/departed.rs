//! Clients that leave while their servers are silent: those that have ended their sending direction, and those that are not read.

use super::Clients;
use super::answer::Answers;
use super::pace::{Rest, Taken, rest_is_taken};
use crate::action::Action;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::client::connection::{Exchange, Phase, Reading};
use crate::context::Context;
use crate::ending::ClientEnd;

/// How a client is seen that is not read, or has ended its sending direction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sight {
    /// It has ended its sending direction, behind what it has sent.
    pub ended: bool,
    /// Its connection is reset, or ended on both sides.
    pub broken: bool,
    /// What it has taken of what was sent to it.
    pub taken: Taken,
}

/// A client was looked for.
pub(crate) fn client_seen(clients: &mut Clients, token: u64, sight: Sight, cx: &mut Context) {
    let Some(index) = clients.answers.conns.of_token(token) else { return };
    if sight.broken {
        return clients.answers.close_conn(index, ClientEnd::ClientReset, cx);
    }
    // What stands in front of the end of a body is for its server.
    let conns = &mut clients.answers.conns;
    let conn = conns.at(index);
    let may_leave = !matches!(conn.reading(), Reading::Body | Reading::Tunnel) && !cx.plan.client.serves_half_closed;
    let first = conns.current(conn);
    let waits = first.is_some_and(|first| conn.awaits_server(first) && conn.outgoing() == 0);
    let has_ended = if conn.flags.ended { waits } else { sight.ended && conn.flags.stopped };
    if !may_leave || !has_ended {
        return;
    }
    // Whoever still takes something has not left.
    let since_us = first.map_or(0, Exchange::awaited_since_us);
    if rest_is_taken(conns, index, since_us, sight.taken, cx) != Rest::IsTaken {
        client_left(&mut clients.answers, index, cx);
    }
}

/// A client waits for the answer of a server to its first request. Whether it is time to look whether it has left.
pub(super) fn look_for_client(clients: &mut Clients, index: ClientKey, first: ExchangeKey, cx: &mut Context) -> bool {
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

/// A client has ended its sending direction, and waits no more for what is not there yet.
fn client_left(answers: &mut Answers, index: ClientKey, cx: &mut Context) {
    let begun = answers.conns.current(answers.conns.at(index)).is_some_and(|first| first.phase() == Phase::Answering);
    // Should it be there still, what it has of an answer must not look like all of it.
    answers.conns.at_mut(index).flags.reset |= begun;
    answers.close_conn(index, ClientEnd::ClientClosed, cx);
}
