//! Requests that kill: which requests were in flight when servers died, and which of them are not
//! sent any more.
//!
//! The engine keeps one [`Suspects`] a worker. It reports connections that broke with requests in
//! flight, and responses while anything is remembered at all; while nothing is, the request path
//! pays one branch. Workers tell each other of keys with two deaths and more. Bounds: [`KEYS_MAX`]
//! keys of [`TEXT_BYTES_MAX`] bytes and a hash, the oldest is dropped first. docs/retries.md,
//! docs/hostile.md E19.
//!
//! ```text
//!             3 deaths               a death alone
//!   Noted ──────────────▶ Suspect ─────────────────────▶ Refused (60 s)
//!     │                    │    ▲      time is over        │
//!     │                    │    └──────────────────────────┘
//!     └── an answer ───────┴── an answer ──▶ forgotten
//! ```
//! A key is also forgotten 60 s (Noted) or 10 min after its last death.
//!
//! A false accusation is worse than a late one, so most rules are for the innocent:
//! - A key is method, target and Host, and a hash of everything else that makes up the request: its
//!   other fields, and its body if that was here from the start. A server may close because of one
//!   client's cookie, and that is no reason to refuse the URL to others. Parts are left out that
//!   differ from client to client, or each time, although the request is the same ([`Varying`]):
//!   otherwise each client with the same killer would be a new one. One complete response to a key
//!   anywhere clears it. A killer is never answered.
//! - A killer may be sent with many different heads (cookies of browsers). So while one with the
//!   same method, target and Host was refused, all others are suspect: alone they endanger no other
//!   request, and the first death there refuses them as well. One complete response to any of them
//!   ends that: then the difference is what kills.
//! - All connections that a server loses within [`CRASH_US`] are one crash, and a request that was
//!   sent before it is accused of it once, however often it was sent.
//! - A crash only counts if the server had lived: it has answered since its last one, or the
//!   connection had stood. A server that is down behind something that accepts and closes accuses
//!   no request.
//! - Only a death in quarantine leads to a refusal
//!   ([`crate::request::pending_request::RequestFlags::QUARANTINED`]): alone on its connection, the
//!   only such request of its upstream, and on a connection that had been idle. Others were in
//!   flight at most by the chance of their arrival, and a server that resets connections after
//!   responses (keep-alive limits, docs/hostile.md E27) kills the requests that happen to be behind
//!   them.
//! - A suspect is held back for [`HOLD_US`] after each death. If servers die meanwhile, or died
//!   within [`NOISE_US`], without it in flight and without another suspect in quarantine, requests
//!   are not the cause, and its own death is no evidence: when servers are killed one after
//!   another, some request is in flight each time.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Bound;

use crate::plan::{ClientPlan, UpstreamPlan};

#[cfg(test)]
mod tests;

/// Deaths that make a key suspect.
pub(crate) const DEATHS_MIN: u8 = 3;
/// How long a suspect is refused after a death alone.
pub(crate) const REFUSED_US: u64 = 60_000_000;
/// Keys remembered.
pub(crate) const KEYS_MAX: usize = 256;
/// Bytes that a key keeps of the first two lines of a request, for status. The hash is of all of
/// them.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;
/// The parts of a key in front of these lines, and behind them.
const UPSTREAM_BYTES: usize = 2;
const HASH_BYTES: usize = 8;
/// For fields that are left out the size counts, in steps of this many bytes: servers die of a long
/// head, whatever it contains.
const VARYING_STEP_BYTES: usize = 4096;
/// Fields that identify a client, the way that a request came, or the request itself, not its
/// effect on a server.
const VARYING: &[&str] = &[
    "cdn-loop",
    "client-cert",
    "client-cert-chain",
    "forwarded",
    "traceparent",
    "tracestate",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "x-request-id",
];
/// Losses of one server within this time are one crash.
pub(crate) const CRASH_US: u64 = 100_000;
/// How long a suspect is held back after a death, to see whether servers die without it.
pub(crate) const HOLD_US: u64 = 100_000;
/// How long a death that had no suspect in quarantine makes the deaths of suspects doubtful.
const NOISE_US: u64 = 1_000_000;
/// Crashes remembered, and those that a key remembers to have been in.
const CRASHES_MAX: usize = 32;
const CRASHES_OF_KEY_MAX: usize = 8;
/// Time after the last death until a key that is not suspect is forgotten.
const NOTED_US: u64 = 60_000_000;
/// The same for a suspect: it is in quarantine whenever it is requested, so this costs little.
const SUSPECT_US: u64 = 600_000_000;

/// What to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing special.
    Free,
    /// It enters quarantine.
    Suspect,
    /// It is not sent for this time.
    Refused {
        /// Microseconds.
        left_us: u64,
    },
}

/// Losses of one server that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crash {
    id: u64,
    started_us: u64,
    /// The server had lived before this loss.
    lived: bool,
}

/// For status: one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// Index of the upstream in the plan.
    pub upstream: u16,
    /// Method of the request.
    pub method: String,
    /// Value of its Host.
    pub host: String,
    /// Its path, without the query.
    pub path: String,
    /// Crashes during which it was in flight.
    pub deaths: u8,
    /// `noted`, `suspect` or `refused`.
    pub state: &'static str,
    /// Until the end of the refusal, microseconds; 0 without one.
    pub left_us: u64,
}

/// What is known of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    deaths: u8,
    /// The last crashes that it is accused of; 0: none.
    crashes: [u64; CRASHES_OF_KEY_MAX],
    died_us: u64,
    /// When another worker last reported a death.
    told_us: Option<u64>,
    refusal: Refusal,
}

/// Whether and how a key is refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Refusal {
    /// 0: it never was.
    until_us: u64,
    /// A request that differs from it only in its hash was answered.
    apart: bool,
}

impl Record {
    fn new(died_us: u64) -> Record {
        Record {
            deaths: 0,
            crashes: [0; CRASHES_OF_KEY_MAX],
            died_us,
            told_us: None,
            refusal: Refusal::default(),
        }
    }

    fn was_in(&self, crash: u64) -> bool {
        self.crashes.contains(&crash)
    }

    fn add(&mut self, crash: u64) {
        self.crashes.rotate_right(1);
        self.crashes[0] = crash;
    }

    fn verdict(&self, now_us: u64) -> Verdict {
        match self.refusal.until_us.saturating_sub(now_us) {
            0 if self.deaths >= DEATHS_MIN => Verdict::Suspect,
            0 => Verdict::Free,
            left_us => Verdict::Refused { left_us },
        }
    }

    fn is_over(&self, now_us: u64) -> bool {
        let patience_us = if self.deaths >= DEATHS_MIN { SUSPECT_US } else { NOTED_US };
        now_us >= self.died_us.max(self.refusal.until_us).saturating_add(patience_us)
    }
}

/// One server's last crash.
#[derive(Debug, Clone, Copy, Default)]
struct Vital {
    crash: u64,
    started_us: u64,
    answered: bool,
}

/// A crash among the last ones.
#[derive(Debug, Clone, Copy)]
struct Past {
    id: u64,
    started_us: u64,
    /// A suspect was on trial then.
    explained: bool,
}

/// What one worker remembers. Empty nearly always.
#[derive(Debug, Clone, Default)]
pub(crate) struct Suspects {
    keys: BTreeMap<Box<[u8]>, Record>,
    vitals: Vec<Vital>,
    crashes: u64,
    past: VecDeque<Past>,
}

/// The parts of a request that differ each time, or from client to client, though the request is
/// the same: [`VARYING`], and the fields that weir adds by configuration.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Varying<'a> {
    echo: Option<&'a str>,
    request_id: Option<&'a str>,
}

impl<'a> Varying<'a> {
    /// In requests to an upstream.
    pub(crate) fn of(client: &'a ClientPlan, upstream: &'a UpstreamPlan) -> Varying<'a> {
        Varying { echo: upstream.echo.as_deref(), request_id: client.request_id.as_deref() }
    }

    /// Whether a line of a head is one of those fields.
    fn has(&self, line: &[u8]) -> bool {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        let mut names = VARYING.iter().copied().chain(self.echo).chain(self.request_id);
        names.any(|varying| name.eq_ignore_ascii_case(varying.as_bytes()))
    }
}

/// Returns what is common to all keys that differ only in their hash: the upstream and the first
/// two lines as they are sent, method, target and Host. None: it is no request.
pub(crate) fn family(upstream: u16, request: &[u8]) -> Option<Vec<u8>> {
    let within = &request[..request.len().min(TEXT_BYTES_MAX)];
    let mut ends =
        within.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let end = ends.nth(1).or((within.len() == TEXT_BYTES_MAX).then_some(TEXT_BYTES_MAX))?;
    Some([&upstream.to_be_bytes(), &within[..end]].concat())
}

/// Returns the name of a request as it is sent. `whole`: its body was here from the start, if it
/// has one; otherwise the same request may have more or less of it each time, and the name leaves
/// it out. None: it is no request.
pub(crate) fn key(
    upstream: u16,
    request: &[u8],
    whole: bool,
    varying: Varying<'_>,
) -> Option<Vec<u8>> {
    let mut key = family(upstream, request)?;
    let head = memchr::memmem::find(request, b"\r\n\r\n").map_or(request.len(), |at| at + 4);
    let (head, body) = request.split_at(head);
    let mut hasher = DefaultHasher::new();
    let mut left_out = 0;
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        if varying.has(line) {
            left_out += line.len();
        } else {
            hasher.write(line);
        }
    }
    hasher.write_usize(left_out / VARYING_STEP_BYTES);
    if whole {
        hasher.write(body);
    }
    key.extend_from_slice(&hasher.finish().to_be_bytes());
    Some(key)
}

/// The family of a key.
fn family_of(key: &[u8]) -> &[u8] {
    &key[..key.len() - HASH_BYTES]
}

impl Suspects {
    /// Starts without anything remembered. `servers` of all upstreams together.
    pub(crate) fn new(servers: usize) -> Suspects {
        Suspects { vitals: vec![Vital::default(); servers], ..Suspects::default() }
    }

    /// Whether anything is remembered of a family ([`family`]).
    pub(crate) fn knows(&self, family: &[u8]) -> bool {
        self.family(family).next().is_some()
    }

    /// The keys of a family.
    fn family<'a>(&'a self, family: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a Record)> {
        let known = self.keys.range::<[u8], _>((Bound::Included(family), Bound::Unbounded));
        let known = known
            .map(|(key, record)| (&key[..], record))
            .take_while(move |(key, _)| key.starts_with(family));
        known.filter(move |(key, _)| family_of(key) == family)
    }

    /// Whether one that differs from it only in its hash was refused, and none such was answered
    /// since.
    fn is_like_killer(&self, now_us: u64, key: &[u8]) -> bool {
        let is_killer = |record: &Record| {
            record.refusal.until_us > 0 && !record.refusal.apart && !record.is_over(now_us)
        };
        self.family(family_of(key)).any(|(_, record)| is_killer(record))
    }

    /// Whether there is anything to look up.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Another server replaces this server.
    pub(crate) fn forget_server(&mut self, server: usize) {
        self.vitals[server] = Vital::default();
    }

    /// A server has answered something.
    #[inline]
    pub(crate) fn on_life(&mut self, server: usize) {
        self.vitals[server].answered = true;
    }

    /// A connection to a server broke with requests in flight. `stood`: it had been up for
    /// [`CRASH_US`] before the oldest was sent. None: the server has not lived since its last
    /// crash, so this says nothing about requests.
    pub(crate) fn on_loss(&mut self, now_us: u64, server: usize, stood: bool) -> Option<Crash> {
        let vital = &mut self.vitals[server];
        let lived = stood || vital.answered;
        let same = vital.crash > 0 && now_us < vital.started_us + CRASH_US;
        if !same && !lived {
            return None;
        }
        vital.answered = false;
        if !same {
            self.crashes += 1;
            (vital.crash, vital.started_us) = (self.crashes, now_us);
            // Another worker's request may have caused it, and its mail was faster.
            let told = |record: &&mut Record| {
                record.told_us.is_some_and(|told_us| now_us < told_us + CRASH_US)
            };
            self.keys.values_mut().filter(told).for_each(|record| record.add(self.crashes));
            self.past.truncate(CRASHES_MAX - 1);
            self.past.push_front(Past { id: self.crashes, started_us: now_us, explained: false });
        }
        Some(Crash { id: vital.crash, started_us: vital.started_us, lived })
    }

    /// A request was in flight on a connection that broke. `sent_us` is when it was sent, `alone`
    /// whether in quarantine. Returns what is to be done with it now, and whether the other workers
    /// should know.
    pub(crate) fn on_death(
        &mut self,
        now_us: u64,
        crash: Crash,
        sent_us: u64,
        alone: bool,
        key: &[u8],
    ) -> (Verdict, bool) {
        self.make_room(now_us, key);
        let mut record = self.keys.get(key).copied().unwrap_or(Record::new(now_us));
        let again = sent_us > crash.started_us && crash.lived;
        let known = record.was_in(crash.id) && !again;
        if !known {
            if self.is_like_killer(now_us, key) {
                record.deaths = record.deaths.max(DEATHS_MIN);
            }
            if alone && record.deaths >= DEATHS_MIN {
                if !self.is_noisy(now_us, crash.id, &record) {
                    record.refusal.until_us = now_us + REFUSED_US;
                }
                self.past
                    .iter_mut()
                    .filter(|past| past.id == crash.id)
                    .for_each(|past| past.explained = true);
            }
            record.deaths = record.deaths.saturating_add(1);
            record.died_us = now_us;
            record.add(crash.id);
        }
        self.keys.insert(key.into(), record);
        (record.verdict(now_us), !known && record.deaths > 1)
    }

    /// Whether servers die without this request as well.
    fn is_noisy(&self, now_us: u64, crash: u64, record: &Record) -> bool {
        let mut recent = self.past.iter().take_while(|past| now_us < past.started_us + NOISE_US);
        recent.any(|past| past.id != crash && !past.explained && !record.was_in(past.id))
    }

    /// Returns until when a suspect is held back; not at all if it was refused, because that
    /// refusal may be sent at once.
    pub(crate) fn held_until_us(&self, key: &[u8]) -> u64 {
        let held = |record: &&Record| {
            record.deaths >= DEATHS_MIN && record.refusal.until_us <= record.died_us
        };
        self.keys.get(key).filter(held).map_or(0, |record| record.died_us + HOLD_US)
    }

    /// A request was answered completely. True when the other workers should know.
    pub(crate) fn on_answer(&mut self, key: &[u8]) -> bool {
        let family = family_of(key);
        let known = self.keys.range_mut::<[u8], _>((Bound::Included(family), Bound::Unbounded));
        let known = known.take_while(|(key, _)| key.starts_with(family));
        known
            .filter(|(key, _)| family_of(key) == family)
            .for_each(|(_, record)| record.refusal.apart = true);
        self.keys.remove(key).is_some_and(|record| record.deaths > 1)
    }

    /// Returns what to do with a request.
    pub(crate) fn verdict(&self, now_us: u64, key: &[u8]) -> Verdict {
        let record = self.keys.get(key).filter(|record| !record.is_over(now_us));
        match record.map_or(Verdict::Free, |record| record.verdict(now_us)) {
            Verdict::Free if self.is_like_killer(now_us, key) => Verdict::Suspect,
            verdict => verdict,
        }
    }

    /// Returns what another worker should know of a key: deaths, and the end of its refusal.
    pub(crate) fn opinion(&self, key: &[u8]) -> Option<(u8, u64)> {
        self.keys.get(key).map(|record| (record.deaths, record.refusal.until_us))
    }

    /// Another worker's opinion. Deaths are not added up: both may have seen the same crash.
    pub(crate) fn learn(&mut self, now_us: u64, key: &[u8], deaths: u8, refused_until_us: u64) {
        self.make_room(now_us, key);
        let record = self.keys.entry(key.into()).or_insert(Record::new(now_us));
        record.deaths = record.deaths.max(deaths);
        record.refusal.until_us = record.refusal.until_us.max(refused_until_us);
        (record.died_us, record.told_us) = (now_us, Some(now_us));
        // A key that died at the other worker died here as well.
        let same = self.past.iter().take_while(|past| now_us < past.started_us + CRASH_US);
        same.for_each(|past| record.add(past.id));
    }

    /// Forgets entries that are over.
    pub(crate) fn sweep(&mut self, now_us: u64) {
        self.keys.retain(|_, record| !record.is_over(now_us));
    }

    /// Forgets all accusations.
    pub(crate) fn forgive(&mut self) {
        self.keys.clear();
    }

    /// For status, in the order of upstream, method and target.
    pub(crate) fn list(&self, now_us: u64) -> impl Iterator<Item = Suspect> {
        self.keys.iter().filter(move |(_, record)| !record.is_over(now_us)).map(
            move |(key, record)| {
                let (state, left_us) = match record.verdict(now_us) {
                    Verdict::Free => ("noted", 0),
                    Verdict::Suspect => ("suspect", 0),
                    Verdict::Refused { left_us } => ("refused", left_us),
                };
                let (upstream, text) = family_of(key).split_at(UPSTREAM_BYTES);
                let text = String::from_utf8_lossy(text);
                let mut words = text.split_ascii_whitespace();
                let mut word = || words.next().unwrap_or_default().to_owned();
                let (method, target, _version, _name, host) =
                    (word(), word(), word(), word(), word());
                let path = target.split('?').next().unwrap_or_default().to_owned();
                let upstream = u16::from_be_bytes([upstream[0], upstream[1]]);
                Suspect { upstream, method, host, path, deaths: record.deaths, state, left_us }
            },
        )
    }

    /// Among the least suspect keys, the one with the oldest last death makes room.
    fn make_room(&mut self, now_us: u64, key: &[u8]) {
        if self.keys.len() < KEYS_MAX || self.keys.contains_key(key) {
            return;
        }
        self.sweep(now_us);
        let rank = |record: &Record| (record.deaths >= DEATHS_MIN, record.died_us);
        if self.keys.len() >= KEYS_MAX
            && let Some(oldest) =
                self.keys.iter().min_by_key(|(_, record)| rank(record)).map(|(key, _)| key.clone())
        {
            self.keys.remove(&oldest);
        }
    }
}
