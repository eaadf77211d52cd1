//! `weir intercept --connect first`: a client hears what its server says (docs/semantics.md §24).
//!
//! Programs of the kernel give first packets of clients to a device in the namespace instead of to the listener (`weir_bpf::Hold`). A thread reads them
//! there and connects to their servers, from their addresses and ports. A server that takes it: the connection is put where workers look for it
//! (`weir_worker::Prepared`), and the packet goes on to the listener. One that refuses, or of which somebody reports that it can't be reached: the client
//! gets just that. Silence stays silence. What can't be held goes on to the listener at once, as without all this.
//!
//! Bounds: [`ledger`], a quarter of the descriptors, [`CLIENT_PATIENCE`] for a client that does not come back. When the thread ends, so does the device,
//! and all go to the listener.

mod ledger;
mod packet;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ledger::{HELD_MAX, Ledger, PATIENCE, Waiting};
use packet::First;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{Timespec, epoll::Event};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use weir_bpf::Hold;
use weir_io::{Attempt, Outbound, Outcome, Tun};
use weir_proxy::ending::Held;
use weir_proxy::plan::{Dial, Side};
use weir_worker::{Prepared, tuning};

use super::place::failed;
use crate::failure::Failure;
use crate::terminal::warn;

/// How long a client may take to come back when it was told that its server is there.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// How often times are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Packets that are read before connects that have ended are looked at again.
const PACKETS_MAX: usize = 256;
/// Connects that have ended at a time.
const EVENTS_MAX: usize = 256;
/// No packet is longer.
const PACKET_BYTES_MAX: usize = 65_536;
/// One of so many descriptors is for what is held.
const DESCRIPTORS_SHARE: u64 = 4;
/// With fewer descriptors than that four times, still so many.
const HELD_MIN: usize = 16;
/// What the device is called in the poll; connects have the names of the ledger.
const DEVICE: u64 = u64::MAX;

/// Where first packets come out, in the namespace.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) tun: Tun,
    pub(super) hold: Hold,
}

/// What begins when the process has the rights that it keeps, before workers do.
pub(crate) struct Ahead {
    device: Device,
    dial: Dial,
    prepared: Arc<Prepared>,
    stop: Arc<AtomicBool>,
    done: Sender<()>,
}

/// Ends what an [`Ahead`] has begun.
pub(super) struct Ending {
    stop: Arc<AtomicBool>,
    done: Receiver<()>,
}

impl Ending {
    /// Nothing is held any more, and no connection waits for its client.
    pub(super) fn end(self) {
        self.stop.store(true, Relaxed);
        // Nothing is ever sent: it ends with the thread, or with what would have begun it.
        let _ = self.done.recv();
    }
}

impl Ahead {
    /// Connects to servers as workers do in this way.
    pub(super) fn new(device: Device, dial: Dial) -> (Ahead, Ending) {
        let (done, ends) = channel();
        let (prepared, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let ending = Ending { stop: Arc::clone(&stop), done: ends };
        (Ahead { device, dial, prepared, stop, done }, ending)
    }

    /// Begins; what workers are to look into.
    ///
    /// # Errors
    /// No thread, no descriptors.
    pub(crate) fn begin(self) -> Result<Arc<Prepared>, Failure> {
        let Ahead { device, dial, prepared, stop, done } = self;
        let kernel = |error: Errno| failed("can't hold first packets", &error.into());
        let poll = epoll::create(CreateFlags::CLOEXEC).map_err(kernel)?;
        epoll::add(&poll, &device.tun, EventData::new_u64(DEVICE), EventFlags::IN).map_err(kernel)?;
        let max = getrlimit(Resource::Nofile).current.map_or(HELD_MAX, |most| (most / DESCRIPTORS_SHARE) as usize);
        let ledger = Ledger::new(max.clamp(HELD_MIN, HELD_MAX), Instant::now());
        let (of_workers, packet) = (Arc::clone(&prepared), vec![0; PACKET_BYTES_MAX]);
        let mut holder =
            Holder { device, dial, prepared, poll, ledger, packet, lets_through: false, look_at: Instant::now() };
        let hold = move || {
            if let Err(error) = weir_io::forgo_network().and_then(|()| holder.run(&stop)) {
                warn(format_args!("clients are told \"connected\" before their servers are: {error}"));
            }
            holder.end();
            drop((holder, done));
        };
        let thread = thread::Builder::new().name("first".to_owned()).spawn(hold);
        thread.map_err(|error| failed("no thread", &error))?;
        Ok(of_workers)
    }
}

/// The thread's.
struct Holder {
    device: Device,
    dial: Dial,
    prepared: Arc<Prepared>,
    poll: OwnedFd,
    ledger: Ledger<Attempt>,
    /// Where packets are read to.
    packet: Vec<u8>,
    /// The kernel gives first packets to the listener.
    lets_through: bool,
    /// When times are looked at again.
    look_at: Instant,
}

impl Holder {
    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        while !stop.load(Relaxed) {
            events.clear();
            let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
            match epoll::wait(&self.poll, spare_capacity(&mut events), Some(&tick)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let now = Instant::now();
            for event in events.drain(..) {
                match event.data.u64() {
                    DEVICE => self.read(now)?,
                    name => self.ended(name, now),
                }
            }
            if now >= self.look_at {
                self.look_at = now + TICK;
                self.look(now);
            }
            self.prepared.set_holding(self.ledger.len());
        }
        Ok(())
    }

    /// All that wait for something wait no more.
    fn end(&mut self) {
        self.prepared.expire(Instant::now() + CLIENT_PATIENCE);
        self.prepared.set_holding(0);
    }

    fn read(&mut self, now: Instant) -> io::Result<()> {
        let mut packet = std::mem::take(&mut self.packet);
        for _ in 0..PACKETS_MAX {
            let Some(bytes) = self.device.tun.read(&mut packet)? else { break };
            if let Some(first) = First::read(&packet[..bytes]) {
                self.begin(&first, now);
            }
        }
        self.packet = packet;
        Ok(())
    }

    /// A client would like to connect, or still would.
    fn begin(&mut self, first: &First<'_>, now: Instant) {
        let pair = first.pair;
        if self.ledger.renew(&pair, first.bytes()) {
            return;
        }
        if self.prepared.has(&pair) {
            return self.pass_on(first.bytes());
        }
        let begun = self.may_begin(now).then(|| self.connect(pair.client(), pair.server()));
        let Some(Ok(attempt)) = begun else {
            return self.pass_on(first.bytes());
        };
        let name = EventData::new_u64(self.ledger.next_name());
        if epoll::add(&self.poll, &attempt, name, EventFlags::OUT).is_err() {
            return self.pass_on(first.bytes());
        }
        self.ledger.hold(Waiting { pair, packet: first.bytes().to_vec(), attempt }, now);
    }

    /// Begins a connect from the address and port of a client, or from another port where that one is taken.
    fn connect(&self, client: SocketAddr, server: SocketAddr) -> io::Result<Attempt> {
        let way = Outbound {
            from: Some(client),
            transparent: true,
            congestion: self.dial.congestion.of(Side::Server, client).map(AsRef::as_ref),
            tuning: tuning(self.dial.tuning.as_deref()),
            resets: true,
        };
        let taken = [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL];
        match Attempt::begin(way, server) {
            Err(error) if Errno::from_io_error(&error).is_some_and(|errno| taken.contains(&errno)) => {
                let any_port = Attempt::begin(Outbound { from: Some(SocketAddr::new(client.ip(), 0)), ..way }, server);
                any_port.inspect(|_| self.prepared.count_changed_port())
            }
            begun => begun,
        }
    }

    /// A connect has ended: its client is told how.
    fn ended(&mut self, name: u64, now: Instant) {
        let Some(Waiting { pair, packet, attempt }) = self.ledger.take(name) else { return };
        // Others may have it from now on, and then it stays in the poll.
        let _ = epoll::delete(&self.poll, &attempt);
        let first = First::read(&packet);
        let (what, answer) = match attempt.outcome() {
            Outcome::Connected(socket) => {
                self.prepared.put(pair, socket, now + CLIENT_PATIENCE);
                (Held::Connected, Some(packet))
            }
            Outcome::Refused => (Held::Refused, first.map(|first| first.reset())),
            Outcome::Unreachable(report) => (Held::Unreachable, first.and_then(|first| first.unreachable(report))),
            Outcome::Failed(_) => (Held::Silent, None),
        };
        self.prepared.count(what);
        if let Some(answer) = answer {
            self.pass_on(&answer);
        }
    }

    /// A packet goes where it belongs. One that is lost is one that the network could have lost.
    fn pass_on(&self, packet: &[u8]) {
        let _ = self.device.tun.write(packet);
    }

    fn may_begin(&mut self, now: Instant) -> bool {
        !self.prepared.is_over() && self.ledger.has_room(self.prepared.waiting()) && self.ledger.may_begin(now)
    }

    /// Looks at times and at room. Where clients are accepted no more, nobody is kept waiting: who tries again finds his way without weir.
    fn look(&mut self, now: Instant) {
        let is_over = self.prepared.is_over();
        let now = if is_over { now + PATIENCE } else { now };
        while let Some(Waiting { attempt, .. }) = self.ledger.expired(now) {
            let _ = epoll::delete(&self.poll, &attempt);
            self.prepared.count(Held::Silent);
        }
        self.prepared.expire(now);
        let lets_through = is_over || !self.ledger.has_room(self.prepared.waiting());
        if lets_through != self.lets_through && self.device.hold.let_through(lets_through).is_ok() {
            self.lets_through = lets_through;
        }
    }
}
