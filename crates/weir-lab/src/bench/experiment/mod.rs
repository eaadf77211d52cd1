//! What an experiment is: what it asks, its cells, who takes part, and the figures that have to be reached.

pub(super) mod catalogue;
pub(super) mod cells;
pub(super) mod contenders;
pub(super) mod failover;
pub(super) mod keepalive;
pub(super) mod metric;
pub(super) mod selection;
pub(super) mod targets;
pub(super) mod tunnel;
