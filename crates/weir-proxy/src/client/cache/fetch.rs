//! Fetches for the store: exchanges without a client, and the requests that wait for them (stage
//! cache).
//!
//! A fetch is sent like any request, by the rules of the request that first needed it, but without
//! the parts that only that client wants of the response. Its connection has no socket, and the
//! timer of the connection ends the fetch as it would end a request; `fetched.rs` handles what a
//! server sends for it. When no request waits for it any more it is given up, unless most of the
//! response has arrived. The store's registry tells concurrent fetches of two workers apart: a
//! request that needs another worker's fetch waits here until that worker reports the end of it,
//! and is then looked up again.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_cache::{
    Collector, Fill, FillName, Object, Pending, Selector, SourceMark, Store, Terms,
    accept_encoding, asked_path, is_kept_from_fetches,
};
use weir_http::FieldName;

use super::crowd::{self, Readers, is_reader};
use super::seen::Asked;
use super::serve;
use super::{Body, Caching, fetched};
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::Clients;
use crate::client::answer::Answers;
use crate::client::connection::{
    ClientConn, KeptRequest, NO_CLIENT, NO_WORKER, Phase, Reading, ReplyConstraints,
};
use crate::client::connections::Connections;
use crate::context::Context;
use crate::cross::mail::{Cancellation, Mail};
use crate::cross::router::Requests;
use crate::plan::CacheRules;
use crate::request::pending_request::ExchangeId;
use crate::request::rules::{Fetching, Ruled};

/// A fetch with less than this left continues without readers.
const LEFT_BYTES_MAX: u64 = 1 << 20;
/// Readers of a fetch that are examined when one leaves.
const LEFT_MAX: usize = 256;

/// The response to fetch.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) key: Arc<[u8]>,
    pub(super) asked: Arc<Asked>,
    pub(super) rules: Arc<CacheRules>,
    /// The stored response to validate.
    pub(super) stale: Option<Arc<Object>>,
}

impl Wanted {
    /// The request has credentials: its response may be for one client alone, and says nothing of
    /// the responses to others.
    pub(super) fn is_personal(&self) -> bool {
        self.asked.request().has(FieldName::Authorization)
    }
}

/// A fetch.
#[derive(Debug)]
pub(in crate::client) struct Fetch {
    pub(super) wanted: Wanted,
    /// Its entry in the store's registry; None: others may fetch the same again.
    pub(super) fill: Option<Fill>,
    /// The first request that waited for it. It may have left, or not be the request that the fetch
    /// was made from.
    pub(super) asker: Option<ExchangeId>,
    /// The requests that wait for it or get it.
    pub(super) readers: Readers,
    pub(super) stage: Stage,
    /// When the request was sent.
    pub(super) requested_us: u64,
    /// Lines of a 304 that are only for the request that the fetch was made from.
    pub(super) own_lines: Arc<[u8]>,
    /// No request waits for it, and none did at first.
    pub(super) is_background: bool,
    /// A fall-back upstream of the route's upstream has it.
    pub(super) is_elsewhere: bool,
    /// The requests that needed it have given it up: its server knows, and no complete response
    /// will come.
    pub(super) is_given_up: bool,
}

/// The progress of a fetch.
#[derive(Debug)]
pub(super) enum Stage {
    /// Its response has not arrived.
    Asked,
    /// Its body is collected.
    Collects(Box<Collected>),
    /// A server has confirmed the stored response.
    Confirmed(Box<Pending>),
    /// It is complete, and is stored if nothing comes behind it.
    Proves(Box<Pending>),
    /// It is passed to its readers as it comes.
    Passes,
    /// Its body is for no reader.
    Ends(After),
}

/// What happens to the readers at the end of a response that no reader gets.
#[derive(Debug)]
pub(super) enum After {
    /// They have everything they get.
    Nothing,
    /// They get the stored response, which was confirmed.
    Use(Arc<Object>),
    /// They are looked up again.
    Anew {
        /// The request that the fetch was made for is forwarded separately then.
        alone: bool,
    },
    /// The response does not fit the request.
    Bad,
}

/// A response whose body is collected.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) body: Collector,
    pub(super) terms: Terms,
    pub(super) lines: Arc<[u8]>,
    pub(super) selector: Selector,
    pub(super) tags: Vec<Vec<u8>>,
    pub(super) source: SourceMark,
    /// From its head.
    pub(super) length: Option<u64>,
}

impl Fetch {
    /// Its response has arrived, at least in part, and may be for all that wait.
    pub(super) fn is_coming(&self) -> bool {
        matches!(self.stage, Stage::Collects(_) | Stage::Confirmed(_) | Stage::Proves(_))
    }

    /// No server has it any more.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Proves(_))
    }
}

/// The fetch of an exchange that is one.
///
/// # Panics
/// The exchange is not a fetch.
pub(super) fn of(conns: &mut Connections, slot: ExchangeKey) -> &mut Fetch {
    match &mut conns.exchange_mut(slot).caching {
        Some(Caching::Fetches(fetch)) => fetch,
        other => panic!("no fetch: {other:?}"),
    }
}

/// The received bytes of a fetched body from a position on, as far as they are contiguous; empty if
/// the fetch is gone.
pub(super) fn collected(conns: &Connections, id: ExchangeId, at: u64) -> &[u8] {
    if !conns.holds(id) {
        return &[];
    }
    match &conns.exchange(id.index).caching {
        Some(Caching::Fetches(fetch)) => match &fetch.stage {
            Stage::Collects(collected) => collected.body.from(at),
            _ => &[],
        },
        _ => &[],
    }
}

/// Begins a fetch for a client's request. `is_joinable`: other requests of this worker may wait for
/// it.
pub(super) fn open(
    answers: &mut Answers,
    index: ClientKey,
    wanted: Wanted,
    fill: Fill,
    is_joinable: bool,
    cx: &Context,
) -> ExchangeKey {
    let conns = &mut answers.conns;
    let parent = conns.at(index);
    let mut conn = ClientConn::new(NO_CLIENT, SocketAddr::new(parent.peer, parent.port), cx.now_us);
    conn.listener = u32::MAX;
    conn.flags.sealed = parent.flags.sealed;
    conn.shown.clone_from(&parent.shown);
    conn.read_as(Reading::Closing);
    let (conn, _) = conns.conns.insert(conn);
    conns.caches.fetches += 1;
    let want = ReplyConstraints { close: true, ..ReplyConstraints::default() };
    let slot = conns.push(conn, want, cx);
    if is_joinable {
        conns.caches.by_name.insert(fill.name(), slot);
    }
    let (stage, requested_us) = (Stage::Asked, cx.now_us);
    let fetch = Fetch {
        wanted,
        fill: Some(fill),
        asker: None,
        readers: Readers::default(),
        stage,
        requested_us,
        own_lines: Arc::default(),
        is_background: true,
        is_elsewhere: false,
        is_given_up: false,
    };
    conns.exchange_mut(slot).caching = Some(Caching::Fetches(Box::new(fetch)));
    slot
}

/// The fetch of this worker under a name and for this key, if others may join it: not if it was
/// purged, became invalid or was withdrawn since it was sent.
pub(super) fn joinable(
    conns: &Connections,
    name: FillName,
    key: &[u8],
    store: &Store,
) -> Option<ExchangeKey> {
    let slot = *conns.caches.by_name.get(&name)?;
    match &conns.exchange(slot).caching {
        Some(Caching::Fetches(fetch)) => {
            let is_current = fetch.fill.as_ref().is_some_and(|fill| store.is_current(fill, key));
            (*fetch.wanted.key == *key && is_current).then_some(slot)
        }
        _ => None,
    }
}

/// Stops requests from joining the fetch under this name and for this key if it is not current.
/// Returns whether it did.
pub(super) fn retire(
    answers: &mut Answers,
    name: FillName,
    key: &[u8],
    store: &Store,
    cx: &mut Context,
) -> bool {
    let Some(slot) = answers.conns.caches.by_name.get(&name).copied() else { return false };
    let fetch = of(&mut answers.conns, slot);
    let is_outdated = fetch.fill.as_ref().is_some_and(|fill| !store.is_current(fill, key));
    if *fetch.wanted.key == *key && is_outdated {
        withdraw_name(&mut answers.conns, slot, None, cx);
        return true;
    }
    false
}

/// A request is sent to another upstream than that of its route. A fetch for the store then brings
/// something that is not stored under this key, and a response says nothing of the stored one.
pub(in crate::client) fn note_elsewhere(conns: &mut Connections, slot: ExchangeKey) {
    match &mut conns.exchange_mut(slot).caching {
        Some(Caching::Fetches(fetch)) => fetch.is_elsewhere = true,
        Some(Caching::Passes(passes)) => passes.lesson = None,
        _ => {}
    }
}

/// A request waits for the fetch; the first is the one that it was made from.
pub(super) fn add_reader(
    answers: &mut Answers,
    slot: ExchangeKey,
    reader: ExchangeId,
    cx: &Context,
) {
    let by = answers.conns.exchange_id(slot, cx);
    let fetch = of(&mut answers.conns, slot);
    fetch.is_background = false;
    fetch.asker.get_or_insert(reader);
    crowd::add(&mut answers.conns, slot, by, reader);
}

/// Sends the fetch to a server, by the request of the first that needs it. It may be over at once.
pub(super) fn ask(
    clients: &mut Clients,
    slot: ExchangeKey,
    ruled: &Ruled,
    to: &mut Requests<'_>,
    cx: &mut Context,
) {
    let fetch = of(&mut clients.answers.conns, slot);
    let request = fetch.wanted.asked.request();
    let kept_from =
        request.fields.as_slice().iter().filter(|field| is_kept_from_fetches(field.known));
    let mut removed: Vec<Vec<u8>> =
        kept_from.map(|field| field.name.of(request.input).to_vec()).collect();
    removed.push(b"Accept-Encoding".to_vec());
    let mut added: Vec<(&'static [u8], Vec<u8>)> =
        vec![(b"Accept-Encoding", accept_encoding(request).as_bytes().to_vec())];
    let conditions =
        fetch.wanted.stale.as_ref().map(|stale| serve::conditions(stale, cx)).unwrap_or_default();
    let is_conditional = !conditions.is_empty();
    added.extend(conditions);
    // As it came: the path that the cache uses may be missing.
    let kept = &fetch.wanted.asked.kept;
    let path = ruled.path().unwrap_or_else(|| kept.head.path.of(&kept.bytes));
    let path = asked_path(path, &fetch.wanted.rules.keys);
    let ruled = ruled.fetching(Fetching { removed, added, is_conditional, path });
    let KeptRequest { head, fields, bytes, upstream } = fetch.wanted.asked.kept.clone();
    let exchange = clients.answers.conns.exchange_mut(slot);
    exchange.ruled = Some(ruled);
    let index = exchange.conn;
    let generation = clients.answers.conns.conns.generation(index);
    clients.asks.forward(
        &mut clients.answers,
        slot,
        upstream,
        &head,
        &fields,
        &bytes,
        &[],
        None,
        to,
        cx,
    );
    if clients.answers.conns.knows((index, generation)) {
        clients.answers.conns.arm(index, cx);
    }
}

/// Ends a fetch: closes its connection, and informs other workers that wait for it; of its failure
/// with `failure`. Returns the fetch.
///
/// # Panics
/// The exchange is not a fetch.
pub(super) fn close(
    answers: &mut Answers,
    slot: ExchangeKey,
    failure: Option<Cause>,
    cx: &mut Context,
) -> Box<Fetch> {
    withdraw_name(&mut answers.conns, slot, failure, cx);
    answers.release(slot);
    let exchange = answers.conns.exchange_mut(slot);
    let index = exchange.conn;
    let Some(Caching::Fetches(fetch)) = exchange.caching.take() else { panic!("no fetch") };
    answers.conns.pop(index);
    let conn = answers.conns.remove(index);
    answers.conns.caches.fetches -= 1;
    if conn.flags.has_pool {
        cx.post(cx.worker, Mail::Gone { client: index });
    }
    fetch
}

/// Stops requests from joining a fetch; others may fetch the same. Informs the workers that wait
/// for it of that, or of its failure.
pub(super) fn withdraw_name(
    conns: &mut Connections,
    slot: ExchangeKey,
    failure: Option<Cause>,
    cx: &mut Context,
) {
    let Some(fill) = of(conns, slot).fill.take() else { return };
    let name = fill.name();
    if conns.caches.by_name.get(&name) == Some(&slot) {
        conns.caches.by_name.remove(&name);
    }
    for worker in fill.end().iter() {
        if worker != usize::from(cx.worker) {
            cx.post(worker as u16, Mail::Fetched { name, failure });
        }
    }
}

/// A request no longer waits for a fetch, or has everything it gets of it: its client has left, or
/// its time is over. A fetch for which no request waits, here or at another worker, is given up,
/// unless most of it has arrived.
pub(super) fn left(
    answers: &mut Answers,
    by: ExchangeId,
    reader: ExchangeId,
    hard: bool,
    cx: &mut Context,
) {
    if !answers.conns.holds(by) || !answers.conns.exchange(by.index).is_fetch() {
        return;
    }
    let has_readers = crowd::has_readers(&mut answers.conns, by, reader);
    let fetch = of(&mut answers.conns, by.index);
    let goes_on = fetch.is_background
        || has_readers
        || fetch.fill.as_ref().is_some_and(Fill::is_awaited)
        || match &fetch.stage {
            Stage::Asked | Stage::Passes => false,
            Stage::Collects(collected) => collected.length.is_some_and(|length| {
                let left = length.saturating_sub(collected.body.bytes());
                left < LEFT_BYTES_MAX || left <= length / 2
            }),
            Stage::Confirmed(_) | Stage::Proves(_) | Stage::Ends(_) => true,
        };
    if !goes_on {
        answers.conns.cancel(by.index, hard, cx);
        close(answers, by.index, None, cx);
    }
}

/// The exchange of a client ends before its response is complete: applies that to the cache.
pub(in crate::client) fn on_dropped(
    answers: &mut Answers,
    slot: ExchangeKey,
    hard: bool,
    cx: &mut Context,
) {
    let by = match &answers.conns.exchange(slot).caching {
        Some(Caching::Waits(waits)) => waits.by,
        Some(Caching::Follows(follows)) => Some(follows.by),
        Some(Caching::Sends(sends)) => match sends.body {
            Body::Fetched(by) => Some(by),
            Body::Stored(_) => None,
        },
        _ => None,
    };
    let reader = answers.conns.exchange_id(slot, cx);
    match answers.conns.exchange_mut(slot).caching.take() {
        Some(Caching::Passes(passes)) => {
            // It remains unknown whether the request has changed something.
            if let (Some(change), Some(store)) = (passes.change, &cx.cache) {
                change.invalidate_all(store);
            }
        }
        Some(Caching::Waits(waits)) => {
            let parked = waits
                .parked
                .and_then(|name| Some((name, answers.conns.caches.parked.get_mut(&name)?)));
            if let Some((name, list)) = parked {
                list.retain(|id| *id != reader);
                if list.is_empty() {
                    answers.conns.caches.parked.remove(&name);
                }
            }
        }
        _ => {}
    }
    if let Some(by) = by {
        left(answers, by, reader, hard, cx);
    }
}

/// A worker has lost everything: its fetches have ended, and requests that wait for them here are
/// looked up again.
pub(crate) fn on_worker_lost(answers: &mut Answers) {
    let mut parked: Vec<ExchangeId> =
        std::mem::take(&mut answers.conns.caches.parked).into_values().flatten().collect();
    parked.sort_unstable_by_key(|id| id.index);
    answers.conns.caches.to_ask.extend(parked);
}

/// The last client that waits for a fetch has given it up. Its request counts until no server has
/// the fetch, so the fetch is given up as well.
pub(in crate::client) fn withdraw(conns: &mut Connections, slot: ExchangeKey, cx: &mut Context) {
    let Some(Caching::Waits(waits)) = &conns.exchange(slot).caching else { return };
    let Some(by) = waits.by.filter(|by| conns.holds(*by)) else { return };
    let Some(Caching::Fetches(fetch)) = &conns.exchange(by.index).caching else { return };
    let exchange = conns.exchange(by.index);
    let waits = |id: ExchangeId| {
        id.index != slot
            && is_reader(conns, id, by)
            && !conns.at(conns.exchange(id.index).conn).is_given_up()
    };
    // The request that has left is still in the list. Each departure examines no more than this
    // many.
    let is_wanted = || {
        let mut newest = fetch.readers.iter().rev().enumerate().take(LEFT_MAX + 1);
        newest.any(|(at, id)| at == LEFT_MAX || waits(id))
    };
    let is_awaited = fetch.fill.as_ref().is_some_and(Fill::is_awaited);
    if matches!(fetch.stage, Stage::Asked) && !fetch.is_given_up && !is_awaited && !is_wanted() {
        let (worker, conn, client) =
            (exchange.worker(), exchange.server_conn, conns.name(exchange.conn, cx));
        if worker != NO_WORKER && exchange.phase() == Phase::Waiting {
            let what = Cancellation::Counted { client, conn, told: false };
            cx.post(worker, Mail::Cancel { id: by, what });
            of(conns, by.index).is_given_up = true;
        }
    }
}

/// Ends a fetch from outside: it fails for all waiting requests.
pub(in crate::client) fn cut(answers: &mut Answers, index: ClientKey, cx: &mut Context) {
    if let Some(slot) = answers.conns.at(index).codec.current() {
        answers.conns.cancel(slot, false, cx);
        fetched::fail(answers, slot, Cause::Lost, None, cx);
    }
}
