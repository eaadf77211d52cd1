//! What the worker and the timers name connections by.

use super::Engine;
use crate::base::keys::{ClientKey, ConnKey};
use crate::base::token::{ShortGeneration, Token};

impl Engine {
    /// Names a client's connection towards the worker and the timers.
    pub(super) fn client_token(&self, index: ClientKey) -> u64 {
        let generation = ShortGeneration::of(self.sessions.generation(index));
        Token::Client { key: index, generation }.pack()
    }

    /// Names an upstream connection towards the worker and the timers.
    pub(super) fn link_token(&self, index: ConnKey) -> u64 {
        let generation = ShortGeneration::of(self.links.generation(index));
        Token::Conn { key: index, generation }.pack()
    }

    /// The session that a token names, if it is still there.
    pub(super) fn session_of(&self, token: u64) -> Option<ClientKey> {
        match Token::unpack(token)? {
            Token::Client { key, generation } => self.sessions.holds_short(key, generation).then_some(key),
            _ => None,
        }
    }

    /// The upstream connection that a token names, if it is still there.
    pub(super) fn link_of(&self, token: u64) -> Option<ConnKey> {
        match Token::unpack(token)? {
            Token::Conn { key, generation } => self.links.holds_short(key, generation).then_some(key),
            _ => None,
        }
    }
}
