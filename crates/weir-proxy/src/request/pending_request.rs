//! What travels with a request from its client's session to an upstream connection, perhaps on another core.

use crate::base::stamp::Stamp;

/// Names one exchange (a request and its answer) by the worker that owns the client, its slot and generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExchangeId {
    /// Worker of the client.
    pub worker: u16,
    /// Slot in that worker's table of exchanges.
    pub index: u32,
    /// Occupant of the slot.
    pub generation: u32,
}

/// Names one upstream connection by the worker that owns it, its slot and generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkId {
    /// Worker that owns the connection.
    pub worker: u16,
    /// Slot in that worker's table of connections.
    pub index: u32,
    /// Occupant of the slot.
    pub generation: u32,
}

/// No server: the session is not bound.
pub const NOBODY: u16 = u16::MAX;

/// A request on its way, without its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Who asked.
    pub id: ExchangeId,
    /// The same for all requests of one client connection, different between connections.
    pub client: u64,
    /// Grows from request to request of one client connection.
    pub serial: u64,
    /// Index in the plan.
    pub upstream: u16,
    /// Server within the upstream, as chosen by balancing.
    pub server: u16,
    /// What the balancing method hashes, hashed; 0: nothing.
    pub key: u64,
    /// Server to which the client's session is bound by a cookie, or [`NOBODY`].
    pub bound: u16,
    /// Times that it was sent again after a loss.
    pub tries: u8,
    /// Times that a connection ended in order when it was the next one to be answered.
    pub passed: u8,
    /// What it is.
    pub traits: Traits,
    /// When its head was complete.
    pub received_us: u64,
    /// What the answer must carry back, when the upstream has `echo`.
    pub echo: Stamp,
}

impl Ask {
    /// Whether the same client asked this before `other`, so that it has to have this answer first.
    pub fn precedes(&self, other: &Ask) -> bool {
        self.client == other.client && self.serial < other.serial
    }
}

/// A set of properties of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traits(u32);

impl Traits {
    /// HEAD: its answer has no body.
    pub const HEAD: Traits = Traits(1);
    /// The last of its batch: nothing behind it on its connection until it is answered and everything that had arrived by then was
    /// read. Its answer may be followed by bytes that nobody asked for, and they must not be taken for the next one: HEAD and
    /// conditional requests (a careless server sends a body where none may be), an encoded line end
    /// ([`crate::request::line_end::carries_line_end`]).
    pub const LAST: Traits = Traits(2);
    /// Others may follow it before it is answered.
    pub const PIPELINABLE: Traits = Traits(4);
    /// May be sent again although it may have reached the server.
    pub const RETRIABLE: Traits = Traits(8);
    /// Asks for another protocol.
    pub const UPGRADE: Traits = Traits(16);
    /// Its body follows in pieces and is not kept.
    pub const STREAMING: Traits = Traits(32);
    /// Sent again after a loss: nothing before it or behind it on its connection until it is answered.
    pub const ALONE: Traits = Traits(64);
    /// Came from another worker and goes no further.
    pub const MAILED: Traits = Traits(128);
    /// Goes to a suspended server to show whether that works again.
    pub const TRIAL: Traits = Traits(512);
    /// Asks for what a probe would ask: a good answer stands for one.
    pub const LIKE_PROBE: Traits = Traits(1024);

    /// Goes to the server to which it is bound, or nowhere.
    pub const BOUND: Traits = Traits(2048);
    /// Moved away from behind a late answer: that happens once more at most, and then it goes alone.
    pub const MOVED: Traits = Traits(256);
    /// It was given back by a worker that had just lost its connections; once is enough.
    pub const RETURNED: Traits = Traits(8192);

    /// Lost twice, or suspect: goes alone, and no other such request of its upstream beside it.
    pub const QUARANTINED: Traits = Traits(4096);
    /// CONNECT: nothing is sent; the connection becomes a tunnel as soon as it is there.
    pub const TUNNEL: Traits = Traits(32768);
    /// Was with a worker when that lost everything, perhaps because of it: that happens once.
    pub const WRECKED: Traits = Traits(16384);

    /// Whether all of `other` are set.
    pub fn has(self, other: Traits) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and `other`, when `on`.
    pub fn with(self, other: Traits, on: bool) -> Traits {
        if on { Traits(self.0 | other.0) } else { self }
    }

    /// These without `other`.
    pub fn without(self, other: Traits) -> Traits {
        Traits(self.0 & !other.0)
    }

    /// Whether nothing may be put behind it on its connection until it is answered.
    pub fn is_unfollowed(self) -> bool {
        self.goes_alone() || self.has(Traits::LAST)
    }

    /// Whether nothing may be unanswered in front of it on its connection, nor anything behind it.
    pub fn goes_alone(self) -> bool {
        !self.has(Traits::PIPELINABLE) || self.has(Traits::ALONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two traits with one bit would be one trait.
    #[test]
    fn each_trait_has_its_own_bit() {
        let all = [
            Traits::HEAD,
            Traits::LAST,
            Traits::PIPELINABLE,
            Traits::RETRIABLE,
            Traits::UPGRADE,
            Traits::STREAMING,
            Traits::ALONE,
            Traits::MAILED,
            Traits::TRIAL,
            Traits::LIKE_PROBE,
            Traits::BOUND,
            Traits::MOVED,
            Traits::RETURNED,
            Traits::QUARANTINED,
            Traits::WRECKED,
            Traits::TUNNEL,
        ];
        assert!(all.iter().all(|one| one.0.is_power_of_two()));
        assert_eq!(all.iter().fold(0, |bits, one| bits | one.0).count_ones() as usize, all.len());
    }
}
