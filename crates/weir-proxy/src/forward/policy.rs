//! Which destinations clients of the forward proxy may use: rules in order, compiled so that many
//! names cost no time, and what is refused where no rule says otherwise. docs/forward.md,
//! docs/hostile.md F6-F7.
//!
//! The engine asks twice. [`Policy::check`] runs for each request, before the name is resolved:
//! denied names are never resolved. [`Policy::check_address`] runs for each address before it is
//! connected to: whatever a name resolves to, now or later (DNS rebinding), the address that was
//! judged is the one that is used. Both walk the rules; the first match decides.
//!
//! Where no rule decides, or an allowing rule has no criterion for it: tunnels may use ports 443
//! and 8443, requests 80 and 8080, and addresses must be public ([`is_public`]). A host is parsed
//! by [`host::parse`] first.

mod addresses;
pub mod host;
mod names;
mod public;
mod rule;
#[cfg(test)]
mod tests;

use crate::observe::kinds::worded;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use names::{Pattern, PatternError};
pub use public::is_public;
pub use rule::{Hours, LISTED_ABOVE, Rule};

use rule::Compiled;

/// The destination of a request, and its client.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The host, in lower case, without a dot at its end or brackets.
    pub host: &'a [u8],
    /// The host as an address, if it is one.
    pub literal: Option<IpAddr>,
    /// The port, as given or by default.
    pub port: u16,
    /// The method; `CONNECT` for a tunnel.
    pub method: &'a [u8],
    /// The client.
    pub client: IpAddr,
    /// Its user; None: no user is required.
    pub user: Option<&'a str>,
    /// Now, in seconds since 1970 (UTC).
    pub wall_s: i64,
}

impl Wanted<'_> {
    /// Whether a tunnel is requested.
    pub fn is_tunnel(&self) -> bool {
        self.method == b"CONNECT"
    }
}

worded! {
    /// Why a destination is refused.
    enum Refusal;
    /// A `deny` rule.
    Rule: "denied-by-rule";
    /// A port that is neither usual nor allowed.
    Port: "port-not-allowed";
    /// An address that is not public, nor allowed.
    Address: "address-not-public";
    /// A listener of this proxy.
    Own: "own-address";
}

/// Says whether an address leads to this machine at the time of the call.
pub type IsLocal = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// The compiled rules. The default has none.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    rules: Vec<Compiled>,
    own: Vec<SocketAddr>,
    local: Local,
}

/// Knows the addresses of this machine; None: they are unknown.
#[derive(Clone, Default)]
struct Local(Option<IsLocal>);

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Local").field(&self.0.is_some()).finish()
    }
}

impl Policy {
    /// Rules in order, and the listeners of this proxy, which are never connected to.
    pub fn new(rules: Vec<Rule>, own: Vec<SocketAddr>) -> Policy {
        let rules = rule::merged(rules).into_iter().map(Compiled::new).collect();
        Policy { rules, own, local: Local::default() }
    }

    /// Sets the function that knows addresses of this machine: a listener on all addresses is
    /// reached by each of them, even by an address that the machine has got since the start. It is
    /// only called for a port of such a listener.
    pub fn set_local(&mut self, is_local: IsLocal) {
        self.local = Local(Some(is_local));
    }

    /// Whether a connection to an address and port may end at a listener of this proxy.
    fn is_own(&self, address: SocketAddr) -> bool {
        let is_everywhere =
            |own: &SocketAddr| own.ip().is_unspecified() && own.port() == address.port();
        let is_local = |local: &IsLocal| local(address.ip().to_canonical());
        self.own.iter().any(|own| reaches(address, *own))
            || self.own.iter().any(is_everywhere) && self.local.0.as_ref().is_some_and(is_local)
    }

    /// Judges a request before the name is resolved, and completely if it names an address. `Ok`
    /// for a name says that some address of it may be allowed.
    ///
    /// # Errors
    /// The client's fault, 403: why no address of the name could be allowed.
    pub fn check(&self, wanted: &Wanted<'_>) -> Result<(), Refusal> {
        if let Some(address) = wanted.literal {
            return self.check_address(wanted, address);
        }
        for rule in self.rules.iter().filter(|rule| rule.matches(wanted)) {
            let decision = rule.decision(wanted);
            // A rule for some addresses decides nothing yet, but a name that it may allow has to be
            // resolved.
            if decision.is_ok() || !rule.has_addresses() {
                return decision;
            }
        }
        usual_port(wanted)
    }

    /// Judges an address that is about to be connected to.
    ///
    /// # Errors
    /// The client's fault, 403: why the address is not allowed.
    pub fn check_address(&self, wanted: &Wanted<'_>, address: IpAddr) -> Result<(), Refusal> {
        if self.is_own(SocketAddr::new(address, wanted.port)) {
            return Err(Refusal::Own);
        }
        let rule =
            self.rules.iter().find(|rule| rule.matches_address(address) && rule.matches(wanted));
        rule.map_or_else(|| usual_port(wanted), |rule| rule.decision(wanted))?;
        let is_opened = rule.is_some_and(Compiled::has_addresses);
        if is_opened || is_public(address) { Ok(()) } else { Err(Refusal::Address) }
    }
}

/// Whether a connection to an address may end at a listener. 0.0.0.0 and :: lead to loopback, on
/// Linux.
fn reaches(address: SocketAddr, listener: SocketAddr) -> bool {
    let (target, own) = (address.ip().to_canonical(), listener.ip().to_canonical());
    let is_here = |one: IpAddr| one.is_loopback() || one.is_unspecified();
    address.port() == listener.port()
        && (target == own
            || (own.is_unspecified() && is_here(target))
            || (target.is_unspecified() && is_here(own)))
}

fn usual_port(wanted: &Wanted<'_>) -> Result<(), Refusal> {
    if is_usual_port(wanted) { Ok(()) } else { Err(Refusal::Port) }
}

/// Whether the port needs no rule.
fn is_usual_port(wanted: &Wanted<'_>) -> bool {
    if wanted.is_tunnel() {
        matches!(wanted.port, 443 | 8443)
    } else {
        matches!(wanted.port, 80 | 8080)
    }
}
