//! The experiment `reload`: clients that connect while a proxy reloads its configuration.
//!
//! Read by `even_cells.rs`, `run/reload.rs` and `report/even.rs`. Pure.

/// Threads that connect.
pub(crate) const THREADS: usize = 4;
/// How many connections each opens before it sends a request on the first of them: that many wait
/// to be accepted at any time.
pub(crate) const BURST: usize = 16;
/// Between two bursts of a thread, milliseconds.
pub(crate) const PAUSE_MS: u64 = 10;
/// From one reload to the next, milliseconds.
pub(crate) const EVERY_MS: u64 = 1000;

/// Returns the workers of the configuration that reload `nth`, from 0, applies, when there are as
/// many as cores at first: one fewer, and as many again in turn. So every second reload closes a
/// listening socket where each worker has its own.
pub(crate) fn workers(cores: usize, nth: u32) -> usize {
    let most = cores.max(2);
    if nth.is_multiple_of(2) { most - 1 } else { most }
}

#[cfg(test)]
mod tests {
    use super::workers;

    #[test]
    fn a_socket_goes_and_comes_back() {
        assert_eq!((0..4).map(|nth| workers(2, nth)).collect::<Vec<_>>(), [1, 2, 1, 2]);
        assert_eq!((0..2).map(|nth| workers(1, nth)).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(workers(8, 0), 7);
    }
}
