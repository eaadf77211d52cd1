//! Reads the replies of one connection (RFC 9112 §6). Called by the generator's threads with received bytes; pure.
//!
//! Bound: a head that is not complete is kept, at most [`Limits`] long; bodies are counted, and hashed if asked, never kept.

use weir_http::{Chunk, ChunkedDecoder, Fields, Limits, ReplyBody, ReplyContext, parse_reply};

use crate::checksum::{EMPTY, fnv1a};

/// A complete reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The server lets the connection live.
    pub(crate) persist: bool,
    /// FNV-1a of the decoded body; the offset basis when hashing is off.
    pub(crate) sum: u64,
    /// Bytes of the decoded body.
    pub(crate) length: u64,
}

/// What a call found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Everything was taken; more is needed.
    More,
    /// A reply ended after so many bytes.
    Reply(Reply, usize),
    /// These are no replies.
    NotHttp,
}

#[derive(Debug, Clone)]
enum Stage {
    Head,
    Sized(u64),
    Chunked(Box<ChunkedDecoder>),
    UntilClose,
}

/// The reader of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    stage: Stage,
    /// The beginning of a head that is not complete.
    held: Vec<u8>,
    reply: Reply,
    hashing: bool,
}

const NOTHING: Reply = Reply { status: 0, persist: true, sum: EMPTY, length: 0 };

impl Reader {
    pub(crate) fn new(hashing: bool) -> Reader {
        Reader { stage: Stage::Head, held: Vec::new(), reply: NOTHING, hashing }
    }

    /// Whether a reply has begun and is not complete.
    pub(crate) fn is_within(&self) -> bool {
        !matches!(self.stage, Stage::Head) || !self.held.is_empty()
    }

    /// Bytes of body that are still to come, if that is known.
    pub(crate) fn bytes_left(&self) -> u64 {
        if let Stage::Sized(left) = self.stage { left } else { 0 }
    }

    /// Takes bytes up to the end of a reply. `head` says that the request was HEAD.
    pub(crate) fn step(&mut self, mut bytes: &[u8], head: bool, limits: &Limits, fields: &mut Fields) -> Step {
        let mut taken = 0;
        loop {
            let used = match &mut self.stage {
                Stage::Head => match self.head(bytes, head, limits, fields) {
                    Ok(Some(used)) => used,
                    Ok(None) => return Step::More,
                    Err(()) => return Step::NotHttp,
                },
                Stage::Sized(left) => {
                    let used = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= used as u64;
                    self.body(&bytes[..used]);
                    used
                }
                Stage::Chunked(decoder) => match decoder.decode(bytes) {
                    Ok(Chunk::More) => return Step::More,
                    Ok(Chunk::Data { start, end }) => {
                        self.body(&bytes[start..end]);
                        end
                    }
                    Ok(Chunk::End { consumed }) => {
                        self.stage = Stage::Sized(0);
                        consumed
                    }
                    Err(_) => return Step::NotHttp,
                },
                Stage::UntilClose => {
                    self.body(bytes);
                    return Step::More;
                }
            };
            taken += used;
            bytes = &bytes[used..];
            if let Stage::Sized(0) = self.stage {
                self.stage = Stage::Head;
                return Step::Reply(std::mem::replace(&mut self.reply, NOTHING), taken);
            }
            if bytes.is_empty() {
                return Step::More;
            }
        }
    }

    /// Takes a head and says how many of these bytes belonged to it. None: it is kept until there is more.
    fn head(&mut self, bytes: &[u8], head: bool, limits: &Limits, fields: &mut Fields) -> Result<Option<usize>, ()> {
        let before = self.held.len();
        if before > 0 {
            self.held.extend_from_slice(bytes);
        }
        let input = if before > 0 { &self.held } else { bytes };
        let Some(parsed) = parse_reply(input, limits, ReplyContext { head }, fields).map_err(|_| ())? else {
            if before == 0 {
                self.held.extend_from_slice(bytes);
            }
            return Ok(None);
        };
        // What an interim reply announces (100, 103) is not the answer.
        if parsed.status >= 200 || parsed.status == 101 {
            self.reply = Reply { status: parsed.status, persist: parsed.persist, ..NOTHING };
            self.stage = match parsed.body {
                ReplyBody::None => Stage::Sized(0),
                ReplyBody::Length(length) => Stage::Sized(length),
                ReplyBody::Chunked => Stage::Chunked(Box::new(ChunkedDecoder::new(false))),
                ReplyBody::UntilClose => Stage::UntilClose,
            };
        }
        self.held.clear();
        Ok(Some(parsed.bytes - before))
    }

    fn body(&mut self, bytes: &[u8]) {
        self.reply.length += bytes.len() as u64;
        if self.hashing {
            self.reply.sum = fnv1a(self.reply.sum, bytes);
        }
    }

    /// The connection ended in order: the reply that this completes, if any.
    pub(crate) fn end(&mut self) -> Option<Reply> {
        if !matches!(self.stage, Stage::UntilClose) {
            return None;
        }
        self.stage = Stage::Head;
        Some(Reply { persist: false, ..std::mem::replace(&mut self.reply, NOTHING) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n\
        HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n\
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
        let seen: Vec<_> = whole.iter().map(|reply| (reply.status, reply.length, reply.persist)).collect();
        assert_eq!(seen, [(200, 3, true), (404, 3, true), (204, 0, false)]);
        assert_eq!(whole[0].sum, whole[1].sum);
        for cut in 0..STREAM.len() {
            assert_eq!(replies(&[&STREAM[..cut], &STREAM[cut..]]).as_ref(), Some(&whole), "cut at {cut}");
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
        for bytes in [&b"SSH-2.0-x\r\n"[..], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"] {
            assert_eq!(replies(&[bytes]), None);
        }
    }
}
