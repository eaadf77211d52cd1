//! Proves: the screen is readable at 80 columns and shows the problems of servers. How: a made-up
//! document with a server in each kind of trouble, and the expected screens beside this file.

use std::path::Path;

use super::*;
use crate::admin::document::{
    self, Answers, Clients, Connections, Io, Latency, Suspect, Window, Worker,
};
use crate::status::detail::detail;

fn server(name: &str, state: &str, why: Option<&str>) -> Server {
    let latency = Latency {
        count: 300_000,
        p50_us: Some(210),
        p90_us: Some(1_900),
        p99_us: Some(34_000),
        max_us: Some(1_200_000),
        ..Latency::default()
    };
    Server {
        name: name.to_owned(),
        address: name.to_owned(),
        weight: 50,
        state: state.to_owned(),
        why: why.map(str::to_owned),
        usable: state == "up",
        connections: Connections { up: 32, configured: 32, ..Connections::default() },
        in_flight: 130,
        trust: "trusted".to_owned(),
        depth: 16,
        window: Window {
            seconds: 300.0,
            requests_per_second: 2804.2,
            requests_per_second_now: 6103.4,
            answers: Answers { c2xx: 1_800_000, c4xx: 312, c5xx: 0, ..Answers::default() },
            retries: 0,
            latency,
        },
        ..Server::default()
    }
}

fn worker(number: usize, responsive: bool, starved_permille: u32) -> Worker {
    let took = |p99_us| Latency {
        count: 9,
        p50_us: Some(32),
        p99_us: Some(p99_us),
        max_us: Some(61_000),
        ..Latency::default()
    };
    Worker {
        number,
        responsive,
        clients: responsive.then_some(320),
        open_requests: 195,
        pinning: "pinned".to_owned(),
        starved_permille,
        turn: took(410),
        kernel_wait: took(12_000),
        ..Worker::default()
    }
}

fn suspect(path: &str, deaths: u32, state: &str) -> Suspect {
    Suspect {
        upstream: "app".to_owned(),
        method: "GET".to_owned(),
        host: "www.example.org".to_owned(),
        path: path.to_owned(),
        deaths,
        state: state.to_owned(),
        left_us: if state == "refused" { 48_000_000 } else { 0 },
    }
}

fn troubled() -> Status {
    let mut slow = server("10.0.0.2:9090", "up", None);
    slow.window.latency = Latency {
        p50_us: Some(84_000),
        p90_us: Some(950_000),
        p99_us: Some(12_300_000),
        ..slow.window.latency
    };
    (slow.waiting, slow.window.answers.c5xx, slow.window.retries, slow.connections.up) =
        (40, 17, 120, 30);
    slow.last_problem = Some(Problem { word: "reset".to_owned(), ago_us: 3_000_000 });
    let mut dead = server("10.0.0.3:9090", "down", Some("connect-failed"));
    (dead.connections.up, dead.in_flight, dead.window) = (0, 0, Window::default());
    dead.last_problem = Some(Problem { word: "connect-failed".to_owned(), ago_us: 72_000_000 });
    let mut liar = server("10.0.0.4:9090", "up", None);
    (liar.trust, liar.depth) = ("surplus".to_owned(), 1);
    let mut suspended = server("127.0.0.1:9091", "suspended", Some("answers"));
    suspended.suspended_us = 12_000_000;
    let healthy = server("10.0.0.1:9090", "up", None);
    let drained = server("app-5.internal:8080", "draining", Some("ordered"));
    Status {
        version: 1,
        weir: "0.1.0".to_owned(),
        pid: 4242,
        uptime_seconds: 93_784.0,
        state: "running".to_owned(),
        ready: true,
        io: Io { driver: "io_uring".to_owned(), ..Io::default() },
        window_seconds: 300,
        clients: Clients {
            connections: 640,
            in_flight: 390,
            waiting: 40,
            window: healthy.window.clone(),
            ..Clients::default()
        },
        workers: vec![worker(0, true, 3), worker(1, false, 380)],
        upstreams: vec![
            Upstream {
                name: "app".to_owned(),
                usable: true,
                servers: vec![healthy, slow, dead, liar, drained],
            },
            Upstream { name: "legacy".to_owned(), usable: true, servers: vec![suspended] },
        ],
        suspects: vec![
            suspect("/report", 4, "refused"),
            suspect("/slow\u{1b}[2J", 3, "suspect"),
            suspect("/", 1, "noted"),
        ],
        ..Status::default()
    }
}

fn one_server() -> document::ServerStatus {
    let row = |number, state: &str, closed_why: Option<&str>| document::Row {
        number,
        worker: number as usize % 2,
        state: state.to_owned(),
        since_us: 72_000_000,
        in_flight: 3,
        queued: 1,
        answers: 12_345,
        glitches: number,
        closes: u64::from(closed_why.is_some()),
        closed_why: closed_why.map(str::to_owned),
        ..document::Row::default()
    };
    let totals = serde_json::json!({
        "requests": 1_800_312, "retries": 2, "doubts": { "garbage": 2 },
        "glitches": { "line-fold": 7 }, "closes": { "reset": 1 }
    });
    document::ServerStatus {
        version: 1,
        upstream: "app".to_owned(),
        server: Server {
            totals: totals.as_object().expect("an object").clone().into_iter().collect(),
            penalty_us: 41_000_000,
            penalty_for: Some("garbage".to_owned()),
            trust: "penalty".to_owned(),
            depth: 1,
            bounds: document::ServerBounds {
                limit: Some(document::ConcurrencyLimit {
                    requests: 48,
                    before: 96,
                    gain_percent: 41,
                }),
                ..document::ServerBounds::default()
            },
            last_problem: Some(Problem { word: "reset".to_owned(), ago_us: 3_000_000 }),
            ..server("10.0.0.2:9090", "up", None)
        },
        statuses: [(200, 1_800_000), (404, 312)].into(),
        classes: [
            ("GET /", "alike", 0),
            ("GET /user/*?", "new", 12),
            ("GET /a", "overtaken", 256),
            ("GET /b", "slower", 0),
        ]
        .map(|(shape, sharing, missing)| document::Class {
            shape: shape.to_owned(),
            usual_us: 1_200,
            sharing: sharing.to_owned(),
            missing,
        })
        .into(),
        rows: vec![
            row(0, "busy", None),
            row(1, "probation", Some("reset")),
            document::Row { retry_us: 250_000, ..row(2, "down", Some("connect-failed")) },
        ],
    }
}

/// Compares with a stored screen; `UPDATE=1` writes it.
fn same(name: &str, shown: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/status/overview").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, shown).unwrap();
    }
    assert_eq!(shown, std::fs::read_to_string(&file).unwrap_or_default(), "{name}");
}

#[test]
fn screens_are_as_stored() {
    let plain = |width| Look { width, colour: false };
    for (name, width) in [("wide.txt", usize::MAX), ("narrow.txt", 80)] {
        let shown = overview(&troubled(), plain(width));
        // Sentences may be longer than the table.
        let table = shown.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        assert!(
            table.clone().count() >= 8
                && table.into_iter().all(|line| line.chars().count() <= width),
            "{shown}"
        );
        same(name, &shown);
    }
    same("server.txt", &detail(&one_server(), plain(80)));
    let wide = detail(&one_server(), plain(usize::MAX));
    let cells = |line: usize| {
        wide.lines().rev().nth(line).expect("a row").split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!((cells(3)[7], cells(0)[10]), ("GLITCHES", "2"), "{wide}");
    same("line.txt", &line(&troubled()));
}

/// Sick servers are first whatever the order, and the others follow it.
#[test]
fn who_is_sick_is_seen_first() {
    let look = Look { width: 80, colour: false };
    for (name, sort) in [("watched.txt", Sort::Configured), ("watched-slow.txt", Sort::Slow)] {
        let page = watched(&troubled(), look, sort);
        let shown = [page.head.as_slice(), &["-".repeat(80)], &page.body, &[String::new()]]
            .concat()
            .join("\n");
        let rows =
            page.body.iter().filter(|line| line.starts_with("app ") || line.starts_with("legacy "));
        assert!(
            rows.clone().count() == 6 && rows.into_iter().all(|line| line.chars().count() <= 80),
            "{shown}"
        );
        same(name, &shown);
    }
    for (name, short) in [
        ("abcdefghij", "abcdefghij"),
        ("abcdefghijk", "abcd..hijk"),
        ("äöüäöüäöüäöü", "äöüä..üäöü"),
    ] {
        assert_eq!(shortened(name, 10), short);
    }
}

/// A doubt that lasts until an operator clears it is shown by its name.
#[test]
fn what_lasts_has_its_reason() {
    for (doubt, reason) in
        [(None, "it sent a surplus response"), (Some("misframing"), "misframing")]
    {
        let (mut status, mut page) = (troubled(), one_server());
        for server in status
            .upstreams
            .iter_mut()
            .flat_map(|upstream| &mut upstream.servers)
            .chain([&mut page.server])
        {
            (server.trust, server.penalty_for) = ("surplus".to_owned(), doubt.map(str::to_owned));
        }
        let look = Look { width: usize::MAX, colour: false };
        for shown in [overview(&status, look), detail(&page, look)] {
            let line = format!("not pipelined: {reason}; `weir server clear` after it is repaired");
            assert!(shown.contains(&line), "{line} is not in {shown}");
        }
    }
}

#[test]
fn colours_are_only_added() {
    let coloured = overview(&troubled(), Look { width: 80, colour: true });
    assert!(coloured.contains("\x1b[31m17\x1b[0m"), "{coloured}");
    let mut plain = coloured;
    for code in ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"] {
        plain = plain.replace(code, "");
    }
    assert_eq!(plain, overview(&troubled(), Look { width: 80, colour: false }));
}

#[test]
fn a_drain_ends_without_alarm() {
    let mut status = troubled();
    (status.state, status.ready, status.unready) =
        ("draining".to_owned(), false, Some("draining".to_owned()));
    for worker in &mut status.workers {
        (worker.responsive, worker.ended) = (false, true);
    }
    let shown = overview(&status, Look { width: 80, colour: true });
    assert!(shown.contains("worker 1 has ended") && !shown.contains("\x1b[31m"), "{shown}");
    status.state = "running".to_owned();
    assert!(
        overview(&status, Look { width: 80, colour: true }).contains("\x1b[31mworker 0 has ended")
    );
}

#[test]
fn an_empty_document_is_a_screen_too() {
    assert!(overview(&Status::default(), Look { width: 1, colour: true }).contains("weir"));
    assert!(
        !detail(&document::ServerStatus::default(), Look { width: 1, colour: false }).is_empty()
    );
}
