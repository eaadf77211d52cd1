//! What workers send each other: requests for connections that another worker owns, and their
//! responses.
//!
//! All messages of one turn for one worker leave as one [`Post`]; bytes of small messages share one
//! buffer.

use std::ops::Range;

use bytes::Bytes;
use weir_cache::FillName;
use weir_http::Field;

use crate::base::keys::{ClientKey, ServerIndex};
use crate::cause::Cause;
use crate::cross::answer::KeptHead;
use crate::cross::doubt::Doubt;
use crate::cross::standing::Suspension;
use crate::cross::verdict::Verdict;
use crate::observe::access::Placed;
use crate::request::pending_request::{ClientName, ConnId, ExchangeId, PendingRequest};

/// The outcome of a request that comes back to its client's side.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It was not served: nothing of it was sent.
    Unserved,
    /// Its connection was lost within its response, or within that to an earlier request of its
    /// client. If its client has nothing of the response, it may be sent again; then that is
    /// counted like this.
    Lost(Repetition),
    /// The same, but it may not be sent again, for this reason.
    Hopeless(Cause),
}

/// How sending a request again is counted.
#[derive(Clone, Copy, Debug)]
pub struct Repetition {
    /// As one of its tries.
    pub counts: bool,
    /// Nothing of it was sent.
    pub unsent: bool,
    /// The server may have worked on it.
    pub oldest: bool,
    /// Its connection was ended by weir's own decision: the budget pays for it, and can't refuse.
    pub ours: bool,
}

/// What workers tell each other about the health of a server.
#[derive(Debug, Clone, Copy)]
pub enum HealthNews {
    /// To its judge: it did what a `failover` rule counts.
    Fault {
        /// Which rule of its upstream.
        rule: u8,
    },
    /// To its judge: a trial of the suspended server has been answered, or was lost.
    TrialEnded {
        /// It works again.
        good: bool,
    },
    /// To all, from its judge, or to a worker that restarts: the server gets nothing new, why and
    /// since when.
    Suspended(Suspension),
    /// To all, from its judge: it works again.
    Resumed,
}

/// What an upstream connection does for the client of the response under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// It is not read further.
    Stop,
    /// It is read on.
    Go,
    /// It has stopped, and others are served without it.
    Aside,
}

/// Which responses are not wanted any more.
#[derive(Clone, Copy, Debug)]
pub enum Cancellation {
    /// That of a request which its client's side counts until no server has it any more: the
    /// client's side is notified.
    Counted {
        /// The client.
        client: ClientName,
        /// The connection that carries it, as far as its client's side knows.
        conn: Option<ConnId>,
        /// Its client's side hears of each connection that gets it ([`Mail::Assigned`]), and
        /// cancels it again then: nothing is searched.
        told: bool,
    },
    /// Any.
    Any {
        /// The response is too late or the body will not be complete: a connection that carries it
        /// must end.
        hard: bool,
        /// The client.
        client: ClientName,
        /// The connection that carries it, as far as its client's side knows.
        conn: Option<ConnId>,
        /// Its response has begun there, so that it is nowhere else.
        begun: bool,
    },
}

/// One message.
#[derive(Debug)]
pub enum Mail {
    /// Towards the upstream: a request; its bytes are in the post.
    Ask {
        /// The request.
        ask: PendingRequest,
        /// Where its bytes are.
        bytes: Range<usize>,
    },
    /// Towards the client: a request that its client's side must have served elsewhere; its bytes
    /// are in the post.
    Again {
        /// The request.
        ask: PendingRequest,
        /// Its outcome.
        fate: Fate,
        /// Where its bytes are.
        bytes: Range<usize>,
    },
    /// Towards the upstream: a piece of a request body or tunnel; `end` with the last.
    Body {
        /// Which request.
        id: ExchangeId,
        /// The client.
        client: ClientName,
        /// Its connection.
        conn: ConnId,
        /// The piece; may be empty with `end`.
        data: Bytes,
        /// Nothing follows.
        end: bool,
    },
    /// Towards the upstream: this response is not wanted any more.
    Cancel {
        /// Which request.
        id: ExchangeId,
        /// On which condition, and what is known of the request.
        what: Cancellation,
    },
    /// Towards the client: no server any longer has a request that was cancelled.
    Withdrawn {
        /// Which request.
        id: ExchangeId,
    },
    /// Towards the upstream: stop or go on reading responses for a client. It may cross the end of
    /// the response that it is about; then it has no effect, unless the next response is for the
    /// same client.
    Flow {
        /// The connection.
        conn: ConnId,
        /// Whose responses, as in [`PendingRequest::client`].
        client: ClientName,
        /// What the connection does.
        flow: Flow,
    },
    /// Towards the client: reading of a response is stopped because of it, and others need the
    /// connection.
    Needed {
        /// Which request.
        id: ExchangeId,
        /// The connection.
        conn: ConnId,
        /// Bytes of the response that are still to come, as far as is known; None: too many to be
        /// taken in.
        left: Option<u64>,
        /// The connection has been set aside.
        aside: bool,
        /// The most connections that may be set aside for one client connection.
        most: u32,
    },
    /// From a worker to itself, towards the upstream: a client that owns connections is gone.
    Gone {
        /// Its slot.
        client: ClientKey,
    },
    /// From a worker to itself, towards the client: a request has to move to another worker's
    /// connections; its bytes are in the post.
    Move {
        /// Which worker.
        worker: u16,
        /// The request.
        ask: PendingRequest,
        /// Where its bytes are.
        bytes: Range<usize>,
    },
    /// From a worker to itself, towards the client: the connection that CONNECT wants is up.
    Joined {
        /// Which request.
        id: ExchangeId,
        /// Its connection.
        conn: ConnId,
    },
    /// Towards the client: the streaming request, the tunnel or the request of a stream has this
    /// connection now.
    Assigned {
        /// Which request.
        id: ExchangeId,
        /// Its connection.
        conn: ConnId,
    },
    /// Towards the client, when there is an access log: the request was put on a connection.
    Placed {
        /// Which request.
        id: ExchangeId,
        /// On which, and when.
        placed: Placed,
    },
    /// Towards the client: the head of an interim or final response; its bytes and fields are in
    /// the post.
    Head {
        /// Which request.
        id: ExchangeId,
        /// Where it comes from.
        conn: ConnId,
        /// The head.
        head: KeptHead,
    },
    /// Towards the client: a small piece of the response body; its bytes are in the post.
    Small {
        /// Which request.
        id: ExchangeId,
        /// Where its bytes are.
        bytes: Range<usize>,
    },
    /// Towards the client: a large piece of the response body.
    Large {
        /// Which request.
        id: ExchangeId,
        /// The piece.
        data: Bytes,
    },
    /// The same for a stream: nothing more is read for it until it says [`Flow::Go`].
    Metered {
        /// Which request.
        id: ExchangeId,
        /// The connection that has stopped.
        conn: ConnId,
        /// For whom, as in [`PendingRequest::client`].
        client: ClientName,
        /// The piece.
        data: Bytes,
    },
    /// Towards the client: the response is complete.
    End {
        /// Which request.
        id: ExchangeId,
        /// As [`Trailers::as_bytes`](weir_http::Trailers::as_bytes).
        trailers: Bytes,
    },
    /// Towards the client: the response, or the rest of it, does not come.
    Fail {
        /// Which request.
        id: ExchangeId,
        /// Why.
        cause: Cause,
    },
    /// Towards the client: hold the request body back, or go on.
    BodyFlow {
        /// Which request.
        id: ExchangeId,
        /// Hold back.
        pause: bool,
    },
    /// To all: a connection of this server was forgotten; others that are idle may be as well.
    Unheard {
        /// Which server.
        server: ServerIndex,
        /// When the lost request was sent, microseconds: connections that were heard of later are
        /// not meant.
        since_us: u64,
    },
    /// To all: a connection waits for its first response from this server; idle ones make room.
    Vacate {
        /// Which server.
        server: ServerIndex,
    },
    /// To a worker where requests wait for a permit of this server: there may be one.
    Permit {
        /// Which server.
        server: ServerIndex,
    },
    /// To workers where requests wait for it: an object that this worker has fetched for the store
    /// is there, or is not for the store.
    Fetched {
        /// What.
        name: FillName,
        /// It could not be fetched.
        failure: Option<Cause>,
    },
    /// To all: this worker lost all its state and restarts. Nothing that was said before counts.
    Reborn {
        /// How often it has restarted.
        life: u32,
    },
    /// To a worker that restarts: the messages that follow were sent knowing of its restart.
    Welcome {
        /// From its [`Mail::Reborn`].
        life: u32,
    },
    /// Something about the health of a server.
    Health {
        /// Index of the server in every engine.
        server: ServerIndex,
        /// What.
        news: HealthNews,
    },
    /// To all: requests with this key were in flight when servers died.
    Suspect {
        /// As in [`crate::retry::poison::key`].
        key: Bytes,
        /// How often.
        deaths: u8,
        /// Until when it is refused.
        refused_until_us: u64,
    },
    /// To all: one of them was answered.
    Acquitted {
        /// As in [`crate::retry::poison::key`].
        key: Bytes,
    },
    /// To all: a server gave reason for doubt.
    Doubt {
        /// Index of the server in every engine.
        server: ServerIndex,
        /// What it did; None: an answer too many.
        doubt: Option<Doubt>,
    },
    /// To all: a server is not pipelined any more until an operator clears it.
    Verdict {
        /// Index of the server in every engine.
        server: ServerIndex,
        /// Why.
        verdict: Verdict,
    },
}

impl Mail {
    /// Returns the same message when its bytes are `by` further back, and its fields `fields`.
    fn shifted(mut self, by: usize, fields: usize) -> Mail {
        match &mut self {
            Mail::Ask { bytes, .. }
            | Mail::Again { bytes, .. }
            | Mail::Move { bytes, .. }
            | Mail::Small { bytes, .. } => *bytes = bytes.start + by..bytes.end + by,
            Mail::Head { head, .. } => head.shift(by, fields),
            _ => {}
        }
        self
    }
}

/// All messages from one worker to another in one turn.
#[derive(Debug, Default)]
pub struct Post {
    /// Messages in order.
    pub mail: Vec<Mail>,
    /// Bytes that the messages refer to.
    pub bytes: Vec<u8>,
    /// Fields of the heads among them.
    pub fields: Vec<Field>,
}

impl Post {
    /// Puts newer mail behind this.
    pub fn append(&mut self, newer: Post) {
        if self.mail.is_empty() {
            *self = newer;
            return;
        }
        let (shift, fields) = (self.bytes.len(), self.fields.len());
        self.bytes.extend_from_slice(&newer.bytes);
        self.fields.extend_from_slice(&newer.fields);
        self.mail.extend(newer.mail.into_iter().map(|mail| mail.shifted(shift, fields)));
    }

    /// Whether there is nothing to deliver.
    pub fn is_empty(&self) -> bool {
        self.mail.is_empty()
    }
}
