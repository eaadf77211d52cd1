//! One thread of the origin: joins a [`Driver`] with [`Connection`]s. Where clients use TLS,
//! [`Sealed`] handles it.
//!
//! Called by `mod.rs`. Bound: one send in flight a connection; a connection whose client doesn't
//! read is not read either.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use weir_http::{Fields, Limits, http_date};
use weir_io::{Class, Completion, Driver, Event, Payload, Receive, RecvBuf, Socket, Token};
use weir_tls::Sealed;

use super::connection::{Connection, Scene};
use super::misbehave::Kind;
use super::stats::OriginStats;
use super::{Accept, Listeners, Shared};
use crate::random::Random;

/// Token of the listener; connections use their slot.
const LISTENER: Token = Token::MAX;
/// Longest wait of a turn, so that the date is kept up to date.
const TURN_WAIT_US: u64 = 1_000_000;
/// How long a closing connection may take to close its side, so that the kernel doesn't answer late
/// bytes with a reset that overtakes the response.
const LINGER_US: u64 = 2_000_000;
/// A receive of at least this many bytes moves the connection to large buffers.
const SMALL_BYTES: usize = 4096;
/// How long a TLS handshake may take.
const HANDSHAKE_US: u64 = 10_000_000;
/// How long a thread that has accepted a connection because it was idle waits for its first request
/// before it does anything else, as workers do that read what they accept.
const FIRST_REQUEST_US: u64 = 5_000;
/// Output buffers kept for reuse, and the largest capacity worth keeping.
const SPARE_MAX: usize = 1024;
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// How long a connection may be idle that keeps its thread from accepting another one
/// (`KeepAliveTimeout` of Apache).
const REST_US: u64 = 5_000_000;

/// The place that a thread has for one connection.
struct Place {
    /// Needed to listen again.
    listener: TcpListener,
    /// The driver's name for it.
    named: Socket,
    /// The driver accepts on it.
    is_open: bool,
    /// Connections that were accepted and are not closed: one, or more where several came before
    /// the driver stopped accepting.
    taken: u32,
}

/// A slot's occupant.
struct Slot {
    socket: Socket,
    machine: Connection,
    sending: bool,
    receive: Receive,
    /// It has sent a request before.
    served: bool,
    /// Pipelined requests come in bulk here: large buffers.
    large: bool,
    /// The delay that a timer was set for.
    timer_us: Option<u64>,
    /// Set once the sending direction was ended: the deadline for closing.
    linger_until_us: Option<u64>,
    /// It keeps the thread from accepting another one.
    takes_place: bool,
    /// The connection takes a place and is idle: it is closed at this time.
    rests_until_us: Option<u64>,
}

/// The thread's state.
pub(super) struct Server<D: Driver> {
    driver: Sealed<D>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// `(due, slot, generation)` of delayed replies and lingering closes; late entries are
    /// recognised and ignored.
    timers: BinaryHeap<Reverse<(u64, usize, u32)>>,
    fields: Fields,
    limits: Limits,
    counts: OriginStats,
    spare: Vec<Vec<u8>>,
    /// First lines of requests that are not yet in the log; None without one.
    lines: Option<Vec<u8>>,
    date_line: Vec<u8>,
    date_s: u64,
    shared: Arc<Shared>,
    thread: usize,
    accept: Accept,
    /// The place, where the thread accepts one connection at a time.
    place: Option<Place>,
    /// The connection that was accepted last, and how long others wait for its first request, where
    /// an idle thread accepts.
    awaited: Option<(usize, Socket, u64)>,
    /// Events of other connections meanwhile.
    held: Vec<Completion>,
    /// The source of everything random in responses: the same in each run with this many threads.
    random: Random,
}

impl<D: Driver> Server<D> {
    pub(super) fn new(
        driver: Sealed<D>,
        shared: Arc<Shared>,
        thread: usize,
        accept: Accept,
    ) -> Server<D> {
        Server {
            lines: shared.log.as_ref().map(|_| Vec::new()),
            driver,
            slots: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            fields: Fields::default(),
            limits: Limits::default(),
            counts: OriginStats::default(),
            spare: Vec::new(),
            date_line: Vec::new(),
            date_s: 0,
            shared,
            thread,
            accept,
            place: None,
            awaited: None,
            held: Vec::new(),
            random: Random::new(0).fork(thread as u64),
        }
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn run(&mut self, listeners: Listeners) -> io::Result<()> {
        let again =
            if self.accept == Accept::One { Some(listeners.tcp.try_clone()?) } else { None };
        let named = self.listen(listeners.tcp)?;
        self.place = again.map(|listener| Place { listener, named, is_open: true, taken: 0 });
        if let Some(unix) = listeners.unix {
            self.driver.listen(unix, LISTENER)?;
        }
        let mut completions = Vec::new();
        while !self.shared.stop.load(Ordering::Acquire) {
            self.driver.turn(Some(self.wait_us()), &mut completions)?;
            if let Some(mischief) = &self.shared.mischief
                && mischief.stand_still(&self.shared.stop)
            {
                self.counts.misbehaved.add(Kind::Freeze);
            }
            self.refresh_date();
            if self.accept == Accept::Shared {
                self.handle_new_first(&mut completions);
            }
            for completion in completions.drain(..) {
                self.handle(completion);
            }
            self.fire_timers();
            self.open_place()?;
            self.publish();
        }
        Ok(())
    }

    fn listen(&mut self, listener: TcpListener) -> io::Result<Socket> {
        let listener = self.driver.listen(listener, LISTENER)?;
        if let Some(seal) = &self.shared.seal {
            self.driver.seal(listener, Arc::clone(seal), HANDSHAKE_US);
        }
        Ok(listener)
    }

    /// A thread whose place has become free accepts again.
    fn open_place(&mut self) -> io::Result<()> {
        let Some(place) = self.place.as_ref().filter(|place| place.taken == 0 && !place.is_open)
        else {
            return Ok(());
        };
        let listener = place.listener.try_clone()?;
        let named = self.listen(listener)?;
        if let Some(place) = &mut self.place {
            (place.named, place.is_open) = (named, true);
        }
        Ok(())
    }

    /// Handles a connection from this listener: returns whether it takes the place of the thread.
    fn take_place(&mut self, from: Socket) -> bool {
        let Some(place) = self.place.as_mut().filter(|place| place.named == from) else {
            return false;
        };
        place.taken += 1;
        if std::mem::take(&mut place.is_open) {
            self.driver.hand_over(from);
        }
        true
    }

    /// A thread that has accepted a connection because it was idle first handles the events of that
    /// connection, waits a moment for them, and sends the response. Then it leaves the other
    /// connections' events of the meantime in `completions`.
    fn handle_new_first(&mut self, completions: &mut Vec<Completion>) {
        let all = completions.len();
        let before = self.held.len();
        for completion in completions.drain(..) {
            match self.is_served(&completion) {
                true => self.held.push(completion),
                false => self.handle(completion),
            }
        }
        // The response leaves in the next turn.
        let is_new = self.held.len() - before < all;
        if !is_new && self.awaited_us() == 0 {
            std::mem::swap(&mut self.held, completions);
        }
    }

    /// Returns how long to wait further for the first request of the connection that was accepted
    /// last, microseconds.
    fn awaited_us(&self) -> u64 {
        let Some((index, socket, until_us)) = self.awaited else { return 0 };
        let slot = self.slots[index].as_ref().filter(|slot| slot.socket == socket && !slot.served);
        slot.map_or(0, |_| until_us.saturating_sub(self.driver.now_us()))
    }

    /// Whether an event belongs to a connection that has sent a request before.
    fn is_served(&self, completion: &Completion) -> bool {
        let index = usize::try_from(completion.token).unwrap_or(usize::MAX);
        let slot = self.slots.get(index).and_then(Option::as_ref);
        slot.is_some_and(|slot| slot.socket == completion.socket && slot.served)
    }

    fn publish(&mut self) {
        if let Some(tally) = self.driver.take_tally() {
            self.counts.handshakes += tally.completed;
            self.counts.resumed += tally.resumed;
            self.counts.handshakes_failed += tally.failed.iter().sum::<u64>();
        }
        let thread = &self.shared.threads[self.thread];
        thread.publish(&self.counts);
        if self.shared.mischief.is_some() {
            thread.publish_misbehaved(&self.counts);
        }
    }

    fn wait_us(&self) -> u64 {
        let due_us = self.timers.peek().map_or(u64::MAX, |Reverse((due_us, ..))| *due_us);
        let wait_us = due_us.saturating_sub(self.driver.now_us()).min(TURN_WAIT_US);
        if self.held.is_empty() { wait_us } else { wait_us.min(self.awaited_us()) }
    }

    fn refresh_date(&mut self) {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if now_s != self.date_s {
            self.date_s = now_s;
            self.date_line.clear();
            self.date_line.extend_from_slice(b"Date: ");
            self.date_line.extend_from_slice(&http_date(now_s));
            self.date_line.extend_from_slice(b"\r\n");
        }
    }

    fn handle(&mut self, completion: Completion) {
        let Completion { token, socket, event } = completion;
        match event {
            Event::Accepted { socket: accepted, .. } => self.accept(accepted, socket),
            Event::Received(buffer) => self.received(token, socket, buffer),
            Event::Ended => self.with(token, socket, |slot, _| slot.end()),
            Event::ReceiveFailed(_) => self.close(token, socket),
            Event::Sent { payload, result } => self.sent(token, socket, payload, result.is_ok()),
            Event::AcceptFailed(_)
            | Event::Connected(_)
            | Event::RelayEnded { .. }
            | Event::Released(_)
            | Event::Woken => {}
        }
    }

    fn accept(&mut self, socket: Socket, from: Socket) {
        self.counts.connects += 1;
        if let Some(mischief) = &self.shared.mischief
            && mischief.strikes(Kind::Refuse).is_some()
        {
            self.counts.misbehaved.add(Kind::Refuse);
            self.counts.closes += 1;
            return self.driver.reset(socket);
        }
        let receive = Receive::Many(Class::Small);
        let machine = Connection::new(self.spare.pop().unwrap_or_default());
        let slot = Slot {
            socket,
            machine,
            sending: false,
            receive,
            served: false,
            large: false,
            timer_us: None,
            linger_until_us: None,
            takes_place: self.take_place(from),
            rests_until_us: None,
        };
        let index = self.free.pop().unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(Some(slot));
        } else {
            self.slots[index] = Some(slot);
        }
        if self.accept == Accept::Shared {
            self.awaited = Some((index, socket, self.driver.now_us() + FIRST_REQUEST_US));
        }
        self.driver.set_token(socket, index as Token);
        self.driver.receive(socket, receive);
    }

    fn received(&mut self, token: Token, socket: Socket, buffer: RecvBuf) {
        self.counts.receives += 1;
        self.counts.bytes_in += buffer.len() as u64;
        self.with(token, socket, |slot, scene| slot.input(scene, &buffer));
        self.driver.recycle(buffer);
    }

    fn sent(&mut self, token: Token, socket: Socket, payload: Payload, good: bool) {
        if let Payload::Owned(mut buffer) = payload
            && self.spare.len() < SPARE_MAX
            && buffer.capacity() <= SPARE_BYTES_MAX
        {
            buffer.clear();
            self.spare.push(buffer);
        }
        if good {
            self.with(token, socket, |slot, scene| {
                slot.sending = false;
                slot.machine.handle_sent(scene);
            });
        } else {
            self.close(token, socket);
        }
    }

    /// Lets a connection handle something, then does what it requests.
    fn with(&mut self, token: Token, socket: Socket, act: impl FnOnce(&mut Slot, &mut Scene<'_>)) {
        let index = usize::try_from(token).unwrap_or(usize::MAX);
        let Some(Some(slot)) = self.slots.get_mut(index) else { return };
        if slot.socket != socket {
            return;
        }
        let shared = &self.shared;
        let mut scene = Scene {
            limits: &self.limits,
            fields: &mut self.fields,
            date_line: &self.date_line,
            now_us: self.driver.now_us(),
            counts: &mut self.counts,
            told: &shared.threads[self.thread],
            totals: &|| shared.stats(),
            mischief: shared.mischief.as_ref(),
            lines: self.lines.as_mut(),
            random: &mut self.random,
            at_work: &shared.at_work,
        };
        act(slot, &mut scene);
        if self.lines.as_ref().is_some_and(|lines| !lines.is_empty()) {
            self.write_lines();
        }
        self.act(index);
    }

    /// Writes to the log before the requests are answered. A log that can't be written is given up,
    /// with a message.
    fn write_lines(&mut self) {
        let (Some(lines), Some(log)) = (&mut self.lines, &self.shared.log) else { return };
        match (&*log).write_all(lines) {
            Ok(()) => lines.clear(),
            Err(error) => {
                eprintln!("origin: cannot write the log any more: {error}");
                self.lines = None;
            }
        }
    }

    /// Turns what the connection wants into operations.
    fn act(&mut self, index: usize) {
        let Some(slot) = &mut self.slots[index] else { return };
        if !slot.sending
            && slot.linger_until_us.is_none()
            && let Some(payload) = slot.machine.poll_payload(&mut self.spare, self.driver.now_us())
        {
            self.counts.bytes_out += length(&payload);
            slot.sending = true;
            self.driver.send(slot.socket, payload);
        }
        let receive = if slot.machine.wants_input() { slot.wanted_receive() } else { Receive::Off };
        if receive != slot.receive {
            slot.receive = receive;
            self.driver.receive(slot.socket, receive);
        }
        if let Some(due_us) = slot.machine.due_us()
            && slot.timer_us.replace(due_us) != Some(due_us)
        {
            self.timers.push(Reverse((due_us, index, slot.socket.generation)));
        }
        if !slot.sending && slot.machine.is_over() {
            self.finish(index);
        } else if slot.takes_place {
            self.rest(index);
        }
    }

    /// Notes since when a connection that takes a place has been idle.
    fn rest(&mut self, index: usize) {
        let Some(slot) = &mut self.slots[index] else { return };
        let rests = !slot.sending && slot.linger_until_us.is_none() && slot.machine.rests();
        slot.rests_until_us = rests.then(|| self.driver.now_us() + REST_US);
        if let Some(until_us) = slot.rests_until_us {
            self.timers.push(Reverse((until_us, index, slot.socket.generation)));
        }
    }

    /// Everything is sent: closes at once if the client has closed too or the end shall be rude,
    /// else ends our direction and lingers.
    fn finish(&mut self, index: usize) {
        let Some(slot) = &mut self.slots[index] else { return };
        let socket = slot.socket;
        if slot.machine.resets() || slot.machine.has_ended() {
            self.close(index as Token, socket);
        } else if slot.linger_until_us.is_none() {
            let until_us = self.driver.now_us() + LINGER_US;
            slot.linger_until_us = Some(until_us);
            self.driver.shutdown_write(socket);
            self.timers.push(Reverse((until_us, index, socket.generation)));
        }
    }

    fn close(&mut self, token: Token, socket: Socket) {
        let index = usize::try_from(token).unwrap_or(usize::MAX);
        let known =
            self.slots.get_mut(index).and_then(|slot| slot.take_if(|slot| slot.socket == socket));
        let Some(slot) = known else { return };
        self.free.push(index);
        self.counts.closes += 1;
        if let Some(place) = self.place.as_mut().filter(|_| slot.takes_place) {
            place.taken -= 1;
        }
        if slot.machine.resets() {
            self.driver.reset(socket);
        } else {
            self.driver.close(socket);
        }
    }

    fn fire_timers(&mut self) {
        let now_us = self.driver.now_us();
        while let Some(Reverse((due_us, index, generation))) = self.timers.peek().copied() {
            if due_us > now_us {
                break;
            }
            self.timers.pop();
            let Some(slot) = &self.slots[index] else { continue };
            let socket = slot.socket;
            if socket.generation != generation {
                continue;
            }
            if slot.linger_until_us.is_some_and(|until_us| until_us <= now_us) {
                self.close(index as Token, socket);
            } else if slot.rests_until_us.is_some_and(|until_us| until_us <= now_us) {
                self.finish(index);
            } else if slot.machine.due_us().is_some_and(|due_us| due_us <= now_us) {
                self.with(index as Token, socket, |slot, scene| slot.machine.handle_time(scene));
            }
        }
    }
}

impl Slot {
    fn input(&mut self, scene: &mut Scene<'_>, bytes: &[u8]) {
        self.served = true;
        self.large |= bytes.len() >= SMALL_BYTES;
        self.machine.handle_input(scene, bytes);
    }

    fn end(&mut self) {
        self.machine.handle_end();
        self.receive = Receive::Off;
    }

    fn wanted_receive(&self) -> Receive {
        Receive::Many(if self.large { Class::Large } else { Class::Small })
    }
}

fn length(payload: &Payload) -> u64 {
    match payload {
        Payload::Owned(bytes) => bytes.len() as u64,
        Payload::Shared(bytes) => bytes.len() as u64,
        Payload::Vectored(slices) => slices.iter().map(|slice| slice.len() as u64).sum(),
    }
}
