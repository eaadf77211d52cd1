//! Idle client connections go from one worker to another, with all that is known of them.
//!
//! Who has too much to do lets some go ([`part`]), and whoever has their sockets takes them in ([`arrive`]): another worker, or this one
//! if that other has no room. Between the two nothing of them is in any engine.

use super::Engine;
use crate::client::{MovedClient, Unwanted, moving};
use crate::ending::ClientEnd;

/// Lets idle client connections go, at most so many, those first that asked something last: the driver's name of each, and what is known
/// of it. Its token names nothing from now on.
pub fn part(engine: &mut Engine, most: usize) -> Vec<(u64, MovedClient)> {
    moving::part(&mut engine.clients, most, &engine.cx)
}

/// A connection that was let go comes to this engine, and `socket` is the driver's name for it. What its client has sent meanwhile is told
/// next, by [`Engine::client_received`]; it is to be received from. `is_leaving`: the listener that it came in by goes. Returns the token
/// that names it.
///
/// # Errors
/// It is not wanted: what becomes of its connection.
pub fn arrive(engine: &mut Engine, socket: u64, client: MovedClient, is_leaving: bool) -> Result<u64, Unwanted> {
    moving::arrive(&mut engine.clients, socket, client, is_leaving, &mut engine.cx)
}

/// A connection that was let go can't be taken in by anybody, and is closed.
pub fn lost(engine: &mut Engine, client: MovedClient) {
    moving::lost(client, ClientEnd::ClientReset, &engine.cx);
}
