//! One probe of a server: the request, and what its response shows. And the streak of probes that
//! decides.
//!
//! Used by the engine (`upstream/probes.rs`), which owns the connection and the time. A probe has a
//! separate connection and requests its end (`Connection: close`), so that it shows what a new
//! client would see. Bounds: [`ANSWER_BYTES_MAX`] of the response, [`INTERIM_MAX`] interim ones.
//! docs/failover.md.

use sha2::{Digest, Sha256};
use weir_http::{Fields, Limits, ReplyContext, ReplyPart, ReplyReader};

use crate::cross::standing::ProbeFault;
use crate::plan::{BodyCheck, HealthPlan};

/// Bytes of a response, head and body, that are examined; a text to be found, or all of a body with
/// a digest, must be within them.
pub const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Interim responses that are skipped.
const INTERIM_MAX: u32 = 32;

/// Returns the request of a probe. `name` is the server's, for Host when none is configured.
pub fn request(plan: &HealthPlan, name: &str) -> Vec<u8> {
    let host = plan.host.as_deref().unwrap_or(name);
    let (method, path) = (&plan.method, &plan.path);
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: weir-health\r\nAccept: */*\r\n\
        Connection: close\r\n\r\n"
    )
    .into_bytes()
}

/// The response to one probe, as it comes.
#[derive(Debug)]
pub struct Probe {
    reader: ReplyReader,
    body: Vec<u8>,
    received: usize,
    interims: u32,
}

impl Default for Probe {
    fn default() -> Probe {
        Probe { reader: ReplyReader::judging(), body: Vec::new(), received: 0, interims: 0 }
    }
}

impl Probe {
    /// Reads on. None: more must come; otherwise the verdict.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        plan: &HealthPlan,
        limits: &Limits,
    ) -> Option<Result<(), ProbeFault>> {
        let room = ANSWER_BYTES_MAX.saturating_sub(self.received);
        let full = bytes.len() >= room;
        self.received += bytes.len();
        let input = self.reader.join(&bytes[..bytes.len().min(room)], limits);
        let verdict = input.and_then(|input| self.read(&input, plan, limits));
        // Later bytes are not examined.
        if verdict.is_none() && full { Some(Err(self.too_long())) } else { verdict }
    }

    /// The server closed its direction. Returns the verdict.
    ///
    /// # Errors
    ///
    /// The fault that the probe found.
    pub fn ended(&self, plan: &HealthPlan) -> Result<(), ProbeFault> {
        match &plan.expect_body {
            Some(check) if self.reader.ends_by_close() => {
                self.check_body(check, self.body.len(), true).unwrap_or(Ok(()))
            }
            _ => Err(ProbeFault::Closed),
        }
    }

    fn too_long(&self) -> ProbeFault {
        if self.reader.awaits_head() { ProbeFault::Garbage } else { ProbeFault::Body }
    }

    fn read(
        &mut self,
        input: &[u8],
        plan: &HealthPlan,
        limits: &Limits,
    ) -> Option<Result<(), ProbeFault>> {
        let (context, fields) =
            (ReplyContext { head: plan.method == "HEAD" }, &mut Fields::default());
        let (mut at, before) = (0, self.body.len());
        loop {
            match self.reader.read(input, &mut at, context, limits, fields) {
                Ok(ReplyPart::Head(head)) if head.status < 200 => {
                    self.interims += 1;
                    if self.interims > INTERIM_MAX || head.status == 101 {
                        return Some(Err(ProbeFault::Garbage));
                    }
                }
                Ok(ReplyPart::Head(head)) if !plan.expect_status.contain(head.status) => {
                    return Some(Err(ProbeFault::Status(head.status)));
                }
                Ok(ReplyPart::Head(_)) if plan.expect_body.is_none() => return Some(Ok(())),
                Ok(ReplyPart::Head(_)) => {}
                Ok(ReplyPart::Data { start, end }) => {
                    self.body.extend_from_slice(&input[start..end])
                }
                Ok(ReplyPart::More | ReplyPart::End) => break,
                Err(_) => return Some(Err(ProbeFault::Garbage)),
            }
        }
        if self.reader.awaits_head() {
            self.reader.hold(&input[at..]);
            return None;
        }
        self.check_body(plan.expect_body.as_ref()?, before, self.reader.is_complete())
    }

    /// Judges the body, of which everything from `before` on is new.
    fn check_body(
        &self,
        check: &BodyCheck,
        before: usize,
        complete: bool,
    ) -> Option<Result<(), ProbeFault>> {
        let good = match check {
            BodyCheck::Contains(text) => {
                let from = before.saturating_sub(text.len().saturating_sub(1));
                self.body[from..].windows(text.len().max(1)).any(|window| window == text.as_bytes())
            }
            BodyCheck::Sha256(digest) => complete && Sha256::digest(&self.body)[..] == digest[..],
        };
        if good { Some(Ok(())) } else { complete.then_some(Err(ProbeFault::Body)) }
    }
}

/// The result of a streak of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Suspend the server.
    Fallen,
    /// It works again.
    Risen,
}

/// Consecutive probes that contradict the present state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streak(u32);

impl Streak {
    /// Counts a probe, or its substitute. `suspended`: the present state.
    pub fn note(&mut self, good: bool, suspended: bool, plan: &HealthPlan) -> Option<Verdict> {
        if good != suspended {
            self.0 = 0;
            return None;
        }
        self.0 += 1;
        let enough = if suspended { plan.rise } else { plan.fall };
        if self.0 < enough {
            return None;
        }
        self.0 = 0;
        Some(if suspended { Verdict::Risen } else { Verdict::Fallen })
    }

    /// Whether the next probe may bring a change: it is worth making soon.
    pub fn is_open(self) -> bool {
        self.0 > 0
    }
}

#[cfg(test)]
mod tests {
    //! Proves: responses are judged by status and body in every framing, in pieces of every size
    //! and within the bound; streaks follow rise and fall. How: tables, each response cut
    //! everywhere.

    use super::*;

    fn plan(body: Option<&str>) -> HealthPlan {
        let check = body.map(|text| BodyCheck::Contains(text.to_owned()));
        HealthPlan { expect_body: check, ..HealthPlan::default() }
    }

    /// The verdict of a response in two pieces; Err(Closed) and the like when the connection ends
    /// behind it.
    fn judge(plan: &HealthPlan, answer: &[u8], cut: usize) -> Result<(), ProbeFault> {
        let mut probe = Probe::default();
        let limits = Limits::default();
        let (first, second) = answer.split_at(cut);
        let verdict =
            probe.feed(first, plan, &limits).or_else(|| probe.feed(second, plan, &limits));
        verdict.unwrap_or_else(|| probe.ended(plan))
    }

    /// FIPS 180-4's example: the digest of `abc`, in every framing, and of nothing else.
    #[test]
    fn digests_are_of_the_whole_body() {
        let digest = [
            0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae,
            0x22, 0x23, 0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61,
            0xf2, 0x00, 0x15, 0xad,
        ];
        let plan =
            HealthPlan { expect_body: Some(BodyCheck::Sha256(digest)), ..HealthPlan::default() };
        let until_close = "HTTP/1.1 200 OK\r\n\r\n";
        let length = "HTTP/1.1 200 OK\r\nContent-Length: ";
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (answer, expected) in [
            (format!("{until_close}abc"), Ok(())),
            (format!("{until_close}ab"), Err(ProbeFault::Body)),
            (format!("{until_close}abcd"), Err(ProbeFault::Body)),
            (format!("{length}3\r\n\r\nabc"), Ok(())),
            (format!("{length}4\r\n\r\nabc"), Err(ProbeFault::Closed)),
            (format!("{length}4\r\n\r\nabcd"), Err(ProbeFault::Body)),
            (format!("{chunked}2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), Ok(())),
            (format!("{chunked}3\r\nabc\r\n"), Err(ProbeFault::Closed)),
            (format!("{chunked}0\r\n\r\n"), Err(ProbeFault::Body)),
        ] {
            for cut in 0..=answer.len() {
                assert_eq!(
                    judge(&plan, answer.as_bytes(), cut),
                    expected,
                    "{answer:?} cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn answers_are_judged() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (answer, text, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned(), None, Ok(())),
            ("HTTP/1.1 204 No\r\n\r\n".to_owned(), None, Ok(())),
            ("HTTP/1.1 100 Go\r\n\r\nHTTP/1.0 302 Found\r\n\r\n".to_owned(), None, Ok(())),
            ("HTTP/1.1 404 No\r\n\r\n".to_owned(), None, Err(ProbeFault::Status(404))),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n".to_owned(), None, Err(ProbeFault::Closed)),
            ("SSH-2.0-x\r\n\r\n".to_owned(), None, Err(ProbeFault::Garbage)),
            ("HTTP/1.1 100 Go\r\n\r\n".repeat(33), None, Err(ProbeFault::Garbage)),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall is ok".to_owned(),
                Some("is ok"),
                Ok(()),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall is no".to_owned(),
                Some("is ok"),
                Err(ProbeFault::Body),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall is".to_owned(),
                Some("is ok"),
                Err(ProbeFault::Closed),
            ),
            ("HTTP/1.1 200 OK\r\n\r\nall is ok, really".to_owned(), Some("is ok"), Ok(())),
            ("HTTP/1.1 200 OK\r\n\r\nall is".to_owned(), Some("is ok"), Err(ProbeFault::Body)),
            ("HTTP/1.1 204 No\r\n\r\n".to_owned(), Some("is ok"), Err(ProbeFault::Body)),
            (format!("{chunked}3\r\nis \r\n2\r\nok\r\n0\r\n\r\n"), Some("is ok"), Ok(())),
            (
                format!("{chunked}3\r\nis \r\n2\r\nno\r\n0\r\n\r\n"),
                Some("is ok"),
                Err(ProbeFault::Body),
            ),
            (format!("{chunked}x\r\n"), Some("is ok"), Err(ProbeFault::Garbage)),
        ] {
            for cut in 0..=answer.len() {
                assert_eq!(
                    judge(&plan(text), answer.as_bytes(), cut),
                    expected,
                    "{answer:?} cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn what_lies_beyond_the_bound_is_not_looked_at() {
        let (plan, limits) = (plan(Some("needle")), Limits::default());
        let mut probe = Probe::default();
        assert_eq!(probe.feed(b"HTTP/1.1 200 OK\r\n\r\n", &plan, &limits), None);
        let mut fed = 0;
        let verdict = loop {
            if let Some(verdict) = probe.feed(&[b'x'; 1000], &plan, &limits) {
                break verdict;
            }
            fed += 1000;
            assert!(fed < ANSWER_BYTES_MAX);
        };
        assert_eq!(verdict, Err(ProbeFault::Body));
    }

    #[test]
    fn streaks_follow_rise_and_fall() {
        let plan = plan(None);
        let mut streak = Streak::default();
        let fails = |streak: &mut Streak| streak.note(false, false, &plan);
        assert_eq!((fails(&mut streak), fails(&mut streak)), (None, None));
        assert!(streak.is_open());
        assert_eq!(streak.note(true, false, &plan), None, "a good one in between");
        assert!(!streak.is_open());
        assert_eq!(
            [fails(&mut streak), fails(&mut streak), fails(&mut streak)],
            [None, None, Some(Verdict::Fallen)]
        );
        assert_eq!(streak.note(true, true, &plan), None);
        assert_eq!(streak.note(false, true, &plan), None);
        assert_eq!(streak.note(true, true, &plan), None);
        assert_eq!(streak.note(true, true, &plan), Some(Verdict::Risen));
    }
}
