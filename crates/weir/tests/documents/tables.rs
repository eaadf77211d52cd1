//! Checks the tables of the documents against the sources: stages, crates, values of constants.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::items::has_item;
use super::markdown::{quoted, tables_of};
use super::options::option_defaults;
use super::sources::{Source, defines, rust_files, value};
use super::{nothing_found, read, root};

/// A request passes these stages, in this order.
const STAGES: [&str; 12] = [
    "accept",
    "parse",
    "route",
    "cache",
    "schedule",
    "forward",
    "receive",
    "ask again",
    "health",
    "order",
    "reply",
    "account",
];

#[test]
fn the_stage_table_names_what_exists() {
    let tables = tables_of(&read("ARCHITECTURE.md"), &["stage", "decides", "acts", "bounded by"]);
    let stages: Vec<&str> = tables[0].iter().map(|row| row[0].as_str()).collect();
    assert_eq!(stages, STAGES);
    let files = rust_files();
    let options: BTreeSet<String> =
        option_defaults().into_keys().map(|(_, option)| option).collect();
    let mut findings = Vec::new();
    for row in &tables[0] {
        assert!(row[1].contains(".rs`"), "{}: nobody decides", row[0]);
        for cell in &row[1..3] {
            check_cell(&row[0], cell, &files, &mut findings);
        }
        for word in quoted(&row[3]) {
            let is_constant = word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            let known = if is_constant {
                files.iter().any(|file| defines(&file.text, &word))
            } else {
                options.contains(&word)
            };
            if !known {
                findings.push(format!(
                    "{}: the bound `{word}` is neither a constant nor an option",
                    row[0]
                ));
            }
        }
    }
    nothing_found(&findings);
}

#[test]
fn the_page_of_stages_names_what_exists() {
    let files = rust_files();
    let mut findings = Vec::new();
    for row in tables_of(&read("docs/internals/stages.md"), &["code", "purpose"]).concat() {
        assert!(row[0].contains(".rs`"), "{row:?} names no file");
        check_cell("docs/internals/stages.md", &row[0], &files, &mut findings);
    }
    nothing_found(&findings);
}

/// Checks that each symbol of a cell is defined in one of the files that the cell names.
fn check_cell(stage: &str, cell: &str, files: &[Source], findings: &mut Vec<String>) {
    let (paths, symbols): (Vec<_>, Vec<_>) =
        quoted(cell).into_iter().partition(|word| word.ends_with(".rs"));
    let mut named = Vec::new();
    for path in &paths {
        match files.iter().find(|file| file.path == format!("crates/{path}")) {
            Some(file) => named.push(file),
            None => findings.push(format!("{stage}: crates/{path} does not exist")),
        }
    }
    for symbol in &symbols {
        let found = |file: &&Source| match symbol.split_once("::") {
            Some((owner, item)) => has_item(file, owner, item),
            None => defines(&file.text, symbol),
        };
        if !named.iter().any(found) {
            findings.push(format!("{stage}: {symbol} is not defined in {paths:?}"));
        }
    }
}

#[test]
fn a_wrong_symbol_of_a_stage_is_found() {
    let files = rust_files();
    let findings = |symbol: &str| {
        let mut findings = Vec::new();
        check_cell(
            "x",
            &format!("`weir-proxy/src/client/answer.rs` `{symbol}`"),
            &files,
            &mut findings,
        );
        findings
    };
    assert_eq!(findings("Answers::advance"), [""; 0]);
    // Words that occur in the file but are no items of that type there: of no type, of another
    // type, in another file.
    for wrong in ["Answers::AnswerHead", "Context::advance", "Answers::flush_session"] {
        assert_eq!(findings(wrong).len(), 1, "{wrong}");
    }
}

/// Returns the weir crates that a manifest depends on, without those for tests. An optional one is
/// there only for the suite of drivers (`conformance`), which only tests switch on.
fn uses(manifest: &str) -> BTreeSet<String> {
    let section = manifest.split("\n[dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let lines = section.lines().filter(|line| !line.contains("optional = true"));
    let names = lines.filter_map(|line| line.split([' ', '=', '.']).next());
    names.filter(|name| name.starts_with("weir")).map(str::to_owned).collect()
}

#[test]
fn the_crate_table_is_complete_and_arrows_point_inward() {
    let tables = tables_of(&read("ARCHITECTURE.md"), &["crate", "ring", "uses", "what it is"]);
    let mut rings = BTreeMap::new();
    let mut findings = Vec::new();
    for row in &tables[0] {
        let name = row[0].trim_matches('`').to_owned();
        let told: BTreeSet<String> = quoted(&row[2]).into_iter().collect();
        let real = uses(&read(&format!("crates/{name}/Cargo.toml")));
        if told != real {
            findings.push(format!("{name} uses {real:?}, the table says {told:?}"));
        }
        // The judges of tests stand apart: nothing may use them, and they use nothing.
        let ring = row[1].parse::<u8>().unwrap_or(u8::MAX);
        rings.insert(name, (ring, real));
    }
    for (name, (ring, real)) in &rings {
        for other in real {
            if rings.get(other).is_none_or(|(inner, _)| inner > ring) {
                findings.push(format!(
                    "{name} (ring {ring}) depends on {other}, which lies further out"
                ));
            }
        }
    }
    let directories = fs::read_dir(root().join("crates")).expect("crates");
    for entry in directories {
        let entry = entry.expect("a readable directory");
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join("Cargo.toml").is_file() && !rings.contains_key(&name) {
            findings.push(format!("the crate {name} is missing in ARCHITECTURE.md"));
        }
    }
    nothing_found(&findings);
}

/// Parses `128 KiB`, `1 h` or `4096` into bytes, microseconds or a number.
fn measure(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor = match unit {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "h" => 3_600_000_000,
        _ => return None,
    };
    Some(number.parse::<u64>().ok()? * factor)
}

#[test]
fn constants_have_the_values_that_documents_give() {
    let files = rust_files();
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    let head = ["constant", "value", "where", "what it bounds"];
    let pages = ["docs/buffers-bounds.md", "docs/buffers-workers.md"];
    for row in pages.iter().flat_map(|page| tables_of(&read(page), &head).concat()) {
        let (name, path) = (row[0].trim_matches('`'), row[2].trim_matches('`'));
        if !seen.insert((name.to_owned(), path.to_owned())) {
            findings.push(format!("{name} in {path} has two rows"));
        }
        let file = files.iter().find(|file| file.path == format!("crates/{path}"));
        let real = file.and_then(|file| value(&file.text, name));
        if real.is_none() || real != measure(&row[1]) {
            findings.push(format!("{name} in {path} is {real:?}, the table says {}", row[1]));
        }
    }
    nothing_found(&findings);
}

#[test]
fn options_have_the_defaults_that_the_threat_model_gives() {
    let defaults = option_defaults();
    let files = rust_files();
    let mut findings = Vec::new();
    for row in tables_of(&read("THREAT_MODEL.md"), &["resource", "option", "default", "beyond it"])
        .concat()
    {
        let names = quoted(&row[1]);
        let told = row[2].trim_matches('`');
        let agrees = match names.as_slice() {
            [block, option] => defaults
                .get(&(block.clone(), option.clone()))
                .is_some_and(|default| default == told),
            [constant] => files.iter().any(|file| value(&file.text, constant) == measure(told)),
            _ => false,
        };
        if !agrees {
            findings.push(format!("{}: {names:?} is not {told}", row[0]));
        }
    }
    nothing_found(&findings);
}
