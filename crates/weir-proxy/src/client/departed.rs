//! Clients that leave while their servers are silent: those that have ended their sending direction, and those that are not read.

use super::Clients;
use super::answer::Answers;
use crate::action::Action;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::client::connection::{Phase, Reading};
use crate::context::Context;
use crate::ending::ClientEnd;

/// A client that is not read has ended its sending direction behind what it has sent, or its connection is `broken`.
pub(crate) fn client_seen(clients: &mut Clients, token: u64, broken: bool, cx: &mut Context) {
    let Some(index) = clients.answers.conns.of_token(token) else { return };
    let conn = clients.conn(index);
    // What stands in front of the end of a body is for its server.
    let may_leave = !matches!(conn.reading(), Reading::Body | Reading::Tunnel) && !cx.plan.client.serves_half_closed;
    if broken {
        clients.answers.close_conn(index, ClientEnd::ClientReset, cx);
    } else if may_leave && conn.flags.stopped {
        client_left(&mut clients.answers, index, cx);
    }
}

/// A client waits for the answer of a server to its first request. Whether it has left, or it is time to look whether it has.
pub(super) fn look_for_client(clients: &mut Clients, index: ClientKey, first: ExchangeKey, cx: &mut Context) -> bool {
    let now_us = cx.now_us;
    let (conn, exchange) = (clients.conn(index), clients.answers.conns.exchange(first));
    if conn.left_us(exchange, &cx.plan.client) <= now_us {
        client_left(&mut clients.answers, index, cx);
        return true;
    }
    let is_due = conn.see_us(exchange) <= now_us;
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
