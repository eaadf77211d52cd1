//! Proves: whichever server reads what weir forwards, it finds a path of no prefix that weir has
//! not seen (docs/hostile-requests.md C4). How: models of how servers read the target of a request,
//! each a few lines after its source or documentation, against paths made of the parts that they
//! read in different ways.

use proptest::prelude::*;

use super::path::{normalised, settled};

/// A slash within a segment, of a server that decodes segments one by one.
const INNER_SLASH: u8 = 1;

/// How a server reads the path of a target.
type Reading = fn(&[u8]) -> Vec<u8>;

const READINGS: &[(&str, Reading)] = &[
    // ngx_http_parse_complex_uri: decodes first, then slashes and dots.
    ("nginx", |path| resolved(&merged(&decoded(path)))),
    ("nginx, merge_slashes off", |path| resolved(&decoded(path))),
    // net/http: URL.Path is decoded, path.Clean merges slashes.
    ("Go, path.Clean", |path| resolved(&merged(&decoded(path)))),
    // ServeMux since Go 1.22: patterns are compared with the escaped path, segment by segment.
    ("Go, ServeMux", |path| by_segment(&resolved(&merged(path)))),
    ("Go, RequestURI", <[u8]>::to_vec),
    // posixpath.normpath(unquote(path)), and SimpleHTTPRequestHandler, which drops empty words.
    ("Python, normpath", |path| resolved(&merged(&decoded(path)))),
    ("Python, urlsplit", |path| decoded(behind_authority(path))),
    ("Python, urlparse", |path| decoded(without_last_parameters(behind_authority(path)))),
    // werkzeug and Django: PATH_INFO is decoded; no other change.
    ("WSGI", decoded),
    ("werkzeug, merge_slashes", |path| merged(&decoded(path))),
    // The URL Standard: `new URL(request.url, base)`. Escaped dots count as dots, a backslash as a
    // slash.
    ("Node, URL", resolved_url),
    ("Node, URL, decoded", |path| decoded(&resolved_url(path))),
    ("Express", <[u8]>::to_vec),
    ("Express, decoded", by_segment),
    // CoyoteAdapter: parameters, then escapes, then slashes and dots.
    ("Tomcat", |path| resolved(&merged(&slashed(&decoded(&without_parameters(path)))))),
    ("Tomcat, encoded slashes pass", |path| {
        by_segment(&resolved(&merged(&without_parameters(path))))
    }),
    ("Jetty", |path| resolved(&decoded(&without_parameters(path)))),
    // UrlPathHelper.
    ("Spring", |path| merged(&decoded(&without_parameters(path)))),
    ("decodes before it cuts parameters", |path| {
        resolved(&merged(&without_parameters(&decoded(path))))
    }),
    ("IIS", |path| resolved(&merged(&slashed(&decoded(path))))),
    ("takes overlong UTF-8", |path| resolved(&merged(&without_parameters(&shortened(path))))),
    ("takes overlong UTF-8, resolves no dots", shortened),
];

/// With all escapes decoded.
fn decoded(path: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), path);
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(value) if byte == b'%' => {
                out.push(value);
                rest = &behind[2..];
            }
            _ => {
                out.push(byte);
                rest = behind;
            }
        }
    }
    out
}

/// Each segment decoded: a slash that results separates nothing.
fn by_segment(path: &[u8]) -> Vec<u8> {
    let segments = path.split(|byte| *byte == b'/').map(|segment| {
        let is_slash = |byte: u8| if byte == b'/' { INNER_SLASH } else { byte };
        decoded(segment).into_iter().map(is_slash).collect::<Vec<u8>>()
    });
    segments.collect::<Vec<_>>().join(&b'/')
}

/// With backslashes as slashes.
fn slashed(path: &[u8]) -> Vec<u8> {
    path.iter().map(|&byte| if byte == b'\\' { b'/' } else { byte }).collect()
}

/// Without empty segments.
fn merged(path: &[u8]) -> Vec<u8> {
    let mut out = path.to_vec();
    out.dedup_by(|a, b| *a == b'/' && *b == b'/');
    out
}

/// Without dot segments (RFC 3986 §5.2.4).
fn resolved(path: &[u8]) -> Vec<u8> {
    remove_dots(path, |segment| match segment {
        b"." => 1,
        b".." => 2,
        _ => 0,
    })
}

fn remove_dots(path: &[u8], dots: impl Fn(&[u8]) -> usize) -> Vec<u8> {
    let mut out: Vec<&[u8]> = Vec::new();
    let segments: Vec<&[u8]> = path.split(|byte| *byte == b'/').skip(1).collect();
    for (at, segment) in segments.iter().enumerate() {
        let count = dots(segment);
        match count {
            0 => out.push(segment),
            1 => {}
            _ => drop(out.pop()),
        }
        if count > 0 && at + 1 == segments.len() {
            out.push(b"");
        }
    }
    out.iter().flat_map(|segment| [b"/", *segment]).collect::<Vec<_>>().concat()
}

/// The part behind a host that two slashes begin.
fn behind_authority(path: &[u8]) -> &[u8] {
    let Some(rest) = path.strip_prefix(b"//") else { return path };
    &rest[rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len())..]
}

/// The URL Standard's path state, behind its authority state.
fn resolved_url(path: &[u8]) -> Vec<u8> {
    let path = slashed(path);
    let rest = behind_authority(&path);
    remove_dots(rest, |segment| match &segment.to_ascii_lowercase()[..] {
        b"." | b"%2e" => 1,
        b".." | b".%2e" | b"%2e." | b"%2e%2e" => 2,
        _ => 0,
    })
}

/// Without the part behind `;` in each segment.
fn without_parameters(path: &[u8]) -> Vec<u8> {
    let name =
        |segment: &[u8]| segment.split(|byte| *byte == b';').next().unwrap_or_default().to_vec();
    path.split(|byte| *byte == b'/').map(name).collect::<Vec<_>>().join(&b'/')
}

/// Without those of the last segment.
fn without_last_parameters(path: &[u8]) -> &[u8] {
    let last = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    &path[..path[last..].iter().position(|byte| *byte == b';').map_or(path.len(), |at| last + at)]
}

/// Decoded, with overlong sequences as the characters that they encode.
fn shortened(path: &[u8]) -> Vec<u8> {
    let (bytes, mut out) = (decoded(path), Vec::new());
    let mut rest = &bytes[..];
    while let Some((&byte, behind)) = rest.split_first() {
        let length = match byte {
            0xc0 | 0xc1 => 1,
            0xe0 => 2,
            0xf0 => 3,
            0xf8 => 4,
            0xfc => 5,
            _ => 0,
        };
        let more = behind
            .get(..length)
            .filter(|more| length > 0 && more.iter().all(|byte| byte & 0xc0 == 0x80));
        let value = |more: &[u8]| {
            more.iter().fold(u32::from(byte & 1), |value, byte| value << 6 | u32::from(byte & 0x3f))
        };
        match more.map(value).and_then(|value| u8::try_from(value).ok()).filter(u8::is_ascii) {
            Some(value) => {
                out.push(value);
                rest = &behind[length..];
            }
            None => {
                out.push(byte);
                rest = behind;
            }
        }
    }
    out
}

/// Whether a path is below a prefix that ends on a segment.
fn is_below(path: &[u8], prefix: &[u8]) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

/// The forwarded form of a target, and its form for comparison; None: it is refused.
fn taken(target: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let seen = normalised(target, &mut Vec::new()).ok()?.to_vec();
    Some((settled(target, &mut Vec::new()).unwrap_or_else(|| target.to_vec()), seen))
}

/// The first server that would find a path below a prefix that weir has not seen.
fn passes_by(target: &[u8]) -> Option<String> {
    let (sent, seen) = taken(target)?;
    let path = sent.split(|byte| *byte == b'?').next().unwrap_or_default();
    for prefix in [&b"/admin"[..], b"/a/admin", b"/a", b"/x/y"] {
        for (server, read) in READINGS {
            let found = read(path);
            if is_below(&found, prefix) && !is_below(&seen, prefix) {
                let [sent, seen, found] =
                    [&sent, &seen, &found].map(|text| text.escape_ascii().to_string());
                return Some(format!("{server} reads {sent} as {found}, weir as {seen}"));
            }
        }
    }
    None
}

#[test]
fn known_ways_past_a_prefix_are_closed() {
    for target in [
        "/admin/.;/../secret",
        "/admin/%2e;/../secret",
        "/admin/.;x=1/../secret",
        "/admin/..;/secret",
        "/admin/%2e%2e;/secret",
        "/admin/..%3b/secret",
        "/admin/;a/b/../../secret",
        "/admin//b/../../secret",
        "/a/x%2fy/../../admin/z",
        "/admin/x/../../public",
        "/admin/../public",
        "//x/admin/secret",
        "/a;%2fy/admin",
        "/.//x/admin",
        "/x/..//x/admin",
        "/%c1%a1dmin/secret",
        "/admin%3bx/secret",
        "/admin;x/secret",
    ] {
        assert_eq!(passes_by(target.as_bytes()), None, "{target}");
    }
}

/// The models deserve their names: each finds something that another does not.
#[test]
fn servers_differ() {
    let read = |server: &str, path: &str| {
        let (_, read) = READINGS.iter().find(|(name, _)| *name == server).expect("a server");
        String::from_utf8(read(path.as_bytes())).unwrap()
    };
    for (server, path, expected) in [
        ("nginx", "/admin/.;/../x", "/admin/x"),
        ("nginx", "/a%2f../%62//c", "/b/c"),
        ("nginx, merge_slashes off", "/a//b/../../c", "/a/c"),
        ("Go, ServeMux", "/a%2Fb/../c//%64", "/c/d"),
        ("Python, urlsplit", "//x/a%62", "/ab"),
        ("Python, urlparse", "/a/b;c", "/a/b"),
        ("WSGI", "/a/%2e%2e/b", "/a/../b"),
        ("Node, URL", "//x/a/%2E./b%2f", "/b%2f"),
        ("Express, decoded", "/%61/../b", "/a/../b"),
        ("Tomcat", "/a/..;x/b/.;/c%5Cd", "/b/c/d"),
        ("Jetty", "/a//..;/b", "/a/b"),
        ("Spring", "/a;b/..//c", "/a/../c"),
        ("IIS", "/a\\..\\b", "/b"),
        ("takes overlong UTF-8", "/a/%c0%ae%c0%ae%c0%afb", "/b"),
    ] {
        assert_eq!(read(server, path), expected, "{server} {path}");
    }
}

/// Targets made of the parts that servers read in different ways.
fn targets() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "/",
        "/",
        "/",
        "/",
        "/",
        "//",
        "admin",
        "admin",
        "a",
        "x",
        "y",
        "..",
        "..",
        ".",
        "%2e",
        "%2E%2e",
        ".;",
        "..;",
        ";",
        ";b=1",
        "%3b",
        "%2f",
        "%5c",
        "%61dmin",
        "%c1%a1dmin",
        "%c0%ae",
        "%c0%af",
        "%c1%9c",
        "%e0%80%ae",
        "%c0%bb",
        "%252e",
        "%25",
        "%E4",
        "%C0%B4",
        "%00",
        "\\",
        "?",
        "?/../admin",
        "%",
        "é",
    ]);
    prop::collection::vec(part, 0..12).prop_map(|all| format!("/{}", all.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// No server finds a path below a prefix that weir has not seen.
    #[test]
    fn no_reading_passes_by_a_prefix(target in targets()) {
        prop_assert_eq!(passes_by(target.as_bytes()), None);
    }

    /// The forwarded target has the same normalised form as the received one, and settling it again
    /// changes nothing.
    #[test]
    fn what_is_decided_by_is_what_is_sent(target in targets()) {
        if let Some((sent, seen)) = taken(target.as_bytes()) {
            let again = taken(&sent);
            prop_assert_eq!(again, Some((sent.clone(), seen)));
            let query = target.find('?').map_or("", |at| &target[at..]);
            prop_assert!(sent.ends_with(query.as_bytes()) && sent.len() <= target.len());
        }
    }
}
