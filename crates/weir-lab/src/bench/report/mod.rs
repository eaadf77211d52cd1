//! How records are shown: figures as text, judged targets, charts, and the documents that contain
//! them.
//!
//! Called by `bench/mod.rs`: `progress` after each run, `markdown` and `page` at the end. Owns how
//! a figure is written and the remarks on a limited row. Returns texts and touches no files,
//! processes, sockets or clocks. Knows `experiment` and `record`, and nothing of how records came
//! to be.
//!
//! Bound: all of it is a few passes over the records of one run of the bench.

mod bans;
mod block;
mod cache;
mod drawing;
mod even;
mod failover;
pub(super) mod figures;
mod http2;
mod keepalive;
mod limits;
mod looks;
pub(super) mod markdown;
mod method;
mod mixed;
mod numbers;
pub(super) mod page;
mod pep;
pub(super) mod progress;
mod setup;
mod tls;
mod tunnel;
mod wan;
