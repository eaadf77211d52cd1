//! The sockets of one driver that wait for a receive buffer, in the order in which they began to
//! wait. Called by both real drivers.
//!
//! A socket keeps its place until it has had its chance: the caller may switch it off while it
//! waits and on again later, always in the same order. With a new place each time, the same sockets
//! would get the buffers turn after turn. Bound: one entry for each open socket in `kept`; in the
//! queues closed sockets remain until a buffer comes.

use std::collections::{HashMap, VecDeque};

use crate::{Class, Socket};

/// When a socket began to wait: the lower, the earlier.
pub(crate) type Place = u64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Scarce {
    next: Place,
    /// Small, large; by place.
    queues: [VecDeque<(Place, Socket)>; 2],
    /// Places of sockets that left a queue without having had a chance.
    kept: HashMap<Socket, Place>,
}

impl Scarce {
    /// Whether no socket waits for a buffer of this class.
    pub(crate) fn is_empty(&self, class: Class) -> bool {
        self.queues[class as usize].is_empty()
    }

    /// Puts a socket in the queue: at the place that was kept for it, else at the end.
    pub(crate) fn wait(&mut self, class: Class, socket: Socket) {
        let queue = &mut self.queues[class as usize];
        if let Some(place) = self.kept.remove(&socket) {
            let at = queue.partition_point(|&(other, _)| other < place);
            queue.insert(at, (place, socket));
        } else {
            queue.push_back((self.next, socket));
            self.next += 1;
        }
    }

    /// Takes the first socket out of the queue.
    pub(crate) fn pop(&mut self, class: Class) -> Option<(Place, Socket)> {
        self.queues[class as usize].pop_front()
    }

    /// Keeps the place of a socket that was taken out and had no chance yet.
    pub(crate) fn keep(&mut self, place: Place, socket: Socket) {
        self.kept.insert(socket, place);
    }

    /// Whether a place is kept for a socket.
    pub(crate) fn keeps(&self, socket: Socket) -> bool {
        self.kept.contains_key(&socket)
    }

    /// Whether a place is kept for any socket.
    pub(crate) fn keeps_any(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Gives up the place of a socket that has had its chance, or is closed.
    pub(crate) fn forget(&mut self, socket: Socket) {
        self.kept.remove(&socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sockets that are off whenever a buffer comes get their buffers in the order in which they
    /// began to wait.
    #[test]
    fn places_are_kept() {
        let socket = |index| Socket { index, generation: 1 };
        let mut scarce = Scarce::default();
        (0..5).for_each(|index| scarce.wait(Class::Small, socket(index)));
        let mut served = Vec::new();
        for _ in 0..5 {
            // All are off, then on again, the last one first.
            while let Some((place, socket)) = scarce.pop(Class::Small) {
                scarce.keep(place, socket);
            }
            for index in
                (0..5).rev().filter(|&index| scarce.keeps(socket(index))).collect::<Vec<_>>()
            {
                scarce.wait(Class::Small, socket(index));
            }
            served.extend(scarce.pop(Class::Small).map(|(_, socket)| socket.index));
        }
        assert_eq!(served, [0, 1, 2, 3, 4]);
        scarce.wait(Class::Small, socket(7));
        let (place, _) = scarce.pop(Class::Small).expect("it waits");
        scarce.keep(place, socket(7));
        scarce.forget(socket(7));
        assert!(
            !scarce.keeps(socket(7))
                && scarce.is_empty(Class::Small)
                && scarce.is_empty(Class::Large)
        );
    }
}
