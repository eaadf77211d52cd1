//! Proves: changed files are read again; bad ones leave the previous certificate in force, and are
//! reported once, after any replacement in progress. How: files of `openssl`, checks at times of
//! the test.

use std::path::PathBuf;
use std::process::Command;

use weir_config::TlsFiles;
use weir_proxy::plan::{CertificatePlan, ClientCertificatesPlan, ServerPlan};

use super::*;

const DAY_S: i64 = 86_400;

/// A directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path =
            std::env::temp_dir().join(format!("weir-certificates-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    /// Makes a certificate for a name, with its key, for this many days.
    fn make(&self, file: &str, name: &str, days: u32) -> (PathBuf, PathBuf) {
        let (certificate, key) =
            (self.0.join(format!("{file}.pem")), self.0.join(format!("{file}.key")));
        let days = days.to_string();
        let output = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-nodes",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
            ])
            .args([
                "-subj",
                "/CN=weir",
                "-days",
                &days,
                "-addext",
                &format!("subjectAltName=DNS:{name}"),
                "-keyout",
            ])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .expect("openssl is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (certificate, key)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn plan(files: &[&(PathBuf, PathBuf)]) -> Plan {
    let certificate = |(certificate, key): &&(PathBuf, PathBuf)| CertificatePlan {
        certificate: certificate.clone(),
        key: key.clone(),
        ocsp: None,
    };
    let tls = TlsPlan {
        certificates: files.iter().map(certificate).collect(),
        only_tls13: false,
        strict_sni: false,
        tickets: true,
        ticket_keys: None,
        clients: None,
        handshake_timeout_us: 10_000_000,
    };
    let plain = ListenerPlan::new("127.0.0.1:80".parse().unwrap());
    let sealed =
        ListenerPlan { tls: Some(tls), ..ListenerPlan::new("127.0.0.1:443".parse().unwrap()) };
    Plan { listeners: vec![plain, sealed], ..Plan::default() }
}

fn look(certificates: &mut Certificates, now: i64) -> Vec<String> {
    let mut lines = Vec::new();
    certificates.look(now, &mut |line| lines.push(line.to_string()));
    lines
}

/// Replaces a file with another.
fn exchange(from: &PathBuf, to: &PathBuf) {
    let new = to.with_extension("new");
    std::fs::copy(from, &new).unwrap();
    std::fs::rename(new, to).unwrap();
}

/// Opens the files of a plan.
fn opened(plan: &Plan) -> Result<Certificates, Failure> {
    open(plan)?.with_servers(plan)
}

#[test]
fn files_that_change_are_read_again() {
    let scratch = Scratch::new("change");
    let (one, two) =
        (scratch.make("one", "one.example", 30), scratch.make("two", "two.example", 90));
    let mut certificates = opened(&plan(&[&one])).unwrap();
    let board = certificates.board();
    let names = || board.shown().into_iter().flat_map(|shown| shown.names).collect::<Vec<_>>();
    let seals = certificates.seals();
    assert!(
        seals[0].is_none()
            && seals[1].as_ref().is_some_and(|seal| seal.handshake_timeout_us == 10_000_000)
    );
    assert_eq!(
        (look(&mut certificates, now()), names()),
        (Vec::new(), vec!["one.example".to_owned()])
    );

    // The certificate arrives first; that its key is still missing is no error yet.
    exchange(&two.0, &one.0);
    assert_eq!(look(&mut certificates, now()), Vec::<String>::new());
    exchange(&two.1, &one.1);
    let told = look(&mut certificates, now());
    assert!(told.len() == 1 && told[0].contains("one.pem again; it expires on 20"), "{told:?}");
    assert_eq!(
        (names(), look(&mut certificates, now())),
        (vec!["two.example".to_owned()], Vec::new())
    );

    // A lasting error is reported once, even if it changes into another error.
    for text in ["nonsense", ""] {
        std::fs::write(&one.1, text).unwrap();
        assert_eq!(look(&mut certificates, now()), Vec::<String>::new());
        let told = look(&mut certificates, now());
        assert!(
            told.len() == 1 && told[0].contains("the previous certificate remains in force"),
            "{told:?}"
        );
        assert_eq!(look(&mut certificates, now()), Vec::<String>::new());
        assert!(
            board.shown()[0]
                .problem
                .as_ref()
                .is_some_and(|problem| problem.contains("no private key"))
        );
    }
    std::fs::remove_file(&one.0).unwrap();
    assert_eq!(
        (look(&mut certificates, now()).len(), look(&mut certificates, now()).len()),
        (0, 1)
    );
    assert_eq!(names(), ["two.example"]);
    exchange(&two.0, &one.0);
    exchange(&two.1, &one.1);
    assert_eq!(look(&mut certificates, now()).len(), 1);
    assert_eq!(board.shown()[0].problem, None);
}

#[test]
fn one_that_is_bad_keeps_no_other_from_being_new() {
    let scratch = Scratch::new("others");
    let (one, two) =
        (scratch.make("one", "one.example", 30), scratch.make("two", "two.example", 30));
    let new = scratch.make("new", "new.example", 30);
    let mut certificates = opened(&plan(&[&one, &two])).unwrap();
    std::fs::write(&one.0, "").unwrap();
    exchange(&new.0, &two.0);
    exchange(&new.1, &two.1);
    look(&mut certificates, now());
    look(&mut certificates, now());
    let shown = certificates.board().shown();
    assert_eq!((&shown[0].names[0][..], &shown[1].names[0][..]), ("one.example", "new.example"));
    assert!(shown[0].problem.is_some() && shown[1].problem.is_none());
}

#[test]
fn what_clients_are_judged_by_is_read_again() {
    let scratch = Scratch::new("clients");
    let (one, ca, other) = (
        scratch.make("one", "one.example", 30),
        scratch.make("ca", "ca", 30),
        scratch.make("other", "other", 30),
    );
    let mut plan = plan(&[&one]);
    plan.listeners[1].tls.as_mut().unwrap().clients = Some(ClientCertificatesPlan {
        authorities: ca.0.clone(),
        revocations: None,
        required: true,
        told: false,
    });
    let mut certificates = opened(&plan).unwrap();
    let board = certificates.board();
    assert_eq!(board.files(), [FileShown { file: ca.0.display().to_string(), problem: None }]);
    assert_eq!(look(&mut certificates, now()), Vec::<String>::new());
    std::fs::write(&ca.0, "").unwrap();
    assert_eq!(look(&mut certificates, now()), Vec::<String>::new());
    let told = look(&mut certificates, now());
    assert!(
        told.len() == 1 && told[0].ends_with("weir still judges clients by the previous content"),
        "{told:?}"
    );
    assert!(
        board.files()[0]
            .problem
            .as_ref()
            .is_some_and(|problem| problem.contains("no certificate in PEM"))
    );
    assert_eq!(board.shown()[0].problem, None);
    exchange(&other.0, &ca.0);
    let told = look(&mut certificates, now());
    assert!(
        told.len() == 1 && told[0].ends_with("ca.pem: 1 certificates, 0 revocation lists"),
        "{told:?}"
    );
    assert_eq!(
        (board.files()[0].problem.as_ref(), look(&mut certificates, now())),
        (None, Vec::new())
    );
    // Without the CA no certificate could be verified.
    std::fs::remove_file(&ca.0).unwrap();
    assert!(open(&plan).is_err());
}

#[test]
fn the_end_is_told_when_it_comes_near_and_when_it_is_there() {
    let scratch = Scratch::new("age");
    let one = scratch.make("one", "one.example", 30);
    let mut certificates = opened(&plan(&[&one])).unwrap();
    let end = certificates.board().shown()[0].not_after;
    let mut told = Vec::new();
    for left in [20, 13, 12, 1, -1, -2] {
        told.extend(look(&mut certificates, end - left * DAY_S));
    }
    assert!(
        told.len() == 2 && told[0].contains("in 13 days") && told[1].contains("expired on"),
        "{told:?}"
    );
}

#[test]
fn what_is_bad_at_the_start_is_a_bad_configuration() {
    let scratch = Scratch::new("start");
    let (one, two) =
        (scratch.make("one", "one.example", 30), scratch.make("two", "two.example", 30));
    let Err(Failure::Configuration(text)) = open(&plan(&[&(one.0.clone(), two.1)])) else {
        panic!("it was taken")
    };
    assert!(text.contains("does not match the certificate"), "{text}");
    let of = |certificate, key| TlsFiles::Certificate { certificate, key };
    assert!(check(of(&one.0, &one.0)).unwrap_err().contains("no private key"));
    assert_eq!(check(of(&one.0, &one.1)), Ok(Vec::new()));
    let clients = |authorities| TlsFiles::Clients { authorities, revocations: None };
    assert_eq!(check(clients(&one.0)), Ok(Vec::new()));
    for check in [check, check_to_run] {
        assert!(check(clients(&one.1)).unwrap_err().contains("has no certificate in PEM"));
        assert!(
            check(TlsFiles::Authorities(Some(&one.1)))
                .unwrap_err()
                .contains("has no certificate in PEM")
        );
    }
    let none = opened(&Plan::default()).unwrap();
    assert!(none.seals().is_empty() && none.start().is_ok());
}

/// Servers may come and go for ever: weir drops the files of servers whose slots have been reused.
#[test]
fn what_no_server_has_any_more_is_dropped() {
    let scratch = Scratch::new("servers");
    let (trusted, _) = scratch.make("ca", "app.example", 30);
    let tls = weir_config::parse(
        &format!(
            "upstream \"app\" {{ server \"10.0.0.1:443\"; tls {{ ca \"{}\"; name \"app.example\" \
                }} }}\nlisten \"127.0.0.1:80\"\nroute {{ proxy \"app\" }}\n",
            trusted.display()
        ),
        "weir.kdl",
    );
    let plan = tls.expect("valid").plan;
    let mut certificates = opened(&plan).unwrap();
    let (sender, wishes) = channel();
    let watcher = Watcher(Arc::new(Mutex::new(Some(sender))));
    let mut seals = certificates.server_seals();
    for round in 2..40_u8 {
        let address = std::net::SocketAddr::from(([10, 0, 0, round], 443));
        let mut next = plan.clone();
        next.upstreams[0].servers.push(ServerPlan::new(&address.to_string(), address));
        let given: Vec<usize> = (1..seals.len()).collect();
        seals = watcher.seals(&next, seals, &given).unwrap();
        assert!(seals.iter().all(Option::is_some));
        while let Ok(Wish::Add(servers)) = wishes.try_recv() {
            certificates.add(*servers);
        }
        assert!(
            certificates.upstreams.len() <= 3,
            "the one that began, the last and the one before it"
        );
    }
    assert!(certificates.upstreams.iter().all(Servers::are_used));
    drop(seals);
    assert_eq!(certificates.upstreams.iter().filter(|servers| servers.are_used()).count(), 1);
}
