//! Where clients are listened for.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{Congestion, Location, Protocols, Serves, TlsPlan, Tuning};

/// One address, or one path, that clients connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerPlan {
    /// An address is bound with SO_REUSEPORT by each worker; of a unix socket all have a descriptor.
    pub address: Location,
    /// Who may connect to a unix socket: its mode, at most 0o777. Default 0o660.
    pub mode: u32,
    /// The group of a unix socket, by its number; None, the default: that of weir.
    pub group: Option<u32>,
    /// Length of the accept queue asked of the kernel (which caps it at net.core.somaxconn). Default 65535.
    pub backlog: u32,
    /// What its clients may ask for. Default [`Serves::Reverse`].
    pub serves: Serves,
    /// How its clients speak TLS; None, the default: they don't.
    pub tls: Option<TlsPlan>,
    /// Which versions of HTTP they may speak.
    pub protocols: Protocols,
    /// They come through load balancers, trusted proxies, who say by the PROXY protocol who they are. Default: they don't.
    pub proxy_protocol: bool,
    /// It takes connections to any address whose packets are led to it (ip(7), IP_TRANSPARENT). Default false.
    pub transparent: bool,
    /// The congestion controls of its clients' connections; of several, which only a listener of `tcp` has, each has its part.
    pub congestion: Congestion,
    /// Other options of its socket, which its clients' connections have, too. None, the default: there are none.
    pub tuning: Option<Arc<Tuning>>,
}

impl ListenerPlan {
    /// A listener with the default backlog.
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

    /// The interface by which alone its clients come.
    pub fn device(&self) -> Option<&str> {
        self.tuning.as_ref()?.device.as_deref()
    }
}
