//! Checked tree -> text: the effective configuration as KDL and as JSON. Both read back to the same
//! plan.

use std::fmt::Write as _;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::check::{Checked, Chosen};
use crate::expand::escape;
use crate::schema::Setting;
use crate::units::{size_text, time_text};

/// Options of a block without blocks inside are on one line up to this many; more get a line each.
const ON_ONE_LINE_MAX: usize = 5;

/// Returns the document as KDL with every option.
pub(crate) fn kdl(document: &Checked) -> String {
    let mut out = String::new();
    for option in &document.options {
        let _ = writeln!(out, "{}", option_node(option));
    }
    for block in &document.blocks {
        write_block(&mut out, block, 0);
    }
    out
}

fn write_block(out: &mut String, checked: &Checked, depth: usize) {
    let indent = "    ".repeat(depth);
    let (positional, named): (Vec<&Chosen>, Vec<&Chosen>) = checked
        .options
        .iter()
        .partition(|chosen| checked.block.positional.iter().any(|row| row.name == chosen.row.name));
    let named_by = if checked.block.by_word { "" } else { checked.block.name };
    let words = std::iter::once(named_by.to_owned()).filter(|name| !name.is_empty());
    let words: Vec<String> = words.chain(positional.into_iter().map(values)).collect();
    let _ = write!(out, "{indent}{}", words.join(" "));
    if named.len() <= ON_ONE_LINE_MAX
        && checked.blocks.is_empty()
        && named.iter().all(|option| option.settings.len() == 1)
    {
        for option in named {
            let _ = write!(out, " {}={}", option.row.name, values(option));
        }
        out.push('\n');
        return;
    }
    out.push_str(" {\n");
    for option in named {
        let _ = writeln!(out, "{indent}    {}", option_node(option));
    }
    for block in &checked.blocks {
        write_block(out, block, depth + 1);
    }
    let _ = writeln!(out, "{indent}}}");
}

fn option_node(option: &Chosen) -> String {
    format!("{} {}", option.row.name, values(option)).trim_end().to_owned()
}

/// Returns the values of an option, as they are written.
pub(crate) fn values(option: &Chosen) -> String {
    option.settings.iter().map(value).collect::<Vec<_>>().join(" ")
}

fn value(setting: &Setting) -> String {
    match setting {
        Setting::Time(us) => quoted(&time_text(*us)),
        Setting::Size(bytes) => quoted(&size_text(*bytes)),
        Setting::Count(number) => number.to_string(),
        Setting::Flag(flag) => format!("#{flag}"),
        Setting::Text(text) => quoted(&escape(text)),
        // A word that begins with a digit would be a number.
        Setting::Word(word) if word.starts_with(|first: char| first.is_ascii_digit()) => {
            quoted(word)
        }
        Setting::Word(word) => (*word).to_owned(),
    }
}

/// Returns a KDL string; characters that are invisible or could be mistaken for syntax are escaped.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // KDL 2.0 §3.1 forbids control and direction characters and treats others as line ends.
            c if c.is_control()
                || matches!(
                    c,
                    '\u{200e}'..='\u{200f}'
                        | '\u{2028}'..='\u{202f}'
                        | '\u{2066}'..='\u{2069}'
                        | '\u{feff}'
                ) =>
            {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl Serialize for Checked {
    /// Writes an object: options by name, a block that may repeat as an array of objects.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for option in &self.options {
            map.serialize_entry(option.row.name, option)?;
        }
        for block in self.block.blocks {
            let inner: Vec<&Checked> = self.all(block.name).collect();
            match (block.repeats, inner.first()) {
                (true, _) => map.serialize_entry(block.name, &inner)?,
                (false, Some(only)) => map.serialize_entry(block.name, only)?,
                (false, None) => {}
            }
        }
        map.end()
    }
}

impl Serialize for Chosen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.row.kind.is_list(), self.settings.first()) {
            (false, Some(setting)) => setting.serialize(serializer),
            _ => self.settings.serialize(serializer),
        }
    }
}

impl Serialize for Setting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Setting::Time(us) => serializer.serialize_str(&time_text(*us)),
            Setting::Size(bytes) => serializer.serialize_str(&size_text(*bytes)),
            Setting::Count(number) => serializer.serialize_u64(*number),
            Setting::Flag(flag) => serializer.serialize_bool(*flag),
            Setting::Text(text) => serializer.serialize_str(&escape(text)),
            Setting::Word(word) => serializer.serialize_str(word),
        }
    }
}
