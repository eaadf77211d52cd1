//! Connections set aside: a client that reads its response slowly does not keep others from a
//! server.
//!
//! Nothing is sent behind a response whose reading has stopped, and another connection may be made
//! in its place ([`crate::upstream::server::Server::may_grow`]). As soon as others need it, its
//! client's side is notified, and may take in the rest of the response or give the connection up at
//! once (`client/stalls.rs`). When the response has stopped for [`STALL_US`], the connection is set
//! aside: safe requests that were sent behind it are sent again elsewhere, and their responses on
//! this connection are discarded. Without this, responses that wait for each other's clients could
//! also wait in a circle.

use super::groups::Groups;
use super::late::check_queue;
use super::pool::Pool;
use super::receive::LARGE_BYTES;
use super::timers::Then;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::base::token::{ShortGeneration, Token};
use crate::context::Context;
use crate::cross::answer::{STALL_US, Stop};
use crate::cross::mail::Mail;
use crate::request::pending_request::{ClientName, ConnId, PendingRequest};
use crate::upstream::connection::{ConnState, UpstreamConn};
use crate::upstream::entry::Silence;

/// Requests that are checked for a waiting one of another client.
const YIELD_MAX: usize = 64;

/// Bytes of a response that may be on their way to a stream of another worker: not much more than a
/// receive brings.
const METERED_BYTES: usize = 32 * 1024;

/// Whether a slow response to `slow` keeps `other` from being answered. The client's own later
/// requests have to wait for that response anyway: on a connection each, they would only cost
/// connections.
pub(super) fn keeps_up(slow: &PendingRequest, other: &PendingRequest) -> bool {
    slow.client != other.client || other.precedes(slow)
}

/// The time of [`Pool::watch_stall`] is up.
pub(super) fn check_stall(
    index: ConnKey,
    pool: &mut Pool,
    groups: &Groups,
    cx: &mut Context,
) -> Then {
    let conn = pool.conns.at_mut(index);
    conn.reading.due_us = u64::MAX;
    if !conn.reading.paused {
        return check_queue(index, pool, groups, cx);
    }
    let due_us = conn.reading.paused_us + STALL_US;
    let Some(front) = conn.entries.front().map(|entry| entry.ask) else { return Then::Nothing };
    if due_us > cx.now_us {
        pool.arm_stall(index, due_us, cx);
        return Then::Nothing;
    }
    let machine = &pool.servers[conn.server];
    let awaited = machine.learned.load.is_awaited_elsewhere()
        || machine.waiting.iter().any(|waiting| keeps_up(&front, &waiting.ask));
    if !awaited && !conn.keeps_up_others() {
        pool.arm_stall(index, cx.now_us + STALL_US, cx);
        return Then::Nothing;
    }
    if !conn.reading.stalled {
        tell_needed(index, true, pool, cx);
    }
    set_aside(index, pool, cx)
}

/// Others are served without this connection until its client reads on. Another connection may be
/// made in its place.
pub(super) fn set_aside(index: ConnKey, pool: &mut Pool, cx: &mut Context) -> Then {
    let conn = pool.conns.at_mut(index);
    cx.counters.set_aside.add(u64::from(!conn.reading.stalled));
    (conn.reading.yields, conn.reading.stalled) = (true, true);
    let (server, behind) = (conn.server, conn.keeps_up_others());
    pool.servers[server].refresh(conn, cx.now_us);
    let then = if behind { move_on(index, pool, cx) } else { Then::Dispatch(server) };
    pool.arm_stall(index, cx.now_us + STALL_US, cx);
    then
}

/// Requests that the slow response keeps up are sent again elsewhere.
fn move_on(index: ConnKey, pool: &mut Pool, cx: &Context) -> Then {
    let conn = pool.conns.at_mut(index);
    let server = conn.server;
    let Some(front) = conn.entries.front().map(|entry| entry.ask) else { return Then::Nothing };
    let moved = conn.take_behind(|ask| keeps_up(&front, ask));
    let count = moved.len() as u64;
    cx.counters.resends.add(count);
    let machine = &mut pool.servers[server];
    machine.moved += count as u32;
    machine.stats.resends.add(count);
    Then::Move(server, moved)
}

/// Returns what stops the reading of a connection for the client of the response under way.
pub(super) fn stop_for_front(index: ConnKey, pool: &Pool, cx: &Context) -> Option<Stop> {
    let front = pool.conns.at(index).entries.front()?;
    Some(Stop { conn: pool.conn_id(index, cx), client: front.ask.client })
}

/// Stops or resumes the reading of a connection. Returns which server may have something for it
/// then.
pub(super) fn flow(
    to: ConnId,
    client: ClientName,
    pause: bool,
    pool: &mut Pool,
    cx: &mut Context,
) -> Option<ServerIndex> {
    if !pool.conns.holds(to.index, to.generation) {
        return None;
    }
    let conn = pool.conns.at_mut(to.index);
    let tunnel = conn.state() == ConnState::Tunnel;
    let is_next = tunnel
        || conn
            .entries
            .front()
            .is_some_and(|entry| entry.is_wanted() && entry.ask.client == client);
    if pause && !is_next || !pause && conn.reading.paused_by != client {
        return None;
    }
    conn.reading.set(pause, client);
    conn.wait.silence = Silence::Unread;
    let server = conn.server;
    if !tunnel {
        pool.pair(to.index).refresh(cx);
    }
    if !pause {
        let generation = ShortGeneration::of(to.generation);
        pool.receive_again(Token::Conn { key: to.index, generation }.pack(), cx);
        return Some(server);
    }
    pool.watch_stall(to.index, cx);
    if !tunnel {
        if pool.conns.at(to.index).keeps_up_others() {
            tell_needed(to.index, false, pool, cx);
        }
        pool.grow(server, cx);
    }
    None
}

impl UpstreamConn {
    /// Whether its reading is stopped for this client.
    pub(super) fn is_paused_for(&self, client: ClientName) -> bool {
        self.is_ready() && self.reading.paused && self.reading.paused_by == client
    }

    /// More bytes of the response under way move to another worker. Returns whether they and the
    /// earlier ones are all that may be on their way before that worker reports the state of its
    /// client. This applies to a stream: its connection may have many others like it.
    pub(super) fn meters(&mut self, bytes: usize) -> bool {
        if self.entries.front().is_none_or(|front| front.ask.carrier == front.ask.client) {
            return false;
        }
        self.reading.unheard += bytes;
        let meters = self.reading.unheard >= METERED_BYTES && self.body_left() != Some(0);
        if meters {
            self.reading.unheard = 0;
        }
        meters
    }

    /// Whether a request behind the response under way has to wait for its client.
    fn keeps_up_others(&self) -> bool {
        let mut entries = self.entries.iter();
        let Some(front) = entries.next() else { return false };
        entries.any(|entry| entry.is_wanted() && keeps_up(&front.ask, &entry.ask))
    }

    /// Returns how many bytes of the response under way are still to come, as far as is known, or
    /// may be taken in; None: it is large, or may be.
    fn absorbable(&self) -> Option<u64> {
        let left = match self.body_left() {
            Some(left) => left,
            None if self.reply.large => return None,
            None => LARGE_BYTES.saturating_sub(self.reply.body_bytes),
        };
        let left = left + self.withheld.bytes.len() as u64;
        (self.reply.begun && left <= LARGE_BYTES).then_some(left)
    }
}

/// Notifies the client's side that others need a connection whose reading is stopped.
fn tell_needed(index: ConnKey, aside: bool, pool: &Pool, cx: &mut Context) {
    let conn = pool.conns.at(index);
    let Some(front) =
        conn.entries.front().filter(|front| conn.owner.is_none() && front.is_wanted())
    else {
        return;
    };
    let (id, left, most) =
        (front.ask.id, conn.absorbable(), pool.servers[conn.server].asides_for_one());
    cx.post(id.worker, Mail::Needed { id, conn: pool.conn_id(index, cx), left, aside, most });
}

impl Pool {
    /// The reading of a connection was stopped: checks again later whether it still is.
    pub(super) fn watch_stall(&mut self, index: ConnKey, cx: &mut Context) {
        let conn = self.conns.at_mut(index);
        conn.reading.begin_pause(cx.now_us);
        if conn.owner.is_none() && conn.reading.due_us == u64::MAX && conn.is_ready() {
            self.arm_stall(index, cx.now_us + STALL_US, cx);
        }
    }

    /// Connections whose clients do not read, while requests of others wait, may have others made
    /// in their place.
    pub(super) fn yield_paused(&mut self, server: ServerIndex, cx: &mut Context) {
        for index in self.servers[server].paused() {
            let conn = self.conns.at_mut(index);
            let Some(front) = conn.entries.front().map(|entry| entry.ask) else { continue };
            let machine = &mut self.servers[server];
            conn.reading.yields = machine
                .waiting
                .iter()
                .take(YIELD_MAX)
                .any(|waiting| keeps_up(&front, &waiting.ask));
            machine.refresh(conn, cx.now_us);
            if conn.reading.yields {
                tell_needed(index, false, self, cx);
            }
        }
    }

    pub(super) fn arm_stall(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        self.conns.at_mut(index).reading.due_us = due_us;
        self.arm_conn(index, due_us, cx);
    }
}
