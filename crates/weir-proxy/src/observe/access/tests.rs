//! Proves: a record becomes exactly one line with the right values, whatever bytes a client sent;
//! lines are written when responses are delivered or their client is gone. How: examples with every
//! name; property tests that read lines back.

use proptest::prelude::*;
use weir_http::{Fields, Limits};

use super::*;
use crate::base::keys::{ClientKey, ConnKey, ExchangeKey, Key};
use crate::ending::ClientEnd;
use crate::plan::{ServerPlan, UpstreamPlan};
use crate::request::pending_request::ConnId;

/// 2026-11-21T21:40:56Z, when the monotonic clock shows 10 s.
const OFFSET_US: i64 = 1_795_297_256_000_000 - 10_000_000;

fn client() -> ClientKey {
    ClientKey::new(0)
}

fn slot() -> ExchangeKey {
    ExchangeKey::new(0)
}

fn access(template: Template) -> Access {
    let servers = vec![ServerPlan::new("a.test:80", "192.0.2.1:80".parse().unwrap())];
    let plan = Plan {
        upstreams: vec![UpstreamPlan {
            name: "app".to_owned(),
            servers,
            ..UpstreamPlan::default()
        }],
        access_log: Some(AccessPlan { destination: Destination::Stdout, template }),
        ..Plan::default()
    };
    let mut access = *Access::new(&Arc::new(plan), 3).unwrap();
    access.set_wall(OFFSET_US, 3600);
    access.accepted(client(), "[::ffff:10.0.0.9]:4711".parse().unwrap());
    access
}

fn formatted(format: &str) -> Access {
    access(Template::compile(format, Escape::Default).unwrap())
}

fn lines(access: &mut Access) -> String {
    let mut text = Vec::new();
    let mut counted = 0;
    access.take_lines(|lines, count| (text, counted) = (lines.to_vec(), count));
    assert_eq!(text.iter().filter(|byte| **byte == b'\n').count() as u64, counted);
    String::from_utf8(text).expect("lines are UTF-8 unless a format asks for bytes")
}

/// Begins the exchange of slot 0 with a request, received at 9.0 s.
fn ask(access: &mut Access, request: &[u8]) {
    let mut fields = Fields::default();
    let head = weir_http::parse_request(request, &Limits::default(), &mut fields).unwrap().unwrap();
    let (record, names) = access.begin(slot(), 9_000_000);
    record.keep_request(request, &head, &fields, names);
}

const REQUEST: &[u8] = b"GET /a?b=c HTTP/1.1\r\nHost: WWW.test:81\r\nReferer: http://r/\r\n\
        User-Agent: x \"y\"\\\r\n\r\n";

/// A request that was put on a connection twice, and got its response.
fn answered(access: &mut Access) {
    ask(access, REQUEST);
    let record = access.record(slot()).unwrap();
    record.upstream = Some(0);
    record.forwarded_us = Some(9_000_100);
    record.first_sent_us = Some(9_000_300);
    record.first_connected_us = Some(9_000_250);
    let conn = ConnId { worker: 1, index: ConnKey::new(7), generation: 2 };
    record.placed = Some(Placed {
        conn,
        server: 0,
        sent_us: 9_100_300,
        connected_us: 1,
        before: 41,
        address: None,
    });
    record.tries = 2;
    record.begun_us = Some(9_200_300);
    record.ended_us = Some(9_300_000);
    record.status = 206;
    record.head_bytes = 100;
}

#[test]
fn combined_and_common() {
    for (preset, more) in [("combined", " \"http://r/\" \"x \\x22y\\x22\\x5C\""), ("common", "")] {
        let mut access = access(Template::preset(preset).unwrap());
        answered(&mut access);
        access.complete(client(), slot(), 1100, 10_000_000);
        assert_eq!(lines(&mut access), "", "nothing is delivered yet");
        access.delivered(client(), 1099, 10_000_000);
        assert_eq!(lines(&mut access), "");
        access.delivered(client(), 1, 10_000_000);
        let line = "10.0.0.9 - - [21/Nov/2026:22:40:56 +0100] \"GET /a?b=c HTTP/1.1\" 206 1000";
        assert_eq!(lines(&mut access), format!("{line}{more}\n"));
    }
}

#[test]
fn every_name_has_its_value() {
    for (name, expected) in [
        ("time_iso8601", "2026-11-21T22:40:56+01:00"),
        ("time_iso8601_msec", "2026-11-21T22:40:56.012+01:00"),
        ("msec", "1795297256.012"),
        ("start_msec", "1795297255.000"),
        ("remote_addr", "10.0.0.9"),
        ("remote_port", "4711"),
        ("remote_user", "-"),
        ("request", "GET /a?b=c HTTP/1.1"),
        ("request_method", "GET"),
        ("request_uri", "/a?b=c"),
        ("server_protocol", "HTTP/1.1"),
        ("host", "www.test"),
        ("request_length", "82"),
        ("status", "206"),
        ("body_bytes_sent", "1000"),
        ("bytes_sent", "1100"),
        ("request_time", "1.012345"),
        ("body_time", "-"),
        ("queue_time", "0.000200"),
        ("upstream_connect_time", "0.000150"),
        ("retry_time", "0.100000"),
        ("upstream_header_time", "0.100000"),
        ("upstream_response_time", "0.199700"),
        ("send_time", "0.712345"),
        ("upstream_name", "app"),
        ("upstream_addr", "192.0.2.1:80"),
        ("upstream_connection", "1:7:2"),
        ("upstream_reuse", "41"),
        ("upstream_worker", "1"),
        ("worker", "3"),
        ("tries", "2"),
        ("ended_by", "none"),
        ("phase", "done"),
        ("reason", "-"),
        ("http_referer", "http://r/"),
        ("http_x_absent", "-"),
    ] {
        let mut access = formatted(&format!("${name}"));
        answered(&mut access);
        access.complete(client(), slot(), 1100, 9_900_000);
        access.delivered(client(), 1100, 10_012_345);
        assert_eq!(lines(&mut access), format!("{expected}\n"), "{name}");
    }
}

/// A request that is refused early has no method, and its first line cannot make two lines.
#[test]
fn refused_bytes() {
    let mut access = formatted(
        "[$request] $request_method $request_uri $host $upstream_addr $tries $http_referer",
    );
    access.begin(slot(), 10_000_000).0.keep_refused(b"GET /\x00\x7f\" x\r\nA: b\r\n");
    access.complete(client(), slot(), 0, 10_000_000);
    assert_eq!(lines(&mut access), "[GET /\\x00\\x7F\\x22 x] - - - - 0 -\n");
}

#[test]
fn who_ended_it_and_where() {
    for (why, stage, status, expected) in [
        (ClientEnd::ClientReset, Stage::Wait, 0, "499 client wait client-reset"),
        (ClientEnd::ClientReset, Stage::Answer, 200, "200 client answer client-reset"),
        (ClientEnd::Closed, Stage::Queue, 0, "444 weir queue connection-closed"),
        (ClientEnd::SendTimeout, Stage::Answer, 200, "200 weir answer send-timeout"),
        (ClientEnd::TunnelEnded, Stage::Tunnel, 101, "101 none done -"),
    ] {
        let mut access = formatted("$status $ended_by $phase $reason");
        ask(&mut access, REQUEST);
        access.record(slot()).unwrap().status = status;
        access.abandon(client(), slot(), why.into(), stage, 10_000_000);
        assert_eq!(lines(&mut access), format!("{expected}\n"), "{why:?}");
    }
}

/// Responses that are complete but not at the client when it leaves are logged so, with the bytes
/// that were sent.
#[test]
fn undelivered_answers() {
    let mut access = formatted("$request_uri $status $bytes_sent $ended_by $phase");
    for (path, end) in [(0, 100), (1, 250), (2, 300)] {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n");
        ask(&mut access, request.as_bytes());
        access.record(slot()).unwrap().status = 200;
        access.complete(client(), slot(), end, 10_000_000);
    }
    access.delivered(client(), 120, 10_000_000);
    assert_eq!(lines(&mut access), "/0 200 100 none done\n");
    access.close(client(), ClientEnd::ClientReset.into(), 10_000_000);
    assert_eq!(lines(&mut access), "/1 200 20 client deliver\n/2 200 0 client deliver\n");
    // The next exchange in the slot starts fresh.
    access.accepted(client(), "10.0.0.1:1".parse().unwrap());
    ask(&mut access, REQUEST);
    access.complete(client(), slot(), 10, 10_000_000);
    access.delivered(client(), 10, 10_000_000);
    assert_eq!(lines(&mut access), "/a?b=c 0 10 none done\n");
}

#[test]
fn json_has_null_for_what_is_not_known() {
    let mut access = access(Template::preset("json").unwrap());
    access.begin(slot(), 10_000_000).0.keep_refused(b"x");
    access.complete(client(), slot(), 0, 10_000_000);
    let line = lines(&mut access);
    assert!(line.starts_with(
        "{\"time_iso8601_msec\":\"2026-11-21T22:40:56.000+01:00\",\"remote_addr\":\"10.0.0.9\","
    ));
    assert!(
        line.contains("\"request_method\":null,") && line.ends_with("\"http_user_agent\":null}\n"),
        "{line}"
    );
    assert!(JSON.iter().all(|name| line.contains(&format!("\"{name}\":"))), "{line}");
}

/// Returns the original of nginx's escape.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first == b'\\' {
            assert_eq!(rest[0], b'x', "a backslash that means nothing: {text}");
            let digits = std::str::from_utf8(&rest[1..3]).unwrap();
            bytes.push(u8::from_str_radix(digits, 16).unwrap());
            rest = &rest[3..];
        } else {
            bytes.push(*first);
        }
    }
    bytes
}

/// Returns the meaning of a JSON string, each character of an escaped byte as that byte.
fn unescape_json(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (c, rest.as_bytes().first()) {
            ('\\', Some(b'u')) => {
                bytes.push(u8::from_str_radix(&rest[3..5], 16).unwrap());
                assert_eq!(&rest[1..3], "00");
                rest = &rest[5..];
            }
            ('\\', Some(escaped)) => {
                bytes.push(*escaped);
                rest = &rest[1..];
            }
            _ => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        any::<char>().prop_map(|c| c.to_string().into_bytes()),
        prop::sample::select(vec![
            &b"\""[..],
            b"\\",
            b"\r\n",
            b"\\x22",
            b"\\u0022",
            b"\xff",
            b"\xe2\x80\xa8",
            b"\xc2\x9b",
            b"\x7f"
        ])
        .prop_map(<[u8]>::to_vec),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// No bytes make a second line or end a value, and none is lost.
    #[test]
    fn escapes_read_back(bytes in any_bytes()) {
        for escape in [Escape::Default, Escape::Json, Escape::JsonValue] {
            let mut out = Vec::new();
            render::Pen { out: &mut out, escape }.text(&bytes);
            let text = String::from_utf8(out).expect("valid UTF-8");
            prop_assert!(!text.contains(char::is_control), "{text:?}");
            if bytes.is_empty() {
                prop_assert!(matches!(text.as_str(), "-" | "" | "null"));
            } else if escape == Escape::Default {
                prop_assert!(text.is_ascii() && !text.contains('"'));
                prop_assert_eq!(unescape(&text), bytes.clone());
            } else {
                let inside =
                    if escape == Escape::JsonValue { &text[1..text.len() - 1] } else { &text[..] };
                prop_assert_eq!(unescape_json(inside), bytes.clone());
                prop_assert!(
                    inside
                        .match_indices('"')
                        .all(|(at, _)| at > 0 && inside.as_bytes()[at - 1] == b'\\')
                );
            }
        }
    }
}
