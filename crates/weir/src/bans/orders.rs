//! Operators' requests to the list of bans, and views of it. Called by the control thread
//! (`weir ban`), status and metrics.

use std::net::IpAddr;
use std::time::Instant;

use weir_proxy::shield::bans::Block;
use weir_proxy::shield::key::Prefix;

use super::kernel::Part;
use super::ledger::Ban;
use super::{Bans, REASON_BYTES_MAX, now_s, terms};
use crate::log::Event;

/// A ban for display. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) block: Block,
    pub(crate) since_s: u64,
    pub(crate) until_s: u64,
    /// Time to its end, rounded up, and never more than its length; 0: it is over, and makes the
    /// next one longer.
    pub(crate) left_s: u64,
    pub(crate) count: u32,
    pub(crate) reason: String,
    pub(crate) forced: bool,
}

/// Numbers about the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Bans in force.
    pub(crate) in_force: u64,
    /// Bans since the start.
    pub(crate) total: u64,
    /// Bans that were displaced before their end.
    pub(crate) displaced: u64,
    /// The file that keeps them; None: no file.
    pub(crate) file: Option<String>,
    /// Why the last write failed.
    pub(crate) problem: Option<String>,
    /// What the kernel does.
    pub(crate) kernel: Part,
}

/// Why an operator cannot ban an address, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeverBanned(pub(crate) &'static str);

impl Bans {
    /// Parses an operator's address or network: an address means the client as limits see it.
    pub(crate) fn block(&self, written: &str) -> Option<Block> {
        let Prefix { v4, v6 } =
            self.lock().plan.shield.as_ref().map_or_else(Prefix::default, |shield| shield.prefix);
        Block::read(written, v4, v6)
    }

    /// Returns the bans that apply to any part of a block, or all; with those that are over and
    /// still count if requested.
    pub(crate) fn list(&self, of: Option<Block>, with_past: bool) -> Vec<Shown> {
        let (list, now_s) = (self.lock(), now_s());
        let is_meant = |block: Block, ban: &Ban| {
            of.is_none_or(|of| of.meets(block)) && (with_past || ban.until_s() > now_s)
        };
        let meant = list.ledger.all().filter(|(block, ban)| is_meant(*block, ban));
        meant.map(|(block, ban)| shown(block, ban, now_s)).collect()
    }

    /// Bans a block for this many seconds. Blocks that are exempt or contain `mine`, the operator's
    /// own address, need `insists`.
    pub(crate) fn add(
        &self,
        block: Block,
        for_s: u64,
        reason: &str,
        mine: Option<IpAddr>,
        insists: bool,
    ) -> Result<Shown, NeverBanned> {
        // Considers recent changes.
        self.look_at_machine();
        self.with(|list| {
            let mine =
                mine.filter(|mine| block.has(*mine)).map(|_| "the other end of this ssh session");
            if let Some(why) = list.why_spared(block).or(mine).filter(|_| !insists) {
                return Err(NeverBanned(why));
            }
            let (terms, now_s) = (terms(&list.plan), now_s());
            let reason: String =
                reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let end = (0..=REASON_BYTES_MAX.min(reason.len()))
                .rev()
                .find(|end| reason.is_char_boundary(*end));
            let reason = &reason[..end.unwrap_or(0)];
            list.ledger.insist(block, for_s, reason, &terms, now_s + 1);
            let shown = list.ledger.get(block).map(|ban| shown(block, ban, now_s));
            list.total += 1;
            list.changed();
            list.publish(Instant::now());
            let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            let line = Event::BanAdded.says(format_args!("by order{because}"));
            list.tell(line.with("network", block).with("seconds", for_s));
            Ok(shown.unwrap_or(Shown {
                block,
                since_s: now_s,
                until_s: now_s,
                left_s: 0,
                count: 1,
                reason: reason.to_owned(),
                forced: false,
            }))
        })
    }

    /// Ends all bans within a block, or all bans, and forgives the clients. Returns the blocks that
    /// were banned.
    pub(crate) fn remove(&self, of: Option<Block>) -> Vec<Block> {
        self.with(|list| {
            // Also clients whose ban is over, and clients that have used up part of their limit
            // without a ban.
            let known: Vec<Block> = list.ledger.all().map(|(block, _)| block).collect();
            let freed = list.ledger.forgive(of, now_s());
            if let Some(shield) = &list.plan.shield {
                let gone = known.into_iter().filter(|block| list.ledger.get(*block).is_none());
                gone.chain(of).for_each(|block| shield.forgive(block));
            }
            list.changed();
            list.publish(Instant::now());
            for block in &freed {
                list.tell(Event::BanRemoved.says("by command").with("network", block));
            }
            freed
        })
    }

    /// Returns why part of a block is exempt from bans, if so.
    pub(crate) fn why_spared(&self, block: Block) -> Option<&'static str> {
        self.lock().why_spared(block)
    }

    /// Returns numbers for status and metrics.
    pub(crate) fn figures(&self) -> Figures {
        let list = self.lock();
        Figures {
            in_force: list.ledger.in_force(now_s()).count() as u64,
            total: list.total,
            displaced: list.ledger.displaced,
            file: list.kept.file.as_ref().map(|path| path.display().to_string()),
            problem: list.kept.problem.clone(),
            kernel: list.part.clone(),
        }
    }
}

pub(super) fn shown(block: Block, ban: &Ban, now_s: u64) -> Shown {
    // A ban begins with the second after its order, and all of it is left until then.
    let now_s = if ban.since_s() == now_s + 1 { ban.since_s() } else { now_s };
    Shown {
        block,
        since_s: ban.since_s(),
        until_s: ban.until_s(),
        left_s: ban.until_s().saturating_sub(now_s),
        count: ban.count,
        reason: ban.reason().to_owned(),
        forced: ban.forced,
    }
}
