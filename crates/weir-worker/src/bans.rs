//! What the worker does for bans: it tells whoever keeps them of clients who offend, and takes what comes of it into force.
//!
//! Called by the worker's loop. A new set is for those who are accepted from then on, in front of a TLS handshake too, and the machines look
//! through the connections that are there. Bound: what the channel holds; one more is counted and stays limited.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use weir_io::Driver;
use weir_proxy::engine::{Door, Parts};
use weir_proxy::shield::bans::{BanSet, Offence};

use crate::worker::Worker;

/// What the worker knows of bans.
#[derive(Debug)]
pub(crate) struct Bans {
    /// Where clients are told who are to be banned.
    offences: Option<SyncSender<Offence>>,
    /// Who is banned.
    pub(crate) set: Arc<BanSet>,
    /// Where clients who speak TLS are judged.
    pub(crate) door: Rc<RefCell<Door>>,
}

impl Bans {
    /// Nobody is banned.
    pub(crate) fn new(parts: &Parts) -> Bans {
        let door = Door::new(Arc::clone(&parts.plan), parts.worker, Arc::clone(&parts.counters));
        Bans { offences: None, set: Arc::default(), door: Rc::new(RefCell::new(door)) }
    }
}

impl<D: Driver> Worker<D> {
    /// Sets where clients are told who are to be banned. Nobody waits: what finds no room is counted.
    pub fn set_offences(&mut self, offences: SyncSender<Offence>) {
        self.bans.offences = Some(offences);
    }

    /// Others are banned than before, also for machines that are made anew later.
    pub(crate) fn ban(&mut self, bans: Arc<BanSet>) {
        self.bans.door.borrow_mut().set_bans(Arc::clone(&bans));
        self.bans.set = Arc::clone(&bans);
        self.engine.set_bans(bans);
    }

    fn next_offence(&mut self) -> Option<Offence> {
        self.engine.take_offence().or_else(|| self.bans.door.borrow_mut().take_offence())
    }

    /// Hands out who is to be banned.
    pub(crate) fn tell_offences(&mut self) {
        while let Some(offence) = self.next_offence() {
            if self.bans.offences.as_ref().is_some_and(|offences| offences.try_send(offence).is_err()) {
                self.parts.counters.offences_lost.increment();
            }
        }
    }
}
