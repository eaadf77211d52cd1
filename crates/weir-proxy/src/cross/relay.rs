//! A tunnel as the servers' side gives it away, so that the driver may move its bytes (`client/relays.rs`).

use std::sync::Arc;

use crate::base::keys::ServerIndex;
use crate::cross::hints::Hints;
use crate::observe::accounting::Account;
use crate::observe::server_stats::ServerStats;

/// What is known of a tunnel whose bytes the driver moves: all that is left of its upstream connection.
#[derive(Debug)]
pub(crate) struct Relay {
    /// The driver's name for the upstream connection.
    pub socket: u64,
    /// Index of the server.
    pub server: ServerIndex,
    /// Where it stands that the server was in use.
    pub hints: Arc<Hints>,
    /// What is counted of that.
    pub stats: Arc<ServerStats>,
    /// To whom its bytes are charged.
    pub account: Account,
    /// When it was last looked at.
    pub looked_us: u64,
    /// Bytes that it had moved by then, from the client and to it.
    pub moved: (u64, u64),
}
