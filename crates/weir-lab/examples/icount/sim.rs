//! Requests over the simulated network: 16 clients in a closed loop, a server, and between them
//! nothing or a whole worker of weir. The difference between the two is the cost of the worker with
//! its driver.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use weir_io::sim::{Actor, Conn, Net, Settings, SimWorld};
use weir_proxy::engine::{Hints, Parts};
use weir_worker::{Worker, mailboxes};

use crate::messages;

const CLIENTS: usize = 16;

/// The end of a head that has no body.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Responds to each request, however many come together.
struct Server {
    address: SocketAddr,
    reply: Vec<u8>,
}

impl Actor for Server {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.listen(self.address);
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        let requests = data.windows(HEAD_END.len()).filter(|window| *window == HEAD_END).count();
        net.send(conn, &self.reply.repeat(requests));
    }
}

/// Sends a request, waits for the response, and repeats.
struct Client {
    to: SocketAddr,
    request: Vec<u8>,
    answered: Rc<Cell<u64>>,
}

impl Actor for Client {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.connect(self.to);
    }

    fn on_connected(&mut self, net: &mut Net<'_>, conn: Conn, result: std::io::Result<()>) {
        result.expect("the network is calm");
        net.send(conn, &self.request);
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        assert!(data.starts_with(b"HTTP/1.1 200 ") && data.ends_with(b"ok\n"), "one whole answer");
        self.answered.set(self.answered.get() + 1);
        net.send(conn, &self.request);
    }
}

/// Sends `count` requests.
pub(crate) fn run(proxied: bool, count: u64) {
    let world = SimWorld::new(1, Settings::calm());
    let answered = Rc::new(Cell::new(0));
    let server: SocketAddr = ([10, 0, 0, 2], 80).into();
    let proxy: SocketAddr = ([10, 0, 0, 1], 80).into();
    world.actor(Server { address: server, reply: messages::reply() });
    let mut worker = proxied.then(|| {
        let parts = Parts {
            plan: Arc::new(messages::plan(1, 1, "off")),
            worker: 0,
            workers: 1,
            seed: 1,
            secret: [1, 2],
            hints: Arc::new(Hints::new(1, 1)),
            counters: Arc::default(),
            latency: Arc::default(),
            hits: Arc::default(),
            servers: Vec::new(),
            relays: true,
        };
        let listeners = vec![world.listener(proxy).expect("a socket")];
        let mailbox = mailboxes(1).into_iter().next().expect("one mailbox");
        Worker::new(world.driver(), parts, listeners, mailbox).expect("a worker")
    });
    for _ in 0..CLIENTS {
        let to = if proxied { proxy } else { server };
        world.actor(Client { to, request: messages::minimal(), answered: Rc::clone(&answered) });
    }
    let turn = |_| {
        let worker = worker.as_mut().expect("only workers take turns");
        worker.turn(None).expect("the simulated driver never fails");
    };
    let done = world.run(u64::MAX, u64::MAX, turn, || answered.get() >= count);
    assert!(done, "the network came to rest after {} answers", answered.get());
}
