//! The part of the kernel that drops packets: a table of nftables, or a program in the driver of a
//! network card (XDP).
//!
//! Called by `kernel`, which decides the entries.

use std::io;
use std::time::Duration;

use weir_bpf::{Ports, Xdp, XdpError};
use weir_io::nft::{Network, Nft, Scope};

/// The purpose of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    /// Network cards whose drivers drop packets; none: nftables.
    pub(super) interfaces: Vec<String>,
    pub(super) scope: Scope,
    /// Networks whose packets are never dropped; none of them contains another.
    pub(super) allowed: Vec<Network>,
    pub(super) bans_max: u32,
}

/// A table, or a program.
#[derive(Debug)]
pub(super) enum Tier {
    Nft(Nft, String),
    Xdp(Box<Xdp>, Vec<String>),
}

/// Why neither is possible.
#[derive(Debug)]
pub(super) struct Lacking {
    pub(super) why: String,
    /// The interface with the problem.
    pub(super) interface: Option<String>,
    /// Temporary: another program uses what it needs.
    pub(super) passes: bool,
}

impl Tier {
    /// Makes a table with this unique `name`.
    ///
    /// # Errors
    /// Why that fails.
    pub(super) fn nft(wish: &Wish, name: String) -> Result<Tier, Lacking> {
        match Nft::open(&name, &wish.scope, &wish.allowed, wish.bans_max) {
            Ok(nft) => Ok(Tier::Nft(nft, name)),
            Err(error) => {
                let why = match error.kind() {
                    io::ErrorKind::PermissionDenied => "weir has no CAP_NET_ADMIN".to_owned(),
                    _ => format!("nftables: {error}"),
                };
                Err(Lacking { why, interface: None, passes: false })
            }
        }
    }

    /// Loads a program into drivers; it replaces `before` if that is also one. `first`: an
    /// interface to try before the others.
    ///
    /// # Errors
    /// Why that fails.
    pub(super) fn xdp(
        wish: &Wish,
        first: Option<&str>,
        before: &mut Option<Tier>,
    ) -> Result<Tier, Lacking> {
        // A card has one program: each takes the place of the previous one.
        let before = match before.take() {
            Some(Tier::Xdp(xdp, _)) => Some(*xdp),
            other => {
                *before = other;
                None
            }
        };
        let ports = match &wish.scope {
            Scope::Ports(ports) => Ports::These(ports),
            Scope::Host => Ports::All,
        };
        // The interface that failed last time is first, so that the others are not disturbed as
        // long as it fails.
        let mut interfaces = wish.interfaces.clone();
        interfaces.sort_by_key(|name| first != Some(name));
        match Xdp::open(&interfaces, ports, &wish.allowed, wish.bans_max, before) {
            Ok(xdp) => Ok(Tier::Xdp(Box::new(xdp), wish.interfaces.clone())),
            Err(error) => {
                let interface = match &error {
                    XdpError::Taken(name) | XdpError::NoInterface(name) => Some(name.clone()),
                    _ => None,
                };
                Err(Lacking {
                    passes: interface.is_some(),
                    interface,
                    why: format!("XDP: {error}"),
                })
            }
        }
    }

    /// Whether it is still in place.
    pub(super) fn is_in_place(&self) -> bool {
        match self {
            Tier::Nft(..) => true,
            Tier::Xdp(xdp, _) => xdp.is_in_place(),
        }
    }

    /// Returns its place, in words.
    pub(super) fn place(&self) -> String {
        match self {
            Tier::Nft(_, name) => format!("table inet {name} of nftables"),
            Tier::Xdp(_, interfaces) => format!("in the driver of {} (XDP)", interfaces.join(", ")),
        }
    }

    /// Returns its word in the status.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Tier::Nft(..) => "nftables",
            Tier::Xdp(..) => "xdp",
        }
    }

    /// Whether expired entries need not be removed.
    pub(super) fn forgets(&self) -> bool {
        matches!(self, Tier::Nft(..))
    }

    /// Blocks these networks. Returns those that it has not taken, and why.
    pub(super) fn add(&mut self, blocks: &[(Network, Duration)]) -> Vec<(Network, io::Error)> {
        match self {
            Tier::Nft(nft, _) => nft.add(blocks),
            Tier::Xdp(xdp, _) => xdp.add(blocks),
        }
    }

    /// Unblocks these networks. Returns those that it could not remove; NotFound: it had no such
    /// entry.
    pub(super) fn remove(&mut self, blocks: &[Network]) -> Vec<(Network, io::Error)> {
        match self {
            Tier::Nft(nft, _) => nft.remove(blocks),
            Tier::Xdp(xdp, _) => xdp.remove(blocks),
        }
    }

    /// Returns the number of dropped packets.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn packets(&mut self) -> io::Result<u64> {
        match self {
            Tier::Nft(nft, _) => nft.dropped().map(|dropped| dropped.packets),
            Tier::Xdp(xdp, _) => xdp.dropped().map(|dropped| dropped.packets),
        }
    }
}
