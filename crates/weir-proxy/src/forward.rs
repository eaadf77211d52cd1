//! What only the forward proxy needs: how it decides, its policy, names that were resolved, questions to the side thread, and shares of them.

pub(crate) mod decide;
pub(crate) mod dns_cache;
pub mod lookup;
pub mod policy;
pub mod shares;
pub(crate) mod state;
