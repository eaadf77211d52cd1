//! What goes from one worker to another, and the copies of requests that are there.

pub mod mail;
pub(crate) mod retry_copy;
