//! Conditions under which a run counts as failed: `p99>20ms`, `attackers: blocked<99%`. Called by
//! the verb before the run (to read them) and after it.

use super::summary::{ClassSummary, Summary, time};
use crate::units::{duration_us, number};

/// The metrics of a condition.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Metric {
    /// A percentile of the latency, 0 to 1; microseconds.
    Quantile(f64),
    /// The mean latency, microseconds.
    Mean,
    /// Responses a second.
    Rate,
    /// Per cent of the attempts.
    Blocked,
    /// Per cent of the attempts.
    Failed,
    /// Per cent of the attempts.
    Answered,
    /// Per cent of the responses.
    Late,
    /// Per cent of the responses: those of a status class.
    Status(u16),
}

/// Their words.
const METRICS: &[(&str, Metric)] = &[
    ("p50", Metric::Quantile(0.5)),
    ("p75", Metric::Quantile(0.75)),
    ("p90", Metric::Quantile(0.9)),
    ("p95", Metric::Quantile(0.95)),
    ("p99", Metric::Quantile(0.99)),
    ("p99.9", Metric::Quantile(0.999)),
    ("max", Metric::Quantile(1.0)),
    ("mean", Metric::Mean),
    ("rate", Metric::Rate),
    ("blocked", Metric::Blocked),
    ("failed", Metric::Failed),
    ("answered", Metric::Answered),
    ("late", Metric::Late),
    ("2xx", Metric::Status(2)),
    ("3xx", Metric::Status(3)),
    ("4xx", Metric::Status(4)),
    ("5xx", Metric::Status(5)),
];

/// One condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    text: String,
    class: Option<String>,
    metric: Metric,
    above: bool,
    /// Microseconds, requests a second, or per cent.
    value: f64,
}

impl Threshold {
    /// Reads `[CLASS:] METRIC>VALUE` or `<`.
    ///
    /// # Errors
    /// The text says what is wrong and what is expected.
    pub fn parse(text: &str) -> Result<Threshold, String> {
        let wrong = |why: String| format!("`{text}`: {why}");
        let (class, condition) = match text.split_once(':') {
            Some((class, condition)) => (Some(class.trim().to_owned()), condition.trim()),
            None => (None, text.trim()),
        };
        let at = condition
            .find(['<', '>'])
            .ok_or_else(|| wrong("expected METRIC>VALUE or METRIC<VALUE".to_owned()))?;
        let (word, value) = (condition[..at].trim(), condition[at + 1..].trim());
        let Some((_, metric)) = METRICS.iter().find(|(its, _)| *its == word) else {
            let words: Vec<&str> = METRICS.iter().map(|(word, _)| *word).collect();
            return Err(wrong(format!("no metric `{word}`; there are {}", words.join(", "))));
        };
        let value = metric.value(value).map_err(wrong)?;
        Ok(Threshold {
            text: text.to_owned(),
            class,
            metric: *metric,
            above: condition.as_bytes()[at] == b'>',
            value,
        })
    }

    /// Returns the class that it applies to; None is all of them.
    pub fn class(&self) -> Option<&str> {
        self.class.as_deref()
    }

    /// Whether it judges the outcome of attempts, including those to connect.
    pub fn judges_attempts(&self) -> bool {
        matches!(self.metric, Metric::Blocked | Metric::Failed | Metric::Answered)
    }

    /// Whether it judges the statuses of responses.
    pub fn judges_statuses(&self) -> bool {
        matches!(self.metric, Metric::Status(_))
    }

    /// Returns how the run fails it; None when it does not. A value that can't be measured, because
    /// there was no response, fails.
    pub fn failure(&self, summary: &Summary) -> Option<String> {
        let class = match &self.class {
            Some(name) => summary.class(name)?,
            None => &summary.total,
        };
        let Some(measured) = self.metric.measure(class) else {
            return Some(format!("{}: no request was answered", self.text));
        };
        let failed = if self.above { measured > self.value } else { measured < self.value };
        failed.then(|| format!("{}: it is {}", self.text, self.metric.show(measured)))
    }
}

impl Metric {
    fn value(self, text: &str) -> Result<f64, String> {
        match self {
            Metric::Quantile(_) | Metric::Mean => duration_us(text).map(|us| us as f64),
            Metric::Rate => number(text.strip_suffix("/s").unwrap_or(text)),
            _ => match text.strip_suffix('%') {
                Some(digits) => number(digits.trim()),
                None => Err(format!("`{text}` is not a share such as 99%")),
            },
        }
    }

    fn measure(self, class: &ClassSummary) -> Option<f64> {
        let counts = class.counted();
        let of = |part: u64, whole: u64| (whole > 0).then(|| part as f64 * 100.0 / whole as f64);
        match self {
            Metric::Quantile(quantile) => class.latency_us(quantile).map(|us| us as f64),
            Metric::Mean => class.mean_us(),
            Metric::Rate => Some(class.answered_per_second),
            Metric::Blocked => of(counts.blocked(), counts.attempts()),
            Metric::Failed => of(counts.failed(), counts.attempts()),
            Metric::Answered => of(counts.answered(), counts.attempts()),
            Metric::Late => of(counts.late, counts.answered()),
            Metric::Status(class) => of(counts.status_class(class), counts.answered()),
        }
    }

    fn show(self, measured: f64) -> String {
        match self {
            Metric::Quantile(_) | Metric::Mean => time(measured as u64),
            Metric::Rate => format!("{measured:.1}/s"),
            _ => format!("{measured:.2} %"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_with_their_units() {
        let good = [
            ("p99>20ms", None, 20_000.0, true),
            ("attackers: blocked<99%", Some("attackers"), 99.0, false),
            ("rate < 1.5k/s", None, 1500.0, false),
            ("p99.9 > 1s", None, 1_000_000.0, true),
        ];
        for (text, class, value, above) in good {
            let threshold = Threshold::parse(text).unwrap();
            assert_eq!(
                (threshold.class(), threshold.value, threshold.above),
                (class, value, above),
                "{text}"
            );
        }
        for text in [
            "",
            "p99",
            "p98>1ms",
            "p99>20",
            "p99=20ms",
            "blocked<99",
            "rate<x",
            "p99>>1ms",
            "a:b:p99>1ms",
        ] {
            assert!(Threshold::parse(text).is_err(), "{text}");
        }
    }
}
