//! The proxy without sockets: client sessions, upstream pipelines, ordering, balancing, retry,
//! routing.
//!
//! Ring 0: no clocks, sockets, threads or randomness. Time (microseconds), seeds and bytes are
//! arguments.
#![forbid(unsafe_code)]

mod action;
pub mod base;
pub mod cause;
pub mod client;
mod context;
pub mod cross;
pub mod ending;
pub mod engine;
pub mod forward;
pub mod observe;
pub mod placement;
pub mod plan;
pub mod request;
pub mod retry;
pub mod shield;
pub mod tcp;
pub mod upstream;
