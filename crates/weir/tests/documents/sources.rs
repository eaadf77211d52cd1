//! The Rust sources as text: the files, their definitions, the values of their constants.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::root;

/// One source file.
pub(crate) struct Source {
    /// Relative to the repository, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Directories without text of this project.
const FOREIGN: [&str; 3] = ["target", ".git", "corpus"];

/// Returns all Rust files of the workspace and the fuzz targets, sorted.
pub(crate) fn rust_files() -> Vec<Source> {
    let found = files(|path| path.ends_with(".rs"));
    assert!(found.len() > 100, "only {} sources found", found.len());
    found
}

/// Returns all files of the repository with such a path, sorted.
pub(crate) fn files(wanted: impl Fn(&str) -> bool) -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root(), "", &wanted, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(directory: &Path, name: &str, wanted: &impl Fn(&str) -> bool, into: &mut Vec<Source>) {
    for entry in
        fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
    {
        let entry = entry.expect("a readable directory");
        let file = entry.file_name().to_string_lossy().into_owned();
        let path = if name.is_empty() { file.clone() } else { format!("{name}/{file}") };
        if entry.file_type().expect("a file type").is_dir() {
            if !FOREIGN.contains(&file.as_str()) {
                collect(&entry.path(), &path, wanted, into);
            }
        } else if wanted(&path) {
            let text =
                fs::read_to_string(entry.path()).unwrap_or_else(|error| panic!("{path}: {error}"));
            into.push(Source { path, text });
        }
    }
}

/// Returns the words of a text: identifiers, keywords, numbers.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns all words of all sources, scripts and the Makefile.
pub(crate) fn all_words(files: &[Source]) -> BTreeSet<String> {
    files.iter().flat_map(|file| words(&file.text)).map(str::to_owned).collect()
}

/// Returns the lines without comments, trimmed.
pub(crate) fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

/// Returns code as if each list of arguments were on one line, and strings without breaks.
pub(crate) fn one_line(text: &str) -> String {
    let mut parts = text.split("\\\n");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| whole.push_str(part.trim_start()));
    let words: Vec<&str> = whole.split_whitespace().collect();
    words.join(" ").replace("( ", "(").replace(", )", ")")
}

/// Returns the code of a line, without texts in quotes and comments behind it.
pub(crate) fn bare(line: &str) -> String {
    let outside: String = line.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    outside.split("//").next().unwrap_or_default().to_owned()
}

/// Returns the text before the tests at the end.
pub(crate) fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

/// Whether a text defines a name: an item, a variant, a field.
pub(crate) fn defines(text: &str, name: &str) -> bool {
    const KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "const", "static", "type", "mod"];
    code(text).any(|line| {
        let line = line.split("//").next().unwrap_or_default();
        let mut before = "";
        for word in words(line) {
            if word == name && KEYWORDS.contains(&before) {
                return true;
            }
            before = word;
        }
        let bare = line
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub(super) ")
            .trim_start_matches("pub ");
        bare.strip_prefix(name).is_some_and(|rest| {
            matches!(rest.trim_start().chars().next(), None | Some(',' | '(' | '{' | ':' | '='))
        })
    })
}

/// Returns the value of a constant or of a field in a `Default`: products of numbers and of
/// constants of the same file.
pub(crate) fn value(text: &str, name: &str) -> Option<u64> {
    code(text)
        .filter_map(|line| expression(line, name))
        .find_map(|expression| product(text, &expression))
}

/// Returns the expression after `const NAME: type =` or `name:`.
fn expression(line: &str, name: &str) -> Option<String> {
    let line = line.split("//").next()?;
    let rest = match line.split_once("const ") {
        Some((_, rest)) => rest.strip_prefix(name)?.split_once('=')?.1,
        None => line.strip_prefix(name)?.strip_prefix(':')?,
    };
    Some(rest.trim().trim_end_matches([';', ',']).to_owned())
}

fn product(text: &str, expression: &str) -> Option<u64> {
    expression.split('*').map(str::trim).try_fold(1, |product: u64, factor| {
        let number = factor.replace('_', "");
        let value = match number.parse() {
            Ok(value) => value,
            Err(_) if factor.chars().all(|c| c.is_ascii_uppercase() || c == '_') => {
                value(text, factor)?
            }
            Err(_) => return None,
        };
        product.checked_mul(value)
    })
}

#[test]
fn lists_and_strings_are_on_one_line() {
    let text = "f(\n    A,\n    \"b \\\n        c\",\n)";
    assert_eq!(one_line(text), "f(A, \"b c\")");
}

#[test]
fn definitions_and_values_are_found() {
    let text = "/// fn not_me\npub const A_MAX: u64 = 2 * 1_024; // b\n\
        const B: usize = 3 * A_MAX;\nenum E {\n    Big(u8),\n}\n\
        struct S {\n    pub count: u16,\n}\nfn f() { S { \n count: 7,\n } }\n\
        impl S { fn g(&self) {} }\n";
    for name in ["A_MAX", "B", "E", "Big", "S", "count", "f", "g"] {
        assert!(defines(text, name), "{name}");
    }
    assert!(!defines(text, "not_me") && !defines(text, "Bi") && !defines(text, "u16"));
    assert_eq!(
        ["A_MAX", "B", "count", "E"].map(|name| value(text, name)),
        [Some(2048), Some(6144), Some(7), None]
    );
}
