//! Requests that have waited for a connection for as long as `queue-timeout`: each gets 503, so
//! that its client hears in time that the servers are busy.
//!
//! A server has one timer while requests wait, for the one that waits for longest. Not for
//! requests that a server may have worked on already, whose clients lose more by an error, nor for
//! those in quarantine and trials, which wait by other rules: `forward-timeout` bounds these.
//! Bound: a request is refused at most [`LATE_US`], or [`LATE_PART`] of the time, too late, so that
//! a long line is looked through only a few times in its life. docs/connections.md.

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

/// A request got in line: makes sure that a timer looks at it in time.
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
        // Some have waited elsewhere before.
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

/// Refuses the requests that have waited for too long, and sets the timer for the others.
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

/// Whether `queue-timeout` holds for a request.
fn is_limited(ask: &PendingRequest) -> bool {
    let is_special =
        ask.traits.has(RequestFlags::QUARANTINED) || ask.traits.has(RequestFlags::TRIAL);
    ask.tries == 0 && !ask.traits.has(RequestFlags::TWICE) && !is_special
}
