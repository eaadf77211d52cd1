//! One flow: the state of a `tcp` connection besides its sockets. Small, because flows are many.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use crate::base::keys::{ConnKey, FlowKey, Key, ServerIndex};
use crate::plan::TcpPlan;
use crate::upstream::flows::Tried;

/// The most bytes of a flow, without its sockets.
const FLOW_BYTES: usize = 96;
const _: () = assert!(size_of::<Flow>() <= FLOW_BYTES, "many connections of tcp must stay small");

/// No driver has this many sockets.
const NO_SOCKET: u64 = u64::MAX;
/// No plan has this many servers.
const NO_SERVER: u32 = u32::MAX;

/// No plan has this many upstreams.
pub(super) const NO_UPSTREAM: u16 = u16::MAX;

/// The phase of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client is to say which name it asks for.
    Hello,
    /// A connect is in progress, after these servers; `any_port`: not from the port of the client.
    Connecting { tried: Tried, any_port: bool },
    /// The driver moves its bytes.
    Relaying {
        /// From the accept to the connect, microseconds; `u32::MAX`: that or more.
        connect_us: u32,
        /// Servers that were tried, including the last.
        tries: u8,
        /// One side has ended its direction.
        half_closed: bool,
        /// The kernel probes whether its server still responds.
        is_asked: bool,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flow {
    /// The driver's name for the client's connection.
    pub(super) client: u64,
    /// The driver's name for the server's connection; [`NO_SOCKET`]: none is being made.
    server: u64,
    /// The block by which it was accepted.
    pub(super) terms: Arc<TcpPlan>,
    /// When it was accepted.
    pub(super) begun_us: u64,
    /// When its timer fires.
    pub(super) due_us: u64,
    /// When it was last seen to have moved bytes, or was connected.
    pub(super) active_us: u64,
    /// Bytes that it had moved by then, from the client and to it.
    pub(super) moved: (u64, u64),
    pub(super) phase: Phase,
    /// The number of its server; [`NO_SERVER`]: none.
    at: u32,
    address: Ipv6Addr,
    port: u16,
    /// Index of its upstream in the plan; [`NO_UPSTREAM`]: not known yet.
    pub(super) upstream: u16,
}

impl Flow {
    /// Returns a flow that was just accepted.
    pub(super) fn new(client: u64, peer: SocketAddr, terms: Arc<TcpPlan>, now_us: u64) -> Flow {
        let address = match peer.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Flow {
            client,
            server: NO_SOCKET,
            upstream: terms.upstream.filter(|_| terms.names.is_none()).unwrap_or(NO_UPSTREAM),
            phase: if terms.names.is_some() {
                Phase::Hello
            } else {
                Phase::Connecting { tried: Tried::default(), any_port: false }
            },
            terms,
            begun_us: now_us,
            due_us: now_us,
            active_us: now_us,
            moved: (0, 0),
            at: NO_SERVER,
            address,
            port: peer.port(),
        }
    }

    /// Returns the address of its client.
    pub(super) fn peer(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V6(self.address).to_canonical(), self.port)
    }

    /// Returns the driver's name for the server's connection; None: none is being made.
    pub(super) fn server(&self) -> Option<u64> {
        Some(self.server).filter(|server| *server != NO_SOCKET)
    }

    /// Replaces the server's connection, or removes it.
    pub(super) fn set_server(&mut self, server: Option<u64>) {
        self.server = server.unwrap_or(NO_SOCKET);
    }

    /// Returns the server at which it is counted.
    pub(super) fn at(&self) -> Option<ServerIndex> {
        Some(self.at).filter(|at| *at != NO_SERVER).map(ServerIndex::new)
    }

    /// Replaces the server, or removes it.
    pub(super) fn set_at(&mut self, at: Option<ServerIndex>) {
        self.at = at.map_or(NO_SERVER, ServerIndex::number);
    }

    /// Returns when its server was connected; None: not yet.
    pub(super) fn connected_us(&self) -> Option<u64> {
        match self.phase {
            Phase::Relaying { connect_us, .. } => Some(self.begun_us + u64::from(connect_us)),
            Phase::Hello | Phase::Connecting { .. } => None,
        }
    }

    /// Returns how many servers were tried.
    pub(super) fn tries(&self) -> u32 {
        match self.phase {
            Phase::Hello => 0,
            Phase::Connecting { tried, .. } => tried.count(),
            Phase::Relaying { tries, .. } => u32::from(tries),
        }
    }

    /// Returns the number of its slot, by which log lines name connections to servers.
    pub(super) fn conn_key(&self, key: FlowKey) -> ConnKey {
        ConnKey::new(key.number())
    }
}
