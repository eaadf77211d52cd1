//! The colour and mark of each contender: the same in all charts of a page.
//!
//! Called by everything that draws.

use super::figures::Report;
use crate::chart::Palette;

/// The contenders that get the first colours, which differ most, if they take part.
const FIRST: [&str; 7] = ["weir", "bomb", "weir-origin", "nginx", "nginx-file", "wrk", "haproxy"];

/// Returns the looks of all contenders of this report.
pub(super) fn palette(report: &Report<'_>) -> Palette {
    let names =
        FIRST.iter().copied().chain(report.records.iter().map(|record| record.contender.as_str()));
    Palette::new(names.filter(|name| report.records.iter().any(|record| record.contender == *name)))
}
