//! Passes the driver's events of `tcp` connections to the machine that owns them. Called by the
//! worker's loop; only a few events occur: connects, bytes before a name is known, and the ends of
//! relays.

use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;
use weir_io::{Completion, Driver, Event, Receive, RelayEnd, Socket};
use weir_proxy::base::token::Token;
use weir_proxy::engine::{
    FlowEvent, MeasuredArm, Over, divided, measured, on_flow, on_port_taken, stop_flows,
};
use weir_proxy::observe::arms::PathFigures;

use crate::worker::{Worker, class_of, unpack};

/// Receives from a client that was just accepted until it is stopped; bytes of a `tcp` client are
/// not received until its machine asks for them.
pub(crate) fn receive<D: Driver>(worker: &mut Worker<D>, socket: Socket, client: u64) {
    if !Token::is_flow(client) {
        worker.driver.receive(socket, Receive::Many(class_of(client)));
    }
}

/// Assigns one of several congestion controls to a client that was just accepted.
pub(crate) fn divide<D: Driver>(
    worker: &mut Worker<D>,
    listener: u64,
    (socket, client): (Socket, u64),
    peer: SocketAddr,
) {
    let Some((name, is_other)) = worker.listeners.arm(listener, peer) else { return };
    if is_other {
        worker.driver.set_congestion(socket, &name);
    }
    divided(&mut worker.engine, client, &name);
}

/// A connection with one of several congestion controls is about to be closed.
pub(crate) fn measure<D: Driver>(worker: &mut Worker<D>, socket: u64, arm: &MeasuredArm) {
    let Some(path) = worker.driver.path(unpack(socket)) else { return };
    let figures = PathFigures {
        sent: path.bytes_sent,
        sent_again: path.bytes_sent_again,
        rtt_us: path.rtt_us,
        min_rtt_us: path.min_rtt_us,
        rate: path.rate,
    };
    measured(&mut worker.engine, arm, figures);
}

/// Counts whether both sides of a connection are received by the same core.
pub(crate) fn compare_cores<D: Driver>(worker: &mut Worker<D>, client: u64, server: u64) {
    let cores = [client, server].map(|socket| worker.driver.receiving_core(unpack(socket)));
    let [Some(client), Some(server)] = cores else { return };
    worker.parts.counters.tcp_cores_compared.add(1);
    worker.parts.counters.tcp_cores_same.add(u64::from(client == server));
}

/// A connect to a server could not be begun: that counts against the server, unless this process,
/// or the machine, has run out of something.
pub(crate) fn unstarted<D: Driver>(worker: &mut Worker<D>, token: u64, error: &io::Error) {
    match error {
        _ if Token::is_flow(token) && is_scarcity(error) => {
            on_flow(&mut worker.engine, token, FlowEvent::Unstarted);
        }
        _ if is_port_taken(error) => on_port_taken(&mut worker.engine, token),
        _ => worker.engine.upstream_connected(token, false),
    }
}

/// Whether descriptors or memory ran out.
fn is_scarcity(error: &io::Error) -> bool {
    let scarce = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| scarce.contains(&errno))
}

/// Whether the source address chosen for a connection can't be used for it (bind(2), connect(2)).
pub(crate) fn is_port_taken(error: &io::Error) -> bool {
    let taken = [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(error).is_some_and(|errno| taken.contains(&errno))
}

/// The worker is about to stop: resets all remaining connections, which would otherwise end in
/// order when the driver is dropped. The closes are queued then.
pub(crate) fn stop<D: Driver>(worker: &mut Worker<D>) {
    worker.survive(|worker| {
        worker.engine.begin_turn(worker.driver.now_us());
        stop_flows(&mut worker.engine);
        worker.engine.settle();
        worker.act();
    });
}

/// Something has happened to a connection of `tcp`.
pub(crate) fn handle<D: Driver>(worker: &mut Worker<D>, completion: Completion) {
    let Completion { token, socket, event } = completion;
    match event {
        Event::Connected(result) => worker.connected(token, socket, &result),
        Event::RelayEnded { moved, how } => {
            let over = match how {
                RelayEnd::Complete => Over::Complete,
                RelayEnd::FailedA(_) => Over::Client,
                RelayEnd::FailedB(_) => Over::Server,
            };
            on_flow(
                &mut worker.engine,
                token,
                FlowEvent::RelayEnded { moved: (moved.a_to_b, moved.b_to_a), over },
            );
        }
        Event::Received(buffer) => {
            on_flow(&mut worker.engine, token, FlowEvent::Received(&buffer));
            worker.driver.recycle(buffer);
        }
        Event::Ended => on_flow(&mut worker.engine, token, FlowEvent::Ended),
        Event::ReceiveFailed(_) => on_flow(&mut worker.engine, token, FlowEvent::Failed),
        // The relay handles a send that has failed.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    //! Proves: only shortages on this machine are taken for such. How: errors of connect(2) and
    //! socket(2).

    use super::*;

    #[test]
    fn what_runs_out_is_told_from_what_a_server_is_not() {
        let is = |errno: Errno| is_scarcity(&io::Error::from(errno));
        assert!([Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].into_iter().all(is));
        let others = [
            Errno::AFNOSUPPORT,
            Errno::NETUNREACH,
            Errno::ADDRNOTAVAIL,
            Errno::CONNREFUSED,
            Errno::NOENT,
        ];
        assert!(!others.into_iter().any(is));
        assert!(!is_scarcity(&io::Error::other("no number")));
    }
}
