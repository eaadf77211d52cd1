//! What waits for the connections of one server: requests that may share one, and requests that need one for themselves.
//!
//! The engine keeps one [`Lines`] a server. Each kind keeps its order; neither waits for the other, because what one of
//! them needs is of no use to the other: a request that goes alone waits for a connection with nothing on it, the others for
//! any that has room. Bound: the server's `capacity`, over both.

use crate::upstream::queue::{Queue, Waiting};

/// The two lines in front of a server; those sent again stand at the front.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    shared: Queue,
    alone: Queue,
}

impl Lines {
    /// The line of those that go alone, or of the others.
    pub(crate) fn line(&self, alone: bool) -> &Queue {
        if alone { &self.alone } else { &self.shared }
    }

    /// The same to be changed.
    pub(crate) fn line_mut(&mut self, alone: bool) -> &mut Queue {
        if alone { &mut self.alone } else { &mut self.shared }
    }

    /// Both to be changed.
    pub(crate) fn queues(&mut self) -> impl Iterator<Item = &mut Queue> {
        [&mut self.shared, &mut self.alone].into_iter()
    }

    /// Requests in both.
    pub(crate) fn len(&self) -> usize {
        self.shared.len() + self.alone.len()
    }

    /// Nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.alone.is_empty()
    }

    /// A request gets in line.
    pub(crate) fn push_back(&mut self, waiting: Waiting) {
        self.line_mut(waiting.ask.traits.goes_alone()).push_back(waiting);
    }

    /// One that was sent before goes first.
    pub(crate) fn push_front(&mut self, waiting: Waiting) {
        self.line_mut(waiting.ask.traits.goes_alone()).push_front(waiting);
    }

    /// Keeps only these.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Waiting) -> bool) {
        self.queues().for_each(|queue| queue.retain(&mut keep));
    }

    /// Takes all out, each kind in its order.
    pub(crate) fn take_all(&mut self) -> Vec<Waiting> {
        let Lines { shared, alone } = std::mem::take(self);
        shared.into_iter().chain(alone).collect()
    }

    /// All, each kind in its order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.shared.iter().chain(self.alone.iter())
    }

    /// Which line has the request that was received first; None: nothing waits.
    pub(crate) fn oldest(&self) -> Option<bool> {
        let received_us = |line: &Queue| line.front().map(|waiting| waiting.ask.received_us);
        match (received_us(&self.shared), received_us(&self.alone)) {
            (None, None) => None,
            (shared_us, alone_us) => Some(shared_us.is_none_or(|shared_us| alone_us.is_some_and(|us| us <= shared_us))),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each kind keeps its order and its front, whatever is taken out; the oldest of both is found. How: examples.

    use super::*;
    use crate::base::keys::{ExchangeKey, Key};
    use crate::request::pending_request::{ExchangeId, RequestFlags};
    use crate::upstream::queue::tests::request;

    fn waiting(index: u32, traits: RequestFlags) -> Waiting {
        request(ExchangeId { worker: 0, index: ExchangeKey::new(index), generation: 0 }, traits, index.into())
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
        assert!(queue.line_mut(true).cancel(id(1)).is_some() && queue.line_mut(true).cancel(id(1)).is_none());
        queue.retain(|waiting| waiting.ask.id.index.number() != 2);
        assert_eq!((indexes(&queue), queue.len()), (vec![4, 3], 2));
        assert_eq!(queue.take_all().len(), 2);
        assert!(queue.is_empty());
    }
}
