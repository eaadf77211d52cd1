//! The network of the simulation: time, the event queue, connections between ends, actors.
//!
//! Called by [`super::SimWorld`] and the drivers; sockets of drivers are in `kernel.rs`. Bound: see
//! `end.rs` for bytes on the way; the event queue holds a few entries for each piece on the way and
//! each timer.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;

use super::Settings;
use super::actor::{Actor, Conn};
use super::begun::{self, Begun, Watch};
use super::end::{End, EndId, Ends, Entry, Owner, What};
use super::kernel::DriverState;
use super::release::Dropped;
use super::rng::Rng;
use super::trace::{Trace, excerpt};
use crate::Socket;

/// How long the simulated kernel tries to connect: Linux's default, about 127 s.
const CONNECT_GIVES_UP_US: u64 = 127_000_000;

/// After this time an unanswered first packet of a connection is sent again.
pub(super) const SYN_AGAIN_US: u64 = 1_000_000;

/// The time at which a world begins, microseconds.
pub const START_US: u64 = 1_000_000;

/// The owner that accepts connections to an address.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) by: Listener,
    /// Connections that a driver did not accept yet.
    pub(super) backlog: VecDeque<EndId>,
    /// It answers no new connections.
    pub(super) deaf: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listener {
    Driver { driver: usize, socket: Socket },
    Actor(usize),
}

pub(super) struct ActorState {
    /// None while the actor is being called.
    pub(super) body: Option<Box<dyn Actor>>,
    pub(super) rng: Rng,
}

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) settings: Settings,
    pub(super) rng: Rng,
    pub(super) now_us: u64,
    pub(super) ends: Ends,
    pub(super) listeners: BTreeMap<SocketAddr, Vec<Listening>>,
    pub(super) actors: Vec<ActorState>,
    pub(super) drivers: Vec<DriverState>,
    pub(super) trace: Trace,
    /// Addresses that stand for real listeners, by the port of the real one.
    pub(super) aliases: BTreeMap<u16, SocketAddr>,
    /// Other addresses at which connects of actors to an address come out: the listener there
    /// learns that address.
    pub(super) led: BTreeMap<SocketAddr, SocketAddr>,
    /// Ends that were closed by a holder that had them from a driver.
    pub(super) dropped: Dropped,
    /// Connects that no driver has yet, in the order in which they were begun.
    pub(super) begun: Vec<Begun>,
    /// The actor that gets copies of first packets.
    pub(super) watch: Option<Watch>,
    queue: BinaryHeap<Entry>,
    sequence: u64,
    next_port: u16,
}

impl World {
    pub(super) fn new(seed: u64, settings: Settings) -> World {
        World {
            seed,
            settings,
            rng: Rng::new(seed),
            now_us: START_US,
            ends: Ends::default(),
            listeners: BTreeMap::new(),
            actors: Vec::new(),
            drivers: Vec::new(),
            trace: Trace::new(),
            aliases: BTreeMap::new(),
            led: BTreeMap::new(),
            dropped: Dropped::default(),
            begun: Vec::new(),
            watch: None,
            queue: BinaryHeap::new(),
            sequence: 0,
            next_port: 1024,
        }
    }

    pub(super) fn add_actor(&mut self, actor: Box<dyn Actor>) -> usize {
        let index = self.actors.len();
        let rng = Rng::new(self.seed).fork(index as u64 + 1);
        self.actors.push(ActorState { body: Some(actor), rng });
        self.schedule(self.now_us, What::Start { actor: index });
        index
    }

    /// Ends the run: something broke a promise of the driver interface or of the harness.
    pub(super) fn fail(&self, what: &str) -> ! {
        for line in self.trace.lines() {
            eprintln!("{line}");
        }
        panic!("simulation with seed {}, at {} us: {what}", self.seed, self.now_us);
    }

    pub(super) fn schedule(&mut self, at_us: u64, what: What) {
        self.sequence += 1;
        self.queue.push(Entry { at_us, sequence: self.sequence, what });
    }

    /// When the next event is due.
    pub(super) fn next_event_us(&self) -> Option<u64> {
        self.queue.peek().map(|entry| entry.at_us)
    }

    /// Lets the next event happen.
    pub(super) fn run_event(&mut self) {
        let Some(entry) = self.queue.pop() else { return };
        self.now_us = self.now_us.max(entry.at_us);
        self.trace.number(entry.at_us);
        self.trace.number(entry.sequence);
        let now_us = self.now_us;
        self.trace.line(|| format!("{now_us:>12} {}", describe(&entry.what)));
        self.happen(entry.what);
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Syn { from, to } if !begun::is_let_through(self, from, to) => {}
            What::Syn { from, to } | What::PassedOn { from, to } => self.on_syn(from, to),
            What::SynAck { to, server } => self.on_syn_ack(to, server),
            What::ConnectFailed { to, errno } => self.on_connect_failed(to, errno),
            What::Data { to, from, bytes } => self.on_data(to, from, &bytes),
            What::Fin { to } => self.on_fin(to),
            What::Reset { to } => self.on_reset(to),
            What::Writable { end } => self.on_writable(end),
            What::Start { actor } => self.call(actor, |actor, net| actor.on_start(net)),
            What::Timer { actor, id } => self.call(actor, |actor, net| actor.on_timer(net, id)),
            What::Read { end } => self.notify(end),
            What::Drained { end } => self.on_drained(end),
            What::ReceiveAgain { driver, socket } => self.receive_again(driver, socket),
            What::AcceptAgain { driver, socket } => self.accept_again(driver, socket),
            What::First { actor, from, to } => begun::first(self, actor, from, to),
        }
    }

    // Connections.

    pub(super) fn new_local(&mut self, host: impl Into<IpAddr>) -> SocketAddr {
        self.next_port = self.next_port.checked_add(1).unwrap_or(1024);
        SocketAddr::new(host.into(), self.next_port)
    }

    /// Sends the first packet of a connection. `lossy`: the dials for connects apply.
    pub(super) fn start_connect(&mut self, from: EndId, to: SocketAddr, lossy: bool) {
        let at_us = self.arrival_us(from);
        if lossy && self.rng.chance(self.settings.faults.connect_lost) {
            let errno = libc::ETIMEDOUT;
            self.schedule(
                self.now_us + CONNECT_GIVES_UP_US,
                What::ConnectFailed { to: from, errno },
            );
        } else if lossy && self.rng.chance(self.settings.faults.connect_refused) {
            self.schedule(at_us, What::ConnectFailed { to: from, errno: libc::ECONNREFUSED });
        } else {
            self.schedule(at_us, What::Syn { from, to });
        }
    }

    fn on_syn(&mut self, from: EndId, to: SocketAddr) {
        let Some(client) = self.ends.get(from) else { return };
        let peer = client.local;
        let is_led = matches!(client.owner, Owner::Actor(_));
        let door = self.led.get(&to).filter(|_| is_led).copied().unwrap_or(to);
        let count = self.listeners.get(&door).map_or(0, Vec::len);
        if count == 0 {
            let at_us = self.now_us + self.settings.faults.latency_us;
            self.schedule(at_us, What::ConnectFailed { to: from, errno: libc::ECONNREFUSED });
            return;
        }
        let Listening { by, deaf, .. } = self.listeners[&door][self.rng.index(count)];
        if deaf {
            return self.schedule(self.now_us + SYN_AGAIN_US, What::Syn { from, to });
        }
        let owner = match by {
            Listener::Driver { .. } => Owner::Backlog,
            Listener::Actor(actor) => Owner::Actor(actor),
        };
        let mut end = End::new(owner, to, peer);
        end.peer = Some(from);
        let server = self.ends.insert(end);
        let at_us = self.arrival_us(server);
        self.schedule(at_us, What::SynAck { to: from, server });
        match by {
            Listener::Actor(actor) => {
                self.call(actor, |actor, net| actor.on_accepted(net, Conn(server), peer))
            }
            Listener::Driver { driver, socket } => self.backlogged(driver, socket, door, server),
        }
    }

    fn on_syn_ack(&mut self, to: EndId, server: EndId) {
        let Some(end) = self.ends.get_mut(to) else {
            self.schedule(
                self.now_us + self.settings.faults.latency_us,
                What::Reset { to: server },
            );
            return;
        };
        end.peer = Some(server);
        match end.owner {
            Owner::Actor(actor) => {
                self.call(actor, |actor, net| actor.on_connected(net, Conn(to), Ok(())));
                self.flush_actor(to);
            }
            Owner::Driver { driver, socket } => self.connected(driver, socket, Ok(())),
            Owner::Begun => begun::ended(self, to, None),
            Owner::Backlog | Owner::Nobody => {}
        }
    }

    fn on_connect_failed(&mut self, to: EndId, errno: i32) {
        let Some(end) = self.ends.remove(to) else { return };
        let error = io::Error::from_raw_os_error(errno);
        match end.owner {
            Owner::Actor(actor) => {
                self.call(actor, |actor, net| actor.on_connected(net, Conn(to), Err(error)))
            }
            Owner::Driver { driver, socket } => self.connected(driver, socket, Err(error)),
            Owner::Begun => begun::ended(self, to, Some(errno)),
            Owner::Backlog | Owner::Nobody => {}
        }
    }

    /// Ends an end: FIN behind the sent bytes, or RST when the owner left bytes unread (or
    /// `abort`).
    pub(super) fn close_end(&mut self, id: EndId, abort: bool) {
        let at_us = self.arrival_us(id);
        let Some(end) = self.ends.remove(id) else { return };
        let Some(peer) = end.peer else { return };
        if end.reset {
            return;
        }
        if abort || !end.inbox.is_empty() {
            let overtakes = self.rng.chance(self.settings.faults.reset_overtakes);
            let at_us =
                if overtakes { self.now_us + self.settings.faults.latency_us } else { at_us };
            self.schedule(at_us, What::Reset { to: peer });
        } else if !end.shut {
            self.schedule(at_us, What::Fin { to: peer });
        }
    }

    /// Ends the sending direction behind the sent bytes.
    pub(super) fn shut_end(&mut self, id: EndId) {
        let at_us = self.arrival_us(id);
        let Some(end) = self.ends.get_mut(id) else { return };
        let Some(peer) = end.peer else { return };
        if !end.shut && !end.reset {
            end.shut = true;
            self.schedule(at_us, What::Fin { to: peer });
        }
    }

    // Bytes.

    /// When a piece sent now arrives: never before earlier pieces of the same end.
    fn arrival_us(&mut self, from: EndId) -> u64 {
        let faults = &self.settings.faults;
        let calm = self.ends.get(from).is_some_and(|end| end.calm);
        let mut at_us = self.now_us + faults.latency_us;
        if !calm {
            at_us += if faults.jitter_us > 0 { self.rng.below(faults.jitter_us + 1) } else { 0 };
            at_us += if self.rng.chance(faults.stall) {
                self.rng.between(1, faults.stall_us.max(1))
            } else {
                0
            };
        }
        match self.ends.get_mut(from) {
            Some(end) => {
                end.last_arrival_us = end.last_arrival_us.max(at_us);
                end.last_arrival_us
            }
            None => at_us,
        }
    }

    /// Room of the pipe that `from` sends into.
    pub(super) fn room(&self, from: EndId) -> usize {
        self.ends.get(from).map_or(0, |end| self.settings.window_bytes.saturating_sub(end.in_pipe))
    }

    /// Sends bytes on their way, in pieces, with the faults that may happen to each.
    pub(super) fn push(&mut self, from: EndId, mut bytes: Bytes) {
        let Some(end) = self.ends.get_mut(from) else { return };
        let Some(to) = end.peer else { return };
        end.in_pipe += bytes.len();
        let calm = end.calm;
        let actor = matches!(end.owner, Owner::Actor(_));
        while !bytes.is_empty() {
            let cut = !calm && bytes.len() > 1 && self.rng.chance(self.settings.faults.split);
            let take = if cut { 1 + self.rng.index(bytes.len() - 1) } else { bytes.len() };
            let piece = bytes.split_to(take);
            let at_us = self.arrival_us(from);
            if !calm && self.rng.chance(self.settings.faults.reset) {
                self.schedule(at_us, What::Reset { to });
                self.schedule(at_us, What::Reset { to: from });
                return;
            }
            if !calm && actor && self.rng.chance(self.settings.faults.half_close) {
                self.shut_end(from);
                return;
            }
            let (now_us, bytes_sent) = (self.now_us, piece.len());
            self.trace.line(|| {
                format!(
                    "{now_us:>12} {}.{} sends {bytes_sent} B, there at {at_us}",
                    from.index, from.generation
                )
            });
            self.schedule(at_us, What::Data { to, from, bytes: piece });
        }
    }

    fn on_data(&mut self, to: EndId, from: EndId, bytes: &Bytes) {
        self.trace.bytes(bytes);
        match self.ends.get_mut(to) {
            Some(end) if end.reset => {}
            Some(end) => {
                end.inbox.extend_from_slice(bytes);
                self.notify(to);
            }
            None => self
                .schedule(self.now_us + self.settings.faults.latency_us, What::Reset { to: from }),
        }
    }

    fn on_fin(&mut self, to: EndId) {
        if let Some(end) = self.ends.get_mut(to)
            && !end.reset
        {
            end.fin = true;
            self.notify(to);
        }
    }

    fn on_reset(&mut self, to: EndId) {
        let Some(end) = self.ends.get_mut(to) else { return };
        if end.reset {
            return;
        }
        end.reset = true;
        end.error = Some(if end.fin { libc::EPIPE } else { libc::ECONNRESET });
        end.outbox.clear();
        self.notify(to);
        self.on_writable(to);
    }

    fn on_writable(&mut self, id: EndId) {
        let Some(end) = self.ends.get_mut(id) else { return };
        end.blocked = false;
        match end.owner {
            Owner::Actor(_) => self.flush_actor(id),
            Owner::Driver { driver, socket } => self.writable(driver, socket),
            Owner::Backlog | Owner::Nobody | Owner::Begun => {}
        }
    }

    /// The owner of `reader` read `bytes`: the other side has that much more room.
    pub(super) fn acknowledge(&mut self, reader: EndId, bytes: usize) {
        let Some(sender) = self.ends.get(reader).and_then(|end| end.peer) else { return };
        let Some(end) = self.ends.get_mut(sender) else { return };
        end.in_pipe = end.in_pipe.saturating_sub(bytes);
        if end.blocked {
            end.blocked = false;
            self.schedule(
                self.now_us + self.settings.faults.latency_us,
                What::Writable { end: sender },
            );
        }
    }

    /// Something arrived at an end.
    pub(super) fn notify(&mut self, id: EndId) {
        let Some(end) = self.ends.get(id) else { return };
        match end.owner {
            Owner::Actor(actor) => self.read_actor(actor, id),
            Owner::Driver { driver, socket } => self.arrived(driver, socket),
            Owner::Begun if end.fin || end.reset => begun::over(self, id),
            Owner::Backlog | Owner::Nobody | Owner::Begun => {}
        }
    }
}

fn describe(what: &What) -> String {
    match what {
        What::Data { to, from, bytes } => {
            format!(
                "data {}.{} > {}.{} {}",
                from.index,
                from.generation,
                to.index,
                to.generation,
                excerpt(bytes)
            )
        }
        other => format!("{other:?}"),
    }
}
