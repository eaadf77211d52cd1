//! Limits of `shield`, for people: a row each. Pure: document -> text. Called by `overview` and
//! `weir shield`.

use super::figures::count;
use super::overview::Look;
use super::table::{Cell, Column, Row, Tone, number, table, text};
use crate::admin::document::Limit;

/// Returns the table; empty without limits.
pub(crate) fn limits(limits: &[Limit], look: Look) -> String {
    if limits.is_empty() {
        return String::new();
    }
    // Left out first on a narrow terminal: requests without room in the table, then those that
    // passed.
    let columns: [Column; 6] = [
        text("LIMIT"),
        text("COUNTS"),
        number("PASSED", 1),
        number("REFUSED", 0),
        number("OBSERVED", 0),
        number("UNTRACKED", 2),
    ];
    let rows: Vec<Row> = limits.iter().map(row).collect();
    format!("\n{}", table(&columns, &rows, 2, look.width, look.colour))
}

fn row(limit: &Limit) -> Row {
    let toned = |value: u64, tone: Tone| Cell {
        text: count(value),
        tone: if value > 0 { tone } else { Tone::Plain },
    };
    let cells = vec![
        limit.name.as_str().into(),
        limit.count.as_str().into(),
        count(limit.passed).into(),
        toned(limit.refused, Tone::Odd),
        toned(limit.observed, Tone::Odd),
        toned(limit.untracked, Tone::Bad),
    ];
    let lost = (limit.untracked > 0).then(|| {
        "no room in the table for some clients, which passed: set a larger `table`".to_owned()
    });
    let shared = (limit.shared > 0).then(|| {
        let count = count(limit.shared);
        format!(
            "{count} without room in the table were counted together: set a larger `table`, \
            and a limit by client"
        )
    });
    let observes = limit.observes.then(|| "observes only".to_owned());
    let below: Vec<String> = observes.into_iter().chain(lost).chain(shared).collect();
    let tone = if limit.untracked > 0 || limit.shared > 0 { Tone::Bad } else { Tone::Plain };
    Row { cells, below: (!below.is_empty()).then(|| Cell { text: below.join("; "), tone }) }
}

#[cfg(test)]
mod tests {
    //! Proves: the table is short and shows what needs attention. How: a made-up document.

    use super::*;

    #[test]
    fn the_table() {
        let limit = |name: &str, count: &str, passed, refused| Limit {
            name: name.to_owned(),
            count: count.to_owned(),
            passed,
            refused,
            ..Limit::default()
        };
        let all = [
            limit("rate", "requests", 1_234_567, 42),
            Limit { observes: true, observed: 3, untracked: 7, ..limit("open", "open", 10, 0) },
            Limit { shared: 5, ..limit("login", "requests", 3, 2) },
        ];
        let look = Look { width: 80, colour: false };
        assert_eq!(
            limits(&all, look),
            "
  LIMIT  COUNTS    PASSED  REFUSED  OBSERVED  UNTRACKED
  rate   requests    1.2M       42         0          0
  open   open          10        0         3          7
    observes only; no room in the table for some clients, which passed: set a larger `table`
  login  requests       3        2         0          0
    5 without room in the table were counted together: set a larger `table`, and a limit by client
"
        );
        assert_eq!(limits(&[], look), "");
    }
}
