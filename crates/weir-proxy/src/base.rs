//! What everything is built of: tables and the names of what is in them, tokens, timers, sets and buckets, bytes to send, numbers
//! nobody can guess. Knows nothing of the proxy, and touches nothing else here.

pub(crate) mod bitset;
pub(crate) mod check;
pub mod encoder;
pub mod keys;
pub(crate) mod log_buckets;
pub mod output;
pub mod piece;
pub(crate) mod side_table;
pub(crate) mod slab;
pub(crate) mod stamp;
pub(crate) mod sweep;
pub(crate) mod table;
pub(crate) mod timer_wheel;
pub mod token;
