//! Proves: `weir passwd` writes, checks and deletes users and keeps what it does not touch. On a
//! terminal it asks without showing the password, and it leaves a file alone that it can't change.
//! weir finds what is wrong with a file before it runs. How: the real binary, on pipes and a
//! pseudo-terminal.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::kit::Scratch;

/// Made from the password `U*U` by the reference implementation (crypt_blowfish 1.3); `htpasswd -B`
/// writes `$2y$`.
const BCRYPT: &str = "$2y$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";

/// Runs `weir passwd` with this on standard input.
fn passwd(file: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("passwd").arg(file).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("weir starts");
    // A refusal may come before the password is read.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("weir ends")
}

/// Returns the exit code and the message.
fn outcome(file: &Path, arguments: &[&str], input: &str) -> (Option<i32>, String) {
    let output = passwd(file, arguments, input);
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

fn done() -> (Option<i32>, String) {
    (Some(0), String::new())
}

#[test]
fn a_user_is_written_checked_and_deleted() {
    let scratch = Scratch::new();
    let file = scratch.path("users");
    assert_eq!(outcome(&file, &["ann"], "secret\n"), done());
    assert_eq!(outcome(&file, &["bob", "--bcrypt"], "other"), done());
    let text = fs::read_to_string(&file).expect("a file");
    assert!(text.starts_with("ann:$argon2id$v=19$m=19456,t=2,p=1$"), "{text}");
    assert!(text.lines().nth(1).expect("two users").starts_with("bob:$2y$10$"), "{text}");
    assert_eq!(fs::metadata(&file).expect("a file").mode() & 0o777, 0o600);

    for (name, password, code) in
        [("ann", "secret\r\n", 0), ("ann", "other", 1), ("bob", "other", 0), ("eve", "x", 1)]
    {
        assert_eq!(outcome(&file, &[name, "--check"], password).0, Some(code), "{name} {password}");
    }
    assert_eq!(outcome(&file, &["ann", "--check"], "no\n").1, "weir: wrong password for `ann`\n");

    assert_eq!(outcome(&file, &["ann", "--delete"], ""), done());
    let (code, said) = outcome(&file, &["ann", "--delete"], "");
    assert!(code == Some(1) && said.contains("no user `ann`"), "{said}");
    assert!(fs::read_to_string(&file).expect("a file").starts_with("bob:"));
}

#[test]
fn what_is_not_touched_stays() {
    let scratch = Scratch::new();
    let file = scratch.write("users", format!("# ours\n\nann:{BCRYPT}\nbob:{BCRYPT}").as_bytes());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("a file");
    let link = scratch.path("link");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    assert_eq!(outcome(&link, &["ann"], "new\n"), done());
    let text = fs::read_to_string(&file).expect("a file");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[2].starts_with("ann:$argon2id$"), "{text}");
    assert_eq!(
        (lines[0], lines[1], lines[3], lines.len()),
        ("# ours", "", format!("bob:{BCRYPT}").as_str(), 4)
    );
    assert_eq!(fs::metadata(&file).expect("a file").mode() & 0o777, 0o640);
    assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
    let left: Vec<_> =
        fs::read_dir(file.parent().expect("a folder")).expect("a folder").flatten().collect();
    assert_eq!(left.len(), 2, "nothing is left beside it: {left:?}");
}

#[test]
fn a_line_of_htpasswd_is_accepted() {
    let scratch = Scratch::new();
    let file = scratch.write("users", format!("ann:{BCRYPT}\n").as_bytes());
    assert_eq!(outcome(&file, &["ann", "--check"], "U*U\n"), done());
    assert_eq!(outcome(&file, &["ann", "--check"], "U*V\n").0, Some(1));
    let file = scratch.write("old", b"ann:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00\n");
    let (code, said) = outcome(&file, &["ann", "--check"], "x\n");
    assert!(code == Some(1) && said.contains("MD5"), "{said}");
}

#[test]
fn what_can_not_be_is_refused_and_changes_nothing() {
    let scratch = Scratch::new();
    let file = scratch.path("users");
    let long = "a".repeat(256);
    for (arguments, input, part) in [
        (&["a:b"][..], "secret\n", "no colon"),
        (&[""], "secret\n", "empty"),
        (&[&long], "secret\n", "256 bytes"),
        (&["a\tb"], "secret\n", "control"),
        (&["ann"], "\n", "password is empty"),
        (&["ann"], "sec\tret\n", "control"),
        (&["ann", "--bcrypt"], &long, "--bcrypt"),
        (&["ann", "--bcrypt", "--delete"], "", "cannot be used with"),
    ] {
        let (code, said) = outcome(&file, arguments, input);
        assert!(code == Some(2) && said.contains(part), "{arguments:?}: {said}");
    }
    for (file, arguments, part) in [
        (&file, &["ann"][..], "has no password"),
        (&file, &["ann", "--delete"], "No such file"),
        (&scratch.path("none/users"), &["ann", "--stdin"], "has no password"),
    ] {
        let (code, said) = outcome(file, arguments, "");
        assert!(code == Some(1) && said.contains(part), "{arguments:?}: {said}");
    }
    let (code, said) = outcome(&scratch.path("none/users"), &["ann"], "secret\n");
    assert!(code == Some(1) && said.contains("none"), "{said}");
    assert!(!file.exists());
}

#[test]
fn several_who_write_at_once_lose_nothing() {
    let scratch = Scratch::new();
    let file = scratch.path("users");
    std::thread::scope(|scope| {
        for name in 0..8 {
            let file = &file;
            scope.spawn(move || {
                assert_eq!(outcome(file, &[&format!("user{name}")], "secret\n"), done())
            });
        }
    });
    assert_eq!(fs::read_to_string(&file).expect("a file").lines().count(), 8);
}

/// Runs `weir passwd` on a terminal and types each text after the prompt before it.
fn on_a_terminal(file: &Path, arguments: &[&str], typed: &[(&str, &str)]) -> (Option<i32>, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&master).expect("ours");
    unlockpt(&master).expect("ours");
    let name = ptsname(&master, Vec::new()).expect("a name").into_string().expect("text");
    let slave = fs::OpenOptions::new().read(true).write(true).open(name).expect("a terminal");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("passwd").arg(file).args(arguments).stdin(slave.try_clone().expect("a descriptor"));
    command.stdout(Stdio::null()).stderr(slave);
    let mut child = command.spawn().expect("weir starts");
    drop(command);
    let mut terminal = fs::File::from(master);
    let mut shown = String::new();
    for (prompt, text) in typed {
        while !shown.contains(prompt) {
            let mut buffer = [0; 256];
            let count = terminal
                .read(&mut buffer)
                .unwrap_or_else(|error| panic!("no {prompt} in {shown}: {error}"));
            shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        terminal.write_all(text.as_bytes()).expect("it is read");
    }
    let mut rest = Vec::new();
    // On a terminal, the end reads as an error.
    let _ = terminal.read_to_end(&mut rest);
    shown.push_str(&String::from_utf8_lossy(&rest));
    (child.wait().expect("weir ends").code(), shown)
}

#[test]
fn a_terminal_is_asked_twice_and_shows_nothing() {
    let scratch = Scratch::new();
    let file = scratch.path("users");
    let typed = [("New password of ann: ", "secreX\u{7f}t\r"), ("the password: ", "secret\r")];
    let (code, shown) = on_a_terminal(&file, &["ann"], &typed);
    assert!(code == Some(0) && !shown.contains("secre"), "{shown}");
    assert_eq!(outcome(&file, &["ann", "--check"], "secret\n"), done());
    assert_eq!(
        on_a_terminal(&file, &["ann", "--check"], &[("Password of ann: ", "secret\r")]).0,
        Some(0)
    );

    let (code, shown) =
        on_a_terminal(&file, &["ann"], &[("ann: ", "one\r"), ("the password: ", "two\r")]);
    assert!(code == Some(1) && shown.contains("differ"), "{shown}");
    let (code, shown) = on_a_terminal(&file, &["ann"], &[("ann: ", "one\u{3}")]);
    assert!(code == Some(1) && shown.contains("broken off"), "{shown}");
    assert_eq!(outcome(&file, &["ann", "--check"], "secret\n"), done(), "nothing was changed");
}

/// `weir check` and the start read the file and say where and how it is wrong, as with the rest of
/// a configuration.
#[test]
fn a_bad_file_is_a_bad_configuration() {
    let scratch = Scratch::new();
    let text = format!("ann:{BCRYPT}\nbob\nann:{BCRYPT}\ncat:secret\n");
    let users = scratch.write("users", text.as_bytes()).display().to_string();
    let config = format!("forward {{\n listen \"127.0.0.1:0\"\n users \"{users}\"\n}}\n");
    let config = scratch.write("weir.kdl", config.as_bytes()).display().to_string();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command
            .args(arguments)
            .env("WEIR_ADMIN", "off")
            .stdin(Stdio::null())
            .output()
            .expect("weir");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
        // Long lines are folded.
        (
            output.status.code(),
            text.split(['\n', ' ', '│'])
                .filter(|word| !word.is_empty())
                .collect::<Vec<_>>()
                .join(" "),
        )
    };
    let wrong = [
        "users:2: a colon is missing",
        "users:3: `ann` is in the file twice",
        "users:4: the hash of `cat` is",
    ];
    let verbs: [(&[&str], i32); 4] = [
        (&["check", "-c", &config], 78),
        (&["check", "--json", "-c", &config], 78),
        (&["run", "-c", &config], 78),
        (&["forward", "--listen", "127.0.0.1:0", "--users", &users], 2),
    ];
    for (verb, code) in verbs {
        let (ended, report) = run(verb);
        assert_eq!(ended, Some(code), "{report}");
        for part in wrong.into_iter().chain(["weir passwd"]) {
            assert!(report.contains(part), "{verb:?}: {part} in {report}");
        }
    }
    scratch.write("users", b"");
    let (ended, report) = run(&["check", "-c", &config]);
    assert!(
        ended == Some(0) && report.contains("has no users: weir rejects all requests"),
        "{report}"
    );
}
