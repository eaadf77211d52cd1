//! Work on an answer that is compressed and large, for another thread than its worker's: an encoder goes along with bytes, and comes back with
//! what has become of them. docs/semantics.md §18.
//!
//! Made by `client/compressing/away.rs`, which says which answers are large; run by whoever carries out [`Action::Encode`](crate::action::Action::Encode),
//! back as [`News::Encoded`](crate::forward::lookup::News::Encoded). Of an answer one is away at a time, so that order needs no care. Bounds: what goes
//! along counts as unsent bytes of its client, the encoder as its worker's memory for compression, until both are back or gone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::base::encoder::Encoder;
use crate::request::pending_request::ExchangeId;

/// What an encoder has of its worker's memory; it gives it back whatever becomes of its exchange, on whatever thread.
#[derive(Debug)]
pub(crate) struct Share {
    bytes: u64,
    of: Arc<AtomicU64>,
    /// What its client has of that.
    client: Option<Arc<AtomicU64>>,
}

impl Share {
    /// So many bytes of what is held in `of`.
    pub(crate) fn new(bytes: u64, of: &Arc<AtomicU64>) -> Share {
        of.fetch_add(bytes, Ordering::Relaxed);
        Share { bytes, of: Arc::clone(of), client: None }
    }

    /// The same, as this client's, whose share counts there.
    pub(crate) fn of_client(mut self, client: Option<Arc<AtomicU64>>) -> Share {
        client.iter().for_each(|client| _ = client.fetch_add(self.bytes, Ordering::Relaxed));
        self.client = client;
        self
    }

    /// Nothing of the same: all of it is given back.
    pub(crate) fn given_back(self) -> Share {
        Share::new(0, &self.of)
    }

    /// Whether it was taken from this. Machines that took the place of others have another one.
    pub(crate) fn is_of(&self, of: &Arc<AtomicU64>) -> bool {
        Arc::ptr_eq(&self.of, of)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
        self.client.iter().for_each(|client| _ = client.fetch_sub(self.bytes, Ordering::Relaxed));
    }
}

/// Which answer it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    pub id: ExchangeId,
    /// Of its worker's answers that were compressed: an exchange may have more than one, when the first was taken back.
    pub number: u64,
}

/// Bytes to be encoded, with the encoder.
#[derive(Debug)]
pub struct Job {
    pub(crate) label: Label,
    pub(crate) encoder: Encoder,
    pub(crate) share: Share,
    pub(crate) input: Vec<Bytes>,
    /// The answer ends with these bytes.
    pub(crate) is_last: bool,
}

/// What has become of a [`Job`].
#[derive(Debug)]
pub struct Encoded {
    pub(crate) label: Label,
    pub(crate) share: Share,
    pub(crate) outcome: Outcome,
}

/// The encoder, unless the answer has ended, and what it gave out. None: there was no memory, or it is broken; so is the answer.
pub(crate) type Outcome = Option<(Option<Encoder>, Vec<u8>)>;

impl Job {
    /// Does the work: all that goes in comes out, decodable by itself. A panic in the encoder breaks this answer and nothing else.
    pub fn run(self) -> Box<Encoded> {
        let Job { label, encoder, share, input, is_last } = self;
        let outcome = survive(move || encode(encoder, input, is_last));
        Box::new(Encoded { label, share, outcome })
    }

    /// Bytes that go in.
    pub(crate) fn bytes(&self) -> usize {
        self.input.iter().map(Bytes::len).sum()
    }
}

fn encode(mut encoder: Encoder, input: Vec<Bytes>, is_last: bool) -> Outcome {
    for bytes in input {
        encoder.push(&bytes)?;
    }
    if is_last {
        return Some((None, encoder.finish()?));
    }
    let out = encoder.flush()?;
    Some((Some(encoder), out))
}

/// What comes of it; None: a panic, which nothing outlives that it could have left half-done.
fn survive<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(None)
}

#[cfg(test)]
mod tests {
    //! Proves: a job gives out what the encoder would have given out here, to its end; the share of the memory goes with it and comes back, or is
    //! given back with it; a panic is no more than a broken answer. How: a message in two jobs, the second on another thread.

    use std::io::Read;

    use super::*;
    use crate::base::encoder::{Coding, Shape};
    use crate::base::keys::{ExchangeKey, Key};

    fn job(encoder: Encoder, share: Share, input: &[&'static [u8]], is_last: bool) -> Job {
        let id = ExchangeId { worker: 0, index: ExchangeKey::new(1), generation: 2 };
        let input = input.iter().map(|bytes| Bytes::from_static(bytes)).collect();
        Job { label: Label { id, number: 3 }, encoder, share, input, is_last }
    }

    #[test]
    fn an_answer_in_two_jobs() {
        for coding in Coding::ALL {
            let held = Arc::new(AtomicU64::new(0));
            let encoder = Encoder::new(Shape::new(coding, 3, None)).expect("memory");
            let first = job(encoder, Share::new(100, &held), &[b"one ", b"", b"two "], false);
            assert_eq!(first.bytes(), 8);
            let Encoded { share, outcome, label } = *first.run();
            assert_eq!((label.number, held.load(Ordering::Relaxed), share.is_of(&held)), (3, 100, true));
            let (encoder, mut out) = outcome.expect("memory");
            let last = job(encoder.expect("it goes on"), share, &[b"three"], true);
            let done = std::thread::scope(|scope| scope.spawn(|| last.run()).join().expect("an end"));
            let (encoder, rest) = done.outcome.expect("memory");
            assert!(encoder.is_none());
            drop(done.share);
            assert_eq!(held.load(Ordering::Relaxed), 0);
            out.extend(rest);
            let mut reader: Box<dyn Read + '_> = match coding {
                Coding::Zstd => Box::new(zstd::stream::read::Decoder::new(&out[..]).expect("a decoder")),
                Coding::Br => Box::new(brotli::Decompressor::new(&out[..], 4096)),
                Coding::Gzip => Box::new(flate2::read::GzDecoder::new(&out[..])),
            };
            let mut text = String::new();
            reader.read_to_string(&mut text).expect("all of it");
            assert_eq!(text, "one two three", "{coding:?}");
        }
    }

    #[test]
    fn a_panic_breaks_no_more_than_its_answer() {
        let quiet = || std::panic::resume_unwind(Box::new("a library's bug"));
        assert_eq!(survive::<()>(quiet), None);
        assert_eq!(survive(|| Some(7)), Some(7));
        let held = Arc::new(AtomicU64::new(0));
        assert!(!Share::new(1, &held).is_of(&Arc::new(AtomicU64::new(0))));
    }
}
