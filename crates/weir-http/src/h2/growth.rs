//! Windows of uploads that grow: how much more than the announced size a client may have on its
//! way.
//!
//! A body that its server accepts as fast as it comes is limited only by its window and the
//! distance to the client: 64 KiB and 100 ms are 5 Mbit/s. So each time a whole window of such a
//! body has come, and none of it had to wait, the window doubles. A body of which something waits
//! keeps its window. All of the growth is given back when the stream ends. `mux.rs` queries this
//! and informs the client. Bounds: [`STREAM_WINDOW_MAX`], [`CONNECTION_GROWTH_MAX`], and the
//! [`WindowPool`] that all connections of a worker share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A stream's window does not grow beyond this many bytes.
pub(super) const STREAM_WINDOW_MAX: u32 = 1024 * 1024;
/// Bytes by which the windows of a connection's streams, and its own, may grow together.
pub(super) const CONNECTION_GROWTH_MAX: u32 = 4 * 1024 * 1024;
/// The same of all connections of a worker.
const WORKER_GROWTH_MAX: u64 = 256 * 1024 * 1024;

/// Bytes by which the windows of all connections that share it may grow yet. It belongs to one
/// worker: it is shared, but not between threads that compete for it.
#[derive(Debug)]
pub struct WindowPool {
    left: AtomicU64,
}

impl Default for WindowPool {
    /// Of a worker: 256 MiB.
    fn default() -> WindowPool {
        WindowPool::new(WORKER_GROWTH_MAX)
    }
}

impl WindowPool {
    /// Makes a pool of `bytes` bytes; 0: no window grows.
    pub fn new(bytes: u64) -> WindowPool {
        WindowPool { left: AtomicU64::new(bytes) }
    }

    /// Returns the bytes that are not in use.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u32) -> bool {
        let rest = |left: u64| left.checked_sub(bytes.into());
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok()
    }

    fn give_back(&self, bytes: u32) {
        self.left.fetch_add(bytes.into(), Ordering::Relaxed);
    }
}

/// The share of one connection in the pool: it is given back with the connection. Invariant:
/// `taken <=` [`CONNECTION_GROWTH_MAX`].
#[derive(Debug)]
pub(super) struct Growth {
    pool: Arc<WindowPool>,
    taken: u32,
}

impl Growth {
    pub(super) fn new(pool: &Arc<WindowPool>) -> Growth {
        Growth { pool: Arc::clone(pool), taken: 0 }
    }

    /// Returns by how many bytes a window of `full` may grow now: its own size, or less if the
    /// largest window is closer. 0: not at all.
    pub(super) fn grow(&mut self, full: u32) -> u32 {
        let more = full.min(STREAM_WINDOW_MAX.saturating_sub(full));
        if more == 0 || more > CONNECTION_GROWTH_MAX - self.taken || !self.pool.take(more) {
            return 0;
        }
        self.taken += more;
        more
    }

    /// Gives back the growth of a stream that is gone.
    pub(super) fn give_back(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.taken, "more is given back than was taken");
        self.taken -= bytes;
        self.pool.give_back(bytes);
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        self.pool.give_back(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_up_to_the_largest() {
        for (first, steps) in
            [(65_536, vec![65_536, 131_072, 262_144, 524_288]), (400_000, vec![400_000, 248_576])]
        {
            let mut growth = Growth::new(&Arc::default());
            let (mut full, mut found) = (first, Vec::new());
            loop {
                let more = growth.grow(full);
                if more == 0 {
                    break;
                }
                full += more;
                found.push(more);
            }
            assert_eq!((found, full), (steps, STREAM_WINDOW_MAX), "{first}");
        }
        assert_eq!(Growth::new(&Arc::default()).grow(3 << 20), 0, "a window that is larger stays");
    }

    #[test]
    fn no_more_than_a_connection_and_a_worker_may() {
        let pool = Arc::new(WindowPool::new(10 << 20));
        let half = STREAM_WINDOW_MAX / 2;
        let mut conns: Vec<Growth> = (0..4).map(|_| Growth::new(&pool)).collect();
        let grown = conns.iter_mut().map(|conn| (0..100).filter(|_| conn.grow(half) > 0).count());
        assert_eq!(grown.collect::<Vec<_>>(), [8, 8, 4, 0]);
        assert_eq!(pool.left(), 0);
        conns[0].give_back(half);
        assert_eq!((conns[3].grow(half), conns[3].grow(half), conns[0].grow(half)), (half, 0, 0));
        conns.truncate(2);
        assert_eq!(pool.left(), (10 << 20) - 8 * u64::from(half) - 7 * u64::from(half));
        conns.clear();
        assert_eq!(pool.left(), 10 << 20);
    }
}
