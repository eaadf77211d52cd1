//! Proves: the tools of the laboratory use TLS with its origin on both drivers, and their counts
//! match, each handshake by its outcome; untrusted certificates are rejected; wishes that can't be
//! fulfilled are rejected with the reason and the supported values. How: certificates made on the
//! spot, sockets on loopback, and servers that do what no TLS server does.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use weir_check::waiting::{CAP, Waiting};
use weir_io::IoChoice;
use weir_tls::Failure;

use super::*;
use crate::bomb::{
    self, Behaviour, Class, Connect, Counts, Ending, Handshake, Mix, Plan, Request, Spelling,
    Summary,
};
use crate::certificate::{Certificate, KeyKind};
use crate::origin::{Conduct, OriginHandle, OriginOptions, OriginStats, spawn_with};
use crate::probe::{self, Kind, Next, Place, ProbeOptions};
use crate::target::Target;

#[test]
fn what_there_is_has_the_names_of_the_registry() {
    assert!(suites().contains(&"TLS_AES_128_GCM_SHA256".to_owned()), "{:?}", suites());
    assert!(groups().contains(&"X25519".to_owned()), "{:?}", groups());
}

#[test]
fn what_can_not_be_had_is_refused_with_the_reason() {
    let anybody = || Wishes { trust: Trust::Anybody, ..Wishes::default() };
    let refused = |wishes: &Wishes| Client::new(wishes).unwrap_err();
    let why = refused(&Wishes { suite: Some("TLS_NULL".to_owned()), ..anybody() });
    assert!(why.contains("`TLS_NULL`") && why.contains("TLS_AES_128_GCM_SHA256"), "{why}");
    let why = refused(&Wishes { group: Some("p256".to_owned()), ..anybody() });
    assert!(why.contains("`p256`") && why.contains("secp256r1"), "{why}");
    let suite = Some("TLS_AES_128_GCM_SHA256".to_owned());
    let why = refused(&Wishes { suite, version: Some(Version::Tls12), ..anybody() });
    assert!(why.contains("TLS_AES_128_GCM_SHA256 does not work"), "{why}");
    let why =
        refused(&Wishes { trust: Trust::File("/nowhere/at.all".into()), ..Wishes::default() });
    assert!(why.contains("/nowhere/at.all: No such file"), "{why}");
    let empty = File::with("");
    let why = refused(&Wishes { trust: Trust::File(empty.0.clone()), ..Wishes::default() });
    assert!(why.contains("has no certificate in PEM"), "{why}");
    let why = refused(&Wishes { trust: Trust::File("/dev/null".into()), ..Wishes::default() });
    assert!(why.contains("/dev/null: it is a device"), "{why}");
    assert!(server_name("127.0.0.1").is_ok() && server_name("a.test").is_ok());
    assert!(server_name("-a-").unwrap_err().contains("`-a-`"));
}

/// For the prober, which has a separate wait for responses.
const DEADLINE: Duration = CAP;

/// A file of this test, removed at its end.
struct File(std::path::PathBuf);

impl File {
    fn with(text: &str) -> File {
        let name =
            format!("weir-lab-tls-{}-{:?}.pem", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn certificate(names: &[&str]) -> Certificate {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Certificate::make(KeyKind::EcdsaP256, &names).unwrap()
}

/// Runs a test body with an origin that has this certificate, on each driver that works here.
fn on_both_drivers(certificate: &Certificate, body: impl Fn(&OriginHandle, IoChoice)) {
    for io in [IoChoice::Epoll, IoChoice::Uring] {
        let options = OriginOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), threads: 2, io };
        let conduct =
            Conduct { seal: Some(certificate.terms(false).unwrap()), ..Conduct::default() };
        match spawn_with(options, conduct) {
            Ok(origin) => body(&origin, io),
            Err(error) if io == IoChoice::Uring => eprintln!("skipped on io_uring: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

fn caller(wishes: &Wishes) -> Caller {
    Caller::new(&Client::new(wishes).unwrap(), "127.0.0.1").unwrap()
}

fn anybody() -> Wishes {
    Wishes { trust: Trust::Anybody, ..Wishes::default() }
}

fn plan(address: SocketAddr, path: &str, io: IoChoice, tls: Option<Caller>) -> Plan {
    let is_tls = tls.is_some();
    let host = address.to_string();
    let target =
        Target { address, host, path: path.to_owned(), name: "127.0.0.1".to_owned(), is_tls };
    let request = Request::new(&target.host, path, 1, &Spelling::default()).unwrap();
    let class = Class {
        name: "all".to_owned(),
        target,
        connections: 4,
        rate: None,
        poisson: false,
        behaviour: Behaviour::Normal,
        sources: None,
        mix: Mix::new(vec![request]).unwrap(),
        http2: false,
        depth: 1,
        close_every: None,
        ending: Ending::Announced,
        seed: 1,
        drip: None,
        tls,
    };
    Plan {
        classes: vec![class],
        threads: 2,
        own: 0..2,
        io,
        duration_us: None,
        requests: Some(40),
        warm_up_us: 0,
        connect_timeout_us: 10_000_000,
        timeout_us: 10_000_000,
        late_us: 10_000_000,
        same_body: true,
        seed: 1,
        stop: Arc::default(),
    }
}

fn bomb(plan: &Plan) -> Counts {
    Summary::of(&bomb::run(plan, |_, _| {}).unwrap()).total.counted().clone()
}

/// Returns the origin's counts once all connections are closed.
fn when_quiet(origin: &OriginHandle) -> OriginStats {
    when_quiet_behind(origin, 0)
}

/// Does the same once it has counted at least this many connections: the origin counts a moment
/// after a client has seen the end.
fn when_quiet_behind(origin: &OriginHandle, connects: u64) -> OriginStats {
    let mut waiting = Waiting::begin();
    loop {
        let stats = origin.stats();
        if stats.connects >= connects && stats.connects == stats.closes {
            // Counters are read one after the other: earlier values may be from before the end.
            return origin.stats();
        }
        assert!(waiting.goes_on(), "{}: {stats:?}", waiting.story());
        std::thread::yield_now();
    }
}

fn probe(
    address: SocketAddr,
    tls: Option<Caller>,
    count: u64,
    close_every: Option<u64>,
) -> probe::Summary {
    let options = ProbeOptions {
        place: Place::Tcp(address),
        host: address.to_string(),
        path: "/?size=40000".to_owned(),
        count,
        pause: Duration::ZERO,
        threshold: DEADLINE,
        close_every,
        timeout: DEADLINE,
        tls,
    };
    let summary = Mutex::new(probe::Summary::new(DEADLINE.as_nanos() as u64));
    probe::run(&options, &summary, |_, _| Next::Continue);
    summary.into_inner().unwrap()
}

#[test]
fn every_request_over_tls_is_answered_and_every_handshake_counted() {
    on_both_drivers(&certificate(&["127.0.0.1"]), |origin, io| {
        // Bodies of many records, and of a part of one.
        for path in ["/?size=300000", "/"] {
            let counts = bomb(&plan(origin.local_addr(), path, io, Some(caller(&anybody()))));
            assert_eq!((counts.answered(), counts.failed()), (40, 0));
            // The others may be done before the last one has connected.
            assert_eq!(counts.handshakes(Handshake::Full), counts.connects(Connect::Established));
        }
        let mut each = plan(origin.local_addr(), "/", io, Some(caller(&anybody())));
        each.classes[0].close_every = Some(1);
        let counts = bomb(&each);
        // Some connections find that all requests are already under way.
        let made = counts.connects(Connect::Established);
        assert!(counts.answered() == 40 && made >= 40, "{:?}", counts.document());
        assert_eq!(counts.handshakes(Handshake::Full), made);
        assert_eq!(counts.handshakes(Handshake::Resumed), 0, "nobody asked for that");
        let stats = when_quiet(origin);
        assert_eq!((stats.requests, stats.resumed), (120, 0));
        assert!(stats.handshakes + stats.handshakes_failed >= made, "{stats:?}");
    });
}

#[test]
fn sessions_are_resumed_when_that_is_wanted_and_both_sides_say_how_often() {
    on_both_drivers(&certificate(&["127.0.0.1"]), |origin, io| {
        let mut before = origin.stats();
        for version in [Version::Tls12, Version::Tls13] {
            let wishes = Wishes { version: Some(version), resume: true, ..anybody() };
            let mut each = plan(origin.local_addr(), "/", io, Some(caller(&wishes)));
            each.classes[0].close_every = Some(1);
            let counts = bomb(&each);
            let (full, resumed) =
                (counts.handshakes(Handshake::Full), counts.handshakes(Handshake::Resumed));
            // The first connections of each thread have nothing to resume.
            assert!(full >= 2 && resumed > 0, "{full} {resumed}");
            assert_eq!(full + resumed, counts.connects(Connect::Established));
            let stats = when_quiet_behind(origin, before.connects + full + resumed);
            let since = stats.since(before);
            // Handshakes that the end of the run cut off may be complete for one side only.
            assert!(
                since.handshakes + since.handshakes_failed >= full + resumed,
                "{since:?} {resumed}"
            );
            assert!(since.resumed.abs_diff(resumed) <= 4, "{since:?} {resumed}");
            before = stats;
            let summary = probe(origin.local_addr(), Some(caller(&wishes)), 10, Some(2));
            assert_eq!((summary.answered, summary.connections), (10, 5));
            assert_eq!(when_quiet(origin).since(before).resumed, 4);
            before = origin.stats();
        }
    });
}

#[test]
fn one_version_suite_and_group_can_be_asked_for() {
    on_both_drivers(&certificate(&["127.0.0.1"]), |origin, io| {
        for suite in suites() {
            if suite.starts_with("TLS_ECDHE_RSA") {
                continue;
            }
            let wishes = Wishes { suite: Some(suite.clone()), ..anybody() };
            let summary = probe(origin.local_addr(), Some(caller(&wishes)), 2, None);
            assert_eq!(summary.answered, 2, "{suite}");
        }
        let offered = rustls::crypto::aws_lc_rs::default_provider().kx_groups;
        for group in offered.iter().map(|group| group_name(group.name())) {
            let wishes = Wishes { group: Some(group.clone()), ..anybody() };
            let counts = bomb(&plan(origin.local_addr(), "/", io, Some(caller(&wishes))));
            assert_eq!((counts.answered(), counts.failed()), (40, 0), "{group}");
            assert!(counts.handshakes(Handshake::Full) > 0, "{group}: {:?}", counts.document());
        }
    });
}

#[test]
fn whom_nobody_trusts_is_refused() {
    let (own, other) = (certificate(&["127.0.0.1"]), certificate(&["127.0.0.1"]));
    let elsewhere = certificate(&["elsewhere.test"]);
    let trusting = |certificate: &Certificate| {
        let file = File::with(&certificate.certificate);
        caller(&Wishes { trust: Trust::File(file.0.clone()), ..Wishes::default() })
    };
    on_both_drivers(&own, |origin, io| {
        let good = bomb(&plan(origin.local_addr(), "/", io, Some(trusting(&own))));
        assert_eq!((good.answered(), good.failed()), (40, 0));
        assert_eq!(probe(origin.local_addr(), Some(trusting(&own)), 3, Some(1)).answered, 3);
        let bad = bomb(&plan(origin.local_addr(), "/", io, Some(trusting(&other))));
        assert_eq!((bad.answered(), bad.connects(Connect::Established)), (0, 0));
        assert!(
            bad.connects(Connect::NoTls) >= 40
                && bad.handshakes(Handshake::Failed(Failure::UnknownCa)) >= 40,
            "{:?}",
            bad.document()
        );
        let summary = probe(origin.local_addr(), Some(trusting(&other)), 3, Some(1));
        assert_eq!((summary.answered, summary.failed_by(Kind::Tls)), (0, 3));
    });
    on_both_drivers(&elsewhere, |origin, io| {
        let bad = bomb(&plan(origin.local_addr(), "/", io, Some(trusting(&elsewhere))));
        assert!(
            bad.handshakes(Handshake::Failed(Failure::WrongName)) >= 40,
            "the name is another: {:?}",
            bad.document()
        );
        assert_eq!(
            probe(origin.local_addr(), Some(trusting(&elsewhere)), 3, Some(1)).failed_by(Kind::Tls),
            3
        );
    });
}

/// Runs a server that does this with each connection until it has done it `count` times.
fn server(count: usize, act: fn(std::net::TcpStream)) -> (SocketAddr, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let join = std::thread::spawn(move || {
        for stream in listener.incoming().take(count) {
            act(stream.unwrap());
        }
    });
    (address, join)
}

#[test]
fn handshakes_that_fail_are_counted_by_why() {
    let leaves: fn(std::net::TcpStream) = |mut stream| {
        let _ = stream.read(&mut [0; 4096]).unwrap();
    };
    let speaks_http: fn(std::net::TcpStream) = |mut stream| {
        let _ = stream.read(&mut [0; 4096]).unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    };
    let alerts: fn(std::net::TcpStream) = |mut stream| {
        let _ = stream.read(&mut [0; 4096]).unwrap();
        // handshake_failure, RFC 8446 §6.2.
        let _ = stream.write_all(&[0x15, 3, 3, 0, 2, 2, 40]);
        let _ = stream.read(&mut [0; 16]);
    };
    let rows = [(leaves, Failure::Left), (speaks_http, Failure::NotTls), (alerts, Failure::Alert)];
    for io in [IoChoice::Epoll, IoChoice::Auto] {
        for (act, why) in rows {
            let (address, server) = server(40, act);
            let mut one = plan(address, "/", io, Some(caller(&anybody())));
            (one.threads, one.own, one.classes[0].connections) = (1, 0..1, 1);
            let counts = bomb(&one);
            server.join().unwrap();
            assert_eq!(
                counts.handshakes(Handshake::Failed(why)),
                40,
                "{why:?}: {:?}",
                counts.document()
            );
            assert_eq!(counts.connects(Connect::NoTls), 40);
            let (address, server) = self::server(2, act);
            assert_eq!(
                probe(address, Some(caller(&anybody())), 2, Some(1)).failed_by(Kind::Tls),
                2,
                "{why:?}"
            );
            server.join().unwrap();
        }
    }
}
