//! The judge of weir's output to a client: its bytes are exactly a sequence of valid responses to
//! the requests.
//!
//! Called by every raw client of the tests. RFC 9112 §4, §6.3, §7.1.3, §9.3, §9.6; RFC 9110 §7.6.1,
//! §8.6, §15.2.

use std::collections::VecDeque;

use crate::body::BodyReader;
use crate::grammar::{Declared, Violation, field, framing, head_end, latin1, lines, list};
use crate::message::{Fields, Reply};

/// A request whose response is due.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    method: String,
    version_10: bool,
    upgrade: bool,
}

impl Asked {
    /// Whether a response with this status makes a tunnel (RFC 9110 §9.3.6).
    fn is_connected(&self, status: u16) -> bool {
        self.method == "CONNECT" && (200..300).contains(&status)
    }
}

/// Reads one client connection from its first byte on.
///
/// Name each request with [`StrictReplies::ask`] before it is sent, feed all that arrives, take
/// complete responses with [`StrictReplies::poll_reply`], and report the end with
/// [`StrictReplies::end`].
#[derive(Debug, Default)]
pub struct StrictReplies {
    asked: VecDeque<Asked>,
    pending: Vec<u8>,
    searched: usize,
    offset: u64,
    /// The response whose body isn't complete, and where that ends.
    open: Option<(Reply, BodyReader)>,
    interim: Vec<u16>,
    ready: VecDeque<Reply>,
    /// A response announced that the connection ends after it.
    closing: bool,
    tunnel: Option<Vec<u8>>,
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// After a complete response, or before the first.
    Clean,
    /// In the middle of a head or of the given response (its body as far as it came).
    Truncated(Option<Reply>),
}

impl StrictReplies {
    /// A checker for a new connection.
    pub fn new() -> StrictReplies {
        StrictReplies::default()
    }

    /// Announces a request that is about to be sent: its method, whether it is HTTP/1.0, whether it
    /// requests an upgrade.
    pub fn ask(&mut self, method: &str, version_10: bool, upgrade: bool) {
        self.asked.push_back(Asked { method: method.to_owned(), version_10, upgrade });
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

    /// The next complete final reply.
    pub fn poll_reply(&mut self) -> Option<Reply> {
        self.ready.pop_front()
    }

    /// The reply whose body is not complete yet.
    pub fn current(&self) -> Option<&Reply> {
        self.open.as_ref().map(|(reply, _)| reply)
    }

    /// Interim replies that came since the last final one.
    pub fn interim(&self) -> &[u16] {
        &self.interim
    }

    /// Returns the bytes after a 101, or a 2xx to CONNECT, that arrived since the last call.
    pub fn take_tunnel(&mut self) -> Vec<u8> {
        self.tunnel.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Ends the connection. A response that is delimited by that becomes available.
    pub fn end(&mut self) -> End {
        match self.open.take() {
            Some((reply, BodyReader::UntilClose)) => {
                self.ready.push_back(reply);
                End::Clean
            }
            Some((reply, _)) => End::Truncated(Some(reply)),
            None if self.pending.is_empty() => End::Clean,
            None => End::Truncated(None),
        }
    }

    fn feed_body(&mut self, input: &[u8]) -> Result<usize, Violation> {
        let Some((reply, reader)) = &mut self.open else { return Ok(0) };
        let used = reader
            .feed(input, &mut reply.body, &mut reply.trailers)
            .map_err(|rule| Violation::new(self.offset, rule, input))?;
        let odd_trailer =
            ["content-length", "transfer-encoding", "host", "set-cookie", "connection", "trailer"];
        if let Some(name) = odd_trailer.iter().find(|name| reply.trailers.has(name)) {
            return Err(Violation::new(self.offset, format!("trailer {name}"), input));
        }
        self.offset += used as u64;
        if matches!(reader, BodyReader::Done) {
            self.ready.extend(self.open.take().map(|(reply, _)| reply));
        }
        Ok(used)
    }

    fn feed_head(&mut self, input: &[u8]) -> Result<usize, Violation> {
        if self.closing {
            return Err(Violation::new(
                self.offset,
                "bytes behind a reply that ends the connection",
                input,
            ));
        }
        let Some(asked) = self.asked.front().cloned() else {
            return Err(Violation::new(self.offset, "a reply that nobody asked for", input));
        };
        let before = self.pending.len();
        self.pending.extend_from_slice(input);
        let end = head_end(&self.pending, &mut self.searched)
            .map_err(|(at, rule)| Violation::new(self.offset + at as u64, rule, &self.pending))?;
        let Some(end) = end else { return Ok(input.len()) };
        let (reply, reader) = head(&self.pending[..end], &asked, self.offset)
            .map_err(|rule| Violation::new(self.offset, rule, &self.pending[..end]))?;
        self.offset += end as u64;
        self.pending.clear();
        self.searched = 0;
        self.accept(reply, reader);
        self.feed_body(&[])?;
        Ok(end - before)
    }

    /// Files a valid head: interim, switch of protocols, or final.
    fn accept(&mut self, mut reply: Reply, reader: BodyReader) {
        if (100..200).contains(&reply.status) && reply.status != 101 {
            self.interim.push(reply.status);
            return;
        }
        let connected =
            self.asked.pop_front().is_some_and(|asked| asked.is_connected(reply.status));
        reply.interim = std::mem::take(&mut self.interim);
        self.closing = reply.closes;
        if reply.status == 101 || connected {
            self.tunnel = Some(Vec::new());
        }
        self.open = Some((reply, reader));
    }
}

/// Judges a complete head and determines where its body ends.
fn head(head: &[u8], asked: &Asked, offset: u64) -> Result<(Reply, BodyReader), String> {
    let lines = lines(head);
    let status = status_line(lines[0])?;
    let mut fields = Fields::default();
    for line in &lines[1..] {
        fields.0.push(field(line).map_err(|rule| format!("{rule}: {}", line.escape_ascii()))?);
    }
    let declared = framing(&fields)?;
    let interim = (100..200).contains(&status);
    if (interim || status == 204) && declared != Declared::Nothing {
        return Err("a framing field where there is no body".to_owned());
    }
    if asked.version_10 && (declared == Declared::Chunked || interim) {
        return Err("chunks or an interim reply for an HTTP/1.0 client".to_owned());
    }
    if status == 101 && !(asked.upgrade && fields.has("upgrade")) {
        return Err("101 that nobody asked for".to_owned());
    }
    let closes = check_connection(&fields, status)? || asked.version_10 && !keeps_alive(&fields);
    if asked.is_connected(status) && declared != Declared::Nothing {
        return Err("a framing field in front of a tunnel".to_owned());
    }
    let bodiless = interim
        || asked.is_connected(status)
        || status == 204
        || status == 304
        || asked.method == "HEAD";
    let reader = match declared {
        _ if bodiless => BodyReader::Done,
        Declared::Length(length) => BodyReader::length(length),
        Declared::Chunked => BodyReader::chunked(),
        Declared::Nothing if asked.version_10 && closes => BodyReader::UntilClose,
        Declared::Nothing => return Err("a body without an end".to_owned()),
    };
    let (interim, body, trailers) = (Vec::new(), crate::Body::default(), Fields::default());
    Ok((Reply { offset, status, interim, fields, body, trailers, closes }, reader))
}

/// `HTTP/1.1 SP 3DIGIT SP [reason]`.
fn status_line(line: &[u8]) -> Result<u16, String> {
    let digits = line.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default();
    let status = latin1(digits).parse::<u16>().unwrap_or_default();
    let reason_follows = line.get(12) == Some(&b' ');
    if !digits.iter().all(u8::is_ascii_digit) || !(100..600).contains(&status) || !reason_follows {
        return Err("invalid status line".to_owned());
    }
    Ok(status)
}

/// Checks that hop-by-hop fields are weir's own; returns true when the connection ends after the
/// response.
fn check_connection(fields: &Fields, status: u16) -> Result<bool, String> {
    let options = list(&fields.all("connection"));
    for option in &options {
        let allowed = match option.as_str() {
            "close" | "keep-alive" => status >= 200,
            "upgrade" => fields.has("upgrade"),
            _ => false,
        };
        if !allowed {
            return Err(format!("Connection option {option}"));
        }
    }
    let forbidden =
        ["keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authentication-info", "te"];
    // The challenge of the proxy itself (RFC 9110 §11.7.1).
    let own = |name: &str| status == 407 && name == "proxy-authenticate";
    if let Some(name) = forbidden.iter().find(|name| fields.has(name) && !own(name)) {
        return Err(format!("hop-by-hop field {name}"));
    }
    if list(&fields.all("via")).iter().filter(|via| via.ends_with(" weir")).count() > 1 {
        return Err("Via names weir twice".to_owned());
    }
    Ok(options.iter().any(|option| option == "close"))
}

/// Whether the response announces to an HTTP/1.0 client that the connection remains open.
fn keeps_alive(fields: &Fields) -> bool {
    list(&fields.all("connection")).iter().any(|option| option == "keep-alive")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(method: &str, version_10: bool, input: &[u8]) -> Result<Vec<Reply>, Violation> {
        let mut checker = StrictReplies::new();
        checker.ask(method, version_10, false);
        checker.feed(input)?;
        checker.end();
        Ok(std::iter::from_fn(|| checker.poll_reply()).collect())
    }

    #[test]
    fn valid_replies_pass_alike_at_every_split() {
        let stream = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\
            Content-Length: 2\r\n\r\nok\
            HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n\
            HTTP/1.1 404 \r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nx\r\n0\r\n\
            T: u\r\n\r\n";
        for split in 0..stream.len() {
            let mut checker = StrictReplies::new();
            (0..3).for_each(|_| checker.ask("GET", false, false));
            checker.feed(&stream[..split]).unwrap();
            checker.feed(&stream[split..]).unwrap();
            let replies: Vec<Reply> = std::iter::from_fn(|| checker.poll_reply()).collect();
            assert_eq!(
                replies.iter().map(|reply| reply.status).collect::<Vec<_>>(),
                [200, 304, 404]
            );
            assert_eq!(replies[0].interim, [103]);
            assert_eq!(
                (replies[2].body.text().as_str(), replies[2].trailers.first("t")),
                ("x", Some("u"))
            );
            assert_eq!(checker.end(), End::Clean);
        }
    }

    #[test]
    fn close_delimited_is_for_http_10_only() {
        let reply = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc";
        assert_eq!(judge("GET", true, reply).unwrap()[0].body.text(), "abc");
        assert!(judge("GET", false, reply).is_err());
    }

    #[test]
    fn invalid_replies_are_violations() {
        let bad: [&[u8]; 12] = [
            b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nKeep-Alive: 5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: 0\r\n\r\n",
        ];
        for input in bad {
            assert!(judge("GET", false, input).is_err(), "{}", input.escape_ascii());
        }
    }

    #[test]
    fn a_cut_reply_is_not_complete() {
        let mut checker = StrictReplies::new();
        checker.ask("GET", false, false);
        checker.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab").unwrap();
        assert!(matches!(checker.end(), End::Truncated(Some(reply)) if reply.body.length == 2));
        assert!(checker.poll_reply().is_none());
    }
}
