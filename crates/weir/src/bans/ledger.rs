//! The list of bans: which addresses are banned and until when, how often that happened, and which
//! must never be banned. Pure: times are arguments, seconds of the wall clock, because the list
//! outlives the process and a reboot of the machine.
//!
//! Called by the keeper (`bans`). A ban is over at its end, even before it is removed from the
//! list. It is remembered for as long as it makes the next one longer. Bound: [`Terms::bans_max`]
//! in all; one more replaces the entry that ends first, or has ended.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use weir_proxy::shield::bans::Block;

/// The configuration of bans. Times are seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Length of the first ban.
    pub(crate) for_s: u64,
    /// Factor by which each further ban is longer, 1 or more.
    pub(crate) grow: u32,
    /// Longest ban, and how long a ban counts after its end.
    pub(crate) max_s: u64,
    /// Largest number of bans at a time.
    pub(crate) bans_max: usize,
}

/// A ban, in force or over. It is small because there are many: times are seconds since 1970 up to
/// the year 2106, and reasons are shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ban {
    pub(super) since: u32,
    pub(super) until: u32,
    /// Number of bans so far, the present ban included.
    pub(crate) count: u32,
    /// An operator insisted on it although the address is exempt from bans.
    pub(crate) forced: bool,
    /// A trusted proxy has named this client, so the ban does not apply to packets from this
    /// address.
    pub(crate) forwarded: bool,
    pub(super) reason: Arc<String>,
}

const _: () = assert!(size_of::<(Block, Ban)>() <= 48);

impl Ban {
    /// A first ban, in seconds since 1970, with the reason for people: the exceeded limit, or the
    /// text of an operator.
    pub(crate) fn new(since_s: u64, until_s: u64, reason: impl Into<String>) -> Ban {
        let reason = Arc::new(reason.into());
        Ban {
            since: stored(since_s),
            until: stored(until_s),
            count: 1,
            forced: false,
            forwarded: false,
            reason,
        }
    }

    /// Returns when it began.
    pub(crate) fn since_s(&self) -> u64 {
        self.since.into()
    }

    /// Returns when it ends; it is over from that second on.
    pub(crate) fn until_s(&self) -> u64 {
        self.until.into()
    }

    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether packets from the banned address may be dropped.
    pub(crate) fn is_for_packets(&self) -> bool {
        !self.forwarded && !self.forced
    }
}

fn stored(seconds: u64) -> u32 {
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// Why a client is not banned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spared {
    /// The configuration exempts it, or no ban may apply to it.
    Allowed,
    /// It already has a longer ban.
    Banned,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    bans: BTreeMap<Block, Ban>,
    /// The same bans by their ends.
    by_end: BTreeSet<(u32, Block)>,
    /// Reasons of bans, each once, and how many were in use at the last check.
    reasons: HashSet<Arc<String>>,
    reasons_used: usize,
    /// Blocks whose bans have begun, changed or ended since the last call that took them, and the
    /// last second whose ends are included. None: not watched.
    changed: Option<BTreeSet<Block>>,
    noted_s: u64,
    /// Blocks that are never banned, nor any block that contains part of one.
    allowed: Vec<Block>,
    /// Bans that were displaced before their end.
    pub(crate) displaced: u64,
}

impl Ledger {
    /// Exempts these blocks from now on, except from bans on which an operator insisted. Returns
    /// the blocks whose bans this ends.
    pub(crate) fn allow(&mut self, allowed: Vec<Block>, now_s: u64) -> Vec<Block> {
        self.allowed = allowed;
        let wrong =
            |ledger: &Ledger, block: Block, ban: &Ban| !ban.forced && !ledger.may_ban(block);
        let freed = self
            .in_force(now_s)
            .filter(|(block, ban)| wrong(self, *block, ban))
            .map(|(block, _)| block)
            .collect();
        self.remove_all(wrong);
        freed
    }

    /// Whether no part of the block is exempt from bans.
    pub(crate) fn may_ban(&self, block: Block) -> bool {
        !self.allowed.iter().any(|allowed| allowed.meets(block))
    }

    /// Bans a client that exceeded a limit, each time for longer. Returns the length in seconds,
    /// and the block that this displaces.
    pub(crate) fn offended(
        &mut self,
        block: Block,
        (reason, forwarded): (&str, bool),
        terms: &Terms,
        now_s: u64,
    ) -> Result<(u64, Option<Block>), Spared> {
        if !self.may_ban(block) {
            return Err(Spared::Allowed);
        }
        let before =
            self.bans.get(&block).filter(|ban| ban.until_s().saturating_add(terms.max_s) > now_s);
        let count = before.map_or(0, |ban| ban.count);
        let factor = u64::from(terms.grow.max(1)).saturating_pow(count);
        let for_s = terms.for_s.saturating_mul(factor).min(terms.max_s).max(1);
        let until_s = now_s.saturating_add(for_s);
        if before.is_some_and(|ban| ban.until_s() > now_s || ban.until_s() >= until_s) {
            return Err(Spared::Banned);
        }
        let ban =
            Ban { count: count.saturating_add(1), forwarded, ..Ban::new(now_s, until_s, reason) };
        Ok((for_s, self.put(block, ban, terms, now_s)))
    }

    /// Bans a block for this many seconds at an operator's request, even if it is exempt.
    pub(crate) fn insist(
        &mut self,
        block: Block,
        for_s: u64,
        reason: &str,
        terms: &Terms,
        now_s: u64,
    ) -> (u64, Option<Block>) {
        let (for_s, count) = (for_s.max(1), self.bans.get(&block).map_or(1, |ban| ban.count));
        let (until_s, forced) = (now_s.saturating_add(for_s), !self.may_ban(block));
        let ban = Ban { count, forced, ..Ban::new(now_s, until_s, reason) };
        (for_s, self.put(block, ban, terms, now_s))
    }

    /// Replaces the block's ban. Returns the block that this displaces.
    fn put(&mut self, block: Block, mut ban: Ban, terms: &Terms, now_s: u64) -> Option<Block> {
        self.take(block);
        let way = self.make_room(terms, now_s);
        self.share_reason(&mut ban);
        self.note(block);
        self.by_end.insert((ban.until, block));
        self.bans.insert(block, ban);
        way
    }

    /// Removes the ban that ends first if the list is full: bans that are over before any other.
    fn make_room(&mut self, terms: &Terms, now_s: u64) -> Option<Block> {
        if self.bans.len() < terms.bans_max {
            return None;
        }
        self.pop(now_s)
    }

    /// Removes the ban that ends first. Returns its block if the ban was still in force.
    fn pop(&mut self, now_s: u64) -> Option<Block> {
        let (until, first) = self.by_end.pop_first()?;
        self.bans.remove(&first);
        let was_in_force = u64::from(until) > now_s;
        self.note(first);
        self.displaced += u64::from(was_in_force);
        was_in_force.then_some(first)
    }

    /// Ends all bans within a block and forgets them. Returns those that were in force.
    pub(crate) fn forgive(&mut self, of: Option<Block>, now_s: u64) -> Vec<Block> {
        let is_meant =
            |block: &Block| of.is_none_or(|of| of.prefix() <= block.prefix() && of.meets(*block));
        let freed =
            self.in_force(now_s).map(|(block, _)| block).filter(|block| is_meant(block)).collect();
        self.remove_all(|_, block, _| is_meant(&block));
        freed
    }

    fn remove_all(&mut self, is_meant: impl Fn(&Ledger, Block, &Ban) -> bool) {
        let meant = self.bans.iter().filter(|(block, ban)| is_meant(self, **block, ban));
        let gone: Vec<Block> = meant.map(|(block, _)| *block).collect();
        gone.into_iter().for_each(|block| drop(self.take(block)));
    }

    /// Forgets bans that no longer count, and those that exceed the limit.
    pub(crate) fn forget(&mut self, terms: &Terms, now_s: u64) {
        while let Some((until, _)) = self.by_end.first()
            && (u64::from(*until).saturating_add(terms.max_s) <= now_s
                || self.bans.len() > terms.bans_max)
        {
            self.pop(now_s);
        }
        if self.reasons.len() > 2 * self.reasons_used.max(8) {
            self.reasons.retain(|reason| Arc::strong_count(reason) > 1);
            self.reasons_used = self.reasons.len();
        }
    }

    fn take(&mut self, block: Block) -> Option<Ban> {
        let ban = self.bans.remove(&block)?;
        self.by_end.remove(&(ban.until, block));
        self.note(block);
        Some(ban)
    }

    fn share_reason(&mut self, ban: &mut Ban) {
        match self.reasons.get(&ban.reason) {
            Some(reason) => ban.reason = Arc::clone(reason),
            None => drop(self.reasons.insert(Arc::clone(&ban.reason))),
        }
    }

    fn note(&mut self, block: Block) {
        if let Some(changed) = &mut self.changed {
            changed.insert(block);
        }
    }

    /// Starts or stops noting which bans change.
    pub(crate) fn watch(&mut self, is_watched: bool, now_s: u64) {
        if is_watched != self.changed.is_some() {
            self.changed = is_watched.then(BTreeSet::new);
            self.noted_s = now_s;
        }
    }

    /// Adds saved bans, except those that no longer count, are shorter than the present one, or
    /// meet an exempt block.
    pub(crate) fn restore(&mut self, mut saved: Vec<(Block, Ban)>, terms: &Terms, now_s: u64) {
        let counts = |ban: &Ban| ban.until_s().saturating_add(terms.max_s) > now_s;
        saved.retain(|(block, ban)| counts(ban) && (ban.forced || self.may_ban(*block)));
        if self.bans.is_empty() && saved.len() <= terms.bans_max {
            // A tree made from all of them at once is half as large as one filled in their order.
            saved.iter_mut().for_each(|(_, ban)| self.share_reason(ban));
            saved.sort_by_key(|(block, ban)| (*block, ban.until));
            self.bans = saved.into_iter().collect();
            self.by_end = self.bans.iter().map(|(block, ban)| (ban.until, *block)).collect();
            if let Some(changed) = &mut self.changed {
                changed.extend(self.bans.keys());
            }
            return;
        }
        for (block, ban) in saved {
            if self.bans.get(&block).is_none_or(|other| other.until <= ban.until) {
                self.put(block, ban, terms, now_s);
            }
        }
    }

    /// Returns all bans by their ends, including those that are over and still count.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Block, &Ban)> {
        self.by_end.iter().filter_map(|(_, block)| Some((*block, self.bans.get(block)?)))
    }

    /// Returns the same in the order of blocks, starting behind one.
    pub(crate) fn behind(&self, block: Option<Block>) -> impl Iterator<Item = (Block, &Ban)> {
        let begin = block.map_or(Bound::Unbounded, Bound::Excluded);
        self.bans.range((begin, Bound::Unbounded)).map(|(block, ban)| (*block, ban))
    }

    /// Returns the bans in force, in the order of blocks.
    pub(crate) fn in_force(&self, now_s: u64) -> impl Iterator<Item = (Block, &Ban)> {
        self.behind(None).filter(move |(_, ban)| ban.until_s() > now_s)
    }

    /// Whether any ban is in force.
    pub(crate) fn has_some(&self, now_s: u64) -> bool {
        self.by_end.last().is_some_and(|(until, _)| u64::from(*until) > now_s)
    }

    /// Returns the blocks whose bans have begun, changed or ended since the last call, each with
    /// its ban, which may be over. Returns none unless changes are [watched](Ledger::watch).
    pub(crate) fn take_changed(
        &mut self,
        now_s: u64,
    ) -> impl Iterator<Item = (Block, Option<&Ban>)> {
        let at = |second: u64| (stored(second.saturating_add(1)), Block::LEAST);
        let mut changed = self.changed.as_mut().map(std::mem::take).unwrap_or_default();
        if self.changed.is_some() && self.noted_s < now_s {
            changed.extend(self.by_end.range(at(self.noted_s)..at(now_s)).map(|(_, block)| *block));
        }
        // The wall clock may have been set back.
        self.noted_s = now_s;
        changed.into_iter().map(|block| (block, self.bans.get(&block)))
    }

    /// Returns the ban of a block, even one that is over and still counts.
    pub(crate) fn get(&self, block: Block) -> Option<&Ban> {
        self.bans.get(&block)
    }

    /// Returns the number of bans, including those that are over and still count.
    pub(crate) fn len(&self) -> usize {
        self.bans.len()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: bans end by comparison, grow, and are bounded; no ban ever meets an exempt block;
    //! bans are restored as they were saved. How: tables, and random steps with invariants checked
    //! after each.

    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms { for_s: 600, grow: 2, max_s: 86_400, bans_max: 4 };
    const NOW_S: u64 = 1_000_000;

    fn block(text: &str) -> Block {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        Block::of(address.parse().unwrap(), prefix.parse().unwrap()).unwrap()
    }

    fn in_force(ledger: &Ledger, now_s: u64) -> Vec<Block> {
        let mut blocks: Vec<Block> = ledger.in_force(now_s).map(|(block, _)| block).collect();
        blocks.sort_unstable();
        blocks
    }

    #[test]
    fn each_ban_is_longer_until_it_is_forgotten() {
        let (mut ledger, mut now_s) = (Ledger::default(), NOW_S);
        for expected in [600, 1200, 2400, 4800, 9600, 19_200, 38_400, 76_800, 86_400, 86_400] {
            assert_eq!(
                ledger.offended(block("192.0.2.1"), ("rate", false), &TERMS, now_s),
                Ok((expected, None))
            );
            assert_eq!(in_force(&ledger, now_s + expected - 1), [block("192.0.2.1")]);
            now_s += expected;
            assert_eq!(in_force(&ledger, now_s), [], "it ends by itself");
        }
        now_s += TERMS.max_s;
        assert_eq!(
            ledger.offended(block("192.0.2.1"), ("rate", false), &TERMS, now_s),
            Ok((600, None)),
            "it is forgotten"
        );
        let ban = ledger.get(block("192.0.2.1")).unwrap();
        assert_eq!(
            (ban.since_s(), ban.until_s(), ban.count, ban.reason()),
            (now_s, now_s + 600, 1, "rate")
        );
    }

    #[test]
    fn numbers_have_ends() {
        let mut ledger = Ledger::default();
        let terms = Terms { for_s: u64::MAX, grow: u32::MAX, max_s: u64::MAX, bans_max: 1 };
        // Seconds since 1970 end in 2106.
        let last_s = u64::from(u32::MAX) - 1;
        for _ in 0..3 {
            assert!(ledger.offended(block("192.0.2.1"), ("", false), &terms, last_s).is_ok());
            assert!(
                ledger.offended(block("192.0.2.1"), ("", false), &terms, last_s).is_err(),
                "it can't be longer"
            );
            assert_eq!(ledger.insist(block("192.0.2.2"), u64::MAX, "", &terms, 7).0, u64::MAX);
        }
        let none = Terms { for_s: 0, grow: 0, max_s: 0, bans_max: 1 };
        assert_eq!(
            Ledger::default().offended(block("192.0.2.1"), ("", false), &none, 0),
            Ok((1, None))
        );
    }

    #[test]
    fn what_ends_first_gives_way() {
        let mut ledger = Ledger::default();
        for (last, for_s) in [(1, 500), (2, 100), (3, 300), (4, 400)] {
            assert_eq!(
                ledger.insist(block(&format!("192.0.2.{last}")), for_s, "", &TERMS, NOW_S).1,
                None
            );
        }
        assert_eq!(
            ledger.offended(block("192.0.2.5"), ("", false), &TERMS, NOW_S),
            Ok((600, Some(block("192.0.2.2"))))
        );
        assert_eq!(ledger.displaced, 1);
        // The third is over by then, so nothing is displaced.
        assert_eq!(
            ledger.offended(block("192.0.2.6"), ("", false), &TERMS, NOW_S + 300),
            Ok((600, None))
        );
        assert_eq!((ledger.displaced, ledger.len()), (1, 4));
        assert_eq!(
            ledger.insist(block("192.0.2.6"), 9, "again", &TERMS, NOW_S + 300),
            (9, None),
            "it has its place"
        );
    }

    #[test]
    fn who_is_allowed_is_in_no_ban() {
        let mut ledger = Ledger::default();
        let kept = ["192.0.2.1", "10.1.2.3", "2001:db8::/32"].map(block);
        for one in kept {
            ledger.offended(one, ("", false), &TERMS, NOW_S).unwrap();
        }
        let freed = ledger.allow(vec![block("10.0.0.0/8"), block("2001:db8:1:2::/64")], NOW_S);
        assert_eq!(freed.len(), 2, "also a network with one of them in it: {freed:?}");
        assert_eq!(in_force(&ledger, NOW_S), [kept[0]]);
        for one in ["10.9.9.9", "10.0.0.0/7", "2001:db8:1:2::/128", "2001:db8::/16"] {
            assert_eq!(
                ledger.offended(block(one), ("", false), &TERMS, NOW_S),
                Err(Spared::Allowed),
                "{one}"
            );
        }
        ledger.insist(block("10.1.2.3"), 60, "by hand", &TERMS, NOW_S);
        assert_eq!(in_force(&ledger, NOW_S).len(), 2, "an operator knows better");
        assert_eq!(ledger.allow(vec![block("10.0.0.0/8")], NOW_S), [], "and goes on to");
    }

    #[test]
    fn changes_are_told_once_to_whoever_watches() {
        let mut ledger = Ledger::default();
        let told = |ledger: &mut Ledger, now_s: u64| -> Vec<(Block, Option<u64>)> {
            ledger.take_changed(now_s).map(|(block, ban)| (block, ban.map(Ban::until_s))).collect()
        };
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(block);
        ledger.insist(one, 5, "", &TERMS, NOW_S);
        assert_eq!(told(&mut ledger, NOW_S), [], "nobody watches");
        ledger.watch(true, NOW_S);
        ledger.insist(other, 10, "", &TERMS, NOW_S);
        assert_eq!(
            told(&mut ledger, NOW_S),
            [(other, Some(NOW_S + 10))],
            "the first one was there before"
        );
        assert_eq!(told(&mut ledger, NOW_S + 4), []);
        assert_eq!(told(&mut ledger, NOW_S + 5), [(one, Some(NOW_S + 5))], "it has ended");
        assert_eq!(told(&mut ledger, NOW_S + 6), []);
        ledger.forgive(Some(other), NOW_S + 6);
        assert_eq!(told(&mut ledger, NOW_S + 6), [(other, None)]);
        ledger.watch(false, NOW_S + 6);
        ledger.insist(other, 10, "", &TERMS, NOW_S + 6);
        assert_eq!(told(&mut ledger, NOW_S + 20), []);
    }

    /// A reload may name a file with a client that is already banned.
    #[test]
    fn what_was_saved_shortens_nothing() {
        let (mut ledger, one) = (Ledger::default(), block("192.0.2.1"));
        ledger.insist(one, 600, "here", &TERMS, NOW_S);
        let here = ledger.get(one).unwrap().clone();
        for (until_s, is_kept) in [(NOW_S + 599, false), (NOW_S + 601, true)] {
            let saved = Ban::new(here.since_s(), until_s, "saved");
            ledger.restore(vec![(one, saved.clone())], &TERMS, NOW_S);
            assert_eq!(ledger.get(one), Some(if is_kept { &saved } else { &here }));
        }
    }

    #[test]
    fn who_is_forgiven() {
        let mut ledger = Ledger::default();
        let all = ["192.0.2.1", "192.0.2.2", "192.0.0.0/16"].map(block);
        for one in all {
            ledger.insist(one, 60, "", &TERMS, NOW_S);
        }
        assert_eq!(ledger.forgive(Some(all[0]), NOW_S), [all[0]], "the network around it stays");
        assert_eq!(ledger.forgive(Some(block("192.0.0.0/16")), NOW_S + 60), [], "they are over");
        assert_eq!(ledger.len(), 0, "and are not remembered");
        ledger.insist(all[0], 60, "", &TERMS, NOW_S);
        assert_eq!(ledger.forgive(None, NOW_S), [all[0]]);
    }

    proptest! {
        #[test]
        fn the_list_is_bounded_and_in_order(
            steps in prop::collection::vec((0u8..6, 0u8..12, 0u64..900), 1..200),
        ) {
            let (mut ledger, mut now_s) = (Ledger::default(), NOW_S);
            for (what, who, wait_s) in steps {
                now_s += wait_s;
                let one = block(&format!("192.0.2.{who}/{}", if who % 4 == 0 { 30 } else { 32 }));
                match what {
                    0 => drop(ledger.forgive(Some(one), now_s)),
                    1 => drop(ledger.insist(one, wait_s, "", &TERMS, now_s)),
                    2 => drop(ledger.allow(vec![one], now_s)),
                    3 => ledger.restore(
                        vec![(one, Ban { count: 3, ..Ban::new(now_s, now_s + 1, "") }); 2],
                        &TERMS,
                        now_s,
                    ),
                    _ => drop(ledger.offended(one, ("", false), &TERMS, now_s)),
                }
                prop_assert!(ledger.len() <= TERMS.bans_max && ledger.len() == ledger.by_end.len());
                prop_assert!(
                    ledger
                        .all()
                        .zip(ledger.all().skip(1))
                        .all(|(one, next)| one.1.until <= next.1.until)
                );
                prop_assert!(
                    ledger.all().all(|(block, ban)| ledger.by_end.contains(&(ban.until, block)))
                );
                prop_assert!(
                    ledger.in_force(now_s).all(|(_, ban)| ban.since_s() <= now_s && ban.count > 0)
                );
            }
        }
    }
}
