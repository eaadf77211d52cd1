//! What a run leaves behind: its figures, as they stand in the raw file, and the arithmetic over several runs.

pub(super) mod answers;
pub(super) mod circumstances;
pub(super) mod failover;
pub(super) mod keepalive;
pub(super) mod outcome;
pub(super) mod statistics;
