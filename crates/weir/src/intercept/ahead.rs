//! What asks servers before their clients are accepted (`weir intercept --connect first` and `syn`, docs/semantics.md §24): a thread that reads first packets
//! from a device in the namespace, where programs of the kernel put them (`weir_bpf::Hold`).
//!
//! It begins when the process has the rights that it keeps, and before workers do, whom it tells of connections by a [`Prepared`]. Bounds: [`super::limits`],
//! a quarter of the descriptors. When the thread ends, so does the device, and clients are accepted first, as without all this.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use weir_bpf::Hold;
use weir_io::{Outbound, Tun, clock_us};
use weir_proxy::plan::{Dial, Side};
use weir_worker::{Prepared, tuning};

use super::Connect;
use super::early::Early;
use super::first::Holder;
use super::limits::HELD_MAX;
use super::place::failed;
use crate::failure::Failure;
use crate::terminal::warn;

/// How often times are looked at.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// How long a client may take to come for the connection that is there for it.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Packets that are read before others have their turn.
pub(super) const PACKETS_MAX: usize = 256;
/// No packet is longer.
pub(super) const PACKET_BYTES_MAX: usize = 65_536;
/// One of so many descriptors is for what is asked before.
const DESCRIPTORS_SHARE: u64 = 4;
/// With fewer descriptors than that four times, still so many.
const HELD_MIN: usize = 16;

/// Where first packets come out, in the namespace.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) tun: Tun,
    pub(super) hold: Hold,
}

/// What the thread works with.
pub(super) struct Means {
    pub(super) device: Device,
    pub(super) dial: Dial,
    pub(super) prepared: Arc<Prepared>,
    /// The kernel gives first packets to the listener alone.
    lets_through: bool,
}

impl Means {
    /// From the address and port of this client.
    pub(super) fn way(&self, client: SocketAddr) -> Outbound<'_> {
        Outbound {
            from: Some(client),
            transparent: true,
            congestion: self.dial.congestion.of(Side::Server, client).map(AsRef::as_ref),
            tuning: tuning(self.dial.tuning.as_deref()),
            resets: true,
        }
    }

    /// Now, and until when a client has to come for what is there for it: microseconds of the clock of workers.
    pub(super) fn times() -> (u64, u64) {
        let now_us = clock_us();
        (now_us, now_us + CLIENT_PATIENCE.as_micros() as u64)
    }

    /// Resets what was not wanted in time, or all where clients are accepted no more.
    pub(super) fn expire(&self) {
        self.prepared.expire(if self.prepared.is_over() { u64::MAX } else { clock_us() });
    }

    /// Whether first packets go to the listener alone from now on.
    pub(super) fn let_through(&mut self, on: bool) {
        if on == self.lets_through {
            return;
        }
        // As long as it is not so for sure, packets may come after their clients.
        self.prepared.set_lets_through(false);
        if self.device.hold.let_through(on).is_ok() {
            self.lets_through = on;
        }
        self.prepared.set_lets_through(self.lets_through);
    }
}

/// What the thread does until it is stopped.
type Run = Box<dyn FnMut(&AtomicBool) -> io::Result<()> + Send>;

/// What begins when the process has the rights that it keeps, before workers do.
pub(crate) struct Ahead {
    connect: Connect,
    means: Means,
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
    pub(super) fn new(connect: Connect, device: Device, dial: Dial) -> (Ahead, Ending) {
        let (done, ends) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let prepared = Arc::new(if connect == Connect::Syn { Prepared::early() } else { Prepared::default() });
        let ending = Ending { stop: Arc::clone(&stop), done: ends };
        (Ahead { connect, means: Means { device, dial, prepared, lets_through: false }, stop, done }, ending)
    }

    /// Begins; what workers are to look into.
    ///
    /// # Errors
    /// No thread, no descriptors.
    pub(crate) fn begin(self) -> Result<Arc<Prepared>, Failure> {
        let Ahead { connect, means, stop, done } = self;
        let max = getrlimit(Resource::Nofile).current.map_or(HELD_MAX, |most| (most / DESCRIPTORS_SHARE) as usize);
        let (max, now) = (max.clamp(HELD_MIN, HELD_MAX), Instant::now());
        let prepared = Arc::clone(&means.prepared);
        let mut run: Run = match connect {
            Connect::Syn => {
                let mut early = Early::new(means, max, now);
                Box::new(move |stop| early.run(stop))
            }
            _ => {
                let mut holder =
                    Holder::new(means, max, now).map_err(|error| failed("can't hold first packets", &error))?;
                Box::new(move |stop| holder.run(stop))
            }
        };
        let of_workers = Arc::clone(&prepared);
        let ask = move || {
            if let Err(error) = weir_io::forgo_network().and_then(|()| run(&stop)) {
                let instead = match connect {
                    Connect::Syn => "servers are asked when their clients are accepted, and no sooner",
                    _ => "clients are told \"connected\" before their servers are asked",
                };
                warn(format_args!("{instead}: {error}"));
            }
            prepared.set_lets_through(true);
            // All that wait for something wait no more.
            prepared.expire(u64::MAX);
            prepared.set_holding(0);
            drop((run, done));
        };
        let thread = thread::Builder::new().name("ahead".to_owned()).spawn(ask);
        thread.map_err(|error| failed("no thread", &error))?;
        Ok(of_workers)
    }
}
