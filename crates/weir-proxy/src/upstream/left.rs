//! Connections whose next response is not awaited, because its client has left (stage schedule).
//! docs/pipelining-loss.md#loss-and-what-is-sent-again
//!
//! Called by [`super::cancel`] when a client leaves, behind each response, and by the timer of a
//! connection. Requests that were not sent to the server are taken back at once. Responses to sent
//! ones are awaited for [`LEFT_US`], because most come by then and a connection costs more than the
//! rest of a response; then the end of the connection tells the server. Where requests of others
//! are behind it, they move away first: when the response is late and the retry budget allows it.
//! Bound: one check of a connection at a time.

use super::agenda::Ending;
use super::cancel::Cancelled;
use super::groups::Groups;
use super::late::LATE_US_MAX;
use super::pool::Pool;
use super::rehearsal::{REHEARSAL_US, took_too_long};
use crate::base::keys::ConnKey;
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::ending::UpstreamEnd;

/// How long a response is awaited whose client has left, while no other request waits behind it.
const LEFT_US: u64 = 50_000;
/// How soon a connection is checked again whose next response is unwanted, and behind which others
/// wait that may not move.
const LOOK_US: u64 = 250_000;

/// The next response of a connection may be unwanted: checks after a while whether the connection
/// has to end.
#[inline]
pub(super) fn watch_left(index: ConnKey, pool: &mut Pool, cx: &mut Context) {
    let conn = pool.conns.at(index);
    if conn.wait.left_us == u64::MAX
        && let Some(front) =
            conn.entries.front().filter(|front| conn.is_ready() && !front.is_wanted())
    {
        // A request that has moved away from behind a late response has its own turn here soon.
        let patience_us = match front.moved {
            _ if conn.wait.rehearses => REHEARSAL_US,
            true => LATE_US_MAX,
            false => LEFT_US,
        };
        look_at(index, cx.now_us + patience_us, pool, cx);
    }
}

pub(super) fn look_at(index: ConnKey, due_us: u64, pool: &mut Pool, cx: &mut Context) {
    pool.conns.at_mut(index).wait.left_us = due_us;
    pool.arm_conn(index, due_us, cx);
}

/// The time of [`watch_left`] is up. Returns how the connection ends, if it has to.
pub(super) fn check_left(
    index: ConnKey,
    pool: &mut Pool,
    groups: &mut Groups,
    cancelled: &Cancelled,
    cx: &mut Context,
) -> Option<Ending> {
    let conn = pool.conns.at_mut(index);
    conn.wait.left_us = u64::MAX;
    if conn.wait.rehearses {
        return Some(took_too_long());
    }
    let flushed = conn.log.flushed();
    let doubled = conn.entries.front().filter(|front| !front.is_wanted())?.doubled;
    let is_followed =
        conn.entries.iter().skip(1).any(|entry| entry.is_wanted() && entry.start < flushed);
    if is_followed {
        let late_us = pool.servers[conn.server].learned.usual.late_us().min(LATE_US_MAX);
        let late_at_us = conn.next_since_us().saturating_add(late_us);
        if !conn.wait.late {
            pool.mark_late(index, cx);
        }
        if cx.now_us < late_at_us || !groups.may_send_again(index, pool, cancelled, cx) {
            look_at(index, late_at_us.max(cx.now_us + LOOK_US), pool, cx);
            return None;
        }
    }
    Some(Ending::ours(if doubled { UpstreamEnd::Cancelled } else { UpstreamEnd::ClientGone }))
}

/// The next response of a connection is late, and may have no end: cancelled requests behind it are
/// forgotten, so that a client can't use up its streams on responses that don't come.
pub(super) fn forget_given_up(index: ConnKey, pool: &mut Pool, cx: &mut Context) {
    for entry in pool.conns.at_mut(index).entries.iter_mut().skip(1).filter(|entry| entry.given_up)
    {
        (entry.cancelled, entry.given_up) = (true, false);
        cx.post(entry.ask.id.worker, Mail::Withdrawn { id: entry.ask.id });
    }
}

/// Takes back unwanted requests of which nothing was given to the driver. Returns whether there
/// were any.
pub(super) fn retract_unwanted(index: ConnKey, pool: &mut Pool, cx: &mut Context) -> bool {
    let conn = pool.conns.at_mut(index);
    let server = &mut pool.servers[conn.server];
    let (flushed, before) = (conn.log.flushed(), conn.entries.len());
    let is_unsent = |position: &usize| conn.entries[*position].start >= flushed;
    let unsent = (0..before).rev().take_while(is_unsent).last().unwrap_or(before);
    for position in (unsent..before).rev() {
        let entry = &conn.entries[position];
        if conn.owner.is_some() || entry.is_wanted() || !entry.is_retractable() {
            continue;
        }
        let Some(entry) = conn.retract(position) else { continue };
        server.inflight -= 1;
        cx.counters.in_flight.sub(1);
        if !entry.cancelled {
            cx.post(entry.ask.id.worker, Mail::Withdrawn { id: entry.ask.id });
        }
    }
    let has_changed = conn.entries.len() < before;
    if has_changed {
        server.refresh(conn, cx.now_us);
    }
    has_changed
}
