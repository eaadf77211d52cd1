//! The results of a probe: latencies of good responses, failures by kind, never mixed; as text and
//! as JSON.
//!
//! Called by `mod.rs` for each outcome and by `weir probe` at the end. Latencies are exact to three
//! digits.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::exchange::{Kind, Outcome, Times};
use crate::units::show_ns;

/// Longest distinguishable latency: over every time-out.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Number of exact digits of latencies.
const DIGITS: u8 = 3;
/// Quantiles that are shown, with their names.
const QUANTILES: [(f64, &str); 5] =
    [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"), (1.0, "max")];
/// The longest bar.
const BAR_COLUMNS: u64 = 40;

/// Latencies of a phase.
type Latencies = Histogram<u64>;

/// All results so far.
#[derive(Debug)]
pub struct Summary {
    /// Requests with an outcome.
    pub requests: u64,
    /// Whole responses with a status under 400.
    pub answered: u64,
    /// Those among them that took longer than the threshold.
    pub slow: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that were remade because the server had ended the kept one.
    pub renewed: u64,
    /// Since the first request, seconds.
    pub seconds: f64,
    threshold_ns: u64,
    failures: [u64; Kind::ALL.len()],
    connect: Latencies,
    handshake: Latencies,
    first_byte: Latencies,
    body: Latencies,
    total: Latencies,
    /// Results of the first requests on their connections, and of the others.
    first: Part,
    kept: Part,
}

/// Requests that share whether their connection existed before.
#[derive(Debug)]
struct Part {
    requests: u64,
    slow: u64,
    total: Latencies,
}

impl Part {
    fn new() -> Part {
        Part { requests: 0, slow: 0, total: latencies() }
    }

    fn record(&mut self, total_ns: u64, is_slow: bool) {
        self.requests += 1;
        self.slow += u64::from(is_slow);
        self.total.saturating_record(total_ns.max(1));
    }

    /// For programs. Times are microseconds.
    fn json(&self) -> Value {
        let quantile = |quantile| us(self.total.value_at_quantile(quantile));
        json!({
            "answered": self.requests, "slow": self.slow,
            "p50_us": quantile(0.5), "p99_us": quantile(0.99),
            "p99_9_us": quantile(0.999), "max_us": quantile(1.0),
        })
    }
}

fn latencies() -> Latencies {
    // The bounds are constants that a test constructs.
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("valid bounds")
}

impl Summary {
    /// Returns an empty summary; responses that take longer than this are slow.
    pub fn new(threshold_ns: u64) -> Summary {
        Summary {
            requests: 0,
            answered: 0,
            slow: 0,
            connections: 0,
            renewed: 0,
            seconds: 0.0,
            threshold_ns,
            failures: [0; Kind::ALL.len()],
            connect: latencies(),
            handshake: latencies(),
            first_byte: latencies(),
            body: latencies(),
            total: latencies(),
            first: Part::new(),
            kept: Part::new(),
        }
    }

    /// Counts an outcome, of the first request on its connection or of another; returns true for a
    /// slow response.
    pub(super) fn record(&mut self, outcome: &Outcome, is_first: bool) -> bool {
        self.requests += 1;
        match outcome {
            Outcome::Answered { times, .. } => self.record_times(times, is_first),
            Outcome::Failed { kind, .. } => {
                self.failures[*kind as usize] += 1;
                false
            }
        }
    }

    fn record_times(&mut self, times: &Times, is_first: bool) -> bool {
        self.answered += 1;
        if let Some(connect_ns) = times.connect_ns {
            self.connect.saturating_record(connect_ns.max(1));
        }
        if let Some(handshake_ns) = times.handshake_ns {
            self.handshake.saturating_record(handshake_ns.max(1));
        }
        self.first_byte.saturating_record(times.first_byte_ns.max(1));
        self.body.saturating_record(times.body_ns.max(1));
        self.total.saturating_record(times.total_ns().max(1));
        let is_slow = times.total_ns() > self.threshold_ns;
        self.slow += u64::from(is_slow);
        let part = if is_first { &mut self.first } else { &mut self.kept };
        part.record(times.total_ns(), is_slow);
        is_slow
    }

    /// Returns the number of requests without a good response.
    pub fn failed(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// Those with this cause.
    pub fn failed_by(&self, kind: Kind) -> u64 {
        self.failures[kind as usize]
    }

    /// Returns the time that this share of all good responses did not exceed, including connecting,
    /// nanoseconds. 0 without responses.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        self.total.value_at_quantile(quantile)
    }

    /// Phases that happened, in their order.
    fn phases(&self) -> impl Iterator<Item = (&'static str, &Latencies)> {
        let all = [
            ("connect", &self.connect),
            ("handshake", &self.handshake),
            ("first byte", &self.first_byte),
            ("body", &self.body),
            ("total", &self.total),
        ];
        all.into_iter().filter(|(_, latencies)| !latencies.is_empty())
    }

    /// For people.
    pub fn text(&self) -> String {
        let failed = self.failed();
        let mut text = format!(
            "{} requests in {:.1} s: {} answered, {} of them slower than {}, {failed} failed\n",
            self.requests,
            self.seconds,
            self.answered,
            self.slow,
            show_ns(self.threshold_ns)
        );
        if failed > 0 {
            let kinds = Kind::ALL.into_iter().filter(|kind| self.failed_by(*kind) > 0);
            let kinds: Vec<String> =
                kinds.map(|kind| format!("{} {}", kind.name(), self.failed_by(kind))).collect();
            text += &format!("failed: {}\n", kinds.join(", "));
        }
        text += &format!("{} connections", self.connections);
        if self.renewed > 0 {
            text += &format!(
                ", {} of them because the server had closed the previous one",
                self.renewed
            );
        }
        text += "\n";
        if self.first.requests > 0 && self.kept.requests > 0 {
            text += &self.parts();
        }
        if self.answered > 0 {
            text += &self.table();
            text += &self.bars();
        }
        text
    }

    /// Returns the effect of kept connections, as text.
    fn parts(&self) -> String {
        let part = |name: &str, part: &Part| {
            let p999 = show_ns(part.total.value_at_quantile(0.999));
            format!("{name}: {} of {} slow, p99.9 {p999}\n", part.slow, part.requests)
        };
        part("first on their connection", &self.first) + &part("on a kept connection", &self.kept)
    }

    fn table(&self) -> String {
        let mut text = format!("\n{:10}", "");
        for (_, name) in QUANTILES {
            text += &format!(" {name:>8}");
        }
        for (name, latencies) in self.phases() {
            text += &format!("\n{name:10}");
            for (quantile, _) in QUANTILES {
                text += &format!(" {:>8}", show_ns(latencies.value_at_quantile(quantile)));
            }
        }
        text + "\n\n"
    }

    /// Returns a bar for each step of 1, 2, 5, 10 from the fastest response to the slowest.
    fn bars(&self) -> String {
        let bins = self.bins();
        let most = bins.iter().map(|bin| bin.2).max().unwrap_or(1).max(1);
        let width = most.to_string().len();
        let line = |&(from_ns, to_ns, count): &(u64, u64, u64)| {
            let length = (count * BAR_COLUMNS).div_ceil(most);
            let bar = "#".repeat(usize::try_from(length).unwrap_or(0));
            format!("{:>7} to {:>7} {count:>width$} {bar}", show_ns(from_ns), show_ns(to_ns))
                .trim_end()
                .to_owned()
                + "\n"
        };
        bins.iter().map(line).collect()
    }

    /// Returns from, to (exclusive) and count: all between the first that isn't empty and the last.
    fn bins(&self) -> Vec<(u64, u64, u64)> {
        let edges: Vec<u64> =
            (0..13).flat_map(|power| [1, 2, 5].map(|step| step * 10_u64.pow(power))).collect();
        let mut bins: Vec<(u64, u64, u64)> =
            edges.windows(2).map(|edge| (edge[0], edge[1], 0)).collect();
        for step in self.total.iter_recorded() {
            // The lowest value that this step may represent: a value on an edge belongs above it.
            let value = self.total.lowest_equivalent(step.value_iterated_to());
            let at = bins.partition_point(|bin| bin.1 <= value).min(bins.len() - 1);
            bins[at].2 += step.count_since_last_iteration();
        }
        let first = bins.iter().position(|bin| bin.2 > 0).unwrap_or(0);
        let end = bins.iter().rposition(|bin| bin.2 > 0).map_or(first, |last| last + 1);
        bins[first..end].to_vec()
    }

    /// For programs: one object without a line end. Times are microseconds.
    pub fn json(&self) -> Value {
        let kinds =
            Kind::ALL.into_iter().map(|kind| (kind.name().to_owned(), json!(self.failed_by(kind))));
        let of = |latencies: &Latencies| {
            let quantile = |at: usize| us(latencies.value_at_quantile(QUANTILES[at].0));
            json!({
                "count": latencies.len(),
                "p50_us": quantile(0), "p90_us": quantile(1), "p99_us": quantile(2),
                "p99_9_us": quantile(3), "max_us": quantile(4),
            })
        };
        let latency =
            self.phases().map(|(name, latencies)| (name.replace(' ', "_"), of(latencies)));
        let bins = self.bins().into_iter();
        let bins = bins
            .map(|(from, to, count)| json!({"from_us": us(from), "to_us": us(to), "count": count}));
        json!({
            "type": "summary",
            "seconds": self.seconds,
            "requests": self.requests,
            "answered": self.answered,
            "slow": self.slow,
            "threshold_us": us(self.threshold_ns),
            "failed": self.failed(),
            "failures": kinds.collect::<serde_json::Map<_, _>>(),
            "connections": self.connections,
            "renewed": self.renewed,
            "first": self.first.json(),
            "kept": self.kept.json(),
            "latency": latency.collect::<serde_json::Map<_, _>>(),
            "histogram": if self.answered > 0 { bins.collect::<Vec<_>>() } else { Vec::new() },
        })
    }
}

/// Returns microseconds, with decimals.
pub(super) fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    //! Proves: quantiles and bars are those of the values, and failures are in neither. How: many
    //! values of a wide range against a sorted list.

    use super::*;
    use crate::probe::exchange::Phase;

    fn answered(connect_ns: Option<u64>, first_byte_ns: u64, body_ns: u64) -> Outcome {
        Outcome::Answered {
            status: 200,
            times: Times { connect_ns, handshake_ns: None, first_byte_ns, body_ns },
        }
    }

    fn failed(kind: Kind) -> Outcome {
        Outcome::Failed {
            kind,
            phase: Phase::Connect,
            after_ns: 5_000_000_000,
            detail: String::new(),
        }
    }

    #[test]
    fn quantiles_and_bars_agree_with_a_sorted_list() {
        let mut summary = Summary::new(1_000_000);
        let mut values = Vec::new();
        let mut value = 12_345_u64;
        for nth in 0..10_000 {
            value = value
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let total = 1_000 + (value >> 40) * (1 + (value >> 20) % 200);
            summary.record(&answered(Some(400), total - 500, 100), nth % 2 == 0);
            values.push(total);
            if nth % 10 == 0 {
                summary.record(&failed(Kind::Timeout), true);
            }
        }
        values.sort_unstable();
        for (quantile, name) in QUANTILES {
            let exact = values[(quantile * values.len() as f64).ceil() as usize - 1] as f64;
            let told = summary.quantile_ns(quantile) as f64;
            assert!((told / exact - 1.0).abs() < 0.002, "{name}: {told} and {exact}");
        }
        let slow = values.iter().filter(|value| **value > 1_000_000).count() as u64;
        assert_eq!(
            (summary.requests, summary.answered, summary.slow, summary.failed()),
            (11_000, 10_000, slow, 1_000)
        );
        for (from, to, count) in summary.bins() {
            // Values that the histogram can't distinguish from an edge are left out of the
            // comparison.
            let inside = |slack: f64| {
                let (from, to) = (from as f64 * (1.0 - slack), to as f64 * (1.0 + slack));
                values.iter().filter(|value| (from..to).contains(&(**value as f64))).count() as u64
            };
            assert!((inside(-0.002)..=inside(0.002)).contains(&count), "{from} to {to}: {count}");
        }
        assert_eq!(summary.bins().iter().map(|bin| bin.2).sum::<u64>(), 10_000);
    }

    #[test]
    fn edges_belong_to_the_bar_above() {
        let mut summary = Summary::new(u64::MAX);
        for ns in [1_000, 1_999, 2_000, 10_000] {
            summary.record(&answered(None, ns, 0), false);
        }
        let bins = summary.bins();
        assert_eq!(
            bins,
            [(1_000, 2_000, 2), (2_000, 5_000, 1), (5_000, 10_000, 0), (10_000, 20_000, 1)]
        );
    }

    #[test]
    fn the_text_names_what_happened_and_nothing_else() {
        let mut summary = Summary::new(20_000_000);
        summary.connections = 3;
        assert_eq!(
            summary.text(),
            "0 requests in 0.0 s: 0 answered, 0 of them slower than 20.0 ms, 0 failed\n\
             3 connections\n"
        );
        summary.record(&failed(Kind::Reset), true);
        summary.record(&answered(Some(50_000), 70_000, 0), true);
        summary.record(&answered(None, 30_000_000, 1_000), false);
        let text = summary.text();
        assert!(text.contains(
            "3 requests in 0.0 s: 2 answered, 1 of them slower than 20.0 ms, 1 failed\n\
                    failed: reset 1\n"
        ));
        assert!(text.contains("\nfirst on their connection: 0 of 1 slow, p99.9"), "{text}");
        assert!(text.contains("\non a kept connection: 1 of 1 slow, p99.9"), "{text}");
        assert!(text.contains("\nconnect     50.0 us  50.0 us"), "{text}");
        assert!(text.contains("\n 100 us to  200 us 1 ####"), "{text}");
        assert!(
            !text.contains('\x1b') && text.lines().all(|line| line == line.trim_end()),
            "{text}"
        );
        let json = summary.json();
        assert_eq!(
            (&json["failures"]["reset"], &json["failures"]["timeout"]),
            (&json!(1), &json!(0))
        );
        assert_eq!((&json["first"]["slow"], &json["kept"]["slow"]), (&json!(0), &json!(1)));
        assert_eq!(
            (&json["latency"]["connect"]["count"], &json["latency"]["total"]["count"]),
            (&json!(1), &json!(2))
        );
    }
}
