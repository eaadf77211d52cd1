//! FNV-1a, 64 bits: distinguishes bodies, and is no protection against attackers. Called by the
//! origin and the generator.

/// The checksum of nothing.
pub(crate) const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// Returns the checksum of the bytes behind `sum`, followed by `bytes`.
pub(crate) fn fnv1a(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
