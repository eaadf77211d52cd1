//! Style rules for the sources that reviewers are tired of repeating.

use std::collections::BTreeSet;

use super::imports::{circles, imports};
use super::sources::{Source, bare, code, rust_files, without_tests, words};
use super::{nothing_found, read};

/// Crates that may not contain unsafe code; their root says so too.
const SAFE: &[&str] =
    &["weir-http", "weir-cache", "weir-proxy", "weir-config", "weir-worker", "weir-check"];
/// Crates without clocks, randomness, threads and sockets.
pub(crate) const RING_0: &[&str] = &["weir-http", "weir-cache", "weir-proxy"];

/// Whether a file has tests and nothing else.
pub(crate) fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.contains("/conformance/") || path.ends_with("/tests.rs")
}

fn each_file(check: impl Fn(&Source) -> Option<String>) {
    let findings: Vec<String> = rust_files().iter().filter_map(check).collect();
    nothing_found(&findings);
}

#[test]
fn every_file_says_what_it_is_for() {
    each_file(|file| {
        let text = file.text.strip_prefix("#![no_main]\n").unwrap_or(&file.text);
        let told =
            text.lines().next().is_some_and(|line| line.starts_with("//! ") && line.len() > 20);
        (!told).then(|| {
            format!("{} does not begin with a //! line that says what it is for", file.path)
        })
    });
}

/// Characters of a line, as `rustfmt.toml` says. rustfmt leaves strings, comments and most macros
/// alone.
const COLUMNS_MAX: usize = 100;

/// Returns the first line that is too long, as number and length.
fn long_line(text: &str) -> Option<(usize, usize)> {
    let lengths = text.lines().map(|line| line.chars().count());
    (1..).zip(lengths).find(|(_, columns)| *columns > COLUMNS_MAX)
}

#[test]
fn no_line_is_long() {
    each_file(|file| {
        let (line, columns) = long_line(&file.text)?;
        Some(format!("{}:{line} has {columns} columns, at most {COLUMNS_MAX}", file.path))
    });
}

#[test]
fn a_long_line_is_found() {
    let line = "é".repeat(COLUMNS_MAX);
    assert_eq!(long_line(&format!("{line}\n{line}\n")), None);
    assert_eq!(long_line(&format!("{line}\n// {line}\n")), Some((2, COLUMNS_MAX + 3)));
}

#[test]
fn nothing_is_left_to_do() {
    each_file(|file| {
        let forbidden = ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX:"];
        let here = |word: &&str| file.text.lines().any(|line| bare(line).contains(word));
        let found = forbidden.iter().find(|word| here(word))?;
        Some(format!("{}: {found}", file.path))
    });
}

#[test]
fn unsafe_code_lives_in_the_io_crate() {
    each_file(|file| {
        if file.path.starts_with("crates/weir-io/") {
            return None;
        }
        let line = code(&file.text).find(|line| words(&bare(line)).any(|word| word == "unsafe"))?;
        Some(format!("{}: {line}", file.path))
    });
    for name in SAFE {
        assert!(
            read(&format!("crates/{name}/src/lib.rs")).contains("#![forbid(unsafe_code)]"),
            "{name} does not forbid it"
        );
    }
}

#[test]
fn ring_0_bans_what_it_must_not_know() {
    for name in RING_0 {
        let text = read(&format!("crates/{name}/clippy.toml"));
        for word in ["Instant::now", "SystemTime::now", "thread::spawn", "TcpStream", "RandomState"]
        {
            assert!(text.contains(word), "{name} may use {word}");
        }
    }
}

/// The folder of the experiments and their reports, and which of its folders may import which
/// others.
const BENCH: &str = "crates/weir-lab/src/bench/";
const BENCH_FOLDERS: &[(&str, &[&str])] = &[
    ("experiment", &[]),
    ("record", &["experiment"]),
    ("run", &["experiment", "record"]),
    ("report", &["experiment", "record"]),
];
/// Only the modules that act may need these: `run`, and `mod.rs`, which writes the files.
const BENCH_DEEDS: &[&str] =
    &["std::fs", "std::net", "std::process", "std::thread::spawn", "std::time"];

#[test]
fn the_bench_imports_in_one_direction() {
    let files: Vec<Source> =
        rust_files().into_iter().filter(|file| file.path.starts_with(BENCH)).collect();
    assert!(files.len() > 20, "only {} sources found", files.len());
    let imports = imports(&files);
    let round = circles(&imports);
    assert!(round.is_empty(), "these files import each other in a circle: {round:?}");
    let folder = |module: &str| module.split("::").nth(1).unwrap_or_default().to_owned();
    let mut findings = Vec::new();
    for (from, to) in
        imports.iter().flat_map(|(from, others)| others.iter().map(move |to| (from, to)))
    {
        let row = BENCH_FOLDERS.iter().find(|(name, _)| *name == folder(from));
        if row.is_some_and(|(own, others)| {
            *own != folder(to) && !others.contains(&folder(to).as_str())
        }) {
            findings.push(format!("{from} imports {to}"));
        }
    }
    for file in files
        .iter()
        .filter(|file| !file.path.contains("/run/") && file.path != format!("{BENCH}mod.rs"))
    {
        let deed = BENCH_DEEDS.iter().find(|deed| without_tests(&file.text).contains(*deed));
        findings.extend(deed.map(|deed| format!("{} has {deed}", file.path)));
    }
    nothing_found(&findings);
}

/// The proxy's machines, and its sides, which may not name each other's types: what both need is in
/// `cross`, `request` or `base`.
const PROXY: &str = "crates/weir-proxy/src/";
const SIDES: [&str; 2] = ["client", "upstream"];
/// The code between the sides knows neither of them, except for the one file with the way from one
/// to the other.
const BETWEEN: &str = "cross";
const WAYS: &str = "cross::router";

/// Returns imports from one of [`SIDES`] by another, or by the code between them.
fn across(files: &[Source]) -> Vec<String> {
    let side =
        |module: &str| SIDES.into_iter().find(|name| module.split("::").next() == Some(name));
    let all = imports(files);
    let pairs = all.iter().flat_map(|(from, others)| others.iter().map(move |to| (from, to)));
    let is_between = |module: &str| module.split("::").next() == Some(BETWEEN) && module != WAYS;
    let bad = pairs.filter(|(from, to)| {
        side(to).is_some() && (is_between(from) || side(from).is_some() && side(from) != side(to))
    });
    bad.map(|(from, to)| format!("{from} imports {to}")).collect()
}

#[test]
fn clients_and_upstreams_do_not_know_each_other() {
    let files: Vec<Source> =
        rust_files().into_iter().filter(|file| file.path.starts_with(PROXY)).collect();
    let of = |name: &str| {
        files.iter().filter(|file| file.path.starts_with(&format!("{PROXY}{name}"))).count()
    };
    assert!(SIDES.iter().all(|name| of(name) > 10), "a side is elsewhere now");
    nothing_found(&across(&files));
}

#[test]
fn an_import_from_the_other_side_is_found() {
    let source =
        |path: &str, text: &str| Source { path: format!("{PROXY}{path}"), text: text.to_owned() };
    let files = |text: &str| {
        [
            source("client.rs", "mod a;"),
            source("client/a.rs", text),
            source("upstream.rs", ""),
            source("engine.rs", text),
        ]
    };
    for bad in [
        "use crate::upstream::B;",
        "fn f(b: &crate::upstream::B) {}",
        "use crate::{base::C, upstream::B};",
    ] {
        assert_eq!(across(&files(bad)), ["client::a imports upstream"], "{bad}");
        let between = ["cross/mail.rs", "cross/router.rs"].map(|path| source(path, bad));
        let both = [source("cross.rs", "mod mail;\nmod router;"), source("upstream.rs", "")]
            .into_iter()
            .chain(between);
        assert_eq!(across(&both.collect::<Vec<_>>()), ["cross::mail imports upstream"], "{bad}");
    }
    for good in ["use crate::client::B;", "use crate::engine::B;", "// use crate::upstream::B;"] {
        assert_eq!(across(&files(good)), [""; 0], "{good}");
    }
}

/// Returns name and line of each dependency of the workspace that is not part of it.
fn dependencies() -> Vec<(String, String)> {
    let manifest = read("Cargo.toml");
    let section = manifest
        .split("[workspace.dependencies]\n")
        .nth(1)
        .expect("the workspace has dependencies");
    let section = section.split("\n[").next().unwrap_or_default();
    let lines = section
        .lines()
        .filter(|line| line.contains('=') && !line.starts_with('#') && !line.contains("path = "));
    lines
        .map(|line| (line.split([' ', '=']).next().unwrap_or_default().to_owned(), line.to_owned()))
        .collect()
}

#[test]
fn every_dependency_has_a_reason() {
    let all = dependencies();
    assert!(all.len() > 5, "{all:?}");
    let silent = all.iter().filter(|(_, line)| {
        line.split_once('#').is_none_or(|(_, reason)| reason.trim().len() < 10)
    });
    let findings: Vec<String> =
        silent.map(|(name, _)| format!("{name} in Cargo.toml has no reason beside it")).collect();
    nothing_found(&findings);
}

#[test]
fn every_dependency_is_used() {
    let mut manifests = String::new();
    for entry in std::fs::read_dir(super::root().join("crates")).expect("crates") {
        let path = entry.expect("a readable directory").path().join("Cargo.toml");
        manifests.push_str(&std::fs::read_to_string(path).unwrap_or_default());
    }
    let used: BTreeSet<&str> =
        manifests.lines().filter_map(|line| line.split([' ', '=', '.']).next()).collect();
    let unused = dependencies().into_iter().filter(|(name, _)| !used.contains(name.as_str()));
    let findings: Vec<String> =
        unused.map(|(name, _)| format!("{name} of Cargo.toml is used by no crate")).collect();
    nothing_found(&findings);
}

#[test]
fn every_counter_counts() {
    all_count("crates/weir-proxy/src/observe/counters.rs", "counters", 20);
    all_count("crates/weir-proxy/src/observe/server_stats.rs", "stats", 9);
}

/// Checks that each counter in the `counters!` table of a file, more than `least` of them, is
/// counted somewhere as `variable.name`.
fn all_count(path: &str, variable: &str, least: usize) {
    let declarations = read(path);
    let table = declarations
        .split("\ncounters! {")
        .nth(1)
        .expect("the table")
        .split("\n}")
        .next()
        .unwrap_or_default();
    let names =
        table.lines().filter(|line| line.ends_with(": Total,") || line.ends_with(": Gauge,"));
    let names: Vec<&str> = names.filter_map(|line| line.trim().split(':').next()).collect();
    assert!(names.len() > least, "{names:?}");
    let files = rust_files();
    let counted = |name: &str| {
        let place = format!("{variable}.{name}");
        files.iter().any(|file| !is_test(&file.path) && file.text.contains(&place))
    };
    let findings: Vec<String> = names
        .into_iter()
        .filter(|name| !counted(name))
        .map(|name| format!("{name} is declared and never counted"))
        .collect();
    nothing_found(&findings);
}

#[test]
fn texts_in_quotes_are_not_code() {
    assert_eq!(words(&bare("a(\"b\"); // c")).collect::<Vec<_>>(), ["a"]);
    assert_eq!(without_tests("a\nb\n#[cfg(test)]\nmod tests {\nc\n}\n"), "a\nb");
}
