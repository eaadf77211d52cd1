//! The text formats of metrics: OpenMetrics 1.0.0, and the older Prometheus text 0.0.4 for clients
//! that ask for it.
//!
//! Called by `metrics`, which provides the data; this file knows the syntax: names, units, escapes,
//! the order of lines. Samples of one family are together, and the text ends with `# EOF`
//! (OpenMetrics only). Pure.

use std::fmt::{Display, Write as _};

/// Before every name.
const PREFIX: &str = "weir_";

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus text 0.0.4.
    Prometheus,
}

impl Format {
    /// Returns the format for an Accept field: OpenMetrics unless it prefers plain text
    /// (RFC 9110 §12.5.1).
    pub(crate) fn accepted(accept: &str) -> Format {
        let (mut open, mut plain) = (0.0, 0.0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let quality = parts
                .find_map(|part| part.strip_prefix("q="))
                .map_or(1.0, |q| q.parse().unwrap_or(0.0));
            match kind {
                "application/openmetrics-text" => open = f64::max(open, quality),
                "text/plain" => plain = f64::max(plain, quality),
                _ => {}
            }
        }
        if plain > open { Format::Prometheus } else { Format::OpenMetrics }
    }

    /// Returns the value of Content-Type.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    /// Only grows; its samples end in `_total`.
    Counter,
    /// May grow and shrink.
    Gauge,
    /// Always 1, the labels have the information; its samples end in `_info`.
    Info,
    /// Buckets, count and sum.
    Histogram,
}

/// A label's name and value.
pub(crate) type Label<'a> = (&'static str, &'a str);

/// Writes families one after another.
#[derive(Debug)]
pub(crate) struct Exposition {
    format: Format,
    out: String,
    /// The present family, with prefix.
    family: String,
    kind: Type,
}

impl Exposition {
    /// Begins an empty text.
    pub(crate) fn new(format: Format) -> Exposition {
        Exposition { format, out: String::new(), family: String::new(), kind: Type::Gauge }
    }

    /// Begins a family; `name` is without the prefix and the suffix of the type.
    pub(crate) fn family(&mut self, name: &str, kind: Type, help: &str) {
        self.family = format!("{PREFIX}{name}");
        self.kind = kind;
        let (word, shown) = match (self.format, kind) {
            (_, Type::Gauge) => ("gauge", self.family.clone()),
            (_, Type::Histogram) => ("histogram", self.family.clone()),
            (Format::OpenMetrics, Type::Counter) => ("counter", self.family.clone()),
            (Format::OpenMetrics, Type::Info) => ("info", self.family.clone()),
            (Format::Prometheus, Type::Counter) => ("counter", format!("{}_total", self.family)),
            (Format::Prometheus, Type::Info) => ("gauge", format!("{}_info", self.family)),
        };
        let _ = writeln!(self.out, "# TYPE {shown} {word}");
        if let Some(unit) = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit))
            && self.format == Format::OpenMetrics
        {
            let _ = writeln!(self.out, "# UNIT {shown} {unit}");
        }
        let _ = write!(self.out, "# HELP {shown} ");
        self.escape(help, self.format == Format::OpenMetrics);
        self.out.push('\n');
    }

    /// Adds a sample to the present family.
    pub(crate) fn sample(&mut self, labels: &[Label<'_>], value: impl Display) {
        let suffix = match self.kind {
            Type::Counter => "_total",
            Type::Info => "_info",
            Type::Gauge | Type::Histogram => "",
        };
        self.line(suffix, labels, value);
    }

    /// Adds a histogram to the present family: bounds with the count of values up to each,
    /// ascending, then all.
    pub(crate) fn histogram(
        &mut self,
        labels: &[Label<'_>],
        buckets: &[(Seconds, u64)],
        count: u64,
        sum: Seconds,
    ) {
        let mut with_bound = labels.to_vec();
        let mut text = String::new();
        for (bound, count) in buckets {
            text.clear();
            let _ = write!(text, "{bound}");
            with_bound.truncate(labels.len());
            // The label borrows the text for this line only.
            let line: Vec<Label<'_>> =
                with_bound.iter().copied().chain([("le", text.as_str())]).collect();
            self.line("_bucket", &line, count);
        }
        with_bound.push(("le", "+Inf"));
        self.line("_bucket", &with_bound, count);
        self.line("_count", labels, count);
        self.line("_sum", labels, sum);
    }

    /// Returns the text.
    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn line(&mut self, suffix: &str, labels: &[Label<'_>], value: impl Display) {
        self.out.push_str(&self.family);
        self.out.push_str(suffix);
        for (at, (name, value)) in labels.iter().enumerate() {
            self.out.push(if at == 0 { '{' } else { ',' });
            self.out.push_str(name);
            self.out.push_str("=\"");
            self.escape(value, true);
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    fn escape(&mut self, text: &str, quotes: bool) {
        if !text.contains(['\\', '\n', '"']) {
            self.out.push_str(text);
            return;
        }
        for c in text.chars() {
            match c {
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '"' if quotes => self.out.push_str("\\\""),
                c => self.out.push(c),
            }
        }
    }
}

/// Microseconds, written as seconds without rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seconds(pub(crate) u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, mut rest, mut digits) = (self.0 / 1_000_000, self.0 % 1_000_000, 6);
        while digits > 1 && rest.is_multiple_of(10) {
            (rest, digits) = (rest / 10, digits - 1);
        }
        write!(f, "{whole}.{rest:0digits$}")
    }
}

#[cfg(test)]
mod tests {
    //! Proves: both formats are written as their specifications say, character by character. How: a
    //! stored text.

    use super::*;

    fn example(format: Format) -> String {
        let mut text = Exposition::new(format);
        text.family("build", Type::Info, "Which \"weir\".");
        text.sample(&[("version", "1\\2\n\"3\"")], 1);
        text.family("client_sent_bytes", Type::Counter, "Bytes\\.");
        text.sample(&[], 7);
        text.family("duration_seconds", Type::Histogram, "Time.");
        text.histogram(
            &[("server", "a")],
            &[(Seconds(64), 1), (Seconds(1 << 20), 2)],
            3,
            Seconds(2_500_000),
        );
        text.finish()
    }

    #[test]
    fn openmetrics() {
        let expected = r##"# TYPE weir_build info
# HELP weir_build Which \"weir\".
weir_build_info{version="1\\2\n\"3\""} 1
# TYPE weir_client_sent_bytes counter
# UNIT weir_client_sent_bytes bytes
# HELP weir_client_sent_bytes Bytes\\.
weir_client_sent_bytes_total 7
# TYPE weir_duration_seconds histogram
# UNIT weir_duration_seconds seconds
# HELP weir_duration_seconds Time.
weir_duration_seconds_bucket{server="a",le="0.000064"} 1
weir_duration_seconds_bucket{server="a",le="1.048576"} 2
weir_duration_seconds_bucket{server="a",le="+Inf"} 3
weir_duration_seconds_count{server="a"} 3
weir_duration_seconds_sum{server="a"} 2.5
# EOF
"##;
        assert_eq!(example(Format::OpenMetrics), expected);
    }

    #[test]
    fn prometheus() {
        let text = example(Format::Prometheus);
        for line in [
            "# TYPE weir_build_info gauge\n# HELP weir_build_info Which \"weir\".\n",
            "# TYPE weir_client_sent_bytes_total counter\n\
                # HELP weir_client_sent_bytes_total Bytes\\\\.\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
    }

    #[test]
    fn seconds_are_exact() {
        for (us, text) in [
            (0, "0.0"),
            (1, "0.000001"),
            (64, "0.000064"),
            (1_000_000, "1.0"),
            (1_500_000, "1.5"),
            (33_554_432, "33.554432"),
        ] {
            assert_eq!(Seconds(us).to_string(), text);
        }
    }

    #[test]
    fn who_asks_for_plain_text_gets_it() {
        for (accept, format) in [
            ("", Format::OpenMetrics),
            ("*/*", Format::OpenMetrics),
            ("text/plain", Format::Prometheus),
            ("text/plain;version=0.0.4", Format::Prometheus),
            (
                "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,\
                    */*;q=0.1",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text;q=0.4, text/plain;q=0.5", Format::Prometheus),
            ("text/plain;q=x", Format::OpenMetrics),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }
}
