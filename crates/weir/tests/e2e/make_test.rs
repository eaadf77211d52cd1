//! Proves: `scripts/test` compiles everything before the first test starts and runs tests that
//! measure by themselves. It runs a few failures once more, says honestly how many, and hides no
//! failure.
//!
//! How: the real script with a fake cargo that only records how it is called, and prints what a
//! test tells it to.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::kit::{Scratch, finish};

/// Answers by the kind of call, from files beside it: the text to print, and on a line of its own
/// behind it the status.
const CARGO: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
case "$*" in
    *--no-run*) kind=compile ;;
    *the_copy_is_built*) kind=copy ;;
    clippy*) kind=lints ;;
    *--exact*) kind=again ;;
    *--skip*) kind=tests ;;
    *) kind=alone ;;
esac
[ -e "$here/$kind" ] || exit 0
sed '$d' "$here/$kind"
exit "$(tail -n 1 "$here/$kind")"
"#;

/// The outcome of the script: its exit code, its output, the calls of cargo, and the file with the
/// names.
struct Came {
    code: Option<i32>,
    said: String,
    calls: Vec<String>,
    again: String,
}

/// Runs the script with a cargo that prints this and ends with this status, by the kind of call.
fn run(answers: &[(&str, &str, i32)]) -> Came {
    let scratch = Scratch::new();
    let cargo = scratch.write("cargo", CARGO.as_bytes());
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("our file");
    for (kind, text, status) in answers {
        scratch.write(kind, format!("{text}\n{status}\n").as_bytes());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test");
    let done = finish(
        Command::new(script).env("CARGO", &cargo).env("CARGO_TARGET_DIR", scratch.path("target")),
    );
    let read = |path| fs::read_to_string(scratch.path(path)).unwrap_or_default();
    Came {
        code: done.status.code(),
        said: String::from_utf8_lossy(&done.stderr).into_owned(),
        calls: read("calls").lines().map(str::to_owned).collect(),
        again: read("target/test-again"),
    }
}

const PASSED: &str =
    "test a::b ... ok\ntest result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out";
const ALONE: &str = "test a::alone::c ... ok\n\
    test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 40 filtered out";

/// Returns the output of a test program in which these tests fail.
fn failed(names: &[&str]) -> String {
    let lines: String = names.iter().map(|name| format!("test {name} ... FAILED\n")).collect();
    let (count, passed) = (names.len(), 40 - names.len());
    format!(
        "{lines}test result: FAILED. {passed} passed; {count} failed; 0 ignored; 0 measured; 2 \
            filtered out\nerror: 1 target failed:\n    `-p weir --test e2e`"
    )
}

#[test]
fn everything_is_compiled_before_the_first_test() {
    let came = run(&[("tests", PASSED, 0), ("alone", ALONE, 0)]);
    assert_eq!(came.code, Some(0), "{}", came.said);
    let at = |part: &str| {
        came.calls.iter().position(|call| call.contains(part)).unwrap_or_else(|| panic!("{part}"))
    };
    let before = ["--no-run", "the_copy_is_built", "clippy"].map(at);
    assert!(before.into_iter().max() < Some(at("--skip ::alone::")), "{:?}", came.calls);
    let alone = came.calls.last().expect("calls");
    assert!(alone.contains("--test-threads 1 ::alone::"), "{:?}", came.calls);
    assert_eq!(came.again, "tests 42, failed 0, run again 0\n");
    assert!(
        came.said.ends_with("make test: 42 tests, 0 failed, 0 were run again\n"),
        "{}",
        came.said
    );
}

#[test]
fn what_passes_the_second_time_is_named_and_counted() {
    let names = ["tcp::uring::late", "tls::epoll::slow"];
    let passed = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 40 filtered out";
    let came = run(&[("tests", &failed(&names), 101), ("alone", ALONE, 0), ("again", passed, 0)]);
    assert_eq!(came.code, Some(0), "{}", came.said);
    let last = came.calls.last().expect("calls");
    assert!(
        last.ends_with("-- --test-threads 1 --exact tcp::uring::late tls::epoll::slow"),
        "{last}"
    );
    assert_eq!(came.again, "tests 42, failed 2, run again 2\ntcp::uring::late\ntls::epoll::slow\n");
    let told = "42 tests, 2 of them were run again and passed then, which is a defect of the test \
        or of weir";
    assert!(
        came.said.contains(told) && came.said.trim_end().ends_with("late tls::epoll::slow"),
        "{}",
        came.said
    );
}

#[test]
fn a_failure_that_stays_fails() {
    let (one, again) = (failed(&["a::b"]), failed(&["a::b"]));
    let came = run(&[("tests", &one, 101), ("alone", ALONE, 0), ("again", &again, 101)]);
    assert_eq!(came.code, Some(101), "{}", came.said);
    assert!(
        came.said.contains("1 of them were run again and did not all pass then: a::b"),
        "{}",
        came.said
    );
    // A test whose second run finds nothing to run has not passed.
    let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 42 filtered out";
    let came = run(&[("tests", &one, 101), ("alone", ALONE, 0), ("again", none, 0)]);
    assert_eq!(came.code, Some(101), "{}", came.said);
}

#[test]
fn a_failure_of_a_test_that_runs_alone_is_one() {
    let alone = failed(&["tcp::uring::alone::c"]);
    let passed = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 41 filtered out";
    let came = run(&[("tests", PASSED, 0), ("alone", &alone, 101), ("again", passed, 0)]);
    assert_eq!(came.code, Some(0), "{}", came.said);
    assert_eq!(came.again, "tests 80, failed 1, run again 1\ntcp::uring::alone::c\n");
}

#[test]
fn many_failures_and_crashes_are_not_run_again() {
    let many = failed(&["a::b", "a::c", "a::d", "a::e"]);
    let crashed = "test a::b ... ok\nerror: test failed, to rerun pass `-p weir --test e2e`\n    \
        `-p weir --test e2e`";
    // One program has crashed, and a test in another has failed.
    let both = format!("{}\n    `-p weir-io --test relays`", failed(&["a::b"]));
    for (text, failures) in [(many.as_str(), 4), (crashed, 0), (&both, 1)] {
        let came = run(&[("tests", text, 101), ("alone", ALONE, 0)]);
        assert_eq!(came.code, Some(101), "{text}: {}", came.said);
        assert!(
            !came.calls.iter().any(|call| call.contains("--exact") && !call.contains("--ignored")),
            "{text}"
        );
        assert!(
            came.again.contains(&format!("failed {failures}, run again 0")),
            "{text}: {}",
            came.again
        );
    }
}

#[test]
fn lints_that_fail_fail_behind_all_tests() {
    let came = run(&[("lints", "error: unused", 1), ("tests", PASSED, 0), ("alone", ALONE, 0)]);
    assert_eq!(came.code, Some(1), "{}", came.said);
    assert!(
        came.said.contains("lints failed") && came.calls.iter().any(|call| call.contains("--skip")),
        "{}",
        came.said
    );
}

#[test]
fn what_does_not_compile_runs_no_test() {
    for kind in ["compile", "copy"] {
        let came = run(&[(kind, "error: expected `;`", 101)]);
        assert_eq!(came.code, Some(101), "{}", came.said);
        assert!(!came.calls.iter().any(|call| call.contains("--skip")), "{kind}: {:?}", came.calls);
    }
}
