//! Proves: messages about wrong files name them, and warnings that the operator should know do so
//! as well. How: files of `openssl`.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::files::{EC, Scratch, openssl, write};
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
        assert!(pair.out_of_time(pair.not_after + 1).unwrap().contains("expired on 20"));
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
        let pair = Pair::read(&Files { certificate: path.clone(), key: path.clone() }, &provider())
            .unwrap();
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
    let short = write(
        &scratch.path("short"),
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    );
    for (certificate, key, text) in [
        (&one.certificate, &two.key, "does not match the certificate"),
        (&gone, &one.key, "cannot read the certificate"),
        (&one.certificate, &gone, "cannot read the key"),
        (&empty, &one.key, "has no certificate in PEM"),
        (&one.key, &one.key, "has no certificate in PEM"),
        (&damaged, &one.key, "is damaged"),
        (&nonsense, &one.key, "no certificate that weir can parse"),
        (&one.certificate, &one.certificate, "has no private key in PEM"),
        (&one.certificate, &encrypted, "is encrypted"),
        (&one.certificate, &short, "can't be used"),
    ] {
        let said = why_not(&Files { certificate: certificate.clone(), key: key.clone() });
        assert!(said.contains(text), "{said}: should say: {text}");
    }
    let chain = std::fs::read_to_string(&one.certificate).unwrap();
    let long = write(&scratch.path("long"), &chain.repeat(17));
    assert!(
        why_not(&Files { certificate: long, key: one.key.clone() })
            .contains("17 certificates, but it can have at most 16")
    );
    let large = write(&scratch.path("large"), &" ".repeat((1 << 20) + 1));
    assert!(why_not(&Files { certificate: large, key: one.key }).contains("larger than 1 MiB"));
}

/// A root CA, an intermediate CA, and a certificate that the latter has signed: their certificates,
/// and the key of the last.
fn chain(scratch: &Scratch) -> ([String; 3], Files) {
    let root = scratch.ca("root");
    let middle =
        scratch.signed_as(&root, "middle", "middle", &EC, "basicConstraints=critical,CA:TRUE", 30);
    let leaf = scratch.signed_as(&middle, "leaf", "www", &EC, "subjectAltName=DNS:www.example", 20);
    let texts =
        [&leaf, &middle, &root].map(|files| std::fs::read_to_string(&files.certificate).unwrap());
    (texts, leaf)
}

/// Files may lack a last line end, and then two certificates share a line.
#[test]
fn a_chain_is_read_as_a_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let ([leaf, middle, root], Files { key, .. }) = chain(&scratch);
    let read = |text: &str| {
        let certificate = write(&scratch.path("chain"), text);
        Pair::read(&Files { certificate, key: key.clone() }, &provider())
    };
    let glued = [&leaf, &middle, &root].map(|text| text.trim_end().to_owned()).concat();
    for text in
        [[leaf.as_str(), &middle, &root].concat(), glued.clone(), glued.replace('\n', "\r\n")]
    {
        let pair = read(&text).unwrap();
        assert_eq!((pair.key.cert.len(), pair.warnings(pair.not_before + DAY_S)), (3, Vec::new()));
    }
    for damaged in
        [glued.replacen("----------BEGIN", "BEGIN", 1), glued.replacen("-----END", "", 1)]
    {
        assert!(read(&damaged).unwrap_err().to_string().contains("is damaged: line "), "{damaged}");
    }
    let joined = glued.replacen("----------BEGIN", "-----BEGIN", 1);
    assert_eq!(read(&joined).unwrap().key.cert.len(), 3, "the hyphens of both are the same");
}

#[test]
fn the_order_of_a_chain_is_judged() {
    let scratch = Scratch::new();
    let ([leaf, middle, root], Files { key, .. }) = chain(&scratch);
    let read = |texts: &[&String]| {
        let texts: Vec<&str> = texts.iter().map(|text| text.as_str()).collect();
        let certificate = write(&scratch.path("chain"), &texts.concat());
        Pair::read(&Files { certificate, key: key.clone() }, &provider())
    };
    for (texts, number) in [(&[&root, &middle, &leaf][..], 3), (&[&middle, &leaf], 2)] {
        let said = read(texts).unwrap_err().to_string();
        assert!(said.contains(&format!(
            "wrong order: the key in {} matches number {number} (`CN=www`)",
            key.display()
        )));
    }
    let pair = read(&[&leaf, &root, &middle]).unwrap();
    let said = pair.warnings(pair.not_before + DAY_S);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains(
            "is `CN=root`, which did not sign the one before it (`CN=www`): put `CN=middle`"
        ),
        "{said:?}"
    );
    let late = read(&[&leaf, &middle, &root]).unwrap().warnings(i64::MAX);
    assert!(late.iter().any(
        |text| text.contains("certificate 2 in") && text.contains("(`CN=middle`) expired")
    ));
}

#[test]
fn keys_that_can_t_be_used_are_named() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let names = "subjectAltName=DNS:a.example";
    for (stem, kind, text) in [
        (
            "small",
            &["-newkey", "rsa:1024"][..],
            "its RSA key has 1024 bits, but weir accepts 2048 to 8192",
        ),
        ("pss", &["-newkey", "rsa-pss", "-pkeyopt", "rsa_keygen_bits:2048"], "RSA-PSS only"),
        (
            "curve",
            &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp256k1"],
            "use P-256, P-384 or P-521",
        ),
        ("ed448", &["-newkey", "ed448"], "its kind of key is not supported"),
    ] {
        let said = why_not(&scratch.signed_as(&ca, stem, "leaf", kind, names, 9));
        assert!(said.contains(text), "{said}");
    }
    for (stem, kind) in [
        ("rsa", &["-newkey", "rsa:2048"][..]),
        ("p384", &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384"]),
        ("p521", &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-521"]),
        ("ed25519", &["-newkey", "ed25519"]),
    ] {
        let pair =
            Pair::read(&scratch.signed_as(&ca, stem, "leaf", kind, names, 9), &provider()).unwrap();
        assert_eq!((pair.unnamed(), crate::keys::flaw(&pair.key.cert[0])), (None, None), "{stem}");
    }
    let unnamed =
        Pair::read(&scratch.signed(&ca, "unnamed", "basicConstraints=CA:FALSE", 9), &provider())
            .unwrap();
    assert!(unnamed.unnamed().unwrap().contains("no name in subjectAltName"));
}

/// No message shows the content of a damaged file, neither as text nor as numbers: it may be the
/// key.
#[test]
fn a_damaged_key_is_not_told() {
    let scratch = Scratch::new();
    let Files { certificate, key } = scratch.files("ec", &["a.example"]);
    let text = std::fs::read_to_string(&key).unwrap();
    let secret: String = text.lines().nth(1).unwrap().chars().take(12).collect();
    let numbers = secret.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
    for damaged in [
        text.replace(&secret[..4], "*"),
        text.replace('\n', "\\n"),
        text.replace("-----END", "END"),
    ] {
        let damaged = write(&scratch.path("damaged"), &damaged);
        let of_key = Files { certificate: certificate.clone(), key: damaged.clone() };
        let of_both = Files { certificate: damaged, key: key.clone() };
        for (files, expected) in [(of_key, "damaged"), (of_both, "")] {
            let said = why_not(&files);
            assert!(!said.contains(&secret[4..]) && !said.contains(&numbers), "{said}");
            assert!(said.contains(expected), "{said}");
        }
    }
}
