//! A worker's thread: what it owns, and its course from the driver to the end.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;

use weir_io::{Descriptors, Driver, DriverKind, Epoll, Options, Uring, Waker, pin_to};
use weir_proxy::engine::Parts;
use weir_proxy::observe::server_event::Event;
use weir_proxy::shield::bans::Offence;

use crate::control::Control;
use crate::encoding::Encoders;
use crate::enquiry::Enquiry;
use crate::errands::Errands;
use crate::log_sink::LogSink;
use crate::log_writer::wall_offset_us;
use crate::mailbox::Mailbox;
use crate::pinning::Place;
use crate::prepared::Dialing;
use crate::presence::Presence;
use crate::worker::Worker;

/// Everything that a worker's thread takes with it.
pub(crate) struct Seat {
    pub(crate) parts: Parts,
    pub(crate) mailbox: Mailbox,
    pub(crate) log: Option<LogSink>,
    /// Sent once: the worker runs, or why not.
    pub(crate) ready: mpsc::Sender<io::Result<(Arc<dyn Waker>, i32)>>,
    pub(crate) control: Arc<Control>,
    pub(crate) enquiry: Arc<Enquiry>,
    pub(crate) presence: Presence,
    pub(crate) descriptors: Arc<Descriptors>,
    pub(crate) place: Arc<Place>,
    pub(crate) events: SyncSender<Event>,
    pub(crate) offences: SyncSender<Offence>,
    pub(crate) errands: Option<Arc<dyn Errands>>,
    pub(crate) encoders: Encoders,
    pub(crate) dialing: Dialing,
}

/// Reports when dropped that a worker has ended.
struct Over(Arc<Enquiry>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Seat {
    /// Starts a thread that works on it, bound to this core if one is given and that is allowed.
    ///
    /// # Errors
    /// The thread can't be created.
    pub(crate) fn begin(
        self,
        driver: DriverKind,
        options: Options,
        core: Option<usize>,
    ) -> io::Result<JoinHandle<io::Result<()>>> {
        std::thread::Builder::new().name(format!("weir-{}", self.parts.worker)).spawn(move || {
            let core = core.filter(|core| pin_to(*core));
            self.place.set_home(core);
            match driver {
                DriverKind::Uring => self.work(Uring::new(options), core),
                DriverKind::Epoll => self.work(Epoll::new(options), core),
            }
        })
    }

    /// Works until it is ended; reports how starting went.
    fn work<D: Driver>(self, driver: io::Result<D>, core: Option<usize>) -> io::Result<()> {
        let made = weir_io::forgo_network().and(driver).and_then(|mut driver| {
            driver.set_courtesy(self.presence.courtesy());
            driver.share_descriptors(self.descriptors);
            let waker = driver.waker();
            Worker::new(driver, self.parts, Vec::new(), self.mailbox).map(|worker| (worker, waker))
        });
        match made {
            Ok((mut worker, waker)) => {
                // Also when it ends by a panic.
                let _over = Over(Arc::clone(&self.enquiry));
                worker.set_enquiry(self.enquiry);
                worker.set_presence(self.presence);
                worker.dialing = self.dialing;
                // The receiver is gone when starting was given up: then the control says stop.
                let _ =
                    self.ready.send(Ok((waker, rustix::thread::gettid().as_raw_nonzero().get())));
                worker.set_core(core);
                worker.set_log(self.log);
                worker.set_clock(wall_offset_us);
                worker.set_events(self.events);
                worker.set_offences(self.offences);
                worker.set_errands(self.errands);
                worker.set_encoders(self.encoders);
                worker.run(&self.control)
            }
            Err(error) => {
                let _ = self.ready.send(Err(error));
                Ok(())
            }
        }
    }
}
