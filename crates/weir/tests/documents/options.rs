//! Everything that can be configured is documented: keys in the reference page, flags in
//! docs/commands.md.

use std::collections::{BTreeMap, BTreeSet};

use super::markdown::{links, tables, tables_of};
use super::{PROMISES, nothing_found, read};

/// Returns defaults by block and option, as the option table of `weir-config` gives them.
pub(crate) fn option_defaults() -> BTreeMap<(String, String), String> {
    let reference = weir_config::reference();
    let mut defaults = BTreeMap::new();
    for section in reference.split("### ").skip(1) {
        let heading = section.lines().next().unwrap_or_default();
        let block = heading.split('`').nth(1).unwrap_or_default();
        for row in tables(section).iter().flat_map(|table| &table.rows) {
            let option = row[0].trim_matches(['`', '*']);
            defaults
                .insert((block.to_owned(), option.to_owned()), row[2].trim_matches('`').to_owned());
        }
    }
    assert!(defaults.len() > 30, "the reference has only {} options", defaults.len());
    defaults
}

#[test]
fn every_key_is_in_the_pages_that_the_readme_names() {
    let list = read("docs/configuration.md");
    assert!(
        read("README.md").contains("docs/configuration.md"),
        "README.md does not name docs/configuration.md"
    );
    let mut pages = links(&list);
    pages.retain(|page| page.starts_with("configuration-"));
    assert!(pages.len() > 5, "docs/configuration.md names {pages:?}");
    let page: String = pages.iter().map(|page| read(&format!("docs/{page}"))).collect();
    let missing: Vec<String> = option_defaults()
        .into_keys()
        .filter(|(block, option)| {
            !page.contains(&format!("| `{option}`"))
                || !page.contains(&format!("`{block}`")) && !block.is_empty()
        })
        .map(|(block, option)| {
            format!("`{option}` of `{block}` is on no page of docs/configuration.md")
        })
        .collect();
    nothing_found(&missing);
}

/// Verbs with which people run weir; the flags of `demo` and `bench` are for developers and are in
/// their help.
const VERBS: [&str; 8] =
    ["run", "check", "status", "server", "reverse", "forward", "origin", "probe"];

/// Returns the long flags of a verb, each with its short form if it has one, from the stored help
/// text. Another test compares that text with the program.
fn flags(verb: &str) -> BTreeMap<String, Option<String>> {
    let text = read(&format!("crates/weir/tests/help/{verb}.txt"));
    let (_, options) = text.split_once("\nOptions:\n").expect("a verb has options");
    let lines = options.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let flags = lines.filter_map(|line| {
        let mut words = line.split([' ', ',', '[']).filter(|word| !word.is_empty());
        let first = words.next()?;
        if first.starts_with("--") {
            return Some((first.to_owned(), None));
        }
        let long = words.next().filter(|word| word.starts_with("--"))?;
        Some((long.to_owned(), Some(first.to_owned())))
    });
    flags.filter(|(long, _)| long != "--help").collect()
}

#[test]
fn every_flag_and_every_verb_is_in_its_page() {
    let page = read("docs/commands.md");
    let named: BTreeSet<&str> =
        page.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
    let mut missing = Vec::new();
    for verb in VERBS {
        if !page.contains(&format!("weir {verb}")) {
            missing.push(format!("docs/commands.md does not show `weir {verb}`"));
        }
        for (long, short) in flags(verb) {
            if !named.contains(long.as_str())
                && short.is_none_or(|short| !named.contains(short.as_str()))
            {
                missing.push(format!("docs/commands.md does not name {long} of weir {verb}"));
            }
        }
    }
    nothing_found(&missing);
}

#[test]
fn common_options_exist_with_these_defaults() {
    let defaults = option_defaults();
    let mut findings = Vec::new();
    for row in
        tables_of(&read("docs/common-options.md"), &["block", "option", "default", "meaning"])
            .concat()
    {
        let [block, option, told] = [0, 1, 2].map(|at: usize| row[at].trim_matches('`').to_owned());
        let own = defaults.get(&(block, option.clone()));
        // For a block inside a block, such as `pipeline`: one of its own options.
        let inside =
            |(block, _): &(String, String), default: &String| *block == option && *default == told;
        let inner = defaults.iter().any(|(place, default)| inside(place, default));
        let repeats = told == "none" && defaults.keys().any(|(block, _)| *block == option);
        if own != Some(&told) && !inner && !repeats {
            findings
                .push(format!("docs/common-options.md: {row:?}, the option table says {own:?}"));
        }
    }
    nothing_found(&findings);
}

/// Returns names in backticks with a bold value behind them.
fn told_defaults(text: &str) -> Vec<(String, String)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    let places =
        text.match_indices("` **").map(|(at, mark)| (&text[..at], &text[at + mark.len()..]));
    let names = places.filter_map(|(before, behind)| {
        Some((before.rsplit_once('`')?.1, behind.split_once("**")?.0))
    });
    names.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Whether this is the default of an option of this name, or of an option in a block of this name.
fn is_default(defaults: &BTreeMap<(String, String), String>, name: &str, value: &str) -> bool {
    // Behind the value there may be the place where it holds.
    let plain = |default: &str| default.split('`').next() == Some(value);
    defaults
        .iter()
        .any(|((block, option), default)| (option == name || block == name) && plain(default))
}

#[test]
fn promises_have_the_defaults_of_the_option_table() {
    let defaults = option_defaults();
    let (mut count, mut wrong) = (0, Vec::new());
    for page in PROMISES {
        let told = told_defaults(&read(page));
        count += told.len();
        let false_ones = told.iter().filter(|(name, value)| !is_default(&defaults, name, value));
        wrong.extend(false_ones.map(|(name, value)| format!("{page}: {name} is not {value}")));
    }
    assert!(count > 80, "only {count} defaults found");
    nothing_found(&wrong);
}

#[test]
fn a_default_that_is_wrong_is_found() {
    assert_eq!(told_defaults("a `queue`\n**64** b `x`"), [("queue".to_owned(), "64".to_owned())]);
    let defaults = option_defaults();
    assert!(
        is_default(&defaults, "queue", "64") && is_default(&defaults, "connections-max", "1024")
    );
    assert!(!is_default(&defaults, "queue", "65") && !is_default(&defaults, "nowhere", "64"));
}

#[test]
fn flags_are_read_from_help_texts() {
    assert_eq!(flags("check").get("--config"), Some(&Some("-c".to_owned())));
    assert_eq!(flags("reverse").get("--connections"), Some(&None));
}
