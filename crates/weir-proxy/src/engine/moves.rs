//! Idle client connections move from one worker to another, with all facts about them.
//!
//! A worker with too much to do gives some away ([`part`]), and the worker that gets their sockets
//! takes them in ([`arrive`]): another worker, or the same one if the other has no room. In between
//! no engine knows of them.

use super::Engine;
use crate::client::{MovedClient, Unwanted, moving};
use crate::ending::ClientEnd;

/// Gives up to `most` idle client connections away, those with the latest requests first: returns
/// the driver's name of each, and the facts about it. Its token names nothing from now on.
pub fn part(engine: &mut Engine, most: usize) -> Vec<(u64, MovedClient)> {
    moving::part(&mut engine.clients, most, &engine.cx)
}

/// Takes a connection that was given away; `socket` is the driver's name for it.
/// [`Engine::client_received`] comes next, with the bytes that its client has sent meanwhile; start
/// receiving from it. `is_leaving`: the listener that it came in by closes. Returns the token that
/// names it.
///
/// # Errors
/// It is not wanted: what to do with its connection.
pub fn arrive(
    engine: &mut Engine,
    socket: u64,
    client: MovedClient,
    is_leaving: bool,
) -> Result<u64, Unwanted> {
    moving::arrive(&mut engine.clients, socket, client, is_leaving, &mut engine.cx)
}

/// Closes a connection that was given away and that no worker can take.
pub fn lost(engine: &mut Engine, client: MovedClient) {
    moving::lost(client, ClientEnd::ClientReset, &engine.cx);
}
