//! Rows C: target, authority, routing (RFC 9112 §3.2; RFC 9110 §7).

use super::{Expect, Leaving, Rows, SMUGGLED, get};

/// Adds the rows.
pub(super) fn add(rows: &mut Rows) {
    hosts(rows);
    absolute_forms(rows);
    forms(rows);
    paths(rows);
    forwarded(rows);
    methods(rows);
}

fn hosts(rows: &mut Rows) {
    rows.bad("C1", "none", "GET / HTTP/1.1\r\nX: a\r\n\r\n");
    rows.bad("C1", "two_equal", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n");
    rows.bad("C1", "two_different", "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\nhost: b\r\n\r\n");
    let bad = [
        ("empty", ""),
        ("comma", "a,b"),
        ("user", "u@a"),
        ("slash", "a/b"),
        ("port_99999", "a:99999"),
        ("port_letters", "a:8x"),
        ("nul", "a\0b"),
        ("open_bracket", "[::1"),
        ("space", "a b"),
        ("query", "a?b"),
        ("fragment", "a#b"),
        ("backslash", "a\\b"),
        ("latin1", "\u{e9}"),
    ];
    for (name, host) in bad {
        rows.bad("C1", name, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n{SMUGGLED}"));
    }
    rows.bad("C1", "two_in_http_10", "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n");
    let none = Expect::OneOf(vec![
        Expect::Forwarded(vec![Leaving::new("GET", "/")]),
        Expect::Local(&[404]),
    ]);
    rows.add("C1", "none_in_http_10_is_fine", "GET / HTTP/1.0\r\n\r\n", none);
    for (name, host) in [("address_and_port", "127.0.0.1:80"), ("ipv6", "[::1]:8080")] {
        let left = Leaving { host: Some(host), ..Leaving::new("GET", "/") };
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        rows.add("C1", &format!("{name}_is_fine"), &text, Expect::Forwarded(vec![left]));
    }
}

fn absolute_forms(rows: &mut Rows) {
    let to = |target: &str| Leaving { host: Some("b"), ..Leaving::new("GET", target) };
    let with = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
    rows.add("C2", "host_is_replaced", &with("http://b/p?q"), Expect::Forwarded(vec![to("/p?q")]));
    rows.add("C2", "without_path", &with("http://b"), Expect::Forwarded(vec![to("/")]));
    let query = Expect::OneOf(vec![Expect::Forwarded(vec![to("/?q")]), Expect::Refused(&[400])]);
    rows.add("C2", "query_without_path", &with("http://b?q"), query);
    rows.bad("C2", "user", &with("http://u@b/"));
    rows.bad("C2", "no_authority", &with("http:///p"));
    rows.bad("C2", "fragment", &with("http://b/#f"));
    rows.bad("C2", "bad_port", &with("http://b:99999/"));
    let both = "GET http://b/1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n";
    let second = Leaving { host: Some("a"), ..Leaving::new("GET", "/2") };
    rows.add("C2", "is_not_inherited", both, Expect::Forwarded(vec![to("/1"), second]));
}

fn forms(rows: &mut Rows) {
    let with = |line: &str| format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
    rows.bad("C3", "get_asterisk", &with("GET *"));
    rows.add(
        "C3",
        "options_asterisk",
        &with("OPTIONS *"),
        Expect::Forwarded(vec![Leaving::new("OPTIONS", "*")]),
    );
    rows.bad("C3", "connect_path", &with("CONNECT /x"));
    rows.add("C3", "connect", &with("CONNECT a:443"), Expect::Refused(&[400, 403, 405, 501]));
    let connect = format!("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n{SMUGGLED}");
    rows.add("C3", "connect_with_more", &connect, Expect::Refused(&[400, 403, 405, 501]));
    rows.add(
        "C3",
        "two_slashes",
        &with("GET //evil"),
        Expect::Forwarded(vec![Leaving::new("GET", "//evil")]),
    );
    rows.bad("C3", "no_slash", &with("GET foo"));
    rows.bad("C3", "authority", &with("GET a:80"));
    rows.bad("C3", "fragment", &with("GET /a#b"));
    rows.bad("C3", "fragment_in_query", &with("GET /a?b#c"));
    rows.bad("C3", "other_scheme", &with("GET ftp://a/"));
    rows.bad("C3", "latin1", &with("GET /\u{e9}"));
}

/// The forwarded bytes are those that were judged; targets that applications read differently are
/// rejected.
fn paths(rows: &mut Rows) {
    let with = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
    let same = [
        ("dot_segments", "/a/../admin"),
        ("encoded_dots", "/%2e%2e/"),
        ("two_slashes", "//admin"),
        ("encoded_slash", "/%2fadmin"),
    ];
    for (name, target) in same {
        let either =
            vec![Expect::Forwarded(vec![Leaving::new("GET", target)]), Expect::Refused(&[400])];
        rows.add("C4", name, &with(target), Expect::OneOf(either));
    }
    // The framing is beyond doubt, so the connection may remain open.
    for (name, target) in [("parameter", "/a;/../admin"), ("dot_with_parameter", "/a/.;/../admin")]
    {
        rows.add("C4", name, &with(target), Expect::Local(&[400]));
    }
    rows.bad("C4", "encoded_nul", &with("/admin%00"));
    rows.bad("C4", "overlong", &with("/%c0%ae"));
    rows.bad("C4", "overlong_slash", &with("/a%e0%80%af"));
    let latin1 = "/%E4pfel/%C0%B4";
    rows.add("C4", "no_utf8", &with(latin1), Expect::Forwarded(vec![Leaving::new("GET", latin1)]));
    rows.bad("C4", "backslash", &with("\\admin"));
}

fn forwarded(rows: &mut Rows) {
    let left = || Leaving { without: vec!["6.6.6.6", "evil"], ..Leaving::new("GET", "/") };
    let text = get(
        "X-Forwarded-For: 6.6.6.6, 6.6.6.6\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Proto: evil\r\n\
        Forwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n",
    );
    rows.add("C7", "is_overwritten", &text, Expect::Forwarded(vec![left()]));
    let lines = get(&"x-forwarded-FOR: 6.6.6.6\r\n".repeat(3));
    rows.add("C7", "three_lines", &lines, Expect::Forwarded(vec![left()]));
    let others = get("X-Forwarded-Port: evil\r\nX-Forwarded-Prefix: /evil\r\n");
    rows.add("C7", "others_of_the_family", &others, Expect::Forwarded(vec![left()]));
}

fn methods(rows: &mut Rows) {
    let with = |method: &str| format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
    rows.bad("C8", "not_a_token", &with("GET=\":;"));
    rows.bad("C8", "empty", &with(""));
    let lower = Expect::OneOf(vec![
        Expect::Forwarded(vec![Leaving::new("get", "/")]),
        Expect::Refused(&[400, 501]),
        Expect::Local(&[501]),
    ]);
    rows.add("C8", "lower_case", &with("get"), lower);
    rows.add(
        "C8",
        "http_2_preface",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        Expect::Refused(&[400, 505]),
    );
    rows.add(
        "C8",
        "pri_in_http_11",
        "PRI * HTTP/1.1\r\nHost: a\r\n\r\n",
        Expect::Refused(&[400, 501]),
    );
    let long: &'static str = Box::leak("M".repeat(1024).into_boxed_str());
    let unknown = Expect::OneOf(vec![
        Expect::Forwarded(vec![Leaving::new(long, "/")]),
        Expect::Refused(&[400, 414, 501]),
        Expect::Local(&[501]),
    ]);
    rows.add("C8", "token_of_1_kib", &with(long), unknown);
    // Idempotence follows from the request line alone: it remains a GET and may be followed.
    let kept =
        Leaving { fields: vec![("x-http-method-override", "DELETE")], ..Leaving::new("GET", "/") };
    let text = get("X-HTTP-Method-Override: DELETE\r\n");
    rows.add("C9", "override_is_not_read", &text, Expect::Forwarded(vec![kept]));
}
