//! The option table as Markdown: `docs/configuration.md` holds it, and a test compares the two.

use std::fmt::Write as _;

use crate::options::DOCUMENT;
use crate::schema::{Block, Default, Row};

/// A heading and a table for each block.
pub fn reference() -> String {
    let mut out = String::new();
    write_block(&mut out, &DOCUMENT, "", &mut Vec::new());
    out
}

/// `written`: blocks inside of others, with what is around them; one that may stand in several places is written once.
fn write_block(out: &mut String, block: &Block, path: &str, written: &mut Vec<(&'static str, String)>) {
    let place = (block.name, path.to_owned());
    if !path.is_empty() && written.contains(&place) {
        return;
    }
    written.push(place);
    let words = block.beginnings().iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ");
    let heading = match (block.name, path) {
        ("", _) => "The document".to_owned(),
        (_, "") => words,
        (_, path) => format!("{words} in `{path}`"),
    };
    let times = if block.repeats { "" } else { " May stand once." };
    let once = if block.name.is_empty() { "" } else { times };
    let _ = writeln!(out, "### {heading}\n\n{}{once}\n", block.help);
    out.push_str("| option | takes | default | meaning |\n|---|---|---|---|\n");
    for row in block.rows() {
        let place = if block.positional.iter().any(|other| other.name == row.name) { "*" } else { "" };
        let _ = writeln!(
            out,
            "| `{}`{place} | {} | {} | {} |",
            row.name,
            cell(&row.kind.to_string()),
            default(row),
            cell(row.help)
        );
    }
    out.push('\n');
    for inner in block.blocks {
        write_block(out, inner, block.name, written);
    }
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
