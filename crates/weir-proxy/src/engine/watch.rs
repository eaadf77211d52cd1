//! Bodies that others stand behind are watched for heads of answers: see [`crate::misframing`].
//!
//! Called while answers are read ([`super::upstream`]). What may become a head is held back until it is known; a head of this
//! server at this moment means that the body was declared longer than it is, and that the rest is somebody else's: the answer is
//! asked for again alone if nothing of it was delivered, else cut. Bound: `QUOTE_BYTES_MAX` held back a connection.

use std::ops::Range;

use bytes::Bytes;
use weir_http::{ReplyBody, ReplyHead};

use super::{Engine, Input, Piece};
use crate::misframing::{Print, Quote, next_quote};
use crate::trust::Doubt;

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

impl Engine {
    /// A head was read that ends at `at`. Searches what is here of its body before anything of it is delivered, where that is
    /// known: of a declared length. False: the connection is gone.
    pub(super) fn watch_head(
        &mut self,
        index: u32,
        input: &Input<'_>,
        head: &ReplyHead,
        at: usize,
        watch: &mut Watch,
    ) -> bool {
        if head.status < 200 {
            return true;
        }
        watch.head = Some(at - head.bytes..at);
        let ReplyBody::Length(length) = head.body else { return true };
        if self.links.at(index).entries.len() < 2 {
            return true;
        }
        let here = input.bytes.len() - at;
        let end = at + usize::try_from(length).map_or(here, |length| length.min(here));
        let mut from = at;
        loop {
            match next_quote(&input.bytes[..end], from) {
                Quote::None => watch.searched = end,
                Quote::Partial(start) => {
                    let stands = end < input.bytes.len()
                        && self.stands_across(index, &input.bytes[start..], end - start, input, watch);
                    return !stands || self.on_misframing(index);
                }
                Quote::Whole(found) if self.is_own(index, &input.bytes[found.clone()], input, watch, true) => {
                    return self.on_misframing(index);
                }
                Quote::Whole(found) => {
                    from = found.end;
                    continue;
                }
            }
            return true;
        }
    }

    /// A piece of a body. False: the connection is gone.
    pub(super) fn watch_body(&mut self, index: u32, input: &Input<'_>, range: Range<usize>, watch: &Watch) -> bool {
        let link = self.links.at_mut(index);
        if !link.quote.is_empty() {
            let mut text = std::mem::take(&mut link.quote);
            text.extend_from_slice(&input.bytes[range]);
            let text = Bytes::from(text);
            return self.sift(index, &Input::shared(&text), 0..text.len(), input, watch);
        }
        if link.entries.len() < 2 || range.end <= watch.searched || !link.is_framed() {
            return self.on_body(index, input.piece(range));
        }
        self.sift(index, input, range, input, watch)
    }

    /// Delivers what is no head, and holds back what may become one. `receive` is what `watch` is about.
    fn sift(&mut self, index: u32, text: &Input<'_>, range: Range<usize>, receive: &Input<'_>, watch: &Watch) -> bool {
        let mut from = range.start;
        loop {
            match next_quote(&text.bytes[..range.end], from) {
                Quote::None => return self.on_body(index, text.piece(range)),
                Quote::Partial(at) => {
                    self.links.at_mut(index).quote.extend_from_slice(&text.bytes[at..range.end]);
                    return at == range.start || self.on_body(index, text.piece(range.start..at));
                }
                Quote::Whole(found) if self.is_own(index, &text.bytes[found.clone()], receive, watch, true) => {
                    return self.on_misframing(index);
                }
                Quote::Whole(found) => from = found.end,
            }
        }
    }

    /// A body is complete; `rest` is what came behind it. What was held back of it is delivered, unless a head begins there that
    /// ends behind it. False: the connection is gone.
    pub(super) fn watch_end(&mut self, index: u32, rest: Range<usize>, input: &Input<'_>, watch: &Watch) -> bool {
        let held = std::mem::take(&mut self.links.at_mut(index).quote);
        if held.is_empty() {
            return true;
        }
        let text = [&held, &input.bytes[rest]].concat();
        if self.stands_across(index, &text, held.len(), input, watch) {
            return self.on_misframing(index);
        }
        self.on_body(index, Piece::Kept(Bytes::from(held)))
    }

    /// The server has ended a body by closing. False: the connection is gone.
    pub(super) fn watch_close(&mut self, index: u32) -> bool {
        self.watch_end(index, 0..0, &Input::borrowed(&[]), &Watch::default())
    }

    /// Notes what the answer being read is like, because the rest of its body comes with later receives.
    pub(super) fn keep_print(&mut self, index: u32, input: &Input<'_>, watch: &Watch) {
        let now_us = self.now_us;
        let link = self.links.at_mut(index);
        if let Some(head) = watch.head.clone().filter(|_| link.begun && link.owner.is_none()) {
            link.print = Some((Print::of(&input.bytes[head]), now_us));
        }
    }

    /// Whether a head of this server begins in the first `inside` bytes and ends behind them, or its first fields alone say so.
    fn stands_across(&self, index: u32, text: &[u8], inside: usize, receive: &Input<'_>, watch: &Watch) -> bool {
        match next_quote(text, 0) {
            Quote::Whole(found) if found.start < inside => self.is_own(index, &text[found], receive, watch, true),
            Quote::Partial(at) if at < inside => self.is_own(index, &text[at..], receive, watch, false),
            _ => false,
        }
    }

    /// Whether a head in the body of an answer is of the same server and moment.
    fn is_own(&self, index: u32, found: &[u8], receive: &Input<'_>, watch: &Watch, whole: bool) -> bool {
        let link = self.links.at(index);
        let here = watch.head.clone().map(|head| (Print::of(&receive.bytes[head]), self.now_us));
        let Some((own, since_us)) = here.or(link.print) else { return false };
        let age_s = self.now_us.saturating_sub(since_us) / 1_000_000;
        let now_s = u64::try_from(self.wall_s()).unwrap_or_default();
        own.is_like(&Print::of(found), age_s, now_s, whole)
    }

    /// The answer being read is longer than its server says, and what follows is not for who asked. False: the connection is gone.
    fn on_misframing(&mut self, index: u32) -> bool {
        self.on_doubt(index, Doubt::Misframing);
        false
    }
}
