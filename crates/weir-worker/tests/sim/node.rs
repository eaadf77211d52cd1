//! One worker of a run, on its driver of the simulated world: exactly the worker that runs on sockets.

use std::sync::Arc;

use weir_io::sim::{SimDriver, SimWorld};
use weir_proxy::counters::Counters;
use weir_proxy::engine::{Engine, Hints, Parts};
use weir_proxy::histogram::Histogram;
use weir_proxy::plan::Plan;
use weir_worker::{Worker, mailboxes};

pub struct Node {
    worker: Worker<SimDriver>,
}

/// So many workers with one configuration, joined by mailboxes. Worker n uses driver n.
pub fn nodes(world: &SimWorld, plan: &Arc<Plan>, workers: u16, seed: u64) -> Vec<Node> {
    let servers = plan.upstreams.iter().map(|upstream| upstream.servers.len()).sum();
    let hints = Arc::new(Hints::new(servers, usize::from(workers)));
    let make = |(number, mailbox)| {
        let parts = Parts {
            plan: Arc::clone(plan),
            worker: number,
            workers,
            seed: seed ^ u64::from(number),
            secret: [seed, u64::from(number)],
            hints: Arc::clone(&hints),
            counters: Arc::new(Counters::default()),
            latency: Arc::new(Histogram::default()),
        };
        let listen = |listener: &weir_proxy::plan::ListenerPlan| world.listener(listener.address).expect("a socket");
        let listeners = plan.listeners.iter().map(listen).collect();
        Node { worker: Worker::new(world.driver(), parts, listeners, mailbox).expect("a worker") }
    };
    (0..workers).zip(mailboxes(workers)).map(make).collect()
}

impl Node {
    pub fn turn(&mut self) {
        self.worker.turn(None).expect("the simulated driver never fails");
    }

    pub fn engine(&self) -> &Engine {
        self.worker.engine()
    }

    pub fn drain(&mut self) {
        self.worker.drain();
    }
}
