//! Lookups of requests in the store: the stored response, whether it may be used, and what happens
//! when it may not (stage cache).
//!
//! Called where a request would be forwarded, and again for requests whose wait brought no
//! response. A request that is not served from the store is forwarded as without a cache, or waits
//! for a fetch. A client's means to bypass the cache are bounded: whatever it sends, a response
//! confirmed within the last second is not validated again, and all requests for the same response
//! at a time are one request for its server. RFC 9111 §4, §5.2.1.

use std::sync::Arc;

use weir_cache::{
    Begun, Bypass, CacheStatus, Fill, Forward, Object, Place, REVALIDATE_AGAIN_US, Reason, Request,
    Served, ServerFailure, Store, Usage, bypass, is_fresh, is_sent_on_failure, judge_usage,
    may_wait,
};
use weir_http::{FieldName, Fields, Method, RequestHead};

use super::fetch::{self, Wanted};
use super::seen::{Asked, Seen, Unclear};
use super::told::Told;
use super::{
    Caching, Change, Lesson, Passes, TURNS_MAX, Telling, Waits, count_served, readers, serve,
};
use crate::base::keys::ExchangeKey;
use crate::cause::Cause;
use crate::client::Clients;
use crate::client::answer::Answers;
use crate::client::connection::{KeptRequest, NO_WORKER, Phase};
use crate::context::Context;
use crate::cross::router::Requests;
use crate::plan::{CacheRules, Plan};
use crate::request::client_address::client_scheme;
use crate::request::pending_request::ExchangeId;
use crate::request::rules::Ruled;

/// Most memory that is kept for the next key, bytes.
const KEY_BYTES_KEPT: usize = 4096;

/// The decision about a request.
enum Verdict {
    /// It is served from the store; the response is stale with `is_stale`, and is fetched again
    /// meanwhile with `is_renewed`.
    Use { object: Arc<Object>, is_stale: bool, is_renewed: bool },
    /// It waits for a fetch; `stale` is the response that the fetch validates.
    Fetch { stale: Option<Arc<Object>>, why: Forward },
    /// It is forwarded separately, and its response may say something about the stored one.
    Pass { why: Forward, detail: Option<&'static str>, stored: Option<Arc<Object>> },
    /// It accepts only a stored response.
    Nothing,
}

/// Decides by the stored responses of a key.
fn judge(
    store: &Store,
    key: &[u8],
    request: Request<'_>,
    rules: &CacheRules,
    now_us: u64,
) -> Verdict {
    let directives = request.directives();
    let (why, stale) = match store.find(key, request, now_us) {
        Some(found) => {
            let object = found.object;
            match judge_usage(
                &found.terms,
                &directives,
                &rules.options,
                now_us,
                object.checked_us(),
            ) {
                Usage::Fresh => return Verdict::Use { object, is_stale: false, is_renewed: false },
                Usage::StaleAccepted => {
                    return Verdict::Use { object, is_stale: true, is_renewed: false };
                }
                Usage::StaleWhileRevalidate => {
                    // One validation at a time, by a request whose response can be for all, and no
                    // immediate repeat after a failure.
                    let is_plain = request.head.method == Method::Get
                        && !directives.no_store
                        && !directives.only_if_cached
                        && !request.has(FieldName::Authorization);
                    let is_renewed = is_plain && object.check(now_us, REVALIDATE_AGAIN_US);
                    return Verdict::Use { object, is_stale: true, is_renewed };
                }
                Usage::GatewayTimeout => return Verdict::Nothing,
                Usage::Validate(Reason::Request) => {
                    if is_fresh(&found.terms, now_us) {
                        object.check(now_us, REVALIDATE_AGAIN_US);
                    }
                    (Forward::Request, Some(object))
                }
                Usage::Validate(_) => (Forward::Stale, Some(object)),
            }
        }
        None if store.variants(key, now_us).is_empty() => (Forward::UriMiss, None),
        None => (Forward::VaryMiss, None),
    };
    if !may_wait(&directives) {
        Verdict::Nothing
    } else if directives.no_store {
        Verdict::Pass { why, detail: Some("request-no-store"), stored: None }
    } else if request.head.method == Method::Head {
        // With credentials, the response may be for that client alone.
        let stored = stale.filter(|_| !request.has(FieldName::Authorization));
        Verdict::Pass { why, detail: None, stored }
    } else if stale.is_none() && request.has(FieldName::Range) {
        Verdict::Pass { why, detail: None, stored: None }
    } else {
        Verdict::Fetch { stale, why }
    }
}

/// Whether responses of an upstream can be for all: its servers are those of the configuration, and
/// no connection or session belongs to a single client.
fn is_for_all(upstream: usize, cx: &Context) -> bool {
    let is_own = cx.is_anywhere(upstream as u16) || cx.is_private(upstream as u16);
    !is_own && cx.plan.upstreams[upstream].sticky.is_none()
}

/// Runs a request through the cache. True: it is served, or waits; otherwise it is to be forwarded.
#[inline]
pub(in crate::client) fn consult(
    clients: &mut Clients,
    slot: ExchangeKey,
    upstream: usize,
    head: &RequestHead,
    fields: &Fields,
    bytes: &[u8],
    to: &mut Requests<'_>,
    cx: &mut Context,
) -> bool {
    let rules = clients.answers.conns.exchange(slot).ruled.as_deref().and_then(Ruled::cache);
    if rules.is_none() && head.method.is_safe() || cx.cache.is_none() || !is_for_all(upstream, cx) {
        return false;
    }
    look_up(clients, slot, upstream, (head, fields, bytes), to, cx)
}

/// The place of a request: its upstream and URL.
pub(super) fn place_of<'a>(
    answers: &'a Answers,
    slot: ExchangeKey,
    upstream: usize,
    (head, fields, bytes): (&RequestHead, &Fields, &'a [u8]),
    plan: &'a Plan,
) -> (Place<'a>, &'static [u8]) {
    let exchange = answers.conns.exchange(slot);
    let (conn, ruled) = (answers.conns.at(exchange.conn), exchange.ruled.as_deref());
    let is_sealed = client_scheme(conn.peer, conn.flags.sealed, fields, bytes, &plan.client).sealed;
    let scheme: &'static [u8] = if is_sealed { b"https" } else { b"http" };
    let upstream = plan.upstreams[upstream].name.as_bytes();
    let path = ruled.and_then(Ruled::path).unwrap_or_else(|| head.path.of(bytes));
    (Place { upstream, scheme, authority: head.authority.of(bytes), path }, scheme)
}

/// What weir tells the server of a request.
pub(super) fn told_of(answers: &Answers, slot: ExchangeKey) -> Told<'_> {
    let exchange = answers.conns.exchange(slot);
    Told {
        ruled: exchange.ruled.as_deref(),
        shown: answers.conns.at(exchange.conn).shown.as_deref(),
    }
}

/// The result of a look at a request and at the store.
enum Looked {
    /// It is served from the store.
    Used { object: Arc<Object>, is_stale: bool, telling: Telling },
    /// It is forwarded separately.
    Passed { telling: Telling, change: Option<Change> },
    /// It needs more than that from the cache.
    Judged { verdict: Verdict, key: Arc<[u8]>, rules: Arc<CacheRules> },
}

/// Examines a request and the stored responses for it; `key` is memory for its key, and empty.
fn look(
    answers: &Answers,
    slot: ExchangeKey,
    upstream: usize,
    came: (&RequestHead, &Fields, &[u8]),
    seen: Result<Option<&Seen>, Unclear>,
    key: &mut Vec<u8>,
    cx: &Context,
) -> Looked {
    let (head, fields, bytes) = came;
    let (place, scheme) = place_of(answers, slot, upstream, came, &cx.plan);
    let rules = answers.conns.exchange(slot).ruled.as_deref().and_then(Ruled::cache);
    let (Some(store), Some(rules)) = (&cx.cache, rules) else {
        // Responses that another route stores of it may become invalid.
        let change = Change::of(place, scheme, &Arc::default(), head.method);
        return Looked::Passed { telling: Telling::default(), change };
    };
    let telling = |status| Telling::of(rules, status, &answers.conns, slot, cx);
    let bypassed = |why| Looked::Passed {
        telling: telling(CacheStatus::bypassed(why)),
        change: Change::of(place, scheme, rules, head.method),
    };
    let Ok(seen) = seen else { return bypassed(Bypass::Rewritten) };
    let request = seen.map_or(Request { input: bytes, head, fields }, Seen::request);
    if let Some(why) = bypass(request, scheme, &rules.options) {
        return bypassed(why);
    }
    told_of(answers, slot).put_key(key, place, &rules.keys, request);
    match judge(store, key, request, rules, cx.now_us) {
        Verdict::Use { object, is_stale, is_renewed: false } => {
            Looked::Used { object, is_stale, telling: telling(CacheStatus::hit()) }
        }
        verdict => Looked::Judged { verdict, key: key.as_slice().into(), rules: Arc::clone(rules) },
    }
}

#[inline(never)]
fn look_up(
    clients: &mut Clients,
    slot: ExchangeKey,
    upstream: usize,
    came: (&RequestHead, &Fields, &[u8]),
    to: &mut Requests<'_>,
    cx: &mut Context,
) -> bool {
    let (head, fields, bytes) = came;
    let answers = &mut clients.answers;
    let exchange = answers.conns.exchange(slot);
    let is_trusted = cx.plan.client.trusts(answers.conns.at(exchange.conn).peer);
    let seen = Seen::of(exchange.ruled.as_deref(), is_trusted, came);
    let mut key = std::mem::take(&mut answers.conns.caches.key);
    let looked = look(
        answers,
        slot,
        upstream,
        came,
        seen.as_ref().map(Option::as_deref).map_err(|why| *why),
        &mut key,
        cx,
    );
    if key.capacity() <= KEY_BYTES_KEPT {
        key.clear();
        answers.conns.caches.key = key;
    }
    let (verdict, key, rules) = match looked {
        Looked::Judged { verdict, key, rules } => (verdict, key, rules),
        Looked::Used { object, is_stale, telling } => {
            let seen = seen.ok().flatten();
            let request =
                seen.as_deref().map_or(Request { input: bytes, head, fields }, Seen::request);
            use_stored(answers, slot, &object, is_stale, request, &telling, cx);
            return true;
        }
        Looked::Passed { telling, change } => {
            return pass(answers, slot, telling, change, Served::Bypass, cx);
        }
    };
    let kept = KeptRequest {
        head: *head,
        fields: fields.clone(),
        bytes: bytes[..head.bytes].to_vec(),
        upstream,
    };
    let asked = Arc::new(Asked { kept, seen: seen.ok().flatten() });
    let waits = Waits {
        by: None,
        parked: None,
        key,
        asked,
        rules,
        why: Forward::UriMiss,
        collapsed: false,
        turns: 0,
        goes_alone: false,
    };
    let Some(store) = cx.cache.clone() else { return false };
    do_as_judged(clients, slot, verdict, waits, &store, to, cx)
}

/// Serves a request from the store.
fn use_stored(
    answers: &mut Answers,
    slot: ExchangeKey,
    object: &Arc<Object>,
    is_stale: bool,
    request: Request<'_>,
    telling: &Telling,
    cx: &mut Context,
) {
    let is_head = request.head.method == Method::Head;
    let bytes = if is_head { 0 } else { object.body_bytes() };
    answers.conns.exchange_mut(slot).is_hit = true;
    count_served(answers, slot, if is_stale { Served::Stale } else { Served::Hit }, bytes, cx);
    serve::serve(answers, slot, object, request, telling, cx);
}

/// Carries out the decision about a request. True: it is served, or waits; otherwise it is to be
/// forwarded.
fn do_as_judged(
    clients: &mut Clients,
    slot: ExchangeKey,
    verdict: Verdict,
    mut waits: Waits,
    store: &Store,
    to: &mut Requests<'_>,
    cx: &mut Context,
) -> bool {
    match verdict {
        Verdict::Use { object, is_stale, is_renewed } => {
            let renewal = if is_renewed {
                begin_renewal(clients, slot, &object, &waits, store, cx)
            } else {
                None
            };
            let request = waits.asked.request();
            let telling =
                Telling::of(&waits.rules, CacheStatus::hit(), &clients.answers.conns, slot, cx);
            use_stored(&mut clients.answers, slot, &object, is_stale, request, &telling, cx);
            if let Some((fetch, ruled)) = renewal {
                fetch::ask(clients, fetch, &ruled, to, cx);
            }
            true
        }
        Verdict::Nothing => {
            count_served(&mut clients.answers, slot, Served::Miss, 0, cx);
            clients.answers.fail_exchange(slot, Cause::OnlyIfCached, cx);
            true
        }
        Verdict::Pass { why, detail, stored } => {
            let status = CacheStatus { forward: Some(why), detail, ..CacheStatus::default() };
            let telling = Telling::of(&waits.rules, status, &clients.answers.conns, slot, cx);
            pass(&mut clients.answers, slot, telling, None, Served::Miss, cx);
            stored
                .into_iter()
                .for_each(|object| learn(&mut clients.answers, slot, Lesson::Head(object)));
            false
        }
        Verdict::Fetch { stale, why } => {
            waits.why = why;
            wait(clients, slot, waits, stale, store, to, cx)
        }
    }
}

/// Fetches a stale response again while clients still get it; None: such a fetch is already under
/// way.
fn begin_renewal(
    clients: &mut Clients,
    slot: ExchangeKey,
    object: &Arc<Object>,
    waits: &Waits,
    store: &Store,
    cx: &mut Context,
) -> Option<(ExchangeKey, Box<Ruled>)> {
    let request = waits.asked.request();
    let Begun::Owner(fill) = store.begin_fill(&waits.key, request, cx.worker.into(), cx.now_us)
    else {
        return None;
    };
    let (key, asked, rules) =
        (Arc::clone(&waits.key), Arc::clone(&waits.asked), Arc::clone(&waits.rules));
    let wanted = Wanted { key, asked, rules, stale: Some(Arc::clone(object)) };
    let exchange = clients.answers.conns.exchange(slot);
    let (index, ruled) = (exchange.conn, exchange.ruled.clone()?);
    Some((fetch::open(&mut clients.answers, index, wanted, fill, true, cx), ruled))
}

/// Forwards a request separately: always false.
fn pass(
    answers: &mut Answers,
    slot: ExchangeKey,
    telling: Telling,
    change: Option<Change>,
    served: Served,
    cx: &Context,
) -> bool {
    let exchange = answers.conns.exchange(slot);
    if exchange.ruled.as_deref().and_then(Ruled::cache).is_some() {
        count_served(answers, slot, served, 0, cx);
    }
    let is_something = telling.status.is_some() || change.is_some() || !telling.hidden.is_empty();
    answers.conns.exchange_mut(slot).caching =
        is_something.then(|| Caching::Passes(Box::new(Passes { telling, change, lesson: None })));
    false
}

/// Records that the response to a separately forwarded request teaches something.
fn learn(answers: &mut Answers, slot: ExchangeKey, lesson: Lesson) {
    let nothing = || Passes { telling: Telling::default(), change: None, lesson: None };
    let caching = &mut answers.conns.exchange_mut(slot).caching;
    if let Caching::Passes(passes) =
        caching.get_or_insert_with(|| Caching::Passes(Box::new(nothing())))
    {
        passes.lesson = Some(Box::new(lesson));
    }
}

/// Who fetches the response for a request.
enum Fetcher {
    /// This worker already.
    Here(ExchangeKey),
    /// Another worker.
    Elsewhere(weir_cache::FillName),
    /// This worker, from now on; `is_joinable`: other requests may wait for it.
    Now { fill: Fill, is_joinable: bool },
    /// No fetch: responses of its key are for one client each.
    Nobody,
}

fn fetcher(
    answers: &mut Answers,
    waits: &Waits,
    is_stale: bool,
    store: &Store,
    cx: &mut Context,
) -> Fetcher {
    let request = waits.asked.request();
    let lone = || Fetcher::Now { fill: store.lone_fill(&waits.key), is_joinable: false };
    // With credentials, the response may be for that client alone: no other request waits for it.
    if request.has(FieldName::Authorization) {
        return lone();
    }
    let begin = |cx: &Context| store.begin_fill(&waits.key, request, cx.worker.into(), cx.now_us);
    let mut begun = begin(cx);
    if let Begun::Waiting { worker, name } = begun
        && worker == usize::from(cx.worker)
        && fetch::retire(answers, name, &waits.key, store, cx)
    {
        // The fetch was purged, or its URL has changed: it serves only requests that came before.
        begun = begin(cx);
    }
    match begun {
        Begun::Owner(fill) => Fetcher::Now { fill, is_joinable: true },
        Begun::HitForMiss if is_stale => lone(),
        Begun::HitForMiss => Fetcher::Nobody,
        Begun::Waiting { .. } if waits.turns >= TURNS_MAX => lone(),
        Begun::Waiting { worker, name } if worker == usize::from(cx.worker) => {
            fetch::joinable(&answers.conns, name, &waits.key, store)
                .map_or_else(lone, Fetcher::Here)
        }
        Begun::Waiting { name, .. } => Fetcher::Elsewhere(name),
    }
}

/// Makes a request wait for a running fetch, or for a new one made for it. `stale`: the response
/// that the fetch validates. True: it waits; otherwise it is to be forwarded.
fn wait(
    clients: &mut Clients,
    slot: ExchangeKey,
    mut waits: Waits,
    stale: Option<Arc<Object>>,
    store: &Store,
    to: &mut Requests<'_>,
    cx: &mut Context,
) -> bool {
    let answers = &mut clients.answers;
    let fetcher = fetcher(answers, &waits, stale.is_some(), store, cx);
    if let Fetcher::Now { .. } | Fetcher::Nobody = fetcher {
        store.count_miss(&waits.key, waits.why.word());
    }
    if let Fetcher::Nobody = fetcher {
        let status = CacheStatus {
            forward: Some(waits.why),
            detail: Some("hit-for-miss"),
            ..CacheStatus::default()
        };
        let telling = Telling::of(&waits.rules, status, &answers.conns, slot, cx);
        pass(answers, slot, telling, None, Served::HitForMiss, cx);
        let Waits { key, asked, rules, .. } = waits;
        learn(answers, slot, Lesson::Mark { key, asked, rules, requested_us: cx.now_us });
        return false;
    }
    begin_waiting(answers, slot, waits.asked.kept.upstream, cx);
    let id = answers.conns.exchange_id(slot, cx);
    match fetcher {
        Fetcher::Here(fetch) => {
            waits.collapsed = true;
            waits.by = Some(answers.conns.exchange_id(fetch, cx));
            answers.conns.exchange_mut(slot).caching = Some(Caching::Waits(Box::new(waits)));
            fetch::add_reader(answers, fetch, id, cx);
            readers::share_late(answers, fetch, id, cx);
        }
        Fetcher::Elsewhere(name) => {
            waits.collapsed = true;
            (waits.by, waits.parked) = (None, Some(name));
            answers.conns.exchange_mut(slot).caching = Some(Caching::Waits(Box::new(waits)));
            answers.conns.caches.parked.entry(name).or_default().push(id);
        }
        Fetcher::Now { fill, is_joinable } => {
            let (key, asked, rules) =
                (Arc::clone(&waits.key), Arc::clone(&waits.asked), Arc::clone(&waits.rules));
            let exchange = answers.conns.exchange(slot);
            let (index, ruled) = (exchange.conn, exchange.ruled.clone().unwrap_or_default());
            let fetch = fetch::open(
                answers,
                index,
                Wanted { key, asked, rules, stale },
                fill,
                is_joinable,
                cx,
            );
            waits.by = Some(answers.conns.exchange_id(fetch, cx));
            waits.collapsed = false;
            answers.conns.exchange_mut(slot).caching = Some(Caching::Waits(Box::new(waits)));
            fetch::add_reader(answers, fetch, id, cx);
            fetch::ask(clients, fetch, &ruled, to, cx);
        }
        Fetcher::Nobody => {}
    }
    true
}

/// Makes a request wait, if it does not wait yet; no server has it.
fn begin_waiting(answers: &mut Answers, slot: ExchangeKey, upstream: usize, cx: &Context) {
    let (patience_us, pause_us) = (
        cx.plan.upstreams[upstream].forward_timeout_us,
        cx.plan.upstreams[upstream].answer_timeout_us,
    );
    let exchange = answers.conns.exchange_mut(slot);
    if exchange.phase() != Phase::Waiting {
        exchange.enter(Phase::Waiting);
        (exchange.patience_us, exchange.pause_us) = (patience_us, pause_us);
        exchange.await_more(cx.now_us);
        answers.records.forwarded(slot, upstream, || None, cx);
    }
    let exchange = answers.conns.exchange_mut(slot);
    (exchange.asked, exchange.server_conn) = (NO_WORKER, None);
}

/// Looks up again one of the requests whose wait brought no response. False: none is left.
pub(in crate::client) fn look_up_again(
    clients: &mut Clients,
    to: &mut Requests<'_>,
    cx: &mut Context,
) -> bool {
    let caches = &mut clients.answers.conns.caches;
    if caches.to_ask.is_empty() || !caches.crowds.take_place() {
        return false;
    }
    let Some(id) = caches.to_ask.pop_front() else { return false };
    let Some(waits) = readers::take_waits(&mut clients.answers, id) else { return true };
    let slot = id.index;
    let index = clients.answers.conns.exchange(slot).conn;
    let generation = clients.answers.conns.conns.generation(index);
    if clients.answers.conns.at(index).is_given_up() {
        clients.answers.end_given_up(slot, cx);
        return true;
    }
    again(clients, slot, *waits, to, cx);
    if clients.answers.conns.knows((index, generation)) {
        clients.answers.conns.arm(index, cx);
    }
    true
}

fn again(
    clients: &mut Clients,
    slot: ExchangeKey,
    waits: Waits,
    to: &mut Requests<'_>,
    cx: &mut Context,
) {
    let asked = Arc::clone(&waits.asked);
    let goes = match cx.cache.clone() {
        Some(store) if !waits.goes_alone => {
            let verdict = judge(&store, &waits.key, asked.request(), &waits.rules, cx.now_us);
            let turns = waits.turns.saturating_add(1);
            !do_as_judged(clients, slot, verdict, Waits { turns, ..waits }, &store, to, cx)
        }
        _ => {
            let detail = Some("hit-for-miss");
            let status = CacheStatus { forward: Some(waits.why), detail, ..CacheStatus::default() };
            let telling = Telling::of(&waits.rules, status, &clients.answers.conns, slot, cx);
            !pass(&mut clients.answers, slot, telling, None, Served::HitForMiss, cx)
        }
    };
    if goes {
        let KeptRequest { head, fields, bytes, upstream } = &asked.kept;
        let answers = &mut clients.answers;
        answers.conns.exchange_mut(slot).asked = cx.worker;
        clients.asks.forward(answers, slot, *upstream, head, fields, bytes, &[], None, to, cx);
    }
}

/// Whether the store has a response that a request may get while its server fails.
pub(super) fn has_stale(answers: &Answers, reader: ExchangeId, cx: &Context) -> bool {
    let Some(Caching::Waits(waits)) = &answers.conns.exchange(reader.index).caching else {
        return false;
    };
    let found = cx
        .cache
        .as_ref()
        .and_then(|store| store.find(&waits.key, waits.asked.request(), cx.now_us));
    found.is_some_and(|found| is_sent_on_failure(&found.terms, ServerFailure::NoAnswer, cx.now_us))
}

/// Another worker's fetch for a request has failed: the request gets the error, or a stored
/// response if that is allowed.
pub(super) fn failed_elsewhere(
    answers: &mut Answers,
    reader: ExchangeId,
    cause: Cause,
    cx: &mut Context,
) {
    let Some(waits) = readers::take_waits(answers, reader) else { return };
    let found = cx
        .cache
        .as_ref()
        .and_then(|store| store.find(&waits.key, waits.asked.request(), cx.now_us));
    let stale =
        found.filter(|found| is_sent_on_failure(&found.terms, ServerFailure::NoAnswer, cx.now_us));
    readers::put_back(answers, reader, waits);
    match stale {
        Some(found) => {
            readers::give_stored(answers, reader, (&found.object, &[]), None, Some(None), cx)
        }
        None => readers::fail_reader(answers, reader, cause, cause.retry_after_s(), cx),
    }
}
