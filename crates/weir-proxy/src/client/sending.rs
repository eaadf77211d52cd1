//! What is sent to clients, and the ends of their connections (stage reply).

use super::Clients;
use crate::action::Action;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::output::{LOW_BYTES, Out};
use crate::client::connection::{Exchange, Phase, Reading};
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::ending::ClientEnd;

impl Clients {
    /// What was sent to a client was taken (`ok`) or not. `spare` is the buffer, for reuse.
    pub(crate) fn client_sent(&mut self, token: u64, spare: Option<Vec<u8>>, ok: bool, cx: &mut Context) {
        if let Some(buffer) = spare {
            cx.spare.give(buffer);
        }
        let Some(index) = self.session_of(token) else { return };
        if !ok {
            self.close_session(index, ClientEnd::ClientReset, cx);
            return;
        }
        let session = self.sessions.at_mut(index);
        session.flags.sending = false;
        let tunnel = session.reading == Reading::Tunnel;
        let taken = std::mem::take(&mut session.inflight);
        if let Some(access) = &mut self.access {
            access.delivered(index, taken.into(), cx.now_us);
        }
        if !session.output.is_empty() {
            self.mark_session(index);
        } else if session.first == ExchangeKey::NONE || session.flags.tunnel_ended {
            self.session_is_idle(index, cx);
        }
        if self.session_alive(index) {
            self.relieve(index, cx);
            self.arm_awaited(index, cx);
        }
        if tunnel && self.session_alive(index) {
            self.want_relay(index, cx);
        }
    }

    /// From here on a client waits for its server, whose time may be over sooner than the timer comes that was set for the send.
    fn arm_awaited(&mut self, index: ClientKey, cx: &mut Context) {
        let session = self.sessions.at(index);
        if session.first != ExchangeKey::NONE && self.exchanges.at(session.first).deadline_us < session.armed_us {
            self.arm_session(index, cx);
        }
    }

    /// Lets sources go on when the client has taken enough, or another answer has become the first.
    pub(super) fn relieve(&mut self, index: ClientKey, cx: &mut Context) {
        let client = self.client_name(index, cx);
        let session = self.sessions.at_mut(index);
        let first = session.first;
        let first_waits = first != ExchangeKey::NONE && self.exchanges.at(first).phase == Phase::Waiting;
        if session.unsent() <= LOW_BYTES || session.unsent_first() <= LOW_BYTES && first_waits {
            // The first answer may be next on any of them.
            for link in session.paused.take().map_or_else(Vec::new, |paused| paused.links) {
                self.resume_source(link, client, cx);
            }
        } else if session.unsent_first() <= LOW_BYTES && first != ExchangeKey::NONE {
            let source = self.exchanges.at(first).link;
            if let Some(paused) = session.paused.as_mut()
                && let Some(position) = paused.links.iter().position(|link| Some(*link) == source)
            {
                let link = paused.links.swap_remove(position);
                self.resume_source(link, client, cx);
            }
        }
        let now_us = cx.now_us;
        if first != ExchangeKey::NONE {
            // The wait for its next piece begins now: until here the client was to blame.
            let exchange = self.exchanges.at_mut(first);
            if exchange.phase == Phase::Answering {
                exchange.deadline_us = now_us.saturating_add(exchange.patience_us);
            }
        }
        if self.sessions.at(index).stash.is_some() {
            self.to_parse.push_back((index, self.sessions.generation(index)));
        }
        self.update_receive(index, cx);
    }

    /// Everything asked is answered and sent.
    fn session_is_idle(&mut self, index: ClientKey, cx: &mut Context) {
        let now_us = cx.now_us;
        let session = self.sessions.at_mut(index);
        if session.flags.tunnel_ended {
            if !session.flags.shut {
                session.flags.shut = true;
                cx.actions.push_back(Action::ShutdownClient { socket: session.socket });
            }
            if self.sessions.at(index).flags.ended {
                self.close_session(index, ClientEnd::TunnelEnded, cx);
            }
            return;
        }
        // What a client sent before it ended its direction and was not parsed yet comes next.
        let more = session.flags.ended && session.stash.is_some() && !session.flags.close;
        if more || !session.flags.close && !session.flags.ended {
            if session.reading == Reading::Head && !session.has_begun_request() {
                session.since_us = now_us;
                // The patience with a server may be longer than the one with an idle client.
                if session.armed_us > now_us.saturating_add(cx.plan.client.idle_timeout_us) {
                    self.arm_session(index, cx);
                }
            }
            return;
        }
        if session.flags.ended || session.flags.reset || !(session.flags.unread || session.upload.is_some()) {
            self.close_session(index, self.orderly_end(index, cx), cx);
        } else if session.reading != Reading::Linger {
            session.reading = Reading::Linger;
            session.since_us = now_us;
            session.upload = None;
            session.flags.shut = true;
            cx.actions.push_back(Action::ShutdownClient { socket: session.socket });
            self.update_receive(index, cx);
            self.arm_session(index, cx);
        }
    }

    #[inline]
    pub(super) fn mark_session(&mut self, index: ClientKey) {
        let session = self.sessions.at_mut(index);
        if !session.flags.dirty {
            session.flags.dirty = true;
            self.dirty_sessions.push(index);
        }
    }

    /// The send that a session wants, if any.
    pub(super) fn flush_session(&mut self, index: ClientKey, cx: &mut Context) -> Option<Action> {
        if !self.session_alive(index) {
            return None;
        }
        let now_us = cx.now_us;
        let session = self.sessions.at_mut(index);
        session.flags.dirty = false;
        if session.flags.sending {
            return None;
        }
        let Some(out) = session.output.take() else {
            if session.first == ExchangeKey::NONE || session.flags.tunnel_ended {
                self.session_is_idle(index, cx);
            }
            return cx.actions.pop_front();
        };
        session.flags.sending = true;
        session.send_us = now_us;
        session.inflight = out.len() as u32;
        let socket = session.socket;
        cx.counters.client_bytes_out.add(out.len() as u64);
        self.note_send(index, &out, cx);
        Some(Action::SendClient { socket, out })
    }

    /// Whether connections may have something to send.
    #[inline]
    pub(crate) fn has_sends(&self) -> bool {
        !self.dirty_sessions.is_empty()
    }

    /// The next send.
    #[inline]
    pub(crate) fn poll_send(&mut self, cx: &mut Context) -> Option<Action> {
        while let Some(index) = self.dirty_sessions.pop() {
            let action = self.flush_session(index, cx);
            if action.is_some() {
                return action;
            }
        }
        None
    }

    /// Large sends get a deadline of their own; a small one is covered by the timer that is set anyway.
    fn note_send(&mut self, index: ClientKey, out: &Out, cx: &mut Context) {
        if !matches!(out, Out::Owned(_)) || self.sessions.at(index).armed_us == u64::MAX {
            self.arm_session(index, cx);
        }
    }

    /// Ends a client's connection now. What it asked and was not answered is cancelled.
    pub(super) fn close_session(&mut self, index: ClientKey, why: ClientEnd, cx: &mut Context) {
        self.note_closed(index, why, cx);
        self.drop_exchanges(index, why, cx);
        let client = self.client_name(index, cx);
        let session = self.sessions.remove(index);
        if session.flags.has_pool {
            cx.post(cx.worker, Mail::Gone { client: index });
        }
        session.relay.iter().for_each(|relay| self.end_relay(relay, cx));
        for link in session.paused.map_or_else(Vec::new, |paused| paused.links) {
            self.resume_source(link, client, cx);
        }
        cx.counters.client_connections.sub(1);
        if session.reading == Reading::Tunnel {
            cx.counters.tunnels.sub(1);
        }
        cx.counters.client_closes.count(why);
        cx.actions.push_back(Action::CloseClient { socket: session.socket, reset: session.flags.reset });
    }

    /// Forgets all exchanges of a session; those under way upstream are told.
    pub(super) fn drop_exchanges(&mut self, index: ClientKey, why: ClientEnd, cx: &mut Context) {
        loop {
            let first = self.sessions.at(index).first;
            if first == ExchangeKey::NONE {
                break;
            }
            let exchange = self.exchanges.at(first);
            let hard = exchange.want.body_open || self.sessions.at(index).reading == Reading::Tunnel;
            if matches!(exchange.phase, Phase::Reading | Phase::Waiting) {
                cx.counters.requests_abandoned.add(1);
            }
            if self.sessions.at(index).relay.is_none() {
                self.cancel_upstream(first, hard, cx);
            }
            self.note_abandoned(index, why, cx);
            self.pop_exchange(index);
        }
    }

    /// Takes the first exchange out of its session's list.
    #[inline]
    pub(super) fn pop_exchange(&mut self, index: ClientKey) -> Exchange {
        let session = self.sessions.at_mut(index);
        let exchange = self.exchanges.remove(session.first);
        session.first = exchange.next;
        session.queued -= 1;
        if session.first == ExchangeKey::NONE {
            session.last = ExchangeKey::NONE;
        }
        exchange
    }

    /// When draining: a client is closed after what it asked, an idle one soon (`DRAIN_IDLE_US`).
    pub(super) fn drain_session(&mut self, index: ClientKey, cx: &mut Context) {
        let session = self.sessions.at_mut(index);
        if session.reading == Reading::Tunnel {
            return;
        }
        let begun = session.has_begun_request();
        if session.first == ExchangeKey::NONE && session.output.is_empty() && !session.flags.sending && !begun {
            self.arm_session(index, cx);
        } else if session.last != ExchangeKey::NONE {
            let last = session.last;
            if session.reading == Reading::Head {
                session.reading = Reading::Closing;
            }
            self.exchanges.at_mut(last).want.close = true;
        } else if session.first == ExchangeKey::NONE && !begun {
            session.flags.close = true;
        }
    }
}
