//! How an experiment runs: programs are started, put under load, read and ended; each run gives a
//! record.
//!
//! Called by `bench/mod.rs`: `rounds` for everything, `circumstances` before. Owns the directory of
//! a run, all processes (weir, the others, origins, generators), network namespaces and the
//! connections of the harness itself. May touch these, `/proc` and loopback; records go to the
//! caller's function. Knows `experiment` and `record`, and nothing of reports.
//!
//! Bounds: the rounds and seconds of an experiment, four processes a core for a contender, a
//! patience for every wait; no process outlives the harness.

mod bans;
mod block;
mod block_settings;
mod blocked;
mod cache;
mod cache_events;
mod cache_looks;
mod cache_restart;
mod cache_settings;
pub(super) mod circumstances;
mod even_settings;
mod failover;
mod failover_settings;
mod flood;
mod get;
mod handshakes;
mod keepalive;
mod kept;
mod ladder;
mod launch;
pub(super) mod load;
mod memory;
mod mixed;
mod nets;
mod pep;
mod ports;
mod process;
pub(super) mod programs;
mod reload;
pub(super) mod rounds;
mod router;
mod router_addresses;
mod servers;
mod settings;
mod slow_link;
mod stage;
mod stalled;
mod sweep;
mod taken;
mod tunnel;
mod wan;
mod workers;
