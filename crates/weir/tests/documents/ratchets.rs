//! Limits that may only become tighter: the length of functions and files, the size of types, and
//! which maps ring 0 has.
//!
//! Items that exceeded a limit when it was set are in a list, with their length. Lists never gain
//! items and their numbers never grow; when an item becomes shorter its number follows, so that it
//! remains shorter.

use super::nothing_found;
use super::sources::{Source, code, rust_files, without_tests, words};
use super::tidy::{RING_0, is_test};

/// Lines of a function of product code, from the one with `fn` to its closing brace. The limit was
/// 70 for lines of 120 columns; with 100 columns, the same code needs a sixth more lines.
const FUNCTION_LINES_MAX: usize = 84;
/// Functions that are longer, as `file: name`.
const LONG_FUNCTIONS: &[(&str, usize)] = &[];
/// Lines of a file, without its own tests. More than that usually is two jobs. The limit was 600
/// for lines of 120 columns.
const FILE_LINES_MAX: usize = 720;
/// Files that are longer.
const LONG_FILES: &[(&str, usize)] = &[];

/// Methods of one type, without those of traits. With more, it is unclear what they rely on.
const TYPE_METHODS_MAX: usize = 60;
/// Types that have more, as `crate: type`.
const TYPES_WITH_METHODS: &[(&str, usize)] = &[
    ("weir-io: World", 84),
    ("weir-config: Caddy", 69),
    ("weir-config: Haproxy", 89),
    ("weir-config: Nginx", 90),
];
/// Fields of one structure.
const TYPE_FIELDS_MAX: usize = 25;
/// Structures that have more, as `crate: structure`.
const TYPES_WITH_FIELDS: &[(&str, usize)] =
    &[("weir-lab: Record", 27), ("weir-proxy: Record", 33), ("weir: BombArgs", 30)];

/// Whether a file is part of the product.
fn is_product(file: &Source) -> bool {
    file.path.starts_with("crates/") && file.path.contains("/src/") && !is_test(&file.path)
}

/// Returns findings: lengths above `max` or above the list of exceptions, and exceptions that are
/// too generous.
fn judge_lengths(found: &[(String, usize)], max: usize, excepted: &[(&str, usize)]) -> Vec<String> {
    let limit = |name: &str| {
        excepted.iter().find(|(other, _)| *other == name).map_or(max, |(_, lines)| *lines)
    };
    let long = found.iter().filter(|(name, lines)| *lines > limit(name).max(max));
    let long = long.map(|(name, lines)| format!("{name} has {lines}, at most {}", limit(name)));
    let generous = excepted.iter().filter_map(|(name, listed)| {
        let lines = found.iter().filter(|(other, _)| other == name).map(|(_, lines)| *lines).max();
        match lines {
            None => Some(format!("{name} is gone: take it off the list")),
            Some(lines) if lines <= max => {
                Some(format!("{name} has {lines} now: take it off the list"))
            }
            Some(lines) if lines < *listed => {
                Some(format!("{name} has {lines} now: say so instead of {listed}"))
            }
            Some(_) => None,
        }
    });
    long.chain(generous).collect()
}

/// Returns the name of the function that begins with this line.
fn function_name(line: &str) -> Option<&str> {
    const BEFORE: [&str; 8] = ["pub", "crate", "super", "const", "async", "unsafe", "extern", "C"];
    let mut words = words(line);
    let is_first = words.by_ref().find(|word| !BEFORE.contains(word)) == Some("fn");
    if is_first && !line.trim_start().starts_with("//") { words.next() } else { None }
}

/// Returns name and lines of each function in the layout of rustfmt: its last line is indented as
/// the one with `fn`, and the lines between are indented further.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let ends = |line: &&str| {
            line.strip_prefix(indent).is_some_and(|rest| {
                rest == "}" || rest.starts_with([')', '-']) && rest.ends_with(';')
            })
        };
        let count =
            if line.ends_with(['}', ';']) { Some(0) } else { lines[at..].iter().position(ends) };
        found.extend(count.map(|count| (name, count + 1)));
    }
    found
}

/// Returns name and number of items of each block at the margin. `name_of` recognizes its first
/// line, `is_item` its items: the lines that are indented once.
fn blocks<'a>(
    text: &'a str,
    name_of: impl Fn(&'a str) -> Option<&'a str>,
    is_item: impl Fn(&str) -> bool,
) -> Vec<(&'a str, usize)> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = name_of(line).filter(|_| line.ends_with('{')) {
            let inside = lines.by_ref().take_while(|line| *line != "}");
            let once = inside.filter_map(|line| {
                line.strip_prefix("    ").filter(|rest| !rest.starts_with([' ', '/', '#']))
            });
            found.push((name, once.filter(|line| is_item(line)).count()));
        }
    }
    found
}

/// Returns the type whose own methods begin behind this line.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?.strip_suffix(" {")?;
    let rest = match rest.strip_prefix('<') {
        Some(_) => rest.split_once("> ")?.1,
        None => rest.trim_start(),
    };
    if rest.contains(" for ") { None } else { rest.split(['<', ' ']).next() }
}

/// Returns the structure whose fields begin behind this line.
fn structure(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
    rest.strip_prefix("struct ")?.split(['<', ' ']).next()
}

/// Adds up the counts in the files of each crate, as `crate: name`.
fn by_crate(count: impl Fn(&str) -> Vec<(&str, usize)>) -> Vec<(String, usize)> {
    let mut sums = std::collections::BTreeMap::<String, usize>::new();
    for file in rust_files().iter().filter(|file| is_product(file)) {
        let name = file.path.split('/').nth(1).unwrap_or_default();
        for (item, count) in count(without_tests(&file.text)) {
            *sums.entry(format!("{name}: {item}")).or_default() += count;
        }
    }
    sums.into_iter().collect()
}

/// Returns types and constructors of maps and sets in a text that use the hasher of the standard
/// library.
fn random_maps(text: &str) -> Vec<String> {
    let text: String = code(text).collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    for (word, parameters) in [("HashMap", 3), ("HashSet", 2)] {
        for (at, _) in text.match_indices(word) {
            let rest = &text[at + word.len()..];
            let begins = |what: &str| rest.starts_with(what);
            let is_random = match rest.strip_prefix("::").unwrap_or(rest).strip_prefix('<') {
                Some(arguments) => count_arguments(arguments) < parameters,
                None => begins("::new(") || begins("::with_capacity(") || begins("::from("),
            };
            if is_random {
                found.push(text[at..].chars().take(40).collect());
            }
        }
    }
    found
}

/// Counts generic arguments up to the closing bracket.
fn count_arguments(text: &str) -> usize {
    let (mut depth, mut count, mut before, mut is_new) = (0, 0, ' ', true);
    for c in text.chars() {
        match c {
            '>' if before == '-' => {}
            '>' if depth == 0 => break,
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => is_new = true,
            _ => {
                count += usize::from(is_new && c != ' ');
                is_new &= c == ' ';
                depth += i32::from(matches!(c, '<' | '(' | '['));
            }
        }
        before = c;
    }
    count
}

#[test]
fn no_function_is_long() {
    let files = rust_files();
    let mut found = Vec::new();
    for file in files.iter().filter(|file| is_product(file)) {
        let functions = functions(without_tests(&file.text)).into_iter();
        found.extend(functions.map(|(name, lines)| (format!("{}: {name}", file.path), lines)));
    }
    assert!(found.len() > 2000, "only {} functions found", found.len());
    nothing_found(&judge_lengths(&found, FUNCTION_LINES_MAX, LONG_FUNCTIONS));
}

#[test]
fn no_type_does_everything() {
    let methods = by_crate(|text| blocks(text, implemented, |line| function_name(line).is_some()));
    assert!(
        methods.iter().any(|(name, count)| name == "weir-proxy: Engine" && *count > 20),
        "{methods:?}"
    );
    nothing_found(&judge_lengths(&methods, TYPE_METHODS_MAX, TYPES_WITH_METHODS));
}

#[test]
fn no_structure_holds_everything() {
    let fields =
        by_crate(|text| blocks(text, structure, |line| line.contains(": ") && line.ends_with(',')));
    assert!(
        fields.iter().any(|(name, count)| name == "weir-proxy: Context" && *count > 10),
        "{fields:?}"
    );
    nothing_found(&judge_lengths(&fields, TYPE_FIELDS_MAX, TYPES_WITH_FIELDS));
}

#[test]
fn no_file_has_two_jobs() {
    let files = rust_files().into_iter().filter(|file| !is_test(&file.path));
    let found: Vec<(String, usize)> =
        files.map(|file| (file.path, without_tests(&file.text).lines().count())).collect();
    nothing_found(&judge_lengths(&found, FILE_LINES_MAX, LONG_FILES));
}

#[test]
fn ring_0_has_no_maps_with_randomness() {
    let mut findings = Vec::new();
    for file in rust_files().iter().filter(|file| is_product(file)) {
        if RING_0.iter().any(|name| file.path.starts_with(&format!("crates/{name}/"))) {
            let found = random_maps(without_tests(&file.text));
            findings.extend(found.into_iter().map(|map| format!("{}: {map}", file.path)));
        }
    }
    nothing_found(&findings);
}

#[test]
fn lengths_only_shrink() {
    let found = |lines: usize| [("a".to_owned(), lines), ("b".to_owned(), 70)];
    assert_eq!(judge_lengths(&found(70), 70, &[]), [""; 0]);
    assert_eq!(judge_lengths(&found(71), 70, &[]), ["a has 71, at most 70"]);
    assert_eq!(judge_lengths(&found(80), 70, &[("a", 80)]), [""; 0]);
    assert_eq!(judge_lengths(&found(81), 70, &[("a", 80)]), ["a has 81, at most 80"]);
    assert_eq!(judge_lengths(&found(79), 70, &[("a", 80)]), ["a has 79 now: say so instead of 80"]);
    assert_eq!(judge_lengths(&found(70), 70, &[("a", 80)]), ["a has 70 now: take it off the list"]);
    assert_eq!(judge_lengths(&found(70), 70, &[("c", 80)]), ["c is gone: take it off the list"]);
}

#[test]
fn functions_are_measured() {
    let text = "fn a() {}\n\nimpl B {\n    // fn no() {\n    pub(crate) const fn c(\n        d: \
        u8,\n    ) -> u8 {\n        d\n    }\n}\n\
        pub fn e<F: Fn(u8)>(f: F)\nwhere\n    F: Copy,\n{\n    fn g() {\n        h();\n    }\n}\n\
        trait I {\n    fn j(\n        &self,\n    ) -> u8;\n    fn l(&self)\n    -> u8;\n}\n\
        struct K {\n    fn_like: fn(u8),\n}\n";
    assert_eq!(functions(text), [("a", 1), ("c", 5), ("e", 8), ("g", 3), ("j", 3), ("l", 2)]);
}

#[test]
fn maps_with_randomness_are_found() {
    let bad = [
        "a: HashMap<u8, u8>,",
        "a: HashMap<\n    u8,\n    Result<u8, u16>,\n>,",
        "HashMap::new()",
        "HashSet::with_capacity(1)",
        "b.collect::<HashSet<_>>()",
        "HashSet::<u8>::default()",
        "HashMap<u8, fn(u8) -> u8>",
    ];
    for text in bad {
        assert_eq!(random_maps(text).len(), 1, "{text}");
    }
    let good = [
        "use std::collections::{HashMap, HashSet};",
        "// HashMap<u8, u8>",
        "HashMap<u8, (u8, u8), Fixed>",
        "HashSet<u8, Fixed>",
        "HashMap::with_hasher(fixed)",
        "BTreeMap<u8, u8>",
    ];
    for text in good {
        assert_eq!(random_maps(text), [""; 0], "{text}");
    }
}
