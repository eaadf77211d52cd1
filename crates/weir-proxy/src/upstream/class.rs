//! Learns which requests of a server are alike and may share a connection. Pure.
//!
//! A class is a method and the shape of a target ([`ClassName::of`]): `/user/17` and `/user/18` are
//! one class. The engine keeps one [`Classes`] for each server and worker and reports every
//! complete answer to it. A class is *even* while other requests do not overtake its requests.
//! Overtaking is counted in answers rather than in time, because on a busy server the response time
//! also measures the queue. While a request is at the front of its connection, a server that works
//! in order answers about as many other requests as it had in progress at the start ([`Mark`]). A
//! request that sees far more answers than that was overtaken. Requests of a class that is unknown
//! or was overtaken recently get a connection for themselves
//! ([`RequestFlags::APART`](crate::request::pending_request::RequestFlags::APART)). The same
//! applies to a class that takes far longer than the quickest class, because at low traffic nothing
//! overtakes it, and to a class with long answers. Bound: [`CLASSES_MAX`] classes of 20 bytes;
//! rarely used classes are replaced. The shapes of the first [`SHAPES_MAX`] are kept for status.
//! docs/pipelining.md#kinds-of-requests

use std::hash::{DefaultHasher, Hasher};

/// Most classes that are kept for a server; a power of two.
const CLASSES_MAX: usize = 512;
/// Initial size of the table; a power of two.
const CLASSES_MIN: usize = 16;
/// Slots that a class may use.
const WAYS: usize = 4;
/// Most classes whose shape is kept for people.
const SHAPES_MAX: usize = 32;
/// Longest shape, characters; a longer one ends in `…`.
const SHAPE_CHARS_MAX: usize = 60;
/// Answers before a class counts as even.
const EVEN_ANSWERS: u32 = 32;
/// A request was overtaken when the other answers meanwhile exceed the requests in progress by this
/// factor. The factor grows with the requests in progress: 1 per [`IN_FLIGHT_PER_TURN`] of them, at
/// least 1.
const TURNS_MAX: u64 = 8;
const IN_FLIGHT_PER_TURN: u64 = 4;
/// Fewest other answers that count as overtaking.
const OVERTAKEN_MIN: u64 = 4;
/// Shortest time at the front that counts: [`OVERTAKEN_FACTOR`] times the usual time of the class,
/// between these two limits. On busy processors every request is delayed by a few milliseconds now
/// and then.
pub(crate) const OVERTAKEN_US: u64 = 2_000;
const OVERTAKEN_FACTOR: u64 = 8;
const OVERTAKEN_US_MAX: u64 = 50_000;
/// Answers for which a class remains uneven after an overtaken request; doubles each time up to
/// [`UNEVEN_ANSWERS_MAX`].
const UNEVEN_ANSWERS_MIN: u16 = 256;
const UNEVEN_ANSWERS_MAX: u16 = 8_192;
/// The doubling starts over after an even period this many times as long as the last uneven one.
const FORGIVEN_AFTER: u32 = 8;
/// A class that takes this many times as long as the quickest class is not alike.
const ALIKE_FACTOR: u32 = 4;
/// Classes that take less than this are alike in any case, microseconds.
const ALIKE_US: u32 = 1_000;
/// Requests behind a longer answer save nothing, and if the server closes its connection behind it,
/// they cut it off: data that the server has not read turns the close into a reset (RFC 1122
/// §4.2.2.13).
const SHARED_BYTES_MAX: u64 = 64 * 1024;
/// Shorter answers in a row after which a class with long ones may share connections again.
const LONG_ANSWERS: u8 = 64;
/// Answers between two searches for the quickest class.
const REVIEW_ANSWERS: u32 = 256;
/// Answers of a class in that time that make it a candidate.
const REVIEWED_MIN: u8 = 8;

/// Path segments that are used.
const SEGMENTS: usize = 4;
/// A longer segment looks generated.
const SEGMENT_BYTES_MAX: usize = 24;
/// A segment of mixed characters looks generated from this length on.
const MIXED_BYTES_MIN: usize = 8;
/// Longest file extension.
const ENDING_BYTES_MAX: usize = 5;

/// The hash of a class; 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassName(u32);

impl ClassName {
    /// The class of a method and a target in origin-form. Numbers, identifiers and long segments
    /// each count as one symbol. A file extension such as `.css` is kept, and so is the presence of
    /// a query.
    pub(crate) fn of(method: &[u8], target: &[u8]) -> ClassName {
        let mut hash = DefaultHasher::new();
        hash.write(method);
        let (path, query) = match target.iter().position(|byte| *byte == b'?') {
            Some(at) => (&target[..at], true),
            None => (target, false),
        };
        let mut segments = path.split(|byte| *byte == b'/').skip(1);
        for segment in segments.by_ref().take(SEGMENTS) {
            hash.write_u8(b'/');
            add_segment(&mut hash, segment);
        }
        hash.write_u8(if segments.next().is_some() { 2 } else { 1 });
        hash.write_u8(u8::from(query));
        ClassName((hash.finish() as u32).max(1))
    }
}

/// The class of a method and a target in origin-form as people read it: `GET /user/*`.
fn shape(method: &[u8], target: &[u8]) -> String {
    let (path, query) = match target.iter().position(|byte| *byte == b'?') {
        Some(at) => (&target[..at], "?"),
        None => (target, ""),
    };
    let mut segments = path.split(|byte| *byte == b'/').skip(1);
    let mut out = String::from_utf8_lossy(method).into_owned() + " ";
    for segment in segments.by_ref().take(SEGMENTS) {
        let (name, ending) = split_ending(segment);
        out.push('/');
        out += &if is_made_up(name) { "*".into() } else { String::from_utf8_lossy(name) };
        out += &String::from_utf8_lossy(ending);
    }
    out += if segments.next().is_some() { "/…" } else { "" };
    out += query;
    if out.chars().count() > SHAPE_CHARS_MAX {
        out = out.chars().take(SHAPE_CHARS_MAX - 1).chain(['…']).collect();
    }
    out
}

/// The name of a segment, and a file extension if it has one.
fn split_ending(segment: &[u8]) -> (&[u8], &[u8]) {
    let dot = segment.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0);
    let (name, ending) = segment.split_at(dot.unwrap_or(segment.len()));
    if ending.len() <= ENDING_BYTES_MAX + 1 { (name, ending) } else { (segment, b"") }
}

/// Adds a segment, or one symbol for a generated segment.
fn add_segment(hash: &mut DefaultHasher, segment: &[u8]) {
    let (name, ending) = split_ending(segment);
    match is_made_up(name) {
        true => hash.write_u8(3),
        false => hash.write(name),
    }
    hash.write(ending);
}

/// Whether no segment of a target in origin-form looks generated. A generated segment may belong to
/// one client or one use.
pub(crate) fn is_plain(target: &[u8]) -> bool {
    let path = target.split(|byte| *byte == b'?').next().unwrap_or(target);
    !path.split(|byte| *byte == b'/').any(|segment| is_made_up(segment) || is_mixed(segment))
}

/// Whether a segment mixes upper and lower case, or letters and digits.
fn is_mixed(segment: &[u8]) -> bool {
    let has = |is: fn(&u8) -> bool| segment.iter().any(is);
    let (upper, lower) = (has(u8::is_ascii_uppercase), has(u8::is_ascii_lowercase));
    segment.len() >= MIXED_BYTES_MIN
        && (upper && lower || (upper || lower) && has(u8::is_ascii_digit))
}

/// Whether a segment is a number, an identifier, or long.
fn is_made_up(name: &[u8]) -> bool {
    let digits = name.iter().filter(|byte| byte.is_ascii_digit()).count();
    let hex = name.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    name.len() > SEGMENT_BYTES_MAX || digits > 0 && (digits == name.len() || hex && name.len() >= 8)
}

/// A snapshot of a server, taken when a request reaches the front of its connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    /// Answers so far.
    pub answers: u64,
    /// Requests in progress.
    pub in_flight: u32,
}

/// A complete answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered {
    /// The snapshot when the request reached the front.
    pub since: Mark,
    /// Answers of the server so far, including this answer.
    pub answers: u64,
    /// Time at the front, microseconds.
    pub elapsed_us: u64,
    /// The connection was empty when the request was sent.
    pub first: bool,
    /// Length of its body.
    pub bytes: u64,
}

impl Answered {
    /// Other answers meanwhile.
    fn others(&self) -> u64 {
        self.answers.saturating_sub(self.since.answers + 1)
    }

    /// Whether other requests overtook its request. `usual_us`: the usual time of its class.
    fn is_overtaken(&self, usual_us: u32) -> bool {
        let (others, in_flight) = (self.others(), u64::from(self.since.in_flight));
        let turns = (in_flight / IN_FLIGHT_PER_TURN).clamp(1, TURNS_MAX);
        let long_us =
            (OVERTAKEN_FACTOR * u64::from(usual_us)).clamp(OVERTAKEN_US, OVERTAKEN_US_MAX);
        others >= OVERTAKEN_MIN && others > turns * (in_flight + 1) && self.elapsed_us >= long_us
    }
}

/// One class.
#[derive(Debug, Clone, Copy, Default)]
struct Class {
    name: u32,
    /// Answers since the last overtaken request.
    clean: u32,
    /// First quartile of the time of requests that found an empty connection, microseconds; 0:
    /// unknown.
    time_us: u32,
    /// Remaining answers of the uneven period.
    uneven: u16,
    /// Length of the last uneven period.
    uneven_last: u16,
    /// Recent use, which decides what is replaced.
    used: u8,
    /// Answers since the last review.
    reviewed: u8,
    /// Remaining answers after a long one.
    long: u8,
}

impl Class {
    /// Nothing is known of it.
    fn is_new(&self) -> bool {
        self.clean == 0 && self.uneven_last == 0
    }

    fn is_even(&self) -> bool {
        self.uneven == 0 && self.long == 0 && self.clean >= EVEN_ANSWERS
    }

    fn on_answer(&mut self, answered: &Answered) {
        self.used = self.used.saturating_add(1);
        self.reviewed = self.reviewed.saturating_add(1);
        self.long = if answered.bytes > SHARED_BYTES_MAX {
            LONG_ANSWERS
        } else {
            self.long.saturating_sub(1)
        };
        if answered.first {
            let us = u32::try_from(answered.elapsed_us).unwrap_or(u32::MAX).max(1);
            let step = (self.time_us / 16).max(1);
            self.time_us = match () {
                () if self.time_us == 0 => us,
                () if us > self.time_us => self.time_us.saturating_add(step).min(us),
                () => self.time_us.saturating_sub(3 * step).max(us),
            };
        }
        if answered.is_overtaken(self.time_us) {
            let forgiven = self.clean >= FORGIVEN_AFTER * u32::from(self.uneven_last);
            let last = if forgiven { 0 } else { self.uneven_last };
            self.uneven_last = last.saturating_mul(2).clamp(UNEVEN_ANSWERS_MIN, UNEVEN_ANSWERS_MAX);
            (self.uneven, self.clean) = (self.uneven_last, 0);
        } else {
            self.uneven = self.uneven.saturating_sub(1);
            self.clean = self.clean.saturating_add(1);
        }
    }
}

/// What is known of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassReport {
    /// Its method and the shape of its targets, up to 60 characters.
    pub shape: String,
    /// First quartile of the time of its answers, microseconds; 0: not known.
    pub time_us: u32,
    /// Whether its requests may share connections.
    pub sharing: Sharing,
}

/// Whether requests of a class may share connections, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Others overtook one of its requests recently: not before this many more answers.
    Overtaken {
        /// Up to 8,192.
        answers: u32,
    },
    /// Not known yet: after this many more answers.
    New {
        /// Up to 32.
        answers: u32,
    },
    /// It takes far longer than the quickest class.
    Slower,
    /// One of its recent answers had more than 64 KiB.
    Long,
    /// They may.
    Alike,
}

impl Sharing {
    /// For status.
    pub fn word(self) -> &'static str {
        match self {
            Sharing::Overtaken { .. } => "overtaken",
            Sharing::New { .. } => "new",
            Sharing::Slower => "slower",
            Sharing::Long => "long",
            Sharing::Alike => "alike",
        }
    }

    /// Answers that are missing; 0: it does not depend on those.
    pub fn answers(self) -> u32 {
        match self {
            Sharing::Overtaken { answers } | Sharing::New { answers } => answers,
            Sharing::Slower | Sharing::Long | Sharing::Alike => 0,
        }
    }
}

/// The classes of one server. See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Classes {
    /// Empty before the first answer; then its length is a power of two.
    table: Box<[Class]>,
    /// Longest time of a class that is alike, microseconds; 0: unknown.
    alike_us: u32,
    /// Answers until the next review.
    left: u32,
    /// How classes look to people, those first that came first.
    shapes: Vec<(ClassName, Box<str>)>,
}

impl Classes {
    /// Whether requests of this class may share a connection with other alike requests.
    #[inline]
    pub(crate) fn is_alike(&self, name: ClassName) -> bool {
        self.find(name).is_some_and(|class| {
            class.is_even() && (self.alike_us == 0 || class.time_us <= self.alike_us)
        })
    }

    /// Learns from a complete answer. Whether the class is new, and [`Classes::on_new`] is to hear
    /// of its request.
    pub(crate) fn on_answer(&mut self, name: ClassName, answered: &Answered) -> bool {
        if name == ClassName::default() {
            return false;
        }
        let class = self.place_for(name);
        let is_new = class.as_ref().is_some_and(|class| class.is_new());
        if let Some(class) = class {
            class.on_answer(answered);
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.review();
        }
        is_new && self.shapes.len() < SHAPES_MAX
    }

    /// Keeps the shape of a class for people. `head`: a request of it, as it was sent.
    #[cold]
    pub(crate) fn on_new(&mut self, name: ClassName, head: &[u8]) {
        let mut words = head.split(|byte| *byte == b' ');
        if let (Some(method), Some(target)) = (words.next(), words.next())
            && !self.shapes.iter().any(|(known, _)| *known == name)
        {
            self.shapes.push((name, shape(method, target).into()));
        }
    }

    /// What is known of the classes whose shapes are known, those that were used most of late
    /// first.
    pub(crate) fn report(&self) -> Vec<ClassReport> {
        let known =
            self.shapes.iter().filter_map(|(name, shape)| Some((self.find(*name)?, &**shape)));
        let mut known: Vec<(&Class, &str)> = known.collect();
        known.sort_by_key(|(class, _)| std::cmp::Reverse(class.used));
        let report = |(class, shape): (&Class, &str)| ClassReport {
            shape: shape.to_owned(),
            time_us: class.time_us,
            sharing: match () {
                () if class.uneven > 0 => Sharing::Overtaken { answers: class.uneven.into() },
                () if class.long > 0 => Sharing::Long,
                () if !class.is_even() => {
                    Sharing::New { answers: EVEN_ANSWERS.saturating_sub(class.clean) }
                }
                () if self.alike_us > 0 && class.time_us > self.alike_us => Sharing::Slower,
                () => Sharing::Alike,
            },
        };
        known.into_iter().map(report).collect()
    }

    fn review(&mut self) {
        self.left = REVIEW_ANSWERS;
        let known =
            self.table.iter().filter(|class| class.reviewed >= REVIEWED_MIN && class.time_us > 0);
        let quickest_us = known.map(|class| class.time_us).min();
        self.alike_us = quickest_us.map_or(0, |us| us.saturating_mul(ALIKE_FACTOR).max(ALIKE_US));
        self.table.iter_mut().for_each(|class| class.reviewed = 0);
    }

    #[inline]
    fn find(&self, name: ClassName) -> Option<&Class> {
        self.ways(name).map(|at| &self.table[at]).find(|class| class.name == name.0 && name.0 != 0)
    }

    /// The slots that a class may use.
    #[inline]
    fn ways(&self, name: ClassName) -> std::ops::Range<usize> {
        if self.table.is_empty() {
            return 0..0;
        }
        let at = name.0 as usize & (self.table.len() - 1) & !(WAYS - 1);
        at..at + WAYS
    }

    /// The slot of a class; it may replace a rarely used class. None: all classes there are in use.
    fn place_for(&mut self, name: ClassName) -> Option<&mut Class> {
        if self.table.is_empty() {
            self.table = vec![Class::default(); CLASSES_MIN].into();
        }
        loop {
            let ways = self.ways(name);
            let mut found = ways.clone().find(|at| self.table[*at].name == name.0);
            found = found.or_else(|| ways.clone().find(|at| self.table[*at].name == 0));
            if let Some(at) = found {
                self.table[at].name = name.0;
                return self.table.get_mut(at);
            }
            if self.table.len() < CLASSES_MAX {
                self.grow();
                continue;
            }
            let rarest = ways.clone().min_by_key(|at| self.table[*at].used)?;
            if self.table[rarest].used == 0 {
                self.table[rarest] = Class { name: name.0, ..Class::default() };
                return self.table.get_mut(rarest);
            }
            self.table[ways].iter_mut().for_each(|class| class.used -= u8::from(class.used > 0));
            return None;
        }
    }

    /// Doubles the table.
    fn grow(&mut self) {
        let more = vec![Class::default(); self.table.len() * 2].into();
        let old = std::mem::replace(&mut self.table, more);
        for class in old.into_iter().filter(|class| class.name != 0) {
            let free = self.ways(ClassName(class.name)).find(|at| self.table[*at].name == 0);
            // Each old set splits into two, so there is always room.
            if let Some(at) = free {
                self.table[at] = class;
            }
        }
    }
}

#[cfg(test)]
mod tests;
