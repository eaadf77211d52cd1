//! Building blocks: tables and the keys of their rows, tokens, timers, sets and buckets, output
//! buffers, unpredictable numbers. Knows nothing of the proxy and uses no other module of this
//! crate.

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
