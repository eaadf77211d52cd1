//! How long weir waits for a client, or for its server: the deadline of a connection, from its
//! state alone.

use super::connection::{ClientConn, Exchange, Phase, Reading, RequestBodyReader};
use crate::cross::relay::Relay;
use crate::forward::lookup::ERRAND_US;
use crate::plan::ClientPlan;

/// How long the client of an ending connection may be silent before the connection is closed; it
/// remains open as long as the client takes the rest.
const LINGER_US: u64 = 2_000_000;
/// How long an idle client remains when draining begins, or when it becomes idle then: a request
/// may be on its way, and closing would lose it. Longer than a round trip nearly everywhere.
pub(super) const DRAIN_IDLE_US: u64 = 100_000;
/// The same when only the client's listener closes: nothing waits for the end of the connection, so
/// there is time for the next request, and its response announces the close.
pub(super) const LEAVE_IDLE_US: u64 = 5_000_000;
/// How long a client that has closed its sending direction remains while weir has nothing to send
/// it. Longer than most responses take, so that a client that closes right after a request gets its
/// response.
const HALF_CLOSED_US: u64 = 100_000;
/// How often weir checks whether a client is still there that waits for its server and is not read.
const SEE_US: u64 = 250_000;
/// The window over which the rate of a body is measured, repeatedly, while some of it arrives.
const BODY_WINDOW_US: u64 = 10_000_000;
/// Time beyond that of an errand after which its result is no longer awaited.
const GRACE_US: u64 = 1_000_000;
/// How often weir looks at a tunnel within its idle timeout: the tunnel may live longer than the
/// timeout by this fraction.
const LOOKS: u64 = 8;

impl ClientConn {
    /// The present deadline of the connection. `first`: the request whose response it waits for;
    /// `inward`: the request whose body, or tunnel, is being read; `leaves_us`: when it ends if it
    /// remains idle; None: at no fixed time.
    #[inline]
    pub(super) fn deadline<'a>(
        &self,
        first: Option<&Exchange>,
        inward: impl Fn() -> Option<&'a Exchange>,
        leaves_us: Option<u64>,
        plan: &ClientPlan,
    ) -> u64 {
        let mut due_us = u64::MAX;
        if self.flags.sending {
            due_us = self.send_us + plan.send_timeout_us;
        }
        if let Some(exchange) = first
            && self.awaits_server(exchange)
        {
            let seen_us = self.see_us(exchange).min(self.left_us(exchange, plan));
            due_us = due_us.min(exchange.deadline_us).min(seen_us);
        }
        let reading = match self.reading() {
            Reading::Head if self.has_begun_request() && !self.flags.stopped => {
                plan.head_timeout_us
            }
            Reading::Head if self.has_sent_all() => {
                return due_us
                    .min(self.since_us + plan.idle_timeout_us)
                    .min(leaves_us.unwrap_or(u64::MAX));
            }
            Reading::Body => {
                let exchange = inward();
                let upload = exchange.and_then(|exchange| exchange.upload.as_deref());
                due_us = due_us.min(upload.map_or(u64::MAX, |upload| upload.pass_on_us));
                if !exchange.is_none_or(Exchange::judges_body) {
                    return due_us;
                }
                let rated = upload.filter(|upload| plan.body_rate_min > 0 && upload.has_rate());
                due_us = due_us.min(rated.map_or(u64::MAX, RequestBodyReader::window_end_us));
                plan.body_timeout_us
            }
            Reading::Tunnel => match &self.relay {
                Some(relay) => return due_us.min(relay.look_us(plan)),
                // While its client has output to take, that wait counts instead.
                None if self.outgoing() > 0 => return due_us,
                None => plan.tunnel_timeout_us,
            },
            Reading::Await if first.is_none() || self.flags.unverified => ERRAND_US + GRACE_US,
            Reading::Linger => LINGER_US,
            _ => return due_us,
        };
        due_us.min(self.since_us + reading)
    }

    /// When a client that has closed its sending direction counts as gone: it waits for its server,
    /// and weir has sent nothing to it for [`HALF_CLOSED_US`]. Never where such clients are served.
    pub(super) fn left_us(&self, first: &Exchange, plan: &ClientPlan) -> u64 {
        // The end of a stream's body says nothing of its client.
        let has_ended = self.flags.ended && self.stream.is_none() && !plan.serves_half_closed;
        if has_ended {
            self.silent_since_us(first).saturating_add(HALF_CLOSED_US)
        } else {
            u64::MAX
        }
    }

    /// When to ask the kernel whether a client is still there that waits for its server, because
    /// weir does not read from it meanwhile.
    pub(super) fn see_us(&self, first: &Exchange) -> u64 {
        let is_unread = self.flags.stopped && !self.flags.ended && self.stream.is_none();
        if is_unread { self.silent_since_us(first).saturating_add(SEE_US) } else { u64::MAX }
    }

    /// Since when weir has had nothing to send to a client that waits for this response; never
    /// while it has.
    fn silent_since_us(&self, first: &Exchange) -> u64 {
        match self.outgoing() {
            0 => self.since_us.max(self.send_us).max(first.awaited_since_us()),
            _ => u64::MAX,
        }
    }

    /// Whether the first response waits for the server. It does not while the client has output to
    /// take and sources were stopped for that; nor while part of the response is being encoded; nor
    /// while the client has to send the rest of its request.
    pub(super) fn awaits_server(&self, first: &Exchange) -> bool {
        let taken = self.outgoing() + first.reply.coding() == 0;
        match first.phase() {
            Phase::Waiting => !first.awaits_body() && (taken || !self.stops_sources()),
            Phase::Answering => taken && self.reading() != Reading::Tunnel,
            Phase::Reading | Phase::Encoding | Phase::Done => false,
        }
    }
}

impl Exchange {
    /// Whether its client is judged by how its body arrives. Once the response has begun, both
    /// sides may be silent as long as pauses within the response may be: only they know whose turn
    /// it is.
    pub(super) fn judges_body(&self) -> bool {
        self.awaits_body() && !matches!(self.phase(), Phase::Answering | Phase::Encoding)
    }
}

impl RequestBodyReader {
    /// When its rate is measured next.
    fn window_end_us(&self) -> u64 {
        self.window_us + BODY_WINDOW_US
    }

    /// Whether the window has ended in which it had to arrive with the minimum rate (bytes per
    /// second), and it did not.
    pub(super) fn is_too_slow(&mut self, now_us: u64, rate_min: u64) -> bool {
        let least = rate_min.saturating_mul(BODY_WINDOW_US / 1_000_000);
        now_us >= self.window_end_us() && self.judge_window(now_us, least)
    }
}

impl Relay {
    /// When to look at it next.
    fn look_us(&self, plan: &ClientPlan) -> u64 {
        self.looked_us + (plan.tunnel_timeout_us / LOOKS).max(1)
    }
}
