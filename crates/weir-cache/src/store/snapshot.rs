//! The part of the store that outlives its process: responses as records of a snapshot, and back.
//!
//! Writing: [`Store::hottest`] selects the keys, and [`Store::put_records`] writes one after the
//! other, as they are then. It leaves out responses that are purged, withdrawn, or stale without
//! leave to be used stale. Reading: [`Store::begin_restoring`] before the first record, so that
//! purges from then on also cover restored responses, then [`Store::restore`] record by record.
//! Existing responses are kept, because they are newer. A file is believed only as far as this
//! program could have written it ([`format`](self::format)), and takes no more memory than a
//! response that is fetched. Times: ages continue by the wall clock.

mod changed;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::io::{self, Read, Write};
use std::sync::Arc;

use weir_http::{FieldName, Fields, Limits as HeadLimits, ReplyContext, is_token, parse_reply};

pub use changed::Changed;
pub use format::{Flaw, MAGIC as SNAPSHOT_MAGIC, PREFACE_BYTES, Preface, put_change};

use super::collector::Collector;
use super::fills::Fill;
use super::index::Index;
use super::object::Object;
use super::{Draft, Hashes, Limits, Store, let_go};
use crate::bans::{SourceMark, Verdict};
use crate::key::url_of;
use crate::lines::stored_fields;
use crate::list::DELTA_MAX;
use crate::storable::{FIELD_BYTES_MAX, Terms};
use crate::usage::{is_error, is_fresh, staleness_us};
use crate::validators::Validators;
use crate::vary::Selector;
use format::{
    FORBIDS_STALE, HEAD_BYTES, Head, IMMUTABLE, KEY_BYTES_MAX, NO_CACHE, Summed, decode_tags,
    encode_tags, source_number, source_of,
};

const SECOND_US: u64 = 1_000_000;
/// Bytes of a body that are read at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// The source of restored responses: no connection of this process.
const SOURCE: SourceMark = SourceMark { connection: u64::MAX, position: 0 };
/// More than the head of any accepted response has.
const LINES_MAX: usize = FIELD_BYTES_MAX / 4;

/// One moment by two clocks, microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Since 1970.
    pub wall_us: u64,
    /// Of the monotonic clock.
    pub now_us: u64,
}

/// The outcome for a response of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restored {
    /// It is stored again.
    Kept,
    /// It is stale by now, and may not be used stale.
    Stale,
    /// It was purged, or became invalid, since it was written.
    Purged,
    /// A newer one exists already, or as many as may exist.
    Present,
    /// It is larger than responses may be now, or finds no room.
    NoRoom,
}

/// A snapshot is being read into the store.
#[derive(Debug)]
pub struct Restoring {
    /// Restored responses are as old as a fetch that began before the first one was read.
    fill: Fill,
}

/// A response as it was read, without its body.
struct Entry {
    head: Head,
    key: Vec<u8>,
    selector: Selector,
    lines: Vec<u8>,
    tags: Vec<Vec<u8>>,
}

/// Records of a snapshot, one after the other.
#[derive(Debug)]
pub struct Records<R> {
    from: R,
    /// Bytes of the remaining records.
    left: u64,
    /// The position of the next one, from the start of the snapshot.
    offset: u64,
}

impl<R: Read> Records<R> {
    /// Returns the records behind this preface, at which `from` is positioned.
    pub fn new(from: R, preface: &Preface) -> Self {
        Self { from, left: preface.end - PREFACE_BYTES as u64, offset: PREFACE_BYTES as u64 }
    }

    /// Returns the position of the next one, bytes from the start of the snapshot; after a flaw,
    /// the position of the flaw.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next one. `begin` gives the memory for a body of this many bytes; None: it is
    /// skipped.
    fn next(
        &mut self,
        begin: impl FnOnce(u64) -> Option<Collector>,
    ) -> Result<Option<(Entry, Option<Collector>)>, Flaw> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut summed = Summed::new(&mut self.from);
        let mut head = [0; HEAD_BYTES];
        summed.fill(&mut head)?;
        let head = Head::decode(&head)?;
        let bytes = head.record_bytes();
        if bytes > self.left {
            return Err(Flaw::Damaged("a response is longer than the rest of the file"));
        }
        let [key, selector, lines, tags] = head.texts;
        let [key, selector, lines, tags] =
            [summed.text(key)?, summed.text(selector)?, summed.text(lines)?, summed.text(tags)?];
        let mut body = begin(head.body_bytes);
        let mut chunk =
            vec![0; CHUNK_BYTES.min(usize::try_from(head.body_bytes).unwrap_or(CHUNK_BYTES))];
        let mut rest = head.body_bytes;
        while rest > 0 {
            let now = usize::try_from(rest).unwrap_or(CHUNK_BYTES).min(chunk.len());
            summed.fill(&mut chunk[..now])?;
            rest -= now as u64;
            // A body that finds no room is read to its end, to reach the next record.
            body = body.and_then(|mut body| body.push(&chunk[..now]).is_ok().then_some(body));
        }
        if !summed.seal()? {
            return Err(Flaw::Damaged("a response"));
        }
        let entry = Entry::checked(head, key, &selector, lines, &tags);
        let entry = entry.ok_or(Flaw::Damaged("a response that weir does not store"))?;
        (self.left, self.offset) = (self.left - bytes, self.offset + bytes);
        Ok(Some((entry, body)))
    }
}

impl Entry {
    /// None: no stored response can be like this.
    fn checked(
        head: Head,
        key: Vec<u8>,
        selector: &[u8],
        lines: Vec<u8>,
        tags: &[u8],
    ) -> Option<Self> {
        let selector = Selector::read(selector)?;
        let tags = decode_tags(tags)?;
        source_of(head.lifetime_source)?;
        let is_bounded = [head.lifetime_s, head.stale_while_revalidate_s, head.stale_if_error_s]
            .iter()
            .all(|s| *s <= DELTA_MAX);
        let is_one = is_status(head.status) && is_bounded && is_key(&key) && are_lines(&lines);
        is_one.then_some(Self { head, key, selector, lines, tags })
    }

    /// Returns the terms as if weir had never ended. None: it is from the future.
    fn terms(&self, preface: &Preface, moment: Moment) -> Option<Terms> {
        let head = &self.head;
        let away_us = moment.wall_us.checked_sub(preface.written_us)?;
        let age_us = head.age_us.saturating_add(away_us);
        let here_us =
            moment.wall_us.saturating_sub(head.received_s.saturating_mul(SECOND_US)).min(age_us);
        // When it arrived, as far back as the monotonic clock reaches.
        let received_us = moment.now_us.saturating_sub(here_us);
        Some(Terms {
            status: head.status,
            received_us,
            received_s: head.received_s,
            initial_age_us: age_us - (moment.now_us - received_us).min(age_us),
            lifetime_s: head.lifetime_s,
            lifetime_source: source_of(head.lifetime_source)?,
            stale_while_revalidate_s: head.stale_while_revalidate_s,
            stale_if_error_s: head.stale_if_error_s,
            no_cache: head.flags & NO_CACHE != 0,
            forbids_stale: head.flags & FORBIDS_STALE != 0,
            immutable: head.flags & IMMUTABLE != 0,
            has_validator: !Validators::of(stored_fields(&self.lines), head.received_s).is_empty(),
        })
    }
}

fn is_status(status: u16) -> bool {
    (200..=999).contains(&status) && !matches!(status, 206 | 304)
}

/// A URL in a line, then at least the upstream, and each line ends.
fn is_key(key: &[u8]) -> bool {
    let url = url_of(key);
    let has_scheme = url.starts_with(b"http://") || url.starts_with(b"https://");
    let lines = key.iter().filter(|byte| **byte == b'\n').count();
    let is_text = |byte: &u8| !matches!(byte, 0 | b'\r');
    has_scheme
        && lines >= 2
        && key.ends_with(b"\n")
        && key.iter().all(is_text)
        && key.len() <= KEY_BYTES_MAX
}

/// Whether these are field lines that weir would accept from a server and store.
fn are_lines(lines: &[u8]) -> bool {
    let head = [b"HTTP/1.1 200 \r\n", lines, b"\r\n"].concat();
    let limits = HeadLimits {
        head_bytes_max: FIELD_BYTES_MAX + 64,
        fields_max: LINES_MAX,
        ..HeadLimits::default()
    };
    let mut fields = Fields::default();
    let parsed = parse_reply(&head, &limits, ReplyContext::default(), &mut fields);
    let is_whole =
        parsed.is_ok_and(|parsed| parsed.is_some_and(|parsed| parsed.bytes == head.len()));
    // A line each: none that continues in the next one.
    let count = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    let is_stored = |(name, _): (&[u8], &[u8])| {
        let known = FieldName::of(name);
        is_token(name) && known != FieldName::Age && !known.is_hop_by_hop()
    };
    let are_stored = stored_fields(lines).all(is_stored);
    is_whole && are_stored && count == fields.len() && lines.len() <= FIELD_BYTES_MAX
}

/// Whether it can be used on request, if only while it is refetched or its server fails.
fn is_licensed(terms: &Terms, now_us: u64) -> bool {
    let window_s = terms.stale_while_revalidate_s.max(terms.stale_if_error_s);
    let may_be_stale = !terms.forbids_stale && !is_error(terms) && !terms.no_cache && window_s > 0;
    let is_within = |stale_us: u64| stale_us <= u64::from(window_s) * SECOND_US;
    is_fresh(terms, now_us) || (may_be_stale && staleness_us(terms, now_us).is_some_and(is_within))
}

impl Store {
    /// Returns the keys whose responses were found most, the most frequent first, as many as fit in
    /// `bytes_max` bytes of memory. Goes through the whole store, which may take a while: `between`
    /// is called between its parts, when nothing is locked.
    pub fn hottest(&self, bytes_max: u64, mut between: impl FnMut()) -> Vec<Vec<u8>> {
        let mut all: Vec<(u64, u64, Vec<u8>)> = Vec::new();
        for shard in &self.shards {
            let shard = self.read(shard);
            all.extend(shard.iter().map(|(key, bucket)| {
                let sum = |of: fn(&Object) -> u64| {
                    bucket.iter().map(|(_, object)| of(object)).sum::<u64>()
                };
                (sum(|object| u64::from(object.hits())), sum(Object::weight), key.to_vec())
            }));
            drop(shard);
            between();
            // Only candidates are kept while others are visited.
            all.sort_unstable_by(|one, other| {
                (Reverse(one.0), &one.2).cmp(&(Reverse(other.0), &other.2))
            });
            let mut sum: u64 = 0;
            // A key that does not fit makes way for less requested ones that do.
            all.retain(|(_, bytes, _)| {
                let fits = sum.saturating_add(*bytes) <= bytes_max;
                sum += if fits { *bytes } else { 0 };
                fits
            });
            between();
        }
        all.into_iter().map(|(.., key)| key).collect()
    }

    /// Writes the stored responses of a key, newest first, as of `moment`, when the snapshot was
    /// begun; at most `bytes_max` bytes. Returns the numbers of responses and bytes.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn put_records(
        &self,
        key: &[u8],
        moment: Moment,
        bytes_max: u64,
        out: &mut impl Write,
    ) -> io::Result<(u64, u64)> {
        let (mut answers, mut bytes) = (0, 0);
        for (selector, object) in self.variants(key, moment.now_us) {
            let terms = object.terms();
            let tags = encode_tags(object.tags());
            let Some(head) = head_of(key, (&selector, &object, &tags), &terms, moment) else {
                continue;
            };
            let record_bytes = head.record_bytes();
            if !is_licensed(&terms, moment.now_us)
                || bytes + record_bytes > bytes_max
                || !are_lines(object.lines())
            {
                continue;
            }
            put_record(out, &head, [key, selector.text(), object.lines(), &tags], &object)?;
            (answers, bytes) = (answers + 1, bytes + record_bytes);
        }
        Ok((answers, bytes))
    }

    /// Has to be called before the first record is read: purges from now on also cover restored
    /// responses.
    pub fn begin_restoring(&self) -> Restoring {
        Restoring { fill: self.lone_fill(b"") }
    }

    /// Stores the next response of a snapshot, if it may be; None: that was the last one.
    ///
    /// # Errors
    /// The snapshot is damaged: the rest cannot be read either.
    pub fn restore<R: Read>(
        &self,
        restoring: &Restoring,
        records: &mut Records<R>,
        (preface, changed): (&Preface, &Changed),
        moment: Moment,
    ) -> Result<Option<Restored>, Flaw> {
        let Some((entry, body)) = records.next(|bytes| self.collect(Some(bytes)).ok())? else {
            return Ok(None);
        };
        let terms = entry
            .terms(preface, moment)
            .ok_or(Flaw::Damaged("a response has a time in the future"))?;
        let verdict = changed.judge(&entry.key, &entry.tags, entry.head.source);
        if verdict >= Verdict::Gone {
            return Ok(Some(Restored::Purged));
        }
        let expired =
            Terms { lifetime_s: terms.lifetime_s.min(terms.age_s(moment.now_us)), ..terms };
        let terms = if verdict == Verdict::Stale { expired } else { terms };
        if !is_licensed(&terms, moment.now_us) {
            return Ok(Some(Restored::Stale));
        }
        let Some(body) = body else { return Ok(Some(Restored::NoRoom)) };
        let Entry { head, key, selector, lines, tags } = entry;
        let draft = Draft {
            key: &key,
            selector: selector.clone(),
            lines: &lines,
            terms,
            tags,
            source: SOURCE,
        };
        let Ok(pending) = self.complete(&restoring.fill, draft, body) else {
            return Ok(Some(Restored::NoRoom));
        };
        pending.object.set_hits(head.hits);
        if !pending.fits {
            return Ok(Some(Restored::NoRoom));
        }
        Ok(Some(self.put_behind(&key, selector, &pending.object, moment.now_us)))
    }

    /// Stores a response behind the existing ones, if it has room without evicting any.
    fn put_behind(
        &self,
        key: &[u8],
        selector: Selector,
        object: &Arc<Object>,
        now_us: u64,
    ) -> Restored {
        let hashes: Hashes = self.hashes(key);
        match self.verdict(key, hashes, object) {
            Verdict::Stays => {}
            Verdict::Stale => object.expire(now_us),
            Verdict::Gone | Verdict::Withdrawn => return Restored::Purged,
        }
        let variants_max = self.variants_max();
        let limits = Limits {
            bytes: self.account.limit(),
            object_bytes_max: self.object_bytes_max(),
            variants_max,
        };
        let capacity = limits.index_bytes() / self.shards.len() as u64;
        let mut gone = Vec::new();
        let mut shard = self.write(self.shard(hashes));
        if shard.weight() + object.weight() > capacity {
            return Restored::NoRoom;
        }
        let is_in = shard.change(hashes.key, key, &mut gone, |bucket| {
            bucket.insert_last(selector, Arc::clone(object), variants_max, now_us)
        });
        drop(shard);
        let_go(gone, Vec::new());
        if is_in { Restored::Kept } else { Restored::Present }
    }
}

/// Returns the head of a record; None: a part is longer than the reader accepts.
fn head_of(
    key: &[u8],
    (selector, object, tags): (&Selector, &Object, &[u8]),
    terms: &Terms,
    moment: Moment,
) -> Option<Head> {
    if selector.text().len() > KEY_BYTES_MAX || !is_key(key) || !is_status(terms.status) {
        return None;
    }
    let length = |text: &[u8]| u32::try_from(text.len()).ok();
    let flags = [
        (terms.no_cache, NO_CACHE),
        (terms.forbids_stale, FORBIDS_STALE),
        (terms.immutable, IMMUTABLE),
    ];
    Some(Head {
        texts: [length(key)?, length(selector.text())?, length(object.lines())?, length(tags)?],
        body_bytes: object.body_bytes(),
        status: terms.status,
        flags: flags.iter().filter(|(is_so, _)| *is_so).map(|(_, flag)| flag).sum(),
        lifetime_source: source_number(terms.lifetime_source),
        lifetime_s: terms.lifetime_s,
        stale_while_revalidate_s: terms.stale_while_revalidate_s.min(DELTA_MAX),
        stale_if_error_s: terms.stale_if_error_s.min(DELTA_MAX),
        received_s: terms.received_s,
        age_us: terms.age_us(moment.now_us),
        source: object.source(),
        hits: object.hits(),
    })
}

fn put_record(
    out: &mut impl Write,
    head: &Head,
    texts: [&[u8]; 4],
    object: &Object,
) -> io::Result<()> {
    let mut hasher = crc32fast::Hasher::new();
    let mut put = |bytes: &[u8]| {
        hasher.update(bytes);
        out.write_all(bytes)
    };
    put(&head.encode())?;
    texts.into_iter().try_for_each(&mut put)?;
    put(object.small_body().unwrap_or_default())?;
    object.pieces().iter().try_for_each(|piece| put(piece))?;
    let crc = hasher.finalize();
    out.write_all(&crc.to_le_bytes())
}
