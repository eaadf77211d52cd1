//! The order in which responses leave: that of the requests (stage order). RFC 9112 §9.3.

use super::Http1;
use crate::base::keys::ExchangeKey;
use crate::base::output::Spare;
use crate::base::slab::Slab;
use crate::client::connection::{Exchange, Phase, ReplyConstraints};

impl Http1 {
    /// The request whose response the client waits for, or is getting.
    #[inline]
    pub(in crate::client) fn current(&self) -> Option<ExchangeKey> {
        (self.first != ExchangeKey::NONE).then_some(self.first)
    }

    /// The newest request without a complete response.
    #[inline]
    pub(in crate::client) fn newest(&self) -> Option<ExchangeKey> {
        (self.last != ExchangeKey::NONE).then_some(self.last)
    }

    /// Whether every request has its complete response.
    #[inline]
    pub(in crate::client) fn is_empty(&self) -> bool {
        self.first == ExchangeKey::NONE
    }

    /// The number of requests without a complete response.
    #[inline]
    pub(in crate::client) fn requests(&self) -> u32 {
        self.queued
    }

    /// Whether bytes of this response leave for the client at once, so that they can't be taken
    /// back.
    #[inline]
    pub(in crate::client) fn leaves(&self, slot: ExchangeKey) -> bool {
        self.first == slot
    }

    /// Adds a request behind all others.
    #[inline]
    pub(in crate::client) fn push(
        &mut self,
        slot: ExchangeKey,
        exchanges: &mut Slab<ExchangeKey, Exchange>,
    ) {
        if self.last == ExchangeKey::NONE {
            self.first = slot;
        } else {
            exchanges.at_mut(self.last).reply.next = slot;
        }
        self.last = slot;
        self.queued += 1;
    }

    /// Whether the first response is complete, so that the next one may leave.
    #[inline]
    pub(in crate::client) fn may_go_on(&self, exchanges: &Slab<ExchangeKey, Exchange>) -> bool {
        self.first != ExchangeKey::NONE && exchanges.at(self.first).phase() == Phase::Done
    }

    /// Ends the first exchange, in whatever state; a caller that ends one before its turn has to
    /// end all. Returns the constraints of its response.
    ///
    /// # Panics
    /// The list is empty.
    #[inline]
    pub(in crate::client) fn pop(
        &mut self,
        exchanges: &mut Slab<ExchangeKey, Exchange>,
    ) -> ReplyConstraints {
        let exchange = exchanges.remove(self.first);
        self.first = exchange.reply.next;
        self.queued -= 1;
        if self.first == ExchangeKey::NONE {
            self.last = ExchangeKey::NONE;
            // The held bytes of other exchanges are gone with those.
            self.held_bytes = 0;
        }
        exchange.want
    }

    /// Another exchange has become the first: its held bytes move to the client's output.
    #[inline]
    pub(in crate::client) fn give_held(&mut self, exchange: &mut Exchange, spare: &mut Spare) {
        let held = std::mem::take(&mut exchange.reply.held);
        self.held_bytes -= held.len() as u32 + exchange.reply.coding;
        self.output.append(held, spare);
    }

    /// Discards the held bytes of a response that waits for its turn.
    pub(in crate::client) fn forget(&mut self, exchange: &mut Exchange) {
        let held = std::mem::take(&mut exchange.reply.held);
        self.held_bytes -= held.len() as u32 + std::mem::take(&mut exchange.reply.coding);
    }
}
