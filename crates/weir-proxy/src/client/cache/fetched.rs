//! What servers send for fetches: heads decide which clients get the response, bodies are
//! collected, and a complete response is stored once it is proved (stage cache). RFC 9111 §3,
//! §4.3.3, §4.3.4; RFC 5861.

use std::sync::Arc;

use weir_cache::{
    Answer, CacheStatus, Collector, Draft, NotKept, NotStored, Object, Options, Selector, Served,
    ServerFailure, Store, Times, Validators, Vary, is_confirmed, is_sent_on_failure, may_store,
    put_fields, put_lines, read_tags, stored_fields, update_lines, url_of,
};
use weir_http::{FieldName, ReplyBody, ReplyParts, Trailers};

use super::crowd::{self, Told, is_reader};
use super::fetch::{self, After, Collected, Fetch, Stage};
use super::{Caching, Follows, Sends, Telling, asker_of, begin_with, readers, serve, wall_s};
use crate::base::keys::ExchangeKey;
use crate::base::output::HIGH_BYTES;
use crate::base::piece::Piece;
use crate::cause::Cause;
use crate::client::answer::Answers;
use crate::client::connection::{NO_WORKER, Phase};
use crate::context::Context;
use crate::cross::answer::{AnswerHead, Source, Stop, mark_of};
use crate::ending::Timeout;
use crate::plan::CacheRules;
use crate::request::pending_request::ConnId;

/// How long nothing may follow a response on its connection before it is stored: surplus bytes come
/// at once.
const PROOF_US: u64 = 10_000;

/// Reasons not to store a response that hold for the responses to other requests as well.
const LASTING: [&str; 7] =
    ["no-store", "private", "set-cookie", "vary", "until-close", "body-too-large", "never-usable"];

/// Handles the head of a response to a fetch.
pub(in crate::client) fn on_head(
    answers: &mut Answers,
    slot: ExchangeKey,
    from: ConnId,
    head: &AnswerHead<'_>,
    cx: &mut Context,
) {
    if head.parts.status < 200 {
        // Only for the request that the fetch was made from: it may be about that client.
        let asker = asker_of(&answers.conns, slot)
            .filter(|asker| answers.conns.is_in(*asker, Phase::Waiting));
        asker.into_iter().for_each(|asker| answers.answer_interim(asker.index, &head.parts, cx));
        return;
    }
    if fetch::of(&mut answers.conns, slot).is_given_up {
        // The server was quicker. The rest of the response is discarded, and requests that joined
        // meanwhile are looked up again.
        let by = answers.conns.exchange_id(slot, cx);
        answers.conns.throw_away(by, from, cx);
        return withdrawn(answers, slot, cx);
    }
    let exchange = answers.conns.exchange_mut(slot);
    exchange.enter(Phase::Answering);
    exchange.server_conn = Some(from);
    exchange.await_more(cx.now_us);
    let fetching = exchange.conn;
    answers.conns.arm_awaited(fetching, cx);
    answers.release(slot);
    readers::end_given_up(answers, slot, cx);
    let Some(store) = cx.cache.clone() else { return fail(answers, slot, Cause::Lost, None, cx) };
    let status = head.parts.status;
    let fetch = fetch::of(&mut answers.conns, slot);
    let failure = ServerFailure::Status(status);
    let stale = fetch.wanted.stale.clone().filter(|stale| store.is_valid(&fetch.wanted.key, stale));
    if status == 304 && fetch.wanted.stale.is_some() && stale.is_none() {
        // The confirmed response was purged meanwhile.
        fetch.stage = Stage::Ends(After::Anew { alone: false });
        return;
    }
    if let Some(stale) = stale {
        if status == 304 && !stale.validators(wall_s(cx)).is_empty() {
            return not_modified(answers, slot, &stale, head, &store, cx);
        }
        if is_sent_on_failure(&stale.terms(), failure, cx.now_us) {
            fetch.stage = Stage::Ends(After::Nothing);
            readers::use_stored(answers, slot, &stale, Some(status), cx);
            return;
        }
    }
    if status == 304 {
        // The request had no conditions.
        fetch.stage = Stage::Ends(After::Bad);
        return;
    }
    match judge(fetch, from, head, &store, cx) {
        Ok(collected) => {
            store.unmark_hit_for_miss(&fetch.wanted.key);
            store.note_answer(&fetch.wanted.key, None);
            fetch.stage = Stage::Collects(Box::new(collected));
            crowd::stream(answers, slot, cx);
        }
        Err(why) => {
            store.note_answer(&fetch.wanted.key, Some(why));
            pass_on(answers, slot, from, head, why, &store, cx);
        }
    }
}

/// Decides whether a response may be stored, and on which terms.
fn judge(
    fetch: &Fetch,
    from: ConnId,
    head: &AnswerHead<'_>,
    store: &Store,
    cx: &Context,
) -> Result<Collected, &'static str> {
    if fetch.is_elsewhere {
        return Err("fallback");
    }
    let options = &fetch.wanted.rules.options;
    let times =
        Times { requested_us: fetch.requested_us, received_us: cx.now_us, received_s: wall_s(cx) };
    let answer = Answer::read(head.parts.status, head.parts.fields(), options, times.received_s);
    let request = fetch.wanted.asked.request();
    let terms = may_store(request, &answer, head.body, options, &times).map_err(|why| {
        store.count_not_stored(why);
        why.word()
    })?;
    let selector = match &answer.vary {
        Vary::Names(names) => Selector::of(names, request),
        Vary::Anything => return Err(NotStored::VaryAny.word()),
    };
    let tags = tags_of(&fetch.wanted.rules, &head.parts)?;
    let length = match head.body {
        ReplyBody::Length(length) => Some(length),
        ReplyBody::None => Some(0),
        ReplyBody::Chunked | ReplyBody::UntilClose => None,
    };
    let body = store.collect(length).map_err(|why| {
        store.count_not_kept(why);
        why.word()
    })?;
    let mut lines = Vec::with_capacity(answer.field_bytes + 64);
    put_lines(&mut lines, head.parts.fields(), options, times.received_s);
    Ok(Collected {
        body,
        terms,
        lines: lines.into(),
        selector,
        tags,
        source: mark_of(from, cx.now_us),
        length,
    })
}

fn tags_of(rules: &CacheRules, parts: &ReplyParts<'_>) -> Result<Vec<Vec<u8>>, &'static str> {
    let mut tags = Vec::new();
    for field in &rules.tags {
        let lines: Vec<Vec<u8>> = parts
            .fields()
            .filter(|(name, _)| name.eq_ignore_ascii_case(field.name()))
            .map(|(_, value)| value.into_owned())
            .collect();
        // A response that a purge would not find is not stored.
        tags.extend(
            read_tags(*field, lines.iter().map(Vec::as_slice)).map_err(|_| "too-many-tags")?,
        );
    }
    tags.sort_unstable();
    tags.dedup();
    Ok(tags)
}

/// Passes a response that is not for the store to the request that it was fetched for, as it comes;
/// the others are forwarded separately.
fn pass_on(
    answers: &mut Answers,
    slot: ExchangeKey,
    from: ConnId,
    head: &AnswerHead<'_>,
    why: &'static str,
    store: &Store,
    cx: &mut Context,
) {
    let by = answers.conns.exchange_id(slot, cx);
    let fetch = fetch::of(&mut answers.conns, slot);
    let mark_us = fetch.wanted.rules.hit_for_miss_us;
    let is_ours = !fetch.wanted.is_personal() && !fetch.is_elsewhere;
    if is_ours && fetch.wanted.stale.is_some() && head.parts.status < 500 {
        // The stored response is outdated.
        store.invalidate(url_of(&fetch.wanted.key));
    }
    // An error, or something caused by one client, says nothing of the responses to others.
    if is_ours && mark_us > 0 && head.parts.status < 400 && LASTING.contains(&why) {
        store.mark_hit_for_miss(&fetch.wanted.key, cx.now_us.saturating_add(mark_us));
    }
    fetch::withdraw_name(&mut answers.conns, slot, None, cx);
    let readers = fetch::of(&mut answers.conns, slot).readers.take();
    let mut first = None;
    for reader in
        readers.into_iter().filter(|id| is_reader(&answers.conns, *id, by)).collect::<Vec<_>>()
    {
        let Some(waits) = readers::take_waits(answers, reader) else { continue };
        // A response fetched for one request is for no other.
        if waits.collapsed {
            readers::look_again(answers, reader, waits, true);
        } else {
            first = Some((reader, waits));
        }
    }
    let Some((reader, waits)) = first else {
        answers.conns.cancel(slot, false, cx);
        fetch::close(answers, slot, None, cx);
        return;
    };
    readers::count(answers, reader, &waits, Served::Miss, cx);
    let fetch = fetch::of(&mut answers.conns, slot);
    fetch.readers.push(reader);
    fetch.stage = Stage::Passes;
    let exchange = answers.conns.exchange_mut(slot);
    exchange.await_nothing();
    let status =
        CacheStatus { forward: Some(waits.why), detail: Some(why), ..CacheStatus::default() };
    let telling = Telling::of(&waits.rules, status, &answers.conns, reader.index, cx);
    answers.conns.exchange_mut(reader.index).caching =
        Some(Caching::Follows(Box::new(Follows { by })));
    begin_with(answers, reader.index, Source::Server(from), head, &telling, cx);
}

/// Handles 304: the stored response is still valid, or is not the one that was validated.
fn not_modified(
    answers: &mut Answers,
    slot: ExchangeKey,
    stale: &Arc<Object>,
    head: &AnswerHead<'_>,
    store: &Arc<Store>,
    cx: &mut Context,
) {
    let now_s = wall_s(cx);
    let fields: Vec<(Vec<u8>, Vec<u8>)> =
        head.parts.fields().map(|(name, value)| (name.to_vec(), value.into_owned())).collect();
    let fields = || fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
    let fetch = fetch::of(&mut answers.conns, slot);
    if !is_confirmed(&stale.validators(now_s), true, &Validators::of(fields(), now_s)) {
        let is_personal = fetch.wanted.is_personal();
        if !is_personal {
            store.invalidate(url_of(&fetch.wanted.key));
        }
        // The stored response remains, and would be validated again, with the same result.
        fetch.stage = Stage::Ends(After::Anew { alone: is_personal });
        return;
    }
    stale.check(cx.now_us, 0);
    let options = &fetch.wanted.rules.options;
    let times =
        Times { requested_us: fetch.requested_us, received_us: cx.now_us, received_s: now_s };
    fetch.own_lines = own_lines(fields(), options);
    let mut lines = Vec::with_capacity(stale.lines().len() + 64);
    update_lines(&mut lines, stale.lines(), fields(), options, now_s);
    let answer = Answer::read(
        stale.stored_terms().status,
        stored_fields(&lines).chain(age_of(fields())),
        options,
        now_s,
    );
    let request = fetch.wanted.asked.request();
    let judged =
        may_store(request, &answer, ReplyBody::Length(stale.body_bytes()), options, &times);
    let (Ok(terms), Vary::Names(names)) = (judged, &answer.vary) else {
        // From now on it may not be stored, and serves this once; an obstacle caused by one client
        // does not hold for others.
        let is_of_request = matches!(judged, Err(NotStored::RequestNoStore | NotStored::Method));
        if !is_of_request && !fetch.wanted.is_personal() {
            store.invalidate(url_of(&fetch.wanted.key));
        }
        fetch.stage = Stage::Ends(After::Use(Arc::clone(stale)));
        return;
    };
    let selector = Selector::of(names, request);
    let draft = Draft {
        key: &fetch.wanted.key,
        selector,
        lines: &lines,
        terms,
        tags: stale.tags().to_vec(),
        source: stale.source(),
    };
    let refreshed = fetch.fill.as_ref().map(|fill| store.refresh(fill, draft, stale));
    fetch.stage = match refreshed {
        Some(Ok(pending)) => Stage::Confirmed(Box::new(pending)),
        // The store has no room for another copy of it.
        _ => Stage::Ends(After::Use(Arc::clone(stale))),
    };
}

/// The lines of a 304 that are only for the request that it was fetched for: cookies that are not
/// stored for all, unless the route strips them (RFC 9111 §3.2, §7.3).
fn own_lines<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    options: &Options,
) -> Arc<[u8]> {
    let is_own = |name: &[u8]| FieldName::of(name) == FieldName::SetCookie && options.keeps(name);
    let mut lines = Vec::new();
    if !options.stores_set_cookie {
        put_fields(&mut lines, fields.filter(|(name, _)| is_own(name)));
    }
    lines.into()
}

/// Age, which is not among the stored lines, but says how old the confirmation is.
fn age_of<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    fields.filter(|(name, _)| name.eq_ignore_ascii_case(b"age"))
}

/// Takes a piece of the body of a fetch. Returns whether its source has to stop: never for the
/// store.
pub(in crate::client) fn on_piece(
    answers: &mut Answers,
    slot: ExchangeKey,
    piece: Piece<'_>,
    cx: &mut Context,
) -> Option<Stop> {
    answers.conns.exchange_mut(slot).await_more(cx.now_us);
    let fetch = fetch::of(&mut answers.conns, slot);
    match &mut fetch.stage {
        Stage::Collects(collected) => match collected.body.push(piece.bytes()) {
            // While its end is unknown, only the request that it was fetched for gets it as it
            // comes.
            Ok(()) if collected.length.is_none() => {
                if let Some(asker) =
                    fetch.asker.filter(|asker| answers.conns.is_in(*asker, Phase::Answering))
                {
                    serve::pump(answers, asker.index, cx);
                }
                None
            }
            Ok(()) => {
                crowd::stream(answers, slot, cx);
                None
            }
            Err(why) => overflow(answers, slot, piece.bytes(), why, cx),
        },
        Stage::Passes => {
            let mut stop = None;
            let mut readers: Vec<_> = fetch.readers.iter().collect();
            let last = readers.pop();
            for reader in readers {
                if answers.conns.is_in(reader, Phase::Answering) {
                    stop = answers
                        .answer_body(reader.index, Piece::Borrowed(piece.bytes()), cx)
                        .or(stop);
                }
            }
            let last = last.filter(|last| answers.conns.is_in(*last, Phase::Answering));
            last.and_then(|last| answers.answer_body(last.index, piece, cx)).or(stop)
        }
        _ => None,
    }
}

/// A fetched body turns out to be too large: its readers get the collected part, and the rest as it
/// comes.
fn overflow(
    answers: &mut Answers,
    slot: ExchangeKey,
    piece: &[u8],
    why: NotKept,
    cx: &mut Context,
) -> Option<Stop> {
    let by = answers.conns.exchange_id(slot, cx);
    if let Some(store) = cx.cache.clone() {
        store.count_not_kept(why);
        let fetch = fetch::of(&mut answers.conns, slot);
        let mark_us = fetch.wanted.rules.hit_for_miss_us;
        if why == NotKept::TooLarge && mark_us > 0 && !fetch.wanted.is_personal() {
            store.mark_hit_for_miss(&fetch.wanted.key, cx.now_us.saturating_add(mark_us));
        }
    }
    fetch::withdraw_name(&mut answers.conns, slot, None, cx);
    let fetch = fetch::of(&mut answers.conns, slot);
    let readers = fetch.readers.take();
    let Stage::Collects(collected) = std::mem::replace(&mut fetch.stage, Stage::Passes) else {
        return None;
    };
    let exchange = answers.conns.exchange_mut(slot);
    let from = exchange.server_conn;
    exchange.await_nothing();
    let (mut stop, mut has_follower) = (None, false);
    for reader in readers {
        if !is_reader(&answers.conns, reader, by) {
            continue;
        }
        if let Some(waits) = readers::take_waits(answers, reader) {
            readers::look_again(answers, reader, waits, true);
            continue;
        }
        if !answers.conns.holds(by) {
            // The end of one reader's connection has ended others.
            return None;
        }
        if !answers.conns.is_in(reader, Phase::Answering) {
            continue;
        }
        let exchange = answers.conns.exchange_mut(reader.index);
        let Some(Caching::Sends(sends)) = exchange.caching.take() else { continue };
        let is_part = sends.end.is_some() && sends.end != collected.length
            || sends.at > collected.body.bytes();
        // The collected part is copied for each follower: without a limit for a single one, for
        // several no more than each may have unsent.
        let behind = collected.body.bytes().saturating_sub(sends.at);
        let is_far = behind > HIGH_BYTES as u64 && has_follower;
        if is_part || is_far {
            // The reader has a part of the body, and no other source sends the rest.
            answers.answer_failed(reader.index, Cause::Truncated, cx);
            continue;
        }
        has_follower = true;
        exchange.caching = Some(Caching::Follows(Box::new(Follows { by })));
        exchange.server_conn = from;
        give_rest(answers, reader.index, &sends, &collected.body, cx);
        fetch::of(&mut answers.conns, slot).readers.push(reader);
        stop = answers.answer_body(reader.index, Piece::Borrowed(piece), cx).or(stop);
    }
    if !answers.conns.holds(by) {
        return None;
    }
    if !has_follower {
        answers.conns.cancel(slot, false, cx);
        fetch::close(answers, slot, None, cx);
        return None;
    }
    stop
}

/// The response to a fetch is complete.
pub(in crate::client) fn on_end(
    answers: &mut Answers,
    slot: ExchangeKey,
    trailers: Trailers<'_>,
    cx: &mut Context,
) {
    let by = answers.conns.exchange_id(slot, cx);
    let fetch = fetch::of(&mut answers.conns, slot);
    match std::mem::replace(&mut fetch.stage, Stage::Ends(After::Nothing)) {
        Stage::Collects(collected) => collected_all(answers, slot, *collected, cx),
        Stage::Confirmed(pending) => {
            let (readers, object) = (fetch.readers.take(), Arc::clone(pending.object()));
            fetch.stage = Stage::Proves(pending);
            let selector = readers::selector_of(&object, &fetch.wanted.asked);
            begin_proof(answers, slot, cx);
            let own_lines = Arc::clone(&fetch::of(&mut answers.conns, slot).own_lines);
            crowd::tell(
                answers,
                readers,
                Told::Stored { by, object, selector, own_lines, failed: None },
                cx,
            );
        }
        Stage::Passes => {
            for reader in fetch::close(answers, slot, None, cx).readers.take() {
                if answers.conns.is_in(reader, Phase::Answering) {
                    answers.conns.exchange_mut(reader.index).caching = None;
                    answers.answer_end(reader.index, trailers, cx);
                }
            }
        }
        Stage::Ends(After::Use(object)) => {
            let Fetch { wanted, mut readers, own_lines, .. } =
                *fetch::close(answers, slot, None, cx);
            let selector = readers::selector_of(&object, &wanted.asked);
            crowd::tell(
                answers,
                readers.take(),
                Told::Stored { by, object, selector, own_lines, failed: None },
                cx,
            );
        }
        Stage::Ends(After::Anew { alone }) => {
            for reader in fetch::close(answers, slot, None, cx).readers.take() {
                if is_reader(&answers.conns, reader, by)
                    && let Some(waits) = readers::take_waits(answers, reader)
                {
                    let alone = alone && !waits.collapsed;
                    readers::look_again(answers, reader, waits, alone);
                }
            }
        }
        Stage::Ends(After::Bad) => fail(answers, slot, Cause::BadAnswer, None, cx),
        Stage::Ends(After::Nothing) | Stage::Asked | Stage::Proves(_) => {
            fetch::close(answers, slot, None, cx);
        }
    }
}

/// All of a body has arrived.
fn collected_all(answers: &mut Answers, slot: ExchangeKey, collected: Collected, cx: &mut Context) {
    let Collected { body, terms, lines, selector, tags, source, .. } = collected;
    let store = cx.cache.clone();
    let fetch = fetch::of(&mut answers.conns, slot);
    let draft = Draft { key: &fetch.wanted.key, selector, lines: &lines, terms, tags, source };
    let made = match (store.as_deref(), &fetch.fill) {
        (Some(store), Some(fill)) if body.is_whole() => {
            store.complete(fill, draft, body).map_err(|(why, body)| {
                store.count_not_kept(why);
                body
            })
        }
        _ => Err(Box::new(body)),
    };
    let pending = match made {
        Ok(pending) => pending,
        Err(body) => return give_unstored(answers, slot, &body, cx),
    };
    let (object, selector) = (Arc::clone(pending.object()), pending.selector().clone());
    fetch.stage = Stage::Proves(Box::new(pending));
    let readers = fetch.readers.take();
    begin_proof(answers, slot, cx);
    let by = answers.conns.exchange_id(slot, cx);
    crowd::tell(answers, readers, Told::Fetched { by, object, selector }, cx);
}

/// The fetched body is incomplete, or its store is gone: requests that are getting it get the
/// collected part, the others are looked up again.
fn give_unstored(answers: &mut Answers, slot: ExchangeKey, body: &Collector, cx: &mut Context) {
    let is_whole = body.is_whole();
    let by = answers.conns.exchange_id(slot, cx);
    for reader in fetch::close(answers, slot, None, cx).readers.take() {
        if !is_reader(&answers.conns, reader, by) {
        } else if let Some(waits) = readers::take_waits(answers, reader) {
            // Together: a response that was purged meanwhile, or found no room, is still good for
            // all.
            readers::look_again(answers, reader, waits, false);
        } else if answers.conns.is_in(reader, Phase::Answering)
            && let Some(Caching::Sends(sends)) =
                answers.conns.exchange_mut(reader.index).caching.take()
        {
            give_rest(answers, reader.index, &sends, body, cx);
            match is_whole {
                true => answers.answer_end(reader.index, Trailers::default(), cx),
                false => answers.answer_failed(reader.index, Cause::Truncated, cx),
            }
        }
    }
}

/// Gives a client the part of a collected body that it has not got.
fn give_rest(
    answers: &mut Answers,
    slot: ExchangeKey,
    sends: &Sends,
    body: &Collector,
    cx: &mut Context,
) {
    let (mut at, end) = (sends.at, sends.end.unwrap_or(u64::MAX));
    while at < end
        && let got @ [_, ..] = body.from(at)
    {
        let got = &got[..got.len().min(usize::try_from(end - at).unwrap_or(usize::MAX))];
        at += got.len() as u64;
        answers.answer_body(slot, Piece::Borrowed(got), cx);
    }
}

/// From now on nothing may follow it for a while.
fn begin_proof(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) {
    let exchange = answers.conns.exchange_mut(slot);
    (exchange.server_conn, exchange.asked) = (None, NO_WORKER);
    exchange.deadline_us = cx.now_us + PROOF_US;
    let index = exchange.conn;
    answers.conns.arm(index, cx);
}

/// The time of a fetch is over: it is proved, or has failed.
pub(in crate::client) fn timed_out(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) {
    let fetch = fetch::of(&mut answers.conns, slot);
    if !fetch.is_complete() {
        answers.conns.cancel(slot, true, cx);
        let waits = answers.conns.exchange(slot).phase() == Phase::Waiting;
        cx.counters.timeouts.count(if waits { Timeout::Forward } else { Timeout::Answer });
        let cause = if waits { Cause::ForwardTimeout } else { Cause::AnswerTimeout };
        return fail(answers, slot, cause, None, cx);
    }
    let stage = std::mem::replace(&mut fetch.stage, Stage::Ends(After::Nothing));
    if let (Stage::Proves(pending), Some(store)) = (stage, cx.cache.clone()) {
        // The store counts whether it was withdrawn or purged meanwhile.
        let _ = store.insert(*pending, cx.now_us);
    }
    fetch::close(answers, slot, None, cx);
}

/// A request would be retried at another server. True: it is a fetch that was given up, and ends
/// here.
pub(in crate::client) fn end_given_up(
    answers: &mut Answers,
    slot: ExchangeKey,
    cx: &mut Context,
) -> bool {
    let exchange = answers.conns.exchange(slot);
    let waits = exchange.is_fetch() && exchange.phase() == Phase::Waiting;
    let is_over = waits && fetch::of(&mut answers.conns, slot).is_given_up;
    if is_over {
        withdrawn(answers, slot, cx);
    }
    is_over
}

/// The requests that needed it have given it up, and no server has it: requests that joined
/// meanwhile are looked up again.
pub(in crate::client) fn withdrawn(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) {
    let by = answers.conns.exchange_id(slot, cx);
    for reader in fetch::close(answers, slot, None, cx).readers.take() {
        if !is_reader(&answers.conns, reader, by) {
            continue;
        }
        if readers::end_if_given_up(answers, reader, cx) {
        } else if let Some(waits) = readers::take_waits(answers, reader) {
            readers::look_again(answers, reader, waits, false);
        }
    }
}

/// A fetch gets no response, or no rest of it: all waiting requests get the same error, or a stored
/// response if that is allowed.
pub(in crate::client) fn fail(
    answers: &mut Answers,
    slot: ExchangeKey,
    cause: Cause,
    retry_after_s: Option<u32>,
    cx: &mut Context,
) {
    let by = answers.conns.exchange_id(slot, cx);
    let Fetch { wanted, mut readers, .. } = *fetch::close(answers, slot, Some(cause), cx);
    let is_valid = |stale: &Arc<Object>| {
        let store = cx.cache.as_ref();
        store.is_some_and(|store| store.is_valid(&wanted.key, stale))
            && is_sent_on_failure(&stale.terms(), ServerFailure::NoAnswer, cx.now_us)
    };
    let stale = wanted.stale.as_ref().filter(|stale| is_valid(stale));
    let stale = stale.map(|stale| (Arc::clone(stale), readers::selector_of(stale, &wanted.asked)));
    crowd::tell(answers, readers.take(), Told::Failed { by, cause, retry_after_s, stale }, cx);
}
