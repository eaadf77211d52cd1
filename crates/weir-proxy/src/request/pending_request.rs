//! The data that travels with a request from its client's session to an upstream connection,
//! perhaps on another core.

use crate::base::keys::{ClientKey, ConnKey, ExchangeKey, Key};
use crate::base::stamp::Stamp;
use crate::base::token::ShortGeneration;
use crate::upstream::class::ClassName;

/// Names one exchange (a request and its response) by the worker that owns the client, its slot and
/// generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExchangeId {
    /// Worker of the client.
    pub worker: u16,
    /// Slot in that worker's table of exchanges.
    pub index: ExchangeKey,
    /// Occupant of the slot.
    pub generation: u32,
}

/// Names one upstream connection by the worker that owns it, its slot and generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnId {
    /// Worker that owns the connection.
    pub worker: u16,
    /// Slot in that worker's table of connections.
    pub index: ConnKey,
    /// Occupant of the slot.
    pub generation: u32,
}

/// Names a client connection among those of all workers. The next connection in the same slot has
/// another name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ClientName(u64);

/// Bit position of the worker, and that of the generation.
const WORKER_SHIFT: u32 = 56;
const GENERATION_SHIFT: u32 = 32;

impl ClientName {
    /// The occupant of a slot of this worker (below 256).
    pub(crate) fn new(worker: u16, slot: ClientKey, generation: u32) -> ClientName {
        let generation = u64::from(ShortGeneration::of(generation).number());
        ClientName(
            u64::from(worker) << WORKER_SHIFT
                | generation << GENERATION_SHIFT
                | u64::from(slot.number()),
        )
    }

    /// Its worker.
    pub(crate) fn worker(self) -> u16 {
        (self.0 >> WORKER_SHIFT) as u16
    }

    /// Its slot at that worker.
    pub(crate) fn slot(self) -> ClientKey {
        ClientKey::new(self.0 as u32)
    }
}

/// No server: the session is not bound.
pub(crate) const NOBODY: u16 = u16::MAX;

/// A request on its way, without its bytes.
#[derive(Clone, Copy, Debug)]
pub struct PendingRequest {
    /// The exchange of the request.
    pub id: ExchangeId,
    /// The same for all requests of one client connection, different between connections.
    pub client: ClientName,
    /// The connection that it came on: for a stream of HTTP/2 the connection that carries it,
    /// otherwise `client`.
    pub carrier: ClientName,
    /// Grows from request to request of one client connection.
    pub serial: u64,
    /// Index in the plan.
    pub upstream: u16,
    /// Server within the upstream, as chosen by balancing.
    pub server: u16,
    /// Hash of the key that the balancing method uses; 0: none.
    pub key: u64,
    /// Server that a cookie binds the client's session to, or [`NOBODY`].
    pub bound: u16,
    /// Number of retries after a loss.
    pub tries: u8,
    /// How often a connection ended in order when its response was next.
    pub passed: u8,
    /// How often it was lost with a connection that had brought nothing, to a server that was not
    /// in use.
    pub barren: u8,
    /// Its flags.
    pub traits: RequestFlags,
    /// Its class, where classes are used.
    pub class: ClassName,
    /// When its head was complete.
    pub received_us: u64,
    /// When its client's side first asked this upstream for it.
    pub asked_us: u64,
    /// The identifier that the response must repeat, when the upstream has `echo`.
    pub echo: Stamp,
}

impl PendingRequest {
    /// Whether any server of its upstream may have it while it waits: it has no session or key, and
    /// nothing else decides where it is sent, such as another worker.
    pub(crate) fn may_go_anywhere(&self) -> bool {
        let special = [
            RequestFlags::BOUND,
            RequestFlags::QUARANTINED,
            RequestFlags::TRIAL,
            RequestFlags::MAILED,
        ];
        self.bound == NOBODY && self.key == 0 && !special.iter().any(|one| self.traits.has(*one))
    }

    /// Whether it is an earlier request of the same client than `other`, so that its response has
    /// to come first.
    pub fn precedes(&self, other: &PendingRequest) -> bool {
        self.client == other.client && self.serial < other.serial
    }
}

/// A set of properties of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestFlags(u32);

impl RequestFlags {
    /// HEAD: its response has no body.
    pub const HEAD: RequestFlags = RequestFlags(1);
    /// The last of its batch: nothing follows it on its connection until its response is complete
    /// and all bytes that had arrived by then were read. Surplus bytes may follow its response, and
    /// must not be taken for the next one: HEAD and conditional requests (a careless server sends a
    /// body where none is allowed), an encoded line end
    /// ([`crate::request::line_end::carries_line_end`]).
    pub const LAST: RequestFlags = RequestFlags(2);
    /// Others may follow it before its response is complete.
    pub const PIPELINABLE: RequestFlags = RequestFlags(4);
    /// May be retried although it may have reached the server. If its body follows in pieces: as
    /// long as everything sent of it is kept
    /// ([`conn_body`](crate::upstream::Upstreams::conn_body)).
    pub const RETRIABLE: RequestFlags = RequestFlags(8);
    /// Requests an upgrade to another protocol.
    pub const UPGRADE: RequestFlags = RequestFlags(16);
    /// Its body follows in pieces; pieces that do not fit are not kept.
    pub const STREAMING: RequestFlags = RequestFlags(32);
    /// A retry after a loss, or a request that a strict server may refuse
    /// ([`crate::request::outgoing::Outgoing::may_be_refused`]): nothing before it or behind it on
    /// its connection until its response is complete.
    pub const ALONE: RequestFlags = RequestFlags(64);
    /// Came from another worker and is not passed on again.
    pub const MAILED: RequestFlags = RequestFlags(128);
    /// Sent to a suspended server to test whether that works again.
    pub const TRIAL: RequestFlags = RequestFlags(512);
    /// Requests the same as a probe: a good response replaces one.
    pub const LIKE_PROBE: RequestFlags = RequestFlags(1024);

    /// Sent to the server that it is bound to, or not at all.
    pub const BOUND: RequestFlags = RequestFlags(2048);
    /// Moved away from behind a late response: that happens once more at most, and then it is sent
    /// alone.
    pub const MOVED: RequestFlags = RequestFlags(256);
    /// Given back by a worker that had just lost its connections; once is enough.
    pub const RETURNED: RequestFlags = RequestFlags(8192);

    /// Lost twice, or suspect: sent alone, and no other such request of its upstream beside it.
    pub const QUARANTINED: RequestFlags = RequestFlags(4096);
    /// CONNECT: nothing is sent; the connection becomes a tunnel as soon as it is ready.
    pub const TUNNEL: RequestFlags = RequestFlags(32768);
    /// A worker had it when that lost everything, perhaps because of it: that happens once.
    pub const WRECKED: RequestFlags = RequestFlags(16384);
    /// The connection that was to be made for it alone (`pool "fresh"`) failed: it uses a shared
    /// connection.
    pub const DETOURED: RequestFlags = RequestFlags(65536);
    /// It has a body.
    pub const BODY: RequestFlags = RequestFlags(131_072);
    /// Nothing before it or behind it on its connection until its response is complete: it is not
    /// known to be as quick as its neighbours would be, or sharing costs time at its server
    /// ([`crate::upstream::class`]).
    pub const APART: RequestFlags = RequestFlags(1_048_576);
    /// Asks its server whether the body is wanted before that is sent (RFC 9110 §10.1.1).
    pub const EXPECTS: RequestFlags = RequestFlags(262_144);
    /// Not all of its body was here when it was first forwarded.
    pub const PIECEMEAL: RequestFlags = RequestFlags(524_288);
    /// With [`RequestFlags::APART`]: because its server is not trusted with several at once.
    pub const UNTRUSTED: RequestFlags = RequestFlags(2_097_152);
    /// The same, because its kind is not known to be as quick as others.
    pub const UNLIKE: RequestFlags = RequestFlags(4_194_304);
    /// The same, because sharing costs time at its server.
    pub const COSTLY: RequestFlags = RequestFlags(8_388_608);
    /// Counted among those that had a connection for themselves; each is counted once.
    pub const COUNTED: RequestFlags = RequestFlags(16_777_216);

    /// Sent again elsewhere while a server still has it.
    pub const TWICE: RequestFlags = RequestFlags(33_554_432);

    /// Whether it rides apart, and why.
    pub(crate) const APART_WHY: RequestFlags = RequestFlags(
        RequestFlags::APART.0
            | RequestFlags::UNTRUSTED.0
            | RequestFlags::UNLIKE.0
            | RequestFlags::COSTLY.0,
    );

    /// Whether all of `other` are set.
    pub fn has(self, other: RequestFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and `other`, when `on`.
    pub fn with(self, other: RequestFlags, on: bool) -> RequestFlags {
        if on { RequestFlags(self.0 | other.0) } else { self }
    }

    /// These without `other`.
    pub fn without(self, other: RequestFlags) -> RequestFlags {
        RequestFlags(self.0 & !other.0)
    }

    /// Whether nothing may follow it on its connection until its response is complete and all bytes
    /// that had arrived by then were read.
    pub fn is_unfollowed(self) -> bool {
        self.goes_alone() || self.has(RequestFlags::LAST)
    }

    /// Whether no request before it on its connection may be unanswered, and none may follow it.
    pub fn goes_alone(self) -> bool {
        !self.has(RequestFlags::PIPELINABLE) || self.has(RequestFlags::ALONE)
    }

    /// The same, or that is better for the requests that would share its connection.
    pub fn rides_apart(self) -> bool {
        self.goes_alone() || self.has(RequestFlags::APART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two flags with the same bit would be one flag.
    #[test]
    fn each_trait_has_its_own_bit() {
        let all = [
            RequestFlags::HEAD,
            RequestFlags::LAST,
            RequestFlags::PIPELINABLE,
            RequestFlags::RETRIABLE,
            RequestFlags::UPGRADE,
            RequestFlags::STREAMING,
            RequestFlags::ALONE,
            RequestFlags::MAILED,
            RequestFlags::TRIAL,
            RequestFlags::LIKE_PROBE,
            RequestFlags::BOUND,
            RequestFlags::MOVED,
            RequestFlags::RETURNED,
            RequestFlags::QUARANTINED,
            RequestFlags::WRECKED,
            RequestFlags::TUNNEL,
            RequestFlags::DETOURED,
            RequestFlags::BODY,
            RequestFlags::EXPECTS,
            RequestFlags::APART,
            RequestFlags::PIECEMEAL,
            RequestFlags::UNTRUSTED,
            RequestFlags::UNLIKE,
            RequestFlags::COSTLY,
            RequestFlags::COUNTED,
            RequestFlags::TWICE,
        ];
        assert!(all.iter().all(|one| one.0.is_power_of_two()));
        assert_eq!(all.iter().fold(0, |bits, one| bits | one.0).count_ones() as usize, all.len());
    }
}
