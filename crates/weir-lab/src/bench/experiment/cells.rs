//! A cell: one situation in which contenders are compared. Made by `catalogue.rs`; its load is a
//! variant of [`Load`]. Bounds: [`CONNECTIONS_MAX`], [`BODY_MAX`].

use super::block::{self, Attack};
use super::cache::CacheLoad;
use super::even::{self, Ladder};
use super::failover::{self, Fault};
use super::handshakes;
use super::http2::Stalling;
use super::keepalive::Probing;
use super::mixed::Mixed;
use super::pep::Pep;
use super::reload;
use super::tls::Secure;
use super::tunnel::Tunnels;
use super::wan::Wan;
use crate::units::grouped;

/// One situation in which contenders are compared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    /// Its name on the command line and in the raw data.
    pub(crate) name: String,
    /// For people.
    pub(crate) title: String,
    /// The load.
    pub(crate) load: Load,
    /// The contenders that take part.
    pub(crate) contenders: Vec<&'static str>,
    /// The origin behind them.
    pub(crate) origin: Origin,
    /// How clients use TLS; None: they don't.
    pub(crate) secure: Option<Secure>,
    /// Clients use HTTP/2, with this many streams at a time on each connection; None: HTTP/1.1.
    pub(crate) streams: Option<u32>,
    /// The chart that it is a point of, and its place on the horizontal axis.
    pub(crate) point: Option<(String, f64)>,
}

impl Cell {
    /// A cell with the usual origin.
    pub(crate) fn new(name: &str, title: &str, load: Load, contenders: &[&'static str]) -> Cell {
        let (name, title, contenders) = (name.to_owned(), title.to_owned(), contenders.to_vec());
        Cell {
            name,
            title,
            load,
            contenders,
            origin: Origin::Usual,
            secure: None,
            streams: None,
            point: None,
        }
    }

    /// With more contenders.
    pub(crate) fn with(mut self, contenders: &[&'static str]) -> Cell {
        self.contenders.extend(contenders);
        self
    }

    /// With another origin.
    pub(crate) fn from(mut self, origin: Origin) -> Cell {
        self.origin = origin;
        self
    }

    /// With clients that use TLS.
    pub(crate) fn over(mut self, secure: Secure) -> Cell {
        self.secure = Some(secure);
        self
    }

    /// With clients that use HTTP/2, with this many streams at a time on each connection.
    pub(crate) fn by(mut self, streams: u32) -> Cell {
        self.streams = Some(streams);
        self
    }

    /// As a point of a chart.
    pub(crate) fn on(mut self, chart: &str, across: f64) -> Cell {
        self.point = Some((chart.to_owned(), across));
        self
    }
}

/// The path whose response is a body of three bytes.
pub(crate) const SMALL: &str = "/";

/// The load on a contender.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Load {
    /// Each connection sends its next request when it has its response.
    Closed(Closed),
    /// Half of nginx's rate in the named cell, by the clock.
    HalfOfNginx {
        /// The cell.
        of: &'static str,
        /// Client connections.
        connections: u32,
    },
    /// This many requests a second by the clock.
    Fixed {
        /// Client connections.
        connections: u32,
        /// Requests a second.
        rate: u32,
        /// Target of each request.
        path: &'static str,
    },
    /// This many requests a second by the clock, beside a flood of handshakes.
    Flood {
        /// Client connections, without those of the flood.
        connections: u32,
        /// Requests a second.
        rate: u32,
    },
    /// Plain requests by the clock, beside clients that do nothing but handshakes.
    Handshakes,
    /// This many requests a second by the clock, beside clients that let no response come.
    Stalled(Stalling),
    /// Users by the clock, alone and then beside attackers.
    Block(Attack),
    /// Nothing: weir's memory with more and more bans.
    BanMemory,
    /// Banned clients that retry until they get a response.
    Recovery,
    /// Ten seconds against an origin that pauses for one of them.
    Stall,
    /// By the clock, while servers die.
    Failover(Fault),
    /// One request at a time to a server with busy workers.
    Probe(Probing),
    /// Through tunnels whose other end is not an HTTP server.
    Tunnel(Tunnels),
    /// Through a router.
    Pep(Pep),
    /// Over a slow link that loses packets.
    Wan(Wan),
    /// Clients that connect, stay, and send requests now and then: which worker has how many of
    /// them.
    Ladder(Ladder),
    /// By the clock, while another program takes a core now and then.
    Taken,
    /// Clients that connect during configuration reloads, again and again.
    Reload,
    /// Fast and slow requests beside each other.
    Mixed(Mixed),
    /// A cache, which starts fresh in each run.
    Cache(CacheLoad),
    /// Idle keep-alive connections.
    Idle(u32),
    /// Clients that each read a large reply slowly.
    Slow {
        /// How many.
        clients: u32,
        /// Length of the reply, bytes.
        body: u64,
    },
}

impl Load {
    /// Client connections.
    pub(crate) fn connections(self) -> u32 {
        match self {
            Load::Closed(Closed { connections, .. })
            | Load::HalfOfNginx { connections, .. }
            | Load::Fixed { connections, .. }
            | Load::Flood { connections, .. }
            | Load::Idle(connections)
            | Load::Tunnel(Tunnels::Idle(connections)) => connections,
            Load::Slow { clients, .. } => clients,
            Load::Stalled(stalling) => stalling.connections + stalling.clients,
            Load::Handshakes => handshakes::CLIENTS + handshakes::BESIDE.0,
            Load::Stall => STALL_CONNECTIONS,
            Load::Block(attack) => block::USERS + attack.attackers() * attack.connections(),
            Load::Failover(_) => failover::CONNECTIONS,
            Load::Ladder(_) => even::CLIENTS,
            Load::Taken => even::BESIDE.0,
            Load::Reload => (reload::THREADS * reload::BURST) as u32,
            Load::Recovery => block::ATTACKERS,
            Load::BanMemory => 0,
            Load::Wan(wan) => wan.clients(),
            Load::Pep(pep) => pep.connections(),
            Load::Cache(load) => load.connections(),
            Load::Mixed(mixed) => mixed.connections(),
            Load::Probe(_) | Load::Tunnel(Tunnels::Full(_)) => 1,
        }
    }

    /// Whether each run begins with newly started programs: memory is counted from a fresh start,
    /// and an origin pauses only once.
    pub(crate) fn is_fresh(self) -> bool {
        let own = matches!(
            self,
            Load::Failover(_)
                | Load::Probe(_)
                | Load::Tunnel(_)
                | Load::Block(_)
                | Load::Wan(_)
                | Load::Pep(_)
                | Load::Ladder(_)
                | Load::Taken
                | Load::Reload
                | Load::Cache(_)
                | Load::Mixed(_)
        );
        own || self == Load::Handshakes
            || self.is_of_bans()
            || matches!(self, Load::Idle(_) | Load::Slow { .. } | Load::Stall | Load::Stalled(_))
    }

    /// Whether one round shows it: a load about what happens rather than what it costs, and that
    /// hardly varies.
    pub(crate) fn is_once(self) -> bool {
        self.is_of_bans() || matches!(self, Load::Block(attack) if !attack.is_paced())
    }

    /// Whether it looks at bans, without an attack.
    pub(crate) fn is_of_bans(self) -> bool {
        matches!(self, Load::BanMemory | Load::Recovery)
    }

    /// Whether it measures memory.
    pub(crate) fn is_memory(self) -> bool {
        matches!(self, Load::Idle(_) | Load::Slow { .. } | Load::Tunnel(Tunnels::Idle(_)))
    }
}

/// Load on the origin that pauses: requests a second, the time of a response, and the length of the
/// pause.
pub(crate) const STALL_RATE: u32 = 1000;
pub(crate) const STALL_ANSWER_MS: u32 = 10;
pub(crate) const STALL_SECONDS: u32 = 10;
/// Connections for that load: busy for 40 % of the time. On ten, which would be busy all the time,
/// requests wait for a connection although the origin does not pause. With a hundred, the requests
/// that wait for the origin itself are 1 % of all.
pub(crate) const STALL_CONNECTIONS: u32 = 25;
const _: () = assert!(STALL_RATE * STALL_ANSWER_MS / 1000 * 2 <= STALL_CONNECTIONS);
const _: () = assert!(STALL_CONNECTIONS * 100 < STALL_RATE * STALL_SECONDS / 2);

/// What the generator does for one run of a closed loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Closed {
    /// Client connections.
    pub(crate) connections: u32,
    /// Length of each response's body, bytes.
    pub(crate) body: u64,
    /// The kind of requests.
    pub(crate) kind: RequestKind,
}

/// What requests look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Only Host.
    Minimal,
    /// Eleven fields as a browser sends them, and a cookie of 1.5 KB.
    Browser,
    /// A connection for each.
    Close,
}

impl RequestKind {
    const ALL: [RequestKind; 3] = [RequestKind::Minimal, RequestKind::Browser, RequestKind::Close];

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RequestKind::Minimal => "minimal",
            RequestKind::Browser => "browser",
            RequestKind::Close => "close",
        }
    }
}

/// The origin behind the contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// nginx with files, or weir's own if the user chose that.
    Usual,
    /// weir's own, which can be late on request.
    Weir,
    /// Each contender has its own.
    None,
}

/// What users may choose in an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Client connections.
    Connections,
    /// How requests look.
    Requests,
    /// Lengths of bodies.
    Bodies,
}

/// What users chose; empty fields are left to the experiment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Axes {
    /// Few cells, in a few minutes.
    pub(crate) quick: bool,
    /// Client connections.
    pub(crate) connections: Vec<u32>,
    /// What requests look like.
    pub(crate) kinds: Vec<RequestKind>,
    /// Lengths of bodies, bytes.
    pub(crate) bodies: Vec<u64>,
}

impl Axes {
    /// The connections that were chosen, or these.
    pub(crate) fn connections_or(&self, usual: &[u32]) -> Vec<u32> {
        if self.connections.is_empty() { usual.to_vec() } else { self.connections.clone() }
    }

    /// The bodies that were chosen, or these.
    pub(crate) fn bodies_or(&self, usual: &[u64]) -> Vec<u64> {
        if self.bodies.is_empty() { usual.to_vec() } else { self.bodies.clone() }
    }

    /// The kinds of requests that were chosen, or all.
    pub(crate) fn kinds(&self) -> Vec<RequestKind> {
        if self.kinds.is_empty() { RequestKind::ALL.to_vec() } else { self.kinds.clone() }
    }
}

/// Most client connections of a cell.
const CONNECTIONS_MAX: u32 = 1_000_000;
/// Longest body, bytes.
const BODY_MAX: u64 = 1 << 30;

/// Reads a number of client connections.
///
/// # Errors
/// The text says what is expected.
pub fn connections(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=CONNECTIONS_MAX).contains(number));
    number.ok_or_else(|| {
        format!("`{text}` is not a number of connections from 1 to {CONNECTIONS_MAX}")
    })
}

/// Reads the length of a body, with `k` for KiB or `m` for MiB. Bytes.
///
/// # Errors
/// The text says what is expected.
pub fn body(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| (1..=BODY_MAX).contains(bytes))
        .ok_or_else(|| format!("`{text}` is not a length such as 3, 64k or 1m, at most 1024m"))
}

/// Reads the name of a kind of requests.
///
/// # Errors
/// The text says what is expected.
pub(crate) fn kind(text: &str) -> Result<RequestKind, String> {
    let found = RequestKind::ALL.into_iter().find(|kind| kind.name() == text);
    found.ok_or_else(|| format!("`{text}` is not minimal, browser or close"))
}

/// `1 connection`, `32,768 connections`.
pub(crate) fn clients(connections: u32) -> String {
    format!(
        "{} connection{}",
        grouped(u64::from(connections)),
        if connections == 1 { "" } else { "s" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_read_as_people_write_them() {
        assert_eq!(
            (connections("64"), body("3"), body("64k"), body("1M")),
            (Ok(64), Ok(3), Ok(65_536), Ok(1 << 20))
        );
        for wrong in ["0", "-1", "k", "", "4000m", "1.5k", "99999999999999999999k"] {
            assert!(body(wrong).is_err(), "{wrong}");
        }
        assert!(connections("0").is_err() && connections("1000001").is_err());
        assert_eq!(kind("browser"), Ok(RequestKind::Browser));
        assert!(kind("").is_err());
    }
}
