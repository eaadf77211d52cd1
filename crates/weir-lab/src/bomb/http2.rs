//! HTTP/2 on one connection of the generator: requests as header blocks, made once before the run,
//! and the state of each stream.
//!
//! Called by `requests.rs` and by the threads. The rules of the protocol are those of [`Client`].
//! Header blocks use the static table alone: they are the same for every request of a connection,
//! so a server does the same work for the first and the last. Bound: a response for each open
//! stream; bodies are counted, and hashed on request, never kept.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use weir_http::h2::Code;
use weir_http::h2::client::{Client, Event, Request, Windows};
use weir_http::h2::hpack::encode::put_known;

use super::class::{Behaviour, Class};
use super::reply::{NOTHING, Reply};
use super::requests::with_serial;
use crate::checksum::fnv1a;

/// Fields of one connection of HTTP/1.1, which a request of HTTP/2 may not have (RFC 9113 §8.2.2).
const OF_A_CONNECTION: [&str; 5] =
    ["Connection", "Proxy-Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade"];

/// A request in the form of HTTP/2.
#[derive(Debug)]
pub(crate) struct Spelled {
    /// The header block.
    block: Vec<u8>,
    /// The path, and the position of the request's number in it: each such request gets a separate
    /// block.
    numbered: Option<(String, usize)>,
    /// Lengths of the parts of the block before the path and after it.
    around: (usize, usize),
    content: Arc<[u8]>,
    is_head: bool,
}

impl Spelled {
    /// Makes a request of these fields in their order. `serial_at`: the position of its number in
    /// `path`. A field `Host` becomes `:authority`.
    ///
    /// # Errors
    /// A field that is not allowed in HTTP/2, in one line.
    pub(super) fn new(
        (scheme, method): (&str, &str),
        (path, serial_at): (&str, Option<usize>),
        fields: &[(&str, Cow<'_, str>)],
        content: &[u8],
    ) -> Result<Spelled, String> {
        let mut block = Vec::new();
        let mut put =
            |name: &str, value: &str| put_known(&mut block, name.as_bytes(), value.as_bytes());
        put(":method", method);
        put(":scheme", scheme);
        for (_, host) in fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("Host")) {
            put(":authority", host);
        }
        let before = block.len();
        put_known(&mut block, b":path", path.as_bytes());
        let behind = block.len();
        for (name, value) in fields.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("Host")) {
            if OF_A_CONNECTION.iter().any(|other| other.eq_ignore_ascii_case(name)) {
                return Err(format!(
                    "HTTP/2 has no header `{name}`; remove the header, or --http2"
                ));
            }
            put_known(&mut block, name.as_bytes(), value.as_bytes());
        }
        let numbered = serial_at.map(|at| (path.to_owned(), at));
        Ok(Spelled {
            block,
            numbered,
            around: (before, behind),
            content: content.into(),
            is_head: method == "HEAD",
        })
    }

    /// The header block of the `nth` request of a thread.
    fn block(&self, thread: usize, nth: u64) -> Cow<'_, [u8]> {
        let Some((path, at)) = &self.numbered else { return Cow::Borrowed(&self.block) };
        let mut block = self.block[..self.around.0].to_vec();
        put_known(&mut block, b":path", &with_serial(path.as_bytes(), *at, thread, nth));
        block.extend_from_slice(&self.block[self.around.1..]);
        Cow::Owned(block)
    }

    /// Whether each request has a unique number.
    pub(super) fn is_numbered(&self) -> bool {
        self.numbered.is_some()
    }
}

/// What was received of a stream, or of all.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing complete yet; more may be in the input.
    More,
    /// The input is used up.
    Nothing,
    /// A complete response.
    Answer(u32, Reply),
    /// The stream was reset by the server, with or without a part of a response.
    Reset { stream: u32, code: Code, has_begun: bool },
    /// A malformed response.
    Malformed(u32),
    /// The server shuts the connection down; streams above this one are over. The code, unless it
    /// was reported before.
    Leaving { last: u32, code: Option<Code> },
    /// The input is not HTTP/2.
    NotHttp,
}

/// A connection of HTTP/2.
#[derive(Debug)]
pub(super) struct Streams {
    client: Client,
    /// The response of each open stream, in the order of their numbers.
    replies: VecDeque<(u32, Reply)>,
    hashing: bool,
    /// The code with which the server shut down.
    left: Option<Code>,
}

impl Streams {
    /// Makes a new connection of a client of this class. `hashing`: bodies are hashed.
    pub(super) fn new(class: &Class, hashing: bool) -> Streams {
        let windows =
            if class.behaviour == Behaviour::Stalled { Windows::SHUT } else { Windows::OPEN };
        Streams { client: Client::new(windows), replies: VecDeque::new(), hashing, left: None }
    }

    /// Returns the number of requests that the server accepts now.
    pub(super) fn room(&self) -> usize {
        self.client.room()
    }

    /// Whether the connection accepts no further request.
    pub(super) fn is_leaving(&self) -> bool {
        self.client.is_leaving()
    }

    /// Makes a request, the `nth` of a thread, and returns the number of its stream.
    pub(super) fn ask(&mut self, spelled: &Spelled, thread: usize, nth: u64) -> Option<u32> {
        let block = spelled.block(thread, nth);
        let stream = self.client.open(&Request {
            block: &block,
            content: &spelled.content,
            is_head: spelled.is_head,
        })?;
        self.replies.push_back((stream, NOTHING));
        Some(stream)
    }

    /// Gives a request up.
    pub(super) fn cancel(&mut self, stream: u32) {
        self.client.cancel(stream);
        self.forget(stream);
    }

    /// Returns the bytes to be sent now, if any.
    pub(super) fn take_out(&mut self) -> Option<Vec<u8>> {
        self.client.wants_write().then(|| self.client.take_out())
    }

    /// Whether a part of the response has come.
    pub(super) fn has_begun(&self, stream: u32) -> bool {
        self.client.has_head(stream)
    }

    /// Returns the most bytes of body that an open stream has received so far.
    pub(super) fn longest(&self) -> u64 {
        self.replies.iter().map(|(_, reply)| reply.length).max().unwrap_or(0)
    }

    /// Reads on from `at`, which moves.
    pub(super) fn hear(&mut self, input: &[u8], at: &mut usize) -> Heard {
        match self.client.read(input, at) {
            Err(_) => Heard::NotHttp,
            Ok(None) => Heard::Nothing,
            Ok(Some(Event::Head { stream, status, end })) => {
                // An interim response (100, 103) is not the response.
                if status >= 200 {
                    self.reply(stream).status = status;
                }
                self.after(stream, end)
            }
            Ok(Some(Event::Data { stream, bytes, end })) => {
                let hashing = self.hashing;
                let reply = self.reply(stream);
                reply.length += bytes.len() as u64;
                if hashing {
                    reply.sum = fnv1a(reply.sum, bytes);
                }
                self.after(stream, end)
            }
            Ok(Some(Event::Reset { stream, code, by_server })) => {
                let has_begun = self.forget(stream).is_some_and(|reply| reply.status > 0);
                if by_server {
                    Heard::Reset { stream, code, has_begun }
                } else {
                    Heard::Malformed(stream)
                }
            }
            Ok(Some(Event::Leaving { last, code })) => {
                while self.replies.back().is_some_and(|(stream, _)| *stream > last) {
                    self.replies.pop_back();
                }
                let is_news = self.left != Some(code);
                self.left = Some(code);
                Heard::Leaving { last, code: is_news.then_some(code) }
            }
        }
    }

    fn after(&mut self, stream: u32, end: bool) -> Heard {
        match end.then(|| self.forget(stream)).flatten() {
            Some(reply) => Heard::Answer(stream, reply),
            None => Heard::More,
        }
    }

    fn place(&self, stream: u32) -> Result<usize, usize> {
        self.replies.binary_search_by_key(&stream, |(its, _)| *its)
    }

    fn reply(&mut self, stream: u32) -> &mut Reply {
        let place = self.place(stream).expect("the machine tells of open streams alone");
        &mut self.replies[place].1
    }

    fn forget(&mut self, stream: u32) -> Option<Reply> {
        let place = self.place(stream).ok()?;
        self.replies.remove(place).map(|(_, reply)| reply)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a request has the fields of HTTP/2 and a unique number, and fields that are not for
    //! HTTP/2 are rejected.

    use weir_http::h2::hpack::Decoder;

    use super::super::requests::{Request, Spelling};
    use super::*;

    fn spelled(path: &str, spelling: &Spelling) -> Result<Arc<Spelled>, String> {
        let spelling = Spelling { http2: Some("https"), ..spelling.clone() };
        Request::new("h:1", path, 1, &spelling)
            .map(|request| request.http2.expect("it was asked for"))
    }

    fn fields(block: &[u8]) -> String {
        let mut text = Vec::new();
        let take = |name: &[u8], value: &[u8]| {
            text.extend([name, b"=", value, b" "].concat());
            true
        };
        Decoder::default().decode(block, &mut Vec::new(), take).expect("our own block");
        String::from_utf8(text).expect("text").trim_end().to_owned()
    }

    #[test]
    fn requests_are_spelled_as_http_2_has_them() {
        let own = vec![("HOST".to_owned(), "x".to_owned()), ("X-A".to_owned(), "b".to_owned())];
        let body = Spelling { body: b"abc".to_vec(), fields: own, ..Spelling::default() };
        for (path, spelling, expected) in [
            ("/", Spelling::default(), ":method=GET :scheme=https :authority=h:1 :path=/"),
            ("/a", body, ":method=POST :scheme=https :authority=x :path=/a x-a=b content-length=3"),
        ] {
            let spelled = spelled(path, &spelling).unwrap();
            assert_eq!(fields(&spelled.block(7, 42)), expected);
            assert_eq!((&spelled.content[..], spelled.is_numbered()), (&spelling.body[..], false));
        }
        let numbered = spelled(
            "/a?id={serial}&x",
            &Spelling { method: Some("HEAD".to_owned()), ..Spelling::default() },
        );
        let numbered = numbered.unwrap();
        assert!(numbered.is_head && numbered.is_numbered());
        let expected = ":method=HEAD :scheme=https :authority=h:1 :path=/a?id=007000000042&x";
        assert_eq!(fields(&numbered.block(7, 42)), expected);
    }

    #[test]
    fn fields_of_a_connection_are_refused() {
        for name in ["connection", "Transfer-Encoding", "Upgrade", "keep-alive"] {
            let fields = vec![(name.to_owned(), "x".to_owned())];
            let why = spelled("/", &Spelling { fields, ..Spelling::default() }).unwrap_err();
            assert!(why.contains(name) && why.contains("--http2"), "{why}");
        }
    }
}
