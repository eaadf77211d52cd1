//! Chooses the server of a request: methods of balancing, and sticky sessions. Functions of the
//! current load of servers.

pub mod balance;
pub(crate) mod cookie;
pub mod sticky;
