//! Requests over a limit with a delayed refusal (`over="tarpit"`, stage route): a client over its
//! limit is kept busy, and sends nothing more meanwhile.
//!
//! Called where a request is refused (`guard.rs`), by the timer of its connection, when its client
//! leaves, and when clients have to leave. A held request keeps its place among the responses of
//! its connection, and nothing behind it is parsed: it is the last request, and its response ends
//! the connection. A stream of HTTP/2 is held separately. Bounds: `tarpit-max` requests of this
//! worker, and [`UNREAD_BYTES_MAX`] of each connection that are received and discarded.
//! docs/limits.md.

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

/// Bytes that weir discards from a held client; after these it reads no more until the time is
/// over, so it notices a close only then.
const UNREAD_BYTES_MAX: usize = 64 * 1024;

/// The held requests of a worker, at most one of each connection.
#[derive(Debug, Default)]
pub(super) struct Tarpit {
    held: SideTable<ClientKey, Held>,
    count: u32,
}

#[derive(Debug)]
struct Held {
    exchange: ExchangeKey,
    /// When it gets its response.
    until_us: u64,
    /// The delayed response.
    local: Local,
    /// Bytes received behind it.
    unread: usize,
}

impl Tarpit {
    /// Whether the limit `most` is reached.
    pub(super) fn is_full(&self, most: u32) -> bool {
        self.count >= most
    }

    /// Whether the newest request of a connection is held.
    #[inline]
    pub(super) fn is_held(&self, index: ClientKey) -> bool {
        self.get(index).is_some()
    }

    /// When the held request of a connection gets its response; the end of time if none is held.
    #[inline]
    pub(super) fn until_us(&self, index: ClientKey) -> u64 {
        self.get(index).map_or(u64::MAX, |held| held.until_us)
    }

    /// Whether weir reads on from a client: from a held client only up to a limit.
    #[inline]
    pub(super) fn is_read(&self, index: ClientKey) -> bool {
        self.get(index).is_none_or(|held| held.unread < UNREAD_BYTES_MAX)
    }

    #[inline]
    fn get(&self, index: ClientKey) -> Option<&Held> {
        if self.count == 0 { None } else { self.held.get(index) }
    }

    /// Counts bytes that arrived from a held client.
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

/// Holds a refused request: it gets this response after `for_us` microseconds.
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
    // If the request was sent too early to be parsed at once, the client may have closed already.
    if clients.conn(index).flags.ended && clients.conn(index).stream.is_none() {
        client_left(&mut clients.answers, index, cx);
    }
}

/// Releases the held request of a connection, if any.
pub(super) fn let_go(answers: &mut Answers, index: ClientKey, cx: &mut Context) {
    let Some(held) = answers.conns.tarpit.take(index) else { return };
    answers.answer_local(held.exchange, held.local, cx);
    if answers.conns.is_there(index) {
        answers.conns.update_receive(index, cx);
        answers.conns.arm(index, cx);
    }
}

/// A held client has closed its direction. If it has all earlier responses it is closed; otherwise
/// it gets those and the refusal, which waits no longer.
pub(super) fn client_left(answers: &mut Answers, index: ClientKey, cx: &mut Context) {
    let conn = answers.conns.at(index);
    let held = answers.conns.tarpit.held.get(index).map(|held| held.exchange);
    if conn.codec.current() == held && conn.codec.is_sent() && !conn.flags.sending {
        answers.close_conn(index, ClientEnd::ClientClosed, cx);
    } else {
        let_go(answers, index, cx);
    }
}

/// Releases the held requests of clients that have to leave: they get their responses now.
pub(super) fn let_leaving_go(answers: &mut Answers, cx: &mut Context) {
    let leaves =
        |index: &ClientKey| answers.conns.at(carrier_of(&answers.conns, *index)).flags.leaves;
    let held = answers.conns.tarpit.held.iter().map(|(index, _)| index);
    let leaving: Vec<ClientKey> = held.filter(leaves).collect();
    leaving.into_iter().for_each(|index| let_go(answers, index, cx));
}
