//! Checks the pages about `weir bench` against its catalogue: names, order and bounds.

use std::collections::BTreeSet;

use super::markdown::{tables, tables_of};
use super::sources::{files, one_line};
use super::{nothing_found, read};

/// Where the experiments and their bounds are.
const EXPERIMENTS: &str = "crates/weir-lab/src/bench/experiment/";

/// Returns name and "has bounds" of each experiment of the catalogue, in order.
fn experiments(catalogue: &str) -> Vec<(String, bool)> {
    let rows = catalogue.split("\n    Experiment {\n        name: \"").skip(1);
    rows.filter_map(|row| {
        let (name, rest) = row.split_once('"')?;
        let (_, targets) = rest.split_once("targets: ")?;
        Some((name.to_owned(), !targets.starts_with("&[]")))
    })
    .collect()
}

#[test]
fn the_index_has_all_experiments_and_says_which_have_bounds() {
    let real = experiments(&read(&format!("{EXPERIMENTS}catalogue.rs")));
    assert!(real.len() > 20, "{real:?}");
    let rows = tables_of(&read("docs/bench.md"), &["experiment", "question", "bounds", "details"])
        .concat();
    let told: Vec<(String, bool)> =
        rows.iter().map(|row| (row[0].trim_matches('`').to_owned(), row[2] == "yes")).collect();
    assert_eq!(told, real);
}

/// Returns each figure of a source that has to be reached, with its bound as documents write it.
fn bounds(text: &str) -> BTreeSet<(String, String)> {
    const SIDES: [(&str, &str); 3] =
        [("AtLeast(", "at least"), ("AtMost(", "at most"), ("ExceedsBy(", "at most +")];
    let starts = ["target(", "title: "].iter().flat_map(|start| text.split(start).skip(1));
    let figure = |rest: &str| {
        let title = rest.trim_start().strip_prefix('"')?.split('"').next()?;
        let sides = SIDES.iter().filter_map(|(code, words)| Some((rest.find(code)?, code, words)));
        let (at, code, words) = sides.min()?;
        let value = rest[at + code.len()..].split(')').next()?;
        Some((title.to_owned(), format!("{words} {value}")))
    };
    starts.filter_map(figure).collect()
}

#[test]
fn figures_have_the_bounds_that_pages_give() {
    let sources = files(|path| path.starts_with(EXPERIMENTS) && path.ends_with(".rs"));
    let real: BTreeSet<(String, String)> =
        sources.iter().flat_map(|source| bounds(&one_line(&source.text))).collect();
    let mut findings = Vec::new();
    let mut count = 0;
    for page in files(|path| path.starts_with("docs/bench-")) {
        for table in
            tables(&page.text).into_iter().filter(|table| table.head == ["figure", "bound"])
        {
            for row in table.rows {
                count += 1;
                if !real.contains(&(row[0].clone(), row[1].clone())) {
                    findings.push(format!("{}: no figure is {row:?}", page.path));
                }
            }
        }
    }
    assert!(count > 30, "only {count} figures found");
    nothing_found(&findings);
}

#[test]
fn experiments_and_bounds_are_read() {
    let catalogue = "\n    Experiment {\n        name: \"a\",\n        targets: &[],\n\n    \
        Experiment {\n        name: \"b\",\n        targets: B,\n";
    assert_eq!(experiments(catalogue), [("a".to_owned(), false), ("b".to_owned(), true)]);
    let text = "target(\n  \"x\",\n \"c64\", AtMost(0.5))\n\
        Target { title: \"y\", bound: Bound::AtLeast(1.0) }";
    let found = [("x", "at most 0.5"), ("y", "at least 1.0")]
        .map(|(title, bound)| (title.to_owned(), bound.to_owned()));
    assert_eq!(bounds(text), BTreeSet::from(found));
}
