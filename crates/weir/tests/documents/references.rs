//! Everything that comments and documents cite is in the repository: files, their sections, their
//! headings, and codes of hostile input.
//!
//! A comment cites from the top of the repository: `docs/retries.md`, `docs/hostile.md E18, E27`,
//! `docs/status-glitches.md#glitches`; a document may also cite from its own folder. A code alone
//! (`E18`) means the catalogue, which the same file must name once.

use std::collections::{BTreeMap, BTreeSet};

use super::markdown::{prose, quoted, tables};
use super::sources::{Source, files, rust_files, words};
use super::tidy::is_test;
use super::{nothing_found, read};

/// The pages of the catalogue of hostile input, whose codes may be alone.
const CATALOGUE: [&str; 2] = ["docs/hostile.md", "docs/hostile-requests.md"];
/// Placeholders for names that a user chooses.
const PLACEHOLDERS: &[&str] = &["EXPERIMENT.md"];

/// The parts of one document that can be cited.
#[derive(Default)]
struct Page {
    /// Numbers of headings: `4` of `## 4. Loss`.
    sections: BTreeSet<String>,
    /// Headings as links name them.
    anchors: BTreeSet<String>,
    /// First cells of tables under the head `row`.
    codes: BTreeSet<String>,
}

impl Page {
    fn of(text: &str) -> Page {
        let mut page = Page::default();
        for line in prose(text).filter(|line| line.starts_with('#')) {
            let heading = line.trim_start_matches('#').trim();
            if let Some((number, _)) = heading.split_once(". ") {
                page.sections.insert(number.to_owned());
            }
            page.anchors.insert(anchor(heading));
        }
        for table in tables(text).iter().filter(|table| table.head[0] == "row") {
            page.codes.extend(table.rows.iter().map(|row| row[0].clone()));
        }
        page
    }
}

/// Returns a heading as links name it: small letters, dashes for spaces, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// A citation in a text.
#[derive(Debug, PartialEq, Eq)]
enum Reference {
    File(String),
    /// A file and a heading of it.
    Anchor(String, String),
    /// A file and a number of a section.
    Section(String, String),
    /// A file, if the text names one, and a code.
    Code(Option<String>, String),
    /// A number of a section, without a document before it.
    Adrift(String),
    /// Something outside of the repository.
    Outside(String),
}

/// Whether a word is like `E18`: a letter up to K, and a number of one or two digits without a
/// leading zero.
fn is_code(word: &str) -> bool {
    let number = word.strip_prefix(|c: char| ('A'..='K').contains(&c)).unwrap_or_default();
    let digits = matches!(number.len(), 1 | 2) && number.bytes().all(|byte| byte.is_ascii_digit());
    digits && (number == "0" || !number.starts_with('0'))
}

/// Whether a word looks like the path of a document, perhaps with a heading behind `#`.
fn is_document(word: &str) -> bool {
    let path = word.split('#').next().unwrap_or_default();
    let named = path
        .strip_suffix(".md")
        .is_some_and(|name| name.ends_with(|c: char| c.is_ascii_alphanumeric()));
    named
        && path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
        && !PLACEHOLDERS.contains(&path)
}

/// Returns all citations of a text, in order. Sections and codes belong to the document before
/// them, with only numbers, `and`, `to` and `or` between; those of RFCs and the like are not
/// checked.
fn references(text: &str) -> Vec<Reference> {
    let mut found = Vec::new();
    // The last named document; empty for external texts.
    let mut cited: Option<String> = None;
    let mut before = "";
    for word in text.split(|c: char| c.is_whitespace() || "()[]`\"".contains(c)) {
        let word = word.trim_end_matches(|c: char| ",.;:'".contains(c)).trim_start_matches('\'');
        if let Some(section) = word.strip_prefix('§') {
            for part in section.split('-').map(|part| part.trim_start_matches('§').to_owned()) {
                match &cited {
                    Some(path) if path.is_empty() => {}
                    Some(path) => found.push(Reference::Section(path.clone(), part)),
                    None => found.push(Reference::Adrift(word.to_owned())),
                }
            }
        } else if is_document(word) {
            let (path, heading) = word.split_once('#').unwrap_or((word, ""));
            cited = Some(path.to_owned());
            found.push(if heading.is_empty() {
                Reference::File(path.to_owned())
            } else {
                Reference::Anchor(path.to_owned(), heading.to_owned())
            });
        } else if !word.is_empty() && word.split('-').all(is_code) {
            let path = cited.clone().filter(|path| !path.is_empty());
            found
                .extend(word.split('-').map(|code| Reference::Code(path.clone(), code.to_owned())));
        } else if ["RFC", "KDL"].contains(&word) {
            cited = Some(String::new());
        } else if before.eq_ignore_ascii_case("issue")
            && word.trim_start_matches('#').parse::<u32>().is_ok()
        {
            found.push(Reference::Outside(format!("{before} {word}")));
        } else if !word.is_empty()
            && !["and", "to", "or"].contains(&word)
            && word.parse::<f32>().is_err()
        {
            cited = None;
        }
        if !word.is_empty() {
            before = word;
        }
    }
    found
}

/// Returns the citations of a text that do not exist. `folder` is the base of its relative paths,
/// if it may have any.
fn unresolved(text: &str, folder: Option<&str>, pages: &BTreeMap<String, Page>) -> Vec<String> {
    let page = |path: &str| {
        let beside = folder.and_then(|folder| pages.get(&within(folder, path)));
        pages.get(path).or(beside)
    };
    let mut findings = Vec::new();
    let mut alone = None;
    for reference in references(text) {
        findings.extend(match reference {
            Reference::File(path) => missing(page(&path), &path, "", |_| true),
            Reference::Anchor(path, heading) => {
                missing(page(&path), &path, &format!("heading #{heading}"), |page| {
                    page.anchors.contains(&heading)
                })
            }
            Reference::Section(path, number) => {
                missing(page(&path), &path, &format!("section {number}"), |page| {
                    page.sections.contains(&number)
                })
            }
            Reference::Code(path, code) => {
                if path.is_none() {
                    alone.get_or_insert_with(|| code.clone());
                }
                let path = path.unwrap_or_else(|| catalogue_page(&code, pages).to_owned());
                missing(page(&path), &path, &format!("row {code}"), |page| {
                    page.codes.contains(&code)
                })
            }
            Reference::Adrift(section) => Some(format!("{section} of what?")),
            Reference::Outside(what) => Some(format!("{what} is not in the repository")),
        });
    }
    if let Some(code) = alone
        && !CATALOGUE.iter().any(|path| names_page(text, folder, path))
    {
        findings
            .push(format!("{code} stands alone, and nothing says that it is of {}", CATALOGUE[0]));
    }
    findings
}

/// Returns the page of the catalogue that has this code, or else the first page.
fn catalogue_page(code: &str, pages: &BTreeMap<String, Page>) -> &'static str {
    let has = |path: &&str| pages.get(*path).is_some_and(|page| page.codes.contains(code));
    CATALOGUE.into_iter().find(has).unwrap_or(CATALOGUE[0])
}

/// Whether a text in this folder names a page of the catalogue.
fn names_page(text: &str, folder: Option<&str>, path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    text.contains(path)
        || folder.is_some_and(|folder| within(folder, name) == path && text.contains(name))
}

/// Returns a finding if the page does not exist, or lacks `what`.
fn missing(
    page: Option<&Page>,
    path: &str,
    what: &str,
    has: impl Fn(&Page) -> bool,
) -> Option<String> {
    match page {
        None => Some(format!("{path} does not exist")),
        Some(page) => (!has(page)).then(|| format!("{path} has no {what}")),
    }
}

/// Returns a path as seen from a folder of the repository; paths above `docs` are at the top.
fn within(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// Returns the comments of a source: consecutive lines are one text.
fn comments(text: &str, mark: &str) -> String {
    let behind = format!(" {mark} ");
    let mut all = String::new();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with(mark) {
            let told = line.trim_start_matches(['/', '!', '#']);
            all.extend([" ", told]);
        } else {
            // Earlier citations end here.
            all.extend([" |\n", line.split_once(&behind).map_or("", |(_, told)| told), " |\n"]);
        }
    }
    all
}

/// Returns codes at the beginning of a name: `E18` and `E27` of `e18_and_e27_servers_that_close`.
fn codes_of_name(name: &str) -> Vec<String> {
    let code = |part: &str| part.to_ascii_uppercase();
    let parts = name.split('_').take_while(|part| {
        *part == "and" || !part.contains(char::is_uppercase) && is_code(&code(part))
    });
    let codes: Vec<String> = parts.filter(|part| *part != "and").map(code).collect();
    if name.split('_').count() > codes.len() { codes } else { Vec::new() }
}

/// Returns the codes of all pages of the catalogue.
fn catalogue_codes() -> BTreeSet<String> {
    CATALOGUE.into_iter().flat_map(|path| Page::of(&read(path)).codes).collect()
}

fn pages(documents: &[Source]) -> BTreeMap<String, Page> {
    documents.iter().map(|document| (document.path.clone(), Page::of(&document.text))).collect()
}

#[test]
fn comments_cite_what_is_in_the_repository() {
    let documents = files(|path| path.ends_with(".md"));
    let pages = pages(&documents);
    assert!(catalogue_codes().len() > 50);
    let is_script = |path: &str| {
        let kinds = ["Makefile", ".toml", ".sh", ".yml"];
        kinds.iter().any(|end| path.ends_with(end)) || path.starts_with("scripts/")
    };
    let mut findings = Vec::new();
    let mut note = |path: &str, found: Vec<String>| {
        findings.extend(found.into_iter().map(|finding| format!("{path}: {finding}")));
    };
    let mut cited = 0;
    for file in rust_files() {
        let told = comments(&file.text, "//");
        cited += references(&told).len();
        note(&file.path, unresolved(&told, None, &pages));
    }
    assert!(cited > 250, "only {cited} references found");
    for file in files(is_script) {
        note(&file.path, unresolved(&comments(&file.text, "#"), None, &pages));
    }
    for document in &documents {
        let folder = document.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let text: Vec<&str> = prose(&document.text).collect();
        note(&document.path, unresolved(&text.join("\n"), Some(folder), &pages));
        for heading in own_headings(&document.text) {
            if !pages[&document.path].anchors.contains(&heading) {
                note(&document.path, vec![format!("the link #{heading} leads nowhere")]);
            }
        }
    }
    nothing_found(&findings);
}

/// Returns headings of the same document that it links to.
fn own_headings(text: &str) -> Vec<String> {
    let targets = text.split("](#").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(str::to_owned).collect()
}

/// Returns the sources of tests and of their judges, without the examples of these tests here.
fn test_files() -> Vec<Source> {
    let is_one = |path: &str| {
        (is_test(path) || path.contains("/weir-check/")) && !path.contains("/tests/documents/")
    };
    rust_files().into_iter().filter(|file| is_one(&file.path)).collect()
}

#[test]
fn codes_in_names_have_rows() {
    let known = catalogue_codes();
    let mut findings = Vec::new();
    for file in test_files() {
        for name in words(&file.text).collect::<BTreeSet<_>>() {
            let missing = codes_of_name(name).into_iter().filter(|code| !known.contains(code));
            findings.extend(missing.map(|code| {
                format!("{}: {name}, but {CATALOGUE:?} have no row {code}", file.path)
            }));
        }
    }
    nothing_found(&findings);
}

#[test]
fn every_row_of_hostile_input_has_a_test_with_its_name() {
    let tests = test_files();
    let all: BTreeSet<&str> = tests
        .iter()
        .filter(|file| is_test(&file.path))
        .flat_map(|file| words(&file.text))
        .collect();
    let named: BTreeSet<String> = all.iter().flat_map(|name| codes_of_name(name)).collect();
    let mut findings = Vec::new();
    let tables = CATALOGUE.into_iter().flat_map(|path| tables(&read(path)));
    for table in tables.filter(|table| table.head[0] == "row") {
        for row in table.rows {
            // A test with another name is in backticks.
            let told = quoted(&row.join(" "))
                .iter()
                .any(|word| word.contains('_') && all.contains(word.as_str()));
            if !named.contains(&row[0]) && !told {
                findings.push(format!("no test is named {}_...", row[0].to_ascii_lowercase()));
            }
        }
    }
    nothing_found(&findings);
}

#[test]
fn what_is_cited_wrongly_is_found() {
    let catalogue = Page::of("# H\n| row | what |\n|---|---|\n| E1 | a |\n| K3 | b |\n");
    let promises = Page::of("# P\n## 4. Loss, and more\n### 4a. `Trust`\n```\n## 5. no\n```\n");
    let requests = Page::of("# R\n| row | what |\n|---|---|\n| A1 | a |\n");
    let pages = BTreeMap::from([
        (CATALOGUE[0].to_owned(), catalogue),
        (CATALOGUE[1].to_owned(), requests),
        ("docs/p.md".to_owned(), promises),
    ]);
    let of = |text: &str| unresolved(text, None, &pages);
    let fine = "Of docs/p.md §4, §4a; docs/hostile.md E1, K3. RFC 9112 §6, §9 and §77. \
        docs/p.md#4-loss-and-more as (E1-K3) %E9 EXPERIMENT.md";
    assert_eq!(of(fine), [""; 0]);
    assert_eq!(of("docs/q.md §1"), ["docs/q.md does not exist"; 2]);
    assert_eq!(of("p.md"), ["p.md does not exist"]);
    assert_eq!(unresolved("[a](p.md#4a-trust), ../docs/p.md §4", Some("docs"), &pages), [""; 0]);
    assert_eq!(of("docs/p.md §4, §5."), ["docs/p.md has no section 5"]);
    assert_eq!(of("docs/p.md#loss"), ["docs/p.md has no heading #loss"]);
    assert_eq!(of("docs/hostile.md E1-E2"), ["docs/hostile.md has no row E2"]);
    assert_eq!(of("docs/p.md E1"), ["docs/p.md has no row E1"]);
    assert_eq!(of("docs/hostile.md E1. Also (A1) and docs/hostile-requests.md A1."), [""; 0]);
    assert_eq!(of("docs/hostile.md A1"), ["docs/hostile.md has no row A1"]);
    assert_eq!(of("docs/hostile.md: E1, or (K4)"), ["docs/hostile.md has no row K4"]);
    assert_eq!(of("as E1"), ["E1 stands alone, and nothing says that it is of docs/hostile.md"]);
    assert_eq!(of("promises §4"), ["§4 of what?"]);
    assert_eq!(of("Issue 3 item 7"), ["Issue 3 is not in the repository"]);
}

#[test]
fn comments_and_names_are_read() {
    let source =
        "//! a docs/p.md\n//! §4\nlet b = \"// E9\"; // c K3\n    /// d\n    // e\nfn f() {}\n";
    let told = comments(source, "//");
    let words: Vec<&str> = told
        .split(|c: char| c.is_whitespace() || ".|".contains(c))
        .filter(|word| !word.is_empty())
        .collect();
    assert_eq!(words, ["a", "docs/p", "md", "§4", "c", "K3", "d", "e"]);
    assert_eq!(references(&told)[1], Reference::Section("docs/p.md".to_owned(), "4".to_owned()));
    assert_eq!(codes_of_name("e18_and_e27_servers"), ["E18", "E27"]);
    assert_eq!(codes_of_name("k3_a_panic"), ["K3"]);
    for name in ["e18", "E18_x", "a_b1_c", "x86_64", "b"] {
        assert_eq!(codes_of_name(name), [""; 0], "{name}");
    }
}
