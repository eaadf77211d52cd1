//! A single request: the data that travels with it, its route, whether it may be retried or
//! followed. Functions of the plan and of bytes; connections have names here (`ConnId`), and no
//! state.

pub(crate) mod client_address;
pub(crate) mod destination;
pub(crate) mod encoding;
pub mod identity;
pub(crate) mod line_end;
pub(crate) mod lookalike;
pub mod nonidempotent;
pub(crate) mod outgoing;
pub mod own_answer;
pub(crate) mod pending_request;
pub mod route;
pub mod rules;
