//! The grammar of a Caddyfile: a directive a line, `{` at the end of one and `}` alone on another;
//! quotes, backticks, heredocs; `{$VAR}`; `import` of snippets and files.
//!
//! Bounds: those of `tree`, and [`IMPORTS_MAX`]; each byte is looked at once for each import.

use std::collections::HashMap;
use std::rc::Rc;
use std::vec::IntoIter;

use super::super::draft::Draft;
use super::super::notes::{Kind, short};
use super::super::tree::{INCLUDES_MAX, NESTING_MAX, Place, ROOT, Tree};
use crate::problem::Errors;

/// Uses of `import`.
const IMPORTS_MAX: usize = 10_000;

/// A line, with the meaning of its last word and its first one.
#[derive(Debug, Clone)]
struct Line {
    place: Place,
    words: Vec<String>,
    opens: bool,
    closes: bool,
}

/// Why a line is invalid, with the solution.
type Wrong = (usize, &'static str, &'static str);

/// Reads all files into a tree.
pub(super) fn read(draft: &mut Draft<'_>) -> Result<Tree, Errors> {
    let lines = lines(draft, 0)?;
    let mut reader = Reader {
        draft,
        tree: Tree::new(),
        open: Vec::new(),
        stack: vec![Level { lines: lines.into_iter(), open: 0, nesting: 0 }],
        snippets: HashMap::new(),
        imports: 0,
        site: None,
    };
    while reader.step()? {}
    Ok(reader.tree)
}

/// The rest of a file or a snippet.
struct Level {
    lines: IntoIter<Line>,
    /// The number of blocks that were open in front of it.
    open: usize,
    /// The number of imports that led to it.
    nesting: usize,
}

struct Reader<'d, 'a> {
    draft: &'d mut Draft<'a>,
    tree: Tree,
    /// Open blocks.
    open: Vec<usize>,
    /// Remaining lines, the next ones last.
    stack: Vec<Level>,
    snippets: HashMap<String, Rc<Vec<Line>>>,
    imports: usize,
    /// The only site of a file without braces around it.
    site: Option<usize>,
}

impl Reader<'_, '_> {
    fn wrong(&self, place: Place, message: impl Into<String>, help: &str) -> Errors {
        self.draft.sources.error(place.file, &self.draft.sources.line(place), message, help)
    }

    /// Reads one line; false: all lines are read.
    fn step(&mut self) -> Result<bool, Errors> {
        let Some(level) = self.stack.last_mut() else { return Ok(false) };
        let depth = level.open;
        let Some(line) = level.lines.next() else {
            if self.open.len() > depth {
                let place =
                    self.open.last().map_or_else(Place::default, |at| self.tree.nodes[*at].place);
                return Err(self.wrong(
                    place,
                    "the brace of this line is never closed",
                    "close it with `}` on its own line",
                ));
            }
            self.stack.pop();
            return Ok(true);
        };
        if line.closes {
            if self.open.len() <= depth {
                return Err(self.wrong(
                    line.place,
                    "this brace matches no opening brace",
                    "remove it",
                ));
            }
            self.open.pop();
            return Ok(true);
        }
        let is_top = self.open.is_empty();
        match line.words.first().map(String::as_str) {
            Some("import") if !line.opens => self.import(&line)?,
            Some(name) if is_top && line.opens && name.starts_with('(') && name.ends_with(')') => {
                self.snippet(&line)?
            }
            _ => self.directive(line, is_top)?,
        }
        Ok(true)
    }

    fn directive(&mut self, mut line: Line, is_top: bool) -> Result<(), Errors> {
        // The addresses of a site may continue in the next line.
        while is_top && !line.opens && line.words.last().is_some_and(|word| word.ends_with(',')) {
            let Some(next) = self
                .stack
                .last_mut()
                .and_then(|level| level.lines.next())
                .filter(|next| !next.closes)
            else {
                return Err(self.wrong(
                    line.place,
                    "an address is missing after the comma",
                    "write it, or remove the comma",
                ));
            };
            line.words.extend(next.words);
            line.opens = next.opens;
        }
        if self.open.len() > NESTING_MAX {
            return Err(self.wrong(
                line.place,
                "blocks are nested too deep here",
                "no directive of Caddy needs this many levels",
            ));
        }
        let parent = self.open.last().copied().or(self.site).unwrap_or(ROOT);
        let node = self.tree.add(&self.draft.sources, parent, line.place, line.words)?;
        self.tree.nodes[node].is_block = line.opens;
        if line.opens {
            self.open.push(node);
        } else if parent == ROOT {
            // The first line of a file without braces: addresses.
            self.tree.nodes[node].is_block = true;
            self.site = Some(node);
        }
        Ok(())
    }

    /// Keeps the lines up to the brace that closes it.
    fn snippet(&mut self, head: &Line) -> Result<(), Errors> {
        let (mut kept, mut depth) = (Vec::new(), 1);
        while let Some(line) = self.stack.last_mut().and_then(|level| level.lines.next()) {
            depth = depth + usize::from(line.opens) - usize::from(line.closes);
            if depth == 0 {
                let name = head.words[0].trim_matches(['(', ')']).to_owned();
                self.snippets.insert(name, kept.into());
                return Ok(());
            }
            kept.push(line);
        }
        Err(self.wrong(
            head.place,
            "the brace of this line is never closed",
            "close it with `}` on its own line",
        ))
    }

    /// Replaces the line with the lines of a snippet or of files.
    fn import(&mut self, line: &Line) -> Result<(), Errors> {
        self.imports += 1;
        let nesting = self.stack.last().map_or(0, |level| level.nesting) + 1;
        if nesting >= INCLUDES_MAX || self.imports > IMPORTS_MAX {
            return Err(self.wrong(
                line.place,
                "imports are nested too deep",
                "does something import itself?",
            ));
        }
        let Some((name, arguments)) = line.words[1..].split_first() else {
            return Err(self.wrong(
                line.place,
                "`import` has no argument",
                "name a snippet or a file",
            ));
        };
        if let Some(snippet) = self.snippets.get(name) {
            let lines: Vec<Line> =
                snippet.iter().map(|line| with_arguments(line, arguments)).collect();
            self.push(lines, nesting);
            return Ok(());
        }
        let paths = match self.draft.sources.matching(name) {
            Ok(paths) => paths,
            Err(error) => {
                self.draft.note(
                    line.place,
                    Kind::Lost,
                    &line.words.join(" "),
                    format!("can't be read: {error}"),
                );
                return self.stand_in(line);
            }
        };
        for path in paths.iter().rev() {
            match self.draft.sources.include(path)? {
                Ok(file) => {
                    let lines = lines(self.draft, file)?;
                    self.push(lines, nesting);
                }
                Err(error) => {
                    let why = format!(
                        "no snippet has this name, and {} can't be read: {error}",
                        path.display()
                    );
                    self.draft.note(line.place, Kind::Lost, &line.words.join(" "), why);
                    self.stand_in(line)?;
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, lines: Vec<Line>, nesting: usize) {
        let open = self.open.len();
        self.stack.push(Level { lines: lines.into_iter(), open, nesting });
    }

    /// Adds a line with an unreadable file as a directive of its block: the file may keep clients
    /// out.
    fn stand_in(&mut self, line: &Line) -> Result<(), Errors> {
        if self.open.is_empty() && self.site.is_none() {
            return Ok(());
        }
        self.directive(line.clone(), false)
    }
}

/// Returns a line of a snippet with the arguments behind `import NAME`.
fn with_arguments(line: &Line, arguments: &[String]) -> Line {
    let words = line.words.iter().flat_map(|word| expanded(word, arguments)).collect();
    Line { words, ..line.clone() }
}

fn expanded(word: &str, arguments: &[String]) -> Vec<String> {
    if !word.contains("{args") {
        return vec![word.to_owned()];
    }
    if word == "{args.*}" {
        return arguments.to_vec();
    }
    let range = word.strip_prefix("{args[").and_then(|rest| rest.strip_suffix("]}"));
    if let Some((from, to)) = range.and_then(|range| range.split_once(':')) {
        let from = if from.is_empty() { Ok(0) } else { from.parse() };
        let to = if to.is_empty() { Ok(arguments.len()) } else { to.parse::<usize>() };
        let part =
            from.ok().zip(to.ok()).and_then(|(from, to): (usize, usize)| arguments.get(from..to));
        return part.map_or_else(|| vec![word.to_owned()], <[String]>::to_vec);
    }
    let mut word = word.to_owned();
    for (at, argument) in arguments.iter().enumerate() {
        word = word
            .replace(&format!("{{args[{at}]}}"), argument)
            .replace(&format!("{{args.{at}}}"), argument);
    }
    vec![word]
}

/// Returns the lines of a file.
fn lines(draft: &mut Draft<'_>, file: usize) -> Result<Vec<Line>, Errors> {
    let text = draft.sources.text(file);
    let mut lexer = Lexer {
        rest: &text,
        line: 1,
        unset: Vec::new(),
        variables: draft.sources.outside.variables,
    };
    let mut lines = Vec::new();
    while !lexer.rest.is_empty() {
        let place = Place { file, line: lexer.line };
        let line = lexer.read(place).map_err(|(line, message, help)| {
            let place = Place { file, line };
            draft.sources.error(file, &draft.sources.line(place), message, help)
        })?;
        for name in std::mem::take(&mut lexer.unset) {
            let why = "this variable is not set here: set it, and import again";
            draft.note(place, Kind::Lost, &short(&format!("{{${name}}}")), why);
        }
        lines.extend(line);
    }
    Ok(lines)
}

struct Lexer<'t> {
    rest: &'t str,
    line: usize,
    unset: Vec<String>,
    variables: &'t dyn Fn(&str) -> Option<String>,
}

impl<'t> Lexer<'t> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Reads one line; None: it is empty.
    fn read(&mut self, place: Place) -> Result<Option<Line>, Wrong> {
        let mut words: Vec<(String, bool)> = Vec::new();
        while let Some(c) = self.peek() {
            match c {
                '\n' => {
                    self.next();
                    break;
                }
                '\\' if self.rest.starts_with("\\\n") || self.rest.starts_with("\\\r\n") => {
                    while self.next().is_some_and(|c| c != '\n') {}
                }
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                '"' | '`' => {
                    let line = self.line;
                    let word = self.quoted(c).ok_or((
                        line,
                        "a quote of this line is never closed",
                        "close it with the same quote",
                    ))?;
                    words.push((word, true));
                }
                _ if c.is_whitespace() || c == '\u{feff}' => drop(self.next()),
                '<' if self.rest.starts_with("<<") => words.push((self.heredoc()?, true)),
                _ => words.push((self.bare(), false)),
            }
        }
        let is = |word: Option<&(String, bool)>, what: &str| {
            word.is_some_and(|(text, quoted)| !quoted && text == what)
        };
        let (opens, closes) = (is(words.last(), "{"), is(words.first(), "}"));
        if words.iter().any(|(text, quoted)| !quoted && text == "}") && words.len() > 1 {
            return Err((
                place.line,
                "a closing brace must be alone on its line",
                "put it on its own line",
            ));
        }
        if opens {
            words.pop();
        }
        if words.is_empty() && !opens {
            return Ok(None);
        }
        Ok(Some(Line {
            place,
            words: words.into_iter().map(|(text, _)| text).collect(),
            opens,
            closes,
        }))
    }

    fn quoted(&mut self, quote: char) -> Option<String> {
        self.next();
        let mut out = String::new();
        loop {
            if quote == '"' && self.rest.starts_with("{$") {
                self.variable(&mut out);
                continue;
            }
            match self.next()? {
                c if c == quote => return Some(out),
                '\\' if quote == '"' && self.peek() == Some('"') => out.extend(self.next()),
                c => out.push(c),
            }
        }
    }

    fn bare(&mut self) -> String {
        let mut out = String::new();
        while let Some(c) = self.peek() {
            if c.is_whitespace() {
                break;
            }
            if self.rest.starts_with("{$") {
                self.variable(&mut out);
            } else {
                self.next();
                out.push(c);
            }
        }
        out
    }

    /// Expands `{$NAME}` or `{$NAME:default}`.
    fn variable(&mut self, out: &mut String) {
        let Some(end) = self.rest.find('}').filter(|end| !self.rest[..*end].contains('\n')) else {
            out.extend(self.next());
            return;
        };
        let inside = &self.rest[2..end];
        self.rest = &self.rest[end + 1..];
        let (name, default) =
            inside.split_once(':').map_or((inside, None), |(name, default)| (name, Some(default)));
        match ((self.variables)(name), default) {
            (Some(value), _) => out.push_str(&value),
            (None, Some(default)) => out.push_str(default),
            (None, None) => self.unset.push(name.to_owned()),
        }
    }

    /// Reads `<<MARK`, and all lines up to one that begins with the mark, without the last line
    /// end.
    fn heredoc(&mut self) -> Result<String, Wrong> {
        let line = self.line;
        let (head, _) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        let mark = head[2..].trim_end().to_owned();
        for _ in head.chars() {
            self.next();
        }
        self.next();
        let mut out: Vec<&str> = Vec::new();
        while !self.rest.is_empty() {
            let (text, _) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
            let behind = text.trim_start().strip_prefix(mark.as_str());
            if behind.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace)) {
                let indent = text.find(|c: char| !c.is_whitespace()).unwrap_or(0);
                for _ in 0..text[..indent].chars().count() + mark.chars().count() {
                    self.next();
                }
                // The white space in front of the mark is that of the file, not of the text.
                let bare =
                    |line: &&str| line.strip_prefix(&text[..indent]).unwrap_or(line).to_owned();
                return Ok(out.iter().map(bare).collect::<Vec<_>>().join("\n"));
            }
            out.push(text.strip_suffix('\r').unwrap_or(text));
            for _ in text.chars() {
                self.next();
            }
            self.next();
        }
        Err((
            line,
            "the text that begins in this line never ends",
            "end it with a line that begins with the word after <<",
        ))
    }
}
