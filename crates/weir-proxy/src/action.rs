//! Actions that the machines request from the outside, where sockets are: the worker carries them
//! out.

use std::sync::Arc;

use crate::base::output::Out;
use crate::plan::{Announcement, Location, Side, Way};
use crate::request::encoding::Job;

/// An action that the engine requests.
#[derive(Debug)]
pub enum Action {
    /// Send to a client.
    SendClient {
        /// The driver's name for the connection.
        socket: u64,
        /// The bytes.
        out: Out,
    },
    /// Run this on another thread than the worker's, or here if that is impossible; answer with
    /// [`News::Encoded`](crate::forward::lookup::News::Encoded) either way. Only the response of
    /// this job waits for that.
    Encode(Box<Job>),
    /// Find out how a client receives the bytes that were sent to it; answer with
    /// [`client_looked`](crate::engine::client_looked).
    LookClient {
        /// Names the client in the answer.
        token: u64,
        /// The driver's name for the connection.
        socket: u64,
        /// To be returned with the answer.
        over: bool,
    },
    /// Read from a client or stop reading.
    ReceiveClient {
        /// The driver's name for the connection.
        socket: u64,
        /// Read.
        on: bool,
    },
    /// Find out whether a client that is not read is still connected, or has ended its sending
    /// direction; answer with [`client_seen`](crate::engine::client_seen).
    SeeClient {
        /// Names the client in the answer.
        token: u64,
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Defer the handling of a client's bytes, or no longer.
    DeferClient {
        /// The driver's name for the connection.
        socket: u64,
        /// Defer.
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
        /// With a reset, because the client has an incomplete response and nothing else can say so.
        reset: bool,
    },
    /// Connect to a server; answer with
    /// [`Engine::upstream_started`](crate::engine::Engine::upstream_started) or
    /// [`Engine::upstream_connected`](crate::engine::Engine::upstream_connected).
    Connect {
        /// Names the connection from now on.
        token: u64,
        /// The address.
        address: Location,
        /// Index of the server over all upstreams of the plan: it says whether the connection
        /// speaks TLS, and how.
        server: u32,
        /// The header to begin with, before any other byte; the connection is up only when it is
        /// sent. None: no header.
        announcement: Option<Announcement>,
        /// The source address and options. None: the kernel decides.
        way: Option<Box<Way>>,
    },
    /// Send to a server.
    SendUpstream {
        /// The driver's name for the connection.
        socket: u64,
        /// The bytes.
        out: Out,
    },
    /// Find out which core receives a connection's packets; answer with
    /// [`Engine::upstream_located`](crate::engine::Engine::upstream_located).
    LocateUpstream {
        /// Names the connection in the answer.
        token: u64,
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Find out whether the bytes sent on a connection were acknowledged; answer with
    /// [`Engine::upstream_examined`](crate::engine::Engine::upstream_examined).
    ExamineUpstream {
        /// Names the connection in the answer.
        token: u64,
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Read from a server once.
    ReceiveUpstream {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Acknowledge the bytes of a server at once.
    AcknowledgeUpstream {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// End the sending direction of a server's connection.
    ShutdownUpstream {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Let the driver move the bytes of a tunnel; answer with
    /// [`Engine::relay_ended`](crate::engine::Engine::relay_ended) when it is over.
    Relay {
        /// The driver's name for the client's connection.
        client: u64,
        /// The driver's name for the server's connection.
        server: u64,
    },
    /// Find out how much a tunnel has moved; answer with
    /// [`Engine::relay_looked`](crate::engine::Engine::relay_looked).
    LookRelay {
        /// Names the client in the answer.
        token: u64,
        /// The driver's name for the client's connection.
        client: u64,
    },
    /// Have the kernel probe whether the server of a flow still responds when nothing moves. No
    /// answer.
    KeepAlive {
        /// The driver's name for the server's connection.
        socket: u64,
    },
    /// Measure how the bytes of a connection that is about to be closed were delivered; answer with
    /// [`measured`](crate::engine::measured).
    Measure {
        /// The driver's name for the connection.
        socket: u64,
        /// The congestion control that it belongs to.
        arm: Box<MeasuredArm>,
    },
    /// Count whether the same core receives both connections (`tcp_cores_compared`,
    /// `tcp_cores_same`).
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
    /// End a server's connection with a reset, because the server has an incomplete request and
    /// nothing else can say so.
    ResetUpstream {
        /// The driver's name for the connection.
        socket: u64,
    },
}

/// A connection with one of several congestion controls, which is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredArm {
    /// Its side of a connection of `tcp`.
    pub side: Side,
    /// Its congestion control.
    pub name: Arc<str>,
    /// How long it was joined with the other side, microseconds.
    pub lasted_us: u64,
}
