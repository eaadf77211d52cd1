//! The thread that writes the access log: takes the lines that workers put into their rings, and
//! writes them in large pieces.
//!
//! A destination that is slow, full or gone is tried again for as long as weir runs; meanwhile the
//! rings fill and workers lose lines, never time (docs/hostile.md H9). Started by `start`; ends
//! after the workers. Lines of one worker keep their order. Bounds: [`BATCH_BYTES`] and a line
//! besides the rings, [`LAST_WORDS_MAX`] at the end.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rtrb::Consumer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};
use weir_proxy::observe::access::Destination;
use weir_proxy::observe::counters::Counters;

use crate::log_sink::{LOG_RING_BYTES, LogSink, Wall, ring};
use crate::zone::Zone;

/// Most bytes in one write.
const BATCH_BYTES: usize = 256 * 1024;
/// Most bytes in one write to a destination that may block: a pipe that is ready takes this much.
const PIECE_BYTES: usize = 4096;
/// How often the writer looks unprompted, and how long it waits for a destination before it looks
/// around.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the end of weir waits for a slow destination.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);
/// Time between two complaints.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// A problem with the access log, for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTrouble {
    /// The time zone of the machine is not known: the reason.
    Zone(String),
    /// The destination cannot be written: the error. The writer tries again.
    Failed(String),
    /// The writer ends without having written the last lines.
    Unwritten,
    /// Number of lines lost since the start, because the destination does not accept them.
    Lost(u64),
}

/// Reports a problem with the access log to the operator.
pub type Complain = fn(LogTrouble);

/// The writer as others see it.
#[derive(Debug)]
pub struct LogWriter {
    orders: Arc<Orders>,
    thread: JoinHandle<()>,
    ended: Receiver<()>,
}

#[derive(Debug, Default)]
struct Orders {
    reopen: AtomicBool,
    stop: AtomicBool,
}

impl LogWriter {
    /// Opens the destination and starts the writer, with a sink for each worker.
    ///
    /// # Errors
    /// The operating system's, when the destination can't be opened or no thread can be created.
    pub(crate) fn start(
        to: &Destination,
        workers: &[Arc<Counters>],
        complain: Complain,
    ) -> io::Result<(LogWriter, Vec<LogSink>)> {
        let target = Target::open(to)?;
        let (producers, rings): (Vec<_>, Vec<_>) =
            workers.iter().map(|_| ring(LOG_RING_BYTES)).unzip();
        let (wall, orders) = (Arc::new(Wall::default()), Arc::new(Orders::default()));
        let (ending, ended) = channel();
        let (zone, unknown) = Zone::read();
        let writer = Writer {
            target,
            to: to.clone(),
            rings,
            place: 0,
            left: 0,
            batch: Vec::with_capacity(BATCH_BYTES),
            written: 0,
            wall: Arc::clone(&wall),
            zone,
            orders: Arc::clone(&orders),
            complaints: Complaints::new(workers.to_vec(), complain),
        };
        if let Some(why) = unknown {
            complain(LogTrouble::Zone(why));
        }
        writer.look_at_the_clock();
        let thread = std::thread::Builder::new()
            .name("weir-log".to_owned())
            .spawn(move || writer.run(&ending))?;
        let sink = |ring| LogSink::new(ring, Arc::clone(&wall), thread.thread().clone());
        let sinks = producers.into_iter().map(sink).collect();
        Ok((LogWriter { orders, thread, ended }, sinks))
    }

    /// Reopens the file after it was renamed.
    pub(crate) fn reopen(&self) {
        self.orders.reopen.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }

    fn stop(&self) {
        self.orders.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }

    /// Ends the writer when all lines of the workers are written, or have to be given up. The
    /// workers have ended.
    pub(crate) fn finish(self) {
        self.stop();
        // A disk that doesn't come back would keep the thread; the process may end without it.
        let _ = self.ended.recv_timeout(2 * LAST_WORDS_MAX);
    }
}

/// Also when starting failed later.
impl Drop for LogWriter {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where lines are written.
struct Target {
    file: File,
    /// A write may block, although it has been found ready, when it is longer than [`PIECE_BYTES`].
    may_block: bool,
}

impl Target {
    fn open(to: &Destination) -> io::Result<Target> {
        match to {
            Destination::Stdout => {
                let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
                let may_block = !file.metadata()?.is_file();
                Ok(Target { file, may_block })
            }
            Destination::File(path) => Ok(Target { file: open_file(path)?, may_block: false }),
        }
    }
}

/// Opens it without waiting for anything. A FIFO is opened both ways, so that its reader may come
/// and go.
fn open_file(path: &Path) -> io::Result<File> {
    let is_fifo = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo());
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let mut options = OpenOptions::new();
    if is_fifo {
        options.read(true).write(true);
    } else {
        options.append(true).create(true).mode(0o640);
    }
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    options.custom_flags(flags).open(path).map_err(named)
}

struct Writer {
    target: Target,
    to: Destination,
    rings: Vec<Consumer<u8>>,
    /// The worker whose lines are being written.
    place: usize,
    /// Bytes of them in its ring.
    left: usize,
    /// Begins with a line.
    batch: Vec<u8>,
    /// The number of bytes of the batch that are written.
    written: usize,
    wall: Arc<Wall>,
    /// Of the times in it.
    zone: Zone,
    orders: Arc<Orders>,
    complaints: Complaints,
}

impl Writer {
    fn run(mut self, ending: &Sender<()>) {
        let mut end: Option<Instant> = None;
        loop {
            if self.orders.reopen.swap(false, Ordering::AcqRel) {
                self.reopen();
            }
            self.look_at_the_clock();
            if self.orders.stop.load(Ordering::Acquire) {
                end.get_or_insert_with(|| Instant::now() + LAST_WORDS_MAX);
            }
            let idle = !self.has_work();
            if end.is_some_and(|end| idle || Instant::now() >= end) {
                break;
            }
            let flowing = !idle && self.work();
            self.complaints.look();
            // Otherwise a pause lets many lines share a write.
            let hurry = flowing && (self.has_much() || end.is_some());
            if !hurry {
                std::thread::park_timeout(LOOK_EVERY);
            }
        }
        if self.has_work() {
            (self.complaints.complain)(LogTrouble::Unwritten);
        }
        // If the end came too late, the receiver no longer listens.
        let _ = ending.send(());
    }

    fn has_work(&self) -> bool {
        self.written < self.batch.len()
            || self.left > 0
            || self.rings.iter().any(|ring| ring.slots() > 0)
    }

    fn has_much(&self) -> bool {
        self.rings.iter().any(|ring| ring.slots() >= BATCH_BYTES)
    }

    /// Writes all lines that the workers have logged by now. False: the destination does not take
    /// them.
    fn work(&mut self) -> bool {
        let mut looked = 0;
        while self.write_batch() {
            if self.left == 0 && looked == self.rings.len() {
                return true;
            }
            if self.left == 0 {
                looked += 1;
                self.place = (self.place + 1) % self.rings.len();
                // Whole lines: workers put nothing else in.
                self.left = self.rings[self.place].slots();
            }
            self.fill();
        }
        false
    }

    /// Moves bytes of the present worker into the batch.
    fn fill(&mut self) {
        let line = self.line_start();
        self.batch.drain(..line);
        self.written -= line;
        let bytes = self.left.min(BATCH_BYTES);
        if let Ok(chunk) = self.rings[self.place].read_chunk(bytes) {
            let (first, second) = chunk.as_slices();
            self.batch.extend_from_slice(first);
            self.batch.extend_from_slice(second);
            chunk.commit_all();
            self.left -= bytes;
        }
    }

    /// Where the partly written line begins.
    fn line_start(&self) -> usize {
        self.batch[..self.written].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
    }

    /// Writes the rest of the batch. False: the destination does not take it now.
    fn write_batch(&mut self) -> bool {
        while self.written < self.batch.len() {
            let rest = &self.batch[self.written..];
            let piece = if self.target.may_block {
                if !is_writable(&self.target.file) {
                    return false;
                }
                &rest[..rest.len().min(PIECE_BYTES)]
            } else {
                rest
            };
            match (&self.target.file).write(piece) {
                Ok(bytes @ 1..) => self.written += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !is_writable(&self.target.file) {
                        return false;
                    }
                }
                Ok(_) => return false,
                Err(error) => {
                    self.complaints.failed(&error);
                    return false;
                }
            }
        }
        true
    }

    fn reopen(&mut self) {
        match Target::open(&self.to) {
            Ok(target) => {
                // Whichever part of a line the old file has, the new one gets all of it.
                self.written = self.line_start();
                self.target = target;
            }
            Err(error) => self.complaints.failed(&error),
        }
    }

    fn look_at_the_clock(&self) {
        self.wall.set(wall_offset_us(), self.zone.offset_s(jiff::Timestamp::now()));
    }
}

/// The reading of the wall clock in microseconds since 1970, less the monotonic clock.
pub fn wall_offset_us() -> i64 {
    let us = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1_000_000 + time.tv_nsec / 1000
    };
    us(ClockId::Realtime) - us(ClockId::Monotonic)
}

/// Whether a write would be taken, at least of [`PIECE_BYTES`]; waits a little.
fn is_writable(file: &File) -> bool {
    let patience = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
    let mut waits = [PollFd::new(file, PollFlags::OUT)];
    matches!(poll(&mut waits, Some(&patience)), Ok(1..))
}

/// Reports problems, at most once in a while.
struct Complaints {
    workers: Vec<Arc<Counters>>,
    lost: u64,
    /// When the last complaint of each kind was made: failures, losses.
    told: [Option<Instant>; 2],
    complain: Complain,
}

impl Complaints {
    fn new(workers: Vec<Arc<Counters>>, complain: Complain) -> Complaints {
        Complaints { workers, lost: 0, told: [None; 2], complain }
    }

    fn failed(&mut self, error: &io::Error) {
        if self.may_tell(0) {
            (self.complain)(LogTrouble::Failed(error.to_string()));
        }
    }

    /// Reports lost lines.
    fn look(&mut self) {
        let lost = self.workers.iter().map(|counters| counters.log_lines_lost.get()).sum();
        if lost > self.lost && self.may_tell(1) {
            self.lost = lost;
            (self.complain)(LogTrouble::Lost(lost));
        }
    }

    fn may_tell(&mut self, kind: usize) -> bool {
        let may = self.told[kind].is_none_or(|told| told.elapsed() >= COMPLAIN_EVERY);
        if may {
            self.told[kind] = Some(Instant::now());
        }
        may
    }
}

#[cfg(test)]
mod tests;
