//! One end of a simulated TCP connection, and the events that travel between ends.
//!
//! ```text
//!   owner's bytes --> [ pipe: on the way + inbox of the peer ] --> peer's owner
//!                              at most window_bytes
//! ```
//! Bound: `in_pipe <= window_bytes`; a sender with more waits until the other owner has read.

use std::cmp::Ordering;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};

use crate::Socket;

/// Names one end of a connection: a slot and the generation of its occupant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct EndId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// The reader and writer of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// In the accept queue of a driver's listener.
    Backlog,
    /// A driver has released it, and none has taken it in.
    Nobody,
    /// An actor has begun it for a driver, and none has taken it over.
    Begun,
    Driver {
        driver: usize,
        socket: Socket,
    },
    Actor(usize),
}

/// State of one end. `fin` and `reset` have arrived; this side has sent `shut`.
#[derive(Debug)]
pub(super) struct End {
    pub(super) owner: Owner,
    /// None until the handshake is over. May name an end that no longer exists.
    pub(super) peer: Option<EndId>,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Arrived and not read.
    pub(super) inbox: BytesMut,
    pub(super) fin: bool,
    pub(super) reset: bool,
    /// The pending error of the socket: reported once, to whichever call comes first, as Linux
    /// does.
    pub(super) error: Option<i32>,
    /// The owner knows that nothing more will come.
    pub(super) told: bool,
    /// FIN was sent.
    pub(super) shut: bool,
    /// Bytes sent and not read by the other owner.
    pub(super) in_pipe: usize,
    /// The owner waits for room in the pipe.
    pub(super) blocked: bool,
    /// When the last piece that was sent arrives: order within a direction.
    pub(super) last_arrival_us: u64,
    /// An actor's bytes that found no room yet.
    pub(super) outbox: BytesMut,
    /// An actor's FIN follows the outbox.
    pub(super) finish: bool,
    /// An actor doesn't read.
    pub(super) paused: bool,
    /// No injected faults on the bytes that this end sends.
    pub(super) calm: bool,
}

impl End {
    pub(super) fn new(owner: Owner, local: SocketAddr, remote: SocketAddr) -> End {
        End {
            owner,
            peer: None,
            local,
            remote,
            inbox: BytesMut::new(),
            fin: false,
            reset: false,
            error: None,
            told: false,
            shut: false,
            in_pipe: 0,
            blocked: false,
            last_arrival_us: 0,
            outbox: BytesMut::new(),
            finish: false,
            paused: false,
            calm: false,
        }
    }

    /// Whether the owner has to hear something about its receiving direction.
    pub(super) fn readable(&self) -> bool {
        !self.told && (!self.inbox.is_empty() || self.fin || self.reset)
    }
}

/// All ends, by slot.
#[derive(Debug, Default)]
pub(super) struct Ends {
    slots: Vec<(u32, Option<End>)>,
    free: Vec<u32>,
}

impl Ends {
    pub(super) fn insert(&mut self, end: End) -> EndId {
        match self.free.pop() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                slot.1 = Some(end);
                EndId { index, generation: slot.0 }
            }
            None => {
                self.slots.push((0, Some(end)));
                EndId { index: (self.slots.len() - 1) as u32, generation: 0 }
            }
        }
    }

    pub(super) fn get(&self, id: EndId) -> Option<&End> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.0 == id.generation { slot.1.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, id: EndId) -> Option<&mut End> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.0 == id.generation { slot.1.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, id: EndId) -> Option<End> {
        self.get(id)?;
        let slot = &mut self.slots[id.index as usize];
        slot.0 += 1;
        self.free.push(id.index);
        slot.1.take()
    }

    /// Whether a driver has a connection between these, or it looks so. A connection of an actor is
    /// on another machine.
    pub(super) fn has_ours(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let is_it = |end: &End| {
            (end.local, end.remote) == (from, to)
                && matches!(end.owner, Owner::Driver { .. } | Owner::Backlog | Owner::Begun)
        };
        self.slots.iter().filter_map(|(_, end)| end.as_ref()).any(is_it)
    }

    /// Ends in use.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// An event at a point in time.
#[derive(Debug)]
pub(super) enum What {
    Syn { from: EndId, to: SocketAddr },
    SynAck { to: EndId, server: EndId },
    ConnectFailed { to: EndId, errno: i32 },
    Data { to: EndId, from: EndId, bytes: Bytes },
    Fin { to: EndId },
    Reset { to: EndId },
    Writable { end: EndId },
    Start { actor: usize },
    Timer { actor: usize, id: u64 },
    Read { end: EndId },
    Drained { end: EndId },
    ReceiveAgain { driver: usize, socket: Socket },
    AcceptAgain { driver: usize, socket: Socket },
    First { actor: usize, from: EndId, to: SocketAddr },
    PassedOn { from: EndId, to: SocketAddr },
}

/// An entry of the event queue: earliest first, and among equals in the order of creation.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) at_us: u64,
    pub(super) sequence: u64,
    pub(super) what: What,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Reversed, because the heap gives the greatest first.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at_us, other.sequence).cmp(&(self.at_us, self.sequence))
    }
}
