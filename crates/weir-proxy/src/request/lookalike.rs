//! Whether the body of a request reads like a request, or like the beginning of one: the start of
//! request smuggling by an ignored length (CL.0).
//!
//! A server that ignores the length of a request, as some do for redirects, errors and static
//! files, takes its body for the next request and answers that as well. The second response would
//! reach the next client of the connection, however late it comes. So a connection that has carried
//! such a body takes no further request. The upstream connection feeds it the bytes of a body as
//! they are sent, in any pieces; one vectorised search for slashes. Memory: [`TAIL_BYTES`].
//! RFC 9112 §3, docs/hostile-requests.md A4.

use memchr::memchr_iter;
use weir_http::is_token;

/// Latest bytes of the body that may be part of a pattern with the next ones.
const TAIL_BYTES: usize = 64;
/// Longest method that is recognised.
const METHOD_BYTES_MAX: usize = 32;

/// The body of the latest request on a connection.
#[derive(Debug, Default)]
pub(crate) struct Lookalike {
    /// The last bytes of the body; empty at its beginning.
    tail: Vec<u8>,
    is_found: bool,
}

impl Lookalike {
    /// Whether the body may be read as a request.
    pub(crate) fn is_found(&self) -> bool {
        self.is_found
    }

    /// Begins another request: `sent` is its head and perhaps a part of its body.
    pub(crate) fn begin(&mut self, sent: &[u8]) {
        (self.is_found, self.tail) = (false, Vec::new());
        let body = memchr::memmem::find(sent, b"\r\n\r\n").map_or(&[][..], |end| &sent[end + 4..]);
        self.feed(body);
    }

    /// Adds more of its body.
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        if self.is_found || piece.is_empty() {
            return;
        }
        if self.tail.is_empty() {
            self.is_found = reads_like_request(piece, true);
            self.keep(piece);
            return;
        }
        // The text across the cut, then the text behind it.
        let across = [&self.tail, &piece[..piece.len().min(TAIL_BYTES)]].concat();
        let is_whole = self.tail.len() < TAIL_BYTES;
        self.is_found = reads_like_request(&across, is_whole) || reads_like_request(piece, false);
        self.keep(piece);
    }

    fn keep(&mut self, piece: &[u8]) {
        self.tail.extend_from_slice(&piece[piece.len().saturating_sub(TAIL_BYTES)..]);
        let surplus = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..surplus);
    }
}

/// Whether `text` names a version of HTTP, or has a line that begins with a method and a path:
/// everything that servers take for a request has one of them. `is_start`: it is the beginning of a
/// body.
fn reads_like_request(text: &[u8], is_start: bool) -> bool {
    memchr_iter(b'/', text).any(|slash| {
        let before = &text[..slash];
        names_version(before, text.get(slash + 1)) || begins_line(before, is_start)
    })
}

/// Whether a slash behind `before` is that of `HTTP/1`. A byte that has not arrived may be a digit.
fn names_version(before: &[u8], next: Option<&u8>) -> bool {
    let is_http = before
        .len()
        .checked_sub(4)
        .is_some_and(|from| before[from..].eq_ignore_ascii_case(b"http"));
    is_http && next.is_none_or(u8::is_ascii_digit)
}

/// Whether `before` ends with a method and blanks at the beginning of a line.
fn begins_line(before: &[u8], is_start: bool) -> bool {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let word = &before[..before.iter().rposition(|byte| !is_blank(byte)).map_or(0, |at| at + 1)];
    if word.len() == before.len() {
        return false;
    }
    let window = &word[word.len().saturating_sub(METHOD_BYTES_MAX + 1)..];
    let line = window.iter().rposition(|byte| matches!(byte, b'\r' | b'\n'));
    match line {
        Some(end) => is_token(&window[end + 1..]),
        None => is_start && window.len() == word.len() && is_token(word),
    }
}

#[cfg(test)]
mod tests {
    //! Proves: bodies that a server may take for a request are found wherever they are cut, and
    //! those that applications send are not. How: a table, each row in every two pieces and byte by
    //! byte.

    use super::*;

    fn found(pieces: &[&[u8]]) -> bool {
        let mut seen = Lookalike::default();
        seen.begin(b"POST /a HTTP/1.1\r\nHost: a\r\n\r\n");
        pieces.iter().for_each(|piece| seen.feed(piece));
        seen.is_found()
    }

    fn is_found_in_any_pieces(body: &[u8], expected: bool) {
        assert_eq!(found(&[body]), expected, "{}", body.escape_ascii());
        for cut in 0..=body.len().min(300) {
            assert_eq!(
                found(&[&body[..cut], &body[cut..]]),
                expected,
                "{} cut at {cut}",
                body.escape_ascii()
            );
        }
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        assert_eq!(found(&bytes), expected, "{} byte by byte", body.escape_ascii());
    }

    #[test]
    fn what_servers_take_for_a_request() {
        let long = [&b"a=".repeat(400)[..], b"GET /admin HTTP/1.1\r\n\r\n"].concat();
        for body in [
            &b"GET /admin HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            b"\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET http://a/admin HTTP/1.0\r\n\r\n",
            b"OPTIONS * http/1.1\r\n\r\n",
            b"x=1&y=GET%20 HTTP/1.1",
            b"GET /admin\r\n",
            b"{}\nGET \t /admin?x=",
            b"x-custom-method /",
            &long,
        ] {
            is_found_in_any_pieces(body, true);
        }
    }

    #[test]
    fn what_applications_send() {
        for body in [
            &b""[..],
            b"{\"path\": \"/admin\", \"url\": \"http://a/b\", \"n\": 1}",
            b"name=ann&return=/account&text=and+/+or",
            b"--boundary\r\nContent-Disposition: form-data; name=\"a\"; filename=\"/x\"\r\n\
                Content-Type: text/plain\r\n\r\nhello\r\n--boundary--\r\n",
            b"<a href=\"/b\">see https://a.example/b and / or</a>\n  <br />\n",
            b"one two /three\n<p> /\n",
            b"42",
        ] {
            is_found_in_any_pieces(body, false);
        }
    }

    #[test]
    fn the_next_request_is_another_one() {
        let mut seen = Lookalike::default();
        seen.begin(b"POST /a HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n");
        assert!(seen.is_found());
        seen.begin(b"POST /a HTTP/1.1\r\n\r\na");
        seen.feed(b"=1");
        assert!(!seen.is_found());
    }
}
