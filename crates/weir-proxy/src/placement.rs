//! Which server a request goes to: methods of balancing, sessions that are bound. Functions of what servers have to do now.

pub mod balance;
pub(crate) mod cookie;
pub mod sticky;
