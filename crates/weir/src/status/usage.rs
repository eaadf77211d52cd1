//! The activity of clients that choose their destination, for people: the busiest destinations and
//! users. Pure: document -> text. Called by `overview`. Bound: [`ROWS_SHOWN`] of each; the JSON has
//! more.

use super::figures::{bytes, count};
use super::overview::Look;
use super::table::{Cell, Column, Row, Tone, number, table, text};
use crate::admin::document::{Usage, Use, Uses};

/// Rows of each table.
const ROWS_SHOWN: usize = 10;
/// Characters of a name.
const NAME_MAX: usize = 40;
/// Reasons below a row.
const WORDS_SHOWN: usize = 3;

/// Returns both tables; empty before the first activity.
pub(super) fn usage(usage: &Usage, look: Look) -> String {
    shown("DESTINATION", &usage.destinations, look) + &shown("USER", &usage.users, look)
}

fn shown(what: &'static str, uses: &Uses, look: Look) -> String {
    if uses.rows.is_empty() {
        return String::new();
    }
    // Left out first on a narrow terminal: tunnels, bytes sent, connections.
    let columns: [Column; 7] = [
        text(what),
        number("CONNS", 1),
        number("REQUESTS", 0),
        number("TUNNELS", 3),
        number("SENT", 2),
        number("RECEIVED", 0),
        number("REFUSED", 0),
    ];
    let rows: Vec<Row> = uses.rows.iter().take(ROWS_SHOWN).map(row).collect();
    let more = uses.rows.len().saturating_sub(ROWS_SHOWN);
    let more =
        if more > 0 { format!("  and {more} more: weir status --json\n") } else { String::new() };
    format!("\n{}{more}", table(&columns, &rows, 2, look.width, look.colour))
}

fn row(used: &Use) -> Row {
    let refusals: u64 = used.refusals.values().sum();
    let tone = if refusals > 0 { Tone::Odd } else { Tone::Plain };
    let mut words: Vec<(&String, &u64)> = used.refusals.iter().collect();
    words.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let why =
        words.iter().take(WORDS_SHOWN).map(|(word, times)| format!("{word} {}", count(**times)));
    let more = (words.len() > WORDS_SHOWN).then(|| "...".to_owned());
    let why: Vec<String> = why.chain(more).collect();
    let cells = vec![
        name(&used.name).into(),
        count(used.connections).into(),
        count(used.requests).into(),
        count(used.tunnels).into(),
        bytes(used.bytes_out).into(),
        bytes(used.bytes_in).into(),
        Cell { text: count(refusals), tone },
    ];
    let below = (refusals > 0).then(|| Cell { text: format!("refused: {}", why.join(", ")), tone });
    Row { cells, below }
}

/// Returns a name that clients have chosen, safe for a terminal, and not too long.
fn name(text: &str) -> String {
    let is_safe = |c: &char| c.is_alphanumeric() || c.is_ascii_graphic() || *c == ' ';
    let safe = |c: char| if is_safe(&c) { c } else { '?' };
    match text.chars().count() {
        0..=NAME_MAX => text.chars().map(safe).collect(),
        _ => text.chars().map(safe).take(NAME_MAX - 3).collect::<String>() + "...",
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the tables are short and readable, and no name can affect a terminal. How: made-up
    //! documents.

    use super::*;

    fn used(name: &str, requests: u64, refusals: &[(&str, u64)]) -> Use {
        let refusals = refusals.iter().map(|(word, count)| ((*word).to_owned(), *count)).collect();
        Use {
            name: name.to_owned(),
            connections: 2,
            requests,
            bytes_in: 12_345_678,
            bytes_out: 900,
            tunnels: 1,
            refusals,
        }
    }

    fn uses(rows: Vec<Use>) -> Uses {
        Uses { rows, ..Uses::default() }
    }

    const LOOK: Look = Look { width: 80, colour: false };

    #[test]
    fn tables() {
        let refusals = [("connect-failed", 2), ("denied-by-rule", 30), ("user-rate", 1)];
        let rows =
            vec![used("www.example.org:443", 15_000, &[]), used("[2001:db8::1]:80", 3, &refusals)];
        let all = Usage { destinations: uses(rows), users: uses(vec![used("ann", 15_003, &[])]) };
        let expected = "
  DESTINATION          CONNS  REQUESTS  TUNNELS  SENT  RECEIVED  REFUSED
  www.example.org:443      2     15.0k        1  900B    12.3MB        0
  [2001:db8::1]:80         2         3        1  900B    12.3MB       33
    refused: denied-by-rule 30, connect-failed 2, user-rate 1

  USER  CONNS  REQUESTS  TUNNELS  SENT  RECEIVED  REFUSED
  ann       2     15.0k        1  900B    12.3MB        0
";
        assert_eq!(usage(&all, LOOK), expected);
        assert_eq!(usage(&Usage::default(), LOOK), "");
        let narrow = usage(&all, Look { width: 64, ..LOOK });
        assert!(
            narrow.lines().all(|line| line.len() <= 64) && narrow.matches("TUNNELS").count() == 1,
            "{narrow}"
        );
    }

    #[test]
    fn the_rest_is_counted() {
        let rows = (0..1000).map(|n| used(&format!("{n}.example:80"), n, &[])).collect();
        let text = usage(&Usage { destinations: uses(rows), users: Uses::default() }, LOOK);
        assert_eq!(text.lines().count(), 13);
        assert!(text.ends_with("  and 990 more: weir status --json\n"), "{text}");
    }

    #[test]
    fn names_are_harmless() {
        assert_eq!(name("a\u{1b}[2J\u{7}b\u{202e}c\u{9b}31m\n"), "a?[2J?b?c?31m?");
        assert_eq!(name("m\u{fc}ller b"), "m\u{fc}ller b");
        assert_eq!(name(&"\u{e9}".repeat(300)), "\u{e9}".repeat(37) + "...");
    }
}
