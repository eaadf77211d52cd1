//! Unpredictable identifiers, and cheap pseudo-random numbers from a seed.
//!
//! The engine puts a [`Stamper`]'s identifiers into the `echo` field of requests. An attacker that
//! can make an upstream send a response of its choice (docs/hostile.md E21) has seen earlier
//! identifiers, and must not be able to forge that of the next request. So each is SipHash-2-4 of a
//! counter under a secret key. Seeds are arguments.

/// An identifier: 16 hexadecimal digits in lower case.
pub(crate) type Stamp = [u8; 16];

/// Makes identifiers without allocation. Each worker has one, with its own key.
#[derive(Debug, Clone)]
pub(crate) struct Stamper {
    key: [u64; 2],
    counter: u64,
}

impl Stamper {
    /// `key` should come from the operating system's randomness.
    pub(crate) fn new(key: [u64; 2]) -> Stamper {
        Stamper { key, counter: 0 }
    }

    /// The next identifier.
    pub(crate) fn stamp(&mut self) -> Stamp {
        self.counter = self.counter.wrapping_add(1);
        hex(siphash(self.key, &self.counter.to_le_bytes()))
    }
}

/// 16 hexadecimal digits.
pub(crate) fn hex(value: u64) -> Stamp {
    std::array::from_fn(|at| b"0123456789abcdef"[(value >> (60 - 4 * at) & 15) as usize])
}

/// SipHash-2-4 (Aumasson and Bernstein, 2012).
pub(crate) fn siphash([k0, k1]: [u64; 2], message: &[u8]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let (blocks, rest) = message.as_chunks::<8>();
    // The last block holds what is left, and the length of the message.
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = message.len() as u8;
    for block in blocks.iter().chain([&last]) {
        let block = u64::from_le_bytes(*block);
        v[3] ^= block;
        (0..2).for_each(|_| round(&mut v));
        v[0] ^= block;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

/// A well-mixed number for each input (the finaliser of SplitMix64): jitter, not secrets.
pub(crate) fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    //! Proves: identifiers are SipHash-2-4 of a counter, differ, and depend on the key. How:
    //! published vectors, and the standard library's implementation as a second opinion.

    use super::*;

    #[test]
    fn the_published_vectors() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(siphash(key, &0x0706_0504_0302_0100_u64.to_le_bytes()), 0x93f5_f579_9a93_2462);
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash(key, &message), 0xa129_ca61_49be_45e5);
    }

    #[test]
    #[expect(deprecated, reason = "the only SipHash-2-4 with keys that the standard library has")]
    fn equals_the_standard_library() {
        use std::hash::{Hasher, SipHasher};
        for at in 0..1000 {
            let key = [mix(at), mix(!at)];
            let message: Vec<u8> = (0..at % 70).map(|n| mix(n << 32) as u8).collect();
            let mut hasher = SipHasher::new_with_keys(key[0], key[1]);
            hasher.write(&message);
            assert_eq!(siphash(key, &message), hasher.finish());
        }
    }

    #[test]
    fn identifiers_are_digits_that_differ() {
        let mut all: Vec<Stamp> = Vec::new();
        for key in [[0, 0], [1, 0], [0, 1]] {
            let mut stamper = Stamper::new(key);
            all.extend((0..1000).map(|_| stamper.stamp()));
        }
        assert!(all.iter().flatten().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 3000);
        assert_eq!(hex(0x0123_4567_89ab_cdef), *b"0123456789abcdef");
    }
}
