//! What the machines want done outside, where sockets are: the worker carries it out.

use std::sync::Arc;

use crate::base::output::Out;
use crate::plan::{Announcement, Location, Side, Way};
use crate::request::encoding::Job;

/// What the engine wants done outside.
#[derive(Debug)]
pub enum Action {
    /// Send to a client.
    SendClient {
        /// The driver's name for the connection.
        socket: u64,
        /// What.
        out: Out,
    },
    /// Run this on another thread than the worker's, or here when that can't be; answer with
    /// [`News::Encoded`](crate::forward::lookup::News::Encoded) either way. Its answer waits for that, and nobody else.
    Encode(Box<Job>),
    /// Find out how a client takes what was sent to it; answer with [`client_looked`](crate::engine::client_looked).
    LookClient {
        /// Names the client in the answer.
        token: u64,
        /// The driver's name for the connection.
        socket: u64,
        /// To be handed back.
        over: bool,
    },
    /// Read a client or stop reading it.
    ReceiveClient {
        /// The driver's name for the connection.
        socket: u64,
        /// Read.
        on: bool,
    },
    /// Find out whether a client is still there that is not read, or has ended its sending direction; answer with
    /// [`client_seen`](crate::engine::client_seen).
    SeeClient {
        /// Names the client in the answer.
        token: u64,
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Take one's time with what a client sends, or no more.
    DeferClient {
        /// The driver's name for the connection.
        socket: u64,
        /// It has time.
        on: bool,
    },
    /// End the sending direction of a client's connection.
    ShutdownClient {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// End a client's connection.
    CloseClient {
        /// The driver's name for the connection.
        socket: u64,
        /// With a reset, because what the client has is not all and nothing else can say so.
        reset: bool,
    },
    /// Connect to a server; answer with [`Engine::upstream_started`](crate::engine::Engine::upstream_started) or [`Engine::upstream_connected`](crate::engine::Engine::upstream_connected).
    Connect {
        /// Names the connection from now on.
        token: u64,
        /// Where to.
        address: Location,
        /// Index of the server over all upstreams of the plan: it says whether the connection speaks TLS, and how.
        server: u32,
        /// With what it begins, before anything else is said; it is up only when that is sent. None: with nothing.
        announcement: Option<Announcement>,
        /// From where, and how. None: that is left to the kernel.
        way: Option<Box<Way>>,
    },
    /// Send to a server.
    SendUpstream {
        /// The driver's name for the connection.
        socket: u64,
        /// What.
        out: Out,
    },
    /// Find out which core receives a connection's packets; answer with [`Engine::upstream_located`](crate::engine::Engine::upstream_located).
    LocateUpstream {
        /// Names the connection in the answer.
        token: u64,
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Find out whether what was sent on a connection was acknowledged; answer with [`Engine::upstream_examined`](crate::engine::Engine::upstream_examined).
    ExamineUpstream {
        /// Names the connection in the answer.
        token: u64,
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Read a server once.
    ReceiveUpstream {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Acknowledge what a server sent, at once.
    AcknowledgeUpstream {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// End the sending direction of a server's connection.
    ShutdownUpstream {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Let the driver move the bytes of a tunnel by itself; answer with [`Engine::relay_ended`](crate::engine::Engine::relay_ended) when it is over.
    Relay {
        /// The driver's name for the client's connection.
        client: u64,
        /// The driver's name for the server's connection.
        server: u64,
    },
    /// Find out how much a tunnel has moved; answer with [`Engine::relay_looked`](crate::engine::Engine::relay_looked).
    LookRelay {
        /// Names the client in the answer.
        token: u64,
        /// The driver's name for the client's connection.
        client: u64,
    },
    /// Have the kernel ask whether the server of a flow is still there when nothing moves. Nothing is answered.
    KeepAlive {
        /// The driver's name for the server's connection.
        socket: u64,
    },
    /// Find out how what was sent on a connection that is about to be closed has fared; answer with [`measured`](crate::engine::measured).
    Measure {
        /// The driver's name for the connection.
        socket: u64,
        /// What it belongs to.
        arm: Box<MeasuredArm>,
    },
    /// Count whether these two are received by the same core (`tcp_cores_compared`, `tcp_cores_same`).
    CompareCores {
        /// The driver's name for the client's connection.
        client: u64,
        /// The driver's name for the server's connection.
        server: u64,
    },
    /// End a server's connection.
    CloseUpstream {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// End a server's connection with a reset, because what it has is not all and nothing else can say so.
    ResetUpstream {
        /// The driver's name for the connection.
        socket: u64,
    },
}

/// A connection that has one of several congestion controls, and is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredArm {
    /// Which side of a connection of `tcp` it is.
    pub side: Side,
    /// Its congestion control.
    pub name: Arc<str>,
    /// How long it was joined with the other side, microseconds.
    pub lasted_us: u64,
}
