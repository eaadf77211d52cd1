//! One client connection and its state of reading requests; one request and the state of its
//! response.
//!
//! The codec (`http1.rs`) decides the order and the bytes of responses. This structure is all the
//! memory of an idle connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_http::{BodyReader, Fields, RequestHead};

use super::cache::Caching;
use super::compressing::Compressing;
use super::fallback::Spare;
use super::http1::{Http1, Http1Answer};
use super::input::ReadBuffer;
use super::stalls::Stalls;
use crate::base::keys::ClientKey;
use crate::cause::{Cause, Local};
use crate::context::Context;
use crate::cross::relay::Relay;
use crate::cross::retry_copy::RetryCopy;
use crate::forward::state::ForwardState;
use crate::observe::accounting::Account;
use crate::observe::secured::Shown;
use crate::plan::Plan;
use crate::request::pending_request::ConnId;
use crate::request::route::{Routed, Target};
use crate::request::rules::Ruled;
use crate::request::rules::buffering::Buffering;

/// The state of reading on a client connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reading {
    /// Before or within a request head.
    Head,
    /// Within a request body.
    Body,
    /// Frames of HTTP/2; each of its streams is a separate connection here (`streams.rs`).
    Frames,
    /// In front of a request that can't be taken before all earlier ones have their responses, or
    /// before something is known; or behind a request that may turn the connection into a tunnel.
    Await,
    /// Joined with an upstream connection.
    Tunnel,
    /// No more requests are read: after the last response the connection is closed.
    Closing,
    /// The last response is sent; further input is discarded until the client closes or the time is
    /// up.
    Linger,
}

/// A client connection.
#[derive(Debug)]
pub(crate) struct ClientConn {
    /// The driver's name for it; of a stream: 0; of a fetch for the store: [`NO_CLIENT`].
    pub socket: u64,
    /// Its address.
    pub peer: IpAddr,
    /// Its port.
    pub port: u16,
    /// When the present state of reading began, or the last byte of a body or tunnel passed.
    pub since_us: u64,
    /// When the present send was given to the driver; 0: nothing was ever sent.
    pub send_us: u64,
    /// When the wheel will look at this connection.
    pub armed_us: u64,
    /// Its responses, and the bytes to be sent.
    pub(super) codec: Http1,
    /// Bytes of the send that is with the driver.
    pub inflight: u32,
    /// The number of its glitches.
    pub glitches: u32,
    /// The entrance that it came in by ([`Entrance::listener`](crate::plan::Entrance::listener));
    /// of a stream: none.
    pub listener: u32,
    /// Received and not parsed yet.
    pub stash: Option<Box<ReadBuffer>>,
    /// Upstream connections that are stopped for this client, and the consequences.
    pub(super) stalls: Option<Box<Stalls>>,
    /// Its state as a client of the forward proxy.
    pub proxied: Option<Box<ForwardState>>,
    /// Its certificate, if servers get it.
    pub shown: Option<Arc<Shown>>,
    /// A tunnel whose bytes the driver moves.
    pub relay: Option<Box<Relay>>,
    /// The stream that it is, and of which connection; None: it has a socket.
    pub(super) stream: Option<Box<StreamState>>,
    /// The state of reading: see [`ClientConn::read_as`].
    reading: Reading,
    /// Small facts.
    pub flags: Flags,
}

/// The socket of an exchange without a client, which fetches something for the store.
pub(super) const NO_CLIENT: u64 = u64::MAX;

/// Small facts about a connection.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Flags {
    /// A send is with the driver.
    pub sending: bool,
    /// In the engine's list of connections with something to send.
    pub dirty: bool,
    /// Receiving was stopped.
    pub stopped: bool,
    /// The client closed its sending direction.
    pub ended: bool,
    /// The connection ends after what is queued.
    pub close: bool,
    /// The rest of a request is unread: close slowly, so that the response survives.
    pub unread: bool,
    /// The connection ends with a reset after what is queued.
    pub reset: bool,
    /// The sending direction was shut.
    pub shut: bool,
    /// A tunnel's upstream closed its direction.
    pub tunnel_ended: bool,
    /// A client of the forward proxy.
    pub proxied: bool,
    /// The servers' side may have private connections for it.
    pub has_pool: bool,
    /// It speaks TLS.
    pub sealed: bool,
    /// It speaks HTTP/2 if it begins with the preface (RFC 9113 §3.3).
    pub may_be_http2: bool,
    /// It is closed as soon as it has all its responses.
    pub leaves: bool,
    /// Its newest request waits until its client is identified (`visitors.rs`).
    pub unverified: bool,
    /// Its client did not send, or take, something in time.
    pub late: bool,
}

/// The facts about a stream of HTTP/2 beyond those about any connection.
#[derive(Debug)]
pub(super) struct StreamState {
    /// The connection that it is a stream of.
    pub carrier: ClientKey,
    /// The listener that its client came in by.
    pub listener: u32,
    /// Its number there.
    pub id: u32,
    /// Its client has given it up while its request was under way: it remains, without a way to the
    /// client, until the request has a response.
    pub is_given_up: bool,
    /// Bytes that its client has taken since the start of its send timeout
    /// ([`ClientConn::send_us`]).
    pub taken: usize,
}

/// A request whose head was read and that is not forwarded yet.
#[derive(Debug, Clone)]
pub(crate) struct KeptRequest {
    /// Its head.
    pub head: RequestHead,
    /// The fields of the head.
    pub fields: Fields,
    /// The bytes that the two refer to.
    pub bytes: Vec<u8>,
    /// Index of the upstream that gets it.
    pub upstream: usize,
}

/// A request body on its way in.
#[derive(Debug)]
pub(crate) struct RequestBodyReader {
    /// The request, until it is forwarded.
    pub request: Option<KeptRequest>,
    /// The response that weir sends as soon as all of the body is here, which is discarded; None:
    /// the request is forwarded.
    pub answer: Option<Local>,
    /// Body bytes, until the request is forwarded.
    pub body: Vec<u8>,
    /// Where it ends: by its length, or by the last chunk.
    pub framing: BodyReader,
    /// Body bytes received.
    pub received: u64,
    /// Most that may be, by the configuration in force when the head was read.
    pub bytes_max: Option<u64>,
    /// When the window began over which its rate is measured.
    pub window_us: u64,
    /// Bytes received at the last measurement.
    pub window_bytes: u64,
    /// Part of it was read since then: input without body bytes, such as part of a chunk's head,
    /// counts.
    pub window_read: bool,
    /// When it is forwarded although it is incomplete, or its client gets 100 Continue; `u64::MAX`:
    /// it has no timer.
    pub pass_on_us: u64,
    /// It is forwarded as it is at the next look at the connection.
    pub is_due: bool,
    /// Its client waits until the server wants the body, and has not got 100 Continue.
    pub awaits_continue: bool,
    /// Already forwarded; pieces follow it.
    pub streaming: bool,
    /// Chunked towards the upstream.
    pub chunked_out: bool,
}

/// A request and its response, on the client's side.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Slot of the client's connection.
    pub conn: ClientKey,
    /// The state of its response: see [`Exchange::enter`].
    phase: Phase,
    /// When the head was complete.
    pub received_us: u64,
    /// When the wait for a response, or for the next piece of it, is over.
    pub deadline_us: u64,
    /// How long the wait for the beginning of a response may be.
    pub patience_us: u64,
    /// How long a pause within the response may be.
    pub pause_us: u64,
    /// The codec's state of the response.
    pub(super) reply: Http1Answer,
    /// The upstream connection, once known.
    pub server_conn: Option<ConnId>,
    /// The worker that has the request, or [`NO_WORKER`].
    pub asked: u16,
    /// A copy of the request while another worker has it and it may be retried.
    pub kept: Option<Box<RetryCopy>>,
    /// The request itself while it waits and another upstream may have it instead.
    pub(super) spare: Option<Box<Spare>>,
    /// Its body, while that is being read.
    pub upload: Option<Box<RequestBodyReader>>,
    /// The upstream connection wants the rest of the body, or the data of the tunnel's client, to
    /// be held back.
    pub held_back: bool,
    /// The result of the rules of its route for it and its response; None: no rule applies.
    pub ruled: Option<Box<Ruled>>,
    /// Its response is compressed.
    pub(super) compressing: Option<Box<Compressing>>,
    /// The part that the cache has in it; None: none.
    pub(super) caching: Option<Caching>,
    /// It is served from the store, without a server.
    pub(super) is_hit: bool,
    /// Facts about the request.
    pub want: ReplyConstraints,
}

/// Facts about a request that shape its response.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ReplyConstraints {
    /// HEAD.
    pub head: bool,
    /// HTTP/1.0.
    pub old: bool,
    /// The connection ends after this response.
    pub close: bool,
    /// The client understands trailers.
    pub trailers: bool,
    /// CONNECT: the bytes behind it are for the tunnel, even if no tunnel is made.
    pub connect: bool,
    /// Its body is not completely received.
    pub body_open: bool,
    /// Its response, which ends by close, lacks its end: only a reset can say so.
    pub cut: bool,
    /// It is forwarded to the address that its client connected to, and counts there.
    pub original: bool,
    /// It is a gRPC request, and came by HTTP/2.
    pub grpc: bool,
}

/// No worker has a request.
pub(super) const NO_WORKER: u16 = u16::MAX;

/// The state of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The request is still being read.
    Reading,
    /// It was forwarded.
    Waiting,
    /// Its response has begun.
    Answering,
    /// All of its response has arrived, and is being encoded on another thread: no server has it
    /// any more.
    Encoding,
    /// Its response is complete.
    Done,
}

impl ClientConn {
    /// Creates the connection of a client that has just been accepted.
    pub(crate) fn new(socket: u64, peer: SocketAddr, now_us: u64) -> ClientConn {
        ClientConn {
            socket,
            peer: peer.ip().to_canonical(),
            port: peer.port(),
            since_us: now_us,
            send_us: 0,
            armed_us: u64::MAX,
            codec: Http1::default(),
            inflight: 0,
            glitches: 0,
            listener: 0,
            stash: None,
            stalls: None,
            proxied: None,
            shown: None,
            relay: None,
            stream: None,
            reading: Reading::Head,
            flags: Flags::default(),
        }
    }

    /// Creates a stream that its client has just opened, of a connection to the same client.
    pub(super) fn of_stream(peer: IpAddr, stream: StreamState, now_us: u64) -> ClientConn {
        let mut conn = ClientConn::new(0, SocketAddr::new(peer, 0), now_us);
        conn.stream = Some(Box::new(stream));
        conn.listener = u32::MAX;
        conn
    }

    /// The number of the listener that its client came in by.
    #[inline]
    pub(super) fn entered_by(&self) -> u32 {
        self.stream.as_ref().map_or(self.listener, |stream| stream.listener)
    }

    /// The state of reading.
    #[inline]
    pub(super) fn reading(&self) -> Reading {
        self.reading
    }

    /// Changes the state of reading: the only place that does.
    #[inline]
    pub(super) fn read_as(&mut self, to: Reading) {
        debug_assert!(self.reading.may_become(to), "{:?} -> {to:?}", self.reading);
        self.reading = to;
    }

    /// Takes no further request; a request that is being read, or that waits, continues.
    #[inline]
    pub(super) fn take_no_more(&mut self) {
        if self.reading == Reading::Head {
            self.read_as(Reading::Closing);
        }
    }

    /// Whether a part of a request, or a request that waits, is here and not parsed yet.
    pub(crate) fn has_begun_request(&self) -> bool {
        self.stash.as_ref().is_some_and(|stash| !stash.is_blank())
    }

    /// Whether it has no client, and its request fetches something for the store.
    #[inline]
    pub(super) fn is_fetch(&self) -> bool {
        self.socket == NO_CLIENT
    }

    /// Whether it is a stream whose client has given it up: nothing is sent on it any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_given_up)
    }

    /// Its state as a client of the forward proxy.
    pub(super) fn forward_state(&mut self) -> &mut ForwardState {
        self.proxied.get_or_insert_default()
    }

    /// The account that its present request is charged to.
    #[inline]
    pub(super) fn account(&self) -> Account {
        self.proxied.as_deref().map_or_else(Account::default, |proxied| proxied.account)
    }

    /// The decision about its request, as a client of the forward proxy: the upstream for all
    /// destinations.
    pub(super) fn decided(&self, plan: &Plan) -> Result<Routed, Local> {
        let decision = self.proxied.as_deref().and_then(|proxied| proxied.decision.as_ref());
        match (decision, &plan.forward) {
            (Some(Ok(_)), Some(forward)) => {
                Ok(Routed { target: Target::Upstream(forward.upstream), rules: None })
            }
            (Some(Err(refused)), _) => Err(refused.clone()),
            _ => Err(Cause::NotDecided.into()),
        }
    }

    /// Whether every request has its response, and the driver has all of that.
    pub(super) fn has_sent_all(&self) -> bool {
        self.codec.is_empty() && self.codec.is_sent() && !self.flags.sending
    }

    /// Whether its client has closed its direction within a body or a tunnel, all of which is read.
    pub(super) fn has_ended_within(&self) -> bool {
        self.stash.is_none()
            && self.flags.ended
            && matches!(self.reading, Reading::Tunnel | Reading::Body)
    }

    /// Bytes that may be sent now, and those that are being sent.
    pub(super) fn outgoing(&self) -> usize {
        self.codec.ready_bytes() + self.inflight as usize
    }
}

impl Reading {
    /// Whether `to` may follow this state. Whether a request is the last is known as soon as its
    /// head is: so its body, or the wait for a tunnel, may come after the end of reading.
    fn may_become(self, to: Reading) -> bool {
        match to {
            Reading::Head => matches!(self, Reading::Body | Reading::Await),
            // This is the first thing known of a connection.
            Reading::Frames => self == Reading::Head,
            Reading::Body | Reading::Await => matches!(self, Reading::Head | Reading::Closing),
            // Only after a wait: nothing that was read as a request may come before a tunnel's
            // bytes.
            Reading::Tunnel => self == Reading::Await,
            Reading::Closing => self != Reading::Linger,
            // A tunnel has no last response, and nothing comes after this.
            Reading::Linger => !matches!(self, Reading::Tunnel | Reading::Linger),
        }
    }
}

impl Phase {
    /// Whether `to` may follow this phase.
    fn may_become(self, to: Phase) -> bool {
        match to {
            Phase::Reading => false,
            // Also at another upstream. After a response that has begun: its client has nothing of
            // it yet, and the request is retried.
            Phase::Waiting => self != Phase::Done,
            // A response that weir makes itself needs no forwarded request.
            Phase::Answering => matches!(self, Phase::Reading | Phase::Waiting),
            Phase::Encoding => self == Phase::Answering,
            Phase::Done => self != Phase::Done,
        }
    }
}

impl Exchange {
    /// Creates a request that is being read.
    #[inline]
    pub(super) fn new(conn: ClientKey, want: ReplyConstraints, cx: &Context) -> Exchange {
        Exchange {
            conn,
            phase: Phase::Reading,
            received_us: cx.now_us,
            deadline_us: u64::MAX,
            patience_us: u64::MAX,
            pause_us: u64::MAX,
            reply: Http1Answer::default(),
            server_conn: None,
            asked: cx.worker,
            kept: None,
            spare: None,
            upload: None,
            held_back: false,
            ruled: None,
            compressing: None,
            caching: None,
            is_hit: false,
            want,
        }
    }

    /// The state of its response.
    #[inline]
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Changes the state of its response: the only place that does.
    #[inline]
    pub(super) fn enter(&mut self, to: Phase) {
        debug_assert!(self.phase.may_become(to), "{:?} -> {to:?}", self.phase);
        self.phase = to;
    }

    /// The worker that has it.
    pub(super) fn worker(&self) -> u16 {
        self.server_conn.map_or(self.asked, |server_conn| server_conn.worker)
    }

    /// When the wait for its response, or for the next piece of it, began.
    pub(super) fn awaited_since_us(&self) -> u64 {
        self.deadline_us.saturating_sub(self.wait_us())
    }

    /// How long its server may take now: until its response begins, or between two pieces of the
    /// response.
    #[inline]
    fn wait_us(&self) -> u64 {
        match self.phase {
            Phase::Answering | Phase::Encoding => self.pause_us,
            Phase::Reading | Phase::Waiting | Phase::Done => self.patience_us,
        }
    }

    /// The wait for its response, or for the next piece of it, begins now.
    #[inline]
    pub(super) fn await_more(&mut self, now_us: u64) {
        self.deadline_us = now_us.saturating_add(self.wait_us());
    }

    /// It waits for no server any more.
    pub(super) fn await_nothing(&mut self) {
        (self.patience_us, self.pause_us, self.deadline_us) = (u64::MAX, u64::MAX, u64::MAX);
    }

    /// When it is forwarded if its body is not complete.
    pub(super) fn buffering(&self) -> Buffering {
        self.ruled.as_deref().map_or_else(Buffering::default, Ruled::buffering)
    }

    /// Whether its body is being read, and its client has to send the next piece: the server has
    /// taken everything so far, or will.
    pub(super) fn awaits_body(&self) -> bool {
        self.upload.is_some() && !self.held_back
    }
}

impl RequestBodyReader {
    /// Restarts the window over which its rate is measured; the new window begins with the next
    /// input. Bytes since the last measurement count.
    pub(crate) fn begin_window(&mut self, now_us: u64) {
        (self.window_us, self.window_read) = (now_us, false);
    }

    /// Whether the minimum rate applies to it. A body without a length that is passed on as it
    /// comes is as slow as its client means it to be.
    pub(super) fn has_rate(&self) -> bool {
        !self.streaming || self.framing.left().is_some()
    }

    /// Part of it is read. A window begins with that, so that a pause before it does not count.
    pub(crate) fn note_read(&mut self, now_us: u64) {
        if !self.window_read {
            (self.window_us, self.window_read) = (now_us, true);
        }
    }

    /// The window is over: returns whether it brought less than this. A window in which nothing was
    /// read does not count.
    pub(crate) fn judge_window(&mut self, now_us: u64, least: u64) -> bool {
        let slow = self.window_read && self.received - self.window_bytes < least;
        self.window_bytes = self.received;
        self.begin_window(now_us);
        slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The promise of 512 bytes for an idle connection leaves this much for the connection itself.
    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<ClientConn>() <= 176, "{}", size_of::<ClientConn>());
    }
}
