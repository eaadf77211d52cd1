//! The resources of the machine for this process: descriptors and cores. Called once at start.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the number of descriptors to the hard limit; returns the present limit (None: unlimited).
pub(crate) fn raise_descriptors() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // Refused only when it changed meanwhile; the limit is read again.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current
}

/// Returns how many workers are useful: one for each core that this process may use, or fewer if
/// its control group allows less time than that. At least 1.
pub(crate) fn workers() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_at_the_hard_limit() {
        assert_eq!(raise_descriptors(), getrlimit(Resource::Nofile).maximum);
    }
}
