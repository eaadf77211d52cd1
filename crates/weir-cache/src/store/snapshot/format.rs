//! The bytes of a snapshot: a preface, records of responses, and behind them the invalidations
//! since.
//!
//! ```text
//!   0         48                      end
//!   | preface | record | record | ... | change | change | ...
//! ```
//!
//! Numbers are little-endian. Each part has its own CRC-32 behind it (the fixed head of a record as
//! well, so that its lengths are known to be right before memory is allocated for them). Changes
//! are appended while the snapshot is the last one, hence at its end. Pure: no file is touched
//! here. Bounds: [`KEY_BYTES_MAX`], [`FIELD_BYTES_MAX`], [`TAG_BYTES_MAX`], [`CHANGE_BYTES_MAX`],
//! and the caller's limit for bodies.

use std::fmt;
use std::io::{self, Read};

use crc32fast::Hasher;

use crate::bans::{SourceMark, Target};
use crate::freshness::LifetimeSource;
use crate::storable::FIELD_BYTES_MAX;
use crate::store::changes::Change;
use crate::tags::{TAG_BYTES_MAX, TAGS_MAX};

/// Bytes of a preface.
pub const PREFACE_BYTES: usize = 48;
/// Bytes of the fixed head of a record.
pub(super) const HEAD_BYTES: usize = 80;
/// Longest key, and longest text of a selector; longer ones are not written.
pub(super) const KEY_BYTES_MAX: usize = 256 << 10;
/// Longest change.
const CHANGE_BYTES_MAX: usize = 256 << 10;
const TAGS_BYTES_MAX: usize = TAGS_MAX * (TAG_BYTES_MAX + 2);

/// The first bytes of each snapshot, in any version.
pub const MAGIC: &[u8; 8] = b"weirsnap";
/// Other versions are other formats.
const VERSION: u32 = 2;

/// Why a snapshot, or the rest of one, cannot be used.
#[derive(Debug)]
pub enum Flaw {
    /// It does not begin like one.
    NotOurs,
    /// It is of another version.
    Version(u32),
    /// Its bytes are not those that were written, or were never written by this program.
    Damaged(&'static str),
    /// It ends too early.
    Cut,
    /// It cannot be read.
    Io(io::Error),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs => f.write_str("it is not a snapshot of a cache"),
            Self::Version(version) => {
                write!(f, "it has version {version}, but this program reads version {VERSION}")
            }
            Self::Damaged(what) => write!(f, "it is damaged: {what}"),
            Self::Cut => f.write_str("it is damaged: it ends too early"),
            Self::Io(error) => write!(f, "weir cannot read it: {error}"),
        }
    }
}

impl From<io::Error> for Flaw {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Cut } else { Self::Io(error) }
    }
}

/// The beginning of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preface {
    /// A mark of the rules by which its responses were stored: under other rules it is not used.
    pub rules: u64,
    /// When it was begun, microseconds since 1970: ages are relative to that.
    pub written_us: u64,
    /// The end of records and start of changes, bytes from the start.
    pub end: u64,
    /// The number of records.
    pub answers: u64,
}

impl Preface {
    /// Returns the bytes.
    pub fn encode(&self) -> [u8; PREFACE_BYTES] {
        let mut bytes = Vec::with_capacity(PREFACE_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for number in [self.rules, self.written_us, self.end, self.answers] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&crc(&bytes).to_le_bytes());
        let mut whole = [0; PREFACE_BYTES];
        whole.copy_from_slice(&bytes);
        whole
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// It is no preface, or not of this version.
    pub fn decode(bytes: &[u8; PREFACE_BYTES]) -> Result<Self, Flaw> {
        let mut cursor = Cursor(bytes);
        if cursor.take(MAGIC.len()) != MAGIC {
            return Err(Flaw::NotOurs);
        }
        let version = cursor.u32();
        if version != VERSION {
            return Err(Flaw::Version(version));
        }
        let [rules, written_us, end, answers] = std::array::from_fn(|_| cursor.u64());
        if cursor.u32() != crc(&bytes[..PREFACE_BYTES - 4]) {
            return Err(Flaw::Damaged("its first bytes"));
        }
        if end < PREFACE_BYTES as u64 {
            return Err(Flaw::Damaged("its end is before its beginning"));
        }
        Ok(Self { rules, written_us, end, answers })
    }
}

/// The fixed head of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// Lengths, bytes: of the key, of the selector, of its lines, of its tags.
    pub(super) texts: [u32; 4],
    pub(super) body_bytes: u64,
    pub(super) status: u16,
    /// See `NO_CACHE` and the others.
    pub(super) flags: u8,
    pub(super) lifetime_source: u8,
    pub(super) lifetime_s: u32,
    pub(super) stale_while_revalidate_s: u32,
    pub(super) stale_if_error_s: u32,
    /// Unix time.
    pub(super) received_s: u64,
    /// Its age when the snapshot was begun, microseconds.
    pub(super) age_us: u64,
    pub(super) source: SourceMark,
    pub(super) hits: u32,
}

pub(super) const NO_CACHE: u8 = 1;
pub(super) const FORBIDS_STALE: u8 = 2;
pub(super) const IMMUTABLE: u8 = 4;
const FLAGS: u8 = NO_CACHE | FORBIDS_STALE | IMMUTABLE;

const SOURCES: [LifetimeSource; 7] = [
    LifetimeSource::None,
    LifetimeSource::Forced,
    LifetimeSource::SMaxage,
    LifetimeSource::MaxAge,
    LifetimeSource::Expires,
    LifetimeSource::Operator,
    LifetimeSource::Heuristic,
];

/// Returns the number of a source.
pub(super) fn source_number(source: LifetimeSource) -> u8 {
    SOURCES.iter().position(|other| *other == source).unwrap_or(0) as u8
}

/// Returns the source with this number.
pub(super) fn source_of(number: u8) -> Option<LifetimeSource> {
    SOURCES.get(usize::from(number)).copied()
}

impl Head {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        self.texts.iter().for_each(|length| bytes.extend_from_slice(&length.to_le_bytes()));
        bytes.extend_from_slice(&self.body_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.status.to_le_bytes());
        bytes.extend_from_slice(&[self.flags, self.lifetime_source]);
        for number in [self.lifetime_s, self.stale_while_revalidate_s, self.stale_if_error_s] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.received_s, self.age_us, self.source.connection, self.source.position] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.hits.to_le_bytes());
        bytes.extend_from_slice(&crc(&bytes).to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Self, Flaw> {
        let mut cursor = Cursor(bytes);
        let texts = std::array::from_fn(|_| cursor.u32());
        let body_bytes = cursor.u64();
        let status = cursor.u16();
        let [flags, lifetime_source] = [cursor.u8(), cursor.u8()];
        let [lifetime_s, stale_while_revalidate_s, stale_if_error_s] =
            std::array::from_fn(|_| cursor.u32());
        let [received_s, age_us, connection, position] = std::array::from_fn(|_| cursor.u64());
        let hits = cursor.u32();
        if cursor.u32() != crc(&bytes[..HEAD_BYTES - 4]) {
            return Err(Flaw::Damaged("the head of a response"));
        }
        let fits = |at: usize, max: usize| texts[at] as usize <= max;
        let is_bounded =
            fits(0, KEY_BYTES_MAX) && fits(1, KEY_BYTES_MAX) && fits(2, FIELD_BYTES_MAX);
        if !is_bounded || !fits(3, TAGS_BYTES_MAX) || flags & !FLAGS != 0 {
            return Err(Flaw::Damaged("a response is longer than weir stores"));
        }
        let source = SourceMark { connection, position };
        Ok(Self {
            texts,
            body_bytes,
            status,
            flags,
            lifetime_source,
            lifetime_s,
            stale_while_revalidate_s,
            stale_if_error_s,
            received_s,
            age_us,
            source,
            hits,
        })
    }

    /// Returns the bytes of the whole record.
    pub(super) fn record_bytes(&self) -> u64 {
        let texts: u64 = self.texts.iter().map(|length| u64::from(*length)).sum();
        (HEAD_BYTES as u64 + texts + 4).saturating_add(self.body_bytes)
    }
}

/// Returns tags as bytes: the length of each before it.
pub(super) fn encode_tags(tags: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for tag in tags {
        bytes.extend_from_slice(&(tag.len() as u16).to_le_bytes());
        bytes.extend_from_slice(tag);
    }
    bytes
}

/// Reads tags from bytes. None: they are not as [`read_tags`](crate::read_tags) gives them.
pub(super) fn decode_tags(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut tags, mut cursor) = (Vec::new(), Cursor(bytes));
    while !cursor.0.is_empty() {
        let length = usize::from(cursor.u16());
        if length == 0
            || length > TAG_BYTES_MAX
            || length > cursor.0.len()
            || tags.len() == TAGS_MAX
        {
            return None;
        }
        tags.push(cursor.take(length).to_vec());
    }
    tags.is_sorted_by(|one, next| one < next).then_some(tags)
}

/// Appends a change. False: it is too long to be kept.
pub fn put_change(out: &mut Vec<u8>, change: &Change) -> bool {
    let mut text = Vec::new();
    let kind = match &change.target {
        Target::All => 0,
        Target::Host(host) => put(&mut text, 1, &[host]),
        Target::Prefix(prefix) => put(&mut text, 2, &[prefix]),
        Target::Url(url) => put(&mut text, 3, &[url]),
        Target::Tag { tag, host: None } => put(&mut text, 4, &[tag]),
        Target::Tag { tag, host: Some(host) } => {
            put(&mut text, 5, &[&(tag.len() as u32).to_le_bytes(), tag, host])
        }
        Target::Source(from) => {
            put(&mut text, 6, &[&from.connection.to_le_bytes(), &from.position.to_le_bytes()])
        }
    };
    if text.len() > CHANGE_BYTES_MAX {
        return false;
    }
    let from = out.len();
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(&[kind, u8::from(change.is_soft)]);
    out.extend_from_slice(&text);
    let crc = crc(&out[from..]);
    out.extend_from_slice(&crc.to_le_bytes());
    true
}

fn put(text: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) -> u8 {
    parts.iter().for_each(|part| text.extend_from_slice(part));
    kind
}

/// Reads all changes behind the records. If one of them is damaged, further invalidations may be
/// missing: nothing of the snapshot may be used.
///
/// # Errors
/// They are damaged.
pub(super) fn read_changes(bytes: &[u8]) -> Result<Vec<Change>, Flaw> {
    let (mut all, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (change, behind) =
            read_change(rest).ok_or(Flaw::Damaged("its list of later invalidations"))?;
        all.push(change);
        rest = behind;
    }
    Ok(all)
}

fn read_change(bytes: &[u8]) -> Option<(Change, &[u8])> {
    let length = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
    if length > CHANGE_BYTES_MAX {
        return None;
    }
    let (whole, behind) = bytes.split_at_checked(6 + length)?;
    let (said, behind) = behind.split_first_chunk::<4>()?;
    let is_soft = match whole[5] {
        0 => false,
        1 => true,
        _ => return None,
    };
    if u32::from_le_bytes(*said) != crc(whole) {
        return None;
    }
    let text = &whole[6..];
    let target = match whole[4] {
        0 if text.is_empty() => Target::All,
        1 => Target::Host(text.to_vec()),
        2 => Target::Prefix(text.to_vec()),
        3 => Target::Url(text.to_vec()),
        4 => Target::Tag { tag: text.to_vec(), host: None },
        5 => {
            let (length, both) = text.split_first_chunk::<4>()?;
            let (tag, host) = both.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            Target::Tag { tag: tag.to_vec(), host: Some(host.to_vec()) }
        }
        6 if text.len() == 16 => {
            let mut cursor = Cursor(text);
            Target::Source(SourceMark { connection: cursor.u64(), position: cursor.u64() })
        }
        _ => return None,
    };
    Some((Change { target, is_soft }, behind))
}

fn crc(bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finalize()
}

/// Reads numbers from available bytes; missing ones are 0.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let taken = self.take(N);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    fn u8(&mut self) -> u8 {
        let [byte] = self.number();
        byte
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.number())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.number())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.number())
    }
}

/// Reads records from their source, with their checksum.
pub(super) struct Summed<R> {
    pub(super) from: R,
    hasher: Hasher,
}

impl<R: Read> Summed<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, hasher: Hasher::new() }
    }

    /// Reads the next bytes, all of them.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Flaw> {
        self.from.read_exact(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Reads `bytes` bytes; memory is allocated for them, so the number has to be bounded.
    pub(super) fn text(&mut self, bytes: u32) -> Result<Vec<u8>, Flaw> {
        let mut text = vec![0; bytes as usize];
        self.fill(&mut text)?;
        Ok(text)
    }

    /// Whether the next bytes are the checksum of those read since the last one.
    pub(super) fn seal(&mut self) -> Result<bool, Flaw> {
        let mut said = [0; 4];
        self.from.read_exact(&mut said)?;
        let summed = std::mem::take(&mut self.hasher).finalize();
        Ok(u32::from_le_bytes(said) == summed)
    }
}
