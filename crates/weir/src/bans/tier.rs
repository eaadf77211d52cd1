//! What in the kernel drops packets: a table of nftables, or a program in the driver of a network card (XDP).
//!
//! Called by `kernel`, which knows who is to stand there.

use std::io;
use std::time::Duration;

use weir_bpf::{Ports, Xdp, XdpError};
use weir_io::nft::{Network, Nft, Scope};

/// What it is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    /// Network cards whose drivers are to drop packets; none: nftables.
    pub(super) interfaces: Vec<String>,
    pub(super) scope: Scope,
    /// Whose packets are never dropped; none of them lies in another.
    pub(super) allowed: Vec<Network>,
    pub(super) bans_max: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) enum Tier {
    Nft(Nft, String),
    Xdp(Box<Xdp>, Vec<String>),
}

/// Why there is none.
#[derive(Debug)]
pub(super) struct Lacking {
    pub(super) why: String,
    /// The interface that it is for.
    pub(super) interface: Option<String>,
    /// It may be had later: somebody else has what it needs.
    pub(super) passes: bool,
}

impl Tier {
    /// A table that is called `name`, which nobody else has.
    ///
    /// # Errors
    /// Why there is none.
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

    /// A program in drivers, in place of one before if that is one, too. `first`: an interface that is tried before the others.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn xdp(wish: &Wish, first: Option<&str>, before: &mut Option<Tier>) -> Result<Tier, Lacking> {
        // A card has one program: its place passes from one to the next.
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
        // What failed the last time is tried first: the others are left in peace as long as it does.
        let mut interfaces = wish.interfaces.clone();
        interfaces.sort_by_key(|name| first != Some(name));
        match Xdp::open(&interfaces, ports, &wish.allowed, wish.bans_max, before) {
            Ok(xdp) => Ok(Tier::Xdp(Box::new(xdp), wish.interfaces.clone())),
            Err(error) => {
                let interface = match &error {
                    XdpError::Taken(name) | XdpError::NoInterface(name) => Some(name.clone()),
                    _ => None,
                };
                Err(Lacking { passes: interface.is_some(), interface, why: format!("XDP: {error}") })
            }
        }
    }

    /// Whether it is still where it was put.
    pub(super) fn is_in_place(&self) -> bool {
        match self {
            Tier::Nft(..) => true,
            Tier::Xdp(xdp, _) => xdp.is_in_place(),
        }
    }

    /// Where it is, in words.
    pub(super) fn place(&self) -> String {
        match self {
            Tier::Nft(_, name) => format!("table inet {name} of nftables"),
            Tier::Xdp(_, interfaces) => format!("in the driver of {} (XDP)", interfaces.join(", ")),
        }
    }

    /// The word that status has for it.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Tier::Nft(..) => "nftables",
            Tier::Xdp(..) => "xdp",
        }
    }

    /// Whether whoever's time is up needs not be taken out.
    pub(super) fn forgets(&self) -> bool {
        matches!(self, Tier::Nft(..))
    }

    /// Blocks these. Returns whom it has not taken, and why.
    pub(super) fn add(&mut self, blocks: &[(Network, Duration)]) -> Vec<(Network, io::Error)> {
        match self {
            Tier::Nft(nft, _) => nft.add(blocks),
            Tier::Xdp(xdp, _) => xdp.add(blocks),
        }
    }

    /// Blocks these no more. Returns whom it could not take out; NotFound: he was not there.
    pub(super) fn remove(&mut self, blocks: &[Network]) -> Vec<(Network, io::Error)> {
        match self {
            Tier::Nft(nft, _) => nft.remove(blocks),
            Tier::Xdp(xdp, _) => xdp.remove(blocks),
        }
    }

    /// Packets that it has dropped.
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
