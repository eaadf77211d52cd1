//! The kernel's part in bans: a kernel table ([`Tier`]) also lists banned clients, and the kernel
//! drops their packets before anything else handles them (docs/bans.md).
//!
//! Called only by the keeper's thread, which has the privilege for it. Workers reject the clients
//! that the kernel does not take, as before; nothing here is ever an error for clients. A long list
//! without changes costs nothing. The exception is networks of an unusual length: weir compares
//! them, because no network in the table may contain another. Bound: `bans-max` of the
//! configuration, and what the kernel grants.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use weir_io::nft::{Network, Scope, stands_alone};
use weir_proxy::plan::{BanPlan, BanScope, BanVia, Location, Plan};
use weir_proxy::shield::bans::Block;

use super::exempt::Exempt;
use super::tier::{Tier, Wish};

/// Changes sent to the kernel at a time.
const BATCH_MAX: usize = 1024;

/// Time before another try after a failure that may be temporary.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// The table, and what it was made for.
    table: Option<Tier>,
    /// Tables made so far.
    tables: u32,
    tried: Option<Tried>,
    /// How packets are dropped, and why not in the configured way, as last reported.
    told: Option<(Option<&'static str>, String)>,
    stand: Standing,
    /// Packets dropped by earlier tables, and by the present table.
    packets: (u64, u64),
}

/// The last wish.
#[derive(Debug)]
struct Tried {
    wish: Wish,
    /// Why the table is missing, or not as wished.
    lacking: Option<String>,
    /// Earliest time of another try, and which interface it begins with.
    again_at: Option<Instant>,
    first: Option<String>,
}

/// The entries of a table. Times are seconds since 1970.
#[derive(Debug, Default)]
struct Standing {
    /// The table removes expired entries automatically.
    forgets: bool,
    /// Hosts, and networks of the usual length of IPv6.
    hosts: BTreeSet<Block>,
    /// Other networks, and when their bans end.
    networks: BTreeMap<Block, u64>,
    /// All other networks that are banned, including those within another one.
    banned: BTreeMap<Block, u64>,
    /// Blocks that the kernel has not taken, and when their bans end. weir tries them again.
    refused: BTreeMap<Block, u64>,
}

/// The outcome of a wish.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Prepared {
    /// There is another table, still empty.
    pub(super) is_new: bool,
    pub(super) said: Option<String>,
}

/// How the kernel takes part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// Bans in its table; None: it takes none.
    pub(crate) bans: Option<u64>,
    /// How it drops packets: `nftables`, `xdp`.
    pub(crate) tier: Option<&'static str>,
    /// Bans that it has not taken.
    pub(crate) refused: u64,
    /// Packets that it has dropped.
    pub(crate) packets: u64,
    /// Why it takes no part, or not in the wished way, or has not taken the last of these bans.
    pub(crate) problem: Option<String>,
}

/// What a plan wants the kernel to do; None: nothing.
pub(super) fn wish(plan: &Plan, exempt: &[Exempt]) -> Option<Wish> {
    let usual = BanPlan::default();
    let ban = plan.ban().unwrap_or(&usual);
    let interfaces = match &ban.via {
        BanVia::User => return None,
        BanVia::Nft => Vec::new(),
        BanVia::Xdp(interfaces) => interfaces.iter().map(ToString::to_string).collect(),
    };
    let port = |address: &Location| match address {
        Location::Network(address) => Some(address.port()).filter(|port| *port > 0),
        _ => None,
    };
    let mut ports: Vec<u16> =
        plan.listeners.iter().filter_map(|listener| port(&listener.address)).collect();
    ports.sort_unstable();
    ports.dedup();
    let scope = match ban.scope {
        BanScope::Listeners => Scope::Ports(ports),
        BanScope::Host => Scope::Host,
    };
    let allowed = outermost(exempt.iter().map(|(block, _)| *block));
    let bans_max = u32::try_from(ban.bans_max).unwrap_or(u32::MAX);
    Some(Wish { interfaces, scope, allowed: allowed.into_iter().map(network).collect(), bans_max })
}

impl Kernel {
    /// Makes the wished table, or removes it.
    pub(super) fn prepare(&mut self, wish: Option<Wish>) -> Prepared {
        let Some(wish) = wish else {
            (self.table, self.tried, self.told, self.stand) =
                (None, None, None, Standing::default());
            return Prepared::default();
        };
        let now = Instant::now();
        let is_again = self.tried.as_ref().is_some_and(|tried| tried.wish == wish);
        if is_again
            && self.tried.as_ref().is_some_and(|tried| tried.again_at.is_none_or(|at| now < at))
        {
            return Prepared::default();
        }
        let mut lacking = Vec::new();
        let mut new = match wish.interfaces.is_empty() {
            true => None,
            false => {
                let first = self.tried.as_ref().and_then(|tried| tried.first.as_deref());
                Tier::xdp(&wish, first, &mut self.table).map_err(|why| lacking.push(why)).ok()
            }
        };
        let stays = is_again && self.table.is_some();
        if new.is_none() && !stays {
            let name = format!("weir-{}-{}", std::process::id(), self.tables);
            self.tables += 1;
            new = Tier::nft(&wish, name).map_err(|why| lacking.push(why)).ok();
        }
        let again_at = lacking.iter().any(|it| it.passes).then(|| now + AGAIN_AFTER);
        let why = lacking.iter().map(|it| it.why.as_str()).collect::<Vec<_>>().join("; ");
        let first = lacking.iter().find_map(|it| it.interface.clone());
        self.tried = Some(Tried {
            wish,
            lacking: Some(why.clone()).filter(|why| !why.is_empty()),
            again_at,
            first,
        });
        let is_new = new.is_some();
        if !stays || is_new {
            self.stand = Standing {
                forgets: new.as_ref().is_some_and(Tier::forgets),
                ..Standing::default()
            };
            self.packets = (self.packets.0 + self.packets.1, 0);
            // The old table remains until the new one exists; its entries follow.
            self.table = new;
        }
        Prepared { is_new, said: self.tell(why) }
    }

    /// Returns the message, unless it was the last one too.
    fn tell(&mut self, why: String) -> Option<String> {
        let is = (self.table.as_ref().map(Tier::word), why);
        if self.told.as_ref() == Some(&is) {
            return None;
        }
        let why = &is.1;
        let said = match &self.table {
            Some(table) if why.is_empty() => {
                format!("the kernel drops packets of banned clients: {}", table.place())
            }
            Some(table) => {
                format!("the kernel drops packets of banned clients: {} ({why})", table.place())
            }
            None => {
                format!("weir alone enforces bans, and resets connections of banned clients: {why}")
            }
        };
        self.told = Some(is);
        Some(said)
    }

    /// Whether the kernel takes part.
    pub(super) fn is_there(&self) -> bool {
        self.table.is_some()
    }

    /// Updates the table at `now_us` (microseconds since 1970): blocks with the ends of their bans
    /// (seconds since 1970), which may be over; None: no longer banned.
    pub(super) fn follow(&mut self, changed: Vec<(Block, Option<u64>)>, now_us: u64) -> Part {
        let mut problem = self.tried.as_ref().and_then(|tried| tried.lacking.clone());
        let Some(table) = &mut self.table else {
            return Part { packets: self.packets.0 + self.packets.1, problem, ..Part::default() };
        };
        let changes = self.stand.changes(changed, now_us / 1_000_000);
        for (gone, new) in changes.batches() {
            // A missing entry has expired a moment ago.
            let failed = table
                .remove(gone)
                .into_iter()
                .find(|(_, error)| error.kind() != ErrorKind::NotFound);
            let left = |until_s: u64| {
                Duration::from_micros(until_s.saturating_mul(1_000_000).saturating_sub(now_us))
            };
            let timed: Vec<_> =
                new.iter().map(|(block, until_s)| (network(*block), left(*until_s))).collect();
            let refused = table.add(&timed);
            if let Some((_, error)) = failed.iter().chain(&refused).next() {
                problem = Some(format!("{}: {error}", table.word()));
            }
            let not: HashSet<Network> = refused.into_iter().map(|(network, _)| network).collect();
            new.iter().for_each(|(block, until_s)| {
                self.stand.told(*block, *until_s, !not.contains(&network(*block)))
            });
        }
        self.packets.1 = table.packets().unwrap_or(self.packets.1);
        let tier = Some(table.word());
        // A removed interface may come back as another one.
        if !table.is_in_place() {
            self.tried.iter_mut().for_each(|tried| tried.again_at = Some(Instant::now()));
        }
        let packets = self.packets.0 + self.packets.1;
        let bans = (self.stand.hosts.len() + self.stand.networks.len()) as u64;
        Part { bans: Some(bans), tier, refused: self.stand.refused.len() as u64, packets, problem }
    }
}

/// Entries to remove from a table first, and entries to add then, with their ends.
#[derive(Debug, Default)]
struct Changes {
    gone: Vec<Network>,
    new: Vec<(Block, u64)>,
}

impl Changes {
    /// Returns the changes in batches: all removals before any additions.
    fn batches(&self) -> impl Iterator<Item = (&[Network], &[(Block, u64)])> {
        let gone = self.gone.chunks(BATCH_MAX).map(|gone| (gone, &[][..]));
        gone.chain(self.new.chunks(BATCH_MAX).map(|new| (&[][..], new)))
    }
}

impl Standing {
    /// Works out the changes. The time is seconds since 1970.
    fn changes(&mut self, changed: Vec<(Block, Option<u64>)>, now_s: u64) -> Changes {
        let mut changes = Changes::default();
        let mut has_networks = false;
        for (block, _) in &changed {
            self.refused.remove(block);
        }
        let again = std::mem::take(&mut self.refused)
            .into_iter()
            .map(|(block, until_s)| (block, Some(until_s)));
        for (block, until_s) in again.chain(changed) {
            let in_force = until_s.filter(|until_s| *until_s > now_s);
            if !stands_alone(network(block)) {
                has_networks = true;
                match in_force {
                    Some(until_s) => drop(self.banned.insert(block, until_s)),
                    None => drop(self.banned.remove(&block)),
                }
                continue;
            }
            let has_gone = self.forgets && in_force.is_none() && until_s.is_some();
            if self.hosts.remove(&block) && !has_gone {
                changes.gone.push(network(block));
            }
            changes.new.extend(in_force.map(|until_s| (block, until_s)));
        }
        if has_networks {
            self.compare_networks(&mut changes, now_s);
        }
        changes
    }

    /// Works out the changes of networks: the table has no network within another one.
    fn compare_networks(&mut self, changes: &mut Changes, now_s: u64) {
        let wanted: BTreeMap<Block, u64> = outermost(self.banned.keys().copied())
            .into_iter()
            .map(|block| (block, self.banned[&block]))
            .collect();
        let forgets = self.forgets;
        self.networks.retain(|block, until_s| {
            let stays = wanted.get(block) == Some(until_s);
            let has_gone = forgets && *until_s <= now_s;
            if !stays && !has_gone {
                changes.gone.push(network(*block));
            }
            stays
        });
        let new = wanted.into_iter().filter(|(block, _)| !self.networks.contains_key(block));
        changes.new.extend(new);
    }

    /// Notes whether the kernel has taken a ban.
    fn told(&mut self, block: Block, until_s: u64, is_taken: bool) {
        if !is_taken {
            self.refused.insert(block, until_s);
        } else if stands_alone(network(block)) {
            self.hosts.insert(block);
        } else {
            self.networks.insert(block, until_s);
        }
    }
}

fn network(block: Block) -> Network {
    (block.address(), block.prefix())
}

/// Returns the blocks that are in none of the others.
fn outermost(blocks: impl Iterator<Item = Block>) -> Vec<Block> {
    let mut blocks: Vec<Block> = blocks.collect();
    // A network sorts before everything in it.
    blocks.sort_unstable_by_key(|block| (block.address(), block.prefix()));
    blocks.dedup_by(|block, before| before.meets(*block));
    blocks
}

#[cfg(test)]
mod tests {
    //! Proves: a network within another has no entry, a wish matches its plan, and a table that
    //! gets only changes has the right entries. How: by hand, and random changes to a model of a
    //! table that refuses some; what the kernel makes of it is tested in `weir_io::nft` and end to
    //! end.

    use proptest::prelude::*;

    use super::*;

    /// Carries changes out as the kernel would: it takes no entry within another, and removes only
    /// entries that exist.
    fn carry_out(
        standing: &mut Standing,
        (table, swept): (&mut BTreeMap<Block, u64>, &[Block]),
        changes: &Changes,
        refuses: impl Fn(Block) -> bool,
    ) {
        for (gone, new) in changes.batches() {
            for (address, prefix) in gone {
                let block = Block::of(*address, *prefix).expect("a block");
                assert!(
                    table.remove(&block).is_some() || swept.contains(&block),
                    "{block} was not there"
                );
            }
            for (block, until_s) in new {
                let is_taken = !refuses(*block);
                if is_taken {
                    let meets =
                        |other: &Block| !stands_alone(network(*other)) && other.meets(*block);
                    assert!(
                        stands_alone(network(*block)) || !table.keys().any(meets),
                        "{block} has no place"
                    );
                    assert_eq!(table.insert(*block, *until_s), None, "{block} was there");
                }
                standing.told(*block, *until_s, is_taken);
            }
        }
    }

    proptest! {
        #[test]
        fn changes_make_a_table_what_it_should_be(
            forgets in any::<bool>(),
            steps in prop::collection::vec(
                (
                    prop::collection::vec((0u8..12, 0u8..6, 0u64..9), 0..6),
                    0u64..4,
                    any::<bool>()
                ),
                1..40
            ),
        ) {
            let (mut standing, mut table) =
                (Standing { forgets, ..Standing::default() }, BTreeMap::new());
            let (mut bans, mut now_s) = (BTreeMap::<Block, u64>::new(), 1000);
            for (told, wait_s, refuses) in steps {
                let before_s = now_s;
                now_s += wait_s;
                // It removes expired entries.
                let swept: Vec<Block> = table
                    .extract_if(.., |_, until_s| forgets && *until_s <= now_s)
                    .map(|(block, _)| block)
                    .collect();
                let mut changed = BTreeSet::new();
                for (who, kind, for_s) in told {
                    let written = match kind {
                        0 => format!("10.0.{who}.0/28"),
                        1 => format!("10.0.{}.0/20", who & 0xf0),
                        2 => format!("2001:db8:0:{who}::/64"),
                        3 => format!("2001:db8:0:{}::/62", who & 0xfc),
                        _ => format!("10.0.{who}.{who}"),
                    };
                    let block = block(&written);
                    changed.insert(block);
                    if for_s == 0 {
                        bans.remove(&block);
                    } else {
                        bans.insert(block, now_s + for_s);
                    }
                }
                changed.extend(
                    bans.iter()
                        .filter(|(_, until_s)| (before_s + 1..=now_s).contains(*until_s))
                        .map(|(block, _)| *block),
                );
                let told =
                    changed.into_iter().map(|block| (block, bans.get(&block).copied())).collect();
                let changes = standing.changes(told, now_s);
                carry_out(&mut standing, (&mut table, &swept), &changes, |block| {
                    refuses && block.address().is_ipv4()
                });
                if !refuses {
                    let in_force: BTreeMap<Block, u64> = bans
                        .iter()
                        .filter(|(_, until_s)| **until_s > now_s)
                        .map(|(block, until_s)| (*block, *until_s))
                        .collect();
                    let (alone, networks): (Vec<Block>, Vec<Block>) =
                        in_force.keys().partition(|block| stands_alone(network(**block)));
                    let wanted: BTreeMap<Block, u64> = alone
                        .into_iter()
                        .chain(outermost(networks.into_iter()))
                        .map(|block| (block, in_force[&block]))
                        .collect();
                    prop_assert_eq!(&table, &wanted);
                    prop_assert_eq!(standing.hosts.len() + standing.networks.len(), table.len());
                }
            }
        }
    }

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
        let kept: Vec<String> =
            outermost(all.iter().map(|text| block(text))).iter().map(ToString::to_string).collect();
        assert_eq!(kept, ["10.0.0.0/8", "11.0.0.1", "::1/128", "2001:db8::/32"]);
    }

    #[test]
    fn what_a_plan_wishes() {
        let wish = |ban: &str| {
            let text = format!(
                "listen \"127.0.0.1:8080\"\nlisten \"[::1]:8080\"\nlisten \"127.0.0.1:443\"\n\
                    listen \"unix:/run/w.sock\"\nupstream \"a\" {{ server \"10.0.0.1:80\"; }}\n\
                    route {{ proxy \"a\"; }}\n\
                    shield {{ limit \"o\" count=\"open\" max=1; {ban} }}\n"
            );
            let plan = weir_config::parse(&text, "weir.kdl").expect("valid").plan;
            super::wish(&plan, &[(block("127.0.0.0/8"), "a"), (block("127.0.0.1"), "b")])
        };
        let expected = |scope| Wish {
            interfaces: vec![],
            scope,
            allowed: vec![([127, 0, 0, 0].into(), 8)],
            bans_max: 64,
        };
        assert_eq!(wish("ban bans-max=64"), Some(expected(Scope::Ports(vec![443, 8080]))));
        assert_eq!(wish("ban bans-max=64 scope=\"host\""), Some(expected(Scope::Host)));
        let by_driver = Wish {
            interfaces: vec!["eth0".to_owned(), "eth1".to_owned()],
            ..expected(Scope::Host)
        };
        assert_eq!(
            wish("ban bans-max=64 scope=\"host\" via=\"xdp\" { interface \"eth0\" \"eth1\"; }"),
            Some(by_driver)
        );
        assert_eq!(wish("ban via=\"user\""), None);
        assert!(wish("").is_some(), "operators ban without `ban`, too");
    }
}
