//! Connects to servers before their clients are accepted (`weir intercept --connect first` and
//! `syn`, docs/intercept.md): a thread that reads first packets from a device in the namespace,
//! where kernel programs put them (`weir_bpf::Hold`).
//!
//! It starts when the process has its final rights, and before the workers, which learn of
//! connections through a [`Prepared`]. Bounds: [`super::limits`], a quarter of the descriptors.
//! When the thread ends, so does the device, and clients are accepted first, as without this mode.

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
use crate::log::Event;

/// How often timeouts are checked.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// How long a client may take to arrive for the connection that waits for it.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Packets that are read before other work gets a turn.
pub(super) const PACKETS_MAX: usize = 256;
/// No packet is longer.
pub(super) const PACKET_BYTES_MAX: usize = 65_536;
/// One of this many descriptors is for connections made ahead.
const DESCRIPTORS_SHARE: u64 = 4;
/// Allowed even if four times this number exceeds the descriptors.
const HELD_MIN: usize = 16;

/// The device in the namespace that first packets come out of.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) tun: Tun,
    pub(super) hold: Hold,
}

/// The means of the thread.
pub(super) struct Means {
    pub(super) device: Device,
    pub(super) dial: Dial,
    pub(super) prepared: Arc<Prepared>,
    /// The kernel passes first packets only to the listener.
    lets_through: bool,
}

impl Means {
    /// Returns how to connect from the address and port of this client.
    pub(super) fn way(&self, client: SocketAddr) -> Outbound<'_> {
        Outbound {
            from: Some(client),
            transparent: true,
            congestion: self.dial.congestion.of(Side::Server, client).map(AsRef::as_ref),
            tuning: tuning(self.dial.tuning.as_deref()),
            resets: true,
        }
    }

    /// Returns the present time, and when a client has to arrive for its connection: microseconds
    /// of the workers' clock.
    pub(super) fn times() -> (u64, u64) {
        let now_us = clock_us();
        (now_us, now_us + CLIENT_PATIENCE.as_micros() as u64)
    }

    /// Resets connections that were not wanted in time, or all if weir no longer accepts clients.
    pub(super) fn expire(&self) {
        self.prepared.expire(if self.prepared.is_over() { u64::MAX } else { clock_us() });
    }

    /// Sets whether first packets go only to the listener from now on.
    pub(super) fn let_through(&mut self, on: bool) {
        if on == self.lets_through {
            return;
        }
        // As long as this is uncertain, packets may arrive after their clients.
        self.prepared.set_lets_through(false);
        if self.device.hold.let_through(on).is_ok() {
            self.lets_through = on;
        }
        self.prepared.set_lets_through(self.lets_through);
    }
}

/// The work of the thread until it is stopped.
type Run = Box<dyn FnMut(&AtomicBool) -> io::Result<()> + Send>;

/// Starts when the process has its final rights, before the workers.
pub(crate) struct Ahead {
    connect: Connect,
    means: Means,
    stop: Arc<AtomicBool>,
    done: Sender<()>,
}

/// Ends an [`Ahead`].
pub(super) struct Ending {
    stop: Arc<AtomicBool>,
    done: Receiver<()>,
}

impl Ending {
    /// Ends it: no packet is held any more, and no connection waits for its client.
    pub(super) fn end(self) {
        self.stop.store(true, Relaxed);
        // The channel carries no message: it closes with the thread, or with what would have
        // started it.
        let _ = self.done.recv();
    }
}

impl Ahead {
    /// Connects to servers as workers do in this mode.
    pub(super) fn new(connect: Connect, device: Device, dial: Dial) -> (Ahead, Ending) {
        let (done, ends) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let prepared =
            Arc::new(if connect == Connect::Syn { Prepared::early() } else { Prepared::default() });
        let ending = Ending { stop: Arc::clone(&stop), done: ends };
        (
            Ahead {
                connect,
                means: Means { device, dial, prepared, lets_through: false },
                stop,
                done,
            },
            ending,
        )
    }

    /// Starts the thread. Returns where workers look for connections.
    ///
    /// # Errors
    /// No thread, no descriptors.
    pub(crate) fn begin(self) -> Result<Arc<Prepared>, Failure> {
        let Ahead { connect, means, stop, done } = self;
        let max = getrlimit(Resource::Nofile)
            .current
            .map_or(HELD_MAX, |most| (most / DESCRIPTORS_SHARE) as usize);
        let (max, now) = (max.clamp(HELD_MIN, HELD_MAX), Instant::now());
        let prepared = Arc::clone(&means.prepared);
        let mut run: Run = match connect {
            Connect::Syn => {
                let mut early = Early::new(means, max, now);
                Box::new(move |stop| early.run(stop))
            }
            _ => {
                let mut holder = Holder::new(means, max, now)
                    .map_err(|error| failed("cannot hold first packets", &error))?;
                Box::new(move |stop| holder.run(stop))
            }
        };
        let of_workers = Arc::clone(&prepared);
        let ask = move || {
            if let Err(error) = weir_io::forgo_network().and_then(|()| run(&stop)) {
                let instead = match connect {
                    Connect::Syn => {
                        "weir connects to servers only after it has accepted their clients"
                    }
                    _ => "weir accepts clients before it connects to their servers",
                };
                Event::InterceptOrder.says(format_args!("{instead}: {error}")).log();
            }
            prepared.set_lets_through(true);
            // All waits end.
            prepared.expire(u64::MAX);
            prepared.set_holding(0);
            drop((run, done));
        };
        let thread = thread::Builder::new().name("ahead".to_owned()).spawn(ask);
        thread.map_err(|error| failed("no thread", &error))?;
        Ok(of_workers)
    }
}
