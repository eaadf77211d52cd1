//! Valid but unusual requests: what RFC 9110 and RFC 9112 allow and hardly any client sends. Drawn
//! from a seed, made once before the run.
//!
//! Called by `class.rs` for `behave=fuzz`; pure. Whatever its response to them, a server has no
//! reason to end the connection. Bounds: [`COUNT`] requests, heads of at most [`HEAD_BYTES_MAX`]
//! with at most [`FIELDS_MAX`] drawn fields, bodies below 200 bytes.

use super::requests::Request;
use crate::random::Random;

/// Requests of a class.
const COUNT: usize = 256;
/// Fields of one that are drawn, at most.
const FIELDS_MAX: u64 = 30;
/// Longest drawn value, bytes.
const VALUE_BYTES_MAX: u64 = 200;
/// Longest drawn name after `X-`, bytes.
const NAME_BYTES_MAX: u64 = 20;
/// Longest run of letters in a target.
const LONG_BYTES: usize = 1500;
/// No head is longer.
const HEAD_BYTES_MAX: usize = 12 * 1024;
const _: () = assert!(
    FIELDS_MAX as usize * (VALUE_BYTES_MAX + NAME_BYTES_MAX + 10) as usize + LONG_BYTES + 1024
        <= HEAD_BYTES_MAX
);

/// Methods (RFC 9110 §9.1): registered ones, and any other token is one.
const METHODS: &[&str] = &[
    "GET",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "PROPFIND",
    "M-SEARCH",
    "get",
    "!#$%&'*+-.^_`|~9",
];

/// Targets in origin-form (RFC 9112 §3.2.1).
const TARGETS: &[&str] = &[
    "/",
    "/?",
    "/?&&=;%00",
    "//two//slashes",
    "/%41%7e/%2E%2e/x",
    "/./a/../b",
    "/~!$&'()*+,;=:@",
    "/a;v=1/b,c?q=/?/",
];

/// Fields with a meaning, and values that are unusual for them.
const KNOWN: &[&str] = &[
    "Accept:",
    "accept: ,, */* ;q=0.000,",
    "ACCEPT-ENCODING:gzip;q=0.001, identity;q=0",
    "Accept-Language:\t*\t",
    "Connection: keep-alive, x-hop",
    "Cookie: a=b; a=b; c",
    "Date: Thu, 01 Jan 1970 00:00:00 GMT",
    "If-None-Match: *",
    "Range: bytes=0-0,-1",
    "User-Agent: ((nested) comment) x/1",
    "Max-Forwards: 0010",
];

/// Content with its framing (RFC 9112 §6, §7): fields, then what follows the head.
const BODIES: &[(&str, &str)] = &[
    ("Content-Length: 0", ""),
    ("content-length:5", "\r\n\r\n\0"),
    ("Content-Length: 0003", "GET"),
    ("Transfer-Encoding: chunked", "0\r\n\r\n"),
    (
        "transfer-encoding:Chunked",
        "0005;x;y=\"z;\"\r\nhello\r\n1\r\n!\r\n000\r\nX-Trailer: x\r\n\r\n",
    ),
    (
        "Transfer-Encoding: chunked\r\nContent-Type: text/plain;charset=\"\"",
        "a\r\n0123456789\r\n0\r\n\r\n",
    ),
];

/// Returns the requests of this seed, for a server with this host name.
pub(super) fn requests(host: &str, seed: u64) -> Vec<Request> {
    let mut random = Random::new(seed);
    (0..COUNT).map(|_| request(host, &mut random)).collect()
}

fn request(host: &str, random: &mut Random) -> Request {
    let method = *pick(METHODS, random);
    let mut head = Vec::new();
    if one_in(8, random) {
        // RFC 9112 §2.2: a server ignores an empty line before a request.
        head.extend(b"\r\n");
    }
    head.extend(format!("{method} {} HTTP/1.1\r\n", target(host, method, random)).bytes());
    let spelled = *pick(&["Host: ", "host:", "HOST:\t ", "hOST: "], random);
    let mut fields = vec![[spelled, host].concat().into_bytes()];
    for _ in 0..below(FIELDS_MAX, random) {
        fields.push(field(random));
    }
    let (framing, body) = match method {
        "POST" | "PUT" | "PATCH" => *pick(BODIES, random),
        _ => ("", ""),
    };
    if !framing.is_empty() {
        fields.push(framing.as_bytes().to_vec());
    }
    for at in (1..fields.len()).rev() {
        // In any order (RFC 9110 §5.3).
        fields.swap(at, below(at as u64 + 1, random) as usize);
    }
    fields.into_iter().for_each(|field| head.extend([&field[..], b"\r\n"].concat()));
    let whole = |more: &[u8]| [&head, more, b"\r\n", body.as_bytes()].concat().into();
    Request {
        name: "odd".to_owned(),
        head_bytes: head.len() + 2,
        bytes: whole(b""),
        last: whole(b"Connection: close\r\n"),
        serial_at: None,
        is_head: method == "HEAD",
        weight: 1,
        http2: None,
    }
}

fn target(host: &str, method: &str, random: &mut Random) -> String {
    match below(8, random) {
        0 if method == "OPTIONS" => "*".to_owned(),
        1 => format!("http://{host}{}", pick(TARGETS, random)),
        2 => format!("/{}", "a".repeat(below(LONG_BYTES as u64, random) as usize)),
        _ => (*pick(TARGETS, random)).to_owned(),
    }
}

fn field(random: &mut Random) -> Vec<u8> {
    if one_in(3, random) {
        return pick(KNOWN, random).as_bytes().to_vec();
    }
    let mut field = b"X-".to_vec();
    for _ in 0..below(NAME_BYTES_MAX, random) {
        field.push(*pick(b"!#$%&'*+-.^_`|~09AZaz", random));
    }
    field.push(b':');
    field.extend(*pick(&[&b""[..], b" ", b"\t", b"  \t "], random));
    for _ in 0..below(VALUE_BYTES_MAX, random) {
        // RFC 9110 §5.5: visible characters, obs-text, and white space between them.
        field.push(*pick(b"aZ09 \t\"\\(),;:=<>@[]{}?/~\x80\xc3\xa4\xff", random));
    }
    field
}

/// Returns a number from 0 to below `most`.
fn below(most: u64, random: &mut Random) -> u64 {
    random.next() % most
}

fn one_in(many: u64, random: &mut Random) -> bool {
    below(many, random) == 0
}

fn pick<'a, T>(from: &'a [T], random: &mut Random) -> &'a T {
    &from[below(from.len() as u64, random) as usize]
}

#[cfg(test)]
mod tests {
    use weir_http::{Fields, Limits, parse_request};

    use super::*;

    #[test]
    fn odd_requests_are_valid_and_bounded() {
        let (limits, mut fields) = (Limits::default(), Fields::default());
        for seed in 0..50 {
            for request in requests("h.example:8080", seed) {
                for bytes in [&request.bytes, &request.last] {
                    let head = parse_request(bytes, &limits, &mut fields);
                    let text = String::from_utf8_lossy(bytes);
                    let head = head
                        .unwrap_or_else(|error| panic!("seed {seed}: {error:?}: {text}"))
                        .unwrap();
                    assert!(
                        head.bytes <= HEAD_BYTES_MAX && bytes.len() - head.bytes < 200,
                        "seed {seed}: {text}"
                    );
                    assert_eq!(head.persist, bytes == &request.bytes, "seed {seed}: {text}");
                }
            }
        }
    }

    #[test]
    fn a_seed_draws_the_same_requests_again_and_another_one_others() {
        let texts =
            |seed| requests("h", seed).into_iter().map(|request| request.bytes).collect::<Vec<_>>();
        assert_eq!(texts(7), texts(7));
        assert_ne!(texts(7), texts(8));
        assert!(texts(7).iter().collect::<std::collections::BTreeSet<_>>().len() > COUNT / 2);
    }
}
