//! HTTP/2 (RFC 9113) without sockets and clocks: frames, HPACK (RFC 7541), heads, windows,
//! priorities (RFC 9218), budgets.
//!
//! A connection of a server is a [`Mux`], one of a client ([`client`]) a
//! [`Client`](client::Client), which is made for generators of requests.
//!
//! A [`Mux`] reads received bytes and reports events ([`Mux::read`], one [`Event`] a call), takes
//! responses in parts ([`Mux::reply_head`], [`Mux::reply_data`], [`Mux::end`]), and writes frames
//! when there is room ([`Mux::write_out`]). Requests come in the form in which
//! [`parse_request`](crate::parse_request) returns them, so that one judgement is enough for both
//! versions. Bodies of responses remain with the caller: the machine counts their bytes and
//! requests them, frame by frame ([`Outgoing`]).
//!
//! Bounds: everything that a client can make it keep is limited by [`Limits`] or by a constant
//! beside the code that enforces it.

mod budget;
pub mod client;
mod error;
mod event;
pub mod frame;
mod frames;
mod glitch;
mod growth;
mod heads;
pub mod hpack;
mod limits;
mod mux;
mod priority;
mod read;
mod receive;
mod reply;
mod schedule;
mod stream;

pub use error::{Code, Failure};
pub use event::{Blocked, Event, Request, Turn};
pub use glitch::{Glitch, Glitches};
pub use growth::WindowPool;
pub use heads::Heads;
pub use limits::Limits;
pub use mux::Mux;
pub use priority::Priority;
pub use reply::Additions;
pub use schedule::Outgoing;

/// The first bytes of a client, before its first frame (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
