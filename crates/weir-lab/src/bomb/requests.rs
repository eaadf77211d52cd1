//! The requests that a class of clients sends, as bytes, made once before the run.
//!
//! Called by the command line's reader; threads draw from a [`Mix`]. The user's input is sent
//! unchanged: field names, values and methods are checked only for what would split one request
//! into two.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;

use super::http2::Spelled;
use crate::random::Random;

/// The placeholder in a path for a number that is unique to each request of a run.
const SERIAL: &str = "{serial}";
/// Its digits: three for the thread, nine for the request.
const SERIAL_DIGITS: usize = 12;

/// Most requests of a class: a draw is a number of 16 bits.
const REQUESTS_MAX: usize = 1 << 16;

/// Fields that are sent besides Host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preset {
    /// None.
    #[default]
    Minimal,
    /// Those of a browser, with a Cookie of about 1.5 KB.
    Browser,
}

/// How requests are spelled, besides their targets.
#[derive(Debug, Clone, Default)]
pub struct Spelling {
    /// Default GET; POST when there is a body.
    pub method: Option<String>,
    /// Name and value of further fields. A field that a preset also has takes its place.
    pub fields: Vec<(String, String)>,
    /// Content.
    pub body: Vec<u8>,
    /// The fields that are sent anyway.
    pub preset: Preset,
    /// Targets in absolute-form, as in requests to proxies (RFC 9112 §3.2.2).
    pub absolute: bool,
    /// The requests are sent by HTTP/2, with this scheme; None: by HTTP/1.1.
    pub http2: Option<&'static str>,
}

/// One request of a file: a line of JSON.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default)]
    method: Option<String>,
    path: String,
    #[serde(default)]
    fields: Vec<(String, String)>,
    #[serde(default)]
    body: String,
    #[serde(default = "one")]
    weight: u32,
}

fn one() -> u32 {
    1
}

/// A request, ready to be sent.
#[derive(Debug, Clone)]
pub struct Request {
    /// Method and target, for reports.
    pub name: String,
    /// All bytes.
    pub bytes: Bytes,
    /// The same with `Connection: close`.
    pub last: Bytes,
    /// Length of the head in `bytes`; the body follows it.
    pub head_bytes: usize,
    /// The position of the request's number in `bytes`, if it has one.
    pub serial_at: Option<usize>,
    /// The response has no body (HEAD).
    pub is_head: bool,
    /// How often it is drawn, compared with the others.
    pub weight: u32,
    /// Its form in HTTP/2, where that is used.
    pub(crate) http2: Option<Arc<Spelled>>,
}

/// What a class of clients sends: one request, or several drawn by weight.
#[derive(Debug, Clone)]
pub struct Mix {
    requests: Vec<Request>,
    /// Sums of the weights up to and with each request: the last is that of all.
    sums: Vec<u64>,
}

impl Request {
    /// Spells a request.
    ///
    /// # Errors
    /// A method, target or field with which it would not remain one request.
    pub fn new(
        host: &str,
        path: &str,
        weight: u32,
        spelling: &Spelling,
    ) -> Result<Request, String> {
        let method = spelling.method.as_deref().unwrap_or(if spelling.body.is_empty() {
            "GET"
        } else {
            "POST"
        });
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("`{method}` is not a method"));
        }
        if !path.starts_with('/') && path != "*"
            || path.bytes().any(|byte| !byte.is_ascii_graphic())
        {
            return Err(format!("`{path}` is not a path; it begins with / and has no white space"));
        }
        let origin = if spelling.absolute { format!("http://{host}") } else { String::new() };
        let serial_at = path.find(SERIAL);
        let spelled = path.replacen(SERIAL, &"0".repeat(SERIAL_DIGITS), 1);
        let fields = spelling.all_fields(host, method);
        let mut head = format!("{method} {origin}{spelled} HTTP/1.1\r\n");
        for (name, value) in &fields {
            put(&mut head, name, value)?;
        }
        let http2 = spelling.http2.map(|scheme| {
            Spelled::new((scheme, method), (&spelled, serial_at), &fields, &spelling.body)
                .map(Arc::new)
        });
        let http2 = http2.transpose()?;
        let bytes = |connection: &str| {
            [head.as_bytes(), connection.as_bytes(), b"\r\n", &spelling.body].concat().into()
        };
        let last =
            if spelling.gives("Connection") { bytes("") } else { bytes("Connection: close\r\n") };
        Ok(Request {
            name: format!("{method} {path}"),
            bytes: bytes(""),
            last,
            head_bytes: head.len() + 2,
            serial_at: serial_at.map(|at| method.len() + 1 + origin.len() + at),
            is_head: method == "HEAD",
            weight,
            http2,
        })
    }
}

impl Spelling {
    /// Whether the user specifies this field.
    fn gives(&self, name: &str) -> bool {
        self.fields.iter().any(|(its, _)| its.eq_ignore_ascii_case(name))
    }

    /// All fields of a request, in the order in which they are sent.
    fn all_fields(&self, host: &str, method: &str) -> Vec<(&str, Cow<'_, str>)> {
        let mut fields = Vec::new();
        if !self.gives("Host") {
            fields.push(("Host", Cow::Owned(host.to_owned())));
        }
        if self.preset == Preset::Browser {
            let browser = browser_fields().into_iter().filter(|(name, _)| !self.gives(name));
            fields.extend(browser.map(|(name, value)| (name, Cow::Owned(value))));
        }
        fields.extend(
            self.fields.iter().map(|(name, value)| (name.as_str(), Cow::Borrowed(value.as_str()))),
        );
        let needs_length = !self.body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH");
        if needs_length && !self.gives("Content-Length") && !self.gives("Transfer-Encoding") {
            fields.push(("Content-Length", Cow::Owned(self.body.len().to_string())));
        }
        fields
    }
}

/// Returns the bytes of a request with this number in its place.
pub(crate) fn with_serial(bytes: &[u8], at: usize, thread: usize, nth: u64) -> Bytes {
    let mut bytes = bytes.to_vec();
    let digits = format!("{:03}{:09}", thread % 1_000, nth % 1_000_000_000);
    bytes[at..at + SERIAL_DIGITS].copy_from_slice(digits.as_bytes());
    bytes.into()
}

fn put(head: &mut String, name: &str, value: &str) -> Result<(), String> {
    let clean = !name.is_empty()
        && !name.contains([':', '\r', '\n', ' '])
        && !value.contains(['\r', '\n', '\0']);
    if !clean {
        return Err(format!(
            "`{name}: {value}` is not a field; expected `Name: value` on one line"
        ));
    }
    head.push_str(name);
    head.push_str(": ");
    head.push_str(value);
    head.push_str("\r\n");
    Ok(())
}

/// Returns the fields of a browser's request for a page, with 24 cookies.
fn browser_fields() -> Vec<(&'static str, String)> {
    let cookies: Vec<String> = (1..=24u8)
        .map(|at| format!("name{at:02}={}", char::from(b'`' + at).to_string().repeat(54)))
        .collect();
    let fixed = [
        ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
        ("Accept-Language", "en-US,en;q=0.5"),
        ("Accept-Encoding", "gzip, deflate, br, zstd"),
        ("Referer", "https://www.example.com/some/page"),
        ("Upgrade-Insecure-Requests", "1"),
        ("Sec-Fetch-Dest", "document"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Site", "same-origin"),
        ("Priority", "u=0, i"),
    ];
    let mut fields: Vec<_> =
        fixed.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
    fields.push(("Cookie", cookies.join("; ")));
    fields
}

impl Mix {
    /// Makes a mix of one or more requests.
    ///
    /// # Errors
    /// There are none, or none has a weight, or there are more than [`REQUESTS_MAX`].
    pub fn new(requests: Vec<Request>) -> Result<Mix, String> {
        if requests.len() > REQUESTS_MAX {
            return Err(format!("{} requests, but the limit is {REQUESTS_MAX}", requests.len()));
        }
        let sums = requests.iter().scan(0, |sum, request| {
            *sum += u64::from(request.weight);
            Some(*sum)
        });
        let sums: Vec<u64> = sums.collect();
        match sums.last() {
            None | Some(0) => Err("no request has a weight above 0".to_owned()),
            Some(_) => Ok(Mix { requests, sums }),
        }
    }

    /// Reads a file of requests: one JSON object a line,
    /// `{"path": "/a", "method": "PUT", "fields": [["A", "b"]], "body": "x", "weight": 3}`, all but
    /// `path` may be left out. `spelling` applies to the rest.
    ///
    /// # Errors
    /// The line that is wrong, and why.
    pub fn parse(text: &str, host: &str, spelling: &Spelling) -> Result<Mix, String> {
        let mut requests = Vec::new();
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (at, line) in lines {
            let wrong = |error: String| format!("line {}: {error}", at + 1);
            let line: Line =
                serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            let body = line.body.into_bytes();
            let spelling =
                Spelling { method: line.method, fields: line.fields, body, ..spelling.clone() };
            requests.push(Request::new(host, &line.path, line.weight, &spelling).map_err(wrong)?);
        }
        Mix::new(requests)
    }

    /// The requests, by number.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Draws the number of one.
    pub(crate) fn draw(&self, random: &mut Random) -> u16 {
        if self.requests.len() == 1 {
            return 0;
        }
        let drawn = random.next() % self.sums.last().copied().unwrap_or(1);
        self.sums.partition_point(|sum| *sum <= drawn) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(path: &str, spelling: &Spelling) -> String {
        String::from_utf8(Request::new("h:1", path, 1, spelling).unwrap().bytes.to_vec()).unwrap()
    }

    #[test]
    fn presets_and_fields_are_spelled_out() {
        assert_eq!(spelled("/a", &Spelling::default()), "GET /a HTTP/1.1\r\nHost: h:1\r\n\r\n");
        let fields =
            vec![("Host".to_owned(), "x".to_owned()), ("Accept".to_owned(), "y".to_owned())];
        let text =
            spelled("/", &Spelling { fields, preset: Preset::Browser, ..Spelling::default() });
        assert!(
            text.contains("Host: x\r\n") && text.contains("Accept: y\r\n") && !text.contains("h:1")
        );
        assert_eq!(text.matches("\r\nAccept: ").count(), 1);
        assert!((1_800..2_300).contains(&text.len()), "{}", text.len());
        let body = Spelling { body: b"abc".to_vec(), ..Spelling::default() };
        assert_eq!(
            spelled("/", &body),
            "POST / HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\n\r\nabc"
        );
        let absolute = Spelling { absolute: true, ..Spelling::default() };
        assert_eq!(spelled("/a", &absolute), "GET http://h:1/a HTTP/1.1\r\nHost: h:1\r\n\r\n");
        let numbered = Request::new("h:1", "/?n={serial}", 1, &absolute).unwrap();
        let at = numbered.serial_at.unwrap();
        assert_eq!(&numbered.bytes[at - 2..at + 13], b"n=000000000000 ");
        let request = Request::new("h", "/", 1, &body).unwrap();
        assert_eq!(&request.bytes[request.head_bytes..], b"abc");
        assert!(request.last.windows(19).any(|window| window == b"Connection: close\r\n"));
    }

    #[test]
    fn what_would_be_two_requests_is_refused() {
        let method =
            |method: &str| Spelling { method: Some(method.to_owned()), ..Spelling::default() };
        let field = |name: &str, value: &str| Spelling {
            fields: vec![(name.to_owned(), value.to_owned())],
            ..Spelling::default()
        };
        let bad =
            [("/", method("A B")), ("/", method("")), ("a", method("GET")), ("/ x", method("GET"))];
        let worse =
            [("/", field("A\r\nB", "c")), ("/", field("A", "b\r\nc: d")), ("/", field("", "x"))];
        for (path, spelling) in bad.into_iter().chain(worse) {
            assert!(Request::new("h", path, 1, &spelling).is_err(), "{path} {spelling:?}");
        }
    }

    #[test]
    fn a_file_of_requests_is_drawn_by_weight() {
        let text = "{\"path\":\"/a\",\"weight\":3}\n\n\
            {\"path\":\"/b\",\"method\":\"PUT\",\"body\":\"x\"}\n";
        let mix = Mix::parse(text, "h", &Spelling::default()).unwrap();
        let mut random = Random::new(1);
        let firsts = (0..10_000).filter(|_| mix.draw(&mut random) == 0).count();
        assert!((7_300..7_700).contains(&firsts), "{firsts}");
        let many = vec![mix.requests()[0].clone(); REQUESTS_MAX + 1];
        assert!(Mix::new(many.clone()).is_err_and(|why| why.contains("the limit is 65536")));
        let last = Mix::new(many[1..].to_vec()).unwrap();
        assert!(
            (0..1000).map(|_| last.draw(&mut random)).max() > Some(64_000),
            "all of them are drawn"
        );
        assert_eq!(mix.requests()[1].name, "PUT /b");
        for wrong in
            ["", "{}", "{\"path\":\"/\",\"wight\":1}", "{\"path\":\"/\",\"weight\":0}", "nonsense"]
        {
            assert!(Mix::parse(wrong, "h", &Spelling::default()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_request_has_its_number_where_the_path_says() {
        let request = Request::new("h", "/a?id={serial}&x", 1, &Spelling::default()).unwrap();
        assert_eq!(request.name, "GET /a?id={serial}&x");
        let bytes = with_serial(&request.last, request.serial_at.unwrap(), 7, 42);
        assert_eq!(
            bytes,
            "GET /a?id=007000000042&x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(Request::new("h", "/a", 1, &Spelling::default()).unwrap().serial_at, None);
    }
}
