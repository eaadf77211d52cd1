//! What a run leaves behind: its figures as they are in the raw file, where it was run, and the
//! arithmetic over several runs.
//!
//! Filled by `run`, read by `report`. Owns the form of the raw file: names of fields are those of
//! its JSON. Contains only data, and knows only the metrics and numbers of bans of `experiment`.
//!
//! Bound: a record is of one size, but for the kinds of errors and, for `failover`, an entry for
//! each second.

pub(super) mod answers;
pub(super) mod bans;
pub(super) mod block;
pub(super) mod cache;
pub(super) mod circumstances;
pub(super) mod even;
pub(super) mod failover;
pub(super) mod histogram;
pub(super) mod http2;
pub(super) mod keepalive;
pub(super) mod mixed;
pub(super) mod outcome;
pub(super) mod pep;
pub(super) mod setting;
pub(super) mod statistics;
pub(super) mod sweep;
pub(super) mod tls;
pub(super) mod wan;
