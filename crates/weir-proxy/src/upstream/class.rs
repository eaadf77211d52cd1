//! Which requests of a server are alike: of those one may stand behind another. Pure.
//!
//! Requests are told apart by method and by the shape of their target ([`ClassName::of`]): `/user/17` and `/user/18` are one class. The engine keeps
//! one [`Classes`] a server and worker, and tells it of each complete answer. A class is *even* when its requests are not overtaken by
//! others. That is counted in answers, not in time, because the time of an answer measures the queue of a busy server as much as the
//! request: while a request is the next one of its connection, a server that works in order answers about as many others as it had to work on by then
//! ([`Mark`]). What takes far longer than that was overtaken. A class that is not known, or that was overtaken lately,
//! rides alone ([`RequestFlags::APART`](crate::request::pending_request::RequestFlags::APART)); so does one that
//! usually takes far longer than the quickest, which at little traffic nobody is there to overtake. Bound: [`CLASSES_MAX`] classes of 20
//! bytes; those that are asked for more rarely give way. docs/pipelining.md#what-may-follow-what

/// Classes of a server that are known at most; a power of two.
const CLASSES_MAX: usize = 512;
/// Places for them at first; a power of two.
const CLASSES_MIN: usize = 16;
/// Places at which a class may stand.
const WAYS: usize = 4;
/// Answers that make a class even.
const EVEN_ANSWERS: u32 = 32;
/// A request during which others were answered so many times as often as its server had requests to work on was overtaken: from 1 with few of
/// them, where there is a processor for each, up to this with [`IN_FLIGHT_PER_TURN`] times as many...
const TURNS_MAX: u64 = 8;
const IN_FLIGHT_PER_TURN: u64 = 4;
/// ...if there were so many others...
const OVERTAKEN_MIN: u64 = 4;
/// ...and it took this long, and so many times as long as its class usually does, as far as that is not beyond [`OVERTAKEN_US_MAX`]: where
/// processors are busy, whoever waits for one is overtaken for a few milliseconds.
pub(crate) const OVERTAKEN_US: u64 = 2_000;
const OVERTAKEN_FACTOR: u64 = 8;
const OVERTAKEN_US_MAX: u64 = 50_000;
/// Answers for which a class is uneven after one was overtaken; doubled each time, as far as [`UNEVEN_ANSWERS_MAX`].
const UNEVEN_ANSWERS_MIN: u16 = 256;
const UNEVEN_ANSWERS_MAX: u16 = 8_192;
/// Even for so many times as long as it was uneven last, the doubling begins anew.
const FORGIVEN_AFTER: u32 = 8;
/// Classes whose requests take so many times as long as those of the quickest are not alike.
const ALIKE_FACTOR: u32 = 4;
/// Below this nobody minds.
const ALIKE_US: u32 = 1_000;
/// Answers after which it is looked at anew which class is the quickest.
const REVIEW_ANSWERS: u32 = 256;
/// And of how many of them a class has to have been.
const REVIEWED_MIN: u8 = 8;

/// Segments of a path that are looked at.
const SEGMENTS: usize = 4;
/// A segment longer than this is taken for a name that is made up.
const SEGMENT_BYTES_MAX: usize = 24;
/// A segment as long as this may be a key.
const MIXED_BYTES_MIN: usize = 8;
/// Bytes of an ending that may say of what kind a resource is.
const ENDING_BYTES_MAX: usize = 5;

/// What requests of one kind have in common; 0: nothing is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassName(u32);

impl ClassName {
    /// Of a method and a target in origin-form. Segments that are numbers, identifiers, or long, count as one symbol each, an ending such
    /// as `.css` by itself, and of a query that it is there.
    pub(crate) fn of(method: &[u8], target: &[u8]) -> ClassName {
        let mut hash = Hash::default();
        hash.add(method);
        let (path, query) = match target.iter().position(|byte| *byte == b'?') {
            Some(at) => (&target[..at], true),
            None => (target, false),
        };
        let mut segments = path.split(|byte| *byte == b'/').skip(1);
        for segment in segments.by_ref().take(SEGMENTS) {
            hash.byte(b'/');
            add_segment(&mut hash, segment);
        }
        hash.byte(if segments.next().is_some() { 2 } else { 1 });
        hash.byte(u8::from(query));
        ClassName(hash.finish().max(1))
    }
}

/// A segment, or what it is a kind of.
fn add_segment(hash: &mut Hash, segment: &[u8]) {
    let dot = segment.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0);
    let (name, ending) = segment.split_at(dot.unwrap_or(segment.len()));
    let is_ending = ending.len() <= ENDING_BYTES_MAX + 1;
    let name = if is_ending { name } else { segment };
    if is_made_up(name) {
        hash.byte(3)
    } else {
        hash.add(name)
    }
    if is_ending {
        hash.add(ending);
    }
}

/// Whether no segment of a target in origin-form looks made up: it may be meant for one use, or for one client.
pub(crate) fn is_plain(target: &[u8]) -> bool {
    let path = target.split(|byte| *byte == b'?').next().unwrap_or(target);
    !path.split(|byte| *byte == b'/').any(|segment| is_made_up(segment) || is_mixed(segment))
}

/// Whether a segment is written as hardly anybody writes: letters of both cases, or with digits among them.
fn is_mixed(segment: &[u8]) -> bool {
    let has = |is: fn(&u8) -> bool| segment.iter().any(is);
    let (upper, lower) = (has(u8::is_ascii_uppercase), has(u8::is_ascii_lowercase));
    segment.len() >= MIXED_BYTES_MIN && (upper && lower || (upper || lower) && has(u8::is_ascii_digit))
}

/// Whether a segment is a number, an identifier, or so long that hardly anybody wrote it.
fn is_made_up(name: &[u8]) -> bool {
    let digits = name.iter().filter(|byte| byte.is_ascii_digit()).count();
    let hex = name.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    name.len() > SEGMENT_BYTES_MAX || digits > 0 && (digits == name.len() || hex && name.len() >= 8)
}

/// FNV-1a, a word at the end. Whoever makes two targets share a class by that has only their own requests ride as the other's do.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }

    fn add(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.byte(*byte));
    }

    fn finish(self) -> u32 {
        (self.0 ^ self.0 >> 32) as u32
    }
}

/// How things stood at a server when a request became the next one of its connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    /// Answers of the server by then.
    pub answers: u64,
    /// Requests that it worked on.
    pub in_flight: u32,
}

/// How a request was answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered {
    /// How things stood when it was the next one of its connection.
    pub since: Mark,
    /// Answers of the server by now.
    pub answers: u64,
    /// How long it was the next one.
    pub elapsed_us: u64,
    /// Nothing was in front of it when it was sent.
    pub first: bool,
}

impl Answered {
    /// Others that were answered meanwhile.
    fn others(&self) -> u64 {
        self.answers.saturating_sub(self.since.answers + 1)
    }

    /// Whether the server had time for so many others that it has done things out of their order. `usual_us`: how long its kind takes.
    fn is_overtaken(&self, usual_us: u32) -> bool {
        let (others, in_flight) = (self.others(), u64::from(self.since.in_flight));
        let turns = (in_flight / IN_FLIGHT_PER_TURN).clamp(1, TURNS_MAX);
        let long_us = (OVERTAKEN_FACTOR * u64::from(usual_us)).clamp(OVERTAKEN_US, OVERTAKEN_US_MAX);
        others >= OVERTAKEN_MIN && others > turns * (in_flight + 1) && self.elapsed_us >= long_us
    }
}

/// One class.
#[derive(Debug, Clone, Copy, Default)]
struct Class {
    name: u32,
    /// Answers since one was overtaken, or all.
    clean: u32,
    /// How long three quarters of those for which nothing stood in front take at least; 0: nobody knows.
    time_us: u32,
    /// Answers for which it is uneven still.
    uneven: u16,
    /// For how many it was last.
    uneven_last: u16,
    /// How often it was asked for of late, to judge which one gives way.
    used: u8,
    /// Answers since the last review.
    reviewed: u8,
}

impl Class {
    fn is_even(&self) -> bool {
        self.uneven == 0 && self.clean >= EVEN_ANSWERS
    }

    fn on_answer(&mut self, answered: &Answered) {
        self.used = self.used.saturating_add(1);
        self.reviewed = self.reviewed.saturating_add(1);
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

/// What a server's classes have shown. See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Classes {
    /// Empty until a first answer; then a power of two.
    table: Box<[Class]>,
    /// What requests take that are alike, at most; 0: nobody knows.
    alike_us: u32,
    /// Answers until the next review.
    left: u32,
}

impl Classes {
    /// Whether a request of this class may share a connection with others of which that is true.
    #[inline]
    pub(crate) fn is_alike(&self, name: ClassName) -> bool {
        self.find(name).is_some_and(|class| class.is_even() && (self.alike_us == 0 || class.time_us <= self.alike_us))
    }

    /// A request of this class was answered.
    pub(crate) fn on_answer(&mut self, name: ClassName, answered: &Answered) {
        if name == ClassName::default() {
            return;
        }
        if let Some(class) = self.place_for(name) {
            class.on_answer(answered);
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.review();
        }
    }

    fn review(&mut self) {
        self.left = REVIEW_ANSWERS;
        let known = self.table.iter().filter(|class| class.reviewed >= REVIEWED_MIN && class.time_us > 0);
        let quickest_us = known.map(|class| class.time_us).min();
        self.alike_us = quickest_us.map_or(0, |us| us.saturating_mul(ALIKE_FACTOR).max(ALIKE_US));
        self.table.iter_mut().for_each(|class| class.reviewed = 0);
    }

    #[inline]
    fn find(&self, name: ClassName) -> Option<&Class> {
        self.ways(name).map(|at| &self.table[at]).find(|class| class.name == name.0 && name.0 != 0)
    }

    /// Where a class may stand.
    #[inline]
    fn ways(&self, name: ClassName) -> std::ops::Range<usize> {
        if self.table.is_empty() {
            return 0..0;
        }
        let at = name.0 as usize & (self.table.len() - 1) & !(WAYS - 1);
        at..at + WAYS
    }

    /// The place of a class, perhaps that of another one that is asked for more rarely. None: all others there are asked for more often.
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

    /// Twice as many places.
    fn grow(&mut self) {
        let more = vec![Class::default(); self.table.len() * 2].into();
        let old = std::mem::replace(&mut self.table, more);
        for class in old.into_iter().filter(|class| class.name != 0) {
            let free = self.ways(ClassName(class.name)).find(|at| self.table[*at].name == 0);
            // As many ways as before, for half as many.
            if let Some(at) = free {
                self.table[at] = class;
            }
        }
    }
}

#[cfg(test)]
mod tests;
