//! What the forward proxy needs: how it decides, its policy, names that were resolved, questions to
//! the side thread, and shares of them. Routes with `users` need credentials, questions and shares,
//! too.

pub(crate) mod credentials;
pub(crate) mod decide;
pub(crate) mod dns_cache;
pub mod lookup;
pub mod policy;
pub mod shares;
pub(crate) mod state;
