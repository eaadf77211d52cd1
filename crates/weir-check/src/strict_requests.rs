//! The judge of weir's output to upstreams: the bytes of a connection are exactly a sequence of
//! valid requests.
//!
//! Called by every scripted upstream of the tests. It enforces what RFC 9112 demands of a sender,
//! and what weir promises on top: one framing field, no extensions, no trailers, no hop-by-hop
//! leftovers, one `Via` or `CDN-Loop`, and nothing after a request that must not be followed until
//! that is answered (docs/http1.md to docs/connections.md).

use std::collections::VecDeque;

use crate::body::BodyReader;
use crate::grammar::{
    Declared, Violation, field, framing, head_end, is_host, is_token, latin1, lines, list,
};
use crate::message::{Fields, Request};

/// Promises of the configuration of the weir under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// `Via` or `CDN-Loop` names weir exactly once. Default true.
    pub via: bool,
    /// Field names with `_` may leave. Default false.
    pub underscores: bool,
    /// Nothing follows a request that invites surplus responses. Default true.
    pub lasts: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { via: true, underscores: false, lasts: true }
    }
}

/// Reads one upstream connection from its first byte on.
///
/// Feed it all that arrives, take complete requests with [`StrictRequests::poll_request`], and
/// report each final response with [`StrictRequests::answered`] *before* that response is written.
#[derive(Debug, Default)]
pub struct StrictRequests {
    rules: Rules,
    /// Bytes of the head that isn't complete.
    pending: Vec<u8>,
    /// How much of `pending` was searched.
    searched: usize,
    /// Stream position of `pending`, or of the next body byte.
    offset: u64,
    /// The request whose body isn't complete, and where that ends.
    open: Option<(Request, BodyReader)>,
    ready: VecDeque<Request>,
    /// The requests whose heads were seen and that aren't answered.
    unanswered: VecDeque<Seen>,
    /// The answered requests: weir may not know that yet.
    answered: VecDeque<Seen>,
    /// Most requests that were ever unanswered at once.
    unanswered_max: usize,
    /// After 101: raw bytes that were not taken yet.
    tunnel: Option<Vec<u8>>,
}

/// Answered requests that are remembered.
const ANSWERED_MAX: usize = 64;

/// A request whose head was seen.
#[derive(Debug)]
struct Seen {
    /// Another may follow it.
    followed: bool,
    /// Safe and without a body: it may be sent once more, even after itself, since the second
    /// response is discarded.
    safe: bool,
    /// It was sent once more after a request that must not be followed, or is such a request.
    repeated: bool,
    head: Vec<u8>,
}

impl Seen {
    /// Whether these bytes may be the request once more, or its beginning: even after a request
    /// that must not be followed, since the response is discarded.
    fn is_repeated_by(&self, bytes: &[u8]) -> bool {
        let len = self.head.len().min(bytes.len());
        self.safe && !self.repeated && self.head[..len] == bytes[..len]
    }
}

impl StrictRequests {
    /// A checker for a new connection.
    pub fn new(rules: Rules) -> StrictRequests {
        StrictRequests { rules, ..StrictRequests::default() }
    }

    /// Takes the next bytes of the connection.
    ///
    /// # Errors
    /// weir sent something that must not leave. The checker is not usable afterwards.
    pub fn feed(&mut self, mut input: &[u8]) -> Result<(), Violation> {
        while !input.is_empty() {
            if let Some(tunnel) = &mut self.tunnel {
                tunnel.extend_from_slice(input);
                return Ok(());
            }
            let used = match self.open.is_some() {
                true => self.feed_body(input)?,
                false => self.feed_head(input)?,
            };
            input = &input[used..];
        }
        Ok(())
    }

    /// The next complete request.
    pub fn poll_request(&mut self) -> Option<Request> {
        self.ready.pop_front()
    }

    /// The request whose body is not complete yet.
    pub fn current(&self) -> Option<&Request> {
        self.open.as_ref().map(|(request, _)| request)
    }

    /// Notes that the oldest unanswered request has its final response now.
    pub fn answered(&mut self) {
        self.answered.extend(self.unanswered.pop_front());
        if self.answered.len() > ANSWERED_MAX {
            self.answered.pop_front();
        }
    }

    /// Notes that the oldest unanswered request was answered with 101: the following bytes are not
    /// HTTP.
    pub fn upgraded(&mut self) {
        self.answered();
        self.tunnel = Some(Vec::new());
    }

    /// Bytes of the tunnel that arrived since the last call.
    pub fn take_tunnel(&mut self) -> Vec<u8> {
        self.tunnel.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the requests whose head was seen and that have no final response.
    pub fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// The most that [`StrictRequests::unanswered`] ever was.
    pub fn unanswered_max(&self) -> usize {
        self.unanswered_max
    }

    /// Whether the connection may end here without leaving a message incomplete.
    pub fn is_between_messages(&self) -> bool {
        self.open.is_none() && self.pending.is_empty()
    }

    fn feed_body(&mut self, input: &[u8]) -> Result<usize, Violation> {
        let Some((request, reader)) = &mut self.open else { return Ok(0) };
        let mut trailers = Fields::default();
        let used = reader
            .feed(input, &mut request.body, &mut trailers)
            .map_err(|rule| Violation::new(self.offset, rule, input))?;
        if !trailers.0.is_empty() {
            return Err(Violation::new(self.offset, "request trailers", input));
        }
        self.offset += used as u64;
        if matches!(reader, BodyReader::Done) {
            self.ready.extend(self.open.take().map(|(request, _)| request));
        }
        Ok(used)
    }

    fn feed_head(&mut self, input: &[u8]) -> Result<usize, Violation> {
        let before = self.pending.len();
        self.pending.extend_from_slice(input);
        let closed = self.unanswered.back().is_some_and(|last| !last.followed);
        let mut known = self.answered.iter().chain(&self.unanswered);
        if closed && !known.any(|one| one.is_repeated_by(&self.pending)) {
            return Err(Violation::new(
                self.offset,
                "bytes behind a request that must not be followed",
                input,
            ));
        }
        let fault =
            |(at, rule), bytes: &[u8], offset: u64| Violation::new(offset + at as u64, rule, bytes);
        let end = head_end(&self.pending, &mut self.searched).map_err(|error| {
            fault(error, &self.pending[before.saturating_sub(40)..], self.offset)
        })?;
        let Some(end) = end else { return Ok(input.len()) };
        let request = self
            .head(&self.pending[..end])
            .map_err(|rule| Violation::new(self.offset, rule, &self.pending[..end]))?;
        let last = self.rules.lasts && request.0.invites_surplus();
        let head = self.pending[..end].to_vec();
        let mut known = self.answered.iter_mut().chain(&mut self.unanswered);
        if let Some(first) = known.find(|one| closed && one.is_repeated_by(&head)) {
            first.repeated = true;
        }
        let safe = request.0.may_be_followed();
        let followed = safe && !last && !closed;
        self.unanswered.push_back(Seen { followed, safe, repeated: closed, head });
        self.unanswered_max = self.unanswered_max.max(self.unanswered.len());
        self.open = Some(request);
        self.offset += end as u64;
        self.pending.clear();
        self.searched = 0;
        // Completes a request without a body at once.
        self.feed_body(&[])?;
        Ok(end - before)
    }

    fn head(&self, head: &[u8]) -> Result<(Request, BodyReader), String> {
        let lines = lines(head);
        let (method, target) = request_line(lines[0])?;
        let mut fields = Fields::default();
        for line in &lines[1..] {
            fields.0.push(field(line).map_err(|rule| format!("{rule}: {}", line.escape_ascii()))?);
        }
        let reader = match framing(&fields)? {
            Declared::Nothing => BodyReader::Done,
            Declared::Length(length) => BodyReader::length(length),
            Declared::Chunked => BodyReader::chunked(),
        };
        self.end_to_end(&fields)?;
        check_connection(&fields)?;
        if target == "*" && method != "OPTIONS" {
            return Err("target `*` with another method than OPTIONS".to_owned());
        }
        let request =
            Request { offset: self.offset, method, target, fields, body: crate::Body::default() };
        if request.fields.has("expect") && !request.has_body() {
            return Err("Expect without a body".to_owned());
        }
        Ok((request, reader))
    }

    /// Host, Via and CDN-Loop, and the fields that must have been dropped.
    fn end_to_end(&self, fields: &Fields) -> Result<(), String> {
        match fields.all("host").as_slice() {
            [host] if is_host(host) => {}
            hosts => return Err(format!("not exactly one valid Host: {hosts:?}")),
        }
        let (vias, loops) = (list(&fields.all("via")), list(&fields.all("cdn-loop")));
        let is_weir = |name: &&str| *name == "weir" || name.starts_with("weir-");
        let passed = loops.iter().filter_map(|member| member.split(';').next()).map(str::trim);
        let by = vias.iter().filter_map(|via| via.split_whitespace().nth(1));
        let mut own: Vec<&str> = by.chain(passed).filter(is_weir).collect();
        let count = own.len();
        own.sort_unstable();
        own.dedup();
        // A chain of several, each once.
        let once = count > 0 && own.len() == count;
        let last = vias
            .last()
            .and_then(|via| via.split_once(' '))
            .filter(|(version, _)| ["1.0", "1.1", "2"].contains(version));
        let is_last = last
            .map(|(_, name)| name)
            .into_iter()
            .chain(loops.last().map(String::as_str))
            .any(|name| is_weir(&name));
        // weir's own probes have no client behind them.
        let asked = self.rules.via && fields.first("user-agent") != Some("weir-health");
        if asked && !(once && is_last) {
            return Err(format!(
                "neither Via nor CDN-Loop ends with weir, exactly once: {vias:?} {loops:?}"
            ));
        }
        let forbidden = [
            "keep-alive",
            "proxy-connection",
            "proxy-authorization",
            "proxy-authenticate",
            "proxy",
        ];
        for (name, value) in &fields.0 {
            if name.contains('_') && !self.rules.underscores {
                return Err(format!("field name with an underscore: {name}"));
            }
            if forbidden
                .iter()
                .chain(&["http2-settings"])
                .any(|gone| name.eq_ignore_ascii_case(gone))
            {
                return Err(format!("hop-by-hop field {name}"));
            }
            if name.eq_ignore_ascii_case("expect") && !value.eq_ignore_ascii_case("100-continue") {
                return Err(format!("expectation {value}"));
            }
            if name.eq_ignore_ascii_case("max-forwards")
                && !value.bytes().all(|byte| byte.is_ascii_digit())
            {
                return Err(format!("Max-Forwards {value}"));
            }
        }
        Ok(())
    }
}

/// `method SP request-target SP HTTP/1.1` with an origin-form or asterisk target.
fn request_line(line: &[u8]) -> Result<(String, String), String> {
    let parts: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let [method, target, version] = parts.as_slice() else {
        return Err("request line not of three parts".to_owned());
    };
    if !is_token(method) {
        return Err("method that is not a token".to_owned());
    }
    if *version != b"HTTP/1.1" {
        return Err("version other than HTTP/1.1".to_owned());
    }
    let is_origin = target.first() == Some(&b'/');
    let bytes_are_valid = target.iter().all(|&byte| (0x21..=0x7e).contains(&byte) && byte != b'#');
    if !(is_origin && bytes_are_valid || *target == b"*") {
        return Err("target that is neither origin-form nor `*`".to_owned());
    }
    Ok((latin1(method), latin1(target)))
}

/// Checks that Connection has only what RFC 9110 §7.6.1, §7.8 and §10.1.4 allow, and that each such
/// field is named by it.
fn check_connection(fields: &Fields) -> Result<(), String> {
    let options = list(&fields.all("connection"));
    let named = |option: &str| options.iter().any(|given| given == option);
    if let Some(odd) =
        options.iter().find(|option| !["upgrade", "te", "close"].contains(&option.as_str()))
    {
        return Err(format!("Connection option {odd}"));
    }
    if named("upgrade") != fields.has("upgrade") || named("te") != fields.has("te") {
        return Err("Connection and the fields it must name disagree".to_owned());
    }
    if list(&fields.all("te")).iter().any(|coding| coding != "trailers") {
        return Err("TE other than trailers".to_owned());
    }
    if list(&fields.all("upgrade")).iter().any(|protocol| protocol.starts_with("h2c")) {
        return Err("Upgrade to h2c".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a request as weir may send it, with more field lines and a body.
    fn request(line: &str, more: &str) -> Vec<u8> {
        format!("{line}\r\nHost: a\r\nVia: 1.1 weir\r\n{more}").into_bytes()
    }

    fn judge(input: &[u8]) -> Result<Vec<Request>, Violation> {
        let mut checker = StrictRequests::new(Rules::default());
        checker.feed(input)?;
        Ok(std::iter::from_fn(|| checker.poll_request()).collect())
    }

    #[test]
    fn valid_streams_pass_alike_at_every_split() {
        let mut stream = request("GET /a?n=1 HTTP/1.1", "X: y\r\n\r\n");
        stream.extend(request("PUT /b HTTP/1.1", "Content-Length: 3\r\n\r\nabc"));
        let whole = judge(&stream).unwrap();
        assert_eq!(
            (whole.len(), whole[0].nonce(), whole[1].body.text()),
            (2, "1", "abc".to_owned())
        );
        for split in 0..stream.len() {
            let mut checker = StrictRequests::new(Rules::default());
            checker.feed(&stream[..split]).unwrap();
            checker.feed(&stream[split..]).unwrap();
            let parts: Vec<Request> = std::iter::from_fn(|| checker.poll_request()).collect();
            assert_eq!(parts, whole, "split at {split}");
            assert!(checker.is_between_messages());
        }
    }

    #[test]
    fn invalid_requests_are_violations() {
        let bad = [
            request("GET  / HTTP/1.1", "\r\n"),
            request("GET / HTTP/1.0", "\r\n"),
            request("G(T / HTTP/1.1", "\r\n"),
            request("GET /a#b HTTP/1.1", "\r\n"),
            request("GET http://a/ HTTP/1.1", "\r\n"),
            request("GET * HTTP/1.1", "\r\n"),
            request("GET / HTTP/1.1", "Host: a\r\n\r\n"),
            request("GET / HTTP/1.1", "X : a\r\n\r\n"),
            request("GET / HTTP/1.1", "X: a\r\n b\r\n\r\n"),
            request("GET / HTTP/1.1", "X: a\n\r\n"),
            request("GET / HTTP/1.1", "X: a\x00\r\n\r\n"),
            request("GET / HTTP/1.1", "X_Y: a\r\n\r\n"),
            request("GET / HTTP/1.1", "Keep-Alive: 5\r\n\r\n"),
            request("GET / HTTP/1.1", "Connection: keep-alive\r\n\r\n"),
            request("GET / HTTP/1.1", "TE: trailers\r\n\r\n"),
            request("GET / HTTP/1.1", "TE: gzip\r\nConnection: te\r\n\r\n"),
            request("GET / HTTP/1.1", "Upgrade: h2c\r\nConnection: upgrade\r\n\r\n"),
            request("GET / HTTP/1.1", "Via: 1.1 weir\r\n\r\n"),
            request("POST / HTTP/1.1", "Content-Length: 1\r\nContent-Length: 1\r\n\r\n"),
            request("POST / HTTP/1.1", "Content-Length: +1\r\n\r\n"),
            request("POST / HTTP/1.1", "Content-Length: 9223372036854775808\r\n\r\n"),
            request("POST / HTTP/1.1", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
            request("POST / HTTP/1.1", "Transfer-Encoding: xchunked\r\n\r\n"),
            request("POST / HTTP/1.1", "Transfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\n\r\n"),
            request("POST / HTTP/1.1", "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n"),
            b"GET / HTTP/1.1\r\nVia: 1.1 weir\r\n\r\n".to_vec(),
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        ];
        for input in bad {
            assert!(judge(&input).is_err(), "{}", input.escape_ascii());
        }
    }

    #[test]
    fn nothing_follows_what_must_not_be_followed() {
        let mut checker = StrictRequests::new(Rules::default());
        checker.feed(&request("POST / HTTP/1.1", "Content-Length: 0\r\n\r\n")).unwrap();
        let get = request("GET / HTTP/1.1", "\r\n");
        checker.answered();
        checker.feed(&get).unwrap();
        checker.feed(&get).unwrap();
        assert_eq!(checker.unanswered_max(), 2);
        let upgrade =
            request("GET / HTTP/1.1", "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n");
        checker.feed(&upgrade).unwrap();
        // Each request that may be followed may come once more, and no other.
        checker.feed(&get[..10]).unwrap();
        checker.feed(&get[10..]).unwrap();
        checker.feed(&get).unwrap();
        assert!(checker.feed(&get[..1]).is_err());
        for other in [upgrade.clone(), request("GET /other HTTP/1.1", "\r\n")] {
            let mut checker = StrictRequests::new(Rules::default());
            checker.feed(&get).unwrap();
            checker.feed(&upgrade).unwrap();
            assert!(checker.feed(&other).is_err());
        }
    }
}
