//! The table of open streams, and the last closed ones of which the client may not know yet
//! (RFC 9113 §5.1).
//!
//! Ids only grow, so the table is a list in their order: a new stream is added at its end, and most
//! leave at its beginning. Bounds: as many streams as are announced, which the reader enforces;
//! [`RECENT`] closed ones.

use std::collections::VecDeque;

use super::priority::Priority;

/// Number of streams whose memory is kept when there is none.
const KEPT: usize = 4;
/// Closed streams for which frames are still expected: all that a client may have open.
const RECENT: usize = 1_000;

/// A request and its response.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    pub(super) priority: Priority,
    /// The caller's.
    pub(super) tag: u64,
    /// The request's body is complete.
    pub(super) received: bool,
    /// The rest of the request's body is discarded.
    pub(super) ignored: bool,
    pub(super) answer: Answer,
    /// What the client may still send.
    pub(super) window: i64,
    /// Bytes of it that were consumed and not given back.
    pub(super) owed: u32,
    /// Bytes of body that the caller keeps.
    pub(super) held: u32,
    /// Bytes by which its window has grown.
    pub(super) grown: u32,
    /// The request's body is passed on as it comes, and at most this many bytes of it may be on
    /// their way at once.
    pub(super) passed_on: Option<u32>,
    /// Bytes of such a body that have come since a part of it had to wait, or in excess of those
    /// that made its window grow.
    pub(super) prompt: u32,
    /// Bytes that Content-Length has announced and that have not come.
    pub(super) length_left: Option<u64>,
    /// What the client accepts, beyond the initial window that it has announced for all, less the
    /// bytes sent.
    pub(super) credit: i64,
    /// Bytes of the response's body that wait with the caller.
    pub(super) queued: usize,
    /// Bytes of the response's body that have left.
    pub(super) sent: u64,
    /// Header block of the trailers, to be sent after the pending bytes.
    pub(super) trailers: Option<Box<[u8]>>,
}

/// The progress of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Its head has not come, not counting interim ones.
    Awaited,
    /// Its head has come.
    Begun,
    /// All of it has come; its end is to be written.
    Complete,
    /// Its end is among the control frames already.
    Closed,
}

impl Stream {
    /// Makes the stream of a request whose head has come. `window`: what the client may send of its
    /// body.
    pub(super) fn new(id: u32, received: bool, window: i64) -> Stream {
        Stream {
            id,
            priority: Priority::default(),
            tag: 0,
            received,
            ignored: false,
            answer: Answer::Awaited,
            window,
            owed: 0,
            held: 0,
            grown: 0,
            passed_on: None,
            prompt: 0,
            length_left: None,
            credit: 0,
            queued: 0,
            sent: 0,
            trailers: None,
        }
    }

    /// Passes `bytes` of its body to the caller, which owns them from now on.
    pub(super) fn hold(&mut self, bytes: u32) {
        self.prompt = if self.held == 0 { self.prompt.saturating_add(bytes) } else { 0 };
        self.held += bytes;
    }

    /// Whether a whole window of its body, of `full` bytes, has come and gone, and none of it had
    /// to wait. If so the next begins.
    pub(super) fn has_used_up(&mut self, full: u32) -> bool {
        let Some(on_way) = self.passed_on.filter(|_| self.held == 0) else { return false };
        let is_used_up = self.prompt >= full.saturating_add(on_way);
        if is_used_up {
            self.prompt -= full;
        }
        is_used_up
    }
}

/// Open streams in the order of their ids.
#[derive(Debug, Default)]
pub(super) struct Streams {
    list: VecDeque<Stream>,
}

impl Streams {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.list.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.list.iter_mut()
    }

    pub(super) fn find(&self, id: u32) -> Option<&Stream> {
        self.list.get(self.place(id)?)
    }

    pub(super) fn find_mut(&mut self, id: u32) -> Option<&mut Stream> {
        let place = self.place(id)?;
        self.list.get_mut(place)
    }

    /// Adds a stream whose id is higher than those of all others.
    pub(super) fn add(&mut self, stream: Stream) {
        debug_assert!(self.list.back().is_none_or(|last| last.id < stream.id));
        self.list.push_back(stream);
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Stream> {
        let stream = self.list.remove(self.place(id)?);
        if self.list.is_empty() && self.list.capacity() > KEPT {
            self.list = VecDeque::new();
        }
        stream
    }

    pub(super) fn memory(&self) -> usize {
        self.list.capacity() * size_of::<Stream>()
    }

    fn place(&self, id: u32) -> Option<usize> {
        self.list.binary_search_by_key(&id, |stream| stream.id).ok()
    }
}

/// The last streams that weir has closed on its own initiative: frames that the client has sent
/// before it knew are ignored.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// With [`UNENDED`]: the client has not been told that the rest of its request is not needed.
    ids: Option<Box<[u32; RECENT]>>,
    next: usize,
}

/// A bit that no stream has in its number (RFC 9113 §5.1.1).
const UNENDED: u32 = 1 << 31;

impl Recent {
    pub(super) fn add(&mut self, id: u32) {
        self.ids.get_or_insert_with(|| Box::new([0; RECENT]))[self.next] = id;
        self.next = (self.next + 1) % RECENT;
    }

    /// Adds a stream whose client may go on with a request that has its response.
    pub(super) fn add_unended(&mut self, id: u32) {
        self.add(id | UNENDED);
    }

    /// Returns whether more of a request arrives that has its response, for the first time.
    pub(super) fn take_unended(&mut self, id: u32) -> bool {
        let place = self.find(id).filter(|place| **place & UNENDED != 0);
        place.map(|place| *place = id).is_some()
    }

    /// Forgets a stream; returns whether it was there.
    pub(super) fn remove(&mut self, id: u32) -> bool {
        self.find(id).map(|place| *place = 0).is_some()
    }

    fn find(&mut self, id: u32) -> Option<&mut u32> {
        let mut all = self.ids.iter_mut().flat_map(|ids| ids.iter_mut());
        all.find(|other| **other & !UNENDED == id && **other != 0)
    }

    pub(super) fn memory(&self) -> usize {
        self.ids.as_ref().map_or(0, |ids| size_of_val(&**ids))
    }

    pub(super) fn has(&self, id: u32) -> bool {
        self.ids.as_ref().is_some_and(|ids| ids.iter().any(|other| *other & !UNENDED == id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_finds_what_is_in_it() {
        let mut streams = Streams::default();
        for id in (1..400).step_by(2) {
            streams.add(Stream::new(id, true, 0));
        }
        for id in (1..400).step_by(6) {
            assert_eq!(streams.remove(id).map(|stream| stream.id), Some(id));
            assert!(streams.remove(id).is_none() && streams.find(id).is_none());
        }
        for id in 0..402 {
            let open = id % 2 == 1 && id % 6 != 1 && id < 400;
            assert_eq!(streams.find(id).is_some(), open, "{id}");
            assert_eq!(streams.find_mut(id).map(|stream| stream.id), open.then_some(id));
        }
        for id in 0..402 {
            streams.remove(id);
        }
        assert!(streams.is_empty() && streams.list.capacity() <= KEPT);
        assert!(size_of::<Stream>() <= 112, "{}", size_of::<Stream>());
    }

    #[test]
    fn the_last_few_are_remembered() {
        let mut recent = Recent::default();
        assert!(!recent.has(0) && recent.ids.is_none());
        for id in 1..1_200 {
            recent.add(id);
        }
        assert_eq!((0..1_200).filter(|&id| recent.has(id)).count(), RECENT);
        assert!(recent.has(1_199) && recent.has(200) && !recent.has(199));
        assert!(recent.remove(280) && !recent.remove(280) && !recent.has(280) && recent.has(281));
    }
}
