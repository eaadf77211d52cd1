//! Proves: the workers' lines are written completely and in order, survive a rename and a
//! destination that is blocked or full, and nothing waits without an end. docs/hostile.md H9. How:
//! sinks without workers, on files, a FIFO and /dev/full; waits end with an event or fail at a
//! deadline.

use std::io::Read;
use std::path::PathBuf;

use weir_check::waiting::{Waiting, eventually};

use super::*;

/// A directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("weir-log-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(path: &Path, workers: usize) -> (LogWriter, Vec<LogSink>, Vec<Arc<Counters>>) {
    let counters: Vec<Arc<Counters>> = (0..workers).map(|_| Arc::default()).collect();
    let (writer, sinks) =
        LogWriter::start(&Destination::File(path.to_owned()), &counters, |_| {}).expect("starts");
    (writer, sinks, counters)
}

/// Lines `worker number` from 0 on, in order for each worker.
fn check(text: &str, workers: usize, each: usize) {
    let mut next = vec![0; workers];
    for line in text.lines() {
        let (worker, number) = line.split_once(' ').expect("two numbers");
        let worker: usize = worker.parse().expect("a worker");
        assert_eq!(number.trim_end_matches('x').parse(), Ok(next[worker]), "{line}");
        next[worker] += 1;
    }
    assert!(text.ends_with('\n') && next.iter().all(|next| *next == each), "{next:?} of {each}");
}

/// Sends the lines `from` to `to` of each worker and returns how many were lost. Lines of very
/// different length.
fn say(sinks: &mut [LogSink], from: usize, to: usize) -> u64 {
    let mut lost = 0;
    for number in from..to {
        for (worker, sink) in sinks.iter_mut().enumerate() {
            let filler = if number % 1000 == 0 { BATCH_BYTES + 5 } else { number % 90 };
            lost += sink.push(format!("{worker} {number}{}\n", "x".repeat(filler)).as_bytes());
        }
    }
    lost
}

#[test]
fn lines_are_written_and_the_file_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("written");
    let path = scratch.path("a.log");
    let (writer, mut sinks, _) = start(&path, 2);
    assert_eq!(say(&mut sinks, 0, 3000), 0);
    writer.finish();
    check(&std::fs::read_to_string(&path).expect("text"), 2, 3000);
    let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o137, 0, "{mode:o}");
    // The file is appended to.
    let (writer, mut sinks, _) = start(&path, 1);
    sinks[0].push(b"more\n");
    writer.finish();
    assert!(std::fs::read_to_string(&path).expect("text").ends_with("x\nmore\n"));
}

/// logrotate: rename, then SIGUSR1. Each line is in one of the files, once.
#[test]
fn a_renamed_file_loses_nothing() {
    let scratch = Scratch::new("renamed");
    let path = scratch.path("a.log");
    let (writer, mut sinks, _) = start(&path, 2);
    let mut old = Vec::new();
    for round in 0..5 {
        assert_eq!(say(&mut sinks, round * 500, round * 500 + 250), 0);
        let name = scratch.path(&format!("{round}.log"));
        std::fs::rename(&path, &name).expect("renamed");
        writer.reopen();
        old.push(name);
        assert_eq!(say(&mut sinks, round * 500 + 250, round * 500 + 500), 0);
        eventually("the new file", || path.exists());
    }
    writer.finish();
    old.push(path);
    let text: String =
        old.iter().map(|name| std::fs::read_to_string(name).expect("text")).collect();
    check(&text, 2, 2500);
}

/// A FIFO without a reader takes a little; then lines are lost and counted, but nothing blocks.
/// When a reader comes, the log continues with whole lines.
#[test]
fn h9_a_blocked_fifo() {
    let scratch = Scratch::new("fifo");
    let path = scratch.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("a FIFO");
    let (writer, mut sinks, counters) = start(&path, 1);
    let line = [&[b'a'; 999][..], b"\n"].concat();
    let (mut said, mut lost) = (0u64, 0);
    eventually("the ring is full", || {
        for _ in 0..1000 {
            said += 1;
            lost += sinks[0].push(&line);
        }
        lost > 0
    });
    assert!(said >= (LOG_RING_BYTES / 1000) as u64);
    counters[0].log_lines_lost.add(lost);
    let mut reader = OpenOptions::new().read(true).open(&path).expect("somebody reads");
    let mut read = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    let kept = (said - lost) as usize * 1000;
    while read.len() < kept {
        let bytes = reader.read(&mut buffer).expect("readable");
        read.extend_from_slice(&buffer[..bytes]);
    }
    assert!(read.len() == kept && read.chunks(1000).all(|chunk| chunk == line));
    writer.finish();
}

/// The end does not wait for a destination that takes nothing.
#[test]
fn the_end_is_bounded() {
    let scratch = Scratch::new("end");
    let path = scratch.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("a FIFO");
    let (writer, mut sinks, _) = start(&path, 1);
    for _ in 0..1000 {
        sinks[0].push(&[&[b'a'; 999][..], b"\n"].concat());
    }
    let mut waiting = Waiting::begin();
    writer.finish();
    assert!(waiting.goes_on(), "{}", waiting.story());
}

/// A full disk is tried again; after it was moved away nothing is missing.
#[test]
fn a_full_disk_keeps_lines() {
    let scratch = Scratch::new("full");
    let path = scratch.path("a.log");
    std::os::unix::fs::symlink("/dev/full", &path).expect("a link");
    let (writer, mut sinks, _) = start(&path, 1);
    assert_eq!(say(&mut sinks, 0, 900), 0);
    // More than that was logged.
    eventually("a write is tried", || sinks[0].waiting() < BATCH_BYTES);
    std::fs::remove_file(&path).expect("removed");
    writer.reopen();
    assert_eq!(say(&mut sinks, 900, 1800), 0);
    writer.finish();
    check(&std::fs::read_to_string(&path).expect("text"), 1, 1800);
}

/// A line that the old destination took only in part is complete in the new one.
#[test]
fn no_line_is_torn_by_a_rename() {
    let scratch = Scratch::new("torn");
    let path = scratch.path("a.log");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("a FIFO");
    let mut pipe = open_file(&path).expect("the FIFO");
    let (writer, mut sinks, _) = start(&path, 1);
    assert_eq!(say(&mut sinks, 1, 6000), 0);
    eventually("the pipe is full", || !is_writable(&pipe));
    std::fs::remove_file(&path).expect("removed");
    writer.reopen();
    writer.finish();
    let mut text = Vec::new();
    assert!(pipe.read_to_end(&mut text).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    // The pipe ends within a line, except by rare chance.
    let rest = std::fs::read_to_string(&path).expect("text");
    check(&format!("0 0\n{}{rest}", String::from_utf8_lossy(&text[..whole])), 1, 6000);
}

#[test]
fn what_can_not_be_opened_says_so() {
    let scratch = Scratch::new("opened");
    for (path, expected) in [
        (scratch.path("none/a.log"), "none/a.log: No such file"),
        (scratch.0.clone(), "Is a directory"),
    ] {
        let error =
            LogWriter::start(&Destination::File(path), &[], |_| {}).expect_err("can't be opened");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// The clock is set before the first line.
#[test]
fn the_wall_shows_now() {
    let scratch = Scratch::new("wall");
    let (_writer, sinks, _) = start(&scratch.path("a.log"), 1);
    let monotonic = clock_gettime(ClockId::Monotonic).tv_sec;
    let now_s = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let shown_s = sinks[0].wall().0 / 1_000_000 + monotonic;
    assert!((now_s as i64 - shown_s).abs() <= 2, "{shown_s} is not {now_s}");
}
