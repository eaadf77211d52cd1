//! Requests of hostile clients: rows A, B, C and K5 of docs/hostile.md as data, each with its
//! expected result.
//!
//! Called by machine tests (bytes into the engine) and by the end-to-end tests (bytes into a
//! socket, victims around them). Rows that need a particular course of events in time (A14, A15,
//! A18, B10, C5) are separate tests there. RFC 9112 §2 to §7, RFC 9110 §5, §7, §10.1.1.

mod fields;
mod framing;
mod targets;

use crate::message::{Reply, Request};

/// One row: bytes of one client connection, and the expected result.
#[derive(Debug, Clone)]
pub struct HostileRequest {
    /// Letter and a few words, as a name: `a3_te_quoted`.
    pub id: String,
    /// The row of docs/hostile-requests.md: `A3`.
    pub letter: &'static str,
    /// Everything that the client sends.
    pub bytes: Vec<u8>,
    /// Method and "it is HTTP/1.0" of each request that may get a response, in order. More
    /// responses are a fault.
    pub asks: Vec<(&'static str, bool)>,
    /// The expected result.
    pub expect: Expect,
}

/// The expected result of a row. Statuses are alternatives.
#[derive(Debug, Clone)]
pub enum Expect {
    /// One error response, then the connection closes; no complete request leaves.
    Refused(&'static [u16]),
    /// Exactly these requests leave, in this order, and each is answered with 200.
    Forwarded(Vec<Leaving>),
    /// These leave and are answered with 200, then comes one error response and the connection
    /// closes.
    ForwardedThenRefused(Vec<Leaving>, &'static [u16]),
    /// weir responds on its own and nothing leaves; the connection may remain open or not.
    Local(&'static [u16]),
    /// One of these.
    OneOf(Vec<Expect>),
}

/// A request that must leave.
#[derive(Debug, Clone, Default)]
pub struct Leaving {
    /// Its method.
    pub method: &'static str,
    /// Its target; empty: any.
    pub target: String,
    /// Its decoded body.
    pub body: Vec<u8>,
    /// Its Host; None: any.
    pub host: Option<&'static str>,
    /// Fields that must be there with this value.
    pub fields: Vec<(&'static str, &'static str)>,
    /// Fields that must not be there.
    pub absent: Vec<&'static str>,
    /// Text that must not be in any field value.
    pub without: Vec<&'static str>,
}

/// The observed result of a row, to be judged.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// Complete requests of the row that reached an upstream, in order.
    pub left: &'a [Request],
    /// Complete responses that the client got.
    pub replies: &'a [Reply],
    /// weir closed the client's connection.
    pub closed: bool,
}

impl Expect {
    /// Judges the observed result of the row.
    ///
    /// # Errors
    /// The difference from the expectation.
    pub fn check(&self, seen: Observed<'_>) -> Result<(), String> {
        match self {
            Expect::Refused(statuses) => forwarded_then_refused(&[], statuses, seen),
            Expect::Forwarded(expected) => {
                forwarded(expected, seen)?;
                match seen.replies.len() == expected.len() {
                    true => Ok(()),
                    false => {
                        Err(format!("{} replies, expected {}", seen.replies.len(), expected.len()))
                    }
                }
            }
            Expect::ForwardedThenRefused(expected, statuses) => {
                forwarded_then_refused(expected, statuses, seen)
            }
            Expect::Local(statuses) => match seen.replies {
                [reply] if statuses.contains(&reply.status) && seen.left.is_empty() => Ok(()),
                _ => Err(format!("expected one local {statuses:?} and nothing sent, got {seen:?}")),
            },
            Expect::OneOf(choices) => {
                let errors: Vec<String> =
                    choices.iter().filter_map(|choice| choice.check(seen).err()).collect();
                if errors.len() < choices.len() { Ok(()) } else { Err(errors.join("; or: ")) }
            }
        }
    }

    /// Whether weir must close the connection.
    pub fn closes(&self) -> bool {
        match self {
            Expect::Refused(_) | Expect::ForwardedThenRefused(..) => true,
            Expect::OneOf(choices) => choices.iter().all(Expect::closes),
            Expect::Forwarded(_) | Expect::Local(_) => false,
        }
    }

    /// Returns the fewest responses that may come.
    pub fn replies_min(&self) -> usize {
        match self {
            Expect::Refused(_) | Expect::Local(_) => 1,
            Expect::Forwarded(expected) => expected.len(),
            Expect::ForwardedThenRefused(expected, _) => expected.len() + 1,
            Expect::OneOf(choices) => {
                choices.iter().map(Expect::replies_min).min().unwrap_or_default()
            }
        }
    }
}

/// Checks that the expected requests left, and that each was answered.
fn forwarded(expected: &[Leaving], seen: Observed<'_>) -> Result<(), String> {
    let left: Vec<(&str, &str)> =
        seen.left.iter().map(|it| (it.method.as_str(), it.target.as_str())).collect();
    if left.len() != expected.len() {
        return Err(format!("{} requests left, expected {}: {left:?}", left.len(), expected.len()));
    }
    for (expected, request) in expected.iter().zip(seen.left) {
        expected.check(request)?;
    }
    match seen.replies.iter().take(expected.len()).find(|reply| reply.status != 200) {
        Some(reply) => Err(format!("status {} for a request that was forwarded", reply.status)),
        None => Ok(()),
    }
}

fn forwarded_then_refused(
    expected: &[Leaving],
    statuses: &[u16],
    seen: Observed<'_>,
) -> Result<(), String> {
    forwarded(expected, seen)?;
    let given: Vec<u16> = seen.replies.iter().map(|reply| reply.status).collect();
    if given.len() != expected.len() + 1
        || !given.last().is_some_and(|status| statuses.contains(status))
    {
        return Err(format!("statuses {given:?}, expected the last to be one of {statuses:?}"));
    }
    if !seen.replies.last().is_some_and(|reply| reply.closes) {
        return Err("the refusal doesn't say `Connection: close`".to_owned());
    }
    if seen.closed { Ok(()) } else { Err("the connection stayed open after a refusal".to_owned()) }
}

impl Leaving {
    /// Makes a request without body and special demands.
    pub fn new(method: &'static str, target: &str) -> Leaving {
        Leaving { method, target: target.to_owned(), ..Leaving::default() }
    }

    /// With this body.
    pub fn body(mut self, body: &[u8]) -> Leaving {
        self.body = body.to_vec();
        self
    }

    fn check(&self, request: &Request) -> Result<(), String> {
        let fail = |what: &str| Err(format!("{what} of {request:?}, expected {self:?}"));
        if self.method != request.method {
            return fail("method");
        }
        if !self.target.is_empty() && self.target != request.target {
            return fail("target");
        }
        if self.body != request.body.bytes {
            return fail("body");
        }
        if self.host.is_some() && self.host != request.fields.first("host") {
            return fail("host");
        }
        if self.fields.iter().any(|(name, value)| request.fields.all(name) != [*value]) {
            return fail("a field");
        }
        if self.absent.iter().any(|name| request.fields.has(name)) {
            return fail("a field that must be gone");
        }
        let found = |text: &str| request.fields.0.iter().any(|(_, value)| value.contains(text));
        if self.without.iter().any(|text| found(text)) {
            return fail("a value that must be gone");
        }
        Ok(())
    }
}

/// Every row, in the order of the catalogue. Ids are unique.
pub fn catalogue() -> Vec<HostileRequest> {
    let mut rows = Rows::default();
    framing::add(&mut rows);
    fields::add(&mut rows);
    targets::add(&mut rows);
    rows.rows
}

/// The rows of one letter.
pub fn of_letter(letter: &str) -> Vec<HostileRequest> {
    catalogue().into_iter().filter(|row| row.letter == letter).collect()
}

/// A request that shows when a body is read as a request.
pub const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// Collects rows.
#[derive(Debug, Default)]
struct Rows {
    rows: Vec<HostileRequest>,
}

impl Rows {
    /// Adds a row whose responses are all to the method of its first line, or to GET.
    fn add(&mut self, letter: &'static str, name: &str, text: &str, expect: Expect) {
        let methods = ["POST", "HEAD", "OPTIONS", "DELETE", "TRACE", "CONNECT", "PUT"];
        let method = methods.into_iter().find(|method| text.starts_with(method)).unwrap_or("GET");
        let version_10 = text.lines().next().is_some_and(|line| line.ends_with("HTTP/1.0"));
        let answers = expect_answers_max(&expect);
        self.rows.push(HostileRequest {
            id: format!("{}_{name}", letter.to_ascii_lowercase()),
            letter,
            bytes: wire(text),
            asks: vec![(method, version_10); answers],
            expect,
        });
    }

    /// Adds a row that is rejected with 400.
    fn bad(&mut self, letter: &'static str, name: &str, text: &str) {
        self.add(letter, name, text, Expect::Refused(&[400]));
    }
}

fn expect_answers_max(expect: &Expect) -> usize {
    match expect {
        Expect::OneOf(choices) => choices.iter().map(expect_answers_max).max().unwrap_or_default(),
        other => other.replies_min(),
    }
}

/// One character, one byte (so that a row can hold bytes that are not UTF-8).
fn wire(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect()
}

/// A GET with these field lines (each with its CRLF).
fn get(more: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{more}\r\n")
}

/// A POST with these field lines, and what follows the head.
fn post(more: &str, rest: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{more}\r\n{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rules, StrictRequests};

    #[test]
    fn ids_are_unique_names_and_every_letter_is_there() {
        let rows = catalogue();
        let mut ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        assert!(ids.iter().all(|id| {
            id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        }));
        ids.sort_unstable();
        let total = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), total);
        let letters = "A1 A2 A3 A5 A6 A7 A8 A9 A10 A11 A12 A13 A16 A17 B1 B2 B3 B4 B5 B6 B7 B8 B9 \
            B11 B12 C1 C2 C3 C4 C7 C8 C9 K5";
        for letter in letters.split(' ') {
            assert!(!of_letter(letter).is_empty(), "no row of {letter}");
        }
    }

    /// The rejected rows are really hostile: forwarded as received, the checker would object or see
    /// more than one.
    #[test]
    fn judge_and_catalogue_disagree_about_what_is_refused() {
        let via = |bytes: &[u8]| {
            let text = crate::grammar::latin1(bytes);
            wire(&text.replacen("Host: a\r\n", "Host: a\r\nVia: 1.1 weir\r\n", 1))
        };
        for row in catalogue() {
            // Rejected by policy, although the grammar allows it: limits, chunk extensions' size,
            // loops, expectations.
            let by_policy =
                ["B8", "B9", "B12", "A9", "A11", "A17", "A16", "C8", "C3", "C4", "C2", "K5", "A8"];
            if !matches!(row.expect, Expect::Refused(_)) || by_policy.contains(&row.letter) {
                continue;
            }
            let mut checker = StrictRequests::new(Rules::default());
            let verdict = checker.feed(&via(&row.bytes));
            assert!(
                verdict.is_err() || !checker.is_between_messages(),
                "{} would pass the judge",
                row.id
            );
        }
    }
}
