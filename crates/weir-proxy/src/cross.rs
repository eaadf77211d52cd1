//! Between the two sides of a worker, and between workers: mail, what is known without it, and the copies of requests that are away.

pub mod hints;
pub mod mail;
pub(crate) mod retry_copy;
pub(crate) mod router;
