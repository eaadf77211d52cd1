//! Rows A and K5 of docs/hostile.md: request framing (RFC 9112 §6, §7.1).

use super::{Expect, Leaving, Rows, SMUGGLED, get, post};

/// Adds the rows.
pub(super) fn add(rows: &mut Rows) {
    both_framings(rows);
    transfer_codings(rows);
    hidden_lengths(rows);
    lengths(rows);
    chunk_sizes(rows);
    chunk_extensions(rows);
    chunk_ends(rows);
    trailers(rows);
    version_10(rows);
    bodies_where_unusual(rows);
    expectations(rows);
    local_answers(rows);
}

fn both_framings(rows: &mut Rows) {
    let both = "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n";
    rows.bad("A1", "cl_te", &post(both, &format!("0\r\n\r\nX{SMUGGLED}")));
    let swapped = "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n";
    rows.bad("A1", "te_cl_order", &post(swapped, &format!("0\r\n\r\nX{SMUGGLED}")));
    let short = "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n";
    rows.bad("A2", "te_cl", &post(short, &format!("8\r\nSMUGGLED\r\n0\r\n\r\n{SMUGGLED}")));
}

fn transfer_codings(rows: &mut Rows) {
    let values = [
        ("xchunked", "xchunked"),
        ("leading_comma", ",chunked"),
        ("chunked_twice", "chunked, chunked"),
        ("gzip_last", "chunked,gzip"),
        ("gzip_first", "gzip, chunked"),
        ("identity", "identity"),
        ("empty", ""),
        ("quoted", "\"chunked\""),
        ("parameter", "chunked;a=b"),
        ("vertical_tab", "\u{b}chunked"),
        ("nbsp", "\u{a0}chunked"),
        ("trailing_comma", "chunked,"),
    ];
    let refused = Expect::Refused(&[400, 501]);
    for (name, value) in values {
        let line = format!("Transfer-Encoding: {value}\r\n");
        let rest = format!("0\r\n\r\n{SMUGGLED}");
        rows.add(
            "A3",
            &format!("{name}_with_cl"),
            &post(&format!("Content-Length: 5\r\n{line}"), &rest),
            refused.clone(),
        );
        rows.add("A3", name, &post(&line, &rest), refused.clone());
    }
    let lines = [
        ("two_lines", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        ("two_lines_identity", "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n"),
        ("space_before_colon", "Transfer-Encoding : chunked\r\n"),
        ("folded", "Transfer-Encoding:\r\n chunked\r\n"),
        ("space_in_name", "Transfer Encoding: chunked\r\n"),
    ];
    for (name, line) in lines {
        rows.add("A3", name, &post(line, &format!("0\r\n\r\n{SMUGGLED}")), refused.clone());
    }
    let body =
        Leaving { absent: vec!["content-length_"], ..Leaving::new("POST", "/") }.body(b"hello");
    let upper = "tRANSFER-eNCODING: CHUNKED\r\n";
    rows.add(
        "A3",
        "any_case_is_fine",
        &post(upper, "5\r\nhello\r\n0\r\n\r\n"),
        Expect::Forwarded(vec![body]),
    );
}

fn hidden_lengths(rows: &mut Rows) {
    rows.bad("A5", "lf_fold", &post("Content-Length:\n 7\r\n", SMUGGLED));
    rows.bad("A5", "space_before_colon", &post("Content-Length : 7\r\n", SMUGGLED));
    rows.bad("A5", "fold", &post("Content-Length:\r\n 7\r\n", SMUGGLED));
    let first = format!("POST / HTTP/1.1\r\n Content-Length: 7\r\nHost: a\r\n\r\n{SMUGGLED}");
    rows.bad("A5", "space_before_first_field", &first);
    let other_name = Leaving { absent: vec!["content_length"], ..Leaving::new("POST", "/") };
    let two = vec![other_name, Leaving::new("GET", "/second")];
    let second = "GET /second HTTP/1.1\r\nHost: a\r\n\r\n";
    rows.add(
        "A5",
        "underscore_is_another_name",
        &post("Content_Length: 7\r\n", second),
        Expect::Forwarded(two),
    );
}

fn lengths(rows: &mut Rows) {
    let bad = [
        ("plus", "+5"),
        ("minus_zero", "-0"),
        ("list_equal", "5,5"),
        ("list_different", "5, 10"),
        ("hex", "0x5"),
        ("inner_space", "5 5"),
        ("fraction", "5.0"),
        ("empty", ""),
        ("two_to_63", "9223372036854775808"),
        ("two_to_64", "18446744073709551616"),
        ("twenty_digits", "99999999999999999999"),
        ("quoted", "\"5\""),
        ("arabic_digit", "\u{b2}"),
    ];
    for (name, value) in bad {
        rows.bad(
            "A7",
            name,
            &post(&format!("Content-Length: {value}\r\n"), &format!("hello{SMUGGLED}")),
        );
    }
    let lines = [
        ("two_equal", "Content-Length: 5\r\nContent-Length: 5\r\n"),
        ("two_different", "Content-Length: 5\r\nContent-Length: 0\r\n"),
        ("empty_then_valid", "Content-Length:\r\nContent-Length: 5\r\n"),
    ];
    for (name, lines) in lines {
        rows.bad("A7", name, &post(lines, "hello"));
    }
    let padded = Expect::OneOf(vec![
        Expect::Refused(&[400]),
        Expect::Forwarded(vec![Leaving::new("POST", "/").body(b"hello")]),
    ]);
    rows.add("A7", "leading_zeros", &post("Content-Length: 005\r\n", "hello"), padded);
    rows.add(
        "K5",
        "length_two_to_63",
        &post("Content-Length: 9223372036854775808\r\n", ""),
        Expect::Refused(&[400, 413]),
    );
    let long = format!("Content-Length: {}\r\n", "9".repeat(400));
    rows.add("K5", "length_of_400_digits", &post(&long, ""), Expect::Refused(&[400]));
    let zeros = format!("Content-Length: {}5\r\n", "0".repeat(400));
    let collapsed = Expect::OneOf(vec![
        Expect::Refused(&[400]),
        Expect::Forwarded(vec![Leaving::new("POST", "/").body(b"hello")]),
    ]);
    rows.add("K5", "length_of_400_zeros", &post(&zeros, "hello"), collapsed);
    let hops = get("Max-Forwards: 99999999999999999999999\r\n");
    let passed = Expect::OneOf(vec![
        Expect::Forwarded(vec![Leaving::new("GET", "/")]),
        Expect::Refused(&[400]),
    ]);
    rows.add("K5", "max_forwards_overflows", &hops, passed);
    rows.bad("K5", "port_65536", "GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n");
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

fn chunk_sizes(rows: &mut Rows) {
    let bad = [
        ("hex_prefix", "0x5"),
        ("plus", "+5"),
        ("minus", "-5"),
        ("underscore", "5_0"),
        ("space_behind", "5 "),
        ("space_before", " 5"),
        ("empty", ""),
        ("seventeen_digits", "FFFFFFFFFFFFFFFFF"),
        ("two_to_64_plus_5", "10000000000000005"),
        ("letter_g", "G"),
        ("tab_behind", "5\t"),
    ];
    for (name, size) in bad {
        rows.bad("A8", name, &post(CHUNKED, &format!("{size}\r\nhello\r\n0\r\n\r\n{SMUGGLED}")));
    }
    let zeros = format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(300));
    let either = Expect::OneOf(vec![
        Expect::Refused(&[400]),
        Expect::Forwarded(vec![Leaving::new("POST", "/").body(b"hello")]),
    ]);
    rows.add("A8", "three_hundred_zeros", &post(CHUNKED, &zeros), either);
    rows.bad("K5", "chunk_two_to_64", &post(CHUNKED, "10000000000000000\r\n"));
    let second = "8000000000000000\r\nx";
    rows.add(
        "K5",
        "chunk_two_to_63",
        &post(CHUNKED, &format!("1\r\nx\r\n{second}")),
        Expect::Refused(&[400, 413]),
    );
}

fn chunk_extensions(rows: &mut Rows) {
    let bad = [
        ("bare_lf", "5;\nhello\r\n0\r\n\r\n"),
        ("bare_cr", "5;\ra\r\nhello\r\n0\r\n\r\n"),
        ("quoted_crlf", "5;a=\"\r\nhello\r\n0\r\n\r\n\"\r\nhello\r\n0\r\n\r\n"),
        ("nul", "5;\0x\r\nhello\r\n0\r\n\r\n"),
        ("lf_ends_it", "5;a=b\nhello\r\n0\r\n\r\n"),
    ];
    for (name, chunks) in bad {
        // A quoted CRLF may be rejected at the quote, or the line ends there: it is never passed
        // on.
        let refused = Expect::Refused(&[400]);
        let expect = match name {
            "quoted_crlf" => Expect::OneOf(vec![
                refused,
                Expect::ForwardedThenRefused(
                    vec![Leaving::new("POST", "/").body(b"hello")],
                    &[400],
                ),
            ]),
            _ => refused,
        };
        rows.add("A9", name, &post(CHUNKED, &format!("{chunks}{SMUGGLED}")), expect);
    }
    let long = format!("5;a={}\r\nhello\r\n0\r\n\r\n", "b".repeat(64 << 10));
    rows.add("A9", "of_64_kib", &post(CHUNKED, &long), Expect::Refused(&[400, 413, 431]));
    let many = format!("{}0\r\n\r\n", format!("1;a={}\r\nx\r\n", "b".repeat(1000)).repeat(64));
    rows.add("A9", "of_64_kib_in_all", &post(CHUNKED, &many), Expect::Refused(&[400, 413, 431]));
    let dropped = Expect::Forwarded(vec![Leaving::new("POST", "/").body(b"hello")]);
    let valid = "5;a=b;c=\"d\"\r\nhello\r\n0;e\r\n\r\n";
    rows.add("A9", "valid_is_dropped", &post(CHUNKED, valid), dropped.clone());
    let either = Expect::OneOf(vec![Expect::Refused(&[400]), dropped]);
    rows.add("A9", "without_name", &post(CHUNKED, "5;\r\nhello\r\n0\r\n\r\n"), either);
}

fn chunk_ends(rows: &mut Rows) {
    let bad = [
        ("letters", "5\r\nhelloXX0\r\n\r\n"),
        ("lf_behind_data", "5\r\nhello\n0\r\n\r\n"),
        ("spill", "5\r\nhello0\r\n\r\n"),
        ("lf_behind_size", "5\nhello\r\n0\r\n\r\n"),
        ("cr_behind_size", "5\rhello\r\n0\r\n\r\n"),
        ("lf_behind_last", "5\r\nhello\r\n0\n\n"),
        ("lf_ends_trailers", "5\r\nhello\r\n0\r\n\n"),
        ("cr_only", "5\r\nhello\r\r0\r\n\r\n"),
    ];
    for (name, chunks) in bad {
        rows.bad("A10", name, &post(CHUNKED, &format!("{chunks}{SMUGGLED}")));
    }
}

fn trailers(rows: &mut Rows) {
    let bad = [
        ("content_length", "Content-Length: 50\r\n"),
        ("transfer_encoding", "Transfer-Encoding: chunked\r\n"),
        ("host", "Host: x\r\n"),
        ("authorization", "Authorization: y\r\n"),
        ("pseudo", ":path: /\r\n"),
        ("bare_line", "bare line\r\n"),
        ("fold", "X: a\r\n b\r\n"),
        ("nul", "X: a\0\r\n"),
    ];
    for (name, lines) in bad {
        rows.bad("A11", name, &post(CHUNKED, &format!("5\r\nhello\r\n0\r\n{lines}\r\n{SMUGGLED}")));
    }
    let long =
        format!("5\r\nhello\r\n0\r\n{}\r\n", format!("X: {}\r\n", "y".repeat(1000)).repeat(100));
    rows.add("A11", "of_100_kib", &post(CHUNKED, &long), Expect::Refused(&[400, 431]));
    let dropped = Leaving { absent: vec!["x-trailer"], ..Leaving::new("POST", "/") }.body(b"hello");
    let valid = "5\r\nhello\r\n0\r\nX-Trailer: y\r\n\r\n";
    rows.add("A11", "valid_is_dropped", &post(CHUNKED, valid), Expect::Forwarded(vec![dropped]));
}

fn version_10(rows: &mut Rows) {
    let chunked =
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    rows.bad("A12", "chunked", chunked);
    // Without a length the body is empty; the bytes that follow are never delimited by the end of
    // the connection.
    let lengthless = format!("GET / HTTP/1.0\r\nHost: a\r\n\r\n{SMUGGLED}");
    rows.add(
        "A12",
        "get_without_length",
        &lengthless,
        Expect::Forwarded(vec![Leaving::new("GET", "/")]),
    );
    let kept = "GET /1 HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n";
    let two = format!("{kept}{}", kept.replace("/1 ", "/2 "));
    let left = vec![Leaving::new("GET", "/1"), Leaving::new("GET", "/2")];
    rows.add("A12", "keep_alive", &two, Expect::Forwarded(left));
}

fn bodies_where_unusual(rows: &mut Rows) {
    let smuggled = SMUGGLED.as_bytes();
    let size = SMUGGLED.len();
    for method in ["OPTIONS", "GET", "DELETE", "HEAD"] {
        let name = method.to_ascii_lowercase();
        let text = format!(
            "{method} / HTTP/1.1\r\nHost: a\r\n{CHUNKED}\r\n{size:x}\r\n{SMUGGLED}\r\n0\r\n\r\n"
        );
        let expect = Expect::OneOf(vec![
            Expect::Forwarded(vec![Leaving::new(method, "/").body(smuggled)]),
            Expect::Refused(&[400]),
        ]);
        rows.add("A6", &format!("chunked_{name}"), &text, expect);
    }
    for method in ["GET", "HEAD", "DELETE"] {
        let name = method.to_ascii_lowercase();
        let first = format!("{method} /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcd");
        let second = format!("{method} /2 HTTP/1.1\r\nHost: a\r\n\r\n");
        let both = vec![Leaving::new(method, "/1").body(b"abcd"), Leaving::new(method, "/2")];
        rows.add(
            "A13",
            &format!("{name}_with_body"),
            &format!("{first}{second}"),
            Expect::Forwarded(both),
        );
    }
}

fn expectations(rows: &mut Rows) {
    let at_once = post("Expect: 100-continue\r\nContent-Length: 5\r\n", "hello");
    let hello = || Leaving::new("POST", "/").body(b"hello");
    rows.add("A16", "body_at_once", &at_once, Expect::Forwarded(vec![hello()]));
    let unknown = post("Expect: y 100-continue\r\nContent-Length: 5\r\n", "hello");
    rows.add("A16", "obfuscated", &unknown, Expect::Local(&[417, 400]));
    let other = post("Expect: tea\r\nContent-Length: 5\r\n", "hello");
    rows.add("A16", "unknown", &other, Expect::Local(&[417, 400]));
    let idle = get("Expect: 100-continue\r\n");
    rows.add("A16", "without_body", &idle, Expect::Forwarded(vec![Leaving::new("GET", "/")]));
    let two = format!("{at_once}GET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
    rows.add(
        "A16",
        "then_another",
        &two,
        Expect::Forwarded(vec![hello(), Leaving::new("GET", "/2")]),
    );
}

/// The body of a request to which weir itself responds is never the next request.
fn local_answers(rows: &mut Rows) {
    let length = format!("Content-Length: {}\r\n", SMUGGLED.len());
    let expectation = post(&format!("Expect: tea\r\n{length}"), SMUGGLED);
    rows.add("A17", "body_behind_417", &expectation, Expect::Local(&[417, 400]));
    let looped = post(&format!("Via: 1.1 weir\r\n{length}"), SMUGGLED);
    rows.add("A17", "body_behind_508", &looped, Expect::Local(&[508]));
    let chunks = format!("{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n", SMUGGLED.len());
    rows.add(
        "A17",
        "chunks_behind_508",
        &post(&format!("Via: 1.1 weir\r\n{CHUNKED}"), &chunks),
        Expect::Local(&[508]),
    );
}
