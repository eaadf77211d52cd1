//! Requests over a limit whose refusal waits for a while (`over="tarpit"`, stage route): who asks too much is kept busy, and asks nothing
//! meanwhile.
//!
//! Called where a request is refused (`guard.rs`), by the timer of its connection, when its client leaves, and when clients are to go. A
//! request that is held has its place among the answers of its connection, and nothing behind it is parsed: it is the last one, whose
//! answer ends the connection. A stream of HTTP/2 is held by itself. Bounds: `tarpit-max` requests of this worker, and
//! [`UNREAD_BYTES_MAX`] of each connection that are received and thrown away. docs/semantics.md §21.

use weir_http::{Method, RequestHead};

use super::Clients;
use super::answer::Answers;
use super::stalls::carrier_of;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::side_table::SideTable;
use crate::cause::Local;
use crate::client::connection::Reading;
use crate::context::Context;
use crate::ending::ClientEnd;

/// Bytes that a client who is held may send in vain; from then on he is not read until his time is over, so that his end is not seen
/// before.
const UNREAD_BYTES_MAX: usize = 64 * 1024;

/// The requests of a worker that are held, at most one of each connection.
#[derive(Debug, Default)]
pub(super) struct Tarpit {
    held: SideTable<ClientKey, Held>,
    count: u32,
}

#[derive(Debug)]
struct Held {
    exchange: ExchangeKey,
    /// When it is answered.
    until_us: u64,
    /// What it is told then.
    local: Local,
    /// Bytes that came behind it.
    unread: usize,
}

impl Tarpit {
    /// Whether there are so many already.
    pub(super) fn is_full(&self, most: u32) -> bool {
        self.count >= most
    }

    /// Whether the newest request of a connection is held.
    #[inline]
    pub(super) fn is_held(&self, index: ClientKey) -> bool {
        self.get(index).is_some()
    }

    /// When the request of a connection is answered that is held; the end of time if none is.
    #[inline]
    pub(super) fn until_us(&self, index: ClientKey) -> u64 {
        self.get(index).map_or(u64::MAX, |held| held.until_us)
    }

    /// Whether more of a client is read: of one who is held only so much in vain.
    #[inline]
    pub(super) fn is_read(&self, index: ClientKey) -> bool {
        self.get(index).is_none_or(|held| held.unread < UNREAD_BYTES_MAX)
    }

    #[inline]
    fn get(&self, index: ClientKey) -> Option<&Held> {
        if self.count == 0 { None } else { self.held.get(index) }
    }

    /// So many bytes came of a client who is held.
    pub(super) fn note_unread(&mut self, index: ClientKey, bytes: usize) {
        if let Some(held) = self.held.get_mut(index) {
            held.unread = held.unread.saturating_add(bytes);
        }
    }

    /// A connection is gone.
    pub(super) fn forget(&mut self, index: ClientKey) {
        self.take(index);
    }

    fn take(&mut self, index: ClientKey) -> Option<Held> {
        if self.count == 0 {
            return None;
        }
        let held = self.held.take(index)?;
        self.count -= 1;
        Some(held)
    }

    fn put(&mut self, index: ClientKey, held: Held) {
        debug_assert!(self.held.get(index).is_none(), "nothing is read behind what is held");
        self.held.put(index, held);
        self.count += 1;
    }
}

/// Holds a request that was refused: this is its answer in so many microseconds.
pub(super) fn hold(
    clients: &mut Clients,
    index: ClientKey,
    exchange: ExchangeKey,
    head: &RequestHead,
    local: Local,
    for_us: u64,
    cx: &mut Context,
) {
    cx.counters.tarpitted.add(1);
    let want = &mut clients.answers.conns.exchange_mut(exchange).want;
    want.close = true;
    want.body_open = !head.body.is_empty() || head.method == Method::Connect;
    let conn = clients.conn_mut(index);
    conn.read_as(Reading::Closing);
    let until_us = cx.now_us.saturating_add(for_us);
    clients.answers.conns.tarpit.put(index, Held { exchange, until_us, local, unread: 0 });
    clients.answers.conns.arm(index, cx);
    // Of what was asked too early to be parsed at once the end may have come already.
    if clients.conn(index).flags.ended && clients.conn(index).stream.is_none() {
        client_left(&mut clients.answers, index, cx);
    }
}

/// The request of a connection is held no longer, if one was.
pub(super) fn let_go(answers: &mut Answers, index: ClientKey, cx: &mut Context) {
    let Some(held) = answers.conns.tarpit.take(index) else { return };
    answers.answer_local(held.exchange, held.local, cx);
    if answers.conns.is_there(index) {
        answers.conns.update_receive(index, cx);
        answers.conns.arm(index, cx);
    }
}

/// A client who is held has ended his direction. Who has all that he asked before is let go; else he gets what comes in front of the refusal,
/// which waits no longer.
pub(super) fn client_left(answers: &mut Answers, index: ClientKey, cx: &mut Context) {
    let conn = answers.conns.at(index);
    let held = answers.conns.tarpit.held.get(index).map(|held| held.exchange);
    if conn.codec.current() == held && conn.codec.is_sent() && !conn.flags.sending {
        answers.close_conn(index, ClientEnd::ClientClosed, cx);
    } else {
        let_go(answers, index, cx);
    }
}

/// Clients are to go: whose request is held gets his answer now.
pub(super) fn let_leaving_go(answers: &mut Answers, cx: &mut Context) {
    let leaves = |index: &ClientKey| answers.conns.at(carrier_of(&answers.conns, *index)).flags.leaves;
    let held = answers.conns.tarpit.held.iter().map(|(index, _)| index);
    let leaving: Vec<ClientKey> = held.filter(leaves).collect();
    leaving.into_iter().for_each(|index| let_go(answers, index, cx));
}
