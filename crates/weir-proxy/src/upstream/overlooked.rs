//! Requests that a server overlooks. gunicorn with threads reads requests that came together,
//! answers the first, and waits until there is more to read; so the next one would be unanswered
//! until the server closes the connection as idle.
//!
//! A safe request that was sent behind another, and whose response is silent for far longer than
//! usual, is sent once more on the same connection: that wakes a server that has overlooked it. The
//! second response is discarded, and the connection is closed when no request waits on it. When the
//! first response comes at once, again and again ([`crate::upstream::overlook`]), the server is
//! doubted ([`Doubt::CutsShort`]) and gets one request at a time; those that still wait behind
//! others are helped without patience. Bound: once for each oldest request.
//! docs/pipelining-stalls.md#overlooked-requests

use super::agenda::Ending;
use super::cancel::Cancelled;
use super::doubts::doubt_everywhere;
use super::groups::Groups;
use super::pool::Pool;
use super::send::{Outbox, push_copy};
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::context::Context;
use crate::cross::doubt::Doubt;
use crate::ending::UpstreamEnd;
use crate::upstream::connection::UpstreamConn;
use crate::upstream::entry::{Entry, Silence};
use crate::upstream::overlook::PATIENCE_US_MAX;
use crate::upstream::server::Server;

/// Spreads numbers that are close to each other.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Checks whether the server may have overlooked the oldest request of a connection, or when that
/// will be so. Returns how the connection ends, if it has to.
pub(super) fn check_silence(
    index: ConnKey,
    pool: &mut Pool,
    groups: &mut Groups,
    cancelled: &Cancelled,
    outbox: &mut Outbox,
    cx: &mut Context,
) -> Option<Ending> {
    let conn = pool.conns.at(index);
    let server = conn.server;
    let machine = &pool.servers[server];
    // A server that overlooks requests fails its rehearsal. Without one, or where it fell short
    // since, it is helped.
    let repeats = cx.plan.upstreams[usize::from(machine.upstream)].escapes();
    let is_cleared = machine.learned.usual.overlook.is_cleared() || !repeats;
    let is_suspect = !conn.wait.rehearses && (!is_cleared || machine.is_cut_short(cx.now_us));
    let since_us = conn.silent_since_us().filter(|_| is_suspect)?;
    let wanted = conn.entries.front().is_some_and(|front| !cancelled.is_unwanted(front));
    let (patience_us, at_most_us) = pool.servers[server].silence_patience(index, since_us, cx);
    let nudge_us = since_us.saturating_add(at_most_us);
    let due_us = match conn.wait.silence {
        _ if !wanted => nudge_us.max(since_us + PATIENCE_US_MAX),
        Silence::Short => since_us.saturating_add(patience_us),
        Silence::Long => nudge_us,
        // Its client may leave.
        Silence::Nudged(_) | Silence::Unread => cx.now_us + PATIENCE_US_MAX,
    };
    if cx.now_us < due_us {
        pool.arm_late(index, due_us, cx);
    } else if !wanted {
        // Its server may never say anything again.
        if groups.may_send_again(index, pool, cancelled, cx) {
            return Some(Ending::ours(UpstreamEnd::Cancelled));
        }
        pool.arm_late(index, cx.now_us + PATIENCE_US_MAX, cx);
    } else if conn.wait.silence == Silence::Short {
        pool.conns.at_mut(index).wait.silence = Silence::Long;
        pool.arm_late(index, nudge_us.max(cx.now_us), cx);
    } else if !nudge(index, pool, outbox, cx) {
        pool.arm_late(index, cx.now_us + PATIENCE_US_MAX, cx);
    }
    None
}

/// Sends the oldest request once more, behind the others. False: it can't be.
fn nudge(index: ConnKey, pool: &mut Pool, outbox: &mut Outbox, cx: &Context) -> bool {
    let conn = pool.conns.at_mut(index);
    let server = &pool.servers[conn.server];
    let queue_size = cx.plan.upstreams[usize::from(server.upstream)].queue_size as usize;
    let fits = conn.entries.len() < queue_size && !server.is_full();
    let Some(front) = conn.entries.front_mut().filter(|front| fits && front.is_movable()) else {
        return false;
    };
    front.doubled = true;
    let (ask, start, len) = (front.ask, front.start, front.len as usize);
    let (again, bytes) = (conn.log.end(), conn.log.copy(start, len));
    conn.log.pending().extend_from_slice(&bytes);
    (conn.wait.nudged, conn.wait.silence) = (true, Silence::Nudged(cx.now_us));
    server.stats.escapes.add(1);
    cx.counters.escapes.add(1);
    push_copy(index, ask, again, pool, outbox, cx);
    true
}

/// A response begins that was waited for for long.
#[cold]
pub(super) fn judge_silence(index: ConnKey, pool: &mut Pool, cx: &mut Context) {
    let now_us = cx.now_us;
    let conn = pool.conns.at(index);
    let server = conn.server;
    let known = pool.servers[server].is_cut_short(cx.now_us);
    let usual = &mut pool.servers[server].learned.usual;
    let late_us = usual.late_us();
    let proved = match conn.wait.silence {
        _ if known => false,
        Silence::Nudged(us) => usual.overlook.on_answer(late_us, now_us, now_us - us),
        Silence::Long => {
            usual.overlook.on_own_answer();
            false
        }
        Silence::Short | Silence::Unread => false,
    };
    if proved {
        doubt_everywhere(server, Some(Doubt::CutsShort), pool, cx);
    }
}

impl Pool {
    /// A server is known not to tolerate pipelining: requests that may be overlooked are checked
    /// without patience.
    pub(super) fn hurry_silent(&mut self, server: ServerIndex, cx: &mut Context) {
        for position in 0..self.servers[server].conns.len() {
            let index = self.servers[server].conns[position];
            if self.conns.at(index).silent_since_us().is_some() {
                self.arm_late(index, cx.now_us, cx);
            }
        }
    }
}

impl UpstreamConn {
    /// Whether no request waits on a connection any more.
    pub(super) fn is_unwanted(&self) -> bool {
        !self.entries.iter().any(Entry::is_wanted)
    }
}

impl Server {
    /// Returns how long a response may be silent, and after how long something is sent, each time a
    /// little different: so a response that takes its time can't be mistaken for one that came
    /// because of that.
    fn silence_patience(&self, index: ConnKey, since_us: u64, cx: &Context) -> (u64, u64) {
        let usual = &self.learned.usual;
        let late_us = usual.late_us();
        let patience_us = usual.overlook.patience_us(late_us);
        if self.is_cut_short(cx.now_us) {
            let little_us = patience_us.min(late_us);
            return (little_us, little_us);
        }
        let random = (since_us ^ (index.index() as u64) << 32).wrapping_mul(SPREAD) >> 32;
        (patience_us, patience_us.saturating_add(random % patience_us))
    }

    /// Whether a server is known not to tolerate pipelining.
    fn is_cut_short(&self, now_us: u64) -> bool {
        self.learned.trust.penalty_for(now_us) == Some(Doubt::CutsShort)
    }
}
