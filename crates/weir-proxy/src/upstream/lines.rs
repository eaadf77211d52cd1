//! The requests that wait for the connections of one server: those that may share one, those that
//! need one for themselves, and those of clients that hold up as many as they may
//! ([`crate::upstream::server::Holders`]), which are in no other request's way.
//!
//! The engine keeps one [`Lines`] a server. Each kind keeps its order; neither waits for the other,
//! because their needs differ: a request that must be sent alone waits for a connection with
//! nothing on it, the others for any that has room. Bound: the server's `capacity`, over both.

use std::collections::{BTreeMap, VecDeque};

use crate::request::pending_request::{ClientName, ExchangeId};
use crate::upstream::queue::{Queue, Waiting};

/// The lines in front of a server; requests that are sent again are at the front.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    shared: Queue,
    alone: Queue,
    parked: Queue,
    /// By client connection, in their order: its parked requests. Some may have been cancelled.
    parked_of: BTreeMap<ClientName, VecDeque<ExchangeId>>,
}

/// The number of names in a list of parked requests from which on it is checked whether they still
/// are parked.
const PARKED_LOOK_MIN: usize = 128;

impl Lines {
    /// Returns the line of those that are sent alone, or of the others.
    pub(crate) fn line(&self, alone: bool) -> &Queue {
        if alone { &self.alone } else { &self.shared }
    }

    /// The same, mutable.
    pub(crate) fn line_mut(&mut self, alone: bool) -> &mut Queue {
        if alone { &mut self.alone } else { &mut self.shared }
    }

    /// Returns all, including parked ones, mutable.
    pub(crate) fn queues(&mut self) -> impl Iterator<Item = &mut Queue> {
        [&mut self.shared, &mut self.alone, &mut self.parked].into_iter()
    }

    /// Returns the number of requests, including parked ones.
    pub(crate) fn len(&self) -> usize {
        self.unparked() + self.parked.len()
    }

    /// Returns the number of requests that take a connection that comes up.
    pub(crate) fn unparked(&self) -> usize {
        self.shared.len() + self.alone.len()
    }

    /// Nothing waits, and nothing is parked.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nothing waits for a connection that comes up. Something may be parked.
    pub(crate) fn is_calm(&self) -> bool {
        self.shared.is_empty() && self.alone.is_empty()
    }

    /// A request gets in line.
    pub(crate) fn push_back(&mut self, waiting: Waiting) {
        self.line_mut(waiting.ask.traits.goes_alone()).push_back(waiting);
    }

    /// A request that was sent before is put first.
    pub(crate) fn push_front(&mut self, waiting: Waiting) {
        self.line_mut(waiting.ask.traits.goes_alone()).push_front(waiting);
    }

    /// A request has to wait until its client holds up less.
    pub(crate) fn park(&mut self, waiting: Waiting) {
        let names = self.parked_of.entry(waiting.ask.carrier).or_default();
        if names.len() >= PARKED_LOOK_MIN && names.len() == names.capacity() {
            names.retain(|id| self.parked.has(*id));
        }
        names.push_back(waiting.ask.id);
        self.parked.push_back(waiting);
    }

    /// Parked requests of a client get in line, the first `most` at most. Returns whether these are
    /// all of them.
    pub(crate) fn unpark(&mut self, carrier: ClientName, most: u32) -> bool {
        let Some(names) = self.parked_of.get_mut(&carrier) else { return true };
        let mut released = Vec::new();
        while released.len() < most as usize
            && let Some(id) = names.pop_front()
        {
            released.extend(self.parked.cancel(id));
        }
        let is_done = names.is_empty();
        if is_done {
            self.parked_of.remove(&carrier);
        }
        released.into_iter().for_each(|waiting| self.push_back(waiting));
        is_done
    }

    /// Keeps only those for which `keep` returns true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Waiting) -> bool) {
        self.queues().for_each(|queue| queue.retain(&mut keep));
    }

    /// Takes all out, each kind in its order.
    pub(crate) fn take_all(&mut self) -> Vec<Waiting> {
        let Lines { shared, alone, parked, .. } = std::mem::take(self);
        shared.into_iter().chain(alone).chain(parked).collect()
    }

    /// Returns the parked requests.
    pub(crate) fn parked(&self) -> impl Iterator<Item = &Waiting> {
        self.parked.iter()
    }

    /// Returns all, including parked ones.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.iter().chain(self.parked())
    }

    /// Returns the requests that take a connection that comes up, each kind in its order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.shared.iter().chain(self.alone.iter())
    }

    /// Returns which line has the request that was received first; None: nothing waits.
    pub(crate) fn oldest(&self) -> Option<bool> {
        let received_us = |line: &Queue| line.front().map(|waiting| waiting.ask.received_us);
        match (received_us(&self.shared), received_us(&self.alone)) {
            (None, None) => None,
            (shared_us, alone_us) => {
                Some(shared_us.is_none_or(|shared_us| alone_us.is_some_and(|us| us <= shared_us)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each kind keeps its order and its front, whatever is taken out; the oldest of both
    //! is found. How: examples.

    use super::*;
    use crate::base::keys::{ExchangeKey, Key};
    use crate::request::pending_request::{ExchangeId, RequestFlags};
    use crate::upstream::queue::tests::request;

    fn waiting(index: u32, traits: RequestFlags) -> Waiting {
        request(
            ExchangeId { worker: 0, index: ExchangeKey::new(index), generation: 0 },
            traits,
            index.into(),
        )
    }

    fn indexes(queue: &Lines) -> Vec<u32> {
        queue.iter().map(|waiting| waiting.ask.id.index.number()).collect()
    }

    #[test]
    fn kinds_wait_beside_each_other() {
        let mut queue = Lines::default();
        assert_eq!(queue.oldest(), None);
        queue.push_back(waiting(1, RequestFlags::default()));
        queue.push_back(waiting(2, RequestFlags::PIPELINABLE));
        queue.push_back(waiting(3, RequestFlags::PIPELINABLE.with(RequestFlags::ALONE, true)));
        queue.push_back(waiting(4, RequestFlags::PIPELINABLE));
        queue.push_front(waiting(0, RequestFlags::PIPELINABLE));
        assert_eq!(indexes(&queue), [0, 2, 4, 1, 3]);
        assert_eq!(queue.oldest(), Some(false));
        assert_eq!(queue.line_mut(false).remove(0).expect("it is there").ask.id.index.number(), 0);
        assert_eq!(queue.oldest(), Some(true), "1 is older than 2");
        let id = |index| ExchangeId { worker: 0, index: ExchangeKey::new(index), generation: 0 };
        assert!(
            queue.line_mut(true).cancel(id(1)).is_some()
                && queue.line_mut(true).cancel(id(1)).is_none()
        );
        queue.retain(|waiting| waiting.ask.id.index.number() != 2);
        assert_eq!((indexes(&queue), queue.len()), (vec![4, 3], 2));
        assert_eq!(queue.take_all().len(), 2);
        assert!(queue.is_empty());
    }

    /// Parked requests count, are in no other request's way, are found by their names, and come
    /// back in their order.
    #[test]
    fn what_is_parked_comes_back() {
        let mut queue = Lines::default();
        queue.push_back(waiting(9, RequestFlags::PIPELINABLE));
        (0..5).for_each(|index| queue.park(waiting(index, RequestFlags::PIPELINABLE)));
        assert_eq!(
            (queue.len(), queue.unparked(), indexes(&queue), queue.all().count()),
            (6, 1, vec![9], 6)
        );
        let id = |index| ExchangeId { worker: 0, index: ExchangeKey::new(index), generation: 0 };
        assert_eq!(queue.queues().filter_map(|queue| queue.cancel(id(1))).count(), 1);
        assert!(!queue.unpark(ClientName::default(), 2));
        assert_eq!(indexes(&queue), [9, 0, 2]);
        assert!(queue.unpark(ClientName::default(), u32::MAX));
        assert_eq!((indexes(&queue), queue.parked_of.len()), (vec![9, 0, 2, 3, 4], 0));
        // A client that keeps sending and cancelling has no list that grows.
        for index in 10..100_000 {
            queue.park(waiting(index, RequestFlags::PIPELINABLE));
            assert_eq!(queue.queues().filter_map(|queue| queue.cancel(id(index))).count(), 1);
        }
        assert!(queue.parked_of[&ClientName::default()].len() <= 2 * PARKED_LOOK_MIN);
    }
}
