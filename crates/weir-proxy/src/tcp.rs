//! Plain TCP: client connections that are passed on to a server unchanged (`tcp` of the
//! configuration, docs/tcp.md).
//!
//! A flow is two sockets. As soon as a client is accepted, a server is chosen and connected to,
//! whichever side speaks first. Then the driver moves the bytes ([`Action::Relay`]) and each end
//! (FIN) separately, and no byte passes through here. The rest is left to this machine: the choice
//! of servers, another one when a connect fails, ends that are passed on (an abort remains an
//! abort), times, limits and counters. The engine calls it, and it uses both other machines,
//! [`Sides`]: accounts of clients and the access log, and servers.
//!
//! ```text
//!   accepted -------------> Connecting -> Relaying -> gone
//!      +------> Hello ------^  |   ^
//!            its name decides  +---+ another server, each once
//! ```
//! Invariants ([`Flows::audit`]): each flow has a timer at `due_us`, except while it is looked at;
//! a flow is counted at its server from the choice of the server to the end. Bounds: `FLOW_BYTES` a
//! flow, `connections` of `client`, `tcp-connections` of servers, limits of `shield`.

mod compared;
mod destination;
mod flow;
mod hello;
mod naming;
mod relaying;

use std::net::SocketAddr;
use std::sync::Arc;

use compared::Divided;
use destination::Towards;
use flow::{Flow, NO_UPSTREAM, Phase};
use naming::Hello;
pub use relaying::Over;

use crate::action::Action;
use crate::base::keys::{FlowKey, Key, ServerIndex};
use crate::base::side_table::SideTable;
use crate::base::slab::Slab;
use crate::base::sweep::Sweep;
use crate::base::timer_wheel::TICK_US;
use crate::base::token::{ShortGeneration, Token};
use crate::client::{Clients, Unwanted, admit_flow, flow_left, keep_flow};
use crate::context::Context;
use crate::ending::{FlowEnd, UpstreamEnd};
use crate::observe::access::{FlowLine, Stage};
use crate::observe::arms::Arms;
use crate::plan::{Announcement, Entrance, Location, NO_ADDRESS, Serves, Side, Way, Whose};
use crate::request::pending_request::ConnId;
use crate::upstream::Upstreams;
use crate::upstream::flows::{self as servers, FlowServer, Tried};

/// In place of the time of a timer: it has fired, and the next is set when the driver reports on
/// the relay, or the relay ends.
const LOOKING_US: u64 = u64::MAX;

/// Both other machines of the worker, and the shared context.
#[derive(Debug)]
pub(crate) struct Sides<'a> {
    pub(crate) clients: &'a mut Clients,
    pub(crate) upstreams: &'a mut Upstreams,
    pub(crate) cx: &'a mut Context,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    flows: Slab<FlowKey, Flow>,
    /// Of flows with an upstream that depends on a name.
    hellos: SideTable<FlowKey, Box<Hello>>,
    /// Of flows that came by a listener that takes connections to other machines: the destination
    /// of the client.
    destinations: SideTable<FlowKey, Towards>,
    /// Of flows that have one of several congestion controls on a side.
    divided: SideTable<FlowKey, Divided>,
    /// The results of these congestion controls.
    pub(crate) arms: Arms,
    /// How many more flows may be joined with a server before the cores of one are compared.
    uncompared: u32,
    /// When descriptors last ran out.
    scarce_us: u64,
    /// The sweep for flows of clients that have just been banned.
    cutting: Sweep,
    /// Tokens of flows that connected to their server in this turn.
    joining: Vec<u64>,
}

impl Flows {
    /// Returns the number of flows.
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// A client connected. Returns the token that names it: nothing is received from it before an
    /// action says so.
    ///
    /// # Errors
    /// It is not wanted.
    pub(crate) fn accepted(
        &mut self,
        socket: u64,
        peer: SocketAddr,
        entrance: Entrance,
        sides: &mut Sides<'_>,
    ) -> Result<u64, Unwanted> {
        let terms = match entrance.serves {
            Serves::Tcp(tcp) => sides.cx.plan.tcp.get(usize::from(tcp)).map(Arc::clone),
            _ => None,
        };
        // Each listener names a block of its plan, and blocks keep their places in later plans.
        let terms = terms.ok_or(Unwanted::Close)?;
        let open = admit_flow(sides.clients, peer.ip(), sides.cx)?;
        let (key, _) = self.flows.insert(Flow::new(socket, peer, terms, sides.cx.now_us));
        keep_flow(sides.clients, key, open);
        if let Some(towards) = Towards::of(&entrance) {
            self.destinations.put(key, towards);
        }
        sides.cx.flows += 1;
        sides.cx.counters.accepted.add(1);
        sides.cx.counters.client_connections.add(1);
        sides.cx.counters.tcp_connections.add(1);
        let token = self.token(key);
        match self.flows.at(key).phase {
            Phase::Hello => self.await_hello(key, sides),
            _ => self.connect(key, FlowEnd::NoServer, sides),
        }
        Ok(token)
    }

    /// Returns the token that names a flow to the worker and the timers.
    fn token(&self, key: FlowKey) -> u64 {
        Token::Flow { key, generation: ShortGeneration::of(self.flows.generation(key)) }.pack()
    }

    /// Returns the flow that a token names, if it still exists.
    fn of_token(&self, token: u64) -> Option<FlowKey> {
        match Token::unpack(token)? {
            Token::Flow { key, generation } | Token::FlowServer { key, generation } => {
                self.flows.holds_short(key, generation).then_some(key)
            }
            _ => None,
        }
    }

    /// Sets the timer of a flow.
    fn arm(&mut self, key: FlowKey, due_us: u64, cx: &mut Context) {
        self.flows.at_mut(key).due_us = due_us;
        cx.wheel.insert(self.token(key), due_us);
    }

    // ---- a server ----

    /// Connects a flow to a server that it has not tried; without one it ends for this reason.
    fn connect(&mut self, key: FlowKey, otherwise: FlowEnd, sides: &mut Sides<'_>) {
        let flow = self.flows.at(key);
        let Phase::Connecting { mut tried, .. } = flow.phase else { return };
        if self.elsewhere(key).is_none() && servers::is_destination(flow.upstream, sides.cx) {
            return self.end(key, FlowEnd::OwnDestination, sides);
        }
        let chosen =
            servers::begin_flow(sides.upstreams, flow.upstream, flow.peer(), &mut tried, sides.cx);
        self.flows.at_mut(key).phase = Phase::Connecting { tried, any_port: false };
        match chosen {
            Some(server) => self.dial(key, server, sides),
            None => self.end(key, otherwise, sides),
        }
    }

    /// Connects a flow to a server, where it counts from now on.
    fn dial(&mut self, key: FlowKey, to: FlowServer, sides: &mut Sides<'_>) {
        let FlowServer { server, address, proxy_protocol, way, timeout_us } = to;
        let generation = ShortGeneration::of(self.flows.generation(key));
        self.flows.at_mut(key).set_at(Some(server));
        let address = match address {
            Location::Destination => match self.set_out(key, sides.cx) {
                Some(destination) => Location::Network(destination),
                None => return self.unconnected(key, server, FlowEnd::OwnDestination, sides),
            },
            address => address,
        };
        let announcement = proxy_protocol
            .map(|version| Announcement { version, whose: self.flows.at(key).whose() });
        if let Some(Way { congestion: Some(name), is_arm: true, .. }) = way.as_deref() {
            self.keep_arm(key, Side::Server, name);
        }
        self.arm(key, sides.cx.now_us + timeout_us, sides.cx);
        let token = Token::FlowServer { key, generation }.pack();
        sides.cx.actions.push_back(Action::Connect {
            token,
            address,
            server: server.number(),
            announcement,
            way,
        });
    }

    /// The port of the client is taken for the address of the server: another port is used. If that
    /// was not the reason, the server cannot be reached.
    pub(crate) fn port_taken(&mut self, token: u64, sides: &mut Sides<'_>) {
        let Some(key) = self.of_token(token) else { return };
        let flow = self.flows.at_mut(key);
        let (Phase::Connecting { tried, any_port }, Some(server)) = (flow.phase, flow.at()) else {
            return;
        };
        let mut again = servers::flow_server(sides.upstreams, server, flow.peer(), sides.cx);
        match again.way.as_mut().filter(|way| way.is_client && !any_port) {
            Some(way) => way.from = way.from.map(|from| SocketAddr::new(from.ip(), 0)),
            None => return self.unconnected(key, server, FlowEnd::ConnectFailed, sides),
        }
        flow.phase = Phase::Connecting { tried, any_port: true };
        if let Some(socket) = flow.server() {
            flow.set_server(None);
            sides.cx.actions.push_back(Action::CloseUpstream { socket });
        }
        sides.cx.counters.tcp_ports_changed.add(1);
        self.dial(key, again, sides);
    }

    /// The connect of a flow has begun; `socket` is the driver's name for it. False: no longer
    /// wanted, close it.
    pub(crate) fn started(&mut self, token: u64, socket: u64) -> bool {
        let Some(key) = self.of_token(token) else { return false };
        let flow = self.flows.at_mut(key);
        let waits = matches!(flow.phase, Phase::Connecting { .. }) && flow.server().is_none();
        if waits {
            flow.set_server(Some(socket));
        }
        waits
    }

    /// The connect of a flow has completed or failed.
    pub(crate) fn connected(&mut self, token: u64, ok: bool, sides: &mut Sides<'_>) {
        let Some(key) = self.of_token(token) else { return };
        let flow = self.flows.at(key);
        let (Phase::Connecting { .. }, Some(server)) = (flow.phase, flow.at()) else { return };
        if ok && flow.server().is_some() {
            servers::flow_connected(sides.upstreams, server, sides.cx);
            // A receive that was stopped may still deliver bytes in this turn, which also belong to
            // the server.
            self.joining.push(token);
        } else {
            self.unconnected(key, server, FlowEnd::ConnectFailed, sides);
        }
    }

    /// No descriptor was left for the connect of a flow. The first flow to find out ends, which
    /// frees one, and the others of this turn try again after it. Otherwise, when many are accepted
    /// at once, each would hold one descriptor and none would get two.
    pub(crate) fn unstarted(&mut self, token: u64, sides: &mut Sides<'_>) {
        let Some(key) = self.of_token(token) else { return };
        let flow = self.flows.at(key);
        let (Phase::Connecting { .. }, Some(server), None) = (flow.phase, flow.at(), flow.server())
        else {
            return;
        };
        servers::flow_unstarted(sides.upstreams, server, sides.cx);
        let now_us = sides.cx.now_us;
        let flow = self.flows.at_mut(key);
        flow.set_at(None);
        if std::mem::replace(&mut self.scarce_us, now_us) != now_us {
            return self.end(key, FlowEnd::NoDescriptors, sides);
        }
        flow.phase = Phase::Connecting { tried: Tried::default(), any_port: false };
        self.arm(key, now_us + TICK_US, sides.cx);
    }

    /// A server cannot be reached: tries another one, or ends for this reason.
    fn unconnected(
        &mut self,
        key: FlowKey,
        server: ServerIndex,
        why: FlowEnd,
        sides: &mut Sides<'_>,
    ) {
        let flow = self.flows.at_mut(key);
        let socket = flow.server();
        flow.set_at(None);
        flow.set_server(None);
        if let Some(socket) = socket {
            sides.cx.actions.push_back(Action::CloseUpstream { socket });
        }
        servers::flow_unconnected(sides.upstreams, server, sides.cx);
        self.connect(key, why, sides);
    }

    /// All events of a turn were handled: relays begin.
    pub(crate) fn join(&mut self, sides: &mut Sides<'_>) {
        let mut joining = std::mem::take(&mut self.joining);
        for token in joining.drain(..) {
            if let Some(key) = self.of_token(token) {
                self.begin_relay(key, sides);
            }
        }
        self.joining = joining;
    }

    // ---- time ----

    /// The timer of a flow has fired. If it was set again since then, that time counts.
    pub(crate) fn on_timer(&mut self, token: u64, sides: &mut Sides<'_>) {
        let Some(key) = self.of_token(token) else { return };
        let flow = self.flows.at_mut(key);
        if sides.cx.now_us < flow.due_us {
            return;
        }
        match (flow.phase, flow.at()) {
            (Phase::Connecting { .. }, Some(server)) => {
                self.unconnected(key, server, FlowEnd::ConnectTimeout, sides)
            }
            (Phase::Hello, _) => self.end(key, FlowEnd::HelloTimeout, sides),
            (Phase::Connecting { .. }, None) => self.connect(key, FlowEnd::NoServer, sides),
            (Phase::Relaying { .. }, _) => {
                // A timer that was set before may be due now as well, and each look sets the next.
                flow.due_us = LOOKING_US;
                if let Some(socket) =
                    flow.begin_to_ask().filter(|_| !servers::has_keepalive(flow.upstream, sides.cx))
                {
                    sides.cx.actions.push_back(Action::KeepAlive { socket });
                }
                sides.cx.actions.push_back(Action::LookRelay { token, client: flow.client });
            }
        }
    }

    // ---- ends ----

    /// Ends a flow: in order, or else with an abort for both sides.
    fn end(&mut self, key: FlowKey, why: FlowEnd, sides: &mut Sides<'_>) {
        let generation = self.flows.generation(key);
        let flow = self.flows.remove(key);
        let name = self.hellos.take(key).and_then(|hello| hello.name);
        let towards = self.destinations.take(key);
        let destination = towards.as_ref().and_then(Towards::elsewhere);
        let divided = self.divided.take(key);
        flow_left(sides.clients, key);
        let Sides { clients, upstreams, cx } = sides;
        cx.flows -= 1;
        cx.counters.client_connections.sub(1);
        cx.counters.tcp_closes.count(why);
        if let Some(divided) = divided {
            divided.measure(&flow, cx);
        }
        if let Some(towards) = towards {
            towards.ended(&flow, why, cx);
        }
        let reset = why != FlowEnd::Done;
        cx.actions.push_back(Action::CloseClient { socket: flow.client, reset });
        if let Some(socket) = flow.server() {
            cx.actions.push_back(match reset {
                true => Action::ResetUpstream { socket },
                false => Action::CloseUpstream { socket },
            });
        }
        let is_joined = matches!(flow.phase, Phase::Relaying { .. });
        if is_joined {
            cx.counters.tunnels.sub(1);
        }
        if let Some(server) = flow.at() {
            let of_server = if why == FlowEnd::ServerReset {
                UpstreamEnd::Reset
            } else {
                UpstreamEnd::TunnelEnded
            };
            servers::flow_ended(
                upstreams,
                server,
                if is_joined { of_server } else { UpstreamEnd::Cancelled },
                cx,
            );
        }
        let worker = cx.worker;
        clients.records().flow_ended(cx, |now_us| FlowLine {
            peer: flow.peer(),
            conn: ConnId { worker, index: flow.conn_key(key), generation },
            begun_us: flow.begun_us,
            connected_us: flow.connected_us(),
            upstream: Some(flow.upstream).filter(|upstream| *upstream != NO_UPSTREAM),
            name,
            server: flow.at().map(ServerIndex::number),
            destination,
            moved: flow.moved,
            tries: flow.tries(),
            why: why.into(),
            stage: match flow.phase {
                Phase::Hello => Stage::Head,
                Phase::Connecting { .. } => Stage::Connect,
                Phase::Relaying { .. } => Stage::Tunnel,
            },
            now_us,
        });
    }

    /// The set of bans has changed.
    pub(crate) fn look_for_banned(&mut self) {
        self.cutting.begin(self.flows.slots());
    }

    /// Whether flows may belong to banned clients.
    pub(crate) fn is_cutting(&self) -> bool {
        self.cutting.is_due()
    }

    /// Ends some of the flows of banned clients.
    pub(crate) fn cut_off(&mut self, sides: &mut Sides<'_>) {
        for key in self.cutting.slice(self.flows.slots()).map(FlowKey::new) {
            if self.flows.is_occupied(key) && sides.cx.is_banned(self.flows.at(key).peer().ip()) {
                self.end(key, FlowEnd::Banned, sides);
            }
        }
    }

    /// Ends all remaining flows, because weir ends: a truncated stream must not look complete.
    pub(crate) fn stop(&mut self, sides: &mut Sides<'_>) {
        for key in (0..self.flows.slots()).map(|slot| FlowKey::new(slot as u32)) {
            if self.flows.is_occupied(key) {
                self.end(key, FlowEnd::Stopped, sides);
            }
        }
    }

    // ---- reports ----

    /// Adds the flows up by server.
    pub(crate) fn count_by_server(&self, counts: &mut [u32]) {
        let all = self.flows.keys().filter_map(|key| self.flows.at(key).at());
        all.for_each(|server| counts[server.index()] += 1);
    }

    /// Looks for impossible states.
    ///
    /// # Errors
    /// The first broken invariant, in words.
    pub(crate) fn audit(&self, upstreams: &Upstreams, cx: &Context) -> Result<(), String> {
        if self.flows.len() != cx.flows {
            return Err(format!(
                "{} flows are there, and {} are counted",
                self.flows.len(),
                cx.flows
            ));
        }
        if !self.joining.is_empty() {
            return Err(format!("{} flows are connected and not joined", self.joining.len()));
        }
        let mut counts = vec![0; upstreams.pool().server_count()];
        self.count_by_server(&mut counts);
        servers::audit(upstreams.pool(), &counts)?;
        let lost = |key: &FlowKey| {
            let flow = self.flows.at(*key);
            flow.at().is_none() != flow.server().is_none()
                || flow.due_us != LOOKING_US
                    && cx.wheel.next_due().is_none_or(|due_us| due_us > flow.due_us + TICK_US)
        };
        self.flows
            .keys()
            .find(lost)
            .map_or(Ok(()), |key| Err(format!("flow {key} waits for nothing")))
    }
}

impl Flow {
    /// Returns the client that a connection to a server is made for.
    fn whose(&self) -> Whose {
        let address = self.peer();
        if address.ip() == NO_ADDRESS {
            Whose::Unknown
        } else {
            Whose::Client { address, socket: self.client }
        }
    }
}
