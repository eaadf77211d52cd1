//! How figures are written: as many digits as are meaningful, `-` for unknown values.
//!
//! Called by everything that makes rows.

use crate::bench::record::answers::Errors;

/// Returns each kind with its count; `0` when there are none.
pub(super) fn error_text(errors: &Errors) -> String {
    let named: Vec<String> = errors.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    if named.is_empty() { "0".to_owned() } else { named.join(", ") }
}

/// Returns the number with this many digits after the point; `-` when it is not known.
pub(super) fn number(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
}

/// Returns this many microseconds as milliseconds, with fewer digits from 10 on.
pub(super) fn ms(us: f64) -> String {
    match us {
        _ if !us.is_finite() => "-".to_owned(),
        _ if us < 10_000.0 => format!("{:.2}", us / 1000.0),
        _ => format!("{:.0}", us / 1000.0),
    }
}

/// Returns the microseconds as text, or `-` when they are not known or 0.
pub(super) fn microseconds(us: f64) -> String {
    if us.is_finite() && us > 0.0 { format!("{us:.2}") } else { "-".to_owned() }
}

/// Returns enough digits for a ratio, not too many for bytes.
pub(super) fn figure(value: f64) -> String {
    number(value, if value.abs() < 10.0 { 2 } else { 0 })
}

/// Returns the same beside a bound: a bound that differs by a few per cent from 1 needs a digit
/// more.
pub(super) fn figure_beside(value: f64, bound: f64) -> String {
    if (0.001..0.05).contains(&(bound - 1.0).abs()) { number(value, 3) } else { figure(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_close_to_one_has_a_digit_more() {
        assert_eq!(figure_beside(1.0049, 1.01), "1.005");
        assert_eq!(figure_beside(1.0049, 1.0), "1.00");
        assert_eq!(figure_beside(512.0, 1024.0), "512");
    }
}
