//! Whether a server may be sent requests behind unanswered ones: trust is earned, and doubt ends
//! it.
//!
//! With pipelining a request is nearly always unanswered, so a surplus answer looks like the answer
//! to the next request. The engine keeps one [`Trust`] a server and asks it before it sends
//! something behind something. docs/connections.md#trust-in-a-server, docs/hostile.md E0; RFC 9112
//! §9.2, §9.3.2.
//!
//! ```text
//!              64 clean answers over 2 connections
//!   Earning ────────────────────────────────────────▶ Trusted
//!     ▲  │ demoting doubt                               │ demoting doubt
//!     │  └──────────────▶ Penalty ◀─────────────────────┘
//!     │    time is over     │
//!     ├─────────────────────┘          any state ── surplus ──▶ Surplus
//!     └──────────────────────── clear() by an operator ────────────┘
//! ```

#[cfg(test)]
mod tests;

use crate::cross::doubt::Doubt;
use crate::cross::verdict::Verdict;

/// Clean answers that earn depth.
pub const CLEAN_ANSWERS_MIN: u32 = 64;
/// A server that fails more rehearsals than this is not rehearsed again.
const FAILED_MAX: u8 = 1;
/// First stay at depth 1 after a demoting doubt.
pub const PENALTY_MIN_US: u64 = 60 * 1_000_000;
/// Longest stay: each demotion doubles it up to here.
pub const PENALTY_MAX_US: u64 = 3600 * 1_000_000;
/// A server that crashes within this time after it was first pipelined may have crashed because of
/// that.
const SOON_US: u64 = 60_000_000;
/// A server that crashes so more often than this is not pipelined again.
const CRASHES_MAX: u8 = 1;
/// Trusted for this many times the last penalty, the doubling starts again: 8 minutes of good
/// behaviour forgive one minute, 8 hours an hour. Shorter, and a server that fails once a day for a
/// moment would still climb to an hour.
pub const FORGIVEN_AFTER_PENALTIES: u64 = 8;

/// What `status` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustState {
    /// At depth 1, with this many clean answers so far (0 to 64; it stays at 64 while a second
    /// connection is missing).
    Earning {
        /// Clean answers.
        clean: u32,
    },
    /// Clean so far, and not yet rehearsed with several requests at once: at depth 1.
    Clean,
    /// May be pipelined.
    Trusted,
    /// At depth 1 until this time, then earning.
    Penalty {
        /// End of the penalty.
        until_us: u64,
    },
    /// An answer too many was found, or a doubt that lasts ([`Trust::penalty_for`] tells): at depth
    /// 1 until an operator clears it.
    Surplus,
    /// It has failed two rehearsals, or crashed twice soon after it was first pipelined: at depth 1
    /// until an operator clears it.
    Unfit,
}

impl TrustState {
    /// For status and log.
    pub fn word(self) -> &'static str {
        match self {
            TrustState::Earning { .. } => "earning",
            TrustState::Clean => "clean",
            TrustState::Trusted => "trusted",
            TrustState::Penalty { .. } => "penalty",
            TrustState::Surplus => "surplus",
            TrustState::Unfit => "unfit",
        }
    }
}

/// The trust in one server. A few words in memory, no allocation.
///
/// Invariant: `penalty_us` is 0 (never demoted) or between [`PENALTY_MIN_US`] and
/// [`PENALTY_MAX_US`].
#[derive(Debug, Clone)]
pub struct Trust {
    state: State,
    /// Length of the last penalty.
    penalty_us: u64,
    /// What it was for.
    penalty_for: Option<Doubt>,
    /// Whether answers of one connection are enough, because the server has only one.
    single: bool,
    rehearsal: Rehearsed,
    /// Rehearsals that it has failed.
    failed: u8,
    /// When pipelining last began; None: never, or it has ended in a crash.
    shared_us: Option<u64>,
    /// Crashes soon after that, without one while it was not pipelined.
    crashes: u8,
}

/// Whether several requests at once were tried with those of no client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rehearsed {
    /// They need not be.
    Unneeded,
    /// Not yet.
    Due,
    /// It bears them.
    Passed,
}

#[derive(Debug, Clone)]
enum State {
    Earning(Tally),
    Trusted { since_us: u64 },
    Penalty { until_us: u64 },
    Surplus,
    Unfit,
}

/// Clean answers and where they came from.
#[derive(Debug, Clone, Default)]
struct Tally {
    /// Up to [`CLEAN_ANSWERS_MIN`].
    clean: u32,
    /// Connection of the first; meaningful when `clean` is not 0.
    first: u32,
    /// Another connection answered too.
    several: bool,
}

impl Tally {
    fn add(&mut self, connection: u32) {
        if self.clean == 0 {
            self.first = connection;
        }
        self.several |= self.first != connection;
        self.clean = (self.clean + 1).min(CLEAN_ANSWERS_MIN);
    }

    fn is_earned(&self, single: bool) -> bool {
        self.clean >= CLEAN_ANSWERS_MIN && (self.several || single)
    }
}

impl Trust {
    /// No trust yet, in a server with this many connections (at least 1).
    pub fn new(connections: u32) -> Trust {
        Trust {
            state: State::Earning(Tally::default()),
            penalty_us: 0,
            penalty_for: None,
            single: connections <= 1,
            rehearsal: Rehearsed::Unneeded,
            failed: 0,
            shared_us: None,
            crashes: 0,
        }
    }

    /// The same, and whether it has to pass a rehearsal before anything is sent behind anything.
    pub fn rehearsed_first(mut self, is_due: bool) -> Trust {
        self.rehearsal = if is_due { Rehearsed::Due } else { Rehearsed::Unneeded };
        self
    }

    /// Whether all that is missing is a rehearsal.
    #[inline]
    pub fn wants_rehearsal(&self) -> bool {
        self.rehearsal == Rehearsed::Due && matches!(self.state, State::Trusted { .. })
    }

    /// Several requests at once were answered as they should be.
    pub fn on_rehearsed(&mut self, now_us: u64) {
        if self.wants_rehearsal() {
            (self.rehearsal, self.failed, self.shared_us) = (Rehearsed::Passed, 0, Some(now_us));
            self.state = State::Trusted { since_us: now_us };
        }
    }

    /// What was shown in a rehearsal does not count any more.
    pub fn rehearse_again(&mut self) {
        if self.rehearsal == Rehearsed::Passed {
            self.rehearsal = Rehearsed::Due;
        }
    }

    /// Whether the server has sent an answer too many.
    #[inline]
    pub fn is_lost(&self) -> bool {
        matches!(self.state, State::Surplus)
    }

    /// Whether something may be sent behind an unanswered request.
    #[inline]
    pub fn may_pipeline(&self) -> bool {
        // A penalty that is over leads to Earning, which is depth 1 as well: the time makes no
        // difference here.
        matches!(self.state, State::Trusted { .. }) && self.rehearsal != Rehearsed::Due
    }

    /// An answer came and ended as it should. `connection`: any number that differs between
    /// connections of the server.
    #[inline]
    pub fn on_clean_answer(&mut self, now_us: u64, connection: u32) {
        if !self.may_pipeline() {
            self.earn(now_us, connection);
        }
    }

    fn earn(&mut self, now_us: u64, connection: u32) {
        match &mut self.state {
            State::Surplus | State::Unfit | State::Trusted { .. } => {}
            State::Penalty { until_us } if now_us < *until_us => {}
            State::Penalty { .. } => {
                let mut tally = Tally::default();
                tally.add(connection);
                self.state = State::Earning(tally);
            }
            State::Earning(tally) => {
                tally.add(connection);
                if tally.is_earned(self.single) {
                    self.state = State::Trusted { since_us: now_us };
                    self.shared_us = Some(now_us);
                }
            }
        }
    }

    /// The server has crashed, and no requests shared a connection: pipelining is not the reason.
    pub fn on_crash_alone(&mut self) {
        self.crashes = 0;
    }

    /// Counts a doubt that becomes a verdict when it occurs again. Returns whether it has become
    /// one.
    fn count_towards_verdict(&mut self, now_us: u64, doubt: Doubt, again: bool) -> bool {
        match doubt {
            // All workers may see the same failure.
            Doubt::FailsRehearsal if again && self.penalty_for == Some(doubt) => {}
            Doubt::FailsRehearsal => self.failed += 1,
            // Pipelining has ended with the first report of a crash: others report the same one.
            Doubt::DiesShared => match self.shared_us.take() {
                Some(since_us) if now_us.saturating_sub(since_us) <= SOON_US => self.crashes += 1,
                Some(_) => self.crashes = 0,
                None => {}
            },
            _ => {}
        }
        self.failed > FAILED_MAX || self.crashes > CRASHES_MAX
    }

    /// A connection became doubtful. True when this put the server back to depth 1: worth a line in
    /// the log.
    ///
    /// One incident is often seen on many connections at once; during a penalty a further doubt
    /// begins the same penalty again, without doubling it.
    pub fn on_doubt(&mut self, now_us: u64, doubt: Doubt) -> bool {
        if !doubt.demotes() || matches!(self.state, State::Surplus | State::Unfit) {
            return false;
        }
        self.rehearse_again();
        if doubt.lasts() {
            (self.state, self.penalty_for) = (State::Surplus, Some(doubt));
            return true;
        }
        let again = matches!(self.state, State::Penalty { until_us } if now_us < until_us);
        if self.count_towards_verdict(now_us, doubt, again) {
            (self.state, self.penalty_for) = (State::Unfit, Some(doubt));
            return true;
        }
        if !again {
            self.penalty_us = self.next_penalty_us(now_us);
        }
        self.state = State::Penalty { until_us: now_us.saturating_add(self.penalty_us) };
        self.penalty_for = Some(doubt);
        !again
    }

    fn next_penalty_us(&self, now_us: u64) -> u64 {
        match self.state {
            State::Trusted { since_us }
                if now_us.saturating_sub(since_us)
                    >= FORGIVEN_AFTER_PENALTIES * self.penalty_us =>
            {
                PENALTY_MIN_US
            }
            _ => (2 * self.penalty_us).clamp(PENALTY_MIN_US, PENALTY_MAX_US),
        }
    }

    /// An answer too many was found: an earlier one may have reached the wrong client. True when
    /// this is news.
    pub fn on_surplus(&mut self) -> bool {
        self.rehearse_again();
        let news = !matches!(self.state, State::Surplus);
        (self.state, self.penalty_for) = (State::Surplus, None);
        news
    }

    /// Why the server is not pipelined until an operator clears it, if so.
    pub fn verdict(&self) -> Option<Verdict> {
        match self.state {
            State::Surplus => Some(Verdict::Surplus(self.penalty_for)),
            State::Unfit => Some(Verdict::Unfit(self.penalty_for.unwrap_or(Doubt::FailsRehearsal))),
            _ => None,
        }
    }

    /// Another worker has reached this verdict, or weir before its restart. Returns whether this is
    /// news. A server that may have mixed up responses keeps that verdict.
    pub fn restore(&mut self, verdict: Verdict) -> bool {
        if self.is_lost() || matches!((&self.state, verdict), (State::Unfit, Verdict::Unfit(_))) {
            return false;
        }
        self.rehearse_again();
        self.state = match verdict {
            Verdict::Surplus(_) => State::Surplus,
            Verdict::Unfit(_) => State::Unfit,
        };
        self.penalty_for = verdict.doubt();
        true
    }

    /// An operator says that the server is repaired: trust can be earned again, and earlier
    /// penalties are forgotten.
    pub fn clear(&mut self) {
        let is_due = self.rehearsal != Rehearsed::Unneeded;
        *self = Trust { single: self.single, ..Trust::new(1).rehearsed_first(is_due) };
    }

    /// For status: what the present penalty, or stay in [`TrustState::Surplus`], is for; None
    /// without one, or after an answer too many.
    pub fn penalty_for(&self, now_us: u64) -> Option<Doubt> {
        self.penalty_for.filter(|_| {
            matches!(
                self.state(now_us),
                TrustState::Penalty { .. } | TrustState::Surplus | TrustState::Unfit
            )
        })
    }

    /// For status.
    pub fn state(&self, now_us: u64) -> TrustState {
        match &self.state {
            State::Earning(tally) => TrustState::Earning { clean: tally.clean },
            State::Trusted { .. } if self.wants_rehearsal() => TrustState::Clean,
            State::Trusted { .. } => TrustState::Trusted,
            State::Penalty { until_us } if now_us < *until_us => {
                TrustState::Penalty { until_us: *until_us }
            }
            State::Penalty { .. } => TrustState::Earning { clean: 0 },
            State::Surplus => TrustState::Surplus,
            State::Unfit => TrustState::Unfit,
        }
    }
}
