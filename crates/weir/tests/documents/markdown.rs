//! As much of Markdown as these tests need: tables, words in backticks, links.

/// A table: the words of its head, and its rows.
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Returns the lines outside of fenced blocks.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    })
}

fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    // `\|` is a bar inside a cell.
    inner.replace("\\|", "\u{1}").split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect()
}

/// Returns all tables of a document, in order.
pub(crate) fn tables(text: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let mut inside = false;
    for line in prose(text) {
        if !line.starts_with('|') {
            inside = false;
        } else if !inside {
            tables.push(Table { head: cells(line), rows: Vec::new() });
            inside = true;
        } else if !line.starts_with("|---") {
            let table = tables.last_mut().expect("a row stands in a table");
            table.rows.push(cells(line));
        }
    }
    tables
}

/// Returns the rows of the tables with this head.
///
/// # Panics
/// If there is none, or a row has another number of cells.
pub(crate) fn tables_of(text: &str, head: &[&str]) -> Vec<Vec<Vec<String>>> {
    let found: Vec<Table> = tables(text).into_iter().filter(|table| table.head == head).collect();
    assert!(!found.is_empty(), "no table {head:?}");
    for row in found.iter().flat_map(|table| &table.rows) {
        assert_eq!(row.len(), head.len(), "cells of {row:?}");
    }
    found.into_iter().map(|table| table.rows).collect()
}

/// Returns the texts in backticks, outside of fenced blocks.
pub(crate) fn quoted(text: &str) -> Vec<String> {
    let text: Vec<&str> = prose(text).collect();
    text.join("\n").split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the targets of links to files of the repository, without fragments.
pub(crate) fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    local.map(|target| target.split('#').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn tables_words_and_links_are_found() {
    let text =
        "a `b` [c](d.md#e)\n```\n| `no` |\n```\n| x | y |\n|---|---|\n| `1` | a \\| b |\n\nend";
    let rows = tables_of(text, &["x", "y"]);
    assert_eq!(rows, [[["`1`", "a | b"]]]);
    assert_eq!(quoted(text), ["b", "1"]);
    assert_eq!(links(text), ["d.md"]);
}
