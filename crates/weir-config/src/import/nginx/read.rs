//! The grammar of nginx: words, `;` behind a directive, braces around nested ones, `#` before
//! comments, `include`.
//!
//! Bounds: those of `tree`; each byte is looked at once.

use std::rc::Rc;

use super::super::draft::Draft;
use super::super::notes::Kind;
use super::super::tree::{INCLUDES_MAX, NESTING_MAX, Place, ROOT, Tree};
use crate::problem::{Errors, Span};

/// A file that is being read.
struct Cursor {
    file: usize,
    text: Rc<str>,
    at: usize,
    line: usize,
    /// Blocks that were open where it was included.
    depth: usize,
    /// Files that include it, one within the other.
    level: usize,
}

/// The next token.
enum Token {
    Word(String),
    Semicolon,
    Open,
    Close,
    End,
}

/// Reads all files into a tree.
pub(super) fn read(draft: &mut Draft<'_>) -> Result<Tree, Errors> {
    let first = Cursor { file: 0, text: draft.sources.text(0), at: 0, line: 1, depth: 1, level: 0 };
    let mut reader = Reader {
        draft,
        tree: Tree::new(),
        cursors: vec![first],
        open: vec![(ROOT, 0..0)],
        words: Vec::new(),
        begin: (Place::default(), 0..0),
    };
    while reader.step()? {}
    Ok(reader.tree)
}

struct Reader<'d, 'a> {
    draft: &'d mut Draft<'a>,
    tree: Tree,
    cursors: Vec<Cursor>,
    /// Open blocks, each with its brace.
    open: Vec<(usize, Span)>,
    /// The directive so far.
    words: Vec<String>,
    begin: (Place, Span),
}

impl Reader<'_, '_> {
    /// Reads one token; false: all tokens are read.
    fn step(&mut self) -> Result<bool, Errors> {
        let Some(cursor) = self.cursors.last_mut() else { return Ok(false) };
        cursor.skip_blanks();
        let (start, file) = (cursor.at, cursor.file);
        let place = Place { file, line: cursor.line };
        let depth = cursor.depth;
        let token = cursor.token().map_err(|message| {
            let help =
                "close it with the same quote, or put a backslash in front of a literal quote";
            self.draft.sources.error(file, &(start..start + 1), message, help)
        })?;
        let span = start..start + 1;
        match token {
            Token::Word(word) => {
                if self.words.is_empty() {
                    self.begin = (place, span);
                }
                self.words.push(word);
            }
            Token::Semicolon if self.words.is_empty() => {}
            Token::Semicolon => self.directive()?,
            Token::Open => self.block(&span)?,
            Token::Close => {
                self.expect_no_words()?;
                if self.open.len() <= depth {
                    return Err(self.draft.sources.error(
                        file,
                        &span,
                        "this brace matches no opening brace",
                        "remove it",
                    ));
                }
                self.open.pop();
            }
            Token::End => {
                self.expect_no_words()?;
                if self.open.len() > depth {
                    let brace = self.open.pop().map_or(span, |(_, brace)| brace);
                    return Err(self.draft.sources.error(
                        file,
                        &brace,
                        "this brace is never closed",
                        "close it with `}`",
                    ));
                }
                self.cursors.pop();
            }
        }
        Ok(true)
    }

    fn expect_no_words(&self) -> Result<(), Errors> {
        if self.words.is_empty() {
            return Ok(());
        }
        let (place, span) = &self.begin;
        Err(self.draft.sources.error(
            place.file,
            span,
            "this directive does not end",
            "write `;` after it",
        ))
    }

    fn parent(&self) -> usize {
        self.open.last().map_or(ROOT, |(node, _)| *node)
    }

    /// A directive without a block.
    fn directive(&mut self) -> Result<(), Errors> {
        let words = std::mem::take(&mut self.words);
        let place = self.begin.0;
        if words[0] == "include" && words.len() == 2 {
            return self.include(place, &words[1]);
        }
        self.tree.add(&self.draft.sources, self.parent(), place, words)?;
        Ok(())
    }

    fn block(&mut self, brace: &Span) -> Result<(), Errors> {
        let words = std::mem::take(&mut self.words);
        let place = self.begin.0;
        let file = self.cursors.last().map_or(0, |cursor| cursor.file);
        let wrong = |message, help| Err(self.draft.sources.error(file, brace, message, help));
        if words.is_empty() {
            return wrong(
                "there is no directive in front of this brace",
                "write a directive, such as `server {`",
            );
        }
        if self.open.len() > NESTING_MAX {
            return wrong(
                "blocks are nested too deep here",
                "no block of nginx needs this many levels",
            );
        }
        let is_lua = words[0].ends_with("_by_lua_block");
        let node = self.tree.add(&self.draft.sources, self.parent(), place, words)?;
        self.tree.nodes[node].is_block = true;
        if !is_lua {
            self.open.push((node, brace.clone()));
            return Ok(());
        }
        let skipped = self.cursors.last_mut().is_some_and(Cursor::skip_code);
        if skipped {
            return Ok(());
        }
        Err(self.draft.sources.error(
            file,
            brace,
            "this brace is never closed",
            "close it with `}`",
        ))
    }

    /// Reads the files in place of the directive.
    fn include(&mut self, place: Place, pattern: &str) -> Result<(), Errors> {
        let what = format!("include {pattern}");
        let level = self.cursors.last().map_or(0, |cursor| cursor.level) + 1;
        if level >= INCLUDES_MAX {
            let (message, help) =
                ("files include each other too deep", "does a file include itself?");
            return Err(self.draft.sources.error(place.file, &self.begin.1, message, help));
        }
        let paths = match self.draft.sources.matching(pattern) {
            Ok(paths) => paths,
            Err(error) => {
                self.draft.note(place, Kind::Lost, &what, format!("can't be read: {error}"));
                return Ok(());
            }
        };
        // The last file on the stack is read first.
        for path in paths.iter().rev() {
            match self.draft.sources.include(path)? {
                Ok(file) => {
                    let text = self.draft.sources.text(file);
                    self.cursors.push(Cursor {
                        file,
                        text,
                        at: 0,
                        line: 1,
                        depth: self.open.len(),
                        level,
                    });
                }
                // An import on another machine has no such file; it lists types of files, which
                // weir does not need.
                Err(_) if pattern.ends_with("mime.types") => {}
                Err(error) => {
                    self.draft.note(
                        place,
                        Kind::Lost,
                        &what,
                        format!("{} can't be read: {error}", path.display()),
                    );
                }
            }
        }
        Ok(())
    }
}

impl Cursor {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn skip_blanks(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.next();
                }
            } else if matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{feff}') {
                self.next();
            } else {
                return;
            }
        }
    }

    fn token(&mut self) -> Result<Token, &'static str> {
        match self.peek() {
            None => return Ok(Token::End),
            Some(quote @ ('"' | '\'')) => {
                self.next();
                return self.quoted(quote).map(Token::Word);
            }
            Some(';') => drop(self.next()),
            Some('{') => drop(self.next()),
            Some('}') => drop(self.next()),
            Some(_) => return Ok(Token::Word(self.bare())),
        }
        Ok(match self.text.as_bytes()[self.at - 1] {
            b';' => Token::Semicolon,
            b'{' => Token::Open,
            _ => Token::Close,
        })
    }

    fn quoted(&mut self, quote: char) -> Result<String, &'static str> {
        let mut out = String::new();
        while let Some(c) = self.next() {
            match c {
                _ if c == quote => return Ok(out),
                '\\' => self.escape(&mut out),
                _ => out.push(c),
            }
        }
        Err("this quote is never closed")
    }

    fn bare(&mut self) -> String {
        let mut out = String::new();
        while let Some(c) = self.peek() {
            // `${name}` is a variable and no block.
            let is_end = match c {
                '{' => !out.ends_with('$'),
                _ => matches!(c, ';' | ' ' | '\t' | '\r' | '\n'),
            };
            if is_end {
                break;
            }
            self.next();
            if c == '\\' {
                self.escape(&mut out);
            } else {
                out.push(c);
            }
        }
        out
    }

    /// Reads the character behind a backslash: other characters are kept with it, for expressions.
    fn escape(&mut self, out: &mut String) {
        match self.next() {
            Some(c @ ('"' | '\'' | '\\')) => out.push(c),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('n') => out.push('\n'),
            Some(c) => out.extend(['\\', c]),
            None => out.push('\\'),
        }
    }

    /// Skips Lua code to behind its closing brace; false: it has none.
    fn skip_code(&mut self) -> bool {
        let mut depth = 1;
        // The quote of an open text.
        let mut quote = None;
        while let Some(c) = self.next() {
            match (quote, c) {
                (Some(_), '\\') => drop(self.next()),
                (Some(open), _) if open == c => quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => quote = Some(c),
                (None, '-') if self.peek() == Some('-') => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                (None, '{') => depth += 1,
                (None, '}') => depth -= 1,
                (None, _) => {}
            }
            if depth == 0 {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    //! Proves: how many files a pattern has is no depth. How: examples.

    use std::io;
    use std::path::{Path, PathBuf};

    use super::super::super::tree::Sources;
    use super::*;
    use crate::import::Outside;

    fn read_all(text: &str) -> Result<usize, Errors> {
        let matching = |pattern: &Path| {
            let is_all = pattern.ends_with("*");
            let sites = (0..40).map(|number| PathBuf::from(format!("site{number}")));
            Ok(if is_all { sites.collect() } else { vec![pattern.to_owned()] })
        };
        let read = |path: &Path| match path.to_str() {
            Some("x") => Ok(text.as_bytes().to_vec()),
            Some("own") => Ok(b"include own;".to_vec()),
            Some("snippet") => Ok(b"gzip on;".to_vec()),
            Some(_) => Ok(b"server { include snippet; }".to_vec()),
            None => Err(io::Error::other("no name")),
        };
        let outside = Outside { variables: &|_| None, matching: &matching, read: &read };
        let mut draft = Draft::new(Sources::open("x".as_ref(), outside).unwrap());
        super::read(&mut draft).map(|tree| tree.indices(ROOT, "server").len())
    }

    #[test]
    fn many_files_are_not_deep() {
        assert_eq!(read_all("include sites/*;").unwrap(), 40);
        assert!(read_all("include own;").is_err());
    }
}
