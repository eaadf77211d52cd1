//! Asks the kernel about clients for which no event comes: whether a client is still there, and
//! whether it takes the bytes that were sent to it. Called for actions of the engine; some system
//! calls each.

use weir_io::{Departure, Driver, Socket};
use weir_proxy::engine::{Sight, Taken, client_looked, client_seen};

use crate::worker::Worker;

/// Tells the engine whether a client is still there.
pub(crate) fn see_client<D: Driver>(worker: &mut Worker<D>, token: u64, socket: Socket) {
    let (departure, taken) = taken(worker, socket);
    let (ended, broken) = (departure != Departure::Stays, departure == Departure::Broken);
    client_seen(&mut worker.engine, token, Sight { ended, broken, taken });
}

/// Tells the engine how a client takes the bytes that were sent to it.
pub(crate) fn look_at_client<D: Driver>(
    worker: &mut Worker<D>,
    token: u64,
    socket: Socket,
    over: bool,
) {
    let taken = taken(worker, socket).1;
    client_looked(&mut worker.engine, token, taken, over);
}

/// On a reset connection the client takes none of the bytes that the kernel has.
fn taken<D: Driver>(worker: &mut Worker<D>, socket: Socket) -> (Departure, Taken) {
    let driver = &mut worker.driver;
    let departure = driver.departure(socket);
    let is_taking =
        departure != Departure::Broken && driver.delivery(socket) == weir_io::Delivery::Underway;
    (departure, Taken { acked: driver.path(socket).map(|path| path.bytes_acked), is_taking })
}
