//! Bodies that others stand behind are watched for heads of responses: see
//! [`crate::upstream::misframing`].
//!
//! [`Receive`] is the data that a server sent at once, while it is read ([`super::receive`]). The
//! possible beginning of a head is held back until it is known. A head of this server at this
//! moment means that the declared body is longer than the real one, and that the rest belongs to
//! another request: the request is sent again alone if nothing of its response was delivered,
//! otherwise the response is cut. A body that ends in the possible beginning of a head is complete
//! when the bytes behind it decide. Bounds: `QUOTE_BYTES_MAX` held back a connection; [`WAIT_US`]
//! for an end.

use std::ops::Range;

use bytes::Bytes;
use weir_http::{ReplyBody, ReplyHead};

use super::pool::{Pair, Pool};
use crate::base::keys::ConnKey;
use crate::base::piece::{Input, Piece};
use crate::context::Context;
use crate::upstream::misframing::{BEGINNING, Print, Quote, Verdict, judge_end, next_quote};

/// How long the end of a body waits for the bytes behind it.
const WAIT_US: u64 = 1_000_000;
/// How long bytes wait that every head begins with: any page may end in them, and they don't tell
/// which request the next response belongs to.
const WAIT_SHORT_US: u64 = 2_000;

/// The held-back part of a body that is complete.
#[derive(Debug)]
pub(super) enum Held {
    /// Nothing, or all of it was delivered.
    Nothing,
    /// This, which was not delivered yet, belongs to the body.
    Body(Bytes),
    /// It is held back until more comes.
    Waits,
    /// It is the head of another response.
    Misframed,
}

/// One receive of one connection while it is read: how far, how far it was searched, and where in
/// it the head is of the response that is being read.
#[derive(Debug)]
pub(super) struct Receive<'a> {
    pub(super) input: Input<'a>,
    /// How much of it was read.
    pub(super) at: usize,
    head: Option<Range<usize>>,
    searched: usize,
}

impl<'a> Receive<'a> {
    /// Returns one of which nothing was read.
    #[inline]
    pub(super) fn new(input: Input<'a>) -> Receive<'a> {
        Receive { input, at: 0, head: None, searched: 0 }
    }

    /// Returns the part that was not read yet.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.input.bytes[self.at..]
    }

    /// A head was just read. Searches the available part of its body before anything of it is
    /// delivered, where its length is declared. Returns whether a head of this server is in it.
    #[inline]
    pub(super) fn is_misframed(&mut self, head: &ReplyHead, pair: &Pair<'_>, cx: &Context) -> bool {
        if head.status < 200 {
            return false;
        }
        let Receive { input, at, .. } = *self;
        self.head = Some(at - head.bytes..at);
        let ReplyBody::Length(length) = head.body else { return false };
        if pair.conn.entries.len() < 2 {
            return false;
        }
        let here = input.bytes.len() - at;
        let end = at + usize::try_from(length).map_or(here, |length| length.min(here));
        let mut from = at;
        loop {
            match next_quote(&input.bytes[..end], from) {
                Quote::None => {
                    self.searched = end;
                    return false;
                }
                Quote::Partial(start) => {
                    return length <= here as u64
                        && judge_end(&input.bytes[start..], end - start) == Verdict::Head;
                }
                Quote::Whole(found) if pair.is_own(&input.bytes[found.clone()], self, true, cx) => {
                    return true;
                }
                Quote::Whole(found) => from = found.end,
            }
        }
    }

    /// Returns the part to deliver of a piece of a body, which may be empty. None: the response is
    /// longer than its server says, and the bytes that follow are not for its requester.
    #[inline]
    pub(super) fn watch_body(
        &self,
        index: ConnKey,
        range: Range<usize>,
        pool: &mut Pool,
        cx: &mut Context,
    ) -> Option<Piece<'a>> {
        let conn = pool.conns.at(index);
        if !conn.withheld.bytes.is_empty() {
            return self.watch_behind(index, range, pool, cx);
        }
        if conn.entries.len() < 2 || range.end <= self.searched || !conn.is_framed() {
            return Some(self.input.piece(range));
        }
        let found = pool.sift(index, &self.input, range.start, range, self, cx)?;
        Some(self.input.piece(found))
    }

    /// The same behind held-back bytes.
    #[cold]
    fn watch_behind(
        &self,
        index: ConnKey,
        range: Range<usize>,
        pool: &mut Pool,
        cx: &mut Context,
    ) -> Option<Piece<'a>> {
        let (mut held, given) = pool.conns.at_mut(index).withheld.take();
        held.extend_from_slice(&self.input.bytes[range]);
        let held = Bytes::from(held);
        let found = pool.sift(index, &Input::shared(&held), 0, given..held.len(), self, cx)?;
        Some(Piece::Kept(held.slice(found)))
    }

    /// The body of the response is complete.
    #[inline]
    pub(super) fn end_body(&mut self, index: ConnKey, pool: &mut Pool, cx: &mut Context) -> Held {
        let held = held_end(index, self.rest(), pool, cx);
        if !matches!(held, Held::Waits) {
            self.head = None;
        }
        held
    }
}

/// A body is complete; `rest` is the data behind it.
#[inline]
pub(super) fn held_end(index: ConnKey, rest: &[u8], pool: &mut Pool, cx: &mut Context) -> Held {
    match pool.conns.at(index).withheld.bytes.is_empty() {
        true => Held::Nothing,
        false => pool.judge_withheld(index, rest, cx),
    }
}

impl Pool {
    /// Returns the part of `range` of a text, which is searched from `from` on, that is no head;
    /// the possible beginning of a head is held back. `receive` is the subject of `watch`. None: a
    /// head of this server is in it.
    fn sift(
        &mut self,
        index: ConnKey,
        text: &Input<'_>,
        mut from: usize,
        range: Range<usize>,
        receive: &Receive<'_>,
        cx: &mut Context,
    ) -> Option<Range<usize>> {
        loop {
            match next_quote(&text.bytes[..range.end], from) {
                Quote::None => return Some(range),
                Quote::Partial(at) => {
                    let (end, given) = (&text.bytes[at..range.end], range.start.saturating_sub(at));
                    self.conns.at_mut(index).withheld.hold(end, given);
                    if end.len() < BEGINNING.len() && given < end.len() {
                        self.arm_quote(index, cx.now_us + WAIT_SHORT_US, cx);
                    }
                    return Some(range.start..at);
                }
                Quote::Whole(found)
                    if self.pair(index).is_own(&text.bytes[found.clone()], receive, true, cx) =>
                {
                    return None;
                }
                Quote::Whole(found) => from = found.end,
            }
        }
    }

    /// Judges the held-back end of a body that is complete now; `rest` is the data behind it.
    fn judge_withheld(&mut self, index: ConnKey, rest: &[u8], cx: &mut Context) -> Held {
        let conn = self.conns.at_mut(index);
        let (held, given) = conn.withheld.take();
        let text = [&held, rest].concat();
        let waits = !conn.withheld.over && conn.is_followed();
        match judge_end(&text, held.len()) {
            Verdict::Head => Held::Misframed,
            Verdict::Unknown if waits => {
                (conn.withheld.bytes, conn.withheld.given) = (held, given);
                let wait_us = if text.len() < BEGINNING.len() { WAIT_SHORT_US } else { WAIT_US };
                self.arm_quote(index, cx.now_us + wait_us, cx);
                Held::Waits
            }
            Verdict::Unknown
                if self.pair(index).is_own(
                    &held,
                    &Receive::new(Input::borrowed(&[])),
                    false,
                    cx,
                ) =>
            {
                Held::Misframed
            }
            Verdict::Unknown | Verdict::Body if given >= held.len() => Held::Nothing,
            Verdict::Unknown | Verdict::Body => Held::Body(Bytes::from(held).slice(given..)),
        }
    }

    fn arm_quote(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        self.conns.at_mut(index).withheld.due_us = due_us;
        self.arm_conn(index, due_us, cx);
    }
}

impl Pair<'_> {
    /// Notes the properties of the response being read, because the rest of its body comes with
    /// later receives.
    #[inline]
    pub(super) fn keep_print(&mut self, receive: &Receive<'_>, cx: &Context) {
        let now_us = cx.now_us;
        let Receive { input, head, .. } = receive;
        let conn = &mut *self.conn;
        if let Some(head) = head.clone().filter(|_| conn.reply.begun && conn.owner.is_none()) {
            conn.reply.print = Some((Print::of(&input.bytes[head]), now_us));
        }
    }

    /// Whether a head in the body of a response is of the same server and moment.
    fn is_own(&self, found: &[u8], receive: &Receive<'_>, whole: bool, cx: &Context) -> bool {
        let here =
            receive.head.clone().map(|head| (Print::of(&receive.input.bytes[head]), cx.now_us));
        let Some((own, since_us)) = here.or(self.conn.reply.print) else { return false };
        let age_s = cx.now_us.saturating_sub(since_us) / 1_000_000;
        let now_s = u64::try_from(cx.wall_s()).unwrap_or_default();
        own.is_like(&Print::of(found), age_s, now_s, whole)
    }
}
