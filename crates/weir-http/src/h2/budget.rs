//! What a client may waste: budgets of early resets, of errors that force weir to reset streams,
//! and of useless frames.
//!
//! Only events that are worthless to an honest client are counted, and honest work earns some of
//! the budget back, so that the totals of a long connection don't matter. Against rapid reset
//! (CVE-2023-44487), resets that weir is made to send (CVE-2025-8671), floods of PING, SETTINGS,
//! PRIORITY, empty frames and window updates (CVE-2019-9511 to -9518). No timers: time is checked
//! when something comes. Invariant: each budget is between 0 and its cap.

use super::error::{Code, Failure};

/// Requests that a client may reset before their responses began.
const RESETS: u16 = 100;
/// Further resets after a pause.
const RESETS_AFTER_PAUSE: u16 = 10;
/// How long no new request is accepted when they are used up.
const PAUSE_US: u64 = 100_000;
/// Number of pauses ...
const PAUSES_MAX: u8 = 2;
/// ... in this time; the next one is the end.
const PAUSES_WINDOW_US: u64 = 10_000_000;
/// Streams that errors of the client make us reset.
const FORCED: u8 = 10;
/// Responses that earn another one.
const ANSWERS_A_FORCED: u8 = 100;
/// Useless frames, to begin with and at most.
const CHATTER: u32 = 1_000;
const CHATTER_MAX: u32 = 4_000;
/// Useless frames that are earned back a second, with a request, and the bytes of body in either
/// direction that earn one.
const CHATTER_A_SECOND: u64 = 10;
const CHATTER_A_REQUEST: u32 = 10;
const BYTES_A_CHATTER: u32 = 1_024;
/// Free window updates: for each stream, for each DATA frame that weir has sent, and at most.
const UPDATES_A_STREAM: u32 = 10;
const UPDATES_A_FRAME: u32 = 2;
const UPDATES_MAX: u32 = 10_000;

/// The cost of a useless frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cost {
    /// PING, PRIORITY, PRIORITY_UPDATE, unknown frames.
    Small = 1,
    /// A frame on a closed stream.
    Closed = 5,
    /// SETTINGS, GOAWAY, frames without a byte.
    Large = 10,
}

/// The budgets of one connection.
#[derive(Debug)]
pub(super) struct Budget {
    resets: u16,
    forced: u8,
    /// Responses since another forced reset was earned.
    answers: u8,
    /// Pauses since `paused_us`.
    pauses: u8,
    chatter: u32,
    updates: u32,
    /// Bytes that have not earned anything yet.
    bytes: u32,
    /// No request is accepted before this.
    blocked_until_us: Option<u64>,
    /// When the first of the pauses was.
    paused_us: u64,
    /// When time last earned something back; 0: never.
    earned_us: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            resets: RESETS,
            forced: FORCED,
            answers: 0,
            pauses: 0,
            chatter: CHATTER,
            updates: UPDATES_A_STREAM,
            bytes: 0,
            blocked_until_us: None,
            paused_us: 0,
            earned_us: 0,
        }
    }
}

const fn calm(why: &'static str) -> Failure {
    Failure { code: Code::EnhanceYourCalm, why }
}

impl Budget {
    // ---- costs ----

    /// Counts a request that was reset, or refused, before its response began.
    ///
    /// # Errors
    /// The client resets too many requests.
    pub(super) fn reset_early(&mut self, now_us: u64) -> Result<(), Failure> {
        self.resets = self.resets.saturating_sub(1);
        if self.resets > 0 {
            return Ok(());
        }
        if self.pauses == 0 || now_us.saturating_sub(self.paused_us) > PAUSES_WINDOW_US {
            (self.pauses, self.paused_us) = (0, now_us);
        }
        if self.pauses == PAUSES_MAX {
            return Err(calm("too many requests were reset"));
        }
        self.pauses += 1;
        self.resets = RESETS_AFTER_PAUSE;
        self.blocked_until_us = Some(now_us.saturating_add(PAUSE_US));
        Ok(())
    }

    /// Counts a stream that an error of the client forces weir to reset.
    ///
    /// # Errors
    /// It is one reset too many.
    pub(super) fn forced_reset(&mut self) -> Result<(), Failure> {
        self.forced = self.forced.checked_sub(1).ok_or(calm("too many errors on streams"))?;
        Ok(())
    }

    /// Charges a useless frame.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn spend(&mut self, cost: Cost, now_us: u64) -> Result<(), Failure> {
        self.earn_by_time(now_us);
        self.chatter = self
            .chatter
            .checked_sub(cost as u32)
            .ok_or(calm("too many frames that bring nothing"))?;
        Ok(())
    }

    /// Counts a window update: free as long as it can be of use for something.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn window_update(&mut self, now_us: u64) -> Result<(), Failure> {
        match self.updates.checked_sub(1) {
            Some(left) => self.updates = left,
            None => self.spend(Cost::Small, now_us)?,
        }
        Ok(())
    }

    // ---- earnings ----

    fn earn_by_time(&mut self, now_us: u64) {
        if self.earned_us == 0 {
            self.earned_us = now_us;
        }
        let seconds = now_us.saturating_sub(self.earned_us) / 1_000_000;
        if seconds > 0 {
            self.earned_us += seconds * 1_000_000;
            self.earn((seconds * CHATTER_A_SECOND).min(u64::from(CHATTER_MAX)) as u32);
        }
    }

    fn earn(&mut self, chatter: u32) {
        self.chatter = (self.chatter + chatter).min(CHATTER_MAX);
    }

    /// Counts a request.
    pub(super) fn request(&mut self) {
        self.earn(CHATTER_A_REQUEST);
        self.updates = (self.updates + UPDATES_A_STREAM).min(UPDATES_MAX);
    }

    /// Counts a response that has left completely.
    pub(super) fn answered(&mut self) {
        self.resets = (self.resets + 1).min(RESETS);
        self.answers += 1;
        if self.answers == ANSWERS_A_FORCED {
            self.answers = 0;
            self.forced = (self.forced + 1).min(FORCED);
        }
    }

    /// Counts received bytes of a body.
    pub(super) fn received(&mut self, bytes: u32) {
        let bytes = self.bytes + bytes;
        self.bytes = bytes % BYTES_A_CHATTER;
        self.earn(bytes / BYTES_A_CHATTER);
    }

    /// Counts a DATA frame with this many bytes that has left.
    pub(super) fn sent(&mut self, bytes: u32) {
        self.received(bytes);
        self.updates = (self.updates + UPDATES_A_FRAME).min(UPDATES_MAX);
    }

    // ---- pauses ----

    /// Returns the time before which no request is accepted, microseconds.
    pub(super) fn blocked_until(&self) -> Option<u64> {
        self.blocked_until_us
    }

    /// Ends the pause if its time is over.
    pub(super) fn expire(&mut self, now_us: u64) {
        if self.blocked_until_us.is_some_and(|until_us| until_us <= now_us) {
            self.blocked_until_us = None;
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each budget ends where its table says, and honest work keeps it full.

    use super::*;

    #[test]
    fn early_resets_pause_and_end() {
        let (mut budget, mut now_us, mut pauses) = (Budget::default(), 1_000, Vec::new());
        let mut resets = 0;
        let end = loop {
            resets += 1;
            if let Err(failure) = budget.reset_early(now_us) {
                break failure;
            }
            if let Some(until_us) = budget.blocked_until() {
                assert_eq!(until_us, now_us + PAUSE_US);
                budget.expire(until_us - 1);
                assert!(budget.blocked_until().is_some());
                now_us = until_us;
                budget.expire(now_us);
                assert_eq!(budget.blocked_until(), None);
                pauses.push(resets);
            }
        };
        assert_eq!((pauses, resets, end.code), (vec![100, 110], 120, Code::EnhanceYourCalm));
    }

    #[test]
    fn slow_resets_are_only_slowed_down() {
        let (mut budget, mut now_us) = (Budget::default(), 0);
        for _ in 0..1000 {
            now_us += 1_100_000;
            budget.reset_early(now_us).unwrap();
            budget.expire(now_us + PAUSE_US);
        }
        let mut busy = Budget::default();
        for _ in 0..100_000 {
            busy.answered();
            busy.reset_early(0).unwrap();
            assert_eq!(busy.blocked_until(), None);
        }
    }

    #[test]
    fn forced_resets() {
        let mut budget = Budget::default();
        assert_eq!((0..).position(|_| budget.forced_reset().is_err()), Some(10));
        (0..100).for_each(|_| budget.answered());
        assert_eq!((0..).position(|_| budget.forced_reset().is_err()), Some(1));
    }

    #[test]
    fn chatter() {
        let spent =
            |budget: &mut Budget, cost| (0..).position(|_| budget.spend(cost, 5_000_000).is_err());
        assert_eq!(spent(&mut Budget::default(), Cost::Small), Some(1000));
        assert_eq!(spent(&mut Budget::default(), Cost::Large), Some(100));
        let mut budget = Budget::default();
        assert_eq!(spent(&mut budget, Cost::Closed), Some(200));
        budget.request();
        budget.received(1023);
        assert_eq!(spent(&mut budget, Cost::Small), Some(10));
        budget.sent(1);
        assert_eq!(spent(&mut budget, Cost::Small), Some(1));
        assert_eq!((0..).position(|_| budget.spend(Cost::Small, 8_900_000).is_err()), Some(30));
        budget.received(u32::MAX / 2);
        assert_eq!((0..).position(|_| budget.spend(Cost::Small, 8_900_000).is_err()), Some(4000));
    }

    #[test]
    fn window_updates_follow_what_was_sent() {
        let mut budget = Budget::default();
        for _ in 0..100_000 {
            budget.sent(1);
            budget.window_update(0).unwrap();
            budget.window_update(0).unwrap();
        }
        let left = (0..).position(|_| budget.window_update(0).is_err());
        assert_eq!(left, Some(10 + CHATTER as usize + 97));
    }
}
