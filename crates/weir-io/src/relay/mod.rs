//! Relays: they forward bytes from each of two sockets to the other without a detour through the
//! caller.
//!
//! Used by both real drivers, which report ready sockets and call [`Relays::run`] in each turn.
//! Direct calls of splice(2) upon readiness: io_uring's own splice always waits for one of its
//! threads (`io_splice` in io_uring/splice.c refuses to be tried at once). `flow` is one direction,
//! `pipe` the pipes. Bounds: `relay_bytes_per_turn` for all relays together, [`SHARE_BYTES`] for
//! one direction before others have theirs; pipes as in `pipe`. An idle relay holds no pipe, and
//! none holds a buffer of a pool.

mod flow;
mod pipe;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use crate::{DriverStats, Options, RelayEnd, Relayed, Socket};

use flow::{Flow, Halt, Side, Tools};
use pipe::Pipes;

/// Bytes of one direction before others have their share; the content of one pipe is moved at once.
const SHARE_BYTES: u64 = 256 * 1024;

/// A turn of a driver in which bytes were moved ends after this, microseconds, even without news
/// for its caller: a thread that relays all the time must not be taken for stuck, and its other
/// work must not wait.
pub(crate) const TURN_US: u64 = 20_000;

/// No relay.
const NONE: u32 = u32::MAX;

/// The operations in flight on a socket when its relay is requested, and its state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) socket: Socket,
    pub(crate) fd: RawFd,
    /// A receive is in flight.
    pub(crate) receiving: bool,
    /// A send is in flight.
    pub(crate) sending: bool,
    /// The end was received.
    pub(crate) ended: bool,
}

/// Readiness of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ready {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) stops_short: bool,
}

impl Ready {
    /// Converts the events of poll(2), which have the same numbers as those of epoll.
    pub(crate) fn from_mask(mask: u32) -> Ready {
        let any = |bits: i16| mask & bits as u32 != 0;
        let broken = any(libc::POLLHUP | libc::POLLERR);
        let stops_short = broken || any(libc::POLLRDHUP | libc::POLLPRI);
        Ready {
            readable: any(libc::POLLIN) || stops_short,
            writable: any(libc::POLLOUT) || broken,
            stops_short,
        }
    }
}

/// Two sockets and the directions between them.
#[derive(Debug)]
struct Relay {
    sockets: [Socket; 2],
    sides: [Side; 2],
    /// The first leads from the first socket to the second.
    flows: [Flow; 2],
    /// The socket that failed first, and its error.
    failure: Option<(u8, i32)>,
    /// On the list of those that may have something to do.
    queued: bool,
    /// The descriptors are non-blocking, as splicing needs.
    nonblocking: bool,
    /// Each direction was tried.
    begun: bool,
}

const _: () = assert!(size_of::<Relay>() <= 192, "5,000 idle tunnels must stay small");

/// A relay that is over.
#[derive(Debug)]
pub(crate) struct Over {
    /// The sockets, in the order in which they were given.
    pub(crate) sockets: [Socket; 2],
    pub(crate) moved: Relayed,
    pub(crate) how: RelayEnd,
}

/// The relays of one driver.
#[derive(Debug)]
pub(crate) struct Relays {
    // Boxed, so that memory is given back when a burst of tunnels is over.
    items: Vec<Option<Box<Relay>>>,
    free: Vec<u32>,
    /// By slot of the driver's table.
    by_slot: Vec<u32>,
    ready: VecDeque<u32>,
    tools: Tools,
    bytes_per_turn: u64,
}

impl Relays {
    pub(crate) fn new(options: &Options) -> Relays {
        let tools = Tools {
            pipes: Pipes::new(options.relay_pipes, options.relay_pipe_bytes),
            scratch: Vec::new(),
            pipe_bytes: options.relay_pipe_bytes,
            syscalls: 0,
            copied: 0,
            spliced: 0,
        };
        Relays {
            items: Vec::new(),
            free: Vec::new(),
            by_slot: Vec::new(),
            ready: VecDeque::new(),
            tools,
            bytes_per_turn: options.relay_bytes_per_turn.max(1),
        }
    }

    /// Joins two sockets. `nonblocking`: whether their descriptors are already non-blocking.
    pub(crate) fn start(&mut self, starts: [Start; 2], nonblocking: bool) {
        debug_assert!(starts[0].socket != starts[1].socket, "a relay joins two sockets");
        let side = |start: &Start| Side {
            fd: start.fd,
            // Not known: the first attempt shows it.
            readable: true,
            stops_short: false,
            writable: true,
            receiving: start.receiving,
            sending: start.sending,
        };
        let relay = Relay {
            sockets: starts.map(|start| start.socket),
            sides: [side(&starts[0]), side(&starts[1])],
            flows: starts.map(|start| Flow::new(start.ended)),
            failure: None,
            queued: false,
            nonblocking,
            begun: false,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.items.push(None);
            (self.items.len() - 1) as u32
        });
        self.items[index as usize] = Some(Box::new(relay));
        for start in starts {
            crate::net::keep_urgent(start.fd);
            let slot = start.socket.index as usize;
            if self.by_slot.len() <= slot {
                self.by_slot.resize(slot + 1, NONE);
            }
            self.by_slot[slot] = index;
        }
        self.enqueue(index);
    }

    fn enqueue(&mut self, index: u32) {
        if let Some(relay) = self.items[index as usize].as_mut().filter(|relay| !relay.queued) {
            relay.queued = true;
            self.ready.push_back(index);
        }
    }

    /// The relay of a socket, and which of the two it is.
    fn find(&self, socket: Socket) -> Option<(u32, usize)> {
        let index = *self.by_slot.get(socket.index as usize)?;
        let relay = self.items.get(index as usize)?.as_ref()?;
        let side = relay.sockets.iter().position(|&other| other == socket)?;
        Some((index, side))
    }

    fn with<R>(
        &mut self,
        socket: Socket,
        act: impl FnOnce(&mut Relay, usize, &mut Tools) -> R,
    ) -> Option<R> {
        let (index, side) = self.find(socket)?;
        let result = act(self.items[index as usize].as_mut()?, side, &mut self.tools);
        self.enqueue(index);
        Some(result)
    }

    /// A socket may have become ready.
    pub(crate) fn on_ready(&mut self, socket: Socket, ready: Ready) {
        self.with(socket, |relay, side, _| {
            let side = &mut relay.sides[side];
            side.readable |= ready.readable;
            side.writable |= ready.writable;
            side.stops_short |= ready.stops_short;
        });
    }

    /// A receive from before the relay brought bytes.
    pub(crate) fn received(&mut self, socket: Socket, bytes: &[u8]) {
        self.with(socket, |relay, side, _| relay.flows[side].hold(bytes));
    }

    /// A receive from before the relay found the end.
    pub(crate) fn source_ended(&mut self, socket: Socket) {
        self.with(socket, |relay, side, _| relay.flows[side].over = true);
    }

    /// A socket failed.
    pub(crate) fn failed(&mut self, socket: Socket, error: &io::Error) {
        self.with(socket, |relay, side, tools| relay.fail(side, error, true, &mut tools.pipes));
    }

    /// No receive from before the relay is in flight any more.
    pub(crate) fn receive_is_over(&mut self, socket: Socket) {
        self.with(socket, |relay, side, _| relay.sides[side].receiving = false);
    }

    /// No send from before the relay is in flight any more.
    pub(crate) fn send_is_over(&mut self, socket: Socket, result: &io::Result<()>) {
        self.with(socket, |relay, side, tools| {
            relay.sides[side].sending = false;
            if let Err(error) = result {
                relay.fail(side, error, false, &mut tools.pipes);
            }
        });
    }

    /// Forgets the relay of a socket that is being closed.
    pub(crate) fn remove(&mut self, socket: Socket) {
        if let Some((index, _)) = self.find(socket) {
            self.take(index);
        }
    }

    fn take(&mut self, index: u32) -> Option<Box<Relay>> {
        let mut relay = self.items[index as usize].take()?;
        for flow in &mut relay.flows {
            flow.abandon(&mut self.tools.pipes);
        }
        for socket in relay.sockets {
            self.by_slot[socket.index as usize] = NONE;
        }
        if relay.queued {
            self.ready.retain(|&other| other != index);
        }
        self.free.push(index);
        Some(relay)
    }

    /// The bytes that the relay of a socket has moved.
    pub(crate) fn moved(&self, socket: Socket) -> Option<Relayed> {
        let (index, _) = self.find(socket)?;
        self.items[index as usize].as_ref().map(|relay| relay.moved())
    }

    /// Whether [`Relays::run`] would have something to do.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Moves as much as possible, in turn and up to the limit of a turn.
    pub(crate) fn run(&mut self, over: &mut Vec<Over>) {
        let moved = |tools: &Tools| tools.copied + tools.spliced;
        let target = moved(&self.tools).saturating_add(self.bytes_per_turn);
        // Even relays that move nothing come to an end: each comes again only after it had a share.
        while moved(&self.tools) < target {
            let Some(index) = self.ready.pop_front() else { return };
            let Some(relay) = &mut self.items[index as usize] else { continue };
            relay.queued = false;
            if relay.advance(&mut self.tools) {
                self.enqueue(index);
            } else if relay.flows.iter().all(|flow| flow.done)
                && let Some(relay) = self.take(index)
            {
                over.push((*relay).into_over());
            }
        }
    }

    /// Pipes that exist, and those of them that are unused.
    #[cfg(any(test, feature = "conformance"))]
    pub(crate) fn pipes(&self) -> (usize, usize) {
        self.tools.pipes.count()
    }

    /// Adds the relays' counts to the counters of their driver.
    pub(crate) fn count(&self, stats: &mut DriverStats) {
        stats.syscalls += self.tools.syscalls;
        stats.relay_copied += self.tools.copied;
        stats.relay_spliced += self.tools.spliced;
    }
}

impl Relay {
    fn moved(&self) -> Relayed {
        Relayed {
            a_to_b: self.flows[0].moved,
            b_to_a: self.flows[1].moved,
            half_closed: self.flows[0].done != self.flows[1].done,
        }
    }

    /// Gives each direction its share. True when one of them could continue at once.
    fn advance(&mut self, tools: &mut Tools) -> bool {
        let mut again = false;
        for from in 0..2 {
            if self.flows[from].done {
                continue;
            }
            let [first, second] = &mut self.sides;
            let (source, sink) = if from == 0 { (first, second) } else { (second, first) };
            match self.flows[from].advance(source, sink, tools, &mut self.nonblocking, SHARE_BYTES)
            {
                Halt::Waiting => {}
                Halt::Again => again = true,
                Halt::Done if self.failure.is_none() => {
                    crate::net::shutdown_write(self.sides[1 - from].fd)
                }
                Halt::Done => {}
                Halt::SourceFailed(error) => {
                    self.fail(from, &error, true, &mut tools.pipes);
                    again = true;
                }
                Halt::SinkFailed(error) => {
                    self.fail(1 - from, &error, false, &mut tools.pipes);
                    again = true;
                }
            }
        }
        if !std::mem::replace(&mut self.begun, true) {
            // Whether or not sent bytes have acknowledged the connect: from here on the kernel
            // acknowledges as for other sockets. Otherwise a server that writes a response in two
            // pieces, and waits for the acknowledgement of the first (Nagle), waits 40 ms for it.
            crate::net::acknowledge(self.sides[1].fd);
            tools.syscalls += 1;
        }
        again
    }

    /// A socket failed: nothing is sent to it any more, and bytes that had arrived from it are
    /// still delivered. `silent`: nothing more can be read from it.
    fn fail(&mut self, side: usize, error: &io::Error, silent: bool, pipes: &mut Pipes) {
        let code = error.raw_os_error().unwrap_or(libc::EIO);
        self.failure.get_or_insert((side as u8, code));
        self.flows[1 - side].abandon(pipes);
        self.flows[side].over |= silent;
        self.flows[side].last = true;
    }

    fn into_over(self) -> Over {
        let moved = self.moved();
        if self.failure.is_none() {
            // Both have ended in order, and their last bytes may still have to be delivered.
            self.sides.iter().for_each(|side| crate::net::linger_usual(side.fd));
        }
        let how = match self.failure {
            None => RelayEnd::Complete,
            Some((0, code)) => RelayEnd::FailedA(io::Error::from_raw_os_error(code)),
            Some((_, code)) => RelayEnd::FailedB(io::Error::from_raw_os_error(code)),
        };
        Over { sockets: self.sockets, moved, how }
    }
}
