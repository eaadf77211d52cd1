//! Requests that a server overlooks. gunicorn with threads reads what came together, answers the first request, and waits until there is
//! more to read; so the next one would be unanswered until the server closes the connection as idle.
//!
//! A safe request that was sent behind another one, and whose answer is silent for far longer than usual, is sent once more on the same
//! connection: whatever has overlooked it is woken by that. The second answer is thrown away, and the connection is closed when nobody
//! waits for it. When the first answer comes at once, again and again ([`crate::upstream::overlook`]), the server is doubted
//! ([`Doubt::CutsShort`]) and gets one request at a time; those that still wait behind others are helped without patience. Bound: once
//! for each oldest request. docs/pipelining.md#what-may-follow-what

use super::Engine;
use super::loss::Loss;
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::ending::UpstreamEnd;
use crate::upstream::entry::Entry;
use crate::upstream::overlook::PATIENCE_US_MAX;
use crate::upstream::trust::Doubt;

/// Spreads numbers that are close to each other.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Engine {
    /// Looks whether the server may have overlooked the oldest request of a connection, or when that will be so. False: the connection
    /// is gone.
    pub(super) fn check_silence(&mut self, index: ConnKey) -> bool {
        let link = self.links.at(index);
        let server = link.server;
        let Some(since_us) = link.silent_since_us().filter(|_| self.servers[server].usual.watches()) else {
            return true;
        };
        let wanted = link.entries.iter().any(|entry| !entry.cancelled && !self.is_gone(entry.ask.id));
        let done = link.nudged_us < u64::MAX && link.nudged_us >= since_us;
        let due_us = match wanted {
            true if done => return true,
            true => since_us.saturating_add(self.silence_max_us(server, index, since_us)),
            false => since_us + PATIENCE_US_MAX,
        };
        if self.now_us < due_us {
            self.arm_late(index, due_us);
        } else if wanted {
            self.nudge(index);
        } else {
            // Its server may never say anything again.
            self.lose_link(index, Loss::Ours, UpstreamEnd::Cancelled);
        }
        wanted || self.now_us < due_us
    }

    /// How long an answer may be silent, each time a little different: so an answer that takes its time can't be taken for one that
    /// came because of what was sent.
    fn silence_max_us(&self, server: ServerIndex, index: ConnKey, since_us: u64) -> u64 {
        let machine = &self.servers[server];
        let late_us = machine.usual.late_us();
        let patience_us = machine.usual.overlook.patience_us(late_us);
        if machine.trust.penalty_for(self.now_us) == Some(Doubt::CutsShort) {
            return patience_us.min(late_us);
        }
        let random = (since_us ^ (index.index() as u64) << 32).wrapping_mul(SPREAD) >> 32;
        patience_us.saturating_add(random % patience_us)
    }

    /// Sends the first request that somebody waits for once more, behind the others.
    fn nudge(&mut self, index: ConnKey) {
        let link = self.links.at(index);
        let plan = &self.plan.upstreams[usize::from(self.servers[link.server].upstream)];
        let fits = link.entries.len() < plan.queue_size as usize;
        let may = |entry: &&Entry| entry.is_movable() && !self.is_gone(entry.ask.id);
        let Some(entry) = link.entries.iter().find(may).filter(|_| fits) else { return };
        let (ask, start, len) = (entry.ask, entry.start, entry.len as usize);
        let link = self.links.at_mut(index);
        let again = link.log.end();
        let bytes = link.log.copy(start, len);
        link.log.pending().extend_from_slice(&bytes);
        (link.nudged, link.nudged_us) = (true, self.now_us);
        self.push_to_link(index, ask, again);
        let link = self.links.at_mut(index);
        if let Some(last) = link.entries.back_mut() {
            (last.cancelled, last.doubled) = (true, true);
        }
        let stats = &self.servers[link.server].stats;
        self.counters.escapes.add(1);
        stats.escapes.add(1);
        self.mark_link(index);
    }

    /// An answer begins on a connection on which a request was sent once more.
    pub(super) fn judge_silence(&mut self, index: ConnKey) {
        let now_us = self.now_us;
        let link = self.links.at_mut(index);
        let server = link.server;
        let nudged_us = std::mem::replace(&mut link.nudged_us, u64::MAX);
        let machine = &mut self.servers[server];
        let known = machine.trust.penalty_for(now_us) == Some(Doubt::CutsShort);
        let late_us = machine.usual.late_us();
        if nudged_us == u64::MAX || known || !machine.usual.overlook.on_answer(late_us, now_us - nudged_us) {
            return;
        }
        self.doubt_server(server, Some(Doubt::CutsShort));
        self.tell_all_doubt(server, Some(Doubt::CutsShort));
        for position in 0..self.servers[server].links.len() {
            let index = self.servers[server].links[position];
            if self.links.at(index).silent_since_us().is_some() {
                self.arm_late(index, now_us);
            }
        }
    }
}
