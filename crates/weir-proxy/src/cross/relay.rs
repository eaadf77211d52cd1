//! A tunnel that the servers' side gives away, so that the driver may move its bytes
//! (`client/relays.rs`).

use std::sync::Arc;

use crate::base::keys::ServerIndex;
use crate::cross::hints::Hints;
use crate::observe::accounting::Account;
use crate::observe::server_stats::ServerStats;

/// The state of a tunnel whose bytes the driver moves: all that is left of its upstream connection.
#[derive(Debug)]
pub(crate) struct Relay {
    /// The driver's name for the upstream connection.
    pub socket: u64,
    /// Index of the server.
    pub server: ServerIndex,
    /// Where it is recorded that the server was in use.
    pub hints: Arc<Hints>,
    /// The counters of that server.
    pub stats: Arc<ServerStats>,
    /// The account that is charged for its bytes.
    pub account: Account,
    /// When it was last checked.
    pub looked_us: u64,
    /// Bytes that it had moved by then, from the client and to it.
    pub moved: (u64, u64),
}
