//! Proves: with the library of the product every cut of a client's bytes has the same result,
//! errors are answered with the right alert, clients get the certificate of the name that they ask
//! for, and tickets are valid only for their listener. How: both ends in memory, certificates of
//! `openssl`.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, Error};

use super::files::{Scratch, write};
use super::wire::{ECDSA, RSA, Wire, any_client, client_config, terms, wanted};
use crate::cipher::{Failure, RECORD_BYTES_MAX, State};
use crate::clients::WantedOfClients;
use crate::terms::{Materials, Terms, Wanted};
use crate::tickets::TicketKeys;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

#[test]
fn both_versions_with_both_kinds_of_keys() {
    let scratch = Scratch::new();
    for kind in ["ec", "rsa"] {
        let terms = terms(&[scratch.pair(kind, &["a.example"])], |_| ());
        for (version, name) in [(&TLS12, "TLSv1.2"), (&TLS13, "TLSv1.3")] {
            let mut wire = Wire::new(&terms, &any_client(&[version]), "A.example");
            wire.run().unwrap();
            assert_eq!(wire.state, Ok(State::Open));
            let facts = wire.server.facts();
            assert_eq!(
                (facts.version, facts.name.as_deref(), facts.resumed),
                (name, Some("a.example"), false)
            );
            assert!(
                facts.suite.starts_with("TLS_") && !facts.suite.starts_with("TLS_1"),
                "{}",
                facts.suite
            );
            let large: Vec<u8> = (0..1_000_000u32).map(|at| (at >> 4) as u8).collect();
            wire.send(&[b"head ", b"", &large[..5], &large[5..40_000], b"tail", &large[40_000..]]);
            wire.answer().unwrap();
            let expected = [b"head ", &large[..40_000], b"tail", &large[40_000..]].concat();
            assert!(wire.read() == (expected, false));
            for piece in large.chunks(60_000) {
                wire.write(piece);
                wire.run().unwrap();
            }
            assert!(wire.got == large);
        }
    }
}

#[test]
fn records_are_as_long_as_they_may_be_and_no_longer() {
    let scratch = Scratch::new();
    let terms = terms(&[scratch.pair("ec", &["a.example"])], |_| ());
    let large = vec![b'x'; 40_000];
    for (version, overhead) in [(&TLS12, 8 + 16), (&TLS13, 1 + 16)] {
        for (parts, record_max, expected) in [
            (vec![&large[..]], RECORD_BYTES_MAX, vec![16_384, 16_384, 7_232]),
            (vec![&large[..10_000]], 4096, vec![4096, 4096, 1808]),
            (vec![&large[..200], &large[..300]], 4096, vec![500]),
            (vec![&large[..200], &large[..10_000]], 4096, vec![200, 4096, 4096, 1808]),
            (vec![&large[..3000]; 6], 4096, vec![3000; 6]),
            (vec![&large[..3000]; 6], RECORD_BYTES_MAX, vec![15_000, 3000]),
            (vec![], 4096, vec![]),
            (vec![&[]], 4096, vec![]),
        ] {
            let mut wire = Wire::new(&terms, &any_client(&[version]), "a.example");
            wire.run().unwrap();
            wire.send_in(&parts, record_max);
            let (mut rest, mut lengths) = (&wire.out[..], Vec::new());
            while !rest.is_empty() {
                let len = usize::from(u16::from_be_bytes([rest[3], rest[4]]));
                lengths.push(len - overhead);
                rest = &rest[5 + len..];
            }
            assert_eq!(lengths, expected, "{version:?}");
            wire.answer().unwrap();
            assert_eq!(wire.read().0, parts.concat());
        }
    }
}

#[test]
fn every_cut_of_every_flight() {
    let scratch = Scratch::new();
    let terms = terms(&[scratch.pair("ec", &["a.example"])], |_| ());
    for version in [&TLS12, &TLS13] {
        let config = any_client(&[version]);
        let mut lens = Vec::new();
        let mut whole = Wire::new(&terms, &config, "a.example");
        whole.write(REQUEST);
        whole
            .run_in_pieces(|_, len| {
                lens.push(len);
                Vec::new()
            })
            .unwrap();
        let cuts = lens
            .iter()
            .enumerate()
            .flat_map(|(flight, len)| (1..*len).map(move |cut| (flight, cut)));
        for (at, cut) in cuts {
            let mut wire = Wire::new(&terms, &config, "a.example");
            wire.write(REQUEST);
            wire.run_in_pieces(
                |flight, len| if flight == at && cut < len { vec![cut] } else { Vec::new() },
            )
            .unwrap();
            assert_eq!(
                (wire.state, &wire.got[..]),
                (Ok(State::Open), REQUEST),
                "flight {at} cut at {cut}"
            );
        }
        let mut wire = Wire::new(&terms, &config, "a.example");
        wire.write(REQUEST);
        wire.run_in_pieces(|_, len| (1..len).collect()).unwrap();
        assert_eq!((wire.state, &wire.got[..]), (Ok(State::Open), REQUEST));
    }
}

#[test]
fn a_hello_may_come_in_many_records() {
    let scratch = Scratch::new();
    let terms = terms(&[scratch.pair("ec", &["a.example"])], |_| ());
    for size in [1, 3, 4, 5, 100] {
        let mut wire = Wire::new(&terms, &any_client(&[&TLS13]), "a.example");
        let hello = wire.said();
        let record =
            |piece: &[u8]| [&[0x16, 3, 1][..], &(piece.len() as u16).to_be_bytes(), piece].concat();
        for piece in hello[5..].chunks(size) {
            assert_eq!(wire.state, Ok(State::Handshaking));
            wire.hear(&record(piece));
        }
        wire.answer().unwrap();
        wire.run().unwrap();
        assert_eq!(wire.state, Ok(State::Open), "pieces of {size}");
    }
}

#[test]
fn records_that_come_together_and_ends() {
    let scratch = Scratch::new();
    let terms = terms(&[scratch.pair("ec", &["a.example"])], |_| ());
    for version in [&TLS12, &TLS13] {
        let mut wire = Wire::new(&terms, &any_client(&[version]), "a.example");
        wire.run().unwrap();
        wire.write(b"one");
        let mut bytes = wire.said();
        wire.write(b"two");
        bytes.extend(wire.said());
        wire.client.send_close_notify();
        bytes.extend(wire.said());
        wire.hear(&bytes);
        assert_eq!((wire.state, &wire.got[..]), (Ok(State::Ended), &b"onetwo"[..]));
        // The other direction continues until it ends as well.
        wire.send(&[b"answer"]);
        wire.close();
        wire.close();
        wire.answer().unwrap();
        assert_eq!(wire.read(), (b"answer".to_vec(), true));
    }
}

#[test]
fn new_keys_on_the_way_change_nothing() {
    let scratch = Scratch::new();
    let terms = terms(&[scratch.pair("ec", &["a.example"])], |_| ());
    let mut wire = Wire::new(&terms, &any_client(&[&TLS13]), "a.example");
    wire.run().unwrap();
    for round in 0..20 {
        wire.client.refresh_traffic_keys().unwrap();
        let update = wire.said();
        // Half of it has arrived when something is to be sent.
        wire.hear(&update[..10]);
        wire.send(&[b"between"]);
        wire.hear(&update[10..]);
        wire.write(b"later");
        wire.run().unwrap();
        assert_eq!((wire.state, wire.got.len()), (Ok(State::Open), 5 * (round + 1)));
        assert_eq!(wire.read().0, b"between");
    }
}

#[test]
fn an_error_is_answered_with_its_alert() {
    let scratch = Scratch::new();
    let pairs = [scratch.pair("ec", &["a.example"])];
    let (both, only13, strict) = (
        terms(&pairs, |_| ()),
        terms(&pairs, |wanted| wanted.only_tls13 = true),
        terms(&pairs, |wanted| wanted.strict_names = true),
    );
    let mut other_protocol = client_config(&[&TLS13, &TLS12], &[ECDSA]);
    other_protocol.alpn_protocols = vec![b"h2".to_vec()];
    let no_schemes = client_config(&[&TLS13], &[RSA]);
    let mut nameless = client_config(&[&TLS13], &[ECDSA]);
    nameless.enable_sni = false;
    for (terms, config, name, alert, why) in [
        (
            &only13,
            any_client(&[&TLS12]),
            "a.example",
            AlertDescription::ProtocolVersion,
            Failure::NothingInCommon,
        ),
        (
            &both,
            Arc::new(other_protocol),
            "a.example",
            AlertDescription::NoApplicationProtocol,
            Failure::NothingInCommon,
        ),
        (
            &both,
            Arc::new(no_schemes),
            "a.example",
            AlertDescription::HandshakeFailure,
            Failure::NothingInCommon,
        ),
        (
            &strict,
            any_client(&[&TLS13]),
            "b.example",
            AlertDescription::UnrecognisedName,
            Failure::UnknownName,
        ),
        (
            &strict,
            any_client(&[&TLS12]),
            "b.example",
            AlertDescription::UnrecognisedName,
            Failure::UnknownName,
        ),
        (
            &strict,
            Arc::new(nameless),
            "a.example",
            AlertDescription::UnrecognisedName,
            Failure::UnknownName,
        ),
    ] {
        let mut wire = Wire::new(terms, &config, name);
        let hello = wire.said();
        wire.hear(&hello);
        assert_eq!(wire.state, Err(why));
        assert!(
            matches!(wire.answer(), Err(Error::AlertReceived(got)) if got == alert),
            "{alert:?}"
        );
    }
}

#[test]
fn bytes_that_were_changed_end_it() {
    let scratch = Scratch::new();
    let terms = terms(&[scratch.pair("ec", &["a.example"])], |_| ());
    for version in [&TLS12, &TLS13] {
        let mut wire = Wire::new(&terms, &any_client(&[version]), "a.example");
        wire.run().unwrap();
        wire.write(b"good");
        let mut bytes = wire.said();
        wire.write(b"evil");
        bytes.extend(wire.said());
        *bytes.last_mut().unwrap() ^= 1;
        wire.hear(&bytes);
        assert_eq!((wire.state, &wire.got[..]), (Err(Failure::Misbehaved), &b"good"[..]));
        assert!(matches!(wire.answer(), Err(Error::AlertReceived(AlertDescription::BadRecordMac))));
    }
    // Nonsense from the first byte on, and every byte of a hello changed: never a panic, always an
    // end or more to wait for.
    let config = any_client(&[&TLS13, &TLS12]);
    let hello = Wire::new(&terms, &config, "a.example").said();
    for at in (0..hello.len()).step_by(7) {
        let mut changed = hello.clone();
        changed[at] ^= 0x55;
        let mut wire = Wire::new(&terms, &config, "a.example");
        wire.hear(&changed);
        assert!(!matches!(wire.state, Ok(State::Open)));
    }
    let mut wire = Wire::new(&terms, &config, "a.example");
    wire.hear(b"\x16\x03\x01\x00\x05\x99\x00\x00\x01\x00");
    assert_eq!(wire.state, Err(Failure::Misbehaved));
    assert_eq!(wire.out[0], 0x15);
    let mut wire = Wire::new(&terms, &config, "a.example");
    wire.hear(b"\x15\x03\x01\x00\x02\x02\x30");
    assert_eq!(wire.state, Err(Failure::Alert));
}

#[test]
fn the_name_chooses_the_certificate() {
    let scratch = Scratch::new();
    let pairs = [
        scratch.pair("ec", &["a.example"]),
        scratch.pair("rsa", &["a.example"]),
        scratch.pair("ec", &["*.b.example", "c.example"]),
        scratch.pair("ec", &["exact.b.example"]),
    ];
    let all = terms(&pairs, |_| ());
    let of = |at: usize| pairs[at].key.cert[0].clone();
    let ours = |name: &str, schemes: &[_]| {
        let mut wire = Wire::new(&all, &Arc::new(client_config(&[&TLS13, &TLS12], schemes)), name);
        wire.run().unwrap();
        wire.client.peer_certificates().unwrap()[0].clone().into_owned()
    };
    for (name, schemes, at) in [
        ("a.example", &[ECDSA, RSA][..], 0),
        ("a.example", &[RSA], 1),
        ("A.EXAMPLE", &[RSA, ECDSA], 0),
        ("x.b.example", &[ECDSA], 2),
        ("exact.b.example", &[ECDSA], 3),
        ("c.example", &[ECDSA], 2),
        // No certificate has these: only one label is replaced.
        ("x.y.b.example", &[ECDSA], 0),
        ("b.example", &[RSA], 1),
        ("elsewhere.test", &[ECDSA], 0),
    ] {
        assert_eq!(ours(name, schemes), of(at), "{name}");
    }
}

#[test]
fn tickets_are_good_for_their_listener_also_when_its_certificates_change() {
    let scratch = Scratch::new();
    let pairs = [scratch.pair("ec", &["a.example"])];
    let later = [scratch.pair("ec", &["a.example", "b.example"])];
    for version in [&TLS12, &TLS13] {
        let (one, other) = (terms(&pairs, |_| ()), terms(&pairs, |_| ()));
        let without = terms(&pairs, |wanted| wanted.tickets = false);
        let config = any_client(&[version]);
        let resumes = |terms: &_, name: &str| {
            let mut wire = Wire::new(terms, &config, name);
            assert_eq!(wire.server.has_worked(), None);
            let hello = wire.said();
            wire.hear(&hello[..hello.len() / 2]);
            assert_eq!(wire.server.has_worked(), None, "half of a hello");
            wire.hear(&hello[hello.len() / 2..]);
            let worked = wire.server.has_worked();
            wire.answer().unwrap();
            wire.run().unwrap();
            let resumed = wire.server.facts().resumed;
            assert_eq!((worked, wire.server.has_worked()), (Some(!resumed), Some(!resumed)));
            resumed
        };
        assert!(!resumes(&one, "a.example"));
        assert!(resumes(&one, "a.example"));
        assert!(!resumes(&one, "b.example"), "another name");
        assert!(!resumes(&other, "a.example"), "another listener");
        assert!(resumes(&other, "a.example"));
        other.renew(Materials::of(&later)).unwrap();
        assert!(resumes(&other, "a.example"));
        assert!(!resumes(&without, "a.example"));
        assert!(!resumes(&without, "a.example"));
    }
}

/// A client that is asked for another share has cost nothing yet.
#[test]
fn the_work_is_done_behind_the_second_hello() {
    let scratch = Scratch::new();
    let mut provider = crate::terms::provider().as_ref().clone();
    // The client sends no share of the last one, which is the only one that both have.
    let only = provider.kx_groups.pop().unwrap();
    let terms = Terms::new(
        wanted(),
        Materials::of(&[scratch.pair("ec", &["a.example"])]),
        Arc::new(rustls::crypto::CryptoProvider { kx_groups: vec![only], ..provider }),
    );
    let mut wire = Wire::new(&terms.unwrap(), &any_client(&[&TLS13]), "a.example");
    let hello = wire.said();
    wire.hear(&hello);
    assert_eq!((wire.state, wire.server.has_worked()), (Ok(State::Handshaking), None));
    wire.answer().unwrap();
    let hello = wire.said();
    wire.hear(&hello);
    assert_eq!((wire.state, wire.server.has_worked()), (Ok(State::Handshaking), Some(true)));
    wire.answer().unwrap();
    wire.run().unwrap();
    assert_eq!(wire.state, Ok(State::Open));
}

/// Two weir hosts with the same file, while a key is exchanged on one after the other, and a
/// listener at another port.
#[test]
fn tickets_by_keys_of_a_file_are_good_wherever_that_file_is() {
    let scratch = Scratch::new();
    let pairs = [scratch.pair("ec", &["a.example"])];
    let ca = scratch.ca("ca");
    let lines: Vec<String> = (0..4u8).map(|number| STANDARD.encode([number; 80]) + "\n").collect();
    let file = |name: &str, lines: &[String]| write(&scratch.path(name), &lines.concat());
    let keys = file("keys", &lines[..2]);
    let with = |change: &dyn Fn(&mut Wanted)| {
        terms(&pairs, |wanted| {
            wanted.ticket_keys = Some(keys.clone());
            change(wanted);
        })
    };
    for version in [&TLS12, &TLS13] {
        let (here, there, elsewhere) =
            (with(&|_| ()), with(&|_| ()), with(&|wanted| wanted.port = 8443));
        let without = with(&|wanted| wanted.tickets = false);
        let authorities = ca.certificate.clone();
        let clients = WantedOfClients { authorities, revocations: None, required: false };
        let asking = with(&|wanted| wanted.clients = Some(clients.clone()));
        let config = any_client(&[version]);
        let resumes = |terms: &_| {
            let mut wire = Wire::new(terms, &config, "a.example");
            wire.run().unwrap();
            wire.server.facts().resumed
        };
        assert!(
            !resumes(&here) && resumes(&here) && resumes(&there) && resumes(&here),
            "{version:?}"
        );
        for others in [&without, &asking] {
            assert!(!resumes(others) && resumes(&here), "{version:?}");
        }
        assert!(!resumes(&elsewhere) && resumes(&elsewhere), "{version:?}");
        assert!(!resumes(&here), "{version:?}");
        // Tickets that `here` issues with its new keys are understood by `there`, which has the old
        // ones, and the other way round.
        let newer = TicketKeys::read(&file("newer", &lines[..3])).unwrap();
        here.renew(Materials { ticket_keys: Some(&newer), ..Materials::of(&pairs) }).unwrap();
        assert!(resumes(&here) && resumes(&there) && resumes(&here), "{version:?}");
        let newest = TicketKeys::read(&file("newest", &lines[3..])).unwrap();
        here.renew(Materials { ticket_keys: Some(&newest), ..Materials::of(&pairs) }).unwrap();
        assert!(!resumes(&here) && resumes(&here), "{version:?}");
    }
}

#[test]
fn files_of_ticket_keys_that_are_none() {
    let scratch = Scratch::new();
    let good = STANDARD.encode([7; 80]);
    let of = |text: &str| TicketKeys::read(&write(&scratch.path("keys"), text));
    for (text, count) in [
        (format!("{good}\n"), 1),
        (format!("\r\n {good}\r\n\n{good}"), 2),
        (format!("{good}\n").repeat(9), 3),
    ] {
        assert_eq!(of(&text).unwrap().len(), count);
    }
    for (text, expected) in [
        (String::new(), "has no key: write one per line"),
        (format!("{good}\n{}\n", &good[..80]), "line 2 of "),
        (STANDARD.encode([7; 79]), "line 1 of "),
        ("SECRET".to_owned(), "80 bytes in base64"),
    ] {
        let bad = of(&text).unwrap_err().to_string();
        assert!(
            bad.contains(expected) && !bad.contains("SECRET") && !bad.contains(&good[..20]),
            "{bad}"
        );
    }
    assert!(!format!("{:?}", of(&good).unwrap()).contains("7, 7"));
}
