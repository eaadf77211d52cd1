//! Checks the summary of the manual, from which `scripts/docs` builds the site: it lists each page
//! of `docs` once, and only pages that exist.

use std::collections::BTreeSet;

use super::markdown::links;
use super::sources::files;
use super::{nothing_found, read, root};

const SUMMARY: &str = "docs/SUMMARY.md";
/// The shelves of the manual, in their order.
const SHELVES: [&str; 6] = ["Start", "How-to", "Concepts", "Reference", "Laboratory", "Internals"];

/// Returns what is wrong with a list of pages, if these pages must be on it.
fn faults(listed: &[String], pages: &BTreeSet<String>) -> Vec<String> {
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for page in listed {
        if !seen.insert(page) {
            findings.push(format!("{SUMMARY} lists {page} twice"));
        } else if !root().join(page).is_file() {
            findings.push(format!("{SUMMARY} lists {page}, which does not exist"));
        }
    }
    let missing = pages.iter().filter(|page| !seen.contains(page));
    findings.extend(missing.map(|page| format!("{SUMMARY} does not list {page}")));
    findings
}

/// Returns the pages that a summary lists, from the top of the repository.
fn listed(text: &str) -> Vec<String> {
    links(text).iter().map(|link| format!("docs/{link}")).collect()
}

#[test]
fn the_summary_lists_every_page_once() {
    let all = files(|path| path.ends_with(".md") && path != SUMMARY).into_iter();
    let of_docs = all.map(|page| page.path).filter(|path| path.starts_with("docs/"));
    let pages: BTreeSet<String> = of_docs.collect();
    assert!(pages.len() > 100, "only {} pages found", pages.len());
    let text = read(SUMMARY);
    nothing_found(&faults(&listed(&text), &pages));
    let headings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    assert_eq!(headings[1..], SHELVES, "the shelves behind the title");
}

#[test]
fn a_wrong_line_of_a_summary_is_found() {
    let pages = ["docs/start.md", "docs/install.md"].map(str::to_owned).into();
    let text = "- [a](start.md)\n  - [b](start.md)\n- [c](none.md)\n[d](../README.md)\n";
    let told = faults(&listed(text), &pages).join(", ").replace(SUMMARY, "it");
    let wanted = "it lists docs/start.md twice, it lists docs/none.md, which does not exist, \
        it does not list docs/install.md";
    assert_eq!(told, wanted);
}
