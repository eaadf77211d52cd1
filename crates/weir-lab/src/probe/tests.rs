//! Proves: a stall is found and named with its phase, failures are those that the server counted,
//! each by its kind and none among the latencies, and percentiles are those of the responses. How:
//! the origin misbehaves on loopback; where a server must do what the origin doesn't, a scripted
//! socket.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixListener;

use weir_check::waiting::CAP;
use weir_io::IoChoice;

use super::*;
use crate::origin::{self, Misbehaviours, OriginHandle, OriginOptions};

fn origin(misbehaviours: &str) -> OriginHandle {
    let options =
        OriginOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), threads: 1, io: IoChoice::Epoll };
    let misbehaviours = if misbehaviours.is_empty() {
        Misbehaviours::default()
    } else {
        misbehaviours.parse().unwrap()
    };
    origin::spawn_misbehaving(options, misbehaviours).unwrap()
}

fn options(place: Place, path: &str, count: u64) -> ProbeOptions {
    ProbeOptions {
        place,
        host: "a".to_owned(),
        path: path.to_owned(),
        count,
        pause: Duration::ZERO,
        threshold: CAP,
        close_every: Some(1),
        timeout: CAP,
        tls: None,
    }
}

fn to(origin: &OriginHandle, path: &str, count: u64) -> ProbeOptions {
    options(Place::Tcp(origin.local_addr()), path, count)
}

fn probe(options: &ProbeOptions) -> (Summary, Vec<Finding>) {
    let nanoseconds = u64::try_from(options.threshold.as_nanos()).unwrap();
    let (summary, mut findings) = (Mutex::new(Summary::new(nanoseconds)), Vec::new());
    run(options, &summary, |_, finding| {
        findings.extend(finding.cloned());
        Next::Continue
    });
    (summary.into_inner().unwrap(), findings)
}

/// Returns the total time and the slowest phase of a slow response.
fn slow(finding: &Finding) -> (u64, Phase) {
    match &finding.outcome {
        Outcome::Answered { times, .. } => (times.total_ns(), times.slowest()),
        failed => panic!("{failed:?}"),
    }
}

#[test]
fn a_stall_is_found_and_named_with_its_phase() {
    for (wrong, path, phase) in [
        ("stall=300:every=20", "/", Phase::FirstByte),
        ("slow-drip=9000:150:every=20", "/?size=20000", Phase::Body),
    ] {
        let origin = origin(wrong);
        let options =
            ProbeOptions { threshold: Duration::from_millis(290), ..to(&origin, path, 60) };
        let (summary, findings) = probe(&options);
        let expected: Vec<&Finding> =
            findings.iter().filter(|finding| finding.number % 20 == 0).collect();
        assert_eq!(expected.len(), 3, "{findings:?}");
        for finding in expected {
            let (total_ns, slowest) = slow(finding);
            assert!(total_ns >= 290_000_000 && slowest == phase, "{finding:?}");
            assert!(
                finding.text().contains(" slow: ") && finding.text().ends_with(phase.name()),
                "{}",
                finding.text()
            );
            assert_eq!(finding.json()["slowest"], phase.name().replace(' ', "_"));
        }
        assert_eq!(
            (summary.answered, summary.failed(), summary.slow),
            (60, 0, findings.len() as u64)
        );
    }
}

#[test]
fn failures_are_counted_by_kind_as_the_server_counts_them() {
    for (wrong, misdeed, kind, phase) in [
        ("reset=33%", origin::Kind::Reset, Kind::Reset, Phase::FirstByte),
        ("hang-up=33%", origin::Kind::HangUp, Kind::Closed, Phase::FirstByte),
        ("truncate=33%", origin::Kind::Truncate, Kind::Truncated, Phase::Body),
        ("reset-mid-body=33%", origin::Kind::ResetMidBody, Kind::Reset, Phase::Body),
        ("status=503:33%", origin::Kind::Status, Kind::Status, Phase::Body),
    ] {
        let origin = origin(wrong);
        // With a threshold of zero, every response is reported.
        let options = ProbeOptions { threshold: Duration::ZERO, ..to(&origin, "/?size=9", 100) };
        let (summary, findings) = probe(&options);
        let misdeeds = origin.stop().unwrap().misbehaved.count(misdeed);
        assert!(misdeeds > 10, "{wrong}");
        assert_eq!(
            (summary.failed_by(kind), summary.failed()),
            (misdeeds, misdeeds),
            "{wrong}: {}",
            summary.text()
        );
        assert_eq!(summary.answered, 100 - misdeeds);
        assert_eq!(
            summary.json()["latency"]["total"]["count"],
            100 - misdeeds,
            "only answers have a latency"
        );
        let failed = |finding: &&Finding| {
            matches!(
                finding.outcome,
                Outcome::Failed { kind: k, phase: p, .. } if k == kind && p == phase
            )
        };
        assert_eq!(
            findings.iter().filter(failed).count() as u64,
            misdeeds,
            "{wrong}: {findings:?}"
        );
    }
}

#[test]
fn what_never_comes_is_a_timeout_and_not_a_latency() {
    let origin = origin("no-answer:every=3");
    let (summary, findings) =
        probe(&ProbeOptions { timeout: Duration::from_millis(300), ..to(&origin, "/", 6) });
    assert_eq!((summary.answered, summary.failed_by(Kind::Timeout)), (4, 2));
    assert!(
        findings[0].text().contains("  failed: timeout in first byte, after 3"),
        "{}",
        findings[0].text()
    );
}

#[test]
fn a_body_that_drips_beyond_the_time_out_is_given_up_and_the_next_request_has_all_its_time() {
    let origin = origin("slow-drip=1000:40:every=2");
    let timeout = Duration::from_millis(400);
    let options = ProbeOptions { timeout, close_every: None, ..to(&origin, "/?size=100000", 3) };
    let (summary, findings) = probe(&options);
    assert_eq!((summary.answered, summary.failed_by(Kind::Timeout)), (2, 1), "{findings:?}");
    assert!(matches!(
        &findings[0].outcome,
        Outcome::Failed { phase: Phase::Body, after_ns: 400_000_000.., .. }
    ));
}

#[test]
fn nobody_there_is_refused_and_a_full_queue_is_a_timeout_of_connecting() {
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let (summary, _) = probe(&options(Place::Tcp(gone), "/", 2));
    assert_eq!((summary.failed_by(Kind::Refused), summary.connections), (2, 0));
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap().as_socket().unwrap();
    let _first = std::net::TcpStream::connect(address).unwrap();
    let options = ProbeOptions {
        timeout: Duration::from_millis(200),
        ..options(Place::Tcp(address), "/", 1)
    };
    let (summary, findings) = probe(&options);
    assert_eq!(summary.failed_by(Kind::Timeout), 1, "{findings:?}");
    assert!(
        matches!(findings[0].outcome, Outcome::Failed { phase: Phase::Connect, .. }),
        "{findings:?}"
    );
}

#[test]
fn connections_are_used_as_often_as_told_and_renewed_when_the_server_ends_them() {
    for (wrong, close_every, connections) in
        [("", Some(1), 12), ("", Some(5), 3), ("", None, 1), ("close-after=4", None, 3)]
    {
        let origin = origin(wrong);
        let (summary, _) =
            probe(&ProbeOptions { close_every, ..to(&origin, "/?size=70000&chunked=1", 12) });
        assert_eq!(
            (summary.answered, summary.connections, summary.renewed),
            (12, connections, 0),
            "{wrong}"
        );
        assert_eq!(origin.stop().unwrap().connects, connections);
    }
    let origin = origin("hang-up-after=2");
    let options = ProbeOptions {
        close_every: None,
        pause: Duration::from_millis(20),
        ..to(&origin, "/", 10)
    };
    let (summary, findings) = probe(&options);
    // The end may be on its way when the next request is sent: that request fails, and no other
    // may.
    assert_eq!(
        (summary.renewed + summary.failed(), summary.answered + summary.failed()),
        (4, 10),
        "{findings:?}"
    );
}

#[test]
fn two_answers_are_no_answer() {
    let origin = origin("answer-twice:every=2");
    let (summary, findings) = probe(&ProbeOptions { close_every: None, ..to(&origin, "/", 9) });
    let malformed = summary.failed_by(Kind::Malformed);
    assert_eq!((summary.answered + malformed, summary.failed()), (9, malformed), "{findings:?}");
    assert!(malformed >= 3, "{findings:?}");
}

#[test]
fn percentiles_are_those_of_the_requests() {
    let origin = origin("");
    let options =
        ProbeOptions { threshold: Duration::ZERO, close_every: Some(3), ..to(&origin, "/", 500) };
    let (summary, findings) = probe(&options);
    let mut totals: Vec<u64> = findings.iter().map(|finding| slow(finding).0).collect();
    totals.sort_unstable();
    assert_eq!(totals.len(), 500);
    for (quantile, nth) in [(0.5, 249), (0.9, 449), (0.99, 494), (1.0, 499)] {
        let (told, exact) = (summary.quantile_ns(quantile) as f64, totals[nth] as f64);
        assert!((told / exact - 1.0).abs() < 0.002, "{quantile}: {told} and {exact}");
    }
}

#[test]
fn a_unix_socket_is_asked_the_same_way() {
    let path = std::env::temp_dir().join(format!("weir-probe-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut asked, mut piece) = (Vec::new(), [0; 1024]);
        while asked.windows(4).filter(|bytes| bytes == b"\r\n\r\n").count() < 3 {
            let length = stream.read(&mut piece).unwrap();
            asked.extend_from_slice(&piece[..length]);
            stream
                .write_all(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Le")
                .unwrap();
            stream.write_all(b"ngth: 2\r\n\r\nok").unwrap();
        }
        String::from_utf8(asked).unwrap()
    });
    let (summary, findings) =
        probe(&ProbeOptions { close_every: None, ..options(Place::Unix(path.clone()), "/x?y", 3) });
    assert_eq!((summary.answered, summary.connections), (3, 1), "{findings:?}");
    let asked = server.join().unwrap();
    assert!(
        asked.starts_with("GET /x?y HTTP/1.1\r\nHost: a\r\n")
            && asked.ends_with("Connection: close\r\n\r\n"),
        "{asked}"
    );
    let (summary, _) = probe(&options(Place::Unix(path.clone()), "/", 1));
    assert_eq!(summary.failed_by(Kind::Refused), 1, "nobody listens there any more");
    std::fs::remove_file(&path).unwrap();
    let (summary, _) = probe(&options(Place::Unix(path), "/", 1));
    assert_eq!(summary.failed_by(Kind::Refused), 1, "there is no such socket");
}
