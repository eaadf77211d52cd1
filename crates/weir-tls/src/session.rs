//! The sealed sockets of a driver: one [`Session`] each, found by the slot of its socket.
//!
//! A socket that is not sealed costs one look at a pointer that is null, or none at all while
//! nothing is sealed.

use std::net::SocketAddr;

use weir_io::{Payload, Receive, Socket, Token};

use crate::cipher::{Cipher, Facts};
use crate::gate::Pass;
use crate::records::Pace;

/// The stage of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// An accepted connection that the caller doesn't know yet, or another one for which it waits
    /// until the connect ends.
    Handshaking,
    /// The caller's.
    Open,
    /// The caller no longer knows it. It is closed when its last bytes were sent, or at its
    /// deadline.
    Closing,
}

/// The origin of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin {
    /// This listener, from this client.
    Accepted { listener: Socket, peer: SocketAddr },
    /// We connected.
    Connected,
}

/// Ends the receiving direction when everything before it was handed out.
#[derive(Debug)]
pub(crate) enum Over {
    Ended,
    Failed(std::io::Error),
}

/// One sealed socket.
///
/// Invariants: `sending` while bytes of it are with the driver, and no longer in `out`;
/// `payload_waits` only with `payload`, and its records are in `out` then; `held` and `over` only
/// until they were handed out.
pub(crate) struct Session {
    pub(crate) generation: u32,
    pub(crate) stage: Stage,
    pub(crate) origin: Origin,
    /// None until the first byte of a client has come.
    pub(crate) cipher: Option<Box<dyn Cipher>>,
    /// The caller's.
    pub(crate) token: Token,
    /// How the caller wants it to be read.
    pub(crate) want: Receive,
    /// Received and not opened: part of a record, or of a handshake message.
    pub(crate) rest: Vec<u8>,
    /// Plaintext that came before the caller wanted any.
    pub(crate) held: Vec<u8>,
    pub(crate) over: Option<Over>,
    /// Nothing more is received.
    pub(crate) is_over: bool,
    /// The other side ended without announcing it: its data may have been truncated on the way (RFC
    /// 9112 §9.8).
    pub(crate) is_cut: bool,
    /// Something was received.
    pub(crate) heard: bool,
    /// It is in the list of those with something to hand out, or to work on.
    pub(crate) listed: bool,
    /// Records that wait for the send in flight.
    pub(crate) out: Vec<u8>,
    pub(crate) sending: bool,
    pub(crate) pace: Pace,
    /// The payload that the caller gave to send, until all of it was taken.
    pub(crate) payload: Option<Payload>,
    pub(crate) payload_waits: bool,
    /// The sending direction ends behind `out`.
    pub(crate) finish: bool,
    /// It is closed only when the other side has ended: that side continues to send, and a reset
    /// would destroy what it has not read yet.
    pub(crate) lingers: bool,
    /// When the handshake, or the close, has taken too long; 0: no limit applies now.
    pub(crate) deadline_us: u64,
    /// The negotiated parameters, until they are taken.
    pub(crate) facts: Option<Box<Facts>>,
    /// The pass that the gate keeps with a client; None: the gate hears nothing about it.
    pub(crate) pass: Option<Pass>,
    /// The gate was asked for the step that is being made.
    pub(crate) charged: bool,
    /// Whether it is known if the asymmetric work of the handshake was done, and the gate has been
    /// told so.
    pub(crate) settled: bool,
}

impl Session {
    pub(crate) fn new(
        socket: Socket,
        origin: Origin,
        cipher: Option<Box<dyn Cipher>>,
        token: Token,
    ) -> Session {
        Session {
            generation: socket.generation,
            stage: Stage::Handshaking,
            origin,
            cipher,
            token,
            want: Receive::Off,
            rest: Vec::new(),
            held: Vec::new(),
            over: None,
            is_over: false,
            is_cut: false,
            heard: false,
            listed: false,
            out: Vec::new(),
            sending: false,
            pace: Pace::new(),
            payload: None,
            payload_waits: false,
            finish: false,
            lingers: false,
            deadline_us: 0,
            facts: None,
            pass: None,
            charged: false,
            settled: false,
        }
    }

    /// Forgets the used bytes of `rest`; an empty one keeps no memory.
    pub(crate) fn use_rest(&mut self, used: usize) {
        if used >= self.rest.len() {
            self.rest = Vec::new();
        } else {
            self.rest.drain(..used);
        }
    }
}

/// All sessions, by the slot of their socket.
#[derive(Default)]
pub(crate) struct Sessions {
    slots: Vec<Option<Box<Session>>>,
    /// How many there are.
    len: usize,
}

impl Sessions {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn get(&self, socket: Socket) -> Option<&Session> {
        self.slots
            .get(socket.index as usize)?
            .as_deref()
            .filter(|session| session.generation == socket.generation)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, socket: Socket) -> Option<&mut Session> {
        let slot = self.slots.get_mut(socket.index as usize)?.as_deref_mut();
        slot.filter(|session| session.generation == socket.generation)
    }

    /// Takes it out, to be put back or given up.
    #[inline]
    pub(crate) fn take(&mut self, socket: Socket) -> Option<Box<Session>> {
        self.get(socket)?;
        self.len -= 1;
        self.slots[socket.index as usize].take()
    }

    pub(crate) fn put(&mut self, socket: Socket, session: Box<Session>) {
        let index = socket.index as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        // The driver reuses a slot for another socket only when the previous one was closed, and
        // its session with it.
        debug_assert!(self.slots[index].is_none(), "two sessions in one slot");
        self.len += 1;
        self.slots[index] = Some(session);
    }

    /// Names of those that the caller may or must not know, as `wanted` says.
    pub(crate) fn names(&self, wanted: impl Fn(&Session) -> bool) -> Vec<Socket> {
        let all = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| Some((index, slot.as_deref()?)));
        let name = |(index, session): (usize, &Session)| Socket {
            index: index as u32,
            generation: session.generation,
        };
        all.filter(|(_, session)| wanted(session)).map(name).collect()
    }
}

/// Buffers for records to send, used again and again.
///
/// Bounds: [`Buffers::KEPT_MAX`] buffers of at most [`Buffers::BYTES_MAX`].
#[derive(Default)]
pub(crate) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    /// How many are kept.
    const KEPT_MAX: usize = 16;
    /// Larger ones are returned to the allocator.
    const BYTES_MAX: usize = 80 << 10;

    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < Buffers::KEPT_MAX
            && buffer.capacity() <= Buffers::BYTES_MAX
            && buffer.capacity() > 0
        {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}
