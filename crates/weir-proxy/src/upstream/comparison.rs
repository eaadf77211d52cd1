//! Decides whether kept connections to a server are worse than fresh ones, as one worker sees it
//! (`pool "fresh"`). Pure.
//!
//! In front of servers whose workers do one request after the other, a kept connection ties its
//! requests to the worker that accepted it, busy or not, while a fresh one is accepted by an idle
//! worker. The better way is found by measuring: one request in [`PROBE_EVERY`], or one each
//! [`PROBE_US`], takes the way that the others don't; the way that is known to be worse gets one in
//! [`PROBE_WORSE_EVERY`]. The 99th percentiles of the time from a request to the beginning of its
//! response are compared; for a fresh connection that includes its connect. They come from two
//! small histograms. Their counts are halved every [`HALF_US`], and later for the kind that only
//! probes use, because hundreds of responses are needed to show that one in a hundred is slow.
//!
//! Called by [`super::fresh`]. Bounds: 2 KiB for each server and worker, only with this pool; a
//! percentile is at most an eighth too high. docs/pools.md#kept-or-fresh.

use crate::base::log_buckets::Scale;

/// One request in this many takes the other way.
const PROBE_EVERY: u32 = 100;
/// The same until the times of fresh connections are known for the first time.
const PROBE_EVERY_AT_FIRST: u32 = 16;
/// One request uses a fresh connection when none has for this long.
const PROBE_US: u64 = 1_000_000;
/// One request in this many uses a kept connection while those are worse: even where every fourth
/// of them is slow, that slows less than one request in 1,000.
const PROBE_WORSE_EVERY: u32 = 400;
/// Or when none has for this long,
const PROBE_WORSE_US: u64 = 5_000_000;
/// but not more than one in this many.
const PROBE_WORSE_LEAST: u32 = 10;
/// Kept connections are worse when they take more than this many times as long as fresh ones,
const WORSE_TIMES: u64 = 4;
/// and longer by at least this.
const WORSE_US: u64 = 1_000;
/// They are good again when they take less than this many times as long,
const GOOD_TIMES: u64 = 2;
/// or hardly longer.
const GOOD_US: u64 = 500;
/// Fresh connections that fail in a row after which none is made
pub(crate) const FAILURES_MAX: u32 = 8;
/// for this long.
const PAUSE_US: u64 = 10_000_000;
/// Counts are halved after this time,
const HALF_US: u64 = 5_000_000;
/// those of the kind that only probes use after this number of responses,
const HALF_PROBES: u32 = 128;
/// or after this time.
const HALF_US_MAX: u64 = 60_000_000;
/// Responses without which nothing is judged.
const SAMPLES_MIN: u32 = 8;
/// Of this many responses on fresh connections one may be slow by chance, while they are few. If it
/// was not chance, that shows when all are fresh.
const CHANCE_MIN: u32 = 16;
const FEW: u32 = 512;

/// Steps an octave, as a power of two.
const STEP_BITS: u32 = 3;
type Buckets = Scale<STEP_BITS>;
/// Longer times (a minute and more) count as this.
const TIME_BITS: u32 = 26;
const BUCKETS: usize = Buckets::buckets(TIME_BITS);
/// What one response adds, so that halves of it still count.
const WEIGHT: u32 = 64;

/// Recent times of one kind. `total` is the sum of `counts`.
#[derive(Debug, Clone)]
struct Recent {
    counts: Box<[u32; BUCKETS]>,
    total: u32,
    /// Responses since the counts were halved.
    news: u32,
    halved_us: u64,
}

impl Recent {
    fn new(now_us: u64) -> Recent {
        Recent { counts: Box::new([0; BUCKETS]), total: 0, news: 0, halved_us: now_us }
    }

    /// `probed`: only probes use it.
    fn record(&mut self, now_us: u64, time_us: u64, probed: bool) {
        let age_us = now_us.saturating_sub(self.halved_us);
        let (is_old, has_enough) = match probed {
            true => (self.news >= HALF_PROBES, true),
            false => (age_us >= HALF_US, self.news >= SAMPLES_MIN),
        };
        // 2^20 responses fit, whatever their weight.
        if self.total >= WEIGHT << 20 || is_old && has_enough || age_us >= HALF_US_MAX {
            self.halve(now_us);
        }
        self.counts[Buckets::bucket(time_us.min((1 << TIME_BITS) - 1))] += WEIGHT;
        (self.total, self.news) = (self.total + WEIGHT, self.news.saturating_add(1));
    }

    fn halve(&mut self, now_us: u64) {
        self.counts.iter_mut().for_each(|count| *count /= 2);
        self.total = self.counts.iter().sum();
        (self.news, self.halved_us) = (0, now_us);
    }

    /// Only probes use it from now on, and they are few: old counts must not weigh more than the
    /// new ones will.
    fn lighten(&mut self, now_us: u64) {
        while self.total > HALF_PROBES * WEIGHT {
            self.halve(now_us);
        }
    }

    /// The 99th percentile, microseconds; None: too few responses have come. With `chance` one
    /// response of each [`CHANCE_MIN`] may be slower while there are fewer than [`FEW`].
    fn p99_us(&self, chance: bool) -> Option<u64> {
        if self.total < SAMPLES_MIN * WEIGHT {
            return None;
        }
        let forgiven = if chance && self.total < FEW * WEIGHT {
            self.total / WEIGHT / CHANCE_MIN * WEIGHT
        } else {
            0
        };
        let mut above = forgiven.max(self.total / 100);
        for (bucket, count) in self.counts.iter().enumerate().rev() {
            if *count > above {
                return Some(Buckets::first(bucket) + Buckets::width(bucket) - 1);
            }
            above -= count;
        }
        None
    }
}

/// Which connections a request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One that is kept, and shared.
    Kept,
    /// One that is made for it.
    Fresh,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Comparison {
    kept: Recent,
    fresh: Recent,
    /// Requests go on fresh connections.
    in_force: bool,
    /// The times of fresh ones have been known at some time.
    known: bool,
    /// Requests since one went the other way, and when that was.
    since_probe: u32,
    probed_us: u64,
    /// When the last response was measured.
    measured_us: u64,
    /// Fresh connections that failed in a row.
    failures: u32,
    /// No fresh one is made before this time.
    paused_until_us: u64,
}

impl Comparison {
    /// Starts without knowledge of any connection.
    pub(crate) fn new(now_us: u64) -> Comparison {
        Comparison {
            kept: Recent::new(now_us),
            fresh: Recent::new(now_us),
            in_force: false,
            known: false,
            since_probe: 0,
            probed_us: now_us,
            measured_us: now_us,
            failures: 0,
            paused_until_us: 0,
        }
    }

    /// Decides which kind of connection the next request uses. `may_probe`: it may take another way
    /// than the others.
    pub(crate) fn next(&mut self, now_us: u64, may_probe: bool) -> Kind {
        if self.in_force && now_us.saturating_sub(self.measured_us) > HALF_US_MAX {
            // Only requests come that may not be measured: nothing shows any more that kept ones
            // are worse.
            (self.in_force, self.kept, self.fresh) =
                (false, Recent::new(now_us), Recent::new(now_us));
        }
        let (usual, other) =
            if self.in_force { (Kind::Fresh, Kind::Kept) } else { (Kind::Kept, Kind::Fresh) };
        if !may_probe || now_us < self.paused_until_us {
            return usual;
        }
        self.since_probe += 1;
        let (every, after_us, at_least) = match self.in_force {
            true => (PROBE_WORSE_EVERY, PROBE_WORSE_US, PROBE_WORSE_LEAST),
            false if self.known => (PROBE_EVERY, PROBE_US, 1),
            false => (PROBE_EVERY_AT_FIRST, PROBE_US, 1),
        };
        let is_time = now_us >= self.probed_us + after_us && self.since_probe >= at_least;
        if self.since_probe < every && !is_time {
            return usual;
        }
        (self.since_probe, self.probed_us) = (0, now_us);
        other
    }

    /// A response has begun, `time_us` after its request had arrived. True: requests use fresh
    /// connections from now on.
    pub(crate) fn record(&mut self, kind: Kind, now_us: u64, time_us: u64) -> bool {
        self.measured_us = now_us;
        match kind {
            Kind::Kept => self.kept.record(now_us, time_us, self.in_force),
            Kind::Fresh => {
                self.failures = 0;
                self.fresh.record(now_us, time_us, !self.in_force);
            }
        }
        self.judge(now_us)
    }

    fn judge(&mut self, now_us: u64) -> bool {
        let [Some(kept_us), Some(fresh_us)] = self.p99s_us() else { return false };
        self.known = true;
        let was = self.in_force;
        self.in_force = match was {
            false => kept_us > WORSE_TIMES * fresh_us && kept_us >= fresh_us + WORSE_US,
            true => kept_us >= GOOD_TIMES * fresh_us && kept_us >= fresh_us + GOOD_US,
        };
        match (was, self.in_force) {
            (false, true) => self.kept.lighten(now_us),
            (true, false) => self.fresh.lighten(now_us),
            _ => {}
        }
        self.in_force && !was
    }

    /// A fresh connection could not be made, or ended before its response began.
    pub(crate) fn on_failure(&mut self, now_us: u64) {
        self.failures += 1;
        if self.failures >= FAILURES_MAX {
            // Earlier measurements of them no longer apply.
            self.fresh = Recent::new(now_us);
            (self.failures, self.in_force, self.known) = (0, false, true);
            self.paused_until_us = now_us + PAUSE_US;
        }
    }

    /// Whether requests use fresh connections now.
    pub(crate) fn is_in_force(&self) -> bool {
        self.in_force
    }

    /// The 99th percentiles of kept and of fresh connections, microseconds; None: too little is
    /// known.
    pub(crate) fn p99s_us(&self) -> [Option<u64>; 2] {
        [self.kept.p99_us(false), self.fresh.p99_us(true)]
    }
}

#[cfg(test)]
mod tests;
