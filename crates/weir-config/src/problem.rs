//! Problems of a configuration: every one that was found, with its place, as text for people and as
//! JSON.
//!
//! Made by all steps of weir-config, rendered by the command line. Bound: at most [`PROBLEMS_MAX`]
//! problems are kept, the rest is counted. Spans are clamped to the text before they are drawn, so
//! a wrong span cannot crash the program.

use std::fmt::{self, Display, Write as _};
use std::ops::Range;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity,
    SourceCode,
};
use serde::Serialize;

/// Problems of one configuration that are kept; more than anyone reads.
pub const PROBLEMS_MAX: usize = 100;

/// A byte range of the configuration text.
pub(crate) type Span = Range<usize>;

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// A stable word for programs, such as `unknown-option`.
    pub code: &'static str,
    /// The problem, in one sentence.
    pub message: String,
    /// The text below the marked text; may be empty.
    pub label: String,
    /// The solution.
    pub help: Option<String>,
    /// The offending bytes; None without a text (an unreadable file).
    pub span: Option<Span>,
    /// A second place that explains the first, such as an earlier definition.
    pub related: Option<(Span, &'static str)>,
}

impl Problem {
    /// Returns a problem at a place in the text.
    pub(crate) fn new(code: &'static str, span: &Span, message: impl Into<String>) -> Problem {
        let message = message.into();
        Problem {
            code,
            message,
            label: String::new(),
            help: None,
            span: Some(span.clone()),
            related: None,
        }
    }

    /// Returns a problem of the file as a whole.
    pub(crate) fn of_file(code: &'static str, message: impl Into<String>) -> Problem {
        let message = message.into();
        Problem { code, message, label: String::new(), help: None, span: None, related: None }
    }

    /// Sets the text below the marked text.
    pub(crate) fn label(mut self, label: impl Into<String>) -> Problem {
        self.label = label.into();
        self
    }

    /// Sets the solution.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }

    /// Marks a second place.
    pub(crate) fn related(mut self, span: &Span, label: &'static str) -> Problem {
        self.related = Some((span.clone(), label));
        self
    }
}

/// All problems of one configuration, or all warnings about it, in the order of the text. Never
/// empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors {
    name: String,
    text: String,
    problems: Vec<Problem>,
    dropped: usize,
    severity: Severity,
}

impl Errors {
    /// Sorts the problems by place and keeps the first [`PROBLEMS_MAX`].
    pub(crate) fn new(name: &str, text: &str, mut problems: Vec<Problem>) -> Errors {
        problems.sort_by_key(|problem| problem.span.as_ref().map_or(0, |span| span.start));
        let dropped = problems.len().saturating_sub(PROBLEMS_MAX);
        problems.truncate(PROBLEMS_MAX);
        Errors {
            name: name.to_owned(),
            text: text.to_owned(),
            problems,
            dropped,
            severity: Severity::Error,
        }
    }

    /// Returns warnings, which do not stop weir.
    pub(crate) fn warnings(name: &str, text: &str, problems: Vec<Problem>) -> Errors {
        Errors { severity: Severity::Warning, ..Errors::new(name, text, problems) }
    }

    /// Returns the problems, in the order of the text.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the number of problems, including those that were not kept.
    pub fn count(&self) -> usize {
        self.problems.len() + self.dropped
    }

    /// Returns the report for people: one snippet a problem, then a line that counts them. `colour`
    /// adds terminal escapes; `columns` is the width to wrap at.
    pub fn render(&self, colour: bool, columns: usize) -> String {
        let theme =
            if colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler =
            GraphicalReportHandler::new_themed(theme).with_width(columns.max(40)).with_links(false);
        let source = NamedSource::new(&self.name, self.text.clone());
        let mut out = String::new();
        for problem in &self.problems {
            let report = Report::new(problem, &source, &self.text, self.severity);
            if handler.render_report(&mut out, &report).is_err() {
                let _ = writeln!(out, "{}", self.line_of(problem));
            }
            out.push('\n');
        }
        let noun = if self.severity == Severity::Warning { "warning" } else { "error" };
        let plural = if self.count() == 1 { "" } else { "s" };
        let _ = writeln!(out, "{}: {} {noun}{plural}", self.name, self.count());
        out
    }

    /// Returns the report for programs: an object with `file` and `errors`, each with `line` and
    /// `column` from 1 (columns count characters).
    pub fn to_json(&self) -> serde_json::Value {
        let errors: Vec<_> = self.problems.iter().map(|problem| self.json_of(problem)).collect();
        serde_json::json!({ "file": self.name, "count": self.count(), "errors": errors })
    }

    fn json_of(&self, problem: &Problem) -> serde_json::Value {
        #[derive(Serialize)]
        struct Line<'a> {
            code: &'a str,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            line: Option<usize>,
            #[serde(skip_serializing_if = "Option::is_none")]
            column: Option<usize>,
            #[serde(skip_serializing_if = "Option::is_none")]
            help: Option<&'a str>,
        }
        let place = problem.span.as_ref().map(|span| place(&self.text, span.start));
        let line = Line {
            code: problem.code,
            message: &problem.message,
            line: place.map(|(line, _)| line),
            column: place.map(|(_, column)| column),
            help: problem.help.as_deref(),
        };
        serde_json::to_value(line).unwrap_or_default()
    }

    fn line_of(&self, problem: &Problem) -> String {
        match problem.span.as_ref().map(|span| place(&self.text, span.start)) {
            Some((line, column)) => format!("{}:{line}:{column}: {}", self.name, problem.message),
            None => format!("{}: {}", self.name, problem.message),
        }
    }
}

impl Display for Errors {
    /// One line a problem: `file:line:column: message`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{}", self.line_of(problem))?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// Returns line and column, both from 1, of a byte offset; columns count characters.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..clamp(text, &(offset..offset)).start];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Returns the range, moved onto character boundaries inside the text.
fn clamp(text: &str, span: &Span) -> Span {
    let start = text.floor_char_boundary(span.start);
    let end = text.floor_char_boundary(span.end.max(start));
    start..end
}

/// A problem together with its text, for miette.
struct Report<'a> {
    problem: &'a Problem,
    source: &'a NamedSource<String>,
    labels: Vec<LabeledSpan>,
    severity: Severity,
}

impl<'a> Report<'a> {
    fn new(
        problem: &'a Problem,
        source: &'a NamedSource<String>,
        text: &str,
        severity: Severity,
    ) -> Report<'a> {
        let mut labels = Vec::new();
        if let Some(span) = &problem.span {
            let label = (!problem.label.is_empty()).then(|| problem.label.clone());
            let span = clamp(text, span);
            labels.push(LabeledSpan::new_primary_with_span(label, (span.start, span.len())));
        }
        if let Some((span, label)) = &problem.related {
            let span = clamp(text, span);
            labels.push(LabeledSpan::new_with_span(
                Some((*label).to_owned()),
                (span.start, span.len()),
            ));
        }
        Report { problem, source, labels, severity }
    }
}

impl fmt::Debug for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem.fmt(f)
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.message)
    }
}

impl std::error::Error for Report<'_> {}

impl Diagnostic for Report<'_> {
    fn code<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        Some(Box::new(self.problem.code))
    }

    fn severity(&self) -> Option<Severity> {
        Some(self.severity)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        self.problem.help.as_ref().map(|help| Box::new(help) as Box<dyn Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.problem.span.as_ref().map(|_| self.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(self.labels.iter().cloned()))
    }
}

/// Returns the nearest of `words` to the written one, if it is similar enough.
pub(crate) fn nearest<'a>(
    written: &str,
    words: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    closest(&written.to_lowercase().replace('_', "-"), words)
}

/// Returns the name that was probably intended, if one is similar enough.
pub fn closest<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names
        .into_iter()
        .map(|name| (strsim::jaro_winkler(written, name), name))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_outside_the_text_and_inside_characters_are_drawn() {
        let text = "größe 1\n";
        for start in 0..20 {
            for end in 0..20 {
                let problem = Problem::new("x", &(start..end), "m")
                    .label("l")
                    .related(&(end..start), "other");
                let errors = Errors::new("f", text, vec![problem]);
                assert!(errors.render(false, 80).contains('m'));
            }
        }
    }

    #[test]
    fn columns_count_characters_from_one() {
        assert_eq!(place("äb\ncd", 0), (1, 1));
        assert_eq!(place("äb\ncd", 2), (1, 2));
        assert_eq!(place("äb\ncd", 4), (2, 1));
        assert_eq!(place("äb\ncd", 99), (2, 3));
    }

    #[test]
    fn nearest_word_is_near() {
        assert_eq!(nearest("upstraem", ["listen", "upstream"]), Some("upstream"));
        assert_eq!(nearest("head_timeout", ["head-timeout", "body-timeout"]), Some("head-timeout"));
        assert_eq!(nearest("zzz", ["listen", "upstream"]), None);
    }
}
