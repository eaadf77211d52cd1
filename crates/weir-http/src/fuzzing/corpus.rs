//! Inputs with their expected results: seeds for the fuzz targets, rows for the tests.
//!
//! Each case has the row of docs/hostile.md that it belongs to (`a7`), or `ok` for legitimate
//! input. Text is one byte a character, so that cases can hold bytes that are not UTF-8.

/// One head.
#[derive(Clone, Debug)]
pub struct HeadCase {
    /// Row of the catalogue in small letters.
    pub row: &'static str,
    /// The head, and sometimes what follows it.
    pub input: Vec<u8>,
    /// Accepted, or the word of the error.
    pub expected: Result<(), &'static str>,
}

/// One chunked body.
#[derive(Clone, Debug)]
pub struct ChunkedCase {
    /// Row of the catalogue in small letters.
    pub row: &'static str,
    /// The body with its last chunk and trailers.
    pub input: Vec<u8>,
    /// The decoded bytes, or the word of the error in a request.
    pub expected: Result<Vec<u8>, &'static str>,
}

/// One character, one byte.
pub fn wire(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect()
}

#[derive(Default)]
struct Heads(Vec<HeadCase>);

impl Heads {
    fn ok(&mut self, row: &'static str, text: &str) {
        self.0.push(HeadCase { row, input: wire(text), expected: Ok(()) });
    }

    fn bad(&mut self, row: &'static str, word: &'static str, text: &str) {
        self.0.push(HeadCase { row, input: wire(text), expected: Err(word) });
    }
}

fn get(more: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{more}\r\n")
}

fn post(more: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{more}\r\n")
}

fn answer(more: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{more}\r\n")
}

/// A browser's request with a cookie of 1.5 KB.
pub fn browser() -> Vec<u8> {
    let cookie = "session=0123456789abcdef; theme=dark; ".repeat(40);
    let agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
        Chrome/140.0 Safari/537.36";
    wire(&format!(
        "GET /index.html?q=1 HTTP/1.1\r\nHost: www.example.com\r\nConnection: keep-alive\r\n\
         sec-ch-ua-mobile: ?0\r\n\
         Upgrade-Insecure-Requests: 1\r\nUser-Agent: {agent}\r\n\
         Accept: text/html,application/xml;q=0.9,*/*;q=0.8\r\n\
         Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n\
         Accept-Encoding: gzip, deflate, br, zstd\r\n\
         Accept-Language: en-GB,en;q=0.9\r\nCookie: {cookie}\r\n\r\n"
    ))
}

/// Request heads.
pub fn requests() -> Vec<HeadCase> {
    let mut heads = Heads::default();
    ordinary_requests(&mut heads);
    request_codings(&mut heads);
    request_lengths(&mut heads);
    request_lines(&mut heads);
    request_fields(&mut heads);
    request_targets(&mut heads);
    heads.0.push(HeadCase { row: "ok", input: browser(), expected: Ok(()) });
    heads.0
}

fn ordinary_requests(heads: &mut Heads) {
    heads.ok("ok", &get(""));
    heads.ok("ok", &get("X:\r\nY:   \r\nZ: \t a \t\r\nw:\u{e9}\u{80}\u{ff}\r\n"));
    heads.ok(
        "ok",
        "POST /x HTTP/1.1\r\nHost: a:8080\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n",
    );
    heads.ok(
        "ok",
        &post(
            "Transfer-Encoding: CHUNKED\r\nTE: trailers, deflate\r\nConnection: TE, x-hop\r\n\
            X-Hop: 1\r\n",
        ),
    );
    heads.ok("ok", &get("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n"));
    heads.ok("ok", "GET / HTTP/1.0\r\n\r\n");
    heads.ok(
        "ok",
        "PATCH /a HTTP/1.0\r\nHost: [::1]:80\r\nConnection: Keep-Alive\r\n\
        Content-Length: 0\r\n\r\n",
    );
    heads.ok(
        "ok",
        "!#$%&'*+-.^_`|~ / HTTP/1.1\r\nhOsT: a\r\nIf-None-Match: \"x\"\r\nMax-Forwards: 3\r\n\r\n",
    );
    heads.ok(
        "ok",
        &get("Via: 1.1 a, 1.0 b (c, d)\r\nX-Forwarded-For: 1.2.3.4\r\n\
        X-Real-IP: 1.2.3.4\r\nX_y: 1\r\n"),
    );
}

fn request_codings(heads: &mut Heads) {
    heads.bad("a1", "both-framings", &post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n"));
    heads.bad("a2", "both-framings", &post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"));
    let codings = [
        "xchunked",
        ",chunked",
        "chunked, chunked",
        "chunked,gzip",
        "gzip, chunked",
        "identity",
        "",
        "\"chunked\"",
        "chunked;a=b",
        "\u{a0}chunked",
        "gzip",
    ];
    for value in codings {
        heads.bad(
            "a3",
            "both-framings",
            &post(&format!("Transfer-Encoding: {value}\r\nContent-Length: 5\r\n")),
        );
        let word =
            if matches!(value, "xchunked" | "gzip") { "coding-unknown" } else { "coding-invalid" };
        heads.bad("a3", word, &post(&format!("Transfer-Encoding: {value}\r\n")));
    }
    heads.bad("a3", "control-byte", &post("Transfer-Encoding: \u{b}chunked\r\n"));
    heads.bad(
        "a3",
        "coding-invalid",
        &post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    );
    heads.bad(
        "a3",
        "coding-invalid",
        &post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"),
    );
    heads.bad("a3", "name-spaced", &post("Transfer-Encoding : chunked\r\n"));
    heads.bad("a3", "line-fold", &post("Transfer-Encoding:\r\n chunked\r\n"));
    heads.bad("a5", "bare-lf", &post("Content-Length:\n 7\r\n"));
    heads.bad("a5", "name-spaced", &post("Content-Length : 7\r\n"));
    heads.bad("a5", "line-fold", "POST / HTTP/1.1\r\n Content-Length: 7\r\nHost: a\r\n\r\n");
    heads.ok("a5", &post("Content_Length: 7\r\n"));
    heads.bad("a5", "line-fold", &post("Content-Length:\r\n 7\r\n"));
    heads.ok(
        "a6",
        "OPTIONS / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    );
}

fn request_lengths(heads: &mut Heads) {
    let lengths = [
        "+5",
        "-0",
        "-1",
        "5,5",
        "5, 10",
        "0x5",
        "5 5",
        "5.0",
        "",
        "9223372036854775808",
        "18446744073709551616",
        "99999999999999999999",
        "5\t6",
        "\u{b2}",
        "5;",
        "_5",
        "5_0",
        "1e1",
    ];
    for value in lengths {
        heads.bad("a7", "length-invalid", &post(&format!("Content-Length: {value}\r\n")));
    }
    heads.bad("a7", "length-repeated", &post("Content-Length: 5\r\nContent-Length: 6\r\n"));
    heads.bad("a7", "length-repeated", &post("Content-Length:\r\nContent-Length: 5\r\n"));
    heads.bad("a7", "length-repeated", &post("Content-Length: 5\r\nContent-Length: 5\r\n"));
    heads.ok("a7", &post("Content-Length: 9223372036854775807\r\n"));
    heads.ok("a7", &post("Content-Length: 005\r\n"));
    heads.bad("a12", "coding-in-http10", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n");
    heads.ok("a12", "GET / HTTP/1.0\r\n\r\nabcd");
    heads.ok("a12", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    heads.ok("a13", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcd");
    heads.ok("a13", "DELETE / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcd");
    heads.ok("a16", &post("Expect: 100-Continue\r\nContent-Length: 4\r\n"));
    heads.ok("a16", &get("Expect: 100-continue\r\n"));
    for value in ["y 100-continue", "100-continue, x", "100-continue;a", "", "200-ok"] {
        heads.bad(
            "a16",
            "expectation",
            &post(&format!("Expect: {value}\r\nContent-Length: 4\r\n")),
        );
    }
    heads.bad(
        "a16",
        "expectation",
        &post("Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 4\r\n"),
    );
    heads.ok("c3", "CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    heads.ok("c3", "CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcd");
    heads.bad(
        "c3",
        "length-invalid",
        "CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\n",
    );
    heads.bad(
        "c3",
        "connect-body",
        "CONNECT a:443 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
}

fn request_lines(heads: &mut Heads) {
    heads.bad("b1", "bare-lf", "GET / HTTP/1.1\nHost: a\r\n\r\n");
    heads.bad("b1", "bare-lf", "GET / HTTP/1.1\r\nHost: a\n\r\n");
    heads.bad("b1", "bare-lf", "GET / HTTP/1.1\r\nHost: a\r\n\n");
    heads.bad("b1", "bare-lf", "GET / HTTP/1.1\nHost: a\n\n");
    heads.bad("b1", "bare-lf", "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("b1", "bare-lf", "GET\n / HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("b1", "bare-lf", "GET /\n HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("b2", "bare-cr", &get("X: a\rEvil: b\r\n"));
    heads.bad("b2", "bare-cr", &get("X\rY: a\r\n"));
    heads.bad("b2", "bare-cr", &get("X\r: a\r\n"));
    heads.bad("b2", "bare-cr", &get("X: a\r\r\n"));
    heads.bad("b2", "bare-cr", "GET / HTTP/1.1\rHost: a\r\n\r\n");
    heads.bad("b2", "bare-cr", "GET / HTTP/1.1\r\nHost: a\r\n\rX: y\r\n\r\n");
    heads.bad("b2", "bare-cr", "\rGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    for byte in (0..0x20u8).filter(|byte| !matches!(byte, b'\t' | b'\r' | b'\n')).chain([0x7f]) {
        let byte = byte as char;
        heads.bad("b3", "control-byte", &get(&format!("X: a{byte}b\r\n")));
        heads.bad("b3", "control-byte", &get(&format!("X{byte}: a\r\n")));
        heads.bad("b3", "control-byte", &format!("GET /{byte} HTTP/1.1\r\nHost: a\r\n\r\n"));
        heads.bad("b3", "control-byte", &format!("G{byte}T / HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    heads.bad("b8", "target-invalid", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("b8", "version-invalid", "GET /  HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("b8", "version-invalid", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n");
    heads.bad("b8", "method-invalid", " GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("b8", "method-invalid", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("b8", "target-invalid", "GET /\tHTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("b8", "version-unsupported", "GET / HTTP/1.2\r\nHost: a\r\n\r\n");
    heads.bad("b8", "version-unsupported", "GET / HTTP/2.0\r\nHost: a\r\n\r\n");
    heads.bad("b8", "version-unsupported", "GET / HTTP/0.9\r\nHost: a\r\n\r\n");
    for version in [
        "http/1.1",
        "HTTP/1.10",
        "HTTP/11",
        "HTTP/1",
        "HTTP/1,1",
        "HTTP /1.1",
        "HTTPS/1.1",
        "",
        "x",
        "HTTP/1.1x",
    ] {
        heads.bad("b8", "version-invalid", &format!("GET / {version}\r\nHost: a\r\n\r\n"));
    }
    heads.bad("b8", "version-invalid", "GET /\r\n\r\n");
    heads.bad("b8", "method-invalid", "GET\r\n\r\n");
    heads.bad(
        "b8",
        "line-too-long",
        &format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "A".repeat(1 << 16)),
    );
    heads.bad(
        "b8",
        "line-too-long",
        &format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(1 << 16)),
    );
    heads.ok("b8", &format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(8192 - 14)));
    heads.bad(
        "b8",
        "line-too-long",
        &format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(8192 - 13)),
    );
    heads.ok("b8", &format!("\r\n\r\n{}", get("")));
    heads.bad("b8", "leading-lines", &format!("\r\n\r\n\r\n{}", get("")));
    heads.bad("b8", "leading-lines", &"\r\n".repeat(1000));
    heads.bad("c8", "method-invalid", "GET=\":; / HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("c8", "method-invalid", "G\u{e9}T / HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("c8", "version-unsupported", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    heads.bad("c8", "method-invalid", "PRI / HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.ok("c8", "get / HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.ok("c8", &format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "M".repeat(1024)));
}

fn request_fields(heads: &mut Heads) {
    heads.bad("b4", "line-fold", &get("X: a\r\n b\r\n"));
    heads.bad("b4", "line-fold", &get("X: a\r\n\tb\r\n"));
    heads.bad("b4", "line-fold", "GET / HTTP/1.1\r\n X: a\r\nHost: a\r\n\r\n");
    heads.bad("b4", "line-fold", "GET / HTTP/1.1\r\nHost:\r\n a\r\n\r\n");
    heads.bad("b4", "line-fold", "GET / HTTP/1.1\r\nHost: a\r\n \r\n\r\n");
    heads.bad("b5", "name-spaced", "GET / HTTP/1.1\r\nHost : a\r\n\r\n");
    heads.bad("b5", "name-spaced", "GET / HTTP/1.1\r\nHost\t: a\r\n\r\n");
    heads.bad("b6", "name-empty", &get(": x\r\n"));
    heads.bad("b6", "name-empty", &get(":\r\n"));
    heads.bad("b6", "name-invalid", &get("T\u{e9}st: 1\r\n"));
    heads.bad("b6", "name-spaced", &get("a b: c\r\n"));
    heads.bad("b6", "colon-missing", &get("abc\r\n"));
    heads.bad("b6", "name-invalid", &get("\u{80}: 1\r\n"));
    for separator in "\"(),/;<=>?@[\\]{}".chars() {
        heads.bad("b6", "name-invalid", &get(&format!("a{separator}b: c\r\n")));
    }
    heads.ok("b7", &get("X_Forwarded_For: 1\r\n"));
    heads.ok("b9", &get(&"X: y\r\n".repeat(99)));
    heads.bad("b9", "fields-too-many", &get(&"X: y\r\n".repeat(100)));
    heads.bad("b9", "head-too-large", &get(&format!("X: {}\r\n", "y".repeat(65536))));
    heads.bad("b9", "fields-too-many", &get(&"Cookie: a=b\r\n".repeat(10_000)));
    heads.bad("b9", "head-too-large", &get(&format!("{}: y\r\n", "x".repeat(65536))));
    heads.ok("b9", &get(&format!("X: {}\r\n", "y".repeat(32768 - 32))));
    heads.bad("b9", "head-too-large", &get(&format!("X: {}\r\n", "y".repeat(32768 - 31))));
    heads.ok(
        "b11",
        &get("Connection: close, X-Auth, Host, Content-Length\r\nX-Auth: 1\r\nx-AUTH: 2\r\n"),
    );
    heads.ok(
        "b11",
        &get(
            "Connection: X-Forwarded-For\r\nConnection: x,,\t, y\r\nX-Forwarded-For: 1\r\ny: 1\r\n",
        ),
    );
    heads.bad("b11", "connection-options", &get(&format!("Connection: {}\r\n", "x,".repeat(65))));
    heads.ok("b12", &get("Via: 1.1 weir\r\n"));
    heads.ok("b12", "TRACE / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n");
}

fn request_targets(heads: &mut Heads) {
    heads.bad("c1", "host-missing", "GET / HTTP/1.1\r\n\r\n");
    heads.bad("c1", "host-missing", "GET http://a/ HTTP/1.1\r\n\r\n");
    heads.bad("c1", "host-repeated", &get("Host: a\r\n"));
    heads.bad("c1", "host-repeated", &get("Host: b\r\n"));
    for host in [
        "", "a,b", "u@a", "a/b", "a:99999", "[::1", "a b", "a:", ":80", "a%00", "::1", "http://a",
        "\u{e9}",
    ] {
        heads.bad("c1", "host-invalid", &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        heads.bad("c1", "host-invalid", &format!("GET / HTTP/1.0\r\nHost: {host}\r\n\r\n"));
    }
    heads.bad("c1", "control-byte", "GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n");
    heads.bad("c1", "host-repeated", "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n");
    heads.ok("c2", "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.ok("c2", "GET HTTPS://b:8443/x?y HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.ok("c2", "GET http://b HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.ok("c2", "GET http://b/ HTTP/1.0\r\n\r\n");
    for target in ["http:///x", "http://u@b/", "http://b:x/", "http://a,b/", "http://", "http://?q"]
    {
        heads.bad("c2", "target-authority", &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    // Rejected in this form; the output of `encode_target` for it is fine.
    heads.bad("c2", "target-raw", "GET http://b?q HTTP/1.1\r\nHost: a\r\n\r\n");
    for target in ["foo", "*", "ftp://b/", "http:/b", "a:80", "?q", "**", "//", "javascript:x"] {
        let origin = target.starts_with('/');
        let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        if origin { heads.ok("c3", &text) } else { heads.bad("c3", "target-form", &text) }
    }
    heads.ok("c3", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.ok("c3", "GET //evil HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.ok("c3", "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n");
    for target in ["/x", "a", "a:", "*", "http://a/", "u@a:443", "a:443/"] {
        heads.bad("c3", "target-form", &format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    for target in ["/a#b", "/a?b#c", "#", "http://a/#x"] {
        heads.bad("c3", "target-fragment", &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    for target in [
        "/admin%00",
        "/%C0%ae",
        "/a/%c1%9c?x",
        "/%e0%80%af",
        "/%f0%80%80%ae",
        "/%fc%80%80%80%80%af",
        "http://a/%00",
    ] {
        heads.bad("c4", "target-encoding", &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    for target in [
        "/%2e%2e/",
        "/%c3%a9",
        "/%e0%a0%80",
        "/%f0%90%80%80",
        "/a?%00%c0%ae",
        "/100%",
        "/%zz",
        "/%e0%8",
        "/%f0",
        "/%E4pfel",
        "/%C0%B4%C1%B3",
    ] {
        heads.ok("c4", &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    heads.bad("c4", "target-form", "GET \\admin HTTP/1.1\r\nHost: a\r\n\r\n");
    heads.bad("c3", "target-raw", "GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n");
}

/// Reply heads, none of them to HEAD.
pub fn replies() -> Vec<HeadCase> {
    let mut heads = Heads::default();
    heads.ok(
        "ok",
        &answer("Content-Length: 2\r\nServer: x\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"),
    );
    heads.ok(
        "ok",
        "HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\nConnection: close, x\r\nx: 1\r\n\r\n",
    );
    heads.ok("ok", "HTTP/1.0 404 Not \u{e9} Found\r\n\r\n");
    heads.ok("ok", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n");
    heads.ok(
        "ok",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    );
    heads.ok("ok", "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 10\r\n\r\n");
    heads.ok(
        "ok",
        "HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm=\"a, b\", Negotiate\r\n\
        Content-Length: 0\r\n\r\n",
    );
    heads.ok(
        "ok",
        "HTTP/1.1 999 x\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nX_y: z\r\n\
        Content-Length: 0\r\n\r\n",
    );
    heads.bad(
        "e13",
        "both-framings",
        &answer("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"),
    );
    heads.bad(
        "e13",
        "both-framings",
        "HTTP/1.1 304 x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    heads.bad("e14", "length-repeated", &answer("Content-Length: 2\r\nContent-Length: 3\r\n"));
    for value in ["-1", "+2", "", "2, 2", "2,3", "0x2", "2 3", "9223372036854775808"] {
        heads.bad("e14", "length-invalid", &answer(&format!("Content-Length: {value}\r\n")));
    }
    heads.bad("e14", "length-invalid", &answer("Content-Length:\r\n 2\r\n"));
    heads.bad("e14", "length-repeated", &answer("Content-Length: 2\r\nContent-Length: 2\r\n"));
    heads.ok("e14", &answer("Content-Length : 2\r\n"));
    heads.bad("e15", "both-framings", &answer("Transfer-Encoding: gzip\r\nContent-Length: 2\r\n"));
    for value in [
        "gzip",
        "identity",
        "",
        "chunked, chunked",
        "gzip, chunked",
        "x",
        "chunked\r\n ",
        "\r\n chunked",
    ] {
        heads.bad("e15", "coding-unknown", &answer(&format!("Transfer-Encoding: {value}\r\n")));
    }
    heads.bad(
        "e15",
        "coding-unknown",
        &answer("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    );
    heads.bad("e15", "coding-in-http10", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    reply_grammar(&mut heads);
    heads.0
}

fn reply_grammar(heads: &mut Heads) {
    heads.bad("e17", "bare-lf", "HTTP/1.1 200 OK\nContent-Length: 2\n\nOK");
    heads.bad("e17", "bare-lf", "HTTP/1.1 200 OK\r\nContent-Length: 2\n\r\nOK");
    heads.bad("e17", "bare-cr", &answer("X: a\rb\r\n"));
    heads.bad("e17", "control-byte", &answer("X: a\0b\r\n"));
    heads.bad("e17", "control-byte", "HTTP/1.1 200 O\u{1}K\r\n\r\n");
    for status in ["2000", "20", "099", "2 0", "2x0", "-20", "+20", ""] {
        heads.bad("e17", "status-invalid", &format!("HTTP/1.1 {status} OK\r\n\r\n"));
    }
    heads.bad("e17", "status-invalid", "HTTP/1.1 200\r\n\r\n");
    heads.bad("e17", "status-invalid", "HTTP/1.1  200 OK\r\n\r\n");
    for line in [
        "<html>",
        "HTTP/1.2 200 OK",
        "HTTP/2.0 200 OK",
        "http/1.1 200 OK",
        "HTTP/1.1",
        "ICY 200 OK",
        "",
        " ",
        "HTTP/1.1\t200 OK",
    ] {
        heads.bad("e17", "version-invalid", &format!("{line}\r\n\r\n"));
    }
    heads.bad("e17", "version-invalid", &format!("\r\n{}", answer("")));
    heads.bad("e17", "head-too-large", &answer(&format!("X: {}\r\n", "y".repeat(1 << 20))));
    heads.bad("e17", "line-too-long", &format!("HTTP/1.1 200 {}\r\n\r\n", "y".repeat(8192)));
    heads.bad("e17", "fields-too-many", &answer(&"X: y\r\n".repeat(101)));
    heads.ok("e17", &answer("X: a\r\n \t b\r\n  \r\n\tc \r\nContent-Length: 2\r\n"));
    heads.ok("e17", &answer("X:\r\n b\r\nY \t: c\r\nContent-Length: 2\r\n"));
    heads.bad("e17", "line-fold", "HTTP/1.1 200 OK\r\n X: a\r\n\r\n");
    heads.bad("e17", "name-spaced", &answer("a b: c\r\n"));
    heads.bad("e17", "colon-missing", &answer("abc\r\n"));
    heads.bad("e17", "name-empty", &answer(": c\r\n"));
    heads.bad("e17", "name-empty", &answer("X: y\r\n: c\r\n"));
}

/// Chunked bodies, with their results in a request.
pub fn chunked() -> Vec<ChunkedCase> {
    let mut cases = Vec::new();
    let mut ok = |row, text: &str, body: &str| {
        cases.push(ChunkedCase { row, input: wire(text), expected: Ok(wire(body)) });
    };
    ok("ok", "0\r\n\r\n", "");
    ok("ok", "5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\n", "hello");
    ok("ok", "3\r\na\r\n\r\nA\r\n0123456789\r\n000\r\n\r\n", "a\r\n0123456789");
    ok("ok", "1\r\nx\r\n0\r\nX-Sum: 1\r\nDate: x\r\nB:\r\n\r\n", "x");
    ok("a8", "00000005\r\nhello\r\n0\r\n\r\n", "hello");
    ok("a9", "5;a\r\nhello\r\n0;b=c;d=\"e \\\" \\\\ ;\"; f\t=\tg ;h\r\n\r\n", "hello");
    ok("a9", "1; a = b\r\nx\r\n0\r\n\r\n", "x");
    let mut bad = |row, word, text: &str| {
        cases.push(ChunkedCase { row, input: wire(text), expected: Err(word) });
    };
    for size in
        ["0x5", "+5", "-5", "5_0", "5 ", " 5", "", "g", "5 ;a", "\t5", "5\t", ";a", "\u{b2}"]
    {
        bad("a8", "chunk-size-invalid", &format!("{size}\r\nhello\r\n0\r\n\r\n"));
    }
    for size in ["FFFFFFFFFFFFFFFFF", "10000000000000005", "8000000000000000", &"0".repeat(300)] {
        bad("a8", "chunk-size-too-large", &format!("{size}\r\nhello\r\n0\r\n\r\n"));
    }
    bad("e16", "chunk-size-too-large", "10000000000000002\r\nOK\r\n0\r\n\r\n");
    for extension in [
        ";\r",
        ";",
        ";a=",
        ";a=\"",
        ";a=\"\0\"",
        ";\0x",
        ";a=b c",
        ";a=\"b\"c",
        ";;",
        ";a\u{e9}",
        ";a ",
        ";a=\"\\",
    ] {
        bad("a9", "chunk-extension-invalid", &format!("5{extension}\r\nhello\r\n0\r\n\r\n"));
    }
    bad("a9", "chunk-line-end", "5;\nhello\r\n0\r\n\r\n");
    bad("a9", "chunk-line-end", "5;a\ra\r\nhello\r\n0\r\n\r\n");
    bad("a9", "chunk-line-end", "5;a=\"\n\"\r\nhello\r\n0\r\n\r\n");
    bad("a9", "chunk-extension-invalid", "5;\ra\r\nhello\r\n0\r\n\r\n");
    bad("a9", "chunk-extension-invalid", "5;a=\"\r\n\"\r\nhello\r\n0\r\n\r\n");
    bad(
        "a9",
        "chunk-extensions-too-large",
        &format!("5;a={}\r\nhello\r\n0\r\n\r\n", "x".repeat(65536)),
    );
    bad(
        "a9",
        "chunk-extensions-too-large",
        &format!("{}0\r\n\r\n", "1;abcdefgh\r\nx\r\n".repeat(2000)),
    );
    for end in ["XX", "\n", "\r", "0\r\n\r\n", "\n\r", "\r\r\n", ""] {
        bad("a10", "chunk-data-end", &format!("5\r\nhello{end}0\r\n\r\n"));
    }
    bad("a10", "chunk-line-end", "5\nhello\r\n0\r\n\r\n");
    bad("a10", "chunk-line-end", "5\rhello\r\n0\r\n\r\n");
    bad("a10", "chunk-line-end", "0\r\n\rx");
    bad("a10", "chunk-line-end", "0\r\n\n");
    cases.extend(trailers());
    cases
}

/// Returns the cases of invalid trailers.
fn trailers() -> Vec<ChunkedCase> {
    let mut cases = Vec::new();
    let mut bad = |row, word, text: &str| {
        cases.push(ChunkedCase { row, input: wire(text), expected: Err(word) });
    };
    let forbidden = [
        "Content-Length: 50",
        "Transfer-Encoding: chunked",
        "Host: x",
        "Authorization: y",
        "cookie: a",
        "Set-Cookie: a",
        "Connection: close",
        "Trailer: x",
        "TE: x",
        "X-Forwarded-For: 1",
        "X-Forwarded-Port: 1",
        "Proxy-Authorization: x",
    ];
    for line in forbidden {
        bad("a11", "trailer-forbidden", &format!("0\r\n{line}\r\n\r\n"));
    }
    for line in
        [":path: /", "bare", "X : y", " X: y", "X: y\r\n z: 1", "X: \0", "T\u{e9}: x", "X: \u{7f}"]
    {
        bad("a11", "trailer-invalid", &format!("0\r\n{line}\r\n\r\n"));
    }
    bad("a11", "chunk-line-end", "0\r\nX: y\n\r\n");
    bad("a11", "chunk-line-end", "0\r\nX: y\rz: 1\r\n\r\n");
    bad("a11", "trailers-too-large", &format!("0\r\nX: {}\r\n\r\n", "y".repeat(100 * 1024)));
    bad("a11", "trailers-too-large", &format!("0\r\n{}\r\n", "X: y\r\n".repeat(101)));
    cases
}
