//! Proves: the pages of docs/howto work. Each command succeeds and prints the shown output, and
//! each configuration is valid.
//!
//! The words behind the three backticks of a fenced block say what happens to it:
//!
//! | words | meaning |
//! |---|---|
//! | `kdl FILE` | The test writes it to FILE, which must pass `weir check FILE`. |
//! | `sh` | `sh -eu` runs it. Background programs run until the page ends. |
//! | `sh no-run` | `sh -n` parses it: it needs root, systemd, containers or the internet. |
//! | `text` | The `sh` block in front of it must print this; `…` matches any text. |
//! | another language and the name of a file | The test writes it to that file. |
//! | another language alone | The test ignores it. |
//!
//! Each page runs in a temporary folder, and each `127.0.0.1:PORT` of a page becomes a free port.
//! `HOWTO=bans cargo test -p weir --test howto` tests only pages with `bans` in their names.

mod ending;
mod matching;
mod page;
mod running;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use page::Page;

/// Pages that are tested at the same time. Most of the time they wait for programs.
const AT_ONCE: usize = 3;
/// Pages that exist at least.
const PAGES_MIN: usize = 25;
/// Lines that a page may have.
const LINES: std::ops::RangeInclusive<usize> = 20..=60;

/// The top of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Paths of all pages from the top of the repository, sorted.
fn paths() -> Vec<String> {
    let folder = fs::read_dir(root().join("docs/howto")).expect("docs/howto exists");
    let names = folder
        .map(|entry| entry.expect("a readable folder").file_name().to_string_lossy().into_owned());
    let mut found: Vec<String> = names
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/howto/{name}"))
        .collect();
    found.sort();
    found
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Everything that is wrong with these pages, in their order.
fn judge(pages: &[Page]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let work = || {
        while let Some(page) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
            let errors = running::run(page);
            found.lock().expect("no thread panics with the lock").extend(errors);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().expect("no thread panics with the lock");
    found.sort();
    found
}

#[test]
fn every_page_does_what_it_says() {
    let wanted = std::env::var("HOWTO").unwrap_or_default();
    let chosen = paths().into_iter().filter(|path| path.contains(&wanted));
    let pages: Vec<Page> = chosen.map(|path| Page::of(&path, &read(&path))).collect();
    assert!(!pages.is_empty(), "no page of docs/howto has `{wanted}` in its name");
    let errors = judge(&pages);
    assert!(errors.is_empty(), "\n{}\n", errors.join("\n\n"));
}

#[test]
fn pages_are_short_and_listed() {
    let paths = paths();
    assert!(paths.len() >= PAGES_MIN, "only {} pages", paths.len());
    let index = read("docs/start.md");
    let mut errors = Vec::new();
    for path in &paths {
        let lines = read(path).lines().count();
        if !LINES.contains(&lines) {
            errors.push(format!(
                "{path} has {lines} lines, not {} to {}",
                LINES.start(),
                LINES.end()
            ));
        }
        let link = path.trim_start_matches("docs/");
        if !index.contains(&format!("({link})")) {
            errors.push(format!("docs/start.md does not list {link}"));
        }
    }
    assert!(errors.is_empty(), "\n{}\n", errors.join("\n"));
}

/// Runs a page that has this text.
fn errors_of(text: &str) -> Vec<String> {
    judge(&[Page::of("docs/howto/try.md", text)])
}

/// Runs a page that has exactly one error, and returns it.
fn error_of(text: &str) -> String {
    let errors = errors_of(text);
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.concat()
}

#[test]
fn a_right_page_has_no_errors() {
    let text = "# Try\n\n```kdl a.kdl\nlisten \"127.0.0.1:8080\"\nroute { respond 204; }\n```\n\
        ```sh\nweir run a.kdl &\nweir status --wait\n\
        curl -s -w '%{http_code}' http://127.0.0.1:8080/\n```\n\
        It prints:\n```text\n2…4\n```\n```sh no-run\nsystemctl start weir\n```\n```text\n\
        nobody reads this\n```\n\
        ```ini b.conf\n[B]\n```\n```sh\ncat b.conf\n```\n```text\n[B]\n```\n";
    assert_eq!(errors_of(text), [""; 0]);
}

#[test]
fn a_failing_command_is_found() {
    let error = error_of("# Try\n```sh\necho before\necho reason >&2; (exit 7)\necho after\n```\n");
    assert!(
        error.starts_with(
            "docs/howto/try.md:4: `echo reason >&2; (exit 7)` ends with exit status: 7"
        ),
        "{error}"
    );
    assert!(
        error.contains("before") && error.contains("\nreason\n") && !error.contains("after"),
        "{error}"
    );
    let error = error_of("```sh\necho $NOT_SET\n```\n");
    assert!(error.starts_with("docs/howto/try.md:2: ") && error.contains("NOT_SET"), "{error}");
    let error = error_of("```sh\ntrue\n```\n```sh no-run\nif then\n```\n");
    assert!(error.starts_with("docs/howto/try.md:5: sh cannot read this"), "{error}");
}

#[test]
fn a_wrong_output_is_found() {
    let error = error_of("```sh\necho one\n```\n\n```text\ntwo\n```\n");
    assert!(error.starts_with("docs/howto/try.md:6: `echo one` prints something else"), "{error}");
    assert!(error.contains("two") && error.contains("one"), "{error}");
    let error = error_of("```sh\ntrue\n```\n```ini a\n```\n```text\nok\n```\n");
    assert!(
        error.starts_with("docs/howto/try.md:7: this text is the output of no command"),
        "{error}"
    );
}

#[test]
fn a_wrong_configuration_is_found() {
    let error = error_of("```kdl a.kdl\nlisten \"127.0.0.1:8080\"\nroute { respnd 204; }\n```\n");
    assert!(
        error.starts_with("docs/howto/try.md:2: `weir check a.kdl` ends with exit status: 78"),
        "{error}"
    );
    assert!(error.contains("respnd"), "{error}");
    let error = error_of("```sh\ntrue\n```\n```kdl\nlisten \"127.0.0.1:8080\"\n```\n");
    assert!(error.starts_with("docs/howto/try.md:5: this configuration has no name"), "{error}");
}

#[test]
fn a_page_without_blocks_is_found() {
    let nothing = "docs/howto/try.md:1: nothing on this page is run or checked";
    assert_eq!(errors_of("# Try\n\nOnly words.\n"), [nothing]);
    assert_eq!(errors_of("# Try\n```sh no-run\nsystemctl start weir\n```\n"), [nothing]);
    assert_eq!(error_of("# Try\n```sh\ntrue\n"), "docs/howto/try.md:2: this block has no end");
}

#[test]
fn programs_in_the_background_end_with_the_page() {
    let file = std::env::temp_dir().join(format!("weir-howto-{}.pid", std::process::id()));
    let name = file.display();
    let text = format!(
        "```sh\nweir origin --listen 127.0.0.1:9090 &\necho $! >{name}\n```\n```sh\n\
            kill -0 $(cat {name})\n```\n"
    );
    assert_eq!(errors_of(&text), [""; 0]);
    let pid = fs::read_to_string(&file).expect("the page has written it");
    fs::remove_file(&file).expect("it is there");
    // A process that has ended is a zombie until init has waited for it.
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
}
