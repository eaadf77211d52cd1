//! Every dependency's licence is on the list of deny.toml, and every dependency comes from the
//! registry.
//!
//! Reads `cargo metadata --offline`; no network, no cargo-deny. An expression is accepted when it
//! can be satisfied with allowed licences alone.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The quoted strings of `allow = [ ... ]`.
fn allowed() -> BTreeSet<String> {
    let text =
        std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml is beside Cargo.toml");
    let (_, list) = text.split_once("allow = [").expect("deny.toml has a list of allowed licences");
    let (list, _) = list.split_once(']').expect("the list ends");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether allowed licences satisfy an SPDX expression. `/` is the old way to write OR.
fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let result = any(&words, &mut at, allowed);
    result && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut result = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        result |= all(words, at, allowed);
    }
    result
}

fn all(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut result = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        result &= one(words, at, allowed);
    }
    result
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let inner = any(words, at, allowed);
        *at += 1;
        return inner;
    }
    let mut name = (*word).to_owned();
    if words.get(*at) == Some(&"WITH") {
        name = format!("{word} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    allowed.contains(&name)
}

#[test]
fn expressions_are_read() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "ISC".to_owned(), "A WITH B".to_owned()]);
    for good in
        ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "(GPL-3.0 OR MIT) AND ISC", "A WITH B OR GPL-3.0"]
    {
        assert!(satisfied(good, &allowed), "{good}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "A", "(MIT OR ISC) AND GPL-3.0", "MIT MIT", ""] {
        assert!(!satisfied(bad, &allowed), "{bad}");
    }
}

#[test]
fn every_dependency_has_an_allowed_licence_and_comes_from_the_registry() {
    let allowed = allowed();
    assert!(allowed.len() > 3, "the list of deny.toml was not found: {allowed:?}");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--offline", "--locked", "--filter-platform"])
        .arg("x86_64-unknown-linux-gnu")
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON");
    let packages = metadata["packages"].as_array().expect("there is a list of packages");
    assert!(packages.len() > 10, "only {} packages", packages.len());
    let mut faults = Vec::new();
    for package in packages {
        let name = format!("{} {}", package["name"], package["version"]);
        let licence = package["license"].as_str().unwrap_or("(none)");
        if !satisfied(licence, &allowed) {
            faults.push(format!("{name}: licence {licence} is not on the list of deny.toml"));
        }
        // Members of the workspace have no source.
        let source = package["source"].as_str().unwrap_or("registry+");
        if !source.starts_with("registry+") {
            faults.push(format!("{name}: comes from {source}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
