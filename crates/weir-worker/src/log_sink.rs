//! A worker's end of the access log: a bounded ring of bytes to the writer's thread.
//!
//! Lines without room are lost and counted; nothing ever waits. Bound: [`LOG_RING_BYTES`] a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering::Relaxed};
use std::thread::Thread;

use rtrb::{Consumer, Producer, RingBuffer};

/// Bytes of lines that wait for the writer, for each worker: enough while a disk is slow.
pub const LOG_RING_BYTES: usize = 4 * 1024 * 1024;
/// With this much in the ring the writer is woken; below that it looks at its own interval.
const WAKE_BYTES: usize = 256 * 1024;

/// The wall clock, written by the writer's thread and read by workers.
#[derive(Debug, Default)]
pub struct Wall {
    /// Microseconds since 1970 less those of the monotonic clock.
    offset_us: AtomicI64,
    /// Seconds that the zone is east of Greenwich.
    zone_s: AtomicI32,
}

impl Wall {
    /// Its reading: microseconds since 1970 less the monotonic clock, and seconds east of
    /// Greenwich.
    pub fn get(&self) -> (i64, i32) {
        (self.offset_us.load(Relaxed), self.zone_s.load(Relaxed))
    }

    pub(crate) fn set(&self, offset_us: i64, zone_s: i32) {
        self.offset_us.store(offset_us, Relaxed);
        self.zone_s.store(zone_s, Relaxed);
    }
}

/// Takes one worker's lines.
#[derive(Debug)]
pub struct LogSink {
    ring: Producer<u8>,
    wall: Arc<Wall>,
    writer: Thread,
}

/// The ring of one worker.
pub(crate) fn ring(bytes: usize) -> (Producer<u8>, Consumer<u8>) {
    RingBuffer::new(bytes)
}

impl LogSink {
    pub(crate) fn new(ring: Producer<u8>, wall: Arc<Wall>, writer: Thread) -> LogSink {
        LogSink { ring, wall, writer }
    }

    /// The reading of the wall clock, as [`Wall::get`].
    pub fn wall(&self) -> (i64, i32) {
        self.wall.get()
    }

    /// Takes as many of these lines as have room, and returns how many were lost.
    pub fn push(&mut self, lines: &[u8]) -> u64 {
        let lost = self.put(lines);
        if self.waiting() >= WAKE_BYTES {
            self.writer.unpark();
        }
        lost
    }

    /// Bytes that the writer has not taken.
    pub(crate) fn waiting(&self) -> usize {
        self.ring.buffer().capacity() - self.ring.slots()
    }

    fn put(&mut self, lines: &[u8]) -> u64 {
        if self.ring.push_entire_slice(lines).is_ok() {
            return 0;
        }
        let room = self.ring.slots().min(lines.len());
        let whole = lines[..room].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let rest = match self.ring.push_entire_slice(&lines[..whole]) {
            Ok(()) => &lines[whole..],
            Err(_) => lines,
        };
        rest.iter().filter(|byte| **byte == b'\n').count() as u64
    }
}

#[cfg(test)]
mod tests {
    //! Proves: lines come out whole and in order, and those without room are counted. How: a ring
    //! of ten bytes.

    use super::*;

    fn taken(ring: &mut Consumer<u8>) -> Vec<u8> {
        std::iter::from_fn(|| ring.pop().ok()).collect()
    }

    #[test]
    fn what_has_no_room_is_lost_by_the_line() {
        let (producer, mut consumer) = ring(10);
        let mut sink = LogSink::new(producer, Arc::default(), std::thread::current());
        assert_eq!(sink.push(b"one\n"), 0);
        assert_eq!(sink.push(b"two\n3\n4\n"), 1);
        assert_eq!(sink.push(b"x\n"), 1);
        assert_eq!(taken(&mut consumer), b"one\ntwo\n3\n");
        assert_eq!(sink.push(b"longer than all\nx\n"), 2);
        assert_eq!(sink.push(b"five\n"), 0);
        assert_eq!(taken(&mut consumer), b"five\n");
    }
}
