//! Received bytes and the pool they return to.

use std::ops::Deref;

use bytes::Bytes;

/// Bytes that were received. Dereferences to the slice. Give it back with [`crate::Driver::recycle`] (cheapest), drop it,
/// or turn it into [`Bytes`] to keep it or to hand it to another core.
#[derive(Debug)]
pub struct RecvBuf {
    bytes: Vec<u8>,
}

impl RecvBuf {
    /// A buffer of its own memory (simulation, tests).
    pub fn from_vec(bytes: Vec<u8>) -> RecvBuf {
        RecvBuf { bytes }
    }

    /// Keeps the memory until the last slice of it is dropped. One small allocation.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from(self.bytes)
    }
}

impl Deref for RecvBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
