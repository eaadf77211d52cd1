//! The cache of a worker's clients: between requests and servers (stage cache). `weir-cache`
//! decides what may be stored and served; all workers share the store ([`weir_cache::Store`]).
//! docs/cache-rules.md.
//!
//! A request of a route with `cache` is looked up ([`consult`]) before it would be forwarded. A
//! usable response is sent at once ([`serve`]). Otherwise the request waits ([`Waits`]) for a fetch
//! ([`fetch`]): an exchange on a connection without a socket, so that every rule of a request
//! (deadlines, retries, fall-backs, mail) holds for it without being written twice. All requests of
//! this worker for the same response wait for one fetch. The head of the response decides. Either
//! the body is collected at the server's pace, and readers get the collected bytes as fast as each
//! takes them; or the response is not for the store, and the first request gets it like any
//! response ([`Follows`]), while the other requests are forwarded separately.
//!
//! A complete response is stored a moment later, when no unrequested bytes have arrived on its
//! connection (`PROOF_US`): a server that is out of step may send another client's response, and a
//! cache would give it to all. When a connection is doubted later, everything that it brought is
//! withdrawn.
//!
//! Invariants: each fetch has its own connection, and is in `by_name` while other requests may join
//! it; each waiting request has its own deadline. Bounds: bytes as the store limits them, no more
//! readers than clients, fetches as `queue` and connections bound requests.

mod change;
mod consult;
pub(crate) mod crowd;
pub(crate) mod fetch;
pub(crate) mod fetched;
pub mod outlook;
mod purge;
pub(crate) mod readers;
mod seen;
mod serve;
mod told;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use weir_cache::{
    Answer, CacheStatus, FillName, Forward, Object, Served, Store, TagField, Times, Validators,
    is_contradicted, may_store,
};
use weir_http::ReplyBody;

pub(super) use self::change::Change;
pub(super) use self::consult::{consult, look_up_again};
pub(super) use self::fetch::Fetch;
pub(super) use self::purge::purge;
use self::seen::Asked;
pub(super) use self::serve::pump_all;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::answer::Answers;
use crate::client::connection::Exchange;
use crate::client::connections::Connections;
use crate::context::Context;
use crate::cross::answer::{AnswerHead, Source};
use crate::plan::{CacheRules, ToldTo};
use crate::request::pending_request::ExchangeId;

/// How often a request joins other requests before it is fetched alone.
const TURNS_MAX: u8 = 2;

/// The part that the cache has in an exchange.
#[derive(Debug)]
pub(super) enum Caching {
    /// It fetches something for the store, and has no client.
    Fetches(Box<Fetch>),
    /// It waits for a fetch.
    Waits(Box<Waits>),
    /// Its client gets the body of a stored response, or of a response that is being fetched.
    Sends(Box<Sends>),
    /// It gets a fetched response as that comes.
    Follows(Box<Follows>),
    /// It is forwarded separately.
    Passes(Box<Passes>),
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waits {
    /// The fetch; None: another worker's fetch, or it is to be looked up again.
    by: Option<ExchangeId>,
    /// The name of the other worker's fetch that it waits for, or waited for.
    parked: Option<FillName>,
    key: Arc<[u8]>,
    asked: Arc<Asked>,
    rules: Arc<CacheRules>,
    /// Why it was not served from the store.
    why: Forward,
    /// It was not the first to ask.
    collapsed: bool,
    /// How often it has waited.
    turns: u8,
    /// It is forwarded separately at the next lookup.
    goes_alone: bool,
}

/// A body on its way to a client.
#[derive(Debug)]
pub(super) struct Sends {
    body: Body,
    /// Where its next byte was found last time, if it is complete.
    place: PiecePlace,
    /// Position of the next byte.
    at: u64,
    /// Position behind the last byte; None: the end is not known yet.
    end: Option<u64>,
}

/// A piece of a stored body.
#[derive(Clone, Copy, Debug, Default)]
struct PiecePlace {
    /// By number.
    piece: usize,
    /// Position of its first byte in the body.
    begin: u64,
}

/// Where the bytes of a body are.
#[derive(Debug)]
enum Body {
    /// In a fetch.
    Fetched(ExchangeId),
    /// In a complete stored response.
    Stored(Arc<Object>),
}

/// A request that gets a response as it comes.
#[derive(Debug)]
pub(super) struct Follows {
    /// The fetch.
    by: ExchangeId,
}

/// A request that a server answers directly.
#[derive(Debug)]
pub(super) struct Passes {
    telling: Telling,
    /// What its response invalidates; None: nothing.
    change: Option<Change>,
    /// What its response teaches; None: nothing.
    lesson: Option<Box<Lesson>>,
}

/// What a client learns, and what it does not, from a response of a route with a cache.
#[derive(Debug, Default)]
struct Telling {
    /// The value of Cache-Status; None: the field is not sent.
    status: Option<CacheStatus>,
    /// Names of fields that are for the store alone.
    hidden: Vec<&'static [u8]>,
    /// The response was made, or confirmed, for this very request.
    is_made_for_it: bool,
}

/// What a response that bypasses the store says about other responses.
#[derive(Debug)]
enum Lesson {
    /// Responses of its key are for one client each: whether that is still so.
    Mark { key: Arc<[u8]>, asked: Arc<Asked>, rules: Arc<CacheRules>, requested_us: u64 },
    /// It is a response to HEAD: a stored response that contradicts it is of another representation
    /// (RFC 9111 §4.3.5).
    Head(Arc<Object>),
}

impl Telling {
    fn of(
        rules: &CacheRules,
        status: CacheStatus,
        conns: &Connections,
        slot: ExchangeKey,
        cx: &Context,
    ) -> Self {
        let is_told = match rules.told {
            ToldTo::Nobody => false,
            ToldTo::Trusted => cx.plan.client.trusts(conns.at(conns.exchange(slot).conn).peer),
            ToldTo::Everybody => true,
        };
        let is_made_for_it = status.forward.is_some() && !status.hit && !status.collapsed;
        Self { status: is_told.then_some(status), hidden: hidden(rules).collect(), is_made_for_it }
    }
}

/// By the name of a fetch.
type Named<T> = HashMap<FillName, T, BuildHasherDefault<DefaultHasher>>;

/// The fetches of a worker, and the requests and clients to look at.
#[derive(Debug, Default)]
pub(super) struct Caches {
    /// The number of fetches, each of which has a connection.
    pub(super) fetches: usize,
    /// Fetches that other requests may join.
    by_name: Named<ExchangeKey>,
    /// Requests that wait for fetches of other workers.
    parked: Named<Vec<ExchangeId>>,
    /// Requests to be looked up again.
    to_ask: VecDeque<ExchangeId>,
    /// Clients that may be sent more.
    to_pump: Vec<(ClientKey, u32)>,
    /// Memory for the key of a request that is looked up.
    key: Vec<u8>,
    /// Requests that get more of a fetch in the next turn.
    crowds: crowd::Crowds,
}

impl Caches {
    /// Whether a client may be sent more.
    #[inline]
    pub(super) fn has_to_pump(&self) -> bool {
        !self.to_pump.is_empty()
    }

    /// Whether a request is to be looked up again.
    pub(super) fn has_to_look_up(&self) -> bool {
        !self.to_ask.is_empty()
    }
}

impl Exchange {
    /// It fetches something for the store.
    #[inline]
    pub(super) fn is_fetch(&self) -> bool {
        matches!(self.caching, Some(Caching::Fetches(_)))
    }

    /// No server has it because of the cache: another exchange fetches it, or the cache has all of
    /// it.
    pub(super) fn is_with_cache(&self) -> bool {
        match &self.caching {
            Some(Caching::Waits(_) | Caching::Sends(_) | Caching::Follows(_)) => true,
            Some(Caching::Fetches(fetch)) => fetch.is_complete(),
            Some(Caching::Passes(_)) | None => false,
        }
    }
}

/// The first exchange of a connection may be sent more from the store.
#[inline]
pub(super) fn may_pump(conns: &mut Connections, index: ClientKey) {
    let Some(slot) = conns.at(index).codec.current() else { return };
    if matches!(conns.exchange(slot).caching, Some(Caching::Sends(_))) {
        let generation = conns.conns.generation(index);
        conns.caches.to_pump.push((index, generation));
        conns.mark(index);
    }
}

/// Returns the exchange to which a server's news of a fetch apply, in the access log and in what is
/// held up: the first that asked.
pub(super) fn reader_of(conns: &Connections, slot: ExchangeKey) -> ExchangeKey {
    match &conns.exchange(slot).caching {
        Some(Caching::Fetches(fetch)) => {
            let mut readers = fetch.readers.iter().filter(|id| conns.holds(*id));
            readers.next().map_or(slot, |id| id.index)
        }
        _ => slot,
    }
}

/// Returns the request that a fetch was made from, if it still waits for the fetch.
fn asker_of(conns: &Connections, slot: ExchangeKey) -> Option<ExchangeId> {
    let Some(Caching::Fetches(fetch)) = &conns.exchange(slot).caching else { return None };
    let is_first = |slot| {
        matches!(
            &conns.exchange(slot).caching,
            Some(Caching::Waits(waits)) if !waits.collapsed
        )
    };
    fetch.asker.filter(|id| conns.holds(*id) && is_first(id.index))
}

/// Returns the fetch whose response an exchange gets as it comes.
pub(super) fn source_of(conns: &Connections, slot: ExchangeKey) -> ExchangeKey {
    match &conns.exchange(slot).caching {
        Some(Caching::Follows(follows)) if conns.holds(follows.by) => follows.by.index,
        _ => slot,
    }
}

/// The deadline of a request that may wait for a fetch has passed. Returns whether it was served
/// from the store, or waits on because its response is coming.
pub(super) fn goes_on_waiting(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) -> bool {
    let Some(Caching::Waits(waits)) = &answers.conns.exchange(slot).caching else { return false };
    let by = waits.by;
    let is_coming = by.filter(|by| answers.conns.holds(*by)).is_some_and(|by| {
        let Some(Caching::Fetches(fetch)) = &answers.conns.exchange(by.index).caching else {
            return false;
        };
        fetch.is_coming()
    });
    if is_coming {
        answers.conns.exchange_mut(slot).await_more(cx.now_us);
        return true;
    }
    let reader = answers.conns.exchange_id(slot, cx);
    if !consult::has_stale(answers, reader, cx) {
        return goes_alone(answers, reader, cx);
    }
    consult::failed_elsewhere(answers, reader, Cause::ForwardTimeout, cx);
    if let Some(by) = by {
        fetch::left(answers, by, reader, true, cx);
    }
    true
}

/// A request has waited for its full time for another worker's fetch; the server of that fetch may
/// be slow, but not silent. The request is forwarded separately, once, as if it had just arrived.
fn goes_alone(answers: &mut Answers, reader: ExchangeId, cx: &mut Context) -> bool {
    let is_elsewhere =
        |waits: &Waits| waits.by.is_none() && waits.parked.is_some() && !waits.goes_alone;
    let Some(waits) = readers::take_waits(answers, reader) else { return false };
    if !is_elsewhere(&waits) {
        readers::put_back(answers, reader, waits);
        return false;
    }
    answers.conns.exchange_mut(reader.index).await_more(cx.now_us);
    readers::look_again(answers, reader, waits, true);
    true
}

/// Names of fields that are for the store alone: those that other software than RFC 9875 uses for
/// tags.
fn hidden(rules: &CacheRules) -> impl Iterator<Item = &'static [u8]> {
    rules.tags.iter().filter(|field| **field != TagField::CacheGroups).map(|field| field.name())
}

/// Begins a server's response with a Cache-Status that says what the cache did, without fields of
/// these names.
fn begin_with(
    answers: &mut Answers,
    slot: ExchangeKey,
    source: Source,
    head: &AnswerHead<'_>,
    telling: &Telling,
    cx: &mut Context,
) {
    let text = telling.status.as_ref().map(status_text);
    let told = text.iter().map(|text| (&b"Cache-Status"[..], text.as_slice()));
    let added: Vec<(&[u8], &[u8])> = head.parts.added.iter().copied().chain(told).collect();
    let parts = head.parts.with(&added).without(&telling.hidden);
    answers.answer_begin(slot, source, &AnswerHead { parts, ..*head }, cx);
}

/// The final response of an exchange begins, which may involve the cache.
#[inline]
pub(super) fn begin(
    answers: &mut Answers,
    slot: ExchangeKey,
    source: Source,
    head: &AnswerHead<'_>,
    cx: &mut Context,
) {
    match answers.conns.exchange(slot).caching.is_some() {
        true => begin_passing(answers, slot, source, head, cx),
        false => answers.answer_begin(slot, source, head, cx),
    }
}

fn begin_passing(
    answers: &mut Answers,
    slot: ExchangeKey,
    source: Source,
    head: &AnswerHead<'_>,
    cx: &mut Context,
) {
    let exchange = answers.conns.exchange_mut(slot);
    let passes = match exchange.caching.take() {
        Some(Caching::Passes(passes)) => passes,
        other => {
            exchange.caching = other;
            return answers.answer_begin(slot, source, head, cx);
        }
    };
    let is_from_server = matches!(source, Source::Server(_));
    if let (Some(change), Some(store), true) = (&passes.change, &cx.cache, is_from_server) {
        change.invalidate(&head.parts, store);
    }
    if let (Some(lesson), Some(store), true) = (&passes.lesson, &cx.cache, is_from_server) {
        lesson.learn(head, store, cx);
    }
    let id = answers.conns.exchange_id(slot, cx);
    match is_from_server {
        true => begin_with(answers, slot, source, head, &passes.telling, cx),
        false => answers.answer_begin(slot, source, head, cx),
    }
    // It may begin again, at another server, if its client has nothing of it.
    if answers.conns.holds(id) {
        answers.conns.exchange_mut(slot).caching.get_or_insert(Caching::Passes(passes));
    }
}

impl Lesson {
    fn learn(&self, head: &AnswerHead<'_>, store: &Store, cx: &Context) {
        let now_s = wall_s(cx);
        match self {
            Lesson::Mark { key, asked, rules, requested_us } => {
                let times = Times {
                    requested_us: *requested_us,
                    received_us: cx.now_us,
                    received_s: now_s,
                };
                let answer =
                    Answer::read(head.parts.status, head.parts.fields(), &rules.options, now_s);
                // Its length is known: a response that turns out to be too large would be marked
                // again.
                let is_measured = matches!(head.body, ReplyBody::Length(_) | ReplyBody::None);
                if is_measured
                    && may_store(asked.request(), &answer, head.body, &rules.options, &times)
                        .is_ok()
                {
                    store.unmark_hit_for_miss(key);
                }
            }
            Lesson::Head(object) => {
                let fields: Vec<(Vec<u8>, Vec<u8>)> = head
                    .parts
                    .fields()
                    .map(|(name, value)| (name.to_vec(), value.into_owned()))
                    .collect();
                let fields = fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
                let said = Validators::of(fields, now_s);
                let (stored, bytes) = (object.validators(now_s), object.body_bytes());
                if head.parts.status == 200
                    && is_contradicted(&stored, bytes, &said, head.declared_length)
                {
                    object.expire(cx.now_us);
                }
            }
        }
    }
}

/// Counts the result of a request, of whose body this many bytes came from the store, and puts it
/// into the access log line of the request.
fn count_served(
    answers: &mut Answers,
    slot: ExchangeKey,
    served: Served,
    body_bytes: u64,
    cx: &Context,
) {
    answers.records.served(slot, served);
    if let Some(store) = &cx.cache {
        store.count_served(served, body_bytes, cx.worker.into());
    }
}

/// The value of Cache-Status.
fn status_text(status: &CacheStatus) -> Vec<u8> {
    let mut text = Vec::with_capacity(48);
    status.put(&mut text);
    text
}

/// Unix time in seconds.
fn wall_s(cx: &Context) -> u64 {
    u64::try_from(cx.wall_s()).unwrap_or(0)
}
