//! `queue-timeout`: a request that waits longer than this for a connection gets 503, so that its
//! client learns in time that the servers are busy.
//!
//! While requests wait, a server has one timer, set for its longest wait. The time-out does not
//! apply to requests that a server may have received, because an error could make their clients
//! repeat work. Nor does it apply to requests in quarantine and trials, which wait by other rules.
//! `forward-timeout` applies to all of them. Bound: weir refuses a request at most [`LATE_US`], or
//! [`LATE_PART`] of the time, too late. So it scans a long queue only a few times.
//! docs/connections.md.

use super::pool::Pool;
use crate::base::keys::ServerIndex;
use crate::base::token::Token;
use crate::cause::Cause;
use crate::context::Context;
use crate::request::pending_request::{PendingRequest, RequestFlags};

/// Shortest time between two looks at a line...
const LATE_US: u64 = 10_000;
/// ...and as a part of `queue-timeout`.
const LATE_PART: u64 = 32;

/// Makes sure that a timer checks a request that has just begun to wait.
#[inline]
pub(super) fn watch_wait(
    server: ServerIndex,
    ask: &PendingRequest,
    pool: &mut Pool,
    cx: &mut Context,
) {
    let upstream = usize::from(pool.servers[server].upstream);
    if let Some(timeout_us) = cx.plan.upstreams[upstream].queue_timeout_us
        && is_limited(ask)
    {
        // A request may have waited for another server before.
        let due_us = ask.asked_us.saturating_add(timeout_us).max(cx.now_us + LATE_US);
        set_timer(server, due_us, pool, cx);
    }
}

fn set_timer(server: ServerIndex, due_us: u64, pool: &mut Pool, cx: &mut Context) {
    let set_us = &mut pool.servers[server].learned.load.refuses_us;
    if *set_us == 0 || due_us < *set_us {
        *set_us = due_us;
        cx.wheel.insert(Token::Limit { server }.pack(), due_us);
    }
}

/// Refuses requests that have waited too long, and sets the timer for the others.
pub(super) fn end_waits(server: ServerIndex, pool: &mut Pool, cx: &mut Context) {
    let machine = &mut pool.servers[server];
    let set_us = &mut machine.learned.load.refuses_us;
    if *set_us == 0 || cx.now_us < *set_us {
        return;
    }
    *set_us = 0;
    let upstream = usize::from(machine.upstream);
    let Some(timeout_us) = cx.plan.upstreams[upstream].queue_timeout_us else { return };
    let (mut ended, mut next_us) = (Vec::new(), u64::MAX);
    machine.waiting.retain(|waiting| {
        let due_us = waiting.ask.asked_us.saturating_add(timeout_us);
        let is_over = is_limited(&waiting.ask) && due_us <= cx.now_us;
        if is_over {
            ended.push(waiting.ask.id);
        } else if is_limited(&waiting.ask) {
            next_us = next_us.min(due_us);
        }
        !is_over
    });
    cx.counters.queue_waiting.sub(ended.len() as u64);
    ended.into_iter().for_each(|id| cx.answer_fails(id, Cause::QueueTimeout));
    if next_us < u64::MAX {
        let soon_us = cx.now_us + LATE_US.max(timeout_us / LATE_PART);
        set_timer(server, next_us.max(soon_us), pool, cx);
    }
}

/// Whether `queue-timeout` applies to a request.
fn is_limited(ask: &PendingRequest) -> bool {
    let is_special =
        ask.traits.has(RequestFlags::QUARANTINED) || ask.traits.has(RequestFlags::TRIAL);
    ask.tries == 0 && !ask.traits.has(RequestFlags::TWICE) && !is_special
}
