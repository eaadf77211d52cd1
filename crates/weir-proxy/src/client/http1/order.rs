//! The order in which answers leave: that of the requests (stage order). RFC 9112 §9.3.

use super::Http1;
use crate::base::keys::ExchangeKey;
use crate::base::output::Spare;
use crate::base::slab::Slab;
use crate::client::connection::{Exchange, Phase, ReplyConstraints};

impl Http1 {
    /// The request whose answer the client waits for, or is getting.
    #[inline]
    pub(in crate::client) fn current(&self) -> Option<ExchangeKey> {
        (self.first != ExchangeKey::NONE).then_some(self.first)
    }

    /// The request that came last, of those that are not completely answered.
    #[inline]
    pub(in crate::client) fn newest(&self) -> Option<ExchangeKey> {
        (self.last != ExchangeKey::NONE).then_some(self.last)
    }

    /// Every request is answered.
    #[inline]
    pub(in crate::client) fn is_empty(&self) -> bool {
        self.first == ExchangeKey::NONE
    }

    /// Requests that are not completely answered.
    #[inline]
    pub(in crate::client) fn requests(&self) -> u32 {
        self.queued
    }

    /// Whether what is written of this answer goes to the client at once, so that it can't be taken back.
    #[inline]
    pub(in crate::client) fn leaves(&self, slot: ExchangeKey) -> bool {
        self.first == slot
    }

    /// A request came, behind all others.
    #[inline]
    pub(in crate::client) fn push(&mut self, slot: ExchangeKey, exchanges: &mut Slab<ExchangeKey, Exchange>) {
        if self.last == ExchangeKey::NONE {
            self.first = slot;
        } else {
            exchanges.at_mut(self.last).reply.next = slot;
        }
        self.last = slot;
        self.queued += 1;
    }

    /// Whether the first answer is complete, so that the next one may leave.
    #[inline]
    pub(in crate::client) fn may_go_on(&self, exchanges: &Slab<ExchangeKey, Exchange>) -> bool {
        self.first != ExchangeKey::NONE && exchanges.at(self.first).phase() == Phase::Done
    }

    /// Ends the first exchange, whatever has come of it; who ends one before its turn has come ends all. What its answer was to be like.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub(in crate::client) fn pop(&mut self, exchanges: &mut Slab<ExchangeKey, Exchange>) -> ReplyConstraints {
        let exchange = exchanges.remove(self.first);
        self.first = exchange.reply.next;
        self.queued -= 1;
        if self.first == ExchangeKey::NONE {
            self.last = ExchangeKey::NONE;
            // What was held of others is gone with them.
            self.held_bytes = 0;
        }
        exchange.want
    }

    /// Another exchange has become the first: what it holds goes to the client.
    #[inline]
    pub(in crate::client) fn give_held(&mut self, exchange: &mut Exchange, spare: &mut Spare) {
        let held = std::mem::take(&mut exchange.reply.held);
        self.held_bytes -= held.len() as u32 + exchange.reply.coding;
        self.output.append(held, spare);
    }

    /// Forgets what is held of an answer whose turn has not come.
    pub(in crate::client) fn forget(&mut self, exchange: &mut Exchange) {
        let held = std::mem::take(&mut exchange.reply.held);
        self.held_bytes -= held.len() as u32 + std::mem::take(&mut exchange.reply.coding);
    }
}
