//! One flow: what is known of a connection of `tcp` besides its sockets. Small, because there are many.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use crate::base::keys::{ConnKey, FlowKey, Key, ServerIndex};
use crate::plan::TcpPlan;
use crate::upstream::flows::Tried;

/// A flow takes no more, its sockets left out.
const FLOW_BYTES: usize = 96;
const _: () = assert!(size_of::<Flow>() <= FLOW_BYTES, "many connections of tcp must stay small");

/// No driver has so many sockets.
const NO_SOCKET: u64 = u64::MAX;
/// No plan has so many servers.
const NO_SERVER: u32 = u32::MAX;

/// No plan has so many upstreams.
pub(super) const NO_UPSTREAM: u16 = u16::MAX;

/// Where a flow stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client is to say which name it asks for.
    Hello,
    /// A connect is under way, after those; not from the port of the client.
    Connecting { tried: Tried, any_port: bool },
    /// The driver moves its bytes.
    Relaying {
        /// From the accept until it was connected, microseconds; `u32::MAX`: more than that can say.
        connect_us: u32,
        /// Servers that were tried, with the last.
        tries: u8,
        /// One side has ended its direction.
        half_closed: bool,
        /// The kernel asks whether its server is still there.
        is_asked: bool,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flow {
    /// The driver's name for the client's connection.
    pub(super) client: u64,
    /// The same of the server's; [`NO_SOCKET`]: none is being made.
    server: u64,
    /// The block by which it was accepted.
    pub(super) terms: Arc<TcpPlan>,
    /// When it was accepted.
    pub(super) begun_us: u64,
    /// When its timer comes.
    pub(super) due_us: u64,
    /// When it last was seen to have moved something, or was connected.
    pub(super) active_us: u64,
    /// Bytes that it had moved by then, from the client and to it.
    pub(super) moved: (u64, u64),
    pub(super) phase: Phase,
    /// The number of its server; [`NO_SERVER`]: it has none.
    at: u32,
    address: Ipv6Addr,
    port: u16,
    /// Index of its upstream in the plan; [`NO_UPSTREAM`]: not known yet.
    pub(super) upstream: u16,
}

impl Flow {
    /// One that was just accepted.
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

    /// Its client.
    pub(super) fn peer(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V6(self.address).to_canonical(), self.port)
    }

    /// The driver's name for the server's connection; None: none is being made.
    pub(super) fn server(&self) -> Option<u64> {
        Some(self.server).filter(|server| *server != NO_SOCKET)
    }

    /// Has another one, or none.
    pub(super) fn set_server(&mut self, server: Option<u64>) {
        self.server = server.unwrap_or(NO_SOCKET);
    }

    /// Its server, where it is counted.
    pub(super) fn at(&self) -> Option<ServerIndex> {
        Some(self.at).filter(|at| *at != NO_SERVER).map(ServerIndex::new)
    }

    /// Has another one, or none.
    pub(super) fn set_at(&mut self, at: Option<ServerIndex>) {
        self.at = at.map_or(NO_SERVER, ServerIndex::number);
    }

    /// When its server was connected to; None: none was.
    pub(super) fn connected_us(&self) -> Option<u64> {
        match self.phase {
            Phase::Relaying { connect_us, .. } => Some(self.begun_us + u64::from(connect_us)),
            Phase::Hello | Phase::Connecting { .. } => None,
        }
    }

    /// How many servers were tried.
    pub(super) fn tries(&self) -> u32 {
        match self.phase {
            Phase::Hello => 0,
            Phase::Connecting { tried, .. } => tried.count(),
            Phase::Relaying { tries, .. } => u32::from(tries),
        }
    }

    /// The number of its slot, as lines of the log name connections to servers.
    pub(super) fn conn_key(&self, key: FlowKey) -> ConnKey {
        ConnKey::new(key.number())
    }
}
