//! Who waits for a fetch: what each of them gets when something of it is there, or when nothing will be (stage cache).
//!
//! Whoever has waited and may not have that answer is looked up again, or goes by himself from then on; nobody waits in a circle, because he
//! may join others only so often. RFC 9111 §4.

use std::sync::Arc;

use weir_cache::{CacheStatus, Fate, FillName, Object, Selector, Served, Vary, fate, stored_fields};

use super::fetch::{self, Stage};
use super::seen::Asked;
use super::serve::From;
use super::{Caching, Telling, Waits, consult, serve};
use crate::base::keys::ExchangeKey;
use crate::cause::Cause;
use crate::client::answer::Answers;
use crate::client::connection::Phase;
use crate::context::Context;
use crate::request::pending_request::ExchangeId;

/// Requests whose clients have given them up wait for nothing any more.
pub(super) fn end_given_up(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) {
    for reader in fetch::of(&mut answers.conns, slot).readers.clone() {
        if answers.conns.holds(reader) && answers.conns.at(answers.conns.exchange(reader.index).conn).is_given_up() {
            fetch::of(&mut answers.conns, slot).readers.retain(|id| *id != reader);
            answers.conns.exchange_mut(reader.index).caching = None;
            answers.end_given_up(reader.index, cx);
        }
    }
}

/// Those who wait get the answer, or look for themselves.
pub(super) fn share_with_all(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) {
    let readers = fetch::of(&mut answers.conns, slot).readers.clone();
    let by = answers.conns.exchange_id(slot, cx);
    for reader in readers {
        // With the connection of one others may end who wait for it, and with the last of them the fetch.
        if answers.conns.holds(by) {
            share(answers, slot, reader, cx);
        }
    }
}

/// A request has begun to wait for a fetch whose answer may be there already.
pub(super) fn share_late(answers: &mut Answers, slot: ExchangeKey, reader: ExchangeId, cx: &mut Context) {
    if matches!(fetch::of(&mut answers.conns, slot).stage, Stage::Collects(_) | Stage::Proves(_)) {
        share(answers, slot, reader, cx);
    }
}

/// Takes out what a request waits with, if it is there still and waits.
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

/// A request that waits gets what is fetched, as far as that is there, or looks for itself.
pub(super) fn share(answers: &mut Answers, slot: ExchangeKey, reader: ExchangeId, cx: &mut Context) {
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
            // Where it ends is not known, and it may turn out to be too large: only one reader could follow it then.
            put_back(answers, reader, waits);
        }
        (Fate::Shares, Stage::Collects(collected)) => {
            let (lines, length) = (Arc::clone(&collected.lines), collected.length);
            count(answers, reader, &waits, Served::Miss, cx);
            let telling = Telling::of(&waits.rules, status, &answers.conns, reader.index, cx);
            let from = From::Fetched(by);
            serve::begin(answers, reader.index, (&lines, &terms), length, from, request, &telling, cx);
        }
        (Fate::Shares, Stage::Proves(pending)) => {
            let object = Arc::clone(pending.object());
            fetch.readers.retain(|id| *id != reader);
            count(answers, reader, &waits, Served::Miss, cx);
            let telling = Telling::of(&waits.rules, status, &answers.conns, reader.index, cx);
            serve::serve(answers, reader.index, &object, request, &telling, cx);
        }
        (fate, _) => {
            fetch.readers.retain(|id| *id != reader);
            look_again(answers, reader, waits, fate == Fate::Forwarded);
        }
    }
}

/// Counts what a request got that has waited.
pub(super) fn count(answers: &mut Answers, reader: ExchangeId, waits: &Waits, served: Served, cx: &Context) {
    let served = if waits.collapsed { Served::Collapsed } else { served };
    super::count_served(answers, reader.index, served, 0, cx);
}

/// A request goes on to wait.
pub(super) fn put_back(answers: &mut Answers, reader: ExchangeId, waits: Box<Waits>) {
    answers.conns.exchange_mut(reader.index).caching = Some(Caching::Waits(waits));
}

/// A request that has waited is looked up again; `alone`: it is forwarded by itself then.
pub(super) fn look_again(answers: &mut Answers, reader: ExchangeId, mut waits: Box<Waits>, alone: bool) {
    waits.by = None;
    waits.goes_alone |= alone;
    answers.conns.exchange_mut(reader.index).caching = Some(Caching::Waits(waits));
    answers.conns.caches.to_ask.push_back(reader);
}

/// All who wait get what is stored. `failed`: its server has answered this instead.
pub(super) fn use_stored(
    answers: &mut Answers,
    slot: ExchangeKey,
    object: &Arc<Object>,
    failed: Option<u16>,
    cx: &mut Context,
) {
    fetch::withdraw_name(&mut answers.conns, slot, None, cx);
    let fetch = fetch::of(&mut answers.conns, slot);
    let (readers, asked) = (std::mem::take(&mut fetch.readers), Arc::clone(&fetch.wanted.asked));
    give_stored(answers, readers, object, Some(&asked), failed.map(Some), cx);
}

/// These get what is stored, if it was selected by what they say: by what `asked` says it was, where that is not known of each. `failed`:
/// because its server has failed, with this status if it has answered.
pub(super) fn give_stored(
    answers: &mut Answers,
    readers: Vec<ExchangeId>,
    object: &Arc<Object>,
    asked: Option<&Asked>,
    failed: Option<Option<u16>>,
    cx: &mut Context,
) {
    let selector = asked.map(|asked| selector_of(object, asked));
    for reader in readers {
        let Some(waits) = take_waits(answers, reader) else { continue };
        let is_for_him = selector
            .as_ref()
            .is_none_or(|selector| selector.as_ref().is_some_and(|selector| selector.matches(waits.asked.request())));
        if waits.collapsed && !is_for_him {
            look_again(answers, reader, waits, false);
            continue;
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
        count(answers, reader, &waits, if failed.is_some() { Served::Stale } else { Served::Revalidated }, cx);
        let telling = Telling::of(&waits.rules, status, &answers.conns, reader.index, cx);
        serve::serve(answers, reader.index, object, waits.asked.request(), &telling, cx);
    }
}

/// By what a request that a stored answer was found for selects it; None: by anything.
fn selector_of(object: &Object, asked: &Asked) -> Option<Selector> {
    let mut vary = Vary::default();
    let lines = stored_fields(object.lines()).filter(|(name, _)| name.eq_ignore_ascii_case(b"vary"));
    lines.for_each(|(_, value)| vary.add_line(value));
    match vary {
        Vary::Names(names) => Some(Selector::of(&names, asked.request())),
        Vary::Anything => None,
    }
}

/// A request that has waited for a fetch, or is getting its answer, hears that it has failed.
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
        answers.conns.exchange_mut(reader.index).caching = None;
        answers.answer_failed(reader.index, cause, cx);
    }
}

/// Another worker has fetched what requests here wait for: they are looked up again, or hear why it has failed.
pub(crate) fn on_elsewhere(answers: &mut Answers, name: FillName, failure: Option<Cause>, cx: &mut Context) {
    for reader in answers.conns.caches.parked.remove(&name).unwrap_or_default() {
        match failure {
            Some(cause) => consult::failed_elsewhere(answers, reader, cause, cx),
            None => answers.conns.caches.to_ask.push_back(reader),
        }
    }
}
