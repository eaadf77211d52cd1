//! The texts of an import, and the common form of all dialects: directives with words, and
//! directives inside.
//!
//! Made by the reader of each dialect, whose errors have file and line. Bounds: [`DIRECTIVES_MAX`],
//! [`NESTING_MAX`], [`FILES_MAX`], [`BYTES_MAX`]; a tree is a list, so that nothing recurses.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::Outside;
use crate::FILE_BYTES_MAX;
use crate::problem::{Errors, Problem, Span};

/// Directives of one import.
const DIRECTIVES_MAX: usize = 100_000;
/// Deepest nesting of blocks.
pub(super) const NESTING_MAX: usize = 32;
/// Deepest nesting of files that include each other.
pub(super) const INCLUDES_MAX: usize = 16;
/// Files of one import.
const FILES_MAX: usize = 1000;
/// Files of one import, each as often as it is included.
const INCLUDED_MAX: usize = 10_000;
/// Bytes of all files together, each as often as it is included.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// A place in the texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) file: usize,
    /// From 1.
    pub(super) line: usize,
}

/// The files of an import.
pub(super) struct Sources<'a> {
    pub(super) outside: Outside<'a>,
    /// The folder of paths that do not begin with `/`.
    folder: PathBuf,
    files: Vec<Source>,
    bytes: usize,
    included: usize,
}

struct Source {
    name: String,
    text: Rc<str>,
}

impl<'a> Sources<'a> {
    /// Reads the first file.
    pub(super) fn open(path: &Path, outside: Outside<'a>) -> Result<Sources<'a>, Errors> {
        let name = path.display().to_string();
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut sources = Sources { outside, folder, files: Vec::new(), bytes: 0, included: 0 };
        let bytes = (outside.read)(path).map_err(|error| {
            let problem = Problem::of_file("unreadable", format!("can't be read: {error}"));
            Errors::new(&name, "", vec![problem])
        })?;
        sources.add(name, bytes)?;
        Ok(sources)
    }

    fn add(&mut self, name: String, bytes: Vec<u8>) -> Result<usize, Errors> {
        self.bytes += bytes.len();
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(too_large(&name, FILE_BYTES_MAX));
        }
        if self.bytes > BYTES_MAX {
            return Err(too_large(&name, BYTES_MAX as u64));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let problem = Problem::new("syntax", &(at..at + 1), "this is not UTF-8 text");
            Errors::new(
                &name,
                &text,
                vec![problem.help("convert it: iconv -f latin1 -t utf-8 FILE")],
            )
        })?;
        if let Some(at) = text.find('\0') {
            let problem = Problem::new(
                "syntax",
                &(at..at + 1),
                "this is a NUL byte, so the file is not text",
            );
            return Err(Errors::new(
                &name,
                &text,
                vec![problem.help("remove it, or name the right file")],
            ));
        }
        self.files.push(Source { name, text: text.into() });
        Ok(self.files.len() - 1)
    }

    /// Returns the files that a word behind `include` matches.
    pub(super) fn matching(&self, pattern: &str) -> io::Result<Vec<PathBuf>> {
        (self.outside.matching)(&self.folder.join(pattern))
    }

    /// Returns a path of the configuration: paths that do not begin with `/` are beside its file,
    /// if that has a place.
    pub(super) fn beside(&self, path: &str) -> String {
        if self.folder.is_absolute() {
            self.folder.join(path).display().to_string()
        } else {
            path.to_owned()
        }
    }

    /// Reads one more file; Ok(Err): it cannot be read.
    pub(super) fn include(&mut self, path: &Path) -> Result<io::Result<usize>, Errors> {
        let name = path.display().to_string();
        self.included += 1;
        let is_much = |most: usize| {
            let problem =
                Problem::of_file("too-many", format!("more than {most} files are included"));
            Err(Errors::new(&name, "", vec![problem.help("does a file include itself?")]))
        };
        if self.included > INCLUDED_MAX {
            return is_much(INCLUDED_MAX);
        }
        // A file that many others include is read once.
        if let Some(at) = self.files.iter().position(|file| file.name == name) {
            self.bytes += self.files[at].text.len();
            if self.bytes > BYTES_MAX {
                return Err(too_large(&name, BYTES_MAX as u64));
            }
            return Ok(Ok(at));
        }
        if self.files.len() >= FILES_MAX {
            return is_much(FILES_MAX);
        }
        match (self.outside.read)(path) {
            Ok(bytes) => self.add(name, bytes).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Returns the text of a file.
    pub(super) fn text(&self, file: usize) -> Rc<str> {
        Rc::clone(&self.files[file].text)
    }

    /// Returns `file:line`, with the file as seen from the first one.
    pub(super) fn short(&self, place: Place) -> String {
        let whole = self.name(place);
        let folder = format!("{}/", self.folder.display());
        whole.strip_prefix(&folder).filter(|_| folder != "/").unwrap_or(&whole).to_owned()
    }

    /// Returns `file:line`.
    pub(super) fn name(&self, place: Place) -> String {
        let name = self.files.get(place.file).map_or("", |file| &file.name);
        format!("{}:{}", super::notes::harmless(name.chars()).collect::<String>(), place.line)
    }

    /// Returns an error about text that cannot be understood.
    pub(super) fn error(
        &self,
        file: usize,
        span: &Span,
        message: impl Into<String>,
        help: &str,
    ) -> Errors {
        let Source { name, text } = &self.files[file];
        Errors::new(name, text, vec![Problem::new("syntax", span, message).help(help)])
    }

    /// Returns the bytes of a line.
    pub(super) fn line(&self, place: Place) -> Span {
        let text = &self.files[place.file].text;
        let start = match place.line {
            0 | 1 => 0,
            line => text.match_indices('\n').nth(line - 2).map_or(text.len(), |(at, _)| at + 1),
        };
        start..text[start..].find('\n').map_or(text.len(), |end| start + end)
    }
}

fn too_large(name: &str, limit: u64) -> Errors {
    let problem = Problem::of_file("too-large", format!("is larger than {limit} bytes"));
    Errors::new(name, "", vec![problem.help("a configuration is text: is this the right file?")])
}

/// A directive.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) place: Place,
    /// Its name first.
    pub(super) words: Vec<String>,
    pub(super) parent: usize,
    pub(super) children: Vec<usize>,
    /// Whether it has braces, or an equivalent.
    pub(super) is_block: bool,
}

impl Node {
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Returns the words behind the name.
    pub(super) fn arguments(&self) -> impl Iterator<Item = &str> {
        self.words.iter().skip(1).map(String::as_str)
    }

    /// Returns a word behind the name, from 1; empty: absent.
    pub(super) fn argument(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// Returns it for display.
    pub(super) fn shown(&self) -> String {
        self.words.join(" ")
    }
}

/// All directives; the first is the root.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    by_name: HashMap<(usize, String), Vec<usize>>,
}

/// The index of the root.
pub(super) const ROOT: usize = 0;

impl Tree {
    pub(super) fn new() -> Tree {
        Tree { nodes: vec![Node { is_block: true, ..Node::default() }], by_name: HashMap::new() }
    }

    /// Adds a directive inside of `parent`.
    pub(super) fn add(
        &mut self,
        sources: &Sources<'_>,
        parent: usize,
        place: Place,
        words: Vec<String>,
    ) -> Result<usize, Errors> {
        if self.nodes.len() > DIRECTIVES_MAX {
            let message = format!("there are more than {DIRECTIVES_MAX} directives up to here");
            return Err(sources.error(
                place.file,
                &sources.line(place),
                message,
                "import it in parts",
            ));
        }
        let node = self.nodes.len();
        self.nodes[parent].children.push(node);
        let name = words.first().cloned().unwrap_or_default();
        self.by_name.entry((parent, name)).or_default().push(node);
        self.nodes.push(Node { place, words, parent, ..Node::default() });
        Ok(node)
    }

    /// Returns the directives with a name inside of a block, in order.
    pub(super) fn named<'s>(
        &'s self,
        parent: usize,
        name: &str,
    ) -> impl DoubleEndedIterator<Item = &'s Node> + use<'s> {
        self.indices(parent, name).iter().map(|at| &self.nodes[*at])
    }

    pub(super) fn indices(&self, parent: usize, name: &str) -> &[usize] {
        self.by_name.get(&(parent, name.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// Returns the last one with a name inside of a block.
    pub(super) fn last(&self, parent: usize, name: &str) -> Option<&Node> {
        self.named(parent, name).next_back()
    }

    /// Returns the effective directives with a name in a block: its own, else those of the nearest
    /// block around it.
    pub(super) fn effective(&self, at: usize, name: &str) -> &[usize] {
        let mut block = at;
        loop {
            let found = self.indices(block, name);
            if !found.is_empty() || block == ROOT {
                return found;
            }
            block = self.nodes[block].parent;
        }
    }

    pub(super) fn children(&self, parent: usize) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes[parent].children.iter().map(|at| (*at, &self.nodes[*at]))
    }

    /// Returns everything inside of a block, at any depth, in order.
    pub(super) fn below(&self, top: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let mut rest: Vec<usize> = self.nodes[top].children.iter().rev().copied().collect();
        while let Some(at) = rest.pop() {
            found.push(at);
            rest.extend(self.nodes[at].children.iter().rev());
        }
        found
    }
}
