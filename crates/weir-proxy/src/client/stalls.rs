//! Clients that don't take their responses while others need the connections that these come on.
//! docs/pipelining.md, docs/connections.md.
//!
//! The servers' side reports which of them are needed ([`Mail::Needed`]). The steps are, in this
//! order: weir absorbs the rest of the response, as far as budgets allow; it waits for the
//! connection, as long as one client may keep others waiting ([`STALL_US`]); it sets the connection
//! aside, and opens others in its place; and of more than [`ASIDE_CLIENT_MAX`] (or fewer, where the
//! servers' side says so) it gives up the connection that its client has kept for longest, with the
//! response on it. For that a stream of HTTP/2 is reset, and a connection of HTTP/1 ends as at
//! `send-timeout`. Weir no longer waits for a client that has a connection aside: a client gets
//! [`STALL_US`] once, not for each stream. `upstream/server/holders.rs` makes sure that its further
//! requests wait meanwhile.
//!
//! Invariants: the reserved bytes of a connection, and the number of its connections aside, are the
//! sums over it and its streams; a reservation is given back when its bytes have left or their
//! response is no longer wanted ([`audit_stalls`]). Bounds: [`ABSORB_CLIENT_BYTES`] for a
//! connection with all its streams, [`ABSORB_BYTES`] for a worker, [`ASIDE_CLIENT_MAX`].

use super::answer::Answers;
use super::cache::{reader_of, source_of};
use super::connection::ClientConn;
use super::connections::Connections;
use super::unsent::{coding, unsent};
use crate::base::check::{at_most, equal};
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::context::Context;
use crate::cross::answer::{ASIDE_CLIENT_MAX, STALL_US, Stop};
use crate::cross::mail::{Flow, Mail};
use crate::ending::ClientEnd;
use crate::request::pending_request::{ClientName, ConnId, ExchangeId};

/// Bytes of responses that weir absorbs for a client connection, with all its streams, because
/// others need the connections they come on.
const ABSORB_CLIENT_BYTES: usize = 1024 * 1024;
/// The same for all clients of a worker.
const ABSORB_BYTES: usize = 64 * 1024 * 1024;

/// An upstream connection that has stopped for a client.
#[derive(Debug)]
struct Stopped {
    conn: ConnId,
    /// The client of the responses, as the servers' side knows it.
    client: ClientName,
    since_us: u64,
    /// Other clients are served without it.
    aside: bool,
}

/// The connections that a client holds up: nearly always none, so kept out of the connection.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// Each connection once. Some may meanwhile carry other clients' responses.
    stopped: Vec<Stopped>,
    /// Unsent bytes up to which its sources continue, because space is reserved for them.
    reserved: usize,
    /// For a connection: the bytes that it and its streams have reserved.
    absorbed: usize,
    /// For a connection: the connections aside for it and its streams.
    asides: u32,
}

impl Stalls {
    fn is_nothing(&self) -> bool {
        self.stopped.is_empty() && (self.reserved, self.absorbed, self.asides) == (0, 0, 0)
    }

    /// When the oldest of the connections aside was stopped.
    fn aside_since_us(&self) -> Option<u64> {
        self.stopped.iter().filter(|stopped| stopped.aside).map(|stopped| stopped.since_us).min()
    }
}

impl ClientConn {
    /// Whether sources were stopped for it.
    #[inline]
    pub(super) fn stops_sources(&self) -> bool {
        self.stalls.as_ref().is_some_and(|stalls| !stalls.stopped.is_empty())
    }

    /// Unsent bytes up to which its sources continue, whatever others have.
    pub(super) fn reserved(&self) -> usize {
        self.stalls.as_ref().map_or(0, |stalls| stalls.reserved)
    }

    fn stopped_mut(&mut self, conn: ConnId) -> Option<&mut Stopped> {
        self.stalls.as_mut()?.stopped.iter_mut().find(|stopped| stopped.conn == conn)
    }
}

/// The connection that carries a stream; for any other connection itself.
#[inline]
pub(super) fn carrier_of(conns: &Connections, index: ClientKey) -> ClientKey {
    conns.at(index).stream.as_deref().map_or(index, |stream| stream.carrier)
}

/// Changes the stalls of a connection, and drops them if they are empty.
fn change_stalls<T>(
    conns: &mut Connections,
    index: ClientKey,
    change: impl FnOnce(&mut Stalls) -> T,
) -> T {
    let stalls = &mut conns.at_mut(index).stalls;
    let changed = stalls.get_or_insert_default();
    let result = change(changed);
    if changed.is_nothing() {
        *stalls = None;
    }
    result
}

/// Stops an upstream connection. That is repeated each time, because the connection continues
/// unasked with responses for other clients.
pub(super) fn stop_source(
    conns: &mut Connections,
    slot: ExchangeKey,
    server_conn: ConnId,
    cx: &Context,
) -> Stop {
    let index = conns.exchange(slot).conn;
    // Its response may come from a fetch, which has another client.
    let client = conns.name(conns.exchange(source_of(conns, slot)).conn, cx);
    change_stalls(conns, index, |stalls| {
        if stalls.stopped.iter().all(|stopped| stopped.conn != server_conn) {
            stalls.stopped.push(Stopped {
                conn: server_conn,
                client,
                since_us: cx.now_us,
                aside: false,
            });
        }
    });
    Stop { conn: server_conn, client }
}

/// Takes out the selected connections among those that have stopped for a client.
fn take_stopped(
    conns: &mut Connections,
    index: ClientKey,
    goes: impl Fn(ConnId) -> bool,
) -> Vec<Stopped> {
    if !conns.at(index).stops_sources() {
        return Vec::new();
    }
    let taken: Vec<Stopped> = change_stalls(conns, index, |stalls| {
        stalls.stopped.extract_if(.., |stopped| goes(stopped.conn)).collect()
    });
    let asides = taken.iter().filter(|stopped| stopped.aside).count() as u32;
    if asides > 0 {
        let owner = carrier_of(conns, index);
        change_stalls(conns, owner, |stalls| stalls.asides -= asides);
    }
    taken
}

/// Resumes the selected connections among those that have stopped for a client.
fn resume(
    conns: &mut Connections,
    index: ClientKey,
    goes: impl Fn(ConnId) -> bool,
    cx: &mut Context,
) {
    for Stopped { conn, client, .. } in take_stopped(conns, index, goes) {
        cx.post(conn.worker, Mail::Flow { conn, client, flow: Flow::Go });
    }
}

/// Resumes all upstream connections that have stopped for a client.
#[inline]
pub(super) fn resume_sources(conns: &mut Connections, index: ClientKey, cx: &mut Context) {
    if conns.at(index).stops_sources() {
        resume(conns, index, |_| true, cx);
    }
}

/// Resumes the connection that brings the response to a request, if it has stopped.
pub(super) fn resume_source(
    conns: &mut Connections,
    index: ClientKey,
    slot: ExchangeKey,
    cx: &mut Context,
) {
    let source = conns.exchange(slot).server_conn;
    resume(conns, index, |conn| Some(conn) == source, cx);
}

/// The connection that brought the response to a request is lost, or has no more for it.
pub(super) fn forget_source(conns: &mut Connections, slot: ExchangeKey) {
    let exchange = conns.exchange(slot);
    let (index, source) = (exchange.conn, exchange.server_conn);
    take_stopped(conns, index, |conn| Some(conn) == source);
}

// ---- absorbed responses ----

/// Reserves space for the bytes of a response that are still to come. False: not enough is left.
fn reserve(conns: &mut Connections, index: ClientKey, left: u64, cx: &Context) -> bool {
    let conn = conns.at(index);
    let (own, bytes) = (conn.reserved(), unsent(conns, index) + left as usize);
    let absorbed =
        conns.at(carrier_of(conns, index)).stalls.as_ref().map_or(0, |stalls| stalls.absorbed);
    let fits = absorbed - own + bytes <= ABSORB_CLIENT_BYTES
        && conns.absorbed - own + bytes <= ABSORB_BYTES;
    if fits {
        set_reserved(conns, index, bytes, cx);
    }
    fits
}

fn set_reserved(conns: &mut Connections, index: ClientKey, bytes: usize, cx: &Context) {
    let own = change_stalls(conns, index, |stalls| std::mem::replace(&mut stalls.reserved, bytes));
    let owner = carrier_of(conns, index);
    change_stalls(conns, owner, |stalls| stalls.absorbed = stalls.absorbed - own + bytes);
    conns.absorbed = conns.absorbed - own + bytes;
    cx.counters.absorbed_bytes.add(bytes as u64);
    cx.counters.absorbed_bytes.sub(own as u64);
}

/// A client has taken bytes, or a response has ended: gives back the part of the reservation that
/// is no longer needed.
#[inline]
pub(super) fn give_back(conns: &mut Connections, index: ClientKey, low_bytes: usize, cx: &Context) {
    if conns.at(index).reserved() > 0 {
        give_back_rest(conns, index, low_bytes, cx);
    }
}

fn give_back_rest(conns: &mut Connections, index: ClientKey, low_bytes: usize, cx: &Context) {
    let conn = conns.at(index);
    let (unsent, reserved) = (unsent(conns, index), conn.reserved());
    let needed = match conn.codec.current() {
        _ if unsent <= low_bytes => 0,
        None => unsent.min(reserved),
        Some(_) => reserved,
    };
    if needed < reserved {
        set_reserved(conns, index, needed, cx);
    }
}

/// A client leaves, or no longer wants its response: it holds up nothing.
pub(super) fn end_stalls(conns: &mut Connections, index: ClientKey, cx: &mut Context) {
    resume_sources(conns, index, cx);
    give_back(conns, index, usize::MAX, cx);
}

// ---- connections aside ----

fn asides(conns: &Connections, owner: ClientKey) -> u32 {
    conns.at(owner).stalls.as_ref().map_or(0, |stalls| stalls.asides)
}

/// Those of a client and its streams that have connections aside, with the time of the oldest.
fn all_aside(conns: &Connections, owner: ClientKey) -> impl Iterator<Item = (u64, ClientKey)> {
    let streams = conns.carriers.get(owner).map_or(&[][..], |streams| &streams.all);
    let all = streams.iter().copied().chain([owner]);
    all.filter_map(|index| Some((conns.at(index).stalls.as_ref()?.aside_since_us()?, index)))
}

/// The client or stream with the oldest connection aside that waits for a slow client. While part
/// of a response is being encoded, that is not the client's doing.
fn slowest_aside(conns: &Connections, owner: ClientKey) -> Option<ClientKey> {
    let slow = all_aside(conns, owner).filter(|(_, index)| !is_encoding(conns, *index));
    slow.min().map(|(_, index)| index)
}

fn is_encoding(conns: &Connections, index: ClientKey) -> bool {
    coding(conns, conns.at(index)) > 0
}

/// Whether weir no longer waits for a client that has connections aside, of at most `most`: it has
/// had its time, and so has the connection that would be given up. Where connections are scarce,
/// weir waits for no client.
fn is_out_of_patience(conns: &Connections, owner: ClientKey, most: u32, cx: &Context) -> bool {
    let asides = asides(conns, owner);
    let is_full = asides >= most;
    let longest = || all_aside(conns, owner).min();
    most < ASIDE_CLIENT_MAX
        || asides > 0
            && (!is_full || longest().is_some_and(|(since_us, _)| cx.now_us >= since_us + STALL_US))
}

/// Looks for impossible states.
///
/// # Errors
/// The first broken invariant, in words.
pub(super) fn audit_stalls(conns: &Connections) -> Result<(), String> {
    let mut all = 0;
    let stalls = |index: ClientKey| conns.at(index).stalls.as_deref();
    for (index, conn) in conns.all() {
        all += conn.reserved();
        if conn.codec.current().is_none() {
            at_most(
                "bytes reserved behind the last answer",
                conn.reserved(),
                unsent(conns, index),
            )?;
        }
        let streams = conns.carriers.get(index).map_or(&[][..], |streams| &streams.all);
        let (mut absorbed, mut aside) = (0, 0);
        let mut encoding = 0;
        for (index, stalls) in
            streams.iter().copied().chain([index]).filter_map(|index| Some((index, stalls(index)?)))
        {
            absorbed += stalls.reserved;
            let asides = stalls.stopped.iter().filter(|stopped| stopped.aside).count();
            aside += asides;
            encoding += if is_encoding(conns, index) { asides } else { 0 };
        }
        if conn.stream.is_none() {
            equal(
                "what a client has reserved",
                stalls(index).map_or(0, |stalls| stalls.absorbed),
                absorbed,
            )?;
            equal("what is aside for a client", asides(conns, index) as usize, aside)?;
            at_most("bytes taken in for a client", absorbed, ABSORB_CLIENT_BYTES)?;
            at_most("connections aside for a client", aside, ASIDE_CLIENT_MAX as usize + encoding)?;
        }
    }
    at_most("bytes taken in", all, ABSORB_BYTES)?;
    equal("bytes reserved for all clients", conns.absorbed, all)
}

impl Answers {
    /// A client stops a response that others need the connection of. `left`: bytes that are still
    /// to come, if they may be absorbed; `aside`: the connection has been set aside; `most`: the
    /// most connections aside for one client connection.
    pub(crate) fn on_needed(
        &mut self,
        id: ExchangeId,
        server_conn: ConnId,
        left: Option<u64>,
        aside: bool,
        most: u32,
        cx: &mut Context,
    ) {
        if !self.conns.holds(id) {
            return;
        }
        let index = self.conns.exchange(reader_of(&self.conns, id.index)).conn;
        // It may have continued by now.
        let Some(stopped) = self.conns.at_mut(index).stopped_mut(server_conn) else { return };
        let (is_new, client) = (!stopped.aside, stopped.client);
        if left.is_some_and(|left| reserve(&mut self.conns, index, left, cx)) {
            cx.counters.absorbed.add(1);
            return resume(&mut self.conns, index, |conn| conn == server_conn, cx);
        }
        let owner = carrier_of(&self.conns, index);
        if is_new && !aside && !is_out_of_patience(&self.conns, owner, most, cx) {
            return;
        }
        if let Some(stopped) = self.conns.at_mut(index).stopped_mut(server_conn).filter(|_| is_new)
        {
            stopped.aside = true;
            change_stalls(&mut self.conns, owner, |stalls| stalls.asides += 1);
        }
        if !aside {
            cx.post(
                server_conn.worker,
                Mail::Flow { conn: server_conn, client, flow: Flow::Aside },
            );
        }
        self.give_up_asides(owner, most, cx);
    }

    /// Gives up the excess connections aside of a client.
    pub(super) fn give_up_asides(&mut self, owner: ClientKey, most: u32, cx: &mut Context) {
        while self.conns.is_there(owner)
            && asides(&self.conns, owner) > most
            && let Some(longest) = slowest_aside(&self.conns, owner)
        {
            cx.counters.stalled.add(1);
            // As at `send-timeout`.
            self.conns.at_mut(longest).flags.reset = true;
            self.close_conn(longest, ClientEnd::Stalled, cx);
        }
    }
}
