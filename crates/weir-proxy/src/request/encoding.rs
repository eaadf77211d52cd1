//! Compression of large responses on another thread than their worker's: an encoder leaves with its
//! input, and comes back with the output. docs/compression.md.
//!
//! Made by `client/compressing/away.rs`, which decides which responses are large; run by the code
//! that carries out [`Action::Encode`](crate::action::Action::Encode), returned as
//! [`News::Encoded`](crate::forward::lookup::News::Encoded). Each response has one job at a time,
//! so order needs no care. Bounds: the input counts as unsent bytes of its client, the encoder as
//! its worker's memory for compression, until both are back or gone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::base::encoder::Encoder;
use crate::request::pending_request::ExchangeId;

/// An encoder's share of its worker's memory, which it gives back whatever happens to its exchange,
/// on whatever thread.
#[derive(Debug)]
pub(crate) struct Share {
    bytes: u64,
    of: Arc<AtomicU64>,
    /// The total of its client.
    client: Option<Arc<AtomicU64>>,
}

impl Share {
    /// Takes this many bytes of the memory counted in `of`.
    pub(crate) fn new(bytes: u64, of: &Arc<AtomicU64>) -> Share {
        of.fetch_add(bytes, Ordering::Relaxed);
        Share { bytes, of: Arc::clone(of), client: None }
    }

    /// The same, counted for this client as well.
    pub(crate) fn of_client(mut self, client: Option<Arc<AtomicU64>>) -> Share {
        client.iter().for_each(|client| _ = client.fetch_add(self.bytes, Ordering::Relaxed));
        self.client = client;
        self
    }

    /// An empty share of the same memory: all of this share is given back.
    pub(crate) fn given_back(self) -> Share {
        Share::new(0, &self.of)
    }

    /// Whether it was taken from this memory. Machines that have replaced others count in another
    /// place.
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

/// Identifies a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    pub id: ExchangeId,
    /// Among its worker's compressed responses: an exchange may have more than one, when the first
    /// was taken back.
    pub number: u64,
}

/// Bytes to be encoded, with the encoder.
#[derive(Debug)]
pub struct Job {
    pub(crate) label: Label,
    pub(crate) encoder: Encoder,
    pub(crate) share: Share,
    pub(crate) input: Vec<Bytes>,
    /// The response ends with these bytes.
    pub(crate) is_last: bool,
}

/// The result of a [`Job`].
#[derive(Debug)]
pub struct Encoded {
    pub(crate) label: Label,
    pub(crate) share: Share,
    pub(crate) outcome: Outcome,
}

/// The encoder, unless the response has ended, and its output. None: memory ran out, or the encoder
/// is broken; so is the response.
pub(crate) type Outcome = Option<(Option<Encoder>, Vec<u8>)>;

impl Job {
    /// Does the work: all input comes out, decodable without what follows. A panic in the encoder
    /// breaks this response and nothing else.
    pub fn run(self) -> Box<Encoded> {
        let Job { label, encoder, share, input, is_last } = self;
        let outcome = survive(move || encode(encoder, input, is_last));
        Box::new(Encoded { label, share, outcome })
    }

    /// The number of input bytes.
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

/// Runs the work; None: it panicked, and nothing remains that the panic could have left half-done.
fn survive<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(None)
}

#[cfg(test)]
mod tests {
    //! Proves: a job gives the same output as the encoder would give here, to its end; the share of
    //! the memory moves with it and comes back, or is given back with it; a panic only breaks the
    //! response. How: a message in two jobs, the second on another thread.

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
            assert_eq!(
                (label.number, held.load(Ordering::Relaxed), share.is_of(&held)),
                (3, 100, true)
            );
            let (encoder, mut out) = outcome.expect("memory");
            let last = job(encoder.expect("it goes on"), share, &[b"three"], true);
            let done =
                std::thread::scope(|scope| scope.spawn(|| last.run()).join().expect("an end"));
            let (encoder, rest) = done.outcome.expect("memory");
            assert!(encoder.is_none());
            drop(done.share);
            assert_eq!(held.load(Ordering::Relaxed), 0);
            out.extend(rest);
            let mut reader: Box<dyn Read + '_> = match coding {
                Coding::Zstd => {
                    Box::new(zstd::stream::read::Decoder::new(&out[..]).expect("a decoder"))
                }
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
