//! Rows B: lines and fields (RFC 9112 §2.2, §3, §5; RFC 9110 §5, §7.6).

use super::{Expect, Leaving, Rows, SMUGGLED, get};

/// Adds the rows.
pub(super) fn add(rows: &mut Rows) {
    line_ends(rows);
    control_bytes(rows);
    folds_and_names(rows);
    first_lines(rows);
    limits(rows);
    connection_options(rows);
    loops(rows);
}

fn line_ends(rows: &mut Rows) {
    rows.bad("B1", "request_line", &format!("GET / HTTP/1.1\nHost: a\r\n\r\n{SMUGGLED}"));
    rows.bad("B1", "field", &format!("GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n{SMUGGLED}"));
    rows.bad("B1", "end", &format!("GET / HTTP/1.1\r\nHost: a\r\n\n{SMUGGLED}"));
    rows.bad("B1", "everywhere", "GET / HTTP/1.1\nHost: a\n\n");
    rows.bad("B1", "in_value", &get("X: a\nEvil: b\r\n"));
    rows.bad("B2", "in_name", &get("X\rY: b\r\n"));
    rows.bad("B2", "in_value", &get("X: a\rEvil: b\r\n"));
    rows.bad("B2", "before_colon", &get("X\r: b\r\n"));
    rows.bad("B2", "ends_request_line", "GET / HTTP/1.1\rHost: a\r\n\r\n");
    rows.bad("B2", "twice", &get("X: a\r\r\n"));
}

fn control_bytes(rows: &mut Rows) {
    for byte in (0u8..0x20).chain([0x7f]).filter(|byte| !b"\r\n".contains(byte)) {
        let c = char::from(byte);
        rows.bad("B3", &format!("{byte:02x}_in_name"), &get(&format!("X{c}Y: b\r\n")));
        rows.bad(
            "B3",
            &format!("{byte:02x}_in_target"),
            &format!("GET /a{c}b HTTP/1.1\r\nHost: a\r\n\r\n"),
        );
        if byte != b'\t' {
            rows.bad("B3", &format!("{byte:02x}_in_value"), &get(&format!("X: a{c}b\r\n")));
            rows.bad("B3", &format!("{byte:02x}_ends_value"), &get(&format!("X: a{c}\r\n")));
        }
    }
}

fn folds_and_names(rows: &mut Rows) {
    rows.bad("B4", "fold", &get("X: a\r\n b\r\n"));
    rows.bad("B4", "fold_with_tab", &get("X: a\r\n\tb\r\n"));
    rows.bad("B4", "before_first_field", "GET / HTTP/1.1\r\n X: a\r\nHost: a\r\n\r\n");
    rows.bad("B4", "fold_of_host", "GET / HTTP/1.1\r\nHost:\r\n a\r\n\r\n");
    rows.bad("B4", "blank_line_of_space", &get("X: a\r\n \r\n"));
    rows.bad("B5", "host", "GET / HTTP/1.1\r\nHost : a\r\n\r\n");
    rows.bad("B5", "any", &get("X : a\r\n"));
    rows.bad("B5", "tab", &get("X\t: a\r\n"));
    rows.bad("B6", "empty", &get(": x\r\n"));
    rows.bad("B6", "latin1", &get("T\u{e9}st: a\r\n"));
    rows.bad("B6", "space", &get("a b: c\r\n"));
    rows.bad("B6", "no_colon", &get("nocolon\r\n"));
    rows.bad("B6", "byte_80", &get("\u{80}: a\r\n"));
    rows.bad("B6", "byte_ff", &get("\u{ff}: a\r\n"));
    rows.bad("B6", "slash", &get("a/b: c\r\n"));
    let dropped = Leaving { without: vec!["6.6.6.6"], ..Leaving::new("GET", "/") };
    rows.add(
        "B7",
        "forwarded_for",
        &get("X_Forwarded_For: 6.6.6.6\r\n"),
        Expect::Forwarded(vec![dropped]),
    );
}

fn first_lines(rows: &mut Rows) {
    let with = |line: &str| format!("{line}\r\nHost: a\r\n\r\n");
    rows.bad("B8", "two_spaces", &with("GET  / HTTP/1.1"));
    rows.bad("B8", "space_behind", &with("GET / HTTP/1.1 "));
    rows.bad("B8", "leading_space", &with(" GET / HTTP/1.1"));
    rows.bad("B8", "tab", &with("GET\t/ HTTP/1.1"));
    rows.bad("B8", "target_with_space", &with("GET /a b HTTP/1.1"));
    rows.add("B8", "version_1_2", &with("GET / HTTP/1.2"), Expect::Refused(&[400, 505]));
    rows.add("B8", "version_2_0", &with("GET / HTTP/2.0"), Expect::Refused(&[505]));
    rows.add("B8", "version_11", &with("GET / HTTP/11"), Expect::Refused(&[400, 505]));
    rows.bad("B8", "lower_case_version", &with("GET / http/1.1"));
    rows.bad("B8", "version_09", "GET /\r\n\r\n");
    let method = with(&format!("{} / HTTP/1.1", "M".repeat(1 << 20)));
    rows.add("B8", "method_of_1_mib", &method, Expect::Refused(&[400, 414, 501]));
    let target = with(&format!("GET /{} HTTP/1.1", "t".repeat(64 << 10)));
    rows.add("B8", "target_of_64_kib", &target, Expect::Refused(&[414]));
    let long = format!("/{}", "t".repeat(7985));
    let line = with(&format!("GET {long} HTTP/1.1"));
    rows.add(
        "B8",
        "line_of_8000_is_fine",
        &line,
        Expect::Forwarded(vec![Leaving::new("GET", &long)]),
    );
    rows.bad("B8", "crlf_1000_times", &format!("{}{}", "\r\n".repeat(1000), get("")));
    let one = Expect::Forwarded(vec![Leaving::new("GET", "/")]);
    rows.add("B8", "one_leading_crlf_is_fine", &format!("\r\n{}", get("")), one);
}

fn limits(rows: &mut Rows) {
    let too_large = || Expect::Refused(&[431]);
    let fields = |count: usize| (1..count).map(|n| format!("X-{n}: y\r\n")).collect::<String>();
    rows.add("B9", "101_fields", &get(&fields(101)), too_large());
    rows.add(
        "B9",
        "100_fields_are_fine",
        &get(&fields(100)),
        Expect::Forwarded(vec![Leaving::new("GET", "/")]),
    );
    rows.add(
        "B9",
        "field_of_64_kib",
        &get(&format!("X: {}\r\n", "y".repeat(64 << 10))),
        too_large(),
    );
    rows.add(
        "B9",
        "name_of_64_kib",
        &get(&format!("{}: y\r\n", "X".repeat(64 << 10))),
        too_large(),
    );
    let large = get(&format!("X: {}\r\n", "y".repeat(16 << 10)));
    rows.add(
        "B9",
        "field_of_16_kib_is_fine",
        &large,
        Expect::Forwarded(vec![Leaving::new("GET", "/")]),
    );
    rows.add("B9", "cookies_10000", &get(&"Cookie: a\r\n".repeat(10_000)), too_large());
}

fn connection_options(rows: &mut Rows) {
    let protected = "POST / HTTP/1.1\r\nHost: a\r\n\
        Connection: close, X-Auth, Host, Content-Length\r\n\
        X-Auth: secret\r\nContent-Length: 5\r\n\r\nhello";
    let left = Leaving { host: Some("a"), absent: vec!["x-auth"], ..Leaving::new("POST", "/") }
        .body(b"hello");
    rows.add("B11", "names_framing_and_host", protected, Expect::Forwarded(vec![left]));
    let own = Leaving { without: vec!["6.6.6.6"], ..Leaving::new("GET", "/") };
    let text = get("Connection: X-Forwarded-For\r\nX-Forwarded-For: 6.6.6.6\r\n");
    rows.add("B11", "names_forwarded_for", &text, Expect::Forwarded(vec![own]));
    let kept = Leaving {
        fields: vec![("cookie", "a=b"), ("authorization", "c")],
        ..Leaving::new("GET", "/")
    };
    let text = get("Connection: Cookie, Authorization\r\nCookie: a=b\r\nAuthorization: c\r\n");
    rows.add("B11", "names_cookie_and_authorization", &text, Expect::Forwarded(vec![kept]));
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nConnection: Transfer-Encoding\r\n\
        Transfer-Encoding: chunked\r\n\r\n\
        5\r\nhello\r\n0\r\n\r\n";
    let left = Leaving::new("POST", "/").body(b"hello");
    rows.add("B11", "names_transfer_encoding", chunked, Expect::Forwarded(vec![left]));
    let text = get(
        "Connection: keep-alive\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nProxy: y\r\nTE: gzip\r\n\
        Proxy-Authorization: z\r\n",
    );
    let gone =
        ["keep-alive", "proxy-connection", "proxy", "te", "proxy-authorization", "connection"]
            .to_vec();
    let left = Leaving { absent: gone, ..Leaving::new("GET", "/") };
    rows.add("B11", "hop_by_hop_is_dropped", &text, Expect::Forwarded(vec![left]));
}

fn loops(rows: &mut Rows) {
    rows.add("B12", "own_via", &get("Via: 1.1 weir\r\n"), Expect::Local(&[508]));
    rows.add(
        "B12",
        "own_via_among_others",
        &get("Via: 1.1 x, 1.0 WEIR, 1.1 y\r\n"),
        Expect::Local(&[508]),
    );
    rows.add("B12", "own_cdn_loop", &get("CDN-Loop: a;x=1, WEIR\r\n"), Expect::Local(&[508]));
    let left = Leaving {
        fields: vec![("via", "1.1 weird"), ("cdn-loop", "weir")],
        ..Leaving::new("GET", "/")
    };
    let joined = Expect::Forwarded(vec![left]);
    let lines = Leaving { without: vec!["WEIR"], ..Leaving::new("GET", "/") };
    let text = get("Via: 1.1 weird\r\n");
    rows.add(
        "B12",
        "other_via_stays",
        &text,
        Expect::OneOf(vec![joined, Expect::Forwarded(vec![lines])]),
    );
    let trace = "TRACE / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n";
    rows.add("B12", "trace_ends_here", trace, Expect::Local(&[200, 405]));
    let options = "OPTIONS / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n";
    rows.add("B12", "options_ends_here", options, Expect::Local(&[200, 204, 405]));
    let left = Leaving { fields: vec![("max-forwards", "2")], ..Leaving::new("TRACE", "/") };
    let text = "TRACE / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 3\r\n\r\n";
    rows.add("B12", "hops_are_counted", text, Expect::Forwarded(vec![left]));
}
