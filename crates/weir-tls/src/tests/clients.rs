//! Proves: a client is the one that a CA of the listener says, or learns why it is rejected; no
//! client resumes an earlier session; a certificate that is revoked, or whose revocation status is
//! unknown, is rejected; the wrong kind of file is reported in words. How: both ends in memory, CAs
//! and lists of `openssl`, each in both versions of TLS.

use std::sync::Arc;

use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, ClientConfig, Error, SupportedProtocolVersion};

use super::files::{EC, Scratch, write};
use super::wire::{Wire, any_client, client_with, terms};
use crate::cipher::{Failure, State};
use crate::clients::{ClientTrust, WantedOfClients};
use crate::der::{name_of, name_text, subject_text};
use crate::pairs::{Files, Pair};
use crate::terms::{Materials, Terms, provider};

const BOTH: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];
const FUTURE: &str = "20990101000000Z";
const PAST: &str = "20200102000000Z";
const FOR_CLIENTS: &str = "extendedKeyUsage=clientAuth\n";

fn read(files: &Files) -> Pair {
    Pair::read(files, &provider()).unwrap()
}

fn wanted(ca: &Files, list: Option<&std::path::Path>, required: bool) -> WantedOfClients {
    WantedOfClients {
        authorities: ca.certificate.clone(),
        revocations: list.map(Into::into),
        required,
    }
}

/// A listener that judges clients in this way.
fn asking(scratch: &Scratch, clients: WantedOfClients) -> Terms {
    terms(&[scratch.pair("ec", &["a.example"])], |wanted| wanted.clients = Some(clients))
}

#[test]
fn who_is_known_gets_in_and_others_hear_why_not() {
    let scratch = Scratch::new();
    let (ca, other) = (scratch.ca("ca"), scratch.ca("other"));
    let terms = asking(&scratch, wanted(&ca, None, true));
    let good = scratch.signed(&ca, "good", FOR_CLIENTS, 9);
    for version in BOTH {
        let mut wire = Wire::new(&terms, &client_with(version, &read(&good)), "a.example");
        wire.run().unwrap();
        assert_eq!(wire.state, Ok(State::Open));
        let shown = wire.server.facts().certificate.unwrap();
        assert_eq!(shown[..], read(&good).key.cert[0][..]);
        assert_eq!(subject_text(&shown).as_deref(), Some("CN=leaf"));
    }
    let of = |stem: &str, ca: &Files, extensions: &str, days| {
        read(&scratch.signed(ca, stem, extensions, days))
    };
    for (pair, why, alert) in [
        (of("strange", &other, FOR_CLIENTS, 9), Failure::UnknownCa, AlertDescription::UnknownCA),
        (of("old", &ca, FOR_CLIENTS, -1), Failure::Expired, AlertDescription::CertificateExpired),
        (
            of("server", &ca, "extendedKeyUsage=serverAuth\n", 9),
            Failure::BadCertificate,
            AlertDescription::UnsupportedCertificate,
        ),
    ] {
        for version in BOTH {
            let mut wire = Wire::new(&terms, &client_with(version, &pair), "a.example");
            let end = wire.run().unwrap_err();
            assert!(
                wire.state == Err(why) && end == Error::AlertReceived(alert),
                "{:?} {end:?}",
                wire.state
            );
        }
    }
    for version in BOTH {
        let mut wire = Wire::new(&terms, &any_client(&[version]), "a.example");
        let end = wire.run().unwrap_err();
        assert_eq!(wire.state, Err(Failure::NoCertificate));
        assert_eq!(end, Error::AlertReceived(AlertDescription::CertificateRequired));
    }
}

/// The usual certificate of a client without a CA is self-signed, and claims to be a CA.
#[test]
fn who_stands_in_the_file_itself_gets_in() {
    let scratch = Scratch::new();
    let [own, twin, other] = ["own", "twin", "other"].map(|name| scratch.ca(name));
    let lone = scratch.signed(&other, "lone", FOR_CLIENTS, 9);
    let old = scratch.signed(&other, "old", FOR_CLIENTS, -1);
    let trusted =
        [&own, &lone, &old].map(|files| std::fs::read_to_string(&files.certificate).unwrap());
    let certificate =
        write(&scratch.path("trusted"), &trusted.map(|text| text.trim_end().to_owned()).concat());
    let trusted = Files { key: certificate.clone(), certificate };
    let terms = asking(&scratch, wanted(&trusted, None, true));
    for (files, end) in [
        (&own, None),
        (&lone, None),
        (&old, Some(Failure::Expired)),
        (&twin, Some(Failure::BadCertificate)),
        (&other, Some(Failure::BadCertificate)),
    ] {
        for version in BOTH {
            let mut wire = Wire::new(&terms, &client_with(version, &read(files)), "a.example");
            let _ = wire.run();
            assert_eq!(wire.state.err(), end, "{}", files.certificate.display());
        }
    }
    // With lists each certificate must be of a CA that has one.
    let list = scratch.list(&own, "list", &[], FUTURE);
    let terms = asking(&scratch, wanted(&trusted, Some(&list), true));
    let mut wire = Wire::new(&terms, &client_with(&TLS13, &read(&own)), "a.example");
    let _ = wire.run();
    assert_eq!(wire.state.err(), Some(Failure::BadCertificate));
}

/// The certificate of a partner in the file admits the partner, but no client whose certificate the
/// partner has signed.
#[test]
fn who_stands_in_the_file_itself_signs_for_nobody() {
    let scratch = Scratch::new();
    let other = scratch.ca("other");
    for (at, more) in
        ["", "basicConstraints=CA:FALSE", "keyUsage=digitalSignature"].into_iter().enumerate()
    {
        let pinned =
            scratch.signed(&other, &format!("pinned-{at}"), &format!("{FOR_CLIENTS}{more}"), 9);
        let forged =
            scratch.signed_as(&pinned, &format!("forged-{at}"), "admin", &EC, FOR_CLIENTS, 9);
        for (required, version) in
            [true, false].into_iter().flat_map(|required| BOTH.map(|version| (required, version)))
        {
            let terms = asking(&scratch, wanted(&pinned, None, required));
            let end = |config: &Arc<ClientConfig>| {
                let mut wire = Wire::new(&terms, config, "a.example");
                let _ = wire.run();
                wire.state.err()
            };
            assert_eq!(end(&client_with(version, &read(&pinned))), None, "{more}");
            assert_eq!(
                end(&client_with(version, &read(&forged))),
                Some(Failure::UnknownCa),
                "{more}"
            );
            assert_eq!(
                end(&any_client(&[version])),
                required.then_some(Failure::NoCertificate),
                "{more}"
            );
        }
        // Clients choose a certificate by its CA.
        let trust = ClientTrust::read(&wanted(&pinned, None, true), &provider()).unwrap();
        let hints = trust.verifier.root_hint_subjects();
        let hints: Vec<String> =
            hints.iter().map(|name| name_text(name_of(name.as_ref()))).collect();
        assert_eq!((hints, trust.authorities), (vec!["CN=other".to_owned()], 1), "{more}");
        // Its revocation would not be checked.
        let list = scratch.list(&other, &format!("list-{at}"), &[], FUTURE);
        let bad = ClientTrust::read(&wanted(&pinned, Some(&list), true), &provider())
            .unwrap_err()
            .to_string();
        assert!(bad.contains("has no certificate of a CA"), "{bad}");
    }
}

#[test]
fn a_certificate_that_is_optional_is_judged_when_it_is_shown() {
    let scratch = Scratch::new();
    let (ca, other) = (scratch.ca("ca"), scratch.ca("other"));
    let terms = asking(&scratch, wanted(&ca, None, false));
    let (good, strange) = (
        scratch.signed(&ca, "good", FOR_CLIENTS, 9),
        scratch.signed(&other, "strange", FOR_CLIENTS, 9),
    );
    for version in BOTH {
        let mut without = Wire::new(&terms, &any_client(&[version]), "a.example");
        without.run().unwrap();
        assert_eq!((without.state, without.server.facts().certificate), (Ok(State::Open), None));
        let mut with = Wire::new(&terms, &client_with(version, &read(&good)), "a.example");
        with.run().unwrap();
        assert!(with.server.facts().certificate.is_some());
        let mut refused = Wire::new(&terms, &client_with(version, &read(&strange)), "a.example");
        refused.run().unwrap_err();
        assert_eq!(refused.state, Err(Failure::UnknownCa));
    }
}

#[test]
fn nobody_goes_on_with_a_session_where_clients_show_certificates() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let pair = read(&scratch.signed(&ca, "good", FOR_CLIENTS, 9));
    for required in [true, false] {
        let terms = asking(&scratch, wanted(&ca, None, required));
        for version in BOTH {
            let config = client_with(version, &pair);
            for _ in 0..3 {
                let mut wire = Wire::new(&terms, &config, "a.example");
                wire.run().unwrap();
                assert!(!wire.server.facts().resumed && wire.server.facts().certificate.is_some());
            }
        }
    }
}

#[test]
fn what_is_revoked_or_may_be_is_refused() {
    let scratch = Scratch::new();
    let (ca, other) = (scratch.ca("ca"), scratch.ca("other"));
    let [good, bad] = ["good", "bad"].map(|stem| scratch.signed(&ca, stem, FOR_CLIENTS, 9));
    let list = |stem: &str, ca: &Files, until: &str| scratch.list(ca, stem, &[&bad], until);
    let (now, old, others) =
        (list("now", &ca, FUTURE), list("old", &ca, PAST), list("others", &other, FUTURE));
    for (path, of_good, of_bad) in [
        (&now, None, Failure::Revoked),
        (&old, Some(Failure::Unlisted), Failure::Unlisted),
        (&others, Some(Failure::Unlisted), Failure::Unlisted),
    ] {
        let terms = asking(&scratch, wanted(&ca, Some(path), true));
        for version in BOTH {
            let end = |files: &Files| {
                let mut wire = Wire::new(&terms, &client_with(version, &read(files)), "a.example");
                let _ = wire.run();
                wire.state.err()
            };
            assert_eq!((end(&good), end(&bad)), (of_good, Some(of_bad)), "{}", path.display());
        }
    }
    // A new list is in force from the next handshake on.
    let terms = asking(&scratch, wanted(&ca, None, true));
    let state = || {
        let mut wire = Wire::new(&terms, &client_with(&TLS13, &read(&bad)), "a.example");
        let _ = wire.run();
        wire.state
    };
    assert_eq!(state(), Ok(State::Open));
    let trust = ClientTrust::read(&wanted(&ca, Some(&now), true), &provider()).unwrap();
    assert_eq!((trust.authorities, trust.lists), (1, 1));
    let pairs = [scratch.pair("ec", &["a.example"])];
    terms.renew(Materials { clients: Some(&trust), ..Materials::of(&pairs) }).unwrap();
    assert_eq!(state(), Err(Failure::Revoked));
    // Without anything to judge by, the previous terms remain.
    terms.renew(Materials::of(&pairs)).unwrap_err();
    assert_eq!(state(), Err(Failure::Revoked));
}

#[test]
fn files_of_something_else_are_told_in_words() {
    let scratch = Scratch::new();
    let (ca, other) = (scratch.ca("ca"), scratch.ca("other"));
    let path = |name: &str, text: &str| write(&scratch.path(name), text);
    let good = scratch.list(&ca, "good", &[], FUTURE);
    let der = scratch.path("good.der");
    super::files::openssl(
        std::process::Command::new("openssl")
            .args(["crl", "-outform", "DER", "-in"])
            .arg(&good)
            .arg("-out")
            .arg(&der),
    );
    let trust =
        |list: &std::path::Path| ClientTrust::read(&wanted(&ca, Some(list), true), &provider());
    for list in [&good, &der] {
        assert_eq!(trust(list).unwrap().warnings(0), Vec::<String>::new());
    }
    let text = std::fs::read_to_string(&good).unwrap();
    for (list, expected) in [
        (scratch.path("gone"), "cannot read the revocation lists in "),
        (path("empty", ""), "has no revocation list in PEM"),
        (ca.certificate.clone(), "has no revocation list in PEM"),
        (
            path("cut", &text[..text.len() - 30]),
            "is damaged: line 1: this section has no `-----END …-----`",
        ),
        (
            path("odd", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"),
            "that weir cannot parse",
        ),
        (path("many", &text.repeat(257)), "has 257 revocation lists, but it can have at most 256"),
    ] {
        let bad = trust(&list).unwrap_err().to_string();
        assert!(bad.contains(expected), "{bad}");
    }
    let none = ClientTrust::read(
        &wanted(&Files { certificate: good.clone(), key: good }, None, true),
        &provider(),
    );
    assert!(none.unwrap_err().to_string().contains("has no certificate in PEM"));
    let late = trust(&scratch.list(&other, "late", &[], PAST)).unwrap().warnings(4_000_000_000);
    assert!(late.len() == 2 && late[0].contains("expired on 2020-01-02"), "{late:?}");
    assert!(late[1].contains("of the CA `CN=ca`"), "{late:?}");
}
