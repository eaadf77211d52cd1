//! Listeners for clients.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{Congestion, Location, Protocols, Serves, TlsPlan, Tuning};

/// One address, or one path, that clients connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerPlan {
    /// Each worker binds an address with SO_REUSEPORT; all workers share the descriptor of a unix
    /// socket.
    pub address: Location,
    /// The mode of a unix socket, at most 0o777: who may connect. Default 0o660.
    pub mode: u32,
    /// The group of a unix socket, by its number; None, the default: that of weir.
    pub group: Option<u32>,
    /// Length of the accept queue asked of the kernel (which caps it at net.core.somaxconn).
    /// Default 65535.
    pub backlog: u32,
    /// What its clients may request. Default [`Serves::Reverse`].
    pub serves: Serves,
    /// TLS of its clients; None, the default: no TLS.
    pub tls: Option<TlsPlan>,
    /// Versions of HTTP that they may speak.
    pub protocols: Protocols,
    /// They come through load balancers, trusted proxies, which announce them by the PROXY
    /// protocol. Default: they do not.
    pub proxy_protocol: bool,
    /// It takes connections to any address whose packets are routed to it (ip(7), IP_TRANSPARENT).
    /// Default false.
    pub transparent: bool,
    /// The congestion controls of its clients' connections; several share the connections, which
    /// only a listener of `tcp` may have.
    pub congestion: Congestion,
    /// Other options of its socket, which its clients' connections inherit. None, the default: no
    /// options.
    pub tuning: Option<Arc<Tuning>>,
}

impl ListenerPlan {
    /// Returns a listener with the default backlog.
    pub fn new(address: SocketAddr) -> ListenerPlan {
        ListenerPlan {
            address: address.into(),
            mode: 0o660,
            group: None,
            backlog: 65535,
            serves: Serves::Reverse,
            tls: None,
            protocols: Protocols::default(),
            proxy_protocol: false,
            transparent: false,
            congestion: Congestion::default(),
            tuning: None,
        }
    }

    /// Returns the only interface that its clients come by.
    pub fn device(&self) -> Option<&str> {
        self.tuning.as_ref()?.device.as_deref()
    }
}
