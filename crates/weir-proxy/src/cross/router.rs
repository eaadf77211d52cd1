//! The ways between the two sides of a worker. Only this module knows whether the other side of a
//! request lives on this worker: it uses a call when it does, mail when it does not.
//!
//! One way is open at a time: [`Requests`] while something of a client is read, [`Replies`] while
//! something of a server is. So bodies are passed by reference, and neither side can be called
//! while it is at work itself. Messages against the direction of the open way are mail of the
//! worker to itself ([`Context::post`]).

use bytes::Bytes;
use weir_http::Trailers;

use crate::base::piece::Piece;
use crate::client::Clients;
use crate::context::Context;
use crate::cross::answer::{AnswerHead, Stop};
use crate::cross::asked::{Asked, Private};
use crate::cross::mail::Mail;
use crate::request::pending_request::{ClientName, ConnId, ExchangeId, PendingRequest};
use crate::retry::poison::Verdict;
use crate::upstream::Upstreams;

/// Smaller pieces travel in the post's own buffer.
const SMALL_BYTES_MAX: usize = 4096;

/// From a worker's clients to servers.
#[derive(Debug)]
pub(crate) struct Requests<'a> {
    upstreams: &'a mut Upstreams,
}

impl<'a> Requests<'a> {
    /// To these, or to those of other workers.
    pub(crate) fn new(upstreams: &'a mut Upstreams) -> Requests<'a> {
        Requests { upstreams }
    }

    /// Whether servers have died of such requests; `write` serialises this request. `lines`: its
    /// method, target and Host. `whole`: all of its body is here.
    #[inline]
    pub(crate) fn verdict(
        &self,
        upstream: usize,
        lines: (&[u8], &[u8], &[u8]),
        whole: bool,
        write: impl FnOnce(&mut Vec<u8>),
        cx: &Context,
    ) -> Verdict {
        self.upstreams.isolation().verdict_of_new(upstream, lines, whole, write, cx)
    }

    /// Sends a request, and notes in `ask` which server was chosen; `write` serialises the request
    /// to its place. `isolated`: as [`Requests::verdict`] said.
    #[inline]
    pub(crate) fn ask(
        &mut self,
        ask: &mut PendingRequest,
        isolated: bool,
        private: Option<Private>,
        write: impl FnOnce(&mut Vec<u8>),
        cx: &mut Context,
    ) -> Asked {
        self.upstreams.ask(ask, isolated, private, write, cx)
    }

    /// Requests a connection that becomes a tunnel.
    pub(crate) fn tunnel(
        &mut self,
        ask: PendingRequest,
        private: Option<Private>,
        cx: &mut Context,
    ) -> Asked {
        self.upstreams.ask_tunnel(ask, private, cx)
    }

    /// A piece of a request body or of a tunnel; `end`: nothing follows.
    pub(crate) fn body(
        &mut self,
        id: ExchangeId,
        client: ClientName,
        conn: ConnId,
        piece: Piece<'_>,
        end: bool,
        cx: &mut Context,
    ) {
        if conn.worker == cx.worker {
            self.upstreams.conn_body(id, client, conn, piece, end, cx);
        } else {
            let data = piece.into_bytes();
            cx.post(conn.worker, Mail::Body { id, client, conn, data, end });
        }
    }
}

/// From a worker's servers to clients.
#[derive(Debug)]
pub(crate) struct Replies<'a> {
    clients: &'a mut Clients,
}

impl<'a> Replies<'a> {
    /// To these, or to those of other workers.
    pub(crate) fn new(clients: &'a mut Clients) -> Replies<'a> {
        Replies { clients }
    }

    /// The head of a response.
    #[inline]
    pub(crate) fn head(
        &mut self,
        id: ExchangeId,
        from: ConnId,
        head: &AnswerHead<'_>,
        cx: &mut Context,
    ) {
        if id.worker == cx.worker {
            return self.clients.answers().on_answer_head(id, from, head, cx);
        }
        let post = &mut cx.posts[usize::from(id.worker)];
        let head = head.keep(&mut post.bytes, &mut post.fields);
        cx.post(id.worker, Mail::Head { id, conn: from, head });
    }

    /// A piece of a response body or of a tunnel. Returns whether its source has to stop: where the
    /// client is another worker's, that worker reports it later; with `meter` the source stops
    /// behind this piece, and that worker reports when it may continue.
    #[inline]
    pub(crate) fn piece(
        &mut self,
        id: ExchangeId,
        piece: Piece<'_>,
        meter: Option<Stop>,
        cx: &mut Context,
    ) -> Option<Stop> {
        if id.worker == cx.worker {
            return self.clients.answers().on_answer_piece(id, piece, cx);
        }
        if let Some(Stop { conn, client }) = meter {
            cx.post(id.worker, Mail::Metered { id, conn, client, data: piece.into_bytes() });
            return meter;
        }
        let mail = match piece {
            Piece::Borrowed(bytes) if bytes.len() <= SMALL_BYTES_MAX => {
                let post = &mut cx.posts[usize::from(id.worker)];
                let start = post.bytes.len();
                post.bytes.extend_from_slice(bytes);
                Mail::Small { id, bytes: start..post.bytes.len() }
            }
            piece => Mail::Large { id, data: piece.into_bytes() },
        };
        cx.post(id.worker, mail);
        None
    }

    /// A response is complete, or a tunnel's server has closed its direction.
    #[inline]
    pub(crate) fn end(&mut self, id: ExchangeId, trailers: Trailers<'_>, cx: &mut Context) {
        if id.worker == cx.worker {
            return self.clients.answers().on_answer_end(id, trailers, cx);
        }
        cx.post(id.worker, Mail::End { id, trailers: Bytes::copy_from_slice(trailers.as_bytes()) });
    }
}
