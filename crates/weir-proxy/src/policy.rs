//! Which destinations clients of the forward proxy may use: rules in order, compiled so that many names cost no time, and what is
//! refused where no rule says otherwise. semantics.md §9.

use std::net::{IpAddr, SocketAddr};

/// What a client wants to reach.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The host, in lower case, without a dot at its end or brackets.
    pub host: &'a [u8],
    /// The same when it is an address.
    pub literal: Option<IpAddr>,
    /// The port, as given or by default.
    pub port: u16,
    /// The method; `CONNECT` for a tunnel.
    pub method: &'a [u8],
    /// Who asks.
    pub client: IpAddr,
    /// As whom; None: nobody was asked who he is.
    pub user: Option<&'a str>,
    /// Now, in seconds since 1970 (UTC).
    pub wall_s: i64,
}

impl Wanted<'_> {
    /// Whether a tunnel is wanted.
    pub fn is_tunnel(&self) -> bool {
        self.method == b"CONNECT"
    }
}

/// Why a destination is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A `deny` rule.
    Rule,
    /// A port that is neither usual nor allowed.
    Port,
    /// An address that is not public, nor allowed.
    Address,
    /// A listener of this proxy.
    Own,
}

impl Refusal {
    /// The word in the answer, the log and the counters.
    pub fn word(self) -> &'static str {
        match self {
            Refusal::Rule => "denied-by-rule",
            Refusal::Port => "port-not-allowed",
            Refusal::Address => "address-not-public",
            Refusal::Own => "own-address",
        }
    }
}

/// The compiled rules.
#[derive(Debug, Default)]
pub struct Policy {
    own: Vec<SocketAddr>,
}
