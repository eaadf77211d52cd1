//! Bodies that others stand behind are watched for heads of answers: see [`crate::upstream::misframing`].
//!
//! Called while answers are read ([`super::upstream`]). What may become a head is held back until it is known; a head of this
//! server at this moment means that the body was declared longer than it is, and that the rest is somebody else's: the answer is
//! asked for again alone if nothing of it was delivered, else cut. A body that ends in what may become one is complete when what
//! comes behind it tells. Bounds: `QUOTE_BYTES_MAX` held back a connection; [`WAIT_US`] for an end.

use std::ops::Range;

use bytes::Bytes;
use weir_http::{ReplyBody, ReplyHead};

use super::Upstreams;
use super::pool::{Pair, Pool};
use crate::base::keys::ConnKey;
use crate::base::piece::{Input, Piece};
use crate::context::Context;
use crate::cross::router::Replies;
use crate::upstream::misframing::{BEGINNING, Print, Quote, Verdict, judge_end, next_quote};
use crate::upstream::trust::Doubt;

/// How long the end of a body waits for what comes behind it.
const WAIT_US: u64 = 1_000_000;
/// How long bytes wait that every head begins with: any page may end in them, and they tell nothing of whose the next answer is.
const WAIT_SHORT_US: u64 = 2_000;

/// What became of the end of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// All of it is delivered.
    Known,
    /// It is not known yet whether it is one.
    Waits,
    /// The connection is gone.
    Gone,
}

/// How far one receive was searched, and where in it the head of the answer stands that is being read.
#[derive(Debug, Default)]
pub(super) struct Watch {
    head: Option<Range<usize>>,
    searched: usize,
}

impl Watch {
    /// An answer is complete.
    pub(super) fn end(&mut self) {
        self.head = None;
    }
}

/// What becomes of what is held back when its body is complete.
enum Judged {
    /// It belongs to the body, but for so many bytes that were delivered.
    Body(Vec<u8>, usize),
    /// It is held back until more comes.
    Waits,
    /// It is the head of another answer.
    Misframed,
}

impl Upstreams {
    /// A piece of a body. False: the connection is gone.
    pub(super) fn watch_body(
        &mut self,
        index: ConnKey,
        input: &Input<'_>,
        range: Range<usize>,
        watch: &Watch,
        to: &mut Replies<'_>,
        cx: &mut Context,
    ) -> bool {
        let link = self.pool.links.at_mut(index);
        if !link.withheld.bytes.is_empty() {
            let (mut held, given) = link.withheld.take();
            held.extend_from_slice(&input.bytes[range]);
            let held = Bytes::from(held);
            let text = Input::shared(&held);
            let found = self.pool.sift(index, &text, 0, given..held.len(), input, watch, cx);
            return self.deliver(index, &text, found, to, cx);
        }
        if link.entries.len() < 2 || range.end <= watch.searched || !link.is_framed() {
            return self.on_body(index, input.piece(range), to, cx);
        }
        let found = self.pool.sift(index, input, range.start, range, input, watch, cx);
        self.deliver(index, input, found, to, cx)
    }

    /// Delivers a part of a body, which may be none. None: the answer is longer than its server says, and what follows is not for who
    /// asked. False: the connection is gone.
    fn deliver(
        &mut self,
        index: ConnKey,
        text: &Input<'_>,
        part: Option<Range<usize>>,
        to: &mut Replies<'_>,
        cx: &mut Context,
    ) -> bool {
        let Some(range) = part else {
            self.on_doubt(index, Doubt::Misframing, cx);
            return false;
        };
        range.is_empty() || self.on_body(index, text.piece(range), to, cx)
    }

    /// A body is complete; `rest` is what came behind it. What was held back of it is delivered when the next answer begins there.
    pub(super) fn watch_end(&mut self, index: ConnKey, rest: &[u8], to: &mut Replies<'_>, cx: &mut Context) -> End {
        if self.pool.links.at(index).withheld.bytes.is_empty() {
            return End::Known;
        }
        let is_there = match self.pool.judge_withheld(index, rest, cx) {
            Judged::Waits => return End::Waits,
            Judged::Misframed => self.deliver(index, &Input::borrowed(&[]), None, to, cx),
            Judged::Body(held, given) => {
                let held = Bytes::from(held);
                self.deliver(index, &Input::shared(&held), Some(given..held.len()), to, cx)
            }
        };
        if is_there { End::Known } else { End::Gone }
    }

    /// The end of a body waits no longer for what comes behind it, if it does.
    pub(super) fn end_wait(&mut self, index: ConnKey, to: &mut Replies<'_>, cx: &mut Context) {
        let link = self.pool.links.at_mut(index);
        if !link.withheld.bytes.is_empty() && link.is_body_over() {
            link.withheld.over = true;
            let rest = link.take_stash();
            self.read_answers(index, &Input::borrowed(&rest), to, cx);
        }
    }

    /// What is held back was not followed by more for a while.
    pub(super) fn check_quote(&mut self, index: ConnKey, to: &mut Replies<'_>, cx: &mut Context) {
        self.end_wait(index, to, cx);
        if !self.pool.links.is_occupied(index) {
            return;
        }
        let link = self.pool.links.at_mut(index);
        let (len, given) = (link.withheld.bytes.len(), link.withheld.given);
        if given < len && len < BEGINNING.len() {
            link.withheld.given = len;
            let rest = Bytes::copy_from_slice(&link.withheld.bytes[given..]);
            self.on_body(index, Piece::Kept(rest), to, cx);
        }
    }
}

impl Pool {
    /// The part of `range` of a text, which is searched from `from` on, that is no head; what may become one is held back. `receive` is
    /// what `watch` is about. None: a head of this server is in it.
    fn sift(
        &mut self,
        index: ConnKey,
        text: &Input<'_>,
        mut from: usize,
        range: Range<usize>,
        receive: &Input<'_>,
        watch: &Watch,
        cx: &mut Context,
    ) -> Option<Range<usize>> {
        loop {
            match next_quote(&text.bytes[..range.end], from) {
                Quote::None => return Some(range),
                Quote::Partial(at) => {
                    let (end, given) = (&text.bytes[at..range.end], range.start.saturating_sub(at));
                    self.links.at_mut(index).withheld.hold(end, given);
                    if end.len() < BEGINNING.len() && given < end.len() {
                        self.arm_quote(index, cx.now_us + WAIT_SHORT_US, cx);
                    }
                    return Some(range.start..at);
                }
                Quote::Whole(found)
                    if self.pair(index).is_own(&text.bytes[found.clone()], receive, watch, true, cx) =>
                {
                    return None;
                }
                Quote::Whole(found) => from = found.end,
            }
        }
    }

    /// What was held back of a body that is complete now; `rest` is what came behind it.
    fn judge_withheld(&mut self, index: ConnKey, rest: &[u8], cx: &mut Context) -> Judged {
        let link = self.links.at_mut(index);
        let (held, given) = link.withheld.take();
        let text = [&held, rest].concat();
        let waits = !link.withheld.over && link.is_followed();
        match judge_end(&text, held.len()) {
            Verdict::Head => Judged::Misframed,
            Verdict::Unknown if waits => {
                (link.withheld.bytes, link.withheld.given) = (held, given);
                let wait_us = if text.len() < BEGINNING.len() { WAIT_SHORT_US } else { WAIT_US };
                self.arm_quote(index, cx.now_us + wait_us, cx);
                Judged::Waits
            }
            Verdict::Unknown if self.pair(index).is_own(&held, &Input::borrowed(&[]), &Watch::default(), false, cx) => {
                Judged::Misframed
            }
            Verdict::Unknown | Verdict::Body => Judged::Body(held, given),
        }
    }

    fn arm_quote(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        self.links.at_mut(index).withheld.due_us = due_us;
        self.arm_link(index, due_us, cx);
    }
}

impl Pair<'_> {
    /// A head was read that ends at `at`. Searches what is here of its body before anything of it is delivered, where that is
    /// known: of a declared length. Whether a head of this server is in it.
    #[inline]
    pub(super) fn is_misframed(
        &self,
        input: &Input<'_>,
        head: &ReplyHead,
        at: usize,
        watch: &mut Watch,
        cx: &Context,
    ) -> bool {
        if head.status < 200 {
            return false;
        }
        watch.head = Some(at - head.bytes..at);
        let ReplyBody::Length(length) = head.body else { return false };
        if self.link.entries.len() < 2 {
            return false;
        }
        let here = input.bytes.len() - at;
        let end = at + usize::try_from(length).map_or(here, |length| length.min(here));
        let mut from = at;
        loop {
            match next_quote(&input.bytes[..end], from) {
                Quote::None => {
                    watch.searched = end;
                    return false;
                }
                Quote::Partial(start) => {
                    return length <= here as u64 && judge_end(&input.bytes[start..], end - start) == Verdict::Head;
                }
                Quote::Whole(found) if self.is_own(&input.bytes[found.clone()], input, watch, true, cx) => return true,
                Quote::Whole(found) => from = found.end,
            }
        }
    }

    /// Notes what the answer being read is like, because the rest of its body comes with later receives.
    #[inline]
    pub(super) fn keep_print(&mut self, input: &Input<'_>, watch: &Watch, cx: &Context) {
        let now_us = cx.now_us;
        let link = &mut *self.link;
        if let Some(head) = watch.head.clone().filter(|_| link.reply.begun && link.owner.is_none()) {
            link.reply.print = Some((Print::of(&input.bytes[head]), now_us));
        }
    }

    /// Whether a head in the body of an answer is of the same server and moment.
    fn is_own(&self, found: &[u8], receive: &Input<'_>, watch: &Watch, whole: bool, cx: &Context) -> bool {
        let here = watch.head.clone().map(|head| (Print::of(&receive.bytes[head]), cx.now_us));
        let Some((own, since_us)) = here.or(self.link.reply.print) else { return false };
        let age_s = cx.now_us.saturating_sub(since_us) / 1_000_000;
        let now_s = u64::try_from(cx.wall_s()).unwrap_or_default();
        own.is_like(&Print::of(found), age_s, now_s, whole)
    }
}
