//! The configured misbehaviour of a connection: decides for each request, and spoils responses.
//!
//! Called by `connection.rs` only while there is a [`Mischief`](super::mischief::Mischief). The
//! rules are those of `misbehave.rs`, in its order.

use super::connection::{Connection, Scene, Stage};
use super::misbehave::Kind;
use super::plan::Plan;
use super::reply::{Answer, Stream};

/// How a response is spoilt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Faults {
    garble: bool,
    /// Ends in the middle of the body; true: by a reset.
    cut: Option<bool>,
    twice: bool,
    /// The connection ends after it, without an announcement.
    hang_up: bool,
    /// Bytes at a time, and the pause in between, microseconds.
    drip: Option<(u64, u64)>,
}

/// Output that is sent a few bytes at a time.
#[derive(Debug)]
pub(super) struct Drip {
    /// Maximum bytes at once.
    pub(super) bytes: u64,
    /// Between two pieces.
    pub(super) pause_us: u64,
    /// When the next is due.
    pub(super) due_us: u64,
}

impl Scene<'_> {
    /// Returns the rule if this misbehaviour applies now; counted if so.
    fn strikes(&mut self, kind: Kind) -> Option<super::misbehave::Rule> {
        let rule = self.mischief?.strikes(kind)?;
        self.counts.misbehaved.add(kind);
        Some(rule)
    }
}

impl Connection {
    /// Decides about faults for a complete request. Returns how long its response waits in
    /// addition, microseconds. None: it gets no response.
    pub(super) fn spoil(&mut self, scene: &mut Scene<'_>, answer: &mut Answer) -> Option<u64> {
        if let Some(kind) = [Kind::Reset, Kind::HangUp, Kind::NoAnswer]
            .into_iter()
            .find(|kind| scene.strikes(*kind).is_some())
        {
            self.resets |= kind == Kind::Reset;
            self.stage = if kind == Kind::NoAnswer { Stage::Mute } else { Stage::Closing };
            return None;
        }
        if let Some(rule) = scene.strikes(Kind::Status) {
            answer.wanted.status = u16::try_from(rule.first).unwrap_or(500);
        }
        let stall_us = scene.strikes(Kind::Stall).map_or(0, |rule| rule.first);
        let faults = self.faults(scene, answer);
        if faults != Faults::default() {
            answer.faults = Some(Box::new(faults));
        }
        Some(stall_us)
    }

    fn faults(&mut self, scene: &mut Scene<'_>, answer: &mut Answer) -> Faults {
        let mut faults = Faults { hang_up: self.ends_here(scene, answer), ..Faults::default() };
        if answer.has_body() {
            faults.garble = scene.strikes(Kind::Garble).is_some();
            faults.cut = match scene.strikes(Kind::ResetMidBody) {
                Some(_) => Some(true),
                None => scene.strikes(Kind::Truncate).map(|_| false),
            };
        }
        faults.twice = faults.cut.is_none() && scene.strikes(Kind::AnswerTwice).is_some();
        faults.drip = scene.strikes(Kind::SlowDrip).map(|rule| (rule.first, rule.second));
        faults
    }

    /// Whether the connection hangs up after this response; an announced end is marked in the
    /// response.
    fn ends_here(&mut self, scene: &mut Scene<'_>, answer: &mut Answer) -> bool {
        if answer.closes() {
            return false;
        }
        self.answers += 1;
        let is_last = |kind: Kind| {
            let rule = scene.mischief.and_then(|mischief| mischief.rules().rule(kind));
            rule.is_some_and(|rule| kind == Kind::NoKeepAlive || rule.first == self.answers)
        };
        let ends = [Kind::CloseAfter, Kind::HangUpAfter, Kind::NoKeepAlive];
        let Some(kind) = ends.into_iter().find(|kind| is_last(*kind)) else { return false };
        scene.counts.misbehaved.add(kind);
        answer.wanted.close |= kind != Kind::HangUpAfter;
        kind == Kind::HangUpAfter
    }

    /// Responds before the body if that fault applies; else returns the plan.
    pub(super) fn answer_early(&mut self, scene: &mut Scene<'_>, plan: Plan, expect: bool) -> Plan {
        if scene.strikes(Kind::AnswerEarly).is_none() {
            return plan;
        }
        if let Some(mut answer) = plan.into_answer() {
            // Without 100 it is unknown whether the body comes (RFC 9110 §10.1.1).
            answer.wanted.close |= expect;
            self.write(&answer, scene);
        }
        Plan::Answered
    }

    /// Writes a response with its faults.
    pub(super) fn write_badly(&mut self, answer: &Answer, faults: &Faults, scene: &Scene<'_>) {
        let begin = self.out.len();
        let stream = answer.write(&mut self.out, scene.date_line);
        let ends = answer.closes() || faults.hang_up || faults.cut.is_some();
        self.resets |= faults.cut == Some(true);
        self.drip =
            faults.drip.map(|(bytes, pause_us)| Drip { bytes, pause_us, due_us: scene.now_us });
        if let Some(stream) = stream {
            let again = faults.twice.then(|| Stage::Delayed(answer.clone_sound(), scene.now_us));
            self.after = again.map(Box::new);
            self.stage = Stage::Streaming(faults.spoil_stream(stream, ends && !faults.twice));
            return;
        }
        faults.spoil_bytes(&mut self.out, begin);
        if faults.twice {
            answer.write(&mut self.out, scene.date_line);
        }
        self.stage = if ends { Stage::Closing } else { Stage::Head };
    }
}

impl Faults {
    /// Spoils head and body, which are in `out` from `begin` on.
    fn spoil_bytes(&self, out: &mut Vec<u8>, begin: usize) {
        let end_of_head =
            memchr::memmem::find(&out[begin..], b"\r\n\r\n").map_or(out.len(), |at| begin + at + 4);
        let middle = end_of_head + (out.len() - end_of_head) / 2;
        if self.garble
            && let Some(byte) = out.get_mut(middle)
        {
            *byte ^= 1;
        }
        if self.cut.is_some() {
            out.truncate(middle);
        }
    }

    /// Does the same for a body that comes from the pattern: shifted by one, every byte is wrong.
    fn spoil_stream(&self, mut stream: Stream, closes: bool) -> Stream {
        stream.closes = closes;
        if self.garble {
            stream.shift();
        }
        if self.cut.is_some() {
            stream.cut();
        }
        stream
    }
}
