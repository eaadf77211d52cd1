//! Buckets for times of all magnitudes: each octave has the same number of linear steps, so that
//! the width of a bucket is a fixed fraction of its values. Used by [`crate::observe::histogram`],
//! [`crate::upstream::slow_answer`] and balancing, each with its own number of steps.
//!
//! ```text
//! STEP_BITS 2, where buckets begin: exact up to the second octave
//! 0 1 2 3 | 4 5 6 7 | 8 10 12 14 | 16 20 24 28 | ...
//! ```

/// A scale of 2^`STEP_BITS` steps an octave.
pub(crate) struct Scale<const STEP_BITS: u32>;

impl<const STEP_BITS: u32> Scale<STEP_BITS> {
    const STEPS: u64 = 1 << STEP_BITS;

    /// Buckets of all values below 2^`value_bits`.
    pub(crate) const fn buckets(value_bits: u32) -> usize {
        ((value_bits - STEP_BITS + 1) as usize) << STEP_BITS
    }

    /// The bucket of a value. Without a branch, because it is part of every request: in the first
    /// two octaves a step is 1, so small values need no special case.
    #[inline]
    pub(crate) const fn bucket(value: u64) -> usize {
        let octave = (value | Self::STEPS).ilog2() - STEP_BITS;
        (octave as u64 * Self::STEPS + (value >> octave)) as usize
    }

    /// Smallest value of a bucket.
    pub(crate) const fn first(bucket: usize) -> u64 {
        let (octaves, step) = (bucket as u64 / Self::STEPS, bucket as u64 % Self::STEPS);
        if octaves == 0 { step } else { (Self::STEPS + step) << (octaves - 1) }
    }

    /// How many values a bucket has.
    pub(crate) const fn width(bucket: usize) -> u64 {
        1 << (bucket as u64 / Self::STEPS).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: buckets follow each other without a gap, each value has its bucket, and no bucket is
    //! wider than its fraction. How: all bucket edges of each scale in use.

    use super::*;

    fn check<const STEP_BITS: u32>(value_bits: u32) {
        let mut next = 0;
        for at in 0..Scale::<STEP_BITS>::buckets(value_bits) {
            let (first, width) = (Scale::<STEP_BITS>::first(at), Scale::<STEP_BITS>::width(at));
            assert_eq!(first, next);
            assert_eq!(
                (Scale::<STEP_BITS>::bucket(first), Scale::<STEP_BITS>::bucket(first + width - 1)),
                (at, at)
            );
            assert!(width == 1 || width << STEP_BITS <= first);
            next = first + width;
        }
        assert_eq!(next, 1 << value_bits);
    }

    #[test]
    fn buckets_follow_each_other_without_gap() {
        check::<1>(33);
        check::<3>(26);
        check::<4>(32);
    }
}
