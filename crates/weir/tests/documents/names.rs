//! Checks that what documents name in backticks exists, and that links lead somewhere.

use std::collections::BTreeSet;

use super::items::has_item;
use super::markdown::{links, quoted};
use super::sources::{Source, all_words, files, rust_files, words};
use super::{DOCUMENTS, PROMISES, nothing_found, read, root};

/// Whether a word looks like a file of the repository.
fn is_path(word: &str) -> bool {
    let known = [".rs", ".md", ".toml", ".lock", ".sh"].iter().any(|ending| word.ends_with(ending));
    let inside = ["crates/", "docs/", "scripts/", "fuzz/", "weir-"]
        .iter()
        .any(|start| word.starts_with(start));
    !word.contains([' ', '*']) && (known || (inside && word.contains('/')))
}

/// Whether a word looks like a name in the sources: `Type`, `Type::item`, `CONSTANT`, `snake_case`.
fn is_name(word: &str) -> bool {
    let plain = word.replace("::", "_");
    let is_identifier = plain.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_telling = word.contains('_')
        || word.contains("::")
        || (word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().any(|c| c.is_ascii_lowercase()));
    is_identifier && is_telling
}

/// HTTP fields that are written like types.
const FIELDS: &[&str] = &["Forwarded", "Proxy", "Connection"];

/// Returns what is wrong with a name: the item of `Type::item` must belong to a type of that name.
/// Of all others each word must be somewhere.
fn missing(word: &str, files: &[Source], known: &BTreeSet<String>) -> Option<String> {
    if let Some((owner, item)) = word.split_once("::")
        && owner.starts_with(|c: char| c.is_ascii_uppercase())
    {
        let exists = files.iter().any(|file| has_item(file, owner, item));
        return (!exists).then(|| format!("no {owner} has the item of `{word}`"));
    }
    let spaced = word.replace("::", " ");
    let part = words(&spaced).find(|part| !known.contains(*part))?;
    Some(format!("{part} of `{word}` is nowhere in the sources"))
}

#[test]
fn a_wrong_name_is_found() {
    let files = rust_files();
    let known = all_words(&files);
    for right in
        ["Engine::order", "Action::Relay", "RequestFlags::TRIAL", "Driver::turn", "HeadScan"]
    {
        assert_eq!(missing(right, &files, &known), None, "{right}");
    }
    // Each of their words is in the sources, but not as an item of that type.
    for wrong in [
        "Engine::place_again",
        "Action::TRIAL",
        "Driver::conns",
        "UpstreamConn::history",
        "Relay::Action",
    ] {
        assert!(missing(wrong, &files, &known).is_some(), "{wrong}");
    }
    let nobody = ["No", "body", "Knows"].concat();
    assert!(missing(&nobody, &files, &known).is_some());
}

#[test]
fn documents_name_what_exists() {
    let files = rust_files();
    let known = all_words(&files);
    let mut findings = Vec::new();
    for document in DOCUMENTS.iter().chain(PROMISES) {
        for word in quoted(&read(document)) {
            let word = word
                .split('#')
                .next()
                .unwrap_or_default()
                .trim_end_matches("()")
                .trim_end_matches('!');
            if is_path(word) {
                // Besides the whole path, a document may leave out `crates/`, and also the crate's
                // name if it is about one crate.
                let end = format!("/{word}");
                let found = root().join(word).exists()
                    || root().join("crates").join(word).exists()
                    || files.iter().any(|file| file.path.ends_with(&end));
                if !found {
                    findings.push(format!("{document}: the file {word} does not exist"));
                }
            } else if is_name(word) && !FIELDS.contains(&word) {
                findings
                    .extend(missing(word, &files, &known).map(|why| format!("{document}: {why}")));
            }
        }
    }
    nothing_found(&findings);
}

#[test]
fn links_lead_to_files() {
    let mut findings = Vec::new();
    for document in files(|path| path.ends_with(".md")) {
        let folder = root().join(&document.path).parent().expect("a folder").to_path_buf();
        for link in links(&document.text).iter().filter(|link| !folder.join(link).exists()) {
            findings.push(format!("{}: the link {link} leads nowhere", document.path));
        }
    }
    nothing_found(&findings);
}
