//! A run spread over several processes, because one may not have as many descriptors as there are
//! connections.
//!
//! Called by the verb, which starts itself again for each part. A part has some of the threads, and
//! writes a line whenever one of them has something to report; together the lines are the record of
//! the run. Bound: 64 processes.

use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::Plan;
use super::record::{Line, Record};

/// Running parts; the remaining ones are ended when this is dropped.
struct Parts(Vec<Child>);

impl Drop for Parts {
    fn drop(&mut self) {
        for part in &mut self.0 {
            // A process that has ended can't be killed, which is fine.
            let _ = part.kill();
            let _ = part.wait();
        }
    }
}

/// The interval of checks whether the run is to end early.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the parts that `command` makes and adds up what they write to standard output; `watch` is
/// called as by [`super::run`]. The parts end when they are done, and when `plan.stop` is set they
/// are asked to (SIGTERM).
///
/// # Errors
/// A part can't be started or failed; its own message is on standard error.
pub fn run_parts(
    plan: &Plan,
    count: usize,
    command: impl Fn(usize) -> Command,
    mut watch: impl FnMut(&Record, u32),
) -> io::Result<Record> {
    let mut record = Record::new(plan);
    let mut parts = Parts(Vec::new());
    for part in 0..count {
        parts.0.push(command(part).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    }
    let pids: Vec<Pid> = parts.0.iter().map(Pid::from_child).collect();
    let over = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| pass_on(plan, &pids, &over));
        for (at, part) in parts.0.iter_mut().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || {
                let part_of = |error: io::Error| {
                    io::Error::new(error.kind(), format!("part {}: {error}", at + 1))
                };
                if let Err(error) = read_part(part, &sender) {
                    // The receiver hears all parts out.
                    let _ = sender.send(Err(part_of(error)));
                }
            });
        }
        drop(sender);
        let heard = hear(&receiver, &mut record, &mut watch);
        // After an error the remaining results are useless: the parts are asked to end.
        plan.stop.store(heard.is_err() || plan.stop.load(Ordering::Relaxed), Ordering::Relaxed);
        over.store(heard.is_ok(), Ordering::Relaxed);
        heard
    })?;
    Ok(record)
}

/// Adds what the parts report until the last has ended; the first error ends all.
fn hear(
    lines: &Receiver<io::Result<Line>>,
    record: &mut Record,
    watch: &mut impl FnMut(&Record, u32),
) -> io::Result<()> {
    let mut seen = 0;
    for line in lines {
        let line = line?;
        let second = if let Line::Second(line) = &line { line.second } else { seen };
        record.add_line(line).map_err(io::Error::other)?;
        // Processes are not as close together as threads: a second is whole when one of them is two
        // further.
        if second > seen + 1 {
            watch(record, seen);
            seen += 1;
        }
    }
    Ok(())
}

/// Passes on what a part writes until it ends.
fn read_part(part: &mut Child, lines: &Sender<io::Result<Line>>) -> io::Result<()> {
    let output = part.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
    for line in BufReader::new(output).lines() {
        let line: Line = serde_json::from_str(&line?).map_err(io::Error::other)?;
        // The receiver is gone when another part has failed.
        if lines.send(Ok(line)).is_err() {
            break;
        }
    }
    let status = part.wait()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

/// Asks the parts to end when this process is asked to.
fn pass_on(plan: &Plan, pids: &[Pid], over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        if plan.stop.load(Ordering::Relaxed) {
            for pid in pids {
                // A part that has ended keeps its number until it is waited for; after that the
                // kernel could give the number to another process, but not this soon.
                let _ = kill_process(*pid, Signal::TERM);
            }
            return;
        }
        std::thread::sleep(LOOK);
    }
}
