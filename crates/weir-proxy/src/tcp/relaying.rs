//! A flow while the driver moves its bytes: they are counted at each look and at the end.

use super::flow::{Flow, Phase};
use super::{Flows, Sides};
use crate::action::Action;
use crate::base::keys::FlowKey;
use crate::ending::FlowEnd;
use crate::upstream::flows as servers;

/// The most microseconds from the connect until the kernel begins to probe whether the server still
/// responds: most flows are over before.
const YOUNG_US: u64 = 10_000_000;

/// How a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Both sides have ended, and both ends were passed on.
    Complete,
    /// The client's connection broke.
    Client,
    /// The server's connection broke.
    Server,
}

impl From<Over> for FlowEnd {
    fn from(over: Over) -> FlowEnd {
        match over {
            Over::Complete => FlowEnd::Done,
            Over::Client => FlowEnd::ClientReset,
            Over::Server => FlowEnd::ServerReset,
        }
    }
}

impl Flows {
    /// The server of a flow is connected, and from now on only the relay receives from the client.
    pub(super) fn begin_relay(&mut self, key: FlowKey, sides: &mut Sides<'_>) {
        let now_us = sides.cx.now_us;
        let flow = self.flows.at_mut(key);
        let Some(server) = flow.server() else { return };
        let connect_us = u32::try_from(now_us - flow.begun_us).unwrap_or(u32::MAX);
        let tries = flow.tries().min(u32::from(u8::MAX)) as u8;
        flow.phase = Phase::Relaying { connect_us, tries, half_closed: false, is_asked: false };
        flow.active_us = now_us;
        let client = flow.client;
        self.send_hello(key, server, sides);
        let flow = self.flows.at(key);
        sides.cx.actions.push_back(Action::Relay { client, server });
        let due_us = now_us + flow.terms.look_us().min(YOUNG_US);
        self.compare_cores(client, server, sides);
        sides.cx.counters.tunnels.add(1);
        sides.cx.counters.tunnels_opened.add(1);
        self.arm(key, due_us, sides.cx);
    }

    /// Takes the bytes that a flow has moved, from its client and to it; `half_closed`: one side
    /// has ended. A flow that has moved nothing for too long ends.
    pub(crate) fn looked(
        &mut self,
        token: u64,
        moved: (u64, u64),
        half_closed: bool,
        sides: &mut Sides<'_>,
    ) {
        let Some(key) = self.of_token(token) else { return };
        self.count(key, moved, sides);
        let now_us = sides.cx.now_us;
        let flow = self.flows.at_mut(key);
        if flow.close_half(half_closed) {
            flow.active_us = now_us;
        }
        let (limit_us, why) = match half_closed {
            true => (flow.terms.half_close_timeout_us, FlowEnd::HalfCloseTimeout),
            false => (flow.terms.idle_timeout_us, FlowEnd::IdleTimeout),
        };
        let ends_us = flow.active_us + limit_us;
        if now_us >= ends_us {
            return self.end(key, why, sides);
        }
        let due_us = ends_us.min(now_us + flow.terms.look_us());
        self.arm(key, due_us, sides.cx);
    }

    /// The relay of a flow is over, after this many bytes.
    pub(crate) fn relay_ended(
        &mut self,
        token: u64,
        moved: (u64, u64),
        over: Over,
        sides: &mut Sides<'_>,
    ) {
        let Some(key) = self.of_token(token) else { return };
        self.count(key, moved, sides);
        self.end(key, over.into(), sides);
    }

    /// Counts the bytes that were moved since the last time.
    fn count(&mut self, key: FlowKey, mut moved: (u64, u64), sides: &mut Sides<'_>) {
        moved.0 += self.hellos.get(key).map_or(0, |hello| hello.sent);
        let flow = self.flows.at_mut(key);
        let before = std::mem::replace(&mut flow.moved, moved);
        let (up, down) = (moved.0.saturating_sub(before.0), moved.1.saturating_sub(before.1));
        if up + down == 0 {
            return;
        }
        flow.active_us = sides.cx.now_us;
        let counters = &sides.cx.counters;
        counters.client_bytes_in.add(up);
        counters.upstream_bytes_out.add(up);
        counters.upstream_bytes_in.add(down);
        counters.client_bytes_out.add(down);
        if let Some(server) = flow.at() {
            let stats = servers::stats_of(sides.upstreams, server);
            stats.bytes_out.add(up);
            stats.bytes_in.add(down);
        }
        self.charge(key, (up, down), sides.cx);
    }
}

impl Flow {
    /// Returns the connection to its server, if the kernel is to start probing it.
    pub(super) fn begin_to_ask(&mut self) -> Option<u64> {
        let server = self.server();
        let Phase::Relaying { is_asked, .. } = &mut self.phase else { return None };
        let was_asked = std::mem::replace(is_asked, true);
        server.filter(|_| !was_asked)
    }

    /// Notes whether one side has ended. True: it just did.
    fn close_half(&mut self, is_half: bool) -> bool {
        match &mut self.phase {
            Phase::Relaying { half_closed, .. } => {
                !std::mem::replace(half_closed, is_half) && is_half
            }
            Phase::Hello | Phase::Connecting { .. } => false,
        }
    }
}
