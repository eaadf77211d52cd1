//! The cache of a worker's clients: between requests and servers (stage cache). What may be stored and served decides `weir-cache`; the store
//! is shared by all workers ([`weir_cache::Store`]). docs/semantics.md §26.
//!
//! A request of a route with `cache` is looked up ([`consult`]) before it would be forwarded. What may be used is sent at once ([`serve`]). Else it
//! waits ([`Waits`]) for what is fetched ([`fetch`]): an exchange of a connection without a socket, so that every rule of a request (deadlines, repetition,
//! fall-backs, mail) holds for it without being written twice. All requests of this worker that want the same wait for one fetch. What comes
//! is judged by its head: it is collected at the server's pace, and its readers are sent what is there as fast as each of them takes it; or
//! it is not for the store, and goes to the one who asked first as any answer would ([`Follows`]), while the others ask for themselves.
//!
//! What is complete is stored a moment later, when nothing has come on its connection that nobody asked for (`PROOF_US`): with a server that
//! is out of step an answer may be somebody else's, and a cache would give it to all. When a connection is doubted later, what it has
//! brought is withdrawn.
//!
//! Invariants: each fetch has a connection of its own, and is in `by_name` while others may join it; who waits has a deadline of its
//! own. Bounds: bytes as the store says, readers as there are clients, fetches as `queue` and connections bound requests.

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
    Answer, CacheStatus, FillName, Forward, Object, Served, Store, TagField, Times, Validators, is_contradicted,
    may_store,
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

/// How often a request joins others before it is asked for alone.
const TURNS_MAX: u8 = 2;

/// What the cache has to do with an exchange.
#[derive(Debug)]
pub(super) enum Caching {
    /// It fetches something for the store, and has no client.
    Fetches(Box<Fetch>),
    /// It waits for what is fetched.
    Waits(Box<Waits>),
    /// Its client is sent the body of a stored answer, or of one that is being fetched.
    Sends(Box<Sends>),
    /// It gets an answer that is fetched as that comes.
    Follows(Box<Follows>),
    /// It goes to a server by itself.
    Passes(Box<Passes>),
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waits {
    /// For this; None: for what another worker fetches, or to be looked up again.
    by: Option<ExchangeId>,
    /// For what another worker fetches under this name, or did.
    parked: Option<FillName>,
    key: Arc<[u8]>,
    asked: Arc<Asked>,
    rules: Arc<CacheRules>,
    /// Why it was not answered from the store.
    why: Forward,
    /// It did not ask first.
    collapsed: bool,
    /// How often it has waited.
    turns: u8,
    /// It is forwarded by itself when it is looked at again.
    goes_alone: bool,
}

/// A body on its way to a client.
#[derive(Debug)]
pub(super) struct Sends {
    body: Body,
    /// Where its next byte was found last, if it is complete.
    place: PiecePlace,
    /// Position of the next byte.
    at: u64,
    /// Position behind the last byte; None: where it ends is not known yet.
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
    /// It is being fetched.
    Fetched(ExchangeId),
    /// It is complete.
    Stored(Arc<Object>),
}

/// Who gets an answer as it comes.
#[derive(Debug)]
pub(super) struct Follows {
    /// Of this.
    by: ExchangeId,
}

/// A request that a server answers itself.
#[derive(Debug)]
pub(super) struct Passes {
    telling: Telling,
    /// What its answer makes invalid; None: nothing.
    change: Option<Change>,
    /// What is learned of its answer; None: nothing.
    lesson: Option<Box<Lesson>>,
}

/// What a client is told, and what not, of an answer of a route with a cache.
#[derive(Debug, Default)]
struct Telling {
    /// What it says in Cache-Status; None: he is not told.
    status: Option<CacheStatus>,
    /// Names of fields that are for the store alone.
    hidden: Vec<&'static [u8]>,
    /// The answer is made, or confirmed, for this very request.
    is_made_for_it: bool,
}

/// What an answer says of others that goes past the store.
#[derive(Debug)]
enum Lesson {
    /// Answers of its key are for one each: whether they are still.
    Mark { key: Arc<[u8]>, asked: Arc<Asked>, rules: Arc<CacheRules>, requested_us: u64 },
    /// It is one to HEAD: what is stored is of another representation if it contradicts that (RFC 9111 §4.3.5).
    Head(Arc<Object>),
}

impl Telling {
    fn of(rules: &CacheRules, status: CacheStatus, conns: &Connections, slot: ExchangeKey, cx: &Context) -> Self {
        let is_told = match rules.told {
            ToldTo::Nobody => false,
            ToldTo::Trusted => cx.plan.client.trusts(conns.at(conns.exchange(slot).conn).peer),
            ToldTo::Everybody => true,
        };
        let is_made_for_it = status.forward.is_some() && !status.hit && !status.collapsed;
        Self { status: is_told.then_some(status), hidden: hidden(rules).collect(), is_made_for_it }
    }
}

/// By the name of what is fetched.
type Named<T> = HashMap<FillName, T, BuildHasherDefault<DefaultHasher>>;

/// What is fetched, and who is to be looked at.
#[derive(Debug, Default)]
pub(super) struct Caches {
    /// Fetches, each of which has a connection.
    pub(super) fetches: usize,
    /// Those that others may join.
    by_name: Named<ExchangeKey>,
    /// Requests that wait for what other workers fetch.
    parked: Named<Vec<ExchangeId>>,
    /// Requests to be looked up again.
    to_ask: VecDeque<ExchangeId>,
    /// Clients who may be sent more.
    to_pump: Vec<(ClientKey, u32)>,
    /// Memory for the key of a request that is looked up.
    key: Vec<u8>,
    /// Requests that get something of a fetch in the next turn.
    crowds: crowd::Crowds,
}

impl Caches {
    /// Whether some client may be sent more.
    #[inline]
    pub(super) fn has_to_pump(&self) -> bool {
        !self.to_pump.is_empty()
    }

    /// Whether some request is to be looked up again.
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

    /// No server has it because of the cache: another one fetches, or has all.
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

/// The exchange that a server's news of a fetch concern in the access log and in what is held up: the first that has asked.
pub(super) fn reader_of(conns: &Connections, slot: ExchangeKey) -> ExchangeKey {
    match &conns.exchange(slot).caching {
        Some(Caching::Fetches(fetch)) => {
            let mut readers = fetch.readers.iter().filter(|id| conns.holds(*id));
            readers.next().map_or(slot, |id| id.index)
        }
        _ => slot,
    }
}

/// The request that a fetch was made of, if it waits for it still.
fn asker_of(conns: &Connections, slot: ExchangeKey) -> Option<ExchangeId> {
    let Some(Caching::Fetches(fetch)) = &conns.exchange(slot).caching else { return None };
    let is_first = |slot| matches!(&conns.exchange(slot).caching, Some(Caching::Waits(waits)) if !waits.collapsed);
    fetch.asker.filter(|id| conns.holds(*id) && is_first(id.index))
}

/// The fetch whose answer an exchange gets as it comes.
pub(super) fn source_of(conns: &Connections, slot: ExchangeKey) -> ExchangeKey {
    match &conns.exchange(slot).caching {
        Some(Caching::Follows(follows)) if conns.holds(follows.by) => follows.by.index,
        _ => slot,
    }
}

/// The time of a request is over that may wait for a fetch: whether it has been answered by what is stored, or waits on because what it waits
/// for is coming.
pub(super) fn goes_on_waiting(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) -> bool {
    let Some(Caching::Waits(waits)) = &answers.conns.exchange(slot).caching else { return false };
    let by = waits.by;
    let is_coming = by.filter(|by| answers.conns.holds(*by)).is_some_and(|by| {
        let Some(Caching::Fetches(fetch)) = &answers.conns.exchange(by.index).caching else { return false };
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

/// A request has waited for as long as it may for what another worker fetches, whose server may be slow, but not silent: once it is asked for by
/// itself, as if it had come now.
fn goes_alone(answers: &mut Answers, reader: ExchangeId, cx: &mut Context) -> bool {
    let is_elsewhere = |waits: &Waits| waits.by.is_none() && waits.parked.is_some() && !waits.goes_alone;
    let Some(waits) = readers::take_waits(answers, reader) else { return false };
    if !is_elsewhere(&waits) {
        readers::put_back(answers, reader, waits);
        return false;
    }
    answers.conns.exchange_mut(reader.index).await_more(cx.now_us);
    readers::look_again(answers, reader, waits, true);
    true
}

/// Names of fields that are for the store alone: what others than RFC 9875 have for tags.
fn hidden(rules: &CacheRules) -> impl Iterator<Item = &'static [u8]> {
    rules.tags.iter().filter(|field| **field != TagField::CacheGroups).map(|field| field.name())
}

/// Begins an answer of a server that says in Cache-Status what the cache did, without fields of these names.
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

/// The final answer of an exchange begins, which may have to do with the cache.
#[inline]
pub(super) fn begin(answers: &mut Answers, slot: ExchangeKey, source: Source, head: &AnswerHead<'_>, cx: &mut Context) {
    match answers.conns.exchange(slot).caching.is_some() {
        true => begin_passing(answers, slot, source, head, cx),
        false => answers.answer_begin(slot, source, head, cx),
    }
}

fn begin_passing(answers: &mut Answers, slot: ExchangeKey, source: Source, head: &AnswerHead<'_>, cx: &mut Context) {
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
                let times = Times { requested_us: *requested_us, received_us: cx.now_us, received_s: now_s };
                let answer = Answer::read(head.parts.status, head.parts.fields(), &rules.options, now_s);
                // How long it gets is known: one that turns out to be too large would be marked again.
                let is_measured = matches!(head.body, ReplyBody::Length(_) | ReplyBody::None);
                if is_measured && may_store(asked.request(), &answer, head.body, &rules.options, &times).is_ok() {
                    store.unmark_hit_for_miss(key);
                }
            }
            Lesson::Head(object) => {
                let fields: Vec<(Vec<u8>, Vec<u8>)> =
                    head.parts.fields().map(|(name, value)| (name.to_vec(), value.into_owned())).collect();
                let fields = fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
                let said = Validators::of(fields, now_s);
                let (stored, bytes) = (object.validators(now_s), object.body_bytes());
                if head.parts.status == 200 && is_contradicted(&stored, bytes, &said, head.declared_length) {
                    object.expire(cx.now_us);
                }
            }
        }
    }
}

/// Counts what a request got, of which so many bytes of body came from the store, and says so in its line of the access log.
fn count_served(answers: &mut Answers, slot: ExchangeKey, served: Served, body_bytes: u64, cx: &Context) {
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
