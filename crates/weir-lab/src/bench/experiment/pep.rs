//! The experiment `pep`: a router between clients and servers, and the program that ends and
//! continues the connections that pass.
//!
//! Named by `Load::Pep` and by `contenders.rs`; `run/pep.rs` does it.

/// Number of client addresses: enough that ports are no limit.
pub(crate) const SOURCES: u32 = 62;

/// What clients request through the router, with a connection for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pep {
    /// Length of an object, bytes.
    pub(crate) bytes: u64,
    /// How often clients send requests.
    pub(crate) pace: Pace,
    /// The program in the middle reads requests, and does not only pass bytes on.
    pub(crate) reads: bool,
    /// What the path through the router is like.
    pub(crate) way: Way,
}

/// What the path through the router is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// As short as possible, without a table of nftables; rules of ip(8) lead connections to the
    /// program that listens on the port that clients connect to.
    Plain,
    /// The same, and the router's kernel tracks connections and has a chain without effect at each
    /// hook of nftables.
    Hooks,
    /// nftables leads connections to another port (TPROXY).
    Tproxy,
    /// As short, in IPv6.
    Ipv6,
    /// Clients are [`FAR_CLIENTS_MS`] away, and the server [`FAR_SERVER_MS`], both round trip.
    Far,
}

/// See [`Way::Far`], milliseconds.
pub(crate) const FAR_CLIENTS_MS: u32 = 20;
pub(crate) const FAR_SERVER_MS: u32 = 5;
/// Connections a second there: a link of the laboratory carries packets one by one.
pub(crate) const FAR_RATE: u32 = 100;

/// How often clients send requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Each sends its next request when it has its response: measures the rate.
    Closed,
    /// Half as often as HAProxy could serve, by the clock: measures processor time and latency.
    Half,
    /// [`FAR_RATE`], by the clock: measures latency.
    Seldom,
}

impl Pep {
    /// Returns the maximum number of connections at a time.
    pub(crate) fn connections(self) -> u32 {
        let many = self.bytes <= 64 << 10;
        match self.pace {
            Pace::Closed if many => 128,
            Pace::Closed => 16,
            Pace::Seldom => 128,
            Pace::Half if many => 1024,
            Pace::Half => 128,
        }
    }
}

/// What the router does with connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Middle {
    /// It forwards their packets, and nothing else.
    Forwards,
    /// HAProxy ends and continues them; routes lead them to it.
    Haproxy {
        /// It moves bytes through pipes of 1 MiB, instead of copying them.
        splices: bool,
        /// In mode http instead of tcp.
        reads: bool,
    },
    /// weir with a `tcp` that is transparent, on this driver; routes lead connections to it as
    /// well.
    Weir(&'static str),
    /// `weir intercept`, with this `--connect`.
    Intercept(&'static str),
    /// weir with a `listen` that is transparent and a route; routes lead connections to it as well.
    WeirHttp,
}
