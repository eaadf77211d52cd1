//! Relays of a simulated driver: bytes that arrive at one socket are written to the other, in the
//! turns of their driver, as by the real drivers. Called by `driver.rs` and `completions.rs`.
//!
//! The network does to relayed bytes what it does to all (pieces, delays, resets), and the dials
//! `short_read` and `short_write` limit the bytes that are moved at a time. Bound: [`CHUNK_BYTES`]
//! between the two sockets in each direction.

use std::io;

use bytes::{Buf, BytesMut};

use super::end::EndId;
use super::kernel::{DriverState, Kind, SocketState, Staged};
use super::world::World;
use crate::{Event, Receive, RelayEnd, Relayed, Socket};

/// Bytes that one direction takes at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Chunks of one direction in one turn.
const CHUNKS_MAX: usize = 4;

/// Two sockets that are relayed.
pub(super) struct SimRelay {
    sockets: [Socket; 2],
    flows: [SimFlow; 2],
    /// The socket that failed first, and its error.
    failure: Option<(usize, i32)>,
}

/// One direction.
#[derive(Default)]
struct SimFlow {
    moved: u64,
    /// Taken from the source and not taken by the sink.
    waiting: BytesMut,
    /// Nothing more comes from the source.
    over: bool,
    /// Once all arrived bytes are read, the source has ended.
    last: bool,
    done: bool,
}

impl SimFlow {
    fn abandon(&mut self) {
        self.waiting.clear();
        self.over = true;
        self.done = true;
    }
}

impl SimRelay {
    fn fail(&mut self, side: usize, errno: i32) {
        self.failure.get_or_insert((side, errno));
        self.flows[1 - side].abandon();
        self.flows[side].last = true;
    }

    fn moved(&self) -> Relayed {
        Relayed {
            a_to_b: self.flows[0].moved,
            b_to_a: self.flows[1].moved,
            half_closed: self.flows[0].done != self.flows[1].done,
        }
    }
}

impl DriverState {
    /// A send from before the relay failed.
    pub(super) fn relay_failed(&mut self, socket: Socket, errno: i32) {
        let Some(index) = self.get(socket).and_then(|socket| socket.relay) else { return };
        let Some(relay) = &mut self.relays[index] else { return };
        if let Some(side) = relay.sockets.iter().position(|&other| other == socket) {
            relay.fail(side, errno);
        }
    }
}

impl World {
    pub(super) fn driver_relay(&mut self, driver: usize, a: Socket, b: Socket) {
        for socket in [a, b] {
            let Some(state) = self.drivers[driver].get(socket).filter(|state| !state.relaying)
            else {
                return;
            };
            if !matches!(state.kind, Kind::Stream { connected: true, .. }) {
                self.fail("relay of a socket that is not connected");
            }
        }
        let mut relay = SimRelay {
            sockets: [a, b],
            flows: [SimFlow::default(), SimFlow::default()],
            failure: None,
        };
        for (side, socket) in [a, b].into_iter().enumerate() {
            if self.rng.chance(self.settings.faults.late_off) {
                self.pump_receive(driver, socket);
            }
            self.hand_over(driver, socket, side, &mut relay);
        }
        let relays = &mut self.drivers[driver].relays;
        let index = relays.iter().position(Option::is_none).unwrap_or_else(|| {
            relays.push(None);
            relays.len() - 1
        });
        relays[index] = Some(relay);
        for socket in [a, b] {
            if let Some(state) = self.drivers[driver].get_mut(socket) {
                state.relay = Some(index);
            }
            self.touch(driver, socket);
        }
    }

    /// Received bytes that were not handed out become the relay's.
    fn hand_over(&mut self, driver: usize, socket: Socket, side: usize, relay: &mut SimRelay) {
        let state = &mut self.drivers[driver];
        let mut kept = std::collections::VecDeque::new();
        let mut told = false;
        for staged in std::mem::take(&mut state.ready) {
            match staged {
                Staged { socket: of, event: Event::Received(bytes) } if of == socket => {
                    relay.flows[side].waiting.extend_from_slice(&bytes);
                }
                Staged { socket: of, event: Event::Ended } if of == socket => told = true,
                Staged { socket: of, event: Event::ReceiveFailed(error) } if of == socket => {
                    relay.fail(side, error.raw_os_error().unwrap_or(libc::EIO));
                    told = true;
                }
                other => kept.push_back(other),
            }
        }
        state.ready = kept;
        if let Some(socket) = state.get_mut(socket) {
            relay.flows[side].over = told || socket.ended;
            (socket.receive, socket.wanted) = (Receive::Off, None);
            socket.relaying = true;
        }
    }

    pub(super) fn relayed(&self, driver: usize, socket: Socket) -> Option<Relayed> {
        let state = &self.drivers[driver];
        let relay = state.relays.get(state.get(socket)?.relay?)?.as_ref()?;
        Some(relay.moved())
    }

    /// The relay of a socket that is being closed is over, without an event.
    pub(super) fn drop_relay(&mut self, driver: usize, socket: Socket) {
        let state = &mut self.drivers[driver];
        let Some(index) = state.get(socket).and_then(|socket| socket.relay) else { return };
        let Some(relay) = state.relays[index].take() else { return };
        for socket in relay.sockets {
            if let Some(socket) = state.get_mut(socket) {
                socket.relay = None;
            }
        }
    }

    /// Moves as many bytes as possible.
    pub(super) fn pump_relay(&mut self, driver: usize, socket: Socket) {
        let Some(index) = self.drivers[driver].get(socket).and_then(|socket| socket.relay) else {
            return;
        };
        let Some(mut relay) = self.drivers[driver].relays[index].take() else { return };
        for from in 0..2 {
            self.pump_flow(driver, &mut relay, from);
        }
        if !relay.flows.iter().all(|flow| flow.done) {
            self.drivers[driver].relays[index] = Some(relay);
            return;
        }
        for socket in relay.sockets {
            if let Some(socket) = self.drivers[driver].get_mut(socket) {
                socket.relay = None;
            }
        }
        let how = match relay.failure {
            None => RelayEnd::Complete,
            Some((0, errno)) => RelayEnd::FailedA(io::Error::from_raw_os_error(errno)),
            Some((_, errno)) => RelayEnd::FailedB(io::Error::from_raw_os_error(errno)),
        };
        self.drivers[driver]
            .stage(relay.sockets[0], Event::RelayEnded { moved: relay.moved(), how });
    }

    fn pump_flow(&mut self, driver: usize, relay: &mut SimRelay, from: usize) {
        let (source, sink) = (relay.sockets[from], relay.sockets[1 - from]);
        for _ in 0..CHUNKS_MAX {
            if relay.flows[from].done
                || self.drivers[driver].get(sink).is_none_or(|state| state.sending.is_some())
            {
                return;
            }
            let (Some(source), Some(sink)) =
                (self.end_of(driver, source), self.end_of(driver, sink))
            else {
                return;
            };
            if !relay.flows[from].waiting.is_empty() {
                match self.write_some(sink, &mut relay.flows[from]) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(errno) => {
                        relay.fail(1 - from, errno);
                        // The other direction may only have to find that out.
                        self.touch(driver, relay.sockets[from]);
                        return;
                    }
                }
            } else if relay.flows[from].over {
                relay.flows[from].done = true;
                if relay.failure.is_none() {
                    self.shut_end(sink);
                }
            } else if !self.read_some(source, relay, from) {
                return;
            }
        }
        self.touch(driver, source);
    }

    fn end_of(&self, driver: usize, socket: Socket) -> Option<EndId> {
        match self.drivers[driver].get(socket)? {
            SocketState { kind: Kind::Stream { end, .. }, .. } => Some(*end),
            SocketState { kind: Kind::Listener { .. }, .. } => None,
        }
    }

    /// Writes some of the waiting bytes. False when the sink has no room.
    fn write_some(&mut self, sink: EndId, flow: &mut SimFlow) -> Result<bool, i32> {
        let window_bytes = self.settings.window_bytes;
        let Some(end) = self.ends.get_mut(sink) else { return Err(libc::EPIPE) };
        if end.reset || end.shut {
            return Err(end.error.take().unwrap_or(libc::EPIPE));
        }
        let room = window_bytes.saturating_sub(end.in_pipe);
        if room == 0 {
            end.blocked = true;
            return Ok(false);
        }
        let most = flow.waiting.len().min(room);
        let short = most > 1 && self.rng.chance(self.settings.faults.short_write);
        let bytes = if short { 1 + self.rng.index(most - 1) } else { most };
        flow.moved += bytes as u64;
        let piece = flow.waiting.split_to(bytes).freeze();
        self.push(sink, piece);
        Ok(true)
    }

    /// Takes some of the arrived bytes. False when none are there.
    fn read_some(&mut self, source: EndId, relay: &mut SimRelay, from: usize) -> bool {
        let short = self.rng.chance(self.settings.faults.short_read);
        let flow = &mut relay.flows[from];
        let Some(end) = self.ends.get_mut(source) else {
            flow.over = true;
            return true;
        };
        if !end.inbox.is_empty() {
            let most = end.inbox.len().min(CHUNK_BYTES);
            let bytes = if short { 1 + self.rng.index(most) } else { most };
            flow.waiting.extend_from_slice(&end.inbox[..bytes]);
            end.inbox.advance(bytes);
            self.acknowledge(source, bytes);
            return true;
        }
        if !end.readable() && !flow.last {
            return false;
        }
        flow.over = true;
        end.told = true;
        if !end.fin
            && let Some(errno) = end.error.take()
        {
            relay.fail(from, errno);
        }
        true
    }
}

#[cfg(test)]
mod tests;
