//! The drawn pictures of the manual are those that `scripts/pictures` draws, and each is shown on a
//! page.

use std::process::Command;

use super::markdown::links;
use super::sources::files;
use super::{nothing_found, root};

#[test]
fn pictures_are_drawn() {
    let script = root().join("scripts/pictures");
    let output = Command::new("python3")
        .arg(&script)
        .arg("--check")
        .output()
        .expect("python3, which scripts/setup installs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_drawn_picture_is_on_a_page() {
    let shown: Vec<String> =
        files(|path| path.ends_with(".md")).iter().flat_map(|page| links(&page.text)).collect();
    let drawn = files(|path| path.starts_with("docs/pictures/") && path.ends_with(".svg"));
    assert!(drawn.len() > 5, "only {} pictures found", drawn.len());
    let name = |path: &str| path.trim_start_matches("docs/").to_owned();
    let missing = drawn
        .iter()
        .filter(|picture| !shown.iter().any(|link| link.ends_with(&name(&picture.path))));
    let findings: Vec<String> =
        missing.map(|picture| format!("no page shows {}", picture.path)).collect();
    nothing_found(&findings);
}
