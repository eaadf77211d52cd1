//! Header compression (RFC 7541): [`Decoder`] with a table of 4,096 bytes, and an encoder that
//! keeps none.
//!
//! The decoder passes each field to a function and allocates nothing for it. The encoder uses the
//! entries of the static table, and otherwise literals that the other side doesn't keep: it has no
//! state, so a block can be made when a head arrives, whatever leaves first.

mod decode;
pub mod encode;
mod huffman;
mod statics;
mod table;

pub use decode::{Decoder, HpackError};
