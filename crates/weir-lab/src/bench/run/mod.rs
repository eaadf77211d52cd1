//! How an experiment runs: programs are started, put under load, read and ended. Each run gives a record.

pub(super) mod circumstances;
pub(super) mod failover;
pub(super) mod failover_settings;
pub(super) mod keepalive;
pub(super) mod load;
pub(super) mod memory;
pub(super) mod process;
pub(super) mod rounds;
pub(super) mod servers;
pub(super) mod settings;
pub(super) mod stage;
pub(super) mod tunnel;
