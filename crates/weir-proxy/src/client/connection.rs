//! One client connection and where it is in reading requests; one request and where its answer stands.
//!
//! In which order and as which bytes answers leave is the codec's affair (`http1.rs`). Memory of an idle connection is this structure and
//! nothing else.

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

/// Where a client connection is in reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reading {
    /// Before or within a request head.
    Head,
    /// Within a request body.
    Body,
    /// Frames of HTTP/2, whose streams are connections of their own here (`streams.rs`).
    Frames,
    /// In front of a request that can't be taken before everything asked earlier is answered, or before something is known; or behind
    /// one that may make a tunnel of the connection.
    Await,
    /// Joined with an upstream connection.
    Tunnel,
    /// Nothing more is read as requests: after the last answer the connection is closed.
    Closing,
    /// The last answer is sent; what arrives is thrown away until the client closes or the time is up.
    Linger,
}

/// A client connection.
#[derive(Debug)]
pub(crate) struct ClientConn {
    /// The driver's name for it; of a stream: 0; of what fetches for the store: [`NO_CLIENT`].
    pub socket: u64,
    /// The client.
    pub peer: IpAddr,
    /// Its port.
    pub port: u16,
    /// When the present state of reading began, or the last byte of a body or tunnel passed.
    pub since_us: u64,
    /// When the present send was given to the driver; 0: it was never sent anything.
    pub send_us: u64,
    /// When the wheel will look at this connection.
    pub armed_us: u64,
    /// Its answers, and what is to be sent.
    pub(super) codec: Http1,
    /// Bytes of the send that is with the driver.
    pub inflight: u32,
    /// Glitches that it has made.
    pub glitches: u32,
    /// What it came in by ([`Entrance::listener`](crate::plan::Entrance::listener)); of a stream: none.
    pub listener: u32,
    /// Received and not parsed yet.
    pub stash: Option<Box<ReadBuffer>>,
    /// Upstream connections that were told to stop for this client, and what follows from that.
    pub(super) stalls: Option<Box<Stalls>>,
    /// What it is as a client of the forward proxy.
    pub proxied: Option<Box<ForwardState>>,
    /// The certificate that it has shown, where servers are told.
    pub shown: Option<Arc<Shown>>,
    /// A tunnel whose bytes the driver moves.
    pub relay: Option<Box<Relay>>,
    /// Which stream of which connection it is; None: it has a socket of its own.
    pub(super) stream: Option<Box<StreamState>>,
    /// Where it is in reading: see [`ClientConn::read_as`].
    reading: Reading,
    /// Small facts.
    pub flags: Flags,
}

/// The socket of what has no client, and fetches something for the store.
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
    /// The rest of a request is unread: close slowly, so that the answer survives.
    pub unread: bool,
    /// The connection ends with a reset after what is queued.
    pub reset: bool,
    /// The sending direction was shut.
    pub shut: bool,
    /// A tunnel's upstream closed its direction.
    pub tunnel_ended: bool,
    /// A client of the forward proxy.
    pub proxied: bool,
    /// The servers' side may have connections of its own for it.
    pub has_pool: bool,
    /// It speaks TLS.
    pub sealed: bool,
    /// It speaks HTTP/2 if it begins so (RFC 9113 §3.3).
    pub may_be_http2: bool,
    /// It is closed as soon as it has what it asked for.
    pub leaves: bool,
    /// Its newest request waits until it is known who its client is (`visitors.rs`).
    pub unverified: bool,
    /// Its client did not send, or take, in time what it should.
    pub late: bool,
}

/// What there is to know of a stream of HTTP/2 besides what is known of any connection.
#[derive(Debug)]
pub(super) struct StreamState {
    /// The connection that it is a stream of.
    pub carrier: ClientKey,
    /// Its number there.
    pub id: u32,
    /// Its client has given it up while its request was under way: it stays, without a way to the client, until that has an answer.
    pub is_given_up: bool,
    /// Bytes that its client has taken since its patience began ([`ClientConn::send_us`]).
    pub taken: usize,
}

/// A request whose head was read and that is not forwarded yet.
#[derive(Debug, Clone)]
pub(crate) struct KeptRequest {
    /// Its head.
    pub head: RequestHead,
    /// The fields of that.
    pub fields: Fields,
    /// What the two refer to.
    pub bytes: Vec<u8>,
    /// Index of the upstream that it goes to.
    pub upstream: usize,
}

/// A request body on its way in.
#[derive(Debug)]
pub(crate) struct RequestBodyReader {
    /// The request, until it is forwarded.
    pub request: Option<KeptRequest>,
    /// What weir answers as soon as all of the body is here, which is thrown away; None: the request is forwarded.
    pub answer: Option<Local>,
    /// Body bytes, until the request is forwarded.
    pub body: Vec<u8>,
    /// Where it ends: by its length, or by the last chunk.
    pub framing: BodyReader,
    /// Body bytes received.
    pub received: u64,
    /// Most that may be, by what was in force when the head was read.
    pub bytes_max: Option<u64>,
    /// When the time began over which its rate is judged.
    pub window_us: u64,
    /// Bytes received when it was judged last.
    pub window_bytes: u64,
    /// Something of it was read since then: what brings nothing, such as a part of a chunk's head, counts.
    pub window_read: bool,
    /// When it is forwarded although it is not complete, or its client is told to go on; `u64::MAX`: no timer looks.
    pub pass_on_us: u64,
    /// It is forwarded as it is when the connection is looked at next.
    pub is_due: bool,
    /// Its client waits until the server wants it, and has not been told to go on.
    pub awaits_continue: bool,
    /// Already forwarded; pieces follow it.
    pub streaming: bool,
    /// Chunked towards the upstream.
    pub chunked_out: bool,
}

/// A request and its answer, on the client's side.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Slot of the client's connection.
    pub conn: ClientKey,
    /// Where its answer stands: see [`Exchange::enter`].
    phase: Phase,
    /// When the head was complete.
    pub received_us: u64,
    /// When the wait for an answer, or for the next piece of it, is over.
    pub deadline_us: u64,
    /// How long the wait for the beginning of an answer may be.
    pub patience_us: u64,
    /// How long a pause within the answer may be.
    pub pause_us: u64,
    /// What the codec of its connection has of the answer.
    pub(super) reply: Http1Answer,
    /// The upstream connection, once known.
    pub server_conn: Option<ConnId>,
    /// Worker that was asked, or [`NO_WORKER`].
    pub asked: u16,
    /// A copy of the request while it is with another worker and may be repeated.
    pub kept: Option<Box<RetryCopy>>,
    /// The request itself while it waits and another upstream may have it instead.
    pub(super) spare: Option<Box<Spare>>,
    /// Its body, while that is being read.
    pub upload: Option<Box<RequestBodyReader>>,
    /// The upstream connection asked to hold the rest of the body, or what the tunnel's client says, back.
    pub held_back: bool,
    /// What the rules of its route make of it and of its answer; None: nothing.
    pub ruled: Option<Box<Ruled>>,
    /// Its answer is compressed.
    pub(super) compressing: Option<Box<Compressing>>,
    /// What the cache has to do with it; None: nothing.
    pub(super) caching: Option<Caching>,
    /// It is answered by what is stored, without a server.
    pub(super) is_hit: bool,
    /// Facts about the request.
    pub want: ReplyConstraints,
}

/// Facts about a request that shape its answer.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ReplyConstraints {
    /// HEAD.
    pub head: bool,
    /// HTTP/1.0.
    pub old: bool,
    /// The connection ends after this answer.
    pub close: bool,
    /// The client understands trailers.
    pub trailers: bool,
    /// CONNECT: what follows it is meant for the tunnel, also when there is none.
    pub connect: bool,
    /// Its body is not completely received.
    pub body_open: bool,
    /// Its answer, which ends by close, lacks its end: only a reset can say so.
    pub cut: bool,
    /// It goes to where its client has connected to, and counts there.
    pub original: bool,
    /// It is of gRPC, and came by HTTP/2.
    pub grpc: bool,
}

/// No worker has a request.
pub(super) const NO_WORKER: u16 = u16::MAX;

/// Where an answer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The request is still being read.
    Reading,
    /// It was forwarded.
    Waiting,
    /// Its answer has begun.
    Answering,
    /// All of its answer has come, and is being encoded on another thread: no server has it any more.
    Encoding,
    /// Its answer is complete.
    Done,
}

impl ClientConn {
    /// A client that has just been accepted.
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

    /// A stream that its client has just opened, of a connection to the same client.
    pub(super) fn of_stream(peer: IpAddr, stream: StreamState, now_us: u64) -> ClientConn {
        let mut conn = ClientConn::new(0, SocketAddr::new(peer, 0), now_us);
        conn.stream = Some(Box::new(stream));
        conn.listener = u32::MAX;
        conn
    }

    /// Where it is in reading.
    #[inline]
    pub(super) fn reading(&self) -> Reading {
        self.reading
    }

    /// Reading goes on like this: the only place where that changes.
    #[inline]
    pub(super) fn read_as(&mut self, to: Reading) {
        debug_assert!(self.reading.may_become(to), "{:?} -> {to:?}", self.reading);
        self.reading = to;
    }

    /// No further request is taken; one that is being read, or that waits, goes on.
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

    /// It has no client, and its request fetches something for the store.
    #[inline]
    pub(super) fn is_fetch(&self) -> bool {
        self.socket == NO_CLIENT
    }

    /// A stream whose client has given it up: nothing is said on it any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_given_up)
    }

    /// What it is as a client of the forward proxy.
    pub(super) fn forward_state(&mut self) -> &mut ForwardState {
        self.proxied.get_or_insert_default()
    }

    /// What its present request is charged to.
    #[inline]
    pub(super) fn account(&self) -> Account {
        self.proxied.as_deref().map_or_else(Account::default, |proxied| proxied.account)
    }

    /// What was decided of its request, as a client of the forward proxy: the upstream that stands for all destinations.
    pub(super) fn decided(&self, plan: &Plan) -> Result<Routed, Local> {
        let decision = self.proxied.as_deref().and_then(|proxied| proxied.decision.as_ref());
        match (decision, &plan.forward) {
            (Some(Ok(_)), Some(forward)) => Ok(Routed { target: Target::Upstream(forward.upstream), rules: None }),
            (Some(Err(refused)), _) => Err(refused.clone()),
            _ => Err(Cause::NotDecided.into()),
        }
    }

    /// Whether everything asked is answered, and all that is with the driver.
    pub(super) fn has_sent_all(&self) -> bool {
        self.codec.is_empty() && self.codec.is_sent() && !self.flags.sending
    }

    /// Whether its client has ended its direction within a body or a tunnel, all of which is read.
    pub(super) fn has_ended_within(&self) -> bool {
        self.stash.is_none() && self.flags.ended && matches!(self.reading, Reading::Tunnel | Reading::Body)
    }

    /// Bytes that may be sent now, and those that are.
    pub(super) fn outgoing(&self) -> usize {
        self.codec.ready_bytes() + self.inflight as usize
    }
}

impl Reading {
    /// Which state may follow this one. That a request is the last one is known as soon as its head is: so its body, or the wait for a
    /// tunnel, may come after the end of reading.
    fn may_become(self, to: Reading) -> bool {
        match to {
            Reading::Head => matches!(self, Reading::Body | Reading::Await),
            // The first thing that is known of a connection.
            Reading::Frames => self == Reading::Head,
            Reading::Body | Reading::Await => matches!(self, Reading::Head | Reading::Closing),
            // Only what waits can: nothing that was read as a request may stand in front of a tunnel's bytes.
            Reading::Tunnel => self == Reading::Await,
            Reading::Closing => self != Reading::Linger,
            // A tunnel has no last answer, and nothing comes after this.
            Reading::Linger => !matches!(self, Reading::Tunnel | Reading::Linger),
        }
    }
}

impl Phase {
    /// Which phase may follow this one.
    fn may_become(self, to: Phase) -> bool {
        match to {
            Phase::Reading => false,
            // Also of another upstream. From an answer that has begun: its client has nothing of it yet, and it is asked for again.
            Phase::Waiting => self != Phase::Done,
            // What weir answers by itself need not have been forwarded.
            Phase::Answering => matches!(self, Phase::Reading | Phase::Waiting),
            Phase::Encoding => self == Phase::Answering,
            Phase::Done => self != Phase::Done,
        }
    }
}

impl Exchange {
    /// A request that is being read.
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

    /// Where its answer stands.
    #[inline]
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Its answer stands here now: the only place where that changes.
    #[inline]
    pub(super) fn enter(&mut self, to: Phase) {
        debug_assert!(self.phase.may_become(to), "{:?} -> {to:?}", self.phase);
        self.phase = to;
    }

    /// The worker that has it, or was asked.
    pub(super) fn worker(&self) -> u16 {
        self.server_conn.map_or(self.asked, |server_conn| server_conn.worker)
    }

    /// When the wait for its answer, or for the next piece of that, began.
    pub(super) fn awaited_since_us(&self) -> u64 {
        self.deadline_us.saturating_sub(self.wait_us())
    }

    /// How long its server may take now: until its answer begins, or between two pieces of that.
    #[inline]
    fn wait_us(&self) -> u64 {
        match self.phase {
            Phase::Answering | Phase::Encoding => self.pause_us,
            Phase::Reading | Phase::Waiting | Phase::Done => self.patience_us,
        }
    }

    /// The wait for its answer, or for the next piece of that, begins now.
    #[inline]
    pub(super) fn await_more(&mut self, now_us: u64) {
        self.deadline_us = now_us.saturating_add(self.wait_us());
    }

    /// No server is waited for any more.
    pub(super) fn await_nothing(&mut self) {
        (self.patience_us, self.pause_us, self.deadline_us) = (u64::MAX, u64::MAX, u64::MAX);
    }

    /// When it goes to its server if its body is not complete.
    pub(super) fn buffering(&self) -> Buffering {
        self.ruled.as_deref().map_or_else(Buffering::default, Ruled::buffering)
    }

    /// Whether its body is being read, and the next piece of that is its client's to send: the server has taken what there is, or will.
    pub(super) fn awaits_body(&self) -> bool {
        self.upload.is_some() && !self.held_back
    }
}

impl RequestBodyReader {
    /// The time over which its rate is judged begins anew, and with what comes next. What has come since it was judged last counts.
    pub(crate) fn begin_window(&mut self, now_us: u64) {
        (self.window_us, self.window_read) = (now_us, false);
    }

    /// Whether it has to come with the least rate. What has no length and is passed on as it comes is as slow as its client means it to be.
    pub(super) fn has_rate(&self) -> bool {
        !self.streaming || self.framing.left().is_some()
    }

    /// Something of it is read. A window begins with that, so that a pause before is no part of it.
    pub(crate) fn note_read(&mut self, now_us: u64) {
        if !self.window_read {
            (self.window_us, self.window_read) = (now_us, true);
        }
    }

    /// The window is over: whether it brought less than this. One in which nothing was read is no matter of the rate.
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
