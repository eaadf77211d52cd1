//! The figures of a [`Record`] for each class and the verdict about the generator, as text and as
//! JSON.
//!
//! Called at the end of a run. Reads nothing but the record.

use std::fmt::{self, Display, Write as _};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::class::Behaviour;
use super::count::{
    CONNECTS, Connect, Counts, CountsDocument, ENDS, Handshake, OUTCOMES, Outcome, has_failed,
};
use super::record::Record;
use super::slice::{Slice, Times};
use crate::units::show_ns;

/// A thread that was busy for a larger share of the time was the limit.
const BUSY_MAX: f64 = 0.95;
/// The generator looked later than this after a request was due, for one in a hundred: it was the
/// limit.
const LAG_P99_US: u64 = 5_000;
/// Fewer requests offered than this share of those due.
const OFFERED_MIN: f64 = 0.99;

/// A run in figures.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Version of this form: 1.
    pub version: u32,
    /// Counted time.
    pub seconds: f64,
    /// By class, in the order of the command line.
    pub classes: Vec<ClassSummary>,
    /// All classes together.
    pub total: ClassSummary,
    /// The generator itself.
    pub generator: Generator,
}

/// The generator itself.
#[derive(Debug, Clone, Serialize)]
pub struct Generator {
    /// Threads.
    pub threads: usize,
    /// Their driver.
    pub driver: String,
    /// The largest share of its time that a thread used a processor, 0 to 1.
    pub busy: f64,
    /// Processor time of all threads for each request, microseconds.
    pub cpu_us_per_request: Option<f64>,
    /// From when a request was due to when the generator looked. None in a closed loop.
    pub lag: Option<Percentiles>,
    /// Why it was the limit, if it was.
    pub limit: Option<String>,
}

/// One class in figures.
#[derive(Debug, Clone, Serialize)]
pub struct ClassSummary {
    /// Its name; `all` for all together.
    pub name: String,
    /// The outcomes of connections and requests.
    #[serde(flatten)]
    pub counts: CountsDocument,
    /// Requests a second that were due by its rate.
    pub due_per_second: Option<f64>,
    /// Requests a second that were begun or due.
    pub offered_per_second: f64,
    /// Complete responses a second.
    pub answered_per_second: f64,
    /// Blocked attempts, as a share of all, 0 to 1.
    pub blocked: f64,
    /// When a client was first blocked, seconds from the beginning.
    pub first_block_seconds: Option<f64>,
    /// When a client last got no response or one of 500 and more, seconds from the beginning.
    pub last_failure_seconds: Option<f64>,
    /// Times from due to answered; None in a closed loop.
    pub corrected: Option<Percentiles>,
    /// Times from sent to answered.
    pub raw: Option<Percentiles>,
    /// Times of connects.
    pub connect: Option<Percentiles>,
    #[serde(skip)]
    slice: Slice,
    /// Requests that were unfinished at the end and had fulfilled their purpose.
    #[serde(skip)]
    held: u64,
}

/// Times, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: u64,
    /// 90th percentile.
    pub p90_us: u64,
    /// 95th percentile.
    pub p95_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// 99.9th percentile.
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Percentiles {
    /// Returns the percentiles of these times; None when there are none.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Option<Percentiles> {
        let at = |quantile: f64| histogram.value_at_quantile(quantile);
        (!histogram.is_empty()).then(|| Percentiles {
            count: histogram.len(),
            mean_us: histogram.mean(),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max(),
        })
    }
}

impl Summary {
    /// The figures of a record.
    pub fn of(record: &Record) -> Summary {
        let seconds = record.duration_s().max(1e-6);
        let slices: Vec<Slice> = (0..record.names.len()).map(|class| record.total(class)).collect();
        let mut sum = Slice::default();
        slices.iter().for_each(|slice| sum.add(slice));
        let due = |class: usize| {
            record.expected[class].map(|count| count / record.head_seconds().unwrap_or(seconds))
        };
        let all_due = (0..slices.len()).map(due).sum();
        let generator = Generator::of(record, &sum);
        let names = record.names.iter().enumerate();
        let held: Vec<u64> = record
            .behaviours()
            .zip(&slices)
            .map(|(behaviour, slice)| held(behaviour, slice))
            .collect();
        // Beside clients with normal requests, those that only hold connections say nothing about
        // success.
        let all_held = if record.behaviours().any(|it| it == Some(Behaviour::Normal)) {
            0
        } else {
            held.iter().sum()
        };
        Summary {
            version: 1,
            seconds,
            classes: names
                .zip(slices)
                .map(|((at, name), slice)| {
                    ClassSummary::of(name, (slice, held[at]), due(at), seconds)
                })
                .collect(),
            total: ClassSummary::of("all", (sum, all_held), all_due, seconds),
            generator,
        }
    }

    /// A class by its name.
    pub fn class(&self, name: &str) -> Option<&ClassSummary> {
        self.classes.iter().find(|class| class.name == name)
    }
}

impl Generator {
    fn of(record: &Record, sum: &Slice) -> Generator {
        let share = |busy_us: u64, wall_us: u64| busy_us as f64 / wall_us.max(1) as f64;
        let busy = record
            .threads
            .iter()
            .map(|thread| share(thread.busy_us, thread.wall_us))
            .fold(0.0, f64::max);
        let cpu_us: u64 = record.threads.iter().map(|thread| thread.busy_us).sum();
        let lag = sum.times().and_then(|times| Percentiles::of(&times.lag));
        let mut causes = Vec::new();
        if busy > BUSY_MAX {
            causes.push(format!(
                "a thread of the generator was busy for {:.0} % of the time",
                busy * 100.0
            ));
        }
        if let Some(lag) = lag.filter(|lag| lag.p99_us > LAG_P99_US) {
            causes.push(format!(
                "the generator handled 1 % of the requests {} after their due time",
                time(lag.p99_us)
            ));
        }
        let none_left = sum.counts.connects(Connect::NoneLeft);
        if none_left > 0 {
            causes.push(format!("{none_left} connections got no local port or descriptor"));
        }
        Generator {
            threads: record.threads.len(),
            driver: record.threads.first().map_or_else(String::new, |thread| thread.driver.clone()),
            busy,
            cpu_us_per_request: (sum.counts.answered() > 0)
                .then(|| cpu_us as f64 / sum.counts.answered() as f64),
            lag,
            limit: (!causes.is_empty()).then(|| causes.join("; ")),
        }
    }
}

/// Returns the unfinished requests of clients with this behaviour, as far as that is their purpose.
fn held(behaviour: Option<Behaviour>, slice: &Slice) -> u64 {
    let holds = behaviour.is_some_and(Behaviour::holds);
    if holds { slice.counts.outcomes(Outcome::Unfinished) } else { 0 }
}

impl ClassSummary {
    fn of(
        name: &str,
        (slice, held): (Slice, u64),
        due_per_second: Option<f64>,
        seconds: f64,
    ) -> ClassSummary {
        let counts = &slice.counts;
        let of = |which: fn(&Times) -> &Histogram<u64>| {
            slice.times().and_then(|times| Percentiles::of(which(times)))
        };
        ClassSummary {
            name: name.to_owned(),
            counts: counts.document(),
            due_per_second,
            offered_per_second: counts.offered() as f64 / seconds,
            answered_per_second: counts.answered() as f64 / seconds,
            blocked: counts.blocked() as f64 / counts.attempts().max(1) as f64,
            first_block_seconds: slice.first_block_us.map(|us| us as f64 / 1e6),
            last_failure_seconds: slice.last_failure_us.map(|us| us as f64 / 1e6),
            corrected: of(|times| &times.corrected),
            raw: of(|times| &times.raw),
            connect: of(|times| &times.connect),
            slice,
            held,
        }
    }

    /// Whether there were attempts to connect, and nothing else.
    pub fn reached_nobody(&self) -> bool {
        let counts = self.counted();
        counts.attempts() > 0
            && counts.connects(Connect::Established) == 0
            && counts.answered() == 0
    }

    /// Whether there were attempts, and all failed: there was no correct response with a status
    /// below 500, whatever the end of the run cut off. A connection that was the only goal, or that
    /// was held until the end by a client with that purpose, is no failure.
    pub fn failed_entirely(&self) -> bool {
        let counts = self.counted();
        let told = counts
            .statuses
            .iter()
            .filter(|(status, _)| !has_failed(**status))
            .map(|(_, count)| count);
        // Bodies are compared only where the status is fine.
        let answered = told.sum::<u64>().saturating_sub(counts.outcomes(Outcome::WrongBody));
        let tried = counts.attempts() + counts.connects(Connect::Unfinished);
        tried > 0 && answered + counts.outcomes(Outcome::Connected) + self.held == 0
    }

    /// What was counted.
    pub fn counted(&self) -> &Counts {
        &self.slice.counts
    }

    /// Its times, if there are any.
    pub(crate) fn times(&self) -> Option<&Times> {
        self.slice.times()
    }

    /// Returns the time below which this share of the responses came, microseconds: from due where
    /// there is a rate, else from sent.
    pub fn latency_us(&self, quantile: f64) -> Option<u64> {
        let histogram = self.slice.times()?.latency();
        (!histogram.is_empty()).then(|| histogram.value_at_quantile(quantile))
    }

    /// The mean of the same, microseconds.
    pub fn mean_us(&self) -> Option<f64> {
        self.corrected.or(self.raw).map(|percentiles| percentiles.mean_us)
    }

    fn write(&self, out: &mut String) {
        let counts = self.counted();
        let _ = write!(out, "{:<12} offered {}/s", self.name, rate(self.offered_per_second));
        if let Some(due) = self.due_per_second {
            let short = self.offered_per_second < due * OFFERED_MIN;
            let _ = write!(out, " of {}/s due{}", rate(due), if short { " (short)" } else { "" });
        }
        let _ = writeln!(
            out,
            ", answered {}/s, blocked {}",
            rate(self.answered_per_second),
            share(self.blocked)
        );
        let statuses: Vec<String> =
            counts.statuses.iter().map(|(code, count)| format!("{code}: {count}")).collect();
        let outcomes = words(OUTCOMES.iter().map(|(it, _, words)| (*words, counts.outcomes(*it))));
        put(out, "requests", &outcomes);
        put(out, "statuses", &statuses.join(", "));
        put(
            out,
            "connections",
            &words(CONNECTS.iter().map(|(it, _, words)| (*words, counts.connects(*it)))),
        );
        let shown = |it: Handshake| {
            if let Handshake::Failed(_) = it {
                format!("failed: {}", it.word())
            } else {
                it.word().to_owned()
            }
        };
        let handshakes: Vec<(String, u64)> =
            Handshake::all().map(|it| (shown(it), counts.handshakes(it))).collect();
        put(
            out,
            "handshakes",
            &words(handshakes.iter().map(|(words, count)| (words.as_str(), *count))),
        );
        put(out, "resets", &words(counts.resets()));
        put(out, "goaways", &words(counts.goaways()));
        put(out, "ended", &words(ENDS.iter().map(|(it, _, words)| (*words, counts.ends(*it)))));
        if counts.late > 0 {
            put(out, "late", &counts.late.to_string());
        }
        if let Some(seconds) = self.first_block_seconds {
            put(out, "first block", &format!("after {seconds:.3} s"));
        }
        if let Some(seconds) = self.last_failure_seconds {
            put(out, "last failure", &format!("after {seconds:.3} s"));
        }
        for (name, percentiles) in
            [("from due", self.corrected), ("from sent", self.raw), ("connect", self.connect)]
        {
            if let Some(percentiles) = percentiles {
                put(out, name, &percentiles.to_string());
            }
        }
    }
}

/// Writes one line under a class; nothing when the text is empty.
fn put(out: &mut String, name: &str, text: &str) {
    if !text.is_empty() {
        let _ = writeln!(out, "  {name:<13}{text}");
    }
}

fn words<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let parts: Vec<String> = counts
        .filter(|(_, count)| *count > 0)
        .map(|(words, count)| format!("{count} {words}"))
        .collect();
    parts.join(", ")
}

/// A rate with three digits or more.
fn rate(per_second: f64) -> String {
    if per_second < 100.0 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

fn share(of_one: f64) -> String {
    let percent = of_one * 100.0;
    if percent == 0.0 || percent >= 10.0 {
        format!("{percent:.0} %")
    } else {
        format!("{percent:.2} %")
    }
}

/// A time with its unit.
pub(crate) fn time(us: u64) -> String {
    show_ns(us * 1000)
}

impl Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("p50", self.p50_us),
            ("p90", self.p90_us),
            ("p99", self.p99_us),
            ("p99.9", self.p999_us),
            ("max", self.max_us),
        ];
        let parts: Vec<String> =
            parts.iter().map(|(name, us)| format!("{name} {}", time(*us))).collect();
        f.write_str(&parts.join(", "))
    }
}

impl Display for Summary {
    /// For people: each class, then the generator and whether it was the limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        for class in &self.classes {
            class.write(&mut out);
        }
        if self.classes.len() > 1 {
            self.total.write(&mut out);
        }
        let generator = &self.generator;
        let _ = write!(
            out,
            "{:<12} {:.1} s, {} threads on {}, at most {:.0} % busy",
            "generator",
            self.seconds,
            generator.threads,
            generator.driver,
            generator.busy * 100.0
        );
        if let Some(cpu_us) = generator.cpu_us_per_request {
            let _ = write!(out, ", {cpu_us:.2} us of processor per request");
        }
        if let Some(lag) = generator.lag {
            let _ =
                write!(out, ", handled requests {} (p99) after their due time", time(lag.p99_us));
        }
        out.push('\n');
        match &generator.limit {
            Some(cause) => {
                let _ = writeln!(out, "verdict      the generator was the limit: {cause}");
            }
            None if self.total.counted().outcomes(Outcome::Unsent) > 0 => {
                let _ = writeln!(
                    out,
                    "verdict      requests waited for connections: the server, or too few of \
                        them (-c)"
                );
            }
            None => {}
        }
        f.write_str(&out)
    }
}
