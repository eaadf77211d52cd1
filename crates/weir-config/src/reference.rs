//! The option table as Markdown: `docs/configuration.md` contains it, and a test compares the two.

use std::fmt::Write as _;

use crate::options::DOCUMENT;
use crate::schema::{Block, Default, Row};

/// Returns a heading and a table for each block.
pub fn reference() -> String {
    let mut out = String::new();
    write_block(&mut out, &DOCUMENT, "", &mut Vec::new());
    out
}

/// `written`: nested blocks, with the blocks around them; one that may be in several places is
/// written once.
fn write_block(out: &mut String, block: &Block, path: &str, written: &mut Vec<(&'static str, String)>) {
    let place = (block.name, path.to_owned());
    if !path.is_empty() && written.contains(&place) {
        return;
    }
    let words = block.beginnings().iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ");
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

/// Returns the default of an option, for the reference.
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
            format!("`{text}`, or `{beside}` with {}", others.iter().map(other).collect::<Vec<_>>().join(" or "))
        }
        Default::Required => "required".to_owned(),
        Default::Absent => "none".to_owned(),
        Default::Is(text) | Default::Unless(text, _) => format!("`{text}`"),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
