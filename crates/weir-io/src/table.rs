//! The sockets of one driver: 24 bytes each, in chunks, so that growth never copies and an idle
//! connection is cheap.
//!
//! A slot changes from free to live to closing to free. Its generation changes when it becomes
//! free, so a name or a completion of an earlier occupant matches nothing. Bound: the process's
//! descriptors.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::{Class, Descriptors, Receive, Socket, Token};

const CHUNK: usize = 256;
const NONE: u32 = u32::MAX;

/// No send in flight.
pub(crate) const NO_SEND: u32 = NONE;

/// How the socket is to be read (two bits: off, once, many).
const WANT_ONCE: u32 = 1;
const WANT_MANY: u32 = 2;
const WANT_LARGE: u32 = 4;
/// The caller closed it; completions of operations in flight are awaited.
pub(crate) const CLOSING: u32 = 1 << 3;
/// Nothing more will be received.
pub(crate) const ENDED: u32 = 1 << 4;
/// A listening socket.
pub(crate) const LISTENER: u32 = 1 << 5;
/// A connect is in flight.
pub(crate) const CONNECTING: u32 = 1 << 6;
/// Waits for a receive buffer.
pub(crate) const STARVED: u32 = 1 << 7;
/// Belongs to a relay, or did.
pub(crate) const RELAYING: u32 = 1 << 8;
/// A listener with accepted connections that are deaf.
pub(crate) const DEAF: u32 = 1 << 9;
/// Was accepted, and the caller has not yet decided what to do with it: its token is the slot of
/// its listener.
pub(crate) const FRESH: u32 = 1 << 10;
/// It moves to another driver.
pub(crate) const RELEASING: u32 = 1 << 11;
/// Counts among the descriptors of clients.
const CLIENTS: u32 = 1 << 12;
/// The caller's commands no longer affect it.
pub(crate) const TAKEN: u32 = RELAYING | RELEASING;
/// First bit that a driver may use for itself.
pub(crate) const OWN_BITS: u32 = 13;

/// One socket.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) token: Token,
    /// -1 when free.
    pub(crate) fd: RawFd,
    pub(crate) generation: u32,
    /// Index of the send in flight, or [`NO_SEND`]; the next free slot when free.
    pub(crate) send: u32,
    bits: u32,
}

const _: () = assert!(size_of::<Slot>() <= 24, "10,000 idle connections must stay small");

impl Slot {
    /// The slot of the listener of a client for which no command has come yet.
    pub(crate) fn fresh_of(&self) -> Option<u32> {
        self.has(FRESH).then_some(self.token as u32)
    }

    pub(crate) fn has(&self, bits: u32) -> bool {
        self.bits & bits != 0
    }

    pub(crate) fn set(&mut self, bits: u32) {
        self.bits |= bits;
    }

    pub(crate) fn clear(&mut self, bits: u32) {
        self.bits &= !bits;
    }

    pub(crate) fn want(&self) -> Receive {
        let class = if self.has(WANT_LARGE) { Class::Large } else { Class::Small };
        if self.has(WANT_MANY) {
            Receive::Many(class)
        } else if self.has(WANT_ONCE) {
            Receive::Once(class)
        } else {
            Receive::Off
        }
    }

    pub(crate) fn set_want(&mut self, how: Receive) {
        self.clear(WANT_ONCE | WANT_MANY | WANT_LARGE);
        self.set(match how {
            Receive::Off => 0,
            Receive::Once(_) => WANT_ONCE,
            Receive::Many(_) => WANT_MANY,
        });
        if matches!(how, Receive::Once(Class::Large) | Receive::Many(Class::Large)) {
            self.set(WANT_LARGE);
        }
    }
}

/// All sockets of a driver.
#[derive(Debug)]
pub(crate) struct Table {
    chunks: Vec<Box<[Slot; CHUNK]>>,
    first_free: u32,
    live: usize,
    descriptors: Arc<Descriptors>,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table { chunks: Vec::new(), first_free: NONE, live: 0, descriptors: Arc::default() }
    }

    /// Slots in use, closing ones included.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    pub(crate) fn insert(&mut self, fd: RawFd, token: Token) -> Socket {
        if self.first_free == NONE {
            self.grow();
        }
        let index = self.first_free;
        let slot = self.slot(index);
        let next = slot.send;
        *slot = Slot { token, fd, generation: slot.generation, send: NO_SEND, bits: 0 };
        let generation = slot.generation;
        self.first_free = next;
        self.live += 1;
        Socket { index, generation }
    }

    fn grow(&mut self) {
        let base = (self.chunks.len() * CHUNK) as u32;
        // Linked in ascending order, so that a young table uses few pages.
        let chunk = std::array::from_fn(|at| {
            let next = if at + 1 == CHUNK { NONE } else { base + at as u32 + 1 };
            Slot { token: 0, fd: -1, generation: 1, send: next, bits: 0 }
        });
        self.chunks.push(Box::new(chunk));
        self.first_free = base;
    }

    /// Sets where the descriptors of clients are counted. Before the first of them is there.
    pub(crate) fn share(&mut self, descriptors: Arc<Descriptors>) {
        self.descriptors = descriptors;
    }

    /// Whether clients use all of their descriptors.
    pub(crate) fn is_full(&self) -> bool {
        self.descriptors.is_full()
    }

    /// Whether they have at least half of them: then each is accepted by a separate request.
    pub(crate) fn is_near_full(&self) -> bool {
        self.descriptors.is_near_full()
    }

    /// A client of a listener.
    pub(crate) fn insert_fresh(&mut self, fd: RawFd, listener: Socket) -> Socket {
        let socket = self.insert_client(fd, Token::from(listener.index));
        self.slot(socket.index).set(FRESH);
        socket
    }

    /// A client that was accepted, here or by another driver.
    pub(crate) fn insert_client(&mut self, fd: RawFd, token: Token) -> Socket {
        let socket = self.insert(fd, token);
        self.slot(socket.index).set(CLIENTS);
        self.descriptors.take();
        socket
    }

    /// Frees a slot. The caller handles the descriptor.
    pub(crate) fn remove(&mut self, index: u32) {
        let next = self.first_free;
        let slot = self.slot(index);
        debug_assert!(slot.fd >= 0 && slot.send == NO_SEND);
        if slot.has(CLIENTS) {
            self.descriptors.give_back();
        }
        let slot = self.slot(index);
        slot.fd = -1;
        slot.bits = 0;
        slot.send = next;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.first_free = index;
        self.live -= 1;
    }

    /// A slot by index.
    ///
    /// # Panics
    /// When the index was never handed out.
    pub(crate) fn slot(&mut self, index: u32) -> &mut Slot {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    /// The occupant that a name means, closing or not.
    pub(crate) fn occupant(&mut self, index: u32, generation: u32) -> Option<&mut Slot> {
        let slot = self.chunks.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)?;
        (slot.generation == generation && slot.fd >= 0).then_some(slot)
    }

    /// The socket that a caller means: live and not closed.
    pub(crate) fn named(&mut self, socket: Socket) -> Option<&mut Slot> {
        self.occupant(socket.index, socket.generation).filter(|slot| !slot.has(CLOSING))
    }

    /// Names of all slots in use.
    pub(crate) fn occupied(&self) -> Vec<Socket> {
        self.names(|_| true)
    }

    /// Names of all sockets that are not closed, without listeners.
    pub(crate) fn streams(&self) -> Vec<Socket> {
        self.names(|slot| !slot.has(CLOSING | LISTENER))
    }

    fn names(&self, wanted: impl Fn(&Slot) -> bool) -> Vec<Socket> {
        let slots = self.chunks.iter().flat_map(|chunk| chunk.iter()).enumerate();
        slots
            .filter(|(_, slot)| slot.fd >= 0 && wanted(slot))
            .map(|(index, slot)| Socket { index: index as u32, generation: slot.generation })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    //! A name means one occupant of one slot, for ever.

    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn names_are_never_reused(
            steps in proptest::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..800),
        ) {
            let mut table = Table::new();
            let (mut live, mut dead, mut all) = (Vec::new(), Vec::new(), HashSet::new());
            for (step, which) in steps {
                if step > 0 || live.is_empty() {
                    let socket = table.insert(live.len() as RawFd, 7);
                    prop_assert!(all.insert(socket));
                    live.push(socket);
                } else {
                    let socket: Socket = live.swap_remove(which.index(live.len()));
                    table.remove(socket.index);
                    dead.push(socket);
                }
            }
            prop_assert_eq!(table.live(), live.len());
            prop_assert!(live.iter().all(|&socket| table.named(socket).is_some()));
            prop_assert!(dead.iter().all(|&socket| table.named(socket).is_none()));
            let occupied: HashSet<Socket> = table.occupied().into_iter().collect();
            prop_assert_eq!(occupied, live.into_iter().collect::<HashSet<_>>());
        }
    }

    #[test]
    fn a_closing_slot_is_occupied_but_has_no_name() {
        let mut table = Table::new();
        let socket = table.insert(5, 1);
        table.slot(socket.index).set(CLOSING);
        assert!(table.named(socket).is_none());
        assert!(table.occupant(socket.index, socket.generation).is_some());
    }

    #[test]
    fn wants_survive_other_bits() {
        let mut table = Table::new();
        let socket = table.insert(5, 1);
        let slot = table.slot(socket.index);
        for class in [Class::Small, Class::Large] {
            for how in [Receive::Many(class), Receive::Once(class), Receive::Off] {
                slot.set(STARVED | LISTENER);
                slot.set_want(how);
                assert_eq!(slot.want(), how);
                slot.clear(LISTENER);
                assert!(slot.has(STARVED) && slot.want() == how);
            }
        }
    }
}
