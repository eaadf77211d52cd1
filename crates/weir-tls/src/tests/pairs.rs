//! Proves: what is wrong with files is said with their names, and what the operator should know, too. How: files of `openssl`.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::files::{Scratch, openssl, write};
use crate::pairs::{Files, Pair};
use crate::terms::provider;

const DAY_S: i64 = 86_400;

fn why_not(files: &Files) -> String {
    Pair::read(files, &provider()).map(|pair| pair.names).unwrap_err().to_string()
}

#[test]
fn names_and_times_are_those_of_the_certificate() {
    let scratch = Scratch::new();
    for kind in ["ec", "rsa"] {
        let pair = scratch.pair(kind, &["One.example", "*.two.example"]);
        assert_eq!(pair.names, ["one.example".into(), "*.two.example".into()]);
        assert_eq!(pair.not_after - pair.not_before, 30 * DAY_S);
        let (day, soon) = (pair.not_before + DAY_S, pair.not_after - 13 * DAY_S - 1);
        assert_eq!((pair.out_of_time(day), pair.warnings(day)), (None, Vec::new()));
        assert!(pair.warnings(soon)[0].ends_with("in 13 days"), "{:?}", pair.warnings(soon));
        assert!(pair.out_of_time(pair.not_after + 1).unwrap().contains("has expired on 20"));
        assert!(pair.out_of_time(pair.not_before - 1).unwrap().contains("is valid from 20"));
    }
}

#[test]
fn both_may_be_in_one_file_and_who_may_read_it_is_told() {
    let scratch = Scratch::new();
    let Files { certificate, key } = scratch.files("ec", &["a.example"]);
    let both = [certificate, key].map(|path| std::fs::read_to_string(path).unwrap()).concat();
    let path = write(&scratch.path("both.pem"), &both);
    for (mode, told) in [(0o644, true), (0o640, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let pair = Pair::read(&Files { certificate: path.clone(), key: path.clone() }, &provider()).unwrap();
        let warnings = pair.warnings(pair.not_before);
        assert_eq!(warnings.iter().any(|text| text.contains("chmod o=")), told, "{warnings:?}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.files("ec", &["one"]), scratch.files("rsa", &["two"]));
    let encrypted = scratch.path("encrypted.key");
    openssl(
        Command::new("openssl")
            .args(["pkey", "-aes256", "-passout", "pass:secret", "-in"])
            .arg(&one.key)
            .arg("-out")
            .arg(&encrypted),
    );
    let (empty, gone) = (write(&scratch.path("empty"), ""), scratch.path("gone"));
    let damaged = std::fs::read_to_string(&one.certificate).unwrap().replace("MII", "M*I");
    let damaged = write(&scratch.path("damaged"), &damaged);
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let nonsense = write(&scratch.path("nonsense"), nonsense);
    let short = write(&scratch.path("short"), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    for (certificate, key, text) in [
        (&one.certificate, &two.key, "is not that of the certificate"),
        (&gone, &one.key, "cannot read the certificate"),
        (&one.certificate, &gone, "cannot read the key"),
        (&empty, &one.key, "has no certificate in PEM"),
        (&one.key, &one.key, "has no certificate in PEM"),
        (&damaged, &one.key, "is damaged"),
        (&nonsense, &one.key, "no certificate that can be understood"),
        (&one.certificate, &one.certificate, "has no private key in PEM"),
        (&one.certificate, &encrypted, "is encrypted"),
        (&one.certificate, &short, "can't be used"),
    ] {
        let said = why_not(&Files { certificate: certificate.clone(), key: key.clone() });
        assert!(said.contains(text), "{said}: should say: {text}");
    }
    let chain = std::fs::read_to_string(&one.certificate).unwrap();
    let long = write(&scratch.path("long"), &chain.repeat(17));
    assert!(why_not(&Files { certificate: long, key: one.key.clone() }).contains("17 certificates, of 16"));
    let large = write(&scratch.path("large"), &" ".repeat((1 << 20) + 1));
    assert!(why_not(&Files { certificate: large, key: one.key }).contains("larger than 1 MiB"));
}

/// What a damaged file holds is in no message, neither as text nor as numbers: it may be the key.
#[test]
fn a_damaged_key_is_not_told() {
    let scratch = Scratch::new();
    let Files { certificate, key } = scratch.files("ec", &["a.example"]);
    let text = std::fs::read_to_string(&key).unwrap();
    let secret: String = text.lines().nth(1).unwrap().chars().take(12).collect();
    let numbers = secret.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
    for damaged in [text.replace('\n', " "), text.replace('\n', "\\n"), text.replace("-----END", "END")] {
        for files in [
            Files { certificate: certificate.clone(), key: write(&scratch.path("damaged"), &damaged) },
            Files { certificate: write(&scratch.path("damaged"), &damaged), key: key.clone() },
        ] {
            let said = why_not(&files);
            assert!(!said.contains(&secret) && !said.contains(&numbers), "{said}");
            assert!(said.contains("damaged"), "{said}");
        }
    }
}
