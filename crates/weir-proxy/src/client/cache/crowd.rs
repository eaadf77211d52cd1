//! The readers of one fetch, however many they are (stage cache): a few of them get something in
//! each turn, so that no other client waits while ten thousand are served.
//!
//! Readers of a running fetch get their data one after the other ([`stream`]); readers of a
//! finished fetch get its result ([`tell`]). A reader without a place in this turn has one in the
//! next. Bounds: [`TOLD_MAX`] readers a turn, including those that are looked up again; a list of
//! readers has at most about twice as many entries as its largest number of readers at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_cache::{Object, Selector};

use super::fetch::{self, Stage};
use super::serve::{self, go_on_from};
use super::{Body, Caching, consult, readers};
use crate::base::keys::ExchangeKey;
use crate::cause::Cause;
use crate::client::answer::Answers;
use crate::client::connection::Phase;
use crate::client::connections::Connections;
use crate::context::Context;
use crate::request::pending_request::ExchangeId;

/// Readers served in a turn.
const TOLD_MAX: usize = 256;
/// The places among these for readers that had none before; the rest is for new ones.
const LATE_MAX: usize = TOLD_MAX / 2;
/// A longer list of readers is scanned for those that have left.
const ENTRIES_MIN: usize = 16;

/// Requests that wait for a fetch or get its response. Some of them may have left, or have
/// everything.
#[derive(Debug, Default)]
pub(super) struct Readers {
    list: Vec<ExchangeId>,
    /// The index of the next reader.
    next: usize,
    /// The number of readers that have not been served since the last data arrived.
    unseen: usize,
    /// It is among the crowds.
    is_queued: bool,
    /// At this many entries, those that have left are removed.
    full: usize,
}

impl Readers {
    /// All of them.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = ExchangeId> {
        self.list.iter().copied()
    }

    /// Nothing more comes for the readers: takes them out.
    pub(super) fn take(&mut self) -> Vec<ExchangeId> {
        std::mem::take(self).list
    }

    /// Adds a reader.
    pub(super) fn push(&mut self, reader: ExchangeId) {
        self.list.push(reader);
        // A reader that comes while the others are served takes no other reader's place.
        self.unseen += usize::from(self.unseen > 0);
    }

    /// Whether the list has doubled since the last scan for readers that have left.
    fn is_full(&self) -> bool {
        self.list.len() >= self.full.max(ENTRIES_MIN)
    }

    /// The next reader that has not been served, if any.
    fn pop_unseen(&mut self) -> Option<ExchangeId> {
        self.unseen = self.unseen.min(self.list.len()).checked_sub(1)?;
        let at = self.next % self.list.len();
        self.next = at + 1;
        Some(self.list[at])
    }
}

/// Whether a request still waits for a fetch, or is getting its response.
pub(super) fn is_reader(conns: &Connections, reader: ExchangeId, by: ExchangeId) -> bool {
    if !conns.holds(reader) {
        return false;
    }
    match &conns.exchange(reader.index).caching {
        Some(Caching::Waits(waits)) => waits.by == Some(by),
        Some(Caching::Sends(sends)) => matches!(sends.body, Body::Fetched(other) if other == by),
        Some(Caching::Follows(follows)) => follows.by == by,
        Some(Caching::Fetches(_) | Caching::Passes(_)) => false,
        // It is just being served.
        None => true,
    }
}

/// Adds a reader to a fetch.
pub(super) fn add(conns: &mut Connections, slot: ExchangeKey, by: ExchangeId, reader: ExchangeId) {
    let readers = &mut fetch::of(conns, slot).readers;
    readers.push(reader);
    if readers.is_full() {
        let mut readers = std::mem::take(readers);
        readers.list.retain(|id| is_reader(conns, *id, by));
        (readers.full, readers.unseen) = (readers.list.len() * 2, readers.list.len());
        fetch::of(conns, slot).readers = readers;
    }
}

/// Whether a fetch still has readers, now that `left` has left.
pub(super) fn has_readers(conns: &mut Connections, by: ExchangeId, left: ExchangeId) -> bool {
    let mut readers = std::mem::take(&mut fetch::of(conns, by.index).readers);
    // Looks only at the end of the list, not at all of it, so that each departure costs little.
    while readers.list.pop_if(|last| *last == left || !is_reader(conns, *last, by)).is_some() {}
    let has = !readers.list.is_empty();
    fetch::of(conns, by.index).readers = readers;
    has
}

/// The result that readers get of a finished fetch.
#[derive(Debug)]
pub(super) enum Told {
    /// The fetched response, or the rest of it.
    Fetched { by: ExchangeId, object: Arc<Object>, selector: Selector },
    /// A stored response. `selector`: the fields that select it, None if nothing does. `failed`:
    /// the server has failed, with this status if it has answered; otherwise the response was
    /// confirmed, with `own_lines` for the request that it was fetched for.
    Stored {
        by: ExchangeId,
        object: Arc<Object>,
        selector: Option<Selector>,
        own_lines: Arc<[u8]>,
        failed: Option<Option<u16>>,
    },
    /// Nothing; `stale` for requests that may have it instead.
    Failed {
        by: ExchangeId,
        cause: Cause,
        retry_after_s: Option<u32>,
        stale: Option<(Arc<Object>, Option<Selector>)>,
    },
    /// Nothing, as another worker reports.
    FailedElsewhere { cause: Cause },
}

impl Told {
    /// The finished fetch, if it was a fetch of this worker.
    fn by(&self) -> Option<ExchangeId> {
        match self {
            Told::Fetched { by, .. } | Told::Stored { by, .. } | Told::Failed { by, .. } => {
                Some(*by)
            }
            Told::FailedElsewhere { .. } => None,
        }
    }

    fn tell(&self, answers: &mut Answers, reader: ExchangeId, cx: &mut Context) {
        let is_gone = self.by().is_some_and(|by| !is_reader(&answers.conns, reader, by));
        if is_gone || readers::end_if_given_up(answers, reader, cx) {
            return;
        }
        match self {
            Told::Fetched { object, selector, .. } => {
                if answers.conns.is_in(reader, Phase::Answering) {
                    go_on_from(answers, reader.index, object, cx);
                } else if let Some(waits) = readers::take_waits(answers, reader) {
                    readers::serve_fetched(answers, reader, waits, object, selector, cx);
                }
            }
            Told::Stored { object, selector, own_lines, failed, .. } => {
                readers::give_stored(
                    answers,
                    reader,
                    (object, own_lines),
                    Some(selector.as_ref()),
                    *failed,
                    cx,
                );
            }
            Told::Failed { stale: Some((stale, selector)), .. }
                if answers.conns.is_in(reader, Phase::Waiting) =>
            {
                readers::give_stored(
                    answers,
                    reader,
                    (stale, &[]),
                    Some(selector.as_ref()),
                    Some(None),
                    cx,
                );
            }
            Told::Failed { cause, retry_after_s, .. } => {
                readers::fail_reader(answers, reader, *cause, *retry_after_s, cx);
            }
            Told::FailedElsewhere { cause } => {
                consult::failed_elsewhere(answers, reader, *cause, cx)
            }
        }
    }
}

/// Readers that had no place in a turn.
#[derive(Debug)]
enum Crowd {
    /// Readers of a running fetch.
    Of(ExchangeId),
    /// Readers of a finished fetch.
    Behind(std::vec::IntoIter<ExchangeId>, Told),
}

/// All such readers.
#[derive(Debug)]
pub(super) struct Crowds {
    waiting: VecDeque<Crowd>,
    /// The number of readers that may still be served in this turn.
    left: usize,
    /// The number of these places that are reserved.
    aside: usize,
}

impl Default for Crowds {
    fn default() -> Crowds {
        Crowds { waiting: VecDeque::new(), left: TOLD_MAX, aside: 0 }
    }
}

impl Crowds {
    /// Takes a place in this turn for a reader, if one is left.
    pub(super) fn take_place(&mut self) -> bool {
        let is_free = self.left > self.aside;
        self.left -= usize::from(is_free);
        is_free
    }
}

/// Gives readers their result: those with a place in this turn now, the others later.
pub(super) fn tell(answers: &mut Answers, readers: Vec<ExchangeId>, told: Told, cx: &mut Context) {
    go_on_telling(answers, readers.into_iter(), told, cx);
}

fn go_on_telling(
    answers: &mut Answers,
    mut readers: std::vec::IntoIter<ExchangeId>,
    told: Told,
    cx: &mut Context,
) {
    while readers.len() > 0 {
        if !answers.conns.caches.crowds.take_place() {
            return answers.conns.caches.crowds.waiting.push_back(Crowd::Behind(readers, told));
        }
        readers.next().into_iter().for_each(|reader| told.tell(answers, reader, cx));
    }
}

/// More of a fetch has arrived: all its readers get as much of it as they take.
pub(super) fn stream(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) {
    let by = answers.conns.exchange_id(slot, cx);
    let readers = &mut fetch::of(&mut answers.conns, slot).readers;
    readers.unseen = readers.list.len();
    go_on_streaming(answers, by, cx);
}

fn go_on_streaming(answers: &mut Answers, by: ExchangeId, cx: &mut Context) {
    // When the connection of one reader ends, others that wait for it may end as well, and with the
    // last of them the fetch.
    while answers.conns.holds(by) {
        let Some(Caching::Fetches(fetch)) = &mut answers.conns.exchange_mut(by.index).caching
        else {
            return;
        };
        if fetch.readers.unseen == 0 || !matches!(fetch.stage, Stage::Collects(_)) {
            return;
        }
        if !answers.conns.caches.crowds.take_place() {
            let readers = &mut fetch::of(&mut answers.conns, by.index).readers;
            if !std::mem::replace(&mut readers.is_queued, true) {
                answers.conns.caches.crowds.waiting.push_back(Crowd::Of(by));
            }
            return;
        }
        let Some(reader) = fetch::of(&mut answers.conns, by.index).readers.pop_unseen() else {
            return;
        };
        if !is_reader(&answers.conns, reader, by) {
            // It now waits for another fetch, which was selected for it.
            continue;
        }
        if readers::end_if_given_up(answers, reader, cx) {
        } else if answers.conns.is_in(reader, Phase::Waiting) {
            readers::share(answers, by.index, reader, cx);
        } else if answers.conns.is_in(reader, Phase::Answering) {
            serve::pump(answers, reader.index, cx);
        }
    }
}

/// Whether requests get something of a fetch in the next turn.
#[inline]
pub(crate) fn has_crowds(conns: &Connections) -> bool {
    !conns.caches.crowds.waiting.is_empty()
}

/// At the end of a turn: serves those that had no place before, and frees the places of the next
/// turn.
#[inline]
pub(crate) fn tell_crowds(answers: &mut Answers, cx: &mut Context) {
    answers.conns.caches.crowds.left = TOLD_MAX;
    if has_crowds(&answers.conns) {
        tell_some(answers, cx);
    }
}

fn tell_some(answers: &mut Answers, cx: &mut Context) {
    let crowds = &mut answers.conns.caches.crowds;
    crowds.aside = TOLD_MAX - LATE_MAX;
    // Those that had no place again wait behind the others.
    for _ in 0..crowds.waiting.len() {
        match answers.conns.caches.crowds.waiting.pop_front() {
            Some(Crowd::Of(by)) => {
                if answers.conns.holds(by)
                    && let Some(Caching::Fetches(fetch)) =
                        &mut answers.conns.exchange_mut(by.index).caching
                {
                    fetch.readers.is_queued = false;
                    go_on_streaming(answers, by, cx);
                }
            }
            Some(Crowd::Behind(readers, told)) => go_on_telling(answers, readers, told, cx),
            None => {}
        }
    }
    answers.conns.caches.crowds.aside = 0;
}
