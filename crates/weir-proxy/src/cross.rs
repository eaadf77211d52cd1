//! Between the two sides of a worker, and between workers: mail, state shared without it, and the
//! copies of requests that are away.

pub(crate) mod answer;
pub(crate) mod asked;
pub mod doubt;
pub mod hints;
pub(crate) mod lasting;
pub(crate) mod limit;
pub mod mail;
pub(crate) mod permits;
pub(crate) mod places;
pub(crate) mod relay;
pub(crate) mod retry_copy;
pub(crate) mod router;
pub mod standing;
pub mod verdict;
