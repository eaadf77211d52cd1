//! Texts are plain English: marked phrases are counted for each area against its limit
//! (`scripts/english`, STYLE.md).

use std::process::Command;

use super::root;

#[test]
fn texts_are_plain_english() {
    let script = root().join("scripts/english");
    let output = Command::new("python3")
        .arg(&script)
        .arg("--check")
        .output()
        .expect("python3, which scripts/setup installs");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The script finds what it is for, also in a comment over several lines.
#[test]
fn marked_phrases_are_found() {
    let folder = std::env::temp_dir().join(format!("weir-english-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("a.rs");
    std::fs::write(
        &file,
        "/// Whoever is told\n/// this has it gone.\nlet whoever = \"by itself\"; // fine\n",
    )
    .expect("a file");
    let output = Command::new("python3")
        .arg(root().join("scripts/english"))
        .arg(&file)
        .output()
        .expect("python3");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    std::fs::remove_dir_all(&folder).expect("removed");
    assert!(text.ends_with("2 marked phrases in 7 words: 285.7 per 1,000\n"), "{text}");
}
