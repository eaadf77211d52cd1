//! Who has which colour and mark: the same in all charts of a page.
//!
//! Called by whatever draws.

use super::figures::Report;
use crate::chart::Palette;

/// Who gets the first colours, which differ most, if they take part.
const FIRST: [&str; 7] = ["weir", "bomb", "weir-origin", "nginx", "nginx-file", "wrk", "haproxy"];

/// The looks of all who take part in this report.
pub(super) fn palette(report: &Report<'_>) -> Palette {
    let names = FIRST.iter().copied().chain(report.records.iter().map(|record| record.contender.as_str()));
    Palette::new(names.filter(|name| report.records.iter().any(|record| record.contender == *name)))
}
