//! The worker's part in bans: it reports offending clients to the keeper of bans, and applies the
//! resulting sets.
//!
//! Called by the worker's loop. A new set applies to clients that are accepted from then on, before
//! a TLS handshake as well; the machines also check the existing connections against it. Bound: the
//! capacity of the channel; a further offence is counted and its client remains rate-limited.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use weir_io::Driver;
use weir_proxy::engine::{Door, Parts};
use weir_proxy::shield::bans::{BanSet, Offence};

use crate::worker::Worker;

/// The worker's state for bans.
#[derive(Debug)]
pub(crate) struct Bans {
    /// Where clients that are to be banned are reported.
    offences: Option<SyncSender<Offence>>,
    /// The banned clients.
    pub(crate) set: Arc<BanSet>,
    /// Where clients that speak TLS are judged.
    pub(crate) door: Rc<RefCell<Door>>,
}

impl Bans {
    /// With no client banned.
    pub(crate) fn new(parts: &Parts) -> Bans {
        let door = Door::new(Arc::clone(&parts.plan), parts.worker, Arc::clone(&parts.counters));
        Bans { offences: None, set: Arc::default(), door: Rc::new(RefCell::new(door)) }
    }
}

impl<D: Driver> Worker<D> {
    /// Sets where clients that are to be banned are reported. Never blocks: a report without room
    /// is counted.
    pub fn set_offences(&mut self, offences: SyncSender<Offence>) {
        self.bans.offences = Some(offences);
    }

    /// Replaces the set of bans, also for machines that are created later.
    pub(crate) fn ban(&mut self, bans: Arc<BanSet>) {
        self.bans.door.borrow_mut().set_bans(Arc::clone(&bans));
        self.bans.set = Arc::clone(&bans);
        self.engine.set_bans(bans);
    }

    fn next_offence(&mut self) -> Option<Offence> {
        self.engine.take_offence().or_else(|| self.bans.door.borrow_mut().take_offence())
    }

    /// Hands out the clients that are to be banned.
    pub(crate) fn tell_offences(&mut self) {
        while let Some(offence) = self.next_offence() {
            if self
                .bans
                .offences
                .as_ref()
                .is_some_and(|offences| offences.try_send(offence).is_err())
            {
                self.parts.counters.offences_lost.increment();
            }
        }
    }
}
