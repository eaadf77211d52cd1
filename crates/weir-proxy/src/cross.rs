//! What goes from one worker to another, and the copies of requests that are there.

pub mod mail;
pub mod retry_copy;
