//! The kernel's part in bans: whoever is banned stands in a table of nftables, too, and his packets are dropped in front of everything else
//! (docs/semantics.md §22).
//!
//! Called by the keeper's thread alone, which has the right to it. Whom the kernel does not take, the workers turn away as before; nothing here is
//! ever an error for clients. Bound: `bans-max` of the configuration, and what the kernel grants.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::time::Duration;

use weir_io::nft::{Network, Nft, Scope};
use weir_proxy::plan::{BanPlan, BanScope, Location, Plan};
use weir_proxy::shield::bans::Block;

use super::exempt::Exempt;

/// What a table is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    scope: Scope,
    /// Whose packets are never dropped; none of them lies in another.
    allowed: Vec<Network>,
    bans_max: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// The table, and what it was made for.
    table: Option<(Nft, Wish)>,
    /// Tables made so far.
    tables: u32,
    /// Why there is none although it is wished: for which wish, and why. It is not tried again for the same.
    failed: Option<(Wish, String)>,
    /// Who stands in it, and until when (seconds since 1970).
    known: HashMap<Block, u64>,
    /// Packets that tables before this one have dropped, and this one.
    packets: (u64, u64),
}

/// How the kernel takes part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// Bans that it knows; None: it takes none.
    pub(crate) bans: Option<u64>,
    /// Bans that it has not taken.
    pub(crate) refused: u64,
    /// Packets that it has dropped.
    pub(crate) packets: u64,
    /// Why it takes no part, or has not taken the last of those.
    pub(crate) problem: Option<String>,
}

impl Wish {
    /// What a plan wishes of the kernel; None: nothing.
    pub(super) fn of(plan: &Plan, exempt: &[Exempt]) -> Option<Wish> {
        let usual = BanPlan::default();
        let ban = plan.shield.as_ref().and_then(|shield| shield.ban.as_ref()).unwrap_or(&usual);
        if !ban.in_kernel {
            return None;
        }
        let port = |address: &Location| match address {
            Location::Network(address) => Some(address.port()).filter(|port| *port > 0),
            _ => None,
        };
        let mut ports: Vec<u16> = plan.listeners.iter().filter_map(|listener| port(&listener.address)).collect();
        ports.sort_unstable();
        ports.dedup();
        let scope = match ban.scope {
            BanScope::Listeners => Scope::Ports(ports),
            BanScope::Host => Scope::Host,
        };
        let allowed = outermost(exempt.iter().map(|(block, _)| *block));
        let bans_max = u32::try_from(ban.bans_max).unwrap_or(u32::MAX);
        Some(Wish { scope, allowed: allowed.into_iter().map(network).collect(), bans_max })
    }
}

impl Kernel {
    /// Makes the table as it is wished, or takes it away. What is to be told of that.
    pub(super) fn prepare(&mut self, wish: Option<Wish>) -> Option<String> {
        let Some(wish) = wish else {
            (self.table, self.failed) = (None, None);
            return None;
        };
        let is_it = self.table.as_ref().is_some_and(|(_, made_for)| *made_for == wish);
        if is_it || self.failed.as_ref().is_some_and(|(failed, _)| *failed == wish) {
            return None;
        }
        let name = format!("weir-{}-{}", std::process::id(), self.tables);
        self.tables += 1;
        self.known.clear();
        self.packets = (self.packets.0 + self.packets.1, 0);
        let was_there = self.table.is_some();
        match Nft::open(&name, &wish.scope, &wish.allowed, wish.bans_max) {
            Ok(nft) => {
                self.failed = None;
                // The old one goes when the new one is there; what stood in it follows.
                self.table = Some((nft, wish));
                (!was_there)
                    .then(|| format!("the kernel drops packets of who is banned: table inet {name} of nftables"))
            }
            Err(error) => {
                self.table = None;
                let why = match error.kind() {
                    ErrorKind::PermissionDenied => "weir has no CAP_NET_ADMIN".to_owned(),
                    _ => format!("nftables: {error}"),
                };
                let told = format!("bans are kept by weir alone, which resets who is banned when he connects: {why}");
                let is_new = self.failed.as_ref().is_none_or(|(_, before)| *before != why);
                self.failed = Some((wish, why));
                is_new.then_some(told)
            }
        }
    }

    /// Whether it takes part.
    pub(super) fn is_there(&self) -> bool {
        self.table.is_some()
    }

    /// Makes the table what is to be in force, each until then (microseconds since 1970).
    pub(super) fn follow(&mut self, in_force: &HashMap<Block, u64>, now_us: u64) -> Part {
        let Some((nft, _)) = &mut self.table else {
            let problem = self.failed.as_ref().map(|(_, why)| why.clone());
            return Part { packets: self.packets.0 + self.packets.1, problem, ..Part::default() };
        };
        let left = |until_s: u64| until_s.saturating_mul(1_000_000).saturating_sub(now_us);
        // A network in another one has no place beside it.
        let wanted: HashMap<Block, u64> =
            outermost(in_force.keys().copied()).into_iter().map(|block| (block, in_force[&block])).collect();
        self.known.retain(|_, until_s| left(*until_s) > 0);
        let gone = self.known.iter().filter(|(block, until_s)| wanted.get(block) != Some(until_s));
        let gone: Vec<Block> = gone.map(|(block, _)| *block).collect();
        let networks: Vec<Network> = gone.iter().map(|block| network(*block)).collect();
        // What is not there any more has ended a moment ago.
        let mut failed = nft.remove(&networks);
        failed.retain(|(_, error)| error.kind() != ErrorKind::NotFound);
        for block in &gone {
            self.known.remove(block);
        }
        let new = wanted.iter().filter(|(block, until_s)| left(**until_s) > 0 && !self.known.contains_key(block));
        let new: Vec<(Block, u64)> = new.map(|(block, until_s)| (*block, *until_s)).collect();
        let timed = new.iter().map(|(block, until_s)| (network(*block), Duration::from_micros(left(*until_s))));
        let refused = nft.add(&timed.collect::<Vec<_>>());
        let not: HashSet<Network> = refused.iter().map(|(network, _)| *network).collect();
        self.known.extend(new.into_iter().filter(|(block, _)| !not.contains(&network(*block))));
        let problem = failed.iter().chain(&refused).next().map(|(_, error)| format!("nftables: {error}"));
        self.packets.1 = nft.dropped().map_or(self.packets.1, |dropped| dropped.packets);
        let packets = self.packets.0 + self.packets.1;
        Part { bans: Some(self.known.len() as u64), refused: refused.len() as u64, packets, problem }
    }
}

fn network(block: Block) -> Network {
    (block.address(), block.prefix())
}

/// Those that lie in none of the others.
fn outermost(blocks: impl Iterator<Item = Block>) -> Vec<Block> {
    let mut blocks: Vec<Block> = blocks.collect();
    // A network stands in front of all that lies in it.
    blocks.sort_unstable_by_key(|block| (block.address(), block.prefix()));
    blocks.dedup_by(|block, before| before.meets(*block));
    blocks
}

#[cfg(test)]
mod tests {
    //! Proves: what lies in another has no place beside it, and a wish names what a plan does. How: by hand; what the kernel makes of it is tested in
    //! `weir_io::nft` and end to end.

    use super::*;

    fn block(text: &str) -> Block {
        Block::read(text, 32, 128).expect("a block")
    }

    #[test]
    fn what_lies_in_another_one_goes() {
        let all = [
            "10.1.0.0/16",
            "10.0.0.0/8",
            "10.0.0.0/32",
            "11.0.0.1",
            "2001:db8::/32",
            "2001:db8::1",
            "::1",
            "10.0.0.0/8",
        ];
        let kept: Vec<String> = outermost(all.iter().map(|text| block(text))).iter().map(ToString::to_string).collect();
        assert_eq!(kept, ["10.0.0.0/8", "11.0.0.1", "::1/128", "2001:db8::/32"]);
    }

    #[test]
    fn what_a_plan_wishes() {
        let wish = |ban: &str| {
            let text = format!(
                "listen \"127.0.0.1:8080\"\nlisten \"[::1]:8080\"\nlisten \"127.0.0.1:443\"\nlisten \"unix:/run/w.sock\"\nupstream \"a\" {{ server \"10.0.0.1:80\"; }}\nroute {{ proxy \"a\"; }}\nshield {{ limit \"o\" count=\"open\" max=1; {ban} }}\n"
            );
            let plan = weir_config::parse(&text, "weir.kdl").expect("valid").plan;
            Wish::of(&plan, &[(block("127.0.0.0/8"), "a"), (block("127.0.0.1"), "b")])
        };
        let expected = |scope| Wish { scope, allowed: vec![([127, 0, 0, 0].into(), 8)], bans_max: 64 };
        assert_eq!(wish("ban bans-max=64"), Some(expected(Scope::Ports(vec![443, 8080]))));
        assert_eq!(wish("ban bans-max=64 scope=\"host\""), Some(expected(Scope::Host)));
        assert_eq!(wish("ban via=\"user\""), None);
        assert!(wish("").is_some(), "operators ban without `ban`, too");
    }
}
