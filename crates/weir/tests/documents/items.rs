//! Checks items of a type: `Type::item` is a function, a constant, a type or a variant in a block
//! of that very type.
//!
//! Reads the output of rustfmt: a block ends at the brace with the indentation of its first line,
//! and its items are indented one step further.

use super::sources::Source;

/// Indentation of a block by rustfmt.
const STEP: usize = 4;

/// Whether a source has a block of the type in which the item is defined.
pub(crate) fn has_item(source: &Source, owner: &str, item: &str) -> bool {
    let lines: Vec<&str> = source.text.lines().collect();
    (0..lines.len())
        .any(|at| block_of(lines[at], owner).is_some_and(|block| holds(&lines[at..], block, item)))
}

/// The items that a block may define.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    /// Of an `impl` or a `trait`.
    Items,
    /// Of an `enum`.
    Variants,
}

/// Returns the kind of block of this type that begins with a line.
fn block_of(line: &str, owner: &str) -> Option<Block> {
    let line = line.trim_start();
    if let Some(rest) = line.strip_prefix("unsafe ").unwrap_or(line).strip_prefix("impl") {
        let rest = match rest.strip_prefix('<') {
            Some(_) => behind_generics(rest),
            None => rest.strip_prefix(' ')?,
        };
        let of = rest.split_once(" for ").map_or(rest, |(_, behind)| behind);
        return (type_name(of) == owner).then_some(Block::Items);
    }
    let line = without_visibility(line);
    let (block, rest) = match line.strip_prefix("enum ") {
        Some(rest) => (Block::Variants, rest),
        None => {
            (Block::Items, line.strip_prefix("unsafe ").unwrap_or(line).strip_prefix("trait ")?)
        }
    };
    (type_name(rest) == owner).then_some(block)
}

/// Whether the block that begins with the first of these lines defines the item.
fn holds(lines: &[&str], block: Block, item: &str) -> bool {
    let indent = indent(lines[0]);
    let inside =
        lines[1..].iter().take_while(|line| line.trim().is_empty() || belongs(line, indent));
    inside
        .filter(|line| self::indent(line) == indent + STEP)
        .any(|line| defined(line.trim_start(), block) == Some(item))
}

/// Whether a line still belongs to the block with this indentation: all but the brace that ends it,
/// and a head of several lines.
fn belongs(line: &str, indent: usize) -> bool {
    self::indent(line) > indent
        || line.trim_start().starts_with(['{', '>'])
        || line.trim_start().starts_with("where")
}

/// Returns the item that a line directly in a block defines.
fn defined(line: &str, block: Block) -> Option<&str> {
    if block == Block::Variants {
        return Some(identifier(line))
            .filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()));
    }
    let mut rest = without_visibility(line);
    loop {
        let (word, behind) = rest.split_once(' ')?;
        match word {
            "fn" | "type" => return Some(identifier(behind)),
            "const" if !behind.starts_with("fn ") && !behind.starts_with("unsafe ") => {
                return Some(identifier(behind));
            }
            "const" | "async" | "unsafe" => rest = behind,
            _ => return None,
        }
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns the identifier at the beginning of a text; empty if it has none.
fn identifier(text: &str) -> &str {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
}

fn without_visibility(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("pub") else { return line };
    let rest = match rest.strip_prefix('(') {
        Some(inside) => inside.split_once(')').map_or("", |(_, behind)| behind),
        None => rest,
    };
    rest.trim_start()
}

/// Returns the text behind the `<…>` at its beginning.
fn behind_generics(text: &str) -> &str {
    let mut depth = 0;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text[at + 1..].trim_start();
        }
        before = c;
    }
    ""
}

/// Returns the last name of the path at the beginning of a text.
fn type_name(text: &str) -> &str {
    let text = text.trim_start().trim_start_matches('&');
    let path = text
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':')
        .next()
        .unwrap_or_default();
    path.trim_end_matches(':').rsplit("::").next().unwrap_or_default()
}

#[test]
fn items_belong_to_their_own_type() {
    let text = "\
impl<F: Fn() -> u8> Answers<'_, F> {
    /// Beside `fn told`.
    pub(crate) const MAX: u8 = 1;

    pub(super) const fn advance(&self) {
        fn inner() {}
    }
}

impl base::Draw for Lines {
    type Item = u8;
    fn draw(&self) {}
}

pub(crate) enum Place {
    Queue(u8),
    Mail { worker: u8 },
}

struct Answer {
    advance: u8,
}

trait Driver: Sized {
    fn turn(&mut self) {}
}

fn other() {}
";
    let source = Source { path: "a.rs".to_owned(), text: text.to_owned() };
    let known = [
        ("Answers", "MAX"),
        ("Answers", "advance"),
        ("Lines", "draw"),
        ("Lines", "Item"),
        ("Place", "Queue"),
        ("Place", "Mail"),
        ("Driver", "turn"),
    ];
    for (owner, item) in known {
        assert!(has_item(&source, owner, item), "{owner}::{item}");
    }
    let unknown = [
        // Of another type, inside of a function, only mentioned, a field, behind the block,
        // undefined.
        ("Lines", "advance"),
        ("Answers", "inner"),
        ("Answers", "told"),
        ("Answers", "Queue"),
        ("Answer", "advance"),
        ("Answers", "draw"),
        ("Place", "worker"),
        ("Draw", "draw"),
        ("Driver", "other"),
        ("Driver", "Sized"),
        ("Nobody", "turn"),
    ];
    for (owner, item) in unknown {
        assert!(!has_item(&source, owner, item), "{owner}::{item}");
    }
}
