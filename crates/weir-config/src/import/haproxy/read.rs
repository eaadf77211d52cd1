//! The grammar of HAProxy: a directive a line, below the keyword of its section; quotes,
//! backslashes, `#`, `"$VAR"`.
//!
//! Bounds: those of `tree`; each byte is looked at once.

use std::collections::HashMap;

use super::super::draft::Draft;
use super::super::notes::Kind;
use super::super::tree::{Place, ROOT, Tree};
use crate::problem::Errors;

/// Words that begin a section.
const SECTIONS: [&str; 20] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "peers",
    "resolvers",
    "userlist",
    "mailers",
    "cache",
    "program",
    "http-errors",
    "ring",
    "log-forward",
    "crt-store",
    "fcgi-app",
    "traces",
    "acme",
    "log-profile",
    "healthcheck",
];

/// Reads the file into a tree: sections, and their lines.
pub(super) fn read(draft: &mut Draft<'_>) -> Result<Tree, Errors> {
    let text = draft.sources.text(0);
    let mut tree = Tree::new();
    let mut section = ROOT;
    let mut set = HashMap::new();
    let (mut rest, mut line) = (&*text, 1);
    while !rest.is_empty() {
        let place = Place { file: 0, line };
        let mut reader = Line { rest, line, words: Vec::new(), unset: Vec::new() };
        let start = text.len() - rest.len();
        let outside = draft.sources.outside.variables;
        let variables = |name: &str| set.get(name).cloned().unwrap_or_else(|| outside(name));
        if let Err((message, help)) = reader.read(&variables) {
            let end = text[start..].find('\n').map_or(text.len(), |end| start + end);
            return Err(draft.sources.error(0, &(start..end), message, help));
        }
        (rest, line) = (reader.rest, reader.line);
        for name in &reader.unset {
            let why = "this variable is not set here: set it, and import again";
            draft.note(place, Kind::Lost, &format!("${name}"), why);
        }
        take_variable(&reader.words, &mut set, outside);
        let Some(first) = reader.words.first() else { continue };
        if SECTIONS.contains(&first.as_str()) {
            section = tree.add(&draft.sources, ROOT, place, reader.words)?;
            tree.nodes[section].is_block = true;
        } else if section == ROOT {
            let message = format!("`{}` is in no section", super::super::notes::short(first));
            let help = "a section begins with `frontend NAME`, `backend NAME` and so on: is this a \
                haproxy.cfg?";
            return Err(draft.sources.error(0, &draft.sources.line(place), message, help));
        } else {
            tree.add(&draft.sources, section, place, reader.words)?;
        }
    }
    Ok(tree)
}

/// Applies a line of `global` that sets a variable for the lines behind it. None in `set`: it is
/// not set any more.
fn take_variable(
    words: &[String],
    set: &mut HashMap<String, Option<String>>,
    outside: &dyn Fn(&str) -> Option<String>,
) {
    let [action, name, value @ ..] = words else { return };
    let is_set = || match set.get(name) {
        Some(value) => value.is_some(),
        None => outside(name).is_some(),
    };
    match action.as_str() {
        "setenv" => drop(set.insert(name.clone(), value.first().cloned())),
        "presetenv" if !is_set() => drop(set.insert(name.clone(), value.first().cloned())),
        "unsetenv" => drop(set.insert(name.clone(), None)),
        _ => {}
    }
}

/// A line, joined with the lines that a final backslash appends.
struct Line<'t> {
    rest: &'t str,
    line: usize,
    words: Vec<String>,
    /// Variables that are not set.
    unset: Vec<String>,
}

impl Line<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        self.line += usize::from(c == '\n');
        Some(c)
    }

    /// Reads up to its end. Err: why not, and the solution.
    fn read(
        &mut self,
        variables: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), (&'static str, &'static str)> {
        let mut word: Option<String> = None;
        // The open quote.
        let mut quote = None;
        while let Some(c) = self.next() {
            match (quote, c) {
                (Some(_), '\n') => break,
                (Some(open), _) if open == c => quote = None,
                (None, '"' | '\'') => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (Some('\''), _) => word.get_or_insert_default().push(c),
                (_, '\\') => match self.next() {
                    Some('\n') => {}
                    Some('r') => word.get_or_insert_default().push('\r'),
                    Some('n') => word.get_or_insert_default().push('\n'),
                    Some('t') => word.get_or_insert_default().push('\t'),
                    Some(other @ (' ' | '#' | '\\' | '"' | '\'' | '$')) => {
                        word.get_or_insert_default().push(other)
                    }
                    // Kept for expressions and their groups.
                    Some(other) => word.get_or_insert_default().extend(['\\', other]),
                    None => {}
                },
                (Some('"'), '$') => {
                    let value = self.variable(variables);
                    word.get_or_insert_default().push_str(&value);
                }
                (None, '\n') => {
                    self.words.extend(word);
                    return Ok(());
                }
                (None, '#') => {
                    while self.rest.chars().next().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                (None, ' ' | '\t' | '\r') => self.words.extend(word.take()),
                (_, c) => word.get_or_insert_default().push(c),
            }
        }
        if quote.is_some() {
            return Err((
                "this line has a quote that is never closed",
                "close it, or put a backslash in front of a literal quote",
            ));
        }
        self.words.extend(word);
        Ok(())
    }

    /// Expands the text behind a `$` within double quotes.
    fn variable(&mut self, variables: &dyn Fn(&str) -> Option<String>) -> String {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let braces = self.rest.starts_with('{');
        let inside = if braces { &self.rest[1..] } else { self.rest };
        let end = inside.find(|c| !is_name(c)).unwrap_or(inside.len());
        let (name, behind) = inside.split_at(end);
        // `${NAME-DEFAULT}`.
        let default = behind.strip_prefix('-').and_then(|behind| behind.split_once('}'));
        let default = default.filter(|(text, _)| braces && !text.contains(['\n', '"']));
        let closed = !braces || behind.starts_with('}') || default.is_some();
        if name.is_empty() || !closed {
            return "$".to_owned();
        }
        self.rest = default.map_or_else(|| &behind[usize::from(braces)..], |(_, behind)| behind);
        variables(name).or_else(|| default.map(|(text, _)| text.to_owned())).unwrap_or_else(|| {
            self.unset.push(name.to_owned());
            String::new()
        })
    }
}
