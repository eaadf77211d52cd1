//! Hands clients over to another process that has the listening sockets as well: they are lent to
//! it. When it accepts, this process stops accepting and finishes its own clients.
//!
//! Nothing is done to a lent socket that the other process would notice: it is neither turned away
//! from nor shut down.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use weir_io::Driver;
use weir_proxy::ending::Farewell;
use weir_proxy::plan::Location;

use crate::worker::Worker;

/// A listening socket that is lent.
#[derive(Debug)]
pub struct Lent {
    /// Its listener as the plan names it.
    pub address: Location,
    /// The service manager keeps it.
    pub stays_open: bool,
    /// Another descriptor of it. Several workers may have the same socket.
    pub socket: OwnedFd,
}

/// Where workers put the sockets that they lend.
#[derive(Debug, Default)]
pub struct Lending {
    lent: Mutex<Vec<io::Result<Lent>>>,
}

impl Lending {
    /// The lent sockets. Ask when all workers have carried it out.
    ///
    /// # Errors
    /// A socket can't be lent.
    pub fn take(&self) -> io::Result<Vec<Lent>> {
        std::mem::take(&mut *self.lent.lock().unwrap_or_else(PoisonError::into_inner))
            .into_iter()
            .collect()
    }
}

impl<D: Driver> Worker<D> {
    /// Lends the sockets of the plan's listeners.
    pub(crate) fn lend(&mut self, lending: &Lending) {
        let mut lent = lending.lent.lock().unwrap_or_else(PoisonError::into_inner);
        for (address, sockets, stays_open) in self.listeners.present() {
            for socket in sockets {
                let duplicate = self.driver.duplicate(*socket);
                lent.push(duplicate.map(|socket| Lent {
                    address: address.clone(),
                    stays_open,
                    socket,
                }));
            }
        }
    }

    /// Finishes what is under way; another process serves new clients at these listeners. At the
    /// others it is as in a drain.
    pub(crate) fn hand_over(&mut self, taken: &[Location]) {
        self.draining = true;
        self.stop_accepting(taken);
        self.survive(|worker| {
            worker.engine.drain(Farewell::Successor);
            worker.act();
        });
    }

    /// The time in which clients have to be finished is over, except for tunnels.
    pub(crate) fn keep_tunnels_only(&mut self) {
        self.survive(|worker| {
            worker.engine.begin_turn(worker.driver.now_us());
            worker.engine.drain(Farewell::AllButTunnels);
            worker.engine.settle();
            worker.act();
        });
    }
}
