//! Moves idle client connections to another worker, when this one has too much to do
//! ([`crate::shedding`]).
//!
//! The machines release them first, then the driver. Bytes received in between move along, and the
//! other worker reads them. A client that has left meanwhile is kept here, and so is one for which
//! the ring to that worker has no room. Nothing is moved in a drain. If a panic leaves a connection
//! without an owner, it is closed, and its client's share of the accounts is returned. Bound:
//! [`LEAVING_MAX`].

use std::collections::HashMap;

use weir_io::{Driver, Loose, Released, Socket};
use weir_proxy::engine::{Input, MovedClient, Unwanted, arrive, lost, part};

use crate::control::{Busy, Command};
use crate::flows;
use crate::shedder::Shedder;
use crate::start::Handle;
use crate::worker::{Worker, pack, unpack};

/// Connections that the driver of one worker is releasing at a time.
const LEAVING_MAX: usize = 64;

/// A connection on its way to another worker.
#[derive(Debug)]
pub(crate) struct Moved {
    connection: Loose,
    client: MovedClient,
    /// Bytes that were received but not read.
    rest: Vec<u8>,
}

/// Connections that the driver is releasing, and their new workers.
#[derive(Debug, Default)]
pub(crate) struct Moves(HashMap<Socket, (u16, MovedClient)>);

impl Moves {
    /// Whether it has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Handle {
    /// Decides when workers with too much to do give idle client connections to others.
    pub fn shedder(&self) -> Shedder {
        Shedder::new(self.clone())
    }

    /// Tells a worker to give at most `most` idle client connections to another worker.
    ///
    /// # Errors
    /// [`Busy`]: it still has many commands to carry out, or it does not exist.
    pub fn shed(&self, from: usize, to: u16, most: u32) -> Result<(), Busy> {
        let (control, waker) = self.controls.get(from).ok_or(Busy)?;
        control.command(Command::Shed { to, most })?;
        waker.wake();
        Ok(())
    }
}

/// Gives at most `most` idle connections to another worker.
pub(crate) fn shed<D: Driver>(worker: &mut Worker<D>, to: u16, most: u32) {
    if worker.draining || to == worker.parts.worker || to >= worker.parts.workers {
        return;
    }
    let most = (most as usize).min(LEAVING_MAX.saturating_sub(worker.moves.0.len()));
    if most == 0 {
        return;
    }
    for (name, client) in part(&mut worker.engine, most) {
        let socket = unpack(name);
        if worker.driver.release(socket) {
            worker.moves.0.insert(socket, (to, client));
        } else {
            settle_in(worker, socket, client);
        }
    }
}

/// The driver has released a connection.
pub(crate) fn on_released<D: Driver>(worker: &mut Worker<D>, socket: Socket, released: Released) {
    // A connection from before the worker's last restart is closed here.
    let Some((to, client)) = worker.moves.0.remove(&socket) else { return };
    let Released { connection, rest, ended, error } = released;
    let moved = Box::new(Moved { connection, client, rest });
    let stays = worker.draining || ended || error.is_some();
    let moved = if stays { Err(moved) } else { worker.mailbox.give(to, moved) };
    match moved {
        Ok(()) => worker.parts.counters.connections_given.increment(),
        Err(moved) => {
            worker.parts.counters.connections_not_given.increment();
            let token = take_in(worker, *moved);
            // The kernel reports an end again, but not a failure.
            if let Some(token) = token.filter(|_| error.is_some()) {
                worker.engine.client_failed(token);
            }
        }
    }
}

/// Takes in what other workers give.
pub(crate) fn take_given<D: Driver>(worker: &mut Worker<D>) {
    while let Some(moved) = worker.mailbox.take_given() {
        worker.parts.counters.connections_taken.increment();
        take_in(worker, *moved);
    }
}

/// Makes a connection this worker's. None: it is closed already.
fn take_in<D: Driver>(worker: &mut Worker<D>, moved: Moved) -> Option<u64> {
    let Moved { connection, client, rest } = moved;
    let Ok(socket) = worker.driver.take_in(connection, 0) else {
        lost(&mut worker.engine, client);
        return None;
    };
    let token = settle_in(worker, socket, client)?;
    flows::receive(worker, socket, token);
    if !rest.is_empty() {
        worker.engine.client_received(token, &Input::borrowed(&rest));
    }
    Some(token)
}

/// Returns a connection to the machines.
fn settle_in<D: Driver>(
    worker: &mut Worker<D>,
    socket: Socket,
    client: MovedClient,
) -> Option<u64> {
    let is_leaving = worker.listeners.is_leaving(client.listener());
    match arrive(&mut worker.engine, pack(socket), client, is_leaving) {
        Ok(token) => {
            worker.driver.set_token(socket, token);
            Some(token)
        }
        Err(Unwanted::Close) => {
            worker.driver.close(socket);
            None
        }
        Err(Unwanted::Reset) => {
            worker.driver.reset(socket);
            None
        }
    }
}
