//! The option table as Markdown: the pages that docs/configuration.md lists hold it, a few blocks
//! each, and a test compares them with it.

use std::fmt::Write as _;

use crate::options::DOCUMENT;
use crate::schema::{Block, Default, Row};

/// Columns of a line outside of tables.
const COLUMNS: usize = 100;

/// The head of each table.
const HEAD: &str = "| option | takes | default | meaning |\n|---|---|---|---|\n";

/// Returns a heading and a table for each block.
pub fn reference() -> String {
    let mut out = String::new();
    write_block(&mut out, &DOCUMENT, "", &mut Vec::new());
    out
}

/// A block that has its section.
struct Written {
    name: &'static str,
    /// The block around it.
    path: &'static str,
    heading: String,
    table: String,
}

/// Writes a block and the blocks inside it. A block that may be in several places is written once,
/// and a table that a block of the same name has already is not repeated.
fn write_block(
    out: &mut String,
    block: &'static Block,
    path: &'static str,
    written: &mut Vec<Written>,
) {
    let is_here = |other: &Written| other.name == block.name && other.path == path;
    if !path.is_empty() && written.iter().any(is_here) {
        return;
    }
    let words =
        block.beginnings().iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ");
    let heading = match (block.name, path) {
        ("", _) => "The document".to_owned(),
        (_, "") => words,
        (_, path) => format!("{words} in `{path}`"),
    };
    let times = if block.repeats { "" } else { " At most one." };
    let once = if block.name.is_empty() { "" } else { times };
    let _ = writeln!(out, "### {heading}\n");
    wrap(out, &format!("{}{once}", block.help), "");
    out.push('\n');
    let table = table(block);
    match written.iter().find(|other| other.name == block.name && other.table == table) {
        Some(other) => {
            let _ = writeln!(out, "It has the options of {}.\n", other.heading);
        }
        None if table.is_empty() => {}
        None => {
            let _ = writeln!(out, "{HEAD}{table}");
            write_notes(out, block);
        }
    }
    written.push(Written { name: block.name, path, heading, table });
    for inner in block.blocks {
        write_block(out, inner, block.name, written);
    }
}

/// The rows of a table of options.
fn table(block: &Block) -> String {
    let mut rows = String::new();
    for row in block.rows() {
        let is_positional = block.positional.iter().any(|other| other.name == row.name);
        let _ = writeln!(
            rows,
            "| `{}`{} | {} | {} | {} |",
            row.name,
            if is_positional { "*" } else { "" },
            cell(&row.kind.to_string()),
            default(row),
            cell(&first_sentence(row.help))
        );
    }
    rows
}

/// The first sentence of a help, which is what the cell of a table has.
fn first_sentence(help: &str) -> String {
    match help.split_once(". ") {
        Some((first, _)) => format!("{first}."),
        None => help.to_owned(),
    }
}

/// A list with the other sentences.
fn write_notes(out: &mut String, block: &Block) {
    let mut notes = String::new();
    for row in block.rows() {
        if let Some((_, rest)) = row.help.split_once(". ") {
            wrap(&mut notes, &format!("- **`{}`.** {rest}", row.name), "  ");
        }
    }
    if !notes.is_empty() {
        let _ = writeln!(out, "{notes}");
    }
}

/// Writes a paragraph in lines of at most [`COLUMNS`], all but the first with `indent` in front.
fn wrap(out: &mut String, text: &str, indent: &str) {
    let mut width = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > COLUMNS {
            out.push('\n');
            out.push_str(indent);
            width = indent.len();
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += length;
    }
    out.push('\n');
}

/// What an option is when nothing is written, for the reference.
pub(crate) fn default(row: &Row) -> String {
    text_of(row.default)
}

fn text_of(default: Default) -> String {
    match default {
        Default::With(_, words, default) => format!("{} ({})", text_of(*default), words.join(", ")),
        Default::Without(other, words, default) => {
            format!("{} (when `{other}` is not {})", text_of(*default), words.join(", "))
        }
        Default::Given(other, default) => format!("{} (with `{other}`)", text_of(*default)),
        Default::AtLeast(text, other) => format!("`{text}`, or `{other}` if that is more"),
        Default::Beside(text, others, beside) => {
            let other = |(name, word): &(&str, Option<&str>)| match word {
                None => format!("`{name}`"),
                Some(word) => format!("`{name}` {word}"),
            };
            format!(
                "`{text}`, or `{beside}` with {}",
                others.iter().map(other).collect::<Vec<_>>().join(" or ")
            )
        }
        Default::Required => "required".to_owned(),
        Default::Absent => "none".to_owned(),
        Default::Is(text) | Default::Unless(text, _) => format!("`{text}`"),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
