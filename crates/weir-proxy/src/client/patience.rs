//! How long is waited for a client, or for its server: the deadline of a connection, from its state alone.

use super::connection::{ClientConn, Exchange, Phase, Reading, RequestBodyReader};
use crate::cross::relay::Relay;
use crate::forward::lookup::ERRAND_US;
use crate::plan::ClientPlan;

/// How long the client of a connection that ends may be silent before it is closed; as long as it takes what is left, it stays.
const LINGER_US: u64 = 2_000_000;
/// How long an idle client stays when draining begins, or it becomes idle then: what it has sent by then may be on the way, and closing on a request
/// would lose it. Longer than a round trip nearly everywhere.
pub(super) const DRAIN_IDLE_US: u64 = 100_000;
/// The same when only the listener goes that it came in by: nobody waits for the end of it, so there is time for the next request, whose
/// answer says that the connection ends.
pub(super) const LEAVE_IDLE_US: u64 = 5_000_000;
/// How long a client that has ended its sending direction stays while weir has nothing to send it. Longer than most answers take, so that
/// who ends it right behind a request is answered.
const HALF_CLOSED_US: u64 = 100_000;
/// How often it is looked whether a client is still there that waits for its server and is not read.
const SEE_US: u64 = 250_000;
/// Over which time the rate of a body is judged, again and again, while something of it comes.
const BODY_WINDOW_US: u64 = 10_000_000;
/// Time beyond that of an errand after which its answer is not waited for any more.
const GRACE_US: u64 = 1_000_000;
/// How often a tunnel is looked at in the time that it may stay silent: so much longer than that it may live.
const LOOKS: u64 = 8;

impl ClientConn {
    /// When the patience with it ends, as things stand. `first`: the request whose answer it waits for; `inward`: the one whose
    /// body, or tunnel, is being read; `leaves_us`: when it ends if it
    /// stays idle; None: when it likes.
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
            Reading::Head if self.has_begun_request() && !self.flags.stopped => plan.head_timeout_us,
            Reading::Head if self.has_sent_all() => {
                return due_us.min(self.since_us + plan.idle_timeout_us).min(leaves_us.unwrap_or(u64::MAX));
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
                // While its client has something to take, that is what is waited for.
                None if self.outgoing() > 0 => return due_us,
                None => plan.tunnel_timeout_us,
            },
            Reading::Await if first.is_none() || self.flags.unverified => ERRAND_US + GRACE_US,
            Reading::Linger => LINGER_US,
            _ => return due_us,
        };
        due_us.min(self.since_us + reading)
    }

    /// When a client that has ended its sending direction is taken for one that has left: it waits for its server, and nothing was sent to
    /// it for [`HALF_CLOSED_US`]. Never where such clients are served.
    pub(super) fn left_us(&self, first: &Exchange, plan: &ClientPlan) -> u64 {
        // The end of a stream's body says nothing of its client.
        let has_ended = self.flags.ended && self.stream.is_none() && !plan.serves_half_closed;
        if has_ended { self.silent_since_us(first).saturating_add(HALF_CLOSED_US) } else { u64::MAX }
    }

    /// When the kernel is asked whether a client is still there that waits for its server, because nothing of it is read meanwhile.
    pub(super) fn see_us(&self, first: &Exchange) -> u64 {
        let is_unread = self.flags.stopped && !self.flags.ended && self.stream.is_none();
        if is_unread { self.silent_since_us(first).saturating_add(SEE_US) } else { u64::MAX }
    }

    /// Since when weir has nothing to send to a client that waits for this answer; never while it has.
    fn silent_since_us(&self, first: &Exchange) -> u64 {
        match self.outgoing() {
            0 => self.since_us.max(self.send_us).max(first.awaited_since_us()),
            _ => u64::MAX,
        }
    }

    /// Whether it is the server that the first answer waits for. While the client has something to take and sources were stopped for
    /// that, it is not; nor while something of it is being encoded; nor while the client has the rest of its request to send.
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
    /// Whether its client is judged by how its body comes. Once the answer has begun both may be silent as long as pauses within the
    /// answer may be: whose turn it is only they know.
    pub(super) fn judges_body(&self) -> bool {
        self.awaits_body() && !matches!(self.phase(), Phase::Answering | Phase::Encoding)
    }
}

impl RequestBodyReader {
    /// When its rate is judged next.
    fn window_end_us(&self) -> u64 {
        self.window_us + BODY_WINDOW_US
    }

    /// Whether the time is over in which it must have come with the least rate (bytes per second), and it did not.
    pub(super) fn is_too_slow(&mut self, now_us: u64, rate_min: u64) -> bool {
        let least = rate_min.saturating_mul(BODY_WINDOW_US / 1_000_000);
        now_us >= self.window_end_us() && self.judge_window(now_us, least)
    }
}

impl Relay {
    /// When it is looked at next.
    fn look_us(&self, plan: &ClientPlan) -> u64 {
        self.looked_us + (plan.tunnel_timeout_us / LOOKS).max(1)
    }
}
