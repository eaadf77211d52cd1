//! Proves: clients that ask get the response of the file with the certificate that it is about, in
//! both versions, and only while it is valid and says that all is well; other kinds of files are
//! reported in words. How: responses of `openssl`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use super::files::{Scratch, openssl, write};
use super::wire::{ECDSA, Wire, terms};
use crate::pairs::{Files, Pair};
use crate::staple::Staple;
use crate::terms::provider;

const NAMES: &str = "subjectAltName=DNS:a.example\n";
const DAY_S: i64 = 86_400;

/// A response of a CA about certificates, of which the second was revoked, and others it does not
/// know; good for a day.
fn response(
    scratch: &Scratch,
    ca: &Files,
    known: &[&Files],
    about: &[&Files],
    stem: &str,
) -> PathBuf {
    let (index, out) = (scratch.path(&format!("{stem}.index")), scratch.path(stem));
    let mut rows = String::new();
    for (at, files) in known.iter().enumerate() {
        let output = Command::new("openssl")
            .args(["x509", "-noout", "-serial", "-in"])
            .arg(&files.certificate)
            .output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let serial = text.trim().trim_start_matches("serial=");
        let (letter, revoked) = if at == 1 { ("R", "200101000000Z") } else { ("V", "") };
        rows += &format!("{letter}\t990101000000Z\t{revoked}\t{serial}\tunknown\t/CN=leaf\n");
    }
    write(&index, &rows);
    let mut command = Command::new("openssl");
    command.args(["ocsp", "-ndays", "1", "-index"]).arg(&index).arg("-CA").arg(&ca.certificate);
    command
        .arg("-rsigner")
        .arg(&ca.certificate)
        .arg("-rkey")
        .arg(&ca.key)
        .arg("-issuer")
        .arg(&ca.certificate);
    for files in about {
        command.arg("-cert").arg(&files.certificate);
    }
    openssl(command.arg("-respout").arg(&out));
    out
}

/// Accepts everything, and notes the response that came with the certificate.
#[derive(Debug, Default)]
struct Noting(Mutex<Vec<u8>>);

impl ServerCertVerifier for Noting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        response: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        *self.0.lock().unwrap() = response.to_vec();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![ECDSA]
    }
}

fn now() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap()
}

#[test]
fn clients_get_the_response_with_its_certificate() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let leaf = scratch.signed(&ca, "leaf", NAMES, 9);
    let path = response(&scratch, &ca, &[&leaf], &[&leaf], "ocsp");
    let (pair, staple) = (Pair::read(&leaf, &provider()).unwrap(), Staple::read(&path).unwrap());
    assert_eq!(staple.misfit(&pair, now()), None);
    for version in [&TLS12, &TLS13] {
        for (pair, expected) in
            [(pair.clone(), Vec::new()), (pair.stapled(&staple), std::fs::read(&path).unwrap())]
        {
            let noting = Arc::new(Noting::default());
            let builder = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[version])
                .unwrap();
            let builder =
                builder.dangerous().with_custom_certificate_verifier(Arc::clone(&noting) as Arc<_>);
            let mut wire = Wire::new(
                &terms(&[pair], |_| ()),
                &Arc::new(builder.with_no_client_auth()),
                "a.example",
            );
            wire.run().unwrap();
            assert_eq!(*noting.0.lock().unwrap(), expected, "{version:?}");
        }
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let scratch = Scratch::new();
    let (ca, other) = (scratch.ca("ca"), scratch.ca("other"));
    let [good, bad, strange] =
        ["good", "bad", "strange"].map(|stem| scratch.signed(&ca, stem, NAMES, 9));
    let elsewhere = scratch.signed(&other, "elsewhere", NAMES, 9);
    let [good_pair, bad_pair, strange_pair, elsewhere_pair] =
        [&good, &bad, &strange, &elsewhere].map(|files| Pair::read(files, &provider()).unwrap());
    let all =
        Staple::read(&response(&scratch, &ca, &[&good, &bad], &[&good, &bad, &strange], "ocsp"))
            .unwrap();
    let misfit = |pair: &Pair, now| all.misfit(pair, now).unwrap_or_default();
    assert_eq!(misfit(&good_pair, now()), "");
    assert!(misfit(&good_pair, now() + 2 * DAY_S).contains("ocsp expired on 20"));
    assert!(misfit(&bad_pair, now()).ends_with("was revoked"));
    assert!(misfit(&strange_pair, now()).contains("does not know the certificate"));
    assert!(misfit(&elsewhere_pair, now()).contains("is not for the certificate in "));
}

#[test]
fn files_of_something_else_and_every_cut() {
    let scratch = Scratch::new();
    let ca = scratch.ca("ca");
    let leaf = scratch.signed(&ca, "leaf", NAMES, 9);
    let whole = std::fs::read(response(&scratch, &ca, &[&leaf], &[&leaf], "ocsp")).unwrap();
    let of = |bytes: &[u8]| {
        std::fs::write(scratch.path("file"), bytes).unwrap();
        Staple::read(&scratch.path("file")).map(|_| ()).map_err(|bad| bad.to_string())
    };
    assert_eq!(of(&whole), Ok(()));
    for cut in 0..whole.len() {
        assert!(of(&whole[..cut]).is_err(), "{cut}");
        for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
            let mut changed = whole.clone();
            changed[cut] = byte;
            let _ = of(&changed);
        }
    }
    // "Try later" (RFC 6960 §4.2.1).
    assert!(of(&[0x30, 3, 0x0a, 1, 3]).unwrap_err().contains("its status is 3"));
    assert!(
        of(&std::fs::read(&leaf.certificate).unwrap())
            .unwrap_err()
            .contains("no OCSP response (DER)")
    );
    assert!(
        Staple::read(&scratch.path("gone"))
            .unwrap_err()
            .to_string()
            .contains("cannot read the OCSP response")
    );
}
