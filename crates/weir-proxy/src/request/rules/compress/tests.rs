//! Proves: which coding results from which preferences, including nonsense and very many; which
//! responses are compressed, and their heads then. How: tables.

use proptest::prelude::*;
use weir_http::{Limits, ReplyContext};

use super::*;

fn rule() -> Compress {
    Compress {
        codings: vec![(Coding::Zstd, 3), (Coding::Br, 4), (Coding::Gzip, 5)],
        types: TYPES.iter().map(|one| (*one).to_owned()).collect(),
        length_min: 1024,
    }
}

/// What a client accepts that sends these lines.
fn accepted(rule: &Compress, lines: &str) -> Accepted {
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
    let mut fields = Fields::default();
    let limits = Limits { head_bytes_max: 1 << 20, fields_max: 10_000, ..Limits::default() };
    weir_http::parse_request(text.as_bytes(), &limits, &mut fields)
        .expect("a head")
        .expect("all of it");
    rule.accepted(&fields, text.as_bytes())
}

/// The name of the coding, or the reason against one.
fn coding(lines: &str) -> &'static str {
    accepted(&rule(), lines).coding.map_or_else(Passed::word, |(coding, _)| coding.word())
}

#[test]
fn wishes() {
    for (value, expected) in [
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip, deflate, br", "br"),
        ("gzip", "gzip"),
        ("GZIP", "gzip"),
        ("x-gzip", "gzip"),
        ("", "unwanted"),
        ("deflate, compress, dcb", "unwanted"),
        ("*", "zstd"),
        ("*;q=0", "unwanted"),
        ("*;q=0, gzip", "gzip"),
        ("*, zstd;q=0", "br"),
        ("zstd;q=0.5, gzip;q=0.8, br;q=0.1", "gzip"),
        ("gzip;q=0.001", "gzip"),
        ("gzip;q=0", "unwanted"),
        ("gzip;q=0.000", "unwanted"),
        ("gzip; q=1.000 ,br;q=0.9", "gzip"),
        ("gzip ; Q=0.3", "gzip"),
        ("identity", "unwanted"),
        ("identity, gzip", "gzip"),
        ("identity;q=1, gzip;q=0.5", "unwanted"),
        ("identity;q=0.5, gzip;q=0.5", "gzip"),
        ("identity;q=0, gzip", "gzip"),
        ("identity;q=0", "unwanted"),
        // An invalid weight says nothing of its coding.
        ("gzip;q=2", "unwanted"),
        ("gzip;q=1.001", "unwanted"),
        ("gzip;q=0.1234", "unwanted"),
        ("gzip;q=-1", "unwanted"),
        ("gzip;q=", "unwanted"),
        ("gzip;q", "unwanted"),
        ("gzip;level=9", "unwanted"),
        ("gzip;q=1;q=1", "unwanted"),
        ("gz ip, br", "br"),
        (",,;;,=, ;q=1,gzip", "gzip"),
        ("\"gzip\"", "unwanted"),
        ("gzip\u{e9}, br", "br"),
        ("gzip, gzip;q=0", "unwanted"),
    ] {
        assert_eq!(coding(&format!("Accept-Encoding: {value}\r\n")), expected, "{value}");
    }
    assert_eq!(coding(""), "unwanted");
    assert_eq!(
        coding("Accept-Encoding: gzip\r\naccept-encoding: br\r\n"),
        "br",
        "lines are one list"
    );
    assert_eq!(coding("Connection: accept-encoding\r\nAccept-Encoding: br\r\n"), "unwanted");
    assert_eq!(
        coding("Accept-Encoding: br\r\nCache-Control: max-age=0, No-Transform\r\n"),
        "no-transform"
    );
    let many = "x;q=0.5, ".repeat(20_000);
    assert_eq!(coding(&format!("Accept-Encoding: {many}gzip\r\n")), "gzip");
}

#[test]
fn among_equals_the_order_of_the_rule_decides() {
    let mut rule = rule();
    rule.codings = vec![(Coding::Gzip, 5), (Coding::Zstd, 3)];
    let is = |value: &str| accepted(&rule, &format!("Accept-Encoding: {value}\r\n")).coding;
    assert_eq!(is("br, zstd, gzip"), Ok((Coding::Gzip, 5)));
    assert_eq!(is("br, zstd, gzip;q=0.9"), Ok((Coding::Zstd, 3)));
    assert_eq!(is("br"), Err(Passed::Unwanted));
}

#[test]
fn identity_that_is_refused() {
    let must = |value: &str| accepted(&rule(), &format!("Accept-Encoding: {value}\r\n")).must;
    assert!(must("gzip, identity;q=0") && must("gzip, *;q=0") && must("*;q=0"));
    assert!(!must("gzip") && !must("gzip, *;q=0, identity;q=0.1") && !must(""));
}

/// The decision about a response: coding or why not, and whether it varies.
fn judged(
    status: u16,
    fields: &[(&str, &str)],
    length: Option<u64>,
    accept: &str,
) -> (&'static str, bool) {
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
    let rule = rule();
    let accepted = accepted(&rule, &format!("Accept-Encoding: {accept}\r\n"));
    let verdict = accepted.judge(&rule, &ReplyParts::made(status, &fields), length);
    (verdict.coding.map_or_else(Passed::word, |(coding, _)| coding.word()), verdict.varies)
}

#[test]
fn media_types() {
    for (pattern, media_type, expected) in [
        ("*/*", "image/png", true),
        ("*/*", "image", false),
        ("text/*", "TEXT/css", true),
        ("text/*", "texts/css", false),
        ("application/*+json", "application/problem+json", true),
        ("application/*+json", "application/json", false),
        ("*/*+xml", "image/svg+xml", true),
        ("text/html", "text/html5", false),
    ] {
        assert_eq!(
            fits(pattern.as_bytes(), media_type.as_bytes()),
            expected,
            "{pattern} {media_type}"
        );
    }
}

#[test]
fn answers() {
    let html = ("Content-Type", "text/html; charset=utf-8");
    for (status, fields, length, accept, expected) in [
        (200, &[html][..], Some(1024), "gzip", ("gzip", true)),
        (404, &[html], Some(5000), "br", ("br", true)),
        (200, &[html], None, "gzip", ("gzip", true)),
        (200, &[html], Some(1024), "", ("unwanted", true)),
        (200, &[html], Some(1023), "gzip", ("small", false)),
        (200, &[html], Some(3), "gzip, identity;q=0", ("gzip", true)),
        (200, &[html], Some(0), "gzip, identity;q=0", ("small", false)),
        (206, &[html], Some(5000), "gzip", ("partial", false)),
        (200, &[html, ("content-range", "bytes 0-1/2")], None, "gzip", ("partial", false)),
        (200, &[html, ("Content-Encoding", "identity")], None, "gzip", ("encoded", false)),
        (
            200,
            &[html, ("Cache-Control", "private"), ("cache-control", "a, no-transform")],
            None,
            "gzip",
            ("no-transform", false),
        ),
        (200, &[html, ("Cache-Control", "x=no-transform")], None, "gzip", ("gzip", true)),
        (200, &[], None, "gzip", ("type", false)),
        (200, &[("Content-Type", "image/png")], None, "gzip", ("type", false)),
        (200, &[("Content-Type", "Application/Problem+JSON ;a=b")], None, "gzip", ("gzip", true)),
        (200, &[("Content-Type", "application/json5")], None, "gzip", ("type", false)),
        (200, &[("Content-Type", "text")], None, "gzip", ("type", false)),
        (200, &[("Content-Type", "text/event-stream")], None, "gzip", ("gzip", true)),
    ] {
        assert_eq!(
            judged(status, fields, length, accept),
            expected,
            "{status} {fields:?} {length:?} {accept}"
        );
    }
}

/// The fields of a head after [`with_coding`].
fn fields_of(
    lines: &str,
    removed: &[&[u8]],
    added: &[(&[u8], &[u8])],
    coding: Option<Coding>,
) -> String {
    let text = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
    let mut fields = Fields::default();
    let head = weir_http::parse_reply(
        text.as_bytes(),
        &Limits::default(),
        ReplyContext::default(),
        &mut fields,
    );
    let head = head.expect("a head").expect("all of it");
    let parts = ReplyParts::received(text.as_bytes(), &head, &fields).without(removed).with(added);
    with_coding(&parts, coding, coding.is_some(), |parts| {
        let mut all: Vec<_> = parts
            .fields()
            .map(|(name, value)| {
                format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(&value))
            })
            .collect();
        all.sort();
        all.join("\n")
    })
}

#[test]
fn heads() {
    let lines = "ETag: \"a\"\r\nAccept-Ranges: bytes\r\nContent-MD5: x\r\ncontent-digest: y\r\n\
        Digest: z\r\nRepr-Digest: w\r\nA: b\r\n";
    let gzip = Some(Coding::Gzip);
    assert_eq!(
        fields_of(lines, &[], &[], gzip),
        "A: b\nContent-Encoding: gzip\nETag: W/\"a\"\nVary: Accept-Encoding"
    );
    let plain = fields_of("ETag: \"a\"\r\nAccept-Ranges: bytes\r\n", &[], &[], None);
    assert_eq!(plain, "Accept-Ranges: bytes\nETag: \"a\"\nVary: Accept-Encoding");
    assert_eq!(
        fields_of("ETag: W/\"a\"\r\n", &[], &[], None),
        "ETag: W/\"a\"\nVary: Accept-Encoding"
    );
    assert_eq!(
        fields_of("ETag: W/\"a\"\r\nVary: *\r\n", &[], &[], gzip),
        "Content-Encoding: gzip\nETag: W/\"a\"\nVary: *"
    );
    let vary = fields_of("Vary: Origin\r\nVary: Cookie, accept-ENCODING\r\n", &[], &[], None);
    assert_eq!(vary, "Vary: Cookie, accept-ENCODING\nVary: Origin");
    assert_eq!(
        fields_of("Vary: Origin\r\n", &[], &[], None),
        "Vary: Accept-Encoding\nVary: Origin"
    );
    // Fields set by rules count like received ones.
    let set = fields_of("ETag: \"a\"\r\n", &[b"etag"], &[(b"etag", b"\"b\""), (b"B", b"c")], gzip);
    assert_eq!(set, "B: c\nContent-Encoding: gzip\nETag: W/\"b\"\nVary: Accept-Encoding");
}

proptest! {
    /// Whatever a client prefers: no coding that it has refused, and none that the rule lacks.
    #[test]
    fn nothing_that_is_refused(
        value in "[ -~]{0,60}|((gzip|br|zstd|identity|\\*)(;q=[01](\\.[0-9]{0,3})?)?, ?){0,8}",
    ) {
        let value = value.trim().to_owned();
        let got = accepted(&rule(), &format!("Accept-Encoding: {value}\r\n")).coding;
        if let Ok((coding, _)) = got {
            let wanted = |name: &str| value.to_ascii_lowercase().contains(name);
            prop_assert!(wanted(coding.word()) || wanted("*"), "{value}");
            // Of several the last counts.
            let refused = format!("{};q=0", coding.word());
            let last = value.rfind(coding.word()).map_or("", |at| &value[at..]);
            prop_assert!(last != refused && !last.starts_with(&format!("{refused},")), "{value}");
        }
    }
}
