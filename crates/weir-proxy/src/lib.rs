//! The proxy without sockets: client sessions, upstream pipelines, ordering, balancing, retry, routing.
//!
//! Ring 0: no clocks, sockets, threads or randomness. Time (microseconds), seeds and bytes are arguments.
#![forbid(unsafe_code)]

pub mod access;
pub mod ask;
pub mod backoff;
pub mod balance;
pub mod bits;
pub mod budget;
pub mod cause;
pub mod cookie;
pub mod counters;
pub mod depth;
pub mod ending;
pub mod engine;
pub mod errand;
pub mod event;
pub mod glitch;
pub mod health;
pub mod histogram;
pub mod idle;
pub mod keep;
pub mod kinds;
pub mod lane;
pub mod lifespan;
pub mod line_end;
pub mod lines;
pub mod link;
pub mod log;
pub mod mail;
pub mod misframing;
pub mod names;
pub mod output;
pub mod own;
pub mod places;
pub mod plan;
pub mod policy;
pub mod probe;
pub mod queue;
pub mod report;
pub mod route;
pub mod rules;
mod scale;
pub mod server;
pub mod session;
pub mod slab;
pub mod stamina;
pub mod stamp;
pub mod standing;
pub mod stats;
pub mod sticky;
pub mod suspects;
pub mod trust;
pub mod usage;
pub mod usual;
pub mod wheel;
