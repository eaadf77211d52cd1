//! What the worker and the timers name connections by.

use super::{Engine, probes};
use crate::base::keys::{ClientKey, ConnKey, Key};

/// Which table a token or a timer refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    Client,
    Link,
}

/// Bits of a generation that fit into a token.
pub(super) const GENERATION_MASK: u32 = 0x00ff_ffff;

pub(super) fn token(owner: Owner, index: u32, generation: u32) -> u64 {
    let kind = match owner {
        Owner::Client => 1u64,
        Owner::Link => 2,
    };
    kind << 56 | u64::from(generation & GENERATION_MASK) << 32 | u64::from(index)
}

/// Whether a token names a connection to a server, for requests or for a probe (else one to a client).
pub fn token_is_link(token: u64) -> bool {
    token >> 56 == 2 || probes::token_is_probe(token)
}

impl Engine {
    /// Names a client's connection towards the worker and the timers.
    pub(super) fn client_token(&self, index: ClientKey) -> u64 {
        token(Owner::Client, index.number(), self.sessions.generation(index))
    }

    /// Names an upstream connection towards the worker and the timers.
    pub(super) fn link_token(&self, index: ConnKey) -> u64 {
        token(Owner::Link, index.number(), self.links.generation(index))
    }

    /// The session that a token names, if it is still there.
    pub(super) fn session_of(&self, token: u64) -> Option<ClientKey> {
        let number = token as u32;
        let index = ClientKey::new(number);
        let alive = (number as usize) < self.sessions.slots()
            && self.sessions.is_occupied(index)
            && u64::from(self.sessions.generation(index) & GENERATION_MASK) == token >> 32 & u64::from(GENERATION_MASK);
        alive.then_some(index)
    }

    /// The upstream connection that a token names, if it is still there.
    pub(super) fn link_of(&self, token: u64) -> Option<ConnKey> {
        let number = token as u32;
        let index = ConnKey::new(number);
        let alive = (number as usize) < self.links.slots()
            && self.links.is_occupied(index)
            && u64::from(self.links.generation(index) & GENERATION_MASK) == token >> 32 & u64::from(GENERATION_MASK);
        alive.then_some(index)
    }
}
