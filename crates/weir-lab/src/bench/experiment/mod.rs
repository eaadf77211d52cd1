//! What an experiment is: what it asks, its cells, who takes part, the figures that have to be reached, and what users chose of
//! all that.
//!
//! Read by everything else in the bench. Owns the names on the command line and in tables. Data only: touches nothing, and
//! knows nothing of how it is run or shown.
//!
//! Bounds: those of what users may choose stand in `cells`.

pub(super) mod block;
pub(super) mod block_cells;
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
