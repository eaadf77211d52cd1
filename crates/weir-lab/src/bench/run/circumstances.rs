//! Looks at the machine and at the programs that take part.
//!
//! Called by `bench/mod.rs` once a run.

mod environment;

use std::process::Command;

use super::process::descriptors;
use super::programs::Programs;
use crate::bench::experiment::contenders::BEFORE;
use crate::bench::record::circumstances::Circumstances;
use crate::machine::{self, Machine};

/// Looks at the machine, and reads the versions of the programs that take part. `weir` is our own.
pub(crate) fn look(weir: &str, programs: &[&str], places: &Programs) -> Circumstances {
    let Machine { processor, cores, memory_mib, kernel } = Machine::look();
    Circumstances {
        weir: weir.to_owned(),
        date: machine::date(),
        cores,
        processor,
        memory_mib,
        kernel,
        descriptors: descriptors(),
        environment: environment::look(),
        programs: programs.iter().map(|program| version(program, places)).collect(),
        libraries: Vec::new(),
        said: Vec::new(),
    }
}

/// Returns the TLS library of each of these programs and of weir.
pub(crate) fn libraries(programs: &[&str], places: &Programs) -> Vec<(String, String)> {
    let own = std::iter::once(("weir".to_owned(), WEIR_LIBRARY.to_owned()));
    own.chain(programs.iter().map(|program| ((*program).to_owned(), library(program, places))))
        .collect()
}

/// Our own library.
const WEIR_LIBRARY: &str = "rustls 0.23, aws-lc-rs 1";

/// Returns what a program says of its library: the library that it runs with, where it
/// distinguishes that from the one it was built with.
fn library(program: &str, places: &Programs) -> String {
    let flag = match program {
        "nginx" => "-V",
        "haproxy" => "-vv",
        _ => "--version",
    };
    let unknown = || "unknown".to_owned();
    let Some(path) = places.path(program) else { return unknown() };
    let Ok(output) = Command::new(&path).arg(flag).output() else { return unknown() };
    named_library(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat()))
        .unwrap_or_else(unknown)
}

/// `OpenSSL 3.0.19` in `running with OpenSSL 3.0.19 27 Jan 2026`; a library without versions by its
/// name.
fn named_library(text: &str) -> Option<String> {
    let version = |name: &str| {
        let mut words =
            text.split(|letter: char| letter.is_whitespace() || "()/:".contains(letter));
        let mut found = None;
        while let Some(word) = words.next() {
            if word == name {
                let next = words.clone().find(|word| !word.is_empty() && *word != "version");
                found = next
                    .filter(|next| next.starts_with(|letter: char| letter.is_ascii_digit()))
                    .or(found);
            }
        }
        found.map(|found| format!("{name} {found}"))
    };
    let bare =
        ["BoringSSL", "AWS-LC"].into_iter().find(|name| text.contains(name)).map(str::to_owned);
    version("OpenSSL").or_else(|| version("LibreSSL")).or(bare)
}

/// The first line of what a program says about itself.
fn version(program: &str, places: &Programs) -> String {
    let flag = if program == "envoy" || program == BEFORE { "--version" } else { "-v" };
    let Some(path) = places.path(program) else { return format!("{program}: not installed") };
    let Ok(output) = Command::new(&path).arg(flag).output() else {
        return format!("{program}: can't be run");
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let line = line.replace(&*path.to_string_lossy(), program);
    let line = line
        .split(" - ")
        .next()
        .unwrap_or_default()
        .split(" Copyright")
        .next()
        .unwrap_or_default()
        .trim();
    let given =
        places.given(program).map_or_else(String::new, |path| format!(" ({})", path.display()));
    line.to_owned() + &given
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_library_that_runs_is_named() {
        let nginx = "built by gcc\nbuilt with OpenSSL 3.0.22 25 Aug 2026 (running with OpenSSL \
            3.0.19 27 Jan 2026)\nTLS SNI";
        assert_eq!(named_library(nginx).as_deref(), Some("OpenSSL 3.0.19"));
        let haproxy = "Built with OpenSSL version : OpenSSL 3.0.22 25 Aug 2026\n\
            Running on OpenSSL version : OpenSSL 3.0.19 27";
        assert_eq!(named_library(haproxy).as_deref(), Some("OpenSSL 3.0.19"));
        let envoy = "envoy  version: d5e1/1.40.0/Clean/RELEASE/BoringSSL";
        assert_eq!(named_library(envoy).as_deref(), Some("BoringSSL"));
        assert_eq!(named_library("no library"), None);
        assert_eq!(libraries(&["no-such-program"], &Programs::new(&[]))[1].1, "unknown");
    }

    #[test]
    fn our_library_is_the_one_that_is_built_in() {
        let lock = include_str!("../../../../../Cargo.lock");
        let version = |name: &str| {
            let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        let (rustls, aws) = (version("rustls"), version("aws-lc-rs"));
        assert!(
            rustls.starts_with("0.23.") && aws.starts_with("1."),
            "{WEIR_LIBRARY} is out of date: {rustls}, {aws}"
        );
    }

    #[test]
    fn the_machine_is_described_and_what_is_missing_is_said() {
        let given = ("nginx".to_owned(), PathBuf::from("/bin/echo"));
        let here = look("weir 1", &["no-such-program", "nginx"], &Programs::new(&[given]));
        assert_eq!(here.programs, ["no-such-program: not installed", "-v (/bin/echo)"]);
        assert_eq!(here.weir, "weir 1");
        assert!(
            here.cores > 0
                && here.memory_mib > 0
                && !here.kernel.is_empty()
                && !here.date.is_empty(),
            "{here:?}"
        );
    }
}
