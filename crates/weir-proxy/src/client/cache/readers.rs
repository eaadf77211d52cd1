//! The requests that wait for a fetch: their share when data arrives, and their fate when none will
//! (stage cache).
//!
//! A request that has waited and may not have the response is looked up again, or is forwarded
//! separately from then on. No request waits in a loop, because each may join others only a limited
//! number of times. RFC 9111 §4.

use std::sync::Arc;

use weir_cache::{
    CacheStatus, Fate, FillName, Object, Selector, Served, Vary, fate, stored_fields,
};

use super::crowd::{self, Told};
use super::fetch::{self, Stage};
use super::seen::Asked;
use super::serve::Content;
use super::{Caching, Telling, Waits, serve};
use crate::base::keys::ExchangeKey;
use crate::cause::Cause;
use crate::client::answer::Answers;
use crate::client::connection::Phase;
use crate::context::Context;
use crate::request::pending_request::ExchangeId;

/// Ends the wait of requests whose clients have given them up.
pub(super) fn end_given_up(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) {
    let is_gone = |reader: &ExchangeId| {
        let conns = &answers.conns;
        conns.holds(*reader) && conns.at(conns.exchange(reader.index).conn).is_given_up()
    };
    let Some(Caching::Fetches(fetch)) = &answers.conns.exchange(slot).caching else { return };
    let gone: Vec<ExchangeId> = fetch.readers.iter().filter(is_gone).collect();
    gone.into_iter().for_each(|reader| _ = end_if_given_up(answers, reader, cx));
}

/// Ends a waiting request whose client has given it up. Returns whether it was one.
pub(super) fn end_if_given_up(answers: &mut Answers, reader: ExchangeId, cx: &mut Context) -> bool {
    let conns = &mut answers.conns;
    if !conns.is_in(reader, Phase::Waiting)
        || !conns.at(conns.exchange(reader.index).conn).is_given_up()
    {
        return false;
    }
    if !matches!(conns.exchange(reader.index).caching, Some(Caching::Waits(_))) {
        // A server has it by now.
        return false;
    }
    conns.exchange_mut(reader.index).caching = None;
    answers.end_given_up(reader.index, cx);
    true
}

/// A request has begun to wait for a fetch whose response may have arrived already.
pub(super) fn share_late(
    answers: &mut Answers,
    slot: ExchangeKey,
    reader: ExchangeId,
    cx: &mut Context,
) {
    if matches!(fetch::of(&mut answers.conns, slot).stage, Stage::Collects(_) | Stage::Proves(_)) {
        share(answers, slot, reader, cx);
    }
}

/// Takes out the wait of a request, if the request is still there and waits.
pub(super) fn take_waits(answers: &mut Answers, reader: ExchangeId) -> Option<Box<Waits>> {
    if !answers.conns.is_in(reader, Phase::Waiting) {
        return None;
    }
    let exchange = answers.conns.exchange_mut(reader.index);
    match exchange.caching.take() {
        Some(Caching::Waits(waits)) => Some(waits),
        other => {
            exchange.caching = other;
            None
        }
    }
}

/// Gives a waiting request the fetched response as far as it has arrived, or has the request looked
/// up again.
pub(super) fn share(
    answers: &mut Answers,
    slot: ExchangeKey,
    reader: ExchangeId,
    cx: &mut Context,
) {
    let Some(waits) = take_waits(answers, reader) else { return };
    let by = answers.conns.exchange_id(slot, cx);
    let fetch = fetch::of(&mut answers.conns, slot);
    let (terms, selector) = match &fetch.stage {
        Stage::Collects(collected) => (collected.terms, &collected.selector),
        Stage::Proves(pending) => (*pending.object().stored_terms(), pending.selector()),
        _ => return put_back(answers, reader, waits),
    };
    let request = waits.asked.request();
    let is_first = !waits.collapsed;
    let fate = match is_first {
        true => Fate::Shares,
        false => fate(Ok(&terms), selector, request, &waits.rules.options, cx.now_us),
    };
    let (forward, collapsed) = (Some(waits.why), waits.collapsed);
    let status = CacheStatus { forward, stored: true, collapsed, ..CacheStatus::default() };
    match (fate, &fetch.stage) {
        (Fate::Shares, Stage::Collects(collected)) if collected.length.is_none() && !is_first => {
            // The end is unknown, and the body may turn out to be too large: only one reader could
            // follow it then.
            put_back(answers, reader, waits);
        }
        (Fate::Shares, Stage::Collects(collected)) => {
            let (lines, length) = (Arc::clone(&collected.lines), collected.length);
            count(answers, reader, &waits, Served::Miss, cx);
            let telling = Telling::of(&waits.rules, status, &answers.conns, reader.index, cx);
            let content = Content::Fetched(by);
            serve::begin(
                answers,
                reader.index,
                (&lines, &terms),
                length,
                content,
                request,
                &telling,
                cx,
            );
        }
        (Fate::Shares, Stage::Proves(pending)) => {
            let object = Arc::clone(pending.object());
            count(answers, reader, &waits, Served::Miss, cx);
            let telling = Telling::of(&waits.rules, status, &answers.conns, reader.index, cx);
            serve::serve(answers, reader.index, &object, request, &telling, cx);
        }
        (fate, _) => look_again(answers, reader, waits, fate == Fate::Forwarded),
    }
}

/// Gives a request that has waited the complete fetched response, or has the request looked up
/// again.
pub(super) fn serve_fetched(
    answers: &mut Answers,
    reader: ExchangeId,
    waits: Box<Waits>,
    object: &Arc<Object>,
    selector: &Selector,
    cx: &mut Context,
) {
    let (request, options) = (waits.asked.request(), &waits.rules.options);
    let fate = match waits.collapsed {
        false => Fate::Shares,
        true => fate(Ok(object.stored_terms()), selector, request, options, cx.now_us),
    };
    if fate != Fate::Shares {
        return look_again(answers, reader, waits, fate == Fate::Forwarded);
    }
    let (forward, collapsed) = (Some(waits.why), waits.collapsed);
    let status = CacheStatus { forward, stored: true, collapsed, ..CacheStatus::default() };
    count(answers, reader, &waits, Served::Miss, cx);
    let telling = Telling::of(&waits.rules, status, &answers.conns, reader.index, cx);
    serve::serve(answers, reader.index, object, request, &telling, cx);
}

/// Counts the result of a request that has waited.
pub(super) fn count(
    answers: &mut Answers,
    reader: ExchangeId,
    waits: &Waits,
    served: Served,
    cx: &Context,
) {
    let served = if waits.collapsed { Served::Collapsed } else { served };
    super::count_served(answers, reader.index, served, 0, cx);
}

/// Makes a request continue to wait.
pub(super) fn put_back(answers: &mut Answers, reader: ExchangeId, waits: Box<Waits>) {
    answers.conns.exchange_mut(reader.index).caching = Some(Caching::Waits(waits));
}

/// Has a request that has waited looked up again; `alone`: it is then forwarded separately.
pub(super) fn look_again(
    answers: &mut Answers,
    reader: ExchangeId,
    mut waits: Box<Waits>,
    alone: bool,
) {
    waits.by = None;
    waits.goes_alone |= alone;
    answers.conns.exchange_mut(reader.index).caching = Some(Caching::Waits(waits));
    answers.conns.caches.to_ask.push_back(reader);
}

/// Gives all waiting requests the stored response. `failed`: the status of the server's failure.
pub(super) fn use_stored(
    answers: &mut Answers,
    slot: ExchangeKey,
    object: &Arc<Object>,
    failed: Option<u16>,
    cx: &mut Context,
) {
    fetch::withdraw_name(&mut answers.conns, slot, None, cx);
    let by = answers.conns.exchange_id(slot, cx);
    let fetch = fetch::of(&mut answers.conns, slot);
    let selector = selector_of(object, &fetch.wanted.asked);
    let (readers, object) = (fetch.readers.take(), Arc::clone(object));
    let own_lines = Arc::default();
    crowd::tell(
        answers,
        readers,
        Told::Stored { by, object, selector, own_lines, failed: failed.map(Some) },
        cx,
    );
}

/// Gives a request a stored response if its fields select that: checked with `selector`, where it
/// is not known of the request. `failed`: the server has failed, with this status if it has
/// answered; otherwise the response was confirmed, and `own_lines` are for the request that it was
/// fetched for.
pub(super) fn give_stored(
    answers: &mut Answers,
    reader: ExchangeId,
    (object, own_lines): (&Arc<Object>, &[u8]),
    selector: Option<Option<&Selector>>,
    failed: Option<Option<u16>>,
    cx: &mut Context,
) {
    let Some(waits) = take_waits(answers, reader) else { return };
    let is_for_him = selector.is_none_or(|selector| {
        selector.is_some_and(|selector| selector.matches(waits.asked.request()))
    });
    if waits.collapsed && !is_for_him {
        return look_again(answers, reader, waits, false);
    }
    let status = CacheStatus {
        hit: failed.is_some(),
        forward: Some(waits.why),
        forward_status: match failed {
            Some(status) => status,
            None => Some(304),
        },
        collapsed: waits.collapsed,
        ..CacheStatus::default()
    };
    count(
        answers,
        reader,
        &waits,
        if failed.is_some() { Served::Stale } else { Served::Revalidated },
        cx,
    );
    let telling = Telling::of(&waits.rules, status, &answers.conns, reader.index, cx);
    let request = waits.asked.request();
    if waits.collapsed || own_lines.is_empty() {
        return serve::serve(answers, reader.index, object, request, &telling, cx);
    }
    let all = [object.lines(), own_lines].concat();
    let (terms, length) = (object.terms(), Some(object.body_bytes()));
    serve::begin(
        answers,
        reader.index,
        (&all, &terms),
        length,
        Content::Stored(object),
        request,
        &telling,
        cx,
    );
}

/// Returns the selection of the stored response that was found for a request; None: its Vary says
/// that nothing selects it.
pub(super) fn selector_of(object: &Object, asked: &Asked) -> Option<Selector> {
    let mut vary = Vary::default();
    let lines =
        stored_fields(object.lines()).filter(|(name, _)| name.eq_ignore_ascii_case(b"vary"));
    lines.for_each(|(_, value)| vary.add_line(value));
    match vary {
        Vary::Names(names) => Some(Selector::of(&names, asked.request())),
        Vary::Anything => None,
    }
}

/// Fails a request that has waited for a fetch, or is getting its response.
pub(super) fn fail_reader(
    answers: &mut Answers,
    reader: ExchangeId,
    cause: Cause,
    retry_after_s: Option<u32>,
    cx: &mut Context,
) {
    if let Some(waits) = take_waits(answers, reader) {
        count(answers, reader, &waits, Served::Miss, cx);
        answers.fail_exchange_for(reader.index, cause, retry_after_s, cx);
    } else if answers.conns.is_in(reader, Phase::Answering) {
        let exchange = answers.conns.exchange_mut(reader.index);
        // Otherwise it is getting another response by now.
        if matches!(exchange.caching, Some(Caching::Sends(_) | Caching::Follows(_))) {
            exchange.caching = None;
            answers.answer_failed(reader.index, cause, cx);
        }
    }
}

/// Another worker has finished a fetch that requests here wait for: they are looked up again, or
/// get its error.
pub(crate) fn on_elsewhere(
    answers: &mut Answers,
    name: FillName,
    failure: Option<Cause>,
    cx: &mut Context,
) {
    let readers = answers.conns.caches.parked.remove(&name).unwrap_or_default();
    match failure {
        Some(cause) => crowd::tell(answers, readers, Told::FailedElsewhere { cause }, cx),
        None => answers.conns.caches.to_ask.extend(readers),
    }
}
