//! Reads the responses of one connection (RFC 9112 §6). Called by the generator's threads with
//! received bytes; pure.
//!
//! [`ReplyReader`] knows how responses are framed; this makes one value of each. Bound: an
//! incomplete head is kept, at most [`Limits`] long; bodies are counted, and hashed on request,
//! never kept.

use weir_http::{Fields, Limits, ReplyContext, ReplyPart, ReplyReader};

use crate::checksum::{EMPTY, fnv1a};

/// A complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The server keeps the connection open.
    pub(crate) persist: bool,
    /// FNV-1a of the decoded body; the offset basis when hashing is off.
    pub(crate) sum: u64,
    /// Bytes of the decoded body.
    pub(crate) length: u64,
}

/// The result of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Everything was taken; more is needed.
    More,
    /// A response ended after this many bytes.
    Reply(Reply, usize),
    /// The bytes are not responses.
    NotHttp,
}

/// The reader of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    replies: ReplyReader,
    reply: Reply,
    hashing: bool,
}

/// A response of which nothing has come.
pub(crate) const NOTHING: Reply = Reply { status: 0, persist: true, sum: EMPTY, length: 0 };

impl Reader {
    pub(crate) fn new(hashing: bool) -> Reader {
        Reader { replies: ReplyReader::judging(), reply: NOTHING, hashing }
    }

    /// Whether a response has begun and is not complete.
    pub(crate) fn is_within(&self) -> bool {
        !self.replies.awaits_head() || self.replies.has_held()
    }

    /// Bytes of body that are still to come, if that is known.
    pub(crate) fn bytes_left(&self) -> u64 {
        self.replies.body_left().unwrap_or(0)
    }

    /// Takes bytes up to the end of a response. `head` says that the request was HEAD.
    pub(crate) fn step(
        &mut self,
        bytes: &[u8],
        head: bool,
        limits: &Limits,
        fields: &mut Fields,
    ) -> Step {
        let Some(input) = self.replies.join(bytes, limits) else { return Step::More };
        let before = input.len() - bytes.len();
        let mut at = 0;
        loop {
            match self.replies.read(&input, &mut at, ReplyContext { head }, limits, fields) {
                Ok(ReplyPart::More) => {
                    self.replies.hold(&input[at..]);
                    return Step::More;
                }
                Ok(ReplyPart::Head(head)) => {
                    // An interim response (100, 103) is not the response.
                    if head.status >= 200 || head.status == 101 {
                        self.reply =
                            Reply { status: head.status, persist: head.persist, ..NOTHING };
                    }
                    // The response ends here: no request asked for another protocol.
                    if head.status == 101 {
                        return Step::Reply(self.finish(), at - before);
                    }
                }
                Ok(ReplyPart::Data { start, end }) => self.body(&input[start..end]),
                Ok(ReplyPart::End) => return Step::Reply(self.finish(), at - before),
                Err(_) => return Step::NotHttp,
            }
        }
    }

    fn finish(&mut self) -> Reply {
        self.replies.begin_reply();
        std::mem::replace(&mut self.reply, NOTHING)
    }

    fn body(&mut self, bytes: &[u8]) {
        self.reply.length += bytes.len() as u64;
        if self.hashing {
            self.reply.sum = fnv1a(self.reply.sum, bytes);
        }
    }

    /// The connection ended in order: returns the response that this completes, if any.
    pub(crate) fn end(&mut self) -> Option<Reply> {
        let ends = self.replies.ends_by_close();
        ends.then(|| Reply { persist: false, ..self.finish() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n\
        HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 Not Found\r\n\
        Transfer-Encoding: chunked\r\n\r\n\
        3\r\nok\n\r\n0\r\n\r\nHTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";

    fn replies(pieces: &[&[u8]]) -> Option<Vec<Reply>> {
        let mut reader = Reader::new(true);
        let (limits, mut fields, mut replies) = (Limits::default(), Fields::default(), Vec::new());
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                match reader.step(rest, false, &limits, &mut fields) {
                    Step::More => break,
                    Step::Reply(reply, taken) => {
                        replies.push(reply);
                        rest = &rest[taken..];
                    }
                    Step::NotHttp => return None,
                }
            }
        }
        replies.extend(reader.end());
        Some(replies)
    }

    #[test]
    fn replies_are_the_same_whatever_the_pieces() {
        let whole = replies(&[STREAM]).unwrap();
        let seen: Vec<_> =
            whole.iter().map(|reply| (reply.status, reply.length, reply.persist)).collect();
        assert_eq!(seen, [(200, 3, true), (404, 3, true), (204, 0, false)]);
        assert_eq!(whole[0].sum, whole[1].sum);
        for cut in 0..STREAM.len() {
            assert_eq!(
                replies(&[&STREAM[..cut], &STREAM[cut..]]).as_ref(),
                Some(&whole),
                "cut at {cut}"
            );
        }
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(replies(&bytes), Some(whole));
    }

    #[test]
    fn a_body_may_end_with_the_connection() {
        let found = replies(&[b"HTTP/1.0 200 OK\r\n\r\nsome", b"thing"]).unwrap();
        assert_eq!((found.len(), found[0].length, found[0].persist), (1, 9, false));
    }

    #[test]
    fn what_is_no_reply_is_said() {
        for bytes in
            [&b"SSH-2.0-x\r\n"[..], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"]
        {
            assert_eq!(replies(&[bytes]), None);
        }
    }
}
