//! What the driver says of connections of `tcp`, for the machine that has them. Called by the worker's loop; it is
//! little: connects, what comes before a name is known, and the ends of relays.

use weir_io::{Completion, Driver, Event, Receive, RelayEnd, Socket};
use weir_proxy::base::token::Token;
use weir_proxy::engine::{FlowEvent, Over, on_flow, stop_flows};

use crate::worker::{Worker, class_of};

/// Receives from a client that was just accepted until told to stop; what one of `tcp` says is not for us until its machine asks for it.
pub(crate) fn receive<D: Driver>(worker: &mut Worker<D>, socket: Socket, client: u64) {
    if !Token::is_flow(client) {
        worker.driver.receive(socket, Receive::Many(class_of(client)));
    }
}

/// The worker is about to stop: resets all that are left, which would else end in order when the driver goes. The closes are queued then.
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
            on_flow(&mut worker.engine, token, FlowEvent::RelayEnded { moved: (moved.a_to_b, moved.b_to_a), over });
        }
        Event::Received(buffer) => {
            on_flow(&mut worker.engine, token, FlowEvent::Received(&buffer));
            worker.driver.recycle(buffer);
        }
        Event::Ended => on_flow(&mut worker.engine, token, FlowEvent::Ended),
        Event::ReceiveFailed(_) => on_flow(&mut worker.engine, token, FlowEvent::Failed),
        // A send that has failed is the relay's affair.
        _ => {}
    }
}
