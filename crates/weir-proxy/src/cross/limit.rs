//! The adaptive concurrency limit of a server: how many requests that need a connection for
//! themselves it works on at once.
//!
//! Many servers answer fewer requests per second when they have too many at once: threads wait for
//! one lock, memory runs short, or a database behind them slows down. Response times alone cannot
//! show this, because they also grow when clients ask for slower pages. So weir finds the limit by
//! trial and compares *goodput*, the answers per second, as the thread pool of .NET does. All
//! workers share one [`Limit`] per server and update it without waiting. [`Climb`] makes the
//! decisions and is pure.
//!
//! ```text
//!            answers take twice as long              in two samples, a lower limit
//!            as with few at once, or                 gives 15 % more answers
//!            all connections are in use
//!   Open ──────────────────────────────▶ Trial ──────────────────────────────────▶ Held
//!    ▲                                     │ no: next trial after 1 s, 2 s … 10 min │
//!    └─────────────────────────────────────┴──── no request waits, or no answers ───┘
//! ```
//! While it is held, it sometimes tries 25 % more, and keeps them if the goodput does not fall.
//! Bounds: `connections` to `connections-max`; if the two are equal, there is nothing to learn.
//! docs/balancing.md#overload

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

/// A limit starts with at least this.
const START_MIN: u32 = 32;
/// Time between two decisions.
const LOOK_US: u64 = 100_000;
/// Counts are discarded after a pause of this length.
const STALE_US: u64 = 1_000_000;
/// A sample is complete after [`LOOK_US`] with this many answers, or after [`SAMPLE_US_MAX`].
const SAMPLE_ANSWERS: u64 = 256;
const SAMPLE_US_MAX: u64 = 1_000_000;
/// Fewest answers in a sample that allow a decision.
const SAMPLE_ANSWERS_MIN: u64 = 64;
/// Answers that take this many times the best time trigger a trial.
const SLOWER: u64 = 2;
/// A server with a shorter best time gets no limit: its answers wait for the processors, and
/// sharing connections helps more.
const BEST_US_MIN: u64 = 5_000;
/// Percent of the previous goodput that a lower limit must reach in two samples: with
/// [`SAMPLE_ANSWERS`] answers, and with fewer.
const BETTER_PERCENT: u64 = 115;
const BETTER_FEW_PERCENT: u64 = 130;
/// Percent of the previous goodput that a higher limit must keep.
const AS_GOOD_PERCENT: u64 = 97;
/// Pause after a failed trial of a lower limit; doubles.
const PAUSE_US: u64 = 1_000_000;
const PAUSE_US_MAX: u64 = 600_000_000;
/// Time between trials of a higher limit; doubles after a failure.
const MORE_US: u64 = 2_000_000;
const MORE_US_MAX: u64 = 60_000_000;
/// Longest wait for the requests that are in progress when a trial begins.
const SETTLE_US_MAX: u64 = 10_000_000;
/// Samples in a row without a waiting request that end a limit.
const QUIET_MAX: u32 = 5;

/// The range of a limit: `floor` is `connections`, `most` is `connections-max`, both over all
/// workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub floor: u32,
    pub most: u32,
}

/// A learned limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// Requests at once, over all workers.
    pub limit: u32,
    /// Requests at once before the limit.
    pub before: u32,
    /// Growth of the goodput since then, percent.
    pub gain_percent: u32,
}

/// The limit of one server, and the counts of all workers.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    /// Over all workers; 0: no decision yet.
    limit: AtomicU32,
    /// A request waited because of the limit since the last decision.
    binds: AtomicBool,
    /// The limit is a learned one.
    held: AtomicBool,
    answers: AtomicU64,
    busy_us: AtomicU64,
    due_us: AtomicU64,
    climb: Mutex<Climb>,
}

impl Limit {
    /// Requests at once, over all workers.
    #[inline]
    pub(crate) fn get(&self, bounds: Bounds) -> u32 {
        match self.limit.load(Relaxed) {
            0 => bounds.start(),
            limit => limit,
        }
    }

    /// Adds answers and their total time, and decides if that is due.
    pub(crate) fn on_answers(&self, answers: u32, busy_us: u64, now_us: u64, bounds: Bounds) {
        self.answers.fetch_add(answers.into(), Relaxed);
        self.busy_us.fetch_add(busy_us, Relaxed);
        self.look(now_us, bounds);
    }

    /// A request waits because of the limit. Returns the time of the next decision.
    pub(crate) fn on_waiting(&self, now_us: u64, bounds: Bounds) -> u64 {
        self.binds.store(true, Relaxed);
        self.look(now_us, bounds);
        self.due_us.load(Relaxed)
    }

    /// Decides about the limit if that is due and no other worker does so now.
    pub(crate) fn look(&self, now_us: u64, bounds: Bounds) {
        if now_us < self.due_us.load(Relaxed) {
            return;
        }
        let Ok(mut climb) = self.climb.try_lock() else { return };
        if now_us < self.due_us.load(Relaxed) {
            return;
        }
        self.due_us.store(now_us + LOOK_US, Relaxed);
        let (answers, busy_us) = (self.answers.swap(0, Relaxed), self.busy_us.swap(0, Relaxed));
        let limit = climb.look(now_us, answers, busy_us, self.binds.swap(false, Relaxed), bounds);
        self.limit.store(limit, Relaxed);
        self.held.store(climb.learned().is_some(), Relaxed);
    }

    /// Whether a learned limit is in force.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Relaxed)
    }

    /// The learned limit, while it is in force.
    pub(crate) fn learned(&self, now_us: u64) -> Option<Learned> {
        let climb = self.climb.lock().unwrap_or_else(PoisonError::into_inner);
        climb.learned().filter(|_| now_us.saturating_sub(climb.looked_us) < STALE_US)
    }

    /// Another server takes this slot.
    pub(crate) fn forget(&self) {
        *self.climb.lock().unwrap_or_else(PoisonError::into_inner) = Climb::default();
        self.limit.store(0, Relaxed);
        self.held.store(false, Relaxed);
    }
}

impl Bounds {
    /// The limit before the first decision: without it, a server that is overloaded from its first
    /// request on would have no best time.
    fn start(self) -> u32 {
        self.floor.max(START_MIN).clamp(1, self.most.max(1))
    }
}

/// Counts over a period.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    answers: u64,
    busy_us: u64,
    elapsed_us: u64,
    binds: bool,
}

impl Sample {
    fn is_complete(&self) -> bool {
        self.elapsed_us >= SAMPLE_US_MAX
            || self.elapsed_us >= LOOK_US && self.answers >= SAMPLE_ANSWERS
    }

    /// Goodput: answers per 1,000 seconds.
    fn rate(&self) -> u64 {
        self.answers.saturating_mul(1_000_000_000) / self.elapsed_us.max(1)
    }

    /// Mean time of an answer, microseconds; None: too few answers.
    fn mean_us(&self) -> Option<u64> {
        (self.answers >= SAMPLE_ANSWERS_MIN).then(|| self.busy_us / self.answers)
    }

    /// Mean number of requests in progress (Little's law).
    fn at_once(&self) -> u32 {
        u32::try_from(self.busy_us / self.elapsed_us.max(1)).unwrap_or(u32::MAX)
    }

    /// Whether the goodput is clearly higher.
    fn beats(&self, before: &Sample) -> bool {
        let fewest = self.answers.min(before.answers);
        let percent = if fewest >= SAMPLE_ANSWERS { BETTER_PERCENT } else { BETTER_FEW_PERCENT };
        fewest >= SAMPLE_ANSWERS_MIN && self.rate() >= before.rate().saturating_mul(percent) / 100
    }

    /// Whether the goodput is about as high.
    fn equals(&self, before: &Sample) -> bool {
        self.answers >= SAMPLE_ANSWERS_MIN
            && self.rate() >= before.rate().saturating_mul(AS_GOOD_PERCENT) / 100
    }
}

/// A limit in force.
#[derive(Debug, Clone, Copy)]
struct Hold {
    limit: u32,
    /// Before there was a limit.
    origin: Sample,
    /// The latest sample.
    now: Sample,
    /// Complete samples in a row without a waiting request.
    quiet: u32,
    /// Time of the next trial of a higher limit, and the pause before it.
    more_at_us: u64,
    more_us: u64,
}

/// How far a trial is.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Requests in progress are answered first, until this time.
    Settles(u64),
    /// Takes samples; Some: the first of two.
    Counts(Option<Sample>),
}

/// A trial of another limit.
#[derive(Debug, Clone, Copy)]
struct Trial {
    before: Sample,
    /// The state after a failure; None: [`Phase::Open`].
    held: Option<Hold>,
    /// The limit before it.
    limit: u32,
    step: Step,
}

#[derive(Debug, Clone, Copy, Default)]
enum Phase {
    #[default]
    Open,
    Trial(Trial),
    Held(Hold),
}

/// Decides about the limit of one server. Pure: takes times and counts, and returns the limit.
#[derive(Debug, Default)]
pub(crate) struct Climb {
    /// Requests at once; 0: no decision yet.
    limit: u32,
    phase: Phase,
    sample: Sample,
    looked_us: u64,
    /// Best mean time of an answer, microseconds; grows slowly. None: unknown.
    best_us: Option<u64>,
    /// Shortest mean time of an answer so far, microseconds; None: unknown.
    quickest_us: Option<u64>,
    /// Earliest time of the next trial of a lower limit, and the last pause after a failure.
    fewer_at_us: u64,
    pause_us: u64,
}

impl Climb {
    /// Takes the counts since the last call and returns the limit. `busy_us`: total time of the
    /// answers; `binds`: a request waited.
    pub(crate) fn look(
        &mut self,
        now_us: u64,
        answers: u64,
        busy_us: u64,
        binds: bool,
        bounds: Bounds,
    ) -> u32 {
        let elapsed_us = now_us.saturating_sub(std::mem::replace(&mut self.looked_us, now_us));
        if self.limit == 0 || elapsed_us >= STALE_US {
            // Only the first load starts with a limit, until the next look.
            let Climb { best_us, quickest_us, looked_us, .. } = *self;
            let limit = if self.limit == 0 { bounds.start() } else { bounds.most.max(1) };
            *self = Climb { limit, best_us, quickest_us, looked_us, ..Climb::default() };
            return self.limit;
        }
        self.sample.answers += answers;
        self.sample.busy_us += busy_us;
        self.sample.elapsed_us += elapsed_us;
        self.sample.binds |= binds;
        let complete = self.sample.is_complete().then(|| std::mem::take(&mut self.sample));
        if !matches!(self.phase, Phase::Trial(_)) {
            // One look is better than a sample, during which the load may change.
            self.learn_best(answers, busy_us);
        }
        match self.phase {
            Phase::Open => self.look_open(now_us, complete, bounds),
            Phase::Trial(trial) => self.look_trial(now_us, trial, complete, bounds),
            Phase::Held(hold) => self.look_held(now_us, hold, complete, bounds),
        }
        self.limit = self.limit.clamp(bounds.floor.max(1), bounds.most.max(1));
        self.limit
    }

    fn learn_best(&mut self, answers: u64, busy_us: u64) {
        let look = Sample { answers, busy_us, ..Sample::default() };
        if let Some(mean_us) = look.mean_us().or_else(|| self.sample.mean_us()) {
            let known_us = self.best_us.map_or(u64::MAX, |us| us + us / 512 + 1);
            self.best_us = Some(known_us.min(mean_us));
            self.quickest_us = Some(self.quickest_us.map_or(mean_us, |us| us.min(mean_us)));
        }
    }

    /// Whether answers take much longer than the best time.
    fn is_slow(&self, sample: &Sample) -> bool {
        match (sample.mean_us(), self.best_us) {
            (Some(mean_us), Some(best_us)) => mean_us >= best_us.saturating_mul(SLOWER),
            _ => false,
        }
    }

    fn look_open(&mut self, now_us: u64, complete: Option<Sample>, bounds: Bounds) {
        if let Some(sample) = complete {
            let at_once = sample.at_once().min(self.limit);
            let many = at_once > bounds.floor + bounds.floor / 2;
            // If all connections are in use, their number may be the cause.
            let takes_time = self.quickest_us.is_some_and(|us| us >= BEST_US_MIN);
            if many
                && takes_time
                && (sample.binds || self.is_slow(&sample))
                && now_us >= self.fewer_at_us
            {
                return self.begin(now_us, (at_once / 2).max(bounds.floor), sample, None);
            }
        }
        self.limit = bounds.most;
    }

    fn begin(&mut self, now_us: u64, limit: u32, before: Sample, held: Option<Hold>) {
        let settle_us = before.mean_us().unwrap_or(0).clamp(LOOK_US, SETTLE_US_MAX);
        let step = Step::Settles(now_us + settle_us);
        self.phase = Phase::Trial(Trial { before, held, limit: self.limit, step });
        (self.limit, self.sample) = (limit, Sample::default());
    }

    fn look_trial(
        &mut self,
        now_us: u64,
        mut trial: Trial,
        complete: Option<Sample>,
        bounds: Bounds,
    ) {
        let more = self.limit > trial.limit;
        match (trial.step, complete) {
            (Step::Settles(until_us), _) => {
                self.sample = Sample::default();
                if now_us >= until_us {
                    trial.step = Step::Counts(None);
                }
                self.phase = Phase::Trial(trial);
            }
            (Step::Counts(_), None) => {}
            (Step::Counts(_), Some(sample)) if more => self.end_more(now_us, trial, sample),
            (Step::Counts(first), Some(sample)) => match (sample.beats(&trial.before), first) {
                (false, _) => self.fail(now_us, trial),
                (true, None) => {
                    trial.step = Step::Counts(Some(sample));
                    self.phase = Phase::Trial(trial);
                }
                (true, Some(_)) => {
                    let origin = trial.held.map_or(trial.before, |hold| hold.origin);
                    let (quiet, more_us, more_at_us) = (0, MORE_US, now_us + MORE_US);
                    let hold =
                        Hold { limit: self.limit, origin, now: sample, quiet, more_at_us, more_us };
                    (self.pause_us, self.fewer_at_us) = (0, now_us);
                    self.phase = Phase::Held(hold);
                    if self.limit > bounds.floor {
                        self.begin(now_us, (self.limit / 2).max(bounds.floor), sample, Some(hold));
                    }
                }
            },
        }
    }

    /// Ends a trial of a higher limit.
    fn end_more(&mut self, now_us: u64, trial: Trial, sample: Sample) {
        let Some(mut hold) = trial.held else { return self.fail(now_us, trial) };
        if sample.equals(&trial.before) {
            (hold.limit, hold.now, hold.more_us) = (self.limit, sample, MORE_US);
        } else {
            hold.more_us = (hold.more_us * 2).min(MORE_US_MAX);
        }
        hold.more_at_us = now_us + hold.more_us;
        (self.limit, self.phase) = (hold.limit, Phase::Held(hold));
    }

    /// Ends a trial that brought nothing.
    fn fail(&mut self, now_us: u64, trial: Trial) {
        self.pause_us = (self.pause_us * 2).clamp(PAUSE_US, PAUSE_US_MAX);
        self.fewer_at_us = now_us + self.pause_us;
        self.limit = trial.limit;
        self.phase = trial.held.map_or(Phase::Open, Phase::Held);
    }

    fn look_held(&mut self, now_us: u64, mut hold: Hold, complete: Option<Sample>, bounds: Bounds) {
        let Some(sample) = complete else { return };
        hold.quiet = if sample.binds { 0 } else { hold.quiet + 1 };
        if hold.quiet >= QUIET_MAX || sample.answers < SAMPLE_ANSWERS_MIN {
            (self.phase, self.limit) = (Phase::Open, bounds.most);
            return;
        }
        hold.now = sample;
        self.phase = Phase::Held(hold);
        if !sample.binds {
            return;
        }
        if now_us >= hold.more_at_us && hold.limit < bounds.most {
            self.begin(now_us, hold.limit + (hold.limit / 4).max(1), sample, Some(hold));
        } else if now_us >= self.fewer_at_us && hold.limit > bounds.floor {
            self.begin(now_us, (hold.limit / 2).max(bounds.floor), sample, Some(hold));
        }
    }

    /// The learned limit, while it is in force.
    fn learned(&self) -> Option<Learned> {
        let hold = match self.phase {
            Phase::Held(hold) | Phase::Trial(Trial { held: Some(hold), .. }) => hold,
            _ => return None,
        };
        let percent = hold.now.rate().saturating_mul(100) / hold.origin.rate().max(1);
        let gain_percent = u32::try_from(percent.saturating_sub(100)).unwrap_or(u32::MAX);
        Some(Learned { limit: hold.limit, before: hold.origin.at_once(), gain_percent })
    }
}
