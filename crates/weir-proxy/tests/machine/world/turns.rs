//! Time in the world: turns of the engines as in the worker's loop, and the only place where
//! actions are carried out.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use weir_proxy::base::token::Token;
use weir_proxy::cross::standing::Order;
use weir_proxy::engine::{
    Action, FlowEvent, Input, Sight, Taken, client_looked, client_seen, measured, on_flow,
};
use weir_proxy::forward::lookup::News;
use weir_proxy::observe::arms::PathFigures;
use weir_proxy::plan::{Location, Plan};
use weir_proxy::shield::bans::BanSet;

use super::{AT_ONCE, CLIENT_SOCKETS, Event, Incoming, TURNS_MAX, World};

impl World {
    /// Runs until nothing happens any more at this time.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let mut acted = self.play();
            for node in 0..self.nodes.len() {
                acted |= self.turn(node);
            }
            if !acted {
                return;
            }
        }
        panic!("never comes to rest");
    }

    /// An operator's order reaches every worker.
    pub fn order(&mut self, server: u32, order: Order) {
        for node in 0..self.nodes.len() {
            self.nodes[node].engine.order(server, order);
            self.act(node);
        }
        self.settle();
    }

    /// Bans these from now on, as all engines know.
    pub fn ban(&mut self, bans: BanSet) {
        let bans = Arc::new(bans);
        for node in 0..self.nodes.len() {
            let engine = &mut self.nodes[node].engine;
            engine.begin_turn(self.now_us);
            engine.set_bans(Arc::clone(&bans));
            engine.settle();
            self.act(node);
        }
    }

    /// Another configuration replaces the one in force, on all engines, as in the binary.
    pub fn reload(&mut self, wanted: Plan) {
        self.reload_into(wanted, &BTreeSet::new());
    }

    /// Likewise, with these slots available to others.
    pub fn reload_into(&mut self, wanted: Plan, vacant: &BTreeSet<usize>) {
        let (wide, next) = self.successor(wanted, vacant);
        for plan in [wide, next] {
            (0..self.nodes.len()).for_each(|node| self.adopt(node, &plan));
        }
    }

    /// Returns the successor of the plan in force, with the step before it.
    pub fn successor(&self, wanted: Plan, vacant: &BTreeSet<usize>) -> (Arc<Plan>, Arc<Plan>) {
        let old = &self.nodes[0].parts.plan;
        let next = old.merged(wanted, self.nodes[0].parts.hints.servers(), vacant).expect("room");
        (Arc::new(old.widened(&next)), Arc::new(next))
    }

    /// An engine takes another plan into force.
    pub fn adopt(&mut self, node: usize, plan: &Arc<Plan>) {
        let machine = &mut self.nodes[node];
        machine.parts.plan = Arc::clone(plan);
        machine.parts.servers.resize_with(plan.servers(), Arc::default);
        machine.engine.begin_turn(self.now_us);
        machine.engine.adopt(Arc::clone(plan), &machine.parts.servers);
        machine.engine.settle();
        self.act(node);
    }

    /// One turn of everything.
    pub fn settle_once(&mut self) {
        self.play();
        for node in 0..self.nodes.len() {
            self.turn(node);
        }
    }

    /// Lets this much time pass, with everything that is due in it.
    pub fn run_for(&mut self, us: u64) {
        let end_us = self.now_us + us;
        self.settle();
        while let Some(next_us) = self.next_us().filter(|next_us| *next_us <= end_us) {
            self.now_us = self.now_us.max(next_us);
            self.timers.retain(|due_us, ()| *due_us > self.now_us);
            // A turn for each engine even when nothing else happens: timers.
            for node in 0..self.nodes.len() {
                self.force_turn(node);
            }
            self.settle();
        }
        self.now_us = end_us;
        for node in 0..self.nodes.len() {
            self.force_turn(node);
        }
        self.settle();
    }

    pub(super) fn next_us(&self) -> Option<u64> {
        let engines = self.nodes.iter().filter_map(|node| node.engine.next_deadline());
        let servers = self.timers.keys().copied().filter(|due_us| *due_us > self.now_us);
        engines.chain(servers).min()
    }

    /// Makes one turn of an engine if anything is pending for it. True if something was.
    pub(super) fn turn(&mut self, node: usize) -> bool {
        let inputs = self.inputs(node);
        let machine = &self.nodes[node];
        let due = machine.engine.next_deadline().is_some_and(|due_us| due_us <= self.now_us);
        let mail = !machine.inbox.is_empty() && !machine.mail_stopped;
        if inputs.is_empty() && machine.events.is_empty() && !mail && !due {
            return false;
        }
        self.perform_turn(node, &inputs);
        true
    }

    pub(super) fn force_turn(&mut self, node: usize) {
        let inputs = self.inputs(node);
        self.perform_turn(node, &inputs);
    }

    /// Returns clients (true) and connections (false) whose input would be delivered now.
    pub(super) fn inputs(&mut self, node: usize) -> Vec<(bool, usize)> {
        let clients = self.clients.iter().enumerate();
        let clients = clients
            .filter(|(_, client)| client.node == node && !client.closed && !client.gone)
            .filter(|(_, client)| {
                (client.receiving || client.taken_at_once > 0) && !client.pending.is_empty()
            })
            .map(|(number, _)| (true, number));
        let conns = self.conns.iter().enumerate();
        let conns = conns
            .filter(|(_, conn)| {
                conn.node == node && conn.is_open() && conn.receiving && !conn.incoming.is_empty()
            })
            .map(|(number, _)| (false, number));
        let mut all: Vec<(bool, usize)> = clients.chain(conns).collect();
        if self.shuffled && all.len() > 1 {
            for at in (1..all.len()).rev() {
                all.swap(at, self.rng.below(at as u64 + 1) as usize);
            }
            let count = 1 + self.rng.below(all.len() as u64) as usize;
            all.truncate(count);
        }
        all
    }

    pub(super) fn perform_turn(&mut self, node: usize, inputs: &[(bool, usize)]) {
        self.nodes[node].engine.begin_turn(self.now_us);
        let events = std::mem::take(&mut self.nodes[node].events);
        for event in events {
            self.deliver_event(node, event);
        }
        for (is_client, number) in inputs {
            if *is_client { self.feed_client(*number) } else { self.feed_conn(*number) }
        }
        inputs
            .iter()
            .filter(|(is_client, _)| *is_client)
            .for_each(|(_, number)| self.feed_at_once(*number));
        if !self.nodes[node].mail_stopped {
            while let Some((from, post)) = self.nodes[node].inbox.pop_front() {
                self.nodes[node].engine.deliver(from, post);
            }
        }
        self.nodes[node].engine.settle();
        self.act(node);
        self.nodes[node].engine.audit().unwrap_or_else(|text| panic!("worker {node}: {text}"));
    }

    pub(super) fn deliver_event(&mut self, node: usize, event: Event) {
        let engine = &mut self.nodes[node].engine;
        match event {
            Event::Connected(conn, ok) => {
                let conn = &mut self.conns[conn];
                if !conn.closed {
                    conn.connected = ok;
                    engine.upstream_connected(conn.token, ok);
                }
            }
            Event::UpstreamSent(conn, ok) => {
                let conn = &mut self.conns[conn];
                conn.sending = !ok;
                if !conn.closed {
                    engine.upstream_sent(conn.token, ok);
                }
            }
            Event::ClientSent(client, spare) => {
                let client = &mut self.clients[client];
                if !client.closed && !client.gone {
                    engine.client_sent(client.token, spare, true);
                }
            }
        }
    }

    /// Delivers the segments that were taken when a receive was switched on.
    fn feed_at_once(&mut self, number: usize) {
        let is_on = self.clients[number].receiving;
        for _ in 0..std::mem::take(&mut self.clients[number].taken_at_once) {
            self.clients[number].receiving = true;
            self.feed_client(number);
        }
        self.clients[number].receiving = is_on;
    }

    pub(super) fn feed_client(&mut self, number: usize) {
        let client = &mut self.clients[number];
        if client.closed || !client.receiving {
            return;
        }
        let engine = &mut self.nodes[client.node].engine;
        if Token::is_flow(client.token) {
            let Some(next) = client.pending.pop_front() else { return };
            return match next {
                Incoming::Bytes(bytes) => {
                    on_flow(engine, client.token, FlowEvent::Received(&bytes))
                }
                Incoming::Fin => on_flow(engine, client.token, FlowEvent::Ended),
                Incoming::Rst => on_flow(engine, client.token, FlowEvent::Failed),
            };
        }
        match client.pending.pop_front() {
            Some(Incoming::Bytes(bytes)) => {
                engine.client_received(client.token, &Input::borrowed(&bytes));
                // Both are here: the end is reported before a stop can take effect.
                if client.pending.front() == Some(&Incoming::Fin) {
                    client.pending.clear();
                    engine.client_ended(client.token);
                } else if client.pending.front() == Some(&Incoming::Rst) {
                    client.pending.clear();
                    client.gone = true;
                    engine.client_failed(client.token);
                }
            }
            Some(Incoming::Fin) => engine.client_ended(client.token),
            Some(Incoming::Rst) => {
                client.gone = true;
                engine.client_failed(client.token);
            }
            None => {}
        }
    }

    pub(super) fn feed_conn(&mut self, number: usize) {
        let conn = &mut self.conns[number];
        if conn.closed || !conn.receiving {
            return;
        }
        let engine = &mut self.nodes[conn.node].engine;
        conn.receiving = false;
        match conn.incoming.pop_front() {
            Some(Incoming::Bytes(bytes)) if self.shared => {
                engine.upstream_received(conn.token, &Input::shared(&Bytes::from(bytes)));
            }
            Some(Incoming::Bytes(bytes)) => {
                engine.upstream_received(conn.token, &Input::borrowed(&bytes))
            }
            Some(Incoming::Fin) => engine.upstream_ended(conn.token),
            Some(Incoming::Rst) => engine.upstream_failed(conn.token),
            None => {}
        }
    }

    pub(super) fn act(&mut self, node: usize) {
        while let Some(action) = self.nodes[node].engine.poll_action() {
            self.perform(node, action);
        }
        while let Some(errand) = self.nodes[node].engine.take_errand() {
            self.errands.push((node, errand));
        }
        let lines = &mut self.lines;
        self.nodes[node].engine.take_lines(|text, count| {
            let text = std::str::from_utf8(text).expect("lines are ASCII");
            let before = lines.len();
            lines.extend(text.lines().map(str::to_owned));
            assert_eq!((lines.len() - before) as u64, count);
        });
        for to in 0..self.nodes.len() {
            if let Some(post) = self.nodes[node].engine.take_post(to as u16) {
                assert_ne!(to, node, "mail to itself");
                if self.nodes[to].mail_full {
                    self.nodes[node].engine.return_post(to as u16, post);
                } else {
                    self.nodes[to].inbox.push_back((node as u16, post));
                }
            }
        }
    }

    pub(super) fn perform(&mut self, node: usize, action: Action) {
        match action {
            Action::Encode(job) if self.encodes_elsewhere => self.jobs.push_back((node, job)),
            Action::Encode(job) => self.nodes[node].engine.on_news(News::Encoded(job.run())),
            Action::SendClient { socket, out } => {
                let number = (socket - CLIENT_SOCKETS) as usize;
                let client = &mut self.clients[number];
                assert!(
                    !client.closed && client.end.is_none(),
                    "client {number}: a send behind the end"
                );
                assert!(client.sending.is_none() && !out.is_empty());
                if client.stalled {
                    client.sending = Some(out);
                } else {
                    self.hand_over(number, out);
                }
            }
            Action::ReceiveClient { socket, on } => {
                let client = &mut self.clients[(socket - CLIENT_SOCKETS) as usize];
                if on && !client.receiving && self.takes_at_once {
                    client.taken_at_once = AT_ONCE;
                }
                client.receiving = on;
            }
            Action::SeeClient { token, socket } => {
                let client = &self.clients[(socket - CLIENT_SOCKETS) as usize];
                let [ended, broken] =
                    [Incoming::Fin, Incoming::Rst].map(|end| client.pending.back() == Some(&end));
                let taken = Taken { acked: client.acked, is_taking: client.is_taking };
                let sight = Sight { ended, broken, taken };
                client_seen(&mut self.nodes[node].engine, token, sight);
            }
            Action::LookClient { token, socket, over } => {
                let client = &self.clients[(socket - CLIENT_SOCKETS) as usize];
                let taken = Taken { acked: client.acked, is_taking: client.is_taking };
                client_looked(&mut self.nodes[node].engine, token, taken, over);
            }
            Action::DeferClient { socket, on } => {
                self.clients[(socket - CLIENT_SOCKETS) as usize].deferred = on
            }
            Action::ShutdownClient { socket } => {
                let number = (socket - CLIENT_SOCKETS) as usize;
                assert!(
                    self.clients[number].sending.is_none(),
                    "client {number}: its end overtakes a send"
                );
                self.client_end(number);
            }
            Action::CloseClient { socket, reset } => {
                let number = (socket - CLIENT_SOCKETS) as usize;
                assert!(!self.clients[number].closed, "client {number}: closed twice");
                self.clients[number].closed = true;
                self.clients[number].was_reset = reset;
                self.client_end(number);
            }
            Action::Connect {
                token,
                address: Location::Network(address),
                announcement,
                way,
                ..
            } => {
                self.connect(node, token, address, announcement, way.map(|way| *way));
            }
            Action::Connect { .. } => panic!("the world has no unix sockets"),
            Action::SendUpstream { socket, out } => self.send_conn(socket as usize, &out),
            Action::Relay { client, server } => {
                self.relays.push(((client - CLIENT_SOCKETS) as usize, server as usize))
            }
            Action::Measure { socket, arm } => {
                let is_open = match socket.checked_sub(CLIENT_SOCKETS) {
                    Some(client) => !self.clients[client as usize].closed,
                    None => !self.conns[socket as usize].closed,
                };
                assert!(is_open, "what is closed can't be measured");
                let figures =
                    PathFigures { sent: 100, sent_again: 1, rtt_us: 2, min_rtt_us: 1, rate: 1000 };
                measured(&mut self.nodes[node].engine, &arm, figures);
            }
            Action::CompareCores { client, server } => {
                self.compared.push(((client - CLIENT_SOCKETS) as usize, server as usize));
            }
            Action::KeepAlive { socket } => {
                assert!(!self.conns[socket as usize].closed, "what is closed can't be asked");
                self.kept_alive.push(socket as usize);
            }
            Action::LookRelay { token, .. } => {
                self.looks += 1;
                self.nodes[node].engine.relay_looked(
                    token,
                    self.moved.0,
                    self.moved.1,
                    self.half_closed,
                );
            }
            Action::LocateUpstream { token, socket } => {
                let near = self.near.map(|near| near(socket as usize));
                self.nodes[node].engine.upstream_located(token, near);
            }
            Action::ExamineUpstream { token, socket } => {
                let conn = &mut self.conns[socket as usize];
                conn.examined += 1;
                self.nodes[node].engine.upstream_examined(token, conn.delivery);
            }
            Action::AcknowledgeUpstream { socket } => self.conns[socket as usize].acknowledged += 1,
            Action::ReceiveUpstream { socket } => {
                let conn = &mut self.conns[socket as usize];
                assert!(!conn.closed && !conn.receiving, "conn {socket}: receive armed twice");
                conn.receiving = true;
            }
            Action::ShutdownUpstream { socket } => {
                let conn = &mut self.conns[socket as usize];
                assert!(!conn.sending && !conn.closed, "conn {socket}: its end overtakes a send");
                conn.fin = true;
            }
            Action::CloseUpstream { socket } => {
                let conn = &mut self.conns[socket as usize];
                assert!(!conn.closed, "conn {socket}: closed twice");
                conn.closed = true;
            }
            Action::ResetUpstream { socket } => {
                let conn = &mut self.conns[socket as usize];
                assert!(!conn.closed, "conn {socket}: closed twice");
                (conn.closed, conn.was_reset) = (true, true);
            }
        }
    }
}
