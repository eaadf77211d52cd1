//! Proves: with the library of the product weir knows a server by its certificate or says why not,
//! shows its own to servers that ask, and resumes sessions only with their server, wherever the
//! server's bytes are cut. How: both ends in memory, certificates of `openssl`.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use rustls::version::{TLS12, TLS13};
use rustls::{Error, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion};

use super::files::{EC, Scratch, write};
use crate::cipher::{Cipher, Failure, RECORD_BYTES_MAX, Seal, State};
use crate::pairs::{Files, Pair};
use crate::servers::{PeerName, Roots, ServerTerms, TICKETS_MAX, Trust, WantedOfServers};
use crate::terms::provider;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

fn pair(files: &Files) -> Pair {
    Pair::read(files, &provider()).unwrap()
}

/// A server with this certificate; with `clients` it asks for one that this CA has signed.
fn server(
    files: &Files,
    versions: &[&'static SupportedProtocolVersion],
    clients: Option<&Files>,
) -> Arc<ServerConfig> {
    let builder =
        ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions).unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            roots.add(pair(ca).key.cert[0].clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                .build()
                .unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config =
        builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&pair(files).key))));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

/// For servers of these names.
fn terms(trust: Trust, shown: Option<&Files>, names: &[&str]) -> ServerTerms {
    let wanted = WantedOfServers { trust, files: shown.cloned() };
    let names: Vec<_> = names.iter().map(|name| PeerName::new(name).unwrap()).collect();
    let shown = shown.map(pair);
    ServerTerms::new(
        wanted.clone(),
        &names,
        &Roots::read(&wanted.trust).unwrap(),
        shown.as_ref(),
        provider(),
    )
    .unwrap()
}

fn trusting(ca: &Files, names: &[&str]) -> ServerTerms {
    terms(Trust::File(ca.certificate.clone()), None, names)
}

/// A connection in memory.
struct Wire {
    client: Box<dyn Cipher>,
    server: ServerConnection,
    /// Bytes that the client has received and not used.
    rest: Vec<u8>,
    state: Result<State, Failure>,
    got: Vec<u8>,
    /// Bytes from the client that the server has not seen.
    out: Vec<u8>,
    /// Plain bytes that the server got.
    read: Vec<u8>,
}

impl Wire {
    fn new(terms: &ServerTerms, at: usize, config: &Arc<ServerConfig>) -> Wire {
        let server = ServerConnection::new(Arc::clone(config)).unwrap();
        let (client, state) = (terms.seals()[at].cipher(), Ok(State::Handshaking));
        let [rest, got, out, read] = [const { Vec::new() }; 4];
        let mut wire = Wire { client, server, rest, state, got, out, read };
        wire.hear(b"");
        wire
    }

    /// The client receives these.
    fn hear(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let opened = self.client.open(&mut self.rest, &mut self.got, &mut self.out);
        self.rest.drain(..opened.used);
        self.state = opened.state;
    }

    /// The server receives the client's bytes.
    fn answer(&mut self) -> Result<(), Error> {
        let bytes = std::mem::take(&mut self.out);
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            self.server.read_tls(&mut bytes).unwrap();
            self.server.process_new_packets()?;
            // Nothing more is there for now.
            let _ = self.server.reader().read_to_end(&mut self.read);
        }
        Ok(())
    }

    /// Takes the bytes that the server has to send.
    fn said(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.server.wants_write() {
            self.server.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Until both have nothing to send, or the client gives up; each flight of the server is
    /// received in pieces.
    fn run_in_pieces(
        &mut self,
        mut cut: impl FnMut(usize, usize) -> Vec<usize>,
    ) -> Result<(), Error> {
        for flight in 0.. {
            self.answer()?;
            let bytes = self.said();
            let mut from = 0;
            for to in cut(flight, bytes.len()).into_iter().chain([bytes.len()]) {
                if self.state.is_ok() {
                    self.hear(&bytes[from..to]);
                }
                from = to;
            }
            if bytes.is_empty() && self.out.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), Error> {
        self.run_in_pieces(|_, _| Vec::new())
    }

    fn read(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.read)
    }
}

#[test]
fn requests_and_answers_pass() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let files = scratch.signed(&ca, "leaf", "subjectAltName=DNS:a.example,IP:10.0.0.1,IP:::1", 30);
    let terms = trusting(&ca, &["A.example", "10.0.0.1", "[::1]"]);
    for version in [&TLS12, &TLS13] {
        for (at, asked) in [(0, Some("a.example")), (1, None), (2, None)] {
            let config = server(&files, &[version], None);
            let mut wire = Wire::new(&terms, at, &config);
            wire.run().unwrap();
            assert_eq!((wire.state, wire.server.server_name()), (Ok(State::Open), asked), "{at}");
            assert_eq!(wire.server.alpn_protocol(), Some(&b"http/1.1"[..]));
            let large = vec![7; 100_000];
            wire.client
                .seal(&mut wire.rest, &[REQUEST, &large], RECORD_BYTES_MAX, &mut wire.out)
                .unwrap();
            wire.answer().unwrap();
            assert!(wire.read() == [REQUEST, &large[..]].concat());
            for piece in large.chunks(60_000) {
                wire.server.writer().write_all(piece).unwrap();
                wire.run().unwrap();
            }
            assert!(wire.got == large);
            wire.server.send_close_notify();
            let end = wire.said();
            wire.hear(&end);
            assert_eq!(wire.state, Ok(State::Ended));
            // The other direction continues.
            wire.client.seal(&mut wire.rest, &[b"more"], RECORD_BYTES_MAX, &mut wire.out).unwrap();
            wire.client.close(&mut wire.rest, &mut wire.out);
            wire.answer().unwrap();
            assert_eq!(wire.read(), b"more");
        }
    }
}

#[test]
fn every_cut_of_every_flight_of_a_server() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let files = scratch.signed(&ca, "leaf", "subjectAltName=DNS:a.example", 30);
    for version in [&TLS12, &TLS13] {
        let config = server(&files, &[version], None);
        let fresh = || trusting(&ca, &["a.example"]);
        let mut lens = Vec::new();
        Wire::new(&fresh(), 0, &config)
            .run_in_pieces(|_, len| {
                lens.push(len);
                Vec::new()
            })
            .unwrap();
        let cuts = lens
            .iter()
            .enumerate()
            .flat_map(|(flight, len)| (1..*len).map(move |cut| (flight, cut)));
        let terms = fresh();
        for (at, cut) in cuts {
            // Resumed sessions have other flights: earlier ones are forgotten.
            terms.renew(&Roots::read(&terms.wanted().trust).unwrap(), None).unwrap();
            let mut wire = Wire::new(&terms, 0, &config);
            wire.run_in_pieces(
                |flight, len| if flight == at && cut < len { vec![cut] } else { Vec::new() },
            )
            .unwrap();
            wire.client.seal(&mut wire.rest, &[REQUEST], RECORD_BYTES_MAX, &mut wire.out).unwrap();
            wire.answer().unwrap();
            assert_eq!(
                (wire.state, &wire.read()[..]),
                (Ok(State::Open), REQUEST),
                "flight {at} cut at {cut}"
            );
        }
        let mut wire = Wire::new(&terms, 0, &config);
        wire.run_in_pieces(|_, len| (1..len).collect()).unwrap();
        assert_eq!(wire.state, Ok(State::Open));
    }
}

#[test]
fn who_can_t_be_known_is_refused_by_word() {
    let scratch = Scratch::new();
    let (ca, other) = (scratch.ca("ca"), scratch.ca("other"));
    let names = "subjectAltName=DNS:a.example,IP:10.0.0.1";
    let good = scratch.signed(&ca, "good", names, 30);
    let expired = scratch.signed(&ca, "expired", names, -1);
    let client_only =
        scratch.signed(&ca, "client", &format!("{names}\nextendedKeyUsage=clientAuth"), 30);
    for version in [&TLS12, &TLS13] {
        for (ca, name, files, why) in [
            (&ca, "b.example", &good, Failure::WrongName),
            (&ca, "10.0.0.2", &good, Failure::WrongName),
            (&ca, "::1", &good, Failure::WrongName),
            (&ca, "a.example", &expired, Failure::Expired),
            (&other, "a.example", &good, Failure::UnknownCa),
            (&ca, "a.example", &client_only, Failure::BadCertificate),
        ] {
            let mut wire = Wire::new(&trusting(ca, &[name]), 0, &server(files, &[version], None));
            // The server learns why, by an alert.
            let told = wire.run();
            assert_eq!(wire.state, Err(why));
            assert!(matches!(told, Err(Error::AlertReceived(_))), "{why:?}: {told:?}");
            // With trust in every certificate it is accepted.
            let anybody = terms(Trust::Anybody, None, &[name]);
            let mut wire = Wire::new(&anybody, 0, &server(files, &[version], None));
            wire.run().unwrap();
            assert_eq!(wire.state, Ok(State::Open));
        }
    }
    let mut wire = Wire::new(&trusting(&ca, &["a.example"]), 0, &server(&good, &[&TLS13], None));
    wire.hear(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert_eq!(wire.state, Err(Failure::Misbehaved));
}

/// The usual certificate of an internal server is self-signed, and claims to be a CA.
#[test]
fn a_certificate_in_the_file_itself_is_trusted() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let names = "subjectAltName=DNS:a.example,IP:10.0.0.1";
    let own = scratch.files("ec", &["a.example"]);
    let (lone, expired) =
        (scratch.signed(&ca, "lone", names, 30), scratch.signed(&ca, "expired", names, -1));
    let (stranger, unnamed) =
        (scratch.signed(&ca, "stranger", names, 30), scratch.files("ec", &[]));
    let weak = scratch.signed_as(
        &ca,
        "weak",
        "weak",
        &["-newkey", "rsa:1024"],
        "basicConstraints=CA:TRUE",
        30,
    );
    let below_weak = scratch.signed(&weak, "below", names, 30);
    let chain = [&below_weak, &weak]
        .map(|files| std::fs::read_to_string(&files.certificate).unwrap())
        .concat();
    let below_weak =
        Files { certificate: write(&scratch.path("chain"), &chain), key: below_weak.key };
    for version in [&TLS12, &TLS13] {
        for (trusted, name, shown, end) in [
            (&own, "a.example", &own, Ok(State::Open)),
            (&own, "b.example", &own, Err(Failure::WrongName)),
            (&lone, "a.example", &lone, Ok(State::Open)),
            (&lone, "10.0.0.1", &lone, Ok(State::Open)),
            (&lone, "10.0.0.2", &lone, Err(Failure::WrongName)),
            (&expired, "a.example", &expired, Err(Failure::Expired)),
            (&ca, "a.example", &own, Err(Failure::CaCertificate)),
            (&lone, "a.example", &stranger, Err(Failure::UnknownCa)),
            (&unnamed, "a.example", &unnamed, Err(Failure::NoNames)),
            (&ca, "a.example", &below_weak, Err(Failure::UnusableKey)),
        ] {
            let mut wire =
                Wire::new(&trusting(trusted, &[name]), 0, &server(shown, &[version], None));
            let _ = wire.run();
            let of = |files: &Files| files.certificate.display().to_string();
            assert_eq!(wire.state, end, "{} by {} for {name}", of(shown), of(trusted));
        }
    }
    // A server that shows the certificate must have its key.
    let mixed = rustls::sign::CertifiedKey::new(
        pair(&own).key.cert.clone(),
        Arc::clone(&pair(&lone).key.key),
    );
    let builder =
        ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).unwrap();
    let config =
        builder.with_no_client_auth().with_cert_resolver(Arc::new(SingleCertAndKey::from(mixed)));
    let mut wire = Wire::new(&trusting(&own, &["a.example"]), 0, &Arc::new(config));
    assert!(wire.run().is_err() && wire.state.is_err(), "{:?}", wire.state);
}

/// The holder of such a certificate's key is this server, and cannot vouch for other servers.
#[test]
fn a_certificate_in_the_file_signs_no_others() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let names = "subjectAltName=DNS:a.example";
    let text = |files: &Files| std::fs::read_to_string(&files.certificate).unwrap();
    for (at, more) in
        ["", "basicConstraints=CA:FALSE", "keyUsage=digitalSignature"].into_iter().enumerate()
    {
        let pinned = scratch.signed(&ca, &format!("pinned-{at}"), &format!("{names}\n{more}"), 30);
        let forged = scratch.signed_as(&pinned, &format!("forged-{at}"), "forged", &EC, names, 30);
        let chain =
            write(&scratch.path(&format!("chain-{at}")), &[&forged, &pinned].map(text).concat());
        let forged = Files { certificate: chain, key: forged.key };
        let both = write(&scratch.path(&format!("both-{at}")), &[&ca, &pinned].map(text).concat());
        for version in [&TLS12, &TLS13] {
            let end = |trusted: &std::path::Path, name, shown| {
                let terms = terms(Trust::File(trusted.into()), None, &[name]);
                let mut wire = Wire::new(&terms, 0, &server(shown, &[version], None));
                let _ = wire.run();
                wire.state
            };
            assert_eq!(end(&pinned.certificate, "a.example", &pinned), Ok(State::Open), "{more}");
            assert_eq!(
                end(&pinned.certificate, "b.example", &pinned),
                Err(Failure::WrongName),
                "{more}"
            );
            assert_eq!(
                end(&pinned.certificate, "a.example", &forged),
                Err(Failure::UnknownCa),
                "{more}"
            );
            // With its CA beside it the result is the same.
            assert_eq!(end(&both, "a.example", &pinned), Ok(State::Open), "{more}");
            assert!(end(&both, "a.example", &forged).is_err(), "{more}");
        }
        assert_eq!(Roots::read(&Trust::File(both)).unwrap().len(), 2);
    }
}

#[test]
fn what_is_odd_about_cas_is_said() {
    let scratch = Scratch::new();
    let (ca, other) = (scratch.ca("ca"), scratch.ca("other"));
    let weak = scratch.signed_as(
        &ca,
        "weak",
        "weak",
        &["-newkey", "rsa:1024"],
        "basicConstraints=CA:TRUE",
        30,
    );
    let texts = [&other, &weak]
        .map(|files| std::fs::read_to_string(&files.certificate).unwrap().trim_end().to_owned());
    let roots = Roots::read(&Trust::File(write(&scratch.path("both"), &texts.concat()))).unwrap();
    assert_eq!(roots.len(), 2, "one behind the other on a line");
    let said = |now| roots.warnings(now).join("\n");
    assert!(said(0).contains("`CN=weak` in ") && said(0).contains("1024 bits"), "{}", said(0));
    assert!(!said(0).contains("`CN=other`"), "{}", said(0));
    assert!(said(4_000_000_000).contains("`CN=other` in "), "{}", said(4_000_000_000));
    let cut = write(&scratch.path("cut"), &texts.concat().replacen("-----BEGIN", "----BEGIN", 1));
    assert!(Roots::read(&Trust::File(cut)).unwrap_err().to_string().contains("is damaged: line 1"));
}

/// From here on, a name that resolves to nothing may be mistaken for another: a server that shows
/// the certificate must have its key as well.
#[test]
fn who_trusts_anybody_still_wants_the_key() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.pair("ec", &["a.example"]), scratch.pair("ec", &["b.example"]));
    let mixed = rustls::sign::CertifiedKey::new(one.key.cert.clone(), Arc::clone(&two.key.key));
    for version in [&TLS12, &TLS13] {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .unwrap();
        let resolver = SingleCertAndKey::from(mixed.clone());
        let config = builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver));
        let mut wire =
            Wire::new(&terms(Trust::Anybody, None, &["a.example"]), 0, &Arc::new(config));
        assert!(wire.run().is_err() && wire.state.is_err(), "{:?}", wire.state);
    }
}

#[test]
fn a_certificate_is_shown_to_whoever_asks() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let files = scratch.signed(&ca, "leaf", "subjectAltName=DNS:a.example", 30);
    let ours = scratch.signed(&ca, "ours", "extendedKeyUsage=clientAuth", 30);
    for version in [&TLS12, &TLS13] {
        let config = server(&files, &[version], Some(&ca));
        let trust = Trust::File(ca.certificate.clone());
        let mut wire = Wire::new(&terms(trust.clone(), Some(&ours), &["a.example"]), 0, &config);
        wire.run().unwrap();
        assert_eq!(wire.server.peer_certificates().unwrap()[0], pair(&ours).key.cert[0]);
        // Without one the server rejects the client; in TLS 1.3 when the client has already
        // finished.
        let mut wire = Wire::new(&terms(trust, None, &["a.example"]), 0, &config);
        assert!(wire.run().is_err());
        let alert = wire.said();
        wire.hear(&alert);
        assert_eq!(wire.state, Err(Failure::Alert));
    }
}

#[test]
fn sessions_are_resumed_with_their_server_only_and_a_ticket_is_used_once() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let files = scratch.signed(&ca, "leaf", "subjectAltName=DNS:a.example", 30);
    for version in [&TLS12, &TLS13] {
        let config = server(&files, &[version], None);
        let terms = trusting(&ca, &["a.example", "a.example"]);
        let meet = |at: usize| {
            let mut wire = Wire::new(&terms, at, &config);
            wire.run().unwrap();
            wire.client.facts().resumed
        };
        assert!(!meet(0));
        assert!(meet(0));
        assert!(!meet(1), "another server of the same name");
        assert!(meet(1));
        terms.renew(&Roots::read(&terms.wanted().trust).unwrap(), None).unwrap();
        assert!(!meet(0), "whom to trust may have changed");
    }
    // Connections that begin at the same time have a ticket each, as long as any are left.
    let mut config = ServerConfig::clone(&server(&files, &[&TLS13], None));
    config.send_tls13_tickets = 2 * TICKETS_MAX;
    let (config, terms) = (Arc::new(config), trusting(&ca, &["a.example"]));
    Wire::new(&terms, 0, &config).run().unwrap();
    let mut wires: Vec<_> = (0..TICKETS_MAX + 3).map(|_| Wire::new(&terms, 0, &config)).collect();
    wires.iter_mut().for_each(|wire| wire.run().unwrap());
    let resumed = wires.iter().filter(|wire| wire.client.facts().resumed).count();
    assert_eq!(resumed, TICKETS_MAX);
}

#[test]
fn bytes_that_were_changed_end_it() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let files = scratch.signed(&ca, "leaf", "subjectAltName=DNS:a.example", 30);
    let config = server(&files, &[&TLS13], None);
    let terms = trusting(&ca, &["a.example"]);
    let mut wire = Wire::new(&terms, 0, &config);
    wire.answer().unwrap();
    let flight = wire.said();
    for at in (0..flight.len()).step_by(5) {
        let mut changed = flight.clone();
        changed[at] ^= 0x55;
        let mut wire = Wire::new(&terms, 0, &config);
        wire.hear(&changed);
        assert!(!matches!(wire.state, Ok(State::Open | State::Ended)), "{at}");
    }
}

#[test]
fn what_is_wrong_with_files_and_names_is_said() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let empty = write(&scratch.path("empty"), "");
    let good = std::fs::read_to_string(&ca.certificate).unwrap();
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let partly = write(&scratch.path("partly"), &[&good, nonsense].concat());
    let damaged = write(&scratch.path("damaged"), &good.replace("MII", "M*I"));
    let many = write(&scratch.path("many"), &nonsense.repeat(4097));
    for (path, text) in [
        (&scratch.path("gone"), "cannot read the certificates of CAs in"),
        (&empty, "has no certificate in PEM"),
        (&ca.key, "has no certificate in PEM"),
        (&damaged, "is damaged"),
        (&partly, "1 of 2 certificates in"),
        (&many, "4097 certificates, but it can have at most 4096"),
    ] {
        let said = Roots::read(&Trust::File(path.clone())).unwrap_err().to_string();
        assert!(said.contains(text), "{said}: should say: {text}");
    }
    let two = write(&scratch.path("two"), &good.repeat(2));
    assert!(!Roots::read(&Trust::File(two)).unwrap().is_empty());
    for name in ["", "a b", "a..b", "*.example", "[a.example]", "ä.example"] {
        assert!(PeerName::new(name).is_err(), "{name}");
    }
    for (name, text) in
        [("App.Internal", "app.internal"), ("[::1]", "::1"), ("10.1.2.3", "10.1.2.3")]
    {
        assert_eq!(PeerName::new(name).unwrap().text(), text);
    }
}
