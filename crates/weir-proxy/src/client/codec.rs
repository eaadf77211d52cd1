//! The codec of an exchange's connection, in whichever version of HTTP: [`Answers`](super::Answers)
//! writes responses with it.
//!
//! For HTTP/1, [`Http1`] decides the order in which bytes leave. A stream of HTTP/2 has one
//! exchange: its heads become frames of its connection at once, and its body waits in the stream's
//! output until windows and priorities let it leave (`streams.rs`). Output for a stream that its
//! client has given up is discarded.

use weir_http::h2::Code;
use weir_http::{Pseudonym, ReplyParts, Trailers};

use super::connection::Exchange;
use super::http1::{Additions, Begun, Http1};
use super::http2::streams::Streams;
use crate::base::keys::ExchangeKey;
use crate::base::output::Spare;
use crate::base::piece::Piece;
use crate::cross::answer::AnswerHead;

/// See the module.
pub(super) struct Codec<'a> {
    http1: &'a mut Http1,
    way: Way<'a>,
}

/// How responses leave.
enum Way<'a> {
    /// As text, in the order of requests.
    Http1,
    /// As frames of this stream.
    Http2(&'a mut Streams, u32),
    /// Not at all.
    Nowhere,
}

impl<'a> Codec<'a> {
    /// The codec of an HTTP/1 connection.
    #[inline]
    pub(super) fn http1(http1: &'a mut Http1) -> Codec<'a> {
        Codec { http1, way: Way::Http1 }
    }

    /// The codec of a stream, with its output in `http1`; None: its client has given the stream up.
    pub(super) fn stream(
        http1: &'a mut Http1,
        carrier: Option<(&'a mut Streams, u32)>,
    ) -> Codec<'a> {
        Codec { http1, way: carrier.map_or(Way::Nowhere, |(streams, id)| Way::Http2(streams, id)) }
    }

    /// The newest request without a complete response.
    #[inline]
    pub(super) fn newest(&self) -> Option<ExchangeKey> {
        self.http1.newest()
    }

    /// Whether bytes of this response leave for the client at once, so that they can't be taken
    /// back.
    #[inline]
    pub(super) fn leaves(&self, slot: ExchangeKey) -> bool {
        self.http1.leaves(slot)
    }

    /// As [`Http1::give_held`].
    #[inline]
    pub(super) fn give_held(&mut self, exchange: &mut Exchange, spare: &mut Spare) {
        self.http1.give_held(exchange, spare);
    }

    /// As [`Http1::forget`].
    pub(super) fn forget(&mut self, exchange: &mut Exchange) {
        self.http1.forget(exchange);
    }

    /// 100 Continue (RFC 9110 §10.1.1). Returns its bytes.
    pub(super) fn invite_body(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        spare: &mut Spare,
    ) -> usize {
        match &mut self.way {
            Way::Http1 => self.http1.invite_body(slot, exchange, spare),
            Way::Http2(streams, id) => streams.mux.interim(*id, &ReplyParts::made(100, &[]), None),
            Way::Nowhere => 0,
        }
    }

    /// Writes an interim response. Returns its bytes.
    pub(super) fn interim(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        parts: &ReplyParts<'_>,
        via: Option<Pseudonym>,
        spare: &mut Spare,
    ) -> usize {
        match &mut self.way {
            Way::Http1 => self.http1.interim(slot, exchange, parts, via, spare),
            Way::Http2(streams, id) => streams.mux.interim(*id, parts, via),
            Way::Nowhere => 0,
        }
    }

    /// Writes the head of a final response.
    #[inline]
    pub(super) fn begin(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        head: &AnswerHead<'_>,
        additions: &Additions,
        spare: &mut Spare,
    ) -> Begun {
        match &mut self.way {
            Way::Http1 => self.http1.begin(slot, exchange, head, additions, spare),
            Way::Http2(streams, id) => {
                Begun { bytes: streams.begin(*id, head, additions), closes: true }
            }
            Way::Nowhere => Begun { bytes: 0, closes: true },
        }
    }

    /// Writes the head of a 101: the bytes of a tunnel follow (RFC 9110 §7.8). Returns its bytes.
    /// HTTP/2 requests never ask for a 101.
    pub(super) fn switch(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        head: &AnswerHead<'_>,
        via: Option<Pseudonym>,
        spare: &mut Spare,
    ) -> usize {
        debug_assert!(matches!(self.way, Way::Http1));
        self.http1.switch(slot, exchange, head, via, spare)
    }

    /// Writes the response to CONNECT (RFC 9110 §9.3.6). Returns its bytes. Forward proxies don't
    /// speak HTTP/2.
    pub(super) fn connected(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        spare: &mut Spare,
    ) -> usize {
        debug_assert!(matches!(self.way, Way::Http1));
        self.http1.connected(slot, exchange, spare)
    }

    /// Writes a piece of a response body or of a tunnel; not empty.
    #[inline]
    pub(super) fn body(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        piece: Piece<'_>,
        spare: &mut Spare,
    ) {
        match &mut self.way {
            Way::Http1 => self.http1.body(slot, exchange, piece, spare),
            Way::Http2(streams, id) => {
                streams.add_unsent(*id, piece.len());
                piece.push_to(self.http1.output(), spare);
            }
            Way::Nowhere => {}
        }
    }

    /// Sets how many bytes of a response are being encoded, or wait for that; they count as its
    /// client's.
    pub(super) fn set_coding(&mut self, slot: ExchangeKey, exchange: &mut Exchange, bytes: usize) {
        let before = self.http1.set_coding(slot, &mut exchange.reply, bytes);
        if let Way::Http2(streams, _) = &mut self.way {
            streams.change_coding(before, bytes);
        }
    }

    /// Completes a response.
    #[inline]
    pub(super) fn end(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        trailers: Trailers<'_>,
        spare: &mut Spare,
    ) {
        match &mut self.way {
            Way::Http1 => self.http1.end(slot, exchange, trailers, spare),
            Way::Http2(streams, id) => {
                let trailers = if exchange.want.trailers { trailers } else { Trailers::default() };
                streams.mux.end(*id, trailers);
            }
            Way::Nowhere => {}
        }
    }

    /// The rest of a response that has begun will not come: its client must notice (RFC 9113 §8.1).
    pub(super) fn cut(&mut self, exchange: &mut Exchange) {
        match &mut self.way {
            Way::Http1 => self.http1.cut(exchange),
            Way::Http2(streams, id) => streams.mux.reset(*id, Code::InternalError),
            Way::Nowhere => {}
        }
    }
}
