//! The outcome of every connection and of every request. Nothing is lumped together as "errors".
//!
//! Called by the threads of the generator, which count, and by everything that reports. Each kind
//! has one row here: its word in JSON and thresholds, what people read, and whether it means that
//! the client was blocked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_http::h2::Code;
use weir_tls::Failure;

/// The outcome of an attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connect {
    /// There is a connection.
    Established,
    /// A reset in response to the first packet: nothing listens, or something refuses.
    Refused,
    /// No response within the time-out: packets are silently dropped.
    TimedOut,
    /// A network or host can't be reached, or another error of the network.
    Unreachable,
    /// TLS could not be negotiated; [`Handshake`] says why.
    NoTls,
    /// The server does not choose HTTP/2, which was all that was offered (RFC 7301).
    NoHttp2,
    /// This machine had no port or descriptor left: the generator's own limit.
    NoneLeft,
    /// Neither yet, at the end of the run.
    Unfinished,
}

/// The outcome of a TLS handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handshake {
    /// A full handshake, with the server's certificate.
    Full,
    /// An earlier session was resumed.
    Resumed,
    /// The handshake failed.
    Failed(Failure),
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A complete response, as wanted. Its status is counted as well.
    Answered,
    /// A complete response whose body differs from that of the first response to the same request.
    WrongBody,
    /// A response that ended before it was complete.
    Truncated,
    /// Bytes that are not a response.
    NotHttp,
    /// The connection, or with HTTP/2 the stream, was reset before the first byte of a response.
    Reset,
    /// Closed in order before the first byte of a response.
    Closed,
    /// Not processed by a server that shuts an HTTP/2 connection down (GOAWAY): the client may
    /// retry (RFC 9113 §8.7).
    NotTaken,
    /// No complete response within the time-out.
    TimedOut,
    /// Still without a complete response at the end of the run.
    Unfinished,
    /// Due, but never sent, because no connection was free in time.
    Unsent,
    /// No request was sent: only a connection was wanted, and it was established.
    Connected,
}

/// How an established connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By the generator, as configured, or after a time-out.
    Ours,
    /// By the server, as it announced or was asked to.
    Announced,
    /// By the server, in order, while no request was outstanding.
    Idle,
    /// By the server, with a reset, while no request was outstanding.
    IdleReset,
    /// With requests under way, which say more.
    Busy,
}

/// A kind, its word, and what people read.
type Row<T> = (T, &'static str, &'static str);

pub(crate) const CONNECTS: &[Row<Connect>; 8] = &[
    (Connect::Established, "established", "established"),
    (Connect::Refused, "refused", "refused"),
    (Connect::TimedOut, "dropped", "no reply (dropped)"),
    (Connect::Unreachable, "unreachable", "unreachable"),
    (Connect::NoTls, "no_tls", "TLS handshake failed"),
    (Connect::NoHttp2, "no_http2", "HTTP/2 not negotiated"),
    (Connect::NoneLeft, "none_left", "no local port or descriptor"),
    (Connect::Unfinished, "unfinished", "unfinished at the end"),
];

pub(crate) const OUTCOMES: &[Row<Outcome>; 11] = &[
    (Outcome::Answered, "answered", "answered"),
    (Outcome::WrongBody, "wrong_body", "response with a wrong body"),
    (Outcome::Truncated, "truncated", "truncated"),
    (Outcome::NotHttp, "not_http", "not HTTP"),
    (Outcome::Reset, "reset", "reset without a response"),
    (Outcome::Closed, "closed", "closed without a response"),
    (Outcome::NotTaken, "not_taken", "rejected by a server that is leaving"),
    (Outcome::TimedOut, "timed_out", "timed out"),
    (Outcome::Unfinished, "unfinished", "unfinished at the end"),
    (Outcome::Unsent, "unsent", "could not be sent when due"),
    (Outcome::Connected, "connected", "connected, no request sent"),
];

pub(crate) const ENDS: &[Row<End>; 5] = &[
    (End::Ours, "ours", "by the generator"),
    (End::Announced, "announced", "by the server, announced"),
    (End::Idle, "idle", "by the server, while idle"),
    (End::IdleReset, "idle_reset", "by the server, reset while idle"),
    (End::Busy, "busy", "with requests under way"),
];

/// Codes of HTTP/2 (RFC 9113 §7) that are counted separately; all others share one more counter.
const CODES: usize = 15;

/// The word of a place among them.
fn code_word(place: usize) -> &'static str {
    Code::of(place as u32).word()
}

/// Kinds of [`Handshake`].
const HANDSHAKES: usize = 2 + Failure::ALL.len();

impl Handshake {
    /// All of them, in the order in which they are shown.
    pub(crate) fn all() -> impl Iterator<Item = Handshake> {
        [Handshake::Full, Handshake::Resumed].into_iter().chain(Failure::ALL.map(Handshake::Failed))
    }

    /// Its place among [`Handshake::all`].
    fn at(self) -> usize {
        match self {
            Handshake::Full => 0,
            Handshake::Resumed => 1,
            Handshake::Failed(why) => 2 + why as usize,
        }
    }

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Handshake::Full => "full",
            Handshake::Resumed => "resumed",
            Handshake::Failed(why) => why.word(),
        }
    }
}

impl Connect {
    /// Whether this means that the client was blocked.
    pub(crate) fn blocks(self) -> bool {
        matches!(self, Connect::Refused | Connect::TimedOut)
    }
}

impl Outcome {
    /// Whether this means that the client was blocked.
    pub(crate) fn blocks(self) -> bool {
        matches!(self, Outcome::Reset | Outcome::Closed)
    }
}

/// Whether a server blocks a client with this status.
pub(crate) fn turns_away(status: u16) -> bool {
    matches!(status, 403 | 429 | 503)
}

/// Whether a server reports its own failure with this status.
pub(crate) fn has_failed(status: u16) -> bool {
    status >= 500
}

/// Counts of one class of clients within some time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    connects: [u64; CONNECTS.len()],
    handshakes: [u64; HANDSHAKES],
    outcomes: [u64; OUTCOMES.len()],
    ends: [u64; ENDS.len()],
    resets: [u64; CODES],
    goaways: [u64; CODES],
    /// Complete responses by status, including those with a wrong body.
    pub statuses: BTreeMap<u16, u64>,
    /// Complete responses that came later than the limit.
    pub late: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
}

impl Counts {
    pub(crate) fn connect(&mut self, connect: Connect) {
        self.connects[connect as usize] += 1;
    }

    pub(crate) fn handshake(&mut self, handshake: Handshake) {
        self.handshakes[handshake.at()] += 1;
    }

    pub(crate) fn outcome(&mut self, outcome: Outcome) {
        self.outcomes[outcome as usize] += 1;
    }

    pub(crate) fn end(&mut self, end: End) {
        self.ends[end as usize] += 1;
    }

    /// The server has reset a stream.
    pub(crate) fn reset(&mut self, code: Code) {
        self.resets[(code.number() as usize).min(CODES - 1)] += 1;
    }

    /// The server has announced that it shuts a connection down.
    pub(crate) fn goaway(&mut self, code: Code) {
        self.goaways[(code.number() as usize).min(CODES - 1)] += 1;
    }

    pub(crate) fn status(&mut self, status: u16) {
        *self.statuses.entry(status).or_default() += 1;
    }

    /// Returns how often an attempt to connect ended in this way.
    pub fn connects(&self, connect: Connect) -> u64 {
        self.connects[connect as usize]
    }

    /// Returns how often a TLS handshake ended in this way.
    pub fn handshakes(&self, handshake: Handshake) -> u64 {
        self.handshakes[handshake.at()]
    }

    /// Returns how often a request ended in this way.
    pub fn outcomes(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// Returns how often a connection ended in this way.
    pub fn ends(&self, end: End) -> u64 {
        self.ends[end as usize]
    }

    /// Streams that the server has reset, by the word of the code.
    pub fn resets(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.resets
            .iter()
            .enumerate()
            .map(|(place, count)| (code_word(place), *count))
            .filter(|(_, count)| *count > 0)
    }

    /// Returns connections whose shutdown the server has announced, by the word of the code.
    pub fn goaways(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.goaways
            .iter()
            .enumerate()
            .map(|(place, count)| (code_word(place), *count))
            .filter(|(_, count)| *count > 0)
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Counts) {
        let both = |mine: &mut [u64], theirs: &[u64]| {
            mine.iter_mut().zip(theirs).for_each(|(mine, its)| *mine += its)
        };
        both(&mut self.connects, &other.connects);
        both(&mut self.handshakes, &other.handshakes);
        both(&mut self.outcomes, &other.outcomes);
        both(&mut self.ends, &other.ends);
        both(&mut self.resets, &other.resets);
        both(&mut self.goaways, &other.goaways);
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.late += other.late;
        self.bytes_out += other.bytes_out;
        self.bytes_in += other.bytes_in;
    }

    /// Returns the number of complete responses.
    pub fn answered(&self) -> u64 {
        self.outcomes(Outcome::Answered) + self.outcomes(Outcome::WrongBody)
    }

    /// Returns the requests that were due or begun, whatever their outcome.
    pub fn offered(&self) -> u64 {
        self.outcomes.iter().sum()
    }

    /// Returns what a user would have tried: requests, and attempts to connect that failed.
    pub fn attempts(&self) -> u64 {
        self.offered() + self.unconnected()
    }

    /// Attempts to connect that failed.
    fn unconnected(&self) -> u64 {
        let fine = self.connects(Connect::Established) + self.connects(Connect::Unfinished);
        self.connects.iter().sum::<u64>() - fine
    }

    /// Returns the blocked attempts: not connected, cut off before a response, or answered 403, 429
    /// or 503.
    pub fn blocked(&self) -> u64 {
        let connects = CONNECTS
            .iter()
            .filter(|row| row.0.blocks())
            .map(|row| self.connects(row.0))
            .sum::<u64>();
        let requests = OUTCOMES
            .iter()
            .filter(|row| row.0.blocks())
            .map(|row| self.outcomes(row.0))
            .sum::<u64>();
        let told = self
            .statuses
            .iter()
            .filter(|(status, _)| turns_away(**status))
            .map(|(_, count)| count)
            .sum::<u64>();
        connects + requests + told
    }

    /// Returns all failures: wrong, incomplete or missing responses, and statuses that say that the
    /// server failed ([`has_failed`]). It leaves out what the end of the run cut off, requests that
    /// were never sent, and those that a server that shuts down has not processed.
    pub fn failed(&self) -> u64 {
        let bad = [
            Outcome::WrongBody,
            Outcome::Truncated,
            Outcome::NotHttp,
            Outcome::Reset,
            Outcome::Closed,
            Outcome::TimedOut,
        ];
        let told = self
            .statuses
            .iter()
            .filter(|(status, _)| has_failed(**status))
            .map(|(_, count)| count)
            .sum::<u64>();
        // A response with a wrong body has a status as well; one below 300 (other bodies are not
        // compared).
        self.unconnected() + bad.map(|it| self.outcomes(it)).iter().sum::<u64>() + told
    }

    /// Returns everything except responses with a status below 400 and connections that were the
    /// only goal, by kind; statuses as `status 502`.
    pub fn troubles(&self) -> BTreeMap<String, u64> {
        let fine =
            [OUTCOMES[Outcome::Answered as usize].1, OUTCOMES[Outcome::Connected as usize].1];
        let document = self.document();
        let outcomes =
            document.requests.into_iter().filter(|(word, _)| !fine.contains(&word.as_str()));
        let connects = document.connections.into_iter().filter(|(word, _)| word != CONNECTS[0].1);
        // Requests have that word as well.
        let unfinished = CONNECTS[Connect::Unfinished as usize].1;
        let connects = connects.map(|(word, count)| {
            (if word == unfinished { "unconnected".to_owned() } else { word }, count)
        });
        let statuses = self.statuses.iter().filter(|(status, _)| **status >= 400);
        let statuses = statuses.map(|(status, count)| (format!("status {status}"), *count));
        outcomes.chain(connects).chain(statuses).collect()
    }

    /// Returns the responses of a class, 1 to 5 (others go to the last).
    pub fn status_class(&self, class: u16) -> u64 {
        self.statuses
            .iter()
            .filter(|(status, _)| (**status / 100).min(5) == class)
            .map(|(_, count)| count)
            .sum()
    }

    /// Reads the counts of a document.
    ///
    /// # Errors
    /// A word that is not the name of a kind.
    pub(crate) fn of(document: &CountsDocument) -> Result<Counts, String> {
        fn read<T, const N: usize>(
            rows: &[Row<T>; N],
            named: &BTreeMap<String, u64>,
        ) -> Result<[u64; N], String> {
            let mut counts = [0; N];
            for (word, count) in named {
                let at = rows.iter().position(|(_, its, _)| its == word);
                counts[at.ok_or_else(|| format!("no kind `{word}`"))?] = *count;
            }
            Ok(counts)
        }
        fn handshakes(named: &BTreeMap<String, u64>) -> Result<[u64; HANDSHAKES], String> {
            let mut counts = [0; HANDSHAKES];
            for (word, count) in named {
                let kind = Handshake::all().find(|it| it.word() == word);
                counts[kind.ok_or_else(|| format!("no handshake ends as `{word}`"))?.at()] = *count;
            }
            Ok(counts)
        }
        fn codes(named: &BTreeMap<String, u64>) -> Result<[u64; CODES], String> {
            let mut counts = [0; CODES];
            for (word, count) in named {
                let place = (0..CODES).find(|place| code_word(*place) == word);
                counts[place.ok_or_else(|| format!("no code `{word}`"))?] = *count;
            }
            Ok(counts)
        }
        let status = |(text, count): (&String, &u64)| match text.parse() {
            Ok(status) => Ok((status, *count)),
            Err(_) => Err(format!("`{text}` is not a status")),
        };
        Ok(Counts {
            connects: read(CONNECTS, &document.connections)?,
            handshakes: handshakes(&document.handshakes)?,
            outcomes: read(OUTCOMES, &document.requests)?,
            ends: read(ENDS, &document.ends)?,
            resets: codes(&document.resets)?,
            goaways: codes(&document.goaways)?,
            statuses: document.statuses.iter().map(status).collect::<Result<_, _>>()?,
            late: document.late,
            bytes_out: document.bytes_out,
            bytes_in: document.bytes_in,
        })
    }

    /// Returns words and numbers, in the order of the tables; zeros are left out.
    pub fn document(&self) -> CountsDocument {
        fn named<T>(rows: &[Row<T>], counts: &[u64]) -> BTreeMap<String, u64> {
            let pairs = rows.iter().zip(counts).filter(|(_, count)| **count > 0);
            pairs.map(|((_, word, _), count)| ((*word).to_owned(), *count)).collect()
        }
        CountsDocument {
            connections: named(CONNECTS, &self.connects),
            handshakes: Handshake::all()
                .filter(|it| self.handshakes(*it) > 0)
                .map(|it| (it.word().to_owned(), self.handshakes(it)))
                .collect(),
            requests: named(OUTCOMES, &self.outcomes),
            ends: named(ENDS, &self.ends),
            resets: self.resets().map(|(word, count)| (word.to_owned(), count)).collect(),
            goaways: self.goaways().map(|(word, count)| (word.to_owned(), count)).collect(),
            statuses: self
                .statuses
                .iter()
                .map(|(status, count)| (status.to_string(), *count))
                .collect(),
            late: self.late,
            bytes_out: self.bytes_out,
            bytes_in: self.bytes_in,
        }
    }
}

/// [`Counts`] for machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountsDocument {
    /// Attempts to connect, by outcome.
    pub connections: BTreeMap<String, u64>,
    /// TLS handshakes: `full`, `resumed`, and those that failed by why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub handshakes: BTreeMap<String, u64>,
    /// Requests, by outcome.
    pub requests: BTreeMap<String, u64>,
    /// Ends of established connections.
    pub ends: BTreeMap<String, u64>,
    /// HTTP/2: streams that the server has reset, by why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resets: BTreeMap<String, u64>,
    /// HTTP/2: connections whose shutdown the server has announced, by why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub goaways: BTreeMap<String, u64>,
    /// Complete responses by status.
    pub statuses: BTreeMap<String, u64>,
    /// Complete responses that came late.
    pub late: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_row_at_its_place() {
        assert!(CONNECTS.iter().enumerate().all(|(at, row)| row.0 as usize == at));
        assert!(Handshake::all().enumerate().all(|(at, it)| it.at() == at));
        assert!(OUTCOMES.iter().enumerate().all(|(at, row)| row.0 as usize == at));
        assert!(ENDS.iter().enumerate().all(|(at, row)| row.0 as usize == at));
    }

    #[test]
    fn codes_of_http_2_are_told_apart_and_read_back() {
        let mut counts = Counts::default();
        for (code, times) in [
            (Code::NoError, 1),
            (Code::EnhanceYourCalm, 2),
            (Code::Other(77), 3),
            (Code::Other(14), 4),
        ] {
            (0..times).for_each(|_| counts.reset(code));
            counts.goaway(code);
        }
        let found: Vec<_> = counts.resets().collect();
        assert_eq!(found, [("no-error", 1), ("enhance-your-calm", 2), ("other", 7)]);
        assert_eq!(counts.goaways().map(|(_, count)| count).collect::<Vec<_>>(), [1, 1, 2]);
        assert_eq!(Counts::of(&counts.document()), Ok(counts));
    }

    #[test]
    fn blocked_is_what_somebody_turned_away() {
        let mut counts = Counts::default();
        for connect in
            [Connect::Established, Connect::Refused, Connect::TimedOut, Connect::NoneLeft]
        {
            counts.connect(connect);
        }
        for (outcome, status) in
            [(Outcome::WrongBody, 200), (Outcome::Answered, 429), (Outcome::Answered, 503)]
        {
            counts.outcome(outcome);
            counts.status(status);
        }
        for outcome in [
            Outcome::Reset,
            Outcome::Closed,
            Outcome::Truncated,
            Outcome::TimedOut,
            Outcome::Unsent,
        ] {
            counts.outcome(outcome);
        }
        assert_eq!(
            (counts.offered(), counts.attempts(), counts.blocked(), counts.answered()),
            (8, 11, 6, 3)
        );
        assert_eq!(counts.failed(), 9);
        let mut twice = counts.clone();
        twice.add(&counts);
        assert_eq!((twice.blocked(), twice.status_class(4), twice.statuses[&200]), (12, 2, 2));
    }
}
