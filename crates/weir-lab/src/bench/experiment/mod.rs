//! What an experiment is: its question, its cells, its contenders, its targets, and what users
//! chose of all that.
//!
//! Read by everything else in the bench. Owns the names on the command line and in tables. Contains
//! only data: it does not know how an experiment is run or shown.
//!
//! The bounds of what users may choose are in `cells`.

pub(super) mod block;
pub(super) mod block_cells;
mod block_targets;
pub(super) mod cache;
pub(super) mod cache_cells;
pub(super) mod catalogue;
pub(super) mod cells;
pub(super) mod contenders;
pub(super) mod even;
pub(super) mod even_cells;
pub(super) mod failover;
mod failover_cells;
mod forward_cells;
pub(super) mod handshakes;
pub(super) mod http2;
pub(super) mod keepalive;
mod keepalive_cells;
pub(super) mod lru;
pub(super) mod metric;
pub(super) mod mixed;
mod mixed_cells;
pub(super) mod pep;
pub(super) mod pep_cells;
pub(super) mod reload;
mod secure_cells;
pub(super) mod selection;
pub(super) mod targets;
pub(super) mod tls;
pub(super) mod tuning;
pub(super) mod tunnel;
pub(super) mod wan;
pub(super) mod wan_cells;
