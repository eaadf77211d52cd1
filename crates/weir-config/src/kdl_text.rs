//! KDL text -> tree. Called by `lib`; uses the `kdl` crate (KDL 2.0), which keeps the place of
//! every value.
//!
//! Bound: `kdl_shape` has refused deep nesting before the recursive parser sees it.

use kdl::{KdlDocument, KdlEntry, KdlError, KdlNode, KdlValue};

use crate::expand::{Lookup, expand};
use crate::kdl_shape;
use crate::problem::{Problem, Span};
use crate::tree::{Entry, Scalar, Value};

/// Reads a document. Problems with variables are pushed; the value is then marked as broken.
pub(crate) fn read(text: &str, lookup: Lookup<'_>, problems: &mut Vec<Problem>) -> Vec<Entry> {
    if let Err(problem) = kdl_shape::check(text) {
        problems.push(*problem);
        return Vec::new();
    }
    match KdlDocument::parse_v2(text) {
        Ok(document) => Reader { lookup, problems }.document(&document),
        Err(error) => {
            problems.extend(syntax_problems(text, &error));
            Vec::new()
        }
    }
}

struct Reader<'a> {
    lookup: Lookup<'a>,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn document(&mut self, document: &KdlDocument) -> Vec<Entry> {
        document.nodes().iter().map(|node| self.node(node)).collect()
    }

    fn node(&mut self, node: &KdlNode) -> Entry {
        let name_span = span_of(node.name().span());
        let mut entry = Entry {
            name: node.name().value().to_owned(),
            name_span: name_span.clone(),
            values: Vec::new(),
            entries: Vec::new(),
            braces: node.children().is_some(),
            nothing: false,
        };
        if node.ty().is_some() {
            self.annotation(&name_span);
        }
        for part in node.entries() {
            let option = part.name().unwrap_or(node.name()).value();
            let value = self.value(part, option);
            match part.name() {
                None => entry.values.push(value),
                Some(name) => entry.entries.push(Entry {
                    name: name.value().to_owned(),
                    name_span: span_of(name.span()),
                    values: vec![value],
                    ..Entry::default()
                }),
            }
        }
        if let Some(children) = node.children() {
            entry.entries.extend(self.document(children));
        }
        entry
    }

    fn value(&mut self, part: &KdlEntry, option: &str) -> Value {
        let span = value_span(part);
        if part.ty().is_some() {
            self.annotation(&span);
        }
        let scalar = match part.value() {
            KdlValue::String(text) => self.expanded(text, option, &span),
            KdlValue::Integer(number) => Scalar::Integer(*number),
            KdlValue::Float(number) => Scalar::Float(*number),
            KdlValue::Bool(flag) => Scalar::Flag(*flag),
            KdlValue::Null => Scalar::Null,
        };
        Value { scalar, span }
    }

    fn expanded(&mut self, text: &str, option: &str, span: &Span) -> Scalar {
        match expand(text, option, self.lookup) {
            Ok(text) => Scalar::Text(text),
            Err(message) => {
                self.problems.push(Problem::new("variable", span, message));
                Scalar::Broken
            }
        }
    }

    fn annotation(&mut self, span: &Span) {
        let problem = Problem::new("annotation", span, "type annotations are not used here");
        self.problems.push(problem.help("remove the word in parentheses"));
    }
}

fn span_of(span: miette::SourceSpan) -> Span {
    span.offset()..span.offset() + span.len()
}

/// Returns the place of a value; for a property only the part behind the equals sign.
fn value_span(part: &KdlEntry) -> Span {
    let span = span_of(part.span());
    let written = part.format().map_or(0, |format| format.value_repr.len());
    match part.name() {
        Some(_) if written > 0 && written <= span.len() => span.end - written..span.end,
        _ => span,
    }
}

/// Translates the errors of the KDL parser, with clearer words for some.
///
/// Braces are known to be balanced here, so errors about them and about the end of the document
/// only follow from another error.
fn syntax_problems(text: &str, error: &KdlError) -> Vec<Problem> {
    const FOLLOWING: [&str; 3] = ["No closing", "Closing '}'", "Expected end of document"];
    let mut problems: Vec<Problem> = Vec::new();
    for diagnostic in &error.diagnostics {
        let problem = syntax_problem(text, diagnostic);
        let follows = FOLLOWING.iter().any(|words| problem.message.starts_with(words));
        let known = problems.iter().any(|other| start(other) == start(&problem));
        if !follows && !known {
            problems.push(problem);
        }
    }
    if problems.is_empty() {
        problems.extend(
            error.diagnostics.iter().take(1).map(|diagnostic| syntax_problem(text, diagnostic)),
        );
    }
    problems
}

fn start(problem: &Problem) -> Option<usize> {
    problem.span.as_ref().map(|span| span.start)
}

fn syntax_problem(text: &str, diagnostic: &kdl::KdlDiagnostic) -> Problem {
    let span = sharpened(text, span_of(diagnostic.span));
    let word = word_at(text, span.start);
    if let Some(help) = hint(word) {
        return Problem::new("syntax", &span, format!("`{word}` is not valid KDL")).help(help);
    }
    let message = diagnostic.message.clone().unwrap_or_else(|| "this is not KDL".to_owned());
    let problem =
        Problem::new("syntax", &span, message).label(diagnostic.label.clone().unwrap_or_default());
    match &diagnostic.help {
        Some(help) => problem.help(help),
        None => problem,
    }
}

/// For a bad value of a property the parser marks everything up to the equals sign; this returns
/// the part behind it.
fn sharpened(text: &str, span: Span) -> Span {
    match text.get(span.clone()) {
        Some(marked) if marked.ends_with('=') => {
            span.end..span.end + word_at(text, span.end).len().max(1)
        }
        _ => span,
    }
}

/// Returns the bare word at an offset.
fn word_at(text: &str, offset: usize) -> &str {
    let at = text.floor_char_boundary(offset);
    let ends = |c: char| c.is_whitespace() || matches!(c, '=' | '{' | '}' | ';' | '"');
    let start = text[..at]
        .char_indices()
        .rfind(|(_, c)| ends(*c))
        .map_or(0, |(found, c)| found + c.len_utf8());
    let end = text[at..].find(ends).map_or(text.len(), |found| at + found);
    &text[start..end]
}

/// Returns help for the most frequent mistakes.
fn hint(word: &str) -> Option<String> {
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0 && digits < word.len() {
        return Some(format!(
            "a value that begins with a digit but is not a number needs quotes: \"{word}\""
        ));
    }
    match word {
        "true" | "false" | "null" => Some(format!("write #{word}")),
        _ if word.starts_with('/') => Some(format!("a path needs quotes: \"{word}\"")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> (Vec<Entry>, Vec<Problem>) {
        let mut problems = Vec::new();
        let entries = read(text, &|name| (name == "N").then(|| "v${N}".to_owned()), &mut problems);
        (entries, problems)
    }

    #[test]
    fn every_part_has_its_place() {
        let text = "größe \"ä\" x= \"${N}\" { inner off; }\n";
        let (entries, problems) = entries(text);
        assert_eq!(problems, []);
        let node = &entries[0];
        assert_eq!(&text[node.name_span.clone()], "größe");
        assert_eq!(&text[node.values[0].span.clone()], "\"ä\"");
        assert_eq!(&text[node.entries[0].name_span.clone()], "x");
        assert_eq!(&text[node.entries[0].values[0].span.clone()], "\"${N}\"");
        assert_eq!(node.entries[0].values[0].scalar, Scalar::Text("v${N}".to_owned()));
        assert_eq!(&text[node.entries[1].values[0].span.clone()], "off");
    }

    #[test]
    fn the_deepest_nesting_parses() {
        let deep = format!(
            "{}{}",
            "a {".repeat(kdl_shape::NESTING_MAX),
            "}".repeat(kdl_shape::NESTING_MAX)
        );
        let (found, problems) = entries(&deep);
        assert_eq!((found.len(), problems.len()), (1, 0));
    }

    #[test]
    fn common_mistakes_get_help() {
        for (text, help) in [
            ("idle-timeout 10s\n", "\"10s\""),
            ("via true\n", "#true"),
            ("route path=/ {\n}\n", "quotes"),
        ] {
            let (_, problems) = entries(text);
            let helps: Vec<_> =
                problems.iter().filter_map(|problem| problem.help.clone()).collect();
            assert!(helps.iter().any(|given| given.contains(help)), "{text}: {problems:?}");
        }
    }
}
