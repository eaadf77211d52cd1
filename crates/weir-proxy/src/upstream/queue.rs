//! Waiting requests, oldest first, each of which can be taken out by its name at once, wherever it
//! is.
//!
//! Used for requests that wait for a server's connections and for those in quarantine. A client
//! that leaves takes back all its requests, and thousands may leave in one turn: searching for each
//! of their requests would cost the square of their number.
//!
//! ```text
//!   list    [ w3 ][ w4 ][ -- ][ w6 ]     -- was taken out from the middle: a hole
//!   number    3     4     5     6        of the place; places maps names to numbers
//!             ^first
//! ```
//! Holes are never at the front. When they are more than the living requests plus [`HOLES_MIN`],
//! the list is compacted. So each operation costs a constant on average. The owner bounds the
//! length.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::base::piece::Piece;
use crate::request::pending_request::{ExchangeId, PendingRequest, RequestFlags};

/// Holes for which a list is not compacted.
const HOLES_MIN: usize = 64;

/// A request that waits for a connection.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// The request.
    pub ask: PendingRequest,
    /// Serialised.
    pub bytes: Vec<u8>,
}

impl Waiting {
    /// A piece of its body, which may be the last one (`end`).
    pub(crate) fn add_body(&mut self, piece: &Piece<'_>, end: bool) {
        self.bytes.extend_from_slice(piece.bytes());
        if end {
            self.ask.traits = self.ask.traits.without(RequestFlags::STREAMING);
        }
    }
}

/// A map whose keys name requests.
pub(crate) type ByRequest<V> = HashMap<ExchangeId, V, BuildHasherDefault<Names>>;

/// Waiting requests in their order. A *place* names one until the queue is changed.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    list: VecDeque<Option<Waiting>>,
    /// Number of the place at the front; wraps around.
    first: u32,
    /// By name: number of the place.
    places: ByRequest<u32>,
}

impl Queue {
    /// Returns the number of requests.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds a request behind all others.
    pub(crate) fn push_back(&mut self, waiting: Waiting) {
        let number = self.first.wrapping_add(self.list.len() as u32);
        self.note(&waiting, number);
        self.list.push_back(Some(waiting));
    }

    /// Adds a request in front of all others.
    pub(crate) fn push_front(&mut self, waiting: Waiting) {
        self.first = self.first.wrapping_sub(1);
        self.note(&waiting, self.first);
        self.list.push_front(Some(waiting));
    }

    fn note(&mut self, waiting: &Waiting, number: u32) {
        let before = self.places.insert(waiting.ask.id, number);
        debug_assert!(before.is_none(), "a request waits once");
    }

    /// Returns the oldest.
    pub(crate) fn front(&self) -> Option<&Waiting> {
        self.list.front()?.as_ref()
    }

    /// Returns the first place at or behind `place` that has a request.
    pub(crate) fn next(&self, place: usize) -> Option<usize> {
        (place..self.list.len()).find(|place| self.list[*place].is_some())
    }

    /// Returns the request at a place, if it has any.
    pub(crate) fn get(&self, place: usize) -> Option<&Waiting> {
        self.list.get(place)?.as_ref()
    }

    /// Returns the request of this name.
    pub(crate) fn find_mut(&mut self, id: ExchangeId) -> Option<&mut Waiting> {
        let number = *self.places.get(&id)?;
        self.list.get_mut(number.wrapping_sub(self.first) as usize)?.as_mut()
    }

    /// Whether the request of this name waits here.
    pub(crate) fn has(&self, id: ExchangeId) -> bool {
        self.places.contains_key(&id)
    }

    /// Takes the request at a place.
    pub(crate) fn remove(&mut self, place: usize) -> Option<Waiting> {
        let waiting = self.list.get_mut(place)?.take()?;
        self.places.remove(&waiting.ask.id);
        self.tidy();
        Some(waiting)
    }

    /// Takes the request of this name.
    pub(crate) fn cancel(&mut self, id: ExchangeId) -> Option<Waiting> {
        let number = *self.places.get(&id)?;
        self.remove(number.wrapping_sub(self.first) as usize)
    }

    /// Keeps those for which `keep` returns true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Waiting) -> bool) {
        for slot in &mut self.list {
            if let Some(waiting) = slot.take_if(|waiting| !keep(waiting)) {
                self.places.remove(&waiting.ask.id);
            }
        }
        self.tidy();
    }

    /// All, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Waiting> {
        self.list.iter().flatten()
    }

    /// All with their places, oldest first.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, &Waiting)> {
        self.list.iter().enumerate().filter_map(|(place, slot)| Some((place, slot.as_ref()?)))
    }

    /// Restores the invariants between operations.
    fn tidy(&mut self) {
        while let Some(None) = self.list.front() {
            self.list.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        if self.list.len() > 2 * self.places.len() + HOLES_MIN {
            self.list.retain(Option::is_some);
            for (place, waiting) in self.list.iter().flatten().enumerate() {
                self.places.insert(waiting.ask.id, self.first.wrapping_add(place as u32));
            }
        }
    }
}

impl IntoIterator for Queue {
    type Item = Waiting;
    type IntoIter = std::iter::Flatten<std::collections::vec_deque::IntoIter<Option<Waiting>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter().flatten()
    }
}

/// Hashes names of requests. They are slots of tables, and outsiders can't choose those, so that
/// one multiplication is enough.
#[derive(Debug, Default)]
pub(crate) struct Names(u64);

impl Hasher for Names {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u32(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        // An odd factor (of the golden ratio), and the high bits, which depend on all others, into
        // the low ones.
        let mixed = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    //! Proves: a queue is a list, whatever is taken out of it and how; and that no history of it
    //! costs more than a constant for each operation. How: generated histories beside a plain list;
    //! the length that the list may have.

    use super::*;
    use crate::base::keys::{ExchangeKey, Key};
    use crate::base::stamp::Stamp;
    use crate::request::pending_request::NOBODY;
    use proptest::prelude::*;

    /// A request as it waits, for tests of its users.
    pub(crate) fn request(id: ExchangeId, traits: RequestFlags, received_us: u64) -> Waiting {
        let ask = PendingRequest {
            id,
            client: Default::default(),
            carrier: Default::default(),
            serial: received_us,
            upstream: 0,
            server: 0,
            key: 0,
            bound: NOBODY,
            tries: 0,
            passed: 0,
            barren: 0,
            class: Default::default(),
            traits,
            received_us,
            asked_us: received_us,
            echo: Stamp::default(),
        };
        Waiting { ask, bytes: id.index.number().to_be_bytes().to_vec() }
    }

    fn waiting(name: u32) -> Waiting {
        let id = ExchangeId {
            worker: (name % 3) as u16,
            index: ExchangeKey::new(name),
            generation: name / 2,
        };
        request(id, RequestFlags::default(), 0)
    }

    fn names(queue: &Queue) -> Vec<u32> {
        queue.iter().map(|waiting| waiting.ask.id.index.number()).collect()
    }

    fn check(queue: &Queue) -> Result<(), TestCaseError> {
        prop_assert!(queue.list.front().is_none_or(Option::is_some), "a hole at the front");
        prop_assert!(
            queue.list.len() <= 2 * queue.len() + HOLES_MIN,
            "{} for {}",
            queue.list.len(),
            queue.len()
        );
        Ok(())
    }

    proptest! {
        #[test]
        fn is_a_list(
            steps in prop::collection::vec((0u8..8, any::<prop::sample::Index>()), 1..600),
        ) {
            let (mut queue, mut model, mut next) = (Queue::default(), VecDeque::<u32>::new(), 0);
            for (step, which) in steps {
                let at = if model.is_empty() { 0 } else { which.index(model.len()) };
                match step {
                    0..3 => {
                        queue.push_back(waiting(next));
                        model.push_back(next);
                        next += 1;
                    }
                    3 => {
                        queue.push_front(waiting(next));
                        model.push_front(next);
                        next += 1;
                    }
                    4 => {
                        let place = queue.places().nth(at).map(|(place, _)| place);
                        prop_assert_eq!(place.and_then(|place| queue.next(place)), place);
                        let taken = place.and_then(|place| queue.remove(place));
                        prop_assert_eq!(taken.map(|it| it.ask.id.index.number()), model.remove(at));
                    }
                    5 | 6 => {
                        let id = model
                            .get(at)
                            .map_or(waiting(next).ask.id, |name| waiting(*name).ask.id);
                        prop_assert_eq!(
                            queue.find_mut(id).map(|it| it.ask.id.index.number()),
                            model.get(at).copied()
                        );
                        prop_assert_eq!(
                            queue.cancel(id).map(|it| it.ask.id.index.number()),
                            model.remove(at)
                        );
                        prop_assert!(queue.cancel(id).is_none());
                    }
                    _ => {
                        let part = next % 5;
                        queue.retain(|it| it.ask.id.index.number() % 5 != part);
                        model.retain(|name| name % 5 != part);
                    }
                }
                prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(names(&queue), Vec::from(model.clone()));
                prop_assert_eq!(
                    queue.front().map(|it| it.ask.id.index.number()),
                    model.front().copied()
                );
                check(&queue)?;
            }
            prop_assert_eq!(
                queue.into_iter().map(|it| it.ask.id.index.number()).collect::<Vec<_>>(),
                Vec::from(model)
            );
        }
    }

    /// As many requests as many clients with full pipelines have, from the back: a search would go
    /// through all of them each time.
    #[test]
    fn all_leave_at_once() {
        let mut queue = Queue::default();
        (0..200_000).for_each(|name| queue.push_back(waiting(name)));
        for name in (0..200_000).rev().filter(|name| name % 1000 != 0) {
            assert!(queue.cancel(waiting(name).ask.id).is_some());
        }
        assert_eq!(queue.len(), 200);
        assert!(queue.list.len() <= 2 * 200 + HOLES_MIN);
        assert_eq!(names(&queue), (0..200).map(|name| name * 1000).collect::<Vec<_>>());
    }
}
