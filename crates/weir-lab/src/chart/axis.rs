//! Axes: which numbers are named on them, where they are, and how they are written.
//!
//! Called by `lines.rs` and `bars.rs`. An [`Axis`] knows its ticks, so that labels never depend on
//! what plotters would choose.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::width_px;
use crate::units::grouped;

/// Free space between two labels beside each other, pixels.
const LABEL_GAP: i32 = 12;

/// How values are spread over the horizontal axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Across {
    /// From 0, evenly.
    Linear,
    /// Each doubling is as wide as any other. Labels show the values themselves, in their unit.
    Logarithmic(Unit),
    /// Values are -log10(1 - quantile) and named as percentiles.
    Quantiles,
}

/// What is counted on a logarithmic axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Things: `32,768`.
    Count,
    /// Bytes: `3 B`, `64 KiB`.
    Bytes,
}

impl Across {
    /// Returns the position of a value on its axis. On a logarithmic axis, a value of 0 is one
    /// doubling below 1.
    pub(super) fn position(self, value: f64) -> f64 {
        match self {
            Across::Logarithmic(_) => value.max(0.5).log2(),
            Across::Linear | Across::Quantiles => value,
        }
    }

    /// Returns the axis for these values, this many pixels wide.
    pub(super) fn axis(self, values: &[f64], width: i32) -> Axis {
        let highest = values.iter().copied().fold(1.0, f64::max);
        match self {
            Across::Linear => Axis::from_zero(highest).cut_off(highest),
            Across::Quantiles => Axis::quantiles(highest),
            Across::Logarithmic(unit) => Axis::logarithmic(self, values, unit, width),
        }
    }
}

impl Unit {
    /// Returns a value as people write it.
    pub(super) fn name(self, value: f64) -> String {
        match self {
            Unit::Count => grouped(value as u64),
            Unit::Bytes => bytes(value as u64),
        }
    }
}

/// An axis with its ticks, from the lowest to the highest position.
#[derive(Debug, PartialEq)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    /// Positions, rising, with their labels.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Makes an axis from 0 to a little over the highest value, with round numbers.
    pub(super) fn from_zero(highest: f64) -> Axis {
        let high = if highest.is_finite() && highest > 0.0 { highest * 1.06 } else { 1.0 };
        let step = step(high);
        let count = (high / step + 1e-9) as usize;
        let ticks = (0..=count)
            .map(|at| at as f64 * step)
            .map(|value| (value, tick(value, step, high)))
            .collect();
        Axis { low: 0.0, high, ticks }
    }

    /// The same with room for labels at its end.
    pub(super) fn with_room(self, factor: f64) -> Axis {
        Axis { high: self.high * factor, ..self }
    }

    /// Returns the same axis up to there.
    fn cut_off(mut self, high: f64) -> Axis {
        self.ticks.retain(|tick| tick.0 <= high);
        Axis { high, ..self }
    }

    fn quantiles(highest: f64) -> Axis {
        let ticks =
            (0..=highest as u32).map(f64::from).map(|nines| (nines, percentile(nines))).collect();
        Axis { low: 0.0, high: highest, ticks }
    }

    fn logarithmic(across: Across, values: &[f64], unit: Unit, width: i32) -> Axis {
        let mut named: Vec<f64> = values.to_vec();
        named.sort_by(f64::total_cmp);
        named.dedup();
        let ticks: Vec<(f64, String)> =
            named.into_iter().map(|value| (across.position(value), unit.name(value))).collect();
        let (first, last) =
            (ticks.first().map_or(0.0, |tick| tick.0), ticks.last().map_or(0.0, |tick| tick.0));
        let margin = ((last - first) * 0.04).max(0.5);
        let mut axis = Axis { low: first - margin, high: last + margin, ticks };
        axis.thin_out(width);
        axis
    }

    /// Leaves out labels that would touch the previous one.
    fn thin_out(&mut self, width: i32) {
        let mut free_from = i32::MIN;
        let (low, span) = (self.low, self.high - self.low);
        self.ticks.retain(|(position, label)| {
            let middle = ((position - low) / span * f64::from(width)) as i32;
            let half = width_px(label) / 2;
            let free = middle - half >= free_from;
            if free {
                free_from = middle + half + LABEL_GAP;
            }
            free
        });
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.low) / (self.high - self.low);
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.ticks.iter().map(|tick| tick.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.ticks
            .iter()
            .find(|tick| tick.0 == *value)
            .map_or_else(String::new, |tick| tick.1.clone())
    }
}

/// Returns a round step that gives four to nine of them below that: 1, 2 or 5 with zeros.
fn step(high: f64) -> f64 {
    let rough = high / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    match rough / decade {
        ..1.5 => decade,
        ..3.5 => 2.0 * decade,
        ..7.5 => 5.0 * decade,
        _ => 10.0 * decade,
    }
}

/// Returns a tick of an axis: all have the same unit and as many digits as the step needs.
fn tick(value: f64, step: f64, high: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let (factor, unit) = thousands(high);
    let digits = (-(step / factor).log10().floor()).max(0.0) as usize;
    if unit.is_empty() && digits == 0 {
        return grouped(value.round() as u64);
    }
    format!("{:.digits$}{unit}", value / factor)
}

fn thousands(of: f64) -> (f64, &'static str) {
    match of {
        ..1e4 => (1.0, ""),
        ..1e6 => (1e3, "k"),
        ..1e9 => (1e6, "M"),
        _ => (1e9, "G"),
    }
}

/// Returns a figure with three digits: `0.44`, `12.3`, `4,096`, `78.1k`, `1.50M`; `-` when it is
/// not known.
pub(super) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let (factor, unit) = thousands(value.abs() * 1.0005);
    let scaled = value / factor;
    match scaled.abs() {
        0.0 => "0".to_owned(),
        ..9.995 => format!("{scaled:.2}{unit}"),
        ..99.95 => format!("{scaled:.1}{unit}"),
        ..999.5 => format!("{scaled:.0}{unit}"),
        _ => grouped(value.round().max(0.0) as u64),
    }
}

/// A size in the largest unit that divides it, binary or decimal.
fn bytes(value: u64) -> String {
    let units = [
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
        (1_000_000_000, "GB"),
        (1_000_000, "MB"),
        (1000, "kB"),
    ];
    let whole = units.iter().find(|(size, _)| value >= *size && value.is_multiple_of(*size));
    match whole {
        Some((size, unit)) => format!("{} {unit}", grouped(value / size)),
        None => format!("{} B", grouped(value)),
    }
}

/// 0 is the lowest, 1 is 90 %, 2 is 99 %.
fn percentile(nines: f64) -> String {
    let digits = (nines.ceil() as usize).saturating_sub(2);
    format!("{:.digits$}", 100.0 - 100.0 * 10f64.powf(-nines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.1.as_str()).collect()
    }

    #[test]
    fn percentiles_are_named_as_people_do() {
        let named = [0.0, 1.0, 2.0, 3.0, 4.0].map(percentile);
        assert_eq!(named, ["0", "90", "99", "99.9", "99.99"]);
    }

    #[test]
    fn axes_from_zero_have_round_ticks_in_one_unit() {
        let cases: [(f64, &[&str]); 7] = [
            (78_000.0, &["0", "20k", "40k", "60k", "80k"]),
            (4_200_000.0, &["0", "1M", "2M", "3M", "4M"]),
            (1_200_000.0, &["0.0", "0.2M", "0.4M", "0.6M", "0.8M", "1.0M", "1.2M"]),
            (9_000.0, &["0", "2,000", "4,000", "6,000", "8,000"]),
            (1.1, &["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
            (0.004, &["0", "0.001", "0.002", "0.003", "0.004"]),
            (0.0, &["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ];
        for (highest, expected) in cases {
            let axis = Axis::from_zero(highest);
            assert_eq!(labels(&axis)[1..], expected[1..], "{highest}");
            assert_eq!((labels(&axis)[0], axis.low), ("0", 0.0), "{highest}");
            assert!(axis.high >= highest, "{highest}");
        }
        assert!(Axis::from_zero(f64::NAN).high == 1.0);
    }

    #[test]
    fn an_axis_of_time_ends_with_the_last_value() {
        let axis = Across::Linear.axis(&[0.0, 30.0, 59.0], 700);
        assert_eq!(labels(&axis), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(axis.map(&59.0, (0, 700)), 700);
    }

    #[test]
    fn doublings_are_equally_wide() {
        let values = [1.0, 8.0, 64.0, 4096.0, 32_768.0];
        let axis = Across::Logarithmic(Unit::Count).axis(&values, 700);
        assert_eq!(labels(&axis), ["1", "8", "64", "4,096", "32,768"]);
        let at =
            |value: f64| axis.map(&Across::Logarithmic(Unit::Count).position(value), (0, 1620));
        assert_eq!(at(64.0) - at(8.0), at(8.0) - at(1.0));
        assert_eq!(at(32_768.0) - at(4096.0), at(8.0) - at(1.0));
        assert!(
            at(1.0) > 0 && at(32_768.0) < 1620 && at(0.0) < at(1.0),
            "nothing lies on the edge"
        );
    }

    #[test]
    fn labels_that_would_touch_are_left_out_and_one_value_is_enough() {
        let values: Vec<f64> = (1000..1100).map(f64::from).collect();
        let axis = Across::Logarithmic(Unit::Count).axis(&values, 700);
        assert!((2..20).contains(&axis.ticks.len()), "{:?}", labels(&axis));
        let one = Across::Logarithmic(Unit::Bytes).axis(&[65_536.0], 700);
        assert_eq!(labels(&one), ["64 KiB"]);
        assert_eq!(one.map(&16.0, (0, 100)), 50);
    }

    #[test]
    fn sizes_are_written_as_people_do() {
        let cases = [
            (0, "0 B"),
            (3, "3 B"),
            (1000, "1 kB"),
            (1500, "1,500 B"),
            (8192, "8 KiB"),
            (1 << 20, "1 MiB"),
        ];
        for (value, expected) in cases {
            assert_eq!(bytes(value), expected);
        }
    }

    #[test]
    fn figures_have_three_digits() {
        let cases = [
            (0.0, "0"),
            (0.436, "0.44"),
            (9.994, "9.99"),
            (9.996, "10.0"),
            (512.4, "512"),
            (4096.0, "4,096"),
            (9_999.9, "10.0k"),
            (78_123.0, "78.1k"),
            (1_500_000.0, "1.50M"),
            (f64::NAN, "-"),
        ];
        for (value, expected) in cases {
            assert_eq!(figure(value), expected, "{value}");
        }
    }
}
