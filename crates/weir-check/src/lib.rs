//! The judges: a strict grammar of what may leave weir, and the catalogue of hostile inputs (dev
//! only).
//!
//! Written independently of weir's parser, so that a mistake there isn't repeated here; the one
//! dependency decodes HPACK. Called by the tests of the other crates: [`StrictRequests`] reads
//! every byte that weir sends upstream, [`StrictReplies`] and, in HTTP/2, [`StrictStreams`] every
//! byte that it sends to a client. [`requests`] lists the requests of hostile clients (rows A, B, C
//! of docs/hostile.md), and [`upstreams`] the responses of hostile servers (rows E). The judges
//! have no sockets, clocks or threads, so machine tests and end-to-end tests judge alike; only
//! [`waiting`] has, for tests of the real machine. RFC 9112 (all of it), RFC 9110 §5, §7.6, §10.1.
#![forbid(unsafe_code)]

mod body;
mod grammar;
mod message;
mod replies;
pub mod requests;
pub mod streams;
mod strict_requests;
pub mod upstreams;
pub mod waiting;

pub use body::Body;
pub use grammar::Violation;
pub use message::{Fields, Reply, Request};
pub use replies::{End, StrictReplies};
pub use streams::StrictStreams;
pub use strict_requests::{Rules, StrictRequests};
