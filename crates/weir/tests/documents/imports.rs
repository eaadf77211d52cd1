//! Finds which files of a folder import each other, from their text: all paths, in `use` and
//! elsewhere.
//!
//! Called by `tidy.rs`. A declaration of another file (`mod`) is not an import, and what a file's
//! own tests use does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use super::sources::{Source, bare, code, without_tests};

/// Modules of a crate, each with those that it imports.
pub(crate) type Imports = BTreeMap<String, BTreeSet<String>>;

/// The imports among these files of a crate.
pub(crate) fn imports(files: &[Source]) -> Imports {
    let modules: BTreeSet<String> = files.iter().map(|file| module(&file.path)).collect();
    let of = |file: &Source| {
        let from = module(&file.path);
        let text: String = code(without_tests(&file.text)).map(|line| bare(line) + "\n").collect();
        let found = paths(&text).iter().filter_map(|path| meant(path, &from, &modules)).collect();
        (from, found)
    };
    files.iter().map(of).collect()
}

/// Returns the modules that are in a cycle, or on a way from one cycle to another. They are left
/// when the modules that import none of the rest, and those that none of the rest imports, are
/// removed again and again.
pub(crate) fn circles(imports: &Imports) -> BTreeSet<&str> {
    let mut rest: BTreeSet<&str> = imports.keys().map(String::as_str).collect();
    loop {
        let imports_some =
            |name: &str| imports[name].iter().any(|other| rest.contains(other.as_str()));
        let is_imported = |name: &str| rest.iter().any(|other| imports[*other].contains(name));
        let next: BTreeSet<&str> =
            rest.iter().copied().filter(|name| imports_some(name) && is_imported(name)).collect();
        if next.len() == rest.len() {
            return rest;
        }
        rest = next;
    }
}

/// `a::b` for `crates/x/src/a/b.rs` and for `crates/x/src/a/b/mod.rs`.
fn module(path: &str) -> String {
    let inside = path.split_once("/src/").map_or(path, |(_, inside)| inside);
    inside.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::")
}

/// Returns the module that a path leads into, if it is one of these and not its own.
fn meant(path: &str, from: &str, modules: &BTreeSet<String>) -> Option<String> {
    let mut at: Vec<&str> = from.split("::").collect();
    let mut words = path.split("::").peekable();
    match words.peek() {
        Some(&"crate") => at.clear(),
        Some(&"super") => {}
        // Paths to children of the module have no other word in front.
        _ => at.extend(words.next().filter(|word| *word != "self")),
    }
    for word in words {
        match word {
            "crate" => {}
            "super" => drop(at.pop()),
            _ => at.push(word),
        }
    }
    while !at.is_empty() && !modules.contains(&at.join("::")) {
        at.pop();
    }
    Some(at.join("::")).filter(|found| !found.is_empty() && found != from)
}

/// Returns all paths of a text, with those of groups (`a::{b, c}`) one by one.
fn paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // The path before each open brace.
    let mut groups: Vec<String> = Vec::new();
    let mut path = String::new();
    for token in tokens(text) {
        let is_word = token.starts_with(is_of_word);
        let goes_on = match token {
            "::" => true,
            "*" => path.ends_with("::"),
            _ => is_word && (path.is_empty() || path.ends_with("::")),
        };
        if goes_on {
            path.push_str(token);
            continue;
        }
        let whole = groups.last().cloned().unwrap_or_default() + &mem::take(&mut path);
        match token {
            "{" => groups.push(if whole.ends_with("::") { whole.clone() } else { String::new() }),
            "}" => drop(groups.pop()),
            _ => {}
        }
        found.push(whole);
        if is_word {
            path.push_str(token);
        }
    }
    // A single word is a name or a visibility; a path that ends in `::` is only the beginning of a
    // group.
    found.retain(|path| path.contains("::") && !path.ends_with("::"));
    found
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Words, `::`, and every other character but spaces.
fn tokens(mut text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some(first) = text.chars().next() {
        let length = match first {
            _ if is_of_word(first) => text.find(|c| !is_of_word(c)).unwrap_or(text.len()),
            _ if text.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        let (token, rest) = text.split_at(length);
        if !first.is_whitespace() {
            found.push(token);
        }
        text = rest;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: format!("crates/x/src/{path}"), text: text.to_owned() }
    }

    #[test]
    fn a_circle_is_found_however_its_imports_are_written() {
        let ways = [
            "use crate::a::c::{self, C};",
            "use super::{d, c};",
            "use super::{\n    c::{C, D},\n};",
        ];
        let others = [
            "fn f() { super::c::f() }",
            "pub(crate) use super::c::C as D;",
            "fn f(c: &crate::a::c::C) {}",
        ];
        for way in ways.iter().chain(&others) {
            let files = [
                source("a/mod.rs", "mod b;\nmod c;\nmod d;\nuse b::B;\n"),
                source("a/b.rs", way),
                source("a/c.rs", "use super::d::D;"),
                source("a/d/mod.rs", "use std::io;\nuse super::super::a::b;"),
                source("a/e.rs", "use super::b;"),
            ];
            let imports = imports(&files);
            assert_eq!(
                circles(&imports),
                BTreeSet::from(["a::b", "a::c", "a::d"]),
                "{way}: {imports:?}"
            );
        }
    }

    #[test]
    fn what_leads_one_way_is_no_circle() {
        let files = [
            source("a/mod.rs", "mod b;\nmod c;\nuse b::B;\n"),
            source(
                "a/b.rs",
                "use super::c::C;\n#[cfg(test)]\nmod tests {\nuse super::super::a;\n}\n",
            ),
            source(
                "a/c.rs",
                "//! super::b\nconst A: &str = \"super::b\"; // super::b\n\
                    fn f() { b::c(); self::b(); }\n",
            ),
            source("a/c/tests.rs", "use super::*;"),
        ];
        let imports = imports(&files);
        assert!(circles(&imports).is_empty(), "{imports:?}");
        let of = |name: &str| imports[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(
            (of("a"), of("a::b"), of("a::c"), of("a::c::tests")),
            (vec!["a::b"], vec!["a::c"], vec![], vec!["a::c"])
        );
    }
}
