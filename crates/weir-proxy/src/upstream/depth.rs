//! How many unanswered requests a connection gets before the next one is used.
//!
//! The engine keeps one [`Depth`] a server, fills connections up to [`Depth::limit`] and reports
//! each receive that brought complete responses. Fill-first makes batches (many requests in one
//! send), and batches make pipelining cheap; but a request behind a slow one waits for it.
//! docs/pipelining.md#depth
//!
//! Three questions decide, in this order:
//! 1. Is a deep pipeline harmless in any case? Its delay is the time a connection needs for one
//!    response times the depth. A delay below [`DELAY_BUDGET_US`] is no problem: 16 deep at 60 µs,
//!    1 deep at 10 ms.
//! 2. Is the delay that of a line at all? A response in a line takes as long as one with no request
//!    in front: the first on an empty connection. Where machines are busy the first waits as well,
//!    and those behind it come along for free.
//! 3. Does the *depth* cause the delay? A server that sleeps 10 ms for each request needs four
//!    times as long for four in a row. A saturated server takes as long for 64 requests whether
//!    they come on 64 connections or on four, so that fewer requests on a connection would only
//!    cost more. Observation can't tell these apart, only an experiment can: a trial changes the
//!    depth for one epoch and compares the time to drain a full pipeline.
//!
//! A rejected trial is followed by a pause that doubles, so that the limit doesn't flap; the pause
//! ends early when the server becomes twice as fast or slow. Integers only, one division an epoch.

use crate::plan::PipelineMode;

#[cfg(test)]
mod tests;

/// Delay from depth that is accepted without asking what causes it. About the time that the network
/// and a scheduler turn cost anyway.
pub(crate) const DELAY_BUDGET_US: u64 = 1000;
/// Deepest adaptive pipeline. From 32 on a further doubling hardly shows in the CPU for a request;
/// a single connection needs more to stay busy during a long turn. But what a closing connection
/// leaves unanswered is sent again: at 128, and servers that close after 1,000 requests, one
/// request in eight at worst.
pub(crate) const DEPTH_MAX: u32 = 128;
/// Depth before anything is known: no request waits behind another until that is found to cost
/// nothing.
pub(crate) const DEPTH_START: u32 = 1;

/// An epoch lasts at least this long: a few turns of a scheduler on a machine whose processors are
/// all busy. Shorter ones only show which process was running just then, and the limit wanders.
const EPOCH_US_MIN: u64 = 10_000;
/// It has at least this many receives, for a mean that a single hiccup doesn't decide.
const EPOCH_RECEIVES_MIN: u32 = 16;
/// And this many responses...
const EPOCH_ANSWERS_MIN: u64 = 64;
/// ...or this much time spent waiting for them: a slow server is recognised sooner than after 64
/// responses.
const EPOCH_WAITED_US: u64 = 100_000;
/// A trial is judged by an epoch this many times as long: it is more expensive to be wrong.
const TRIAL_EPOCHS: u32 = 4;
/// After a trial begins, responses to requests that were sent before it still come. A shallower one
/// is settled when the depth found no longer falls, and after this many epochs at the latest.
const SETTLING_EPOCHS_MAX: u32 = 64;
/// A shallower trial is not abandoned before this many epochs.
const SETTLING_EPOCHS_MIN: u32 = 2;
/// The epochs after which a deeper trial is settled.
const SETTLING_EPOCHS: u32 = 4;
/// Epochs that are ignored after a rejected trial.
const UNSETTLED_EPOCHS: u32 = 2;
/// A trial makes the depth this many times larger: enough to stand out from noise.
const TRIAL_FACTOR: u32 = 4;
/// From one request at a time the first trial uses this depth, with which batches have most of what
/// they can give (3-byte file, 64 clients); and depth two where responses take longer than
/// [`TRIAL_ANSWER_US_MAX`].
const TRIAL_FIRST: u32 = 16;
/// A deeper trial is not begun when one response takes longer than this: then the price of trying
/// is too high...
const TRIAL_ANSWER_US_MAX: u64 = 8 * DELAY_BUDGET_US;
/// ...except where a worker has this many responses a second: sharing saves something there, and
/// long times may be long because all wait for the same processors.
const TRIAL_ANSWERS_PER_S: u64 = 4_000;
/// Epochs without a trial after the first rejected one; doubles.
const PAUSE_EPOCHS_MIN: u32 = 64;
/// Longest pause. A trial takes about 8 epochs: one request in a thousand is in one.
const PAUSE_EPOCHS_MAX: u32 = 8192;

/// What a receive on one connection brought.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answers {
    /// The time.
    pub now_us: u64,
    /// Since the later of the oldest one's send and the previous response on that connection.
    pub elapsed_us: u64,
    /// Complete responses.
    pub count: u32,
    /// Its unanswered requests before it, and its share of the requests that wait because all
    /// connections are full (they are delayed as if they were in line behind it).
    pub depth: u32,
    /// The oldest request had found the connection empty.
    pub first: bool,
}

/// The depth of the connections to one server.
///
/// Invariant: 1 ≤ `limit` ≤ `max`; with a fixed depth they are equal and nothing else is used.
#[derive(Debug, Clone)]
pub(crate) struct Depth {
    limit: u32,
    max: u32,
    adaptive: bool,
    epoch: Epoch,
    /// When it began.
    epoch_us: u64,
    /// Time from a request on an empty connection to the first response, averaged.
    first_ns: u64,
    /// Mean of the last epoch, the centre that deviations are taken from.
    mean_ns: u64,
    trial: Option<Trial>,
    /// Epochs that are ignored, because connections still hold what a rejected trial has put on
    /// them.
    unsettled: u32,
    /// The direction of the next trial when both are possible: that of the last accepted, or
    /// against the last rejected.
    deeper_next: bool,
    pause: Pause,
}

/// Sums since the last decision.
#[derive(Debug, Clone, Default)]
struct Epoch {
    receives: u32,
    answers: u64,
    /// Sum of `elapsed_us`.
    waited_us: u64,
    /// Sum of the distances from the mean.
    deviation_ns: u64,
    /// Sum of the depths found.
    depths: u64,
}

/// What an epoch shows.
#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    /// Time a connection takes for one response.
    mean_ns: u64,
    /// Mean of unanswered requests on a connection, in sixteenths.
    depth_x16: u64,
    /// The depth that keeps the delay, with its deviation, within the budget.
    harmless: u32,
    /// A receive brings several responses.
    batches: bool,
    /// Responses a second.
    per_s: u64,
}

impl Reading {
    /// How long a connection takes for all its unanswered requests.
    fn drain_ns(self) -> u64 {
        self.mean_ns.saturating_mul(self.depth_x16) / 16
    }

    /// More requests than all connections may hold: the limit doesn't decide how long they wait.
    fn is_crowded(self, limit: u32) -> bool {
        self.depth_x16 > 16 * u64::from(limit)
    }

    /// The connections would hold more if the limit were higher.
    fn is_held_back(self, limit: u32) -> bool {
        self.depth_x16 > 8 * u64::from(limit)
    }
}

/// A depth being tried for one epoch.
#[derive(Debug, Clone, Copy)]
struct Trial {
    /// Limit to go back to.
    from: u32,
    /// The reading at that limit.
    before: Reading,
    /// Epochs that may still pass until it is settled.
    settling: u32,
    /// Depth found in the last of them.
    settling_x16: u64,
}

/// No trials for a while.
#[derive(Debug, Clone, Default)]
struct Pause {
    /// Epochs left.
    left: u32,
    /// Length of the last pause.
    last: u32,
    /// What a connection took for all its requests when it began.
    drain_ns: u64,
}

impl Depth {
    /// `queue_size`: no connection gets more than this (at least 1).
    pub(crate) fn new(mode: PipelineMode, queue_size: u32) -> Depth {
        let queue_size = queue_size.max(1);
        let (limit, max) = match mode {
            PipelineMode::Off => (1, 1),
            PipelineMode::Depth(depth) => (depth.clamp(1, queue_size), depth.clamp(1, queue_size)),
            PipelineMode::Adaptive => (DEPTH_START.min(queue_size), DEPTH_MAX.min(queue_size)),
        };
        let adaptive = mode == PipelineMode::Adaptive && max > 1;
        let (epoch, pause) = (Epoch::default(), Pause::default());
        Depth {
            limit,
            max,
            adaptive,
            epoch,
            epoch_us: 0,
            first_ns: 0,
            mean_ns: 0,
            trial: None,
            unsettled: 0,
            deeper_next: false,
            pause,
        }
    }

    /// Returns up to how many unanswered requests a connection gets before the next one is used.
    /// When all connections have that many, further requests wait.
    #[inline]
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Whether the depth is adaptive.
    #[inline]
    pub(crate) fn is_adaptive(&self) -> bool {
        self.adaptive
    }

    /// Learns from a receive.
    #[inline]
    pub(crate) fn on_answers(&mut self, answers: &Answers) {
        if self.adaptive && answers.count > 0 {
            self.epoch.add(answers, self.mean_ns);
            if answers.first {
                self.first_ns =
                    (self.first_ns / 8 * 7).saturating_add(answers.elapsed_us.saturating_mul(125));
            }
            // A trial is judged by a long epoch, because it is more expensive to be wrong.
            let times = if matches!(self.trial, Some(Trial { settling: 0, .. })) {
                TRIAL_EPOCHS
            } else {
                1
            };
            let lasted_us = answers.now_us.saturating_sub(self.epoch_us);
            if lasted_us >= EPOCH_US_MIN * u64::from(times) && self.epoch.is_over(times) {
                self.epoch_us = answers.now_us;
                self.decide(lasted_us);
            }
        }
    }

    /// An epoch is over that lasted this long.
    fn decide(&mut self, lasted_us: u64) {
        let reading = std::mem::take(&mut self.epoch).reading(self.max, lasted_us);
        self.mean_ns = reading.mean_ns;
        match &mut self.trial {
            None if self.unsettled > 0 => self.unsettled -= 1,
            None => self.adjust(reading),
            Some(trial) => {
                let is_judged = trial.settling == 0 || trial.settle(self.limit, reading);
                if is_judged {
                    self.judge(reading);
                }
            }
        }
    }

    /// Ends a trial: a smaller depth is kept if it drains sooner, a larger one if it drains as
    /// soon.
    fn judge(&mut self, now: Reading) {
        let Some(trial) = self.trial.take() else { return };
        let (from, before_ns) = (trial.from, trial.before.drain_ns());
        // Neither direction accepts times between the two bounds: that keeps the limit from
        // flapping.
        let accepted = if self.limit > from {
            // Without more depth nothing was tried.
            trial.is_deeper(now) && now.drain_ns() <= trial.tolerated_ns()
        } else {
            now.drain_ns() <= before_ns / 5 * 3
        };
        self.deeper_next = (self.limit > from) == accepted;
        if !accepted {
            self.limit = from;
            self.unsettled = UNSETTLED_EPOCHS;
            self.pause.begin(before_ns);
        }
    }

    fn adjust(&mut self, reading: Reading) {
        let limit = self.limit;
        let quick = reading.mean_ns <= TRIAL_ANSWER_US_MAX * 1000;
        let deeper = match limit {
            1 if quick => TRIAL_FIRST,
            1 => 2,
            limit => limit * TRIAL_FACTOR,
        };
        let deeper = deeper.min(self.max);
        let cheap = quick || reading.per_s >= TRIAL_ANSWERS_PER_S;
        let may_rise = limit < self.max && reading.is_held_back(limit) && cheap;
        // A request in line takes as long as one with no other before it: then standing in line is
        // what costs.
        let is_line = reading.mean_ns >= self.first_ns / 2;
        let may_fall = is_line && reading.harmless <= limit / 2;
        let pause_is_over = self.pause.is_over(reading.drain_ns());
        // Requests wait, here or there, so that batches are free. Half of the line leaves no
        // connection idle.
        let half = u32::try_from(reading.depth_x16 / 32).unwrap_or(deeper).min(deeper);
        if reading.harmless / 2 >= limit {
            self.limit = reading.harmless.min(deeper);
        } else if reading.is_crowded(limit) && half > limit && (reading.batches || may_rise) {
            self.limit = half;
        } else if (may_fall || may_rise) && pause_is_over {
            if may_fall && reading.depth_x16 < 24 {
                // The depth is hardly used: nothing can be tried, nothing is lost.
                self.limit = reading.harmless.max(limit / TRIAL_FACTOR);
                return;
            }
            let rises = may_rise && (self.deeper_next || !may_fall);
            self.limit = if rises { deeper } else { reading.harmless };
            let settling = if rises { SETTLING_EPOCHS } else { SETTLING_EPOCHS_MAX };
            self.trial =
                Some(Trial { from: limit, before: reading, settling, settling_x16: u64::MAX });
        }
    }
}

impl Trial {
    /// Takes note of an epoch while settling. True when the trial is clearly worse already: then it
    /// ends at once, because all requests wait while it lasts.
    fn settle(&mut self, limit: u32, now: Reading) -> bool {
        let shallower = limit < self.from;
        let settled = shallower && (!now.is_crowded(limit) || now.depth_x16 >= self.settling_x16);
        self.settling = if settled { 0 } else { self.settling - 1 };
        self.settling_x16 = now.depth_x16;
        if shallower {
            // The first epochs still bring responses of the deeper time.
            self.settling + SETTLING_EPOCHS_MIN <= SETTLING_EPOCHS_MAX
                && now.drain_ns() > self.tolerated_ns()
        } else {
            // In the first epoch responses come that were waited for as before.
            self.settling + 1 < SETTLING_EPOCHS
                && self.is_deeper(now)
                && now.drain_ns() / 2 > self.tolerated_ns()
        }
    }

    /// Whether the connections really hold more than before.
    fn is_deeper(&self, now: Reading) -> bool {
        now.depth_x16 >= self.before.depth_x16 / 2 * 3
    }

    /// What a deeper pipeline may take: a quarter more, plus a difference too small to matter.
    fn tolerated_ns(&self) -> u64 {
        let before_ns = self.before.drain_ns();
        before_ns.saturating_add(before_ns / 4 + DELAY_BUDGET_US * 1000 / 5)
    }
}

impl Epoch {
    fn add(&mut self, answers: &Answers, mean_ns: u64) {
        let Answers { elapsed_us, count, depth, .. } = *answers;
        self.receives += 1;
        self.answers += u64::from(count);
        self.waited_us = self.waited_us.saturating_add(elapsed_us);
        let expected_ns = mean_ns.saturating_mul(u64::from(count));
        let distance_ns = elapsed_us.saturating_mul(1000).abs_diff(expected_ns);
        self.deviation_ns = self.deviation_ns.saturating_add(distance_ns);
        self.depths += u64::from(depth.max(count));
    }

    fn is_over(&self, epochs: u32) -> bool {
        let times = u64::from(epochs);
        self.receives >= EPOCH_RECEIVES_MIN * epochs
            && (self.answers >= EPOCH_ANSWERS_MIN * times
                || self.waited_us >= EPOCH_WAITED_US * times)
    }

    fn reading(&self, max: u32, lasted_us: u64) -> Reading {
        let mean_ns = self.waited_us.saturating_mul(1000) / self.answers;
        // A deviation from a mean that was far off only says that the mean was far off.
        let deviation_ns = (self.deviation_ns / self.answers).min(mean_ns);
        let harmless = DELAY_BUDGET_US * 1000 / (mean_ns + deviation_ns).max(1);
        Reading {
            mean_ns,
            depth_x16: 16 * self.depths / u64::from(self.receives),
            harmless: u32::try_from(harmless).unwrap_or(max).clamp(1, max),
            batches: self.answers >= 4 * u64::from(self.receives),
            per_s: self.answers.saturating_mul(1_000_000) / lasted_us.max(1),
        }
    }
}

impl Pause {
    fn begin(&mut self, drain_ns: u64) {
        self.last = (self.last * 2).clamp(PAUSE_EPOCHS_MIN, PAUSE_EPOCHS_MAX);
        self.left = self.last;
        self.drain_ns = drain_ns;
    }

    /// Counts an epoch. A server that became twice as fast or slow ends the pause.
    fn is_over(&mut self, drain_ns: u64) -> bool {
        if drain_ns / 2 > self.drain_ns || drain_ns < self.drain_ns / 2 {
            *self = Pause::default();
        }
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}
