//! The parts of a response on its way from its source to its client (head, pieces of its body,
//! trailers), and the client side's reaction.
//!
//! Nothing here is text of a protocol: the codec of the client (`client/http1.rs`) decides how a
//! response is framed, what is said about the connection and in which order responses leave. On one
//! worker a head is passed on by reference; in mail it is in two buffers of its post, so that it
//! costs no separate allocation.

use std::ops::Range;

use weir_cache::SourceMark;
use weir_http::{Field, KeptReply, ReplyBody, ReplyParts};

use crate::base::keys::Key;
use crate::request::pending_request::{ClientName, ConnId};

/// The head of a response, interim or final.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerHead<'a> {
    /// Status, reason, and fields without those that were meant for weir only.
    pub parts: ReplyParts<'a>,
    /// How long the body is, or how its end is known.
    pub body: ReplyBody,
    /// Content-Length as its source declared it, also without a body.
    pub declared_length: Option<u64>,
    /// With 101: the protocol of the connection from here on (RFC 9110 §7.8).
    pub upgrade: Option<&'a [u8]>,
}

/// The same in mail: where it is in the bytes and fields of its post.
#[derive(Clone, Debug)]
pub struct KeptHead {
    reply: KeptReply,
    body: ReplyBody,
    declared_length: Option<u64>,
    upgrade: Option<Range<usize>>,
    text: Range<usize>,
    fields: Range<usize>,
}

impl AnswerHead<'_> {
    /// Puts it into the bytes and fields of a post.
    pub(super) fn keep(&self, bytes: &mut Vec<u8>, fields: &mut Vec<Field>) -> KeptHead {
        let upgrade = self.upgrade.map(|upgrade| {
            bytes.extend_from_slice(upgrade);
            bytes.len() - upgrade.len()..bytes.len()
        });
        let (text, list) = (bytes.len(), fields.len());
        let reply = self.parts.keep(bytes, fields);
        let (body, declared_length) = (self.body, self.declared_length);
        KeptHead {
            reply,
            body,
            declared_length,
            upgrade,
            text: text..bytes.len(),
            fields: list..fields.len(),
        }
    }
}

impl KeptHead {
    /// Returns the head again, from the post that contains it.
    pub(crate) fn head<'a>(&self, bytes: &'a [u8], fields: &'a [Field]) -> AnswerHead<'a> {
        AnswerHead {
            parts: self.reply.parts(&bytes[self.text.clone()], &fields[self.fields.clone()]),
            body: self.body,
            declared_length: self.declared_length,
            upgrade: self.upgrade.clone().map(|range| &bytes[range]),
        }
    }

    /// Its bytes and fields are this much further back.
    pub(super) fn shift(&mut self, bytes: usize, fields: usize) {
        let shift = |range: &mut Range<usize>, by: usize| *range = range.start + by..range.end + by;
        shift(&mut self.text, bytes);
        self.upgrade.iter_mut().for_each(|range| shift(range, bytes));
        shift(&mut self.fields, fields);
    }
}

/// Where a response comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// A server, by this connection, which can be asked to stop.
    Server(ConnId),
    /// Weir itself: all of it is available at once.
    Here,
}

impl Source {
    /// Returns the connection that it comes by, if any.
    #[inline]
    pub(crate) fn conn(self) -> Option<ConnId> {
        match self {
            Source::Server(conn) => Some(conn),
            Source::Here => None,
        }
    }
}

/// Returns the connection that a response came over, and when: the mark that
/// [`Store::withdraw`](weir_cache::Store::withdraw) uses.
pub(crate) fn mark_of(conn: ConnId, now_us: u64) -> SourceMark {
    // Ten bits for the worker, as many as there may be.
    let name = u64::from(conn.worker) << 54
        | u64::from(conn.generation & 0x3f_ffff) << 32
        | u64::from(conn.index.number());
    SourceMark { connection: name, position: now_us }
}

/// How long a response may stand still while others need its connection. A client that reads at all
/// clears the bytes that stopped it sooner than this.
pub(crate) const STALL_US: u64 = 100_000;
/// Connections to servers that may be aside for a client connection, with all its streams.
pub(crate) const ASIDE_CLIENT_MAX: u32 = 16;
/// The same where many are aside already: so that each of many clients that stand still has a few.
pub(crate) const ASIDE_SCARCE_MAX: u32 = 2;

/// The source of a response has to stop, because its client has more unsent than it may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    /// Which connection.
    pub conn: ConnId,
    /// Whose responses.
    pub client: ClientName,
}

#[cfg(test)]
mod tests {
    //! Proves: a mailed head is unchanged, also when its post had to wait and is behind or in front
    //! of others. How: heads of two posts that are put together.

    use super::*;
    use crate::base::keys::{ConnKey, ExchangeKey, Key};
    use crate::cross::mail::{Mail, Post};
    use crate::request::pending_request::ExchangeId;

    /// A post with heads of these statuses.
    fn post(statuses: [u16; 2]) -> Post {
        let mut post = Post::default();
        for status in statuses {
            let value = format!("value of {status}");
            let added: &[(&[u8], &[u8])] = &[(b"Name", value.as_bytes())];
            let head = AnswerHead {
                parts: ReplyParts::made(status, added),
                body: ReplyBody::Length(status.into()),
                declared_length: None,
                upgrade: (status == 101).then_some(b"websocket"),
            };
            let id = ExchangeId { worker: 0, index: ExchangeKey::new(0), generation: 0 };
            let conn = ConnId { worker: 0, index: ConnKey::new(0), generation: 0 };
            let head = head.keep(&mut post.bytes, &mut post.fields);
            post.mail.push(Mail::Head { id, conn, head });
        }
        post
    }

    #[test]
    fn heads_find_their_bytes() {
        let mut all = post([200, 101]);
        all.append(post([404, 101]));
        all.append(post([503, 103]));
        let heads = all.mail.iter().map(|mail| match mail {
            Mail::Head { head, .. } => head.head(&all.bytes, &all.fields),
            other => panic!("{other:?}"),
        });
        let mut statuses = Vec::new();
        for head in heads {
            let status = head.parts.status;
            statuses.push(status);
            let fields: Vec<_> =
                head.parts.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            assert_eq!(fields, [(b"Name".to_vec(), format!("value of {status}").into_bytes())]);
            assert_eq!(head.parts.reason, weir_http::reason(status).as_bytes());
            assert_eq!(head.upgrade, (status == 101).then_some(&b"websocket"[..]));
            assert_eq!(head.body, ReplyBody::Length(status.into()));
        }
        assert_eq!(statuses, [200, 101, 404, 101, 503, 103]);
    }
}
