//! Timers of connections and probes: one comparison when one comes, and a look at what was meant by it.

use super::Upstreams;
use super::connection::LinkState;
use super::orders::NEVER_US;
use super::pool::Pool;
use crate::base::keys::ConnKey;
use crate::base::token::Token;
use crate::context::Context;
use crate::cross::router::Replies;
use crate::ending::Timeout;

impl Upstreams {
    /// A timer has come.
    pub(crate) fn on_timer(&mut self, token: u64, to: &mut Replies<'_>, cx: &mut Context) {
        match Token::unpack(token) {
            Some(Token::Conn { key, generation }) if self.pool.links.holds_short(key, generation) => {
                self.link_timer(key, to, cx);
            }
            Some(Token::Probe { .. }) => self.probe_timer(token, cx),
            Some(Token::Retry { key }) => self.retry_approach(key, cx),
            _ => {}
        }
    }

    fn link_timer(&mut self, index: ConnKey, to: &mut Replies<'_>, cx: &mut Context) {
        match self.pool.links.at(index).state() {
            LinkState::Down { retry_us: NEVER_US } => {}
            LinkState::Down { retry_us } if retry_us <= cx.now_us => self.pool.connect(index, cx),
            LinkState::Down { retry_us } => self.pool.arm_link(index, retry_us, cx),
            LinkState::Connecting { deadline_us } if deadline_us <= cx.now_us => {
                cx.counters.timeouts.count(Timeout::Connect);
                self.connect_failed(index, None, cx);
            }
            LinkState::Connecting { deadline_us } if self.pool.links.at(index).owner.is_some() => {
                self.private.try_next_address(index, &mut self.pool, cx);
                self.pool.arm_link(index, deadline_us, cx);
            }
            LinkState::Connecting { deadline_us } => self.pool.arm_link(index, deadline_us, cx),
            LinkState::Tunnel if self.pool.links.at(index).tunnel.give_up_us <= cx.now_us => self.end_tunnel(index, cx),
            LinkState::Tunnel => {}
            LinkState::Ready => {
                let link = self.pool.links.at(index);
                let (stall, late) = (link.reading.due_us <= cx.now_us, link.wait.due_us <= cx.now_us);
                let (rest, first) = (link.rest.due_us <= cx.now_us, link.room.due_us <= cx.now_us);
                let quote = link.withheld.due_us <= cx.now_us;
                if link.unheard.due_us <= cx.now_us {
                    self.pool.check_unheard(index, cx);
                }
                if stall {
                    self.check_stall(index, cx);
                }
                if quote && self.pool.links.is_occupied(index) {
                    self.check_quote(index, to, cx);
                }
                if late && self.pool.links.is_occupied(index) {
                    self.check_late(index, cx);
                }
                if first && self.pool.links.is_occupied(index) && self.pool.links.at(index).is_ready() {
                    self.check_first(index, cx);
                }
                if rest && self.pool.links.is_occupied(index) && self.pool.links.at(index).is_ready() {
                    self.check_rest(index, cx);
                }
            }
        }
    }
}

impl Pool {
    #[inline]
    pub(super) fn arm_link(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        cx.wheel.insert(self.link_token(index), due_us);
    }
}
