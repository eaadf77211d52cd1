//! The simulated kernel's state for a driver: its socket table, receive buffers, and completions in
//! the making.
//!
//! Two styles, because the real drivers differ: *eager* takes arrived bytes at once, like a
//! multishot receive of a ring; *lazy* looks only during a turn, like a call on readiness. Bounds:
//! receive buffers of each class, sockets.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;

use super::end::EndId;
use super::relay::SimRelay;
use crate::{Class, DriverStats, Event, Payload, Receive, RecvBuf, Socket, Token, Waker};

pub(super) struct DriverState {
    pub(super) sockets: Vec<Slot>,
    pub(super) free: Vec<u32>,
    pub(super) ready: VecDeque<Staged>,
    pub(super) pools: [Pool; 2],
    /// Sockets that want to receive and found no buffer, oldest first.
    pub(super) starved: VecDeque<Socket>,
    /// Sockets that are to be read in another way from the next turn on, each once.
    pub(super) changed: Vec<Socket>,
    /// Sockets to look at in the next turn.
    pub(super) touched: Vec<Socket>,
    /// Sockets that are being released.
    pub(super) releasing: Vec<Socket>,
    /// Relays, by the number that their sockets know.
    pub(super) relays: Vec<Option<SimRelay>>,
    pub(super) open: u32,
    pub(super) waker: Arc<SimWaker>,
    pub(super) now_us: u64,
    /// The last turn found nothing and would have waited.
    pub(super) parked: bool,
    /// Until when it would have waited.
    pub(super) deadline_us: Option<u64>,
    /// A command has come since the last turn.
    pub(super) asked: bool,
    pub(super) spins: u32,
    pub(super) stats: DriverStats,
}

/// A slot of the socket table.
pub(super) struct Slot {
    generation: u32,
    pub(super) state: Option<SocketState>,
}

pub(super) struct SocketState {
    pub(super) token: Token,
    pub(super) kind: Kind,
    pub(super) receive: Receive,
    /// How it is to be read from the next turn on; None: as before.
    pub(super) wanted: Option<Receive>,
    /// An injected lack of buffers, until the event that ends it.
    pub(super) held: bool,
    /// In `touched`.
    pub(super) touched: bool,
    /// Nothing more will be received, and that was reported.
    pub(super) ended: bool,
    pub(super) sending: Option<Sending>,
    /// The relay that it belongs to.
    pub(super) relay: Option<usize>,
    /// It belongs to a relay, or did.
    pub(super) relaying: bool,
    /// It is being released; in `releasing`.
    pub(super) releasing: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Listener {
        address: SocketAddr,
        /// Accepting failed and will be tried again.
        pausing: bool,
    },
    Stream {
        end: EndId,
        connected: bool,
    },
}

/// A send between the command and its completion.
pub(super) struct Sending {
    /// None when the completion is made and not handed out yet.
    pub(super) payload: Option<Payload>,
    pub(super) done: usize,
}

/// A completion that was not handed out yet.
pub(super) struct Staged {
    pub(super) socket: Socket,
    pub(super) event: Event,
}

/// Receive buffers of one class.
pub(super) struct Pool {
    pub(super) bytes: usize,
    pub(super) total: u32,
    pub(super) out: Arc<AtomicU32>,
}

impl Pool {
    pub(super) fn new(bytes: usize, total: u32) -> Pool {
        Pool { bytes, total, out: Arc::new(AtomicU32::new(0)) }
    }

    pub(super) fn free(&self) -> u32 {
        self.total.saturating_sub(self.out.load(Ordering::Acquire))
    }

    pub(super) fn lend(&self, bytes: Vec<u8>) -> RecvBuf {
        self.out.fetch_add(1, Ordering::AcqRel);
        RecvBuf::from_shared(Bytes::from_owner(Lease { bytes, out: self.out.clone() }))
    }
}

/// Counts a buffer as handed out until the last slice of it is dropped.
struct Lease {
    bytes: Vec<u8>,
    out: Arc<AtomicU32>,
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.out.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A flag; the world looks at it before each step.
#[derive(Debug, Default)]
pub(super) struct SimWaker {
    pub(super) woken: AtomicBool,
}

impl Waker for SimWaker {
    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
    }
}

pub(super) fn class_index(class: Class) -> usize {
    match class {
        Class::Small => 0,
        Class::Large => 1,
    }
}

impl DriverState {
    /// Open sockets except listeners.
    pub(super) fn streams(&self) -> Vec<Socket> {
        let stream = |(index, slot): (usize, &Slot)| match slot.state.as_ref()?.kind {
            Kind::Listener { .. } => None,
            Kind::Stream { .. } => {
                Some(Socket { index: index as u32, generation: slot.generation })
            }
        };
        self.sockets.iter().enumerate().filter_map(stream).collect()
    }

    pub(super) fn new(small: u32, large: u32) -> DriverState {
        DriverState {
            sockets: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            pools: [Pool::new(4 << 10, small), Pool::new(64 << 10, large)],
            starved: VecDeque::new(),
            changed: Vec::new(),
            touched: Vec::new(),
            releasing: Vec::new(),
            relays: Vec::new(),
            open: 0,
            waker: Arc::new(SimWaker::default()),
            now_us: 0,
            parked: false,
            deadline_us: None,
            asked: true,
            spins: 0,
            stats: DriverStats::default(),
        }
    }

    /// Whether a turn would have something to do now.
    pub(super) fn runnable(&self, now_us: u64) -> bool {
        !self.parked
            || self.asked
            || !self.ready.is_empty()
            || !self.touched.is_empty()
            || !self.releasing.is_empty()
            || self.waker.woken.load(Ordering::Acquire)
            || self.deadline_us.is_some_and(|at| at <= now_us)
            || self.starved.iter().any(|socket| self.can_feed(*socket))
    }

    fn can_feed(&self, socket: Socket) -> bool {
        self.class_of(socket).is_some_and(|class| self.pools[class_index(class)].free() > 0)
    }

    /// The buffers that a socket is received into.
    fn class_of(&self, socket: Socket) -> Option<Class> {
        match self.get(socket)?.receive {
            Receive::Once(class) | Receive::Many(class) => Some(class),
            Receive::Off => None,
        }
    }

    /// Whether a socket has to wait for a buffer of this class: none is free, or others have waited
    /// for longer.
    pub(super) fn has_to_wait(&self, socket: Socket, class: Class) -> bool {
        let waits = |other: &Socket| *other != socket && self.class_of(*other) == Some(class);
        self.pools[class_index(class)].free() == 0 || self.starved.iter().any(waits)
    }

    pub(super) fn get(&self, socket: Socket) -> Option<&SocketState> {
        let slot = self.sockets.get(socket.index as usize)?;
        if slot.generation == socket.generation { slot.state.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, socket: Socket) -> Option<&mut SocketState> {
        let slot = self.sockets.get_mut(socket.index as usize)?;
        if slot.generation == socket.generation { slot.state.as_mut() } else { None }
    }

    pub(super) fn insert(&mut self, token: Token, kind: Kind) -> Socket {
        self.open += 1;
        let state = SocketState {
            token,
            kind,
            receive: Receive::Off,
            wanted: None,
            held: false,
            touched: false,
            ended: false,
            sending: None,
            relay: None,
            relaying: false,
            releasing: false,
        };
        match self.free.pop() {
            Some(index) => {
                let slot = &mut self.sockets[index as usize];
                slot.state = Some(state);
                Socket { index, generation: slot.generation }
            }
            None => {
                self.sockets.push(Slot { generation: 1, state: Some(state) });
                Socket { index: (self.sockets.len() - 1) as u32, generation: 1 }
            }
        }
    }

    /// Frees the slot and everything that was on its way to the owner.
    pub(super) fn remove(&mut self, socket: Socket) -> Option<(SocketState, VecDeque<Staged>)> {
        self.get(socket)?;
        let slot = &mut self.sockets[socket.index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(socket.index);
        self.open -= 1;
        let state = slot.state.take()?;
        let (gone, ready) =
            std::mem::take(&mut self.ready).into_iter().partition(|staged| staged.socket == socket);
        self.ready = ready;
        Some((state, gone))
    }

    pub(super) fn stage(&mut self, socket: Socket, event: Event) {
        self.ready.push_back(Staged { socket, event });
    }

    /// Counts a completion that is handed out.
    pub(super) fn count(&mut self, event: &Event) {
        let stats = &mut self.stats;
        stats.completions += 1;
        match event {
            Event::Accepted { .. } => stats.accepts += 1,
            Event::AcceptFailed(_) => stats.accept_failures += 1,
            Event::Received(_) => stats.receives += 1,
            Event::Sent { result: Ok(()), .. } => stats.sends += 1,
            _ => {}
        }
    }

    /// Completions made and not handed out.
    pub(super) fn staged(&self) -> usize {
        self.ready.len()
    }
}
