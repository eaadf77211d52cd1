//! The proxy without sockets: client sessions, upstream pipelines, ordering, balancing, retry, routing.
//!
//! Ring 0: no clocks, sockets, threads or randomness. Time (microseconds), seeds and bytes are arguments.
#![forbid(unsafe_code)]

pub mod depth;
pub mod plan;
pub mod route;
pub mod rules;
pub mod trust;
